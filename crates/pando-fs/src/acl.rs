//! POSIX access control lists (POSIX 1003.1e, draft 17; acl(5)): two extended attributes whose values mean something.
//!
//! The *access* list refines the permission bits of an inode, the *default* list of a directory is what new inodes in it
//! begin with. They are kept, set and read as the kernel writes them in extended attributes: a version (2, u32), then
//! eight bytes an entry: tag (u16), permissions (u16), user or group (u32). The kernel decides by them who may do what;
//! here lists and permission bits are kept to agree:
//!
//! * FS-7 a list is valid; a default list belongs to a directory, an access list to anything but a symbolic link. An
//!   access list says more than permission bits can, and its owner, its group class (the mask, or the group where there
//!   is no mask) and its others have the permissions of the inode's mode. Both lie in the record.
//!
//! Since they lie in the record, a chmod and the making of a file read nothing.

use bytes::{Buf, BufMut, Bytes};
use pando_engine::Batch;

use crate::file::SET_GROUP_ID;
use crate::operations::{Caller, FileType, InodeNumber, XattrMode};
use crate::schema::{Record, Xattr, XattrValue};
use crate::xattr::{check_mode, position};
use crate::{Error, FileSystem, Result};

/// The nine permission bits.
const PERMISSIONS: u32 = 0o777;

const VERSION: u32 = 2;
const HEADER_LENGTH: usize = 4;
const ENTRY_LENGTH: usize = 8;
/// Longest list the kernel reads or writes: a page.
const LENGTH_MAX: usize = 4096;
/// User or group of an entry that names none.
const NO_ID: u32 = u32::MAX;

/// Which list of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Access,
    Default,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The attribute that is the list.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The list that an attribute is, if it is one.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Whom an entry is for; in the order of a list, the numbers are those of the representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    Group = 0x04,
    NamedGroup = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn of(number: u16) -> Option<Self> {
        let tags = [Self::Owner, Self::User, Self::Group, Self::NamedGroup, Self::Mask, Self::Other];
        tags.into_iter().find(|tag| *tag as u16 == number)
    }

    fn is_named(self) -> bool {
        matches!(self, Self::User | Self::NamedGroup)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// Read, write, execute: 4, 2, 1.
    permissions: u16,
    /// [`NO_ID`] where the tag names nobody.
    id: u32,
}

/// A valid list: ordered by tags; owner, group and others once each, the mask at most once, and once where somebody is
/// named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads a list; one without entries stands for none. `Invalid` for what is no list.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > LENGTH_MAX {
            return Err(Error::AttributeTooBig);
        }
        let whole =
            bytes.len() >= HEADER_LENGTH && (bytes.len() - HEADER_LENGTH).is_multiple_of(ENTRY_LENGTH);
        if !whole || bytes.get_u32_le() != VERSION {
            return Err(Error::Invalid);
        }
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY_LENGTH);
        while bytes.has_remaining() {
            let tag = Tag::of(bytes.get_u16_le()).ok_or(Error::Invalid)?;
            let (permissions, id) = (bytes.get_u16_le(), bytes.get_u32_le());
            let id = if tag.is_named() { id } else { NO_ID };
            if permissions > 7 || (tag.is_named() && id == NO_ID) {
                return Err(Error::Invalid);
            }
            entries.push(Entry { tag, permissions, id });
        }
        let acl = Self { entries };
        match acl.entries.is_empty() {
            true => Ok(None),
            false if acl.is_valid() => Ok(Some(acl)),
            false => Err(Error::Invalid),
        }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let masks = count(Tag::Mask);
        self.entries.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::Group, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && (masks == 1 || (masks == 0 && !self.entries.iter().any(|entry| entry.tag.is_named())))
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_LENGTH + self.entries.len() * ENTRY_LENGTH);
        out.put_u32_le(VERSION);
        for Entry { tag, permissions, id } in &self.entries {
            out.put_u16_le(*tag as u16);
            out.put_u16_le(*permissions);
            out.put_u32_le(*id);
        }
        out.into()
    }

    /// The entries that permission bits show, with the place of their bits: owner, group class, others.
    fn shown(&mut self) -> impl Iterator<Item = (&mut u16, u32)> {
        let class =
            if self.entries.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::Group };
        self.entries.iter_mut().filter_map(move |entry| match entry.tag {
            Tag::Owner => Some((&mut entry.permissions, 6)),
            tag if tag == class => Some((&mut entry.permissions, 3)),
            Tag::Other => Some((&mut entry.permissions, 0)),
            _ => None,
        })
    }

    /// The permission bits that agree with it.
    pub(crate) fn permissions(&self) -> u32 {
        self.clone().shown().fold(0, |mode, (permissions, shift)| mode | u32::from(*permissions) << shift)
    }

    /// Makes it agree with permission bits, as chmod does.
    fn set_permissions(&mut self, mode: u32) {
        self.shown().for_each(|(permissions, shift)| *permissions = (mode >> shift & 7) as u16);
    }

    /// True if permission bits say as much.
    pub(crate) fn is_mode(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.tag, Tag::Owner | Tag::Group | Tag::Other))
    }
}

