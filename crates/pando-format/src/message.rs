//! What a message does to the value of a key.
//!
//! A message is written blind: whoever sends it has not read the value. [`Pending`] is the sum of all messages that
//! wait for one key at one place of a tree; it grows with [`Pending::push`] and is settled by [`Pending::apply`].
//! Both must agree, whatever the order in which sums are built (`settling_in_steps_equals_settling_at_once`).

use std::fmt;
use std::ops::Range;

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
        /// The fields, in the order they are applied: 1 to 256, none of them empty (FMT-26).
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

/// Fields of updates that become one; beyond that they follow each other.
const JOINED_FIELDS_MAX: usize = 64;

/// Fields of an update, at most (FMT-26). What is joined has fewer.
pub(crate) const FIELDS_MAX: usize = 256;

/// What a field takes in memory beyond its own bytes and the 4 of its length, at least.
const FIELD_OVERHEAD: usize = 36;

/// What a change takes in memory beyond the 8 of its length, at least.
const CHANGE_OVERHEAD: usize = 32;

const _: () = assert!(size_of::<FieldUpdate>() <= FIELD_OVERHEAD + 4 && FIELDS_MAX > JOINED_FIELDS_MAX);
const _: () = assert!(size_of::<Change>() <= CHANGE_OVERHEAD + 8);

/// A sum of no more changes, as nearly all are, weighs their bytes alone: what else they take counts as what a message takes in any case.
const LIGHT_CHANGES_MAX: usize = 16;

/// The sum of the messages that wait for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// The value, whatever was there before.
    Put(Bytes),
    /// No value, whatever was there before.
    Delete,
    /// Changes to a value that has not been seen, oldest first. Never empty. Patches that follow each other rise, and none touches the
    /// next: so few offsets are written so often, a sum stays as small as the bytes that it says ([`Pending::push`]).
    Changes(Vec<Change>),
}

impl Pending {
    /// The sum that these changes are, oldest first; else the place of the first that keeps them from being one (FMT-25). To make one of them here
    /// could take as long as their number times the bytes of the largest.
    ///
    /// # Errors
    /// That place.
    pub(crate) fn from_changes(changes: Vec<Change>) -> Result<Self, usize> {
        let apart = |pair: &[Change]| match (&pair[0], &pair[1]) {
            (Change::Truncate { .. }, Change::Truncate { .. }) => false,
            (Change::Update { fields }, Change::Update { fields: newer }) => {
                fields.len() + newer.len() > JOINED_FIELDS_MAX
            }
            (older, newer) => match (older.patched(), newer.patched()) {
                (Some(older), Some(newer)) => older.end < newer.start,
                _ => true,
            },
        };
        match changes.windows(2).position(|pair| !apart(pair)) {
            None => Ok(Self::Changes(changes)),
            Some(before) => Err(before + 1),
        }
    }

    /// Adds a newer sum on top of this one. Returns by how much [`Pending::weight`] has changed.
    pub fn push(&mut self, newer: Self) -> isize {
        let (before, old, newer) = match (&mut *self, newer) {
            (Self::Changes(changes), Self::Changes(newer)) => {
                let before = overhead_of(changes.len());
                let heavier: isize = newer.into_iter().map(|change| push_change(changes, change)).sum();
                return heavier + grown(before, overhead_of(changes.len()));
            }
            (Self::Put(value), newer) => (value.len(), Some(std::mem::take(value)), newer),
            (other, newer) => (other.weight(), None, newer),
        };
        *self = newer.settle(old).map_or(Self::Delete, Self::Put);
        grown(before, self.weight())
    }

    /// The value after the messages, given the one before; `None` is no value. What nobody else has is changed in place.
    pub fn apply(&self, old: Option<Bytes>) -> Option<Bytes> {
        match self {
            Self::Put(value) => Some(value.clone()),
            Self::Delete => None,
            Self::Changes(changes) => {
                let is_patch = |change: &Change| change.patched().is_some();
                let runs = changes.chunk_by(|one, next| is_patch(one) && is_patch(next));
                runs.fold(old, |value, run| match run {
                    [change] => change.apply(value),
                    patches => Some(apply_patches(patches, value)),
                })
            }
        }
    }

