//! Range queries: a piece of the tree at a time, in either direction.
//!
//! A piece is what one basement node covers. A scan descends from the root for each piece, with the path's locks
//! shared until the piece is done, and merges the basement with the messages above it that lie inside. It keeps
//! nothing between pieces but a key, so whatever happens to the tree between two pieces cannot confuse it.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{Bound, KeyRange, NodeId, Pending, Tree};

use super::entries::Entry;
use super::interior::Interior;
use super::leaf::Leaf;
use super::message_buffer::MessageBuffer;
use super::names::Names;
use super::node::{Body, CachedNode};
use super::sharing::lifts_too_much;
use crate::volume::Volume;
use crate::{Direction, Error, Miss, Result, Scan, ScanLimit};

/// A buffer on the path from the root, and how its node's keys are made from full ones.
pub(super) struct Level<'a> {
    pub(super) buffer: &'a MessageBuffer,
    pub(super) names: &'a Names,
    pub(super) above: Option<&'a Level<'a>>,
}

impl Level<'_> {
    /// True if a range delete here or above covers all of a piece. What is below need not be read then, and must not be: clones of
    /// clones can hide more ways than there are nodes.
    pub(super) fn hides(&self, piece: &KeyRange) -> bool {
        let mut next = Some(self);
        while let Some(level) = next {
            if !level.buffer.ranges().is_empty() {
                let local = level.names.range_to_local(piece);
                if level.buffer.ranges_in(&local).any(|(range, _)| range.covers(&local)) {
                    return true;
                }
            }
            next = level.above;
        }
        false
    }
}

/// A node on the path, as a scan sees it.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) names: Names,
    /// What can be seen of the node, as full keys.
    pub(super) bounds: KeyRange,
    pub(super) height: Option<u8>,
    pub(super) above: Option<&'a Level<'a>>,
}

/// What has been collected, and when to stop.
pub(super) struct Collector {
    pub(super) direction: Direction,
    pub(super) limit: ScanLimit,
    pub(super) entries: Vec<(Bytes, Bytes)>,
    pub(super) bytes: usize,
}

impl Collector {
    fn is_full(&self) -> bool {
        self.entries.len() >= self.limit.entries || self.bytes >= self.limit.bytes
    }
}

impl Volume {
    /// A piece of a range, at least one entry if there is any, or [`Error::Miss`].
    pub(crate) fn scan(
        &self,
        tree: Tree,
        range: &KeyRange,
        direction: Direction,
        limit: ScanLimit,
    ) -> Result<Scan> {
        self.stats.scans.fetch_add(1, Ordering::Relaxed);
        let mut out = Collector { direction, limit, entries: Vec::new(), bytes: 0 };
        let mut rest = range.clone();
        while !rest.is_empty() && !out.is_full() {
            let names = Names::root();
            let place = Place { names, bounds: KeyRange::all(), height: None, above: None };
            let root = self.root(tree).read();
            match self.scan_in(&root, &place, &rest, &mut out) {
                Ok(done) => match direction {
                    Direction::Forward => rest.lower = done,
                    Direction::Backward => rest.upper = done,
                },
                // What has been looked at already is an answer, even if nothing was there: a stretch of deleted keys
                // may be longer than the cache, and a scan that began again at its start would never get through.
                Err(Error::Miss(_)) if rest != *range => break,
                Err(error) => return Err(error),
            }
        }
        let rest = (!rest.is_empty()).then_some(rest);
        Ok(Scan { entries: out.entries, rest })
    }

