//! Interior nodes: pivots, edges, and a message buffer for each edge.
//!
//! * INT-1 there is one pivot less than there are edges, and pivots rise strictly.
//! * INT-2 an edge to [`NodeId::EMPTY`] is a subtree without keys: no node stands behind it, and what a message would not
//!   change there is not kept for it. Two such edges never lie side by side.
//! * INT-3 behind an edge with an xf is a node that holds more than the edge's keys, or holds them under other names: the
//!   edge's bounds filter, its strip and the xf's prefix translate. No message passes it before the node has been copied
//!   (`sharing.rs`).

use bytes::Bytes;
use pando_format::edge::Xf;
use pando_format::{Bound, Goto, KeyRange, Msn, NodeId, Pending};

use super::damaged::Damaged;
use super::lifting::{edge_prefix, key_limits, range_below, relift_bound, relift_way};
use super::message_buffer::{MessageBuffer, Messages, settle_on_nothing};
use super::part::Part;
use crate::{Error, Result};

/// An edge and the messages that wait for what is behind it.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// The node below, one lower (BT-3), or the empty subtree.
    pub(crate) id: NodeId,
    /// Bytes of prefix that the edge takes off.
    pub(crate) strip: u32,
    /// See INT-3. Its own strip is 0: the edge's says all.
    pub(crate) xf: Option<Xf>,
    /// Waiting messages, in this node's coordinates.
    pub(crate) buffer: Part<MessageBuffer>,
    /// Memory of the waiting messages.
    pub(crate) buffer_bytes: usize,
    /// The highest MSN among them.
    pub(crate) buffer_msn: Msn,
}

impl Child {
    /// An error if a message that waits for the node behind it, and is in memory, is for keys that are not. BT-2: such a key need not have
    /// the prefix that the edge lifts; nor is there an order in which it could stand beside those of a neighbour.
    pub(crate) fn expect_messages_inside(&self, bounds: &KeyRange) -> Result<()> {
        match self.buffer.get() {
            Some(buffer) if !buffer.targets_lie_inside(bounds) => {
                let what = "a message for it lies outside the bounds of its edge";
                Err(Error::damaged_node(None, self.id, what))
            }
            _ => Ok(()),
        }
    }

    /// True if deletes wait at an edge to a node, in a buffer in memory.
    pub(crate) fn holds_deletes(&self) -> bool {
        !self.id.is_empty() && self.buffer.get().is_some_and(|buffer| buffer.holds_deletes())
    }

    fn holds_gotos(&self) -> bool {
        self.buffer.get().is_some_and(|buffer| !buffer.gotos().is_empty())
    }

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

    /// What comes in front of a key once the edge's strip is gone.
    pub(crate) fn prepended(&self) -> &[u8] {
        self.xf.as_ref().map_or(&[], |xf| &xf.prepend)
    }

