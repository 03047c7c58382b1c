//! Allocation of inode numbers.
//!
//! A persistent counter stands above every number given out. It is raised in steps, in a record of its own before the
//! first number of the step is used, so a crash loses numbers and never repeats one.

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

    /// From now on gives out only numbers that are not below this one.
    pub(crate) fn raise(&self, store: &Store, least: u64) -> Result<()> {
        let mut reserved = self.reserved.lock();
        if reserved.start >= least {
            return Ok(());
        }
        let end = reserved.end.max(least);
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::INODE_COUNTER, encode_counter(end));
        store.apply(batch)?;
        reserved.start = least;
        reserved.end = end;
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
    bytes.map(u64::from_le_bytes).ok_or_else(|| {
        let what = "the counter of inode numbers is missing or has the wrong length".to_owned();
        Error::Engine(pando_engine::Error::Damaged { what })
    })
}
