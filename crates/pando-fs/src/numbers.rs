//! Allocation of inode numbers.
//!
//! A persistent counter stands above every number given out. It is raised in steps, in a record of its own before the
//! first number of the step is used, so a crash loses numbers and never repeats one. What was received raises it beyond
//! the numbers of the volume from which that came.

use bytes::Bytes;
use pando_engine::{Batch, Tree};
use parking_lot::Mutex;

use crate::schema::key;
use crate::store::Store;
use crate::{Error, Result};

/// Numbers reserved by one record.
const STEP: u64 = 65_536;

/// First number for anything but the root directory.
pub(crate) const FIRST: u64 = 2;

pub(crate) struct Numbers {
    reserved: Mutex<std::ops::Range<u64>>,
}

impl Numbers {
    /// Goes on behind every number that may have been used.
    pub(crate) fn new(counter: u64) -> Self {
        Self { reserved: Mutex::new(counter..counter) }
    }

    /// A number never given out before.
    pub(crate) fn allocate(&self, store: &Store) -> Result<u64> {
        let mut reserved = self.reserved.lock();
        if reserved.is_empty() {
            let start = reserved.start;
            let end = start.checked_add(STEP).ok_or(Error::NoSpace)?;
            let mut batch = Batch::new();
            batch.put(Tree::Metadata, key::INODE_COUNTER, encode_counter(end));
            store.apply(batch)?;
            *reserved = start..end;
        }
        let number = reserved.start;
        reserved.start += 1;
        Ok(number)
    }

    /// The first of so many numbers in a row, never given out before; it is a multiple of `unit`.
    pub(crate) fn allocate_row(&self, store: &Store, unit: u64, count: u64) -> Result<u64> {
        let mut reserved = self.reserved.lock();
        let start = reserved.start.checked_next_multiple_of(unit).ok_or(Error::NoSpace)?;
        let next = start.checked_add(count).ok_or(Error::NoSpace)?;
        if next > reserved.end {
            let mut batch = Batch::new();
            batch.put(Tree::Metadata, key::INODE_COUNTER, encode_counter(next));
            store.apply(batch)?;
        }
        *reserved = next..reserved.end.max(next);
        Ok(start)
    }

    /// Applies the batch that is made for a number which is not below `least`; nor is any from now on. The counter is raised by the same
    /// batch, so that it is as it was where that is not applied.
    pub(crate) fn allocate_from(
        &self,
        store: &Store,
        least: u64,
        batch_for: impl FnOnce(u64) -> Batch,
    ) -> Result<()> {
        let mut reserved = self.reserved.lock();
        let number = reserved.start.max(least);
        let start = number.checked_add(1).ok_or(Error::NoSpace)?;
        let end = reserved.end.max(start);
        let mut batch = batch_for(number);
        batch.put(Tree::Metadata, key::INODE_COUNTER, encode_counter(end));
        store.apply(batch)?;
        *reserved = start..end;
        Ok(())
    }
}

/// The counter's value as stored.
pub(crate) fn encode_counter(counter: u64) -> Bytes {
    Bytes::copy_from_slice(&counter.to_le_bytes())
}

/// The stored counter.
pub(crate) fn decode_counter(value: Option<&Bytes>) -> Result<u64> {
    let bytes = value.and_then(|value| <[u8; 8]>::try_from(&value[..]).ok());
    let damaged = || Error::damaged("the counter of inode numbers is missing or has the wrong length");
    bytes.map(u64::from_le_bytes).ok_or_else(damaged)
}
