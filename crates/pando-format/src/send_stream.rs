//! The stream in which a snapshot goes to another volume.
//!
//! A preamble says what it is and of which version. Frames follow: one that begins, any number with moves, any number with changes of keys, one that ends. Each has a
//! header, whose checksum covers its payload and the checksum of the frame before it:
//!
//! * ST-1 a stream is whole only if every frame has the next sequence and goes on from the checksum of the one before it, and the
//!   last says how many changes there were. So what is cut off, lost or put together from two is found.
//! * ST-2 a frame decodes to at most [`DECODED_BYTES_MAX`], however its keys are compressed.

use bytes::Bytes;

use crate::checksum::checksum_pieces;
use crate::codec::{Reader, Writer};
use crate::error::{FormatError, Structure};
use crate::key::KEY_LENGTH_MAX;
use crate::{Tree, VolumeId};

const STREAM: Structure = Structure::SendStream;

/// The version that is written, and the newest that is understood. Version 1, without moves, is understood as well.
pub const VERSION: u16 = 2;
/// The oldest version that is understood.
pub const OLDEST_VERSION: u16 = 1;
/// First bytes of every stream of every version.
pub const MAGIC: [u8; 8] = *b"PANDSEND";
/// Bytes of the preamble: the magic, the version and zeros.
pub const PREAMBLE_LENGTH: usize = 16;
/// Bytes of a frame's header.
pub const FRAME_HEADER_LENGTH: usize = 24;
/// Bytes of keys and values in a frame, or of places, at most, keys counted whole.
pub const DECODED_BYTES_MAX: usize = 4 << 20;
/// Bytes of a payload, at most: every change has [`CHANGE_LENGTH_MIN`] beside what it decodes to.
pub const PAYLOAD_LENGTH_MAX: usize = 8 << 20;
/// Bytes of a change beside key and value.
pub const CHANGE_LENGTH_MIN: usize = 10;

/// Bytes of a move beside its places, but for the length of that in the base.
pub const MOVE_LENGTH_MIN: usize = 6;

/// What a move counts towards [`DECODED_BYTES_MAX`] beside that: it takes more in memory.
const MOVE_OVERHEAD: usize = 24;

/// Names one snapshot among those of all volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotId {
    /// The volume on which it was taken.
    pub volume: VolumeId,
    /// Its number there.
    pub number: u64,
    /// When it was taken: seconds since 1970. A copy of the volume may have given the number to another one.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// How a stream begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Begin {
    /// What is sent.
    pub snapshot: SnapshotId,
    /// From which snapshot the changes are; `None`: from nothing.
    pub base: Option<SnapshotId>,
    /// Above all inode numbers in it.
    pub counter: u64,
    /// Its name.
    pub name: Bytes,
    /// The value of the empty key.
    pub root: Bytes,
}

/// A key that is put, or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// The index.
    pub tree: Tree,
    /// The key in the live tree.
    pub key: Bytes,
    /// Its value; `None` if it has gone.
    pub value: Option<Bytes>,
}

/// What a move is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// All keys of both indexes below a directory, given by its path.
    Directory,
    /// The data of a file with one name, given by its metadata key.
    File,
}

/// A place in the snapshot whose keys are at first those of a place in the base, or none. Where one lies in another, the inner one holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// What is meant by the places.
    pub what: Moved,
    /// The place in the base; `None`: there is nothing.
    pub from: Option<Bytes>,
    /// The place in the snapshot.
    pub to: Bytes,
}

/// A piece of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first one.
    Begin(Begin),
    /// Moves, in front of all changes; what lies in another place comes behind that.
    Moves(Vec<Move>),
    /// Changes, not of the same keys.
    Changes(Vec<KeyChange>),
    /// The last one: how many changes there were.
    End(u64),
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    kind: u32,
    /// Bytes that follow it.
    pub payload_length: u32,
    sequence: u64,
    checksum: u64,
}

/// Where a reader or writer of a stream is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chain {
    sequence: u64,
    checksum: u64,
}

/// The preamble.
pub fn encode_preamble() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.raw(&MAGIC);
    writer.u16(VERSION);
    writer.zeros(PREAMBLE_LENGTH - 10);
    writer.into_vec()
}

