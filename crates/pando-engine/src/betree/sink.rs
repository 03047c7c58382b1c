//! Bringing deletes down: what they free is free only when they have come to the leaves, or to the edge of a whole subtree.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{KeyRange, NodeId, Tree};

use super::interior::Child;
use super::lifting::first_key;
use super::node::{Body, NodeRef};
use super::token::PAUSES_MAX;
use crate::volume::Volume;
use crate::{Error, Result};

/// How often a walk gives way to what has come into the root: each time it begins anew.
const RELIEFS_MAX: usize = 16;

/// One walk through a tree that brings deletes down.
#[derive(Debug)]
pub(super) struct Walk {
    /// It gives way to a clone that waits for the token.
    pub(super) may_pause: bool,
    /// It gives way to what has come into the root, if it is for space; another one ends for that.
    pub(super) may_relieve: bool,
    /// It has given way.
    pub(super) paused: Cell<bool>,
    /// Space is wanted; else nothing is copied that others see.
    pub(super) for_space: bool,
    /// Flushes, and nodes that have to be read for it, that it may still make.
    pub(super) steps_left: Cell<usize>,
    /// Bytes of messages that waited in the root when it began.
    pub(super) waited: Cell<usize>,
    /// The key at which it begins; once it has ended in part, where that was.
    pub(super) from: RefCell<Bytes>,
}

impl Walk {
    /// One that brings down all there is, from the start.
    pub(super) fn for_space() -> Self {
        Self {
            may_pause: true,
            may_relieve: true,
            paused: Cell::default(),
            for_space: true,
            steps_left: Cell::new(usize::MAX),
            waited: Cell::default(),
            from: RefCell::default(),
        }
    }

    fn step(&self) {
        self.steps_left.update(|left| left.saturating_sub(1));
    }
}

/// A node on the way of a walk.
struct Stop<'a> {
    node: &'a NodeRef,
    own: &'a KeyRange,
    /// What its keys have had lifted.
    lifted: &'a [u8],
    /// From where on it is looked at, as it has its keys.
    from: &'a [u8],
}

