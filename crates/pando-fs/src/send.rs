//! Sending a snapshot: what a receiver has to put and delete to have it, as a stream (`pando-format`'s `send_stream`).
//!
//! A snapshot is keys below a prefix, so its stream is the keys that differ from those of the base, or all. Inode numbers go as they are stored:
//! the delta on the root's record, which each volume makes for itself, keeps them apart from others. So nothing that a record
//! says is lost. What has only got another place is said to be moved ([`crate::moves`]).

use std::io::{self, Write};

use bytes::Bytes;
use pando_engine::{KeyRange, ScanLimit, Tree};
use pando_format::FormatError;
use pando_format::send_stream::{Begin, Chain, Frame, KeyChange, Move, SnapshotId, encode_preamble};

use crate::difference::TreeSide;
use crate::frozen::Frozen;
use crate::moves::{self, Segment};
use crate::operations::waiting;
use crate::schema::{Record, Timestamp, key, number};
use crate::snapshot::{RANGES, Snapshot};
use crate::{Error, FileSystem, numbers};

/// A frame is written when it has come to so many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// As much is read at once.
const CHUNK: ScanLimit = ScanLimit { entries: 4096, bytes: FRAME_BYTES };

/// Why a snapshot was not sent or received. Nothing has changed then, unless the sync failed that was to make durable what had come: the
/// volume takes no changes any more, and the next mount may find the snapshot there, whole.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransferError {
    /// The volume said no.
    Volume(Error),
    /// The stream could not be written.
    Output(io::Error),
    /// The stream could not be read.
    Input(io::Error),
    /// It ends before its end.
    CutOff,
    /// It is damaged, no stream at all, or of a later version.
    Stream(FormatError),
    /// Something follows its end.
    GoesOn,
    /// It holds what cannot be in a snapshot.
    Refused(&'static str),
    /// It begins from a snapshot that is not there.
    NoBase,
    /// Changes of the writable snapshot that was being sent, which were refused at first, are let through.
    ChangesAgain,
    /// The path that begins so has become too long to be received anywhere.
    PathTooLong(String),
    /// The base is a writable snapshot, which is no moment that another volume could know again.
    WritableBase,
}

impl From<Error> for TransferError {
    fn from(error: Error) -> Self {
        Self::Volume(error)
    }
}

impl From<FormatError> for TransferError {
    fn from(error: FormatError) -> Self {
        Self::Stream(error)
    }
}

impl std::fmt::Display for TransferError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Volume(error) => f.write_str(&error.snapshot_text()),
            Self::Output(error) => write!(f, "the stream cannot be written: {error}"),
            Self::Input(error) => write!(f, "the stream cannot be read: {error}"),
            Self::CutOff => f.write_str("the stream ends too soon; nothing was received"),
            Self::Stream(FormatError::Version { found, supported, .. }) => write!(
                f,
                "the stream has version {found}, and this program understands version {supported}; use a newer one"
            ),
            Self::Stream(FormatError::Magic { .. }) => f.write_str("this is no stream of 'pando send'"),
            Self::Stream(error) => write!(f, "{error}; nothing was received"),
            Self::GoesOn => f.write_str("something follows the end of the stream; nothing was received"),
            Self::Refused(what) => write!(f, "the stream holds {what}; nothing was received"),
            Self::ChangesAgain => f.write_str("the volume was mounted for writing again meanwhile"),
            Self::PathTooLong(path) => write!(
                f,
                "a path is longer than any volume takes it, since something above was renamed: '{path}...'; rename it back and send another snapshot, or, if the base alone has it, send without a base"
            ),
            Self::WritableBase => f.write_str(
                "the base is writable, so no other volume has it; before its first changes are sent, take a read-only \
                 snapshot of it with 'pando snapshot create --of', send that one, and name it as the base",
            ),
            Self::NoBase => f.write_str(
                "the snapshot that the stream begins from is not on this volume; receive that one first, or send \
                 the whole one without -i",
            ),
        }
    }
}

impl std::error::Error for TransferError {}

