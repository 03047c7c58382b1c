//! Deletes are looked for as long as some wait, and no longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_device::simulated::Random;
use pando_format::{Bound, KeyRange, Tree};

use super::ballast::BALLAST_STEPS_MAX;
use super::sink::{Sunk, Walk};
use crate::small_volume::{Busy, assert_sound, change, manual, small_volume, small_volume_on};
use crate::{Batch, Engine, Error};

const TREE: Tree = Tree::Metadata;
/// Checkpoints until nothing moves any more.
const CHECKPOINTS_MAX: usize = 20;

fn waits(engine: &Engine) -> bool {
    engine.volume().deletes_wait.load(Ordering::Acquire)
}

/// A checkpoint that brings deletes down, as on a volume that is nearly full.
fn sinking_checkpoint(engine: &Engine) {
    engine.volume().reclaiming.store(true, Ordering::Relaxed);
    engine.checkpoint().unwrap();
}

fn sink_all(engine: &Engine) {
    for _ in 0..CHECKPOINTS_MAX {
        sinking_checkpoint(engine);
        if !waits(engine) {
            return;
        }
    }
    panic!("deletes still wait after {CHECKPOINTS_MAX} checkpoints");
}

fn name(directory: u32, number: u32) -> Vec<u8> {
    format!("{directory:02}/{number:06}").into_bytes()
}

#[test]
fn deletes_are_looked_for_until_they_are_down() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    for number in 0..5000 {
        change(&engine, |batch| batch.put(TREE, name(0, number), vec![1; 200]));
    }
    sink_all(&engine);
    change(&engine, |batch| batch.put(TREE, name(1, 0), vec![1; 200]));
    sinking_checkpoint(&engine);
    assert!(!waits(&engine), "no delete came");
    change(&engine, |batch| batch.delete(TREE, name(0, 7)));
    assert!(waits(&engine));
    sink_all(&engine);
    let range = KeyRange::new(Bound::before(name(0, 1000)), Bound::before(name(0, 2000)));
    change(&engine, |batch| batch.delete_range(TREE, range.clone()));
    assert!(waits(&engine));
    sink_all(&engine);
    assert_sound(&engine);
    // What is in nodes with several names stays there, and may come to be alone in them.
    change(&engine, |batch| batch.clone_range(TREE, &b"00/"[..], &b"50/"[..]));
    change(&engine, |batch| batch.delete(TREE, name(0, 8)));
    for _ in 0..CHECKPOINTS_MAX {
        sinking_checkpoint(&engine);
    }
    assert!(waits(&engine), "the clone shares nodes");
    change(&engine, |batch| batch.delete_range(TREE, KeyRange::prefix(&b"50/"[..])));
    assert_sound(&engine);
}

#[test]
fn no_delete_is_forgotten() {
    let (mut down, mut gotos) = (0, 0);
    for seed in 0..30 {
        let (engine, _) = small_volume(16 << 10, 2 << 10);
        let mut random = Random::new(seed);
        for step in 0..40 {
            for _ in 0..random.below(300) {
                let (directory, number) = (random.below(4) as u32, random.below(2000) as u32);
                change(&engine, |batch| batch.put(TREE, name(directory, number), vec![2; 200]));
            }
            let [from, mut to] = [0, 1].map(|_| format!("{:02}/", random.below(4)).into_bytes());
            // Below one child of the root, where nothing is yet: a goto waits in its buffer, and no delete takes it down.
            let below = random.chance(1, 2);
            if below {
                to.extend_from_slice(format!("{:06} {step}/", random.below(2000)).as_bytes());
            }
            let make_way = |batch: &mut Batch| {
                if !below {
                    batch.delete_range(TREE, KeyRange::prefix(to.clone()));
                }
            };
            match random.below(6) {
                0 => change(&engine, |batch| batch.delete(TREE, name(1, 5))),
                1 => change(&engine, |batch| batch.delete_range(TREE, KeyRange::prefix(from.clone()))),
                2 if !to.starts_with(&from) && seed % 2 == 0 => {
                    change(&engine, make_way);
                    change(&engine, |batch| batch.move_range(TREE, from.clone(), to.clone()));
                }
                3 if !to.starts_with(&from) && seed % 3 == 0 => {
                    change(&engine, make_way);
                    change(&engine, |batch| batch.clone_range(TREE, from.clone(), to.clone()));
                }
                4 => while engine.background_step().unwrap() {},
                _ => {}
            }
            sinking_checkpoint(&engine);
            down += usize::from(!waits(&engine));
            gotos += usize::from(holds_gotos(&engine));
            assert!(
                waits(&engine) || !holds_gotos(&engine),
                "seed {seed}: what is behind a goto has not been seen"
            );
            assert_sound(&engine);
        }
    }
    assert!(down > 100 && gotos > 0, "only {down} times nothing waited, {gotos} times a goto");
}

