//! Reading ahead of those who read in order, on threads of its own, so that they find in memory what they come to.
//!
//! Parts that a query missed are marked in their middle ([`CachedNode::mark`]): who only looked something up there costs nothing
//! more. The scan that comes to the mark shows that somebody goes on, and wishes that what lies behind it be in memory, as far as a
//! window reaches. The threads read what is missing there, run by run and each thread another one, so that the device has several requests to work on, and
//! the next mark is in the middle of the window, with which a window of twice the size is wished for: so half of it is there, or on its way, when the
//! other half is read. The way from leaf to leaf is that of a scan, across interior nodes, too.
//!
//! It is all a guess. Nothing waits for it, what cannot be read is left to whoever needs it, and nothing is read that
//! something else would have to leave the cache for. In a small cache nothing is: what streams by already takes more than its share. With [`Background::Manual`] there are no threads, and nothing is read ahead.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pando_format::{Bound, KeyRange, Tree};
use parking_lot::{Condvar, Mutex};

use crate::betree::leaf::Leaf;
use crate::betree::node::{Body, CachedNode, NodeRef};
use crate::cache::in_flight::InFlight;
use crate::options::Background;
use crate::volume::Volume;
use crate::{Error, Result};

/// Threads that read ahead, thus runs that are on their way at once.
pub(crate) const THREADS: usize = 4;

/// Wishes that wait at most; there are one or two for each reader, and further readers read for themselves.
const WISHES_MAX: usize = 32;

/// The first window of a reader, in bytes: how far ahead of him parts are read. It doubles each time.
pub(crate) const WINDOW_MIN: u32 = 2 << 20;

/// The largest window.
const WINDOW_MAX: u32 = 16 << 20;

/// Leaves, and ways that lead to nothing, that are looked at for the next run at most: what is deleted has no end of its own.
const STEPS_MAX: usize = 256;

/// No part carries the mark.
pub(crate) const NO_MARK: u64 = u64::MAX;

/// The mark on a part: who comes to it wishes for a window of so many bytes.
pub(crate) fn mark(part: usize, window: u32) -> u64 {
    u64::from(window) << 32 | part as u64
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

/// Somebody has come to this place of a tree.
pub(super) struct Wish {
    tree: Tree,
    position: Bound,
    /// Bytes behind the position that are to be in memory.
    window: u32,
    /// Bytes of the window in which nothing is left to be tried: what cannot be read stays missing for ever.
    tried: usize,
    /// True until the next mark is set.
    is_new: bool,
}

impl Wish {
    pub(super) fn new(tree: Tree, position: Bound, window: u32) -> Self {
        Self { tree, position, window, tried: 0, is_new: true }
    }
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

    /// The next wish, if there is one.
    #[cfg(test)]
    pub(super) fn waiting_wish(&self) -> Option<Wish> {
        self.state.lock().wishes.pop_front()
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }
}

impl Volume {
    /// A scan forward uses a part of a leaf; `position` tells where it is, as a full bound.
    pub(crate) fn comes_to(&self, leaf: &CachedNode, part: usize, position: impl FnOnce() -> Bound) {
        let mark = leaf.mark.load(Ordering::Relaxed);
        if mark as u32 != part as u32 || mark == NO_MARK {
            return;
        }
        // Of several scans one wishes.
        let is_first =
            leaf.mark.compare_exchange(mark, NO_MARK, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first && self.options.read_ahead && self.options.background == Background::Threads {
            self.cache.read_ahead.add(Wish::new(leaf.tree, position(), (mark >> 32) as u32));
        }
    }

    /// What a thread does until it is told to end.
    pub(crate) fn read_ahead_thread(&self) {
        while let Some(wish) = self.cache.read_ahead.next() {
            // An error comes again to whoever needs what could not be read.
            let _ = self.read_ahead(wish);
        }
    }

    /// Reads the first run of a wish that nobody is reading, and leaves the rest to whoever is free.
    pub(super) fn read_ahead(&self, wish: Wish) -> Result<()> {
        let is_absent = |leaf: &CachedNode, body: &Leaf, part: usize| {
            body.basements[part].part.get().is_none() && !self.cache.in_flight.contains(leaf.id, part as u32)
        };
        let absent = self.first_in_window(&wish, |leaf, body, part, distance| {
            distance >= wish.tried && is_absent(leaf, body, part)
        })?;
        let Some((leaf, part, distance)) = absent else { return Ok(()) };
        if wish.is_new {
            // An error there says nothing of what lies before it.
            let middle = wish.window as usize / 2;
            let found = self.first_in_window(&wish, |_, _, _, distance| distance >= middle);
            if let Ok(Some((leaf, part, _))) = found {
                leaf.mark.store(mark(part, (2 * wish.window).min(WINDOW_MAX)), Ordering::Relaxed);
            }
        }
        // In this order, so that nobody else takes the same, and no claim is held while nodes are read for the mark.
        let run = self.claim_run(&leaf, part, InFlight::try_claim);
        self.cache.read_ahead.add(Wish { tried: distance + 1, is_new: false, ..wish });
        if let Some(run) = run {
            let (parts, bytes) = self.load_run(&leaf, run)?;
            if bytes > 0 {
                self.stats.parts_read_ahead.fetch_add(1, Ordering::Relaxed);
                self.pass(&leaf, parts, bytes);
            }
        }
        Ok(())
    }

    /// The first part in the window of a wish that is chosen, of those of a leaf by number and by the bytes that lie before it in
    /// the window, and these bytes. Reads what it needs of nodes.
    fn first_in_window(
        &self,
        wish: &Wish,
        chosen: impl Fn(&CachedNode, &Leaf, usize, usize) -> bool,
    ) -> Result<Option<(NodeRef, usize, usize)>> {
        let mut rest = KeyRange { lower: wish.position.clone(), ..KeyRange::all() };
        let mut distance = 0;
        let mut missed = None;
        for _ in 0..STEPS_MAX {
            if self.wants_eviction() || !self.has_room_for_streams() {
                break;
            }
            let ahead = match self.leaf_ahead(wish.tree, &rest) {
                // What is missed again cannot be had for long.
                Err(Error::Miss(miss)) if missed != Some(miss) => {
                    self.fetch(miss)?;
                    missed = Some(miss);
                    continue;
                }
                ahead => ahead?,
            };
            if let Some(leaf) = ahead.leaf {
                let state = leaf.state.read();
                let Body::Leaf(body) = &state.body else { break };
                for part in ahead.parts.start..ahead.parts.end.min(body.basements.len()) {
                    if distance >= wish.window as usize {
                        return Ok(None);
                    }
                    if chosen(&leaf, body, part, distance) {
                        drop(state);
                        return Ok(Some((leaf, part, distance)));
                    }
                    distance += body.basements[part].bytes;
                }
            }
            // The end of the tree; or a damaged one, which leads back.
            if ahead.end <= rest.lower || ahead.end >= rest.upper {
                break;
            }
            rest.lower = ahead.end;
        }
        Ok(None)
    }
}
