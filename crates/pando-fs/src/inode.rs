//! An inode in memory: number, place in the name space, record, references.
//!
//! * IN-1 while an inode is in the table its record here is the truth; the stored one equals it after each operation.
//! * IN-2 references = what was given out by lookups + inodes in the table that have this one as parent + operations that
//!   followed a redirect to it (LK-2). An inode leaves the table when they come to nothing, and is *detached* from then
//!   on: operations answer `Stale`.
//! * IN-3 the place of a file changes with its state lock held exclusively, that of a directory with the name space
//!   lock held exclusively (or, when it is removed, with the names of its parent and itself locked). A file with a
//!   parent also keeps its place while the names of that parent are locked.
//! * IN-4 what lies in a tree that is gone stays in the table, with the place it had, until it is forgotten; all operations on
//!   it answer `Stale`, and the names of its parent, if that is the root, know nothing of it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::homecoming::KnownNames;
use crate::last_time::LastTime;
use crate::locks::{self, MutexGuard, Rank, ReadGuard, WriteGuard};
use crate::names::{NameBudget, Names};
use crate::operations::{Attributes, FileType, InodeNumber, Seek};
use crate::schema::{Record, key, number};
use crate::view::View;
use crate::{Error, Result};

/// How long the kernel may take to act on the answer to an unlink; a thread that could run is never kept from it for so long.
pub(crate) const HEARS_WITHIN: Duration = Duration::from_secs(10);

/// Paths longer than this are made anew for each key: memory for the paths of a deep chain grows with its square.
const CACHED_PATH_MAX: usize = 4096;

/// References of an inode that is not in the table.
const DETACHED: u64 = u64::MAX;

/// Where an inode stands in the name space.
#[derive(Clone)]
pub(crate) enum Place {
    /// The root directory of the tree that is the live one at present.
    Root(Arc<View>),
    /// A name in a directory.
    Named { parent: Arc<Inode>, name: Bytes },
    /// Under this key of its own, to which its names lead: a file that has had several names. See [`crate::link`].
    Linked { key: Bytes, view: Arc<View> },
    /// The root of a snapshot.
    Snapshot(Arc<View>),
    /// The directory of the snapshots, which is nowhere on the device.
    Snapshots,
    /// Nowhere: unlinked, still referenced.
    Orphan,
}

/// What the state lock protects.
pub(crate) struct State {
    pub(crate) record: Record,
    pub(crate) searches: Searches,
    /// Whether the mode has changed, since the inode came into the table, by what does not tell the kernel.
    mode_is_news: bool,
}

/// How far the latest search for data has got in a file, and that for a hole: blocks in which there is nothing of what was looked for. A
/// miss cuts a search off, and beginning anew each time might never end in a file larger than memory.
#[derive(Default)]
pub(crate) struct Searches {
    data: Range<u64>,
    hole: Range<u64>,
}

impl Searches {
    /// Where a search from a block on begins.
    pub(crate) fn start(&self, what: Seek, from: u64) -> u64 {
        let without = match what {
            Seek::Data => &self.data,
            Seek::Hole => &self.hole,
        };
        if without.contains(&from) { without.end } else { from }
    }

    pub(crate) fn note(&mut self, what: Seek, without: Range<u64>) {
        match what {
            Seek::Data => self.data = without,
            Seek::Hole => self.hole = without,
        }
    }
}

impl State {
    pub(crate) fn new(record: Record) -> Self {
        Self { record, searches: Searches::default(), mode_is_news: false }
    }

    /// Replaces the record; the data may have changed with it.
    pub(crate) fn set_record(&mut self, record: Record) {
        let mode_is_news = self.mode_is_news || record.mode != self.record.mode;
        *self = Self { mode_is_news, ..Self::new(record) };
    }

    /// As [`State::set_record`], for a change whose answer tells the kernel of the mode.
    pub(crate) fn set_told_record(&mut self, record: Record) {
        *self = Self { mode_is_news: self.mode_is_news, ..Self::new(record) };
    }
}

