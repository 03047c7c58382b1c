//! rename: one batch with the records, the data and, for directories, everything below.
//!
//! A rename of files takes the locks of the two directories. One that moves a directory takes the name space lock
//! exclusively: it changes the keys of everything below, so nothing else may be under way.
//!
//! A whiteout at the old name is one record more in the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_engine::{Batch, KeyRange, Tree};

use crate::create::inherit;
use crate::inode::{Inode, Place, States};
use crate::link::{self, Found};
use crate::locks::MutexGuard;
use crate::namei::{check_new_name, check_old_name, name_key};
use crate::names::Names;
use crate::operations::{Caller, FileType, InodeNumber, RenameMode};
use crate::schema::{Record, Timestamp, key, number};
use crate::{Error, FileSystem, Result};

/// One end of a rename, or of a link.
pub(crate) struct End<'a> {
    pub(crate) directory: &'a Arc<Inode>,
    pub(crate) name: &'a [u8],
    /// The directory's path.
    pub(crate) path: Bytes,
    /// Metadata key of the name.
    pub(crate) key: Bytes,
}

impl<'a> End<'a> {
    pub(crate) fn new(directory: &'a Arc<Inode>, name: &'a [u8], epoch: u64) -> Result<Self> {
        let path = directory.path(epoch)?;
        let key = name_key(&path, name)?;
        Ok(Self { directory, name, path, key })
    }

    /// What everything below the name begins with, if it is a directory's.
    pub(crate) fn subtree(&self) -> Bytes {
        key::subtree_prefix(&key::child_path(&self.path, self.name))
    }

    pub(crate) fn place(&self) -> Place {
        Place::Named { parent: self.directory.clone(), name: Bytes::copy_from_slice(self.name) }
    }
}

/// The names of one or two directories, locked.
pub(crate) struct BothNames<'a> {
    pub(crate) from: MutexGuard<'a, Names>,
    /// `None` if it is the same directory.
    to: Option<MutexGuard<'a, Names>>,
}

impl<'a> BothNames<'a> {
    pub(crate) fn lock(from: &'a Inode, to: &'a Inode) -> Result<Self> {
        if from.number == to.number {
            return Ok(Self { from: from.names()?, to: None });
        }
        if from.number < to.number {
            let from = from.names()?;
            return Ok(Self { from, to: Some(to.names()?) });
        }
        let to = to.names()?;
        Ok(Self { from: from.names()?, to: Some(to) })
    }

    pub(crate) fn to(&self) -> &Names {
        self.to.as_ref().unwrap_or(&self.from)
    }

    pub(crate) fn to_mut(&mut self) -> &mut Names {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// A rename, the names being locked.
#[derive(Clone, Copy)]
struct Rename<'a> {
    from: &'a End<'a>,
    to: &'a End<'a>,
    source: &'a Arc<Inode>,
    /// What has the new name so far.
    target: Option<&'a Arc<Inode>>,
    mode: RenameMode,
}

impl Rename<'_> {
    fn moves_directory(&self) -> bool {
        self.source.is_directory() || self.target.is_some_and(|target| target.is_directory())
    }
}

/// The records that a rename has put into the store, for what is in memory.
struct Applied {
    evicted: Vec<(Arc<Inode>, Record)>,
    /// The source's.
    moved: Record,
    /// The target's without the name, if there is anything left of it.
    removed: Option<Record>,
    /// The target's under the old name.
    exchanged: Option<Record>,
    directories: Vec<(Arc<Inode>, Record)>,
}

/// Whether a rename could be done with the locks it had.
enum Outcome {
    Done {
        /// Directories that may have lost their last reference.
        unreferenced: Vec<Arc<Inode>>,
        /// Directories that have another parent than listings have told.
        moved: Vec<InodeNumber>,
    },
    /// A directory moves: the name space lock must be exclusive.
    MovesDirectory,
}

