//! Inodes without a name that are still referenced.
//!
//! Unlinking moves the record to the orphan's own key and leaves the blocks where they lie: they are *parked*, and the
//! record says where. The last `forget` deletes both. Whoever needs a key under which something is parked first moves
//! it to the orphan's own key, in the batch that uses the key ([`FileSystem::evict`]), or before it where there are too many
//! ([`FileSystem::evict_ahead`]). Nobody needs the key of a file that had several links ([`crate::link`]) but itself, when it gets a
//! name again. What a crash leaves is deleted at the next open.
//!
//! * OR-1 every orphan in memory whose record has `parked` set is in [`Parked`] under that key, and nothing else is.

use std::collections::BTreeMap;
use std::ops::Bound as Limit;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::complain;
use pando_engine::{Batch, KeyRange, ScanLimit, Tree};
use parking_lot::Mutex;

use crate::inode::{Inode, Place, States};
use crate::operations::InodeNumber;
use crate::schema::{Record, key};
use crate::store;
use crate::{Error, FileSystem, Result};

/// Orphans that the record of another change moves to their own keys, at most.
const EVICTED_AT_ONCE: usize = 64;

/// Orphans that one record deletes, at most: while it comes into the trees, changes on other cores wait.
const DELETED_AT_ONCE: usize = 8;

/// Bytes of such a record from which on no more orphans come to it: what the log of the smallest volume takes, many times over.
const DELETED_BYTES: usize = 32 << 10;

/// Orphans whose data lie under the key that their record had, by that key.
pub(crate) struct Parked {
    by_key: Mutex<BTreeMap<Bytes, Arc<Inode>>>,
}

impl Parked {
    pub(crate) fn new() -> Self {
        Self { by_key: Mutex::default() }
    }

    /// What is parked under this metadata key.
    pub(crate) fn at(&self, metadata_key: &[u8]) -> Option<Arc<Inode>> {
        self.by_key.lock().get(metadata_key).cloned()
    }

    /// What is parked under keys that begin with this.
    pub(crate) fn below(&self, prefix: &[u8]) -> Vec<Arc<Inode>> {
        let by_key = self.by_key.lock();
        let from = by_key.range::<[u8], _>((Limit::Included(prefix), Limit::Unbounded));
        from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, inode)| inode.clone()).collect()
    }

    /// The keys, beginning with this, under which something is parked.
    pub(crate) fn keys_below(&self, prefix: &[u8]) -> Vec<Bytes> {
        let by_key = self.by_key.lock();
        let from = by_key.range::<[u8], _>((Limit::Included(prefix), Limit::Unbounded));
        from.map(|(key, _)| key.clone()).take_while(|key| key.starts_with(prefix)).collect()
    }

    /// The keys in a tree, given the prefix of its keys, under which something is parked.
    pub(crate) fn keys_in(&self, tree: &[u8]) -> Vec<Bytes> {
        let mut keys = self.keys_below(tree);
        keys.retain(|key| !tree.is_empty() || key.first() != Some(&key::SNAPSHOT_TAG));
        keys
    }

    /// What is parked in a tree, given the prefix of its keys.
    pub(crate) fn in_tree(&self, tree: &[u8]) -> Vec<Arc<Inode>> {
        let keys = self.keys_in(tree);
        keys.iter().filter_map(|key| self.at(key)).collect()
    }

    pub(crate) fn is_free(&self, prefix: &[u8]) -> bool {
        let by_key = self.by_key.lock();
        let mut from = by_key.range::<[u8], _>((Limit::Included(prefix), Limit::Unbounded));
        !from.next().is_some_and(|(key, _)| key.starts_with(prefix))
    }

    pub(crate) fn insert(&self, metadata_key: Bytes, inode: Arc<Inode>) {
        let before = self.by_key.lock().insert(metadata_key, inode);
        assert!(before.is_none(), "OR-1: two orphans are parked under one key");
    }

    pub(crate) fn remove(&self, metadata_key: &[u8]) {
        self.by_key.lock().remove(metadata_key);
    }
}

/// Adds to the batch what deletes an orphan.
fn delete_data_and_record(batch: &mut Batch, inode: &Inode, record: &Record) {
    let own = key::orphan_key(inode.number.0);
    if record.has_data() {
        let lies_under = if record.parked.is_empty() { &own } else { &record.parked };
        batch.delete_range(Tree::Data, KeyRange::prefix(key::data_prefix(lies_under)));
        batch.note_freed(record.data_bytes());
    }
    batch.delete(Tree::Metadata, own);
}

