//! Moving and cloning ranges (THESIS 4 and 5): the keys below one prefix appear below another, whatever their number.
//!
//! A clone is a goto to a node that holds the whole range, seen through an xf: the lowest one, unless many messages for the range wait
//! above that, and then the node in which they wait. A few messages above the target, which cannot be seen from there, come
//! along as messages of their own. A range of a few keys is copied: surgery on a corner of a leaf would cost whole leaves
//! (design 4).
//!
//! A high target keeps much alive that the clone does not show, and what lies at the ends of the range is left in small pieces:
//! maintenance brings it back in shape soon after ([`Volume::heal`]).
//!
//! A plan is made and carried out in one hold of the sequencer and of the tree's maintenance token, so nothing changes in between, and
//! nothing is promised before all that is needed has been found in memory.

use bytes::Bytes;
use pando_format::edge::{Goto, Xf};
use pando_format::{Bound, HEIGHT_MAX, KeyRange, Msn, NodeId, Pending, Tree};
use std::sync::atomic::Ordering;

use super::interior::Child;
use super::lifting::relift_way;
use super::message_buffer::{ENTRY_OVERHEAD, MessageBuffer, copy_goto_out, copy_out};
use super::names::Names;
use super::node::{Body, CachedNode};
use super::scan::Collector;
use super::tree::{TreeRoot, root_above};
use crate::room::ROOT_NODES_MAX;
use crate::volume::Volume;
use crate::{Error, Miss, Result, ScanLimit};

/// How one range comes to its new prefix.
pub(crate) struct Plan {
    tree: Tree,
    to: Bytes,
    way: Way,
}

enum Way {
    /// Keys, below the new prefix, and values.
    Copy(Vec<(Bytes, Bytes)>),
    Clone {
        gotos: Vec<Goto>,
        /// Messages on the way to the targets, below the new prefix, from the root down.
        carried: Vec<Carried>,
    },
}

impl Plan {
    /// Bytes of messages that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes: usize = match &self.way {
            Way::Copy(entries) => entries.iter().map(|(key, value)| key.len() + value.len()).sum(),
            Way::Clone { carried, .. } => carried.iter().map(Carried::bytes).sum(),
        };
        bytes as u64
    }

    /// Bytes of the values that are copied; none if keys will be seen through a goto.
    pub(crate) fn copied(&self) -> Option<usize> {
        match &self.way {
            Way::Copy(entries) => Some(entries.iter().map(|(_, value)| value.len()).sum()),
            Way::Clone { .. } => None,
        }
    }

    /// What is copied.
    #[cfg(test)]
    pub(super) fn copies(&self) -> &[(Bytes, Bytes)] {
        match &self.way {
            Way::Copy(entries) => entries,
            Way::Clone { .. } => &[],
        }
    }

    /// The nodes that it will name: they must not go before.
    pub(crate) fn targets(&self) -> Vec<NodeId> {
        match &self.way {
            Way::Copy(_) => Vec::new(),
            Way::Clone { gotos, carried } => {
                let own = gotos.iter().map(|goto| goto.target);
                own.chain(carried.iter().flat_map(|messages| &messages.gotos).map(|goto| goto.target))
                    .collect()
            }
        }
    }
}

impl Volume {
    /// How the keys below `from` come below `to` by gotos, or [`Error::Miss`]; `bare` if hardly a message is to come along. What is `lost` cannot be read. The
    /// caller holds the sequencer and the maintenance token.
    pub(crate) fn plan_gotos(
        &self,
        tree: Tree,
        from: &Bytes,
        to: &Bytes,
        bare: bool,
        lost: &[Miss],
    ) -> Result<Plan> {
        loop {
            if let Some(way) = self.gotos(tree, from, to, bare, lost)? {
                return Ok(Plan { tree, to: to.clone(), way });
            }
            // Too much waits in the root, which cannot be named from within itself (BT-3).
            self.raise_root(tree);
            self.root(tree).wounds.lock().add_heavy();
        }
    }