    /// The key as the node behind the edge knows it; `None` if it is shorter than what the edge lifts.
    pub(crate) fn translate(&self, key: &[u8]) -> Option<Bytes> {
        let rest = key.get(self.strip as usize..)?;
        Some([self.prepended(), rest].concat().into())
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
        if empty && buffer.passes(&key) {
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
        let waiting = old.buffer.into_value().expect("a buffer is loaded before its edge is cut");
        let Messages { gotos, keyed, .. } = waiting.into_messages();
        for goto in gotos {
            self.push_goto(goto);
        }
        for (key, (msn, pending)) in keyed {
            self.push(key, msn, pending);
        }
    }

    /// Adds a goto. The buffer must be loaded.
    pub(super) fn push_goto(&mut self, goto: Goto) {
        self.buffer.change().expect("a buffer is loaded before messages come").push_goto(goto);
        self.count_buffer();
    }

    /// The edge for a part of its keys; `bounds` are those of now. The buffer must be loaded.
    pub(super) fn narrowed(&self, bounds: &KeyRange, range: &KeyRange) -> Self {
        let buffer =
            self.buffer.clone().into_value().expect("a buffer is loaded before its edge is narrowed");
        self.for_part(buffer.inside(&bounds.intersection(range)), range)
    }

    /// The same, given what waits for these keys.
    fn for_part(&self, buffer: MessageBuffer, range: &KeyRange) -> Self {
        let mut child = Self { buffer: Part::new(buffer), ..self.clone() };
        child.count_buffer();
        if !child.id.is_empty() {
            let prepend = Bytes::copy_from_slice(child.prepended());
            child.filter(range, prepend);
        }
        child
    }

    /// Takes out what waits for the edge, which goes.
    fn take_buffer(&mut self) -> MessageBuffer {
        std::mem::take(self.buffer.change().expect("a buffer is loaded before its edge is narrowed"))
    }

    /// Notes that the node behind the edge is seen only in part, or under other names (INT-3).
    fn filter(&mut self, range: &KeyRange, prepend: Bytes) {
        let [lower, upper] = match edge_prefix(range, self.strip as usize) {
            Some(prefix) => [&range.lower, &range.upper].map(|bound| bound.strip(&prefix).prepend(&prepend)),
            // A narrower range shares no less than the edge's own: that lifts too much, and stays as damaged as it was.
            None => [Bound::least(), Bound::greatest()],
        };
        self.xf = Some(Xf { strip: 0, prepend, lower, upper });
    }

    /// Adds a range delete; returns the bytes of the values that waited and are no more. The buffer must be loaded.
    pub(crate) fn push_range(&mut self, range: KeyRange, msn: Msn) -> usize {
        if self.id.is_empty() {
            return self.eat(&range);
        }
        let buffer = self.buffer.change().expect("a buffer is loaded before messages come");
        let eaten = buffer.push_range(range, msn);
        self.count_buffer();
        eaten
    }

    /// Drops what waits for the keys of a range; returns the bytes of the values among it. The buffer must be loaded.
    pub(crate) fn eat(&mut self, range: &KeyRange) -> usize {
        let eaten = self.buffer.change().expect("a buffer is loaded before messages come").eat(range);
        self.count_buffer();
        eaten
    }
}

/// What a node made of a goto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// A message that waits for the edges of its range.
    Waiting,
    /// An edge, among the keys of one that was there.
    Edge,
    /// An edge that took the place of several.
    EdgeForSeveral,
}

/// Part of a node: see [`Interior::reach`].
#[derive(Debug)]
pub(crate) struct Reach {
    /// The keys of the edges that a range touches.
    edges: KeyRange,
    /// The range, and the gotos that it cuts.
    gotos: KeyRange,
}

