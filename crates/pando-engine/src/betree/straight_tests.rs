//! The straight path: which range deletes and which blocks of a run go at once, and which wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::MemoryDevice;
use pando_format::operation::BLOCK_VALUE_LENGTH;
use pando_format::{Bound, KeyRange, Tree};

use super::node::{Body, NodeRef};
use crate::Engine;
use crate::small_volume::{assert_sound, change, manual, small_volume, volume_on};

const TREE: Tree = Tree::Metadata;
const NUMBERS: u32 = 5000;

fn name(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// The names from one to another, which is not among them.
fn names(from: u32, to: u32) -> KeyRange {
    KeyRange::new(Bound::before(name(from)), Bound::before(name(to)))
}

fn delete(engine: &Engine, range: KeyRange) {
    change(engine, |batch| batch.delete_range(TREE, range.clone()));
}

fn waits(engine: &Engine) -> bool {
    engine.volume().deletes_wait.load(Ordering::Acquire)
}

fn straight(engine: &Engine) -> u64 {
    engine.stats().straight_messages
}

fn is_there(engine: &Engine, number: u32) -> bool {
    engine.waiting(|| engine.get(TREE, &name(number))).unwrap().is_some()
}

fn waiting_bytes(engine: &Engine) -> usize {
    let root = engine.volume().root(TREE);
    root.look(&engine.volume().damaged);
    root.load(&engine.volume().damaged).0
}

/// The leaf that a key belongs to, and the key as the leaf knows it; `None` if an edge on the way leads to nothing.
fn find_leaf(engine: &Engine, mut key: Vec<u8>) -> Option<(NodeRef, Vec<u8>)> {
    let mut node = engine.volume().root(TREE).read().clone();
    loop {
        let (id, strip) = match &node.state.read().body {
            Body::Leaf(_) => break,
            Body::Interior(interior) => {
                let child = &interior.children[interior.index_of(&key)];
                (child.id, child.strip as usize)
            }
        };
        if id.is_empty() {
            return None;
        }
        key.drain(..strip);
        node = engine.volume().cache.peek(id).unwrap();
    }
    Some((node, key))
}

fn leaf_of(engine: &Engine, number: u32) -> (NodeRef, Vec<u8>) {
    find_leaf(engine, name(number)).unwrap()
}

/// Makes checkpoints until no delete waits.
fn bring_down(engine: &Engine) {
    while waits(engine) {
        engine.volume().reclaiming.store(true, Ordering::Relaxed);
        engine.checkpoint().unwrap();
    }
}

/// A volume with every other name, on which no delete waits. Its leaves are in memory, and as they are on the device.
fn clean() -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    for number in 0..NUMBERS {
        change(&engine, |batch| batch.put(TREE, name(2 * number), vec![1; 200]));
    }
    bring_down(&engine);
    (engine, device)
}

/// A name in a leaf that has changed since the last checkpoint, and for which nothing waits: a put has just gone there.
fn name_in_a_changed_leaf(engine: &Engine) -> u32 {
    for step in 0.. {
        let number = 2 * (step * 7 % NUMBERS);
        let before = straight(engine);
        change(engine, |batch| batch.put(TREE, name(number), vec![2; 200]));
        if straight(engine) > before {
            return number;
        }
        while engine.background_step().unwrap() {}
    }
    unreachable!("what has filled the root is flushed")
}

#[test]
fn what_is_in_a_leaf_that_will_be_written_goes_at_once() {
    let (engine, device) = clean();
    let number = name_in_a_changed_leaf(&engine);
    let (before, dirty) = (straight(&engine), engine.volume().cache.dirty_bytes());
    delete(&engine, names(number, number + 1));
    assert_eq!(straight(&engine), before + 1);
    assert!(!waits(&engine));
    assert!(engine.volume().cache.dirty_bytes() < dirty, "less is to be written");
    assert!(!is_there(&engine, number) && is_there(&engine, number ^ 2));
    assert_sound(&engine);
    // And when the log is replayed.
    engine.sync().unwrap();
    drop(engine);
    let engine = Engine::open(device, manual()).unwrap();
    assert!(!is_there(&engine, number) && is_there(&engine, number ^ 2));
    assert_sound(&engine);
}

#[test]
fn what_waits_above_a_leaf_that_holds_nothing_of_it_is_eaten() {
    let (engine, _) = clean();
    let before = waiting_bytes(&engine);
    for number in [1001, 1003, 1005] {
        change(&engine, |batch| batch.put(TREE, name(number), vec![3; 200]));
    }
    assert!(waiting_bytes(&engine) > before, "the leaf is not to be written");
    for number in [1001, 1003, 1005] {
        delete(&engine, names(number, number + 1));
        assert!(!is_there(&engine, number) && is_there(&engine, number + 1));
    }
    assert_eq!(waiting_bytes(&engine), before, "nothing is left of them");
    assert!(!waits(&engine));
    // There is nothing to delete, and nothing waits for the range.
    delete(&engine, names(1001, 1002));
    assert!(!waits(&engine));
    assert_sound(&engine);
}

#[test]
fn a_leaf_that_would_not_be_written_stays_as_it_is() {
    let (engine, _) = clean();
    let dirty = engine.volume().cache.dirty_bytes();
    delete(&engine, names(1000, 1001));
    assert!(waits(&engine));
    let root = engine.volume().root(TREE).read().clone();
    assert!(engine.volume().cache.dirty_bytes() - dirty <= root.state.read().counted_dirty as u64);
    assert!(!is_there(&engine, 1000) && is_there(&engine, 1002));
    assert_sound(&engine);
}

