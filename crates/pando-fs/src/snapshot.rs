//! Snapshots: the live tree as it was at one moment, to be looked at or to be changed apart from it.
//!
//! A snapshot is a clone of the ranges that make up the live tree, to below a prefix of its own: the same mechanism as for a clone of
//! a directory, and the same cost, O(height). Its root's record carries the delta under which it shows other inode numbers than the live tree. A
//! table says which name has which prefix.
//!
//! On a mount they are found in the directory [`NAME`] of the root, which no listing shows unless it is told to
//! ([`FileSystem::list_snapshots_directory`]), and which is nowhere on the device. What lies in a snapshot that is not writable cannot
//! be changed.
//!
//! A snapshot that is deleted, and the live tree at a roll back ([`crate::rollback`]), is *gone*: whatever is in use in it answers `Stale`
//! until it is forgotten (IN-4).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::{BufMut, Bytes, BytesMut};
use pando_engine::{Batch, KeyRange, ScanLimit, Tree, VolumeId};

use crate::inode::{Inode, Place, States};
use crate::namei::check_name;
use crate::operations::{DirectoryEntry, Entry, FileType, InodeNumber, Operations, ROOT, SNAPSHOTS};
use crate::schema::{Record, Timestamp, key};
use crate::view::View;
use crate::{Error, FileSystem, Result, numbers};

/// The name in the root directory under which the snapshots are found.
pub const NAME: &[u8] = b".snapshots";

const VERSION: u8 = 1;
const KIND: u8 = 2;
const LENGTH: usize = 32;
/// Flag: what lies in it may be changed.
const WRITABLE: u16 = 1;
/// With where it was received from.
const RECEIVED_LENGTH: usize = LENGTH + 24;
/// Snapshots that are listed, at most. All of them are held in memory for that, and a table that is damaged may show any number.
const SNAPSHOTS_MAX: usize = 1 << 20;
/// The numbers that one can have: neither that of the root nor that of their directory, and 2 more is a cookie.
const NUMBERS: Range<u64> = numbers::FIRST..SNAPSHOTS.0 - 1;

/// What the keys of the live tree begin with, those of its root directory's record and of orphans left out.
pub(crate) const RANGES: [(Tree, &[u8]); 5] = [
    (Tree::Metadata, b"\0"),
    (Tree::Metadata, &[key::LINKED_TAG]),
    (Tree::Metadata, &[key::LINK_NAME_TAG]),
    (Tree::Data, b"\0"),
    (Tree::Data, &[key::LINKED_TAG]),
];

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Bytes,
    /// What its root directory shows as inode number; no two ever have the same.
    pub number: InodeNumber,
    /// When it was taken.
    pub taken: SystemTime,
    /// Whether what lies in it may be changed.
    pub writable: bool,
    /// If it was received: the volume on which it was taken, and its number there.
    pub origin: Option<(VolumeId, u64)>,
}

/// A tree that a snapshot is made of.
pub(crate) struct Source {
    /// What its keys begin with.
    prefix: Bytes,
    /// Of its root directory.
    record: Record,
}

impl Source {
    /// A snapshot, whose root directory has this record.
    pub(crate) fn of(snapshot: &Snapshot, record: Record) -> Self {
        Self { prefix: key::snapshot_prefix(snapshot.number.0), record }
    }
}

impl Snapshot {
    /// Its entry in the table, which stands under its name.
    pub fn encode(&self) -> Bytes {
        let taken = Timestamp::from(self.taken);
        let mut out = BytesMut::with_capacity(LENGTH);
        out.put_u8(VERSION);
        out.put_u8(KIND);
        out.put_u16_le(if self.writable { WRITABLE } else { 0 });
        out.put_bytes(0, 4);
        out.put_u64_le(self.number.0);
        out.put_i64_le(taken.seconds);
        out.put_u32_le(taken.nanoseconds);
        out.put_bytes(0, 4);
        if let Some((volume, number)) = &self.origin {
            out.put_slice(volume);
            out.put_u64_le(*number);
        }
        out.freeze()
    }

