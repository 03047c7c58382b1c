//! The root of a tree, and how messages come in.
//!
//! * TREE-1 the root node is always in memory with all its parts, so a message never waits for the device.
//! * TREE-2 only the holder of `maintenance` changes which nodes there are (flush, split, merge, growth). Everybody else
//!   changes messages and values only. It is a token, taken if free; only checkpoints and clones wait for it ([`super::token`]).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use pando_format::operation::BLOCK_VALUE_LENGTH;
use pando_format::{Goto, KeyRange, Msn, NodeId, Pending, Tree};
use parking_lot::{Mutex, RwLock};

use super::damaged::Damaged;
use super::interior::{Child, Interior, Placed};
use super::node::{Body, Node, NodeRef};
use super::straight::{RangeDeleted, Way, Went};
use super::token::Maintenance;
use crate::spinning;
use crate::volume::Volume;

/// One of the two indexes of a volume.
pub(crate) struct TreeRoot {
    root: RwLock<NodeRef>,
    /// See TREE-2.
    pub(crate) maintenance: Maintenance,
    /// Leaves that have grown too large on the straight path and wait to be split, and a key of each.
    pub(crate) overgrown: Mutex<Vec<(NodeId, Bytes)>>,
    /// Set when more messages than should have stayed in a node below the root, because a clone came before their flush.
    pub(crate) unrelieved: AtomicBool,
    /// What is to be healed.
    pub(crate) wounds: Mutex<Wounds>,
    /// Set when a range delete in the root covers a whole subtree, which maintenance then cuts off.
    pub(crate) covered: AtomicBool,
    /// What [`TreeRoot::load`] found when it last came to look.
    last_load: [AtomicUsize; 2],
    /// The only child of the root, if it cannot become the root since a part of it cannot be read; else 0.
    pub(crate) barred: AtomicU64,
}

/// Where surgery has been done since the tree was last healed.
#[derive(Default)]
pub(crate) struct Wounds {
    /// Ranges that were cloned to, or moved away; each once.
    pub(crate) ranges: Vec<KeyRange>,
    /// How bad it is: see [`HEALING_DUE`].
    pub(crate) weight: usize,
    /// Moves by copy that are healed as well, since ranges have come by goto of late.
    copies: usize,
}

/// Wounds that are heavier are healed together.
pub(crate) const HEALING_DUE: usize = 1000;

/// So many moves by copy are healed behind a goto. What a copy leaves behind is no more than what deleting so few keys leaves, but other
/// gotos may come to lead to it. Where names of files change and nothing else, as where mail is delivered, nothing has to be healed.
const COPIES_HEALED: usize = 64;

/// Eight ranges are healed together; a move counts for both of its own.
const FRESH_WEIGHT: usize = 125;

/// Surgery that raised the root, or came with as many messages as a clone may bring.
const HEAVY_WEIGHT: usize = 250;

impl Wounds {
    /// Notes that the nodes at the ends of a range are to be brought back in shape: it has come by goto, or gone.
    pub(crate) fn add(&mut self, range: KeyRange) {
        self.copies = COPIES_HEALED;
        self.put(range);
    }

    /// The same of a range that has gone by copy.
    pub(crate) fn add_copied(&mut self, range: KeyRange) {
        if self.copies > 0 {
            self.copies -= 1;
            self.put(range);
        }
    }

    /// A range that moves there and back leaves the same ends in no other shape than before, and weighs no more. If it were healed while it
    /// goes on to move, each move would share again what was copied for the one before.
    fn put(&mut self, range: KeyRange) {
        if !self.ranges.contains(&range) {
            self.weight += FRESH_WEIGHT;
            self.ranges.push(range);
        }
    }

    /// Notes that many messages waited above the target of a clone: the next ones should find fewer.
    pub(crate) fn add_heavy(&mut self) {
        self.weight += HEAVY_WEIGHT;
    }

    /// The next range to be healed. The weight goes back with the last.
    pub(crate) fn pop(&mut self) -> Option<KeyRange> {
        let range = self.ranges.pop();
        if range.is_none() {
            self.weight = 0;
        }
        range
    }
}

impl TreeRoot {
    /// A tree with this root.
    pub(crate) fn new(root: NodeRef) -> Self {
        Self {
            root: RwLock::new(root),
            maintenance: Maintenance::default(),
            overgrown: Mutex::default(),
            unrelieved: AtomicBool::new(false),
            wounds: Mutex::default(),
            covered: AtomicBool::new(false),
            last_load: Default::default(),
            barred: AtomicU64::new(NodeId::EMPTY.0),
        }
    }

