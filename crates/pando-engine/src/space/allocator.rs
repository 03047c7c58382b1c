//! Gives out the node space and takes it back, in units of 4 KiB.
//!
//! Freed extents are deferred: what is freed in the interval of a checkpoint can be reused only once that
//! checkpoint is durable (CP-1). An interval ends with [`Allocator::cut`] and is let go with
//! [`Allocator::release`].
//!
//! Placement. Large requests go next-fit, so that nodes written one after the other lie one behind the other;
//! when the neighbourhood has no room, the shortest extent that is long enough serves. Small requests go
//! there at once, and so fill the gaps that large nodes of odd lengths leave. Where nothing is long enough, a
//! node is cut at the borders of its parts, the longest extents first, so that a part is still one read. A part that is
//! itself too long for every gap is cut, too: a full volume must still be able to write what it has taken.
//!
//! Lock order: the mutex here is a leaf; nothing is locked and no I/O is done under it.

use std::collections::BTreeMap;

use pando_device::BLOCK_SIZE;
use pando_format::{Extent, Region};
use parking_lot::Mutex;

use super::free_map::{FreeMap, Run};
use crate::{Error, Result};

/// Most pieces a node is cut into.
pub(crate) const EXTENTS_MAX: usize = 8;

/// Most bytes of one allocation; far above any node.
pub(crate) const ALLOCATION_BYTES_MAX: u64 = pando_format::IMAGE_LENGTH_MAX as u64;

/// Requests shorter than this fill gaps instead of extending the run of large nodes.
const LARGE_BYTES: u64 = 256 << 10;

/// Extents a next-fit search looks at before it gives up.
const NEXT_FIT_STEPS: usize = 16;

const UNIT: u64 = BLOCK_SIZE as u64;

/// The device of every extent, as long as a volume has one.
const DEVICE: u16 = 0;

/// The time between two cuts: interval n ends with the cut of the n-th checkpoint since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Interval(u64);

impl Interval {
    /// The interval that the first cut after a mount ends.
    pub const FIRST: Self = Self(1);

    /// The interval behind it.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How the node space is used, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceCounters {
    /// All of it.
    pub capacity: u64,
    /// Can be allocated now.
    pub free: u64,
    /// Of that, what large nodes can use.
    pub usable: u64,
    /// Freed, but still part of a state that a crash may bring back.
    pub deferred: u64,
}

/// The space of nodes and block table pages.
pub(crate) struct Allocator {
    /// Not empty, ascending, all on device 0, none at the end of another.
    regions: Vec<Region>,
    state: Mutex<State>,
}

struct State {
    free: FreeMap,
    /// The interval that the next cut ends.
    current: Interval,
    /// What was freed in each interval that is not released yet.
    deferred: BTreeMap<Interval, Vec<Extent>>,
    deferred_bytes: u64,
    /// Where the last large allocation ended.
    cursor: u64,
}

impl Allocator {
    /// An allocator of regions that are all free.
    ///
    /// # Panics
    /// If the regions are not runs of whole blocks on device 0 that do not overlap: the superblock's decoder checks
    /// that.
    pub fn new(regions: &[Region]) -> Self {
        let mut free = FreeMap::default();
        // Runs of free space do not end where two regions touch, so an extent may lie in both.
        let mut joined: Vec<Region> = Vec::new();
        let mut regions: Vec<_> = regions.iter().filter(|region| region.length > 0).collect();
        regions.sort_unstable_by_key(|region| region.offset);
        for region in regions {
            assert!(
                region.offset.is_multiple_of(UNIT) && region.length.is_multiple_of(UNIT),
                "{region} has whole blocks"
            );
            assert!(region.device == DEVICE, "{region} is on the one device");
            free.insert(Run { offset: region.offset, length: region.length });
            match joined.last_mut() {
                Some(before) if before.end() == region.offset => before.length += region.length,
                _ => joined.push(*region),
            }
        }
        let cursor = joined.first().map_or(0, |region| region.offset);
        let state =
            State { free, current: Interval::FIRST, deferred: BTreeMap::new(), deferred_bytes: 0, cursor };
        Self { regions: joined, state: Mutex::new(state) }
    }

    /// Says how large nodes are. Runs of free space shorter than a fourth of a node do not count as usable: eight of them,
    /// which is all that a node may be cut into, might not hold one of twice that size.
    pub fn set_node_bytes(&self, bytes: u64) {
        self.state.lock().free.set_long_from(bytes / 4);
    }

