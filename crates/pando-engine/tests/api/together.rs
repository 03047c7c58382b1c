//! Batches that move and clone many ranges.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Batch, Engine, Tree};

use crate::common::{assert_sound, formatted, manual, open, put, scan, settle, small_nodes};

const RANGES: usize = 1500;
const VALUE: usize = 200;

fn key(letter: char, range: usize, number: usize) -> Vec<u8> {
    format!("{letter}{range:04}/{number}").into_bytes()
}

/// A volume with one key in each of the ranges below `a`, in leaves.
fn with_a_key_each() -> (Arc<MemoryDevice>, Engine) {
    let device = formatted(64, &small_nodes());
    let engine = open(&device, manual());
    for range in 0..RANGES {
        put(&engine, Tree::Data, key('a', range, 0), vec![range as u8; VALUE]);
        engine.make_room(0).unwrap();
    }
    settle(&engine);
    (device, engine)
}

/// Clones each of the ranges below `a`, of which each is small enough to be copied.
fn clone_all(engine: &Engine) {
    let clone = || {
        let mut batch = Batch::new();
        for range in 0..RANGES {
            batch.clone_range(Tree::Data, format!("a{range:04}/"), format!("b{range:04}/"));
        }
        engine.apply(batch)
    };
    engine.changing(0, clone).unwrap();
}

fn a_key_each_and_its_clone() -> Vec<(Vec<u8>, Vec<u8>)> {
    let below = |letter| (0..RANGES).map(move |range| (key(letter, range, 0), vec![range as u8; VALUE]));
    below('a').chain(below('b')).collect()
}

/// All copies came into the root at once, whatever their number: hundreds of megabytes, of which a checkpoint that came before the next flush could not write
/// a part, and the volume took no changes any more.
#[test]
fn many_small_ranges_are_not_all_copied_into_the_root() {
    let (device, engine) = with_a_key_each();
    clone_all(&engine);
    let stats = engine.stats();
    let (copied, cloned) = (stats.ranges_copied as usize, stats.ranges_cloned as usize);
    assert_eq!(copied + cloned, RANGES);
    // As much as may wait in a root, four nodes' worth.
    assert!((100..=(4 * (16 << 10)) / VALUE).contains(&copied), "{copied}");
    let expected = a_key_each_and_its_clone();
    assert!(scan(&engine, Tree::Data) == expected);
    // A replay finds most of them not in memory.
    engine.sync().unwrap();
    drop(engine);
    let engine = open(&device, manual());
    assert!(scan(&engine, Tree::Data) == expected);
    settle(&engine);
    assert!(scan(&engine, Tree::Data) == expected);
    assert_sound(&engine);
}

/// Each leaf that had to be read began the plan of all anew.
#[test]
fn many_ranges_are_cloned_without_a_look_at_leaves_that_are_not_in_memory() {
    let (device, engine) = with_a_key_each();
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device, manual());
    clone_all(&engine);
    let stats = engine.stats();
    assert_eq!((stats.ranges_cloned, stats.ranges_copied), (RANGES as u64, 0));
    // Some twenty leaves hold them.
    assert!(stats.misses < 20, "{} misses", stats.misses);
    settle(&engine);
    assert!(scan(&engine, Tree::Data) == a_key_each_and_its_clone());
    assert_sound(&engine);
}

/// Of each range more waits in the root than a node holds, all together.
#[test]
fn what_waits_for_many_ranges_does_not_all_come_along() {
    let device = formatted(64, &small_nodes());
    let engine = open(&device, manual());
    for range in 0..RANGES {
        let mut batch = Batch::new();
        (0..8).for_each(|number| batch.put(Tree::Data, key('a', range, number), vec![range as u8; VALUE]));
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    // None of it straight to its leaf: they are clean.
    for range in (0..RANGES).step_by(8) {
        put(&engine, Tree::Data, key('a', range, 3), vec![1; 8 * VALUE]);
    }
    let before = engine.stats().messages;
    clone_all(&engine);
    let stats = engine.stats();
    assert!(stats.ranges_cloned as usize > RANGES / 2, "{}", stats.ranges_cloned);
    // Beside a delete and a goto for each range.
    let carried = stats.messages - before - 2 * RANGES as u64;
    assert!((20..60).contains(&carried), "{carried} messages of {}", RANGES / 8);
    let value = |range: usize, number: usize| match number {
        3 if range.is_multiple_of(8) => vec![1; 8 * VALUE],
        _ => vec![range as u8; VALUE],
    };
    let all = (0..RANGES).flat_map(|range| (0..8).map(move |number| (range, number)));
    let below =
        |letter| all.clone().map(move |(range, number)| (key(letter, range, number), value(range, number)));
    let expected: Vec<_> = below('a').chain(below('b')).collect();
    assert!(scan(&engine, Tree::Data) == expected);
    engine.sync().unwrap();
    drop(engine);
    let engine = open(&device, manual());
    assert!(scan(&engine, Tree::Data) == expected);
    assert_sound(&engine);
}
