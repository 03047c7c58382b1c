//! A device at which threads do things at moments that a test has chosen.

use std::sync::Arc;

use pando_device::{Device, DeviceError, MemoryDevice, ReadRequest, WriteRequest};
use pando_engine::{Engine, FormatOptions};
use parking_lot::Mutex;

/// What a thread does before its next write, and which.
type Deed = (&'static str, Box<dyn FnOnce() + Send>);

/// A device at whose writes a thread does what it is told to.
pub struct Stage {
    inner: MemoryDevice,
    deed: Mutex<Option<Deed>>,
}

impl Stage {
    pub fn new() -> Arc<Self> {
        let device = Arc::new(Self { inner: MemoryDevice::new(64 << 20), deed: Mutex::new(None) });
        Engine::format(device.clone(), &FormatOptions::default()).unwrap();
        device
    }

    pub fn tell(&self, thread: &'static str, deed: impl FnOnce() + Send + 'static) {
        *self.deed.lock() = Some((thread, Box::new(deed)));
    }
}

impl Device for Stage {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let is_told = |(name, _): &mut Deed| std::thread::current().name() == Some(*name);
        let told = self.deed.lock().take_if(is_told);
        if let Some((_, deed)) = told {
            deed();
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
