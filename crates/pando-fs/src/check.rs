//! Check of the name space: FS-1 to FS-8, see [`crate::schema`], and IN-1 of a mounted volume.
//!
//! One walk over the metadata index in key order, in which a directory's record comes before its children's, and for
//! each file its blocks; then one over the data index, from owner to owner, for what belongs to nobody. Redirects come
//! before the records that they lead to and are counted until then. Memory grows with the number of directories, of
//! files with several links and, by eight bytes each, of inodes.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use pando_engine::{Bound, Engine, KeyRange, ScanLimit, Tree};

use crate::inode::Place;
use crate::operations::{FileType, ROOT, SNAPSHOTS};
use crate::receive::MARKS_MAX;
use crate::schema::{NameRecord, Record, Redirect, XattrValue, key, number};
use crate::{Error, FileSystem, Result, Snapshot, acl, numbers};

const BLOCK: u64 = 4096;
const LIMIT: ScanLimit = ScanLimit { entries: 1024, bytes: 4 << 20 };

/// What is wrong, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The invariant broken, e.g. `FS-2`.
    pub invariant: &'static str,
    /// One sentence that names the key.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Empty for a sound name space.
    pub problems: Vec<Problem>,
    /// Directories, the root included.
    pub directories: u64,
    /// Inodes that are no directories and have a name.
    pub files: u64,
    /// Names of files that have, or had, several; each of these files counts once in `files`.
    pub links: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Snapshots. What is in them is checked, and counted nowhere else.
    pub snapshots: u64,
    /// Bytes of blocks.
    pub data_bytes: u64,
}

/// Checks the name space of a volume that nobody changes meanwhile. `progress` is told how many inodes are done. Waits
/// for the device. An error says that the check could not go on; what is wrong with the name space is in the report, which is an
/// empty one first.
pub fn check(engine: &Engine, report: &mut Report, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let mut check = Check {
        engine,
        report,
        counter: None,
        numbers: HashSet::new(),
        tree: Bytes::new(),
        tree_delta: 0,
        has_root: false,
        receiving: HashSet::new(),
        nameless: HashSet::new(),
        directories: HashMap::new(),
        redirects: HashMap::new(),
        parked: HashMap::new(),
    };
    check.counter()?;
    check.metadata(progress)?;
    check.data()
}

impl FileSystem {
    /// As [`check`], on a mounted volume, and whether its inodes in memory are as they are stored (IN-1). Operations that run meanwhile
    /// may show as problems.
    pub fn check(&self) -> Result<Report> {
        let mut report = Report::default();
        check(self.engine(), &mut report, &mut |_| {})?;
        let inodes = self.table.all();
        // The directory of the snapshots is nowhere on the device.
        for inode in inodes.iter().filter(|inode| !matches!(inode.place(), Place::Snapshots)) {
            let (key, record) = {
                let epoch = self.namespace.read();
                // It may have left the table, or its tree may be gone.
                let Ok(state) = inode.read() else { continue };
                (inode.key(*epoch)?, state.record.clone())
            };
            let stored = self.engine().waiting(|| self.engine().get(Tree::Metadata, &key))?;
            if stored.and_then(|bytes| Record::decode(&bytes).ok()) != Some(record) {
                let what = format!("\"{}\" is not stored as it is in memory", key.escape_ascii());
                report.problems.push(Problem { invariant: "IN-1", what });
            }
        }
        Ok(report)
    }
}

/// What was seen of the names of one file with several links.
struct Redirects {
    count: u64,
    file_type: FileType,
    /// One of the names.
    key: Bytes,
}

/// What is counted of a directory, and what its record says.
struct Directory {
    key: Bytes,
    /// Its deltas and those above it.
    delta: u64,
    entries: (u64, u64),
    links: (u64, u64),
}

struct Check<'a> {
    engine: &'a Engine,
    report: &'a mut Report,
    /// The first inode number that is free, if that can be told.
    counter: Option<u64>,
    numbers: HashSet<u64>,
    /// The tree that the scan is in: the prefix of a snapshot, or nothing.
    tree: Bytes,
    /// Deltas for the numbers of files with several links in it.
    tree_delta: u64,
    /// The root directory of the live tree has been seen.
    has_root: bool,
    /// Prefixes of snapshots that are being received, which will be given up at the next mount.
    receiving: HashSet<Bytes>,
    /// Snapshots whose name has not come yet.
    nameless: HashSet<u64>,
    /// Those of this tree, by path.
    directories: HashMap<Bytes, Directory>,
    /// By inode number, until its record comes.
    redirects: HashMap<u64, Redirects>,
    /// Inode numbers of orphans by the metadata key under which they are parked.
    parked: HashMap<Bytes, u64>,
}

