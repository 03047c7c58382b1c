//! Files with several links.
//!
//! The second name of a file moves its record and its data under a key of its own ([`key::linked_key`]); each of its names
//! holds a redirect from then on, and stands in the list of all redirects, in which those below one directory are one
//! range. When it has one name again it may go back under that ([`crate::homecoming`]). See `docs/internals/file-system-schema.md`.
//!
//! No directory keeps such a file in the table, and the locks of no directory's names keep it as it is. Hence:
//!
//! * LK-1 the record of a linked file changes only while its inode is in the table, with its state locked.
//! * LK-2 who got to a linked file through a redirect holds a reference to its inode until he is done ([`Found`]).
//!
//! The record may be read without a lock before the inode comes into the table: it is taken only if no inode of that
//! number has come and gone in between ([`crate::table::Absence`]), and by LK-1 it cannot have changed then.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use pando_engine::{Batch, Tree};

use crate::inode::{Inode, Place, States};
use crate::namei::check_new_name;
use crate::operations::{Entry, InodeNumber};
use crate::rename::{BothNames, End};
use crate::schema::{Record, Redirect, Timestamp, key, number};
use crate::view::View;
use crate::{Error, FileSystem, Result};

/// Most names of a file: what the links of a FUSE reply hold for programs with signed numbers.
pub const LINKS_MAX: u32 = i32::MAX as u32;

/// An inode that somebody is at work with: found under a name (LK-2), or a directory with such a name. The last reference takes
/// the inode out of the table, and deletes an orphan. So drop it after the locks of states; and either before those of the names it was found among, which keep it from going home ([`crate::homecoming`]) as
/// long as it has that name, or when nothing is locked any more.
pub(crate) struct Found<'a> {
    inode: Arc<Inode>,
    held_in: Option<&'a FileSystem>,
}

impl<'a> Found<'a> {
    /// An inode that the names of its directory, being locked, keep as it is.
    pub(crate) fn kept_by_names(inode: Arc<Inode>) -> Self {
        Self { inode, held_in: None }
    }

    /// An inode of the table with one reference more, if it has not left that.
    pub(crate) fn held(fs: &'a FileSystem, inode: Arc<Inode>) -> Option<Self> {
        inode.acquire().then_some(Self { inode, held_in: Some(fs) })
    }
}

impl Deref for Found<'_> {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.held_in
            && self.inode.release(1)
            && !fs.drop_parentless(&self.inode)
        {
            // It has gone home, or is a directory.
            fs.drop_unreferenced(self.inode.clone());
        }
    }
}

/// What the file that a redirect in a directory leads to shows as its number.
pub(crate) fn linked_number(directory: &Inode, redirect: &Redirect) -> InodeNumber {
    InodeNumber(number::visible(redirect.number, directory.view().map_or(0, |view| view.delta)))
}

/// Adds to the batch what gives a name to an inode whose record, as it will be, is `record`. An inode with its own key
/// gets a redirect, any other has its record under the name.
pub(crate) fn put_name(batch: &mut Batch, inode: &Inode, record: &Record, name_key: &Bytes) {
    match inode.place() {
        Place::Linked { key, view } => {
            put_redirect(batch, &view, &redirect_to(inode, &view), name_key);
            batch.update(Tree::Metadata, key, record.hot_update());
        }
        _ => batch.put(Tree::Metadata, name_key.clone(), record.encode()),
    }
}

/// Adds to the batch what takes the name away: the record or redirect under it, not what that leads to.
pub(crate) fn delete_name(batch: &mut Batch, inode: &Inode, name_key: &Bytes) {
    batch.delete(Tree::Metadata, name_key.clone());
    if let Place::Linked { view, .. } = inode.place() {
        batch.delete(Tree::Metadata, view.link_name_key(name_key));
    }
}

fn redirect_to(inode: &Inode, view: &View) -> Redirect {
    Redirect { number: view.linked_number(inode.number.0), file_type: inode.file_type }
}

