//! Listings.
//!
//! Names come in the order of their keys, which are the index's own, so a listing goes on behind a *name*, whatever came
//! or went meanwhile: what was there all along is neither skipped nor repeated. Which name that is, a cookie tells (`places.rs`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_engine::{Bound, KeyRange, Scan, ScanLimit, Tree};

use crate::inode::Inode;
use crate::link::{Found, linked_number};
use crate::names::Names;
use crate::operations::{DirectoryEntry, FileType, InodeNumber, ListAttributes, ROOT, SNAPSHOTS};
use crate::places::{BEHIND_DOT, BEHIND_DOTS, BEHIND_SNAPSHOTS, Search};
use crate::schema::{NameRecord, key, number};
use crate::{Error, FileSystem, Result, snapshot, store};

/// Names asked of the engine at once.
const CHUNK: usize = 128;

/// Names among which a cookie is looked for while locks are held.
const SEARCH_STEP: usize = 1024;

/// Where a reply has come to: behind a name (empty: at the first), whose cookie this is.
struct Position {
    cookie: u64,
    name: Bytes,
}

impl FileSystem {
    pub(crate) fn read_listing(
        &self,
        number: InodeNumber,
        cookie: u64,
        attributes: ListAttributes,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let directory = self.inode(number)?;
        if !directory.is_directory() {
            return Err(Error::NotADirectory);
        }
        if number == SNAPSHOTS {
            return self.list_snapshots(cookie, emit);
        }
        let shown = number == ROOT && self.snapshots_listed.load(Ordering::Relaxed);
        let first = if shown { BEHIND_SNAPSHOTS } else { BEHIND_DOTS };
        // They wait for the names behind them: a reply of nothing else is another round trip.
        let mut dots =
            (cookie < first).then_some(Dots { directory: &directory, shows_snapshots: shown, cookie });
        let mut emitted = false;
        let cookie = cookie.max(BEHIND_SNAPSHOTS);
        let (mut at, mut search) = (None, None);
        let attributes = Cell::new(attributes);
        loop {
            let epoch = self.namespace.read();
            let mut names = directory.names()?;
            // The reader asks once more before it believes that it has seen all.
            let is_end = at.is_none() && names.places().is_end(cookie);
            let path = match directory.path(*epoch) {
                Ok(path) if !is_end => path,
                // A directory that was removed has no names.
                Ok(_) | Err(Error::NotFound) => {
                    dots.map(|dots| dots.emit(emit));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let at = match &mut at {
                Some(at) => at,
                None => match self.begin_reply(&path, &mut names, cookie, &mut search)? {
                    Some(begin) => at.insert(begin),
                    None => continue,
                },
            };
            let chunk = Chunk { directory: &directory, path: &path, attributes: &attributes };
            let before = at.cookie;
            let waiting = dots.is_some();
            let read = self.read_chunk(&chunk, &mut names, &mut dots, at, emit);
            emitted |= waiting && dots.is_none();
            if at.cookie != before {
                emitted = true;
                names.places().remember(at.cookie, &at.name);
            }
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // What was emitted is a reply; the rest is asked for again.
                Err(_) if emitted => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Where the reply to a cookie begins; `None` while that is being looked for.
    fn begin_reply(
        &self,
        path: &[u8],
        names: &mut Names,
        cookie: u64,
        search: &mut Option<Search>,
    ) -> Result<Option<Position>> {
        let name = match cookie {
            BEHIND_SNAPSHOTS => Some(Bytes::new()),
            cookie => match names.places().name(cookie) {
                Some(name) => Some(name),
                None => self.find_place(path, names, cookie, search)?,
            },
        };
        let Some(name) = name else { return Ok(None) };
        if name.is_empty() && !names.is_complete() {
            names.places().collect();
        }
        names.places().begin(&name);
        let cookie = if name.is_empty() { BEHIND_SNAPSHOTS } else { cookie };
        Ok(Some(Position { cookie, name }))
    }

    /// Looks on for the name of a cookie that is not remembered, among [`SEARCH_STEP`] names at a time, so that locks are not held for long. If
    /// it is not there any more either, a listing that stood on it when it was removed, very long ago, begins again: to repeat names is better
    /// than to leave some out.
    fn find_place(
        &self,
        path: &[u8],
        names: &mut Names,
        cookie: u64,
        search: &mut Option<Search>,
    ) -> Result<Option<Bytes>> {
        let search_now = search.get_or_insert_with(|| names.places().search(cookie));
        let found = self.search_on(path, names, search_now);
        // What is missing in memory, now or in a moment, is fetched, and the call made again.
        match &found {
            Ok(Some(name)) => names.places().remember(cookie, name),
            Ok(None) => {}
            Err(_) => names.places().search_later(search.take()),
        }
        found
    }

    fn search_on(&self, path: &[u8], names: &Names, search: &mut Search) -> Result<Option<Bytes>> {
        let mut room = SEARCH_STEP;
        while room > 0 {
            let Some((behind, left)) = search.ways.front_mut() else { return Ok(Some(Bytes::new())) };
            let scan = self.scan_names(path, behind)?;
            let mut found = scan.entries.iter().map(|(key, _)| key::name_of_child(path, key));
            if let Some(name) = found.find(|name| names.cookie_of(name) == search.cookie) {
                return Ok(Some(Bytes::copy_from_slice(name)));
            }
            let count = scan.entries.len();
            match scan.entries.last() {
                Some((key, _)) if scan.rest.is_some() && count < *left => {
                    *behind = Bytes::copy_from_slice(key::name_of_child(path, key));
                    *left -= count;
                }
                _ => drop(search.ways.pop_front()),
            }
            room = room.saturating_sub(count.max(1));
        }
        Ok(None)
    }

    /// Some of the names of a directory behind one; none only if there are no more.
    fn scan_names(&self, path: &[u8], behind: &[u8]) -> Result<Scan> {
        let prefix = key::children_prefix(path);
        let mut range = KeyRange::prefix(prefix.clone());
        if !behind.is_empty() {
            // The least key above a name's own.
            range.lower = Bound::before([&prefix[..], behind, b"\0"].concat());
        }
        let limit = ScanLimit { entries: CHUNK, bytes: 1 << 18 };
        loop {
            let scan = self.store.scan(Tree::Metadata, &range, limit)?;
            match &scan.rest {
                Some(rest) if scan.entries.is_empty() => range = rest.clone(),
                _ => return Ok(scan),
            }
        }
    }

    /// Emits what waits for names, and the next names; false when the directory or the reader's room is at its end.
    fn read_chunk(
        &self,
        chunk: &Chunk,
        names: &mut Names,
        dots: &mut Option<Dots>,
        at: &mut Position,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<bool> {
        let scan = self.scan_names(chunk.path, &at.name)?;
        if dots.take().is_some_and(|dots| !dots.emit(emit)) {
            return Ok(false);
        }
        let names_of = || scan.entries.iter().map(|(key, _)| key::name_of_child(chunk.path, key));
        // One piece of memory for all: the keys' own would keep a leaf's.
        let mut rest = Bytes::from(names_of().collect::<Vec<_>>().concat());
        for (key, value) in &scan.entries {
            let name = rest.split_to(key::name_of_child(chunk.path, key).len());
            if !key::is_name(&name) {
                return Err(store::not_a_name(key));
            }
            let cookie = names.cookie_of(&name);
            if !self.emit_entry(chunk, names, cookie, &name, (key, value), emit)? {
                return Ok(false);
            }
            names.places().pass(at.cookie, cookie, &name);
            *at = Position { cookie, name };
        }
        if scan.rest.is_some() {
            return Ok(true);
        }
        if let Some(all) = names.places().end(at.cookie) {
            names.set_complete(all);
        }
        Ok(false)
    }

    /// Emits one name, with its key and what the index says under it; false if there was no room.
    fn emit_entry(
        &self,
        chunk: &Chunk,
        names: &mut Names,
        cookie: u64,
        name: &Bytes,
        (key, value): (&[u8], &Bytes),
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<bool> {
        let mut entry = |inode, file_type, attributes| {
            emit(&DirectoryEntry { cookie, name: name.clone(), inode, file_type, attributes })
        };
        let wanted = chunk.attributes.get();
        let inode = match names.known(name) {
            Some(number) => Found::kept_by_names(
                self.table.get(number).expect("IN-2: the names of a directory know only inodes in the table"),
            ),
            None => match store::decode_name(key, value)? {
                // A file with several links has its record elsewhere, which is not read for its number and type alone.
                stored if !wanted.are_for(stored.file_type(), false) => {
                    let number = match &stored {
                        NameRecord::Redirect(redirect) => linked_number(chunk.directory, redirect),
                        NameRecord::Inode(record) => {
                            InodeNumber(number::visible(record.number, chunk.directory.delta()))
                        }
                    };
                    let fits = entry(number, stored.file_type(), None);
                    if fits {
                        chunk.attributes.set(wanted.behind_one_without());
                    }
                    return Ok(fits);
                }
                stored => self.inode_of(chunk.directory, name, stored)?,
            },
        };
        let is_wanted = wanted.are_for(inode.file_type, true);
        let attributes = is_wanted.then(|| inode.attributes()).filter(|_| !inode.has_just_lost_a_name());
        let Some(attributes) = attributes else {
            return Ok(entry(inode.number, inode.file_type, None));
        };
        self.adopt(chunk.directory, names, || Bytes::copy_from_slice(name), &inode)?;
        let fits = entry(inode.number, inode.file_type, Some(attributes));
        if !fits {
            self.disown(chunk.directory, names, name, &inode);
        }
        Ok(fits)
    }

    /// Takes back what [`FileSystem::adopt`] did a moment ago, under the same lock of the names.
    fn disown(&self, directory: &Inode, names: &mut Names, name: &[u8], inode: &Inode) {
        if inode.release(1) {
            let mut state = inode.write_any();
            if inode.detach(&mut state) {
                names.detach(name);
                self.table.remove(inode.number);
                directory.release(1);
            }
        }
    }
}

/// What all names of one reply share.
struct Chunk<'a> {
    directory: &'a Arc<Inode>,
    path: &'a [u8],
    /// [`ListAttributes::OfAll`] once the one file has gone without.
    attributes: &'a Cell<ListAttributes>,
}

/// What comes before the names of a directory: `.`, `..` and, if it is shown here, the directory of the snapshots, as far as they lie behind
/// the cookie.
struct Dots<'a> {
    directory: &'a Arc<Inode>,
    shows_snapshots: bool,
    cookie: u64,
}

impl Dots<'_> {
    /// False if there was no room.
    fn emit(self, emit: &mut dyn FnMut(&DirectoryEntry) -> bool) -> bool {
        let parent = self.directory.parent().map_or(self.directory.number, |parent| parent.number);
        self.directory.told_parent.store(true, Ordering::Relaxed);
        let dots = [(BEHIND_DOT, &b"."[..], self.directory.number), (BEHIND_DOTS, b"..", parent)];
        let snapshots = self.shows_snapshots.then_some((BEHIND_SNAPSHOTS, snapshot::NAME, SNAPSHOTS));
        let mut all = dots.into_iter().chain(snapshots).filter(|(behind, ..)| *behind > self.cookie);
        all.all(|(cookie, name, inode)| {
            let name = Bytes::from_static(name);
            emit(&DirectoryEntry { cookie, name, inode, file_type: FileType::Directory, attributes: None })
        })
    }
}
