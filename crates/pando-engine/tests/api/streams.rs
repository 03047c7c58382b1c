//! What a stream of large writes costs the device.

use std::ops::Range;

use pando_engine::{Batch, Compression, Engine, Error, FormatOptions, Options, Result, Tree};

use crate::common::{assert_sound, formatted, get, manual, open, settle};

/// Blocks of a write: no whole number of them fills a leaf.
const BLOCKS: u64 = 25;
const WRITES: u64 = 640;

/// The bytes of a write, which differ from one block to the next.
fn bytes(write: u64) -> Vec<u8> {
    (0..BLOCKS).flat_map(|block| (write * BLOCKS + block).to_be_bytes().repeat(512)).collect()
}

fn format() -> FormatOptions {
    FormatOptions {
        node_bytes: Some(512 << 10),
        basement_bytes: Some(64 << 10),
        log_bytes: Some(32 << 20),
        compression: Compression::None,
        ..FormatOptions::default()
    }
}

fn options() -> Options {
    Options { cache_bytes: 32 << 20, ..manual() }
}

/// Writes that follow each other in one file.
fn stream(engine: &Engine, writes: Range<u64>) -> Result<()> {
    for write in writes {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, &b"f"[..], write * BLOCKS, bytes(write));
        engine.changing(0, || engine.apply(batch.clone()))?;
        settle(engine);
    }
    Ok(())
}

fn assert_holds(engine: &Engine, writes: Range<u64>) {
    for write in writes.step_by(37) {
        let key = [&b"f"[..], &(write * BLOCKS).to_be_bytes()].concat();
        assert_eq!(get(engine, Tree::Data, &key).as_deref(), Some(&bytes(write)[..4096]), "{write}");
    }
    assert_sound(engine);
}

/// Of the writes that filled the last leaf of a batch in part, and those across two leaves, all went into the log as well, and the
/// leaf was written twice.
#[test]
fn a_stream_goes_to_the_device_once() {
    let device = formatted(256, &format());
    let engine = open(&device, options());
    stream(&engine, 0..WRITES).unwrap();
    let stats = engine.stats();
    let (data, log) = (WRITES * BLOCKS * 4096, stats.log_bytes);
    // The rest waits in the log's queue.
    assert!(stats.runs_bound > WRITES * 3 / 4, "{} of {WRITES}", stats.runs_bound);
    assert!(log < data / 50, "{log} bytes of {data} went into the log");
    let nodes = stats.binding_bytes + stats.checkpoint_bytes + stats.eviction_bytes;
    assert!(nodes < data / 10 * 11, "{nodes} bytes for {data}");

    // What a recovery makes of it, from the log alone.
    engine.sync().unwrap();
    drop(engine);
    let engine = open(&device, options());
    assert_eq!(engine.stats().records_replayed, WRITES);
    assert_holds(&engine, 0..WRITES);
}

/// A recovery writes anew what the log names in its place, and has to keep that place as long: for a volume that was filled by a
/// stream since its last checkpoint there was not enough space for both, and it could not be opened any more.
#[test]
fn a_volume_that_a_stream_has_filled_comes_back_from_a_crash() {
    let device = formatted(256, &format());
    let mut written = 0;
    for share in [55, 30, 10] {
        let engine = open(&device, options());
        let end = written + engine.space().available / 100 * share / (BLOCKS * 4096);
        stream(&engine, written..end).unwrap();
        written = end;
        assert!(engine.stats().runs_bound > 0);
        engine.sync().unwrap();
    }
    let engine = open(&device, options());
    assert_holds(&engine, 0..written);
    let full = stream(&engine, written..u64::MAX).unwrap_err();
    assert_eq!(full, Error::NoSpace);
    engine.sync().unwrap();
    drop(engine);
    assert_holds(&open(&device, options()), 0..written);
}
