//! Extended attributes. Values up to 512 bytes lie in the inode record, larger ones in the data index; the record has
//! all names. Values are opaque but for those of access control lists, see [`crate::acl`].

use std::collections::HashSet;

use bytes::Bytes;
use pando_engine::{Batch, Tree};

use crate::acl;
use crate::operations::{InodeNumber, XattrMode};
use crate::schema::{Record, Xattr, XattrValue, key};
use crate::{Error, FileSystem, Result};

/// Largest value (`XATTR_SIZE_MAX`).
const VALUE_LENGTH_MAX: usize = 64 * 1024;
/// Most bytes of all names of an inode with their NULs (`XATTR_LIST_MAX`).
const LIST_LENGTH_MAX: usize = 64 * 1024;
/// Largest value in a record.
const INLINE_LENGTH_MAX: usize = 512;
/// Most bytes of values in one record; what comes behind goes to the data index.
const INLINE_TOTAL_MAX: usize = 4096;

const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > key::NAME_LENGTH_MAX || name.is_empty() {
        return Err(Error::AttributeTooBig);
    }
    match NAME_SPACES.iter().find(|space| name.starts_with(space)) {
        None => Err(Error::NotSupported),
        Some(space) if name.len() == space.len() || name.contains(&0) => Err(Error::Invalid),
        Some(_) => Ok(()),
    }
}

/// Why an attribute is not there: there can be none of this name, or there is none.
fn absent(name: &[u8]) -> Error {
    let can_be = if acl::Kind::of(name).is_some() { Ok(()) } else { check_name(name) };
    can_be.err().unwrap_or(Error::NoAttribute)
}

pub(crate) fn position(record: &Record, name: &[u8]) -> Option<usize> {
    record.xattrs.iter().position(|xattr| xattr.name == name)
}

