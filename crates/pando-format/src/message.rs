//! What a message does to the value of a key.
//!
//! A message is written blind: whoever sends it has not read the value. [`Pending`] is the sum of all messages that
//! wait for one key at one place of a tree; it grows with [`Pending::push`] and is settled by [`Pending::apply`].
//! Both must agree, whatever the order in which sums are built (`settling_in_steps_equals_settling_at_once`).

use std::fmt;

use bytes::{Bytes, BytesMut};

/// A change to the value of a key that need not know the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Replaces bytes from `offset` on; a value that is missing or too short is first filled with zeros.
    Patch {
        /// First byte replaced.
        offset: u32,
        /// The new bytes.
        bytes: Bytes,
    },
    /// Cuts a value to at most `length` bytes; a missing or shorter value stays as it is.
    Truncate {
        /// Bytes kept.
        length: u32,
    },
    /// Attribute update: sets fixed fields of a value. A missing value stays missing, and a field that does not lie
    /// inside the value is left out.
    Update {
        /// The fields, in the order they are applied.
        fields: Vec<FieldUpdate>,
    },
}

/// One field of an attribute update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldUpdate {
    /// Replaces the bytes at `offset`.
    Set {
        /// First byte of the field.
        offset: u16,
        /// The new bytes.
        bytes: Bytes,
    },
    /// Raises the little-endian u64 at `offset` to at least `value`.
    Max {
        /// First byte of the field.
        offset: u16,
        /// The lower limit.
        value: u64,
    },
    /// Adds to the little-endian u64 at `offset`, wrapping.
    Add {
        /// First byte of the field.
        offset: u16,
        /// The addend; two's complement for a difference.
        value: u64,
    },
}

/// The sum of the messages that wait for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// The value, whatever was there before.
    Put(Bytes),
    /// No value, whatever was there before.
    Delete,
    /// Changes to a value that has not been seen, oldest first. Never empty.
    Changes(Vec<Change>),
}

impl Pending {
    /// Adds a newer sum on top of this one.
    pub fn push(&mut self, newer: Self) {
        match newer {
            Self::Put(_) | Self::Delete => *self = newer,
            Self::Changes(changes) => {
                for change in changes {
                    self.push_change(change);
                }
            }
        }
    }

    fn push_change(&mut self, change: Change) {
        match self {
            Self::Put(value) => *value = change.apply(Some(value)).expect("a change never removes a value"),
            Self::Delete => {
                if let Some(value) = change.apply(None) {
                    *self = Self::Put(value);
                }
            }
            Self::Changes(changes) => {
                if !changes.last_mut().is_some_and(|last| last.absorb(&change)) {
                    changes.push(change);
                }
            }
        }
    }

    /// The value after the messages, given the one before; `None` is no value.
    pub fn apply(&self, old: Option<&Bytes>) -> Option<Bytes> {
        match self {
            Self::Put(value) => Some(value.clone()),
            Self::Delete => None,
            Self::Changes(changes) => {
                let mut value = old.cloned();
                for change in changes {
                    value = change.apply(value.as_ref());
                }
                value
            }
        }
    }

    /// Bytes of values and changes it holds.
    pub fn length(&self) -> usize {
        match self {
            Self::Put(value) => value.len(),
            Self::Delete => 0,
            Self::Changes(changes) => changes.iter().map(Change::length).sum(),
        }
    }
}

impl Change {
    /// The value after the change.
    pub fn apply(&self, old: Option<&Bytes>) -> Option<Bytes> {
        match self {
            Self::Patch { offset, bytes } => {
                let start = *offset as usize;
                let end = start + bytes.len();
                let old = old.map_or(&[][..], |old| old);
                if start == 0 && old.len() <= end {
                    return Some(bytes.clone());
                }
                let mut value = BytesMut::with_capacity(old.len().max(end));
                value.extend_from_slice(old);
                value.resize(old.len().max(end), 0);
                value[start..end].copy_from_slice(bytes);
                Some(value.freeze())
            }
            Self::Truncate { length } => old.map(|old| old.slice(..old.len().min(*length as usize))),
            Self::Update { fields } => old.map(|old| {
                let mut value = BytesMut::from(&old[..]);
                for field in fields {
                    field.apply(&mut value);
                }
                value.freeze()
            }),
        }
    }

