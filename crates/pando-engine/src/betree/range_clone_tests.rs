//! Clones that come faster than maintenance lowers the tree again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::MemoryDevice;
use pando_format::{Bound, Msn, Pending, Tree};

use super::sink::Walk;
use crate::small_volume::{change, manual, small_volume, volume_on};
use crate::{Background, Batch, Engine, Error, FormatOptions, KeyRange, Options, ScanLimit};

/// Messages that do not come along with a clone, a few more than that takes.
const MESSAGES: u32 = 1100;
/// What `RAISED_HEIGHT_MAX` promises.
const HEIGHT_MAX: u8 = 6;
const MOVES: usize = 120;
/// Moves before any maintenance.
const MOVES_ALONE: usize = 40;
const DIRECTORIES: usize = 12;
const OTHERS: usize = 20_000;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn scan(engine: &Engine) -> Map {
    let mut found = Map::new();
    let mut rest = Some(KeyRange::all());
    while let Some(range) = rest {
        let limit = ScanLimit { entries: 1000, bytes: 1 << 20 };
        let scan = engine.waiting(|| engine.scan(Tree::Data, &range, limit)).unwrap();
        found.extend(scan.entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        rest = scan.rest;
    }
    found
}

fn assert_sound(engine: &Engine, model: &Map) {
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    assert!(scan(engine) == *model, "what is there is not what was written and moved");
}

/// A directory's name, which alternates.
fn prefix(directory: usize, turn: usize) -> Vec<u8> {
    format!("{}{directory:02}\0", ["a", "b"][turn % 2]).into_bytes()
}

/// The keys that begin with a directory's name.
fn below(prefix: &[u8]) -> Range<Vec<u8>> {
    let name = &prefix[..prefix.len() - 1];
    prefix.to_vec()..[name, b"\x01"].concat()
}

fn put(engine: &Engine, model: &mut Map, key: Vec<u8>, value: Vec<u8>) {
    let mut batch = Batch::new();
    batch.put(Tree::Data, key.clone(), value.clone());
    engine.apply(batch).unwrap();
    model.insert(key, value);
}

#[test]
fn a_tree_that_is_raised_by_clones_stays_low_and_whole() {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let format = FormatOptions {
        node_bytes: Some(1 << 20),
        basement_bytes: Some(128 << 10),
        fanout: Some(16),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let options = Options { cache_bytes: 64 << 20, background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device.clone(), options.clone()).unwrap();
    let height = || engine.volume().root(Tree::Data).read().state.read().height;
    let mut model = Map::new();
    let mut heights = Vec::new();
    // A root that is a leaf is no more than a copy.
    for number in 0..OTHERS {
        put(&engine, &mut model, format!("other {number:06}").into_bytes(), vec![b'x'; 100]);
    }
    while engine.background_step().unwrap() {}
    for round in 0..MOVES {
        let (directory, turn) = (round % DIRECTORIES, round / DIRECTORIES);
        let (from, to) = (prefix(directory, turn), prefix(directory, turn + 1));
        for number in 0..MESSAGES {
            let key = [&from[..], &(number * 3 + turn as u32 % 3).to_be_bytes()].concat();
            put(&engine, &mut model, key, vec![round as u8; 40 + number as usize % 50]);
        }
        let moves = || {
            let mut batch = Batch::new();
            batch.move_range(Tree::Data, from.clone(), to.clone());
            engine.apply(batch)
        };
        engine.waiting(moves).unwrap();
        let moved: Vec<_> = model.extract_if(below(&from), |_, _| true).collect();
        model.extract_if(below(&to), |_, _| true).for_each(drop);
        model.extend(moved.into_iter().map(|(key, value)| ([&to[..], &key[from.len()..]].concat(), value)));
        // At first nothing but the clones changes the height; then maintenance has its turns.
        if round < MOVES_ALONE {
            heights.push(height());
        } else if round % 20 == 19 {
            while engine.background_step().unwrap() {}
            assert_sound(&engine, &model);
        }
    }
    assert!(heights.is_sorted() && heights[0] < HEIGHT_MAX, "the tree was not raised by clones: {heights:?}");
    assert_eq!(heights.last(), Some(&HEIGHT_MAX), "{heights:?}");
    assert_eq!(engine.stats().ranges_cloned as usize, MOVES);
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(device, options).unwrap();
    assert_sound(&engine, &model);
}

/// What is read in order goes again before so much has been read, so an attempt that needs all of it at once would be made for ever.
#[test]
fn a_range_that_is_mostly_deleted_is_not_read_for_a_copy() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let options = Options {
        cache_bytes: 8 << 20,
        background: Background::Manual,
        copied_bytes: Some(64 << 10),
        ..Options::default()
    };
    let open = || Engine::open(device.clone(), options.clone()).unwrap();
    let engine = open();
    let key = |number: u32| [&b"from"[..], &number.to_be_bytes()].concat();
    let mut model = Map::new();
    for number in 0..8000 {
        put(&engine, &mut model, key(number), vec![number as u8; 1000]);
        engine.make_room(0).unwrap();
    }
    while engine.background_step().unwrap() {}
    // Pieces of which none hides a leaf.
    for number in (10..7990).step_by(20) {
        let mut batch = Batch::new();
        let piece = KeyRange::new(Bound::before(key(number)), Bound::before(key(number + 20)));
        batch.delete_range(Tree::Data, piece);
        engine.apply(batch).unwrap();
        model.retain(|at, _| !(key(number)..key(number + 20)).contains(at));
    }
    engine.close().unwrap();
    drop(engine);

    let engine = open();
    let mut batch = Batch::new();
    batch.clone_range(Tree::Data, &b"from"[..], &b"to"[..]);
    let mut reads = 0;
    while let Err(error) = engine.apply(batch.clone()) {
        let Error::Miss(miss) = error else { panic!("{error}") };
        engine.fetch(miss).unwrap();
        reads += 1;
        assert!(reads < 1000, "it reads for ever");
    }
    assert_eq!((engine.stats().ranges_cloned, engine.stats().ranges_copied), (1, 0));
    let copies: Vec<_> =
        model.iter().map(|(key, value)| ([b"to", &key[4..]].concat(), value.clone())).collect();
    model.extend(copies);
    assert_sound(&engine, &model);
}

/// Blocks of files, ten to a file, as many bytes as a move copies only if they are in memory and there is space for them.
fn files(device: &Arc<MemoryDevice>, count: u32) -> (Engine, Map) {
    let engine = volume_on(device);
    let mut model = Map::new();
    for file in 0..count {
        for number in 0..10 {
            put(&engine, &mut model, block(&file_name(file), number), vec![number as u8; 1000]);
        }
    }
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    assert!(engine.volume().shape.node_bytes / 64 < 10_000 && engine.volume().copied_blocks() > 10_000);
    (engine, model)
}

fn file_name(file: u32) -> Vec<u8> {
    format!("file {file:04}/").into_bytes()
}

fn block(name: &[u8], number: u32) -> Vec<u8> {
    [name, &number.to_be_bytes()].concat()
}

/// Gives files other names, in one batch, and returns how many went by copy and by goto.
fn rename(engine: &Engine, model: &mut Map, files: Range<u32>) -> (u64, u64) {
    let before = engine.stats();
    let mut batch = Batch::new();
    for (from, to) in files.map(|file| (file_name(file), [b"new ", &file_name(file)[..]].concat())) {
        batch.move_range(Tree::Data, from.clone(), to.clone());
        for number in 0..10 {
            let value = model.remove(&block(&from, number)).unwrap();
            model.insert(block(&to, number), value);
        }
    }
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    let after = engine.stats();
    (after.ranges_copied - before.ranges_copied, after.ranges_cloned - before.ranges_cloned)
}

#[test]
fn blocks_in_memory_move_by_copy_where_there_is_space() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (engine, mut model) = files(&device, 100);
    let ballast = || engine.volume().ballast.count().bytes;
    let before = ballast();
    assert_eq!(rename(&engine, &mut model, 0..1), (1, 0));
    assert_eq!(ballast() - before, 10_000, "what the leaves hold of it until the delete is down");
    let to_be_healed = || engine.volume().root(Tree::Data).wounds.lock().ranges.len();
    assert_eq!(to_be_healed(), 0, "no range has come by goto, and a copy leaves what a deletion leaves");
    // One batch copies no more than one range may have.
    assert_eq!(rename(&engine, &mut model, 1..4), (0, 3));

    // No more space is given than there is, and none to what is to free some.
    let volume = engine.volume();
    let spare = volume.allocator.counters().usable - volume.space_needed();
    assert_eq!((volume.blocks_max(false), volume.blocks_max(true)), (volume.copied_blocks(), 0));
    volume.bound_bytes.fetch_add(spare - 500_000, Ordering::Relaxed);
    assert_eq!(volume.blocks_max(false), 0);
    volume.bound_bytes.fetch_sub(spare - 500_000, Ordering::Relaxed);
    assert_eq!(rename(&engine, &mut model, 4..5), (1, 0));
    assert_sound(&engine, &model);

    // A recovery has the more to write, and no more space.
    engine.sync().unwrap();
    drop(engine);
    let engine = Engine::open(device.clone(), manual()).unwrap();
    assert_eq!((engine.stats().ranges_copied, engine.stats().ranges_cloned), (0, 5));
    assert_sound(&engine, &model);
    engine.close().unwrap();
    drop(engine);

    // What is not in memory is not read for it.
    let engine = Engine::open(device, manual()).unwrap();
    assert_eq!(rename(&engine, &mut model, 50..51), (0, 1));
    assert_sound(&engine, &model);
}

