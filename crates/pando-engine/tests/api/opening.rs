//! What it costs to open a volume, and what may come in while it is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use pando_device::MemoryDevice;
use pando_engine::{Batch, Engine, Error, FormatOptions, Options, Tree};

use crate::common::bad_block::BadBlock;
use crate::common::counting::Counting;
use crate::common::stage::Stage;
use crate::common::{formatted, get, manual, open, put, small_nodes};

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

/// On a volume that is nearly full each checkpoint may look for deletes in all interior nodes; that of a mount does not.
#[test]
fn a_closed_volume_that_is_nearly_full_is_opened_by_its_roots() {
    let device = Arc::new(Counting::new(64 << 20));
    Engine::format(device.clone(), &small_nodes()).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    let mut number = 0u32;
    while engine.space().free > engine.space().capacity / 5 {
        put(&engine, Tree::Data, number.to_be_bytes(), vec![1; 4096]);
        number += 1;
        if number.is_multiple_of(100) {
            engine.checkpoint().unwrap();
        }
    }
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(device.clone(), manual()).unwrap();
    let opened = engine.stats().nodes_read;
    assert!(opened <= 2, "{opened} nodes were read");
    engine.checkpoint().unwrap();
    let walked = engine.stats().nodes_read;
    assert!(walked > 20, "only {walked} nodes were read: the volume is not full, or not high, enough");
}

/// Nothing was promised behind the last checkpoint of a volume that was closed: nothing there tells of damage.
#[test]
fn the_log_of_a_closed_volume_is_hardly_read() {
    let closed = bytes_read_to_open(true);
    assert!(closed < 1 << 20, "{closed} bytes were read");
    let crashed = bytes_read_to_open(false);
    assert!(crashed > 60 << 20, "only {crashed} bytes were read where something may be missing");
}

/// A change that came behind the cut of the last checkpoint was acknowledged, and lay behind what the superblock called the end of the log.
#[test]
fn nothing_comes_in_while_a_volume_is_closed() {
    let device = Stage::new();
    let engine = Arc::new(Engine::open(device.clone(), manual()).unwrap());
    put(&engine, Tree::Metadata, *b"before", *b"value");
    let late = engine.clone();
    let (done, is_done) = channel();
    device.tell("closes", move || {
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, &b"late"[..], &b"value"[..]);
        done.send(late.apply(batch)).unwrap();
    });
    let closing = engine.clone();
    let close = std::thread::Builder::new().name("closes".to_owned()).spawn(move || closing.close());
    close.unwrap().join().unwrap().unwrap();
    let late = is_done.try_recv().expect("the checkpoint wrote nothing");
    assert!(matches!(late, Err(Error::ReadOnly { .. })), "{late:?}");
    drop(engine);
    let engine = Engine::open(device, manual()).unwrap();
    assert_eq!(engine.stats().records_replayed, 0);
    assert_eq!(get(&engine, Tree::Metadata, b"before"), Some(b"value".to_vec()));
}

/// Opens a volume with a block so far behind the end of its log that cannot be read, for reading and for writing, and goes on with it.
fn opens_with_bad_block(device: &MemoryDevice, end: u64, distance: u64) -> Result<(), Error> {
    let log = pando_engine::read_superblock(device)?.log;
    let place = log.offset + (end + distance) % log.length;
    for read_only in [true, false] {
        let device = Arc::new(BadBlock::new(device.to_bytes(), place));
        let engine = Engine::open(device.clone(), Options { read_only, ..manual() })?;
        assert_eq!(get(&engine, Tree::Metadata, b"key"), Some(b"value".to_vec()), "{distance}");
        if !read_only {
            put(&engine, Tree::Metadata, *b"next", *b"value");
            engine.sync()?;
            drop(engine);
            let engine = Engine::open(device, manual())?;
            assert_eq!(get(&engine, Tree::Metadata, b"next"), Some(b"value".to_vec()), "{distance}");
        }
    }
    Ok(())
}

/// A bad sector where nothing was kept the volume from being opened, and so from ever being written, which would have healed it.
#[test]
fn a_block_of_the_log_that_nobody_needs_need_not_be_readable() {
    let device = formatted(128, &FormatOptions { log_bytes: Some(32 << 20), ..FormatOptions::default() });
    let engine = open(&device, manual());
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.sync().unwrap();
    let end = engine.superblock().replay.offset + engine.stats().log_bytes;
    let crashed = MemoryDevice::from_bytes(device.to_bytes());
    engine.close().unwrap();
    for distance in [0, 32 << 10] {
        opens_with_bad_block(&device, engine.superblock().replay.offset, distance).unwrap();
    }
    for distance in [8 << 10, 32 << 10, 1 << 20] {
        opens_with_bad_block(&crashed, end, distance).unwrap();
    }
    // A record may be there that was promised.
    for distance in [(32 << 20) - 4096, 0] {
        let opened = opens_with_bad_block(&crashed, end, distance);
        assert!(matches!(opened, Err(Error::Device(_))), "{opened:?}");
    }
}

/// A disk may take half a minute for each.
#[test]
fn an_area_behind_the_log_that_cannot_be_read_is_not_tried_block_by_block() {
    let device = formatted(128, &FormatOptions { log_bytes: Some(32 << 20), ..FormatOptions::default() });
    let engine = open(&device, manual());
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.sync().unwrap();
    let superblock = engine.superblock();
    let end = superblock.log.offset + superblock.replay.offset + engine.stats().log_bytes;
    let crashed = device.to_bytes();
    drop(engine);
    let device = Arc::new(BadBlock::with_area(crashed, end + (64 << 10)..end + (4 << 20)));
    let engine = Engine::open(device.clone(), manual()).unwrap();
    assert_eq!(get(&engine, Tree::Metadata, b"key"), Some(b"value".to_vec()));
    let failures = device.failures.load(Ordering::Relaxed);
    assert!((16..40).contains(&failures), "{failures}");
}
