//! What happens while a checkpoint is written.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use pando_device::{Device, DeviceError, MemoryDevice, ReadRequest, WriteRequest};

use crate::Engine;
use crate::small_volume::{assert_sound, fill, manual, volume_on};
use crate::volume::Volume;

/// A device in memory that is slow: during each write others write two million nodes, as far as their generations tell.
struct Slow {
    inner: MemoryDevice,
    volume: OnceLock<Weak<Volume>>,
}

impl Device for Slow {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        if let Some(volume) = self.volume.get().and_then(Weak::upgrade) {
            volume.next_generation.fetch_add(1 << 21, Ordering::Relaxed);
        }
        self.inner.write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, length)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// The superblock said that generations of its own nodes were never used, and the volume could not be opened.
#[test]
fn a_checkpoint_knows_the_generations_of_its_last_nodes() {
    let device = Arc::new(Slow { inner: MemoryDevice::new(64 << 20), volume: OnceLock::new() });
    let engine = volume_on(&device);
    fill(&engine, 2000);
    assert!(device.volume.set(Arc::downgrade(engine.volume())).is_ok());
    engine.checkpoint().unwrap();
    drop(engine);
    assert_sound(&Engine::open(device, manual()).unwrap());
}
