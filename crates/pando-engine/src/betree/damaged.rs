//! Nodes that cannot be read, and what waits above them.
//!
//! Messages for such a node cannot be flushed, so they wait at its edge, and may be as many as come. What counts as work for maintenance, and
//! holds changes up, is what can be moved. An edge with more messages than it should have becomes two, which lead into the
//! same node (INT-3), so that no buffer becomes longer than a part may be, and the node above splits as any other does.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_format::{KeyRange, NodeId};
use parking_lot::Mutex;

use super::interior::Interior;
use super::node::{Body, NodeRef};
use crate::Result;
use crate::volume::{Shape, Volume};

/// So many nodes' worth of messages may wait in a node of as many edges as it may have, all of them to damaged nodes: one that is longer finds no place
/// where free space is in short runs.
const NODES_WAITING: usize = 2;

/// What edges to one sound node may have together, in bytes, that are made one: a part may have 64 MiB.
const BYTES_JOINED: usize = 16 << 20;

/// Nodes behind which damage keeps maintenance from working. Lock order: behind every node.
#[derive(Debug)]
pub(crate) struct Damaged {
    nodes: Mutex<HashSet<NodeId>>,
    /// False as long as there are none: every change asks.
    any: AtomicBool,
    /// Bytes of messages above which an edge to one of them is cut in two.
    edge_bytes_max: usize,
}

impl Damaged {
    /// None yet.
    pub(crate) fn new(shape: &Shape) -> Self {
        let edge_bytes_max = shape.node_bytes * NODES_WAITING / shape.fanout;
        Self { nodes: Mutex::default(), any: AtomicBool::new(false), edge_bytes_max }
    }

    /// True if a node is one of them.
    pub(crate) fn contains(&self, id: NodeId) -> bool {
        !self.is_empty() && self.nodes.lock().contains(&id)
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Adds one; false if it was there.
    pub(crate) fn insert(&self, id: NodeId) -> bool {
        let mut nodes = self.nodes.lock();
        self.any.store(true, Ordering::Relaxed);
        nodes.insert(id)
    }

    /// Takes one out that is no more.
    pub(crate) fn remove(&self, id: NodeId) {
        if !self.is_empty() {
            self.nodes.lock().remove(&id);
        }
    }

    /// Bytes of messages in a node that can be moved.
    pub(crate) fn movable_bytes(&self, interior: &Interior) -> usize {
        self.count(interior, |_| 0)
    }

    /// Bytes of messages in a node that maintenance has to do with: those that can be moved, and at edges that are to be cut what is too
    /// much.
    pub(crate) fn load(&self, interior: &Interior) -> usize {
        self.count(interior, |bytes| bytes.saturating_sub(self.edge_bytes_max))
    }

    fn count(&self, interior: &Interior, at_damage: impl Fn(usize) -> usize) -> usize {
        if self.is_empty() {
            return interior.buffer_bytes();
        }
        let nodes = self.nodes.lock();
        let counted = interior.children.iter().map(|child| {
            if nodes.contains(&child.id) { at_damage(child.buffer_bytes) } else { child.buffer_bytes }
        });
        counted.sum()
    }

    /// Bytes of messages above which edges to a node stay apart.
    pub(crate) fn joined_bytes_max(&self, id: NodeId) -> usize {
        if self.contains(id) { self.edge_bytes_max } else { BYTES_JOINED }
    }

    /// The first edge, from one on, to a damaged node at which too much waits.
    fn overfull(&self, interior: &Interior, from: usize) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let nodes = self.nodes.lock();
        let is_overfull = |index: &usize| {
            let child = &interior.children[*index];
            child.buffer_bytes > self.edge_bytes_max && nodes.contains(&child.id)
        };
        (from..interior.children.len()).find(is_overfull)
    }
}

impl Volume {
    /// Makes two edges of each to a damaged node at which too much waits, until each has little enough; true if there were any that could be
    /// cut. What is behind them is not read. The node may have too many edges then. Only for the holder of the maintenance token.
    pub(super) fn cut_overfull_edges(&self, node: &NodeRef, own: &KeyRange) -> Result<bool> {
        let first = match &node.state.read().body {
            Body::Leaf(_) => None,
            Body::Interior(interior) => self.damaged.overfull(interior, 0),
        };
        let Some(first) = first else { return Ok(false) };
        match self.load_all(node) {
            Err(error) if error.is_unreadable() => return Ok(false),
            done => done?,
        }
        let _gate = self.gate.read_recursive();
        let mut state = node.state.write();
        // A query may have evicted since. The next time will do.
        if state.missing_part().is_some() {
            return Ok(false);
        }
        self.mark_dirty(node, &mut state);
        let before = state.interior().references();
        let count = state.interior().children.len();
        let mut next = Some(first);
        while let Some(index) = next {
            let interior = state.interior_mut();
            let from = if interior.cut_in_two(index, own) { index } else { index + 1 };
            next = self.damaged.overfull(interior, from);
        }
        // A goto over a border has become two.
        self.settle(before, state.interior().references());
        self.account(&mut state);
        Ok(state.interior().children.len() > count)
    }
}

impl Interior {
    /// Makes two edges of one, at the middle of what waits there; false if there is no such place, or damage is in the way. All buffers are loaded.
    fn cut_in_two(&mut self, index: usize, own: &KeyRange) -> bool {
        let bounds = self.bounds_of(index, own);
        let child = &self.children[index];
        let buffer = child.buffer.get().expect("all buffers are loaded");
        if self.bounds_below(index, own).is_err() || !buffer.targets_lie_inside(&bounds) {
            return false;
        }
        let Some(border) = buffer.middle(&bounds) else { return false };
        let below = KeyRange::new(bounds.lower.clone(), border.clone());
        let above = KeyRange::new(border.clone(), bounds.upper.clone());
        let halves = [below, above].map(|range| child.narrowed(&bounds, &range));
        self.children.splice(index..=index, halves);
        self.pivots.insert(index, border);
        true
    }
}
