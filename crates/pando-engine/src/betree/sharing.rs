//! Shared nodes: reference counts, and copy on write (THESIS 4, design 4).
//!
//! A clone is one more edge or goto to a node that is there. From then on the node has several names, and whoever has to
//! change it under one of them copies it first: one node, whose children are shared from then on.
//!
//! * BT-4 a node's count in the block table is the number of edges, gotos and roots that name it. Who changes what a node names
//!   settles the difference ([`Volume::settle`]) under the same gate or sequencer; at zero the node is doomed.
//! * BT-5 a node with a count above one is never changed, nor is what hangs below it: every change comes down from a root, and each
//!   step down goes through [`Volume::own_child`], or stops at a node that is shared.
//! * INT-3 the same holds for an edge with an xf, whatever the count of its node: the copy holds what the edge's bounds let
//!   through, under the names that the edge gives it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use pando_device::complain;
use pando_format::{KeyRange, NodeId};

use super::leaf::Leaf;
use super::lifting::edge_prefix;
use super::node::{Body, CachedNode, Node, NodeRef};
use crate::volume::Volume;
use crate::{Error, Result};

/// What gains names before what loses some. A copy names what the node that it was copied from names: messages on the straight path, who look at
/// the marks of the nodes on their way without the locks that are held here, must not find that node alone and what is below it not yet shared.
fn in_order(changes: BTreeMap<NodeId, i64>) -> impl Iterator<Item = (NodeId, i64)> {
    let (gain, lose): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, change)| *change > 0);
    gain.into_iter().chain(lose.into_iter().filter(|(_, change)| *change < 0))
}

impl Volume {
    /// True if a node has more than one name (BT-5).
    pub(crate) fn is_shared(&self, id: NodeId) -> bool {
        self.table.references(id) > 1
    }

    /// Brings the counts in line after nodes that named `before` name `after` instead (BT-4). What nothing names any more is
    /// doomed. The caller holds the gate or the sequencer.
    ///
    /// What is named and not there, as only damage has it, has no count. A count that cannot be is damage, too: it stays as it is, and the volume takes
    /// no changes any more, since others may be wrong by it.
    pub(crate) fn settle(
        &self,
        before: impl IntoIterator<Item = NodeId>,
        after: impl IntoIterator<Item = NodeId>,
    ) {
        let mut changes: BTreeMap<NodeId, i64> = BTreeMap::new();
        for id in after {
            *changes.entry(id).or_default() += 1;
        }
        for id in before {
            *changes.entry(id).or_default() -= 1;
        }
        // Maintenance, reclamation and clones settle at the same time: each count is read and written in one hold of this lock.
        let mut doomed = self.doomed.lock();
        for (id, change) in in_order(changes) {
            if self.table.generation(id).is_none() {
                complain(format_args!(
                    "node {} is damaged: an edge led to it, but it is not in the block table",
                    id.0
                ));
                continue;
            }
            // A root has no other name.
            let is_root = self.cache.peek(id).is_some_and(|node| node.pinned.load(Ordering::Relaxed));
            let counted = if is_root { None } else { self.table.change_references(id, change) };
            let Some(references) = counted else {
                let what = "what leads to it is not what the block table counts (BT-4)";
                self.poison(&Error::damaged_node(None, id, what));
                continue;
            };
            // Looked for when it is counted: one that comes into memory meanwhile is marked here, one that comes later by the count.
            if let Some(node) = self.cache.peek(id) {
                node.shared.store(references > 1, Ordering::Release);
            }
            if references == 0 {
                doomed.push(id);
            }
        }
    }

