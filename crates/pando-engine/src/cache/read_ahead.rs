//! Reading ahead of those who read in order, on threads of its own, so that they find in memory what they come to.
//!
//! Parts that were read together leave a mark on one of them ([`CachedNode::mark`]). The scan that comes to the mark shows
//! that somebody goes on, and asks for the next parts of the leaf that nobody is reading yet, or at its end for the first of the
//! leaf behind it in the tree. Parts that a query missed are marked in their middle: who only looked something up there costs
//! nothing more. Parts that were read ahead are marked at their start, so there is always a run on its way.
//!
//! It is all a guess. Nothing waits for it, what cannot be read is left to whoever needs it, and nothing is read that
//! something else would have to leave the cache for. In a small cache nothing is: what streams by already takes more than its share. With [`Background::Manual`] there are no threads, and nothing is read ahead.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pando_format::NodeId;
use parking_lot::{Condvar, Mutex};

use crate::betree::node::{Body, CachedNode, NodeRef};
use crate::options::Background;
use crate::volume::Volume;
use crate::{Miss, Result};

/// Threads that read ahead, thus runs that are on their way at once.
pub(crate) const THREADS: usize = 2;

/// Wishes that wait at most; there is one for each reader, and further readers read for themselves.
const WISHES_MAX: usize = 32;

/// Runs that one wish brings at most. A reader begins with one, and gets twice as many each time.
const RUNS_MAX: usize = 4;

/// No part carries the mark.
pub(crate) const NO_MARK: u64 = u64::MAX;

/// The mark on a part: so many runs are wished for there.
pub(crate) fn mark(part: usize, runs: usize) -> u64 {
    (runs as u64) << 32 | part as u64
}

/// What is to be read ahead.
#[derive(Default)]
pub(crate) struct ReadAhead {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    wishes: VecDeque<Wish>,
    stop: bool,
}

/// Somebody has come to this part of this leaf.
pub(super) struct Wish {
    pub(super) node: NodeId,
    pub(super) part: usize,
    /// How many runs are to be read.
    pub(super) runs: usize,
}

impl ReadAhead {
    fn add(&self, wish: Wish) {
        let mut state = self.state.lock();
        if state.wishes.len() < WISHES_MAX {
            state.wishes.push_back(wish);
            self.wake.notify_one();
        }
    }

    /// The next wish; `None` when there is to be no more reading.
    fn next(&self) -> Option<Wish> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(wish) = state.wishes.pop_front() {
                return Some(wish);
            }
            self.wake.wait(&mut state);
        }
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }
}

impl Volume {
    /// A scan uses a part of a leaf.
    pub(crate) fn comes_to(&self, leaf: &CachedNode, part: usize) {
        let mark = leaf.mark.load(Ordering::Relaxed);
        if mark as u32 != part as u32 || mark == NO_MARK {
            return;
        }
        // Of several scans one wishes.
        let is_first =
            leaf.mark.compare_exchange(mark, NO_MARK, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first && self.options.read_ahead && self.options.background == Background::Threads {
            self.cache.read_ahead.add(Wish { node: leaf.id, part, runs: (mark >> 32) as usize });
        }
    }

    /// What a thread does until it is told to end.
    pub(crate) fn read_ahead_thread(&self) {
        while let Some(wish) = self.cache.read_ahead.next() {
            // An error comes again to whoever needs what could not be read.
            let _ = self.read_ahead(&wish);
        }
    }

    pub(super) fn read_ahead(&self, wish: &Wish) -> Result<()> {
        let Some(mut leaf) = self.cache.peek(wish.node) else { return Ok(()) };
        let (mut from, mut is_first) = (wish.part, true);
        for _ in 0..wish.runs {
            if self.wants_eviction() || !self.has_room_for_streams() {
                return Ok(());
            }
            let Some((there, part)) = self.next_to_read(leaf, from)? else { return Ok(()) };
            let (parts, bytes) = self.load_part(&there, part)?;
            (leaf, from) = (there, parts.end);
            if bytes == 0 {
                continue;
            }
            self.stats.parts_read_ahead.fetch_add(1, Ordering::Relaxed);
            if std::mem::take(&mut is_first) {
                leaf.mark.store(mark(parts.start, (wish.runs * 2).min(RUNS_MAX)), Ordering::Relaxed);
            }
            self.pass(&leaf, parts, bytes);
        }
        Ok(())
    }

    /// The first part from this one on, here or in the leaf behind, that is neither in memory nor on its way there.
    fn next_to_read(&self, leaf: NodeRef, from: usize) -> Result<Option<(NodeRef, usize)>> {
        if let Some(part) = self.absent_part(&leaf, from) {
            return Ok(Some((leaf, part)));
        }
        let next = NodeId(leaf.next.load(Ordering::Relaxed));
        if next.is_empty() {
            return Ok(None);
        }
        self.fetch(Miss { node: next, part: None })?;
        let Some(next) = self.cache.peek(next) else { return Ok(None) };
        Ok(self.absent_part(&next, 0).map(|part| (next, part)))
    }

    fn absent_part(&self, leaf: &NodeRef, from: usize) -> Option<usize> {
        let state = leaf.state.read();
        let Body::Leaf(body) = &state.body else { return None };
        let is_absent = |part: &usize| {
            let slot = &body.basements[*part].part;
            slot.get().is_none() && !self.cache.in_flight.contains(leaf.id, *part as u32)
        };
        (from..body.basements.len()).find(is_absent)
    }
}