    /// The root, kept in place as long as the guard lives. Lock order: before every node.
    pub(crate) fn read(&self) -> parking_lot::RwLockReadGuard<'_, NodeRef> {
        self.root.read_recursive()
    }

    /// Bytes that wait in the root for maintenance, and its edges. Every change asks for them, and none waits for who is at work in the root: it hears
    /// what the one before found.
    pub(crate) fn load(&self, damaged: &Damaged) -> (usize, usize) {
        if let Some(root) = self.root.try_read_recursive()
            && let Some(state) = root.state.try_read()
        {
            self.note_load(&state, damaged);
        }
        let [bytes, edges] = &self.last_load;
        (bytes.load(Ordering::Relaxed), edges.load(Ordering::Relaxed))
    }

    /// Sees to it that [`TreeRoot::load`] tells what is there now, even if somebody is at work in the root.
    pub(crate) fn look(&self, damaged: &Damaged) {
        self.note_load(&self.read().state.read(), damaged);
    }

    fn note_load(&self, root: &Node, damaged: &Damaged) {
        let (bytes, edges) = match &root.body {
            Body::Leaf(leaf) => (leaf.bytes(), 0),
            Body::Interior(interior) => (damaged.load(interior), interior.children.len()),
        };
        for (last, found) in self.last_load.iter().zip([bytes, edges]) {
            last.store(found, Ordering::Relaxed);
        }
    }

    /// Keeps the root in place for the holder of the maintenance token, who will replace it.
    pub(crate) fn write(&self) -> parking_lot::RwLockWriteGuard<'_, NodeRef> {
        self.root.write()
    }

    /// Makes a node the root. All its parts are in memory, and stay there (TREE-1).
    pub(crate) fn replace(slot: &mut NodeRef, node: NodeRef) {
        // Since before anybody else could come to it.
        assert!(node.pinned.load(Ordering::Relaxed), "TREE-1: a root's parts stay in memory");
        slot.pinned.store(false, Ordering::Relaxed);
        *slot = node;
    }
}

impl Volume {
    /// Brings a message for one key into a tree. The caller holds the sequencer, so messages come in MSN order.
    pub(crate) fn inject(&self, tree: Tree, key: Bytes, msn: Msn, pending: Pending) {
        self.inject_all(tree, msn, &mut [(key, pending)]);
    }

    /// Brings consecutive blocks into a tree as puts.
    pub(crate) fn inject_run(&self, tree: Tree, prefix: &[u8], first: u64, bytes: Bytes, msn: Msn) {
        let blocks = bytes.len().div_ceil(BLOCK_VALUE_LENGTH);
        // One allocation holds the keys of the whole run.
        let key_length = prefix.len() + 8;
        let mut keys = Vec::with_capacity(key_length * blocks);
        for block in 0..blocks as u64 {
            keys.extend_from_slice(prefix);
            keys.extend_from_slice(&(first + block).to_be_bytes());
        }
        let keys = Bytes::from(keys);
        let message = |block: usize| {
            let start = block * BLOCK_VALUE_LENGTH;
            let value = bytes.slice(start..bytes.len().min(start + BLOCK_VALUE_LENGTH));
            (keys.slice(block * key_length..(block + 1) * key_length), Pending::Put(value))
        };
        let mut messages: Vec<_> = (0..blocks).map(message).collect();
        self.inject_all(tree, msn, &mut messages);
    }

    /// Brings messages into a root in one hold of its lock. The caller holds the sequencer.
    pub(crate) fn inject_into_root(&self, tree: Tree, msn: Msn, mut messages: Vec<(Bytes, Pending)>) {
        self.stats.messages.fetch_add(messages.len() as u64, Ordering::Relaxed);
        self.inject_into(&self.root(tree).read(), msn, &mut messages);
    }

    /// Brings messages in rising key order into a tree: straight into their leaves, or into the root. It takes them, and leaves empty ones.
    fn inject_all(&self, tree: Tree, msn: Msn, messages: &mut [(Bytes, Pending)]) {
        self.stats.messages.fetch_add(messages.len() as u64, Ordering::Relaxed);
        let root = self.root(tree).read();
        let mut rest = messages;
        while !rest.is_empty() {
            let done = match self.inject_straight(&root, &mut Way { tree, msn, messages: rest }) {
                Went::Straight(count) => {
                    self.stats.straight_messages.fetch_add(count as u64, Ordering::Relaxed);
                    count
                }
                Went::Root(count) => {
                    self.inject_into(&root, msn, &mut rest[..count]);
                    count
                }
            };
            rest = &mut rest[done..];
        }
    }

