//! TREE-1 against whatever makes room in memory: a clean root is tempting, and has to stay whole.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_format::Tree;

use crate::betree::node::NodeRef;
use crate::{Background, Batch, Engine, FormatOptions, Options};

/// A volume in a cache that is always too small, written and clean; its data tree has so many values of 1 KiB.
fn clean(values: u32) -> Engine {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let options = Options { cache_bytes: 1, background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    for number in 0..values {
        let mut batch = Batch::new();
        batch.put(Tree::Data, number.to_be_bytes().to_vec(), vec![number as u8; 1024]);
        engine.apply(batch).unwrap();
    }
    engine.checkpoint().unwrap();
    engine
}

fn root(engine: &Engine) -> NodeRef {
    engine.volume().root(Tree::Data).read().clone()
}

fn assert_whole(engine: &Engine, what: &str) {
    let root = root(engine);
    let state = root.state.read();
    assert!(state.dirty.is_none() && engine.volume().wants_eviction(), "there is nothing to be tempted by");
    assert_eq!(state.missing_part(), None, "{what} took a part of the root");
}

#[test]
fn a_root_stays_whole_when_memory_is_short() {
    // A leaf, then an interior node with messages.
    for (values, height) in [(20, 0), (400, 1)] {
        let engine = clean(values);
        if height > 0 {
            while engine.background_step().unwrap() {}
            let mut batch = Batch::new();
            batch.put(Tree::Data, &b"waits"[..], &b"in the root"[..]);
            engine.checkpoint().unwrap();
            engine.apply(batch).unwrap();
            engine.checkpoint().unwrap();
            let root = root(&engine);
            assert!(root.state.read().interior().buffer_bytes() > 0, "no message waits in the root");
        }
        assert_eq!(root(&engine).state.read().height, height);
        engine.volume().evict().unwrap();
        assert_whole(&engine, "eviction");
        engine.volume().evict_for_query().unwrap();
        assert_whole(&engine, "eviction for a query");
    }
}

#[test]
fn a_root_stays_whole_when_data_stream_by() {
    let engine = clean(20);
    let root = root(&engine);
    // More than the queue keeps, and one more, since it keeps the last.
    for _ in 0..3 {
        engine.volume().pass(&root, 0..usize::MAX, 1 << 30);
    }
    assert_whole(&engine, "a stream");
}
