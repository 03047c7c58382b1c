//! Bringing deletes down: what they free is free only when they have come to the leaves, or to the edge of a whole subtree.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_format::{KeyRange, NodeId, Tree};

use super::interior::Child;
use super::node::NodeRef;
use crate::volume::Volume;
use crate::{Error, Result};

/// How often the deletes of a tree are begun anew because a clone came in between.
const SINK_PAUSES_MAX: usize = 64;

/// Deletes come down where they have deleted more than this part of what a volume holds.
const BALLAST_PART: u64 = 16;

/// So many times one checkpoint flushes for the sake of ballast. The log fills meanwhile, and an unmount waits for it; the next goes on.
pub(super) const BALLAST_FLUSHES_MAX: usize = 64;

/// One walk through a tree that brings deletes down.
#[derive(Debug)]
pub(super) struct Walk {
    /// It gives way to a clone that waits for the token.
    pub(super) may_pause: bool,
    /// Space is wanted; else nothing is copied that others see.
    pub(super) for_space: bool,
    /// Flushes that it may still make.
    pub(super) flushes_left: Cell<usize>,
}

/// Bytes of values in leaves that deletes above them have deleted, about.
#[derive(Debug, Default)]
pub(crate) struct Ballast {
    bytes: AtomicU64,
    /// Bytes that have been taken off it, since the volume was opened.
    shed: AtomicU64,
}

/// How much there was, and how much had been taken off, at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BallastCount {
    pub(crate) bytes: u64,
    shed: u64,
}