impl FileSystem {
    pub(crate) fn rename_name(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Vec<InodeNumber>> {
        let (directory, new_directory) = (self.writable_inode(parent)?, self.writable_inode(new_parent)?);
        check_old_name(&directory, name)?;
        check_new_name(&new_directory, new_name)?;
        if mode == RenameMode::Exchange || mode.whiteout().is_some() {
            check_new_name(&directory, name)?;
        }
        if !directory.is_beside(&new_directory) {
            return Err(Error::OtherTree);
        }
        // A file that has lost the name it was found under may go home at once, and has a parent then: each goes when nothing is locked.
        let mut found = Vec::new();
        let mut rename = |epoch: u64, exclusive: bool| {
            let names = BothNames::lock(&directory, &new_directory)?;
            let (from, to) = (End::new(&directory, name, epoch)?, End::new(&new_directory, new_name, epoch)?);
            self.rename_locked(&from, &to, names, (mode, exclusive), epoch, &mut found)
        };
        let mut outcome = {
            let epoch = self.for_change()?;
            rename(*epoch, false)?
        };
        if matches!(outcome, Outcome::MovesDirectory) {
            let mut epoch = self.for_change_alone()?;
            outcome = rename(*epoch, true)?;
            *epoch += 1;
        }
        let Outcome::Done { unreferenced, moved } = outcome else {
            unreachable!("with the name space lock exclusive anything moves")
        };
        for directory in unreferenced {
            self.drop_unreferenced(directory);
        }
        Ok(moved)
    }

    fn rename_locked<'a>(
        &'a self,
        from: &End,
        to: &End,
        mut names: BothNames,
        (mode, exclusive): (RenameMode, bool),
        epoch: u64,
        found: &mut Vec<Found<'a>>,
    ) -> Result<Outcome> {
        let first =
            self.resolve(from.directory, &names.from, &from.path, from.name)?.ok_or(Error::NotFound)?;
        let source = &first.clone();
        found.push(first);
        let second = self.resolve(to.directory, names.to(), &to.path, to.name)?;
        let target = &second.as_deref().cloned();
        found.extend(second);
        let target = target.as_ref();
        check_kinds(source, target.map(|target| &**target), mode)?;
        if target.is_some_and(|target| target.number == source.number) {
            return Ok(Outcome::Done { unreferenced: Vec::new(), moved: Vec::new() });
        }
        self.check_new_key(&to.key)?;
        let rename = Rename { from, to, source, target, mode };
        if rename.moves_directory() && !exclusive {
            return Ok(Outcome::MovesDirectory);
        }
        if is_at_or_below(to.directory, source) {
            return Err(Error::Invalid);
        }
        if let Some(target) = target
            && is_at_or_below(from.directory, target)
        {
            // Whatever its record says.
            return Err(if mode == RenameMode::Exchange { Error::Invalid } else { Error::NotEmpty });
        }
        let parked_at_target = self.parked_at(&to.key)?;
        let mut parked = Vec::new();
        if rename.moves_directory() {
            parked.extend(self.parked.below(&from.subtree()));
            parked.extend(self.parked.below(&to.subtree()));
            self.evict_ahead(&parked, from.subtree().len().abs_diff(to.subtree().len()))?;
        }
        parked.extend(parked_at_target);
        // Nothing is parked where a whiteout comes to be: the name was in use.
        let whiteout = match mode.whiteout() {
            Some(caller) => Some((caller, self.numbers.allocate(&self.store)?)),
            None => None,
        };
        let involved = parked.iter().chain([from.directory, to.directory, source]).chain(target);
        let mut states = States::lock(involved);
        states.check_attached(from.directory)?;
        states.check_attached(to.directory)?;
        if let Some(target) = target
            && mode.replaces()
            && states.record(target).entries > 0
        {
            return Err(Error::NotEmpty);
        }

        let applied = self.apply_rename(&rename, whiteout, &states, &parked, epoch)?;
        Ok(self.settle_rename(&rename, applied, &mut states, &mut names))
    }