/// Checks a preamble.
pub fn decode_preamble(bytes: &Bytes) -> Result<(), FormatError> {
    let mut reader = Reader::new(STREAM, bytes);
    let magic: [u8; 8] = reader.array()?;
    if magic != MAGIC {
        let [found, expected] = [magic, MAGIC].map(u64::from_le_bytes);
        return Err(FormatError::Magic { structure: STREAM, found, expected });
    }
    let version = reader.u16()?;
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        return Err(FormatError::Version { structure: STREAM, found: version, supported: VERSION });
    }
    let zeros: [u8; PREAMBLE_LENGTH - 10] = reader.array()?;
    if zeros != [0; PREAMBLE_LENGTH - 10] {
        return Err(reader.wrong("a reserved byte", 1, "0"));
    }
    reader.finish()
}

impl Frame {
    /// The bytes of the next frame of a stream, header and payload.
    pub fn encode(&self, chain: &mut Chain) -> Vec<u8> {
        let mut writer = Writer::new();
        let kind: u32 = match self {
            Self::Begin(begin) => {
                begin.encode(&mut writer);
                1
            }
            Self::Changes(changes) => {
                encode_changes(changes, &mut writer);
                2
            }
            Self::End(changes) => {
                writer.u64(*changes);
                3
            }
            Self::Moves(moves) => {
                encode_moves(moves, &mut writer);
                4
            }
        };
        let payload = writer.into_vec();
        let mut header = Writer::new();
        header.u32(kind);
        header.u32(payload.len() as u32);
        header.u64(chain.sequence);
        let checksum = chain.checksum_of(header.as_slice(), &payload);
        header.u64(checksum);
        *chain = Chain { sequence: chain.sequence + 1, checksum };
        let mut bytes = header.into_vec();
        bytes.extend_from_slice(&payload);
        bytes
    }

    /// Reads the next frame of a stream. Never trusts the bytes.
    pub fn decode(header: &FrameHeader, payload: &Bytes, chain: &mut Chain) -> Result<Self, FormatError> {
        let mut front = Writer::new();
        front.u32(header.kind);
        front.u32(header.payload_length);
        front.u64(header.sequence);
        let found = chain.checksum_of(front.as_slice(), payload);
        if found != header.checksum || payload.len() != header.payload_length as usize {
            return Err(FormatError::Checksum { structure: STREAM, found, expected: header.checksum });
        }
        if header.sequence != chain.sequence {
            let reader = Reader::new(STREAM, payload);
            return Err(reader.wrong("the number of a frame", header.sequence, "one more than that before"));
        }
        let frame = Self::decode_payload(header.kind, payload)?;
        *chain = Chain { sequence: chain.sequence + 1, checksum: found };
        Ok(frame)
    }

    /// Reads a payload, whose checksum is not looked at. Never trusts the bytes.
    pub fn decode_payload(kind: u32, payload: &Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader::new(STREAM, payload);
        let frame = match kind {
            1 => Self::Begin(Begin::decode(&mut reader)?),
            2 => Self::Changes(decode_changes(&mut reader)?),
            3 => Self::End(reader.u64()?),
            4 => Self::Moves(decode_moves(&mut reader)?),
            kind => return Err(reader.wrong("the kind of a frame", kind.into(), "1 to 4")),
        };
        reader.finish()?;
        Ok(frame)
    }
}

impl FrameHeader {
    /// What kind of frame it says.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Reads a header. What it says is only proved by [`Frame::decode`], but for the length, which is bounded.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader::new(STREAM, bytes);
        let header = Self {
            kind: reader.u32()?,
            payload_length: reader.u32()?,
            sequence: reader.u64()?,
            checksum: reader.u64()?,
        };
        reader.finish()?;
        if header.payload_length as usize > PAYLOAD_LENGTH_MAX {
            return Err(reader.wrong("the length of a frame", header.payload_length.into(), "at most 8 MiB"));
        }
        Ok(header)
    }
}

impl Chain {
    fn checksum_of(&self, header: &[u8], payload: &[u8]) -> u64 {
        checksum_pieces(STREAM, [&self.checksum.to_le_bytes()[..], header, payload])
    }
}

impl SnapshotId {
    fn encode(&self, writer: &mut Writer) {
        writer.raw(&self.volume);
        writer.u64(self.number);
        writer.u64(self.seconds as u64);
        writer.u32(self.nanoseconds);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (volume, number) = (reader.array()?, reader.u64()?);
        Ok(Self { volume, number, seconds: reader.u64()? as i64, nanoseconds: reader.u32()? })
    }
}