/// Adds to the batch one name, in a tree, of a file with several links.
pub(crate) fn put_redirect(batch: &mut Batch, view: &View, redirect: &Redirect, name_key: &Bytes) {
    batch.put(Tree::Metadata, name_key.clone(), redirect.encode());
    let number = Bytes::copy_from_slice(&redirect.number.to_le_bytes());
    batch.put(Tree::Metadata, view.link_name_key(name_key), number);
}

/// Adds to the batch what the loss of a name changes in a linked file, and returns its record: with one link less, or
/// that of an orphan whose data stay where they are. `own` is the file's key.
pub(crate) fn lose_link(
    batch: &mut Batch,
    inode: &Inode,
    own: Bytes,
    record: &Record,
    now: Timestamp,
) -> Record {
    let mut record = Record { links: record.links.saturating_sub(1), changed: now, ..record.clone() };
    if record.links > 0 {
        batch.update(Tree::Metadata, own, record.hot_update());
        return record;
    }
    batch.delete(Tree::Metadata, own.clone());
    // An orphan lies in no tree.
    record.number = inode.number.0;
    if record.has_data() {
        record.parked = own;
    }
    batch.put(Tree::Metadata, key::orphan_key(inode.number.0), record.encode());
    record
}

impl FileSystem {
    /// The inode that a redirect leads to, in the table and with one reference more. The names of the directory that
    /// holds the redirect are locked.
    pub(crate) fn follow(&self, directory: &Inode, redirect: &Redirect) -> Result<Found<'_>> {
        let view = directory.view().ok_or(Error::Stale)?;
        let number = linked_number(directory, redirect);
        let damaged = || {
            let what = format!("FS-5: a name leads to inode {}, which is not what it should be", number.0);
            Error::damaged(what)
        };
        loop {
            let absence = match self.table.get_or_absence(number) {
                // As long as the redirect is there, nothing else can be.
                Ok(inode) if !inode.is_linked() || inode.file_type != redirect.file_type => {
                    return Err(damaged());
                }
                Ok(inode) if inode.acquire() => return Ok(Found { inode, held_in: Some(self) }),
                Ok(inode) => {
                    // It is leaving the table, with its state locked.
                    drop(inode.write_any());
                    continue;
                }
                Err(absence) => absence,
            };
            let own = view.linked_key(number.0);
            let record = self.store.record(&own)?;
            let is_right =
                |record: &Record| (record.number, record.file_type) == (redirect.number, redirect.file_type);
            let record = record.filter(is_right).ok_or_else(damaged)?;
            let place = Place::Linked { key: own, view: view.clone() };
            let inode = Inode::detached(record, place, &self.budget, false);
            inode.attach();
            if self.table.insert_since(absence, &inode) {
                return Ok(Found { inode, held_in: Some(self) });
            }
        }
    }

    /// Gives an inode one more name. An orphan, too, gets one: the kernel lets only those of `O_TMPFILE` come here.
    pub(crate) fn link_inode(&self, number: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        let (inode, directory) = (self.writable_inode(number)?, self.writable_inode(parent)?);
        if inode.is_directory() {
            return Err(Error::NotPermitted);
        }
        check_new_name(&directory, name)?;
        let (entry, old_parent) = loop {
            let epoch = self.for_change()?;
            // A roll back may have made them strangers until now.
            if !inode.is_beside(&directory) {
                return Err(Error::OtherTree);
            }
            let place = inode.place();
            let old_parent = match &place {
                Place::Named { parent, .. } => parent,
                _ => &directory,
            };
            let names = BothNames::lock(old_parent, &directory)?;
            let old = match &place {
                // Its place stays while the names of its parent are locked; before, it may have changed.
                Place::Named { parent, name } if inode.is_at(parent, name) => {
                    Some(End::new(parent, name, *epoch)?)
                }
                Place::Named { .. } => continue,
                _ => None,
            };
            let new = End::new(&directory, name, *epoch)?;
            if let Some(entry) = self.link_locked(&inode, old.as_ref(), &new, names, *epoch)? {
                break (entry, old.map(|old| old.directory.clone()));
            }
        };
        if let Some(parent) = old_parent
            && parent.release(1)
        {
            self.drop_unreferenced(parent);
        }
        Ok(entry)
    }

    /// `old` is the only name the inode has had so far. The directory of `old` is to lose a reference. Nothing if the inode has got its only
    /// name meanwhile.
    fn link_locked(
        &self,
        inode: &Arc<Inode>,
        old: Option<&End>,
        new: &End,
        mut names: BothNames,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        if self.resolve(new.directory, names.to(), &new.path, new.name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_new_key(&new.key)?;
        let parked = self.parked_at(&new.key)?.filter(|orphan| orphan.number != inode.number);
        let mut states = States::lock(parked.iter().chain([inode, new.directory]));
        if old.is_none() && inode.parent().is_some() {
            return Ok(None);
        }
        states.check_attached(new.directory)?;
        states.check_attached(inode)?;
        let before = states.record(inode).clone();
        if before.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let now = self.now();
        let mut batch = Batch::new();
        let evicted = self.evict(&mut batch, &states, &parked);
        let view = new.directory.view().ok_or(Error::Stale)?;
        let own = view.linked_key(inode.number.0);
        let place = if old.is_some() || inode.is_linked() {
            Place::Linked { key: own.clone(), view: view.clone() }
        } else {
            new.place()
        };
        let number = match &place {
            // Under its own key it lies in no directory.
            Place::Linked { .. } => view.linked_number(inode.number.0),
            _ => number::stored(inode.number.0, new.directory.delta()),
        };
        let record =
            Record { number, links: before.links + 1, changed: now, parked: Bytes::new(), ..before.clone() };
        if inode.is_linked() {
            batch.update(Tree::Metadata, own, record.hot_update());
        } else {
            let comes_to = match old {
                Some(old) => {
                    put_redirect(&mut batch, &view, &redirect_to(inode, &view), &old.key);
                    &own
                }
                None => {
                    batch.delete(Tree::Metadata, key::orphan_key(inode.number.0));
                    &new.key
                }
            };
            let (from, to) = (inode.data_prefix(epoch, &before)?, key::data_prefix(comes_to));
            if before.has_data() && from != to {
                batch.move_range(Tree::Data, from, to);
            }
            batch.put(Tree::Metadata, comes_to.clone(), record.encode());
        }
        if matches!(place, Place::Linked { .. }) {
            put_redirect(&mut batch, &view, &redirect_to(inode, &view), &new.key);
        }
        let mut directory_record = states.record(new.directory).clone();
        directory_record.entries = directory_record.entries.saturating_add(1);
        (directory_record.modified, directory_record.changed) = (now, now);
        batch.update(Tree::Metadata, new.directory.key(epoch)?, directory_record.hot_update());
        self.store.apply(batch).map_err(Error::of_one_path)?;

        self.settle_evicted(&mut states, evicted);
        if !before.parked.is_empty() {
            self.parked.remove(&before.parked);
        }
        self.store.leaving().is_settled(inode.number);
        states.set_record(new.directory, directory_record);
        let attributes = record.attributes(inode.number);
        states.set_record(inode, record);
        let new_name = Bytes::copy_from_slice(new.name);
        names.to_mut().insert(&new_name);
        if let Place::Named { .. } = place {
            let held = new.directory.acquire();
            assert!(held, "IN-2: a directory whose state is locked does not leave the table");
            names.to_mut().attach(new_name, inode.number);
        } else {
            if let Some(old) = old {
                names.from.detach(old.name);
                inode.known_names.add(old.directory, old.name);
            }
            inode.known_names.add(new.directory, new.name);
        }
        inode.set_place(place);
        let held = inode.acquire();
        assert!(held, "IN-2: an inode whose state is locked does not leave the table");
        Ok(Some(Entry { attributes }))
    }
}