    /// True if the headers of the nodes in memory say that a range holds more than `limit` bytes, as they do of most ranges that
    /// are worth a goto: looking at so many entries would take longer than all the rest of a clone. They count a node that several edges of the range
    /// lead to once for each, and what has been deleted from a node until it is written; a range that is smaller moves by a goto then.
    fn looks_larger(&self, tree: Tree, from: &Bytes, limit: usize) -> bool {
        let root = self.root(tree).read();
        self.holds_more((&root, None), &Names::root(), &KeyRange::prefix(from.clone()), limit)
    }

    fn holds_more(
        &self,
        (node, height): (&CachedNode, Option<u8>),
        names: &Names,
        range: &KeyRange,
        limit: usize,
    ) -> bool {
        // Who reads it meets the error.
        if node.expect_height(height).is_err() {
            return false;
        }
        let state = node.state.read();
        let local = names.range_to_local(range);
        let interior = match &state.body {
            Body::Leaf(leaf) => return leaf.bytes_in(&local) > limit,
            Body::Interior(interior) => interior,
        };
        let (first, last) = interior.indexes_in(&local).into_inner();
        // Where a range delete or a goto waits, what is below may be hidden.
        let is_seen = |child: &Child| {
            child.buffer.get().is_some_and(|buffer| {
                buffer.ranges_in(&local).next().is_none() && buffer.gotos_in(&local).next().is_none()
            })
        };
        if first != last {
            // Those at the ends may hold other keys. No more are looked at than it takes.
            let inner = interior.children[first + 1..last].iter().filter(|child| is_seen(child));
            let mut bytes = inner.map(|child| self.stored_length(child.id));
            return bytes.try_fold(limit, usize::checked_sub).is_none();
        }
        let child = &interior.children[first];
        if !is_seen(child) {
            return false;
        }
        let below = names.below(&local, child.strip as usize, child.prepended());
        let (Some(below), Some(next)) = (below, self.cache.peek(child.id)) else { return false };
        self.holds_more((&next, Some(state.height - 1)), &below, range, limit)
    }

    /// Bytes of blocks that one batch moves by copy at most, beside ranges that are copied in any case.
    pub(crate) fn copied_blocks(&self) -> usize {
        self.copied_bytes().saturating_mul(COPIED_BLOCKS)
    }

    /// Bytes of messages that the moves and clones of one batch bring along, as many as may wait in a root, beside those of the range that passes that bound. They all come into a
    /// root before one of them can sink, and a root is written in one piece.
    pub(crate) fn moved_together(&self) -> u64 {
        (self.shape.node_bytes * ROOT_NODES_MAX).min(MOVED_TOGETHER_MAX) as u64
    }

    fn copied_bytes(&self) -> usize {
        self.options.copied_bytes.unwrap_or(self.shape.node_bytes / COPIED_PART)
    }

    /// The keys below `from` and their values, below `to`, if they are few enough for that. Blocks that are in memory may have `blocks_max`
    /// bytes. The caller holds the sequencer.
    pub(crate) fn plan_copy(
        &self,
        tree: Tree,
        from: &Bytes,
        to: &Bytes,
        blocks_max: usize,
    ) -> Result<Option<Plan>> {
        let limit = self.copied_bytes();
        let most = limit.max(blocks_max);
        let is_large = self.looks_larger(tree, from, limit);
        if is_large && (most == limit || self.looks_larger(tree, from, most)) {
            return Ok(None);
        }
        let longer = to.len().saturating_sub(from.len());
        let mut out = Collector::new(ScanLimit { entries: usize::MAX, bytes: limit });
        let mut left = Some(KeyRange::prefix(from.clone()));
        while let Some(range) = left {
            left = match self.collect(tree, &range, &mut out) {
                // Not worth a read. Nor is what is nearly all deleted: what was read first goes when much more is, and the next attempt would
                // find that missing.
                Err(Error::Miss(_)) if is_large || out.bytes > limit || out.pieces > COPIED_PIECES_MAX => {
                    return Ok(None);
                }
                // To name a node it need not be read.
                Err(error) if error.is_unreadable() => return Ok(None),
                left => left?,
            };
            // With its new prefix each key may be longer by a quarter of a MiB.
            let bytes = out.bytes.saturating_add(out.entries.len() * longer);
            if bytes >= most || bytes >= limit && out.entries.len() > COPIED_BLOCKS_MAX {
                return Ok(None);
            }
            if out.bytes >= limit {
                out.limit = ScanLimit { entries: COPIED_BLOCKS_MAX + 1, bytes: most };
            }
        }
        if out.is_read && out.bytes < limit {
            // Nothing counts what they would keep, as messages and then in a leaf. What is larger is most of it, as a rule.
            out.entries.iter_mut().for_each(|(_, value)| copy_out(value));
        }
        let entries = out.entries.into_iter();
        let entries = entries.map(|(key, value)| ([to, &key[from.len()..]].concat().into(), value)).collect();
        Ok(Some(Plan { tree, to: to.clone(), way: Way::Copy(entries) }))
    }

