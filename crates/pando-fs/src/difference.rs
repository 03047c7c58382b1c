//! What differs between two snapshots, or a snapshot and the live tree: which names are there on one side only, and which lead to something
//! that has changed.
//!
//! The engine compares the two trees' names and skips what they share. An inode is the same on both sides if it has the same number,
//! birth time and type; so what a clone shows is none of its source's, whose numbers its deltas change. Whether contents have changed is told
//! by size and time of modification: no block is read. A file with several links has its record under a key of its own; when that
//! differs, its names are found in the list of redirects.
//!
//! [`crate::renames`] makes pairs of the names that have gone and those that have come.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use pando_engine::{Bound, KeyRange, ScanLimit, Tree};

use crate::operations::{FileType, ROOT, waiting};
use crate::renames::{FoundMoves, Gone, Pairs};
use crate::schema::{NameRecord, Record, Timestamp, key};
use crate::snapshot::Snapshot;
use crate::store;
use crate::{Error, FileSystem, Result};

/// As much is compared or listed at once.
pub(crate) const CHUNK: ScanLimit = ScanLimit { entries: 1024, bytes: 1 << 20 };

/// So many changed files with several links are remembered before their names are looked for.
const LINKED_MAX: usize = 1 << 18;

/// What has happened to a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It is on the new side only.
    Created,
    /// It is on the old side only.
    Deleted,
    /// It leads to the same inode, which has changed.
    Changed,
    /// Its inode had this path.
    Renamed(Bytes),
}

/// Something that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What has happened.
    pub what: What,
    /// The path, from its `/` on: the old one of what is deleted.
    pub path: Bytes,
    /// What kind of inode it is.
    pub file_type: FileType,
    /// Size or time of the last change of the contents differ; for a directory, its names.
    pub contents: bool,
    /// Mode, owner, or anything else that is neither contents nor extended attributes differs.
    pub attributes: bool,
    /// Extended attributes or access control lists differ, or may: values of more than a few hundred bytes are not compared, and the time of change is another.
    pub xattrs: bool,
    /// The number of names differs.
    pub links: bool,
}

/// Told of each entry; answers false to end the comparison.
pub type Emit<'a> = &'a mut dyn FnMut(&Entry) -> bool;

/// What makes an inode the same in two trees. The number is the one that users see in the live tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    number: u64,
    born: (i64, u32),
    kind: u8,
}

/// A tree that is compared or sent: a snapshot, or the live tree.
pub(crate) struct TreeSide {
    pub(crate) prefix: Bytes,
    pub(crate) snapshot: Option<Snapshot>,
    /// The deltas of the directory looked at last.
    deltas: RefCell<(Bytes, u64)>,
}

/// A name's inode.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) identity: Identity,
    pub(crate) record: Record,
    /// It has, or had, several names.
    pub(crate) linked: bool,
}

impl FileSystem {
    /// Tells what differs between a snapshot and another one, or the live tree if there is no other. The live tree is looked at while it
    /// goes on, and so is a writable snapshot; another one is of one moment. `NotFound` if there is no such snapshot, `Stale` if one is deleted meanwhile.
    ///
    /// With `renames`, a name that has gone and one that has come and lead to the same inode are one entry, and a directory with all below is
    /// one; then all names that come and go are kept in memory. Without, entries come in the order of the tree and nothing is
    /// kept. Waits for the device.
    pub fn differences(&self, old: &[u8], new: Option<&[u8]>, renames: bool, emit: Emit<'_>) -> Result<()> {
        let old = self.snapshot_side(old)?;
        let new = match new {
            Some(name) => self.snapshot_side(name)?,
            None => TreeSide::new(Bytes::new(), None),
        };
        let taken = old.snapshot.as_ref().map(|snapshot| Timestamp::from(snapshot.taken));
        let mut stopped = false;
        let mut emit = |entry: &Entry| {
            stopped = stopped || !emit(entry);
            if stopped { Err(Error::InUse) } else { Ok(()) }
        };
        let mut walk =
            Walk { fs: self, sides: [old, new], emit: &mut emit, pairs: renames.then(|| Pairs::new(taken)) };
        match walk.run() {
            Err(_) if stopped => Ok(()),
            other => other,
        }
    }

    /// The tree of a snapshot.
    pub(crate) fn snapshot_side(&self, name: &[u8]) -> Result<TreeSide> {
        let snapshot = waiting(self, |fs| fs.snapshot(name))?;
        Ok(TreeSide::new(key::snapshot_prefix(snapshot.number.0), Some(snapshot)))
    }