    /// Marks an extent as in use, as the block table or a binding in the log of a mounted volume says.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it lies outside the node space, does not consist of whole blocks, or is in use
    /// already.
    pub fn reserve(&self, extent: Extent) -> Result<()> {
        let length = u64::from(extent.length);
        let aligned = extent.offset.is_multiple_of(UNIT) && length.is_multiple_of(UNIT) && length > 0;
        let inside = extent.offset.checked_add(length).is_some() && self.is_inside(extent);
        if aligned && inside && self.state.lock().free.remove(extent.into()) {
            return Ok(());
        }
        let wrong = match (aligned, inside) {
            (false, _) => "is not made of whole blocks",
            (_, false) => "lies outside the node space",
            _ => "is in use twice",
        };
        Err(Error::Damaged {
            what: format!("the extent {extent}, which the block table or the log names, {wrong}"),
        })
    }

    /// A place for `bytes` bytes, rounded up to whole blocks: one extent if there is any that is long enough,
    /// else up to [`EXTENTS_MAX`], cut at some of `borders`, the offsets inside the node (ascending, whole
    /// blocks) where a cut is allowed. `None` if the free space does not hold it; nothing is allocated then.
    ///
    /// # Panics
    /// If `bytes` is 0 or above [`ALLOCATION_BYTES_MAX`].
    pub fn allocate(&self, bytes: u64, borders: &[u64]) -> Option<Vec<Extent>> {
        assert!(bytes > 0 && bytes <= ALLOCATION_BYTES_MAX, "an allocation of {bytes} bytes");
        debug_assert!(borders.is_sorted() && borders.iter().all(|border| border.is_multiple_of(UNIT)));
        let bytes = bytes.next_multiple_of(UNIT);
        let mut state = self.state.lock();
        if state.free.bytes() < bytes {
            return None;
        }
        match state.take(bytes) {
            Some(extent) => Some(vec![extent]),
            None => state.take_pieces(bytes, Some(borders)),
        }
    }

    /// As [`Allocator::allocate`], but cut at any block: when [`Allocator::allocate`] has found nothing because a part is
    /// longer than every run of free space.
    pub fn allocate_scattered(&self, bytes: u64) -> Option<Vec<Extent>> {
        self.state.lock().take_pieces(bytes.next_multiple_of(UNIT), None)
    }

    /// The longest node that finds a place now, in bytes: what the [`EXTENTS_MAX`] longest runs of free space hold.
    pub fn longest_node_bytes(&self) -> u64 {
        self.state.lock().free.longest_bytes(EXTENTS_MAX)
    }

    /// Returns an extent to which nothing was written since it was allocated, or whose contents nothing
    /// names.
    pub fn give_back(&self, extent: Extent) {
        self.check_inside(extent);
        self.state.lock().free.insert(extent.into());
    }

    /// Frees an extent in the current interval.
    pub fn free_later(&self, extent: Extent) {
        self.check_inside(extent);
        let mut state = self.state.lock();
        let interval = state.current;
        state.defer(interval, extent);
    }

    /// Frees an extent with a checkpoint that is being written: its cut was made, but what it writes takes
    /// the place of this extent, which belongs only to the checkpoint before.
    ///
    /// # Panics
    /// If the interval was released already.
    pub fn free_with(&self, interval: Interval, extent: Extent) {
        self.check_inside(extent);
        self.state.lock().defer(interval, extent);
    }

    /// Ends the current interval. What is freed from now on belongs to the next checkpoint.
    pub fn cut(&self) -> Interval {
        let mut state = self.state.lock();
        let ended = state.current;
        state.deferred.entry(ended).or_default();
        state.current = ended.next();
        ended
    }

    /// Makes allocatable what was freed up to the end of an interval, whose checkpoint is durable now.
    /// `discard` gets the extents first, merged and by offset, while nobody can write to them yet; no lock is
    /// held. Returns the number of bytes.
    ///
    /// # Panics
    /// If the interval has not ended.
    pub fn release(&self, interval: Interval, mut discard: impl FnMut(Run)) -> u64 {
        let extents: Vec<Extent> = {
            let mut state = self.state.lock();
            assert!(interval < state.current, "CP-1: an interval is released after its cut");
            let later = state.deferred.split_off(&interval.next());
            std::mem::replace(&mut state.deferred, later).into_values().flatten().collect()
        };
        let runs = merge(extents);
        for &run in &runs {
            discard(run);
        }
        let bytes = runs.iter().map(|run| run.length).sum();
        let mut state = self.state.lock();
        state.deferred_bytes -= bytes;
        for run in runs {
            state.free.insert(run);
        }
        bytes
    }

