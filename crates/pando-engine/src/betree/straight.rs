//! The straight-to-leaf path (FAST16, 2.1): messages whose whole path is in memory, and for whose keys nothing waits on that path, change
//! their leaf at once if it will be written anyway.
//!
//! Somebody else at work in the leaf is a reason to take the other way, not to wait.

use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};
use pando_format::operation::BLOCK_VALUE_LENGTH;
use pando_format::{KeyRange, Msn, NodeId, Pending, Tree};

use super::interior::Interior;
use super::lifting::range_below;
use super::message_buffer::MessageBuffer;
use super::node::{Body, NodeRef};
use super::tree::take;
use crate::volume::Volume;

/// Messages on the straight path, in rising key order. Those that have come to their leaf are taken.
pub(super) struct Way<'a> {
    pub(super) tree: Tree,
    pub(super) msn: Msn,
    pub(super) messages: &'a mut [(Bytes, Pending)],
}

/// Where the first of some messages go; never none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    /// So many are in their leaf.
    Straight(usize),
    /// So many are to go into the root.
    Root(usize),
}

/// The buffers that messages pass on their way, from the last up to the root.
struct Passage<'a> {
    buffer: &'a MessageBuffer,
    /// So many bytes of keys it does not see.
    lifted: usize,
    above: Option<&'a Passage<'a>>,
}

impl Passage<'_> {
    /// How many of the first messages find nothing that waits for their keys; if none does, how many the first buffer that holds
    /// something for the first one holds something for.
    fn passed(&self, messages: &[(Bytes, Pending)]) -> Result<usize, usize> {
        let count = self.above.map_or(Ok(messages.len()), |above| above.passed(messages))?;
        if self.buffer.is_empty() {
            return Ok(count);
        }
        let messages = &messages[..count];
        let keys = messages.iter().map(|(key, _)| &key[self.lifted..]);
        match self.buffer.passed(keys.clone(), &messages[count - 1].0[self.lifted..]) {
            0 => Err(keys.take_while(|key| !self.buffer.passes(key)).count()),
            passed => Ok(passed),
        }
    }
}

/// What became of a range delete.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RangeDeleted {
    /// It covers all that is behind an edge, and waits there.
    pub(crate) covers: bool,
    /// Some of it waits.
    pub(crate) waits: bool,
    /// Bytes of the values that it has met already.
    pub(crate) bytes: usize,
}

impl Volume {
    /// Brings as many of the first messages as it can straight into one leaf. Where the first cannot go, all that are on their way to the
    /// same leaf are to go into the root, since they would find what it found; but the first alone where somebody else is at work, who may be
    /// done by then.
    pub(super) fn inject_straight(&self, root: &NodeRef, way: &mut Way<'_>) -> Went {
        let count = way.messages.len();
        let Some(state) = root.state.try_read() else { return Went::Root(1) };
        match &state.body {
            Body::Leaf(_) => Went::Root(count),
            Body::Interior(interior) => self.go_straight(way, interior, state.height, 0, count, None),
        }
    }

    /// One step of the straight path, for the first `count` messages at most; the caller's lock on `interior`, which does
    /// not see the first `lifted` bytes of keys, is held until the messages are in the leaf. What waits in the buffers is looked at when the
    /// leaf is known to be one that will be written: most messages for others end there, and the look-up costs more than the way.
    fn go_straight(
        &self,
        way: &mut Way<'_>,
        interior: &Interior,
        height: u8,
        lifted: usize,
        count: usize,
        above: Option<&Passage<'_>>,
    ) -> Went {
        let index = interior.index_of(&way.messages[0].0[lifted..]);
        let child = &interior.children[index];
        let is_here = |(key, _): &(Bytes, Pending)| {
            let key = &key[lifted..];
            interior.pivots.get(index).is_none_or(|pivot| pivot.is_above(key))
        };
        let count = way.messages[..count].partition_point(is_here);
        let Some(buffer) = child.buffer.get() else { return Went::Root(count) };
        if child.id.is_empty() || child.xf.is_some() {
            return Went::Root(count);
        }
        let passage = Passage { buffer, lifted, above };
        let lifted = lifted + child.strip as usize;
        if way.messages[..count].iter().any(|(key, _)| key.len() < lifted) {
            return Went::Root(count);
        }
        let Some(node) = self.cache.peek(child.id) else { return Went::Root(count) };
        if node.shared.load(Ordering::Acquire) {
            return Went::Root(count);
        }
        // Damage; whoever has to read what is behind it says so.
        if node.expect_height(Some(height - 1)).is_err() {
            return Went::Root(count);
        }
        if height > 1 {
            let Some(state) = node.state.try_read() else { return Went::Root(1) };
            return self.go_straight(way, state.interior(), height - 1, lifted, count, Some(&passage));
        }
        let Some(mut state) = node.state.try_write() else { return Went::Root(1) };
        if !self.is_dirty_now(&state) {
            return Went::Root(count);
        }
        let count = match passage.passed(&way.messages[..count]) {
            Ok(count) => count,
            Err(held) => return Went::Root(held),
        };
        let keys = way.messages[..count].iter().map(|(key, _)| &key[lifted..]);
        if state.leaf().missing_for([], keys).is_some() {
            return Went::Root(count);
        }
        // A patch may make a block longer than it is itself.
        let weight = |(key, pending): &(Bytes, Pending)| key.len() + pending.length() + BLOCK_VALUE_LENGTH;
        let new: usize = way.messages[..count].iter().map(weight).sum();
        // By a key of its own it is found again.
        let mut bytes_max = state.leaf().bytes();
        let key = (bytes_max + new > self.shape.node_bytes).then(|| way.messages[0].0.clone());
        let mut done = 0;
        for message in &mut way.messages[..count] {
            if bytes_max >= self.shape.node_bytes * 2 {
                break;
            }
            bytes_max += weight(message);
            let (mut key, pending) = take(message);
            key.advance(lifted);
            state.leaf_mut().apply(key, way.msn, pending, self.shape.basement_bytes);
            done += 1;
        }
        if done == 0 {
            return Went::Root(count);
        }
        state.leaf_mut().drop_empty();
        let overgrown = state.leaf().is_too_large(self.shape.node_bytes);
        self.account(&mut state);
        if overgrown && let Some(key) = key {
            self.note_overgrown(way.tree, node.id, key);
        }
        Went::Straight(done)
    }

