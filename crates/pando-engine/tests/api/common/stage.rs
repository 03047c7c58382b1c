//! A device at which threads do things at moments that a test has chosen.

use std::sync::Arc;

use pando_device::{Device, DeviceError, Layer, MemoryDevice, WriteRequest};
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

impl Layer for Stage {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let is_told = |(name, _): &mut Deed| std::thread::current().name() == Some(*name);
        let told = self.deed.lock().take_if(is_told);
        if let Some((_, deed)) = told {
            deed();
        }
        self.inner.write(batch)
    }
}