    /// The node behind an edge of a node that may be changed, for a change: a copy takes its place if it has other names, or is
    /// seen through an xf. Only for the holder of the maintenance token (TREE-2). Waits for the device.
    pub(crate) fn own_child(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<NodeRef> {
        loop {
            let (id, translated, height) = {
                let state = parent.state.read();
                let edge = &state.interior().children[index];
                (edge.id, edge.xf.is_some(), state.height - 1)
            };
            let child = self.node(id)?;
            child.expect_height(Some(height))?;
            match self.table.references(id) {
                0 => return Err(doomed(&child)),
                1 if !translated => return Ok(child),
                _ => {}
            }
            self.load_all(&child)?;
            let _gate = self.gate.read_recursive();
            let mut above = parent.state.write();
            let below = child.state.read();
            if below.missing_part().is_some() {
                continue;
            }
            let (visible, _) = above.interior().bounds_below(index, own)?;
            let edge = &above.interior().children[index];
            let prefix = edge.prepended();
            let mut body = match (&below.body, translated) {
                (body, false) => body.clone(),
                (Body::Leaf(leaf), true) => Body::Leaf(leaf.seen_through(&visible, prefix)),
                (Body::Interior(interior), true) => {
                    for index in interior.indexes_in(&visible) {
                        let seen = interior.bounds_of(index, &visible).intersection(&visible);
                        let edge = &interior.children[index];
                        if !edge.id.is_empty() {
                            edge_prefix(&seen, edge.strip as usize).ok_or_else(|| lifts_too_much(&child))?;
                        }
                    }
                    Body::Interior(interior.seen_through(&visible, prefix))
                }
            };
            body.leave_image();
            let named = match &body {
                Body::Leaf(_) => Vec::new(),
                Body::Interior(interior) => interior.references(),
            };
            let bounds = above.interior().bounds_of(index, own);
            let copy = Node::new(below.height, body, bounds, below.born);
            drop(below);
            self.mark_dirty(parent, &mut above);
            let copy = self.add_node(parent.tree, copy);
            let edge = &mut above.interior_mut().children[index];
            edge.id = copy.id;
            edge.xf = None;
            self.account(&mut above);
            self.settle([id], named);
            self.stats.shared_nodes_copied.fetch_add(1, Ordering::Relaxed);
            return Ok(copy);
        }
    }
}

impl Leaf {
    /// The keys that lie in `visible` and begin with `prefix`, which goes. The whole leaf is loaded.
    fn seen_through(&self, visible: &KeyRange, prefix: &[u8]) -> Self {
        let mut seen = Self::default();
        for slot in &self.basements {
            let basement = slot.part.get().expect("the whole leaf was loaded before");
            if prefix.is_empty() && basement.lies_inside(visible) {
                seen.share_basement(slot);
                continue;
            }
            let entries = basement.inside(visible);
            let entries: Vec<_> =
                entries.map(|(key, value)| (key.slice(prefix.len()..), value.clone())).collect();
            if !entries.is_empty() {
                seen.push_basement(entries, basement.shared_bytes, slot.msn);
            }
        }
        seen
    }
}

/// The error of a node that a shared way does not lead to as it should.
pub(crate) fn lifts_too_much(node: &CachedNode) -> Error {
    Error::damaged_node(
        Some(node.tree),
        node.id,
        "a way lifts more than its keys hold, or makes them longer than they can be",
    )
}

/// The error of a node that waits for reclamation, and an edge leads to it still.
fn doomed(node: &CachedNode) -> Error {
    Error::damaged_node(
        Some(node.tree),
        node.id,
        "an edge leads to it, but the block table counts none (BT-4)",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use pando_format::Tree;

    use super::*;
    use crate::small_volume::{change, small_volume};

    /// The mark of a node that came into memory while it gained a name could be left out.
    #[test]
    fn what_comes_into_memory_while_it_gains_a_name_is_marked() {
        let (engine, _device) = small_volume(4 << 10, 1 << 10);
        for number in 0..2000_u32 {
            change(&engine, |batch| batch.put(Tree::Metadata, format!("{number:06}"), vec![7; 100]));
        }
        engine.checkpoint().unwrap();
        let volume = engine.volume();
        let id = {
            let root = volume.root(Tree::Metadata).read().clone();
            root.state.read().interior().children.first().unwrap().id
        };
        const ROUNDS: u32 = 20_000;
        // Both wait awake, or they would never be at it at the same time.
        let turn = AtomicU32::new(0);
        let await_turn = |wanted: u32| {
            let mut looks = 0_u32;
            while turn.load(Ordering::Acquire) < wanted {
                looks += 1;
                if looks.is_multiple_of(10_000) {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    await_turn(2 * round + 1);
                    volume.node(id).unwrap();
                    turn.fetch_max(2 * round + 2, Ordering::AcqRel);
                }
            });
            for round in 0..ROUNDS {
                volume.drop_clean(0, false);
                assert!(volume.cache.peek(id).is_none(), "it has left memory");
                turn.store(2 * round + 1, Ordering::Release);
                (0..round % 256).for_each(|_| std::hint::spin_loop());
                volume.settle([], [id]);
                await_turn(2 * round + 2);
                let is_marked = volume.node(id).unwrap().shared.load(Ordering::Acquire);
                volume.settle([id], []);
                if !is_marked {
                    turn.store(u32::MAX, Ordering::Release);
                }
                assert!(is_marked, "round {round}: it has two names, and no mark");
            }
        });
    }

    #[test]
    fn what_gains_names_is_marked_before_what_loses_some() {
        let changes = [(1, -1), (2, 1), (3, 0), (4, -2), (5, 2)];
        let changes = changes.map(|(id, change)| (NodeId(id), change)).into();
        let order: Vec<_> = in_order(changes).map(|(id, _)| id.0).collect();
        assert_eq!(order, [2, 5, 1, 4]);
    }
}
