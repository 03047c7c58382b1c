//! What is read ahead, step by step, on a volume whose threads do nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::MemoryDevice;
use pando_format::Tree;

use super::read_ahead::{NO_MARK, Wish, mark};
use crate::betree::node::NodeRef;
use crate::small_volume::{fill, manual, volume_on};
use crate::{Direction, Engine, KeyRange, Options, ScanLimit};

/// A volume of several leaves that has just been opened.
fn cold(cache_bytes: usize) -> Engine {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 1000);
    engine.close().unwrap();
    drop(engine);
    Engine::open(device, Options { cache_bytes, ..manual() }).unwrap()
}

/// Scans from the start, so far that the first leaf is in memory, and gives it back.
fn first_leaf(engine: &Engine) -> NodeRef {
    let limit = ScanLimit { entries: 1, bytes: usize::MAX };
    let scan =
        engine.waiting(|| engine.scan(Tree::Data, &KeyRange::all(), Direction::Forward, limit)).unwrap();
    assert_eq!(scan.entries.len(), 1);
    let volume = engine.volume();
    let mut node = volume.root(Tree::Data).read().clone();
    loop {
        let below = match &node.state.read().body {
            crate::betree::node::Body::Leaf(_) => break,
            crate::betree::node::Body::Interior(interior) => interior.children[0].id,
        };
        node = volume.cached(below).unwrap();
    }
    node
}

#[test]
fn who_comes_to_the_mark_finds_the_next_leaf_in_memory() {
    let engine = cold(64 << 20);
    let volume = engine.volume();
    let leaf = first_leaf(&engine);
    let parts = leaf.state.read().leaf().basements.len();
    assert!(parts > 1);
    assert_eq!(
        leaf.mark.load(Ordering::Relaxed),
        mark(parts / 2, 1),
        "what was missed is marked in its middle"
    );
    let next = pando_format::NodeId(leaf.next.load(Ordering::Relaxed));
    assert!(!next.is_empty() && volume.cache.peek(next).is_none());

    volume.comes_to(&leaf, 0);
    assert_eq!(leaf.mark.load(Ordering::Relaxed), mark(parts / 2, 1), "nobody has come to the mark");
    volume.comes_to(&leaf, parts / 2);
    assert_eq!(leaf.mark.load(Ordering::Relaxed), NO_MARK);

    volume.read_ahead(&Wish { node: leaf.id, part: parts / 2, runs: 1 }).unwrap();
    let next = volume.cache.peek(next).expect("it was read ahead");
    assert_eq!(next.state.read().missing_part(), None);
    assert_eq!(next.mark.load(Ordering::Relaxed), mark(0, 2), "the next wish is for twice as much");
    let stats = engine.stats();
    assert_eq!(stats.parts_read_ahead, 1);

    // Everything in order, with what a reader would cause: only what nobody asked for ahead is missed.
    let mut rest = Some(KeyRange::all());
    let mut entries = 0;
    while let Some(range) = rest {
        let limit = ScanLimit { entries: 16, bytes: usize::MAX };
        let scan = engine.waiting(|| engine.scan(Tree::Data, &range, Direction::Forward, limit)).unwrap();
        entries += scan.entries.len();
        rest = scan.rest;
    }
    assert_eq!(entries, 1000);
}

#[test]
fn nothing_is_read_ahead_when_memory_is_short() {
    let engine = cold(1);
    let leaf = first_leaf(&engine);
    engine.volume().read_ahead(&Wish { node: leaf.id, part: 0, runs: 4 }).unwrap();
    assert_eq!(engine.stats().parts_read_ahead, 0);
}

#[test]
fn what_is_gone_or_was_the_last_is_no_error() {
    let engine = cold(64 << 20);
    let volume = engine.volume();
    let leaf = first_leaf(&engine);
    volume.read_ahead(&Wish { node: pando_format::NodeId(1 << 40), part: 0, runs: 4 }).unwrap();
    leaf.next.store(1 << 40, Ordering::Relaxed);
    volume.read_ahead(&Wish { node: leaf.id, part: 0, runs: 4 }).unwrap();
    leaf.next.store(pando_format::NodeId::EMPTY.0, Ordering::Relaxed);
    volume.read_ahead(&Wish { node: leaf.id, part: 0, runs: 4 }).unwrap();
    assert_eq!(engine.stats().parts_read_ahead, 0);
}
