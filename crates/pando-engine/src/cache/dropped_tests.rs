//! Nodes that no tree leads to any more take no memory, and count for none.

use std::sync::{Arc, Weak};

use pando_device::MemoryDevice;
use pando_format::Tree;

use crate::betree::node::{CachedNode, NodeRef};
use crate::small_volume::{fill, volume_on};
use crate::{Batch, Engine, KeyRange};

/// A volume with many leaves of data in memory, all as the last checkpoint wrote them.
pub(super) fn with_leaves() -> (Engine, Vec<NodeRef>) {
    let engine = volume_on(&Arc::new(MemoryDevice::new(64 << 20)));
    fill(&engine, 2000);
    engine.checkpoint().unwrap();
    let shards = engine.volume().cache.shards.iter();
    let nodes = shards.flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>());
    let is_leaf = |node: &NodeRef| node.tree == Tree::Data && node.state.read().height == 0;
    let leaves: Vec<_> = nodes.filter(is_leaf).collect();
    assert!(leaves.len() > 10, "{}", leaves.len());
    (engine, leaves)
}

fn delete_all(engine: &Engine) {
    let mut batch = Batch::new();
    batch.delete_range(Tree::Data, KeyRange::all());
    engine.apply(batch).unwrap();
    while engine.background_step().unwrap() {}
}

#[test]
fn they_leave_memory_at_once() {
    let (engine, leaves) = with_leaves();
    let leaves: Vec<Weak<CachedNode>> = leaves.into_iter().map(|leaf| Arc::downgrade(&leaf)).collect();
    delete_all(&engine);
    let kept = leaves.iter().filter(|leaf| leaf.upgrade().is_some()).count();
    assert!(kept <= 1, "{kept} of {} wait for the next checkpoint", leaves.len());
}

#[test]
fn they_count_for_nothing_whoever_holds_them() {
    let (engine, leaves) = with_leaves();
    for leaf in &leaves {
        engine.volume().pass(leaf, 0..usize::MAX, 0);
    }
    delete_all(&engine);
    // More than the queue keeps, so that it lets go of them, each with the parts that are in memory.
    for leaf in &leaves {
        engine.volume().pass(leaf, 0..0, 1 << 30);
    }
    let shards = engine.volume().cache.shards.iter();
    let counted = |node: &NodeRef| node.state.read().counted;
    let there: usize = shards.map(|shard| shard.lock().values().map(counted).sum::<usize>()).sum();
    assert_eq!(engine.volume().cache.memory(), there);
}