/// A few bytes kept all of the basement node that they were read with, in the leaf to which they had moved.
#[test]
fn what_moves_by_copy_keeps_nothing_that_was_read() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let engine = volume_on(&device);
    for file in 0..100 {
        put(&engine, &mut Map::new(), file_name(file), vec![7; 100]);
    }
    while engine.background_step().unwrap() {}
    engine.close().unwrap();
    let engine = Engine::open(device, manual()).unwrap();
    let volume = engine.volume();
    let (from, to) = (file_name(50).into(), file_name(1000).into());
    let plan = engine.waiting(|| volume.plan_copy(Tree::Data, &from, &to, 0)).unwrap().unwrap();
    assert_eq!(plan.copies().len(), 1);
    assert!(plan.copies()[0].1.is_unique());
}

/// The old name's copy holds nearly all that the leaf had, and a delete of the new name cuts that off.
#[test]
fn leaves_whose_copies_live_on_take_no_ballast_along() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (engine, mut model) = files(&device, 100);
    let volume = engine.volume();
    assert_eq!(rename(&engine, &mut model, 1..4), (0, 3));
    put(&engine, &mut model, block(&file_name(4), 0), vec![1; 1000]);
    let flush = || {
        volume.sink_tree(Tree::Data, &mut Walk::for_space()).unwrap();
        while engine.background_step().unwrap() {}
    };
    flush();
    // More than all leaves hold.
    volume.ballast.add(1 << 30);
    let (before, reclaimed) = (volume.ballast.count().bytes, engine.stats().nodes_reclaimed);
    for file in 1..4 {
        let name = [b"new ", &file_name(file)[..]].concat();
        change(&engine, |batch| batch.delete_range(Tree::Data, KeyRange::prefix(name.clone())));
    }
    flush();
    assert!(engine.stats().nodes_reclaimed > reclaimed, "no leaf was cut off");
    let shed = before - volume.ballast.count().bytes;
    assert!(shed <= 3 * 11_000, "{shed} bytes");
}

