//! Ballast: what deletes above the leaves have deleted, and the leaves still hold. Whoever reads what is beside it reads it along.
//!
//! Once a sixteenth of what a volume holds is ballast, checkpoints bring deletes down although there is space. None of them does much
//! for that, since the log fills meanwhile and an unmount waits for it: the next goes on where it ended.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pando_format::Tree;
use parking_lot::Mutex;

use super::sink::{Sunk, Walk};
use crate::Result;
use crate::stats::add_up;
use crate::volume::Volume;

/// Deletes come down where they have deleted more than this part of what a volume holds.
const BALLAST_PART: u64 = 16;

/// Flushes, and nodes read, that one checkpoint makes for the sake of ballast.
pub(super) const BALLAST_STEPS_MAX: usize = 64;

/// The order in which a pass goes through the trees: files are larger than their records.
const TREES: [Tree; 2] = [Tree::Data, Tree::Metadata];

/// Bytes of values in leaves that deletes above them have deleted, about.
#[derive(Debug, Default)]
pub(crate) struct Ballast {
    bytes: AtomicU64,
    /// Bytes that have been taken off it, since the volume was opened.
    shed: AtomicU64,
    /// Ranges that have been moved: the deletes that this leaves count for nothing, since nobody knows what they meet.
    moves: AtomicU64,
    /// Of these, those behind which a pass has been made.
    moves_down: AtomicU64,
    /// Where the checkpoints are that look for it.
    pass: Mutex<Option<Pass>>,
}

/// A way through both trees that takes one checkpoint or more.
#[derive(Debug)]
struct Pass {
    /// What there was when it began.
    began: BallastCount,
    /// Of [`TREES`], those that are behind it.
    done: usize,
    /// Where it goes on in the next one.
    from: Bytes,
}

/// How much there was, and how much had been taken off, at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BallastCount {
    pub(crate) bytes: u64,
    shed: u64,
    moves: u64,
}

impl Ballast {
    /// As the last checkpoint has left it.
    pub(crate) fn of(bytes: u64) -> Self {
        // Whether some of the deletes are a move's nobody remembers. Where none is counted, little waits of moves, either.
        Self { bytes: bytes.into(), moves: u64::from(bytes > 0).into(), ..Self::default() }
    }

    pub(crate) fn count(&self) -> BallastCount {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BallastCount { bytes: load(&self.bytes), shed: load(&self.shed), moves: load(&self.moves) }
    }

    /// Values have been deleted.
    pub(crate) fn add(&self, bytes: u64) {
        add_up(&self.bytes, bytes);
    }

    /// A range has been moved, and leaves may hold under its old names what they held.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// A delete that came down has met values. Not if it may be that of a move: what other deletes have yet to meet is still there then.
    pub(super) fn met(&self, bytes: usize) {
        if self.moves.load(Ordering::Relaxed) == self.moves_down.load(Ordering::Relaxed) {
            self.shed(bytes as u64);
        }
    }

    /// Values that were deleted were not in leaves, or are not any more.
    pub(crate) fn shed(&self, bytes: u64) {
        if bytes > 0 {
            self.shed.fetch_add(bytes, Ordering::Relaxed);
            self.take_off(bytes);
        }
    }

    /// Everything that waited then is down: what is still counted of it was an error.
    pub(super) fn forget(&self, then: BallastCount) {
        *self.pass.lock() = None;
        self.moves_down.fetch_max(then.moves, Ordering::Relaxed);
        self.take_off(then.bytes.saturating_sub(self.count().shed - then.shed));
    }

    fn take_off(&self, bytes: u64) {
        let less = |there: u64| Some(there.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl Volume {
    /// True if a sixteenth of what the volume holds is dead, and is read by whoever reads what is beside it.
    pub(super) fn ballast_is_heavy(&self) -> bool {
        let counters = self.allocator.counters();
        let used = counters.capacity - counters.free;
        self.ballast.count().bytes > (used / BALLAST_PART).max(self.shape.node_bytes as u64)
    }

    /// Brings deletes down for the sake of ballast, as many as one checkpoint may.
    pub(super) fn sink_ballast(&self) -> Result<()> {
        let pass = self.ballast.pass.lock().take();
        let began = self.ballast.count();
        let mut pass = pass.unwrap_or(Pass { began, done: 0, from: Bytes::new() });
        let mut walk = Walk {
            for_space: false,
            steps_left: Cell::new(BALLAST_STEPS_MAX),
            from: RefCell::new(pass.from.clone()),
            ..Walk::for_space()
        };
        // Where no delete waits, what is still counted was an error.
        let trees = if self.deletes_wait.load(Ordering::Acquire) { &TREES[pass.done..] } else { &[] };
        for tree in trees {
            if self.sink_tree(*tree, &mut walk)? == Sunk::InPart {
                pass.from = walk.from.take();
                *self.ballast.pass.lock() = Some(pass);
                return Ok(());
            }
            pass.done += 1;
            walk.from.take();
        }
        self.ballast.forget(pass.began);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_deletes_meet_is_taken_off_unless_they_may_be_those_of_moves() {
        let ballast = Ballast::of(0);
        let met = |bytes| {
            ballast.met(bytes);
            ballast.count().bytes
        };
        ballast.add(100);
        assert_eq!(met(30), 70);
        ballast.moved();
        assert_eq!(met(30), 70);
        let pass = ballast.count();
        ballast.moved();
        ballast.forget(pass);
        ballast.add(100);
        assert_eq!(met(30), 100, "the pass began before the second move");
        ballast.forget(ballast.count());
        ballast.add(100);
        assert_eq!(met(30), 70);
    }

    #[test]
    fn of_deletes_from_before_a_volume_was_opened_nobody_knows_what_they_are() {
        for (bytes, left) in [(0, 70), (100, 200)] {
            let ballast = Ballast::of(bytes);
            ballast.add(100);
            ballast.met(30);
            assert_eq!(ballast.count().bytes, left);
        }
    }
}