    /// Reads something of trees, and makes sure that they were still there: what a deletion has left makes no answer. Waits for
    /// the device.
    pub(crate) fn read_sides<T>(
        &self,
        sides: &[&TreeSide],
        read: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        let answer = waiting(self, read);
        for snapshot in sides.iter().filter_map(|side| side.snapshot.as_ref()) {
            match waiting(self, |fs| fs.snapshot(&snapshot.name)) {
                Ok(now) if now.number == snapshot.number => {}
                Ok(_) | Err(Error::NotFound) => return Err(Error::Stale),
                Err(error) => return Err(error),
            }
        }
        answer
    }
}

impl TreeSide {
    pub(crate) fn new(prefix: Bytes, snapshot: Option<Snapshot>) -> Self {
        Self { prefix, snapshot, deltas: RefCell::new((Bytes::new(), 0)) }
    }

    fn record(&self, fs: &FileSystem, metadata_key: &[u8]) -> Result<Record> {
        let own = key::in_snapshot(&self.prefix, metadata_key);
        fs.store.record(&own)?.ok_or_else(|| self.missing("FS-2: there is no record", &own))
    }

    /// The record of a directory in which a name was found.
    fn directory(&self, fs: &FileSystem, metadata_key: &[u8]) -> Result<Record> {
        let own = key::in_snapshot(&self.prefix, metadata_key);
        match fs.store.name_record(&own)? {
            Some(NameRecord::Inode(record)) if record.file_type == FileType::Directory => Ok(record),
            // Something else has its name now, or nothing has.
            _ => Err(self.missing("FS-2: there is no directory", &own)),
        }
    }

    /// What it means that something is not there that something else led to.
    fn missing(&self, what: &str, own: &[u8]) -> Error {
        match &self.snapshot {
            Some(snapshot) if !snapshot.writable => damaged(what, own),
            // It goes on, as the live tree does.
            _ => Error::NotFound,
        }
    }

    /// Another directory may have come into the place of the one looked at last. Within what is read at once its deltas are kept: the names
    /// were read just before.
    fn read_on(&self) {
        if self.snapshot.as_ref().is_none_or(|snapshot| snapshot.writable) {
            *self.deltas.borrow_mut() = (Bytes::new(), 0);
        }
    }

    /// The deltas of a directory and all above it but the root, whose delta differs from snapshot to snapshot.
    fn deltas(&self, fs: &FileSystem, path: &[u8]) -> Result<u64> {
        let (mut done, mut sum) = {
            let (known, sum) = &*self.deltas.borrow();
            let leads_here = path.starts_with(known) && path.get(known.len()).is_none_or(|byte| *byte == 0);
            if leads_here { (known.len(), *sum) } else { (0, 0) }
        };
        // Step by step: paths may be many thousand names long.
        while done < path.len() {
            let rest = &path[done + 1..];
            let length = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            sum ^= self.directory(fs, &key::child_key(&path[..done], &rest[..length]))?.delta;
            done += 1 + length;
            *self.deltas.borrow_mut() = (Bytes::copy_from_slice(&path[..done]), sum);
        }
        Ok(sum)
    }

    /// What the value under a path key leads to.
    pub(crate) fn found(&self, fs: &FileSystem, path_key: &[u8], value: &[u8]) -> Result<Found> {
        let (path, _) =
            key::split_path_key(path_key).ok_or_else(|| damaged("FS-2: this is no path", path_key))?;
        let found = |stored: NameRecord| {
            let (record, number, linked) = match stored {
                NameRecord::Inode(record) => {
                    let number = record.number ^ self.deltas(fs, path)?;
                    (record, number, false)
                }
                NameRecord::Redirect(redirect) => {
                    (self.record(fs, &key::linked_key(redirect.number))?, redirect.number, true)
                }
            };
            Ok(Found { identity: Identity::of(&record, number), record, linked })
        };
        match found(store::decode_name(path_key, value)?) {
            // In the live tree the file may have gone home meanwhile, and lie under this name.
            Err(Error::NotFound) => found(
                fs.store.name_record(&key::in_snapshot(&self.prefix, path_key))?.ok_or(Error::NotFound)?,
            ),
            other => other,
        }
    }
}

impl Identity {
    pub(crate) fn of(record: &Record, number: u64) -> Self {
        let Timestamp { seconds, nanoseconds } = record.born;
        Self { number, born: (seconds, nanoseconds), kind: record.file_type as u8 }
    }
}