/// A list of an inode, if it has one.
pub(crate) fn acl(record: &Record, kind: Kind) -> Result<Option<Acl>> {
    let Some(at) = position(record, kind.name()) else { return Ok(None) };
    let damaged =
        || Error::damaged(format!("FS-7: an access control list of inode {} makes no sense", record.number));
    match &record.xattrs[at].value {
        XattrValue::Inline(value) => Acl::decode(value).map_err(|_| damaged()),
        XattrValue::Large(_) => Err(damaged()),
    }
}

fn put(record: &mut Record, kind: Kind, acl: Option<&Acl>) {
    let at = position(record, kind.name());
    let value = acl.map(|acl| XattrValue::Inline(acl.encode()));
    match (at, value) {
        (Some(at), Some(value)) => record.xattrs[at].value = value,
        (Some(at), None) => drop(record.xattrs.remove(at)),
        (None, Some(value)) => record.xattrs.push(Xattr { name: Bytes::from_static(kind.name()), value }),
        (None, None) => {}
    }
}

/// Gives an inode an access list and the permission bits that agree with it. A list that says no more than those is not
/// kept.
fn put_access(record: &mut Record, acl: &Acl) {
    record.mode = record.mode & !PERMISSIONS | acl.permissions();
    put(record, Kind::Access, Some(acl).filter(|acl| !acl.is_mode()));
}

/// chmod: the access list follows.
pub(crate) fn change_mode(record: &mut Record, mode: u32) -> Result<()> {
    record.mode = mode;
    if let Some(mut acl) = acl(record, Kind::Access)? {
        acl.set_permissions(mode);
        put(record, Kind::Access, Some(&acl));
    }
    Ok(())
}

/// What a new inode, whose mode is what its maker asked for, may be used for by whom: the default list of the directory
/// as far as the mode goes, or, where there is none, the mode less the maker's umask.
pub(crate) fn inherit(record: &mut Record, caller: &Caller, directory: &Record) -> Result<()> {
    if record.file_type == FileType::Symlink {
        return Ok(());
    }
    let Some(default) = acl(directory, Kind::Default)? else {
        record.mode &= !(caller.umask & PERMISSIONS);
        return Ok(());
    };
    let mut access = default.clone();
    access.set_permissions(record.mode & default.permissions());
    put_access(record, &access);
    if record.file_type == FileType::Directory {
        put(record, Kind::Default, Some(&default));
    }
    Ok(())
}

