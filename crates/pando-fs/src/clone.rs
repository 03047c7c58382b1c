//! Clones of files and directories: one batch, whatever lies below.
//!
//! The records and data below a directory are cloned as ranges, and the clone's root gets a delta, so that the numbers
//! below are others than the source's ([`crate::schema::number`]). Only the files with several links lie elsewhere: for each of those with names
//! below the source the clone gets one of its own, with its own names, as `cp -a` makes them. They are found in the list of
//! redirects, so the cost is O(height + their names).
//!
//! A clone of a directory takes the name space lock exclusively: nothing below may be half done. What is parked below the source
//! is no part of the clone.

use std::sync::Arc;

use bytes::Bytes;
use pando_engine::{Batch, KeyRange, Tree};

use crate::clone_links::{Neighbours, clone_data};
use crate::difference::damaged;
use crate::file::SECURITY_CAPABILITY;
use crate::inode::{Inode, States};
use crate::link::put_redirect;
use crate::namei::check_new_name;
use crate::names::Names;
use crate::operations::{Caller, FileType, InodeNumber};
use crate::rename::{End, is_at_or_below};
use crate::schema::{Record, Redirect, XattrValue, key, number};
use crate::view::View;
use crate::xattr::delete_lost_values;
use crate::{Error, FileSystem, Result, acl};

const READ: u32 = 4;
const WRITE_AND_SEARCH: u32 = 3;
const SET_IDS: u32 = 0o6000;

impl FileSystem {
    pub(crate) fn clone_inode(
        &self,
        caller: &Caller,
        groups: &[u32],
        number: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let (source, directory) = (self.inode(number)?, self.writable_inode(parent)?);
        check_new_name(&directory, name)?;
        let clone = |epoch| {
            // The path is asked for with the names locked: without them the directory may be removed behind it.
            let mut names = directory.names()?;
            let to = End::new(&directory, name, epoch)?;
            self.clone_locked(caller, groups, &source, &to, &mut names, epoch)
        };
        match source.is_directory() {
            true => clone(*self.for_change_alone()?),
            false => clone(*self.for_change()?),
        }
    }

