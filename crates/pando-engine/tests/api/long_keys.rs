//! Names behind prefixes of hundreds of KiB: a range of short names moves there, and nodes are joined around it. What is small
//! with its prefix lifted may not be so without.

use pando_engine::{Batch, Engine, FormatOptions, KeyRange, ScanLimit, Tree};

use crate::common::{assert_sound, formatted, manual, open, put, settle, small_nodes};

/// Not much less than a key may have.
const LONG: usize = 200 << 10;
/// So many of them that one part of a leaf could not hold them with their prefix.
const NAMES: u64 = 400;

fn name(number: u64) -> Vec<u8> {
    format!("name {number:03}").into_bytes()
}

fn moved(engine: &Engine, from: &[u8], to: &[u8]) {
    let mut batch = Batch::new();
    batch.move_range(Tree::Metadata, from.to_vec(), to.to_vec());
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    settle(engine);
}

/// Compares all keys, a few at a time: there may be a lot of bytes in them.
fn check(engine: &Engine, prefix: &[u8]) {
    let mut expected =
        [prefix, b"x"].into_iter().flat_map(|prefix| (0..NAMES).map(move |number| (prefix, number)));
    let mut rest = Some(KeyRange::all());
    while let Some(range) = rest {
        let limit = ScanLimit { entries: 50, bytes: 1 << 20 };
        let scan = engine.waiting(|| engine.scan(Tree::Metadata, &range, limit)).unwrap();
        for (key, value) in scan.entries {
            let (prefix, number) = expected.next().expect("there are no more keys than were put");
            assert!(key.starts_with(prefix) && key[prefix.len()..] == name(number), "name {number}");
            assert_eq!(value[..], [number as u8; 10]);
        }
        rest = scan.rest;
    }
    assert!(expected.next().is_none());
}

/// Moves names below a long prefix, several times: keys may become longer than those that can be written.
fn below_long_prefixes(options: &FormatOptions, times: usize) {
    let device = formatted(256, options);
    let engine = open(&device, manual());
    for number in 0..NAMES {
        for prefix in [b"a", b"x"] {
            put(&engine, Tree::Metadata, [prefix, &name(number)[..]].concat(), vec![number as u8; 10]);
        }
    }
    settle(&engine);
    let long = [b"a", &vec![b'l'; LONG][..]].concat();
    for _ in 0..times {
        moved(&engine, b"a", b"b");
        moved(&engine, b"b", &long);
        engine.checkpoint().unwrap();
    }
    // There and back: none of it was written out with its long prefix for each name.
    assert!(engine.stats().ranges_cloned >= times as u64, "{:?}", engine.stats());
    let prefix = [b"a", &long[1..].repeat(times)[..]].concat();
    check(&engine, &prefix);
    engine.close().unwrap();
    let engine = open(&device, manual());
    check(&engine, &prefix);
    assert_sound(&engine);
    for _ in 0..times {
        moved(&engine, &long, b"b");
        moved(&engine, b"b", b"a");
    }
    engine.checkpoint().unwrap();
    check(&engine, b"a");
    assert_sound(&engine);
}

#[test]
fn names_behind_a_long_prefix_stay_behind_it() {
    below_long_prefixes(&FormatOptions::default(), 1);
    below_long_prefixes(&small_nodes(), 1);
}

#[test]
fn keys_of_ranges_that_moved_may_be_longer_than_those_that_are_written() {
    below_long_prefixes(&FormatOptions::default(), 3);
    below_long_prefixes(&small_nodes(), 3);
}
