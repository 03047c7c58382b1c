//! Listings.
//!
//! Names come in the order of their keys, which are the index's own, so a listing goes on behind a *name*, whatever came
//! or went meanwhile: what was there all along is neither skipped nor repeated. A cookie is the number of a
//! reply; the handle remembers the names of its latest replies, and of older ones each 64th (an *anchor*), from
//! which it counts on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pando_engine::{Bound, KeyRange, ScanLimit, Tree};
use parking_lot::Mutex;

use crate::hash::{NameSet, NumberMap};
use crate::inode::Inode;
use crate::link::{Found, linked_number};
use crate::locks::{self, Rank};
use crate::names::Names;
use crate::operations::{DirectoryEntry, FileType, InodeNumber, ROOT, SNAPSHOTS};
use crate::schema::{NameRecord, key};
use crate::{Error, FileSystem, Result, snapshot, store};

/// Cookie behind `.`.
const BEHIND_DOT: u64 = 1;
/// Cookie behind `..`.
const BEHIND_DOTS: u64 = 2;
/// Cookie behind the directory of the snapshots, which comes third where it is shown; those of names are larger.
const BEHIND_SNAPSHOTS: u64 = 3;

/// Replies whose names a handle remembers.
const RECENT_MAX: usize = 16_384;
/// Older replies, of which one is remembered.
const ANCHOR_STEP: u64 = 64;
/// Names that a handle collects at most to learn that the directory is complete.
const COLLECTED_MAX: usize = 1 << 20;
/// Names asked of the engine at once.
const CHUNK: usize = 128;

/// Open listings.
pub(crate) struct Listings {
    next: AtomicU64,
    handles: Mutex<NumberMap<u64, Arc<locks::Mutex<Listing>>>>,
}

impl Listings {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), handles: Mutex::default() }
    }

    fn open(&self, inode: InodeNumber) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let listing = Arc::new(locks::Mutex::new(Rank::Handle, handle, Listing::new(inode)));
        self.handles.lock().insert(handle, listing);
        handle
    }

    fn get(&self, handle: u64) -> Result<Arc<locks::Mutex<Listing>>> {
        self.handles.lock().get(&handle).cloned().ok_or(Error::Invalid)
    }

    pub(crate) fn close(&self, handle: u64) {
        self.handles.lock().remove(&handle);
    }
}

/// Where a listing goes on: behind a name (empty: at the first), then so many names further.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    name: Bytes,
    skip: u64,
}

/// What one handle remembers.
struct Listing {
    inode: InodeNumber,
    /// Cookie of the latest reply.
    latest: u64,
    recent: BTreeMap<u64, Bytes>,
    anchors: BTreeMap<u64, Bytes>,
    /// The cookie behind which nothing followed, and the version of the names then.
    end: Option<(u64, u64)>,
    /// All names since the start, while they were read one after the other, and the version of the names at the start.
    collected: Option<(u64, NameSet)>,
}

impl Listing {
    fn new(inode: InodeNumber) -> Self {
        Self {
            inode,
            latest: BEHIND_SNAPSHOTS,
            recent: BTreeMap::new(),
            anchors: BTreeMap::from([(BEHIND_SNAPSHOTS, Bytes::new())]),
            end: None,
            collected: None,
        }
    }

    /// Where the listing goes on behind a cookie.
    fn position(&self, cookie: u64) -> Position {
        if let Some(name) = self.recent.get(&cookie) {
            return Position { name: name.clone(), skip: 0 };
        }
        match self.anchors.range(..=cookie).next_back() {
            Some((anchor, name)) => Position { name: name.clone(), skip: cookie - anchor },
            None => Position { name: Bytes::new(), skip: 0 },
        }
    }

    /// The listing goes on at a place that is not behind the latest reply: from here on cookies count from there.
    fn jump(&mut self, name: &Bytes) {
        self.latest += 1;
        self.anchors.insert(self.latest, name.clone());
        self.collected = None;
    }

