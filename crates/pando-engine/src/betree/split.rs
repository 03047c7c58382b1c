//! Split: a node that is too large becomes two or more beside each other.
//!
//! The border is chosen among the middle ones where neighbouring keys share least (preferential splitting, THESIS 5.3.2):
//! what is then on either side shares more, lifts more, and can be cut off or moved in one piece. A leaf that has grown at
//! its end is cut near the end instead, so that sequential writes leave full leaves.

use bytes::Bytes;
use pando_format::key::common_prefix;
use pando_format::{Bound, KeyRange, NodeId};

use super::interior::{Child, Interior};
use super::leaf::{BasementSlot, Leaf};
use super::lifting::edge_prefix;
use super::message_buffer::MessageBuffer;
use super::node::{Body, Node, NodeRef};
use super::part::Part;
use crate::Result;
use crate::volume::Volume;

impl Volume {
    /// Splits the interior node behind an edge if it has too many edges.
    pub(crate) fn split_if_wide(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        let id = parent.state.read().interior().children[index].id;
        let edges = self.node(id)?.state.read().interior().children.len();
        if edges > self.shape.fanout { self.split_child(parent, own, index) } else { Ok(()) }
    }

    /// Splits the node behind an edge until its pieces are within their bounds, unless joining what is behind it is enough.
    pub(crate) fn split_child(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        let id = parent.state.read().interior().children[index].id;
        let child = self.node(id)?;
        if child.state.read().height > 0 {
            let below = parent.state.read().interior().bounds_below(index, own)?.0;
            if !self.merge_children(&child, &below)? {
                return Ok(());
            }
        }
        loop {
            self.load_all(parent)?;
            self.load_all(&child)?;
            let _gate = self.gate.read_recursive();
            let mut above = parent.state.write();
            let mut below = child.state.write();
            if above.missing_part().is_some() || below.missing_part().is_some() {
                continue;
            }
            self.mark_dirty(parent, &mut above);
            self.mark_dirty(&child, &mut below);
            let bounds = above.interior().bounds_of(index, own);
            let (_, prefix) = above.interior().bounds_below(index, own)?;
            let born = below.born;
            let height = below.height;
            let pieces: Pieces = match &mut below.body {
                Body::Leaf(leaf) => split_leaf(std::mem::take(leaf), self.shape.node_bytes),
                Body::Interior(interior) => split_interior(interior, self.shape.fanout),
            };
            let mut lower = bounds.lower.clone();
            let mut edges = Vec::with_capacity(pieces.len());
            let mut pivots = Vec::with_capacity(pieces.len());
            let last = pieces.len() - 1;
            for (at, (mut body, border)) in pieces.into_iter().enumerate() {
                let upper = match &border {
                    Some(border) => border.prepend(&prefix),
                    None => bounds.upper.clone(),
                };
                let piece_bounds = KeyRange::new(lower.clone(), upper.clone());
                let mut strip = prefix.len();
                if let Body::Leaf(leaf) = &mut body {
                    // A leaf's keys are in hand: lift all they share now. An interior node is lifted when it is merged.
                    let lifted = edge_prefix(&piece_bounds, piece_bounds.common_prefix());
                    let lifted = lifted.expect("the bounds share their common prefix");
                    leaf.relift(&[], &lifted[strip.min(lifted.len())..]);
                    strip = strip.max(lifted.len());
                }
                if at == 0 {
                    below.body = body;
                    edges.push((child.id, strip));
                } else {
                    body.leave_image();
                    let node = self.add_node(child.tree, Node::new(height, body, piece_bounds.clone(), born));
                    edges.push((node.id, strip));
                }
                if at < last {
                    pivots.push(upper.clone());
                }
                lower = upper;
            }
            below.key_range = KeyRange::new(bounds.lower, pivots.first().unwrap_or(&bounds.upper).clone());
            let interior = above.interior_mut();
            let buffer =
                std::mem::replace(&mut interior.children[index].buffer, Part::new(MessageBuffer::default()));
            let mut rest = buffer.into_value().expect("the parent is loaded");
            let targets: Vec<NodeId> = rest.targets().collect();
            let mut children = Vec::with_capacity(edges.len());
            for (at, (id, strip)) in edges.into_iter().enumerate() {
                let above_border = pivots.get(at).map(|pivot| rest.split_off(pivot));
                let mut edge = Child::new(id, strip);
                edge.buffer = Part::new(std::mem::replace(&mut rest, above_border.unwrap_or_default()));
                edge.count_buffer();
                children.push(edge);
            }
            // A goto over a border of the pieces has become two.
            let buffers = children.iter().filter_map(|edge: &Child| edge.buffer.get());
            self.settle(targets, buffers.flat_map(|buffer| buffer.targets()));
            interior.children.splice(index..=index, children);
            interior.pivots.splice(index..index, pivots);
            self.account(&mut above);
            self.account(&mut below);
            self.stats.splits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Ok(());
        }
    }
}