    /// Reads an entry of the table. Never trusts the bytes.
    pub fn decode(name: &[u8], bytes: &[u8]) -> Option<Self> {
        let array = |at: usize| bytes.get(at..at + 8)?.try_into().ok();
        let is_entry = key::is_name(name) && matches!(bytes.len(), LENGTH | RECEIVED_LENGTH);
        if !is_entry || bytes[..2] != [VERSION, KIND] {
            return None;
        }
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        if flags & !WRITABLE != 0 {
            return None;
        }
        let nanoseconds = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
        let taken = Timestamp { seconds: i64::from_le_bytes(array(16)?), nanoseconds };
        let number = InodeNumber(u64::from_le_bytes(array(8)?));
        if !NUMBERS.contains(&number.0) {
            return None;
        }
        let writable = flags & WRITABLE != 0;
        let volume = bytes.get(LENGTH..LENGTH + 16).and_then(|volume| volume.try_into().ok());
        let origin = volume.and_then(|volume| Some((volume, u64::from_le_bytes(array(LENGTH + 16)?))));
        Some(Self { name: Bytes::copy_from_slice(name), number, taken: taken.into(), writable, origin })
    }
}

fn damaged(key: &[u8]) -> Error {
    let what = format!("FS-8: the snapshot under \"{}\" is not what it should be", key.escape_ascii());
    Error::damaged(what)
}

impl FileSystem {
    /// Takes a snapshot of the live tree; atomic. `Exists` if there is one of this name. As the calls of [`crate::Operations`] it may answer
    /// `Miss` and `Busy`; so may all the others here.
    pub fn take_snapshot(&self, name: &[u8], writable: bool) -> Result<()> {
        self.take_snapshot_of(None, name, writable)
    }

    /// Takes a snapshot of another snapshot as it is now, or of the live tree if none is named. `NotFound` if it is not there.
    pub fn take_snapshot_of(&self, of: Option<&[u8]>, name: &[u8], writable: bool) -> Result<()> {
        check_name(name)?;
        // Nothing may be half done.
        let _epoch = self.for_change_alone()?;
        let name_key = key::snapshot_name_key(name);
        if self.store.get(Tree::Metadata, &name_key)?.is_some() {
            return Err(Error::Exists);
        }
        let source = match of {
            Some(of) => {
                let of = self.snapshot(of)?;
                let record = self.snapshot_root(&of)?;
                Source::of(&of, record)
            }
            None => {
                let root = self.inode(ROOT)?;
                let record = States::lock([&root]).record(&root).clone();
                Source { prefix: Bytes::new(), record }
            }
        };
        let number = self.numbers.allocate(&self.store)?;
        let mut batch = Batch::new();
        self.copy_tree(&mut batch, &source, number)?;
        let snapshot = Snapshot {
            name: Bytes::copy_from_slice(name),
            number: InodeNumber(number),
            taken: self.now().into(),
            writable,
            origin: None,
        };
        batch.put(Tree::Metadata, name_key, snapshot.encode());
        self.store.apply(batch)?;
        self.note_snapshots_changed();
        Ok(())
    }

    /// The names in the directory of the snapshots have changed. Who keeps a listing of it tells by its times that it is an old one. The name
    /// space lock is held exclusively.
    pub(crate) fn note_snapshots_changed(&self) {
        if let Some(directory) = self.table.get(SNAPSHOTS) {
            let mut state = directory.write_any();
            // Also where the clock goes by ticks.
            let now = self.now().max(state.record.modified.next());
            (state.record.modified, state.record.changed) = (now, now);
        }
    }