    /// Brings messages into a root in one hold of its lock. It takes them.
    fn inject_into(&self, root: &NodeRef, msn: Msn, messages: &mut [(Bytes, Pending)]) {
        let mut state = spinning::write(&root.state);
        self.mark_dirty(root, &mut state);
        match &mut state.body {
            Body::Leaf(leaf) => {
                for (key, pending) in messages.iter_mut().map(take) {
                    leaf.apply(key, msn, pending, self.shape.basement_bytes);
                }
                leaf.drop_empty();
            }
            Body::Interior(interior) => {
                for (key, pending) in messages.iter_mut().map(take) {
                    interior.push(key, msn, pending);
                }
            }
        }
        self.account(&mut state);
    }

    /// Brings a range delete into a tree. The caller holds the sequencer.
    pub(crate) fn inject_range(&self, tree: Tree, range: &KeyRange, msn: Msn) -> RangeDeleted {
        if range.is_empty() {
            return RangeDeleted::default();
        }
        self.stats.messages.fetch_add(1, Ordering::Relaxed);
        let root = self.root(tree).read();
        let mut state = spinning::write(&root.state);
        self.mark_dirty(&root, &mut state);
        let height = state.height;
        let deleted = match &mut state.body {
            Body::Leaf(leaf) => {
                let bytes = leaf.delete_range(range, msn);
                leaf.drop_empty();
                RangeDeleted { bytes, ..RangeDeleted::default() }
            }
            Body::Interior(interior) => {
                let reach = interior.holds_gotos_at(range).then(|| interior.reach(range, &KeyRange::all()));
                let before = reach.as_ref().map(|reach| interior.references_in(reach));
                let deleted = self.delete_in_root(interior, height, range, msn);
                if let (Some(reach), Some(before)) = (reach, before) {
                    self.settle(before, interior.references_in(&reach));
                }
                deleted
            }
        };
        self.account(&mut state);
        drop(state);
        if deleted.covers {
            self.root(tree).covered.store(true, Ordering::Relaxed);
        }
        deleted
    }

    /// Brings a goto into a tree that is higher than its target. The caller holds the sequencer and the tree's maintenance token.
    pub(crate) fn inject_goto(&self, tree: Tree, goto: &Goto) {
        self.stats.messages.fetch_add(1, Ordering::Relaxed);
        let root = self.root(tree).read();
        let mut state = root.state.write();
        self.mark_dirty(&root, &mut state);
        let height = state.height;
        let interior = state.interior_mut();
        let reach = interior.reach(&goto.range, &KeyRange::all());
        let before = interior.references_in(&reach);
        let placed = interior.push_goto(goto, &KeyRange::all(), height);
        if placed != Placed::Waiting {
            self.stats.count_goto(placed);
        }
        self.settle(before, interior.references_in(&reach));
        self.account(&mut state);
        drop(state);
        // The root may have more edges than it should now.
        self.root(tree).covered.store(true, Ordering::Relaxed);
    }
}

/// Takes a message out of its place.
pub(super) fn take((key, pending): &mut (Bytes, Pending)) -> (Bytes, Pending) {
    (std::mem::take(key), std::mem::replace(pending, Pending::Delete))
}

/// A new root above an old one that is to be split.
pub(crate) fn root_above(old: &NodeRef, height: u8, born: Msn) -> Node {
    let interior = Interior { pivots: Vec::new(), children: vec![Child::new(old.id, 0)] };
    Node::new(height, Body::Interior(interior), KeyRange::all(), born)
}

#[cfg(test)]
mod tests {
    use super::super::leaf::Leaf;
    use super::super::node::CachedNode;
    use super::*;
    use crate::volume::Shape;

    #[test]
    fn nobody_who_asks_for_the_load_waits_for_who_is_at_work_in_the_root() {
        let node = Node::new(0, Body::Leaf(Leaf::default()), KeyRange::all(), Msn::default());
        let damaged = Damaged::new(&Shape { node_bytes: 1 << 16, basement_bytes: 4096, fanout: 4 });
        let tree = TreeRoot::new(CachedNode::new(NodeId(1), Tree::Data, node));
        let put = |state: &mut Node, key: &'static str| {
            let value = Pending::Put(Bytes::from_static(b"value"));
            state.leaf_mut().apply(Bytes::from_static(key.as_bytes()), Msn::default(), value, 4096);
        };
        put(&mut tree.read().state.write(), "a");
        assert_eq!(tree.load(&damaged), (6, 0));
        {
            let root = tree.read();
            let mut state = root.state.write();
            put(&mut state, "bc");
            assert_eq!(tree.load(&damaged), (6, 0), "as the one before found it");
        }
        tree.look(&damaged);
        {
            let root = tree.read();
            let _busy = root.state.write();
            assert_eq!(tree.load(&damaged), (13, 0), "somebody has looked");
        }
        let slot = tree.write();
        put(&mut slot.state.write(), "def");
        assert_eq!(tree.load(&damaged), (13, 0), "it may be about to be replaced");
        drop(slot);
        assert_eq!(tree.load(&damaged), (21, 0));
    }
}
