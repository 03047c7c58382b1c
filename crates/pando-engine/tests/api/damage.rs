//! A damaged node costs the keys in it, and nothing else (design 9).

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Engine, Error, Options, Tree};

use crate::common::{formatted, manual, open, put, settle, small_nodes};

const KEYS: u32 = 2000;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn value(number: u32, round: u32) -> Vec<u8> {
    format!("value {number:06} of round {round} ").repeat(4).into_bytes()
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..manual() }
}

fn put_all(engine: &Engine, round: u32) {
    for number in 0..KEYS {
        put(engine, Tree::Metadata, key(number), value(number, round));
    }
    settle(engine);
}

#[test]
fn a_damaged_leaf_costs_its_own_keys_only() {
    let device = formatted(64, &small_nodes());
    let engine = open(&device, options());
    put_all(&engine, 1);
    engine.close().unwrap();

    // Every copy of one value is made unreadable, whichever of the nodes on the device is the present one.
    let mut bytes = device.to_bytes();
    let wanted = value(1000, 1);
    let places: Vec<usize> = bytes
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, at)| **at == wanted[..])
        .map(|(i, _)| i)
        .collect();
    assert!(!places.is_empty(), "the value is on the device");
    for place in places {
        bytes[place] ^= 1;
    }
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let engine = open(&device, options());
    let get = |number: u32| engine.waiting(|| engine.get(Tree::Metadata, &key(number)));
    assert_eq!(engine.stats().reads_failed, 0);
    assert!(matches!(get(1000), Err(Error::Damaged { .. })), "{:?}", get(1000));
    assert_eq!(engine.stats().reads_failed, 1);
    let lost = (0..KEYS).filter(|number| get(*number).is_err()).count();
    assert!((1..100).contains(&lost), "{lost} keys of {KEYS} are lost with one basement node");

    // New values lie above the damage; maintenance, checkpoints and everything else go on.
    for round in 2..6 {
        put_all(&engine, round);
        engine.checkpoint().unwrap();
        for number in 0..KEYS {
            assert_eq!(get(number).unwrap().unwrap(), value(number, round), "{number} in round {round}");
        }
    }
    assert_eq!(engine.failure(), None);
}