    fn note_overgrown(&self, tree: Tree, node: NodeId, key: Bytes) {
        if self.damaged.contains(node) {
            return;
        }
        let mut overgrown = self.root(tree).overgrown.lock();
        if overgrown.iter().all(|(other, _)| *other != node) {
            overgrown.push((node, key));
            drop(overgrown);
            self.wake_maintenance();
        }
    }

    /// A range delete, in the root. Where the leaf behind one of its edges can be changed at once, or it is known that nothing of the range is
    /// behind it, no more is left to do there than to eat what waits; elsewhere it waits itself.
    ///
    /// So what was deleted soon after it was made goes at once, and the next file is written to memory that is warm.
    pub(super) fn delete_in_root(
        &self,
        root: &mut Interior,
        height: u8,
        range: &KeyRange,
        msn: Msn,
    ) -> RangeDeleted {
        let mut deleted = RangeDeleted::default();
        for index in root.indexes_in(range) {
            let bounds = root.bounds_of(index, &KeyRange::all());
            let piece = range.intersection(&bounds);
            let behind = self.delete_behind(root, index, &KeyRange::all(), height, &piece, msn);
            let child = &mut root.children[index];
            if let Some(bytes) = behind {
                self.stats.straight_messages.fetch_add(1, Ordering::Relaxed);
                deleted.bytes += bytes + child.eat(&piece);
            } else {
                deleted.covers |= range.covers(&bounds);
                deleted.waits = true;
                deleted.bytes += child.push_range(piece, msn);
            }
        }
        deleted
    }

    /// Deletes a range of an edge's keys in the leaf behind it, if there is any; returns the bytes that it has met. `None` if that cannot be done at once: the
    /// range reaches over several leaves, or something waits on the way; the leaf changes and would not be written otherwise, or becomes
    /// small, which a flush would mend.
    fn delete_behind(
        &self,
        interior: &Interior,
        index: usize,
        own: &KeyRange,
        height: u8,
        range: &KeyRange,
        msn: Msn,
    ) -> Option<usize> {
        let child = &interior.children[index];
        if child.id.is_empty() {
            return Some(0);
        }
        if child.xf.is_some() {
            return None;
        }
        let node = self.cache.peek(child.id)?;
        if node.shared.load(Ordering::Acquire) {
            return None;
        }
        let (below, prefix) = interior.bounds_below(index, own).ok()?;
        let range = range_below(range, &interior.bounds_of(index, own), &prefix);
        node.expect_height(Some(height - 1)).ok()?;
        if height > 1 {
            let state = node.state.try_read()?;
            let interior = state.interior();
            let (index, last) = interior.indexes_in(&range).into_inner();
            let buffer = interior.children[index].buffer.get()?;
            if index != last || !buffer.is_empty_in(&range) {
                return None;
            }
            return self.delete_behind(interior, index, &below, state.height, &range, msn);
        }
        let mut state = node.state.try_write()?;
        if state.leaf().is_empty_in(&range) {
            return Some(0);
        }
        if !self.is_dirty_now(&state) || state.leaf().missing_for([&range], []).is_some() {
            return None;
        }
        let leaf = state.leaf_mut();
        if leaf.bytes() - leaf.bytes_in(&range) < self.shape.node_bytes / 4 {
            return None;
        }
        let bytes = leaf.delete_range(&range, msn);
        leaf.drop_empty();
        self.account(&mut state);
        Some(bytes)
    }
}
