//! Free extents, by offset and by length. Pure data: no locks, no I/O, no policy of when space may be reused.
//!
//! * FM-1 extents do not touch or overlap one another: neighbours are merged when they are inserted.
//! * FM-2 both indexes hold the same extents.

use std::collections::{BTreeMap, BTreeSet};

use super::allocator::Extent;

/// Free extents of a region.
#[derive(Debug, Default)]
pub(crate) struct FreeMap {
    /// Offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset).
    by_length: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl FreeMap {
    /// Bytes free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of separate extents.
    pub fn count(&self) -> usize {
        self.by_offset.len()
    }

    /// All extents, by offset.
    pub fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_offset.iter().map(|(&offset, &length)| Extent { offset, length })
    }

    /// The longest extent; of several, the last.
    pub fn longest(&self) -> Option<Extent> {
        self.by_length.last().map(|&(length, offset)| Extent { offset, length })
    }

    /// The shortest extent of at least `length` bytes; of several, the first.
    pub fn best_fit(&self, length: u64) -> Option<Extent> {
        self.by_length.range((length, 0)..).next().map(|&(length, offset)| Extent { offset, length })
    }

    /// The first extent of at least `length` bytes that lies at or behind `from`, or holds it. The part of it before
    /// `from` is not counted. Looks at no more than `steps` extents.
    pub fn next_fit(&self, from: u64, length: u64, steps: usize) -> Option<Extent> {
        let around = self.by_offset.range(..from).next_back().map(|(&offset, &length)| {
            let end = offset + length;
            Extent { offset: from, length: end.saturating_sub(from) }
        });
        let behind = self.by_offset.range(from..).map(|(&offset, &length)| Extent { offset, length });
        around.into_iter().chain(behind).take(steps).find(|extent| extent.length >= length)
    }

    /// True if every byte of the extent is free.
    pub fn contains(&self, extent: Extent) -> bool {
        let holder = self.by_offset.range(..=extent.offset).next_back();
        holder.is_some_and(|(&offset, &length)| extent.end() <= offset + length)
    }

    /// Takes an extent out; false, and nothing is changed, if any byte of it is not free.
    pub fn remove(&mut self, extent: Extent) -> bool {
        let holder =
            self.by_offset.range(..=extent.offset).next_back().map(|(&offset, &length)| (offset, length));
        let Some((offset, length)) = holder.filter(|(offset, length)| extent.end() <= offset + length) else {
            return false;
        };
        self.unlink(offset, length);
        self.link(offset, extent.offset - offset);
        self.link(extent.end(), offset + length - extent.end());
        true
    }

    /// Adds an extent and merges it with its neighbours.
    ///
    /// # Panics
    /// If a byte of it is free already: something was freed twice (SP-2).
    pub fn insert(&mut self, extent: Extent) {
        let (mut offset, mut end) = (extent.offset, extent.end());
        if let Some((&before, &length)) = self.by_offset.range(..=offset).next_back() {
            assert!(before + length <= offset, "SP-2: {extent:?} is free already");
            if before + length == offset {
                self.unlink(before, length);
                offset = before;
            }
        }
        if let Some((&behind, &length)) = self.by_offset.range(extent.offset..).next() {
            assert!(end <= behind, "SP-2: {extent:?} is free already");
            if end == behind {
                self.unlink(behind, length);
                end = behind + length;
            }
        }
        self.link(offset, end - offset);
    }

    fn link(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.by_offset.insert(offset, length);
            self.by_length.insert((length, offset));
            self.bytes += length;
        }
    }

    fn unlink(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        let was_there = self.by_length.remove(&(length, offset));
        assert!(was_there, "FM-2: both indexes hold the same extents");
        self.bytes -= length;
    }
}
