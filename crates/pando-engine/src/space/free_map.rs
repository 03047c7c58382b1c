//! Free runs, by offset and by length. Pure data: no locks, no I/O, no policy of when space may be reused.
//!
//! * FM-1 runs do not touch or overlap one another: neighbours are merged when they are inserted.
//! * FM-2 both indexes hold the same runs.

use std::collections::{BTreeMap, BTreeSet};

use pando_format::Extent;

/// Contiguous bytes on the device, of any length; an [`Extent`] ends at 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Run {
    /// The first byte behind it.
    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Self {
        Self { offset: extent.offset, length: extent.length.into() }
    }
}

/// Free space, as separate runs.
#[derive(Debug, Default)]
pub(crate) struct FreeMap {
    /// Offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset).
    by_length: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// Bytes in runs of at least `long_from` bytes.
    long_bytes: u64,
    long_from: u64,
}

impl FreeMap {
    /// Bytes free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in runs that are not shorter than [`FreeMap::set_long_from`] says.
    pub fn long_bytes(&self) -> u64 {
        self.long_bytes
    }

    /// Says from how many bytes on a run counts as long.
    pub fn set_long_from(&mut self, bytes: u64) {
        self.long_from = bytes;
        self.long_bytes = self.by_length.range((bytes, 0)..).map(|(length, _)| length).sum();
    }

    /// All runs, by offset.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Run> {
        self.by_offset.iter().map(|(&offset, &length)| Run { offset, length })
    }

    /// The longest run; of several, the last.
    pub fn longest(&self) -> Option<Run> {
        self.by_length.last().map(|&(length, offset)| Run { offset, length })
    }

    /// Bytes in so many of the longest runs.
    pub fn longest_bytes(&self, runs: usize) -> u64 {
        self.by_length.iter().rev().take(runs).map(|(length, _)| length).sum()
    }

    /// The shortest run of at least `length` bytes; of several, the first.
    pub fn best_fit(&self, length: u64) -> Option<Run> {
        self.by_length.range((length, 0)..).next().map(|&(length, offset)| Run { offset, length })
    }

    /// The first run of at least `length` bytes that lies at or behind `from`, or holds it. The part of it
    /// before `from` is not counted. Looks at no more than `steps` runs.
    pub fn next_fit(&self, from: u64, length: u64, steps: usize) -> Option<Run> {
        let around = self.by_offset.range(..from).next_back().map(|(&offset, &length)| {
            let end = offset + length;
            Run { offset: from, length: end.saturating_sub(from) }
        });
        let behind = self.by_offset.range(from..).map(|(&offset, &length)| Run { offset, length });
        around.into_iter().chain(behind).take(steps).find(|run| run.length >= length)
    }

    /// True if every byte of the run is free.
    pub fn contains(&self, run: Run) -> bool {
        let holder = self.by_offset.range(..=run.offset).next_back();
        holder.is_some_and(|(&offset, &length)| run.end() <= offset + length)
    }

    /// Takes a run out; false, and nothing is changed, if any byte of it is not free.
    pub fn remove(&mut self, run: Run) -> bool {
        let holder =
            self.by_offset.range(..=run.offset).next_back().map(|(&offset, &length)| (offset, length));
        let Some((offset, length)) = holder.filter(|(offset, length)| run.end() <= offset + length) else {
            return false;
        };
        self.unlink(offset, length);
        self.link(offset, run.offset - offset);
        self.link(run.end(), offset + length - run.end());
        true
    }

    /// Adds a run and merges it with its neighbours.
    ///
    /// # Panics
    /// If a byte of it is free already: something was freed twice (SP-2).
    pub fn insert(&mut self, run: Run) {
        let (mut offset, mut end) = (run.offset, run.end());
        if let Some((&before, &length)) = self.by_offset.range(..=offset).next_back() {
            assert!(before + length <= offset, "SP-2: {run:?} is free already");
            if before + length == offset {
                self.unlink(before, length);
                offset = before;
            }
        }
        if let Some((&behind, &length)) = self.by_offset.range(run.offset..).next() {
            assert!(end <= behind, "SP-2: {run:?} is free already");
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
            if length >= self.long_from {
                self.long_bytes += length;
            }
        }
    }

    fn unlink(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        let was_there = self.by_length.remove(&(length, offset));
        assert!(was_there, "FM-2: both indexes hold the same runs");
        self.bytes -= length;
        if length >= self.long_from {
            self.long_bytes -= length;
        }
    }
}
