//! A linked file that has one name left goes back under it.
//!
//! Programs make files by link(2) and unlink(2): git its objects, others their locks and messages. Under keys of their own
//! these would lie in the order of their numbers for ever, and who reads their directory would find them here and there.
//!
//! Where the one name is, the file does not say. So the names that come to it while its inode is in the table are remembered, as a hint:
//! whether it still leads there is looked up with the names of its directory locked. Nobody waits for that, and nothing is read for it: a
//! file of which the name is not known, or whose move would be more than a copy of what is in memory, stays where it is.

use std::sync::Arc;

use bytes::Bytes;
use pando_engine::{Batch, Tree};
use parking_lot::Mutex;

use crate::inode::{Inode, Place, States};
use crate::link::Found;
use crate::names::Names;
use crate::operations::InodeNumber;
use crate::rename::{BothNames, End};
use crate::schema::{Record, key, number};
use crate::{FileSystem, Result, link};

/// Up to two names that a linked file has, or had: a leaf lock.
#[derive(Default)]
pub(crate) struct KnownNames(Mutex<Option<Box<[Option<Name>; 2]>>>);

/// A directory, and a name in it.
type Name = (InodeNumber, Bytes);

impl KnownNames {
    /// It has this one, too. Beside two others all are forgotten: it will not have a single one that soon.
    pub(crate) fn add(&self, directory: &Inode, name: &[u8]) {
        let mut known = self.0.lock();
        match known.get_or_insert_default().iter_mut().find(|name| name.is_none()) {
            Some(free) => *free = Some((directory.number, Bytes::copy_from_slice(name))),
            None => *known = None,
        }
    }

    pub(crate) fn remove(&self, directory: &Inode, name: &[u8]) {
        for known in self.0.lock().iter_mut().flat_map(|known| known.iter_mut()) {
            known.take_if(|known| is(known, directory, name));
        }
    }

    pub(crate) fn clear(&self) {
        *self.0.lock() = None;
    }

    /// One that it may have beside this one.
    fn other_than(&self, directory: &Inode, name: &[u8]) -> Option<Name> {
        let known = self.0.lock();
        known.as_ref()?.iter().flatten().find(|known| !is(known, directory, name)).cloned()
    }
}

fn is((number, known): &Name, directory: &Inode, name: &[u8]) -> bool {
    *number == directory.number && known == name
}

/// The directory of the one name that will be left, and that name.
pub(crate) struct Home {
    pub(crate) directory: Arc<Inode>,
    pub(crate) name: Bytes,
}

impl FileSystem {
    /// Where a file may go home to once it has lost this name. That directory gets a reference in `held`, to be let go of once nothing is
    /// locked: it could leave the table otherwise, and the lock of its names would keep nothing that is found there. No names are locked.
    pub(crate) fn home_of<'a>(
        &'a self,
        inode: &Inode,
        directory: &Inode,
        name: &[u8],
        held: &mut Vec<Found<'a>>,
    ) -> Option<Home> {
        if !inode.is_linked() {
            return None;
        }
        let (number, name) = inode.known_names.other_than(directory, name)?;
        let home = self.table.get(number).filter(|home| home.is_directory() && home.is_beside(directory))?;
        held.push(Found::held(self, home.clone())?);
        Some(Home { directory: home, name })
    }

    /// The name as an end, if it leads to the inode and nothing need be read to see that. The names of its directory are locked.
    pub(crate) fn home_end<'a>(
        &self,
        home: &'a Home,
        names: &Names,
        inode: &Inode,
        epoch: u64,
    ) -> Option<End<'a>> {
        let end = End::new(&home.directory, &home.name, epoch).ok()?;
        let found = self.resolve(end.directory, names, &end.path, end.name).ok()??;
        (found.number == inode.number && inode.is_linked()).then_some(end)
    }

    /// Takes one of two names of a linked file away, and the file under the other one; false if that is not worth it, and then nothing has
    /// happened. The names of both directories are locked.
    pub(crate) fn unlink_to_home(
        &self,
        gone: &End,
        home: &End,
        inode: &Arc<Inode>,
        names: &mut BothNames,
        epoch: u64,
    ) -> Result<bool> {
        let Place::Linked { key: own, view } = inode.place() else { return Ok(false) };
        let mut states = States::lock([gone.directory, inode, home.directory]);
        states.check_attached(gone.directory)?;
        let before = states.record(inode);
        if before.links != 2 || states.check_attached(home.directory).is_err() {
            return Ok(false);
        }
        let now = self.now();
        let number = number::stored(inode.number.0, home.directory.delta());
        let record = Record { number, links: 1, changed: now, ..before.clone() };
        let mut batch = Batch::copies_only();
        link::delete_name(&mut batch, inode, &gone.key);
        // The record takes the place of the redirect.
        batch.delete(Tree::Metadata, view.link_name_key(&home.key));
        batch.put(Tree::Metadata, home.key.clone(), record.encode());
        batch.delete(Tree::Metadata, own.clone());
        if record.has_data() {
            batch.move_range(Tree::Data, key::data_prefix(&own), key::data_prefix(&home.key));
        }
        let mut directory_record = states.record(gone.directory).clone();
        directory_record.entries = directory_record.entries.saturating_sub(1);
        (directory_record.modified, directory_record.changed) = (now, now);
        batch.update(Tree::Metadata, gone.directory.key(epoch)?, directory_record.hot_update());
        if !self.store.apply_copies(batch) {
            return Ok(false);
        }

        states.set_record(gone.directory, directory_record);
        names.from.remove(gone.name);
        self.note_lost_name(inode);
        inode.known_names.clear();
        states.set_record(inode, record);
        let held = home.directory.acquire();
        assert!(held, "IN-2: a directory whose state is locked does not leave the table");
        inode.set_place(home.place());
        names.to_mut().attach(Bytes::copy_from_slice(home.name), inode.number);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use pando_device::MemoryDevice;
    use pando_engine::{Background, FormatOptions, Options};

    use super::*;
    use crate::operations::{Caller, FileType, Operations, ROOT};

    /// Its names were locked, and what was found among them let go of, when another inode of that directory was in the table already.
    #[test]
    fn a_home_stays_in_the_table_until_nothing_is_locked() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        FileSystem::format(device.clone(), &FormatOptions::default()).unwrap();
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device, options).unwrap();
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let home = fs.make_directory(&caller, ROOT, b"home", 0o755).unwrap().attributes.inode;
        let file =
            fs.make_node(&caller, home, b"name", FileType::Regular, 0o644, 0).unwrap().attributes.inode;
        fs.link(file, ROOT, b"other").unwrap();
        let [root, file] = [ROOT, file].map(|number| fs.table.get(number).unwrap());
        let mut held = Vec::new();
        let found = fs.home_of(&file, &root, b"other", &mut held).unwrap();
        assert_eq!((found.directory.number, &found.name[..]), (home, &b"name"[..]));
        fs.forget(home, 1);
        assert!(fs.table.get(home).is_some());
        drop(held);
        assert!(fs.table.get(home).is_none());
    }
}
