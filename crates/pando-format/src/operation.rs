//! Operations as the log records them and the trees receive them.

use std::fmt;

use bytes::Bytes;

use crate::key::KEY_LENGTH_MAX;
use crate::key_codec::VALUE_LENGTH_MAX;
use crate::message::FIELDS_MAX;
use crate::{Change, FieldUpdate, KeyRange, Tree};

/// Bytes of a block value: the unit in which [`Operation::PutRun`] cuts its bytes.
pub const BLOCK_VALUE_LENGTH: usize = 4096;

/// What of an operation is larger than any may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Which part of it.
    pub what: &'static str,
    /// How much it is.
    pub found: u64,
    /// How much it may be.
    pub limit: &'static str,
}

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
    /// one does not reach the other. `to` may be `from` if the same batch moves that away.
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

impl Operation {
    /// Asked by whoever writes an operation, so that whoever reads one may take what is beyond these limits for damage.
    pub fn check(&self) -> Result<(), Excess> {
        match self {
            Self::Put { key, value, .. } => check_put(key, value.len()),
            Self::PutRun { prefix, first, bytes, .. } => check_run(prefix, *first, bytes.len()),
            Self::Delete { key, .. } => check_key(key.len()),
            Self::Change { key, change: Change::Patch { offset, bytes }, .. } => {
                check_put(key, *offset as usize + bytes.len())
            }
            Self::Change { key, change: Change::Update { fields }, .. } => {
                check_key(key.len()).and_then(|()| check_update(fields))
            }
            Self::Change { key, .. } => check_key(key.len()),
            Self::DeleteRange { range, .. } => {
                check_key(range.lower.bytes.len().max(range.upper.bytes.len()))
            }
            Self::MoveRange { from, to, .. } | Self::CloneRange { from, to, .. } => {
                check_key(from.len().max(to.len()))
            }
        }
    }

    /// All keys, values and prefixes in it.
    pub fn bytes_mut(&mut self) -> Vec<&mut Bytes> {
        match self {
            Self::Put { key, value, .. } => vec![key, value],
            Self::PutRun { prefix, bytes, .. } => vec![prefix, bytes],
            Self::Delete { key, .. } => vec![key],
            Self::Change { key, change, .. } => {
                let mut all = change.bytes_mut();
                all.push(key);
                all
            }
            Self::DeleteRange { range, .. } => vec![&mut range.lower.bytes, &mut range.upper.bytes],
            Self::MoveRange { from, to, .. } | Self::CloneRange { from, to, .. } => vec![from, to],
        }
    }

    /// Bytes of the keys that a run comes to beyond its prefix: each of its blocks has one of its own.
    pub fn run_keys_length(&self) -> u64 {
        match self {
            Self::PutRun { prefix, bytes, .. } => run_keys_length(prefix, bytes.len()),
            _ => 0,
        }
    }
}

fn check_key(length: usize) -> Result<(), Excess> {
    if length > KEY_LENGTH_MAX {
        return Err(Excess { what: "a key", found: length as u64, limit: "at most 256 KiB" });
    }
    Ok(())
}

fn check_update(fields: &[FieldUpdate]) -> Result<(), Excess> {
    let is_empty = |field: &FieldUpdate| matches!(field, FieldUpdate::Set { bytes, .. } if bytes.is_empty());
    if !(1..=FIELDS_MAX).contains(&fields.len()) || fields.iter().any(is_empty) {
        let found = fields.len() as u64;
        let limit = "1 to 256 fields, none of them empty (FMT-26)";
        return Err(Excess { what: "an attribute update", found, limit });
    }
    Ok(())
}

/// A key and what its value comes to, in bytes.
pub(crate) fn check_put(key: &Bytes, length: usize) -> Result<(), Excess> {
    if length > VALUE_LENGTH_MAX {
        return Err(Excess { what: "a value", found: length as u64, limit: "at most 16 MiB" });
    }
    check_key(key.len())
}

/// A run of so many bytes.
pub(crate) fn check_run(prefix: &Bytes, first: u64, length: usize) -> Result<(), Excess> {
    let blocks = length.div_ceil(BLOCK_VALUE_LENGTH) as u64;
    if first.checked_add(blocks.saturating_sub(1)).is_none() {
        return Err(Excess {
            what: "the first number of a run",
            found: first,
            limit: "a last one below 2^64",
        });
    }
    check_key(prefix.len() + 8)
}

pub(crate) fn run_keys_length(prefix: &Bytes, length: usize) -> u64 {
    (prefix.len() as u64 + 8) * length.div_ceil(BLOCK_VALUE_LENGTH) as u64
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
