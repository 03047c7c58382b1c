//! The inode table: every inode that a user of this layer may name by number, and their ancestors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::inode::{Inode, Place};
use crate::operations::InodeNumber;

const SHARDS: usize = 16;

/// Inodes by number.
pub(crate) struct InodeTable {
    shards: [Mutex<HashMap<InodeNumber, Arc<Inode>>>; SHARDS],
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, number: InodeNumber) -> &Mutex<HashMap<InodeNumber, Arc<Inode>>> {
        &self.shards[(number.0 % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.shard(number).lock().get(&number).cloned()
    }

    /// False if an inode with that number is there already.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) -> bool {
        match self.shard(inode.number).lock().entry(inode.number) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(inode.clone());
                true
            }
        }
    }

    pub(crate) fn remove(&self, number: InodeNumber) {
        self.shard(number).lock().remove(&number);
    }

    /// Every inode there is at the moment.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }
}

impl Drop for InodeTable {
    /// Cuts the chains of parents first: letting go of a deep one inode by inode would recurse.
    fn drop(&mut self) {
        for inode in self.all() {
            inode.set_place(Place::Orphan);
        }
    }
}
