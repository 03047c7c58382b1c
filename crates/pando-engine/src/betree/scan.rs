//! Range queries: a piece of the tree at a time, by rising keys.
//!
//! A piece is what one basement node covers. A scan descends from the root for each piece, with the path's locks
//! shared until the piece is done, and merges the basement with the messages above it that lie inside. It keeps
//! nothing between pieces but a key, so whatever happens to the tree between two pieces cannot confuse it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{Bound, KeyRange, NodeId, Pending, Tree};

use super::entries::Entry;
use super::interior::Interior;
use super::leaf::Leaf;
use super::message_buffer::MessageBuffer;
use super::names::Names;
use super::node::{Body, CachedNode, NodeRef};
use super::sharing::lifts_too_much;
use crate::volume::Volume;
use crate::{Result, Scan, ScanLimit};

/// A buffer on the path from the root, and how its node's keys are made from full ones.
pub(super) struct Level<'a> {
    pub(super) buffer: &'a MessageBuffer,
    pub(super) names: &'a Names,
    pub(super) above: Option<&'a Level<'a>>,
}

impl Level<'_> {
    /// True if a range delete here or above covers all of a piece of a node that has these names. What is below need not be read then,
    /// and must not be: clones of clones can hide more ways than there are nodes.
    pub(super) fn hides(&self, names: &Names, piece: &KeyRange) -> bool {
        let mut full = None;
        self.and_above().any(|level| {
            !level.buffer.ranges().is_empty() && {
                let full = full.get_or_insert_with(|| names.range_to_full(piece));
                let local = level.names.range_to_local(full);
                level.buffer.ranges_in(&local).any(|(range, _)| range.covers(&local))
            }
        })
    }

    /// This one and those above, the lowest first.
    pub(super) fn and_above(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |level| level.above)
    }
}

/// A node on the path, as a scan sees it.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) names: Names,
    /// What can be seen of the node, as it has its keys.
    pub(super) seen: KeyRange,
    pub(super) height: Option<u8>,
    pub(super) above: Option<&'a Level<'a>>,
}

impl Place<'_> {
    /// A root, of which everything is seen.
    pub(super) fn root() -> Self {
        Self { names: Names::root(), seen: KeyRange::all(), height: None, above: None }
    }
}

/// What has been collected, and when to stop.
pub(super) struct Collector {
    pub(super) limit: ScanLimit,
    pub(super) entries: Vec<(Bytes, Bytes)>,
    pub(super) bytes: usize,
    /// Pieces looked at.
    pub(super) pieces: usize,
    /// True if values may be slices of what was read from the device, all of which each of them keeps.
    pub(super) is_read: bool,
}

impl Collector {
    pub(super) fn new(limit: ScanLimit) -> Self {
        Self { limit, entries: Vec::new(), bytes: 0, pieces: 0, is_read: false }
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.limit.entries || self.bytes >= self.limit.bytes
    }
}

impl Volume {
    /// A piece of a range, at least one entry if there is any, or [`crate::Error::Miss`].
    pub(crate) fn scan(&self, tree: Tree, range: &KeyRange, limit: ScanLimit) -> Result<Scan> {
        let mut out = Collector::new(limit);
        let rest = self.collect(tree, range, &mut out)?;
        Ok(Scan { entries: out.entries, rest })
    }

