//! What a checkpoint still has to write is space to be written, also of nodes that change meanwhile (SP-1).

use std::sync::Arc;

use pando_format::Tree;

use crate::small_volume::{Busy, assert_sound, fill, manual};
use crate::{Batch, Engine, Error, FormatOptions, KeyRange};

/// Of 1 KiB: a third of the volume.
const VALUES: u32 = 20_000;

/// Of so many values one is changed: some in each leaf.
const STEP: usize = 8;

/// A volume of which every node is shared with a clone, and its device.
fn cloned() -> (Arc<Engine>, Arc<Busy>) {
    let device = Arc::new(Busy::new(64 << 20));
    // Messages do not stay halfway, and basement nodes are so long that padding them takes little.
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(32 << 10),
        fanout: Some(1000),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    fill(&engine, VALUES);
    let mut batch = Batch::new();
    batch.clone_range(Tree::Data, &[0][..], &[1][..]);
    engine.apply(batch).unwrap();
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    (Arc::new(engine), device)
}

/// Changes values in all leaves and lets the changes come down, as long as there is space. No checkpoint is written.
fn change_all(engine: &Engine, value: u8) {
    for number in (0..VALUES).step_by(STEP) {
        let mut batch = Batch::new();
        batch.put(Tree::Data, number.to_be_bytes().to_vec(), vec![value; 1024]);
        match engine.apply(batch) {
            Ok(_) => {}
            Err(Error::Busy) => return,
            Err(error) => panic!("change {value} of {number}: {error}"),
        }
        while engine.volume().tree_step().unwrap() {}
    }
}

/// Has the engine do something during the first write of a checkpoint.
fn checkpoint_during(engine: &Arc<Engine>, device: &Busy, work: impl Fn(&Engine) + Send + 'static) {
    let other = engine.clone();
    *device.work.lock() = Some(Box::new(move || {
        work(&other);
        false
    }));
    engine.checkpoint().unwrap();
    assert!(device.work.lock().is_none());
}

/// Fresh copies of shared leaves changed again while a checkpoint wrote them, and counted once: the next checkpoint found no space for
/// what had changed, and the volume took no changes any more.
#[test]
fn what_changes_during_a_checkpoint_has_space_in_the_next() {
    let (engine, device) = cloned();
    change_all(&engine, 1);
    checkpoint_during(&engine, &device, |engine| change_all(engine, 2));
    engine.checkpoint().unwrap();
    assert_sound(&engine);
}

#[test]
fn the_image_of_a_node_that_goes_meanwhile_counts_until_it_is_written() {
    let (engine, device) = cloned();
    change_all(&engine, 1);
    checkpoint_during(&engine, &device, |engine| {
        let cache = &engine.volume().cache;
        let at_cut = cache.bytes_to_be_written();
        let mut batch = Batch::new();
        batch.delete_range(Tree::Data, KeyRange::prefix([0].to_vec()));
        engine.apply(batch).unwrap();
        while engine.volume().tree_step().unwrap() {}
        assert!(cache.dirty_bytes() < at_cut / 4, "the leaves are no more");
        assert!(cache.bytes_to_be_written() >= at_cut, "{} of {at_cut}", cache.bytes_to_be_written());
    });
    let cache = &engine.volume().cache;
    assert_eq!(cache.bytes_to_be_written(), cache.dirty_bytes());
    assert_sound(&engine);
}