/// A flush joins small leaves with their neighbours; nobody else would.
#[test]
fn a_leaf_that_would_be_left_small_waits_for_a_flush() {
    let (engine, _) = clean();
    let number = name_in_a_changed_leaf(&engine);
    let (leaf, key) = leaf_of(&engine, number);
    let bytes = || leaf.state.read().leaf().bytes();
    let quarter = engine.volume().shape.node_bytes / 4;
    let first = bytes();
    for other in (number - 400..number + 400).step_by(2) {
        if leaf_of(&engine, other).0.id == leaf.id {
            delete(&engine, names(other, other + 1));
        }
    }
    assert!(waits(&engine));
    assert!(bytes() < first && bytes() >= quarter, "{first} {} {quarter}", bytes());
    assert!(bytes() - (key.len() + 200) < quarter, "one more would have left it small");
    assert!(!is_there(&engine, number));
    assert_sound(&engine);
}

#[test]
fn a_range_delete_that_waits_is_cut_back_by_one_that_goes_at_once() {
    let (engine, _) = clean();
    let number = name_in_a_changed_leaf(&engine);
    let leaf = leaf_of(&engine, number).0.id;
    let is_here = |other: &u32| leaf_of(&engine, *other).0.id == leaf;
    let first = (0..=number).rev().step_by(2).take_while(is_here).last().unwrap();
    // Nothing would be left of the leaf, and so it waits.
    delete(&engine, names(first, number + 400));
    assert!(waits(&engine));
    let before = (straight(&engine), waiting_bytes(&engine));
    delete(&engine, names(first, first + 4));
    assert_eq!(straight(&engine), before.0 + 1);
    assert!(waiting_bytes(&engine) <= before.1, "what waits is no more than before");
    change(&engine, |batch| batch.put(TREE, name(first), vec![4; 200]));
    for other in (first..number + 400).step_by(2) {
        assert_eq!(is_there(&engine, other), other == first, "{other}");
    }
    assert!(is_there(&engine, number + 400));
    assert_sound(&engine);
}

#[test]
fn nothing_waits_at_an_edge_to_nothing() {
    let (engine, _) = clean();
    delete(&engine, names(4000, 6000));
    bring_down(&engine);
    assert!(find_leaf(&engine, name(5000)).is_none(), "its subtree was cut off");
    let before = waiting_bytes(&engine);
    change(&engine, |batch| batch.put(TREE, name(5000), vec![5; 200]));
    delete(&engine, names(5000, 5002));
    assert!(!waits(&engine) && !is_there(&engine, 5000));
    assert_eq!(waiting_bytes(&engine), before);
    assert_sound(&engine);
}

#[test]
fn of_a_run_what_belongs_to_changed_leaves_goes_straight_and_the_rest_waits() {
    const BLOCKS: u64 = 150;
    let engine = volume_on(&Arc::new(MemoryDevice::new(256 << 20)));
    let volume = engine.volume();
    let run = |first: u64, count: u64, byte: u8| {
        let blocks = vec![byte; count as usize * BLOCK_VALUE_LENGTH];
        change(&engine, |batch| batch.put_run(TREE, "f", first, blocks.clone()));
    };
    let key = |block: u64| [b"f", &block.to_be_bytes()[..]].concat();
    let leaf_of = |block: u64| find_leaf(&engine, key(block)).unwrap().0;
    for first in (0..BLOCKS).step_by(10) {
        run(first, 10, 1);
        while engine.background_step().unwrap() {}
    }
    bring_down(&engine);
    engine.checkpoint().unwrap();
    let changed = |block: u64| volume.is_dirty_now(&leaf_of(block).state.read());
    assert!(!(0..BLOCKS).any(changed));
    // Enough for a flush, into a leaf in the middle.
    let mut second = (70..90).cycle();
    while !(0..BLOCKS).any(changed) {
        run(second.next().unwrap(), 1, 2);
        while engine.background_step().unwrap() {}
    }
    {
        let leaf = leaf_of((0..BLOCKS).find(|block| changed(*block)).unwrap());
        let _busy = leaf.state.read();
        (78..83).for_each(|block| run(block, 1, 2));
    }
    let waiting = waiting_blocks(&engine, "f");
    let (waits_at, goes): (Vec<u64>, Vec<u64>) =
        (0..BLOCKS).filter(|block| changed(*block)).partition(|block| waiting.contains(block));
    assert!(waits_at.len() > 1 && goes.len() > 1 && goes.len() < 100, "{waits_at:?} {goes:?}");
    let before = straight(&engine);
    run(1, BLOCKS - 2, 3);
    assert_eq!(straight(&engine) - before, goes.len() as u64);
    for block in 0..BLOCKS {
        let value = engine.waiting(|| engine.get(TREE, &key(block))).unwrap().unwrap();
        let byte = if block == 0 || block == BLOCKS - 1 { 1 } else { 3 };
        assert_eq!(value[..], [byte; BLOCK_VALUE_LENGTH], "{block}");
    }
    assert_sound(&engine);
}

/// The blocks of a file for which something waits in the root.
fn waiting_blocks(engine: &Engine, prefix: &str) -> Vec<u64> {
    let root = engine.volume().root(TREE).read().clone();
    let state = root.state.read();
    let Body::Interior(interior) = &state.body else { return Vec::new() };
    let buffers = interior.children.iter().filter_map(|child| child.buffer.get());
    let keys = buffers.flat_map(|buffer| buffer.keyed().map(|(key, ..)| key.clone())).collect::<Vec<_>>();
    let numbers = keys.iter().map(|key| key.strip_prefix(prefix.as_bytes()).unwrap());
    numbers.map(|number| u64::from_be_bytes(number.try_into().unwrap())).collect()
}