    /// Adds to the batch what makes the snapshot with this number of a tree. The name space lock is held exclusively.
    pub(crate) fn copy_tree(&self, batch: &mut Batch, source: &Source, number: u64) -> Result<()> {
        let prefix = key::snapshot_prefix(number);
        self.evict_ahead(&self.parked.in_tree(&source.prefix), prefix.len())?;
        for (tree, range) in RANGES {
            let from = key::in_snapshot(&source.prefix, range);
            batch.clone_range(tree, from, key::in_snapshot(&prefix, range));
        }
        for parked in self.parked.keys_in(&source.prefix) {
            let came = key::in_snapshot(&prefix, &key::data_prefix(&parked[source.prefix.len()..]));
            batch.delete_range(Tree::Data, KeyRange::prefix(came));
        }
        let record = Record { number, delta: self.fresh_deltas(number), ..source.record.clone() };
        batch.put(Tree::Metadata, prefix, record.encode());
        Ok(())
    }

    /// All snapshots, in the order in which they were taken. `TooManyLinks` if there are more than 2^20.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let mut snapshots = Vec::new();
        let mut range = Some(KeyRange::prefix(vec![key::SNAPSHOT_NAME_TAG]));
        while let Some(part) = range {
            let scan = self.store.scan(Tree::Metadata, &part, ScanLimit { entries: 256, bytes: 1 << 18 })?;
            for (name_key, value) in scan.entries {
                let snapshot = Snapshot::decode(&name_key[1..], &value);
                snapshots.push(snapshot.ok_or_else(|| damaged(&name_key))?);
            }
            if snapshots.len() > SNAPSHOTS_MAX {
                return Err(Error::TooManyLinks);
            }
            range = scan.rest;
        }
        snapshots.sort_by_key(|snapshot| snapshot.number);
        Ok(snapshots)
    }

    /// `NotFound` if there is none.
    pub(crate) fn snapshot(&self, name: &[u8]) -> Result<Snapshot> {
        let name_key = key::snapshot_name_key(name);
        let value = self.store.get(Tree::Metadata, &name_key)?.ok_or(Error::NotFound)?;
        Snapshot::decode(name, &value).ok_or_else(|| damaged(&name_key))
    }

    /// The record of its root directory.
    pub(crate) fn snapshot_root(&self, snapshot: &Snapshot) -> Result<Record> {
        let prefix = key::snapshot_prefix(snapshot.number.0);
        let record = self.store.record(&prefix)?;
        let sound =
            |record: &Record| record.number == snapshot.number.0 && record.file_type == FileType::Directory;
        record.filter(sound).ok_or_else(|| damaged(&prefix))
    }

    /// Deletes a snapshot; atomic. Whoever is in it finds that it is gone (`Stale`), but that files without a name live on as long
    /// as they are in use. `InUse` while somebody holds it ([`FileSystem::hold_snapshot`]).
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<()> {
        let mut epoch = self.for_change_alone()?;
        let snapshot = self.snapshot(name)?;
        if self.held.lock().contains_key(&snapshot.number) {
            return Err(Error::InUse);
        }
        let prefix = key::snapshot_prefix(snapshot.number.0);
        let parked = self.parked.below(&prefix);
        self.evict_ahead(&parked, 0)?;
        let mut states = States::lock(&parked);
        let mut batch = Batch::reclaiming();
        let evicted = self.evict(&mut batch, &states, &parked);
        for tree in Tree::ALL {
            batch.delete_range(tree, KeyRange::prefix(prefix.clone()));
        }
        batch.delete(Tree::Metadata, key::snapshot_name_key(name));
        batch.note_freed(self.freed_by_a_tree());
        self.store.apply(batch)?;
        self.settle_evicted(&mut states, evicted);
        self.set_view_gone(snapshot.number);
        self.note_snapshots_changed();
        // No path in it that is remembered leads anywhere.
        *epoch += 1;
        Ok(())
    }

    /// The name space lock is held exclusively.
    pub(crate) fn set_view_gone(&self, snapshot: InodeNumber) {
        if let Some(view) = self.views.lock().remove(&snapshot).and_then(|view| view.upgrade()) {
            view.set_gone();
        }
    }

    /// What to say that a whole tree frees which goes. Nobody knows how much of it is shared: so much that the next checkpoint brings back
    /// whatever it is.
    pub(crate) fn freed_by_a_tree(&self) -> u64 {
        self.store.engine().space().capacity / 8
    }

    /// Keeps a snapshot from being deleted for as long as the result lives; gives its root directory, with one reference.
    pub fn hold_snapshot(self: &Arc<Self>, name: &[u8]) -> Result<HeldSnapshot> {
        let root = self.lookup_snapshot(name)?.attributes.inode;
        let is_there = {
            let _epoch = self.namespace.read();
            let is_there = !self.inode(root)?.is_gone();
            if is_there {
                *self.held.lock().entry(root).or_default() += 1;
            }
            is_there
        };
        if is_there {
            return Ok(HeldSnapshot { fs: self.clone(), root });
        }
        // It was deleted a moment ago. Without the lock, which this takes as well.
        self.forget_inode(root, 1);
        Err(Error::NotFound)
    }

    /// Whether listings of the root show the directory of the snapshots. At first they do not.
    pub fn list_snapshots_directory(&self, shown: bool) {
        self.snapshots_listed.store(shown, Ordering::Relaxed);
    }

    /// The root of a snapshot, found by its name in the directory of the snapshots.
    pub(crate) fn lookup_snapshot(&self, name: &[u8]) -> Result<Entry> {
        let _epoch = self.namespace.read();
        self.root_of(&self.snapshot(name)?)
    }

    /// The root of a snapshot, with one more reference. The name space lock is held.
    pub(crate) fn root_of(&self, snapshot: &Snapshot) -> Result<Entry> {
        let prefix = key::snapshot_prefix(snapshot.number.0);
        loop {
            match self.table.get_or_absence(snapshot.number) {
                // Something else has the number (FS-4), and the snapshot would lead there, maybe to itself.
                Ok(inode) if !matches!(inode.place(), Place::Snapshot(view) if view.prefix == prefix) => {
                    return Err(damaged(&prefix));
                }
                Ok(inode) if inode.acquire() => return Ok(Entry { attributes: inode.attributes() }),
                // It is leaving the table, with its state locked.
                Ok(inode) => drop(inode.write_any()),
                Err(absence) => {
                    let record = self.snapshot_root(snapshot)?;
                    let view = self.view(snapshot, record.delta);
                    let inode = Inode::detached(record, Place::Snapshot(view), &self.budget, false);
                    inode.attach();
                    if self.table.insert_since(absence, &inode) {
                        return Ok(Entry { attributes: inode.attributes() });
                    }
                }
            }
        }
    }

    /// The one view of a snapshot that all inodes in it share.
    fn view(&self, snapshot: &Snapshot, delta: u64) -> Arc<View> {
        let mut views = self.views.lock();
        if let Some(view) = views.get(&snapshot.number).and_then(std::sync::Weak::upgrade) {
            return view;
        }
        let view = View::new(key::snapshot_prefix(snapshot.number.0), delta, snapshot.writable);
        views.insert(snapshot.number, Arc::downgrade(&view));
        view
    }

    /// The names in the directory of the snapshots behind a cookie, which is 2 + a snapshot's number. Without attributes: what was looked
    /// up by listing could not be given back when the snapshot goes.
    pub(crate) fn list_snapshots(
        &self,
        cookie: u64,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let dots = [(1, &b"."[..], SNAPSHOTS), (2, b"..", ROOT)];
        let dots = dots.map(|(cookie, name, inode)| (cookie, Bytes::from_static(name), inode));
        let all = self.listed_snapshots()?;
        let first = all.partition_point(|snapshot| 2 + snapshot.number.0 <= cookie);
        let named = all[first..].iter();
        let named = named.map(|snapshot| (2 + snapshot.number.0, snapshot.name.clone(), snapshot.number));
        let mut is_end = true;
        for (own, name, inode) in dots.into_iter().filter(|(own, ..)| *own > cookie).chain(named) {
            let file_type = FileType::Directory;
            is_end = false;
            if !emit(&DirectoryEntry { cookie: own, name, inode, file_type, attributes: None }) {
                break;
            }
        }
        if is_end {
            *self.listed.lock() = None;
        }
        Ok(())
    }

    /// All snapshots for a reply, which has room for a few: those that were read for the one before, unless one has come or gone since. The table has them
    /// in another order, so that each reply would read all of it.
    fn listed_snapshots(&self) -> Result<Arc<[Snapshot]>> {
        // Looked at first: it changes behind the table.
        let changed = self.inode(SNAPSHOTS)?.attributes().modified;
        let listed = self.listed.lock().clone();
        if let Some((_, all)) = listed.filter(|(then, _)| *then == changed) {
            return Ok(all);
        }
        let all: Arc<[Snapshot]> = self.snapshots()?.into();
        *self.listed.lock() = Some((changed, all.clone()));
        Ok(all)
    }

    /// The directory of the snapshots, for the inode table.
    pub(crate) fn snapshots_directory(&self) -> Arc<Inode> {
        let mut record = Record::new(FileType::Directory, SNAPSHOTS.0, self.now());
        record.mode = 0o755;
        // Programs that count on 2 + the subdirectories are told that it is not so.
        record.links = 1;
        Inode::detached(record, Place::Snapshots, &self.budget, false)
    }
}

