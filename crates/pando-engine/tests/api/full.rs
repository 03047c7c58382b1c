//! A volume is full only when no checkpoint would change that (SP-1).

use std::sync::atomic::{AtomicU64, Ordering};

use pando_device::simulated::Random;
use pando_engine::{Batch, Engine, Error, FormatOptions, Options, Tree};

use crate::common::{assert_sound, formatted, get, manual, open, scan, settle};

/// Values, half of what the volume holds.
const COUNT: u64 = 2500;
const VALUE_BYTES: usize = 8 << 10;
/// More than a 64th of the volume.
const LARGE_BYTES: u64 = 2 << 20;
/// Of one of many changes at a time.
const CHANGE_BYTES: u64 = 1 << 20;

fn volume() -> Engine {
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        log_bytes: Some(16 << 20),
        ..FormatOptions::default()
    };
    open(&formatted(64, &format), Options { cache_bytes: 4 << 20, ..manual() })
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn putting(number: u64, value: u8) -> Batch {
    let mut batch = Batch::new();
    batch.put(Tree::Data, key(number), vec![value; VALUE_BYTES]);
    batch
}

fn large(value: u8) -> Batch {
    let mut batch = Batch::new();
    for number in 0..LARGE_BYTES / VALUE_BYTES as u64 {
        batch.put(Tree::Data, key(number), vec![value; VALUE_BYTES]);
    }
    batch
}

/// On a volume half full, flushes wrote leaves anew until the old ones, which only waited for a checkpoint, took the other
/// half. A change was told then that the volume is full, and one of more than a 64th of it did not even wait before.
#[test]
fn what_waits_for_a_checkpoint_does_not_make_a_volume_full() {
    let engine = volume();
    for number in 0..COUNT {
        engine.changing(0, || engine.apply(putting(number, 1))).unwrap();
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    let checkpoints = engine.stats().checkpoints;
    let mut random = Random::new(1);
    let mut changes = 0;
    loop {
        if !engine.has_room(LARGE_BYTES) {
            match engine.apply(large(2)) {
                Ok(_) => {}
                Err(Error::Busy) => break,
                Err(error) => panic!("behind {changes} changes: {error}"),
            }
        }
        engine.apply(putting(random.below(COUNT), 2)).unwrap();
        engine.background_step().unwrap();
        changes += 1;
    }
    assert_eq!(engine.stats().checkpoints, checkpoints, "the volume was never used up");
    assert!(!engine.has_room(0), "a refused change waits for a checkpoint");

    engine.make_room(LARGE_BYTES).unwrap();
    assert!(engine.stats().checkpoints > checkpoints);
    assert!(engine.has_room(LARGE_BYTES));
    engine.apply(large(3)).unwrap();
    assert_eq!(get(&engine, Tree::Data, &key(7)), Some(vec![3; VALUE_BYTES]));
    assert_eq!(scan(&engine, Tree::Data).len() as u64, COUNT);
    assert_sound(&engine);
}

#[test]
fn a_change_that_no_checkpoint_makes_room_for_does_not_fit() {
    let engine = volume();
    let mut number = 0;
    let refused = loop {
        match engine.changing(VALUE_BYTES as u64, || engine.apply(putting(number, 1))) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::NoSpace);
    assert!(number > COUNT, "{number} values fill the volume");
    assert_eq!(engine.changing(LARGE_BYTES, || engine.apply(large(2))), Err(Error::NoSpace));
    assert_eq!(scan(&engine, Tree::Data).len() as u64, number);

    let mut batch = Batch::reclaiming();
    for number in 0..COUNT {
        batch.delete(Tree::Data, key(number));
    }
    batch.note_freed(COUNT * VALUE_BYTES as u64);
    engine.apply(batch).unwrap();
    engine.changing(LARGE_BYTES, || engine.apply(large(2))).unwrap();
    assert_eq!(get(&engine, Tree::Data, &key(7)), Some(vec![2; VALUE_BYTES]));
    assert_sound(&engine);
}

/// Writers, each with a change of so many bytes after the other, until none is let in any more; the volume takes other changes then.
fn fill_by_many_writers(capacity_mib: u64, change: impl Fn(u64) -> Batch + Sync) {
    const WRITERS: usize = 32;
    let options = Options { cache_bytes: 64 << 20, ..Options::default() };
    let engine = open(&formatted(capacity_mib, &FormatOptions::default()), options);
    let taken = AtomicU64::new(0);
    let write = || loop {
        let batch = change(taken.fetch_add(1, Ordering::Relaxed));
        if let Err(error) = engine.changing(CHANGE_BYTES, || engine.apply(batch.clone())) {
            return error;
        }
    };
    let refused: Vec<Error> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(refused, vec![Error::NoSpace; WRITERS]);
    engine.checkpoint().unwrap();
}

/// Each of many writers was let through by what was free before any of the others had come in, waited for room in the log, and came in
/// when that had been made: together they took more than there was, and no checkpoint found places any more.
#[test]
fn writers_that_come_at_once_do_not_overfill_a_volume() {
    fill_by_many_writers(256, |number| {
        let mut batch = Batch::new();
        let prefix = number.to_be_bytes().to_vec();
        batch.put_run(Tree::Data, prefix, 0, vec![1; CHANGE_BYTES as usize]);
        batch
    });
}

/// Each had been told that the root has room, when none had come in: messages of so many nodes' worth waited in it, and then in a node below, that these
/// found no places where free space was in short runs.
#[test]
fn writers_that_come_at_once_do_not_make_nodes_too_long_for_a_full_volume() {
    fill_by_many_writers(128, |number| {
        let mut batch = Batch::new();
        for place in 0..CHANGE_BYTES / 1024 {
            // Behind all edges of the root.
            let key = format!("{:07} {number:07}", (number * 7919 + place * 104_729) % 1_000_003);
            batch.put(Tree::Data, key, vec![1; 1000]);
        }
        batch
    });
}

/// A recovery with a small cache writes the same leaves over and over. Where they lay before, since the recovery began, nothing names any
/// more; while that waited for the recovery's own checkpoint, space ran out, and the volume could not be opened.
#[test]
fn a_volume_that_is_well_filled_is_recovered_with_a_small_cache() {
    const VALUES: u64 = 7600;
    const CHANGES: u64 = 1700;
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        log_bytes: Some(16 << 20),
        ..FormatOptions::default()
    };
    let device = formatted(64, &format);
    let engine = open(&device, Options { cache_bytes: 32 << 20, ..manual() });
    let put = |number: u64, value: u64| {
        let mut batch = Batch::new();
        batch.put(Tree::Data, key(number), vec![value as u8; 4000]);
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    };
    (0..VALUES).for_each(|number| put(number, 1));
    settle(&engine);
    engine.checkpoint().unwrap();
    let checkpoints = engine.stats().checkpoints;
    let mut expected = vec![1; VALUES as usize];
    let mut random = Random::new(3);
    for change in 0..CHANGES {
        let number = random.below(1500);
        put(number, change);
        expected[number as usize] = change as u8;
    }
    assert_eq!(engine.stats().checkpoints, checkpoints, "the log holds all of it");
    engine.sync().unwrap();
    drop(engine);

    let engine = open(&device, Options { cache_bytes: 512 << 10, ..manual() });
    assert!(engine.stats().records_replayed >= CHANGES);
    for (number, value) in (0..).zip(&expected) {
        assert_eq!(get(&engine, Tree::Data, &key(number)), Some(vec![*value; 4000]), "{number}");
    }
    assert_sound(&engine);
}
