//! Merge: neighbours that have become small become one node, and a root with a single edge gives way to its child (BT-6).

use std::sync::atomic::Ordering;

use pando_format::{Bound, KeyRange, Tree};

use super::interior::{Interior, Twins, lower};
use super::leaf::Leaf;
use super::message_buffer::{ENTRY_OVERHEAD, MessageBuffer};
use super::node::{Body, Node, NodeRef};
use super::part::Part;
use super::split::expect_inside;
use super::tree::TreeRoot;
use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// Does away with a small node behind an edge: cuts the edge if nothing is in it, else joins it with a neighbour if both
    /// together are no more than three quarters of a node.
    pub(crate) fn merge_child(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        if self.retire_child(parent, index)? {
            return Ok(());
        }
        self.join_with_neighbour(parent, own, index).map(|_| ())
    }

    /// Joins what is behind an edge with what is behind a neighbour, if both together are no more than three quarters of a
    /// node; true if it did. An interior node of very few edges borrows from a neighbour that is too large for that: it may be an
    /// only child's parent, and then nothing below it could ever be joined.
    pub(crate) fn join_with_neighbour(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<bool> {
        let count = parent.state.read().interior().children.len();
        let mut borrow = None;
        for left in [index.checked_sub(1), (index + 1 < count).then_some(index)].into_iter().flatten() {
            if self.may_merge(parent, own, left)? {
                self.merge_pair(parent, own, left)?;
                return Ok(true);
            }
            borrow = Some(left);
        }
        let Some(left) = borrow else { return Ok(false) };
        if !self.has_few_edges(self.shown_by(parent, own, index)?.1) || parent.height == 1 {
            return Ok(false);
        }
        if self.grown_by_joining(parent, own, left)? > self.shape.node_bytes {
            return Ok(false);
        }
        self.merge_pair(parent, own, left)?;
        self.split_if_wide(parent, own, left)?;
        Ok(true)
    }

    /// BT-6: true for an interior node that has too few edges to stay as it is.
    pub(crate) fn has_few_edges(&self, edges: usize) -> bool {
        edges < (self.shape.fanout / 4).max(2)
    }

    /// Joins whatever can be joined behind a node that has too many edges; true if it still has too many, and is to be split. Clones
    /// leave edges that show little or nothing of what is behind them: without this, trees that they come to often
    /// would only ever grow in height.
    pub(crate) fn merge_children(&self, parent: &NodeRef, own: &KeyRange) -> Result<bool> {
        self.join_twins(parent, own)?;
        let edges = || parent.state.read().interior().children.len();
        let mut index = 0;
        while edges() > self.shape.fanout && index + 1 < edges() {
            let merged = self.may_merge(parent, own, index).and_then(|may| {
                if may {
                    self.merge_pair(parent, own, index)?;
                }
                Ok(may)
            });
            match merged {
                Ok(true) => {}
                Ok(false) => index += 1,
                // They stay apart, and the others are no worse for that.
                Err(error) if error.is_unreadable() => index += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(edges() > self.shape.fanout)
    }

    /// Cuts an edge behind which there is a node without keys and messages.
    fn retire_child(&self, parent: &NodeRef, index: usize) -> Result<bool> {
        self.load_all(parent)?;
        let (id, translated) = {
            let state = parent.state.read();
            let edge = &state.interior().children[index];
            (edge.id, edge.xf.is_some())
        };
        if id.is_empty() || translated || self.is_shared(id) {
            return Ok(false);
        }
        let child = self.node(id)?;
        child.expect_height(parent.height.checked_sub(1))?;
        let _gate = self.gate.read_recursive();
        let mut above = parent.state.write();
        let mut below = child.state.write();
        let nothing = match &below.body {
            Body::Leaf(leaf) => leaf.basements.is_empty(),
            Body::Interior(interior) => interior.children.iter().all(super::interior::Child::is_nothing),
        };
        if !nothing || above.missing_part().is_some() {
            return Ok(false);
        }
        self.cut_edge(parent, &mut above, index);
        self.drop_node(&child, &mut below);
        Ok(true)
    }

    /// Makes an edge lead to nothing. The node is loaded; what stood behind the edge is the caller's to let go.
    pub(crate) fn cut_edge(&self, node: &NodeRef, state: &mut Node, index: usize) {
        self.mark_dirty(node, state);
        let interior = state.interior_mut();
        interior.children[index].cut_off();
        interior.join_empty();
        self.account(state);
    }

    /// Makes one edge of neighbours that lead into the same node and translate alike, as pieces of a file do that were cloned one after
    /// the other; true if there were any. No node is read or copied for it.
    pub(crate) fn join_twins(&self, parent: &NodeRef, own: &KeyRange) -> Result<bool> {
        let next = |interior: &Interior, from: usize| -> Result<Option<(usize, Twins)>> {
            for left in from..interior.children.len() {
                if let Some(twins) = interior.twins(left, own, &self.damaged)? {
                    return Ok(Some((left, twins)));
                }
            }
            Ok(None)
        };
        if next(parent.state.read().interior(), 0)?.is_none() {
            return Ok(false);
        }
        self.load_all(parent)?;
        let _gate = self.gate.read_recursive();
        let mut above = parent.state.write();
        if above.missing_part().is_some() {
            return Ok(false);
        }
        self.mark_dirty(parent, &mut above);
        let (mut from, mut gone) = (0, Vec::new());
        let done = loop {
            match next(above.interior(), from) {
                Ok(Some((left, twins))) => {
                    gone.extend(above.interior_mut().join_twins(left, twins));
                    from = left;
                }
                other => break other,
            }
        };
        self.account(&mut above);
        let joined = !gone.is_empty();
        // Those that were joined before damage came are joined (BT-4).
        self.settle(gone, []);
        done.map(|_| joined)
    }

    /// True if what an edge and the next one show fits into one node, as far as that can be told without reading more than headers.
    fn may_merge(&self, parent: &NodeRef, own: &KeyRange, left: usize) -> Result<bool> {
        let pair = [left, left + 1].map(|index| parent.state.read().interior().children[index].id);
        if pair.into_iter().any(|id| self.damaged.contains(id)) {
            return Ok(false);
        }
        let (mut bytes, mut edges) = (0, 0);
        for index in [left, left + 1] {
            let shown = self.shown_by(parent, own, index)?;
            (bytes, edges) = (bytes + shown.0, edges + shown.1);
            if bytes > self.shape.node_bytes / 4 * 3 || edges > self.shape.fanout / 4 * 3 {
                return Ok(false);
            }
        }
        Ok(self.grown_by_joining(parent, own, left)? <= self.shape.node_bytes)
    }

    /// Bytes by which what is behind an edge and the next one grows when both are joined, at most: each name takes back what only one of the two
    /// edges has lifted from it. Names of a few bytes may lie behind a prefix of a quarter of a MiB.
    fn grown_by_joining(&self, parent: &NodeRef, own: &KeyRange, left: usize) -> Result<usize> {
        let edges = {
            let state = parent.state.read();
            let interior = state.interior();
            let (bounds_a, prefix_a) = (interior.bounds_of(left, own), interior.bounds_below(left, own)?.1);
            let (bounds_b, prefix_b) =
                (interior.bounds_of(left + 1, own), interior.bounds_below(left + 1, own)?.1);
            let bounds = KeyRange::new(bounds_a.lower, bounds_b.upper);
            let strip = bounds.common_prefix().min(prefix_a.len()).min(prefix_b.len());
            let id = |index: usize| interior.children[index].id;
            [(id(left), prefix_a.len() - strip), (id(left + 1), prefix_b.len() - strip)]
        };
        let mut grown = 0;
        for (id, by) in edges.into_iter().filter(|(id, by)| !id.is_empty() && *by > 0) {
            let node = self.node(id)?;
            let state = node.state.read();
            let names = match &state.body {
                Body::Leaf(leaf) => leaf.entries(),
                Body::Interior(interior) => {
                    let waiting: usize = interior.children.iter().map(|child| child.buffer_bytes).sum();
                    interior.children.len() + waiting / ENTRY_OVERHEAD
                }
            };
            grown += names * by;
        }
        Ok(grown)
    }

    /// Bytes and edges that an edge shows of the node behind it, at most.
    pub(crate) fn shown_by(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<(usize, usize)> {
        let (id, visible, height) = {
            let state = parent.state.read();
            let edge = &state.interior().children[index];
            let visible = match edge.xf {
                Some(_) => Some(state.interior().bounds_below(index, own)?.0),
                None => None,
            };
            (edge.id, visible, state.height - 1)
        };
        if id.is_empty() {
            return Ok((0, usize::from(height > 0)));
        }
        let node = match self.cache.peek(id) {
            Some(node) => node,
            // The length of a leaf on the device says enough.
            None if height == 0 && visible.is_none() => return Ok((self.stored_length(id), 0)),
            // The header of a node says how many edges it has, and how little of it is seen.
            None => self.node(id)?,
        };
        let state = node.state.read();
        Ok(match &state.body {
            Body::Leaf(leaf) => (visible.map_or_else(|| leaf.bytes(), |visible| leaf.bytes_in(&visible)), 0),
            Body::Interior(interior) => {
                let seen = match &visible {
                    Some(visible) => &interior.children[interior.indexes_in(visible)],
                    None => &interior.children[..],
                };
                (seen.iter().map(|child| child.buffer_bytes).sum(), seen.len())
            }
        })
    }

    /// Joins the nodes behind an edge and the next one.
    pub(super) fn merge_pair(&self, parent: &NodeRef, own: &KeyRange, left: usize) -> Result<()> {
        let [first, second] = [left, left + 1].map(|index| self.child_to_change(parent, own, index));
        let (first, second) = (first?, second?);
        if first.id == second.id {
            let what = "two edges lead to it, but the block table counts one";
            return Err(Error::damaged_node(Some(first.tree), first.id, what));
        }
        loop {
            for node in [parent, &first, &second] {
                self.load_all(node)?;
            }
            let _gate = self.gate.read_recursive();
            let mut above = parent.state.write();
            let mut a = first.state.write();
            let mut b = second.state.write();
            if [&*above, &*a, &*b].iter().any(|state| state.missing_part().is_some()) {
                continue;
            }
            let interior = above.interior();
            let (below_a, prefix_a) = interior.bounds_below(left, own)?;
            let (below_b, prefix_b) = interior.bounds_below(left + 1, own)?;
            expect_inside(&first, &a, &below_a)?;
            expect_inside(&second, &b, &below_b)?;
            let [bounds_a, bounds_b] = [left, left + 1].map(|index| interior.bounds_of(index, own));
            interior.children[left].expect_messages_inside(&bounds_a)?;
            interior.children[left + 1].expect_messages_inside(&bounds_b)?;
            let bounds = KeyRange::new(bounds_a.lower, bounds_b.upper);
            let strip = bounds.common_prefix().min(prefix_a.len()).min(prefix_b.len());
            self.mark_dirty(parent, &mut above);
            self.mark_dirty(&first, &mut a);
            self.mark_dirty(&second, &mut b);
            let border = above.interior().pivots[left].clone();
            let joined = join(
                relifted(&mut a, &prefix_a[strip..]),
                relifted(&mut b, &prefix_b[strip..]),
                border.strip(&prefix_a[..strip]),
                self.shape.basement_bytes,
            );
            a.body = joined;
            a.key_range.upper = b.key_range.upper.clone();
            self.drop_node(&second, &mut b);
            let interior = above.interior_mut();
            let right = interior.children.remove(left + 1);
            interior.pivots.remove(left);
            let edge = &mut interior.children[left];
            edge.strip = strip as u32;
            let messages = right.buffer.into_value().expect("the parent is loaded");
            edge.buffer.change().expect("the parent is loaded").append(messages, &border);
            edge.count_buffer();
            self.account(&mut above);
            self.account(&mut a);
            self.stats.merges.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
    }

    /// Makes the only child of a root the root.
    pub(crate) fn lower_root(&self, tree: Tree, root: &NodeRef) -> Result<()> {
        let own = KeyRange::all();
        let (id, holds_gotos) = {
            let state = root.state.read();
            (state.interior().children[0].id, state.interior().holds_gotos())
        };
        if holds_gotos {
            // What they lead to is to be found below the root.
            return self.flush_child(root, &own, 0);
        }
        let child = if id.is_empty() { None } else { Some(self.own_child(root, &own, 0)?) };
        if let Some(child) = &child {
            self.load_all(child)?;
        }
        let _gate = self.gate.read_recursive();
        let mut slot = self.root(tree).write();
        let mut above = root.state.write();
        if above.missing_part().is_some() {
            return Ok(());
        }
        let Some(child) = child else {
            // Nothing below: the messages that wait are all there is.
            let edge = &above.interior().children[0];
            let born = edge.buffer_msn;
            let mut leaf = Leaf::default();
            let buffer = edge.buffer.clone().into_value().expect("the root is loaded");
            for (key, (msn, pending)) in buffer.into_messages().keyed {
                leaf.apply(key, msn, pending, self.shape.basement_bytes);
            }
            leaf.drop_empty();
            let mut node = Node::empty_leaf(own, born);
            node.body = Body::Leaf(leaf);
            TreeRoot::replace(&mut slot, self.add_root(tree, node));
            self.drop_node(root, &mut above);
            return Ok(());
        };
        let mut below = child.state.write();
        if below.missing_part().is_some() {
            return Ok(());
        }
        let (bounds, prefix) = above.interior().bounds_below(0, &own)?;
        self.mark_dirty(root, &mut above);
        self.mark_dirty(&child, &mut below);
        let edge = &mut above.interior_mut().children[0];
        let buffer = std::mem::replace(&mut edge.buffer, Part::new(MessageBuffer::default()));
        let messages = lower(buffer.into_value().expect("the root is loaded"), &own, &prefix);
        self.receive(&mut below, messages, &bounds);
        below.body = relifted(&mut below, &prefix);
        below.key_range = own;
        self.account(&mut below);
        self.drop_node(root, &mut above);
        // Before its lock is let go: nobody may take a part from it any more (TREE-1).
        child.pinned.store(true, Ordering::Relaxed);
        drop(below);
        TreeRoot::replace(&mut slot, child);
        Ok(())
    }
}

/// Takes a node's body out, for keys that have `prefix` in front again. The node is loaded.
fn relifted(node: &mut Node, prefix: &[u8]) -> Body {
    let mut body = std::mem::replace(&mut node.body, Body::Leaf(Leaf::default()));
    match &mut body {
        Body::Leaf(leaf) => leaf.relift(prefix, &[]),
        Body::Interior(interior) => interior.relift(prefix),
    }
    body
}

fn join(left: Body, mut right: Body, border: Bound, basement_bytes: usize) -> Body {
    right.leave_image();
    match (left, right) {
        (Body::Leaf(mut left), Body::Leaf(right)) => {
            left.basements.extend(right.basements);
            left.join_small(basement_bytes);
            Body::Leaf(Leaf::of(left.basements))
        }
        (Body::Interior(mut left), Body::Interior(right)) => {
            left.pivots.push(border);
            left.pivots.extend(right.pivots);
            left.children.extend(right.children);
            let mut joined = Interior { pivots: left.pivots, children: left.children };
            joined.join_empty();
            Body::Interior(joined)
        }
        _ => unreachable!("BT-3: neighbours have the same height, checked before"),
    }
}
