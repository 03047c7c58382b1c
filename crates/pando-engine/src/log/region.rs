//! The circular region: offsets of the log, which wrap around, inside a range of the device.

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, Buffer, Device, ReadRequest, WriteRequest};
use pando_format::{LogPosition, Region};

use crate::Result;

/// A window over the log on the device.
#[derive(Clone, Copy)]
pub(super) struct Circle {
    region: Region,
}

impl Circle {
    /// # Panics
    /// If the region is not made of whole blocks, or is empty.
    pub fn new(region: Region) -> Self {
        let block = BLOCK_SIZE as u64;
        assert!(
            region.offset.is_multiple_of(block) && region.length.is_multiple_of(block) && region.length > 0
        );
        Self { region }
    }

    /// Bytes the log holds at most.
    pub fn length(&self) -> u64 {
        self.region.length
    }

    /// The offset so many bytes behind another.
    pub fn advance(&self, offset: u64, bytes: u64) -> u64 {
        (offset + bytes) % self.region.length
    }

    /// Bytes from one position to a later one, at most a whole round. Sequences tell an empty log from a full
    /// one.
    pub fn distance(&self, from: LogPosition, to: LogPosition) -> u64 {
        if from.sequence == to.sequence {
            return 0;
        }
        match (to.offset + self.region.length - from.offset) % self.region.length {
            0 => self.region.length,
            bytes => bytes,
        }
    }

    /// Writes whole blocks from a log offset on, in at most two pieces.
    pub fn write(&self, device: &dyn Device, offset: u64, bytes: &Bytes) -> Result<()> {
        assert!(bytes.len() as u64 <= self.length(), "a batch is shorter than the log");
        let requests: Vec<WriteRequest> = self
            .pieces(offset, bytes.len())
            .scan(0, |done, (place, length)| {
                let piece = bytes.slice(*done..*done + length);
                *done += length;
                Some(WriteRequest { offset: place, pieces: vec![piece] })
            })
            .collect();
        Ok(device.write(&requests)?)
    }

    /// Reads whole blocks from a log offset on.
    pub fn read(&self, device: &dyn Device, offset: u64, length: usize) -> Result<Bytes> {
        let mut requests: Vec<ReadRequest> = self
            .pieces(offset, length)
            .map(|(place, length)| ReadRequest { offset: place, buffer: Buffer::zeroed(length) })
            .collect();
        device.read(&mut requests)?;
        if requests.len() == 1 {
            return Ok(requests.remove(0).buffer.freeze());
        }
        let pieces: Vec<&[u8]> = requests.iter().map(|request| &request.buffer[..]).collect();
        Ok(pieces.concat().into())
    }

    /// Where a run of the log lies on the device: (offset, length).
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
        let start = offset % self.region.length;
        let first = (self.region.length - start).min(length as u64) as usize;
        let place = self.region.offset;
        [(place + start, first), (place, length - first)].into_iter().filter(|(_, length)| *length > 0)
    }
}