/// How two edges become one: see [`Interior::twins`].
#[derive(Debug)]
pub(crate) struct Twins {
    /// The second of them.
    right: usize,
    strip: u32,
    prepend: Bytes,
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
        if bounds.is_empty() {
            return Err(Error::damaged_node(None, child.id, "its edge has no room for a key"));
        }
        let Some(prefix) = edge_prefix(&bounds, child.strip as usize) else {
            return Err(Error::damaged_node(None, child.id, "its edge lifts more than its keys share"));
        };
        let mut below = KeyRange::new(bounds.lower.strip(&prefix), bounds.upper.strip(&prefix));
        if child.xf.is_some() {
            let prepended = child.prepended();
            below = KeyRange::new(below.lower.prepend(prepended), below.upper.prepend(prepended));
        }
        Ok((below, prefix))
    }

    /// Memory of all buffers, also of those that are not loaded: what counts for the budget of messages.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.children.iter().map(|child| child.buffer_bytes).sum()
    }

    /// Memory of what is loaded.
    pub(crate) fn memory(&self) -> usize {
        let loaded = self.children.iter().filter(|child| child.buffer.get().is_some());
        loaded.map(|child| child.buffer_bytes).sum::<usize>() + self.children.len() * 256
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

    /// Adds a range delete to the buffers of the edges it touches; returns the bytes of the values that waited and are no more.
    pub(crate) fn push_range(&mut self, range: &KeyRange, own: &KeyRange, msn: Msn) -> usize {
        let mut freed = 0;
        for index in self.indexes_in(range) {
            let piece = range.intersection(&self.bounds_of(index, own));
            freed += self.children[index].push_range(piece, msn);
        }
        freed
    }

    /// Adds a goto to the buffers of the edges it touches, or makes it an edge if its target is as high as they lead (BT-3).
    /// Only for the holder of the maintenance token (TREE-2), on a node marked changed; all buffers are loaded.
    pub(crate) fn push_goto(&mut self, goto: &Goto, own: &KeyRange, height: u8) -> Placed {
        if goto.height + 1 == height {
            return self.convert_goto(goto, own);
        }
        for index in self.indexes_in(&goto.range) {
            let range = goto.range.intersection(&self.bounds_of(index, own));
            if !range.is_empty() {
                self.children[index].push_goto(Goto { range, ..goto.clone() });
            }
        }
        Placed::Waiting
    }

    /// Puts an edge to a goto's target in the place of what is there. What lies beside its range behind the same edges stays
    /// reachable by edges that see less than before.
    fn convert_goto(&mut self, goto: &Goto, own: &KeyRange) -> Placed {
        let (first, last) = self.indexes_in(&goto.range).into_inner();
        let below = KeyRange::new(self.bounds_of(first, own).lower, goto.range.lower.clone());
        let above = KeyRange::new(goto.range.upper.clone(), self.bounds_of(last, own).upper);
        let mut edge = Child::new(goto.target, goto.xf.strip as usize);
        edge.xf = Some(Xf { strip: 0, ..goto.xf.clone() });
        let mut children = vec![edge];
        let mut pivots = Vec::new();
        // They are cut, not copied: much may wait.
        let mut left = self.children[first].take_buffer();
        let right = match first < last {
            true => self.children[last].take_buffer(),
            false => left.split_off(&goto.range.upper),
        };
        if !below.is_empty() {
            children.insert(0, self.children[first].for_part(left.inside(&below), &below));
            pivots.push(goto.range.lower.clone());
        }
        if !above.is_empty() {
            children.push(self.children[last].for_part(right.inside(&above), &above));
            pivots.push(goto.range.upper.clone());
        }
        // The new edge leads to a node, and stands between what is left of the old ones: none leads to nothing beside another that does (INT-2).
        self.children.splice(first..=last, children);
        self.pivots.splice(first..last, pivots);
        if first < last { Placed::EdgeForSeveral } else { Placed::Edge }
    }

    /// The same edges for those of a node's keys that lie in `visible` and begin with `prefix`, which goes (INT-3). All
    /// buffers are loaded.
    pub(crate) fn seen_through(&self, visible: &KeyRange, prefix: &[u8]) -> Self {
        let (first, last) = self.indexes_in(visible).into_inner();
        let pivots: Vec<Bound> = self.pivots[first..last].iter().map(|pivot| pivot.strip(prefix)).collect();
        let mut children = Vec::with_capacity(last - first + 1);
        for index in first..=last {
            // What the node's own ends are is not known here: they differ from one way to it to another.
            let bounds = self.bounds_of(index, visible);
            let inner = index > 0 && index < self.pivots.len() && visible.covers(&bounds);
            let range = bounds.intersection(visible);
            let old = &self.children[index];
            let mut child = if inner { old.clone() } else { old.narrowed(&bounds, &range) };
            let is_same = |buffer: &MessageBuffer| prefix.is_empty() && buffer.lies_inside(&range);
            if child.buffer.get().is_some_and(|buffer| is_same(buffer)) {
                // Held by both until one of them changes.
                child.buffer.leave_image();
            } else {
                let buffer = child.buffer.into_value().expect("the whole node was loaded before");
                child.buffer = Part::new(buffer.inside(&range).relift(&[], prefix));
                child.count_buffer();
            }
            if child.id.is_empty() {
                child.strip = 0;
            } else {
                let mut prepend = Bytes::copy_from_slice(child.prepended());
                relift_way(&mut child.strip, &mut prepend, &[], prefix);
                if child.xf.is_some() || !prepend.is_empty() {
                    let range = KeyRange::new(range.lower.strip(prefix), range.upper.strip(prefix));
                    child.filter(&range, prepend);
                }
            }
            children.push(child);
        }
        let mut seen = Self { pivots, children };
        seen.join_empty();
        seen
    }

    /// True if a buffer in memory holds a goto.
    pub(crate) fn holds_gotos(&self) -> bool {
        self.children.iter().any(Child::holds_gotos)
    }

    /// True if a buffer in memory holds a goto, at an edge whose keys a range touches.
    pub(crate) fn holds_gotos_at(&self, range: &KeyRange) -> bool {
        self.children[self.indexes_in(range)].iter().any(Child::holds_gotos)
    }

    /// The nodes that edges and gotos lead to, one for each (BT-4). All buffers are loaded.
    pub(crate) fn references(&self) -> Vec<NodeId> {
        self.names().map(|(id, _)| id).collect()
    }

    /// The same, and whether it is seen whole, without an xf.
    pub(crate) fn names(&self) -> impl Iterator<Item = (NodeId, bool)> {
        let edges = self.children.iter().filter(|child| !child.id.is_empty());
        let edges = edges.map(|child| (child.id, child.xf.is_none()));
        let buffers = self.children.iter().filter_map(|child| child.buffer.get());
        edges.chain(buffers.flat_map(|buffer| buffer.targets()).map(|target| (target, false)))
    }

    /// What of [`Self::references`] a range delete or a goto for this range may change.
    pub(crate) fn reach(&self, range: &KeyRange, own: &KeyRange) -> Reach {
        let (first, last) = self.indexes_in(range).into_inner();
        let edges = KeyRange::new(self.bounds_of(first, own).lower, self.bounds_of(last, own).upper);
        let cut = |index: usize| {
            self.children[index].buffer.get().into_iter().flat_map(|buffer| buffer.gotos_in(range))
        };
        let lower = cut(first).next().map_or(&range.lower, |goto| (&goto.range.lower).min(&range.lower));
        let upper = cut(last).last().map_or(&range.upper, |goto| (&goto.range.upper).max(&range.upper));
        Reach { edges, gotos: KeyRange::new(lower.clone(), upper.clone()) }
    }

    /// Those of [`Self::references`] that lie within a reach, of the node as it is now.
    pub(crate) fn references_in(&self, reach: &Reach) -> Vec<NodeId> {
        let children = &self.children[self.indexes_in(&reach.edges)];
        let edges = children.iter().map(|child| child.id).filter(|id| !id.is_empty());
        let buffers = children.iter().filter_map(|child| child.buffer.get());
        edges
            .chain(buffers.flat_map(|buffer| buffer.gotos_in(&reach.gotos)).map(|goto| goto.target))
            .collect()
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
    /// them, and whether they were seen whole, without an xf. Only for the holder of the maintenance token (TREE-2), on a node marked changed; all buffers are loaded.
    pub(crate) fn prune(&mut self, own: &KeyRange) -> Vec<(NodeId, bool)> {
        let covered: Vec<usize> =
            (0..self.children.len()).filter(|index| self.is_covered(*index, own)).collect();
        let edges = covered.iter().map(|index| &self.children[*index]);
        let pruned = edges.map(|edge| (edge.id, edge.xf.is_none())).collect();
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

    /// How one edge can do what this one and the next do, if both lead into the same node and translate alike. What lies between them may
    /// be an edge between whose bounds there is no key, as behind the last key with one prefix and before the first with the next.
    /// Two at which too much waits stay two.
    pub(crate) fn twins(&self, left: usize, own: &KeyRange, damaged: &Damaged) -> Result<Option<Twins>> {
        let has_no_key = |index: usize| {
            index + 1 < self.children.len() && key_limits(&self.bounds_of(index, own)).is_none()
        };
        let right = if has_no_key(left + 1) { left + 2 } else { left + 1 };
        let [Some(a), Some(b)] = [left, right].map(|index| self.children.get(index)) else { return Ok(None) };
        let waits = |child: &Child| child.buffer.get().is_none_or(|buffer| !buffer.gotos().is_empty());
        let is_hidden = left + 1 < right && waits(&self.children[left + 1]);
        if a.id != b.id || a.xf.is_none() || b.xf.is_none() || is_hidden {
            return Ok(None);
        }
        if a.buffer_bytes + b.buffer_bytes > damaged.joined_bytes_max(a.id) {
            return Ok(None);
        }
        let (prefix_a, prefix_b) = (self.bounds_below(left, own)?.1, self.bounds_below(right, own)?.1);
        let bounds = KeyRange::new(self.bounds_of(left, own).lower, self.bounds_of(right, own).upper);
        let strip = bounds.common_prefix().min(prefix_a.len()).min(prefix_b.len());
        // What each strips beyond that must come back at the end of what it puts there instead.
        let way_a = a.prepended().strip_suffix(&prefix_a[strip..]);
        let way_b = b.prepended().strip_suffix(&prefix_b[strip..]);
        let same = way_a.filter(|_| way_a == way_b).map(Bytes::copy_from_slice);
        Ok(same.map(|prepend| Twins { right, strip: strip as u32, prepend }))
    }

    /// Makes one edge of the two, and returns the nodes that one edge less leads to. All buffers are loaded.
    pub(crate) fn join_twins(&mut self, left: usize, twins: Twins) -> Vec<NodeId> {
        let border = self.pivots[twins.right - 1].clone();
        self.pivots.drain(left..twins.right);
        let gone: Vec<Child> = self.children.drain(left + 1..=twins.right).collect();
        let ids = gone.iter().map(|child| child.id).filter(|id| !id.is_empty()).collect();
        let right = gone.into_iter().next_back().expect("there is an edge on the right");
        let messages = right.buffer.into_value().expect("all buffers are loaded");
        let edge = &mut self.children[left];
        edge.buffer.change().expect("all buffers are loaded").append(messages, &border);
        edge.count_buffer();
        edge.strip = twins.strip;
        let (Some(xf), Some(beyond)) = (&mut edge.xf, right.xf) else {
            unreachable!("only edges with an xf are twins");
        };
        xf.prepend = twins.prepend;
        xf.upper = beyond.upper;
        ids
    }

    /// The same node for keys that are longer by a prefix; every buffer must be loaded.
    pub(crate) fn relift(&mut self, prefix: &[u8]) {
        if prefix.is_empty() {
            return;
        }
        for pivot in &mut self.pivots {
            *pivot = relift_bound(pivot, prefix, &[]);
        }
        for child in &mut self.children {
            let mut prepend = Bytes::copy_from_slice(child.prepended());
            // INT-2: nothing is lifted on the way to nothing, whose neighbours may join it.
            if !child.id.is_empty() {
                relift_way(&mut child.strip, &mut prepend, prefix, &[]);
            }
            match &mut child.xf {
                Some(xf) => xf.prepend = prepend,
                None => assert!(
                    prepend.is_empty(),
                    "BT-2: an edge without xf lifts all that its node does not see"
                ),
            }
            let buffer = std::mem::take(child.buffer.change().expect("the whole node was loaded before"));
            *child.buffer.change().expect("the whole node was loaded before") = buffer.relift(prefix, &[]);
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
    /// Range deletes and gotos, to be applied first (BUF-3).
    pub(crate) ranges: Vec<(KeyRange, Msn)>,
    pub(crate) gotos: Vec<Goto>,
    /// Keyed messages in key order.
    pub(crate) keyed: Vec<(Bytes, Msn, Pending)>,
}

/// Translates the messages of an edge without xf into the coordinates of the node behind it.
pub(crate) fn lower(buffer: MessageBuffer, bounds: &KeyRange, prefix: &[u8]) -> Lowered {
    let Messages { ranges, gotos, keyed } = buffer.into_messages();
    let lower_goto = |mut goto: Goto| {
        goto.range = KeyRange::new(goto.range.lower.strip(prefix), goto.range.upper.strip(prefix));
        relift_way(&mut goto.xf.strip, &mut goto.xf.prepend, &[], prefix);
        goto
    };
    Lowered {
        ranges: ranges.into_iter().map(|(range, msn)| (range_below(&range, bounds, prefix), msn)).collect(),
        gotos: gotos.into_iter().map(lower_goto).collect(),
        keyed: keyed
            .into_iter()
            .map(|(key, (msn, pending))| (super::lifting::relift_key(&key, &[], prefix), msn, pending))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a clone or a move shows of a node may be a part of it: to take it for all that the node holds let the ballast of a repository be forgotten.
    #[test]
    fn an_edge_with_an_xf_shows_no_whole_node() {
        let KeyRange { lower, upper } = KeyRange::prefix("a");
        let xf = Xf { strip: 0, prepend: Bytes::from_static(b"b"), lower, upper };
        let of_clone = Child { xf: Some(xf), ..Child::new(NodeId(1), 0) };
        let children = vec![of_clone, Child::new(NodeId(2), 0)];
        let mut interior = Interior { pivots: vec![Bound::before("m")], children };
        let names = [(NodeId(1), false), (NodeId(2), true)];
        assert_eq!(interior.names().collect::<Vec<_>>(), names);
        interior.push_range(&KeyRange::all(), &KeyRange::all(), Msn::default());
        assert_eq!(interior.prune(&KeyRange::all()), names);
    }
}