/// Whether an attribute may be set that is there, or is not.
pub(crate) fn check_mode(mode: XattrMode, is_there: bool) -> Result<()> {
    match (mode, is_there) {
        (XattrMode::Create, true) => Err(Error::Exists),
        (XattrMode::Replace, false) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

/// Deletes the large values that the old record names and the new one does not. There may be thousands of names: each is looked at once.
pub(crate) fn delete_lost_values(batch: &mut Batch, data_prefix: &[u8], old: &Record, new: &Record) {
    if !old.has_large_xattrs() {
        return;
    }
    let kept: HashSet<&[u8]> = large_names(new).collect();
    for name in large_names(old).filter(|name| !kept.contains(name)) {
        batch.delete(Tree::Data, key::xattr_key(data_prefix, name));
    }
}

fn large_names(record: &Record) -> impl Iterator<Item = &[u8]> {
    let large = record.xattrs.iter().filter(|xattr| matches!(xattr.value, XattrValue::Large(_)));
    large.map(|xattr| &xattr.name[..])
}

impl FileSystem {
    pub(crate) fn xattr_value(&self, number: InodeNumber, name: &[u8]) -> Result<Bytes> {
        let inode = self.inode(number)?;
        let epoch = self.namespace.read();
        let state = inode.read()?;
        let at = position(&state.record, name).ok_or_else(|| absent(name))?;
        match &state.record.xattrs[at].value {
            XattrValue::Inline(value) => Ok(value.clone()),
            XattrValue::Large(_) => {
                let prefix = inode.data_prefix(*epoch, &state.record)?;
                let value = self.store.get(Tree::Data, &key::xattr_key(&prefix, name))?;
                let what = || format!("FS-1: a large attribute of inode {} is missing", number.0);
                value.ok_or_else(|| Error::damaged(what()))
            }
        }
    }

    pub(crate) fn xattr_names(&self, number: InodeNumber) -> Result<Bytes> {
        let inode = self.inode(number)?;
        let state = inode.read()?;
        let mut list = Vec::new();
        for xattr in &state.record.xattrs {
            list.extend_from_slice(&xattr.name);
            list.push(0);
        }
        Ok(list.into())
    }

    pub(crate) fn put_xattr(
        &self,
        number: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_set_group_id: bool,
    ) -> Result<()> {
        if let Some(kind) = acl::Kind::of(name) {
            return self.put_acl(number, kind, value, mode, kill_set_group_id);
        }
        check_name(name)?;
        if value.len() > VALUE_LENGTH_MAX {
            return Err(Error::AttributeTooBig);
        }
        self.change_xattrs(number, Batch::new(), |record, batch, prefix| {
            let at = position(record, name);
            check_mode(mode, at.is_some())?;
            let others = record.xattrs.iter().filter(|xattr| xattr.name != name);
            let inline: usize = others.map(|xattr| inline_length(&xattr.value)).sum();
            let value = if value.len() <= INLINE_LENGTH_MAX && inline + value.len() <= INLINE_TOTAL_MAX {
                XattrValue::Inline(Bytes::copy_from_slice(value))
            } else {
                batch.put(Tree::Data, key::xattr_key(prefix, name), Bytes::copy_from_slice(value));
                XattrValue::Large(value.len() as u32)
            };
            match at {
                Some(at) => record.xattrs[at].value = value,
                None => record.xattrs.push(Xattr { name: Bytes::copy_from_slice(name), value }),
            }
            Ok(true)
        })
    }

    pub(crate) fn delete_xattr(&self, number: InodeNumber, name: &[u8]) -> Result<()> {
        self.change_xattrs(number, Batch::reclaiming(), |record, _, _| match position(record, name) {
            Some(at) => {
                record.xattrs.remove(at);
                Ok(true)
            }
            // As ext4, XFS and Btrfs have it: who wants no list, and has none, is content.
            None if acl::Kind::of(name).is_some() => Ok(false),
            None => Err(absent(name)),
        })
    }

    /// Makes a change that says whether there is one.
    pub(crate) fn change_xattrs(
        &self,
        number: InodeNumber,
        mut batch: Batch,
        change: impl FnOnce(&mut Record, &mut Batch, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let inode = self.writable_inode(number)?;
        let epoch = self.for_change()?;
        let mut state = inode.write()?;
        let mut record = state.record.clone();
        let (key, prefix) = inode.key_and_data_prefix(*epoch, &record)?;
        if !change(&mut record, &mut batch, &prefix)? {
            return Ok(());
        }
        let length = list_length(&record);
        if length > LIST_LENGTH_MAX && length > list_length(&state.record) {
            return Err(Error::NoSpace);
        }
        delete_lost_values(&mut batch, &prefix, &state.record, &record);
        record.changed = self.now();
        batch.put(Tree::Metadata, key, record.encode());
        self.store.apply(batch).map_err(Error::of_one_path)?;
        state.set_record(record);
        Ok(())
    }
}

/// Bytes of a list of all names.
fn list_length(record: &Record) -> usize {
    record.xattrs.iter().map(|xattr| xattr.name.len() + 1).sum()
}

fn inline_length(value: &XattrValue) -> usize {
    match value {
        XattrValue::Inline(value) => value.len(),
        XattrValue::Large(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use pando_engine::Operation;

    use super::*;
    use crate::operations::FileType;
    use crate::schema::Timestamp;

    /// Each name was compared with each other one. So many small ones are about as many as a list takes.
    #[test]
    fn large_values_that_no_name_leads_to_any_more_are_deleted() {
        let small = |number: usize| Xattr {
            name: format!("user.{number:04}").into(),
            value: XattrValue::Inline(Bytes::new()),
        };
        let large = |name: &'static str| Xattr { name: name.into(), value: XattrValue::Large(600) };
        let record = |own: Vec<Xattr>| {
            let mut record = Record::new(FileType::Regular, 7, Timestamp::default());
            record.xattrs = (0..6000).map(small).chain(own).collect();
            record
        };
        let old = record(vec![large("user.goes"), large("user.stays"), large("user.shrinks")]);
        let shrunk = Xattr { name: "user.shrinks".into(), value: XattrValue::Inline("x".into()) };
        let new = record(vec![shrunk, large("user.comes"), large("user.stays")]);
        let deleted = |old: &Record, new: &Record| {
            let mut batch = Batch::new();
            delete_lost_values(&mut batch, b"p", old, new);
            batch.operations().to_vec()
        };
        let deletes = |names: &[&str]| {
            let keys = names.iter().map(|name| key::xattr_key(b"p", name.as_bytes()));
            keys.map(|key| Operation::Delete { tree: Tree::Data, key }).collect::<Vec<_>>()
        };
        assert_eq!(deleted(&old, &new), deletes(&["user.goes", "user.shrinks"]));
        assert_eq!(deleted(&new, &old), deletes(&["user.comes"]));
        assert!(deleted(&record(Vec::new()), &old).is_empty());
    }
}
