//! What happens while a checkpoint is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pando_device::MemoryDevice;
use pando_format::Tree;

use crate::small_volume::{Busy, assert_sound, fill, manual, volume_on};
use crate::volume::Volume;
use crate::{Batch, Engine, Error, Options};

/// The superblock said that generations of its own nodes were never used, and the volume could not be opened.
#[test]
fn a_checkpoint_knows_the_generations_of_its_last_nodes() {
    let device = Arc::new(Busy::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 2000);
    // During each write others write two million nodes, as far as their generations tell.
    let volume = Arc::downgrade(engine.volume());
    *device.work.lock() = Some(Box::new(move || {
        let Some(volume) = volume.upgrade() else { return false };
        volume.next_generation.fetch_add(1 << 21, Ordering::Relaxed);
        true
    }));
    engine.checkpoint().unwrap();
    drop(engine);
    assert_sound(&Engine::open(device, manual()).unwrap());
}

/// Files of a damaged volume that said to be as large as a number can be made the sum overflow.
#[test]
fn deletes_free_no_more_than_a_volume_has() {
    let engine = volume_on(&Arc::new(MemoryDevice::new(64 << 20)));
    fill(&engine, 100);
    let before = engine.volume().dead_bytes.load(Ordering::Relaxed);
    for number in 0..2_u32 {
        let mut batch = Batch::reclaiming();
        batch.delete(Tree::Data, number.to_be_bytes().to_vec());
        batch.note_freed(u64::MAX);
        engine.apply(batch).unwrap();
    }
    let (volume, capacity) = (engine.volume(), engine.space().capacity);
    assert_eq!(volume.dead_bytes.load(Ordering::Relaxed), before + 2 * capacity);
    assert!(volume.ballast.count().bytes <= 2 * capacity);
    volume.dead_bytes.store(u64::MAX, Ordering::Relaxed);
    engine.admit(1).unwrap();
    assert_eq!(engine.admit(2 * capacity), Err(Error::Busy));
    engine.checkpoint().unwrap();
    assert_eq!(engine.admit(2 * capacity), Err(Error::NoSpace));
    assert_sound(&engine);
}

/// Leaves of the free space every other run of a fourth of a node, so that eight hold two nodes, and one of so many bytes.
fn fragment(engine: &Engine, long: u64) {
    let allocator = &engine.volume().allocator;
    let long = (long > 0).then(|| allocator.allocate(long, &[]).unwrap()[0]);
    let runs: Vec<_> = std::iter::from_fn(|| allocator.allocate(16 << 10, &[])).flatten().collect();
    runs.into_iter().step_by(2).chain(long).for_each(|run| allocator.give_back(run));
}

/// Puts values of 1 KiB under numbers of a tree, and lets them wait.
fn put(engine: &Engine, tree: Tree, numbers: impl Iterator<Item = u32>) {
    let mut batch = Batch::new();
    numbers.for_each(|number| batch.put(tree, number.to_be_bytes().to_vec(), vec![1; 1024]));
    engine.apply(batch).unwrap();
}

fn root_bytes(engine: &Engine, tree: Tree) -> u64 {
    engine.volume().root(tree).read().state.read().write_estimate() as u64
}

/// A checkpoint found no place for a root in which messages of several nodes' worth waited, and the volume took no changes any more.
#[test]
fn a_long_root_is_flushed_where_free_space_is_in_short_runs() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 2000);
    engine.checkpoint().unwrap();
    put(&engine, Tree::Data, (0..2000).step_by(10));
    fragment(&engine, 0);
    assert!(root_bytes(&engine, Tree::Data) > engine.volume().allocator.longest_node_bytes());
    engine.checkpoint().unwrap();
    drop(engine);
    assert_sound(&Engine::open(device, manual()).unwrap());
}

/// Between the flush before a checkpoint and its cut changes made a root longer than all places for it.
#[test]
fn a_root_that_would_find_no_place_takes_no_more_until_a_checkpoint() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 2000);
    engine.checkpoint().unwrap();
    // What an earlier opening may have left. Without it a checkpoint would release next to nothing.
    engine.volume().dead_bytes.store(0, Ordering::Relaxed);
    put(&engine, Tree::Data, (0..2000).step_by(20));
    fragment(&engine, 0);
    let change = || {
        let mut batch = Batch::new();
        batch.put(Tree::Data, 7u32.to_be_bytes().to_vec(), vec![1; 1024]);
        engine.apply(batch)
    };
    assert_eq!(change(), Err(Error::Busy));
    engine.checkpoint().unwrap();
    change().unwrap();
    assert_sound(&engine);
}

/// Leaves that had changed before it used up the only run of free space in which a long root found a place.
#[test]
fn a_long_root_is_written_before_the_leaves() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 2000);
    put(&engine, Tree::Metadata, 0..1000);
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    fragment(&engine, 512 << 10);
    put(&engine, Tree::Data, (0..2000).step_by(10));
    while engine.background_step().unwrap() {}
    put(&engine, Tree::Metadata, (0..1000).step_by(5));
    let flushes = engine.stats().flushes;
    engine.checkpoint().unwrap();
    assert_eq!(engine.stats().flushes, flushes, "what waited has come down: this proves nothing");
}

/// Brings the log so far that it needs a checkpoint.
fn fill_log(volume: &Volume) {
    while !volume.log_needs_checkpoint() {
        change_one(volume, 16 << 10);
    }
}

fn change_one(volume: &Volume, bytes: usize) {
    let mut batch = Batch::new();
    batch.put(Tree::Data, b"key".to_vec(), vec![1; bytes]);
    volume.apply(batch).unwrap();
}

/// Has something done at the first write behind the next cut.
fn behind_the_cut(engine: &Engine, device: &Busy, deed: fn(&Volume)) {
    let interval = engine.volume().cache.interval();
    let volume = Arc::downgrade(engine.volume());
    *device.work.lock() = Some(Box::new(move || {
        let Some(volume) = volume.upgrade() else { return false };
        let is_cut = volume.cache.interval() != interval;
        if is_cut {
            deed(&volume);
        }
        !is_cut
    }));
}

/// Each change that came while a checkpoint was written asked for another one, since half of the log was still in use, and that followed at once.
#[test]
fn a_log_that_needs_a_checkpoint_gets_one() {
    let device = Arc::new(Busy::new(64 << 20));
    let engine = volume_on(&device);
    fill_log(engine.volume());
    // What is queued counts for more than it takes once it is written.
    (0..32).for_each(|_| change_one(engine.volume(), 16 << 10));
    behind_the_cut(&engine, &device, |volume| {
        assert!(volume.log_needs_checkpoint(), "this proves nothing");
        change_one(volume, 100);
    });
    let before = engine.stats().checkpoints;
    while engine.background_step().unwrap() {}
    assert!(device.work.lock().is_none(), "no change came meanwhile");
    assert_eq!(engine.stats().checkpoints, before + 1);
}

#[test]
fn a_log_that_fills_while_a_checkpoint_is_written_gets_another_one() {
    let device = Arc::new(Busy::new(64 << 20));
    volume_on(&device).close().unwrap();
    let engine = Engine::open(device.clone(), Options::default()).unwrap();
    let before = engine.stats().checkpoints;
    behind_the_cut(&engine, &device, fill_log);
    engine.checkpoint().unwrap();
    let begin = Instant::now();
    while engine.stats().checkpoints < before + 2 {
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody makes a checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.close().unwrap();
}