/// A snapshot that cannot be deleted while this lives.
pub struct HeldSnapshot {
    fs: Arc<FileSystem>,
    root: InodeNumber,
}

impl HeldSnapshot {
    /// Its root directory; one reference to it is counted.
    pub fn root(&self) -> InodeNumber {
        self.root
    }
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        {
            let mut held = self.fs.held.lock();
            match held.get_mut(&self.root) {
                Some(holders) if *holders > 1 => *holders -= 1,
                _ => drop(held.remove(&self.root)),
            }
        }
        self.fs.forget(self.root, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_table_survives_the_way_there_and_back() {
        let taken = Timestamp { seconds: -7, nanoseconds: 5 };
        let number = InodeNumber(u64::MAX - 3);
        let taken_here =
            Snapshot { name: "n".into(), number, taken: taken.into(), writable: true, origin: None };
        let bytes = taken_here.encode();
        assert_eq!(bytes.len(), LENGTH);
        assert_eq!(Snapshot::decode(b"n", &bytes), Some(taken_here.clone()));
        let snapshot = Snapshot { origin: Some((*b"another volume..", 77)), ..taken_here };
        let bytes = snapshot.encode();
        assert_eq!(bytes.len(), RECEIVED_LENGTH);
        assert_eq!(Snapshot::decode(b"n", &bytes), Some(snapshot.clone()));
        for length in (0..bytes.len()).filter(|length| *length != LENGTH) {
            assert_eq!(Snapshot::decode(b"n", &bytes[..length]), None);
        }
        assert_eq!(Snapshot::decode(b"n", &[&bytes[..], b"x"].concat()), None);
        let mut later = bytes.to_vec();
        later[0] += 1;
        assert_eq!(Snapshot::decode(b"n", &later), None);
        let mut unknown = bytes.to_vec();
        unknown[2] |= 2;
        assert_eq!(Snapshot::decode(b"n", &unknown), None);
        for name in [&b""[..], b"..", b"a/b"] {
            assert_eq!(Snapshot::decode(name, &bytes), None);
        }
        let mut numbers = vec![0, 1, 2, u64::MAX - 2, u64::MAX - 1, u64::MAX];
        numbers.retain(|number| {
            let snapshot = Snapshot { number: InodeNumber(*number), ..snapshot.clone() };
            Snapshot::decode(b"n", &snapshot.encode()) == Some(snapshot)
        });
        assert_eq!(numbers, [2, u64::MAX - 2]);
    }
}
