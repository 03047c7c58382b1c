//! Interior nodes: pivots, edges, and a message buffer for each edge.
//!
//! * INT-1 there is one pivot less than there are edges, and pivots rise strictly.
//! * INT-2 an edge to [`NodeId::EMPTY`] is a subtree without keys: no node stands behind it, and what a message would not
//!   change there is not kept for it. Two such edges never lie side by side.

use bytes::Bytes;
use pando_format::edge::Xf;
use pando_format::{Bound, KeyRange, Msn, NodeId, Pending};

use super::lifting::{edge_prefix, range_below, relift_bound};
use super::message_buffer::{MessageBuffer, settle_on_nothing};
use super::part::Part;
use crate::{Error, Result};

/// An edge and the messages that wait for what is behind it.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// The node below, one lower (BT-3), or the empty subtree.
    pub(crate) id: NodeId,
    /// Bytes of prefix that the edge takes off.
    pub(crate) strip: u32,
    /// What the edge does to keys beyond lifting; for clones.
    pub(crate) xf: Option<Xf>,
    /// Waiting messages, in this node's coordinates.
    pub(crate) buffer: Part<MessageBuffer>,
    /// Memory of the waiting messages.
    pub(crate) buffer_bytes: usize,
    /// The highest MSN among them.
    pub(crate) buffer_msn: Msn,
}

impl Child {
    /// An edge with nothing waiting.
    pub(crate) fn new(id: NodeId, strip: usize) -> Self {
        Self {
            id,
            strip: strip as u32,
            xf: None,
            buffer: Part::new(MessageBuffer::default()),
            buffer_bytes: 0,
            buffer_msn: Msn::default(),
        }
    }

    /// True if nothing is behind the edge and nothing waits.
    pub(crate) fn is_nothing(&self) -> bool {
        self.id.is_empty() && self.buffer_bytes == 0
    }

    /// Brings the counts in line after the buffer changed.
    pub(crate) fn count_buffer(&mut self) {
        if let Some(buffer) = self.buffer.get() {
            self.buffer_bytes = buffer.bytes();
            self.buffer_msn = buffer.newest();
        }
    }

    /// Adds a keyed message. The buffer must be loaded.
    pub(crate) fn push(&mut self, key: Bytes, msn: Msn, pending: Pending) {
        let empty = self.id.is_empty();
        let buffer = self.buffer.change().expect("a buffer is loaded before messages come");
        if empty && buffer.pending(&key).is_none() {
            if let Some(pending) = settle_on_nothing(pending) {
                buffer.push(key, msn, pending);
            }
        } else {
            buffer.push(key, msn, pending);
        }
        self.count_buffer();
    }

    /// Makes the edge lead to nothing; what waits for it waits for the empty subtree.
    pub(crate) fn cut_off(&mut self) {
        let old = std::mem::replace(self, Self::new(NodeId::EMPTY, 0));
        let (_, keyed) =
            old.buffer.into_value().expect("a buffer is loaded before its edge is cut").into_parts();
        for (key, (msn, pending)) in keyed {
            self.push(key, msn, pending);
        }
    }

    /// Adds a range delete. The buffer must be loaded.
    pub(crate) fn push_range(&mut self, range: KeyRange, msn: Msn) {
        let empty = self.id.is_empty();
        let buffer = self.buffer.change().expect("a buffer is loaded before messages come");
        if empty {
            buffer.eat(&range);
        } else {
            buffer.push_range(range, msn);
        }
        self.count_buffer();
    }
}

/// The body of a node of height 1 or more.
#[derive(Debug, Clone)]
pub(crate) struct Interior {
    /// Borders between neighbouring edges.
    pub(crate) pivots: Vec<Bound>,
    /// Edges in key order.
    pub(crate) children: Vec<Child>,
}

impl Interior {
    /// The edge behind which a key lies.
    pub(crate) fn index_of(&self, key: &[u8]) -> usize {
        self.pivots.partition_point(|pivot| !pivot.is_above(key))
    }

    /// The edge behind which the keys just above a bound lie.
    pub(crate) fn index_above(&self, bound: &Bound) -> usize {
        self.pivots.partition_point(|pivot| pivot <= bound)
    }

    /// The edge behind which the keys just below a bound lie.
    pub(crate) fn index_below(&self, bound: &Bound) -> usize {
        self.pivots.partition_point(|pivot| pivot < bound)
    }

    /// The bounds of an edge, given those of the node, in the node's coordinates.
    pub(crate) fn bounds_of(&self, index: usize, own: &KeyRange) -> KeyRange {
        let lower = if index == 0 { own.lower.clone() } else { self.pivots[index - 1].clone() };
        let upper = self.pivots.get(index).unwrap_or(&own.upper).clone();
        KeyRange::new(lower, upper)
    }

    /// The bounds of the node behind an edge, in that node's coordinates, and the prefix that the edge lifts.
    pub(crate) fn bounds_below(&self, index: usize, own: &KeyRange) -> Result<(KeyRange, Bytes)> {
        let bounds = self.bounds_of(index, own);
        let child = &self.children[index];
        let Some(prefix) = edge_prefix(&bounds, child.strip as usize) else {
            return Err(Error::damaged_node(None, child.id, "its edge lifts more than its keys share"));
        };
        Ok((KeyRange::new(bounds.lower.strip(&prefix), bounds.upper.strip(&prefix)), prefix))
    }