    /// Collects one piece at the near end of `range`; returns how far it got.
    fn scan_in(
        &self,
        node: &CachedNode,
        place: &Place<'_>,
        range: &KeyRange,
        out: &mut Collector,
    ) -> Result<Bound> {
        let state = node.state.read();
        state.expect_height(node, place.height)?;
        let names = &place.names;
        let interior = match &state.body {
            Body::Leaf(leaf) => {
                if leaf.basements.is_empty() {
                    return Ok(merge(std::iter::empty(), place, &place.bounds.intersection(range), out));
                }
                let (index, bounds) = basement_at(leaf, place, range, out.direction);
                let Some(basement) = leaf.basements[index].part.get() else {
                    return Err(Error::Miss(Miss { node: node.id, part: Some(index as u32) }));
                };
                self.comes_to(node, index);
                let piece = bounds.intersection(range);
                let local = names.range_to_local(&piece);
                return Ok(merge(basement.inside(&local), place, &piece, out));
            }
            Body::Interior(interior) => interior,
        };
        let way = way_down(node, state.height, interior, place, range, out.direction)?;
        let WayDown { buffer, id, height, names: below, bounds, next } = way;
        let level = Level { buffer, names, above: place.above };
        let below = Place { names: below, bounds, height: Some(height), above: Some(&level) };
        let piece = below.bounds.intersection(range);
        if id.is_empty() || level.hides(&piece) {
            return Ok(merge(std::iter::empty(), &below, &piece, out));
        }
        let child = self.cached(id)?;
        if height == 0
            && let Some(next) = next
        {
            child.next.store(next.0, Ordering::Relaxed);
        }
        self.scan_in(&child, &below, range, out)
    }
}

/// The basement at the near end of `range` in a leaf that has any, and what can be seen of it, as full keys.
pub(super) fn basement_at(
    leaf: &Leaf,
    place: &Place<'_>,
    range: &KeyRange,
    direction: Direction,
) -> (usize, KeyRange) {
    let names = &place.names;
    let index = match direction {
        Direction::Forward => {
            let lower = names.to_local(&range.lower);
            leaf.basements.partition_point(|slot| Bound::before(slot.first_key.clone()) <= lower)
        }
        Direction::Backward => {
            let upper = names.to_local(&range.upper);
            leaf.basements.partition_point(|slot| Bound::before(slot.first_key.clone()) < upper)
        }
    };
    let index = index.saturating_sub(1);
    let mut bounds = place.bounds.clone();
    if index > 0 {
        let first = Bound::before(leaf.basements[index].first_key.clone());
        bounds.lower = bounds.lower.max(names.to_full(&first));
    }
    if let Some(next) = leaf.basements.get(index + 1) {
        bounds.upper = bounds.upper.min(names.to_full(&Bound::before(next.first_key.clone())));
    }
    (index, bounds)
}

/// The way below an interior node that a range begins with.
pub(super) struct WayDown<'a> {
    /// What waits in the node for keys of that way.
    pub(super) buffer: &'a MessageBuffer,
    /// Where it leads; [`NodeId::EMPTY`] to nothing.
    pub(super) id: NodeId,
    pub(super) height: u8,
    pub(super) names: Names,
    /// What can be seen by it, as full keys.
    pub(super) bounds: KeyRange,
    /// The neighbour to which a scan forward goes on from there; [`NodeId::EMPTY`] if the node does not tell. `None` for a way
    /// that says nothing about it.
    pub(super) next: Option<NodeId>,
}

/// The way down from an interior node at the near end of `range`, or [`Error::Miss`].
pub(super) fn way_down<'a>(
    node: &CachedNode,
    height: u8,
    interior: &'a Interior,
    place: &Place<'_>,
    range: &KeyRange,
    direction: Direction,
) -> Result<WayDown<'a>> {
    let names = &place.names;
    let forward = direction == Direction::Forward;
    let index = if forward {
        interior.index_above(&names.to_local(&range.lower))
    } else {
        interior.index_below(&names.to_local(&range.upper))
    };
    let child = &interior.children[index];
    let Some(buffer) = child.buffer.get() else {
        return Err(Error::Miss(Miss { node: node.id, part: Some(index as u32) }));
    };
    let mut bounds = place.bounds.clone();
    if index > 0 {
        bounds.lower = bounds.lower.max(names.to_full(&interior.pivots[index - 1]));
    }
    if let Some(pivot) = interior.pivots.get(index) {
        bounds.upper = bounds.upper.min(names.to_full(pivot));
    }
    // Where a goto covers the near end of the range, it leads on; where one comes later, the piece ends at it.
    let mut goto = None;
    for other in buffer.gotos() {
        let covered = KeyRange::new(names.to_full(&other.range.lower), names.to_full(&other.range.upper));
        let is_here = if forward {
            covered.lower <= range.lower && range.lower < covered.upper
        } else {
            covered.lower < range.upper && range.upper <= covered.upper
        };
        if is_here {
            bounds = bounds.intersection(&covered);
            goto = Some(other);
            break;
        }
        if forward && covered.lower > range.lower {
            bounds.upper = bounds.upper.min(covered.lower);
        } else if !forward && covered.upper < range.upper {
            bounds.lower = bounds.lower.max(covered.upper);
        }
    }
    let (id, height, strip, prepend) = match goto {
        Some(goto) => (goto.target, goto.height, goto.xf.strip as usize, &goto.xf.prepend[..]),
        None if child.id.is_empty() => (child.id, 0, 0, &[][..]),
        None => (child.id, height.wrapping_sub(1), child.strip as usize, child.prepended()),
    };
    let next = (forward && goto.is_none())
        .then(|| interior.children.get(index + 1).map_or(NodeId::EMPTY, |next| next.id));
    let names = names.below(&bounds, strip, prepend).ok_or_else(|| lifts_too_much(node))?;
    Ok(WayDown { buffer, id, height, names, bounds, next })
}

