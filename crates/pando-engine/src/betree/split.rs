//! Split: a node that is too large becomes two or more beside each other.
//!
//! The border is chosen among the middle ones where neighbouring keys share least (preferential splitting, THESIS 5.3.2):
//! what is then on either side shares more, lifts more, and can be cut off or moved in one piece. A leaf that has grown at
//! its end is cut near the end instead, so that sequential writes leave full leaves.
//!
//! Basement nodes that cannot be read stay in their node, where they lie on the device, and those between them: what is split off are the others.

use std::ops::RangeInclusive;

use bytes::Bytes;
use pando_format::key::common_prefix;
use pando_format::{Bound, KeyRange, NodeId};

use super::interior::{Child, Interior};
use super::leaf::{BasementSlot, Leaf};
use super::lifting::edge_prefix;
use super::message_buffer::MessageBuffer;
use super::node::{Body, Node, NodeRef};
use super::part::Part;
use crate::volume::Volume;
use crate::{Error, Result};

/// Whether all of a node lies where its edge leads.
pub(super) fn expect_inside(node: &NodeRef, state: &Node, own: &KeyRange) -> Result<()> {
    if state.body.lies_inside(own) {
        return Ok(());
    }
    let what = "a key or pivot lies outside the bounds of its edge or of its basement node";
    Err(Error::damaged_node(Some(node.tree), node.id, what))
}

impl Volume {
    /// True for a node that is to be split.
    pub(super) fn is_too_large(&self, body: &Body) -> bool {
        match body {
            Body::Leaf(leaf) => leaf.is_too_large(self.shape.node_bytes),
            Body::Interior(interior) => interior.children.len() > self.shape.fanout,
        }
    }

    /// Splits the interior node behind an edge if it has too many edges.
    pub(crate) fn split_if_wide(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        let id = parent.state.read().interior().children[index].id;
        let too_large = self.is_too_large(&self.node(id)?.state.read().body);
        if too_large { self.split_child(parent, own, index) } else { Ok(()) }
    }

