//! What differs between the keys below one prefix and those below another: a clone and its source, two snapshots.
//!
//! A step descends from the root on both ways at once, always next on the side that is higher, and so finds the highest node that is
//! on both. Where that is seen under the same names from both sides nothing below it differs, and it is not read; only the messages that
//! wait above it, on either side, can make a difference. Where no node is shared, because flushes have copied it, basement nodes of
//! the same newest MSN and the same bytes are still skipped unread.
//!
//! That the newest MSN of a part is not above that of the moment at which a clone was made does not prove alone that nothing
//! has changed: a range delete drops basement nodes unread, and its neighbours inherit their range; a goto that has become an edge
//! has brought parts that are as old as what it leads to. So it is compared part by part.
//!
//! As a scan, a comparison keeps nothing between two pieces but a key. It holds the locks of both paths, shared, until the
//! piece is done. Nodes are locked in the order of their heights, and nobody who waits for a lock is waited for: the locks are taken
//! as recursive ones. Two nodes of the same height that somebody changes together have one parent, which is on both ways then.

use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;
use pando_format::{Bound, KeyRange, NodeId, PartEntry, Pending, Tree};

use super::leaf::{BasementSlot, Leaf};
use super::names::Names;
use super::node::{Body, NodeRef};
use super::scan::{Collector, Level, Place, WayDown, basement_at, merge};
use crate::volume::Volume;
use crate::{Comparison, Difference, Error, Miss, Result, ScanLimit};

/// One of the two ways down.
#[derive(Clone)]
struct Side<'a> {
    /// What the keys of this side begin with; behind it they are compared.
    prefix: &'a Bytes,
    place: Place<'a>,
    foot: Foot<'a>,
}

/// Where the way has come to.
#[derive(Clone)]
enum Foot<'a> {
    /// A node that has not been looked at.
    Node(NodeRef),
    /// A basement node of a leaf.
    Basement { node: NodeId, leaf: &'a Leaf, index: usize },
    /// There is nothing.
    Nothing,
}

impl Side<'_> {
    /// A range of compared keys as full ones.
    fn full(&self, range: &KeyRange) -> KeyRange {
        KeyRange::new(range.lower.prepend(self.prefix), range.upper.prepend(self.prefix))
    }

    /// A bound between full keys as one between compared ones.
    fn compared(&self, bound: &Bound) -> Bound {
        bound.strip(self.prefix)
    }

    /// What can be seen by this way of the node, as compared keys.
    fn bounds(&self) -> KeyRange {
        let full = self.place.names.range_to_full(&self.place.seen);
        KeyRange::new(self.compared(&full.lower), self.compared(&full.upper))
    }

    /// How keys of a node are made from compared ones: the first goes, the second comes.
    fn translation(&self) -> (Bytes, Bytes) {
        let Names { prefix, local } = &self.place.names;
        if prefix.len() <= self.prefix.len() {
            return (Bytes::new(), [local, &self.prefix[prefix.len()..]].concat().into());
        }
        let mut gone = prefix.slice(self.prefix.len()..);
        let mut comes = local.clone();
        while !gone.is_empty() && gone.last() == comes.last() {
            gone.truncate(gone.len() - 1);
            comes.truncate(comes.len() - 1);
        }
        (gone, comes)
    }

    /// The levels above the foot, the lowest first.
    fn levels(&self) -> impl Iterator<Item = &Level<'_>> {
        self.place.above.into_iter().flat_map(Level::and_above)
    }

    /// A key of a level's buffer as a compared one.
    fn compared_key(&self, level: &Level<'_>, key: &Bytes) -> Bytes {
        let Names { prefix, local } = level.names;
        if prefix.len() <= self.prefix.len() {
            key.slice(local.len() + self.prefix.len() - prefix.len()..)
        } else {
            [&prefix[self.prefix.len()..], &key[local.len()..]].concat().into()
        }
    }

    /// What the messages above the foot come to for a key.
    fn waiting_for(&self, key: &[u8]) -> Option<Pending> {
        let full = [self.prefix, key].concat();
        let mut sum: Option<Pending> = None;
        for level in self.levels() {
            let key = level.names.key_to_local(&full);
            if level.buffer.deletes(&key) {
                sum = Some(Pending::Delete);
            }
            if let Some(pending) = level.buffer.pending(&key) {
                match &mut sum {
                    Some(sum) => {
                        sum.push(pending.clone());
                    }
                    None => sum = Some(pending.clone()),
                }
            }
        }
        sum
    }

    /// Keys and values in a piece, the messages above applied.
    fn entries(&self, piece: &KeyRange) -> Result<Vec<(Bytes, Bytes)>> {
        let piece = self.place.names.range_to_local(&self.full(piece));
        let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
        let mut out = Collector::new(limit);
        let found = match &self.foot {
            Foot::Node(_) => unreachable!("both ways have come to their ends"),
            Foot::Nothing => None,
            Foot::Basement { node, leaf, index } => {
                let Some(basement) = leaf.basements[*index].part.get() else {
                    return Err(Error::Miss(Miss { node: *node, part: Some(*index as u32) }));
                };
                Some(basement.inside(&piece))
            }
        };
        merge(found.into_iter().flatten(), &self.place, &piece, &mut out);
        Ok(out.entries)
    }
}

