//! The files of a volume, as the unmounted commands use them: calls of [`Operations`] that wait for the device where
//! they must, and references to inodes that give themselves back.
//!
//! Everything a mounted volume does goes through the same [`Operations`]; only FUSE is missing. Whoever can open the
//! volume's device can change every byte of it, so permission bits are not checked here.

use std::sync::Arc;

use bytes::Bytes;
use pando_fs::operations::{
    Attributes, Caller, DirectoryEntry, Entry, FileType, Operations, ROOT, RenameMode, Result, Seek,
    SetAttributes, Statistics, WriteMode, XattrMode, changing, changing_bytes, waiting,
};
use pando_fs::{Error, InodeNumber, ListAttributes};

/// Entries of a directory that are in memory at a time.
const LISTING_ENTRIES_MAX: usize = 1024;

/// An open volume's files.
#[derive(Clone)]
pub struct Files {
    fs: Arc<dyn Operations>,
    caller: Caller,
    /// Removing, renaming and changing attributes ask with this one: sticky bits and owners do not bind someone who
    /// holds the whole volume.
    superuser: Caller,
}

/// A reference to an inode. The inode stays usable until it is dropped.
pub struct Inode {
    fs: Arc<dyn Operations>,
    number: InodeNumber,
}

impl Inode {
    /// Its number.
    pub fn number(&self) -> InodeNumber {
        self.number
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if self.number != ROOT {
            self.fs.forget(self.number, 1);
        }
    }
}

/// A listing that goes on where it stopped.
pub struct Listing {
    inode: InodeNumber,
    cookie: u64,
}

impl Files {
    /// The files of `fs`; what is made belongs to the user who runs the command.
    pub fn new(fs: Arc<dyn Operations>, umask: u32) -> Self {
        let caller = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask,
        };
        Self { fs, caller, superuser: Caller { uid: 0, gid: 0, umask: 0 } }
    }

    /// The root directory.
    pub fn root(&self) -> Inode {
        Inode { fs: self.fs.clone(), number: ROOT }
    }

    /// A second reference to the directory, file or link that `name` in `parent` is.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<(Inode, Attributes)> {
        let entry = self.ask(|fs| fs.lookup(parent, name))?;
        Ok(self.take(entry))
    }

    /// Attributes.
    pub fn attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        self.ask(|fs| fs.get_attributes(inode))
    }

    /// Changes attributes; owners too, whoever asks.
    pub fn set_attributes(&self, inode: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        self.change(|fs| fs.set_attributes(inode, set))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Bytes> {
        self.ask(|fs| fs.read_link(inode))
    }

    /// Makes an empty file, device node, fifo or socket with this mode, less the umask.
    pub fn make_node(
        &self,
        parent: InodeNumber,
        name: &[u8],
        file_type: FileType,
        mode: u32,
        device: u64,
    ) -> Result<Inode> {
        let entry = self.change(|fs| fs.make_node(&self.caller, parent, name, file_type, mode, device))?;
        Ok(self.take(entry).0)
    }

    /// Makes a directory with this mode, less the umask.
    pub fn make_directory(&self, parent: InodeNumber, name: &[u8], mode: u32) -> Result<Inode> {
        let entry = self.change(|fs| fs.make_directory(&self.caller, parent, name, mode))?;
        Ok(self.take(entry).0)
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8]) -> Result<Inode> {
        let entry = self.change(|fs| fs.make_symlink(&self.caller, parent, name, target))?;
        Ok(self.take(entry).0)
    }

    /// Gives a file one more name.
    pub fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<()> {
        let entry = self.change(|fs| fs.link(inode, parent, name))?;
        self.take(entry);
        Ok(())
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.unlink(parent, name))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.remove_directory(parent, name))
    }

    /// Renames in one atomic step.
    pub fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|fs| fs.rename(from.0, from.1, to.0, to.1, mode).map(drop))
    }

    /// Makes a clone with a new name.
    pub fn clone_tree(&self, source: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.clone_tree(&self.superuser, &[], source, parent, name))
    }

    /// Reads at most `length` bytes; fewer only at the end of the file.
    pub fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        self.ask(|fs| fs.read(inode, offset, length))
    }

    /// Writes all of `bytes`.
    pub fn write(&self, inode: InodeNumber, offset: u64, bytes: &Bytes) -> Result<()> {
        let length = bytes.len() as u64;
        changing_bytes(&*self.fs, length, |fs| fs.write(inode, offset, bytes.clone(), WriteMode::PLAIN))
    }

    /// The next data or hole at or behind `offset`.
    pub fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        self.ask(|fs| fs.seek(inode, offset, what))
    }

    /// Starts a listing of a directory that the caller holds.
    pub fn list(&self, inode: InodeNumber) -> Listing {
        Listing { inode, cookie: 0 }
    }

    /// The next entries of a listing, at most [`LISTING_ENTRIES_MAX`]; none at the end. `.` and `..` are left out.
    pub fn next_entries(&self, listing: &mut Listing) -> Result<Vec<DirectoryEntry>> {
        loop {
            let (entries, cookie) = self.ask(|fs| read_some(fs, listing))?;
            let at_end = cookie == listing.cookie;
            listing.cookie = cookie;
            if !entries.is_empty() || at_end {
                return Ok(entries);
            }
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Bytes> {
        self.ask(|fs| fs.get_xattr(inode, name))
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
        let names = self.ask(|fs| fs.list_xattrs(inode))?;
        Ok(names.split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Sets an extended attribute, or removes it.
    pub fn change_xattr(&self, inode: InodeNumber, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.change(|fs| match value {
            Some(value) => fs.set_xattr(inode, name, value, XattrMode::Set, false),
            None => fs.remove_xattr(inode, name),
        })
    }

    /// How full the volume is.
    pub fn statistics(&self) -> Result<Statistics> {
        self.ask(|fs| fs.statistics())
    }

    fn take(&self, entry: Entry) -> (Inode, Attributes) {
        (Inode { fs: self.fs.clone(), number: entry.attributes.inode }, entry.attributes)
    }

    /// A call that changes nothing.
    fn ask<T>(&self, mut call: impl FnMut(&dyn Operations) -> Result<T>) -> Result<T> {
        waiting(&*self.fs, |fs| call(fs))
    }

    /// A call that changes something.
    fn change<T>(&self, mut call: impl FnMut(&dyn Operations) -> Result<T>) -> Result<T> {
        changing(&*self.fs, |fs| call(fs))
    }
}

/// One reply of `read_directory`, and the cookie to go on from.
fn read_some(fs: &dyn Operations, listing: &Listing) -> Result<(Vec<DirectoryEntry>, u64)> {
    let mut entries: Vec<DirectoryEntry> = Vec::new();
    let mut cookie = listing.cookie;
    let outcome = fs.read_directory(listing.inode, cookie, ListAttributes::OfNone, &mut |entry| {
        if entries.len() == LISTING_ENTRIES_MAX {
            return false;
        }
        cookie = entry.cookie;
        if &entry.name[..] != b"." && &entry.name[..] != b".." {
            entries.push(entry.clone());
        }
        true
    });
    match outcome {
        // Names that came before a miss are good.
        Err(Error::Miss(_)) if cookie != listing.cookie => Ok((entries, cookie)),
        outcome => outcome.map(|()| (entries, cookie)),
    }
}