    /// The same where the messages have come to their end.
    pub fn settle(self, old: Option<Bytes>) -> Option<Bytes> {
        match self {
            Self::Put(value) => Some(value),
            other => other.apply(old),
        }
    }

    /// All values and pieces of values in it.
    pub fn bytes_mut(&mut self) -> Vec<&mut Bytes> {
        match self {
            Self::Put(value) => vec![value],
            Self::Delete => Vec::new(),
            Self::Changes(changes) => changes.iter_mut().flat_map(Change::bytes_mut).collect(),
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

    /// Memory that it takes, in bytes, beside what any message does. Of very many small changes, as only a volume made to harm has them, it is many times
    /// [`Pending::length`].
    pub fn weight(&self) -> usize {
        match self {
            Self::Changes(changes) => {
                overhead_of(changes.len()) + changes.iter().map(Change::weight).sum::<usize>()
            }
            Self::Put(_) | Self::Delete => self.length(),
        }
    }
}

/// What so many changes take beyond what [`Change::weight`] says of each.
fn overhead_of(changes: usize) -> usize {
    changes.saturating_sub(LIGHT_CHANGES_MAX) * CHANGE_OVERHEAD
}

impl Change {
    /// The value after the change. What nobody else has is changed in place.
    pub fn apply(&self, old: Option<Bytes>) -> Option<Bytes> {
        match self {
            Self::Patch { offset: 0, bytes } if old.as_ref().is_none_or(|old| old.len() <= bytes.len()) => {
                Some(bytes.clone())
            }
            Self::Patch { .. } => Some(apply_patches(std::slice::from_ref(self), old)),
            Self::Truncate { length } => old.map(|mut old| {
                old.truncate(*length as usize);
                old
            }),
            Self::Update { fields } => old.map(|old| {
                let mut value = own(old);
                for field in fields {
                    field.apply(&mut value);
                }
                value.freeze()
            }),
        }
    }

    /// The bytes of the value that a patch replaces.
    fn patched(&self) -> Option<Range<usize>> {
        match self {
            Self::Patch { offset, bytes } => Some(*offset as usize..*offset as usize + bytes.len()),
            Self::Truncate { .. } | Self::Update { .. } => None,
        }
    }

    /// Takes a newer change into this one where the two together are one change; patches are not looked at.
    fn absorb(&mut self, newer: &Self) -> bool {
        match (self, newer) {
            // Each field of one is compared with each of the other.
            (Self::Update { fields }, Self::Update { fields: newer })
                if fields.len() + newer.len() <= JOINED_FIELDS_MAX =>
            {
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

    /// Writes a patch to bytes of which the first is that at `base`.
    fn write(&self, value: &mut [u8], base: usize) {
        if let Self::Patch { offset, bytes } = self {
            let start = *offset as usize - base;
            value[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> Vec<&mut Bytes> {
        match self {
            Self::Patch { bytes, .. } => vec![bytes],
            Self::Truncate { .. } => Vec::new(),
            Self::Update { fields } => {
                let set = fields.iter_mut().filter_map(|field| match field {
                    FieldUpdate::Set { bytes, .. } => Some(bytes),
                    FieldUpdate::Max { .. } | FieldUpdate::Add { .. } => None,
                });
                set.collect()
            }
        }
    }

    /// What it is of a [`Pending::weight`]. Nearly all updates have one field.
    fn weight(&self) -> usize {
        match self {
            Self::Update { fields } => self.length() + fields.len().saturating_sub(1) * FIELD_OVERHEAD,
            Self::Patch { .. } | Self::Truncate { .. } => self.length(),
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

/// Adds a change on top of others that are a sum. Returns by how much their weights have changed.
fn push_change(changes: &mut Vec<Change>, change: Change) -> isize {
    let patches = changes.iter().rposition(|change| change.patched().is_none()).map_or(0, |last| last + 1);
    match change {
        Change::Patch { offset, bytes } => push_patch(changes, patches, offset, bytes),
        Change::Truncate { length } => push_truncate(changes, patches, length),
        Change::Update { .. } => {
            let before = changes.last().map_or(0, Change::weight);
            let weight = change.weight();
            if changes.last_mut().is_some_and(|last| last.absorb(&change)) {
                return grown(before, changes.last().map_or(0, Change::weight));
            }
            changes.push(change);
            weight as isize
        }
    }
}

/// Adds a patch on top of changes of which those from `first` on are patches: it and those which it touches become one.
fn push_patch(changes: &mut Vec<Change>, first: usize, offset: u32, bytes: Bytes) -> isize {
    let new = offset as usize..offset as usize + bytes.len();
    let patched =
        |change: &Change| change.patched().expect("what follows a patch at the end of a sum is a patch");
    let touched = first + changes[first..].partition_point(|older| patched(older).end < new.start)
        ..first + changes[first..].partition_point(|older| patched(older).start <= new.end);
    let Some(lowest) = changes[touched.clone()].first() else {
        let patch = Change::Patch { offset, bytes };
        let weight = patch.weight();
        changes.insert(touched.start, patch);
        return weight as isize;
    };
    let start = patched(lowest).start.min(new.start);
    let end = patched(&changes[touched.end - 1]).end.max(new.end);
    let sum = if start == new.start && end == new.end {
        bytes
    } else {
        let mut sum = BytesMut::zeroed(end - start);
        for older in &changes[touched.clone()] {
            older.write(&mut sum, start);
        }
        Change::Patch { offset, bytes }.write(&mut sum, start);
        sum.freeze()
    };
    let sum = Change::Patch { offset: start as u32, bytes: sum };
    let after = sum.weight();
    let before = changes.splice(touched, [sum]).map(|older| older.weight()).sum();
    grown(before, after)
}

/// Adds a truncation on top of changes of which those from `first` on are patches: it goes below them, and they are cut.
fn push_truncate(changes: &mut Vec<Change>, first: usize, length: u32) -> isize {
    let limit = length as usize;
    let inside = first
        + changes[first..].partition_point(|patch| patch.patched().is_some_and(|bytes| bytes.end <= limit));
    let cut = changes[inside..].first().and_then(Change::patched).map(|bytes| bytes.start.min(limit));
    let mut change = 0;
    if let Some(start) = cut {
        let behind: Vec<Change> = changes.drain(inside..).collect();
        change -= behind.iter().map(|patch| patch.weight() as isize).sum::<isize>();
        // A patch that begins behind the length leaves a value that reaches up to it all the same, unless another one does.
        let bytes = match &behind[0] {
            Change::Patch { bytes, .. } => bytes.slice(..limit - start),
            Change::Truncate { .. } | Change::Update { .. } => {
                unreachable!("those from `first` on are patches")
            }
        };
        change += push_patch(changes, first, start as u32, bytes);
    }
    match changes[..first].last_mut() {
        Some(Change::Truncate { length: older }) => *older = length.min(*older),
        _ => {
            let truncate = Change::Truncate { length };
            change += truncate.weight() as isize;
            changes.insert(first, truncate);
        }
    }
    change
}

/// A value with patches written to it; first filled with zeros up to the end of the last.
fn apply_patches(patches: &[Change], old: Option<Bytes>) -> Bytes {
    let old = old.unwrap_or_default();
    let end = patches.iter().filter_map(Change::patched).fold(old.len(), |end, patch| end.max(patch.end));
    let mut value = if end == old.len() {
        own(old)
    } else {
        let mut longer = BytesMut::with_capacity(end);
        longer.extend_from_slice(&old);
        longer.resize(end, 0);
        longer
    };
    patches.iter().for_each(|patch| patch.write(&mut value, 0));
    value.freeze()
}

/// Bytes that can be written to: a copy of those which others have, too.
fn own(bytes: Bytes) -> BytesMut {
    bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

/// By how much a weight has changed.
fn grown(before: usize, after: usize) -> isize {
    after as isize - before as isize
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
    fn bytes_touched(&self) -> Range<usize> {
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
