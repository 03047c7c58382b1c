//! Places on the device.

use std::fmt;

use crate::codec::{BLOCK_LENGTH, Reader, Writer};
use crate::error::FormatError;

/// A run of blocks that belongs to one structure. 16 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Extent {
    /// Which device of the volume; 0 as long as volumes have one.
    pub device: u16,
    /// First byte, a multiple of 4 KiB.
    pub offset: u64,
    /// Bytes, a multiple of 4 KiB.
    pub length: u32,
}

impl Extent {
    /// Bytes it takes when encoded.
    pub const ENCODED_LENGTH: usize = 16;

    /// First byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u16(self.device);
        writer.u16(0);
        writer.u32(self.length);
        writer.u64(self.offset);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let device = reader.u16()?;
        reader.skip(2)?;
        let length = reader.u32()?;
        let offset = reader.u64()?;
        if !u64::from(length).is_multiple_of(BLOCK_LENGTH as u64) {
            return Err(reader.wrong("extent length", length.into(), "a multiple of 4096"));
        }
        if !offset.is_multiple_of(BLOCK_LENGTH as u64) {
            return Err(reader.wrong("extent offset", offset, "a multiple of 4096"));
        }
        if offset.checked_add(length.into()).is_none() {
            return Err(reader.wrong("extent offset", offset, "an end below 2^64"));
        }
        Ok(Self { device, offset, length })
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}+{:#x}", self.device, self.offset, self.length)
    }
}

/// A large part of a device with one use. 24 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// Which device of the volume.
    pub device: u16,
    /// First byte, a multiple of 4 KiB.
    pub offset: u64,
    /// Bytes, a multiple of 4 KiB.
    pub length: u64,
}

impl Region {
    /// First byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u16(self.device);
        writer.zeros(6);
        writer.u64(self.offset);
        writer.u64(self.length);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let device = reader.u16()?;
        reader.skip(6)?;
        let (offset, length) = (reader.u64()?, reader.u64()?);
        for number in [offset, length] {
            if !number.is_multiple_of(BLOCK_LENGTH as u64) {
                return Err(reader.wrong("region border", number, "a multiple of 4096"));
            }
        }
        if offset.checked_add(length).is_none() {
            return Err(reader.wrong("region offset", offset, "an end below 2^64"));
        }
        Ok(Self { device, offset, length })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}+{:#x}", self.device, self.offset, self.length)
    }
}

/// Where a structure lies and which checksum its head must carry. 24 bytes on the device; all zero for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pointer {
    /// The place.
    pub extent: Extent,
    /// What [`crate::head::stored_checksum`] gives for the bytes there.
    pub checksum: u64,
}

impl Pointer {
    /// Bytes it takes when encoded.
    pub const ENCODED_LENGTH: usize = Extent::ENCODED_LENGTH + 8;

    pub(crate) fn encode(pointer: Option<&Self>, writer: &mut Writer) {
        let pointer = pointer.copied().unwrap_or_default();
        pointer.extent.encode(writer);
        writer.u64(pointer.checksum);
    }

    /// `None` for a place of length 0.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>, FormatError> {
        let pointer = Self { extent: Extent::decode(reader)?, checksum: reader.u64()? };
        Ok((pointer.extent.length != 0).then_some(pointer))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} checksum {:#018x}", self.extent, self.checksum)
    }
}
