//! The head that every structure with a place of its own begins with: 40 bytes, the same in every version.
//!
//! | offset | length | field |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2 | format version |
//! | 10 | 2 | reserved |
//! | 12 | 4 | length of the structure in bytes, this head included |
//! | 16 | 8 | checksum of all its bytes but these eight |
//! | 24 | 16 | volume id |
//!
//! FMT-2: magic, length and checksum are verified before anything else is believed, then the version.

use bytes::Bytes;

use crate::checksum::checksum_pieces;
use crate::codec::{Reader, Writer};
use crate::error::{FormatError, Structure};
use crate::version::FORMAT_VERSION;

/// 128 random bits that name a volume.
pub type VolumeId = [u8; 16];

/// Bytes of a head.
pub const HEAD_LENGTH: usize = 40;

const LENGTH_AT: usize = 12;
const CHECKSUM_AT: usize = 16;

/// The longest structure that has a head. Bounds what is read and allocated for one before its checksum is known.
pub const SEALED_LENGTH_MAX: u32 = 64 << 20;

impl Structure {
    /// What it begins with; `None` for a structure without a head of its own.
    pub fn magic(self) -> Option<[u8; 8]> {
        match self {
            Self::Superblock => Some(*b"PandoFS\0"),
            Self::NodeHeader => Some(*b"PandoNod"),
            Self::TablePage => Some(*b"PandoTab"),
            Self::IndexPage => Some(*b"PandoIdx"),
            Self::LogBatch => Some(*b"PandoLog"),
            Self::LeafPart
            | Self::BufferPart
            | Self::LogPayload
            | Self::LogRecord
            | Self::BoundBytes
            | Self::SendStream => None,
        }
    }
}

fn magic(structure: Structure) -> [u8; 8] {
    structure.magic().expect("only structures with a head are sealed")
}

/// Starts a structure: writes its head, with room for length and checksum.
pub(crate) fn start(structure: Structure, volume: &VolumeId) -> Writer {
    let mut writer = Writer::new();
    writer.raw(&magic(structure));
    writer.u16(FORMAT_VERSION);
    writer.u16(0);
    writer.zeros(HEAD_LENGTH - 16 - LENGTH_AT);
    writer.raw(volume);
    debug_assert_eq!(writer.len(), HEAD_LENGTH);
    writer
}

/// Pads a structure, then fills in its length and checksum.
pub(crate) fn seal(structure: Structure, mut writer: Writer, unit: usize) -> Vec<u8> {
    writer.pad(unit);
    let length = u32::try_from(writer.len()).expect("a sealed structure is below 4 GiB");
    assert!(length <= SEALED_LENGTH_MAX, "a {} of {length} bytes", structure.name());
    writer.overwrite(LENGTH_AT, &length.to_le_bytes());
    let checksum = checksum_around(structure, writer.as_slice());
    writer.overwrite(CHECKSUM_AT, &checksum.to_le_bytes());
    writer.into_vec()
}

/// The length that a structure claims, from its first bytes. Verifies the magic; the rest is not known to be true
/// before [`unseal`].
pub(crate) fn claimed_length(structure: Structure, bytes: &[u8]) -> Result<u32, FormatError> {
    let Some(head) = bytes.get(..HEAD_LENGTH) else {
        let (needed, remaining) = (HEAD_LENGTH as u64, bytes.len() as u64);
        return Err(FormatError::Truncated { structure, needed, remaining });
    };
    let (found, expected) = (number(head, 0), u64::from_le_bytes(magic(structure)));
    if found != expected {
        return Err(FormatError::Magic { structure, found, expected });
    }
    let length = (number(head, LENGTH_AT - 4) >> 32) as u32;
    if length < HEAD_LENGTH as u32 || length > SEALED_LENGTH_MAX {
        let expected = "40 bytes to 64 MiB";
        return Err(FormatError::Field { structure, field: "length", found: length.into(), expected });
    }
    Ok(length)
}

/// Verifies a structure and gives its bytes, without what lies behind them.
pub(crate) fn unseal(structure: Structure, bytes: &Bytes) -> Result<Bytes, FormatError> {
    let length = claimed_length(structure, bytes)? as usize;
    if bytes.len() < length {
        let (needed, remaining) = (length as u64, bytes.len() as u64);
        return Err(FormatError::Truncated { structure, needed, remaining });
    }
    let bytes = bytes.slice(..length);
    let (found, expected) = (checksum_around(structure, &bytes), number(&bytes, CHECKSUM_AT));
    if found != expected {
        return Err(FormatError::Checksum { structure, found, expected });
    }
    let version = (number(&bytes, 8) & 0xffff) as u16;
    if version != FORMAT_VERSION {
        return Err(FormatError::Version { structure, found: version, supported: FORMAT_VERSION });
    }
    Ok(bytes)
}

/// A reader of the fields behind the head of an unsealed structure, and the volume it names.
pub(crate) fn fields(structure: Structure, unsealed: &Bytes) -> Result<(Reader<'_>, VolumeId), FormatError> {
    let mut reader = Reader::new(structure, unsealed);
    reader.skip(HEAD_LENGTH - 16)?;
    let volume = reader.array()?;
    Ok((reader, volume))
}

/// The checksum stored in the head of an encoded structure: what a pointer to it keeps.
///
/// # Panics
/// If the bytes are shorter than a head.
pub fn stored_checksum(encoded: &[u8]) -> u64 {
    number(encoded, CHECKSUM_AT)
}

fn checksum_around(structure: Structure, bytes: &[u8]) -> u64 {
    checksum_pieces(structure, [&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 8..]])
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has eight bytes"))
}

/// Gives changed bytes a checksum that fits, so that tests and fuzzing reach what lies behind it. Bytes that are not
/// even the beginning of a structure stay as they are.
pub fn reseal(structure: Structure, bytes: &mut [u8]) {
    let Ok(length) = claimed_length(structure, bytes) else { return };
    let length = (length as usize).min(bytes.len());
    let checksum = checksum_around(structure, &bytes[..length]);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
}