    /// Remembers a reply.
    fn remember(&mut self, name: Bytes) {
        self.latest += 1;
        if let Some((_, names)) = &mut self.collected {
            names.insert(name.clone());
            if names.len() > COLLECTED_MAX {
                self.collected = None;
            }
        }
        self.recent.insert(self.latest, name);
        if self.recent.len() > RECENT_MAX
            && let Some((cookie, name)) = self.recent.pop_first()
            && cookie.is_multiple_of(ANCHOR_STEP)
        {
            self.anchors.insert(cookie, name);
        }
    }
}

impl FileSystem {
    pub(crate) fn open_listing(&self, number: InodeNumber) -> Result<u64> {
        let inode = self.inode(number)?;
        if inode.is_directory() { Ok(self.listings.open(number)) } else { Err(Error::NotADirectory) }
    }

    pub(crate) fn read_listing(
        &self,
        number: InodeNumber,
        handle: u64,
        cookie: u64,
        attributes: bool,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let directory = self.inode(number)?;
        let listing = self.listings.get(handle)?;
        let mut listing = listing.lock();
        if listing.inode != number || !directory.is_directory() {
            return Err(Error::Invalid);
        }
        if number == SNAPSHOTS {
            return self.list_snapshots(cookie, emit);
        }
        let shown = number == ROOT && self.snapshots_listed.load(Ordering::Relaxed);
        let first = if shown { BEHIND_SNAPSHOTS } else { BEHIND_DOTS };
        if cookie < first && !emit_dots(&directory, shown, cookie, emit) {
            return Ok(());
        }
        let mut emitted = cookie < first;
        let start = cookie.max(BEHIND_SNAPSHOTS);
        let Position { name: mut behind, mut skip } = listing.position(start);
        if start != listing.latest {
            listing.jump(&behind);
        }
        loop {
            let epoch = self.namespace.read();
            let mut names = directory.names()?;
            // The reader asks once more before it believes that it has seen all.
            if listing.end == Some((start, names.version())) {
                return Ok(());
            }
            let path = match directory.path(*epoch) {
                // A directory that was removed has no names.
                Err(Error::NotFound) => return Ok(()),
                path => path?,
            };
            if start == BEHIND_SNAPSHOTS && behind.is_empty() && !names.is_complete() {
                listing.collected = Some((names.version(), NameSet::default()));
            }
            let chunk = Chunk { directory: &directory, path: &path, attributes };
            match self.read_chunk(
                &chunk,
                &mut names,
                &mut listing,
                &mut behind,
                &mut skip,
                &mut emitted,
                emit,
            ) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // What was emitted is a reply; the rest is asked for again.
                Err(_) if emitted => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Emits the next names; false when the directory or the reader's room is at its end.
    #[expect(clippy::too_many_arguments, reason = "the parts of one listing's state, borrowed one by one")]
    fn read_chunk(
        &self,
        chunk: &Chunk,
        names: &mut Names,
        listing: &mut Listing,
        behind: &mut Bytes,
        skip: &mut u64,
        emitted: &mut bool,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<bool> {
        let prefix = key::children_prefix(chunk.path);
        let mut range = KeyRange::prefix(prefix.clone());
        if !behind.is_empty() {
            // The least key above a name's own.
            range.lower = Bound::before([&prefix[..], behind, b"\0"].concat());
        }
        let mut scan =
            self.store.scan(Tree::Metadata, &range, ScanLimit { entries: CHUNK, bytes: 1 << 18 })?;
        while scan.entries.is_empty()
            && let Some(rest) = &scan.rest
        {
            scan = self.store.scan(Tree::Metadata, rest, ScanLimit { entries: CHUNK, bytes: 1 << 18 })?;
        }
        for (entry_key, value) in &scan.entries {
            let name = Bytes::copy_from_slice(&entry_key[prefix.len()..]);
            if *skip > 0 {
                *skip -= 1;
                *behind = name;
                continue;
            }
            let stored = match names.known(&name) {
                Some(_) => None,
                None => Some(store::decode_name(entry_key, value)?),
            };
            if !self.emit_entry(chunk, names, listing.latest + 1, &name, stored, emit)? {
                return Ok(false);
            }
            *emitted = true;
            listing.remember(name.clone());
            *behind = name;
        }
        if scan.rest.is_none() {
            listing.end = Some((listing.latest, names.version()));
            if let Some((version, all)) = listing.collected.take()
                && version == names.version()
            {
                names.set_complete(all);
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Emits one name; false if there was no room. `stored` is what lies under the name, if its inode is not known.
    fn emit_entry(
        &self,
        chunk: &Chunk,
        names: &mut Names,
        cookie: u64,
        name: &Bytes,
        stored: Option<NameRecord>,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<bool> {
        let mut entry = |inode, file_type, attributes| {
            emit(&DirectoryEntry { cookie, name: name.clone(), inode, file_type, attributes })
        };
        // A file with several links has its record elsewhere, which is not read for its number and type alone.
        if let Some(NameRecord::Redirect(redirect)) = &stored
            && !chunk.attributes
        {
            return Ok(entry(linked_number(chunk.directory, redirect), redirect.file_type, None));
        }
        let inode = match stored {
            Some(stored) => self.inode_of(chunk.directory, name, stored)?,
            None => {
                let inode = names.known(name).and_then(|number| self.table.get(number));
                Found::kept_by_names(
                    inode.expect("IN-2: the names of a directory know only inodes in the table"),
                )
            }
        };
        // The kernel takes one off the count of links when it hears of an unlink. Had it heard of the lower count before, it would come
        // to one too few.
        let attributes = chunk.attributes.then(|| inode.attributes()).filter(|_| !inode.has_lost_a_name());
        let Some(attributes) = attributes else {
            return Ok(entry(inode.number, inode.file_type, None));
        };
        self.adopt(chunk.directory, names, name, &inode)?;
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
    attributes: bool,
}

/// Emits `.`, `..` and, if it is shown here, the directory of the snapshots, as far as they lie behind the cookie; false if there was
/// no room.
fn emit_dots(
    directory: &Arc<Inode>,
    shows_snapshots: bool,
    cookie: u64,
    emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
) -> bool {
    let parent = directory.parent().map_or(directory.number, |parent| parent.number);
    let dots = [(BEHIND_DOT, &b"."[..], directory.number), (BEHIND_DOTS, b"..", parent)];
    let snapshots = shows_snapshots.then_some((BEHIND_SNAPSHOTS, snapshot::NAME, SNAPSHOTS));
    dots.into_iter().chain(snapshots).filter(|(behind, ..)| *behind > cookie).all(|(cookie, name, inode)| {
        let name = Bytes::from_static(name);
        emit(&DirectoryEntry { cookie, name, inode, file_type: FileType::Directory, attributes: None })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Bytes {
        format!("{number:08}").into()
    }

    #[test]
    fn an_old_cookie_is_found_from_an_anchor() {
        let mut listing = Listing::new(InodeNumber(1));
        let count = RECENT_MAX as u64 + 1000;
        for number in 0..count {
            listing.remember(name(number));
        }
        let cookie_of = |number: u64| number + BEHIND_SNAPSHOTS + 1;
        assert_eq!(listing.position(cookie_of(count - 1)), Position { name: name(count - 1), skip: 0 });
        let old = listing.position(cookie_of(100));
        assert_eq!(
            old,
            Position { name: name(cookie_of(0).div_ceil(64) * 64 - 4), skip: cookie_of(100) - 64 }
        );
        assert_eq!(listing.position(BEHIND_SNAPSHOTS), Position { name: Bytes::new(), skip: 0 });
        assert!(listing.recent.len() <= RECENT_MAX);
    }

    #[test]
    fn cookies_after_a_jump_count_from_there() {
        let mut listing = Listing::new(InodeNumber(1));
        listing.remember(name(5));
        listing.remember(name(6));
        listing.jump(&name(2));
        let at = listing.latest;
        assert_eq!(listing.position(at), Position { name: name(2), skip: 0 });
        listing.remember(name(3));
        assert_eq!(listing.position(BEHIND_SNAPSHOTS + 2), Position { name: name(6), skip: 0 });
        assert_eq!(listing.position(at + 1), Position { name: name(3), skip: 0 });
    }
}
