//! A file system and the model, taken through the same steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use pando_device::simulated::Random;
use pando_device::{Device, MemoryDevice};
use pando_engine::FormatOptions;
use pando_fs::clock::Clock;
use pando_fs::operations::{
    Attributes, Caller, DirectoryEntry, FileType, ListAttributes, Operations, ROOT, SNAPSHOTS, Seek,
    SetAttributes, SetTime, WriteMode, XattrMode, waiting,
};
use pando_fs::{Error, FileSystem, InodeNumber, Options, Result};
use pando_sim::model::acl::{Acl, NOBODY};
use pando_sim::model::posix::{self, Content, Id, Posix};

use super::step::Step;
use super::transfer::Receiver;

/// A clock that the run sets.
pub struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// See the module.
pub struct Run {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) clock: Arc<SetClock>,
    pub(crate) model: Posix,
    /// What is referenced, the root first; each counts one reference.
    handles: Vec<(InodeNumber, Id)>,
    seed: u64,
    conditions: Conditions,
    /// Set as long as no query fails.
    pub(crate) calm: Arc<AtomicBool>,
    /// Another volume, to which snapshots are sent.
    pub(crate) receiver: Option<Receiver>,
    /// What each clone was made of.
    clones: BTreeMap<Id, Id>,
    pub counts: Counts,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What was done with success, or, where that is the point, refused.
        #[derive(Debug, Default, Clone, Copy)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Ranges moved or cloned by gotos since the last crash.
    ranges_cloned,
    /// Those of copies at equal offsets.
    ranges_shared,
    snapshots_sent,
    /// Those that were sent as changes.
    changes_sent,
    streams_cut,
    snapshots_deleted,
    rollbacks,
    clones_of_clones,
    /// Clones and renames of a directory into itself.
    refused_into_themselves,
    renames_of_sources,
    renames_of_clones,
    removals_of_sources,
    removals_of_clones,
}

/// No clones in a tree of more names.
const NAMES_MAX: usize = 400;

pub type Outcome = std::result::Result<(), String>;

pub fn agree<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("found {found:?}\nexpected {expected:?}")) }
}

/// What makes it hard.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// One query of so many fails.
    interrupted: u64,
    cache_bytes: usize,
    log_bytes: u64,
}

impl Conditions {
    /// A cache so small that most of the tree is not in it.
    pub const HARD: Self = Self { interrupted: 3, cache_bytes: 512 << 10, log_bytes: 1 << 20 };
    /// For operations on some MiB, which are begun anew whenever a query fails.
    pub const LARGE_FILES: Self = Self { interrupted: 300, cache_bytes: 8 << 20, log_bytes: 8 << 20 };
}

/// Makes the call until it is not interrupted.
pub fn again<T>(fs: &FileSystem, mut call: impl FnMut(&FileSystem) -> Result<T>) -> Result<T> {
    loop {
        match waiting(fs, &mut call) {
            Err(Error::Busy | Error::Unforgotten | Error::Unfinished) => {}
            other => return other,
        }
    }
}

fn name(number: u64) -> Vec<u8> {
    match number {
        0 => vec![0xff; 3],
        1 => b"a".to_vec(),
        2 => b"a b".to_vec(),
        3 => vec![b'x'; 255],
        _ => b"\x01".to_vec(),
    }
}

pub fn snapshot_name(number: u64) -> Vec<u8> {
    format!("s{number}").into_bytes()
}

fn xattr_name(number: u64) -> &'static [u8] {
    [&b"user.a"[..], b"user.b", b"security.capability", b"trusted.c", posix::ACCESS, posix::DEFAULT]
        [number as usize]
}

/// The umask of a user.
fn umask(uid: u32) -> u32 {
    if uid == 0 { 0 } else { 0o027 }
}

