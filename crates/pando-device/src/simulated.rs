//! A device in memory that fails on demand and remembers what was done to it, so that every state in which a crash
//! may leave it can be made and looked at.
//!
//! The fault rules, after the promises of [`crate::device`]:
//!
//! * SD-1 (DEV-1) what was written is read back, until the power goes.
//! * SD-2 (DEV-2) a flush that returned `Ok` makes all that was written before it durable; one that failed makes
//!   nothing durable.
//! * SD-3 (DEV-3) a crash keeps any subset of the unflushed 512-byte sectors. [`CrashPoint`] says which subsets are
//!   tried.
//! * SD-4 (DEV-4) a discarded range reads as garbage at once; a crash before the next flush may bring back what was
//!   there.
//! * SD-5 a write that fails may have been done in part: the first half of its sectors is written.
//! * SD-6 I/Os are counted one for each request of a batch, each flush and each discard. A fault hits the n-th, from
//!   0, and says whether those behind it fail as well.

mod crash_point;
mod image;
mod random;

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;

pub use crash_point::{Choice, CrashPoint};
pub use image::{DISCARDED_BYTE, Image};
pub use random::Random;

use crate::{BLOCK_SIZE, Device, DeviceError, ReadRequest, WriteRequest};

/// Bytes in a sector: what a device writes whole or not at all.
pub const SECTOR_SIZE: usize = 512;

/// EIO.
const IO_ERROR: i32 = 5;

/// One thing that was done to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Byte offset.
        offset: u64,
        /// What was written.
        bytes: Bytes,
    },
    /// Everything written and discarded before became durable.
    Flush,
    /// A range was given back.
    Discard {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

impl From<&WriteRequest> for Event {
    fn from(request: &WriteRequest) -> Self {
        Self::Write { offset: request.offset, bytes: request.in_one() }
    }
}

/// Which I/Os fail, with EIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// None.
    #[default]
    None,
    /// The one with this number alone.
    At(u64),
    /// That one and all behind it.
    From(u64),
    /// From that one on, all writes, flushes and discards; reads work.
    WritesFrom(u64),
}

impl Fault {
    fn hits(self, number: u64, is_read: bool) -> bool {
        match self {
            Self::None => false,
            Self::At(at) => number == at,
            Self::From(from) => number >= from,
            Self::WritesFrom(from) => number >= from && !is_read,
        }
    }
}

/// The simulated device.
pub struct SimulatedDevice {
    state: Mutex<State>,
    capacity: u64,
}

struct State {
    image: Image,
    trace: Vec<Event>,
    fault: Fault,
    /// I/Os so far.
    count: u64,
    /// I/Os up to the last that was no read.
    changing_count: u64,
    /// Faults that were hit: what was tried each time.
    failed: Vec<&'static str>,
    is_traced: bool,
    /// What the blocks that were read held, before anything was written to them; `None` for those that were written first. Not noted
    /// unless somebody asks for it.
    first_reads: Option<HashMap<u64, Option<Bytes>>>,
}

impl SimulatedDevice {
    /// A device of `capacity` zero bytes.
    pub fn new(capacity: u64) -> Self {
        Self::from_image(Image::zeroed(capacity))
    }

    /// A device after a restart: everything on it is durable, the trace is empty, nothing fails.
    pub fn from_image(image: Image) -> Self {
        let capacity = image.capacity();
        let state = State {
            image,
            trace: Vec::new(),
            fault: Fault::None,
            count: 0,
            changing_count: 0,
            failed: Vec::new(),
            is_traced: true,
            first_reads: None,
        };
        Self { state: Mutex::new(state), capacity }
    }

    /// A device of `capacity` zero bytes that keeps no trace: for loads that write much more than it holds.
    pub fn untraced(capacity: u64) -> Self {
        let device = Self::new(capacity);
        device.state.lock().is_traced = false;
        device
    }

    /// Notes from now on what is read.
    pub fn note_reads(&self) {
        self.state.lock().first_reads.get_or_insert_default();
    }

    /// The blocks that were read since [`SimulatedDevice::note_reads`] and not written before that, with what they held then: all that
    /// can have decided what was done to the device. By number.
    pub fn blocks_read(&self) -> Vec<(u64, Bytes)> {
        let state = self.state.lock();
        let noted = state.first_reads.iter().flatten();
        let mut blocks: Vec<_> = noted.filter_map(|(block, bytes)| Some((*block, bytes.clone()?))).collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        blocks
    }

    /// What reads see now; nothing is copied.
    pub fn image(&self) -> Image {
        self.state.lock().image.clone()
    }

    /// What was done so far; writes share their bytes.
    pub fn trace(&self) -> Vec<Event> {
        self.state.lock().trace.clone()
    }

