//! What a volume leaves out where it is told to, to measure what it gives: it holds the same without.

use bytes::Bytes;
use pando_engine::{Batch, Engine, FormatOptions, KeyRange, Options, Tree};

use crate::common::{assert_sound, formatted, get, manual, open};

/// Long enough to be left out of the log.
const RUN_BYTES: usize = 256 << 10;

/// How many runs were left out of the log, and whether the bytes are there when the log is replayed.
fn bound(late_binding: bool) -> u64 {
    let device = formatted(64, &FormatOptions::default());
    let bytes: Vec<u8> = (0..RUN_BYTES).map(|place| (place / 4096) as u8).collect();
    let engine = open(&device, Options { late_binding, ..manual() });
    let mut batch = Batch::new();
    batch.put_run(Tree::Data, b"file".to_vec(), 0, bytes);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    engine.sync().unwrap();
    let bound = engine.stats().runs_bound;
    // It ends without a checkpoint.
    drop(engine);
    let engine = open(&device, manual());
    for block in 0..RUN_BYTES / 4096 {
        let key = [b"file".as_slice(), &(block as u64).to_be_bytes()].concat();
        assert_eq!(get(&engine, Tree::Data, &key), Some(vec![block as u8; 4096]), "block {block}");
    }
    assert_sound(&engine);
    bound
}

#[test]
fn without_late_binding_large_writes_go_through_the_log() {
    assert_eq!(bound(true), 1);
    assert_eq!(bound(false), 0);
}

/// Where a block lies is counted in whole blocks from the end of its basement node, whoever they belong to.
#[test]
fn a_run_is_bound_beside_other_values() {
    const BLOCKS: u64 = (RUN_BYTES / 4096) as u64;
    let device = formatted(64, &FormatOptions::default());
    let engine = open(&device, manual());
    let key = |block: u64, more: &[u8]| [b"file".as_slice(), &block.to_be_bytes(), more].concat();
    let mut batch = Batch::new();
    batch.put_run(
        Tree::Data,
        b"file".to_vec(),
        0,
        (0..RUN_BYTES).map(|place| (place / 4096) as u8).collect::<Vec<_>>(),
    );
    // As long as a block, and shorter; also behind the last one, in basement nodes that they begin.
    for block in [3, 40, BLOCKS - 1] {
        batch.put(Tree::Data, key(block, b"block"), vec![150 + block as u8; 4096]);
        batch.put(Tree::Data, key(block, b"short"), vec![block as u8; 100]);
    }
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    engine.sync().unwrap();
    assert_eq!(engine.stats().runs_bound, 1);
    drop(engine);
    let engine = open(&device, manual());
    for block in 0..BLOCKS {
        assert_eq!(
            get(&engine, Tree::Data, &key(block, b"")),
            Some(vec![block as u8; 4096]),
            "block {block}"
        );
    }
    for block in [3, 40, BLOCKS - 1] {
        let other = get(&engine, Tree::Data, &key(block, b"block"));
        assert_eq!(other, Some(vec![150 + block as u8; 4096]), "block {block}");
    }
    assert_sound(&engine);
}

/// Its leaf was taken for one that they fill, and written for nothing.
#[test]
fn runs_that_were_deleted_before_the_log_is_written_are_bound_to_no_leaf() {
    let device = formatted(64, &FormatOptions::default());
    let engine = open(&device, manual());
    let mut batch = Batch::new();
    for number in 0..20u8 {
        batch.put(Tree::Data, vec![number], vec![number; 4096]);
    }
    engine.apply(batch).unwrap();
    let mut batch = Batch::new();
    batch.put_run(Tree::Data, b"file".to_vec(), 0, vec![1; RUN_BYTES]);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    let mut batch = Batch::new();
    batch.delete_range(Tree::Data, KeyRange::prefix(b"file".to_vec()));
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    let before = engine.stats();
    engine.sync().unwrap();
    let after = engine.stats();
    assert_eq!((after.runs_bound, after.binding_bytes), (before.runs_bound, before.binding_bytes));
    drop(engine);
    let engine = open(&device, manual());
    assert_eq!(get(&engine, Tree::Data, &[7]), Some(vec![7; 4096]));
    assert_sound(&engine);
}

/// Ranges moved by goto and by copy where 20 names move, and whether they are there afterwards and when the log is replayed.
fn moved(copied_bytes: Option<usize>) -> (u64, u64) {
    let device = formatted(64, &FormatOptions::default());
    let engine = open(&device, Options { copied_bytes, ..manual() });
    let name = |directory: &str, number: u64| format!("{directory}\0{number:03}").into_bytes();
    let mut batch = Batch::new();
    for number in 0..20 {
        batch.put(Tree::Metadata, name("from", number), vec![number as u8; 8]);
    }
    engine.apply(batch).unwrap();
    let mut batch = Batch::new();
    batch.move_range(Tree::Metadata, b"from\0".to_vec(), b"to\0".to_vec());
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    engine.sync().unwrap();
    let stats = engine.stats();
    let check = |engine: &Engine| {
        for number in 0..20 {
            assert_eq!(get(engine, Tree::Metadata, &name("to", number)), Some(vec![number as u8; 8]));
            assert_eq!(get(engine, Tree::Metadata, &name("from", number)), None, "name {number}");
        }
        assert_sound(engine);
    };
    check(&engine);
    drop(engine);
    check(&open(&device, manual()));
    (stats.ranges_cloned, stats.ranges_copied)
}

#[test]
fn small_ranges_move_by_copy_unless_that_is_left_out() {
    assert_eq!(moved(None), (0, 1));
    assert_eq!(moved(Some(0)), (1, 0));
    assert_eq!(moved(Some(20_000)), (0, 1));
}

/// Both were bound to the same place, and the volume could not be opened any more.
#[test]
fn of_two_runs_of_the_same_memory_one_is_bound() {
    let device = formatted(64, &FormatOptions::default());
    let engine = open(&device, manual());
    let bytes = Bytes::from(vec![1; RUN_BYTES]);
    for _ in 0..2 {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, b"file".to_vec(), 0, bytes.clone());
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    engine.sync().unwrap();
    assert_eq!(engine.stats().runs_bound, 1);
    drop(engine);
    let engine = open(&device, manual());
    let key = [b"file".as_slice(), &7_u64.to_be_bytes()].concat();
    assert_eq!(get(&engine, Tree::Data, &key), Some(vec![1; 4096]));
    assert_sound(&engine);
}

/// What is at its place is another's.
#[test]
fn a_run_that_was_written_over_is_not_bound() {
    let device = formatted(64, &FormatOptions::default());
    let engine = open(&device, manual());
    for round in 1..=2 {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, b"file".to_vec(), 0, vec![round; RUN_BYTES]);
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    engine.sync().unwrap();
    assert_eq!(engine.stats().runs_bound, 1);
    drop(engine);
    let engine = open(&device, manual());
    assert_eq!(engine.stats().records_replayed, 2);
    let key = [b"file".as_slice(), &7_u64.to_be_bytes()].concat();
    assert_eq!(get(&engine, Tree::Data, &key), Some(vec![2; 4096]));
    assert_sound(&engine);
}
