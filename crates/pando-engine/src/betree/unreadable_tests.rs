//! What cannot be read, or is read wrong: how often it is tried, what it costs, and what a check says of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::MemoryDevice;
use pando_format::{Bound, KeyRange, NodeId};

use super::damage_tests::{
    Rotten, TREE, block_of, filled, key, lost, places_of, put, reopened, root, written_over,
};
use crate::small_volume::manual;
use crate::{Engine, ScanLimit};

/// Each query for what is lost read it again.
#[test]
fn what_cannot_be_read_is_not_tried_again_at_once() {
    let (engine, device) = filled(260);
    let leaf = root(&engine).state.read().interior().children[1].id;
    engine.close().unwrap();
    let header = engine.volume().table.lookup(leaf).unwrap().extents[0].offset;
    let places = [header, block_of(&engine, leaf, 2)];
    drop(engine);
    for (place, gives_error) in places.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let device = Rotten::new(device.to_bytes(), vec![place], gives_error);
        let engine = Engine::open(device.clone(), manual()).unwrap();
        let found = lost(&engine, 260);
        assert!(!found.is_empty());
        let reads = device.reads.load(Ordering::Relaxed);
        assert!((1..10).contains(&reads), "{reads}");
        assert_eq!(lost(&engine, 260), found);
        let limit = ScanLimit { entries: 1, bytes: 1 };
        let range = KeyRange::new(Bound::before(key(found[0])), Bound::after(key(found[0])));
        let scanned = engine.waiting(|| engine.scan(TREE, &range, limit));
        assert!(scanned.is_err_and(|error| error.is_unreadable()));
        assert_eq!(device.reads.load(Ordering::Relaxed), reads);
    }
}

/// What a read got wrong once, on its way to where the leaf lies next, was lost for good.
#[test]
fn a_bad_read_of_what_goes_along_is_made_again() {
    let (engine, device) = filled(260);
    let leaf = root(&engine).state.read().interior().children[0].id;
    let (engine, device) = reopened(engine, &device, leaf, &[2], false);
    let node = engine.volume().node(leaf).unwrap();
    let strip = root(&engine).state.read().interior().children[0].strip as usize;
    let is_in_second = |number: &u32| node.state.read().leaf().index_of(&key(*number)[strip..]) == 1;
    let number = (0..260).find(is_in_second).unwrap();
    engine.volume().load_part(&node, 1).unwrap();
    put(&engine, number);
    engine.volume().flush_child(&root(&engine), &KeyRange::all(), 0).unwrap();
    assert!(node.state.read().dirty.is_some());
    device.failures_left.store(1, Ordering::Relaxed);
    device.is_on.store(true, Ordering::Relaxed);
    engine.checkpoint().unwrap();
    assert_eq!(device.reads.load(Ordering::Relaxed), 2, "a wrong one, and once more");
    drop(engine);
    let engine = Engine::open(Arc::new(MemoryDevice::from_bytes(device.inner.to_bytes())), manual()).unwrap();
    assert_eq!(lost(&engine, 260), []);
}

/// A flush that met the end of the file failed the volume.
#[test]
fn an_image_file_that_was_cut_costs_what_lay_behind_its_end() {
    let (engine, device) = filled(260);
    let leaf = root(&engine).state.read().interior().children[0].id;
    let (engine, device) = reopened(engine, &device, leaf, &[2], false);
    device.is_cut.store(true, Ordering::Relaxed);
    device.is_on.store(true, Ordering::Relaxed);
    let behind = lost(&engine, 260);
    assert!((1..40).contains(&behind.len()), "{behind:?}");
    behind.iter().for_each(|number| put(&engine, *number));
    assert_eq!(engine.volume().flush_around_damage(&root(&engine), &KeyRange::all(), (0, leaf)), Ok(true));
    assert!(engine.volume().damaged.contains(leaf));
    assert_eq!(engine.failure(), None);
    assert_eq!(lost(&engine, 260), []);
    let problems = engine.check(&mut |_, _| {}).unwrap().problems;
    let [one] = &problems[..] else { panic!("{problems:?}") };
    assert!(one.starts_with(&format!("node {}: ", leaf.0)) && one.contains("outside a device"), "{one}");
}

/// A check told of the first bad part of a node alone, and did not look below it.
#[test]
fn a_check_tells_of_each_bad_part() {
    let (engine, device) = written_over();
    let [buffer, leaf, part] = (0..2000).find_map(|number| places_of(&engine, number)).unwrap();
    let table = engine.volume().table.pages();
    let lies_there = |place: &pando_format::BlockEntry| place.extents[0].offset == leaf;
    let leaf = table.entries().find(|(_, place)| lies_there(place)).unwrap().0;
    let mut blocks = [0, 4].map(|quarter| block_of(&engine, leaf, quarter)).to_vec();
    blocks.retain(|block| *block != part);
    blocks.extend([buffer, part]);
    drop(engine);
    for gives_error in [false, true] {
        let device = Rotten::new(device.to_bytes(), blocks.clone(), gives_error);
        let problems = Engine::open(device, manual()).unwrap().check(&mut |_, _| {}).unwrap().problems;
        assert_eq!(problems.len(), blocks.len(), "{problems:?}");
        let of_leaf = problems.iter().filter(|what| what.starts_with(&format!("node {}", leaf.0)));
        assert_eq!(of_leaf.count(), blocks.len() - 1, "{problems:?}");
    }
}

/// A check gave up at the first read that failed, and told nothing of what it had found.
#[test]
fn a_check_goes_on_behind_what_the_device_fails_to_read() {
    let (engine, device) = filled(260);
    let edges: Vec<NodeId> =
        root(&engine).state.read().interior().children.iter().map(|edge| edge.id).collect();
    let [failing, flipped] = [edges[0], edges[1]];
    engine.close().unwrap();
    let mut bytes = device.to_bytes();
    bytes[block_of(&engine, flipped, 2) as usize + 100] ^= 1;
    let device = Rotten::new(bytes, vec![block_of(&engine, failing, 2)], true);
    drop(engine);
    let problems = Engine::open(device, manual()).unwrap().check(&mut |_, _| {}).unwrap().problems;
    let [first, second] = &problems[..] else { panic!("{problems:?}") };
    assert!(first.starts_with(&format!("node {}: cannot read", failing.0)), "{first}");
    assert!(second.starts_with(&format!("node {} ", flipped.0)) && second.contains("checksum"), "{second}");
}

/// A check told of each node below one that could not be read.
#[test]
fn a_check_sums_up_what_lies_behind_an_unreadable_interior_node() {
    let (engine, device) = filled(1000);
    let rotten = root(&engine).state.read().interior().children[0].id;
    engine.close().unwrap();
    let place = engine.volume().table.lookup(rotten).unwrap();
    assert!(place.height > 0);
    drop(engine);
    for gives_error in [false, true] {
        let device = Rotten::new(device.to_bytes(), vec![place.extents[0].offset], gives_error);
        let report = Engine::open(device, manual()).unwrap().check(&mut |_, _| {}).unwrap();
        let [node, behind] = &report.problems[..] else { panic!("{:?}", report.problems) };
        assert!(node.starts_with(&format!("node {}", rotten.0)), "{node}");
        let count = report.nodes_known - report.nodes - 1;
        assert!(count > 1 && behind.ends_with(&format!(": {count}")), "{count}: {behind}");
    }
}
