//! What is read ahead, step by step, on a volume whose threads do nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::{Device, MemoryDevice, WriteRequest};
use pando_format::{Bound, Tree};

use super::read_ahead::{NO_MARK, WINDOW_MIN, Wish, mark};
use crate::betree::node::{Body, NodeRef};
use crate::small_volume::{fill, manual, small_volume};
use crate::volume::Volume;
use crate::{Direction, Engine, Error, KeyRange, Options, ScanLimit};

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
    let scan =
        engine.waiting(|| engine.scan(Tree::Data, &KeyRange::all(), Direction::Forward, limit)).unwrap();
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

/// What the threads would do; how many wishes that was.
fn serve(volume: &Volume, wish: Wish) -> usize {
    let mut served = 0;
    let mut next = Some(wish);
    while let Some(wish) = next {
        let _ = volume.read_ahead(wish);
        served += 1;
        next = volume.cache.read_ahead.waiting_wish();
    }
    served
}

/// Values in order until one is missing in memory.
fn values_at_hand(engine: &Engine) -> usize {
    let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
    match engine.scan(Tree::Data, &KeyRange::all(), Direction::Forward, limit) {
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
    assert_eq!(serve(volume, wish(window)), 1, "so small a window has one run");
    assert_eq!(engine.stats().parts_read_ahead, 1);
    let some = values_at_hand(&engine);
    assert!(some > before && some < 50, "{some} values");
    for _ in 0..20 {
        serve(volume, wish(window));
    }
    let reached = values_at_hand(&engine);
    assert!((100..130).contains(&reached), "{reached} values of 1 KiB");
    let read = engine.stats().parts_read_ahead;
    serve(volume, wish(window));
    assert_eq!(engine.stats().parts_read_ahead, read, "all of it is in memory");

    assert!(serve(volume, wish(1 << 30)) > 50);
    assert_eq!(values_at_hand(&engine), VALUES as usize);
    assert_eq!(serve(volume, wish(1 << 30)), 1, "there is no more");
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
            ahead.leaf.unwrap().mark.load(Ordering::Relaxed) == mark(ahead.part, 2 * window)
        })
        .collect();
    let (Some(first), Some(last)) = (marks.first(), marks.last()) else { panic!("no mark") };
    assert!((45..=55).contains(first) && last - first < 4, "values {first} to {last}");
}

/// It stays missing, and must not be tried for ever.
#[test]
fn what_cannot_be_read_ends_a_wish() {
    let (engine, device) = cold(64 << 20);
    let volume = engine.volume();
    let leaf = first_leaf(&engine);
    let range = leaf.state.read().leaf().range_of(leaf.state.read().leaf().basements.len() - 1);
    let behind = KeyRange { lower: volume.leaf_ahead(Tree::Data, &range).unwrap().end, ..KeyRange::all() };
    let next = engine.waiting(|| volume.leaf_ahead(Tree::Data, &behind)).unwrap().leaf.unwrap();
    let place = volume.table.lookup(next.id).unwrap();
    let part = volume.read_header(next.id, &place).unwrap().parts[0].clone();
    let offset = place.extents[0].offset + u64::from(part.offset) * 4096;
    device.write(&[WriteRequest { offset, pieces: vec![vec![0xaa; 4096].into()] }]).unwrap();
    let before = values_at_hand(&engine);
    assert_eq!(serve(volume, wish(16 << 20)), 16, "a run for each MiB of the window");
    assert_eq!(values_at_hand(&engine), before);
}

#[test]
fn nothing_is_read_ahead_when_memory_is_short() {
    let (engine, _) = cold(1);
    first_leaf(&engine);
    assert_eq!(serve(engine.volume(), wish(1 << 30)), 1);
    assert_eq!(engine.stats().parts_read_ahead, 0);
}