    /// Collects pieces until enough has been, or something is missing or damaged, and gives what is left of the range; the error if that is all of it.
    pub(super) fn collect(
        &self,
        tree: Tree,
        range: &KeyRange,
        out: &mut Collector,
    ) -> Result<Option<KeyRange>> {
        self.stats.scans.fetch_add(1, Ordering::Relaxed);
        let mut rest = range.clone();
        while !rest.is_empty() && !out.is_full() {
            let root = self.root(tree).read();
            match self.scan_in(&root, &Place::root(), &rest, out) {
                Ok(None) => return Ok(None),
                Ok(Some(next)) => rest.lower = next,
                // What has been looked at already is an answer, even if nothing was there: a stretch of deleted keys
                // may be longer than the cache, and a scan that began again at its start would never get through.
                Err(_) if rest != *range => break,
                Err(error) => return Err(error),
            }
            out.pieces += 1;
        }
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Collects the first piece of `range`, which is seen at this place and given as the node has its keys. Returns where the next
    /// one begins, as a full bound, or `None` if nothing of the range is left.
    fn scan_in(
        &self,
        node: &CachedNode,
        place: &Place<'_>,
        range: &KeyRange,
        out: &mut Collector,
    ) -> Result<Option<Bound>> {
        node.expect_height(place.height)?;
        let state = node.state.read();
        let names = &place.names;
        let interior = match &state.body {
            Body::Leaf(leaf) if leaf.basements.is_empty() => {
                return Ok(merge(std::iter::empty(), place, range, out));
            }
            Body::Leaf(leaf) => {
                let index = basement_at(leaf, range);
                let part = &leaf.basements[index].part;
                let Some(basement) = part.get() else { return Err(self.missing(node.id, index, part)) };
                self.comes_to(node, index, || names.to_full(&range.lower));
                let mut piece = range.clone();
                let cut = cut(&mut piece, &leaf.range_of(index));
                out.is_read |= basement.shared_bytes > 0;
                let next = merge(basement.inside(&piece), place, &piece, out);
                return Ok(next.or_else(|| cut.map(|end| names.to_full(&end))));
            }
            Body::Interior(interior) => interior,
        };
        let way = self.way_down(node, state.height, interior, place, range)?;
        let mut piece = range.clone();
        let cut = cut(&mut piece, &way.bounds);
        let piece = way.range_below(&piece);
        let seen = way.range_below(&way.bounds);
        let WayDown { buffer, id, height, names: below, .. } = way;
        let level = Level { buffer, names, above: place.above };
        let below = Place { names: below, seen, height: Some(height), above: Some(&level) };
        let next = if id.is_empty() || level.hides(&below.names, &piece) {
            merge(std::iter::empty(), &below, &piece, out)
        } else {
            let child = self.cached(id)?;
            self.scan_in(&child, &below, &piece, out)?
        };
        Ok(next.or_else(|| cut.map(|end| names.to_full(&end))))
    }

    /// The way down from an interior node at the beginning of `range`, which is seen at `place`, or [`crate::Error::Miss`].
    pub(super) fn way_down<'a>(
        &self,
        node: &CachedNode,
        height: u8,
        interior: &'a Interior,
        place: &Place<'_>,
        range: &KeyRange,
    ) -> Result<WayDown<'a>> {
        let index = interior.index_above(&range.lower);
        let child = &interior.children[index];
        let Some(buffer) = child.buffer.get() else {
            return Err(self.missing(node.id, index, &child.buffer));
        };
        let mut bounds = interior.bounds_of(index, &place.seen).intersection(&place.seen);
        // Where a goto covers the beginning of the range, it leads on; where one comes later, the piece ends at it.
        let next = buffer.gotos().partition_point(|goto| goto.range.upper <= range.lower);
        let next = buffer.gotos().get(next);
        let goto = next.filter(|goto| goto.range.lower <= range.lower);
        match (goto, next) {
            (Some(goto), _) => bounds = bounds.intersection(&goto.range),
            (None, Some(next)) => bounds.upper = bounds.upper.min(next.range.lower.clone()),
            (None, None) => {}
        }
        let (id, height, strip, prepend) = match goto {
            Some(goto) => (goto.target, goto.height, goto.xf.strip as usize, &goto.xf.prepend[..]),
            None if child.id.is_empty() => (child.id, 0, 0, &[][..]),
            None => (child.id, height.wrapping_sub(1), child.strip as usize, child.prepended()),
        };
        let names = place.names.below(&bounds, strip, prepend).ok_or_else(|| lifts_too_much(node))?;
        Ok(WayDown { buffer, id, height, names, bounds, strip, prepend })
    }

    /// The leaf in which a scan of the range would begin, or [`crate::Error::Miss`] of a node or buffer above it.
    pub(crate) fn leaf_ahead(&self, tree: Tree, range: &KeyRange) -> Result<LeafAhead> {
        let root = self.root(tree).read();
        self.leaf_ahead_in(&root, &Place::root(), range)
    }

    fn leaf_ahead_in(&self, node: &NodeRef, place: &Place<'_>, range: &KeyRange) -> Result<LeafAhead> {
        node.expect_height(place.height)?;
        let state = node.state.read();
        let names = &place.names;
        let interior = match &state.body {
            Body::Leaf(leaf) => {
                return Ok(LeafAhead {
                    leaf: Some(node.clone()),
                    parts: leaf.overlapping(range),
                    end: names.to_full(&place.seen.upper),
                });
            }
            Body::Interior(interior) => interior,
        };
        let way = self.way_down(node, state.height, interior, place, range)?;
        let piece = way.range_below(&range.intersection(&way.bounds));
        let level = Level { buffer: way.buffer, names, above: place.above };
        if way.id.is_empty() || level.hides(&way.names, &piece) {
            return Ok(LeafAhead { leaf: None, parts: 0..0, end: names.to_full(&way.bounds.upper) });
        }
        let seen = way.range_below(&way.bounds);
        let below = Place { names: way.names, seen, height: Some(way.height), above: Some(&level) };
        self.leaf_ahead_in(&self.cached(way.id)?, &below, &piece)
    }
}