impl Begin {
    fn encode(&self, writer: &mut Writer) {
        self.snapshot.encode(writer);
        writer.u8(self.base.is_some().into());
        if let Some(base) = &self.base {
            base.encode(writer);
        }
        writer.u64(self.counter);
        writer.sized_bytes(&self.name);
        writer.sized_bytes(&self.root);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let snapshot = SnapshotId::decode(reader)?;
        let base = match reader.u8()? {
            0 => None,
            1 => Some(SnapshotId::decode(reader)?),
            other => return Err(reader.wrong("whether there is a base", other.into(), "0 or 1")),
        };
        let counter = reader.u64()?;
        Ok(Self { snapshot, base, counter, name: reader.sized_bytes()?, root: reader.sized_bytes()? })
    }
}

impl KeyChange {
    /// What it counts towards [`DECODED_BYTES_MAX`].
    pub fn length(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + CHANGE_LENGTH_MIN
    }
}

impl Move {
    /// Bytes that it takes in a frame.
    pub fn length(&self) -> usize {
        MOVE_LENGTH_MIN + self.to.len() + self.from.as_ref().map_or(0, |from| 4 + from.len())
    }
}

fn encode_moves(moves: &[Move], writer: &mut Writer) {
    writer.u32(moves.len() as u32);
    for Move { what, from, to } in moves {
        writer.u8(match what {
            Moved::Directory => 0,
            Moved::File => 1,
        });
        writer.u8(from.is_some().into());
        writer.sized_bytes(to);
        if let Some(from) = from {
            writer.sized_bytes(from);
        }
    }
}

fn decode_moves(reader: &mut Reader<'_>) -> Result<Vec<Move>, FormatError> {
    let count = reader.count(MOVE_LENGTH_MIN)?;
    let mut moves = Vec::new();
    let mut bytes = 0;
    for _ in 0..count {
        let what = match reader.u8()? {
            0 => Moved::Directory,
            1 => Moved::File,
            other => return Err(reader.wrong("what is moved", other.into(), "0 or 1")),
        };
        let has_from = reader.u8()?;
        let to = place(reader)?;
        let from = match has_from {
            0 => None,
            1 => Some(place(reader)?),
            other => {
                return Err(reader.wrong("whether there is a place in the base", other.into(), "0 or 1"));
            }
        };
        let moved = Move { what, from, to };
        bytes += moved.length() + MOVE_OVERHEAD;
        check_decoded(reader, bytes)?;
        moves.push(moved);
    }
    Ok(moves)
}

/// ST-2.
fn check_decoded(reader: &Reader<'_>, bytes: usize) -> Result<(), FormatError> {
    match bytes {
        0..=DECODED_BYTES_MAX => Ok(()),
        _ => Err(reader.wrong("what a frame decodes to", bytes as u64, "at most 4 MiB")),
    }
}

fn place(reader: &mut Reader<'_>) -> Result<Bytes, FormatError> {
    let place = reader.sized_bytes()?;
    if place.len() > KEY_LENGTH_MAX {
        return Err(reader.wrong("the length of a place", place.len() as u64, "256 KiB"));
    }
    Ok(place)
}

fn encode_changes(changes: &[KeyChange], writer: &mut Writer) {
    writer.u32(changes.len() as u32);
    let mut previous: &[u8] = &[];
    for KeyChange { tree, key, value } in changes {
        let shared = crate::key::common_prefix(previous, key);
        writer.u8(*tree as u8);
        writer.u8(value.is_some().into());
        writer.u32(shared as u32);
        writer.sized_bytes(&key[shared..]);
        if let Some(value) = value {
            writer.sized_bytes(value);
        }
        previous = key;
    }
}

