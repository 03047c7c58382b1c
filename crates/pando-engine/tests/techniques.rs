//! What a volume leaves out where it is told to, to measure what it gives: it holds the same without.

mod common;

use common::{assert_sound, formatted, get, manual, open};
use pando_engine::{Batch, FormatOptions, Options, Tree};

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