/// A leaf on the way of a scan.
pub(crate) struct LeafAhead {
    /// `None` where nothing is, or all is deleted.
    pub(crate) leaf: Option<NodeRef>,
    /// The parts of the leaf that the scan comes to.
    pub(crate) parts: Range<usize>,
    /// Where what is seen of the leaf ends, as a full bound.
    pub(crate) end: Bound,
}

/// Cuts off what of a range, which begins in `bounds`, reaches beyond them; returns where it was cut.
fn cut(range: &mut KeyRange, bounds: &KeyRange) -> Option<Bound> {
    (bounds.upper < range.upper).then(|| {
        range.upper = bounds.upper.clone();
        range.upper.clone()
    })
}

/// The basement at the beginning of `range` in a leaf that has any.
pub(super) fn basement_at(leaf: &Leaf, range: &KeyRange) -> usize {
    leaf.basements.partition_point(|slot| range.lower.reaches(&slot.first_key)).saturating_sub(1)
}

/// The way below an interior node that a range begins with.
pub(super) struct WayDown<'a> {
    /// What waits in the node for keys of that way.
    pub(super) buffer: &'a MessageBuffer,
    /// Where it leads; [`NodeId::EMPTY`] to nothing.
    pub(super) id: NodeId,
    pub(super) height: u8,
    pub(super) names: Names,
    /// What can be seen by it, as the node above has its keys. Both bounds begin with what is taken off.
    pub(super) bounds: KeyRange,
    /// Bytes that are taken off the keys, and what comes in the place of them.
    strip: usize,
    prepend: &'a [u8],
}

impl WayDown<'_> {
    /// A range inside `bounds` as the node below has it.
    pub(super) fn range_below(&self, range: &KeyRange) -> KeyRange {
        let below = |bound: &Bound| {
            let rest = Bound { bytes: bound.bytes.slice(self.strip..), side: bound.side };
            if self.prepend.is_empty() { rest } else { rest.prepend(self.prepend) }
        };
        KeyRange::new(below(&range.lower), below(&range.upper))
    }
}

/// The messages of one level inside the piece, nearest first.
struct Overlay<'a, K> {
    level: &'a Level<'a>,
    head: Option<(&'a Bytes, &'a Pending)>,
    keyed: K,
    deletes: bool,
}

/// Merges a basement's entries in a piece, which is given as its leaf has the keys, with the messages above. Where the limit ends it
/// before the piece ends, returns where the next one begins, as a full bound.
pub(super) fn merge<'a>(
    mut entries: impl Iterator<Item = &'a Entry>,
    place: &Place<'_>,
    piece: &KeyRange,
    out: &mut Collector,
) -> Option<Bound> {
    let prefix = &place.names.prefix;
    let mut overlays = Vec::new();
    let mut full = None;
    for level in place.above.into_iter().flat_map(Level::and_above) {
        if level.buffer.holds_only_gotos() {
            continue;
        }
        let full = full.get_or_insert_with(|| place.names.range_to_full(piece));
        let local = level.names.range_to_local(full);
        let deletes = level.buffer.ranges_in(&local).next().is_some();
        let mut keyed = level.buffer.keyed_in(&local);
        let head = keyed.next();
        if deletes || head.is_some() {
            out.is_read |= level.buffer.is_read();
            overlays.push(Overlay { level, head, keyed, deletes });
        }
    }
    let mut head = entries.next();
    loop {
        // The least key of all sources, as the leaf sees it.
        let local = place.names.local.len();
        let mut least: Option<&[u8]> = head.map(|(key, _)| &key[local..]);
        for overlay in &overlays {
            let names = overlay.level.names;
            let skip = names.local.len() + prefix.len() - names.prefix.len();
            if let Some((key, _)) = overlay.head {
                let key = &key[skip..];
                if least.is_none_or(|least| key < least) {
                    least = Some(key);
                }
            }
        }
        let full: Bytes = [&prefix[..], least?].concat().into();
        let mut value = None;
        if let Some((key, old)) = head
            && key[local..] == full[prefix.len()..]
        {
            value = Some(old.clone());
            head = entries.next();
        }
        // Collected from the leaf upwards: the lowest level is the oldest.
        for overlay in &mut overlays {
            let seen = overlay.level.names.key_to_local(&full);
            if overlay.deletes && value.is_some() && overlay.level.buffer.deletes(&seen) {
                value = None;
            }
            if let Some((key, pending)) = overlay.head
                && key[..] == *seen
            {
                value = pending.apply(value);
                overlay.head = overlay.keyed.next();
            }
        }
        let Some(value) = value else { continue };
        out.bytes += full.len() + value.len();
        out.entries.push((full, value));
        if out.is_full() {
            let (last, _) = out.entries.last().expect("it was just pushed");
            return Some(Bound::before([last, &[0][..]].concat()));
        }
    }
}