    /// Makes the rename in the store. `whiteout` is whose there is to be under the old name, and its number.
    fn apply_rename(
        &self,
        rename: &Rename,
        whiteout: Option<(Caller, u64)>,
        states: &States,
        parked: &[Arc<Inode>],
        epoch: u64,
    ) -> Result<Applied> {
        let &Rename { from, to, source, target, mode } = rename;
        let now = self.now();
        let mut batch = Batch::new();
        let evicted = self.evict(&mut batch, states, parked);
        let moved = moved_record(source, states.record(source), from, to, now);
        let mut removed = None;
        let mut exchanged = None;
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                let record = moved_record(target, states.record(target), to, from, now);
                exchange(&mut batch, from, (source, &moved), to, (target, &record));
                exchanged = Some(record);
            }
            _ => {
                if let Some(target) = target {
                    let record = states.record(target);
                    removed = self.remove_from_batch(&mut batch, target, record, &to.key, now, false);
                }
                move_to(&mut batch, from, to, source, &moved);
                if let Some((caller, number)) = whiteout {
                    let number = number::stored(number, from.directory.delta());
                    let mut record = Record::new(FileType::CharDevice, number, now);
                    inherit(&mut record, &caller, states.record(from.directory))?;
                    batch.put(Tree::Metadata, from.key.clone(), record.encode());
                }
            }
        }
        // The moves read what was there before the batch, so what was parked below came along.
        for (inode, _) in &evicted {
            let parked = &states.record(inode).parked;
            let came = |old: &Bytes, new: &Bytes| {
                let rest = parked.strip_prefix(&old[..])?;
                Some(key::data_prefix(&[&new[..], rest].concat()))
            };
            let back = (mode == RenameMode::Exchange).then(|| came(&to.subtree(), &from.subtree())).flatten();
            for leftover in came(&from.subtree(), &to.subtree()).into_iter().chain(back) {
                batch.delete_range(Tree::Data, KeyRange::prefix(leftover));
            }
        }
        let directories = changed_directories(rename, states, now);
        for (directory, record) in &directories {
            // The key is the old one: where the directory itself lies below what moves, it was refused above.
            batch.update(Tree::Metadata, directory.key(epoch)?, record.hot_update());
        }
        self.store.apply(batch).map_err(|error| match error {
            // The log is too small for such paths.
            Error::Engine(pando_engine::Error::TooLarge { .. }) => Error::TooBig,
            other => other,
        })?;
        Ok(Applied { evicted, moved, removed, exchanged, directories })
    }

    /// Makes in memory what [`FileSystem::apply_rename`] did in the store.
    fn settle_rename(
        &self,
        rename: &Rename,
        applied: Applied,
        states: &mut States,
        names: &mut BothNames,
    ) -> Outcome {
        let &Rename { from, to, source, target, mode } = rename;
        self.settle_evicted(states, applied.evicted);
        for (directory, record) in applied.directories {
            states.set_record(&directory, record);
        }
        states.set_record(source, applied.moved);
        names.from.remove(from.name);
        let mut unreferenced = Vec::new();
        if let Some(target) = target {
            names.to_mut().remove(to.name);
            target.known_names.remove(to.directory, to.name);
            let held_parent = target.holds_parent();
            if let Some(record) = applied.exchanged {
                states.set_record(target, record);
                unreferenced.extend(place(&mut names.from, target, to, from));
            } else {
                self.settle_removed(states, target, applied.removed);
                unreferenced.extend((held_parent && to.directory.release(1)).then(|| to.directory.clone()));
            }
        }
        unreferenced.extend(place(names.to_mut(), source, from, to));
        if mode.whiteout().is_some() {
            names.from.insert(&Bytes::copy_from_slice(from.name));
        }
        let mut moved = Vec::new();
        if rename.moves_directory() && from.directory.number != to.directory.number {
            let came_back = target.filter(|_| mode == RenameMode::Exchange);
            let both = [Some(source), came_back].into_iter().flatten();
            let told = both.filter(|inode| inode.told_parent.load(Ordering::Relaxed));
            moved.extend(told.map(|inode| inode.number));
        }
        Outcome::Done { unreferenced, moved }
    }
}

/// What rename(2) says of the types of what is renamed and what is there.
fn check_kinds(source: &Inode, target: Option<&Inode>, mode: RenameMode) -> Result<()> {
    match (target, mode) {
        (None, RenameMode::Exchange) => Err(Error::NotFound),
        (None, _) | (Some(_), RenameMode::Exchange) => Ok(()),
        (Some(_), _) if !mode.replaces() => Err(Error::Exists),
        (Some(target), _) => match (source.is_directory(), target.is_directory()) {
            (true, false) => Err(Error::NotADirectory),
            (false, true) => Err(Error::IsADirectory),
            _ => Ok(()),
        },
    }
}

/// True if `inode` is the directory or one of its ancestors.
pub(crate) fn is_at_or_below(directory: &Arc<Inode>, inode: &Inode) -> bool {
    let mut next = inode.is_directory().then(|| directory.clone());
    while let Some(directory) = next {
        if directory.number == inode.number {
            return true;
        }
        next = directory.parent();
    }
    false
}

