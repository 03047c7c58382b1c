//! Names go: unlink and rmdir. One batch takes the name, makes the orphan and changes the directory.

use std::sync::Arc;

use bytes::Bytes;
use pando_engine::{Batch, KeyRange, Tree};

use crate::inode::{Inode, Place, States};
use crate::link::{self, Found};
use crate::namei::{check_old_name, name_key};
use crate::operations::InodeNumber;
use crate::rename::{BothNames, End};
use crate::schema::{Record, Timestamp, key};
use crate::{Error, FileSystem, Result};

/// Bytes of an operation in the log beside its keys and values, and a bound's, at most.
const OPERATION_HEAD_MAX: usize = 32;

/// What came of it.
enum Attempt<'a> {
    /// Done. True if the directory is to lose a reference, which the inode held.
    Done(bool),
    /// The name is another inode's now.
    Changed(Found<'a>),
}

impl FileSystem {
    pub(crate) fn remove_name(&self, parent: InodeNumber, name: &[u8], is_directory: bool) -> Result<()> {
        let directory = self.writable_inode(parent)?;
        // Each goes once nothing is locked any more: a file that has gone home has a parent.
        let mut found = Vec::new();
        let held_parent = self.remove_found(&directory, name, is_directory, &mut found)?;
        if held_parent && directory.release(1) {
            self.drop_unreferenced(directory);
        }
        Ok(())
    }

