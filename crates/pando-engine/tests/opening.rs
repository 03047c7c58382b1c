//! What it costs to open a volume.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::counting::Counting;
use common::{get, manual, put};
use pando_engine::{Engine, FormatOptions, Tree};

/// A volume with a log of 64 MiB, in which some was written, and whether it was closed; bytes read to open it again.
fn bytes_read_to_open(closed: bool) -> usize {
    let device = Arc::new(Counting::new(1 << 30));
    Engine::format(device.clone(), &FormatOptions::default()).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    for i in 0..100u8 {
        put(&engine, Tree::Metadata, [i], vec![i; 1000]);
        engine.sync().unwrap();
    }
    if closed {
        engine.close().unwrap();
    }
    drop(engine);
    device.read_bytes.store(0, Ordering::Relaxed);
    let engine = Engine::open(device.clone(), manual()).unwrap();
    let read = device.read_bytes.load(Ordering::Relaxed);
    assert_eq!(get(&engine, Tree::Metadata, &[99]), Some(vec![99; 1000]));
    read
}

/// Nothing was promised behind the last checkpoint of a volume that was closed: nothing there tells of damage.
#[test]
fn the_log_of_a_closed_volume_is_hardly_read() {
    let closed = bytes_read_to_open(true);
    assert!(closed < 1 << 20, "{closed} bytes were read");
    let crashed = bytes_read_to_open(false);
    assert!(crashed > 60 << 20, "only {crashed} bytes were read where something may be missing");
}