fn decode_changes(reader: &mut Reader<'_>) -> Result<Vec<KeyChange>, FormatError> {
    let count = reader.count(CHANGE_LENGTH_MIN)?;
    let mut changes: Vec<KeyChange> = Vec::new();
    let mut bytes = 0;
    for _ in 0..count {
        let tree = reader.u8()?;
        let tree = Tree::from_number(tree).ok_or_else(|| reader.wrong("an index", tree.into(), "0 or 1"))?;
        let has_value = reader.u8()?;
        let shared = reader.u32()? as usize;
        let rest = reader.sized_bytes()?;
        let previous = changes.last().map_or(&[][..], |change| &change.key);
        let front = previous
            .get(..shared)
            .ok_or_else(|| reader.wrong("what a key shares", shared as u64, "no more than the key before"))?;
        if front.len() + rest.len() > KEY_LENGTH_MAX {
            return Err(reader.wrong("the length of a key", (front.len() + rest.len()) as u64, "256 KiB"));
        }
        let key: Bytes = [front, &rest].concat().into();
        let value = match has_value {
            0 => None,
            1 => Some(reader.sized_bytes()?),
            other => return Err(reader.wrong("whether there is a value", other.into(), "0 or 1")),
        };
        let change = KeyChange { tree, key, value };
        bytes += change.length();
        check_decoded(reader, bytes)?;
        changes.push(change);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let snapshot = SnapshotId { volume: *b"0123456789abcdef", number: 7, seconds: -1, nanoseconds: 5 };
        let base = Some(SnapshotId { number: 5, ..snapshot });
        let (name, root) = (Bytes::from_static(b"name"), Bytes::from_static(b"root"));
        let change = |tree, key: &'static [u8], value: Option<&'static [u8]>| KeyChange {
            tree,
            key: key.into(),
            value: value.map(Bytes::from_static),
        };
        vec![
            Frame::Begin(Begin { snapshot, base, counter: 70_000, name, root }),
            Frame::Moves(vec![
                Move { what: Moved::Directory, from: Some("\0a\0b".into()), to: "\0c".into() },
                Move { what: Moved::File, from: None, to: "\0\0file".into() },
            ]),
            Frame::Changes(vec![
                change(Tree::Metadata, b"\0\0a", Some(b"record")),
                change(Tree::Metadata, b"\0\0ab", None),
                change(Tree::Data, b"\0\0a\0\0", Some(b"")),
            ]),
            Frame::Changes(Vec::new()),
            Frame::End(3),
        ]
    }

    fn decode_one(bytes: &[u8], chain: &mut Chain) -> Result<Frame, FormatError> {
        let bytes = Bytes::copy_from_slice(bytes);
        let header = FrameHeader::decode(&bytes.slice(..FRAME_HEADER_LENGTH))?;
        Frame::decode(&header, &bytes.slice(FRAME_HEADER_LENGTH..), chain)
    }

    #[test]
    fn a_stream_survives_the_way_there_and_back() {
        assert_eq!(decode_preamble(&encode_preamble().into()), Ok(()));
        let (mut there, mut back) = (Chain::default(), Chain::default());
        for frame in frames() {
            let bytes = frame.encode(&mut there);
            assert_eq!(decode_one(&bytes, &mut back), Ok(frame));
        }
        assert_eq!(there, back);
    }

    #[test]
    fn no_changed_byte_and_no_lost_frame_passes() {
        let mut chain = Chain::default();
        for frame in frames() {
            let before = chain;
            let bytes = frame.encode(&mut chain);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert!(decode_one(&damaged, &mut before.clone()).is_err(), "{at}");
            }
            assert!(decode_one(&bytes, &mut chain.clone()).is_err());
        }
        for at in 0..PREAMBLE_LENGTH {
            let mut damaged = encode_preamble();
            damaged[at] ^= 1;
            assert!(decode_preamble(&damaged.into()).is_err(), "{at}");
        }
    }

    #[test]
    fn the_smallest_moves_do_not_grow_beyond_bounds() {
        let moved = Move { what: Moved::File, from: None, to: Bytes::new() };
        let bytes = Frame::Moves(vec![moved; 200_000]).encode(&mut Chain::default());
        assert!(matches!(
            decode_one(&bytes, &mut Chain::default()),
            Err(FormatError::Field { field: "what a frame decodes to", .. })
        ));
    }

    #[test]
    fn keys_that_share_much_do_not_grow_beyond_bounds() {
        let key = Bytes::from(vec![b'k'; KEY_LENGTH_MAX]);
        let change = KeyChange { tree: Tree::Metadata, key, value: None };
        let bytes = Frame::Changes(vec![change; 17]).encode(&mut Chain::default());
        assert!(bytes.len() < 300_000);
        assert!(matches!(
            decode_one(&bytes, &mut Chain::default()),
            Err(FormatError::Field { field: "what a frame decodes to", .. })
        ));
    }
}
