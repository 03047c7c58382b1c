//! Parts that more than one holds: a node and its copy, until one of them changes, or a node and an image of it.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_format::Tree;

use crate::small_volume::{fill, volume_on};
use crate::{Batch, Engine};

const VALUES: u32 = 400;

fn settle(engine: &Engine) {
    while engine.background_step().unwrap() {}
}

fn key(place: &[u8], number: u32) -> Vec<u8> {
    [place, &number.to_be_bytes()].concat()
}

/// Neither could be dropped, since the other held it, and eviction found nothing to gain.
#[test]
fn what_a_node_shares_with_its_copy_can_be_dropped_from_both() {
    let engine = volume_on(&Arc::new(MemoryDevice::new(64 << 20)));
    for number in 0..VALUES {
        let mut batch = Batch::new();
        batch.put(Tree::Data, key(b"here/", number), vec![number as u8; 1024]);
        engine.apply(batch).unwrap();
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    let mut batch = Batch::new();
    batch.clone_range(Tree::Data, &b"here/"[..], &b"twin/"[..]);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    // Each leaf of the clone is copied for one value.
    for number in (0..VALUES).step_by(8) {
        let mut batch = Batch::new();
        batch.put(Tree::Data, key(b"twin/", number), vec![!(number as u8); 2000]);
        engine.apply(batch).unwrap();
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    assert!(engine.stats().shared_nodes_copied > 1);
    let volume = engine.volume();
    let before = volume.cache.memory();
    assert!(before > VALUES as usize * 1536, "{before} bytes of both in memory");
    volume.drop_clean(0, false);
    let after = volume.cache.memory();
    assert!(after < before / 4, "{after} of {before} bytes stay");
    for number in 0..VALUES {
        let value = |place| engine.waiting(|| engine.get(Tree::Data, &key(place, number))).unwrap().unwrap();
        assert_eq!(value(b"here/"), vec![number as u8; 1024]);
        let twin = if number % 8 == 0 { vec![!(number as u8); 2000] } else { vec![number as u8; 1024] };
        assert_eq!(value(b"twin/"), twin);
    }
}

/// What an image holds stays in memory anyhow, and would only be read again.
#[test]
fn what_is_being_written_stays_with_its_node() {
    let engine = volume_on(&Arc::new(MemoryDevice::new(64 << 20)));
    fill(&engine, VALUES);
    engine.checkpoint().unwrap();
    let volume = engine.volume();
    let nodes =
        || volume.cache.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>());
    let before = volume.cache.memory();
    nodes().for_each(|node| node.state.write().writing = true);
    volume.drop_clean(0, false);
    nodes().for_each(|node| volume.pass(&node, 0..usize::MAX, 1 << 30));
    assert_eq!(volume.cache.memory(), before);
    nodes().for_each(|node| node.state.write().writing = false);
    volume.drop_clean(0, false);
    assert!(volume.cache.memory() < before / 2);
}