impl Volume {
    /// A piece of what differs in `range` between the keys below two prefixes, or [`Error::Miss`].
    pub(crate) fn compare(
        &self,
        tree: Tree,
        prefixes: [&Bytes; 2],
        range: &KeyRange,
        limit: ScanLimit,
    ) -> Result<Comparison> {
        let mut out = Found::default();
        let mut rest = range.clone();
        while !rest.is_empty() && out.differences.len() < limit.entries && out.bytes < limit.bytes {
            let root = self.root(tree).read();
            let sides =
                prefixes.map(|prefix| Side { prefix, place: Place::root(), foot: Foot::Node(root.clone()) });
            match self.compare_in(sides.each_ref(), &rest, &mut out) {
                Ok(done) => rest.lower = done,
                // As in a scan: what has been compared needs not be compared again.
                Err(_) if rest != *range => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Comparison { differences: out.differences, rest: (!rest.is_empty()).then_some(rest) })
    }

    /// Compares a piece at the lower end of `range`; returns how far it got.
    fn compare_in(&self, sides: [&Side<'_>; 2], range: &KeyRange, out: &mut Found) -> Result<Bound> {
        let piece = sides.iter().fold(range.clone(), |piece, side| piece.intersection(&side.bounds()));
        if are_same(sides) {
            match first_touched(sides, &piece) {
                None => return Ok(piece.upper),
                Some(touched) if touched > piece.lower => return Ok(touched),
                Some(_) => {}
            }
        }
        let height = |side: &Side<'_>| match side.foot {
            // The root's is not known before it is looked at.
            Foot::Node(_) => Some(side.place.height.map_or(u16::MAX, u16::from)),
            _ => None,
        };
        let next = if height(sides[0]) >= height(sides[1]) { 0 } else { 1 };
        let side = sides[next];
        let Foot::Node(node) = &side.foot else {
            let entries = [sides[0].entries(&piece)?, sides[1].entries(&piece)?];
            difference(sides, entries, out);
            return Ok(piece.upper);
        };
        node.expect_height(side.place.height)?;
        let state = node.state.read_recursive();
        let names = &side.place.names;
        let local = names.range_to_local(&side.full(range));
        let level;
        let mut below = side.clone();
        match &state.body {
            Body::Leaf(leaf) if leaf.basements.is_empty() => below.foot = Foot::Nothing,
            Body::Leaf(leaf) => {
                let index = basement_at(leaf, &local);
                below.place.seen = leaf.range_of(index).intersection(&side.place.seen);
                below.foot = Foot::Basement { node: node.id, leaf, index };
            }
            Body::Interior(interior) => {
                let way = self.way_down(node, state.height, interior, &side.place, &local)?;
                let piece = way.range_below(&way.bounds.intersection(&local));
                let seen = way.range_below(&way.bounds);
                let WayDown { buffer, id, height, names: names_below, .. } = way;
                level = Level { buffer, names, above: side.place.above };
                let nothing = id.is_empty() || level.hides(&names_below, &piece);
                below.foot = if nothing { Foot::Nothing } else { Foot::Node(self.cached(id)?) };
                below.place = Place { names: names_below, seen, height: Some(height), above: Some(&level) };
            }
        }
        let both = if next == 0 { [&below, sides[1]] } else { [sides[0], &below] };
        self.compare_in(both, range, out)
    }
}

/// What has been found.
#[derive(Default)]
struct Found {
    differences: Vec<Difference>,
    bytes: usize,
}

/// True if both ways have come to the same and call it the same, so that only messages above can make a difference.
fn are_same(sides: [&Side<'_>; 2]) -> bool {
    let same = match (&sides[0].foot, &sides[1].foot) {
        (Foot::Nothing, Foot::Nothing) => return true,
        (Foot::Node(old), Foot::Node(new)) => old.id == new.id,
        (
            Foot::Basement { leaf: old, index: old_index, .. },
            Foot::Basement { leaf: new, index: new_index, .. },
        ) => holds_the_same(&old.basements[*old_index], &new.basements[*new_index]),
        _ => false,
    };
    same && sides[0].translation() == sides[1].translation()
}

/// True if two basement nodes are known to have the same contents, be they in memory or not.
fn holds_the_same(old: &BasementSlot, new: &BasementSlot) -> bool {
    if let (Some(old), Some(new)) = (old.part.get(), new.part.get())
        && Arc::ptr_eq(old, new)
    {
        return true;
    }
    let contents = |entry: &PartEntry| {
        let PartEntry { stored_length, raw_length, compression, checksum, msn, .. } = *entry;
        (stored_length, raw_length, compression, checksum, msn)
    };
    match (old.part.stored(), new.part.stored()) {
        (Some(old), Some(new)) => contents(old) == contents(new),
        _ => false,
    }
}

/// The first place in a piece at which the messages above what is the same on both sides make, or may make, a difference.
fn first_touched(sides: [&Side<'_>; 2], piece: &KeyRange) -> Option<Bound> {
    let mut deleted: Option<Bound> = None;
    let mut sources: Vec<Peekable<Box<dyn Iterator<Item = Bytes> + '_>>> = Vec::new();
    for side in sides {
        let full = side.full(piece);
        for level in side.levels() {
            let local = level.names.range_to_local(&full);
            if let Some((range, _)) = level.buffer.ranges_in(&local).next() {
                let lower = side.compared(&level.names.to_full(&range.lower)).max(piece.lower.clone());
                deleted = Some(deleted.map_or(lower.clone(), |other| other.min(lower)));
            }
            let keyed = level.buffer.keyed_in(&local).map(|(key, _)| side.compared_key(level, key));
            sources.push((Box::new(keyed) as Box<dyn Iterator<Item = Bytes>>).peekable());
        }
    }
    loop {
        let Some(key) = sources.iter_mut().filter_map(|source| source.peek()).min().cloned() else {
            return deleted;
        };
        if deleted.as_ref().is_some_and(|bound| !bound.is_above(&key)) {
            return deleted;
        }
        if sides[0].waiting_for(&key) != sides[1].waiting_for(&key) {
            return Some(Bound::before(key));
        }
        for source in &mut sources {
            source.next_if_eq(&key);
        }
    }
}

/// Adds what differs between the keys and values of a piece.
fn difference(sides: [&Side<'_>; 2], entries: [Vec<(Bytes, Bytes)>; 2], out: &mut Found) {
    let [old, new] = entries;
    let compared =
        |side: usize| move |(key, value): (Bytes, Bytes)| (key.slice(sides[side].prefix.len()..), value);
    let mut old = old.into_iter().map(compared(0)).peekable();
    let mut new = new.into_iter().map(compared(1)).peekable();
    loop {
        let key = match (old.peek(), new.peek()) {
            (Some((old, _)), Some((new, _))) => old.min(new).clone(),
            (Some((key, _)), None) | (None, Some((key, _))) => key.clone(),
            (None, None) => return,
        };
        let old = old.next_if(|(other, _)| *other == key).map(|(_, value)| value);
        let new = new.next_if(|(other, _)| *other == key).map(|(_, value)| value);
        if old != new {
            let values = [&old, &new].into_iter().flatten();
            out.bytes += key.len() + values.map(Bytes::len).sum::<usize>();
            // As slices, a few scattered ones would keep their whole basement nodes in memory, beside the cache.
            let [old, new] = [old, new].map(|value| value.map(|value| Bytes::copy_from_slice(&value)));
            out.differences.push(Difference { key, old, new });
        }
    }
}