#[test]
fn clones_of_blocks_share_them() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (engine, mut model) = files(&device, 100);
    let mut batch = Batch::new();
    batch.clone_range(Tree::Data, file_name(7), &b"clone/"[..]);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    assert_eq!((engine.stats().ranges_copied, engine.stats().ranges_cloned), (0, 1));
    for number in 0..10 {
        model.insert(block(b"clone/", number), vec![number as u8; 1000]);
    }
    assert_sound(&engine, &model);
}

/// Each of these carried what waits for its range, so a record of a few kilobytes could ask for any amount of memory, and for a root that nobody could write.
#[test]
fn what_comes_along_with_a_batch_has_a_bound() {
    let (engine, _) = small_volume(4 << 20, 128 << 10);
    let put = |key: u8| change(&engine, |batch| batch.put(Tree::Data, vec![key], vec![key; 1 << 20]));
    (0..20).for_each(|key| {
        put(key);
        while engine.background_step().unwrap() {}
    });
    let root = engine.volume().root(Tree::Data).read().clone();
    assert!(root.height > 0);
    // It waits in the root.
    let value = Pending::Put(vec![1; 3 << 20].into());
    root.state.write().interior_mut().push("long".into(), Msn { lsn: 1, sub: 0 }, value);
    let mut batch = Batch::new();
    for number in 0..400 {
        batch.clone_range(Tree::Data, b"long".to_vec(), format!("clone {number}\0"));
    }
    engine.waiting(|| engine.apply(batch.clone())).unwrap();
    let load = engine.volume().root_load(Tree::Data);
    assert!((12 << 20..20 << 20).contains(&load.bytes), "{}", load.bytes);
    let value =
        |number: usize| engine.waiting(|| engine.get(Tree::Data, format!("clone {number}\0").as_bytes()));
    for number in [0, 5, 6, 399] {
        assert_eq!(value(number).unwrap().unwrap().len(), 3 << 20, "{number}");
    }
}