impl FileSystem {
    /// Sets a list. `kill_set_group_id` takes that bit off, for a caller who is not in the group.
    pub(crate) fn put_acl(
        &self,
        number: InodeNumber,
        kind: Kind,
        value: &[u8],
        mode: XattrMode,
        kill_set_group_id: bool,
    ) -> Result<()> {
        let acl = Acl::decode(value)?;
        self.change_xattrs(number, Batch::new(), |record, _, _| {
            check_mode(mode, position(record, kind.name()).is_some())?;
            match (kind, record.file_type) {
                (_, FileType::Symlink) => return Err(Error::NotSupported),
                (Kind::Default, FileType::Directory) | (Kind::Access, _) => {}
                (Kind::Default, _) => return Err(Error::AccessDenied),
            }
            match (kind, &acl) {
                (Kind::Access, Some(acl)) => {
                    put_access(record, acl);
                    if kill_set_group_id {
                        record.mode &= !SET_GROUP_ID;
                    }
                }
                _ => put(record, kind, acl.as_ref()),
            }
            Ok(true)
        })
    }
}

/// What is wrong with the lists of a record, if something is (FS-7).
pub(crate) fn problem(record: &Record) -> Option<String> {
    Kind::ALL.into_iter().find_map(|kind| {
        let name = kind.name().escape_ascii();
        let Ok(acl) = acl(record, kind) else { return Some(format!("has a {name} that makes no sense")) };
        let acl = acl?;
        let (permissions, mode) = (acl.permissions(), record.mode & PERMISSIONS);
        let has_place = match kind {
            Kind::Access => record.file_type != FileType::Symlink,
            Kind::Default => record.file_type == FileType::Directory,
        };
        if !has_place {
            Some(format!("is a {:?} and has a {name}", record.file_type))
        } else if kind == Kind::Access && permissions != mode {
            Some(format!("has mode {mode:03o} and a {name} that says {permissions:03o}"))
        } else if kind == Kind::Access && acl.is_mode() {
            Some(format!("has a {name} that says no more than its mode"))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_list_is_read_and_written_as_the_kernel_does() {
        let bytes = list(&[(1, 7, NO_ID), (2, 5, 1000), (4, 0, NO_ID), (16, 5, NO_ID), (32, 4, NO_ID)]);
        let acl = Acl::decode(&bytes).unwrap().unwrap();
        assert_eq!((&acl.encode()[..], acl.permissions(), acl.is_mode()), (&bytes[..], 0o754, false));
        // Numbers that say nothing are not kept.
        let plain = Acl::decode(&list(&[(1, 6, 1), (4, 4, 2), (32, 0, 3)])).unwrap().unwrap();
        assert_eq!((plain.permissions(), plain.is_mode()), (0o640, true));
        assert_eq!(&plain.encode()[..], list(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 0, NO_ID)]));
        assert_eq!((Acl::decode(&list(&[])), Acl::decode(b"")), (Ok(None), Ok(None)));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = [(1, 7, 0), (2, 5, 1000), (4, 0, 0), (8, 1, 5), (16, 5, 0), (32, 4, 0)];
        let bytes = list(&good);
        assert!(Acl::decode(&bytes).is_ok());
        for length in 1..bytes.len() {
            // Cut behind the header it is an empty list.
            assert!(
                length == HEADER_LENGTH || Acl::decode(&bytes[..length]) == Err(Error::Invalid),
                "{length}"
            );
        }
        let changed = |at: usize, to| {
            let mut entries = good;
            entries[at] = to;
            Acl::decode(&list(&entries))
        };
        for (at, entry) in [
            (0, (2, 7, 0)),
            (0, (3, 7, 0)),
            (0, (1, 8, 0)),
            (1, (2, 5, NO_ID)),
            (2, (8, 0, 0)),
            (3, (2, 1, 5)),
            (3, (4, 1, 5)),
            (4, (8, 5, 6)),
            (5, (16, 4, 0)),
        ] {
            assert_eq!(changed(at, entry), Err(Error::Invalid), "{entry:?} at {at}");
        }
        assert_eq!(Acl::decode(&[&[1][..], &bytes[1..]].concat()), Err(Error::Invalid), "version 1");
        let many: Vec<_> = (0..600).map(|id| (2, 4, id)).collect();
        assert_eq!(Acl::decode(&list(&many)), Err(Error::AttributeTooBig));
    }
}
