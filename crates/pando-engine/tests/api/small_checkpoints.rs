//! What a checkpoint costs that finds little to write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_engine::{Batch, Engine, FormatOptions, Tree};

use crate::common::counting::Counting;
use crate::common::{assert_sound, get, manual, put};

/// Calls of the device since the last time: writes, flushes, discards.
fn counts(device: &Counting) -> [usize; 3] {
    [&device.writes, &device.flushes, &device.discards].map(|count| count.swap(0, Ordering::Relaxed))
}

fn volume() -> (Arc<Counting>, Engine) {
    let device = Arc::new(Counting::new(1 << 30));
    let format = FormatOptions { node_bytes: Some(4 << 20), ..FormatOptions::default() };
    Engine::format(device.clone(), &format).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    (device, engine)
}

#[test]
fn a_small_checkpoint_discards_nothing_and_flushes_twice() {
    let (device, engine) = volume();
    for tree in Tree::ALL {
        put(&engine, tree, &b"first"[..], &b"value"[..]);
    }
    engine.checkpoint().unwrap();
    for round in 0..5u8 {
        for tree in Tree::ALL {
            put(&engine, tree, &b"other"[..], vec![round; 100]);
        }
        counts(&device);
        engine.checkpoint().unwrap();
        let [writes, flushes, discards] = counts(&device);
        // Nodes, table, superblock.
        assert!(writes <= 4, "{writes} writes");
        assert_eq!((flushes, discards), (2, 0));
    }
    assert_eq!(get(&engine, Tree::Data, b"other"), Some(vec![4; 100]));
    assert_sound(&engine);
}

#[test]
fn what_is_large_is_discarded() {
    let (device, engine) = volume();
    let mut batch = Batch::new();
    batch.put_run(Tree::Data, &b"file"[..], 0, vec![7; 1 << 20]);
    engine.apply(batch).unwrap();
    engine.checkpoint().unwrap();
    counts(&device);
    let mut batch = Batch::new();
    batch.delete_range(Tree::Data, pando_engine::KeyRange::prefix(&b"file"[..]));
    engine.apply(batch).unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(counts(&device)[2], 1);
    assert!(engine.stats().discarded_bytes >= 1 << 20);
    assert_sound(&engine);
}
