//! A medium with a block that cannot be read until it is written.

use std::sync::atomic::{AtomicU64, Ordering};

use pando_device::{Device, DeviceError, MemoryDevice, ReadRequest, WriteRequest};

/// EIO.
const IO_ERROR: i32 = 5;

/// No block.
const NONE: u64 = u64::MAX;

pub struct BadBlock {
    inner: MemoryDevice,
    /// Where it lies, in bytes.
    bad: AtomicU64,
}

impl BadBlock {
    pub fn new(bytes: Vec<u8>, bad: u64) -> Self {
        Self { inner: MemoryDevice::from_bytes(bytes), bad: AtomicU64::new(bad) }
    }
}

impl Device for BadBlock {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        let bad = self.bad.load(Ordering::Relaxed);
        for request in &*batch {
            if (request.offset..request.offset + request.buffer.len() as u64).contains(&bad) {
                return Err(DeviceError::Io {
                    action: "read",
                    device: self.name(),
                    offset: bad,
                    code: IO_ERROR,
                });
            }
        }
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let bad = self.bad.load(Ordering::Relaxed);
        for request in batch {
            let length: usize = request.pieces.iter().map(bytes::Bytes::len).sum();
            if (request.offset..request.offset + length as u64).contains(&bad) {
                self.bad.store(NONE, Ordering::Relaxed);
            }
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
        "a medium with a bad block".to_owned()
    }
}