/// A comparison under way.
pub(crate) struct Walk<'a> {
    pub(crate) fs: &'a FileSystem,
    /// Old and new.
    pub(crate) sides: [TreeSide; 2],
    pub(crate) emit: &'a mut dyn FnMut(&Entry) -> Result<()>,
    /// With a search for renames, what it knows.
    pub(crate) pairs: Option<Pairs>,
}

impl Walk<'_> {
    /// Finds what has become of directories and large files.
    pub(crate) fn moves(fs: &FileSystem, sides: [TreeSide; 2]) -> Result<FoundMoves> {
        let taken = sides[0].snapshot.as_ref().map(|snapshot| Timestamp::from(snapshot.taken));
        let mut walk = Walk { fs, sides, emit: &mut |_| Ok(()), pairs: Some(Pairs::of_moves(taken)) };
        walk.below([Bytes::new(), Bytes::new()])?;
        walk.pair()?;
        Ok(walk.pairs.map(Pairs::into_moves).unwrap_or_default())
    }

    fn run(&mut self) -> Result<()> {
        let fs = self.fs;
        let [old, new] = self.both(|_, side| side.root(fs))?;
        self.changed(&old, &new, b"/", What::Changed)?;
        self.below([Bytes::new(), Bytes::new()])?;
        self.pair()?;
        self.linked()
    }

    /// Reads something on both sides.
    pub(crate) fn both<T>(&self, mut read: impl FnMut(usize, &TreeSide) -> Result<T>) -> Result<[T; 2]> {
        let [old, new] = &self.sides;
        self.fs.read_sides(&[old, new], |_| Ok([read(0, old)?, read(1, new)?]))
    }

    /// Compares what lies below two directories, given by their paths.
    pub(crate) fn below(&mut self, paths: [Bytes; 2]) -> Result<()> {
        let fs = self.fs;
        let mut skipped = BTreeSet::new();
        let mut range = Some(KeyRange::prefix(&b"\0"[..]));
        while let Some(part) = range {
            self.sides.iter().for_each(TreeSide::read_on);
            let [old, new] = &self.sides;
            let [old_prefix, new_prefix] =
                [(old, &paths[0]), (new, &paths[1])].map(|(side, path)| key::in_snapshot(&side.prefix, path));
            let engine = fs.store.engine();
            let compared = fs.read_sides(&[old, new], |_| {
                Ok(engine.compare(Tree::Metadata, &old_prefix, &new_prefix, &part, CHUNK)?)
            })?;
            let last = compared.differences.last().map(|last| last.key.clone());
            for difference in compared.differences {
                if lies_below(&skipped, &difference.key).is_some() {
                    // It belongs to a directory that has come or gone as a whole.
                    continue;
                }
                let keys = [0, 1].map(|side| key::in_snapshot(&paths[side], &difference.key));
                let values = [&difference.old, &difference.new];
                let found = self.both(|side, tree| {
                    values[side].as_ref().map(|value| tree.found(fs, &keys[side], value)).transpose()
                });
                let found = match found {
                    // On one side it has gone meanwhile: the live tree goes on, and so does a writable snapshot, on either side.
                    Err(Error::NotFound) => [self.other(0, &keys[0])?, self.other(1, &keys[1])?],
                    other => other?,
                };
                if let [Some(old), Some(new)] = &found
                    && old.identity == new.identity
                {
                    self.changed(&old.record, &new.record, &shown_path(&keys[1]), What::Changed)?;
                    continue;
                }
                let is_directory = |found: &Option<Found>| {
                    found.as_ref().is_some_and(|f| f.record.file_type == FileType::Directory)
                };
                // Between a directory and a clone of it in its place what is in them need not differ.
                let replaced = found.iter().all(is_directory);
                if replaced || self.pairs.is_some() && found.iter().any(is_directory) {
                    skipped.insert(subtree(&difference.key));
                }
                for (side, found) in found.into_iter().enumerate() {
                    let Some(found) = found else { continue };
                    self.one_sided(side, keys[side].clone(), found)?;
                }
                if replaced && self.pairs.is_none() {
                    self.replaced(&keys)?;
                }
            }
            range = compared.rest;
            // The rest of it is not compared.
            if let Some(rest) = &mut range
                && let Some(dead) = last.and_then(|last| lies_below(&skipped, &last))
            {
                rest.lower = Bound::after(dead).max(rest.lower.clone());
            }
        }
        Ok(())
    }

    /// Tells what differs below a path key under which there is another directory on each side.
    fn replaced(&mut self, keys: &[Bytes; 2]) -> Result<()> {
        for side in [0, 1] {
            self.list(side, &subtree(&keys[side]), |walk, gone| {
                let path_key = gone.path_key.clone();
                match walk.other(1 - side, &path_key)? {
                    Some(other) if other.identity == gone.found.identity => {
                        // Names of a file with several links are told of by [`Walk::linked`].
                        if side == 1 || gone.found.linked && other.linked {
                            return Ok(());
                        }
                        walk.changed(&gone.found.record, &other.record, &shown_path(&path_key), What::Changed)
                    }
                    _ => walk.one_sided(side, path_key, gone.found),
                }
            })?;
        }
        Ok(())
    }

    /// What is under a path key on a side.
    fn other(&self, side: usize, path_key: &Bytes) -> Result<Option<Found>> {
        let (fs, tree) = (self.fs, &self.sides[side]);
        let found = fs.read_sides(&[tree], |fs| {
            let value = fs.store.get(Tree::Metadata, &key::in_snapshot(&tree.prefix, path_key))?;
            value.map(|value| tree.found(fs, path_key, &value)).transpose()
        });
        match found {
            // It has gone from the live tree meanwhile.
            Err(Error::NotFound) => Ok(None),
            other => other,
        }
    }

    /// Gives all names on one side whose path keys begin with `prefix`.
    pub(crate) fn list(
        &mut self,
        side: usize,
        prefix: &[u8],
        mut each: impl FnMut(&mut Self, Gone) -> Result<()>,
    ) -> Result<()> {
        let fs = self.fs;
        let mut range = Some(KeyRange::prefix(key::in_snapshot(&self.sides[side].prefix, prefix)));
        while let Some(part) = range {
            self.sides.iter().for_each(TreeSide::read_on);
            let tree = &self.sides[side];
            let (rest, names) = fs.read_sides(&[tree], |fs| {
                let scan = fs.store.scan(Tree::Metadata, &part, CHUNK)?;
                let mut names = Vec::new();
                for (own, value) in scan.entries {
                    let path_key = own.slice(tree.prefix.len()..);
                    match tree.found(fs, &path_key, &value) {
                        Ok(found) => names.push(Gone { path_key, found }),
                        // It has gone from the live tree meanwhile.
                        Err(Error::NotFound) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok((scan.rest, names))
            })?;
            for gone in names {
                each(self, gone)?;
            }
            range = rest;
        }
        Ok(())
    }

    /// A name that is there on one side only.
    pub(crate) fn one_sided(&mut self, side: usize, path_key: Bytes, found: Found) -> Result<()> {
        match &mut self.pairs {
            Some(pairs) => {
                pairs.add(side, Gone { path_key, found });
                Ok(())
            }
            None => {
                let what = if side == 0 { What::Deleted } else { What::Created };
                (self.emit)(&Entry::whole(what, shown_path(&path_key), found.record.file_type))
            }
        }
    }

    /// Tells what has changed in an inode, if anything has that is to be told.
    pub(crate) fn changed(&mut self, old: &Record, new: &Record, path: &[u8], what: What) -> Result<()> {
        let mut entry = Entry::whole(what, Bytes::copy_from_slice(path), new.file_type);
        entry.contents = (old.size, old.modified, old.entries, &old.target)
            != (new.size, new.modified, new.entries, &new.target);
        // Large values lie elsewhere, and are not read for this: one that is as long as before may be another.
        let may_differ = old.changed != new.changed && new.has_large_xattrs();
        entry.xattrs = old.xattrs != new.xattrs || may_differ;
        entry.links = old.links != new.links && new.file_type != FileType::Directory;
        entry.attributes =
            (old.mode, old.uid, old.gid, old.device) != (new.mode, new.uid, new.gid, new.device);
        // What was set back leaves its time; a rename does too.
        let renamed = matches!(entry.what, What::Renamed(_));
        if entry.is_changed() || renamed || old.changed != new.changed {
            entry.attributes |= !entry.is_changed() && !renamed;
            return (self.emit)(&entry);
        }
        Ok(())
    }

    /// Files with several links that have changed, by all their names.
    fn linked(&mut self) -> Result<()> {
        let fs = self.fs;
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        let mut range = Some(KeyRange::prefix(vec![key::LINKED_TAG]));
        while let Some(part) = range {
            let [old, new] = &self.sides;
            let engine = fs.store.engine();
            let compared = fs.read_sides(&[old, new], |_| {
                Ok(engine.compare(Tree::Metadata, &old.prefix, &new.prefix, &part, CHUNK)?)
            })?;
            for difference in compared.differences {
                let (Some(_), Some(_)) = (&difference.old, &difference.new) else { continue };
                let number = difference.key.get(1..).and_then(|number| number.try_into().ok());
                let number = number.ok_or_else(|| damaged("FS-5: this is no number", &difference.key))?;
                changed.insert(u64::from_be_bytes(number));
            }
            range = compared.rest;
            if changed.len() >= LINKED_MAX || range.is_none() {
                self.names_of(&std::mem::take(&mut changed))?;
            }
        }
        Ok(())
    }

    /// Tells of the files with these numbers, by all names that they have on both sides.
    fn names_of(&mut self, numbers: &BTreeSet<u64>) -> Result<()> {
        let fs = self.fs;
        let mut range = (!numbers.is_empty())
            .then(|| KeyRange::prefix(key::in_snapshot(&self.sides[1].prefix, &[key::LINK_NAME_TAG])));
        while let Some(part) = range {
            self.sides.iter().for_each(TreeSide::read_on);
            let side = &self.sides[1];
            let scan = fs.read_sides(&[side], |fs| fs.store.scan(Tree::Metadata, &part, CHUNK))?;
            let names = side.prefix.len() + 1;
            for (list_key, value) in scan.entries {
                let number = <[u8; 8]>::try_from(&value[..]).map(u64::from_le_bytes);
                let number = number.map_err(|_| damaged("FS-6: the list of redirects", &list_key))?;
                if !numbers.contains(&number) {
                    continue;
                }
                let new_key = list_key.slice(names..);
                if self.pairs.as_ref().is_some_and(|pairs| pairs.is_told(&new_key)) {
                    continue;
                }
                let old_key = self.pairs.as_ref().map_or(new_key.clone(), |pairs| pairs.old_key(&new_key));
                let keys = [old_key, new_key];
                let found = self.both(|side, tree| {
                    let own = key::in_snapshot(&tree.prefix, &keys[side]);
                    let value = fs.store.get(Tree::Metadata, &own)?;
                    value.map(|value| tree.found(fs, &keys[side], &value)).transpose()
                });
                let found = match found {
                    // It has gone from the live tree meanwhile.
                    Err(Error::NotFound) => continue,
                    other => other?,
                };
                // A name whose own entry differs has been told of.
                if let [Some(old), Some(new)] = found
                    && old.identity == new.identity
                    && old.linked
                    && new.linked
                {
                    self.changed(&old.record, &new.record, &shown_path(&keys[1]), What::Changed)?;
                }
            }
            range = scan.rest;
        }
        Ok(())
    }
}

impl TreeSide {
    /// The record of the root directory.
    fn root(&self, fs: &FileSystem) -> Result<Record> {
        let mut record = self.record(fs, key::ROOT)?;
        record.number = ROOT.0;
        Ok(record)
    }
}

impl Entry {
    pub(crate) fn whole(what: What, path: Bytes, file_type: FileType) -> Self {
        Self { what, path, file_type, contents: false, attributes: false, xattrs: false, links: false }
    }

    /// True if the inode itself has changed.
    pub fn is_changed(&self) -> bool {
        self.contents || self.attributes || self.xattrs || self.links
    }
}

/// What all keys below the directory at a path key begin with.
pub(crate) fn subtree(path_key: &[u8]) -> Bytes {
    key::subtree_prefix(&path_of(path_key))
}

/// The path of the directory at a path key.
pub(crate) fn path_of(path_key: &[u8]) -> Bytes {
    match path_key.windows(2).position(|pair| pair == b"\0\0") {
        Some(at) => [&path_key[..at], &path_key[at + 1..]].concat().into(),
        None => Bytes::copy_from_slice(path_key),
    }
}

/// A path for people.
pub(crate) fn shown_path(path_key: &[u8]) -> Bytes {
    path_of(path_key).iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect()
}

/// The member of the set that a path key begins with, at the end of one of its names.
fn lies_below(subtrees: &BTreeSet<Bytes>, path_key: &[u8]) -> Option<Bytes> {
    if subtrees.is_empty() {
        return None;
    }
    let ends = path_key.iter().enumerate().filter(|(at, byte)| **byte == 0 && *at > 0);
    ends.map(|(at, _)| &path_key[..=at]).find_map(|prefix| subtrees.get(prefix).cloned())
}

pub(crate) fn damaged(what: &str, key: &[u8]) -> Error {
    Error::damaged(format!("{what}: \"{}\"", key.escape_ascii()))
}