    /// Descends as far as one node holds all of the range, few messages would have to come along, and nothing is lost. `None` if that is not even
    /// past the root.
    fn gotos(&self, tree: Tree, from: &Bytes, to: &Bytes, bare: bool, lost: &[Miss]) -> Result<Option<Way>> {
        let range = KeyRange::prefix(from.clone());
        let carried_max = match self.root(tree).wounds.lock().ranges.contains(&range) {
            _ if bare => 1,
            true => CARRIED_AGAIN_MAX,
            false => CARRIED_MAX,
        };
        let mut carried = Vec::new();
        let mut node = self.root(tree).read().clone();
        let mut is_root = true;
        let mut names = Names::root();
        let mut expected = None;
        loop {
            node.expect_height(expected)?;
            let state = node.state.read();
            let goto = |range: &KeyRange, names: &Names, target, height| {
                goto_for(range, names, target, height, from, to)
            };
            let here = |names: &Names| vec![goto(&range, names, node.id, state.height)];
            let interior = match &state.body {
                // A root cannot be named from within its own tree (BT-3).
                Body::Leaf(_) if is_root => return Ok(None),
                Body::Leaf(_) => return Ok(Some(Way::Clone { gotos: here(&names), carried })),
                Body::Interior(interior) => interior,
            };
            let local = names.range_to_local(&range);
            let (first, last) = interior.indexes_in(&local).into_inner();
            let buffers = interior.children[first..=last].iter().filter_map(|child| child.buffer.get());
            let counts = buffers.map(|buffer| buffer.count_in(&local, carried_max));
            let much = counts.sum::<usize>() >= carried_max;
            let highest = if bare { HEIGHT_MAX } else { RAISED_HEIGHT_MAX };
            if is_root && much && state.height < highest {
                return Ok(None);
            }
            if is_root && much && bare {
                // Only a volume made to harm has so high a tree.
                return Err(Error::TooLarge { what: "a batch of moves and clones, or its tree" });
            }
            if !is_root && (much || first != last) {
                return Ok(Some(Way::Clone { gotos: here(&names), carried }));
            }
            let damaged =
                || Error::damaged_node(Some(tree), node.id, "an edge lifts more than its keys share");
            if first != last {
                // The root cannot be named from within itself (BT-3): its children are, each for its part.
                let mut gotos = Vec::new();
                for index in first..=last {
                    let child = &interior.children[index];
                    let bounds = interior.bounds_of(index, &KeyRange::all());
                    let piece = bounds.intersection(&range);
                    let buffer = child.buffer.get().expect("TREE-1: the root is in memory");
                    carried.push(Carried::of(buffer, &piece, &names, from, to));
                    if !child.id.is_empty() && !piece.is_empty() {
                        let below = names.below(&bounds, child.strip as usize, child.prepended());
                        let below = below.ok_or_else(damaged)?;
                        gotos.push(goto(&piece, &below, child.id, state.height - 1));
                    }
                }
                return Ok(Some(Way::Clone { gotos, carried }));
            }
            let child = &interior.children[first];
            let Some(buffer) = child.buffer.get() else {
                let miss = Miss { node: node.id, part: Some(first as u32) };
                if lost.contains(&miss) || self.lost_part(node.id, &child.buffer).is_some() {
                    return Ok(Some(Way::Clone { gotos: here(&names), carried }));
                }
                return Err(Error::Miss(miss));
            };
            carried.push(Carried::of(buffer, &local, &names, from, to));
            let covering = buffer.gotos_in(&local).find(|goto| goto.range.covers(&local));
            let (id, height, strip, prepend) = match covering {
                Some(goto) => (goto.target, goto.height, goto.xf.strip, &goto.xf.prepend[..]),
                None if child.id.is_empty() => {
                    return Ok(Some(Way::Clone { gotos: Vec::new(), carried }));
                }
                None => (child.id, state.height.wrapping_sub(1), child.strip, child.prepended()),
            };
            if covering.is_some() {
                // It leads on; what comes along is what lies on top of it.
                let top = carried.last_mut().expect("it was just pushed");
                top.gotos.clear();
            }
            names = names.below(&local, strip as usize, prepend).ok_or_else(damaged)?;
            // To name a node it need not be read, and a leaf leads no further. A reader may lack pages of the block table.
            let is_unknown = || self.options.read_only && self.table.generation(id).is_none();
            let is_lost = || {
                lost.contains(&Miss { node: id, part: None })
                    || self.lost_header(id).is_some()
                    || is_unknown()
            };
            if height == 0 || is_lost() {
                return Ok(Some(Way::Clone { gotos: vec![goto(&range, &names, id, height)], carried }));
            }
            let next = self.cached(id)?;
            expected = Some(height);
            is_root = false;
            drop(state);
            node = next;
        }
    }