/// The bodies of the pieces, each but the last with the border above it, in the old node's coordinates.
type Pieces = Vec<(Body, Option<Bound>)>;

fn split_leaf(leaf: Leaf, node_bytes: usize) -> Pieces {
    let grown_at_end = leaf.grown_at_end();
    let mut pieces = Vec::new();
    let mut rest = leaf.basements;
    loop {
        let bytes: usize = rest.iter().map(|slot| slot.bytes).sum();
        if rest.len() < 2 || (bytes <= node_bytes && !pieces.is_empty()) {
            pieces.push((Body::Leaf(Leaf::of(rest)), None));
            return pieces;
        }
        // Where the pieces would be equal, or full; a third to either side is tried for a better border.
        let target = if grown_at_end { node_bytes } else { (bytes / 2).min(node_bytes * 3 / 4) };
        let (low, high) =
            if grown_at_end { (target * 7 / 8, target) } else { (target * 2 / 3, target * 4 / 3) };
        let at = best_border(&rest, low, high.min(node_bytes), target);
        let right = rest.split_off(at);
        let border = border_between(&rest[at - 1], &right[0]);
        pieces.push((Body::Leaf(Leaf::of(std::mem::replace(&mut rest, right))), Some(border)));
    }
}

/// Index of the basement before which to cut: among those with `low` to `high` bytes in front, the one whose first key
/// shares least with the key before it; if there is none, the one nearest to `target`.
fn best_border(slots: &[BasementSlot], low: usize, high: usize, target: usize) -> usize {
    let mut before = 0;
    let mut best: Option<(usize, usize, usize)> = None;
    let mut nearest = (usize::MAX, 1);
    for at in 1..slots.len() {
        before += slots[at - 1].bytes;
        nearest = nearest.min((before.abs_diff(target), at));
        if (low..=high).contains(&before) {
            let shared = common_prefix(last_key(&slots[at - 1]), &slots[at].first_key);
            let candidate = (shared, before.abs_diff(target), at);
            best = Some(best.map_or(candidate, |best| best.min(candidate)));
        }
    }
    best.map_or(nearest.1, |(_, _, at)| at)
}

fn last_key(slot: &BasementSlot) -> &Bytes {
    let basement = slot.part.get().expect("the whole leaf was loaded before");
    &basement.entries.last().expect("LEAF-1: no basement is empty").0
}

/// The shortest bound between two basements.
fn border_between(left: &BasementSlot, right: &BasementSlot) -> Bound {
    let shared = common_prefix(last_key(left), &right.first_key);
    Bound::before(right.first_key.slice(..shared + 1))
}

fn split_interior(interior: &mut Interior, fanout: usize) -> Pieces {
    let mut pieces = Vec::new();
    let mut children = std::mem::take(&mut interior.children);
    let mut pivots = std::mem::take(&mut interior.pivots);
    let parts = children.len().div_ceil(fanout).max(2);
    for left_over in (1..parts).rev() {
        let middle = children.len() / (left_over + 1);
        let reach = middle / 3;
        let candidates = (middle - reach).max(1)..=(middle + reach).min(children.len() - 1);
        let at = candidates
            .min_by_key(|at| (pivots[at - 1].bytes.len(), at.abs_diff(middle)))
            .expect("a node that is split has at least two edges");
        let right_children = children.split_off(at);
        let right_pivots = pivots.split_off(at);
        let border = pivots.pop().expect("INT-1: there is a pivot between two edges");
        let left = Interior {
            pivots: std::mem::replace(&mut pivots, right_pivots),
            children: std::mem::replace(&mut children, right_children),
        };
        pieces.push((Body::Interior(left), Some(border)));
    }
    pieces.push((Body::Interior(Interior { pivots, children }), None));
    pieces
}