    /// True if the directory is to lose a reference. Who was found under the name, the last one in effect, is added.
    fn remove_found<'a>(
        &'a self,
        directory: &Arc<Inode>,
        name: &[u8],
        is_directory: bool,
        found: &mut Vec<Found<'a>>,
    ) -> Result<bool> {
        let epoch = self.for_change()?;
        check_old_name(directory, name)?;
        let mut latest = {
            // Locked before the path is looked up, which the directory remembers: it may be removed meanwhile.
            let names = directory.names()?;
            let path = directory.path(*epoch)?;
            self.resolve(directory, &names, &path, name)?.ok_or(Error::NotFound)?
        };
        loop {
            let inode = latest.clone();
            found.push(latest);
            match (is_directory, inode.is_directory()) {
                (true, false) => return Err(Error::NotADirectory),
                (false, true) => return Err(Error::IsADirectory),
                _ => {}
            }
            match self.remove_inode(directory, name, &inode, *epoch, found)? {
                Attempt::Done(held_parent) => return Ok(held_parent),
                Attempt::Changed(other) => latest = other,
            }
        }
    }

    /// Removes the name if it still is the inode's. A directory's own names are locked too, so that nothing comes to be
    /// in it; the order of the locks makes it necessary to look again.
    fn remove_inode<'a>(
        &'a self,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        epoch: u64,
        found: &mut Vec<Found<'a>>,
    ) -> Result<Attempt<'a>> {
        let home = self.home_of(inode, directory, name, found);
        let other = match &home {
            Some(home) => &home.directory,
            None if inode.is_directory() && !inode.is_detached() => inode,
            None => directory,
        };
        let mut names = BothNames::lock(directory, other)?;
        // The directory may have been removed before its names were locked.
        let path = directory.path(epoch)?;
        let again = self.resolve(directory, &names.from, &path, name)?.ok_or(Error::NotFound)?;
        if again.number != inode.number || again.is_detached() != inode.is_detached() {
            return Ok(Attempt::Changed(again));
        }
        if !inode.is_detached() && !Arc::ptr_eq(&again, inode) {
            return Ok(Attempt::Changed(again));
        }
        // A detached inode may hold a record that was read before the names were locked.
        let inode = again.clone();
        found.push(again);
        let inode = &inode;
        // Under a directory that has moved it may have become too long to be parked under, or for the index.
        let key = name_key(&path, name)?;
        if let Some(home) = &home
            && let Some(home) = self.home_end(home, names.to(), inode, epoch)
            && self.unlink_to_home(
                &End { directory, name, path: path.clone(), key: key.clone() },
                &home,
                inode,
                &mut names,
                epoch,
            )?
        {
            return Ok(Attempt::Done(false));
        }
        let held_parent = inode.holds_parent();
        let mut states = States::lock([directory, inode]);
        states.check_attached(directory)?;
        if states.record(inode).entries > 0 {
            return Err(Error::NotEmpty);
        }

        let now = self.now();
        let mut batch = Batch::reclaiming();
        let mut directory_record = states.record(directory).clone();
        directory_record.entries = directory_record.entries.saturating_sub(1);
        (directory_record.modified, directory_record.changed) = (now, now);
        let removed = self.remove_from_batch(&mut batch, inode, states.record(inode), &key, now, true);
        if inode.is_directory() {
            directory_record.links = directory_record.links.saturating_sub(1);
        }
        batch.update(Tree::Metadata, directory.key(epoch)?, directory_record.hot_update());
        if inode.is_directory() {
            self.swallow_deletions(&mut batch, key::subtree_prefix(&key::child_path(&path, name)));
        }
        self.store.apply(batch).map_err(Error::of_one_path)?;

        states.set_record(directory, directory_record);
        names.from.remove(name);
        self.settle_removed(&mut states, inode, removed);
        inode.known_names.remove(directory, name);
        Ok(Attempt::Done(held_parent))
    }

    /// Adds to the batch, of a directory that is removed, one message for each index that swallows what the deletions of the children left. Their
    /// work is done without, so a path of which the log does not take as many bounds leaves them out.
    fn swallow_deletions(&self, batch: &mut Batch, below: Bytes) {
        let others: usize =
            batch.operations().iter().map(|operation| operation.length() + OPERATION_HEAD_MAX).sum();
        let bounds = 4 * (below.len() + OPERATION_HEAD_MAX);
        if (others + bounds) as u64 > self.store.engine().record_bytes_max() {
            return;
        }
        batch.delete_range(Tree::Metadata, KeyRange::prefix(below.clone()));
        // The records of orphans are elsewhere; their data may be parked there.
        if self.parked.is_free(&below) {
            batch.delete_range(Tree::Data, KeyRange::prefix(below));
        }
    }

    /// Adds to the batch what takes the inode's name away. An inode that nobody refers to is deleted; of one in the
    /// table, the new record is returned: that of the orphan that it becomes, or, if it has other names, one with fewer
    /// links. An orphan's data stay where they are (`may_park`), or go to the orphan's own key because the name is about
    /// to be used again.
    pub(crate) fn remove_from_batch(
        &self,
        batch: &mut Batch,
        inode: &Inode,
        record: &Record,
        metadata_key: &Bytes,
        now: Timestamp,
        may_park: bool,
    ) -> Option<Record> {
        link::delete_name(batch, inode, metadata_key);
        if let Place::Linked { key, .. } = inode.place() {
            return Some(link::lose_link(batch, inode, key, record, now));
        }
        let data = key::data_prefix(metadata_key);
        if inode.is_detached() {
            if record.has_data() {
                batch.delete_range(Tree::Data, KeyRange::prefix(data));
                batch.note_freed(record.data_bytes());
            }
            return None;
        }
        let mut orphan = record.clone();
        orphan.number = inode.number.0;
        orphan.links = 0;
        orphan.changed = now;
        let own = key::orphan_key(inode.number.0);
        if record.has_data() {
            if may_park {
                orphan.parked = metadata_key.clone();
            } else {
                batch.move_range(Tree::Data, data, key::data_prefix(&own));
            }
        }
        batch.put(Tree::Metadata, own, orphan.encode());
        Some(orphan)
    }

    /// Makes in memory what [`FileSystem::remove_from_batch`] did in the batch.
    pub(crate) fn settle_removed(&self, states: &mut States, inode: &Arc<Inode>, removed: Option<Record>) {
        if let Some(record) = removed {
            if record.links > 0 {
                self.note_lost_name(inode);
                states.set_record(inode, record);
                return;
            }
            if !record.parked.is_empty() {
                self.parked.insert(record.parked.clone(), inode.clone());
            }
            if record.has_data() {
                self.store.leaving().unlinked(inode.number);
            }
            states.set_record(inode, record);
            inode.set_place(Place::Orphan);
            inode.forget_path();
        }
    }
}
