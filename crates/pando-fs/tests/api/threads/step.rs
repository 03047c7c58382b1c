//! What several threads do in one small tree, a step at a time, of which none keeps a reference but to files without a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_device::simulated::Random;
use pando_fs::operations::{
    Attributes, Caller, DirectoryEntry, FileType, ListAttributes, Operations, ROOT, RenameMode, SNAPSHOTS,
    SetAttributes, WriteMode, XattrMode, changing, waiting,
};
use pando_fs::{Error, FileSystem, InodeNumber, Result};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

/// Calls of the kinds that make a test worth while and that were answered well, by all threads.
#[derive(Debug, Default)]
pub struct Made {
    pub directories: AtomicU64,
    pub links: AtomicU64,
}

/// A file without a name that nobody else knows: so many times the same byte.
struct Kept {
    inode: InodeNumber,
    byte: u8,
    length: usize,
}

/// One of those at work.
pub struct Actor<'a> {
    fs: &'a FileSystem,
    /// The same, for who goes on to hold it.
    shared: &'a Arc<FileSystem>,
    random: Random,
    made: &'a Made,
    /// What it has a reference to during a step.
    held: Vec<InodeNumber>,
    /// What it has a reference to from step to step.
    kept: Vec<Kept>,
}

/// What there is, if there is anything.
fn found<T>(result: Result<T>) -> Option<T> {
    result.inspect_err(|error| assert!(is_expected(error), "{error:?}")).ok()
}

/// What the others may have made of a step.
fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound
            | Error::Exists
            | Error::NotEmpty
            | Error::IsADirectory
            | Error::NotADirectory
            | Error::Invalid
            | Error::NotPermitted
            | Error::ReadOnly
            | Error::OtherTree
            | Error::InUse
            // It was deleted, or the live tree went back, meanwhile.
            | Error::Stale
    )
}

impl Drop for Actor<'_> {
    fn drop(&mut self) {
        let kept: Vec<_> = self.kept.iter().map(|kept| (kept.inode, 1)).collect();
        self.fs.forget_many(&kept);
    }
}

impl<'a> Actor<'a> {
    pub fn new(shared: &'a Arc<FileSystem>, seed: u64, made: &'a Made) -> Self {
        let random = Random::new(seed);
        Self { fs: shared, shared, random, made, held: Vec::new(), kept: Vec::new() }
    }

