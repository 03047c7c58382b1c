//! New inodes: one batch with the record, and what changes in the directory. Blind where the directory is complete.

use bytes::Bytes;
use pando_engine::{Batch, Tree};

use crate::file::SET_GROUP_ID;
use crate::inode::{Inode, Place, States};
use crate::namei::{check_new_name, name_key};
use crate::operations::{Caller, Entry, FileType, InodeNumber};
use crate::schema::{Record, TARGET_LENGTH_MAX, key, number};
use crate::{Error, FileSystem, Result, acl};

impl FileSystem {
    /// Makes an inode with a name; `fill` completes its record.
    pub(crate) fn create(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        file_type: FileType,
        fill: impl Fn(&mut Record),
    ) -> Result<Entry> {
        let directory = self.writable_inode(parent)?;
        let epoch = self.for_change()?;
        let mut names = directory.names()?;
        check_new_name(&directory, name)?;
        let path = directory.path(*epoch)?;
        let key = name_key(&path, name)?;
        if self.resolve(&directory, &names, &path, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_new_key(&key)?;
        let parked = self.parked_at(&key)?;
        let fresh = self.numbers.allocate(&self.store)?;
        let mut states = States::lock(parked.iter().chain([&directory]));
        states.check_attached(&directory)?;
        let mut batch = Batch::new();
        let evicted = self.evict(&mut batch, &states, &parked);

        let now = self.now();
        let mut record = Record::new(file_type, number::stored(fresh, directory.delta()), now);
        let mut directory_record = states.record(&directory).clone();
        fill(&mut record);
        inherit(&mut record, caller, &directory_record)?;
        directory_record.entries = directory_record.entries.saturating_add(1);
        if file_type == FileType::Directory {
            directory_record.links = directory_record.links.checked_add(1).ok_or(Error::TooManyLinks)?;
        }
        (directory_record.modified, directory_record.changed) = (now, now);
        batch.put(Tree::Metadata, key, record.encode());
        batch.update(Tree::Metadata, directory.key(*epoch)?, directory_record.hot_update());
        self.store.apply(batch).map_err(Error::of_one_path)?;

        self.settle_evicted(&mut states, evicted);
        states.set_record(&directory, directory_record);
        let attributes = record.attributes(InodeNumber(fresh));
        let name = Bytes::copy_from_slice(name);
        let place = Place::Named { parent: directory.clone(), name: name.clone() };
        names.insert(&name);
        let inode = Inode::detached(record, place, &self.budget, true);
        self.adopt(&directory, &mut names, || name, &inode)?;
        Ok(Entry { attributes })
    }

    pub(crate) fn create_symlink(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > TARGET_LENGTH_MAX {
            return Err(Error::NameTooLong);
        }
        self.create(caller, parent, name, FileType::Symlink, |record| {
            record.mode = 0o777;
            record.size = target.len() as u64;
            record.target = Bytes::copy_from_slice(target);
        })
    }

    /// `O_TMPFILE`: an orphan from the start.
    pub(crate) fn create_temporary(&self, caller: &Caller, parent: InodeNumber, mode: u32) -> Result<Entry> {
        let _epoch = self.for_change()?;
        let directory = self.writable_inode(parent)?;
        if !directory.is_directory() {
            return Err(Error::NotADirectory);
        }
        let number = self.numbers.allocate(&self.store)?;
        let mut record = Record::new(FileType::Regular, number, self.now());
        record.mode = mode & 0o7777;
        record.links = 0;
        inherit(&mut record, caller, &directory.read()?.record)?;
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::orphan_key(number), record.encode());

        let attributes = record.attributes(InodeNumber(number));
        let inode = Inode::orphan(record, directory.view(), &self.budget);
        inode.attach();
        // First, so that nothing has changed where the number is in use, as it may be in a damaged volume.
        if !self.table.insert(&inode) {
            return Err(number_in_use(number));
        }
        self.store.apply(batch).inspect_err(|_| self.table.remove(inode.number))?;
        Ok(Entry { attributes })
    }
}

fn number_in_use(number: u64) -> Error {
    Error::damaged(format!("FS-4: the inode number {number}, which is a new one, is in use already"))
}

/// Owner, group and permissions of a new inode; in a set-group-id directory the group is the directory's.
pub(crate) fn inherit(record: &mut Record, caller: &Caller, directory: &Record) -> Result<()> {
    record.uid = caller.uid;
    record.gid = caller.gid;
    if directory.mode & SET_GROUP_ID != 0 {
        record.gid = directory.gid;
        if record.file_type == FileType::Directory {
            record.mode |= SET_GROUP_ID;
        }
    }
    acl::inherit(record, caller, directory)
}
