//! BT-1: the messages for one key are older the lower they lie on a way from the root.
//!
//! What is compared is what the format keeps:
//!
//! * A keyed sum has the MSN of its newest message, a range delete and a goto have their own. Each is newer than whatever waits
//!   for one of its keys in the buffers below, on every way behind its edge, through xfs, too. Not more than for these keys: joined nodes
//!   keep their own edges, but one edge then holds messages of either's age.
//! * Entries of leaves have no MSN, and that of a basement node says nothing about a key: a message that goes straight to a leaf
//!   ([`crate::betree::straight`]) passes older ones for its neighbours. But a goto is newer than all there is at and below its target, applied or
//!   waiting, since nothing has changed that since (BT-5). So ways through gotos need not be followed further.
//! * Of one operation, which all have one MSN, keyed sums may wait above its range deletes: a range that moves or is cloned by copy comes without the maintenance
//!   token, and what deletes the old keys there may be brought down before the new ones are in.
//! * In one buffer no keyed sum is older than the range delete or goto that it lies in (BUF-3).
//! * Nothing is newer than the last record.
//!
//! A comparison looks at the newest message at or below a node first; mostly that is enough. Where it is not, it goes down with the key or
//! range. A key's way is one; those of a range are as many as there are edges below, and on a volume made to harm they could
//! be more than anybody waits for: there is an end to how many are followed ([`looks_max`]).

use bytes::Bytes;
use pando_format::{KeyRange, Msn, NodeId};

use super::Check;
use crate::Result;
use crate::betree::interior::Interior;
use crate::betree::lifting::edge_prefix;
use crate::betree::node::Body;

/// An edge behind which there is something, and what waits for it.
pub(super) struct Edge {
    index: usize,
    child: NodeId,
    /// The oldest message.
    oldest: Option<Msn>,
    /// Targets.
    gotos: Vec<(NodeId, Msn)>,
}

/// What a message is for.
enum Span {
    Key(Bytes),
    Range(KeyRange),
}

/// A node to be looked at for messages that are too new, and the bounds of its keys if they are known.
struct Look {
    id: NodeId,
    /// What the way to it says. A node of another height is not looked at: ways could lead in a circle (BT-3).
    height: u8,
    own: Option<KeyRange>,
    span: Span,
}

impl Edge {
    /// The edges of a loaded node at which something waits.
    pub(super) fn of(interior: &Interior) -> Vec<Self> {
        let edges = interior.children.iter().enumerate().map(|(index, child)| {
            let buffer = child.buffer.get();
            let gotos = buffer.iter().flat_map(|buffer| buffer.gotos()).map(|goto| (goto.target, goto.msn));
            let oldest = buffer.and_then(|buffer| buffer.msns()).map(|(oldest, _)| oldest);
            Self { index, child: child.id, oldest, gotos: gotos.collect() }
        });
        edges.collect()
    }
}

/// How often the comparisons of ranges may go one node down in a volume of so many nodes.
pub(super) fn looks_max(nodes: u64) -> u64 {
    (1 << 20) + nodes * 16
}