    /// Walks to a directory by random steps, does one thing there, and gives back all references but those to what it keeps.
    pub fn step(&mut self) {
        let (at, to) = (self.walk(), self.walk());
        let (old, new) = (self.name(), self.name());
        match self.act(at, old, to, new) {
            Ok(inode) => self.held.extend(inode),
            Err(error) => assert!(is_expected(&error), "{error:?}"),
        }
        self.held.drain(..).for_each(|inode| self.fs.forget(inode, 1));
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn lookup(&mut self, parent: InodeNumber) -> Result<Attributes> {
        let name = self.name();
        let found = waiting(self.fs, |fs| fs.lookup(parent, name))?.attributes;
        self.held.push(found.inode);
        Ok(found)
    }

    /// A directory, mostly of the live tree.
    fn walk(&mut self) -> InodeNumber {
        let mut at = ROOT;
        if self.random.chance(1, 4)
            && let Some(root) = found(self.lookup(SNAPSHOTS))
        {
            at = root.inode;
        }
        for _ in 0..self.random.below(3) {
            match found(self.lookup(at)) {
                Some(found) if found.file_type == FileType::Directory => at = found.inode,
                _ => break,
            }
        }
        at
    }

    /// One thing, and the inode to which that has given a reference.
    fn act(
        &mut self,
        at: InodeNumber,
        old: &[u8],
        to: InodeNumber,
        new: &[u8],
    ) -> Result<Option<InodeNumber>> {
        let fs = self.fs;
        let last = self.held.last().copied();
        match (self.random.below(21), last) {
            (0, _) => self.make_file(at, old).map(Some),
            (1 | 2, _) => {
                let entry = changing(fs, |fs| fs.make_directory(&CALLER, at, old, 0o755))?;
                self.made.directories.fetch_add(1, Ordering::Relaxed);
                Ok(Some(entry.attributes.inode))
            }
            (3, _) => changing(fs, |fs| fs.unlink(at, old)).map(|()| None),
            (4, _) => changing(fs, |fs| fs.remove_directory(at, old)).map(|()| None),
            (5, _) => {
                let whiteout = RenameMode::Whiteout { caller: CALLER, replace: true };
                let mode = if self.random.chance(1, 3) { whiteout } else { RenameMode::Replace };
                changing(fs, |fs| fs.rename(at, old, to, new, mode)).map(|_| None)
            }
            (6, _) => changing(fs, |fs| fs.rename(at, old, to, new, RenameMode::Exchange)).map(|_| None),
            (8 | 9, Some(inode)) => Ok(Some(self.link(inode, to, new)?)),
            // A file and a link to it, made with nothing else between them by this thread.
            (10, _) => {
                let file = self.make_file(at, old)?;
                let linked = self.link(file, to, new);
                fs.forget(file, 1);
                let linked = linked?;
                self.made.links.fetch_add(1, Ordering::Relaxed);
                if self.random.chance(1, 2) {
                    // The other name is the only one then, unless somebody else has taken this one.
                    found(changing(fs, |fs| fs.unlink(at, old)));
                }
                Ok(Some(linked))
            }
            (11, _) => {
                let room = 1 + self.random.below(4) as usize;
                let found = self.list(at, room)?;
                self.held.extend(found);
                Ok(None)
            }
            // Of directories only those without others: clones of clones would fill the volume.
            (12 | 13, Some(inode)) => {
                let found = found(waiting(fs, |fs| fs.get_attributes(inode)));
                if found.is_some_and(|found| found.file_type != FileType::Directory || found.links == 2) {
                    changing(fs, |fs| fs.clone_tree(&CALLER, &[], inode, to, new))?;
                }
                Ok(None)
            }
            (14, _) => self.snapshot(old).map(|()| None),
            (7, Some(inode)) => {
                let (offset, byte) = (self.random.below(9000), self.random.bits() as u8);
                let bytes = bytes::Bytes::from(vec![byte; 5000]);
                changing(fs, |fs| fs.write(inode, offset, bytes.clone(), WriteMode::PLAIN)).map(|()| None)
            }
            (15, Some(inode)) => {
                let size = self.random.below(9000);
                let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
                changing(fs, |fs| fs.set_attributes(inode, &set)).map(|_| None)
            }
            (16, Some(inode)) => {
                // As long as to lie among the record's fields, or under a key of its own.
                let value = vec![1; 1 + self.random.below(2) as usize * 5000];
                let name = [b"user.", old].concat();
                changing(fs, |fs| fs.set_xattr(inode, &name, &value, XattrMode::Set, false)).map(|()| None)
            }
            (17, _) => self.keep(at).map(|()| None),
            (18 | 19, _) => self.use_kept(to, new).map(|()| None),
            (20, _) => self.compare(old).map(|()| None),
            _ => Ok(None),
        }
    }

    /// Makes a file without a name.
    fn keep(&mut self, directory: InodeNumber) -> Result<()> {
        let fs = self.fs;
        let inode = changing(fs, |fs| fs.make_temporary(&CALLER, directory, 0o600))?.attributes.inode;
        let (byte, length) = (self.random.bits() as u8, 1 + self.random.below(20_000) as usize);
        let bytes = bytes::Bytes::from(vec![byte; length]);
        match changing(fs, |fs| fs.write(inode, 0, bytes.clone(), WriteMode::PLAIN)) {
            Ok(()) => self.kept.push(Kept { inode, byte, length }),
            Err(error) => {
                fs.forget(inode, 1);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Looks at what it keeps, and gives it a name, or lets it go.
    fn use_kept(&mut self, directory: InodeNumber, name: &[u8]) -> Result<()> {
        let Some(number) = (self.kept.len() as u64).checked_sub(1) else { return Ok(()) };
        let number = self.random.below(number + 1) as usize;
        let Kept { inode, byte, length } = self.kept[number];
        match waiting(self.fs, |fs| fs.read(inode, 0, length + 1)) {
            Ok(found) => assert!(found.concat() == vec![byte; length], "a file without a name has changed"),
            // The live tree went back, or the snapshot was deleted.
            Err(error) => assert_eq!(error, Error::Stale),
        }
        if self.random.chance(1, 3) {
            return Ok(());
        }
        if self.random.chance(1, 2) {
            // Others may find it then.
            self.link(inode, directory, name)?;
            self.fs.forget(inode, 1);
        }
        self.kept.swap_remove(number);
        self.fs.forget(inode, 1);
        Ok(())
    }

    /// What there is may go on meanwhile, and is not damaged for that.
    fn compare(&mut self, old: &[u8]) -> Result<()> {
        let new = self.random.chance(1, 2).then(|| self.name());
        self.fs.differences(old, new, self.random.chance(1, 2), &mut |_| true)
    }

    fn make_file(&self, parent: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        let entry = changing(self.fs, |fs| fs.make_node(&CALLER, parent, name, FileType::Regular, 0o644, 0))?;
        Ok(entry.attributes.inode)
    }

    fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        Ok(changing(self.fs, |fs| fs.link(inode, parent, name))?.attributes.inode)
    }

    /// What lies in a directory, up to so many names besides `.` and `..`; each has one reference more.
    fn list(&self, directory: InodeNumber, room: usize) -> Result<Vec<InodeNumber>> {
        let mut found = Vec::new();
        let mut emit = |entry: &DirectoryEntry| {
            let has_room = found.len() < room;
            found.extend(entry.attributes.filter(|_| has_room).map(|attributes| attributes.inode));
            has_room
        };
        let listed = waiting(self.fs, |fs| fs.read_directory(directory, 0, ListAttributes::OfAll, &mut emit));
        if listed.is_err() {
            found.drain(..).for_each(|inode| self.fs.forget(inode, 1));
        }
        listed.map(|()| found)
    }

    /// Takes a snapshot, deletes one, goes back to one, or looks into one.
    fn snapshot(&mut self, name: &[u8]) -> Result<()> {
        let fs = self.fs;
        match self.random.below(7) {
            0 => {
                let is_writable = self.random.chance(2, 3);
                changing(fs, |fs| fs.take_snapshot(name, is_writable))
            }
            1 => changing(fs, |fs| fs.delete_snapshot(name)),
            2 => changing(fs, |fs| fs.roll_back(name)).map(drop),
            6 => {
                let held = waiting(fs, |_| self.shared.hold_snapshot(name))?;
                let attributes = waiting(fs, |fs| fs.get_attributes(held.root()));
                let attributes = attributes.expect("it is not deleted while it is held");
                assert_eq!(attributes.file_type, FileType::Directory);
                Ok(())
            }
            _ => {
                let root = waiting(fs, |fs| fs.lookup(SNAPSHOTS, name))?.attributes.inode;
                let listed = self.list(root, NAMES.len());
                fs.forget(root, 1);
                for inode in listed? {
                    match waiting(fs, |fs| fs.read(inode, 0, 100)) {
                        // A whiteout cannot be read.
                        Ok(_) | Err(Error::IsADirectory | Error::Invalid | Error::Stale) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                    fs.forget(inode, 1);
                }
                Ok(())
            }
        }
    }
}
