//! A node and its copy hold the same parts in memory until one of them changes.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_format::Tree;

use crate::{Background, Batch, Engine, FormatOptions, Options};

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
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let engine =
        Engine::open(device, Options { background: Background::Manual, ..Options::default() }).unwrap();
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
    volume.drop_clean_parts();
    let after = volume.cache.memory();
    assert!(after < before / 4, "{after} of {before} bytes stay");
    for number in 0..VALUES {
        let value = |place| engine.waiting(|| engine.get(Tree::Data, &key(place, number))).unwrap().unwrap();
        assert_eq!(value(b"here/"), vec![number as u8; 1024]);
        let twin = if number % 8 == 0 { vec![!(number as u8); 2000] } else { vec![number as u8; 1024] };
        assert_eq!(value(b"twin/"), twin);
    }
}