    /// Memory of all buffers, also of those that are not loaded: what counts for the budget of messages.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.children.iter().map(|child| child.buffer_bytes).sum()
    }

    /// Memory of what is loaded.
    pub(crate) fn memory(&self) -> usize {
        let loaded = self.children.iter().filter_map(|child| child.buffer.get()).map(|buffer| buffer.bytes());
        loaded.sum::<usize>() + self.children.len() * 256
    }

    /// Edges whose keys a range touches.
    pub(crate) fn indexes_in(&self, range: &KeyRange) -> std::ops::RangeInclusive<usize> {
        self.index_above(&range.lower)..=self.index_below(&range.upper)
    }

    /// Adds a keyed message to the buffer of its edge.
    pub(crate) fn push(&mut self, key: Bytes, msn: Msn, pending: Pending) {
        let index = self.index_of(&key);
        self.children[index].push(key, msn, pending);
    }

    /// Adds a range delete to the buffers of the edges it touches; true if it covers all that is behind one of them.
    pub(crate) fn push_range(&mut self, range: &KeyRange, own: &KeyRange, msn: Msn) -> bool {
        let mut covers = false;
        for index in self.indexes_in(range) {
            let bounds = self.bounds_of(index, own);
            let piece = range.intersection(&bounds);
            covers |= range.covers(&bounds) && !self.children[index].id.is_empty();
            self.children[index].push_range(piece, msn);
        }
        covers
    }

    /// True if a waiting range delete covers all the keys of a subtree.
    pub(crate) fn has_covered_edge(&self, own: &KeyRange) -> bool {
        (0..self.children.len()).any(|index| self.is_covered(index, own))
    }

    fn is_covered(&self, index: usize, own: &KeyRange) -> bool {
        let bounds = self.bounds_of(index, own);
        let child = &self.children[index];
        let Some(buffer) = child.buffer.get().filter(|_| !child.id.is_empty()) else { return false };
        buffer.ranges_in(&bounds).any(|(range, _)| range.covers(&bounds))
    }

    /// Leaf pruning (FAST16, 4): cuts off, unread, the subtrees whose keys a waiting range delete covers all, and returns
    /// them. Only for the holder of the maintenance token (TREE-2), on a node marked changed; all buffers are loaded.
    pub(crate) fn prune(&mut self, own: &KeyRange) -> Vec<NodeId> {
        let covered: Vec<usize> =
            (0..self.children.len()).filter(|index| self.is_covered(*index, own)).collect();
        let pruned = covered.iter().map(|index| self.children[*index].id).collect();
        for index in covered {
            self.children[index].cut_off();
        }
        self.join_empty();
        pruned
    }

    /// Makes one edge of neighbouring edges to nothing (INT-2).
    pub(crate) fn join_empty(&mut self) {
        let mut index = 0;
        while index + 1 < self.children.len() {
            if self.children[index].id.is_empty() && self.children[index + 1].id.is_empty() {
                let right = self.children.remove(index + 1);
                let border = self.pivots.remove(index);
                let left = &mut self.children[index];
                let messages =
                    right.buffer.into_value().expect("the buffer of an empty subtree is in memory");
                left.buffer
                    .change()
                    .expect("the buffer of an empty subtree is in memory")
                    .append(messages, &border);
                left.count_buffer();
            } else {
                index += 1;
            }
        }
    }

    /// The same node for keys that are lifted more or less; every buffer must be loaded.
    pub(crate) fn relift(&mut self, prefix: &[u8], strip: &[u8]) {
        if prefix.is_empty() && strip.is_empty() {
            return;
        }
        for pivot in &mut self.pivots {
            *pivot = relift_bound(pivot, prefix, strip);
        }
        for child in &mut self.children {
            child.strip = (child.strip as usize + prefix.len()).saturating_sub(strip.len()) as u32;
            let buffer = std::mem::take(child.buffer.change().expect("the whole node was loaded before"));
            *child.buffer.change().expect("the whole node was loaded before") = buffer.relift(prefix, strip);
            child.count_buffer();
        }
    }

    /// The highest MSN among the waiting messages.
    pub(crate) fn newest(&self) -> Msn {
        self.children.iter().map(|child| child.buffer_msn).max().unwrap_or_default()
    }

    /// What is wrong with the pivots and edges, if anything is.
    pub(crate) fn broken(&self, own: &KeyRange) -> Option<String> {
        if self.pivots.len() + 1 != self.children.len() || !self.pivots.is_sorted_by(|a, b| a < b) {
            return Some("INT-1: its pivots do not rise, or are not one less than its edges".to_owned());
        }
        for (index, child) in self.children.iter().enumerate() {
            let bounds = self.bounds_of(index, own);
            if bounds.is_empty() {
                return Some(format!("BT-2: edge {index} lies outside the node's bounds"));
            }
            if child.buffer.get().is_some_and(|buffer| buffer.bytes() != child.buffer_bytes) {
                return Some(format!("INT-1: the messages of edge {index} are miscounted"));
            }
        }
        let both_empty = |pair: &[Child]| pair[0].id.is_empty() && pair[1].id.is_empty();
        self.children
            .windows(2)
            .any(both_empty)
            .then(|| "INT-2: two empty subtrees lie side by side".to_owned())
    }
}

/// Messages of a buffer as the node behind the edge sees them.
pub(crate) struct Lowered {
    /// Range deletes, to be applied first (BUF-3).
    pub(crate) ranges: Vec<(KeyRange, Msn)>,
    /// Keyed messages in key order.
    pub(crate) keyed: Vec<(Bytes, Msn, Pending)>,
}

/// Translates the messages of an edge into the coordinates of the node behind it.
pub(crate) fn lower(buffer: MessageBuffer, bounds: &KeyRange, prefix: &[u8]) -> Lowered {
    let (ranges, keyed) = buffer.into_parts();
    Lowered {
        ranges: ranges.into_iter().map(|(range, msn)| (range_below(&range, bounds, prefix), msn)).collect(),
        keyed: keyed
            .into_iter()
            .map(|(key, (msn, pending))| (super::lifting::relift_key(&key, &[], prefix), msn, pending))
            .collect(),
    }
}
