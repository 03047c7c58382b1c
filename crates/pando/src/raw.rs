//! A volume's bytes as they lie on the device, for `info` and `dump`: nothing is recovered, nothing is locked here, and
//! damage is shown instead of stopping at it.
//!
//! Superblocks are whole at any moment, also while a daemon writes them (one block each, in turn). For everything else
//! the caller keeps writers out.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use pando_format::superblock::{SUPERBLOCK_LENGTH, read_slots};
use pando_format::{Extent, FormatError, Superblock};

use crate::failure::{Failure, Result, io_text};
use crate::volume::name;

/// The most bytes read at a time: more than any structure has. Lengths come from the device and are not trusted.
const READ_BYTES_MAX: u64 = 256 << 20;

/// An image file or a block device, open for reading.
pub struct RawVolume {
    file: File,
    length: u64,
}

/// Why a structure could not be shown.
#[derive(Debug)]
pub enum RawError {
    /// The device did not give the bytes.
    Io(io::Error),
    /// They are not that structure.
    Format(FormatError),
    /// It contradicts what led to it.
    Unexpected(&'static str),
    /// The place lies outside the device, or is too large.
    OutOfRange,
}

impl std::fmt::Display for RawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => f.write_str(&io_text(error)),
            Self::Format(error) => error.fmt(f),
            Self::Unexpected(what) => f.write_str(what),
            Self::OutOfRange => f.write_str("it lies outside the device"),
        }
    }
}

impl std::error::Error for RawError {}

impl From<FormatError> for RawError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl RawVolume {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self> {
        let failed =
            |error: io::Error| Failure::new(format!("cannot open {}: {}", name(path), io_text(&error)));
        let mut file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(Failure::new(format!(
                "{} is a directory, and no volume is mounted on it",
                name(path)
            )));
        }
        let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { file, length })
    }

    /// Bytes of a place.
    pub fn read(&self, offset: u64, length: u64) -> Result<Bytes, RawError> {
        let end = offset.checked_add(length).ok_or(RawError::OutOfRange)?;
        if end > self.length || length > READ_BYTES_MAX {
            return Err(RawError::OutOfRange);
        }
        let mut bytes = BytesMut::zeroed(length as usize);
        self.file.read_exact_at(&mut bytes, offset).map_err(RawError::Io)?;
        Ok(bytes.freeze())
    }

    /// Bytes of an extent.
    pub fn read_extent(&self, extent: &Extent) -> Result<Bytes, RawError> {
        self.read(extent.offset, extent.length.into())
    }

    /// Both superblocks, with their offsets.
    pub fn superblocks(&self) -> [(u64, Result<Superblock, RawError>); 2] {
        let slots = read_slots(self.length, |offset| self.read(offset, SUPERBLOCK_LENGTH as u64));
        slots.map(|(offset, slot)| (offset, slot.and_then(|decoded| Ok(decoded?))))
    }

    /// The state of the volume: the newer of the superblocks that are whole.
    pub fn newest_superblock(&self, path: &Path) -> Result<Superblock> {
        Superblock::newest(self.superblocks().map(|(_, superblock)| superblock))
            .map_err(|error| Failure::new(format!("{} holds no PandoFS volume: {error}", name(path))))
    }
}