    /// Does what was planned. The caller has held sequencer and maintenance token since, and holds a reference to each target.
    pub(crate) fn carry_out(&self, plan: Plan, msn: Msn) {
        let Plan { tree, to, way } = plan;
        let whole = KeyRange::prefix(to);
        self.ballast.shed(self.inject_range(tree, &whole, msn).bytes as u64);
        match way {
            Way::Copy(entries) => {
                self.stats.ranges_copied.fetch_add(1, Ordering::Relaxed);
                let messages = entries.into_iter().map(|(key, value)| (key, Pending::Put(value)));
                self.inject_into_root(tree, msn, messages.collect());
            }
            Way::Clone { gotos, carried } => {
                self.stats.ranges_cloned.fetch_add(1, Ordering::Relaxed);
                for goto in gotos {
                    self.inject_goto(tree, &Goto { msn, ..goto });
                }
                self.root(tree).wounds.lock().add(whole.clone());
                // The lowest are the oldest.
                let count: usize = carried.iter().map(Carried::count).sum();
                if count >= CARRIED_MAX {
                    self.root(tree).wounds.lock().add_heavy();
                }
                for Carried { ranges, gotos, keyed } in carried.into_iter().rev() {
                    for range in ranges {
                        self.inject_range(tree, &range.intersection(&whole), msn);
                    }
                    for goto in gotos {
                        self.inject_goto(tree, &Goto { msn, ..goto });
                    }
                    self.inject_into_root(tree, msn, keyed);
                }
            }
        }
    }

    /// Gives a tree a new root above the old one. The caller holds the sequencer and the maintenance token.
    fn raise_root(&self, tree: Tree) {
        let mut root = self.root(tree).write();
        let old = root.clone();
        let (height, born) = {
            let state = old.state.read();
            (state.height, state.born)
        };
        let above = self.add_root(tree, root_above(&old, height + 1, born));
        TreeRoot::replace(&mut root, above);
    }
}

/// A range of up to this part of a node is copied: 64 KiB as a rule, measured with `examples/small_moves.rs` (docs/internals/engine.md).
const COPIED_PART: usize = 64;

/// So many times as much moves by copy where it is blocks of files that are in memory: not quite 1 MiB of them as a rule. Values are not copied with their
/// keys, so it takes little time, and nothing has to be healed.
const COPIED_BLOCKS: usize = 16;