/// What was sent or received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Keys put or deleted.
    pub changes: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl Snapshot {
    /// Names it among the snapshots of all volumes: wherever it was received, it has the same.
    pub(crate) fn id(&self, volume: pando_engine::VolumeId) -> SnapshotId {
        let (volume, number) = self.origin.unwrap_or((volume, self.number.0));
        let Timestamp { seconds, nanoseconds } = self.taken.into();
        SnapshotId { volume, number, seconds, nanoseconds }
    }
}

impl FileSystem {
    /// Writes a snapshot to a stream: what differs from the base, or all of it. A writable one is sent as it is at the start. A read-only one, or a base,
    /// that is deleted meanwhile is an error, and what was written has no end; so is a writable one that nobody could change at the start, and
    /// may now. With a base, directories and large files that came or went since are kept in memory, some hundred bytes each, to find those that
    /// were moved. Waits for the device and for the output.
    pub fn send_snapshot(
        &self,
        name: &[u8],
        base: Option<&[u8]>,
        out: &mut dyn Write,
    ) -> Result<Transferred, TransferError> {
        let mut new = self.snapshot_side(name)?;
        let old = match base {
            Some(base) => self.snapshot_side(base)?,
            // No snapshot has this number.
            None => TreeSide::new(key::snapshot_prefix(0), None),
        };
        if old.snapshot.as_ref().is_some_and(|base| base.writable) {
            return Err(TransferError::WritableBase);
        }
        let volume = self.store.engine().superblock().volume;
        let mut id = new.snapshot.as_ref().map(|snapshot| snapshot.id(volume)).unwrap_or_default();
        let mut frozen = None;
        let mut parked = Vec::new();
        let mut refusal = None;
        if new.snapshot.as_ref().is_some_and(|snapshot| snapshot.writable) {
            // Then it does not matter what is refused besides, or let through again.
            let never_changes = self.never_changes();
            refusal = self.refusal().filter(|_| !never_changes);
            if !never_changes && refusal.is_none() {
                let made = Frozen::make(self, name)?;
                id = made.snapshot.id(volume);
                new = TreeSide::new(key::snapshot_prefix(made.snapshot.number.0), None);
                frozen = Some(made);
            } else {
                // Nobody changes it, once what had begun before is done. What it is some other time is another snapshot to who receives it.
                drop(self.namespace.write());
                let Timestamp { seconds, nanoseconds } = self.now();
                id = SnapshotId { seconds, nanoseconds, ..id };
                parked = self.left_parked_in(&new.prefix)?;
            }
        }
        let sides = [&old, &new];
        let root = self.read_sides(&sides, |fs| fs.store.record(&new.prefix))?.ok_or(Error::Stale)?;
        let root = Record { number: 0, delta: 0, ..root };
        let counter = waiting(self, |fs| fs.store.get(Tree::Metadata, key::INODE_COUNTER))?;
        let begin = Begin {
            snapshot: id,
            base: old.snapshot.as_ref().map(|base| base.id(volume)),
            // A receiver refuses more. What lies above is as good as never met, as the numbers of clones are.
            counter: numbers::decode_counter(counter.as_ref())?.min(number::COUNTED_END),
            name: Bytes::copy_from_slice(name),
            root: root.encode(),
        };
        let mut frames = Frames {
            out,
            chain: Chain::default(),
            changes: Vec::new(),
            bytes: 0,
            sent: Transferred::default(),
        };
        frames.raw(&encode_preamble())?;
        frames.frame(&Frame::Begin(begin))?;
        let moves = if base.is_some() { moves::find(self, &old, &new)? } else { Vec::new() };
        frames.moves(&moves)?;
        for (tree, prefix) in RANGES {
            for Segment { to, from, part } in moves::segments(tree, &Bytes::from_static(prefix), &moves) {
                // No snapshot has this number.
                let nothing = key::snapshot_prefix(0);
                let from = from.map_or(nothing.clone(), |from| key::in_snapshot(&old.prefix, &from));
                let there = key::in_snapshot(&new.prefix, &to);
                let parked = if tree == Tree::Data { &parked[..] } else { &[] };
                for (piece, is_parked) in pieces(&to, part, parked) {
                    // The base may have it as a file's data: then it is deleted.
                    let there = if is_parked { &nothing } else { &there };
                    let mut range = Some(piece);
                    while let Some(part) = range {
                        let engine = self.store.engine();
                        let compared = self
                            .read_sides(&sides, |_| Ok(engine.compare(tree, &from, there, &part, CHUNK)?))?;
                        for difference in compared.differences {
                            let key = key::in_snapshot(&to, &difference.key);
                            frames.change(KeyChange { tree, key, value: difference.new })?;
                        }
                        range = compared.rest;
                    }
                }
            }
        }
        frames.cut()?;
        if refusal.is_some_and(|refusal| self.refusal() != Some(refusal)) {
            return Err(TransferError::ChangesAgain);
        }
        let end = Frame::End(frames.sent.changes);
        frames.frame(&end)?;
        frames.out.flush().map_err(TransferError::Output)?;
        drop(frozen);
        Ok(frames.sent)
    }
}