impl Ballast {
    /// As the last checkpoint has left it.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { bytes: bytes.into(), shed: AtomicU64::default() }
    }

    pub(crate) fn count(&self) -> BallastCount {
        BallastCount { bytes: self.bytes.load(Ordering::Relaxed), shed: self.shed.load(Ordering::Relaxed) }
    }

    /// Values have been deleted.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A delete has met values.
    pub(crate) fn shed(&self, bytes: u64) {
        if bytes > 0 {
            self.shed.fetch_add(bytes, Ordering::Relaxed);
            self.take_off(bytes);
        }
    }

    /// Everything that waited then is down: what is still counted of it was an error.
    fn forget(&self, then: BallastCount) {
        self.take_off(then.bytes.saturating_sub(self.count().shed - then.shed));
    }

    fn take_off(&self, bytes: u64) {
        let less = |there: u64| Some(there.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// What bringing deletes down came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sunk {
    /// Some are where they were, for want of room or since a clone waits.
    InPart,
    /// All but those in nodes that have other names, too, or lie behind a goto.
    Own,
    /// None waits any more.
    All,
}

impl Volume {
    /// SP-1: once a volume has become nearly full, or a sixteenth of it is dead, each checkpoint first brings waiting deletes
    /// down to where they free space, until none waits any more. So what was deleted is free after the next checkpoint, the
    /// free space that is told is off by a sixteenth at most, and on a volume with room no leaf is rewritten for the sake
    /// of a few deletes. Looking for them takes a walk over all interior nodes, so it is left out where none can wait.
    ///
    /// They also come down once a sixteenth of what the volume holds is ballast: whoever reads a tree of many deletes reads that
    /// along. Else they come into the nodes that this checkpoint writes anyway.
    pub(crate) fn sink_deletes(&self) -> Result<()> {
        let dead = self.dead_bytes.load(Ordering::Relaxed);
        let ballast = self.ballast.count();
        let for_space = self.wants_deletes_down();
        if for_space {
            self.reclaiming.store(true, Ordering::Relaxed);
        } else if !self.ballast_is_heavy() {
            return self.sink_into_dirty();
        }
        let moved = || {
            self.stats.flushes.load(Ordering::Relaxed) + self.stats.pruned_subtrees.load(Ordering::Relaxed)
        };
        let before = moved();
        let mut sunk = Sunk::All;
        let flushes_left = Cell::new(if for_space { usize::MAX } else { BALLAST_FLUSHES_MAX });
        let mut walk = Walk { may_pause: true, for_space, flushes_left };
        // Before the walk: what comes meanwhile is looked for by the next.
        if self.deletes_wait.swap(false, Ordering::AcqRel) {
            for tree in Tree::ALL {
                sunk = self
                    .sink_tree(tree, &mut walk)
                    .inspect_err(|_| self.deletes_wait.store(true, Ordering::Release))?
                    .min(sunk);
            }
            if sunk != Sunk::All || before != moved() || !self.damaged.lock().is_empty() {
                self.deletes_wait.store(true, Ordering::Release);
            }
        }
        let all_down = sunk != Sunk::InPart;
        self.wake_turned_away();
        while self.reclaim_doomed()? {}
        // Deletes may still be coming: it is over when a checkpoint finds none.
        let after = moved();
        let counters = self.allocator.counters();
        if all_down && before == after && counters.free + counters.deferred > counters.capacity / 16 * 5 {
            self.reclaiming.store(false, Ordering::Relaxed);
        }
        // Where nothing moved although something waits, trying again does not help either.
        if all_down || before == after {
            self.dead_bytes.fetch_sub(dead, Ordering::Relaxed);
            self.ballast.forget(ballast);
        }
        Ok(())
    }

    /// Brings the deletes of a tree down. A clone may come in between, and it goes on from the root then; but not for ever, where one
    /// follows the other.
    fn sink_tree(&self, tree: Tree, walk: &mut Walk) -> Result<Sunk> {
        let mut pauses_left = SINK_PAUSES_MAX;
        loop {
            let _token = self.root(tree).maintenance.wait();
            let root = self.root(tree).read().clone();
            walk.may_pause = pauses_left > 0;
            let sunk = match self.sink_below(&root, &KeyRange::all(), walk) {
                // What lies behind damage stays where it is.
                Err(error) if error.is_unreadable() => Sunk::Own,
                done => done?,
            };
            self.fit_root(tree)?;
            if sunk != Sunk::InPart || pauses_left == 0 || !self.root(tree).maintenance.is_wanted() {
                return Ok(sunk);
            }
            pauses_left -= 1;
        }
    }

    /// True if a checkpoint is to bring deletes down for the sake of space.
    pub(crate) fn wants_deletes_down(&self) -> bool {
        let counters = self.allocator.counters();
        counters.free < counters.capacity / 4
            || self.much_is_dead()
            || self.reclaiming.load(Ordering::Relaxed)
    }

    /// True if waiting deletes hold a sixteenth of the volume.
    pub(crate) fn much_is_dead(&self) -> bool {
        self.dead_bytes.load(Ordering::Relaxed) > self.allocator.counters().capacity / 16
    }

    /// True if a sixteenth of what the volume holds is dead, and is read by whoever reads what is beside it.
    fn ballast_is_heavy(&self) -> bool {
        let counters = self.allocator.counters();
        let used = counters.capacity - counters.free;
        self.ballast.count().bytes > (used / BALLAST_PART).max(self.shape.node_bytes as u64)
    }

    /// Brings messages with deletes among them down into nodes in memory that the checkpoint writes anyway: that costs nothing, and what they
    /// delete is not written. Where maintenance is at work, or what they need would have to be read, they stay where they are.
    fn sink_into_dirty(&self) -> Result<()> {
        if !self.deletes_wait.load(Ordering::Acquire) {
            return Ok(());
        }
        for tree in Tree::ALL {
            let Some(_token) = self.root(tree).maintenance.try_take() else { continue };
            let root = self.root(tree).read().clone();
            self.sink_dirty_below(&root, &KeyRange::all())?;
            if self.has_space_to_flush() {
                self.fit_root(tree)?;
            }
        }
        self.wake_turned_away();
        Ok(())
    }

    fn sink_dirty_below(&self, node: &NodeRef, own: &KeyRange) -> Result<()> {
        let height = node.state.read().height;
        let mut index = 0;
        while height > 0 && index < node.state.read().interior().children.len() {
            if !self.has_space_to_flush() || self.root(node.tree).maintenance.is_wanted() {
                return Ok(());
            }
            match self.sink_behind(node, own, index) {
                Ok(true) => {}
                Ok(false) => index += 1,
                // Damage; what is behind other edges is no worse for that.
                Err(error) if error.is_unreadable() => index += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One edge of a node, and what is below it; true if another one has come to its place.
    fn sink_behind(&self, node: &NodeRef, own: &KeyRange, index: usize) -> Result<bool> {
        let (id, edges) = {
            let state = node.state.read();
            let children = &state.interior().children;
            let edge = &children[index];
            (if self.is_own(edge) { edge.id } else { NodeId::EMPTY }, children.len())
        };
        let Some(child) = self.cache.peek(id) else { return Ok(false) };
        if child.state.read().dirty.is_none() || self.damaged.lock().contains(&id) {
            return Ok(false);
        }
        let holds_deletes = node.state.read().interior().children[index].holds_deletes();
        if holds_deletes && self.part_needed(node, own, index, &child)?.is_none() {
            self.flush_around_damage(node, own, (index, id))?;
        }
        // What the flush has brought in shape may have other bounds now.
        let bounds = {
            let state = node.state.read();
            let interior = state.interior();
            let is_here = interior.children.get(index).is_some_and(|edge| edge.id == id);
            if is_here { Some(interior.bounds_below(index, own)?.0) } else { None }
        };
        if let Some(bounds) = bounds.filter(|_| node.state.read().height > 1) {
            child.state.read().expect_height(&child, Some(node.state.read().height - 1))?;
            self.sink_dirty_below(&child, &bounds)?;
            self.bring_in_shape(node, own, index, &child)?;
        }
        let state = node.state.read();
        let children = &state.interior().children;
        Ok(children.len() < edges || children.get(index).is_none_or(|edge| edge.id != id))
    }

    /// True for an edge to a node that nobody else sees.
    fn is_own(&self, edge: &Child) -> bool {
        !edge.id.is_empty() && edge.xf.is_none() && !self.is_shared(edge.id)
    }

    /// Keeps memory within its budget: what deletes come down to becomes dirty, and at an unmount nobody else looks after it.
    fn evict_while_sinking(&self) -> Result<()> {
        if self.wants_eviction() {
            match self.evict() {
                Ok(_) | Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings deletes from a node and from below it down; in part if there was no room for all of them, or the walk is to end or to pause.
    pub(super) fn sink_below(&self, node: &NodeRef, own: &KeyRange, walk: &Walk) -> Result<Sunk> {
        let pauses = || walk.may_pause && self.root(node.tree).maintenance.is_wanted();
        let height = node.state.read().height;
        if height == 0 {
            return Ok(Sunk::All);
        }
        self.load_all(node)?;
        self.prune(node, own)?;
        // What lies behind a goto is looked at once that has become an edge.
        let mut sunk = loop {
            self.load_all(node)?;
            let waiting = {
                let state = node.state.read();
                if state.missing_part().is_some() {
                    // A query has evicted it in the meantime.
                    continue;
                }
                let interior = state.interior();
                let damaged = self.damaged.lock();
                let comes_down = |child: &Child| {
                    child.holds_deletes()
                        && (walk.for_space || self.is_own(child))
                        && !damaged.contains(&child.id)
                };
                match interior.children.iter().position(comes_down) {
                    Some(index) => (index, interior.children[index].id),
                    None if interior.holds_gotos() => break Sunk::Own,
                    None if interior.children.iter().any(Child::holds_deletes) => break Sunk::Own,
                    None => break Sunk::All,
                }
            };
            if walk.flushes_left.get() == 0 || !self.has_space_to_flush() || pauses() {
                return Ok(Sunk::InPart);
            }
            walk.flushes_left.update(|left| left - 1);
            self.flush_around_damage(node, own, waiting)?;
            self.evict_while_sinking()?;
        };
        let mut index = 0;
        while height > 1 && index < node.state.read().interior().children.len() {
            let (id, bounds, is_own) = {
                let state = node.state.read();
                let edge = &state.interior().children[index];
                (edge.id, state.interior().bounds_below(index, own)?.0, self.is_own(edge))
            };
            // What is shared does not become free, and would have to be copied for the sake of a few deletes.
            if !is_own {
                if !id.is_empty() {
                    sunk = sunk.min(Sunk::Own);
                }
                index += 1;
                continue;
            }
            let edges = node.state.read().interior().children.len();
            let below = self.node(id).and_then(|child| {
                child.state.read().expect_height(&child, Some(height - 1))?;
                let below = self.sink_below(&child, &bounds, walk)?;
                self.bring_in_shape(node, own, index, &child)?;
                Ok(below)
            });
            sunk = match below {
                Ok(below) => below.min(sunk),
                // What lies behind damage stays where it is, and all else comes down.
                Err(error) if error.is_unreadable() => {
                    index += 1;
                    sunk = sunk.min(Sunk::Own);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if pauses() {
                return Ok(Sunk::InPart);
            }
            // A merge has brought a neighbour that has not been looked at to this place.
            let state = node.state.read();
            let children = &state.interior().children;
            if children.len() >= edges && children.get(index).is_some_and(|child| child.id == id) {
                index += 1;
            }
        }
        Ok(sunk)
    }
}
