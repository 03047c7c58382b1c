//! What is read ahead, step by step, on a volume whose threads do nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::{Device, MemoryDevice, WriteRequest};
use pando_format::{Bound, Tree};

use super::read_ahead::{NO_MARK, WINDOW_MIN, Wish, mark};
use crate::betree::node::{Body, NodeRef};
use crate::small_volume::{fill, manual, small_volume};
use crate::volume::Volume;
use crate::{Batch, Engine, Error, KeyRange, Options, ScanLimit};

/// Values of 1 KiB in the volume.
const VALUES: u32 = 1000;

/// A volume of some sixty leaves below three levels of interior nodes that has just been opened, and its device.
fn cold(cache_bytes: usize) -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 4 << 10);
    fill(&engine, VALUES);
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(device.clone(), Options { cache_bytes, ..manual() }).unwrap();
    assert!(engine.volume().root(Tree::Data).read().state.read().height > 1);
    (engine, device)
}

/// Scans from the start, so far that the first leaf is in memory, and gives it back.
fn first_leaf(engine: &Engine) -> NodeRef {
    let limit = ScanLimit { entries: 1, bytes: usize::MAX };
    let scan = engine.waiting(|| engine.scan(Tree::Data, &KeyRange::all(), limit)).unwrap();
    assert_eq!(scan.entries.len(), 1);
    let volume = engine.volume();
    let mut node = volume.root(Tree::Data).read().clone();
    loop {
        let below = match &node.state.read().body {
            Body::Leaf(_) => break,
            Body::Interior(interior) => interior.children[0].id,
        };
        node = volume.cached(below).unwrap();
    }
    node
}

/// A wish of whoever stands at the start.
fn wish(window: u32) -> Wish {
    Wish::new(Tree::Data, Bound::least(), window)
}

/// What the threads would do.
fn serve_and(volume: &Volume, wish: Wish, mut result: impl FnMut(crate::Result<()>)) {
    let mut next = Some(wish);
    while let Some(wish) = next {
        result(volume.read_ahead(wish));
        next = volume.cache.read_ahead.waiting_wish();
    }
}

fn serve(volume: &Volume, wish: Wish) {
    serve_and(volume, wish, |result| result.unwrap());
}

