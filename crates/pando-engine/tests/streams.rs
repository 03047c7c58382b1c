//! What a stream of large writes costs the device.

mod common;

use common::{assert_sound, formatted, get, manual, open, settle};
use pando_engine::{Batch, Compression, FormatOptions, Options, Tree};

/// Blocks of a write: no whole number of them fills a leaf.
const BLOCKS: u64 = 25;
const WRITES: u64 = 640;

/// The bytes of a write, which differ from one block to the next.
fn bytes(write: u64) -> Vec<u8> {
    (0..BLOCKS).flat_map(|block| (write * BLOCKS + block).to_be_bytes().repeat(512)).collect()
}

/// Of the writes that filled the last leaf of a batch in part, and those across two leaves, all went into the log as well, and the
/// leaf was written twice.
#[test]
fn a_stream_goes_to_the_device_once() {
    let format = FormatOptions {
        node_bytes: Some(512 << 10),
        basement_bytes: Some(64 << 10),
        log_bytes: Some(32 << 20),
        compression: Compression::None,
        ..FormatOptions::default()
    };
    let device = formatted(256, &format);
    let options = || Options { cache_bytes: 32 << 20, ..manual() };
    let engine = open(&device, options());
    for write in 0..WRITES {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, &b"f"[..], write * BLOCKS, bytes(write));
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
        settle(&engine);
    }
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
    for write in (0..WRITES).step_by(37) {
        let key = [&b"f"[..], &(write * BLOCKS).to_be_bytes()].concat();
        assert_eq!(get(&engine, Tree::Data, &key).as_deref(), Some(&bytes(write)[..4096]), "{write}");
    }
    assert_sound(&engine);
}