/// One list of access control of many; `None`, one in eight.
fn acl(seed: u64) -> Option<Acl> {
    let mut random = Random::new(seed);
    let mut entries = BTreeMap::new();
    for tag in [1, 4, 32] {
        entries.insert((tag, NOBODY), random.below(8) as u16);
    }
    for tag in [2, 8] {
        for _ in 0..random.below(3) {
            entries.insert((tag, random.below(5) as u32), random.below(8) as u16);
        }
    }
    if entries.len() > 3 || random.chance(1, 3) {
        entries.insert((16, NOBODY), random.below(8) as u16);
    }
    (!random.chance(1, 8)).then_some(Acl(entries))
}

impl Run {
    /// An empty file system in memory.
    pub fn new(seed: u64, conditions: Conditions) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        let clock = Arc::new(SetClock(AtomicU64::new(1)));
        let format =
            FormatOptions { log_bytes: Some(conditions.log_bytes), ..pando_sim::runner::format_options() };
        FileSystem::format_with_clock(device.clone(), &format, &*clock).unwrap();
        Self::open(device, clock, seed, conditions).unwrap()
    }

    /// Makes a volume with yet smaller nodes; gives the clock for its run.
    pub fn format(device: &Arc<pando_device::SimulatedDevice>) -> Result<Arc<SetClock>> {
        let clock = Arc::new(SetClock(AtomicU64::new(1)));
        FileSystem::format_with_clock(device.clone(), &pando_sim::runner::format_options(), &*clock)?;
        Ok(clock)
    }

    /// A file system that was just made.
    pub fn open(
        device: Arc<dyn Device>,
        clock: Arc<SetClock>,
        seed: u64,
        conditions: Conditions,
    ) -> Result<Self> {
        let options = Options {
            cache_bytes: conditions.cache_bytes,
            background: pando_engine::Background::Manual,
            // With nodes this small no file would move by copy otherwise.
            copied_bytes: seed.is_multiple_of(2).then_some(8 << 10),
            ..Options::default()
        };
        let fs = FileSystem::open_with_clock(device, options, clock.clone())?;
        if seed % 4 < 2 {
            fs.forgets_gather();
        }
        let model = Posix::new(clock.now());
        let run = Self {
            fs,
            clock,
            model,
            handles: vec![(ROOT, posix::ROOT)],
            seed,
            conditions,
            calm: Arc::default(),
            receiver: None,
            clones: BTreeMap::new(),
            counts: Counts::default(),
        };
        run.interrupt_at_random();
        Ok(run)
    }

    pub fn model(&self) -> &Posix {
        &self.model
    }

    pub fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// Makes queries fail from now on, unless it is calm.
    fn interrupt_at_random(&self) {
        let (state, calm, one_of) =
            (AtomicU64::new(self.seed), self.calm.clone(), self.conditions.interrupted);
        self.fs.interrupt_queries(move || {
            !calm.load(Ordering::Relaxed)
                && Random::new(state.fetch_add(1, Ordering::Relaxed)).chance(1, one_of)
        });
    }

    fn slot(&self, slot: u64) -> (InodeNumber, Id) {
        self.handles[(slot % self.handles.len() as u64) as usize]
    }

    /// Of the handles, the one in the slot among directories, or among files.
    fn kind(&self, slot: u64, is_directory: bool) -> (InodeNumber, Id) {
        let of_kind: Vec<_> = self
            .handles
            .iter()
            .filter(|(_, id)| (self.model.node(*id).file_type() == FileType::Directory) == is_directory)
            .collect();
        // One in sixteen is of the wrong kind on purpose.
        if of_kind.is_empty() || slot.is_multiple_of(16) {
            return self.slot(slot / 16);
        }
        *of_kind[(slot % of_kind.len() as u64) as usize]
    }

    fn caller(&self, uid: u32) -> Caller {
        Caller { uid, gid: uid, umask: umask(uid) }
    }

    /// Does a step to both sides and compares the answers.
    pub fn step(&mut self, step: &Step) -> Outcome {
        self.clock.0.fetch_add(7, Ordering::Relaxed);
        self.model.now = self.clock.now();
        self.fs.make_room(0, true).map_err(|error| error.to_string())?;
        // Messages go down now and then, so that there is something below the roots.
        if Random::new(self.seed ^ self.clock.0.load(Ordering::Relaxed)).chance(1, 4) {
            self.fs.engine().background_step().map_err(|error| error.to_string())?;
        }
        match step {
            Step::Lookup { .. }
            | Step::Make { .. }
            | Step::Temporary { .. }
            | Step::Link { .. }
            | Step::LookupSnapshot { .. }
            | Step::Forget { .. } => self.reference(step),
            Step::Remove { directory, name: number, is_directory } => {
                let (inode, id) = self.kind(*directory, true);
                let name = name(*number);
                let found = again(&self.fs, |fs| match is_directory {
                    true => fs.remove_directory(inode, &name),
                    false => fs.unlink(inode, &name),
                });
                let removed = self.model.lookup(id, &name).ok();
                let expected = self.model.remove(id, &name, *is_directory);
                if expected.is_ok() {
                    self.counts.removals_of_clones += u64::from(self.is_clone(removed));
                    self.counts.removals_of_sources += u64::from(self.is_source(removed));
                }
                agree(found, expected)
            }
            Step::Rename { from, name: old, to, new_name, mode } => {
                let (from, to) = (self.kind(*from, true), self.kind(*to, true));
                let (old, new) = (name(*old), name(*new_name));
                let found = again(&self.fs, |fs| fs.rename(from.0, &old, to.0, &new, *mode).map(drop));
                let renamed = self.model.lookup(from.1, &old).ok();
                let expected = self.model.rename((from.1, &old), (to.1, &new), *mode);
                match expected {
                    Ok(()) => {
                        self.counts.renames_of_clones += u64::from(self.is_clone(renamed));
                        self.counts.renames_of_sources += u64::from(self.is_source(renamed));
                    }
                    Err(Error::Invalid) => self.counts.refused_into_themselves += 1,
                    Err(_) => {}
                }
                agree(found, expected)
            }
            Step::Clone { source, directory, name: number, uid } => {
                self.clone_tree(*source, *directory, *number, *uid)
            }
            Step::List { directory, room, attributes } => {
                let (inode, id) = self.kind(*directory, true);
                if self.model.node(id).file_type() != FileType::Directory {
                    let listed = self.fs.read_directory(inode, 0, *attributes, &mut |_| true);
                    return agree(listed, Err(Error::NotADirectory));
                }
                let found: Vec<_> = self
                    .list(inode, *room, *attributes)
                    .into_iter()
                    .map(|entry| entry.name.to_vec())
                    .collect();
                agree(found, self.model.list(id).into_iter().map(|(name, _)| name).collect())
            }
            Step::TakeSnapshot { name, writable } => {
                if self.model.names() > NAMES_MAX {
                    return Ok(());
                }
                let name = snapshot_name(*name);
                let found = again(&self.fs, |fs| fs.take_snapshot(&name, *writable));
                agree(found, self.model.take_snapshot(&name, *writable))
            }
            Step::DeleteSnapshot { name } => {
                let name = snapshot_name(*name);
                let expected = self.model.delete_snapshot(&name);
                self.counts.snapshots_deleted += u64::from(expected.is_ok());
                agree(again(&self.fs, |fs| fs.delete_snapshot(&name)), expected)?;
                self.drop_gone()
            }
            Step::RollBack { name, in_use } => {
                if !in_use {
                    self.crash()?;
                }
                let name = snapshot_name(*name);
                let found = again(&self.fs, |fs| fs.roll_back(&name));
                let expected = self.model.roll_back(&name);
                self.counts.rollbacks += u64::from(expected.is_ok());
                agree(found.map(drop), expected)?;
                self.drop_gone()
            }
            Step::Send { name, base, to, cut } => self.send(*name, *base, *to, *cut),
            Step::Compare => self.compare(),
            Step::Crash => self.crash(),
            _ => self.inode_step(step),
        }
    }

    /// What lies in a tree that is gone answers nothing else, and is forgotten.
    fn drop_gone(&mut self) -> Outcome {
        for (inode, id) in std::mem::take(&mut self.handles) {
            if !self.model.is_gone(id) {
                self.handles.push((inode, id));
                continue;
            }
            agree(again(&self.fs, |fs| fs.get_attributes(inode)).map(drop), Err(Error::Stale))?;
            let node = self.model.node(id);
            let called = match node.file_type() {
                FileType::Regular => again(&self.fs, |fs| fs.read(inode, 0, 1)).map(drop),
                FileType::Directory => again(&self.fs, |fs| fs.lookup(inode, b"a")).map(drop),
                _ => again(&self.fs, |fs| fs.list_xattrs(inode)).map(drop),
            };
            agree(called, Err(Error::Stale))?;
            self.fs.forget(inode, 1);
        }
        Ok(())
    }

    /// A clone. What a tree of clones of clones comes to is bounded: beyond that none are made.
    fn clone_tree(&mut self, source: u64, directory: u64, number: u64, uid: u32) -> Outcome {
        let (source, directory) = (self.slot(source), self.kind(directory, true));
        if self.model.names() > NAMES_MAX {
            return Ok(());
        }
        let (caller, name) = (self.caller(uid), name(number));
        let found = again(&self.fs, |fs| fs.clone_tree(&caller, &[], source.0, directory.0, &name));
        let expected = self.model.clone_tree((uid, uid), source.1, directory.1, &name);
        match expected {
            Ok(()) => {
                self.counts.clones_of_clones += u64::from(self.is_clone(Some(source.1)));
                let clone = self.model.lookup(directory.1, &name).expect("it was just made");
                self.clones.insert(clone, source.1);
            }
            Err(Error::Invalid) => self.counts.refused_into_themselves += 1,
            Err(_) => {}
        }
        agree(found, expected)
    }

    fn is_clone(&self, id: Option<Id>) -> bool {
        id.is_some_and(|id| self.clones.contains_key(&id))
    }

    fn is_source(&self, id: Option<Id>) -> bool {
        id.is_some_and(|id| self.clones.values().any(|source| *source == id))
    }

    /// Steps that give or take references.
    fn reference(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Lookup { directory, name: number } => {
                let (inode, id) = self.kind(*directory, true);
                let name = name(*number);
                let found = again(&self.fs, |fs| fs.lookup(inode, &name));
                let expected = self.model.lookup(id, &name);
                self.entered(found.map(|entry| entry.attributes), expected)
            }
            Step::Make { directory, name: number, file_type, mode, uid } => {
                let (inode, id) = self.kind(*directory, true);
                let (caller, name) = (self.caller(*uid), name(*number));
                let found = again(&self.fs, |fs| match file_type {
                    FileType::Directory => fs.make_directory(&caller, inode, &name, *mode),
                    FileType::Symlink => fs.make_symlink(&caller, inode, &name, b"target"),
                    _ => fs.make_node(&caller, inode, &name, *file_type, *mode, 5),
                });
                let (content, mode) = match file_type {
                    FileType::Regular => (Content::File(Vec::new()), *mode),
                    FileType::Directory => {
                        (Content::Directory { entries: BTreeMap::new(), parent: None }, *mode)
                    }
                    FileType::Symlink => (Content::Symlink(b"target".to_vec()), 0o777),
                    other => (Content::Special(*other, 5), *mode),
                };
                let expected = self.model.make((*uid, *uid), id, &name, content, (mode, umask(*uid)));
                self.entered(found.map(|entry| entry.attributes), expected)
            }
            Step::Temporary { directory } => {
                let (inode, _) = self.kind(*directory, true);
                let found = again(&self.fs, |fs| fs.make_temporary(&self.caller(0), inode, 0o600));
                // No difference to the model but that a temporary file's name is never seen.
                if let Ok(entry) = found {
                    agree((entry.attributes.links, entry.attributes.size), (0, 0))?;
                    self.fs.forget(entry.attributes.inode, 1);
                }
                Ok(())
            }
            Step::Link { inode, directory, name: number } => {
                let (inode, id) = self.kind(*inode, false);
                let (directory, directory_id) = self.kind(*directory, true);
                let name = name(*number);
                let found = again(&self.fs, |fs| fs.link(inode, directory, &name));
                let expected = self.model.link(id, directory_id, &name);
                self.entered(found.map(|entry| entry.attributes), expected)
            }
            Step::LookupSnapshot { name } => {
                let name = snapshot_name(*name);
                let found = again(&self.fs, |fs| fs.lookup(SNAPSHOTS, &name));
                let expected = self.model.snapshots.get(&name).copied().ok_or(Error::NotFound);
                self.entered(found.map(|entry| entry.attributes), expected)
            }
            Step::Forget { inode } => {
                let place = *inode as usize % self.handles.len();
                if place > 0 {
                    let (inode, _) = self.handles.remove(place);
                    self.fs.forget(inode, 1);
                }
                Ok(())
            }
            _ => unreachable!("not a step that gives or takes references"),
        }
    }

    fn entered(&mut self, found: Result<Attributes>, expected: Result<Id>) -> Outcome {
        if let (Ok(attributes), Ok(id)) = (&found, &expected) {
            self.handles.push((attributes.inode, *id));
            return self.same_attributes(attributes, *id);
        }
        agree(found.map(|_| ()), expected.map(|_| ()))
    }

    /// Steps on one inode or two, without names.
    fn inode_step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Write { file, offset, length, byte, append, kill_set_id } => {
                let (inode, id) = self.kind(*file, false);
                let data = vec![*byte; *length as usize];
                let bytes = Bytes::from(data.clone());
                let offset = if *append { self.model.node(id).size() } else { *offset };
                let mode = WriteMode { kill_set_id: *kill_set_id, keep_modified: false };
                let found = again(&self.fs, |fs| fs.write(inode, offset, bytes.clone(), mode));
                agree(found, self.model.write(id, offset as usize, &data, *kill_set_id))
            }
            Step::Read { file, offset, length } => {
                let (inode, id) = self.kind(*file, false);
                let found = again(&self.fs, |fs| fs.read(inode, *offset, *length as usize));
                let expected = self.model.read(id, *offset as usize, *length as usize);
                agree(found.map(|pieces| pieces.concat()), expected)
            }
            Step::Resize { file, size } => {
                let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                self.set(self.kind(*file, false), set)
            }
            Step::Mode { inode, mode } => {
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                self.set(self.slot(*inode), set)
            }
            Step::Owner { inode, uid, gid } => self
                .set(self.slot(*inode), SetAttributes { uid: *uid, gid: *gid, ..SetAttributes::default() }),
            Step::Times { inode, seconds } => {
                let distance = Duration::new(seconds.unsigned_abs(), 5);
                let epoch = SystemTime::UNIX_EPOCH;
                let time = if *seconds < 0 { epoch - distance } else { epoch + distance };
                let (accessed, modified) = (Some(SetTime::To(time)), Some(SetTime::Now));
                self.set(self.slot(*inode), SetAttributes { accessed, modified, ..SetAttributes::default() })
            }
            Step::Allocate { file, mode, offset, length } => {
                let (inode, id) = self.kind(*file, false);
                let found = again(&self.fs, |fs| fs.allocate(inode, *mode, *offset, *length, false));
                agree(found, self.model.allocate(id, *mode, *offset as usize, *length as usize))
            }
            Step::Copy { from, from_offset, to, to_offset, length } => {
                let (from, to) = (self.kind(*from, false), self.kind(*to, false));
                self.copy(from, *from_offset, to, *to_offset, *length).map(drop)
            }
            Step::CopyInPlace { from, to, offset, length } => {
                let (from, to) = (self.kind(*from, false), self.kind(*to, false));
                let mut done = 0;
                while done < *length {
                    let at = offset + done;
                    match self.copy(from, at, to, at, length - done)? {
                        0 => break,
                        copied => done += copied,
                    }
                }
                Ok(())
            }
            Step::Seek { file, offset, what } => self.seek(self.kind(*file, false), *offset, *what),
            Step::SetXattr { inode, name, length, mode } => {
                let (inode, id) = self.slot(*inode);
                let (name, value) = (xattr_name(*name), vec![*length as u8; *length as usize]);
                let found = again(&self.fs, |fs| fs.set_xattr(inode, name, &value, *mode, false));
                agree(found, self.model.set_xattr(id, name, &value, *mode))
            }
            Step::SetAcl { inode, is_default, seed, kill_set_group_id } => {
                let (inode, id) = self.slot(*inode);
                let name = if *is_default { posix::DEFAULT } else { posix::ACCESS };
                let acl = acl(*seed);
                let value = acl.clone().unwrap_or_default().bytes();
                let found = again(&self.fs, |fs| {
                    fs.set_xattr(inode, name, &value, XattrMode::Set, *kill_set_group_id)
                });
                agree(found, self.model.set_acl(id, *is_default, acl, *kill_set_group_id))
            }
            Step::RemoveXattr { inode, name } => {
                let (inode, id) = self.slot(*inode);
                let found = again(&self.fs, |fs| fs.remove_xattr(inode, xattr_name(*name)));
                agree(found, self.model.remove_xattr(id, xattr_name(*name)))
            }
            _ => unreachable!("not a step on an inode"),
        }
    }

    /// One copy_file_range; the bytes that it copied, 0 also where it is refused.
    fn copy(
        &mut self,
        from: (InodeNumber, Id),
        from_offset: u64,
        to: (InodeNumber, Id),
        to_offset: u64,
        length: u64,
    ) -> std::result::Result<u64, String> {
        let cloned = self.fs.engine().stats().ranges_cloned;
        let found = again(&self.fs, |fs| fs.copy_range(from.0, from_offset, to.0, to_offset, length, false));
        let (source, target) = ((from.1, from_offset as usize), (to.1, to_offset as usize));
        let expected = self.model.check_copy(source, target, length as usize);
        agree(found.as_ref().map(drop), expected.as_ref().map(drop))?;
        let Ok(copied) = found else { return Ok(0) };
        let most = self.model.node(from.1).size().saturating_sub(from_offset).min(length);
        agree((copied <= most, copied > 0), (true, most > 0))?;
        self.model.copy(source, target, copied as usize).map_err(|error| error.to_string())?;
        self.counts.ranges_shared += self.fs.engine().stats().ranges_cloned - cloned;
        Ok(copied)
    }

    fn set(&mut self, (inode, id): (InodeNumber, Id), set: SetAttributes) -> Outcome {
        let found = again(&self.fs, |fs| fs.set_attributes(inode, &set));
        let expected = self.model.set_attributes(id, &set);
        match found {
            Ok(attributes) if expected.is_ok() => self.same_attributes(&attributes, id),
            other => agree(other.map(|_| ()), expected),
        }
    }

    /// Holes are where the file system says, as far as the bytes allow it.
    fn seek(&mut self, (inode, id): (InodeNumber, Id), offset: u64, what: Seek) -> Outcome {
        let found = again(&self.fs, |fs| fs.seek(inode, offset, what));
        let Ok(bytes) = self.model.read(id, 0, usize::MAX / 2) else {
            return if found.is_err() { Ok(()) } else { Err("a seek in what is no file".to_owned()) };
        };
        let behind = bytes.get(offset as usize..).unwrap_or_default();
        match (found, what) {
            (Ok(at), Seek::Data) => {
                let hole = &bytes[offset as usize..at as usize];
                agree(hole.iter().all(|byte| *byte == 0), true)
            }
            (Ok(at), Seek::Hole) => {
                let block_end = (at as usize + 1).next_multiple_of(4096).min(bytes.len());
                agree(bytes[at as usize..block_end].iter().all(|byte| *byte == 0), true)
            }
            (Err(Error::NoData), Seek::Data) => agree(behind.iter().all(|byte| *byte == 0), true),
            (Err(Error::NoData), Seek::Hole) => agree(behind.is_empty(), true),
            (Err(error), _) => Err(format!("seek: {error}")),
        }
    }

    /// A listing read `room` names at a time; the references of one with attributes are given back.
    fn list(&self, inode: InodeNumber, room: u64, attributes: ListAttributes) -> Vec<DirectoryEntry> {
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        loop {
            let cookie = entries.last().map_or(0, |entry| entry.cookie);
            let before = entries.len();
            let mut emit = |entry: &DirectoryEntry| {
                let fits = entries.len() < before + room as usize;
                if fits {
                    entries.push(entry.clone());
                }
                fits
            };
            again(&self.fs, |fs| fs.read_directory(inode, cookie, attributes, &mut emit)).unwrap();
            if entries.len() == before {
                break;
            }
        }
        let names = entries.split_off(2);
        for entry in &names {
            if entry.attributes.is_some() {
                self.fs.forget(entry.inode, 1);
            }
        }
        names
    }

    /// Compares the whole tree, from the root and from every handle, and checks the name space.
    pub fn compare(&mut self) -> Outcome {
        self.compare_below(ROOT, posix::ROOT)?;
        for (name, id) in self.model.snapshots.clone() {
            let found =
                again(&self.fs, |fs| fs.lookup(SNAPSHOTS, &name)).map_err(|error| error.to_string())?;
            self.compare_below(found.attributes.inode, id)?;
            self.fs.forget(found.attributes.inode, 1);
        }
        agree(self.list(SNAPSHOTS, u64::MAX >> 1, ListAttributes::OfAll).len(), self.model.snapshots.len())?;
        self.compare_received()?;
        self.compare_numbers()?;
        for (inode, id) in self.handles.clone() {
            self.compare_inode(inode, id)?;
        }
        let report = self.fs.check().map_err(|error| error.to_string())?;
        agree(report.problems, Vec::new())?;
        let trees = self.fs.engine().check(&mut |_, _| {}).map_err(|error| error.to_string())?;
        agree(trees.problems, Vec::new())
    }

    /// Two names have the same inode number if and only if they are links of one file.
    fn compare_numbers(&self) -> Outcome {
        let mut roots = vec![(ROOT, posix::ROOT)];
        for (name, id) in &self.model.snapshots {
            let found =
                again(&self.fs, |fs| fs.lookup(SNAPSHOTS, name)).map_err(|error| error.to_string())?;
            roots.push((found.attributes.inode, *id));
        }
        self.compare_numbers_below(&roots)?;
        roots[1..].iter().for_each(|(inode, _)| self.fs.forget(*inode, 1));
        Ok(())
    }

    pub fn compare_numbers_below(&self, roots: &[(InodeNumber, Id)]) -> Outcome {
        let (mut numbers, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for (inode, id) in roots {
            agree((numbers.insert(*inode, *id), ids.insert(*id, *inode)), (None, None))?;
        }
        let mut directories = roots.to_vec();
        let mut looked_up = Vec::new();
        while let Some((inode, id)) = directories.pop() {
            for (entry, (_, child)) in
                self.list(inode, u64::MAX >> 1, ListAttributes::OfNone).iter().zip(self.model.list(id))
            {
                agree(*numbers.entry(entry.inode).or_insert(child), child)?;
                agree(*ids.entry(child).or_insert(entry.inode), entry.inode)?;
                if entry.file_type == FileType::Directory {
                    let found = again(&self.fs, |fs| fs.lookup(inode, &entry.name));
                    agree(found.map(|found| found.attributes.inode), Ok(entry.inode))?;
                    looked_up.push(entry.inode);
                    directories.push((entry.inode, child));
                }
            }
        }
        looked_up.into_iter().for_each(|inode| self.fs.forget(inode, 1));
        Ok(())
    }

    pub fn compare_below(&mut self, inode: InodeNumber, id: Id) -> Outcome {
        self.compare_inode(inode, id)?;
        if self.model.node(id).file_type() != FileType::Directory {
            return Ok(());
        }
        let listed = self.list(inode, u64::MAX >> 1, ListAttributes::OfAll);
        let expected = self.model.list(id);
        agree(
            listed.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>(),
            expected.iter().map(|(name, _)| name.clone()).collect(),
        )?;
        for (entry, (name, child)) in listed.iter().zip(expected) {
            let found = again(&self.fs, |fs| fs.lookup(inode, &name)).map_err(|error| error.to_string())?;
            agree(entry.inode, found.attributes.inode)?;
            agree(entry.file_type, found.attributes.file_type)?;
            // None for what has lost one of several names.
            match entry.attributes {
                Some(listed) => agree(listed, found.attributes)?,
                None => agree(found.attributes.file_type == FileType::Directory, false)?,
            }
            self.compare_below(found.attributes.inode, child)?;
            self.fs.forget(found.attributes.inode, 1);
        }
        Ok(())
    }

    fn compare_inode(&mut self, inode: InodeNumber, id: Id) -> Outcome {
        let attributes = self.fs.get_attributes(inode).map_err(|error| error.to_string())?;
        self.same_attributes(&attributes, id)?;
        let node = self.model.node(id);
        let xattrs = node.all_xattrs();
        for (name, value) in &xattrs {
            let found = again(&self.fs, |fs| fs.get_xattr(inode, name)).map(|value| value.to_vec());
            agree(found, Ok(value.clone()))?;
        }
        let list = self.fs.list_xattrs(inode).map_err(|error| error.to_string())?;
        agree(list.split(|byte| *byte == 0).count() - 1, xattrs.len())?;
        match &node.content {
            Content::File(bytes) => {
                let found = again(&self.fs, |fs| fs.read(inode, 0, bytes.len() + 10));
                match found.map(|pieces| pieces.concat()) {
                    Ok(found) if found == *bytes => Ok(()),
                    Ok(found) => {
                        let at = found.iter().zip(bytes).position(|(a, b)| a != b);
                        Err(format!("inode {}: bytes differ at {at:?}", inode.0))
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
            Content::Symlink(target) => {
                agree(self.fs.read_link(inode).map(|target| target.to_vec()), Ok(target.clone()))
            }
            Content::Directory { .. } | Content::Special(..) => Ok(()),
        }
    }

    fn same_attributes(&self, found: &Attributes, id: Id) -> Outcome {
        let node = self.model.node(id);
        let device = if let Content::Special(_, device) = node.content { device } else { found.device };
        agree(
            (found.file_type, found.mode, found.links, found.uid, found.gid, found.device, found.size),
            (node.file_type(), node.mode, node.links, node.uid, node.gid, device, node.size()),
        )?;
        agree(
            (found.accessed, found.modified, found.changed, found.born),
            (node.accessed, node.modified, node.changed, node.born),
        )
    }

    /// Opens the volume anew, without closing it first: what was unlinked is gone, all else is there.
    fn crash(&mut self) -> Outcome {
        self.handles.truncate(1);
        self.fs = FileSystem::on_engine(self.fs.engine().clone(), false, self.clock.clone())
            .map_err(|error| error.to_string())?;
        self.seed += 1;
        self.interrupt_at_random();
        let report = self.fs.check().map_err(|error| error.to_string())?;
        agree((report.orphans, report.problems), (0, Vec::new()))
    }
}
