//! What a comparison reads, and what it says of sides that change between two pieces.

use bytes::Bytes;
use pando_engine::{Batch, Difference, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};

use crate::common::{assert_sound, formatted, manual, open, put, settle};

const TREE: Tree = Tree::Data;
const KEYS: u32 = 40_000;

fn key(prefix: &str, number: u32) -> Vec<u8> {
    format!("{prefix}{number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    // Nothing that is compressed away, so that parts differ where values do.
    (0..100u32).map(|byte| (number.wrapping_mul(2_654_435_761) >> (byte % 24)) as u8).collect()
}

fn clone(engine: &Engine, from: &'static str, to: &'static str) {
    let clones = || {
        let mut batch = Batch::new();
        batch.clone_range(TREE, from.as_bytes(), to.as_bytes());
        engine.apply(batch)
    };
    engine.waiting(clones).unwrap();
}

fn compare(engine: &Engine, old: &'static str, new: &'static str, piece: usize) -> Vec<Difference> {
    let (old, new) = (Bytes::from(old), Bytes::from(new));
    let limit = ScanLimit { entries: piece, bytes: usize::MAX };
    let mut found = Vec::new();
    let mut rest = Some(KeyRange::all());
    while let Some(range) = rest {
        let compared = engine.waiting(|| engine.compare(TREE, &old, &new, &range, limit)).unwrap();
        found.extend(compared.differences);
        rest = compared.rest;
    }
    found
}

/// A volume on which "b" is a clone of "a", closed.
fn cloned(nodes: &FormatOptions) -> std::sync::Arc<pando_device::MemoryDevice> {
    let device = formatted(256, nodes);
    let engine = open(&device, manual());
    for number in 0..KEYS {
        put(&engine, TREE, key("a", number), value(number));
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    clone(&engine, "a", "b");
    settle(&engine);
    engine.close().unwrap();
    device
}

fn nodes() -> FormatOptions {
    FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        fanout: Some(8),
        ..FormatOptions::default()
    }
}

#[test]
fn little_is_read_where_little_differs() {
    let device = cloned(&nodes());
    let engine = open(&device, manual());
    let opened = engine.stats().bytes_read;
    assert_eq!(compare(&engine, "a", "b", 10), []);
    let read_for_nothing = engine.stats().bytes_read - opened;
    engine.close().unwrap();

    let engine = open(&device, manual());
    let changed = [17, 9_000, 19_990];
    for number in changed {
        put(&engine, TREE, key("b", number), "changed");
    }
    let mut batch = Batch::new();
    batch.delete_range(TREE, KeyRange::prefix(&b"b0123"[..]));
    engine.apply(batch).unwrap();
    settle(&engine);
    engine.close().unwrap();

    let engine = open(&device, manual());
    let opened = engine.stats().bytes_read;
    let found = compare(&engine, "a", "b", 10);
    let read = engine.stats().bytes_read - opened;
    let mut expected: Vec<u32> = changed.into_iter().chain(12_300..12_400).collect();
    expected.sort_unstable();
    let keys: Vec<_> = found.iter().map(|one| one.key.to_vec()).collect();
    assert_eq!(keys, expected.iter().map(|number| key("", *number)).collect::<Vec<_>>());
    for one in &found {
        let number: u32 = std::str::from_utf8(&one.key).unwrap().parse().unwrap();
        assert_eq!(one.old.as_ref().unwrap(), &value(number));
        assert_eq!(one.new.is_some(), changed.contains(&number));
    }
    let whole = u64::from(KEYS) * 106;
    println!("read {read_for_nothing} bytes for no difference, {read} for a small one, of {whole}");
    assert!(read_for_nothing < whole / 20, "{read_for_nothing} of {whole}");
    assert!(read < whole / 5, "{read} of {whole}");
    assert_sound(&engine);
}

/// What is sent is gathered until it makes a frame: a value in each basement node kept all of these in memory, outside of the cache.
#[test]
fn what_differs_keeps_no_basement_nodes() {
    let device = cloned(&nodes());
    let engine = open(&device, manual());
    let found = compare(&engine, "nothing", "b", 100);
    assert_eq!(found.len(), KEYS as usize);
    for one in found {
        assert!(one.key.is_unique() && one.new.unwrap().is_unique(), "{:?}", one.key);
    }
}

/// A leaf that was copied for one change holds what it held before in parts that need not be read.
#[test]
fn parts_of_a_copied_node_that_have_not_changed_are_not_read() {
    let large = FormatOptions { node_bytes: Some(4 << 20), basement_bytes: Some(16 << 10), ..nodes() };
    let device = cloned(&large);
    let engine = open(&device, manual());
    // Of the source, since a copy under other names has other bytes. The deletes bring it down to the leaf.
    put(&engine, TREE, key("a", 5_000), vec![7; 100]);
    for number in 0..2_000 {
        put(&engine, TREE, key("a", 20_000 + number % 10), vec![8; 2_000]);
    }

    settle(&engine);
    engine.close().unwrap();
    let engine = open(&device, manual());
    let opened = engine.stats().bytes_read;
    assert_eq!(compare(&engine, "a", "b", usize::MAX).len(), 11);
    let read = engine.stats().bytes_read - opened;
    println!("read {read} bytes");
    // Both sides are 4 MiB each, and a part that is read may bring the next ones along.
    assert!(read < 1 << 20, "{read}");
}

/// As long as the messages have not come down, the nodes below are shared: only what is touched is looked at.
#[test]
fn messages_above_shared_nodes_make_the_difference() {
    let device = cloned(&nodes());
    let engine = open(&device, manual());
    let mut batch = Batch::new();
    batch.put(TREE, key("a", 3), "put");
    batch.put(TREE, key("b", 4), value(4));
    batch.delete(TREE, key("b", 5));
    batch.patch(TREE, key("a", 6), 1, &b"patch"[..]);
    batch.patch(TREE, key("a", 7), 0, value(7)[..10].to_vec());
    batch.delete_range(TREE, KeyRange::prefix(key("a", 8)));
    batch.delete_range(TREE, KeyRange::prefix(key("b", 8)));
    batch.put(TREE, key("b", 8), "again");
    engine.apply(batch).unwrap();
    // A clone brings its source's messages along; they are the same and no difference.
    clone(&engine, "a", "c");
    assert_eq!(compare(&engine, "a", "c", 1), []);
    let found: Vec<_> = compare(&engine, "a", "b", 1).into_iter().map(|one| one.key).collect();
    assert_eq!(found, [3, 5, 6, 8].map(|number| key("", number)));
    assert_eq!(compare(&engine, "a", "a", 1), []);
    let nothing = compare(&engine, "nowhere", "b", 1000);
    assert_eq!(nothing.len() as u32, KEYS - 1);
    assert!(nothing.iter().all(|one| one.old.is_none()));
}

/// With a cache that holds little more than a path, and threads that flush and evict meanwhile.
#[test]
fn a_comparison_goes_on_among_flushes_and_evictions() {
    let device = cloned(&nodes());
    let options = Options { cache_bytes: 4 << 20, ..Options::default() };
    let engine = std::sync::Arc::new(open(&device, options));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (engine, stop) = (engine.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // Beside what is compared, and in it, with what is there already.
                put(&engine, TREE, key("c", number % KEYS), value(number));
                put(&engine, TREE, key("b", number % KEYS), value(number % KEYS));
                number += 7;
                std::thread::yield_now();
            }
        })
    };
    for _ in 0..5 {
        assert_eq!(compare(&engine, "a", "b", 10), []);
        assert_eq!(compare(&engine, "b", "a", 10), []);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    engine.close().unwrap();
}
