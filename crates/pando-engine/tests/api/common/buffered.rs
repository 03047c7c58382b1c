//! A medium behind a cache, as a file is behind the kernel's pages: what a flush that failed should have made durable is still read,
//! and no later flush writes it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pando_device::simulated::SECTOR_SIZE;
use pando_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, ReadRequest, WriteRequest};
use parking_lot::Mutex;

/// EIO.
const IO_ERROR: i32 = 5;

pub struct Buffered {
    cache: MemoryDevice,
    medium: MemoryDevice,
    /// What was written and not flushed.
    dirty: Mutex<Vec<WriteRequest>>,
    /// Flushes until the one that fails.
    flushes: AtomicUsize,
    /// Writes until those that never come to the medium.
    writes: AtomicUsize,
    /// Of the last of them only every other sector comes there.
    is_torn: AtomicBool,
    /// What is done before the next write.
    deed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Buffered {
    pub fn new(capacity: u64) -> Self {
        Self {
            cache: MemoryDevice::new(capacity),
            medium: MemoryDevice::new(capacity),
            dirty: Mutex::new(Vec::new()),
            flushes: AtomicUsize::new(usize::MAX),
            writes: AtomicUsize::new(usize::MAX),
            is_torn: AtomicBool::new(false),
            deed: Mutex::new(None),
        }
    }

    /// The same once more, as it is now.
    pub fn copy(&self) -> Self {
        Self {
            cache: MemoryDevice::from_bytes(self.cache.to_bytes()),
            medium: MemoryDevice::from_bytes(self.medium.to_bytes()),
            ..Self::new(0)
        }
    }

    pub fn before_the_next_write(&self, deed: impl FnOnce() + Send + 'static) {
        *self.deed.lock() = Some(Box::new(deed));
    }

    /// So many flushes work, and the next one fails.
    pub fn fail_flush(&self, after: usize) {
        self.flushes.store(after, Ordering::Relaxed);
    }

    /// So many writes work, the last of which comes to the medium at once, ahead of those before it, as a whole or torn; then the machine goes
    /// down.
    pub fn crash(&self, after: usize, is_torn: bool) {
        self.writes.store(after, Ordering::Relaxed);
        self.is_torn.store(is_torn, Ordering::Relaxed);
    }

    /// What a restart finds.
    pub fn medium(&self) -> MemoryDevice {
        MemoryDevice::from_bytes(self.medium.to_bytes())
    }

    fn write_last(&self, request: &[WriteRequest; 1]) -> Result<(), DeviceError> {
        if !self.is_torn.load(Ordering::Relaxed) {
            return self.medium.write(request);
        }
        let [WriteRequest { offset, .. }] = *request;
        let new = request[0].pieces.concat();
        let mut read = [ReadRequest { offset, buffer: Buffer::zeroed(new.len()) }];
        self.medium.read(&mut read)?;
        let [ReadRequest { mut buffer, .. }] = read;
        for (to, from) in buffer.chunks_mut(SECTOR_SIZE).zip(new.chunks(SECTOR_SIZE)).step_by(2) {
            to.copy_from_slice(from);
        }
        self.medium.write(&[WriteRequest { offset, pieces: vec![buffer.freeze()] }])
    }
}

/// Whether this one still works.
fn counts_down(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn failed(action: &'static str) -> DeviceError {
    DeviceError::Io { action, device: "a medium behind a cache".into(), offset: 0, code: IO_ERROR }
}

impl Layer for Buffered {
    fn below(&self) -> &dyn Device {
        &self.cache
    }

    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let deed = self.deed.lock().take();
        if let Some(deed) = deed {
            deed();
        }
        for request in batch {
            if !counts_down(&self.writes) {
                return Err(failed("write"));
            }
            let request = [WriteRequest { offset: request.offset, pieces: request.pieces.clone() }];
            self.cache.write(&request)?;
            if self.writes.load(Ordering::Relaxed) == 0 {
                self.write_last(&request)?;
            }
            self.dirty.lock().extend(request);
        }
        Ok(())
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        if !counts_down(&self.flushes) {
            self.flushes.store(usize::MAX, Ordering::Relaxed);
            return Err(failed("flush"));
        }
        if self.writes.load(Ordering::Relaxed) == 0 {
            return Err(failed("flush"));
        }
        self.medium.write(&dirty)
    }
}