    /// Takes a newer change into this one where the two together are one change.
    fn absorb(&mut self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Patch { offset, bytes }, Self::Patch { offset: new_offset, bytes: new_bytes }) => {
                let (start, new_start) = (*offset as usize, *new_offset as usize);
                let (end, new_end) = (start + bytes.len(), new_start + new_bytes.len());
                if new_start > end || start > new_end {
                    return false;
                }
                if new_start <= start && end <= new_end {
                    (*offset, *bytes) = (*new_offset, new_bytes.clone());
                    return true;
                }
                let low = start.min(new_start);
                let mut union = BytesMut::zeroed(end.max(new_end) - low);
                union[start - low..end - low].copy_from_slice(bytes);
                union[new_start - low..new_end - low].copy_from_slice(new_bytes);
                (*offset, *bytes) = (low as u32, union.freeze());
                true
            }
            (Self::Truncate { length }, Self::Truncate { length: newer }) => {
                *length = (*length).min(*newer);
                true
            }
            (Self::Update { fields }, Self::Update { fields: newer }) => {
                for field in newer {
                    // Only the newest update that touches the same bytes may take it in: anything older lies below.
                    let last = fields.iter_mut().rev().find(|old| old.overlaps(field));
                    if !last.is_some_and(|old| old.absorb(field)) {
                        fields.push(field.clone());
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// Bytes it holds.
    pub fn length(&self) -> usize {
        match self {
            Self::Patch { bytes, .. } => bytes.len() + 8,
            Self::Truncate { .. } => 8,
            Self::Update { fields } => fields
                .iter()
                .map(|field| match field {
                    FieldUpdate::Set { bytes, .. } => bytes.len() + 4,
                    FieldUpdate::Max { .. } | FieldUpdate::Add { .. } => 12,
                })
                .sum(),
        }
    }
}

impl FieldUpdate {
    fn apply(&self, value: &mut [u8]) {
        match self {
            Self::Set { offset, bytes } => {
                let start = *offset as usize;
                if let Some(field) = value.get_mut(start..start + bytes.len()) {
                    field.copy_from_slice(bytes);
                }
            }
            Self::Max { offset, value: new } => on_number(value, *offset, |old| old.max(*new)),
            Self::Add { offset, value: new } => on_number(value, *offset, |old| old.wrapping_add(*new)),
        }
    }

    /// The bytes of the value that it touches.
    fn bytes_touched(&self) -> std::ops::Range<usize> {
        match self {
            Self::Set { offset, bytes } => *offset as usize..*offset as usize + bytes.len(),
            Self::Max { offset, .. } | Self::Add { offset, .. } => *offset as usize..*offset as usize + 8,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.bytes_touched(), other.bytes_touched());
        a.start < b.end && b.start < a.end
    }

    /// Takes a newer update of the very same bytes into this one; false where the two are not one update.
    fn absorb(&mut self, newer: &Self) -> bool {
        if self.bytes_touched() != newer.bytes_touched() {
            return false;
        }
        match (&mut *self, newer) {
            (_, Self::Set { .. }) => *self = newer.clone(),
            (Self::Max { value, .. }, Self::Max { value: new, .. }) => *value = (*value).max(*new),
            (Self::Add { value, .. }, Self::Add { value: new, .. }) => *value = value.wrapping_add(*new),
            _ => return false,
        }
        true
    }
}

fn on_number(value: &mut [u8], offset: u16, change: impl FnOnce(u64) -> u64) {
    let start = offset as usize;
    if let Some(field) = value.get_mut(start..start + 8) {
        let old = u64::from_le_bytes(field.try_into().expect("the slice has eight bytes"));
        field.copy_from_slice(&change(old).to_le_bytes());
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(value) => write!(f, "put {} bytes", value.len()),
            Self::Delete => f.write_str("delete"),
            Self::Changes(changes) => {
                for (i, change) in changes.iter().enumerate() {
                    write!(f, "{}{change}", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Patch { offset, bytes } => write!(f, "patch {} bytes at {offset}", bytes.len()),
            Self::Truncate { length } => write!(f, "truncate to {length}"),
            Self::Update { fields } => {
                f.write_str("update")?;
                fields.iter().try_for_each(|field| write!(f, " {field}"))
            }
        }
    }
}

impl fmt::Display for FieldUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { offset, bytes } => write!(f, "[{offset}] = {} bytes", bytes.len()),
            Self::Max { offset, value } => write!(f, "[{offset}] >= {value}"),
            Self::Add { offset, value } => write!(f, "[{offset}] += {}", *value as i64),
        }
    }
}

#[cfg(test)]
mod tests;
