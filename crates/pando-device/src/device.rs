//! The trait every kind of storage implements.
//!
//! Promises that the engine relies on:
//!
//! * DEV-1 a completed write is read back by every later read, before and after a flush.
//! * DEV-2 after `flush` returns, everything written by calls that returned before it began survives a crash.
//! * DEV-3 until then a crash may keep any subset of the unflushed sectors (512 bytes each), in any order.
//! * DEV-4 a discarded range reads as anything until it is written again.

use bytes::Bytes;

use crate::Buffer;

/// Bytes in a block: the unit of every offset and length given to a [`Device`].
pub const BLOCK_SIZE: usize = 4096;

/// One read of a batch: fills `buffer` from `offset`.
pub struct ReadRequest {
    /// Byte offset on the device, a multiple of [`BLOCK_SIZE`].
    pub offset: u64,
    /// Where the bytes go; its whole length is read.
    pub buffer: Buffer,
}

/// One write of a batch: the pieces one after the other, from `offset` on.
pub struct WriteRequest {
    /// Byte offset on the device, a multiple of [`BLOCK_SIZE`].
    pub offset: u64,
    /// Memory written back to back; each piece's length is a multiple of [`BLOCK_SIZE`]. Pieces whose memory
    /// is not aligned to a block are copied by the device where it needs alignment.
    pub pieces: Vec<Bytes>,
}

impl WriteRequest {
    /// All of it in one. A single piece is kept by reference: nobody can change it any more.
    pub(crate) fn in_one(&self) -> Bytes {
        match &self.pieces[..] {
            [single] => single.clone(),
            many => many.concat().into(),
        }
    }
}

/// Where a volume lives. All calls block the calling thread until the work is done; a batch is done concurrently.
pub trait Device: Send + Sync {
    /// Bytes that can be addressed, a multiple of [`BLOCK_SIZE`].
    fn capacity(&self) -> u64;

    /// Reads all requests of the batch. On an error the contents of every buffer are undefined.
    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError>;

    /// Writes all requests of the batch, in no particular order. On an error any part of it may have been written.
    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError>;

    /// Writes a batch, and does other work of the caller's while the device has it; returns when both are done. The work may
    /// use the device, too.
    ///
    /// # Errors
    /// As [`Device::write`]; the work is done in any case.
    fn write_meanwhile(&self, batch: &[WriteRequest], work: &mut dyn FnMut()) -> Result<(), DeviceError> {
        let result = self.write(batch);
        work();
        result
    }

    /// Makes every write that returned before this call durable (DEV-2).
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the range holds nothing any more. A device without discard does nothing.
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError>;

    /// What it is, for messages: a path, or `memory`.
    fn name(&self) -> String;
}

/// Why a device could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system refused or failed: what was tried, on which device, and its error number.
    Io {
        /// `read`, `write`, `flush`, `discard` or `open`.
        action: &'static str,
        /// The device's name.
        device: String,
        /// Byte offset, or 0 where there is none.
        offset: u64,
        /// errno.
        code: i32,
    },
    /// The range lies outside the device.
    OutOfRange {
        /// Byte offset asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes that there are.
        capacity: u64,
    },
    /// Another process has the device open.
    InUse {
        /// The device's name.
        device: String,
    },
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { action, device, offset, code } => {
                let cause = std::io::Error::from_raw_os_error(*code);
                write!(f, "cannot {action} {device} at byte {offset}: {cause}")
            }
            Self::OutOfRange { offset, length, capacity } => {
                write!(f, "{length} bytes at {offset} lie outside a device of {capacity} bytes")
            }
            Self::InUse { device } => write!(f, "{device} is in use by another process"),
        }
    }
}

impl std::error::Error for DeviceError {}