/// See the module.
pub(crate) struct Inode {
    /// What users see, wherever it moves.
    pub(crate) number: InodeNumber,
    pub(crate) file_type: FileType,
    /// See [`Inode::delta`]; not for the root, which has that of the live tree.
    delta: u64,
    /// The tree it lies in, or lay in before it became an orphan. None for the root, which changes from one to another, and for the
    /// directory of the snapshots.
    view: Option<Arc<View>>,
    references: AtomicU64,
    place: Mutex<Place>,
    /// Where a directory is, and the epoch of the name space for which that is right.
    way: Mutex<Option<(u64, Way)>>,
    names: Option<Box<locks::Mutex<Names>>>,
    /// Whether a listing has ever told the directory's parent, as `..`.
    pub(crate) told_parent: AtomicBool,
    /// When it lost one of several names, if it did so while it was in the table, and so known to the kernel.
    pub(crate) lost_a_name: LastTime,
    /// Of a file with several links.
    pub(crate) known_names: KnownNames,
    state: locks::RwLock<State>,
}

impl Inode {
    /// An inode that is not in the table yet.
    pub(crate) fn detached(
        record: Record,
        place: Place,
        budget: &Arc<NameBudget>,
        just_made: bool,
    ) -> Arc<Self> {
        let (above, view) = match &place {
            Place::Named { parent, .. } => (parent.delta(), parent.view()),
            Place::Linked { view, .. } => (view.delta, Some(view.clone())),
            Place::Snapshot(view) => (0, Some(view.clone())),
            Place::Root(_) | Place::Snapshots | Place::Orphan => (0, None),
        };
        Self::new(record, place, above, view, budget, just_made)
    }

    /// An inode without a name that is made in a tree.
    pub(crate) fn orphan(record: Record, view: Option<Arc<View>>, budget: &Arc<NameBudget>) -> Arc<Self> {
        Self::new(record, Place::Orphan, 0, view, budget, false)
    }

    fn new(
        record: Record,
        place: Place,
        above: u64,
        view: Option<Arc<View>>,
        budget: &Arc<NameBudget>,
        just_made: bool,
    ) -> Arc<Self> {
        let number = number::visible(record.number, above);
        let is_directory = record.file_type == FileType::Directory;
        let names = is_directory
            .then(|| Box::new(locks::Mutex::new(Rank::Names, number, Names::new(budget.clone(), just_made))));
        Arc::new(Self {
            number: InodeNumber(number),
            file_type: record.file_type,
            delta: if is_directory { above ^ record.delta } else { 0 },
            view,
            references: AtomicU64::new(DETACHED),
            place: Mutex::new(place),
            way: Mutex::new(None),
            names,
            told_parent: AtomicBool::new(false),
            lost_a_name: LastTime::default(),
            known_names: KnownNames::default(),
            state: locks::RwLock::new(Rank::State, number, State::new(record)),
        })
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// The deltas of a directory and all above it ([`number`]). They stay when it moves; zero for anything else.
    pub(crate) fn delta(&self) -> u64 {
        match &*self.place.lock() {
            Place::Root(view) => view.delta,
            _ => self.delta,
        }
    }

    fn with_view<T>(&self, tell: impl FnOnce(Option<&Arc<View>>) -> T) -> T {
        match &self.view {
            Some(view) => tell(Some(view)),
            None => match &*self.place.lock() {
                Place::Root(view) => tell(Some(view)),
                _ => tell(None),
            },
        }
    }

    /// The tree it lies in, or lay in before it became an orphan; none for the directory of the snapshots.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.with_view(|view| view.cloned())
    }

    /// Whether changes are let through.
    pub(crate) fn is_writable(&self) -> bool {
        self.with_view(|view| view.is_some_and(|view| view.writable))
    }