    /// Splits the node behind an edge until its pieces are within their bounds, unless joining what is behind it is enough.
    pub(crate) fn split_child(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        let id = parent.state.read().interior().children[index].id;
        let child = self.node(id)?;
        child.expect_height(parent.height.checked_sub(1))?;
        if child.height > 0 {
            let below = parent.state.read().interior().bounds_below(index, own)?.0;
            if !self.merge_children(&child, &below)? {
                return Ok(());
            }
        }
        loop {
            self.load_all(parent)?;
            let lost = if child.height > 0 {
                self.load_all(&child)?;
                Vec::new()
            } else {
                self.load_readable(&child)?
            };
            let _gate = self.gate.read_recursive();
            let mut above = parent.state.write();
            let mut below = child.state.write();
            if above.missing_part().is_some() || below.missing_beside(&lost).is_some() {
                continue;
            }
            if let (Some((_, error)), Body::Leaf(leaf)) = (lost.last(), &below.body)
                && !may_split(leaf)
            {
                return Err(error.clone());
            }
            let bounds = above.interior().bounds_of(index, own);
            let (own_below, prefix) = above.interior().bounds_below(index, own)?;
            expect_inside(&child, &below, &own_below)?;
            self.mark_dirty(parent, &mut above);
            self.mark_dirty(&child, &mut below);
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
            let kept = pieces.iter().position(|(body, _)| body.misses_a_basement()).unwrap_or(0);
            for (at, (mut body, border)) in pieces.into_iter().enumerate() {
                let upper = match &border {
                    Some(border) => border.prepend(&prefix),
                    None => bounds.upper.clone(),
                };
                let piece_bounds = KeyRange::new(lower.clone(), upper.clone());
                let mut strip = prefix.len();
                if let Body::Leaf(leaf) = &mut body
                    && lost_basements(&leaf.basements).is_none()
                {
                    // A leaf's keys are in hand: lift all they share now. An interior node is lifted when it is merged.
                    let lifted = edge_prefix(&piece_bounds, piece_bounds.common_prefix());
                    let lifted = lifted.expect("the bounds share their common prefix");
                    leaf.relift(&[], &lifted[strip.min(lifted.len())..]);
                    strip = strip.max(lifted.len());
                }
                if at == kept {
                    below.body = body;
                    below.key_range = piece_bounds;
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

impl Volume {
    /// Reads every part of a node that is not in memory, but for those that cannot be read. Gives where these lie in the node's image, and why they
    /// cannot.
    pub(crate) fn load_readable(&self, node: &NodeRef) -> Result<Vec<(u32, Error)>> {
        let mut lost: Vec<(u32, Error)> = Vec::new();
        loop {
            let next = node.state.read().missing_beside(&lost);
            let Some((index, offset)) = next else { return Ok(lost) };
            match self.load_part(node, index) {
                Err(error) if error.is_unreadable() => lost.push((offset, error)),
                done => _ = done?,
            }
        }
    }
}

impl Node {
    /// A part that is not in memory, and where it lies in the node's image, if there is one beside those at these places.
    fn missing_beside(&self, lost: &[(u32, Error)]) -> Option<(usize, u32)> {
        fn first<'a, T: Clone + 'a>(
            parts: impl Iterator<Item = &'a Part<T>>,
            lost: &[(u32, Error)],
        ) -> Option<(usize, u32)> {
            parts.enumerate().find_map(|(index, part)| {
                let offset = part.stored().filter(|_| part.get().is_none())?.offset;
                lost.iter().all(|(other, _)| *other != offset).then_some((index, offset))
            })
        }
        match &self.body {
            Body::Leaf(leaf) => first(leaf.basements.iter().map(|slot| &slot.part), lost),
            Body::Interior(interior) => first(interior.children.iter().map(|child| &child.buffer), lost),
        }
    }
}

impl Body {
    fn misses_a_basement(&self) -> bool {
        matches!(self, Self::Leaf(leaf) if lost_basements(&leaf.basements).is_some())
    }
}

/// The basements from the first to the last that is not in memory: since they cannot be read, they stay in one node.
fn lost_basements(slots: &[BasementSlot]) -> Option<RangeInclusive<usize>> {
    let is_lost = |slot: &BasementSlot| slot.part.get().is_none();
    Some(slots.iter().position(is_lost)?..=slots.iter().rposition(is_lost)?)
}

/// False if all that a leaf has has to stay in one node.
fn may_split(leaf: &Leaf) -> bool {
    lost_basements(&leaf.basements)
        .is_none_or(|lost| *lost.start() > 0 || lost.end() + 1 < leaf.basements.len())
}

/// The bodies of the pieces, each but the last with the border above it, in the old node's coordinates.
type Pieces = Vec<(Body, Option<Bound>)>;

fn split_leaf(leaf: Leaf, node_bytes: usize) -> Pieces {
    let grown_at_end = leaf.grown_at_end();
    let mut pieces = Vec::new();
    let mut rest = leaf.basements;
    loop {
        let bytes: usize = rest.iter().map(|slot| slot.bytes).sum();
        // Where the pieces would be equal, or full; a third to either side is tried for a better border.
        let target = if grown_at_end { node_bytes } else { (bytes / 2).min(node_bytes * 3 / 4) };
        let (low, high) =
            if grown_at_end { (target * 7 / 8, target) } else { (target * 2 / 3, target * 4 / 3) };
        let is_done = rest.len() < 2 || (bytes <= node_bytes && !pieces.is_empty());
        let border = if is_done { None } else { best_border(&rest, low, high.min(node_bytes), target) };
        let Some(at) = border else {
            pieces.push((Body::Leaf(Leaf::of(rest)), None));
            return pieces;
        };
        let right = rest.split_off(at);
        let border = border_between(&rest[at - 1], &right[0]);
        pieces.push((Body::Leaf(Leaf::of(std::mem::replace(&mut rest, right))), Some(border)));
    }
}

/// Index of the basement before which to cut: among those with `low` to `high` bytes in front, the one whose first key
/// shares least with the key before it; if there is none, the one nearest to `target`. `None` if lost basements leave no place.
fn best_border(slots: &[BasementSlot], low: usize, high: usize, target: usize) -> Option<usize> {
    let lost = lost_basements(slots);
    let mut before = 0;
    let mut best: Option<(usize, usize, usize)> = None;
    let mut nearest: Option<(usize, usize)> = None;
    for at in 1..slots.len() {
        before += slots[at - 1].bytes;
        if lost.as_ref().is_some_and(|lost| *lost.start() < at && at <= *lost.end()) {
            continue;
        }
        let candidate = (before.abs_diff(target), at);
        nearest = Some(nearest.map_or(candidate, |nearest| nearest.min(candidate)));
        if (low..=high).contains(&before) {
            let shared = shared_at(&slots[at - 1], &slots[at]);
            let candidate = (shared, before.abs_diff(target), at);
            best = Some(best.map_or(candidate, |best| best.min(candidate)));
        }
    }
    best.map(|(_, _, at)| at).or(nearest.map(|(_, at)| at))
}

/// Bytes of the right basement's first key that the last key of the left one may share.
fn shared_at(left: &BasementSlot, right: &BasementSlot) -> usize {
    match left.part.get() {
        Some(basement) => {
            let last = &basement.entries.last().expect("LEAF-1: no basement is empty").0;
            common_prefix(last, &right.first_key)
        }
        // Its last key is not known.
        None => right.first_key.len() - 1,
    }
}

/// The shortest bound between two basements. It outlives them, so it keeps nothing of theirs.
fn border_between(left: &BasementSlot, right: &BasementSlot) -> Bound {
    Bound::before(Bytes::copy_from_slice(&right.first_key[..=shared_at(left, right)]))
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

#[cfg(test)]
mod tests {
    use pando_format::Msn;

    use super::*;

    #[test]
    fn a_pivot_keeps_nothing_of_the_leaf() {
        let mut leaf = Leaf::default();
        for key in ["name of one", "name of two"] {
            leaf.push_basement(vec![(key.into(), Bytes::new())], 0, Msn::default());
        }
        let border = border_between(&leaf.basements[0], &leaf.basements[1]);
        assert_eq!(border.bytes, "name of t");
        assert!(border.bytes.is_unique());
    }
}
