//! What happens while a checkpoint is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Engine;
use crate::small_volume::{Busy, assert_sound, fill, manual, volume_on};

/// The superblock said that generations of its own nodes were never used, and the volume could not be opened.
#[test]
fn a_checkpoint_knows_the_generations_of_its_last_nodes() {
    let device = Arc::new(Busy::new(64 << 20));
    let engine = volume_on(&device);
    fill(&engine, 2000);
    // During each write others write two million nodes, as far as their generations tell.
    let volume = Arc::downgrade(engine.volume());
    *device.work.lock() = Some(Box::new(move || {
        let Some(volume) = volume.upgrade() else { return false };
        volume.next_generation.fetch_add(1 << 21, Ordering::Relaxed);
        true
    }));
    engine.checkpoint().unwrap();
    drop(engine);
    assert_sound(&Engine::open(device, manual()).unwrap());
}
