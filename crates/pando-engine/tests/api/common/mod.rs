//! A volume in memory, and short names for what tests do with it.

pub mod bad_block;
pub mod buffered;
pub mod counting;
pub mod stage;

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Background, Batch, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};

/// Nodes so small that the trees of a test are deep.
pub fn small_nodes() -> FormatOptions {
    FormatOptions {
        node_bytes: Some(16 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    }
}

/// An empty volume of so many MiB.
pub fn formatted(capacity_mib: u64, options: &FormatOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(capacity_mib << 20));
    Engine::format(device.clone(), options).unwrap();
    device
}

/// Background work is done where a test asks for it.
pub fn manual() -> Options {
    Options { background: Background::Manual, ..Options::default() }
}

pub fn open(device: &Arc<MemoryDevice>, options: Options) -> Engine {
    Engine::open(device.clone(), options).unwrap()
}

pub fn put(engine: &Engine, tree: Tree, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
    let mut batch = Batch::new();
    batch.put(tree, key.into(), value.into());
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

pub fn get(engine: &Engine, tree: Tree, key: &[u8]) -> Option<Vec<u8>> {
    engine.waiting(|| engine.get(tree, key)).unwrap().map(Vec::from)
}

/// All keys and values of a tree.
pub fn scan(engine: &Engine, tree: Tree) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = Some(KeyRange::all());
    while let Some(range) = rest {
        engine.make_room(0).unwrap();
        let limit = ScanLimit { entries: 100, bytes: 1 << 20 };
        let scan = engine.waiting(|| engine.scan(tree, &range, limit)).unwrap();
        found.extend(scan.entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        rest = scan.rest;
    }
    found
}

/// Does background work until there is none.
pub fn settle(engine: &Engine) {
    while engine.background_step().unwrap() {}
}

/// Every byte is as it should be.
pub fn assert_sound(engine: &Engine) {
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}