/// Whether a goto waits in any node.
fn holds_gotos(engine: &Engine) -> bool {
    let mut nodes = vec![engine.volume().root(TREE).read().clone()];
    while let Some(node) = nodes.pop() {
        let state = node.state.read();
        if state.height > 0 {
            let interior = state.interior();
            if interior.holds_gotos() {
                return true;
            }
            let below = interior.children.iter().filter(|child| !child.id.is_empty());
            nodes.extend(below.filter_map(|child| engine.volume().cache.peek(child.id)));
        }
    }
    false
}

/// A hundred directories of fifty files each in clean leaves of a volume with room; each file has 200 bytes.
fn settled_directories() -> Engine {
    settled_volume().0
}

/// The same, and the device.
fn settled_volume() -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    fill_directories(&engine);
    sink_all(&engine);
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    assert!(!engine.volume().reclaiming.load(Ordering::Relaxed) && !engine.volume().wants_deletes_down());
    (engine, device)
}

fn fill_directories(engine: &Engine) {
    for directory in 0..100 {
        for number in 0..50 {
            change(engine, |batch| batch.put(TREE, name(directory, number), vec![1; 200]));
        }
    }
}

fn delete_directory(engine: &Engine, directory: u32) {
    change(engine, |batch| {
        batch.delete_range(TREE, KeyRange::prefix(format!("{directory:02}/").into_bytes()));
        batch.note_freed(50 * 200);
    });
}

/// Range deletes that wait in any node.
fn waiting(engine: &Engine) -> usize {
    let mut nodes = vec![engine.volume().root(TREE).read().clone()];
    let mut waiting = 0;
    while let Some(node) = nodes.pop() {
        engine.volume().load_all(&node).unwrap();
        let state = node.state.read();
        if state.height > 0 {
            for child in state.interior().children.iter().filter(|child| !child.id.is_empty()) {
                waiting += child.buffer.get().unwrap().ranges().len();
                nodes.push(engine.volume().node(child.id).unwrap());
            }
        }
    }
    waiting
}

#[test]
fn a_few_deletes_rewrite_no_leaf() {
    let engine = settled_directories();
    for directory in [10, 50, 90] {
        delete_directory(&engine, directory);
    }
    let before = engine.stats().flushes;
    engine.checkpoint().unwrap();
    assert!(waiting(&engine) >= 3 && waits(&engine), "{} wait", waiting(&engine));
    assert_eq!(engine.stats().flushes, before);
    assert_sound(&engine);
}

#[test]
fn many_deletes_come_down_though_there_is_room() {
    let engine = settled_directories();
    for directory in (0..100).step_by(5) {
        delete_directory(&engine, directory);
    }
    assert!(waiting(&engine) >= 20);
    engine.checkpoint().unwrap();
    assert_eq!(waiting(&engine), 0);
    let ballast = engine.volume().ballast.count().bytes;
    assert!(ballast < 20 * 50 * 200 / 10, "{ballast} bytes are still counted");
    assert!(!engine.volume().reclaiming.load(Ordering::Relaxed), "space is not short");
    assert_sound(&engine);
}

/// The same, of which more than a sixteenth is said to be dead, and what its capacity is; one delete waits.
fn dead_directories() -> (Engine, u64) {
    let engine = settled_directories();
    delete_directory(&engine, 10);
    let capacity = engine.volume().allocator.capacity();
    change(&engine, |batch| {
        batch.put(TREE, name(0, 0), vec![2; 200]);
        batch.note_freed(capacity / 8);
    });
    assert!(engine.volume().much_is_dead());
    (engine, capacity)
}

#[test]
fn a_volume_with_room_of_which_much_is_dead_brings_deletes_down_once() {
    let (engine, _) = dead_directories();
    engine.checkpoint().unwrap();
    assert_eq!(waiting(&engine), 0);
    // Where deletes go on coming it would not end.
    delete_directory(&engine, 50);
    let before = engine.stats().flushes;
    engine.checkpoint().unwrap();
    assert!(waiting(&engine) > 0 && engine.stats().flushes == before);
    assert_sound(&engine);
}