/// Bytes of messages that come along with the ranges of one batch, at most, whatever the size of nodes: beside what waits in a root, and a record of as many, they
/// stay below what a part of a node may have.
const MOVED_TOGETHER_MAX: usize = 16 << 20;

/// More of them do not: each takes a fraction of a microsecond.
const COPIED_BLOCKS_MAX: usize = 256;

/// A range that lies in more pieces than these, as deleted keys between its own make it, is not read for a copy.
const COPIED_PIECES_MAX: usize = 64;

/// Fewer messages than these come along with a clone. Each takes a fraction of a microsecond, whatever its value.
const CARRIED_MAX: usize = 1024;

/// Fewer than these, with a range that has come to where it is by a clone or a move not long ago: what moves once more may move again and
/// again, and would have the same messages with it each time.
const CARRIED_AGAIN_MAX: usize = 128;

/// No tree of this height is raised for the sake of a clone, but where hardly a message is to come along: they do instead. Merges lower a tree again, but
/// clones may come faster.
const RAISED_HEIGHT_MAX: u8 = 6;

/// A goto that makes the keys of `range`, once below `to`, those of a node.
fn goto_for(range: &KeyRange, names: &Names, target: NodeId, height: u8, from: &[u8], to: &[u8]) -> Goto {
    let lifted = names.prefix.len();
    let (strip, prepend) = if lifted <= from.len() {
        (to.len(), [&names.local[..], &from[lifted..]].concat().into())
    } else {
        (to.len() + lifted - from.len(), names.local.clone())
    };
    let local = names.range_to_local(range);
    let moved = |bound: &Bound| bound.strip(from).prepend(to);
    Goto {
        range: KeyRange::new(moved(&range.lower), moved(&range.upper)),
        msn: Msn::default(),
        target,
        height,
        xf: Xf { strip: strip as u32, prepend, lower: local.lower, upper: local.upper },
    }
}

/// Messages that come along, below the new prefix.
#[derive(Default)]
struct Carried {
    ranges: Vec<KeyRange>,
    gotos: Vec<Goto>,
    keyed: Vec<(Bytes, Pending)>,
}

impl Carried {
    /// The messages of a buffer for keys of `local`, all below `from`, as messages for keys below `to`. Once a message: there may be
    /// a thousand of them, for a range that holds a million keys.
    fn of(buffer: &MessageBuffer, local: &KeyRange, names: &Names, from: &[u8], to: &[u8]) -> Self {
        let own = [&names.local[..], &from[names.prefix.len()..]].concat();
        let moved = |range: &KeyRange| {
            let inside = range.intersection(local);
            KeyRange::new(inside.lower.strip(&own).prepend(to), inside.upper.strip(&own).prepend(to))
        };
        let keyed = buffer.keyed_in(local).map(|(key, pending)| {
            assert!(key.starts_with(&own), "BT-2: a key below a prefix has it");
            let mut pending = pending.clone();
            // As if they came down; see [`MessageBuffer::into_messages`].
            if buffer.is_read() {
                pending.bytes_mut().into_iter().for_each(copy_out);
            }
            ([to, &key[own.len()..]].concat().into(), pending)
        });
        let moved_goto = |goto: &Goto| {
            let mut moved = Goto { range: moved(&goto.range), ..goto.clone() };
            relift_way(&mut moved.xf.strip, &mut moved.xf.prepend, &[], &own);
            relift_way(&mut moved.xf.strip, &mut moved.xf.prepend, to, &[]);
            if buffer.is_read() {
                copy_goto_out(&mut moved);
            }
            moved
        };
        Self {
            ranges: buffer.ranges_in(local).map(|(range, _)| moved(range)).collect(),
            gotos: buffer.gotos_in(local).map(moved_goto).filter(|goto| !goto.range.is_empty()).collect(),
            keyed: keyed.collect(),
        }
    }

    fn count(&self) -> usize {
        self.keyed.len() + self.ranges.len() + self.gotos.len()
    }

    fn bytes(&self) -> usize {
        let keyed = self.keyed.iter().map(|(key, pending)| key.len() + pending.length());
        keyed.sum::<usize>() + self.count() * ENTRY_OVERHEAD
    }
}
