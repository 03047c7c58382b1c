//! A device in memory, for tests and for volumes that need not outlive the process.

use parking_lot::RwLock;

use crate::device::{ReadRequest, WriteRequest};
use crate::{Device, DeviceError};

/// Bytes in memory; nothing is lost but by dropping it.
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `capacity` zero bytes.
    pub fn new(capacity: u64) -> Self {
        Self::from_bytes(vec![0; capacity as usize])
    }

    /// A device that holds exactly `bytes`.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes) }
    }

    /// A copy of everything on it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn check(&self, offset: u64, length: usize) -> Result<(), DeviceError> {
        let capacity = self.capacity();
        match offset.checked_add(length as u64) {
            Some(end) if end <= capacity => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, length: length as u64, capacity }),
        }
    }
}

impl Device for MemoryDevice {
    fn capacity(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        for request in batch {
            self.check(request.offset, request.buffer.len())?;
            let bytes = self.bytes.read();
            let start = request.offset as usize;
            let end = start + request.buffer.len();
            request.buffer.copy_from_slice(&bytes[start..end]);
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        for request in batch {
            let mut offset = request.offset;
            for piece in &request.pieces {
                self.check(offset, piece.len())?;
                let start = offset as usize;
                self.bytes.write()[start..start + piece.len()].copy_from_slice(piece);
                offset += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}
