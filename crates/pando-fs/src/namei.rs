//! From names to inodes.

use std::sync::Arc;

use bytes::Bytes;
use pando_engine::Engine;
use pando_format::KEY_LENGTH_MAX;

use crate::inode::{Inode, Place};
use crate::link::Found;
use crate::names::Names;
use crate::operations::{Entry, InodeNumber, ROOT, SNAPSHOTS};
use crate::schema::{NameRecord, key};
use crate::{Error, FileSystem, Result, snapshot};

/// Refuses what cannot be the name of something in a directory.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > key::NAME_LENGTH_MAX {
        return Err(Error::NameTooLong);
    }
    if key::is_name(name) { Ok(()) } else { Err(Error::Invalid) }
}

/// Refuses what cannot be the name of something in the directory that is removed, or renamed.
pub(crate) fn check_old_name(directory: &Inode, name: &[u8]) -> Result<()> {
    check_name(name)?;
    if directory.number == ROOT && name == snapshot::NAME { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Refuses what cannot be the name of something that comes to be in the directory.
pub(crate) fn check_new_name(directory: &Inode, name: &[u8]) -> Result<()> {
    check_name(name)?;
    // Also in the root of a snapshot, which may become the root of the volume.
    if directory.is_tree_root() && name == snapshot::NAME { Err(Error::NotPermitted) } else { Ok(()) }
}

/// The metadata key of a name, if it is not too long for the index.
pub(crate) fn name_key(path: &[u8], name: &[u8]) -> Result<Bytes> {
    let key = key::child_key(path, name);
    if length_in_tree(&key) > key::METADATA_KEY_LENGTH_MAX { Err(Error::NameTooLong) } else { Ok(key) }
}

fn length_in_tree(metadata_key: &[u8]) -> usize {
    key::split_snapshot(metadata_key).map_or(0, |(_, in_tree)| in_tree.len())
}

/// Keys in the record that removes a directory: its own, the two bounds of what lies below it in each index, and its parent's. No other change of
/// one file or directory has more of them.
const KEYS_IN_RECORD: u64 = 6;

/// A key is no longer than this part of a node, which holds one for each of its children and each of its parts. With a fourth, a volume of 32 MiB that was
/// filled with small files could not place what a checkpoint had to write.
const NODE_PART: u64 = 16;

/// But any path that a program can name in one go has room, however small nodes were asked for.
const NEW_KEY_MIN: u64 = 16 << 10;

/// Bytes of the longest metadata key that a new name gets, in its tree.
pub(crate) fn new_key_max(engine: &Engine) -> usize {
    let in_node = (u64::from(engine.superblock().node_bytes) / NODE_PART).max(NEW_KEY_MIN);
    let longest = in_node.min(engine.record_bytes_max() / KEYS_IN_RECORD);
    // Of data keys, which are made from it and are longer.
    let data = KEY_LENGTH_MAX - key::METADATA_KEY_LENGTH_MAX;
    (longest as usize).saturating_sub(data)
}

impl FileSystem {
    /// Refuses the key of a name that is to come to be if a small volume could not use and remove what has it. Others may come to have longer
    /// ones, by the rename of a directory above.
    pub(crate) fn check_new_key(&self, metadata_key: &[u8]) -> Result<()> {
        if length_in_tree(metadata_key) > self.new_key_max { Err(Error::NameTooLong) } else { Ok(()) }
    }

    pub(crate) fn lookup_name(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        let directory = self.inode(parent)?;
        if !directory.is_directory() {
            return Err(Error::NotADirectory);
        }
        if name == b"." || name == b".." {
            return self.lookup_dots(directory, name);
        }
        if name.len() > key::NAME_LENGTH_MAX {
            return Err(Error::NameTooLong);
        }
        if !key::is_name(name) {
            return Err(Error::NotFound);
        }
        if parent == SNAPSHOTS {
            return self.lookup_snapshot(name);
        }
        if parent == ROOT && name == snapshot::NAME {
            return Ok(Entry { attributes: self.inode(SNAPSHOTS)?.attributes() });
        }
        let epoch = self.namespace.read();
        let mut names = directory.names()?;
        let path = directory.path(*epoch)?;
        let inode = self.resolve(&directory, &names, &path, name)?.ok_or(Error::NotFound)?;
        self.adopt(&directory, &mut names, || Bytes::copy_from_slice(name), &inode)?;
        Ok(Entry { attributes: inode.attributes() })
    }

    fn lookup_dots(&self, directory: Arc<Inode>, name: &[u8]) -> Result<Entry> {
        let _epoch = self.namespace.read();
        let inode = if name == b".." { directory.parent().unwrap_or(directory) } else { directory };
        if !inode.acquire() {
            return Err(Error::Stale);
        }
        Ok(Entry { attributes: inode.attributes() })
    }

    /// The inode of a name in a directory whose names are locked. One that is not in the table comes back detached,
    /// unless the name leads to a file with several links.
    pub(crate) fn resolve(
        &self,
        directory: &Arc<Inode>,
        names: &Names,
        path: &[u8],
        name: &[u8],
    ) -> Result<Option<Found<'_>>> {
        if let Some(number) = names.known(name) {
            let inode = self.table.get(number);
            let inode = inode.expect("IN-2: the names of a directory know only inodes in the table");
            return Ok(Some(Found::kept_by_names(inode)));
        }
        if names.is_absent(name) {
            return Ok(None);
        }
        let stored = self.store.name_record(&name_key(path, name)?)?;
        stored.map(|stored| self.inode_of(directory, name, stored)).transpose()
    }

    /// The inode of what was read under a name, while the names of the directory are locked.
    pub(crate) fn inode_of(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        stored: NameRecord,
    ) -> Result<Found<'_>> {
        match stored {
            NameRecord::Inode(record) => {
                let place = Place::Named { parent: directory.clone(), name: Bytes::copy_from_slice(name) };
                Ok(Found::kept_by_names(Inode::detached(record, place, &self.budget, false)))
            }
            NameRecord::Redirect(redirect) => self.follow(directory, &redirect),
        }
    }

    /// Counts one reference to the inode of a name, and puts it into the table if it is not there yet.
    pub(crate) fn adopt(
        &self,
        directory: &Arc<Inode>,
        names: &mut Names,
        name: impl FnOnce() -> Bytes,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        if inode.acquire() {
            return Ok(());
        }
        if !directory.acquire() {
            return Err(Error::Stale);
        }
        if !self.table.insert(inode) {
            directory.release(1);
            return Err(Error::damaged(format!("FS-4: two names have the inode number {}", inode.number.0)));
        }
        inode.attach();
        names.attach(name(), inode.number);
        Ok(())
    }

    pub(crate) fn forget_inode(&self, number: InodeNumber, count: u64) {
        if let Some(inode) = self.release_inode(number, count) {
            self.drop_unreferenced(inode);
        }
    }

    /// Gives references back; the inode if it has none left.
    pub(crate) fn release_inode(&self, number: InodeNumber, count: u64) -> Option<Arc<Inode>> {
        if number == ROOT || number == SNAPSHOTS {
            return None;
        }
        self.table.get(number).filter(|inode| inode.release(count))
    }

    /// Takes an inode without references and without a parent out of the table if it still has none, and deletes it if it
    /// is an orphan. False if it has a parent.
    pub(crate) fn drop_parentless(&self, inode: &Arc<Inode>) -> bool {
        let mut state = inode.write_any();
        match inode.place() {
            Place::Root(_) | Place::Snapshots | Place::Named { .. } => return false,
            _ if !inode.detach(&mut state) => {}
            Place::Linked { .. } | Place::Snapshot(_) => self.table.remove(inode.number),
            Place::Orphan => self.delete_orphan(inode, &state.record),
        }
        true
    }

    /// Takes an inode without references out of the table, and its ancestors that were there for its sake only.
    pub(crate) fn drop_unreferenced(&self, inode: Arc<Inode>) {
        let mut next = Some(inode);
        while let Some(inode) = next.take() {
            let _epoch = self.namespace.read();
            match inode.place() {
                Place::Root(_) | Place::Snapshots => {}
                Place::Linked { .. } | Place::Snapshot(_) | Place::Orphan => {
                    if !self.drop_parentless(&inode) {
                        // It has gone home meanwhile.
                        next = Some(inode);
                    }
                }
                Place::Named { parent, name } => {
                    let mut names = parent.names().expect("IN-3: a parent is a directory");
                    if !inode.is_at(&parent, &name) {
                        // It was renamed or unlinked meanwhile: look again.
                        next = Some(inode.clone());
                        continue;
                    }
                    let mut state = inode.write_any();
                    if inode.detach(&mut state) {
                        // What is in a tree that is gone has no name in the one that took its place.
                        if !inode.is_gone() {
                            names.detach(&name);
                        }
                        self.table.remove(inode.number);
                        drop(state);
                        drop(names);
                        if parent.release(1) {
                            next = Some(parent);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pando_device::MemoryDevice;
    use pando_engine::{Background, FormatOptions, Options};

    use super::*;

    #[test]
    fn a_name_is_refused_where_its_data_keys_would_be_too_long_for_the_engine() {
        let path = vec![b'd'; key::METADATA_KEY_LENGTH_MAX - 2 - 5];
        let longest = name_key(&path, b"12345").expect("the key has the greatest length");
        let longest = key::in_snapshot(&key::snapshot_prefix(7), &longest);
        let in_snapshot = key::in_snapshot(&key::snapshot_prefix(7), &path);
        assert_eq!(name_key(&in_snapshot, b"12345"), Ok(longest.clone()), "it is found in a snapshot, too");
        assert_eq!(name_key(&in_snapshot, b"123456"), Err(Error::NameTooLong));
        let attribute = key::xattr_key(&key::data_prefix(&longest), &[b'x'; key::NAME_LENGTH_MAX]);
        assert_eq!(attribute.len(), 256 * 1024);
        assert_eq!(name_key(&path, b"123456"), Err(Error::NameTooLong));
    }

    #[test]
    fn volumes_from_1_gib_on_take_the_longest_keys() {
        let max = |capacity, format: FormatOptions| {
            let device = Arc::new(MemoryDevice::new(capacity));
            FileSystem::format(device.clone(), &format).unwrap();
            let options = Options { background: Background::Manual, ..Options::default() };
            FileSystem::open(device, options).unwrap().new_key_max
        };
        let usual = FormatOptions::default;
        assert_eq!(max(1 << 30, usual()), key::METADATA_KEY_LENGTH_MAX);
        assert_eq!(max(1000 << 20, usual()) >> 10, 127);
        assert_eq!(max(16 << 20, usual()) >> 10, 15);
        let small_log = FormatOptions { log_bytes: Some(2 << 20), ..usual() };
        assert_eq!(max(1 << 30, small_log) >> 10, 85);
        let small_nodes = FormatOptions { node_bytes: Some(16 << 10), ..usual() };
        assert_eq!(max(1 << 30, small_nodes) >> 10, 15);
    }

    #[test]
    fn names_that_no_directory_can_hold_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(check_name(name), Err(Error::Invalid));
        }
        assert_eq!(check_name(&[b'x'; 256]), Err(Error::NameTooLong));
        assert_eq!(check_name(b"..."), Ok(()));
    }
}