impl FileSystem {
    /// What is parked under the metadata key of a name that is to be made. [`Error::Unforgotten`] if it may be gone in a moment.
    pub(crate) fn parked_at(&self, metadata_key: &[u8]) -> Result<Option<Arc<Inode>>> {
        let parked = self.parked.at(metadata_key);
        if parked.as_ref().is_some_and(|orphan| self.store.leaving().may_leave_at_once(orphan.number)) {
            return Err(Error::Unforgotten);
        }
        Ok(parked)
    }

    /// Adds to the batch what moves parked orphans to their own keys, for those that are (still) parked. Their states are
    /// locked. Give the result to [`FileSystem::settle_evicted`] once the batch is applied.
    pub(crate) fn evict<'a>(
        &self,
        batch: &mut Batch,
        states: &States,
        orphans: impl IntoIterator<Item = &'a Arc<Inode>>,
    ) -> Vec<(Arc<Inode>, Record)> {
        let mut evicted = Vec::new();
        for inode in orphans {
            let mut record = states.record(inode).clone();
            if inode.is_detached() || record.parked.is_empty() {
                continue;
            }
            let from = key::data_prefix(&std::mem::take(&mut record.parked));
            let own = key::orphan_key(inode.number.0);
            batch.move_range(Tree::Data, from, key::data_prefix(&own));
            batch.put(Tree::Metadata, own, record.encode());
            evicted.push((inode.clone(), record));
        }
        evicted
    }

    /// Moves parked orphans to their own keys, one record for each, if they might be too many for the record of the change that needs the
    /// keys: a crash in between leaves nothing that may not be, nor does [`Error::Unfinished`], behind which the rest is moved. The name space
    /// lock is held exclusively, so none comes to be parked meanwhile. What comes along with what moves or is cloned may get keys that are `longer` by so
    /// many bytes.
    pub(crate) fn evict_ahead(&self, orphans: &[Arc<Inode>], longer: usize) -> Result<()> {
        let mut states = States::lock(orphans);
        let bytes = |orphan: &Arc<Inode>| {
            let record = states.record(orphan);
            // The key is in the record as well, and twice in what deletes what came along.
            (record.encode().len() + 2 * (record.parked.len() + longer)) as u64
        };
        let engine = self.store.engine();
        let fits = orphans.iter().map(bytes).sum::<u64>() <= engine.record_bytes_max() / 2;
        if fits && orphans.len() <= EVICTED_AT_ONCE {
            return Ok(());
        }
        for (moved, orphan) in orphans.iter().enumerate() {
            if moved >= EVICTED_AT_ONCE && !engine.has_room(states.record(orphan).data_bytes()) {
                // What is left of the moves waits to be healed, say. Where there is no space, the next record is refused.
                return Err(Error::Unfinished);
            }
            // Also for a change that gives space back: so many moves take more of it than is kept for such changes.
            let mut batch = Batch::new();
            let evicted = self.evict(&mut batch, &states, [orphan]);
            self.store.apply(batch)?;
            self.settle_evicted(&mut states, evicted);
        }
        Ok(())
    }

    /// Makes in memory what [`FileSystem::evict`] did in the batch.
    pub(crate) fn settle_evicted(&self, states: &mut States, evicted: Vec<(Arc<Inode>, Record)>) {
        for (inode, record) in evicted {
            self.parked.remove(&states.record(&inode).parked);
            states.set_record(&inode, record);
        }
    }

    /// Deletes an orphan that was just detached, and takes it out of the table. Its state is locked.
    pub(crate) fn delete_orphan(&self, inode: &Inode, record: &Record) {
        let mut batch = Batch::reclaiming();
        delete_data_and_record(&mut batch, inode, record);
        // Where this fails the volume takes no changes any more, and the next open deletes the orphan.
        let _ = self.store.apply(batch);
        self.settle_deleted(inode, record);
    }

    fn settle_deleted(&self, inode: &Inode, record: &Record) {
        self.store.leaving().is_settled(inode.number);
        if !record.parked.is_empty() {
            self.parked.remove(&record.parked);
        }
        self.table.remove(inode.number);
    }

    /// Gives back references of many inodes. Orphans among them that have none left are deleted in one record for many.
    pub(crate) fn forget_inodes(&self, forgotten: &[(InodeNumber, u64)]) {
        let mut orphans = Vec::new();
        for &(number, count) in forgotten {
            if let Some(inode) = self.release_inode(number, count) {
                if matches!(inode.place(), Place::Orphan) {
                    orphans.push(inode);
                } else {
                    self.drop_unreferenced(inode);
                }
            }
        }
        orphans.sort_by_key(|inode| inode.number);
        orphans.dedup_by_key(|inode| inode.number);
        let mut rest = &orphans[..];
        while !rest.is_empty() {
            rest = &rest[self.drop_orphans(rest)..];
        }
    }

    /// As [`FileSystem::drop_unreferenced`], for the first of these inodes, which had no name a moment ago, in the order of their
    /// numbers: as many as one record deletes. Returns how many.
    fn drop_orphans(&self, orphans: &[Arc<Inode>]) -> usize {
        let epoch = self.namespace.read();
        let mut batch = Batch::reclaiming();
        let mut deleted = Vec::with_capacity(orphans.len().min(DELETED_AT_ONCE));
        let mut named = Vec::new();
        let (mut bytes, mut looked_at) = (0, 0);
        for inode in orphans {
            if deleted.len() == DELETED_AT_ONCE || bytes >= DELETED_BYTES {
                break;
            }
            looked_at += 1;
            let mut state = inode.write_any();
            if !matches!(inode.place(), Place::Orphan) {
                named.push(inode.clone());
            } else if inode.detach(&mut state) {
                delete_data_and_record(&mut batch, inode, &state.record);
                // The key is in both ends of the range of its data.
                bytes += 2 * state.record.parked.len() + 100;
                deleted.push((inode, state));
            }
        }
        // As above. Until then the states stay locked: whoever needs a key under which something is parked waits for them.
        let _ = self.store.apply(batch);
        for (inode, state) in &deleted {
            self.settle_deleted(inode, &state.record);
        }
        drop((deleted, epoch));
        named.into_iter().for_each(|inode| self.drop_unreferenced(inode));
        looked_at
    }

    /// Deletes every orphan in memory, referenced or not: the volume is about to be closed.
    pub(crate) fn reclaim_all_orphans(&self) {
        let _epoch = self.namespace.read();
        for inode in self.table.all() {
            if matches!(inode.place(), Place::Orphan) {
                inode.release(u64::MAX - 1);
                self.drop_parentless(&inode);
            }
        }
    }

    /// Gives each orphan on the volume: its key, and what its record says. Waits for the device.
    fn each_orphan(&self, mut each: impl FnMut(Bytes, Result<Record>) -> Result<()>) -> Result<()> {
        let engine = self.store.engine();
        let limit = ScanLimit { entries: 256, bytes: 1 << 20 };
        let mut range = Some(KeyRange::prefix(vec![key::ORPHAN_TAG]));
        while let Some(part) = range {
            let scan = engine.waiting(|| engine.scan(Tree::Metadata, &part, limit))?;
            for (orphan_key, value) in scan.entries {
                let record = store::decode_orphan(&orphan_key, &value);
                each(orphan_key, record)?;
            }
            range = scan.rest;
        }
        Ok(())
    }

    /// What the data keys of orphans that are parked in a snapshot begin with, without the snapshot's prefix, in order. Of a volume that takes no
    /// changes: the orphans of the last mount may still be there, and of one that takes none for a while those of this mount. Waits for the device.
    pub(crate) fn left_parked_in(&self, snapshot_prefix: &[u8]) -> Result<Vec<Bytes>> {
        let mut parked = Vec::new();
        self.each_orphan(|_, record| {
            // Where the data of the others lie nobody knows.
            if let Ok(record) = record
                && let Some(key) = record.parked.strip_prefix(snapshot_prefix)
            {
                parked.push(key::data_prefix(key));
            }
            Ok(())
        })?;
        parked.sort();
        Ok(parked)
    }

    /// Deletes the orphans that the last mount left, but those whose records make no sense. Waits for the device.
    pub(crate) fn delete_orphans(&self) -> Result<()> {
        self.each_orphan(|orphan_key, record| {
            let record = match record {
                Ok(record) => record,
                // Where its data lie nobody knows. It is left to the check.
                Err(error) => {
                    complain(format_args!("a file that was unlinked cannot be deleted: {error}"));
                    return Ok(());
                }
            };
            let mut batch = Batch::reclaiming();
            let lies_under = if record.parked.is_empty() { &orphan_key } else { &record.parked };
            batch.delete_range(Tree::Data, KeyRange::prefix(key::data_prefix(lies_under)));
            batch.note_freed(record.data_bytes());
            batch.delete(Tree::Metadata, orphan_key);
            self.store.engine().make_room(0)?;
            match self.store.apply(batch) {
                // No key can be as long as the record says; it is left to the check, too.
                Err(error @ (Error::NameTooLong | Error::Engine(pando_engine::Error::TooLarge { .. }))) => {
                    complain(format_args!("a file that was unlinked cannot be deleted: {error}"));
                    Ok(())
                }
                done => done,
            }
        })
    }
}
