//! A medium with a block that cannot be read until it is written, or with several.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pando_device::{Device, DeviceError, Layer, MemoryDevice, ReadRequest, WriteRequest};

/// EIO.
const IO_ERROR: i32 = 5;

/// No block.
const NONE: u64 = u64::MAX;

pub struct BadBlock {
    inner: MemoryDevice,
    /// Where it lies, in bytes.
    bad: AtomicU64,
    /// Bytes of it, and of those behind it.
    length: u64,
    /// Reads that have failed.
    pub failures: AtomicUsize,
}

impl BadBlock {
    pub fn new(bytes: Vec<u8>, bad: u64) -> Self {
        Self::with_area(bytes, bad..bad + 1)
    }

    /// All blocks of an area are bad, until any is written.
    pub fn with_area(bytes: Vec<u8>, bad: Range<u64>) -> Self {
        let (inner, length) = (MemoryDevice::from_bytes(bytes), bad.end - bad.start);
        Self { inner, bad: AtomicU64::new(bad.start), length, failures: AtomicUsize::new(0) }
    }

    fn meets(&self, offset: u64, length: usize) -> bool {
        let bad = self.bad.load(Ordering::Relaxed);
        offset < bad.saturating_add(self.length) && offset + length as u64 > bad
    }
}

impl Layer for BadBlock {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        if let Some(request) = batch.iter().find(|request| self.meets(request.offset, request.buffer.len())) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            let (action, device) = ("read", self.name());
            return Err(DeviceError::Io { action, device, offset: request.offset, code: IO_ERROR });
        }
        self.inner.read(batch)
    }

    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let length = |request: &WriteRequest| request.pieces.iter().map(bytes::Bytes::len).sum();
        if batch.iter().any(|request| self.meets(request.offset, length(request))) {
            self.bad.store(NONE, Ordering::Relaxed);
        }
        self.inner.write(batch)
    }
}
