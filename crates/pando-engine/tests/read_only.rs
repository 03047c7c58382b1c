//! A volume opened for reading: the log is replayed in memory, nothing is written, and everything can be read.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{
    Background, Batch, Direction, Engine, Error, FormatOptions, KeyRange, Options, ScanLimit, Tree,
};

const RECORDS: u32 = 4000;

#[test]
fn a_replay_larger_than_the_cache_can_be_read_and_leaves_the_device_alone() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        log_bytes: Some(16 << 20),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let options = Options { background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device.clone(), options.clone()).unwrap();
    for number in 0..RECORDS {
        let mut batch = Batch::new();
        batch.put(Tree::Data, number.to_be_bytes().to_vec(), vec![number as u8; 1000]);
        engine.apply(batch).unwrap();
    }
    engine.sync().unwrap();
    drop(engine);

    let before = device.to_bytes();
    let options = Options { cache_bytes: 1 << 20, read_only: true, ..options };
    let engine = Engine::open(device.clone(), options).unwrap();
    let mut rest = Some(KeyRange::all());
    let mut found = 0;
    while let Some(range) = rest {
        engine.make_room().unwrap();
        let limit = ScanLimit { entries: 100, bytes: 1 << 20 };
        let scan = engine.waiting(|| engine.scan(Tree::Data, &range, Direction::Forward, limit)).unwrap();
        found += scan.entries.len() as u32;
        rest = scan.rest;
    }
    assert_eq!(found, RECORDS);
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    let mut batch = Batch::new();
    batch.delete(Tree::Data, &b"key"[..]);
    assert!(matches!(engine.apply(batch), Err(Error::ReadOnly { .. })));
    engine.close().unwrap();
    assert!(device.to_bytes() == before, "nothing was written");
}
