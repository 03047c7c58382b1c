//! Compression of the parts of nodes.

use std::fmt;

use bytes::Bytes;

use crate::error::{FormatError, Structure};

/// How a part is compressed. Stored with each part, so a volume may mix them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// As it is.
    #[default]
    None = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// Zstandard.
    Zstd = 2,
}

/// Fast enough to keep up with a device; higher levels gain little on 128 KiB.
const ZSTD_LEVEL: i32 = 1;

impl Compression {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    /// The kind with this number on the device.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Its name for people: `none`, `lz4`, `zstd`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The compressed bytes, unless there would be more than `length_max` of them. `None` also for [`Compression::None`].
pub(crate) fn compress(compression: Compression, raw: &[u8], length_max: usize) -> Option<Vec<u8>> {
    let mut stored = match compression {
        Compression::None => return None,
        Compression::Lz4 => {
            let mut stored = vec![0; lz4_flex::block::get_maximum_output_size(raw.len())];
            let length = lz4_flex::block::compress_into(raw, &mut stored).ok()?;
            stored.truncate(length);
            stored
        }
        Compression::Zstd => {
            // A destination of just the length allowed makes zstd give up early where the data does not shrink.
            let mut stored = vec![0; length_max];
            let length = zstd::bulk::compress_to_buffer(raw, &mut stored, ZSTD_LEVEL).ok()?;
            stored.truncate(length);
            stored
        }
    };
    stored.shrink_to_fit();
    (stored.len() <= length_max).then_some(stored)
}

/// The raw bytes, exactly `raw_length` of them; never allocates more.
pub(crate) fn decompress(
    structure: Structure,
    compression: Compression,
    stored: Bytes,
    raw_length: usize,
) -> Result<Bytes, FormatError> {
    let fail = |why: String| FormatError::Compressed { structure, why };
    if compression == Compression::None {
        if stored.len() != raw_length {
            return Err(fail(format!("{} bytes stored where {raw_length} were expected", stored.len())));
        }
        return Ok(stored);
    }
    let mut raw = vec![0; raw_length];
    let length =
        match compression {
            Compression::None => unreachable!("returned above"),
            Compression::Lz4 => lz4_flex::block::decompress_into(&stored, &mut raw)
                .map_err(|error| fail(error.to_string()))?,
            Compression::Zstd => zstd::bulk::decompress_to_buffer(&stored, &mut raw)
                .map_err(|error| fail(error.to_string()))?,
        };
    if length != raw_length {
        return Err(fail(format!("{length} bytes where {raw_length} were expected")));
    }
    Ok(raw.into())
}