    /// Whether both lie in the same tree.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (self.view(), other.view()) {
            (Some(view), Some(other)) => Arc::ptr_eq(&view, &other),
            (view, other) => view.is_none() && other.is_none(),
        }
    }

    /// True for what lies in a tree that is no more: a snapshot that was deleted, or the live tree before a roll back. What had no
    /// name any more when that happened lives on. It stays so while the name space lock is held.
    pub(crate) fn is_gone(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.is_gone()) && !matches!(*self.place.lock(), Place::Orphan)
    }

    /// Why the inode is nothing to work with any more, if so.
    fn check_alive(&self) -> Result<()> {
        if self.is_detached() || self.is_gone() { Err(Error::Stale) } else { Ok(()) }
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.references.load(Ordering::Acquire) == DETACHED
    }

    /// The first reference of an inode on its way into the table.
    pub(crate) fn attach(&self) {
        let before = self.references.swap(1, Ordering::AcqRel);
        assert_eq!(before, DETACHED, "IN-2: inode {} is in the table already", self.number.0);
    }

    /// One more reference; false if the inode has left the table.
    pub(crate) fn acquire(&self) -> bool {
        let more = |count: u64| (count != DETACHED).then(|| count + 1);
        self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Gives references back; true if none is left. More than there are count as all.
    pub(crate) fn release(&self, count: u64) -> bool {
        let fewer = |references: u64| (references != DETACHED).then(|| references.saturating_sub(count));
        let before = self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        before.is_ok_and(|references| references <= count)
    }

    /// Detaches the inode if it has no references. The caller holds the state lock exclusively.
    pub(crate) fn detach(&self, _state: &mut State) -> bool {
        self.references.compare_exchange(0, DETACHED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn place(&self) -> Place {
        self.place.lock().clone()
    }

    /// See IN-3. Returns the old place.
    pub(crate) fn set_place(&self, place: Place) -> Place {
        std::mem::replace(&mut self.place.lock(), place)
    }

    /// True if the inode has this name in this directory.
    pub(crate) fn is_at(&self, directory: &Self, sought: &[u8]) -> bool {
        match &*self.place.lock() {
            Place::Named { parent, name } => parent.number == directory.number && name == sought,
            _ => false,
        }
    }

    /// True for a file that lies under a key of its own because it has, or had, several names.
    pub(crate) fn is_linked(&self) -> bool {
        matches!(*self.place.lock(), Place::Linked { .. })
    }

    /// True for a file that has lost one of several names while it was in the table, and so known to the kernel, which may not have heard of it
    /// yet.
    pub(crate) fn has_just_lost_a_name(&self) -> bool {
        self.lost_a_name.is_within(HEARS_WITHIN)
    }

    /// See [`Operations::attributes_may_mislead`](crate::operations::Operations::attributes_may_mislead).
    pub(crate) fn attributes_may_mislead(&self) -> bool {
        self.has_just_lost_a_name() && !self.state.read().mode_is_news
    }

    /// True for the root of the live tree and of a snapshot.
    pub(crate) fn is_tree_root(&self) -> bool {
        matches!(*self.place.lock(), Place::Root(_) | Place::Snapshot(_))
    }

    /// True if it counts as a reference of the directory it lies in (IN-2).
    pub(crate) fn holds_parent(&self) -> bool {
        !self.is_detached() && matches!(*self.place.lock(), Place::Named { .. })
    }

    /// The directory it lies in; `None` for the root, for orphans, and for files with several links.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        match &*self.place.lock() {
            Place::Named { parent, .. } => Some(parent.clone()),
            _ => None,
        }
    }

    /// Locks the names of a directory; `NotADirectory` for anything else.
    pub(crate) fn names(&self) -> Result<MutexGuard<'_, Names>> {
        Ok(self.names.as_ref().ok_or(Error::NotADirectory)?.lock())
    }

    /// Locks the state, shared; `Stale` if the inode has left the table, or its tree is gone.
    pub(crate) fn read(&self) -> Result<ReadGuard<'_, State>> {
        let state = self.state.read();
        self.check_alive().map(|()| state)
    }

    /// What users see, whether the inode is in the table or not.
    pub(crate) fn attributes(&self) -> Attributes {
        self.state.read().record.attributes(self.number)
    }

    /// Locks the state exclusively; `Stale` if the inode has left the table, or its tree is gone.
    pub(crate) fn write(&self) -> Result<WriteGuard<'_, State>> {
        let state = self.state.write();
        self.check_alive().map(|()| state)
    }

    /// Locks the state exclusively, whether the inode is in the table or not.
    pub(crate) fn write_any(&self) -> WriteGuard<'_, State> {
        self.state.write()
    }

    /// A directory's path; `NotADirectory` for anything else, `NotFound` if it was removed. `epoch` is what the name space lock holds.
    pub(crate) fn path(&self, epoch: u64) -> Result<Bytes> {
        if !self.is_directory() {
            return Err(Error::NotADirectory);
        }
        if self.is_gone() {
            return Err(Error::Stale);
        }
        let mut names = Vec::new();
        let mut step = self.path_step(epoch)?;
        let front = loop {
            match step {
                Step::Known(path) => break path,
                Step::Up(parent, name) => {
                    names.push(name);
                    step = parent.path_step(epoch)?;
                }
            }
        };
        if names.is_empty() {
            return Ok(front);
        }
        let mut path =
            Vec::with_capacity(front.len() + names.iter().map(|name| name.len() + 1).sum::<usize>());
        path.extend_from_slice(&front);
        for name in names.iter().rev() {
            path.push(0);
            path.extend_from_slice(name);
        }
        let path = Bytes::from(path);
        if path.len() <= CACHED_PATH_MAX {
            let key = key::directory_key(&path, names[0].len());
            *self.way.lock() = Some((epoch, Way { path: path.clone(), key }));
        }
        Ok(path)
    }

    fn path_step(&self, epoch: u64) -> Result<Step> {
        if let Some(path) = self.known_way(epoch, |way| &way.path) {
            return Ok(Step::Known(path));
        }
        match self.place() {
            Place::Root(view) | Place::Snapshot(view) => Ok(Step::Known(view.prefix.clone())),
            Place::Named { parent, name } => Ok(Step::Up(parent, name)),
            Place::Linked { .. } | Place::Snapshots | Place::Orphan => Err(Error::NotFound),
        }
    }

    fn known_way(&self, epoch: u64, what: impl FnOnce(&Way) -> &Bytes) -> Option<Bytes> {
        self.way.lock().as_ref().filter(|(made, _)| *made == epoch).map(|(_, way)| what(way).clone())
    }

    /// The path is not to be used any more: the directory was removed.
    pub(crate) fn forget_path(&self) {
        *self.way.lock() = None;
    }

    /// Metadata key of the record. The caller holds the name space lock and what keeps the place (IN-3).
    pub(crate) fn key(&self, epoch: u64) -> Result<Bytes> {
        if self.is_gone() {
            return Err(Error::Stale);
        }
        if let Some(key) = self.known_way(epoch, |way| &way.key) {
            return Ok(key);
        }
        match self.place() {
            Place::Root(view) | Place::Snapshot(view) => Ok(view.prefix.clone()),
            Place::Named { parent, name } => Ok(key::child_key(&parent.path(epoch)?, &name)),
            Place::Linked { key, .. } => Ok(key),
            Place::Snapshots => Err(Error::NotFound),
            Place::Orphan => Ok(key::orphan_key(self.number.0)),
        }
    }

    /// What the keys of blocks and large extended attributes begin with.
    pub(crate) fn data_prefix(&self, epoch: u64, record: &Record) -> Result<Bytes> {
        Ok(self.key_and_data_prefix(epoch, record)?.1)
    }

    /// See [`Inode::key`] and [`Inode::data_prefix`].
    pub(crate) fn key_and_data_prefix(&self, epoch: u64, record: &Record) -> Result<(Bytes, Bytes)> {
        let key = self.key(epoch)?;
        let owner = if record.parked.is_empty() { &key } else { &record.parked };
        let prefix = key::data_prefix(owner);
        Ok((key, prefix))
    }
}