/// Values in order until one is missing in memory.
fn values_at_hand(engine: &Engine) -> usize {
    let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
    match engine.scan(Tree::Data, &KeyRange::all(), limit) {
        Ok(scan) => scan.entries.len(),
        Err(Error::Miss(_)) => 0,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_comes_to_the_mark_wishes_for_what_lies_behind() {
    let (engine, _) = cold(64 << 20);
    let volume = engine.volume();
    let leaf = first_leaf(&engine);
    let parts = leaf.state.read().leaf().basements.len();
    assert!(parts > 1);
    let middle = mark(parts / 2, WINDOW_MIN);
    assert_eq!(leaf.mark.load(Ordering::Relaxed), middle, "what was missed is marked in its middle");
    volume.comes_to(&leaf, 0, || unreachable!("nobody has come to the mark"));
    assert_eq!(leaf.mark.load(Ordering::Relaxed), middle);
    volume.comes_to(&leaf, parts / 2, Bound::least);
    assert_eq!(leaf.mark.load(Ordering::Relaxed), NO_MARK);
}

/// Also where the leaves have different parents.
#[test]
fn a_window_is_read_as_far_as_it_reaches_and_no_further() {
    let (engine, _) = cold(64 << 20);
    let volume = engine.volume();
    first_leaf(&engine);
    let before = values_at_hand(&engine);
    assert!(before > 0 && before < 32, "{before} values");

    let window = 100 << 10;
    volume.read_ahead(wish(window)).unwrap();
    assert_eq!(engine.stats().parts_read_ahead, 1, "a run at a time");
    let some = values_at_hand(&engine);
    assert!(some > before && some < 50, "{some} values");
    while let Some(rest) = volume.cache.read_ahead.waiting_wish() {
        volume.read_ahead(rest).unwrap();
    }
    let reached = values_at_hand(&engine);
    assert!((100..130).contains(&reached), "{reached} values of 1 KiB");
    let read = engine.stats().parts_read_ahead;
    serve(volume, wish(window));
    assert_eq!(engine.stats().parts_read_ahead, read, "all of it is in memory");

    serve(volume, wish(1 << 30));
    assert_eq!(values_at_hand(&engine), VALUES as usize);
    volume.read_ahead(wish(1 << 30)).unwrap();
    assert!(volume.cache.read_ahead.waiting_wish().is_none(), "there is no more");
}

#[test]
fn the_next_mark_is_in_the_middle_of_the_window() {
    let (engine, _) = cold(64 << 20);
    let volume = engine.volume();
    first_leaf(&engine);
    let window = 100 << 10;
    volume.read_ahead(wish(window)).unwrap();
    let marks: Vec<u32> = (0..100_u32)
        .filter(|number| {
            let range = KeyRange { lower: Bound::before(number.to_be_bytes().to_vec()), ..KeyRange::all() };
            let ahead = engine.waiting(|| volume.leaf_ahead(Tree::Data, &range)).unwrap();
            ahead.leaf.unwrap().mark.load(Ordering::Relaxed) == mark(ahead.parts.start, 2 * window)
        })
        .collect();
    let (Some(first), Some(last)) = (marks.first(), marks.last()) else { panic!("no mark") };
    assert!((45..=55).contains(first) && last - first < 4, "values {first} to {last}");
}

/// The leaf behind the first one, where a block of it lies, and where it ends.
fn second_leaf(engine: &Engine) -> (NodeRef, u64, Bound) {
    let volume = engine.volume();
    let leaf = first_leaf(engine);
    let range = leaf.state.read().leaf().range_of(leaf.state.read().leaf().basements.len() - 1);
    let behind = KeyRange { lower: volume.leaf_ahead(Tree::Data, &range).unwrap().end, ..KeyRange::all() };
    let ahead = engine.waiting(|| volume.leaf_ahead(Tree::Data, &behind)).unwrap();
    let next = ahead.leaf.unwrap();
    let place = volume.table.lookup(next.id).unwrap();
    let part = volume.read_header(next.id, &place).unwrap().parts[0].clone();
    (next, place.extents[0].offset + u64::from(part.offset) * 4096, ahead.end)
}

/// It is tried once, and is no reason to leave out the rest.
#[test]
fn what_lies_behind_a_part_that_cannot_be_read_is_read() {
    let (engine, device) = cold(64 << 20);
    let volume = engine.volume();
    let (leaf, offset, _) = second_leaf(&engine);
    device.write(&[WriteRequest { offset, pieces: vec![vec![0xaa; 4096].into()] }]).unwrap();
    let mut failed = 0;
    serve_and(volume, wish(1 << 30), |result| failed += usize::from(result.is_err()));
    assert_eq!(failed, 1);
    assert_eq!(leaf.state.read().missing_part(), Some(0));
    // More than a part holds.
    let behind = values_at_hand(&engine) as u32 + 16;
    let range = KeyRange { lower: Bound::before(behind.to_be_bytes().to_vec()), ..KeyRange::all() };
    let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
    let scan = engine.scan(Tree::Data, &range, limit).unwrap();
    assert_eq!(scan.entries.len() as u32, VALUES - behind);
}

/// The part that is missing lies before it, the middle of the window behind it.
#[test]
fn what_lies_before_a_node_that_cannot_be_read_is_read() {
    let (engine, device) = cold(64 << 20);
    let volume = engine.volume();
    let (second, _, end) = second_leaf(&engine);
    let behind = KeyRange { lower: end, ..KeyRange::all() };
    let third = loop {
        match volume.leaf_ahead(Tree::Data, &behind) {
            Err(Error::Miss(miss)) if volume.table.lookup(miss.node).unwrap().height > 0 => {
                volume.fetch(miss).unwrap()
            }
            Err(Error::Miss(miss)) => break miss.node,
            other => panic!("{}", other.is_ok()),
        }
    };
    let offset = volume.table.lookup(third).unwrap().extents[0].offset;
    device.write(&[WriteRequest { offset, pieces: vec![vec![0xaa; 4096].into()] }]).unwrap();
    volume.read_ahead(wish(100 << 10)).unwrap();
    assert_eq!(second.state.read().missing_part(), None);
    assert!(volume.cache.read_ahead.waiting_wish().is_some(), "the rest is still wished for");
}

/// Of a damaged tree: its threads must not look for it for ever.
#[test]
fn a_way_to_no_node_ends_a_wish() {
    let (engine, _) = cold(64 << 20);
    let volume = engine.volume();
    let (leaf, ..) = second_leaf(&engine);
    let before = values_at_hand(&engine);
    volume.table.remove(leaf.id);
    volume.cache.shard(leaf.id).lock().remove(&leaf.id);
    assert!(matches!(volume.read_ahead(wish(1 << 30)), Err(Error::Damaged { .. })));
    assert_eq!(values_at_hand(&engine), before);
}

/// As after files were deleted.
#[test]
fn what_is_deleted_is_not_read() {
    let (engine, _) = cold(64 << 20);
    let volume = engine.volume();
    first_leaf(&engine);
    let key = |number: u32| number.to_be_bytes().to_vec();
    let mut batch = Batch::new();
    batch.delete_range(Tree::Data, KeyRange::new(Bound::before(key(0)), Bound::before(key(VALUES - 100))));
    engine.waiting(|| engine.apply(batch.clone())).unwrap();
    let before = engine.stats().bytes_read;
    serve(volume, wish(1 << 30));
    let read = engine.stats().bytes_read - before;
    assert!((100 << 10..300 << 10).contains(&read), "{read} bytes");
}

#[test]
fn nothing_is_read_ahead_when_memory_is_short() {
    let (engine, _) = cold(1);
    first_leaf(&engine);
    serve(engine.volume(), wish(1 << 30));
    assert_eq!(engine.stats().parts_read_ahead, 0);
}
