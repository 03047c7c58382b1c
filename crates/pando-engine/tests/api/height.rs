//! Moving ranges about does not make a tree higher (BT-6).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_device::simulated::Random;
use pando_engine::{Background, Batch, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};

const MOVES: usize = 500;
/// Exchanges that happen to follow each other closely leave a tree higher than others do, so several orders are tried.
const ORDERS: u64 = 21;
const HEIGHT_MAX: u8 = 12;
const HEIGHT_MEDIAN_MAX: u8 = 6;

type Keys = BTreeMap<Bytes, Bytes>;

fn moved(keys: &mut Keys, from: &[u8], to: &[u8]) {
    let own: Vec<_> = keys.keys().filter(|key| key.starts_with(from)).cloned().collect();
    for key in own {
        let value = keys.remove(&key).unwrap();
        keys.insert([to, &key[from.len()..]].concat().into(), value);
    }
}

fn contents(engine: &Engine) -> Keys {
    let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
    let scan = engine.waiting(|| engine.scan(Tree::Metadata, &KeyRange::all(), limit));
    scan.unwrap().entries.into_iter().collect()
}

/// Range deletes that waited above hid the keys that had been moved away; what moved next led to nodes that held all of these,
/// and each move left more edges near the root, until a tree of a hundred small leaves was eighty nodes high.
#[test]
fn a_tree_stays_low_however_often_its_ranges_move() {
    let mut heights: Vec<u8> = (1..=ORDERS).map(height_behind_moves).collect();
    heights.sort_unstable();
    let (median, most) = (heights[heights.len() / 2], heights[heights.len() - 1]);
    assert!(median <= HEIGHT_MEDIAN_MAX && most <= HEIGHT_MAX, "heights {heights:?}");
}

fn height_behind_moves(seed: u64) -> u8 {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let format = FormatOptions {
        node_bytes: Some(8 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let options = Options { background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    let mut random = Random::new(seed);
    let mut keys = Keys::new();
    let directory = |random: &mut Random| -> Bytes {
        let depth = 1 + random.below(3);
        (0..depth).flat_map(|_| [b'a' + random.below(3) as u8, b'/']).collect::<Vec<u8>>().into()
    };
    for step in 0..MOVES {
        let (from, to) = (directory(&mut random), directory(&mut random));
        let mut batch = Batch::new();
        if step % 4 == 0 {
            for _ in 0..20 {
                let key = [&to[..], b"-", &random.below(40).to_be_bytes()].concat();
                let value = Bytes::from(vec![step as u8; 100]);
                batch.put(Tree::Metadata, key.clone(), value.clone());
                keys.insert(key.into(), value);
            }
        } else if !from.starts_with(&to) && !to.starts_with(&from) {
            // An exchange.
            batch.move_range(Tree::Metadata, from.clone(), to.clone());
            batch.move_range(Tree::Metadata, to.clone(), from.clone());
            moved(&mut keys, &from, b"other");
            moved(&mut keys, &to, &from);
            moved(&mut keys, b"other", &to);
        }
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    assert!(contents(&engine) == keys);
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    engine.superblock().live.metadata.height
}