    fn clone_locked(
        &self,
        caller: &Caller,
        groups: &[u32],
        source: &Arc<Inode>,
        to: &End,
        names: &mut Names,
        epoch: u64,
    ) -> Result<()> {
        if is_at_or_below(to.directory, source) {
            return Err(Error::Invalid);
        }
        if self.resolve(to.directory, names, &to.path, to.name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_new_key(&to.key)?;
        let mut parked: Vec<_> = self.parked.at(&to.key).into_iter().collect();
        let mut below = None;
        if source.is_directory() {
            parked.extend(self.parked.below(&to.subtree()));
            let subtree = key::subtree_prefix(&source.path(epoch)?);
            let view = source.view().ok_or(Error::ReadOnly)?;
            // Before the list of redirects is read: nobody else gets at the name space meanwhile.
            let states = States::lock([source, to.directory]);
            check_may_clone(caller, groups, states.record(source), states.record(to.directory))?;
            drop(states);
            let longer = to.subtree().len().saturating_sub(subtree.len());
            self.evict_ahead(&[&parked[..], &self.parked.below(&subtree)].concat(), longer)?;
            below = Some((self.linked_below(&view, &subtree, &to.subtree())?, subtree, view));
        }
        let mut states = States::lock(parked.iter().chain([source, to.directory]));
        states.check_attached(to.directory)?;
        states.check_attached(source)?;
        let before = states.record(source).clone();
        check_may_clone(caller, groups, &before, states.record(to.directory))?;
        let data = source.data_prefix(epoch, &before)?;
        let root_values = if source.is_tree_root() { self.large_values(&data, &before)? } else { Vec::new() };
        let fresh = self.numbers.allocate(&self.store)?;
        let target = to.directory.view().ok_or(Error::Stale)?;
        let fresh_links = match &below {
            Some((linked, ..)) => self.fresh_links(linked, &target)?,
            None => Vec::new(),
        };

        let now = self.now();
        let mut batch = Batch::new();
        let evicted = self.evict(&mut batch, &states, &parked);
        let mut record = before.clone();
        record.number = number::stored(fresh, to.directory.delta());
        (record.changed, record.born) = (now, now);
        record.parked = Bytes::new();
        owned_by(caller, groups, &mut record);
        if let Some((linked, from, view)) = &below {
            record.delta = self.fresh_deltas(fresh) ^ to.directory.delta();
            if record.entries > 0 {
                self.clone_below(&mut batch, (view, from), (&target, &to.subtree()), linked, &fresh_links);
            }
        } else {
            record.links = 1;
        }
        let own = key::data_prefix(&to.key);
        if before.has_data() && !source.is_tree_root() {
            batch.clone_range(Tree::Data, data, own.clone());
        }
        for (name, value) in root_values {
            // Those of a root lie among the keys of everything else, and came along with them.
            batch.delete(Tree::Data, key::xattr_key(&to.subtree(), &name));
            batch.put(Tree::Data, key::xattr_key(&own, &name), value);
        }
        delete_lost_values(&mut batch, &own, &before, &record);
        batch.put(Tree::Metadata, to.key.clone(), record.encode());
        let mut directory_record = states.record(to.directory).clone();
        directory_record.entries = directory_record.entries.saturating_add(1);
        if source.is_directory() {
            directory_record.links = directory_record.links.checked_add(1).ok_or(Error::TooManyLinks)?;
        }
        (directory_record.modified, directory_record.changed) = (now, now);
        batch.update(Tree::Metadata, to.directory.key(epoch)?, directory_record.hot_update());
        self.store.apply(batch).map_err(|error| match error {
            Error::Engine(pando_engine::Error::TooLarge { .. }) => Error::TooBig,
            other => other,
        })?;

        self.settle_evicted(&mut states, evicted);
        states.set_record(to.directory, directory_record);
        names.insert(&Bytes::copy_from_slice(to.name));
        Ok(())
    }

    /// The names and values of the large attributes of an inode.
    fn large_values(&self, data_prefix: &[u8], record: &Record) -> Result<Vec<(Bytes, Bytes)>> {
        let mut values = Vec::new();
        for xattr in record.xattrs.iter().filter(|xattr| matches!(xattr.value, XattrValue::Large(_))) {
            let own = key::xattr_key(data_prefix, &xattr.name);
            let value = self.store.get(Tree::Data, &own)?.ok_or_else(|| damaged("FS-1: no value", &own))?;
            values.push((xattr.name.clone(), value));
        }
        Ok(values)
    }

    /// Adds to the batch everything below the root of a clone.
    fn clone_below(
        &self,
        batch: &mut Batch,
        (view, from): (&View, &Bytes),
        (target, to): (&View, &Bytes),
        linked: &[Neighbours],
        fresh: &[u64],
    ) {
        for tree in Tree::ALL {
            batch.clone_range(tree, from.clone(), to.clone());
        }
        for parked in self.parked.keys_below(from) {
            let came = [&to[..], &parked[from.len()..]].concat();
            batch.delete_range(Tree::Data, KeyRange::prefix(key::data_prefix(&came)));
        }
        let mut numbers = fresh;
        for neighbours in linked {
            let (own, others) = numbers.split_at(neighbours.files.len());
            clone_data(batch, (view, neighbours), (target, own));
            numbers = others;
        }
        let files = linked.iter().flat_map(|neighbours| &neighbours.files);
        for (file, number) in files.zip(fresh.iter().copied()) {
            let mut record = file.record.clone();
            record.number = target.linked_number(number);
            record.links = file.names.len() as u32;
            let own = target.linked_key(number);
            batch.put(Tree::Metadata, own, record.encode());
            let redirect = Redirect { number: record.number, file_type: record.file_type };
            for name in &file.names {
                put_redirect(batch, target, &redirect, &[&to[..], name].concat().into());
            }
        }
    }

    /// The deltas of a clone whose root shows `number` and of all above it: 64 bits that no other clone has, and the same when the
    /// same is done again.
    pub(crate) fn fresh_deltas(&self, number: u64) -> u64 {
        let volume = self.store.engine().superblock().volume;
        let (low, high) = volume.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16 bytes"));
        let mut bits = mixed(half(low) ^ mixed(half(high).wrapping_add(number)));
        // What the counter gave out comes to lie above all that it will ever give out.
        while bits < number::COUNTED_END {
            bits = mixed(bits);
        }
        bits
    }
}

/// Refuses a clone that cp would not be let make. Of a directory nobody looks at what lies below, so only its owner and root may.
fn check_may_clone(caller: &Caller, groups: &[u32], source: &Record, directory: &Record) -> Result<()> {
    if caller.uid == 0 {
        return Ok(());
    }
    match source.file_type {
        FileType::Directory if caller.uid != source.uid => return Err(Error::NotPermitted),
        FileType::Directory | FileType::Symlink => {}
        FileType::CharDevice | FileType::BlockDevice => return Err(Error::NotPermitted),
        FileType::Regular | FileType::Fifo | FileType::Socket => check_access(caller, groups, source, READ)?,
    }
    check_access(caller, groups, directory, WRITE_AND_SEARCH)
}

/// What the permission bits say. Where there is an access control list, only the owner is let in.
fn check_access(caller: &Caller, groups: &[u32], record: &Record, wanted: u32) -> Result<()> {
    let has_list = record.xattrs.iter().any(|xattr| xattr.name == acl::Kind::Access.name());
    let granted = if caller.uid == record.uid {
        record.mode >> 6
    } else if has_list {
        0
    } else if caller.gid == record.gid || groups.contains(&record.gid) {
        record.mode >> 3
    } else {
        record.mode
    };
    if granted & wanted == wanted { Ok(()) } else { Err(Error::AccessDenied) }
}

/// What cp does where it may not keep the owner: the clone is the caller's, and gives nobody privileges.
fn owned_by(caller: &Caller, groups: &[u32], record: &mut Record) {
    if caller.uid == 0 {
        return;
    }
    record.xattrs.retain(|xattr| !xattr.name.starts_with(b"trusted.") && xattr.name != SECURITY_CAPABILITY);
    let keeps_group = caller.gid == record.gid || groups.contains(&record.gid);
    if caller.uid == record.uid && keeps_group {
        return;
    }
    record.uid = caller.uid;
    if !keeps_group {
        record.gid = caller.gid;
    }
    record.mode &= !SET_IDS;
}

/// The mixing step of splitmix64: a permutation of the numbers under which neighbours have nothing in common.
fn mixed(state: u64) -> u64 {
    let mut bits = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