#[test]
fn deletes_for_which_one_checkpoint_has_no_room_come_down_in_the_next() {
    let (engine, capacity) = dead_directories();
    // As behind a stream: the log has bound what was free to its places, and with the checkpoint it is free of that.
    engine.volume().bound_bytes.store(capacity, Ordering::Relaxed);
    assert!(!engine.volume().has_space_to_flush());
    engine.checkpoint().unwrap();
    assert!(waiting(&engine) > 0 && engine.volume().has_space_to_flush());
    engine.checkpoint().unwrap();
    assert_eq!(waiting(&engine), 0);
    assert_sound(&engine);
}

#[test]
fn nobody_waits_for_the_sake_of_what_may_be_left() {
    let (engine, capacity) = dead_directories();
    engine.volume().bound_bytes.store(capacity, Ordering::Relaxed);
    let apply = |mut batch: Batch| {
        batch.put(TREE, name(0, 1), vec![3; 200]);
        engine.apply(batch)
    };
    // Busy says that a checkpoint is on its way for it.
    assert_eq!(apply(Batch::copies_only()), Err(Error::NoSpace));
    assert_eq!(apply(Batch::new()), Err(Error::Busy));
}

#[test]
fn deletes_come_into_leaves_that_are_written_anyway() {
    let engine = settled_directories();
    for directory in [10, 50, 90] {
        delete_directory(&engine, directory);
    }
    let before = waiting(&engine);
    // As a flush does that brings other messages.
    let volume = engine.volume();
    let root = volume.root(TREE).read().clone();
    let leaf = {
        let mut node = root;
        loop {
            let state = node.state.read();
            if state.height == 0 {
                break node.clone();
            }
            let interior = state.interior();
            let child = interior.children[interior.index_of(b"50/000010")].id;
            drop(state);
            node = volume.node(child).unwrap();
            volume.mark_dirty(&node, &mut node.state.write());
        }
    };
    engine.checkpoint().unwrap();
    assert!(waiting(&engine) < before && waiting(&engine) >= 2, "{before} waited, {} do", waiting(&engine));
    assert!(leaf.state.read().dirty.is_none());
    assert_sound(&engine);
}

#[test]
fn what_deletes_hold_is_known_when_a_volume_is_opened_again() {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    fill_directories(&engine);
    sink_all(&engine);
    engine.checkpoint().unwrap();
    for directory in [10, 50, 90] {
        delete_directory(&engine, directory);
    }
    let ballast = engine.volume().ballast.count().bytes;
    assert!(ballast > 0);
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(device, manual()).unwrap();
    assert_eq!(engine.volume().ballast.count().bytes, ballast);
}

#[test]
fn one_checkpoint_flushes_so_much_and_the_next_goes_on() {
    let engine = settled_directories();
    for directory in (0..100).step_by(2) {
        delete_directory(&engine, directory);
    }
    let before = engine.stats().flushes;
    engine.checkpoint().unwrap();
    let flushed = engine.stats().flushes - before;
    assert!(waiting(&engine) > 0 && flushed >= BALLAST_STEPS_MAX as u64, "{flushed} flushes");
    for _ in 0..CHECKPOINTS_MAX {
        engine.checkpoint().unwrap();
    }
    let ballast = engine.volume().ballast.count().bytes;
    assert!(ballast <= engine.volume().shape.node_bytes as u64 * 4, "{ballast} bytes are left");
    assert_sound(&engine);
}

#[test]
fn what_is_cut_off_whole_is_no_ballast() {
    let engine = settled_directories();
    let first = KeyRange::new(Bound::least(), Bound::before(name(80, 0)));
    change(&engine, |batch| {
        batch.delete_range(TREE, first.clone());
        batch.note_freed(80 * 50 * 200);
    });
    while engine.background_step().unwrap() {}
    let ballast = engine.volume().ballast.count().bytes;
    assert!(ballast < 80 * 50 * 200 / 10, "{ballast} bytes are still counted");
}

#[test]
fn ballast_that_others_see_stays_where_it_is() {
    let engine = settled_directories();
    change(&engine, |batch| batch.clone_range(TREE, &b""[..], &b"copy/"[..]));
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    let used = || engine.space().capacity - engine.space().free;
    let before = used();
    for directory in (0..100).step_by(5) {
        delete_directory(&engine, directory);
    }
    for _ in 0..3 {
        engine.checkpoint().unwrap();
    }
    assert!(used() < before + before / 4, "{before} bytes were used, {} are", used());
    assert!(waits(&engine));
    assert_sound(&engine);
}