impl Check<'_> {
    /// Compares what waits in a node, of which this is a loaded copy of the edges, with what is below. All that is below has been looked at.
    pub(super) fn order_below(&mut self, id: NodeId, edges: &[Edge], own: Option<&KeyRange>) -> Result<()> {
        let mut mixed = Vec::new();
        for edge in edges {
            let below = self.known(edge.child).map(|below| (below.waiting, below.newest)).unwrap_or_default();
            if let Some(known) = self.known(id) {
                known.waiting = known.waiting.max(below.0);
                known.newest = known.newest.max(below.1);
            }
            if edge.oldest.is_some_and(|oldest| oldest <= below.0) {
                mixed.push(edge.index);
            }
            for (target, msn) in &edge.gotos {
                let newest = self.known(*target).map(|target| target.newest).unwrap_or_default();
                if newest >= *msn {
                    self.problem(
                        id,
                        &format!(
                            "BT-1: a goto of MSN {msn} leads to node {}, where there is {newest}",
                            target.0
                        ),
                    );
                }
            }
        }
        for index in mixed {
            self.compare_edge(id, index, own)?;
        }
        Ok(())
    }

    /// Compares the messages of an edge, one by one, with what is behind it.
    fn compare_edge(&mut self, id: NodeId, index: usize, own: Option<&KeyRange>) -> Result<()> {
        let Some(node) = self.sound(id)? else { return Ok(()) };
        let (buffer, child, height, range_way) = {
            let state = node.state.read();
            let Body::Interior(interior) = &state.body else { return Ok(()) };
            let Some(height) = state.height.checked_sub(1) else { return Ok(()) };
            let child = interior.children[index].clone();
            let Some(buffer) = child.buffer.get().cloned() else { return Ok(()) };
            (buffer, child, height, RangeWay::of(interior, index, own))
        };
        let newest = self.known(child.id).map(|below| below.waiting).unwrap_or_default();
        let mut looks = Vec::new();
        for (key, msn, _) in buffer.keyed().filter(|(_, msn, _)| *msn <= newest) {
            let Some(key) = child.translate(key) else { continue };
            let own = range_way.as_ref().and_then(|way| way.below.clone());
            looks.push((Look { id: child.id, height, own, span: Span::Key(key) }, msn));
        }
        let gotos = buffer.gotos().iter().map(|goto| (&goto.range, goto.msn));
        let fragments = buffer.ranges().iter().map(|(range, msn)| (range, *msn)).chain(gotos);
        for (range, msn) in fragments.filter(|(_, msn)| *msn <= newest) {
            let Some(way) = &range_way else { continue };
            let Some(range) = way.go(range) else { continue };
            let own = way.below.clone();
            looks.push((Look { id: child.id, height, own, span: Span::Range(range) }, msn));
        }
        drop(buffer);
        drop(node);
        for (look, msn) in looks {
            if let Some((below, found)) = self.newer_at(look, msn)? {
                let what = format!(
                    "BT-1: a message of MSN {msn} waits for edge {index}, and {found} for its keys below, in node {}",
                    below.0
                );
                self.problem(id, &what);
            }
        }
        Ok(())
    }

    /// Looks for a message at a node and below it that is not older than `msn`, or for a key, unless it is keyed itself, newer.
    fn newer_at(&mut self, look: Look, msn: Msn) -> Result<Option<(NodeId, Msn)>> {
        let mut looks = vec![look];
        while let Some(Look { id, height, own, span }) = looks.pop() {
            if self.known(id).is_none_or(|known| known.waiting < msn) {
                continue;
            }
            let Some(node) = self.sound(id)? else { continue };
            let state = node.state.read();
            let Body::Interior(interior) = &state.body else { continue };
            let Some(below) = height.checked_sub(1).filter(|_| state.height == height) else { continue };
            match span {
                Span::Key(key) => {
                    let index = interior.index_of(&key);
                    let child = &interior.children[index];
                    let buffer = child.buffer.get();
                    let found = buffer.and_then(|buffer| buffer.newest_for(&key));
                    let is_keyed = buffer.is_some_and(|buffer| buffer.has(&key, msn));
                    match found {
                        Some(found) if found > msn || is_keyed => return Ok(Some((id, found))),
                        // That one is compared with what is below it.
                        Some(_) => {}
                        None => looks.extend(child.translate(&key).map(|key| Look {
                            id: child.id,
                            height: below,
                            own: None,
                            span: Span::Key(key),
                        })),
                    }
                }
                Span::Range(range) => {
                    for index in interior.indexes_in(&range) {
                        let Some(next) = self.looks_left.checked_sub(1) else { return Ok(None) };
                        self.looks_left = next;
                        let all = KeyRange::all();
                        let piece =
                            range.intersection(&interior.bounds_of(index, own.as_ref().unwrap_or(&all)));
                        if piece.is_empty() {
                            continue;
                        }
                        let child = &interior.children[index];
                        let found = child.buffer.get().and_then(|buffer| buffer.newest_in(&piece));
                        if let Some(found) = found.filter(|found| *found >= msn) {
                            return Ok(Some((id, found)));
                        }
                        let Some(way) = RangeWay::of(interior, index, own.as_ref()) else { continue };
                        let Some(range) = way.go(&piece) else { continue };
                        let span = Span::Range(range);
                        looks.push(Look { id: child.id, height: below, own: way.below, span });
                    }
                }
            }
        }
        Ok(None)
    }

    /// A node with all its parts, unless it cannot be read, which has been said then.
    fn sound(&self, id: NodeId) -> Result<Option<crate::betree::node::NodeRef>> {
        match self.volume.node(id).and_then(|node| self.volume.load_all(&node).map(|()| node)) {
            Ok(node) => Ok(Some(node)),
            Err(error) if error.is_unreadable() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// How ranges of a node's keys come through an edge.
struct RangeWay {
    prefix: Bytes,
    prepended: Bytes,
    /// What the edge shows of the node behind it, if the bounds of the edge are known.
    below: Option<KeyRange>,
}

impl RangeWay {
    /// `None` if the node is seen through an xf or goto, and has but one edge, so that what the edge lifts cannot be told.
    fn of(interior: &Interior, index: usize, own: Option<&KeyRange>) -> Option<Self> {
        let child = &interior.children[index];
        let strip = child.strip as usize;
        let inner = index > 0 && index < interior.pivots.len();
        let below = match own {
            Some(own) => Some(interior.bounds_below(index, own).ok()?.0),
            None if inner => Some(interior.bounds_below(index, &KeyRange::all()).ok()?.0),
            None => None,
        };
        // Both bounds of an edge begin with what it lifts.
        let pivot = interior.pivots.get(index).or_else(|| interior.pivots.last());
        let prefix = match (own, pivot) {
            (Some(own), _) => edge_prefix(&interior.bounds_of(index, own), strip)?,
            (None, Some(pivot)) if pivot.bytes.len() >= strip => pivot.bytes.slice(..strip),
            (None, _) if strip == 0 => Bytes::new(),
            (None, _) => return None,
        };
        Some(Self { prefix, prepended: Bytes::copy_from_slice(child.prepended()), below })
    }

    /// A range as the node behind the edge has it; `None` if the edge shows none of it.
    fn go(&self, range: &KeyRange) -> Option<KeyRange> {
        let [lower, upper] =
            [&range.lower, &range.upper].map(|bound| bound.strip(&self.prefix).prepend(&self.prepended));
        let range = KeyRange::new(lower, upper);
        let range = self.below.as_ref().map_or(range.clone(), |below| range.intersection(below));
        (!range.is_empty()).then_some(range)
    }
}
