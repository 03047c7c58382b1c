//! One snapshot as a file system of its own, read-only, beside the volume that it lies in: what a mount of it serves.
//!
//! Requests name its root as any root is named, and everything else by the numbers that it has in the volume. References are counted here
//! as well: those that were not given back when the mount ended are given back then.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::frozen::Frozen;
use crate::operations::{
    AllocateMode, Attributes, Caller, DirectoryEntry, Entry, FileType, InodeNumber, ListAttributes,
    Operations, ROOT, RenameMode, Seek, SetAttributes, Statistics, WriteMode, XattrMode, waiting,
};
use crate::{Error, FileSystem, HeldSnapshot, Miss, Result};

/// See the module. The snapshot cannot be deleted while this lives.
pub struct SnapshotFiles {
    fs: Arc<FileSystem>,
    /// The root that is shown; one reference to it is counted.
    root: InodeNumber,
    /// References given out, by inode.
    references: Mutex<HashMap<InodeNumber, u64>>,
    /// Whether `root` is not what is held.
    frozen: Option<Frozen<Arc<FileSystem>>>,
    _held: HeldSnapshot,
}

impl SnapshotFiles {
    /// The files of the snapshot with this name. `NotFound` if there is none. Of one that may change it is what it is now, for good: whoever
    /// uses the files remembers what they were. Waits for the device.
    pub fn open(fs: &Arc<FileSystem>, name: &[u8]) -> Result<Self> {
        let held = waiting(&**fs, |_| fs.hold_snapshot(name))?;
        let mut frozen = None;
        let mut root = held.root();
        if !fs.never_changes() && fs.inode(root)?.is_writable() {
            let made = Frozen::make(fs.clone(), name)?;
            root = waiting(&**fs, |fs| {
                let _epoch = fs.namespace.read();
                fs.root_of(&made.snapshot)
            })?
            .attributes
            .inode;
            frozen = Some(made);
        }
        Ok(Self { fs: fs.clone(), root, references: Mutex::default(), frozen, _held: held })
    }

    fn inside(&self, inode: InodeNumber) -> InodeNumber {
        if inode == ROOT { self.root } else { inode }
    }

    fn count(&self, inode: InodeNumber) {
        *self.references.lock().entry(inode).or_default() += 1;
    }
}

impl Drop for SnapshotFiles {
    fn drop(&mut self) {
        for (inode, count) in self.references.get_mut().drain() {
            self.fs.forget(inode, count);
        }
        if self.frozen.is_some() {
            self.fs.forget(self.root, 1);
        }
    }
}

impl Operations for SnapshotFiles {
    fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        let mut entry = self.fs.lookup(self.inside(parent), name)?;
        if entry.attributes.inode == self.root {
            self.fs.forget(entry.attributes.inode, 1);
            entry.attributes.inode = ROOT;
        } else {
            self.count(entry.attributes.inode);
        }
        Ok(entry)
    }

    fn forget(&self, inode: InodeNumber, count: u64) {
        let given_back = {
            let mut references = self.references.lock();
            let Some(counted) = references.get_mut(&inode) else { return };
            let given_back = count.min(*counted);
            *counted -= given_back;
            if *counted == 0 {
                references.remove(&inode);
            }
            given_back
        };
        self.fs.forget(inode, given_back);
    }

    fn get_attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        self.fs.get_attributes(self.inside(inode))
    }

    fn set_attributes(&self, _: InodeNumber, _: &SetAttributes) -> Result<Attributes> {
        Err(Error::ReadOnly)
    }

    fn read_link(&self, inode: InodeNumber) -> Result<Bytes> {
        self.fs.read_link(self.inside(inode))
    }

    fn make_node(&self, _: &Caller, _: InodeNumber, _: &[u8], _: FileType, _: u32, _: u64) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn make_directory(&self, _: &Caller, _: InodeNumber, _: &[u8], _: u32) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn make_symlink(&self, _: &Caller, _: InodeNumber, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn link(&self, _: InodeNumber, _: InodeNumber, _: &[u8]) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn make_temporary(&self, _: &Caller, _: InodeNumber, _: u32) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn unlink(&self, _: InodeNumber, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn remove_directory(&self, _: InodeNumber, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn rename(
        &self,
        _: InodeNumber,
        _: &[u8],
        _: InodeNumber,
        _: &[u8],
        _: RenameMode,
    ) -> Result<Vec<InodeNumber>> {
        Err(Error::ReadOnly)
    }

    fn clone_tree(&self, _: &Caller, _: &[u32], _: InodeNumber, _: InodeNumber, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        self.fs.read(self.inside(inode), offset, length)
    }

    fn write(&self, _: InodeNumber, _: u64, _: Bytes, _: WriteMode) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn allocate(&self, _: InodeNumber, _: AllocateMode, _: u64, _: u64, _: bool) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn copy_range(&self, _: InodeNumber, _: u64, _: InodeNumber, _: u64, _: u64, _: bool) -> Result<u64> {
        Err(Error::ReadOnly)
    }

    fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        self.fs.seek(self.inside(inode), offset, what)
    }

    fn read_directory(
        &self,
        inode: InodeNumber,
        cookie: u64,
        attributes: ListAttributes,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let mut counting = |entry: &DirectoryEntry| {
            let fits = emit(entry);
            if fits && entry.attributes.is_some() {
                self.count(entry.inode);
            }
            fits
        };
        self.fs.read_directory(self.inside(inode), cookie, attributes, &mut counting)
    }

    fn get_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Bytes> {
        self.fs.get_xattr(self.inside(inode), name)
    }

    fn list_xattrs(&self, inode: InodeNumber) -> Result<Bytes> {
        self.fs.list_xattrs(self.inside(inode))
    }

    fn set_xattr(&self, _: InodeNumber, _: &[u8], _: &[u8], _: XattrMode, _: bool) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn remove_xattr(&self, _: InodeNumber, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn sync_is_short(&self) -> bool {
        true
    }

    fn statistics(&self) -> Result<Statistics> {
        self.fs.statistics()
    }

    fn fetch(&self, miss: Miss) -> Result<()> {
        self.fs.fetch(miss)
    }

    fn make_room(&self, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
}