    /// How many events the trace has.
    pub fn trace_length(&self) -> usize {
        self.state.lock().trace.len()
    }

    /// Sets which I/Os fail from now on.
    pub fn set_fault(&self, fault: Fault) {
        self.state.lock().fault = fault;
    }

    /// I/Os so far, failed ones included (SD-6).
    pub fn io_count(&self) -> u64 {
        self.state.lock().count
    }

    /// I/Os up to the last so far that was no read.
    pub fn changing_io_count(&self) -> u64 {
        self.state.lock().changing_count
    }

    /// How many I/Os were made to fail.
    pub fn failed_count(&self) -> u64 {
        self.state.lock().failed.len() as u64
    }

    /// The I/Os that were made to fail: `read`, `write`, `flush` or `discard`.
    pub fn failed(&self) -> Vec<&'static str> {
        self.state.lock().failed.clone()
    }

    /// Turns over `count` bits in a range, chosen by seed, as a medium that rots does.
    pub fn flip_bits(&self, range: Range<u64>, count: u32, seed: u64) {
        let mut random = Random::new(seed);
        let image = &mut self.state.lock().image;
        for _ in 0..count {
            let offset = range.start + random.below(range.end - range.start);
            image.flip_bit(offset, random.below(8) as u32);
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(BLOCK_SIZE as u64), "offset {offset} is not a multiple of a block");
        assert!(length.is_multiple_of(BLOCK_SIZE as u64), "length {length} is not a multiple of a block");
        match offset.checked_add(length) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, length, capacity: self.capacity }),
        }
    }
}

/// The blocks that lie in a range as a whole.
fn blocks(offset: u64, length: u64) -> Range<u64> {
    offset.div_ceil(BLOCK_SIZE as u64)..(offset + length) / BLOCK_SIZE as u64
}

impl State {
    /// Counts an I/O; an error if it is to fail.
    fn begin(&mut self, action: &'static str, offset: u64) -> Result<(), DeviceError> {
        let number = self.count;
        self.count += 1;
        if action != "read" {
            self.changing_count = self.count;
        }
        if !self.fault.hits(number, action == "read") {
            return Ok(());
        }
        self.failed.push(action);
        Err(DeviceError::Io { action, device: "simulated device".into(), offset, code: IO_ERROR })
    }

    fn note(&mut self, event: Event) {
        if self.is_traced {
            self.trace.push(event);
        }
    }

    fn note_reads(&mut self, offset: u64, length: u64) {
        let Some(noted) = &mut self.first_reads else { return };
        for block in blocks(offset, length) {
            noted.entry(block).or_insert_with(|| Some(self.image.block(block)));
        }
    }

    fn note_change(&mut self, offset: u64, length: u64) {
        let Some(noted) = &mut self.first_reads else { return };
        for block in blocks(offset, length) {
            noted.entry(block).or_insert(None);
        }
    }

    fn do_write(&mut self, offset: u64, bytes: Bytes) {
        self.note_change(offset, bytes.len() as u64);
        self.image.write(offset, &bytes);
        self.note(Event::Write { offset, bytes });
    }
}

impl Device for SimulatedDevice {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        for request in batch {
            self.check(request.offset, request.buffer.len() as u64)?;
            let mut state = self.state.lock();
            state.begin("read", request.offset)?;
            state.note_reads(request.offset, request.buffer.len() as u64);
            state.image.read(request.offset, &mut request.buffer);
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for request in batch {
            let length: usize = request.pieces.iter().map(Bytes::len).sum();
            self.check(request.offset, length as u64)?;
            for piece in &request.pieces {
                assert!(piece.len().is_multiple_of(BLOCK_SIZE), "a piece has {} bytes", piece.len());
            }
            let bytes = request.in_one();
            let mut state = self.state.lock();
            match state.begin("write", request.offset) {
                Ok(()) => state.do_write(request.offset, bytes),
                Err(error) => {
                    let half = length / 2 / SECTOR_SIZE * SECTOR_SIZE;
                    state.do_write(request.offset, bytes.slice(..half));
                    // The batch's other requests are under way at the same time; one that fails does not stop them.
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// The other work comes first, so that it knows nothing of how the write ends.
    fn write_meanwhile(&self, batch: &[WriteRequest], work: &mut dyn FnMut()) -> Result<(), DeviceError> {
        work();
        self.write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        state.begin("flush", 0)?;
        state.note(Event::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.check(offset, length)?;
        let mut state = self.state.lock();
        state.begin("discard", offset)?;
        state.note_change(offset, length);
        state.image.discard(offset, length);
        state.note(Event::Discard { offset, length });
        Ok(())
    }

    fn name(&self) -> String {
        "simulated device".to_owned()
    }
}

#[cfg(test)]
mod tests;