impl Check<'_> {
    fn problem(&mut self, invariant: &'static str, key: &[u8], what: impl std::fmt::Display) {
        // A volume made to harm may have as many as it has names.
        if self.report.problems.len() < pando_engine::PROBLEMS_MAX {
            let what = format!("\"{}\" {what}", key.escape_ascii());
            self.report.problems.push(Problem { invariant, what });
        }
    }

    fn scan(&self, tree: Tree, range: &KeyRange, limit: ScanLimit) -> Result<pando_engine::Scan> {
        Ok(self.engine.waiting(|| self.engine.scan(tree, range, limit))?)
    }

    /// Without it, numbers that will be given out again are not found.
    fn counter(&mut self) -> Result<()> {
        let value = self.engine.waiting(|| self.engine.get(Tree::Metadata, key::INODE_COUNTER));
        match value.map_err(Error::from).and_then(|value| numbers::decode_counter(value.as_ref())) {
            Ok(counter) => self.counter = Some(counter),
            Err(Error::Engine(pando_engine::Error::Damaged { what })) => {
                self.problem(
                    "FS-4",
                    key::INODE_COUNTER,
                    format_args!("does not tell which inode numbers are free: {what}"),
                );
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn metadata(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut range = Some(KeyRange::prefix(vec![key::RECEIVING_TAG]));
        let mut marks = 0;
        while let Some(part) = range {
            let scan = self.scan(Tree::Metadata, &part, LIMIT)?;
            marks += scan.entries.len();
            if marks > MARKS_MAX {
                let what = format_args!("begins the marks of more than {MARKS_MAX} snapshots without a name");
                self.problem("FS-8", &[key::RECEIVING_TAG], what);
                break;
            }
            for (key, _) in scan.entries {
                match key[1..].try_into() {
                    Ok(number) => {
                        self.receiving.insert(key::snapshot_prefix(u64::from_be_bytes(number)));
                    }
                    Err(_) => self.problem("FS-8", &key, "is no snapshot that is being received"),
                }
            }
            range = scan.rest;
        }
        let mut range = Some(KeyRange::all());
        while let Some(part) = range {
            let scan = self.scan(Tree::Metadata, &part, LIMIT)?;
            for (key, value) in scan.entries {
                self.entry(&key, &value)?;
            }
            progress(self.numbers.len() as u64);
            range = scan.rest;
        }
        self.end_of_tree();
        if !self.has_root {
            self.problem("FS-2", key::ROOT, "the root directory is missing");
        }
        for number in std::mem::take(&mut self.nameless) {
            self.problem("FS-8", &key::snapshot_prefix(number), "is a snapshot without a name");
        }
        Ok(())
    }

    fn entry(&mut self, key: &Bytes, value: &Bytes) -> Result<()> {
        let Some((tree, rest)) = key::split_snapshot(key) else {
            self.problem("FS-2", key, "is no key of a file system");
            return Ok(());
        };
        let (tree, rest) = (key.slice_ref(tree), key.slice_ref(rest));
        if tree != self.tree {
            self.end_of_tree();
            self.tree = tree;
        }
        let is_live = self.tree.is_empty();
        match rest.first() {
            Some(&key::RECEIVING_TAG) if is_live => {}
            _ if self.receiving.contains(&self.tree) => {}
            _ if key[..] == *key::INODE_COUNTER => {}
            Some(&key::SNAPSHOT_NAME_TAG) if is_live => self.snapshot_name(key, value),
            Some(&key::LINK_NAME_TAG) => self.list_entry(key, &rest, value)?,
            _ => match NameRecord::decode(value) {
                Ok(NameRecord::Inode(record)) => self.record(key, &rest, &record)?,
                Ok(NameRecord::Redirect(redirect)) => self.redirect(key, &rest, &redirect)?,
                Err(error) => self.problem("FS-2", key, format_args!("holds what is no record: {error}")),
            },
        }
        Ok(())
    }

    /// All of a tree has been seen, but for its data.
    fn end_of_tree(&mut self) {
        for (number, Redirects { key, .. }) in std::mem::take(&mut self.redirects) {
            self.problem("FS-5", &key, format_args!("leads to inode {number}, which is missing"));
        }
        for directory in std::mem::take(&mut self.directories).into_values() {
            let Directory { key, entries, links, .. } = directory;
            if entries.0 != entries.1 {
                self.problem("FS-3", &key, format_args!("says {} entries and has {}", entries.1, entries.0));
            }
            if links.0 != links.1 {
                self.problem("FS-3", &key, format_args!("says {} links and has {}", links.1, links.0));
            }
        }
        self.tree_delta = 0;
    }

    /// An entry of the table of snapshots; all snapshots have been seen.
    fn snapshot_name(&mut self, key: &Bytes, value: &Bytes) {
        match Snapshot::decode(&key[1..], value) {
            Some(snapshot) if self.nameless.remove(&snapshot.number.0) => self.report.snapshots += 1,
            _ => self.problem("FS-8", key, "is the name of no snapshot, or of one that has another"),
        }
    }

    /// The record of a root directory, of the live tree or of a snapshot.
    fn root(&mut self, key: &Bytes, record: &Record) {
        let expected = if key.is_empty() { key::ROOT.into() } else { key::snapshot_prefix(record.number) };
        let is_live_root = key.is_empty() && record.number == ROOT.0;
        let is_sound = is_live_root || (!key.is_empty() && *key == expected);
        if !is_sound || record.file_type != FileType::Directory {
            self.problem("FS-2", key, "is not the record of a root directory");
        }
        if key.is_empty() {
            self.has_root = true;
        } else {
            self.nameless.insert(record.number);
        }
        self.tree_delta = record.delta;
    }

    /// `rest` is the key without what says which tree it is in.
    fn record(&mut self, key: &Bytes, rest: &Bytes, record: &Record) -> Result<()> {
        let parent = key::split_path_key(rest).and_then(|(parent, _)| self.directories.get(parent));
        let delta = match rest.first() {
            Some(&key::LINKED_TAG) => self.tree_delta,
            _ => parent.map_or(0, |parent| parent.delta),
        };
        let seen = number::visible(record.number, delta);
        let counter = self.counter.unwrap_or(number::COUNTED_END);
        let given_out_again = (counter..number::COUNTED_END).contains(&seen);
        if !self.numbers.insert(seen) || seen == 0 || seen == SNAPSHOTS.0 || given_out_again {
            let what = format_args!("has inode number {seen}, taken or not below {counter}");
            self.problem("FS-4", key, what);
        }
        if let Some(what) = acl::problem(record) {
            self.problem("FS-7", key, what);
        }
        let is_live = self.tree.is_empty();
        let is_orphan = is_live && rest.first() == Some(&key::ORPHAN_TAG);
        if !is_orphan && !record.parked.is_empty() {
            let elsewhere = record.parked.escape_ascii();
            self.problem("FS-1", key, format_args!("says that its data lie under \"{elsewhere}\""));
        }
        let path = if rest.is_empty() {
            self.root(key, record);
            Some(Bytes::new())
        } else if is_orphan {
            self.orphan(key, record);
            None
        } else if rest[0] == key::LINKED_TAG {
            self.linked(key, rest, record);
            self.report.files += u64::from(is_live);
            return self.owned_data(key, &key::data_prefix(key), record);
        } else if let Some((parent, name)) = key::split_path_key(rest) {
            let is_directory = record.file_type == FileType::Directory;
            self.name_in(parent, key, is_directory);
            if !is_directory && record.links != 1 {
                self.problem("FS-3", key, format_args!("says {} links and has 1", record.links));
            }
            Some(key::child_path(parent, name))
        } else {
            self.problem("FS-2", key, "is no key of a file system");
            None
        };
        match path {
            Some(path) if record.file_type == FileType::Directory => {
                self.report.directories += u64::from(is_live);
                let directory = Directory {
                    key: key.clone(),
                    delta: delta ^ record.delta,
                    entries: (0, record.entries),
                    links: (2, u64::from(record.links)),
                };
                self.directories.insert(path, directory);
            }
            Some(_) => self.report.files += u64::from(is_live),
            None => self.report.orphans += u64::from(is_live),
        }
        let lies_under = if is_orphan && !record.parked.is_empty() { &record.parked } else { key };
        self.owned_data(key, &key::data_prefix(lies_under), record)
    }

    /// Counts a name in its directory.
    fn name_in(&mut self, parent: &[u8], key: &Bytes, is_directory: bool) {
        match self.directories.get_mut(parent) {
            Some(directory) => {
                directory.entries.0 += 1;
                directory.links.0 += u64::from(is_directory);
            }
            None => self.problem("FS-2", key, "lies in no directory"),
        }
    }

    /// One name of a file with several links.
    fn redirect(&mut self, key: &Bytes, rest: &Bytes, redirect: &Redirect) -> Result<()> {
        let Some((parent, _)) = key::split_path_key(rest) else {
            self.problem("FS-2", key, "is a redirect and no name");
            return Ok(());
        };
        self.name_in(parent, key, false);
        self.report.links += u64::from(self.tree.is_empty());
        let Redirect { number, file_type } = *redirect;
        let new = || Redirects { count: 0, file_type, key: key.clone() };
        let redirects = self.redirects.entry(number).or_insert_with(new);
        redirects.count += 1;
        if redirects.file_type != file_type {
            let what = format_args!("says another type of inode {number} than another name");
            self.problem("FS-5", key, what);
        }
        let list_key = key::in_snapshot(&self.tree, &key::link_name_key(rest));
        let listed = self.engine.waiting(|| self.engine.get(Tree::Metadata, &list_key))?;
        if listed.as_deref() != Some(&number.to_le_bytes()[..]) {
            self.problem("FS-6", key, "is not in the list of redirects as it should be");
        }
        Ok(())
    }

    /// The record of a file with several links; all its redirects have been seen.
    fn linked(&mut self, key: &Bytes, rest: &Bytes, record: &Record) {
        if *rest != key::linked_key(record.number) || record.file_type == FileType::Directory {
            self.problem("FS-5", key, "is a linked file's key over another inode's record");
        }
        let Some(redirects) = self.redirects.remove(&record.number) else {
            self.problem("FS-5", key, "is the record of a linked file that no name leads to");
            return;
        };
        if redirects.count != u64::from(record.links) {
            let what = format_args!("says {} links and has {}", record.links, redirects.count);
            self.problem("FS-5", key, what);
        }
        if redirects.file_type != record.file_type {
            self.problem("FS-5", key, "has another type than its names say");
        }
    }

    /// One entry of the list of redirects. That none is missing was seen with the redirects.
    fn list_entry(&mut self, key: &Bytes, rest: &Bytes, value: &Bytes) -> Result<()> {
        let name_key = key::in_snapshot(&self.tree, &rest[1..]);
        let found = self.engine.waiting(|| self.engine.get(Tree::Metadata, &name_key))?;
        let is_redirect = found.is_some_and(|found| {
            matches!(NameRecord::decode(&found), Ok(NameRecord::Redirect(redirect))
                if value[..] == redirect.number.to_le_bytes())
        });
        if !is_redirect {
            self.problem("FS-6", key, "is in the list of redirects and leads to no such name");
        }
        Ok(())
    }

    fn orphan(&mut self, key: &Bytes, record: &Record) {
        if *key != key::orphan_key(record.number) || record.links != 0 {
            self.problem("FS-1", key, "is an orphan's key over another inode's record");
        }
        if !record.parked.is_empty() && self.parked.insert(record.parked.clone(), record.number).is_some() {
            self.problem("FS-1", key, "is parked where another orphan is");
        }
    }

    /// What an inode has in the data index: large attributes, and the blocks of a file.
    fn owned_data(&mut self, key: &Bytes, prefix: &Bytes, record: &Record) -> Result<()> {
        for xattr in &record.xattrs {
            if let XattrValue::Large(length) = xattr.value {
                let data_key = key::xattr_key(prefix, &xattr.name);
                let value = self.engine.waiting(|| self.engine.get(Tree::Data, &data_key))?;
                if value.map(|value| value.len() as u64) != Some(u64::from(length)) {
                    let name = xattr.name.escape_ascii();
                    self.problem("FS-1", key, format_args!("has no value of its attribute {name}"));
                }
            }
        }
        // Of an inode without data any is found by its owner, and so is what lies among all others' as that of a root directory.
        let is_root = *key == self.tree;
        if !record.has_data() || is_root {
            return Ok(());
        }
        let mut blocks = 0;
        let mut range = Some(KeyRange::prefix(prefix.clone()));
        while let Some(part) = range {
            let scan = self.scan(Tree::Data, &part, LIMIT)?;
            for (data_key, value) in scan.entries {
                // An attribute whose name has seven bytes has a key as long as a block's.
                let block = key::block_of(prefix, &data_key).filter(|block| *block < 1 << 56);
                if let Some(block) = block.filter(|_| record.file_type == FileType::Regular) {
                    let length = value.len() as u64;
                    let end = block.checked_mul(BLOCK).and_then(|start| start.checked_add(length));
                    if length > BLOCK || end.is_none_or(|end| end > record.size) {
                        self.problem("FS-1", &data_key, "reaches behind the end of the file");
                    }
                    blocks += 1;
                    self.report.data_bytes += if self.tree.is_empty() { length } else { 0 };
                } else if !has_large_xattr(record, prefix, &data_key) {
                    self.problem("FS-1", &data_key, "is nothing that its inode has");
                }
            }
            range = scan.rest;
        }
        if record.file_type != FileType::Regular {
            return Ok(());
        }
        let all = record.size.div_ceil(BLOCK);
        if !record.is_sparse() && blocks != all {
            self.problem("FS-1", key, format_args!("has {blocks} of its {all} blocks and is not sparse"));
        }
        if record.is_sparse() && blocks > record.blocks {
            self.problem(
                "FS-1",
                key,
                format_args!("has {blocks} blocks, at most {} expected", record.blocks),
            );
        }
        Ok(())
    }

    /// Goes over the data index from owner to owner.
    fn data(&mut self) -> Result<()> {
        let mut range = Some(KeyRange::all());
        while let Some(part) = range {
            let scan = self.scan(Tree::Data, &part, ScanLimit { entries: 1, bytes: 1 })?;
            range = match scan.entries.into_iter().next() {
                Some((data_key, _)) => {
                    let next = self.owner(&data_key)?;
                    Some(KeyRange::new(next, Bound::greatest()))
                }
                None => scan.rest,
            };
        }
        Ok(())
    }

    /// Checks that a data key belongs to an inode; returns where the next owner's keys may begin.
    fn owner(&mut self, data_key: &Bytes) -> Result<Bound> {
        let next_key = || Bound::before([&data_key[..], b"\0"].concat());
        let Some(length) = key::owner_length(data_key) else {
            self.problem("FS-1", data_key, "belongs to nothing");
            return Ok(next_key());
        };
        let owner = data_key.slice(..length);
        if let Some((tree, _)) = key::split_snapshot(data_key)
            && self.receiving.contains(tree)
        {
            return Ok(Bound::after(Bytes::copy_from_slice(tree)));
        }
        let parked = self.parked.get(&owner).copied();
        let record_key = parked.map_or(owner.clone(), key::orphan_key);
        let value = self.engine.waiting(|| self.engine.get(Tree::Metadata, &record_key))?;
        let record = value.and_then(|value| Record::decode(&value).ok());
        if parked.is_some() && self.engine.waiting(|| self.engine.get(Tree::Metadata, &owner))?.is_some() {
            self.problem("FS-1", data_key, "belongs to a live inode and to an orphan");
        }
        // The root's own keys lie among those of everything else.
        let is_root = key::split_snapshot(&owner).is_some_and(|(_, rest)| rest.is_empty());
        match record {
            None => self.problem("FS-1", data_key, "belongs to no inode"),
            Some(record) if !record.has_data() => {
                self.problem("FS-1", data_key, "belongs to an inode without data")
            }
            Some(record) if is_root && !has_large_xattr(&record, &key::data_prefix(&owner), data_key) => {
                self.problem("FS-1", data_key, "is nothing that its inode has")
            }
            Some(_) => {}
        }
        Ok(if is_root { next_key() } else { Bound::after(key::data_prefix(&owner)) })
    }
}

/// Whether a data key is that of a large attribute which the record names.
fn has_large_xattr(record: &Record, prefix: &[u8], data_key: &[u8]) -> bool {
    let mut large = record.xattrs.iter().filter(|xattr| matches!(xattr.value, XattrValue::Large(_)));
    large.any(|xattr| data_key == key::xattr_key(prefix, &xattr.name))
}
