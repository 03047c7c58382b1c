//! Bringing deletes down: what they free is free only when they have come to the leaves, or to the edge of a whole subtree.

use std::sync::atomic::{AtomicU64, Ordering};

use pando_format::{KeyRange, NodeId, Tree};

use super::node::NodeRef;
use crate::Result;
use crate::volume::Volume;

/// How often the deletes of a tree are begun anew because a clone came in between.
const SINK_PAUSES_MAX: usize = 64;

/// Deletes come down where they have deleted more than this part of what a volume holds.
const BALLAST_PART: u64 = 16;

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
    pub(super) fn shed(&self, bytes: u64) {
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
        if self.wants_deletes_down() {
            self.reclaiming.store(true, Ordering::Relaxed);
        } else if !self.ballast_is_heavy() {
            return self.sink_into_dirty();
        }
        let moved = || {
            self.stats.flushes.load(Ordering::Relaxed) + self.stats.pruned_subtrees.load(Ordering::Relaxed)
        };
        let before = moved();
        let mut sunk = Sunk::All;
        // Before the walk: what comes meanwhile is looked for by the next.
        if self.deletes_wait.swap(false, Ordering::AcqRel) {
            for tree in Tree::ALL {
                sunk = self
                    .sink_tree(tree)
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
    fn sink_tree(&self, tree: Tree) -> Result<Sunk> {
        let mut pauses_left = SINK_PAUSES_MAX;
        loop {
            let _token = self.root(tree).maintenance.wait();
            let root = self.root(tree).read().clone();
            let sunk = match self.sink_below(&root, &KeyRange::all(), pauses_left > 0) {
                // What lies behind damage stays where it is.
                Err(error) if error.is_unreadable() => Sunk::InPart,
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
    /// delete is not written.
    fn sink_into_dirty(&self) -> Result<()> {
        if !self.deletes_wait.load(Ordering::Acquire) {
            return Ok(());
        }
        for tree in Tree::ALL {
            let _token = self.root(tree).maintenance.wait();
            let root = self.root(tree).read().clone();
            match self.sink_dirty_below(&root, &KeyRange::all()) {
                Err(error) if error.is_unreadable() => {}
                done => done?,
            }
            self.fit_root(tree)?;
        }
        self.wake_turned_away();
        Ok(())
    }

    fn sink_dirty_below(&self, node: &NodeRef, own: &KeyRange) -> Result<()> {
        if node.state.read().height == 0 {
            return Ok(());
        }
        let mut index = 0;
        while index < node.state.read().interior().children.len() {
            if !self.has_space_to_flush() || self.root(node.tree).maintenance.is_wanted() {
                return Ok(());
            }
            let (id, holds_deletes, edges) = {
                let state = node.state.read();
                let children = &state.interior().children;
                let edge = &children[index];
                let is_own = !edge.id.is_empty() && edge.xf.is_none() && !self.is_shared(edge.id);
                let id = if is_own { edge.id } else { NodeId::EMPTY };
                (id, edge.holds_deletes(), children.len())
            };
            let child = self.cache.peek(id).filter(|child| child.state.read().dirty.is_some());
            let Some(child) = child.filter(|_| !self.damaged.lock().contains(&id)) else {
                index += 1;
                continue;
            };
            if holds_deletes {
                self.flush_around_damage(node, own, (index, id))?;
            }
            // What the flush has brought in shape may have other bounds now.
            let bounds = {
                let state = node.state.read();
                let interior = state.interior();
                let is_here = interior.children.get(index).is_some_and(|edge| edge.id == id);
                if is_here { Some(interior.bounds_below(index, own)?.0) } else { None }
            };
            if let Some(bounds) = bounds.filter(|_| child.state.read().height > 0) {
                self.sink_dirty_below(&child, &bounds)?;
                self.bring_in_shape(node, own, index, &child)?;
            }
            let state = node.state.read();
            let children = &state.interior().children;
            if children.len() >= edges && children.get(index).is_some_and(|child| child.id == id) {
                index += 1;
            }
        }
        Ok(())
    }

    /// Brings deletes from a node and from below it down; in part if there was no room for all of them, or, where it may pause, if a
    /// clone waits for the token.
    pub(super) fn sink_below(&self, node: &NodeRef, own: &KeyRange, may_pause: bool) -> Result<Sunk> {
        let pauses = || may_pause && self.root(node.tree).maintenance.is_wanted();
        if node.state.read().height == 0 {
            return Ok(Sunk::All);
        }
        self.load_all(node)?;
        self.prune(node, own)?;
        loop {
            let waiting = node
                .state
                .read()
                .interior()
                .children
                .iter()
                .position(|child| child.holds_deletes() && !self.damaged.lock().contains(&child.id));
            let Some(index) = waiting else { break };
            if !self.has_space_to_flush() || pauses() {
                return Ok(Sunk::InPart);
            }
            let id = node.state.read().interior().children[index].id;
            self.flush_around_damage(node, own, (index, id))?;
            self.load_all(node)?;
        }
        // What lies behind a goto is looked at once that has become an edge.
        let mut sunk = if node.state.read().interior().holds_gotos() { Sunk::Own } else { Sunk::All };
        let mut index = 0;
        while node.state.read().height > 1 && index < node.state.read().interior().children.len() {
            let (id, bounds) = {
                let state = node.state.read();
                (state.interior().children[index].id, state.interior().bounds_below(index, own)?.0)
            };
            // What is shared does not become free, and would have to be copied for the sake of a few deletes.
            let foreign = id.is_empty()
                || node.state.read().interior().children[index].xf.is_some()
                || self.is_shared(id);
            if foreign {
                if !id.is_empty() {
                    sunk = sunk.min(Sunk::Own);
                }
                index += 1;
                continue;
            }
            let edges = node.state.read().interior().children.len();
            let below = self.node(id).and_then(|child| {
                let below = self.sink_below(&child, &bounds, may_pause)?;
                self.bring_in_shape(node, own, index, &child)?;
                Ok(below)
            });
            sunk = match below {
                Ok(below) => below.min(sunk),
                // What lies behind damage stays where it is, and all else comes down.
                Err(error) if error.is_unreadable() => {
                    index += 1;
                    sunk = Sunk::InPart;
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
