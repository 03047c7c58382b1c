//! A device in memory that counts what it is asked for.

use std::sync::atomic::{AtomicUsize, Ordering};

use pando_device::{Device, DeviceError, Layer, MemoryDevice, ReadRequest, WriteRequest};

pub struct Counting {
    inner: MemoryDevice,
    pub read_bytes: AtomicUsize,
    pub writes: AtomicUsize,
    pub flushes: AtomicUsize,
    pub discards: AtomicUsize,
}

impl Counting {
    pub fn new(capacity: u64) -> Self {
        Self {
            inner: MemoryDevice::new(capacity),
            read_bytes: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            discards: AtomicUsize::new(0),
        }
    }
}

impl Layer for Counting {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        let bytes = batch.iter().map(|request| request.buffer.len()).sum();
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.inner.read(batch)
    }

    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write(batch)
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }

    fn on_discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.discards.fetch_add(1, Ordering::Relaxed);
        self.inner.discard(offset, length)
    }
}