/// A part of the keys that begin with `to`, in pieces, and of each whether it is parked and so no part of a snapshot. The prefixes of what is parked
/// are sorted.
fn pieces(to: &[u8], part: KeyRange, parked: &[Bytes]) -> Vec<(KeyRange, bool)> {
    let mut pieces = Vec::new();
    let mut rest = part;
    for parked in parked.iter().filter_map(|prefix| prefix.strip_prefix(to)) {
        let inside = rest.intersection(&KeyRange::prefix(Bytes::copy_from_slice(parked)));
        if !inside.is_empty() {
            pieces.push((KeyRange::new(rest.lower, inside.lower.clone()), false));
            rest = KeyRange::new(inside.upper.clone(), rest.upper);
            pieces.push((inside, true));
        }
    }
    pieces.push((rest, false));
    pieces.retain(|(piece, _)| !piece.is_empty());
    pieces
}

fn too_long(key: &[u8]) -> TransferError {
    let names = key.split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != [key::LINK_NAME_TAG]);
    let begin: Vec<u8> = names.flat_map(|name| [b"/", name].concat()).take(64).collect();
    TransferError::PathTooLong(String::from_utf8_lossy(&begin).escape_debug().to_string())
}

/// Writes frames.
struct Frames<'a> {
    out: &'a mut dyn Write,
    chain: Chain,
    /// Those of the next frame, and what they count.
    changes: Vec<KeyChange>,
    bytes: usize,
    sent: Transferred,
}

impl Frames<'_> {
    fn raw(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.out.write_all(bytes).map_err(TransferError::Output)?;
        self.sent.bytes += bytes.len() as u64;
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), TransferError> {
        let bytes = frame.encode(&mut self.chain);
        self.raw(&bytes)
    }

    fn moves(&mut self, moves: &[Move]) -> Result<(), TransferError> {
        let places = moves.iter().flat_map(|moved| moved.from.iter().chain([&moved.to]));
        if let Some(place) = places.into_iter().find(|place| place.len() > key::METADATA_KEY_LENGTH_MAX) {
            return Err(too_long(place));
        }
        let mut rest = moves;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |moved: &&Move| {
                bytes += moved.length();
                bytes < FRAME_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            self.frame(&Frame::Moves(now.to_vec()))?;
            rest = later;
        }
        Ok(())
    }

    fn change(&mut self, change: KeyChange) -> Result<(), TransferError> {
        // No receiver could put it, and the stream would be found to be of no use when it is needed.
        if !key::fits_snapshot(change.tree, &change.key) {
            return Err(too_long(&change.key));
        }
        self.bytes += change.length();
        self.changes.push(change);
        self.sent.changes += 1;
        if self.bytes >= FRAME_BYTES { self.cut() } else { Ok(()) }
    }

    /// Writes the changes so far as a frame.
    fn cut(&mut self) -> Result<(), TransferError> {
        self.bytes = 0;
        if self.changes.is_empty() {
            return Ok(());
        }
        let frame = Frame::Changes(std::mem::take(&mut self.changes));
        self.frame(&frame)
    }
}
