//! Operations as the log records them and the trees receive them.

use std::fmt;

use bytes::Bytes;

use crate::{Change, KeyRange, Tree};

/// Bytes of a block value: the unit in which [`Operation::PutRun`] cuts its bytes.
pub const BLOCK_VALUE_LENGTH: usize = 4096;

/// One step of a record. A record is applied whole or not at all, its operations in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Sets the value of a key.
    Put {
        /// Which index.
        tree: Tree,
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Sets the values of the keys `prefix` + be64(`first`), be64(`first` + 1), ... to consecutive blocks of `bytes`;
    /// the last may be shorter.
    PutRun {
        /// Which index.
        tree: Tree,
        /// What the keys begin with.
        prefix: Bytes,
        /// The first number.
        first: u64,
        /// The blocks, one behind the other.
        bytes: Bytes,
    },
    /// Removes a key.
    Delete {
        /// Which index.
        tree: Tree,
        /// The key.
        key: Bytes,
    },
    /// Changes the value of a key blindly.
    Change {
        /// Which index.
        tree: Tree,
        /// The key.
        key: Bytes,
        /// What changes.
        change: Change,
    },
    /// Removes every key of a range.
    DeleteRange {
        /// Which index.
        tree: Tree,
        /// What goes.
        range: KeyRange,
    },
    /// Gives every key that begins with `from` the prefix `to` instead. The keys below `to` that were there before
    /// are gone afterwards. Neither prefix may begin with the other. No operation that is under way at the same time
    /// may touch a key below either prefix.
    ///
    /// All moves and clones of one batch read the state before the batch: at the first of them, what lies below the `from` of
    /// each move goes, and then, in their places among the other operations, the ranges below `to` come. So two moves
    /// exchange two ranges.
    MoveRange {
        /// Which index.
        tree: Tree,
        /// Old prefix.
        from: Bytes,
        /// New prefix.
        to: Bytes,
    },
    /// As [`Operation::MoveRange`], but the keys below `from` stay as well: from now on there are two of each, and a change of
    /// one does not reach the other.
    CloneRange {
        /// Which index.
        tree: Tree,
        /// Prefix of what is cloned.
        from: Bytes,
        /// Prefix of the clone.
        to: Bytes,
    },
}

impl Operation {
    /// Bytes of keys and values it carries.
    pub fn length(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::PutRun { prefix, bytes, .. } => {
                bytes.len() + (prefix.len() + 8) * bytes.len().div_ceil(BLOCK_VALUE_LENGTH)
            }
            Self::Delete { key, .. } => key.len(),
            Self::Change { key, change, .. } => key.len() + change.length(),
            Self::DeleteRange { range, .. } => range.lower.bytes.len() + range.upper.bytes.len(),
            Self::MoveRange { from, to, .. } | Self::CloneRange { from, to, .. } => from.len() + to.len(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { tree, key, value } => {
                write!(f, "{tree:?} put \"{}\": {} bytes", key.escape_ascii(), value.len())
            }
            Self::PutRun { tree, prefix, first, bytes } => {
                write!(
                    f,
                    "{tree:?} put run \"{}\" from {first}: {} bytes",
                    prefix.escape_ascii(),
                    bytes.len()
                )
            }
            Self::Delete { tree, key } => write!(f, "{tree:?} delete \"{}\"", key.escape_ascii()),
            Self::Change { tree, key, change } => write!(f, "{tree:?} \"{}\": {change}", key.escape_ascii()),
            Self::DeleteRange { tree, range } => write!(f, "{tree:?} delete {range}"),
            Self::MoveRange { tree, from, to } => {
                write!(f, "{tree:?} move \"{}\" to \"{}\"", from.escape_ascii(), to.escape_ascii())
            }
            Self::CloneRange { tree, from, to } => {
                write!(f, "{tree:?} clone \"{}\" to \"{}\"", from.escape_ascii(), to.escape_ascii())
            }
        }
    }
}
