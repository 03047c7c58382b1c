//! A damaged node costs the keys in it, and nothing else (design 9).

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Batch, Engine, Error, Options, Tree, read_superblock};
use pando_format::IndexPage;

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

/// One bit of the block table kept the volume from being read.
#[test]
fn a_page_of_the_block_table_costs_whoever_reads_the_keys_of_its_nodes() {
    const KEYS: u32 = 8000;
    const CLONED: [&str; 3] = ["key 0010", "key 0035", "key 005"];
    let device = formatted(64, &small_nodes());
    let engine = open(&device, options());
    let value = |number: u32, round: u32| value(number, round).repeat(4);
    for number in 0..KEYS {
        put(&engine, Tree::Metadata, key(number), value(number, 1));
        settle(&engine);
    }
    engine.checkpoint().unwrap();
    // For replay to bring to leaves, some of which are lost.
    for number in (0..KEYS).step_by(20) {
        put(&engine, Tree::Metadata, key(number), value(number, 2));
    }
    // For replay to follow, through nodes some of which are lost.
    for prefix in CLONED {
        let mut batch = Batch::new();
        batch.clone_range(Tree::Metadata, prefix, format!("clone of {prefix}"));
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    engine.sync().unwrap();
    drop(engine);

    let bytes = device.to_bytes();
    let table = read_superblock(&*device).unwrap().table;
    assert_eq!(table.levels, 1);
    let place = |page: pando_format::Pointer| page.extent.offset as usize..page.extent.end() as usize;
    let top = IndexPage::decode(&bytes[place(table.page.unwrap())].to_vec().into()).unwrap();
    let pages: Vec<_> = top.children.iter().flatten().map(|page| page.extent.offset as usize).collect();
    assert!(pages.len() > 5, "only {} pages", pages.len());
    let (mut opened, mut clones, mut lost_clones) = (0, 0, 0);
    for page in &pages {
        let mut bytes = bytes.clone();
        bytes[page + 100] ^= 1;
        let device = Arc::new(MemoryDevice::from_bytes(bytes));
        let failed = Engine::open(Arc::new(MemoryDevice::from_bytes(device.to_bytes())), options()).map(drop);
        assert!(matches!(failed, Err(Error::Damaged { .. })), "{failed:?}");
        // That with the roots.
        let Ok(engine) = Engine::open(device, Options { read_only: true, ..options() }) else { continue };
        opened += 1;
        let is_lost = |number: u32, key: &[u8]| match engine.waiting(|| engine.get(Tree::Metadata, key)) {
            Ok(found) => {
                let round = if number.is_multiple_of(20) { 2 } else { 1 };
                assert_eq!(found, Some(value(number, round).into()), "{}", key.escape_ascii());
                false
            }
            Err(Error::Damaged { .. }) => true,
            Err(error) => panic!("{}: {error}", key.escape_ascii()),
        };
        let lost = (0..KEYS).filter(|number| is_lost(*number, &key(*number))).count();
        let is_cloned = |key: &[u8]| CLONED.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
        for (number, key) in (0..KEYS).map(|number| (number, key(number))).filter(|(_, key)| is_cloned(key)) {
            lost_clones += usize::from(is_lost(number, &[b"clone of ", &key[..]].concat()));
            clones += 1;
        }
        assert!(
            0 < lost && lost < KEYS as usize / 2,
            "{lost} keys of {KEYS} are lost with one of {} pages",
            pages.len()
        );
        assert!(engine.check_roots().concat().contains("are lost"));
        let problems = engine.check(&mut |_, _| {}).unwrap().problems;
        assert!(!problems.is_empty());
    }
    assert!(opened >= pages.len() - 2, "{opened} of {}", pages.len());
    assert!(0 < lost_clones && lost_clones < clones / 2, "{lost_clones} clones of {clones}");
}
