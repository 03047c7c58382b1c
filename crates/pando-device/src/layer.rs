//! Devices in front of another one, for tests: they count, wait, fail or lie.

use crate::{Device, DeviceError, ReadRequest, WriteRequest};

/// A device that does only what is its purpose, and leaves the rest to the one below. Every layer is a [`Device`].
pub trait Layer: Send + Sync {
    /// The device that has the bytes.
    fn below(&self) -> &dyn Device;

    /// What becomes of [`Device::read`].
    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.below().read(batch)
    }

    /// What becomes of [`Device::write`].
    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.below().write(batch)
    }

    /// What becomes of [`Device::flush`].
    fn on_flush(&self) -> Result<(), DeviceError> {
        self.below().flush()
    }

    /// What becomes of [`Device::discard`].
    fn on_discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below().discard(offset, length)
    }
}

impl<T: Layer> Device for T {
    fn capacity(&self) -> u64 {
        self.below().capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.on_read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.on_write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.on_flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.on_discard(offset, length)
    }

    fn name(&self) -> String {
        self.below().name()
    }
}
