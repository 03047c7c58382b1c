//! Several nodes that are written together, and what an error in the middle of it leaves.

use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::Fault;
use pando_format::part::PART_LENGTH_MAX;
use pando_format::{Msn, Pending, Tree};

use super::write_back::{Cause, OVERLAPPED_BYTES};
use crate::betree::node::{Image, NodeRef};
use crate::small_volume::{change, fill, manual, small_volume, volume_on};
use crate::volume::Volume;
use crate::{Engine, Error, KeyRange};

/// A volume with leaves of four times what is serialized before the device is given it.
fn filled() -> (Engine, Arc<SimulatedDevice>) {
    let device = Arc::new(SimulatedDevice::untraced(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, OVERLAPPED_BYTES / 1024 * 4);
    (engine, device)
}

/// Takes the images of all leaves, dirty or not, with all that is in them.
fn images(engine: &Engine) -> Vec<(NodeRef, Image)> {
    let volume = engine.volume();
    let mut images = Vec::new();
    let mut rest = KeyRange::all();
    while !rest.is_empty() {
        let ahead = engine.waiting(|| volume.leaf_ahead(Tree::Data, &rest)).unwrap();
        rest.lower = ahead.end;
        let leaf = ahead.leaf.expect("nothing was deleted");
        volume.load_all(&leaf).unwrap();
        let _gate = volume.gate.read_recursive();
        let mut state = leaf.state.write();
        volume.mark_dirty(&leaf, &mut state);
        let image = volume.take_image(&leaf, &mut state);
        drop(state);
        images.push((leaf, image));
    }
    images
}

/// Writes them with other work meanwhile; how often that was done.
fn write(volume: &Volume, images: &[(NodeRef, Image)]) -> (Result<usize, Error>, usize) {
    let mut worked = 0;
    let mut work = |written: &[super::write_back::Written]| {
        assert_eq!(written.len(), images.len());
        worked += 1;
    };
    let all = images.iter().map(|(_, image)| image);
    let result = volume.write_images_meanwhile(all, Cause::Eviction, Some(&mut work));
    (result.map(|written| written.len()), worked)
}

#[test]
fn all_are_written_and_the_work_is_done_once() {
    let (engine, device) = filled();
    let volume = engine.volume();
    let images = images(&engine);
    let writes = device.io_count();
    assert_eq!(write(volume, &images), (Ok(images.len()), 1));
    assert!(device.io_count() - writes >= images.len() as u64);
    assert_eq!(write(volume, &[]), (Ok(0), 1), "also if there is nothing to write");
}

#[test]
fn without_space_for_the_last_none_keeps_its_space() {
    let (engine, device) = filled();
    let volume = engine.volume();
    let images = images(&engine);
    // As much as the first portions take.
    let spared = u64::from(OVERLAPPED_BYTES) * 5 / 2;
    let mut taken = Vec::new();
    while volume.allocator.counters().free > spared {
        taken.extend(volume.allocator.allocate(64 << 10, &[]).unwrap());
    }
    let (free, writes) = (volume.allocator.counters().free, device.io_count());
    assert_eq!(write(volume, &images), (Err(Error::NoSpace), 0));
    assert!(device.io_count() > writes, "the first were on their way");
    assert_eq!(volume.allocator.counters().free, free);
    taken.into_iter().for_each(|extent| volume.allocator.give_back(extent));
    assert_eq!(write(volume, &images), (Ok(images.len()), 1));
}

#[test]
fn where_one_cannot_be_written_none_keeps_its_space() {
    let (engine, device) = filled();
    let images_in_all = images(&engine).len() as u64;
    drop((engine, device));
    for at in [0, 1, images_in_all / 2, images_in_all - 1] {
        let (engine, device) = filled();
        let volume = engine.volume();
        let images = images(&engine);
        let free = volume.allocator.counters().free;
        device.set_fault(Fault::At(device.io_count() + at));
        let (result, worked) = write(volume, &images);
        assert!(matches!(result, Err(Error::ReadOnly { .. })), "{at}: {result:?}");
        assert_eq!((device.failed_count(), worked), (1, 1), "the work knows nothing of it");
        assert_eq!(volume.allocator.counters().free, free);
    }
}

/// A rebuilding of the block table would go by it.
#[test]
fn a_node_says_which_checkpoint_it_was_written_for() {
    let (engine, device) = filled();
    let written_for = |engine: &Engine| -> Vec<u64> {
        let volume = engine.volume();
        let pages = volume.table.pages();
        pages.entries().map(|(id, place)| volume.read_header(id, place).unwrap().checkpoint).collect()
    };
    engine.checkpoint().unwrap();
    let first = engine.superblock().checkpoint;
    assert!(first > 2, "the volume was formatted with two");
    let checkpoints = written_for(&engine);
    assert!(checkpoints.contains(&first) && checkpoints.iter().all(|one| *one <= first), "{checkpoints:?}");
    drop(engine);
    let engine = Engine::open(device, manual()).unwrap();
    fill(&engine, 1);
    engine.checkpoint().unwrap();
    let second = engine.superblock().checkpoint;
    assert!(second > first + 1, "one more for the opening");
    let checkpoints = written_for(&engine);
    assert!(checkpoints.contains(&second) && checkpoints.contains(&first), "{checkpoints:?}");
    assert!(checkpoints.iter().all(|one| *one <= second), "{checkpoints:?}");
}

/// Each failed write of a node left it on the list of dirty ones once more.
#[test]
fn a_node_that_cannot_be_written_is_dirty_once() {
    let (engine, device) = filled();
    let volume = engine.volume();
    let dirty = volume.cache.dirty_nodes().len();
    assert!(dirty > 1);
    device.set_fault(Fault::WritesFrom(device.io_count()));
    for _ in 0..3 {
        assert!(volume.write_back_one().is_err());
        assert_eq!(volume.cache.dirty_nodes().len(), dirty);
    }
}

/// The thread that wrote a buffer of more than 64 MiB panicked, and so did each that opened the volume and replayed its log.
#[test]
fn a_part_that_is_too_long_fails_the_volume() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    for number in 0..200_u32 {
        change(&engine, |batch| batch.put(Tree::Data, number.to_be_bytes().to_vec(), vec![1; 200]));
        while engine.background_step().unwrap() {}
    }
    let volume = engine.volume();
    let root = volume.root(Tree::Data).read().clone();
    {
        let _gate = volume.gate.read_recursive();
        let mut state = root.state.write();
        volume.mark_dirty(&root, &mut state);
        let block = Bytes::from(vec![2; 4096]);
        for number in 0..PART_LENGTH_MAX / 4096 {
            let key = [&b"\xff"[..], &number.to_be_bytes()].concat();
            state.interior_mut().push(key.into(), Msn { lsn: 1 << 40, sub: 0 }, Pending::Put(block.clone()));
        }
        volume.account(&mut state);
    }
    assert!(matches!(engine.checkpoint(), Err(Error::ReadOnly { .. })));
    let why = engine.failure().unwrap();
    assert!(why.starts_with("a part of a node would take"), "{why}");
    assert_eq!(engine.get(Tree::Data, &7_u32.to_be_bytes()), Ok(Some(vec![1; 200].into())));
}