/// The messages of one level inside the piece, nearest first.
struct Overlay<'a> {
    level: &'a Level<'a>,
    keyed: std::iter::Peekable<Box<dyn Iterator<Item = (&'a Bytes, &'a Pending)> + 'a>>,
    deletes: bool,
}

/// Merges a basement's entries with the messages above; returns how far it got.
pub(super) fn merge<'a>(
    entries: impl DoubleEndedIterator<Item = &'a Entry> + 'a,
    place: &Place<'_>,
    piece: &KeyRange,
    out: &mut Collector,
) -> Bound {
    let forward = out.direction == Direction::Forward;
    let prefix = &place.names.prefix;
    let mut overlays = Vec::new();
    let mut above = place.above;
    while let Some(level) = above {
        let local = level.names.range_to_local(piece);
        let deletes = level.buffer.ranges_in(&local).next().is_some();
        let keyed = level.buffer.keyed_in(&local);
        let keyed: Box<dyn Iterator<Item = _>> =
            if forward { Box::new(keyed) } else { Box::new(keyed.rev()) };
        let mut keyed = keyed.peekable();
        if deletes || keyed.peek().is_some() {
            overlays.push(Overlay { level, keyed, deletes });
        }
        above = level.above;
    }
    let mut base: Box<dyn Iterator<Item = &Entry>> =
        if forward { Box::new(entries) } else { Box::new(entries.rev()) };
    let mut head = base.next();
    loop {
        // The nearest key of all sources, as the leaf sees it.
        let local = place.names.local.len();
        let mut nearest: Option<&[u8]> = head.map(|(key, _)| &key[local..]);
        for overlay in &mut overlays {
            let names = overlay.level.names;
            let skip = names.local.len() + prefix.len() - names.prefix.len();
            if let Some(&(key, _)) = overlay.keyed.peek() {
                let key = &key[skip..];
                if nearest.is_none_or(|near| if forward { key < near } else { key > near }) {
                    nearest = Some(key);
                }
            }
        }
        let Some(nearest) = nearest else {
            return if forward { piece.upper.clone() } else { piece.lower.clone() };
        };
        let full: Bytes = [&prefix[..], nearest].concat().into();
        let mut value = None;
        if let Some((key, old)) = head
            && key[local..] == full[prefix.len()..]
        {
            value = Some(old.clone());
            head = base.next();
        }
        // Collected from the leaf upwards: the lowest level is the oldest.
        for overlay in &mut overlays {
            let seen = overlay.level.names.key_to_local(&full);
            if overlay.deletes && value.is_some() && overlay.level.buffer.deletes(&seen) {
                value = None;
            }
            if overlay.keyed.peek().is_some_and(|(key, _)| key[..] == *seen) {
                let (_, pending) = overlay.keyed.next().expect("it was just peeked at");
                value = pending.apply(value.as_ref());
            }
        }
        let Some(value) = value else { continue };
        out.bytes += full.len() + value.len();
        out.entries.push((full, value));
        if out.is_full() {
            let (last, _) = out.entries.last().expect("it was just pushed");
            return Bound::before(if forward { [last, &[0][..]].concat().into() } else { last.clone() });
        }
    }
}
