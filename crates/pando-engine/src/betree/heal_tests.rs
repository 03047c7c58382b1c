//! Which checkpoints heal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::MemoryDevice;
use pando_format::Tree;

use super::sink::Walk;
use crate::small_volume::{manual, small_volume};
use crate::{Batch, Engine};

const TREE: Tree = Tree::Data;

/// A volume with a few ranges to be healed that are not due, and its device.
fn wounded() -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    for number in 0..3000_u32 {
        let mut batch = Batch::new();
        batch.put(TREE, format!("{}/{number:04}", number % 3).into_bytes(), vec![1; 100]);
        engine.apply(batch).unwrap();
        engine.make_room(0).unwrap();
    }
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    let mut batch = Batch::new();
    batch.move_range(TREE, b"0/".to_vec(), b"9/".to_vec());
    engine.apply(batch).unwrap();
    while engine.background_step().unwrap() {}
    assert!(unhealed(&engine) > 0, "the move has been healed already: this proves nothing");
    (engine, device)
}

fn unhealed(engine: &Engine) -> usize {
    engine.volume().root(TREE).wounds.lock().ranges.len()
}

/// How many nodes a checkpoint copied or flushed to.
fn checkpoint(engine: &Engine) -> u64 {
    let work = || {
        let stats = engine.stats();
        stats.shared_nodes_copied + stats.flushes
    };
    let before = work();
    engine.checkpoint().unwrap();
    work() - before
}

#[test]
fn a_checkpoint_leaves_a_few_ranges_to_be_healed_later() {
    let (engine, _) = wounded();
    let before = unhealed(&engine);
    assert_eq!(checkpoint(&engine), 0);
    assert_eq!(unhealed(&engine), before);
}

#[test]
fn a_checkpoint_that_brings_deletes_down_heals() {
    let (engine, _) = wounded();
    engine.volume().reclaiming.store(true, Ordering::Relaxed);
    assert!(checkpoint(&engine) > 0);
    assert_eq!(unhealed(&engine), 0);
}

#[test]
fn the_last_checkpoint_heals() {
    let (engine, device) = wounded();
    let before = engine.stats();
    engine.close().unwrap();
    let after = engine.stats();
    assert_eq!(unhealed(&engine), 0);
    assert!(after.flushes > before.flushes, "nothing was done to heal what has moved");
    drop(engine);
    let engine = Engine::open(device, manual()).unwrap();
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn the_delete_that_a_move_leaves_takes_nothing_off_the_ballast_of_others() {
    let (engine, _) = wounded();
    let volume = engine.volume();
    volume.ballast.add(1 << 20);
    let before = volume.ballast.count().bytes;
    volume.heal_for_checkpoint(true).unwrap();
    volume.sink_tree(TREE, &mut Walk::for_space()).unwrap();
    assert_eq!(volume.ballast.count().bytes, before);
}