impl Stop<'_> {
    /// The first edge that is looked at.
    fn first(&self) -> usize {
        self.node.state.read().interior().index_of(self.from)
    }

    /// The key at which an edge begins, or at which it is looked at.
    fn at(&self, index: usize) -> Bytes {
        let lower = self.node.state.read().interior().bounds_of(index, self.own).lower;
        let lower = first_key(&lower).unwrap_or(lower.bytes);
        [self.lifted, self.from.max(&lower)].concat().into()
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
    /// SP-1: once a volume has become nearly full, each checkpoint first brings waiting deletes down to where they free space, until none
    /// waits any more; once a sixteenth of it is dead, one does. So what was deleted is free after the next checkpoint, the
    /// free space that is told is off by a sixteenth at most, and on a volume with room no leaf is rewritten for the sake
    /// of a few deletes. Looking for them takes a walk over all interior nodes, so it is left out where none can wait.
    ///
    /// Else they come down where they are ballast ([`super::ballast`]), or into the nodes that this checkpoint writes anyway.
    pub(crate) fn sink_deletes(&self) -> Result<()> {
        if self.wants_deletes_down() {
            self.sink_for_space()?;
        } else if self.ballast_is_heavy() {
            self.sink_ballast()?;
        } else {
            return self.sink_into_dirty();
        }
        self.wake_turned_away();
        while self.reclaim_doomed()? {}
        Ok(())
    }

    fn sink_for_space(&self) -> Result<()> {
        let dead = self.dead_bytes.load(Ordering::Relaxed);
        let ballast = self.ballast.count();
        if self.is_three_quarters_full() {
            self.reclaiming.store(true, Ordering::Relaxed);
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
                    .sink_tree(tree, &mut Walk::for_space())
                    .inspect_err(|_| self.deletes_wait.store(true, Ordering::Release))?
                    .min(sunk);
            }
            if sunk != Sunk::All || before != moved() || !self.damaged.is_empty() {
                self.deletes_wait.store(true, Ordering::Release);
            }
        }
        let all_down = sunk != Sunk::InPart;
        if !all_down {
            // What is left is not to be forgotten with the bytes it is counted by: the next checkpoint may have the room.
            self.reclaiming.store(true, Ordering::Relaxed);
        }
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

    /// Brings the deletes of a tree down. A clone may come in between, or what is written meanwhile, and it goes on then, for the sake of space from the root; but not for
    /// ever, where one follows the other.
    pub(super) fn sink_tree(&self, tree: Tree, walk: &mut Walk) -> Result<Sunk> {
        let (mut pauses_left, mut reliefs_left) = (PAUSES_MAX, RELIEFS_MAX);
        loop {
            let _token = self.root(tree).maintenance.wait();
            walk.may_pause = pauses_left > 0;
            walk.may_relieve = reliefs_left > 0;
            let sunk = match self.sink_with_token(tree, walk) {
                // What lies behind damage stays where it is.
                Err(error) if error.is_unreadable() => Sunk::Own,
                done => done?,
            };
            self.fit_root(tree)?;
            if sunk != Sunk::InPart || !walk.paused.get() || walk.steps_left.get() == 0 {
                return Ok(sunk);
            }
            if pauses_left > 0 && self.root(tree).maintenance.is_wanted() {
                pauses_left -= 1;
                continue;
            }
            // Nobody else may, as long as it has the token; and what is over when this is done is what came meanwhile.
            reliefs_left = reliefs_left.saturating_sub(1);
            while self.has_space_to_spare()
                && self.waiting_in_root(tree) > self.shape.node_bytes
                && !(pauses_left > 0 && self.root(tree).maintenance.is_wanted())
                && self.maintain_with_token(tree)?
            {
                self.signals.progress();
            }
        }
    }

    /// As far as it may at once.
    pub(super) fn sink_with_token(&self, tree: Tree, walk: &Walk) -> Result<Sunk> {
        let root = self.root(tree).read().clone();
        let from = if walk.for_space { Bytes::new() } else { walk.from.take() };
        walk.waited.set(self.waiting_in_root(tree));
        walk.paused.set(false);
        self.sink_below(&Stop { node: &root, own: &KeyRange::all(), lifted: b"", from: &from }, walk)
    }

    /// True if a checkpoint is to bring deletes down for the sake of space. One that is made for it does so in any case: what waits counts as what it releases, and
    /// would be waited for by the next one, too.
    pub(crate) fn wants_deletes_down(&self) -> bool {
        self.is_three_quarters_full()
            || self.much_is_dead()
            || self.reclaiming.load(Ordering::Relaxed)
            || self.wants_space(0)
    }

    fn is_three_quarters_full(&self) -> bool {
        let counters = self.allocator.counters();
        counters.free < counters.capacity / 4
    }

    /// True if waiting deletes hold a sixteenth of the volume.
    pub(crate) fn much_is_dead(&self) -> bool {
        self.dead_bytes.load(Ordering::Relaxed) > self.allocator.capacity() / 16
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
        let height = node.height;
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
        if child.state.read().dirty.is_none() || self.damaged.contains(id) {
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
        let height = node.height;
        if let Some(bounds) = bounds.filter(|_| height > 1) {
            child.expect_height(Some(height - 1))?;
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

    /// Bytes of messages in a root that can be moved.
    fn waiting_in_root(&self, tree: Tree) -> usize {
        let root = self.root(tree).read().clone();
        let state = root.state.read();
        match &state.body {
            Body::Leaf(_) => 0,
            Body::Interior(interior) => self.damaged.movable_bytes(interior),
        }
    }

    /// Messages that come meanwhile are brought down by nobody else, and at four nodes' worth whoever writes waits. What had come before,
    /// as at an unmount, is no reason to leave for a walk that does not come back.
    fn is_urgent(&self, tree: Tree, walk: &Walk) -> bool {
        let waiting = self.waiting_in_root(tree);
        waiting > self.shape.node_bytes * 2
            // What comes down for other reasons must not take the room of what frees space.
            && if walk.for_space { self.has_space_to_spare() } else { waiting > walk.waited.get() }
    }

    /// True if a walk is to let others at the root.
    fn pauses(&self, tree: Tree, walk: &Walk) -> bool {
        // Once it does, all that it has come through is left.
        let pauses = walk.paused.get()
            || walk.may_pause && self.root(tree).maintenance.is_wanted()
            || walk.for_space && walk.may_relieve && self.is_urgent(tree, walk);
        walk.paused.set(pauses);
        pauses
    }

    /// True if a walk is to end, or to pause.
    fn ends(&self, tree: Tree, walk: &Walk) -> bool {
        walk.steps_left.get() == 0
            || !self.has_space_to_flush()
            || self.pauses(tree, walk)
            || !walk.for_space && self.is_urgent(tree, walk)
    }

    /// Brings deletes that wait at a node's own edges down to what is behind these. `None` if the walk is to end or to pause before.
    fn sink_buffers(&self, stop: &Stop<'_>, walk: &Walk) -> Result<Option<Sunk>> {
        let Stop { node, own, .. } = *stop;
        self.evict_while_sinking()?;
        self.load_all(node)?;
        self.prune(node, own)?;
        let mut full = Vec::new();
        // What lies behind a goto is looked at once that has become an edge.
        loop {
            self.load_all(node)?;
            let first = stop.first();
            let waiting = {
                let state = node.state.read();
                if state.missing_part().is_some() {
                    // A query has evicted it in the meantime.
                    continue;
                }
                let interior = state.interior();
                let comes_down = |child: &Child| {
                    child.holds_deletes()
                        && (walk.for_space || self.is_own(child))
                        && !self.damaged.contains(child.id)
                        && !full.contains(&child.id)
                };
                match interior.children[first..].iter().position(comes_down) {
                    Some(index) => (first + index, interior.children[first + index].id),
                    None if !full.is_empty() => return Ok(Some(Sunk::InPart)),
                    None if interior.holds_gotos() => return Ok(Some(Sunk::Own)),
                    None if interior.children.iter().any(Child::holds_deletes) => return Ok(Some(Sunk::Own)),
                    None => return Ok(Some(Sunk::All)),
                }
            };
            if self.ends(node.tree, walk) {
                return Ok(None);
            }
            walk.step();
            if !self.flush_around_damage(node, own, waiting)? {
                full.extend(node.state.read().interior().children.get(waiting.0).map(|child| child.id));
            }
            self.evict_while_sinking()?;
        }
    }

    /// Brings deletes from a node and from below it down; in part if there was no room for all of them, or the walk is to end or to pause.
    fn sink_below(&self, stop: &Stop<'_>, walk: &Walk) -> Result<Sunk> {
        let Stop { node, own, lifted, from } = *stop;
        let height = node.height;
        if height == 0 {
            return Ok(Sunk::All);
        }
        let end_at = |index: usize| {
            walk.from.replace(stop.at(index));
            Ok(Sunk::InPart)
        };
        let in_buffers = self.sink_buffers(stop, walk)?;
        let first = stop.first();
        let mut sunk = match in_buffers {
            Some(sunk) if sunk != Sunk::InPart || walk.for_space => sunk,
            // Nothing below has been looked at.
            _ => return end_at(first),
        };
        let mut index = first;
        while height > 1 && index < node.state.read().interior().children.len() {
            let (id, (bounds, prefix), is_own) = {
                let state = node.state.read();
                let edge = &state.interior().children[index];
                (edge.id, state.interior().bounds_below(index, own)?, self.is_own(edge))
            };
            // What is shared does not become free, and would have to be copied for the sake of a few deletes.
            if !is_own {
                if !id.is_empty() {
                    sunk = sunk.min(Sunk::Own);
                }
                index += 1;
                continue;
            }
            if !walk.for_space && self.ends(node.tree, walk) {
                return end_at(index);
            }
            let in_memory = |child: NodeRef| child.state.read().missing_part().is_none();
            if !self.cache.peek(id).is_some_and(in_memory) {
                walk.step();
            }
            let edges = node.state.read().interior().children.len();
            let from = if index == first { from.strip_prefix(&prefix[..]).unwrap_or_default() } else { b"" };
            let below = self.node(id).and_then(|child| {
                child.expect_height(Some(height - 1))?;
                let lifted = [lifted, &prefix].concat();
                let below =
                    self.sink_below(&Stop { node: &child, own: &bounds, lifted: &lifted, from }, walk)?;
                match self.bring_in_shape(node, own, index, &child) {
                    // It stays as it is, and what is left to do below it is left to do.
                    Err(error) if error.is_unreadable() => Ok(below.min(Sunk::Own)),
                    done => done.map(|()| below),
                }
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
            // For want of room others may still be cut off whole.
            let is_over = if walk.for_space { self.pauses(node.tree, walk) } else { sunk == Sunk::InPart };
            if is_over {
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