#[test]
fn a_walk_for_ballast_goes_on_where_the_last_one_ended() {
    let (mut engine, device) = settled_volume();
    for directory in (0..100).step_by(3) {
        change(&engine, |batch| {
            batch.delete_range(TREE, KeyRange::prefix(format!("{directory:02}/").into_bytes()));
        });
    }
    let mut walk = Walk { for_space: false, ..Walk::for_space() };
    let (mut reached, mut walks) = (Bytes::new(), 1);
    // Half of the walks flush, the others find nothing left to do, and only read.
    for flushes in [true, false] {
        loop {
            // It has to read what it looks at.
            engine.close().unwrap();
            engine = Engine::open(device.clone(), manual()).unwrap();
            walk.steps_left.set(6);
            let before = engine.stats().flushes;
            let sunk = engine.volume().sink_tree(TREE, &mut walk).unwrap();
            let flushed = engine.stats().flushes - before;
            assert!(if flushes { flushed <= 24 } else { flushed == 0 }, "{flushed} flushes");
            if sunk != Sunk::InPart {
                break;
            }
            let now = walk.from.borrow().clone();
            // What comes down may stay behind the same edge.
            assert!(now > reached || flushed > 0 && now == reached, "{now:?} is not behind {reached:?}");
            (reached, walks) = (now, walks + 1);
        }
        assert!(walks > 3 && waiting(&engine) == 0, "{walks} walks, {} wait", waiting(&engine));
        (reached, walks) = (Bytes::new(), 1);
        walk.from.take();
    }
    assert_sound(&engine);
}

#[test]
fn what_waited_in_a_root_before_keeps_no_walk_from_its_work() {
    let engine = settled_directories();
    for directory in (0..100).step_by(2) {
        delete_directory(&engine, directory);
    }
    // As at an unmount: much has come, and nobody brings it down any more.
    for number in 0..400 {
        let key = name(number % 100, 1000 + number);
        let mut batch = Batch::new();
        batch.put(TREE, key, vec![3; 200]);
        engine.apply(batch).unwrap();
    }
    let waits = engine.volume().root(TREE).read().state.read().interior().buffer_bytes();
    assert!(waits > engine.volume().shape.node_bytes * 3, "{waits} bytes wait: this proves nothing");
    let before = waiting(&engine);
    engine.checkpoint().unwrap();
    assert!(waiting(&engine) < before / 2, "{before} waited, {} do", waiting(&engine));
    assert_sound(&engine);
}

/// It held the root as long as it took, and whoever wrote meanwhile waited at four nodes' worth.
#[test]
fn a_walk_for_space_lets_writers_go_on() {
    const NODE_BYTES: usize = 16 << 10;
    let device = Arc::new(Busy::new(256 << 20));
    let engine = small_volume_on(&device, NODE_BYTES as u32, 2 << 10);
    fill_directories(&engine);
    while engine.background_step().unwrap() {}
    engine.close().unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    for directory in 0..100 {
        change(&engine, |batch| batch.delete(TREE, name(directory, 7)));
    }
    *device.read_time.lock() = Duration::from_millis(2);
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                if engine.has_room(0) {
                    let mut batch = Batch::new();
                    batch.put(TREE, name(written as u32 % 100, 100 + written as u32), vec![1; 200]);
                    engine.apply(batch).unwrap();
                    written += 1;
                } else {
                    std::thread::yield_now();
                }
            }
            written * 200
        });
        engine.volume().sink_tree(TREE, &mut Walk::for_space()).unwrap();
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(written > 8 * NODE_BYTES, "{written} bytes came while deletes were brought down");
    assert_sound(&engine);
}

/// Runs of free space too short for a node are none where a change asks for space. The checkpoints that were made for it took the volume for half empty, and left
/// the deletes that they were to bring down: each wanted the next.
#[test]
fn a_checkpoint_that_is_made_for_space_uses_up_what_it_was_made_for() {
    const PIECE: u64 = 16 << 10;
    let (engine, _) = small_volume(256 << 10, 16 << 10);
    let volume = engine.volume();
    let pieces: Vec<_> = std::iter::from_fn(|| volume.allocator.allocate(PIECE, &[])).flatten().collect();
    let mut pieces = pieces.into_iter();
    let enough = volume.space_needed() + volume.allocator.capacity() / 128;
    while volume.allocator.counters().usable < enough {
        volume.allocator.give_back(pieces.next().unwrap());
    }
    pieces.step_by(3).for_each(|piece| volume.allocator.give_back(piece));
    let counters = volume.allocator.counters();
    assert!(counters.free > counters.capacity / 3 && counters.usable < counters.capacity / 8, "{counters:?}");
    // What had been deleted when the volume was opened is not known, and is taken to be some.
    assert!(volume.wants_space(0));
    engine.checkpoint().unwrap();
    assert!(!volume.checkpoint_releases() && !volume.wants_space(0));
}