/// The record under its new name: users see the same number there, and the same numbers below it.
fn moved_record(inode: &Inode, record: &Record, from: &End, to: &End, now: Timestamp) -> Record {
    let mut record = Record { changed: now, ..record.clone() };
    if !inode.is_linked() {
        record.number = number::stored(inode.number.0, to.directory.delta());
    }
    if inode.is_directory() {
        record.delta ^= from.directory.delta() ^ to.directory.delta();
    }
    record
}

/// Moves record or redirect, data and, of a directory, everything below.
fn move_to(batch: &mut Batch, from: &End, to: &End, inode: &Inode, record: &Record) {
    link::delete_name(batch, inode, &from.key);
    link::put_name(batch, inode, record, &to.key);
    for (tree, from, to) in ranges(from, to, inode, record) {
        batch.move_range(tree, from, to);
    }
}

/// The ranges that move with a name: the data that lie under it, and what lies below a directory that is not empty, with
/// the list of the redirects there.
fn ranges(from: &End, to: &End, inode: &Inode, record: &Record) -> Vec<(Tree, Bytes, Bytes)> {
    let mut ranges = Vec::new();
    if record.has_data() && !inode.is_linked() {
        ranges.push((Tree::Data, key::data_prefix(&from.key), key::data_prefix(&to.key)));
    }
    if record.entries > 0 {
        let (old, new) = (from.subtree(), to.subtree());
        // First what may be large: it is soon found too large to be copied, and then the rest is not looked at twice.
        ranges.extend(Tree::ALL.map(|tree| (tree, old.clone(), new.clone())));
        if let Some(view) = from.directory.view() {
            ranges.push((Tree::Metadata, view.link_name_key(&old), view.link_name_key(&new)));
        }
    }
    ranges
}

/// Exchanges two names. The moves of one batch all read what was there before it.
fn exchange(
    batch: &mut Batch,
    from: &End,
    (inode, record): (&Inode, &Record),
    to: &End,
    (other_inode, other): (&Inode, &Record),
) {
    link::delete_name(batch, inode, &from.key);
    link::delete_name(batch, other_inode, &to.key);
    link::put_name(batch, inode, record, &to.key);
    link::put_name(batch, other_inode, other, &from.key);
    let back = ranges(to, from, other_inode, other);
    for (tree, old, new) in ranges(from, to, inode, record).into_iter().chain(back) {
        batch.move_range(tree, old, new);
    }
}

/// The records of the two directories after the rename.
fn changed_directories(rename: &Rename, states: &States, now: Timestamp) -> Vec<(Arc<Inode>, Record)> {
    let &Rename { from, to, source, target, mode } = rename;
    let count = |is_there: bool| u64::from(is_there);
    let subdirectory = |inode: Option<&Arc<Inode>>| count(inode.is_some_and(|inode| inode.is_directory()));
    let taken = (1, subdirectory(Some(source)));
    let replaced = (count(target.is_some()), subdirectory(target));
    // What leaves `from`, and what comes to it.
    let back = match mode {
        RenameMode::Exchange => replaced,
        RenameMode::Whiteout { .. } => (1, 0),
        RenameMode::Replace | RenameMode::NoReplace => (0, 0),
    };
    let change = |record: &mut Record, plus: (u64, u64), minus: (u64, u64)| {
        record.entries = record.entries.saturating_add(plus.0).saturating_sub(minus.0);
        record.links = (u64::from(record.links) + plus.1).saturating_sub(minus.1) as u32;
        (record.modified, record.changed) = (now, now);
    };
    let mut old = states.record(from.directory).clone();
    change(&mut old, back, taken);
    if from.directory.number == to.directory.number {
        change(&mut old, taken, replaced);
        return vec![(from.directory.clone(), old)];
    }
    let mut new = states.record(to.directory).clone();
    change(&mut new, taken, replaced);
    vec![(from.directory.clone(), old), (to.directory.clone(), new)]
}

/// Gives an inode its new place in memory. The directory it left is returned if nothing refers to it any more.
fn place(names: &mut Names, inode: &Arc<Inode>, from: &End, to: &End) -> Option<Arc<Inode>> {
    let name = Bytes::copy_from_slice(to.name);
    names.insert(&name);
    if !inode.holds_parent() {
        inode.known_names.remove(from.directory, from.name);
        inode.known_names.add(to.directory, to.name);
        return None;
    }
    names.attach(name, inode.number);
    inode.set_place(to.place());
    let held = to.directory.acquire();
    assert!(held, "IN-2: a directory whose state is locked does not leave the table");
    from.directory.release(1).then(|| from.directory.clone())
}
