//! Which records wait for those that follow them, and what binding leaves behind.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_format::{Compression, Operation, Tree};

use super::batch::{Binder, Record};
use super::late_binding::{BOUND_BYTES_MIN, BOUND_TOGETHER_MIN};
use crate::betree::node::Body;
use crate::small_volume::{assert_sound, change, manual, small_volume};
use crate::{Batch, Engine, FormatOptions, Options};

/// How many are ripe of two small records and one with a run of blocks, whose leaf is in memory.
fn ripe(late_binding: bool, compression: Compression) -> usize {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::format(device.clone(), &FormatOptions { compression, ..FormatOptions::default() }).unwrap();
    let options = Options { late_binding, ..manual() };
    let engine = Engine::open(device, options).unwrap();
    let small = || Operation::Put { tree: Tree::Data, key: Bytes::from_static(b"key"), value: Bytes::new() };
    let run = Operation::PutRun {
        tree: Tree::Data,
        prefix: Bytes::from_static(b"file"),
        first: 0,
        bytes: vec![1; BOUND_BYTES_MIN].into(),
    };
    let records = [small(), small(), run].map(|operation| Record::new(&[operation]));
    engine.volume().ripe(&records)
}

#[test]
fn a_run_waits_for_what_follows_only_where_it_can_be_bound() {
    assert_eq!(ripe(true, Compression::None), 2);
    assert_eq!(ripe(false, Compression::None), 3);
    assert_eq!(ripe(true, Compression::Zstd), 3);
}

/// Each leaf that was bound stayed in the list of dirty nodes until the next cut, once for each time.
#[test]
fn what_is_bound_is_dirty_no_more() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::format(device.clone(), &FormatOptions::default()).unwrap();
    let engine = Engine::open(device, manual()).unwrap();
    for round in 1..3 {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, &b"file"[..], 0, vec![round as u8; BOUND_TOGETHER_MIN]);
        engine.apply(batch).unwrap();
        engine.sync().unwrap();
        assert_eq!(engine.stats().runs_bound, round);
        assert_eq!(engine.volume().cache.dirty_nodes().len(), 0);
    }
}

/// Short runs are bound where they fill a leaf together, and what is too little for that goes into the log.
#[test]
fn short_runs_are_bound_together() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::format(device.clone(), &FormatOptions::default()).unwrap();
    let engine = Engine::open(device, manual()).unwrap();
    let put = |files: Range<u64>| {
        for file in files {
            let prefix = format!("file{file}").into_bytes();
            let mut batch = Batch::new();
            batch.put_run(Tree::Data, prefix, 0, vec![1; BOUND_BYTES_MIN]);
            engine.apply(batch).unwrap();
        }
        engine.sync().unwrap();
        engine.stats().runs_bound
    };
    let enough = (BOUND_TOGETHER_MIN / BOUND_BYTES_MIN) as u64;
    assert_eq!(put(0..enough - 1), 0);
    assert_eq!(put(1..enough + 1), enough);
}

/// What waits for other keys above a leaf keeps no run out of it, nor in the log.
#[test]
fn a_run_is_bound_while_other_messages_wait_above_its_leaf() {
    let (engine, _) = small_volume(256 << 10, 64 << 10);
    let name = |file: u64| format!("file{file:02}").into_bytes();
    for file in 0..60 {
        change(&engine, |batch| batch.put_run(Tree::Data, name(file), 0, vec![1; 256 << 10]));
        while engine.background_step().unwrap() {}
    }
    engine.checkpoint().unwrap();
    let waits_above = |key: &[u8]| {
        let root = engine.volume().root(Tree::Data).read().clone();
        let Body::Interior(interior) = &root.state.read().body else { return false };
        interior.children[interior.index_of(key)].buffer.get().is_some_and(|buffer| !buffer.is_empty())
    };
    let was_bound = |step: u64| {
        // Most leaves have not changed since the checkpoint, and what comes for those waits.
        change(&engine, |batch| batch.put(Tree::Data, name(step * 7 % 60), vec![2; 100]));
        let bound = engine.stats().runs_bound;
        let first = (1 + step) * 16;
        change(&engine, |batch| batch.put_run(Tree::Data, name(30), first, vec![3; 64 << 10]));
        let waits = waits_above(&[name(30), first.to_be_bytes().to_vec()].concat());
        engine.sync().unwrap();
        while engine.background_step().unwrap() {}
        waits && engine.stats().runs_bound > bound
    };
    assert!((0..300).any(was_bound));
    assert_sound(&engine);
}

/// The thread of the log panicked, had an image such an edge.
#[test]
fn an_edge_that_lifts_more_than_keys_have_leads_to_no_leaf() {
    let (engine, _) = small_volume(256 << 10, 64 << 10);
    let is_in_leaves = |file: u8| {
        let before = engine.stats().straight_messages;
        change(&engine, |batch| batch.put_run(Tree::Data, vec![file; 4], 0, vec![file; 64 << 10]));
        engine.stats().straight_messages == before + 16
    };
    let was_last = |file: u8| {
        engine.sync().unwrap();
        while engine.background_step().unwrap() {}
        is_in_leaves(file) && file > 5
    };
    let last = (0..100).find(|file| was_last(*file)).unwrap();
    // As much as fills it.
    assert!((0..4).all(|_| is_in_leaves(last)));
    let bound = engine.stats().runs_bound;
    let root = engine.volume().root(Tree::Data).read().clone();
    match &mut root.state.write().body {
        Body::Interior(interior) => interior.children.iter_mut().for_each(|child| child.strip = 200),
        Body::Leaf(_) => panic!("the tree is more than a leaf"),
    }
    engine.sync().unwrap();
    assert_eq!(engine.stats().runs_bound, bound);
}

/// Its first leaf was written for a run of which the log had to take the rest, and so all.
#[test]
fn no_leaf_is_written_for_a_run_of_which_a_part_waits() {
    let (engine, _) = small_volume(256 << 10, 64 << 10);
    let run = |first: u64| {
        let before = engine.stats().straight_messages;
        change(&engine, |batch| batch.put_run(Tree::Data, &b"file"[..], first, vec![first as u8; 512 << 10]));
        engine.stats().straight_messages - before
    };
    for part in 0..40 {
        run(part * 128);
        while engine.background_step().unwrap() {}
    }
    let some_wait = |step: u64| {
        engine.checkpoint().unwrap();
        // It makes a leaf or two dirty, and the next is written over from there on.
        run(step * 37 % 4000);
        while engine.background_step().unwrap() {}
        engine.sync().unwrap();
        let before = engine.stats();
        let straight = run(step * 37 % 4000 + 64);
        engine.sync().unwrap();
        let after = engine.stats();
        let is_part = (48..128).contains(&straight);
        assert!(!is_part || before.binding_bytes == after.binding_bytes, "{straight} blocks, step {step}");
        is_part
    };
    assert!((0..200).filter(|step| some_wait(*step)).count() > 3);
}