    /// How the space is used.
    pub fn counters(&self) -> SpaceCounters {
        let state = self.state.lock();
        let (free, deferred) = (state.free.bytes(), state.deferred_bytes);
        SpaceCounters { capacity: self.capacity(), free, usable: state.free.long_bytes(), deferred }
    }

    /// Bytes of all regions.
    pub fn capacity(&self) -> u64 {
        self.regions.iter().map(|region| region.length).sum()
    }

    /// The free runs by offset, for tests.
    #[cfg(test)]
    pub fn free_runs(&self) -> Vec<Run> {
        self.state.lock().free.iter().collect()
    }

    fn check_inside(&self, extent: Extent) {
        assert!(extent.length > 0 && self.is_inside(extent), "SP-2: {extent} was allocated here");
    }

    fn is_inside(&self, extent: Extent) -> bool {
        let mut regions = self.regions.iter();
        extent.device == DEVICE
            && regions.any(|region| region.offset <= extent.offset && extent.end() <= region.end())
    }
}

impl State {
    fn take(&mut self, bytes: u64) -> Option<Extent> {
        let near =
            if bytes < LARGE_BYTES { None } else { self.free.next_fit(self.cursor, bytes, NEXT_FIT_STEPS) };
        let from = near.or_else(|| self.free.best_fit(bytes))?;
        let extent = self.remove(from.offset, bytes);
        if bytes >= LARGE_BYTES {
            self.cursor = extent.end();
        }
        Some(extent)
    }

    fn take_pieces(&mut self, bytes: u64, borders: Option<&[u64]>) -> Option<Vec<Extent>> {
        let mut pieces: Vec<Extent> = Vec::new();
        let mut start = 0;
        while start < bytes {
            let piece =
                if pieces.len() < EXTENTS_MAX { self.take_piece(start, bytes, borders) } else { None };
            let Some(piece) = piece else {
                for piece in pieces {
                    self.free.insert(piece.into());
                }
                return None;
            };
            start += u64::from(piece.length);
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// A place for the rest of a node from `start` on, or for as much of it as the longest free extent holds.
    fn take_piece(&mut self, start: u64, bytes: u64, borders: Option<&[u64]>) -> Option<Extent> {
        let rest = bytes - start;
        let from = self.free.best_fit(rest).or_else(|| self.free.longest())?;
        let length = match borders {
            _ if from.length >= rest => rest,
            None => from.length,
            Some(borders) => {
                let fitting = borders.partition_point(|&border| border <= start + from.length);
                let border = *borders[..fitting].last()?;
                border.checked_sub(start).filter(|&length| length > 0)?
            }
        };
        Some(self.remove(from.offset, length))
    }

    fn remove(&mut self, offset: u64, length: u64) -> Extent {
        let was_free = self.free.remove(Run { offset, length });
        assert!(was_free, "SP-2: what is allocated was free");
        Extent { device: DEVICE, offset, length: length.try_into().expect("an allocation is below 4 GiB") }
    }

    fn defer(&mut self, interval: Interval, extent: Extent) {
        let known = interval == self.current || self.deferred.contains_key(&interval);
        assert!(known, "CP-1: nothing is freed with a checkpoint that is over");
        debug_assert!(!self.free.contains(extent.into()), "SP-2: {extent} is free already");
        self.deferred.entry(interval).or_default().push(extent);
        self.deferred_bytes += u64::from(extent.length);
    }
}

/// Sorts extents and joins those that touch.
///
/// # Panics
/// If two of them overlap (SP-2).
fn merge(mut extents: Vec<Extent>) -> Vec<Run> {
    extents.sort_unstable();
    let mut merged: Vec<Run> = Vec::with_capacity(extents.len());
    for extent in extents {
        match merged.last_mut() {
            Some(last) if last.end() >= extent.offset => {
                assert!(last.end() == extent.offset, "SP-2: {extent} was freed twice");
                last.length += u64::from(extent.length);
            }
            _ => merged.push(extent.into()),
        }
    }
    merged
}
