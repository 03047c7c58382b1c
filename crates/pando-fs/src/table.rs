//! The inode table: every inode that a user of this layer may name by number, and their ancestors.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hash::NumberMap;
use crate::inode::{Inode, Place};
use crate::operations::InodeNumber;

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    inodes: NumberMap<InodeNumber, Arc<Inode>>,
    /// How many inodes have left.
    removals: u64,
}

/// Inodes by number.
pub(crate) struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
}

/// That an inode was not in the table at a certain moment; for [`InodeTable::insert_since`].
#[derive(Clone, Copy)]
pub(crate) struct Absence {
    removals: u64,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, number: InodeNumber) -> &Mutex<Shard> {
        &self.shards[(number.0 % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.shard(number).lock().inodes.get(&number).cloned()
    }

    /// The inode, or the proof that it is not there now.
    pub(crate) fn get_or_absence(&self, number: InodeNumber) -> std::result::Result<Arc<Inode>, Absence> {
        let shard = self.shard(number).lock();
        shard.inodes.get(&number).cloned().ok_or(Absence { removals: shard.removals })
    }

    /// False if an inode with that number is there already.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) -> bool {
        insert(&mut self.shard(inode.number).lock(), inode)
    }

    /// As [`InodeTable::insert`], but false also if an inode with that number may have come and gone since `absence`.
    pub(crate) fn insert_since(&self, absence: Absence, inode: &Arc<Inode>) -> bool {
        let mut shard = self.shard(inode.number).lock();
        shard.removals == absence.removals && insert(&mut shard, inode)
    }

    pub(crate) fn remove(&self, number: InodeNumber) {
        let mut shard = self.shard(number).lock();
        shard.inodes.remove(&number);
        shard.removals += 1;
    }

    /// Every inode there is at the moment.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().inodes.values().cloned().collect::<Vec<_>>())
            .collect()
    }
}

fn insert(shard: &mut Shard, inode: &Arc<Inode>) -> bool {
    match shard.inodes.entry(inode.number) {
        Entry::Occupied(_) => false,
        Entry::Vacant(place) => {
            place.insert(inode.clone());
            true
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::NameBudget;
    use crate::operations::FileType;
    use crate::schema::{Record, Timestamp};

    fn inode(number: u64) -> Arc<Inode> {
        let record = Record::new(FileType::Regular, number, Timestamp::default());
        Inode::detached(record, Place::Orphan, &Arc::new(NameBudget::new(0)), false)
    }

    #[test]
    fn an_inode_that_came_and_went_is_not_put_in_with_what_was_read_before() {
        let table = InodeTable::new();
        let absence = table.get_or_absence(InodeNumber(5)).err().unwrap();
        assert!(table.insert_since(absence, &inode(5)));
        assert!(!table.insert_since(absence, &inode(5)), "it is there");
        table.remove(InodeNumber(5));
        assert!(!table.insert_since(absence, &inode(5)), "its record may have changed since");
        let absence = table.get_or_absence(InodeNumber(5)).err().unwrap();
        assert!(table.insert_since(absence, &inode(5)));
    }
}
