//! The version of the format and its feature flags.
//!
//! The version changes when a layout changes; it stands in the head of every structure. A feature is something a
//! volume of one version may or may not use; which ones it uses stands in the superblock only.

use std::fmt;

use crate::error::FormatError;

/// The version that is written, and the only one that is read.
pub const FORMAT_VERSION: u16 = 1;

/// What a volume uses beyond what every volume of its version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Who does not know these may read and write the volume.
    pub compatible: u64,
    /// Who does not know these may read the volume, and must not write it.
    pub read_only_compatible: u64,
    /// Who does not know these must not touch the volume.
    pub incompatible: u64,
}

/// What may be done with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All of it is understood.
    ReadWrite,
    /// It uses a feature that only matters to writers and is unknown here.
    ReadOnly,
}

impl Features {
    /// Those that this version understands: none are defined yet.
    pub const UNDERSTOOD: Self = Self { compatible: 0, read_only_compatible: 0, incompatible: 0 };

    /// What this version may do with a volume that uses these.
    pub fn access(&self) -> Result<Access, FormatError> {
        let unknown = self.incompatible & !Self::UNDERSTOOD.incompatible;
        if unknown != 0 {
            return Err(FormatError::Features { unknown });
        }
        match self.unknown_to_writers() {
            0 => Ok(Access::ReadWrite),
            _ => Ok(Access::ReadOnly),
        }
    }

    /// Those that only matter to writers and are unknown here.
    pub fn unknown_to_writers(&self) -> u64 {
        self.read_only_compatible & !Self::UNDERSTOOD.read_only_compatible
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compatible, read_only_compatible, incompatible } = self;
        write!(f, "compatible {compatible:#x}, read-only compatible {read_only_compatible:#x}, ")?;
        write!(f, "incompatible {incompatible:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_limit_what_may_be_done() {
        let features = |compatible, read_only_compatible, incompatible| Features {
            compatible,
            read_only_compatible,
            incompatible,
        };
        assert_eq!(features(1 << 63, 0, 0).access(), Ok(Access::ReadWrite));
        assert_eq!(features(0, 1 << 63, 0).access(), Ok(Access::ReadOnly));
        assert_eq!(features(0, 0, 1 << 63).access(), Err(FormatError::Features { unknown: 1 << 63 }));
    }
}
