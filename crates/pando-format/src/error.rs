//! Why bytes could not be decoded: which structure, what was found, what was expected.

use std::fmt;

/// The structures of a volume. Also the seed of their checksums, so that one never passes for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Structure {
    /// Entry to a volume.
    Superblock = 1,
    /// First blocks of a node.
    NodeHeader = 2,
    /// Basement node.
    LeafPart = 3,
    /// Messages that wait for one child.
    BufferPart = 4,
    /// Entries of the block table.
    TablePage = 5,
    /// Pointers to pages of the block table.
    IndexPage = 6,
    /// Header of a batch of the log.
    LogBatch = 7,
    /// What follows the header of a batch.
    LogPayload = 8,
    /// One record of the log.
    LogRecord = 9,
    /// Bytes of a value that a binding record points at.
    BoundBytes = 10,
    /// What goes from volume to volume.
    SendStream = 11,
}

impl Structure {
    /// What it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::NodeHeader => "node header",
            Self::LeafPart => "leaf part",
            Self::BufferPart => "buffer part",
            Self::TablePage => "block table page",
            Self::IndexPage => "block table index page",
            Self::LogBatch => "log batch header",
            Self::LogPayload => "log batch payload",
            Self::LogRecord => "log record",
            Self::BoundBytes => "bound bytes of the log",
            Self::SendStream => "stream of a snapshot",
        }
    }
}

/// Why bytes are not the structure they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes end inside the structure, or it claims more than there is.
    Truncated {
        /// What was decoded.
        structure: Structure,
        /// Bytes the next field needs.
        needed: u64,
        /// Bytes there are.
        remaining: u64,
    },
    /// The bytes begin with something else.
    Magic {
        /// What was decoded.
        structure: Structure,
        /// What was found, as a little-endian number.
        found: u64,
        /// What was expected.
        expected: u64,
    },
    /// Bytes were changed since they were written.
    Checksum {
        /// What was decoded.
        structure: Structure,
        /// Checksum of the bytes.
        found: u64,
        /// Checksum that was stored.
        expected: u64,
    },
    /// Written by a version whose layout is unknown here.
    Version {
        /// What was decoded.
        structure: Structure,
        /// Version found.
        found: u16,
        /// Newest version understood.
        supported: u16,
    },
    /// The volume uses features that must be understood to read it.
    Features {
        /// The bits of the incompatible features that are unknown here.
        unknown: u64,
    },
    /// A field holds what no writer writes.
    Field {
        /// What was decoded.
        structure: Structure,
        /// Which field.
        field: &'static str,
        /// What was found.
        found: u64,
        /// What was expected.
        expected: &'static str,
    },
    /// Bytes that pass their checksum do not decompress to their raw length.
    Compressed {
        /// What was decoded.
        structure: Structure,
        /// What the decompressor says.
        why: String,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { structure, needed, remaining } => {
                write!(f, "{} is cut off: {needed} bytes expected, {remaining} left", structure.name())
            }
            Self::Magic { structure, found, expected } => {
                write!(
                    f,
                    "no {} here: magic {found:#018x} where {expected:#018x} was expected",
                    structure.name()
                )
            }
            Self::Checksum { structure, found, expected } => {
                write!(
                    f,
                    "{} is damaged: checksum {found:#018x}, expected {expected:#018x}",
                    structure.name()
                )
            }
            Self::Version { structure, found, supported } => {
                write!(f, "{} has format version {found}, only {supported} is understood", structure.name())
            }
            Self::Features { unknown } => {
                write!(
                    f,
                    "the volume uses incompatible features {unknown:#x} that are unknown to this version"
                )
            }
            Self::Field { structure, field, found, expected } => {
                write!(f, "{} is damaged: {field} is {found}, expected {expected}", structure.name())
            }
            Self::Compressed { structure, why } => {
                write!(f, "{} does not decompress: {why}", structure.name())
            }
        }
    }
}

impl std::error::Error for FormatError {}
