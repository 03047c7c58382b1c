//! A subtree that is cut off between two checkpoints is gone from both sides: from the node above it and from the block table.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Background, Batch, Bound, Engine, FormatOptions, KeyRange, Options, Tree};

fn open(device: &Arc<MemoryDevice>) -> Engine {
    let options = Options { background: Background::Manual, ..Options::default() };
    Engine::open(device.clone(), options).unwrap()
}

/// A checkpoint left the root clean; pruning then changed it without saying so, and the next checkpoint wrote a block table
/// without the nodes that the root on the device still led to.
#[test]
fn pruning_below_a_root_that_was_just_written_reaches_the_next_checkpoint() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = FormatOptions {
        node_bytes: Some(16 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let engine = open(&device);
    for number in 0..2000u32 {
        let mut batch = Batch::new();
        let key = [if number < 1800 { b"a" } else { b"b" }, &number.to_be_bytes()[..]].concat();
        batch.put(Tree::Metadata, key, vec![7; 100]);
        engine.make_room().unwrap();
        engine.apply(batch).unwrap();
        while engine.background_step().unwrap() {}
    }
    engine.checkpoint().unwrap();
    let mut batch = Batch::reclaiming();
    batch.delete_range(Tree::Metadata, KeyRange::new(Bound::least(), Bound::after(&b"a"[..])));
    engine.apply(batch).unwrap();
    engine.checkpoint().unwrap();
    let before = engine.stats().pruned_subtrees;
    while engine.background_step().unwrap() {}
    assert!(engine.stats().pruned_subtrees > before, "the range delete covers a subtree of the root");
    engine.checkpoint().unwrap();
    drop(engine);

    let engine = open(&device);
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    let b = [b"b", &1999u32.to_be_bytes()[..]].concat();
    assert!(engine.waiting(|| engine.get(Tree::Metadata, &b)).unwrap().is_some());
    let a = [b"a", &5u32.to_be_bytes()[..]].concat();
    assert_eq!(engine.waiting(|| engine.get(Tree::Metadata, &a)).unwrap(), None);
}