/// Where a directory is: its path, and the metadata key of its record.
struct Way {
    path: Bytes,
    key: Bytes,
}

enum Step {
    Known(Bytes),
    Up(Arc<Inode>, Bytes),
}

/// States of several inodes, locked exclusively in the order of their numbers.
pub(crate) struct States<'a> {
    locked: Vec<(InodeNumber, WriteGuard<'a, State>)>,
}

impl<'a> States<'a> {
    /// Locks each inode once, however often it is named. Detached ones are locked too.
    pub(crate) fn lock(inodes: impl IntoIterator<Item = &'a Arc<Inode>>) -> Self {
        let mut inodes: Vec<&Arc<Inode>> = inodes.into_iter().collect();
        inodes.sort_by_key(|inode| inode.number);
        inodes.dedup_by_key(|inode| inode.number);
        Self { locked: inodes.into_iter().map(|inode| (inode.number, inode.write_any())).collect() }
    }

    /// `Stale` if the inode has left the table, or its tree is gone. One that has not stays there while its state is locked.
    pub(crate) fn check_attached(&self, inode: &Inode) -> Result<()> {
        inode.check_alive()
    }

    fn position(&self, inode: &Inode) -> usize {
        let found = self.locked.binary_search_by_key(&inode.number, |(number, _)| *number);
        found.expect("only inodes that were locked are asked for")
    }

    /// The record of one of the inodes locked.
    pub(crate) fn record(&self, inode: &Inode) -> &Record {
        &self.locked[self.position(inode)].1.record
    }

    /// Replaces the record of one of the inodes locked.
    pub(crate) fn set_record(&mut self, inode: &Inode, record: Record) {
        let at = self.position(inode);
        self.locked[at].1.set_record(record);
    }
}
