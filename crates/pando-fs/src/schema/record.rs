//! The inode record: a fixed part of little-endian fields, then the symlink target and the extended attributes.
//!
//! What writes and name operations change lies in one run of bytes, the *hot part*, so that each of them is one blind
//! attribute update (`FieldUpdate::Set`) of [`Record::hot_update`]; everything else replaces the record.

use bytes::{BufMut, Bytes};
use pando_engine::FieldUpdate;

use super::Timestamp;
use crate::operations::{Attributes, FileType, InodeNumber};

/// Version in the first byte of each record.
pub const RECORD_VERSION: u8 = 1;
/// Kind in the second byte of each record; [`super::Redirect`] has another.
pub const RECORD_KIND: u8 = 0;
/// First byte of the hot part.
pub const HOT_OFFSET: usize = 72;
/// Bytes of the fixed part; the hot part is its end.
pub const FIXED_LENGTH: usize = 128;
/// Longest target of a symbolic link, in bytes (`PATH_MAX` less its NUL).
pub const TARGET_LENGTH_MAX: usize = 4095;
/// Set in `flags` when a file may have holes: its blocks no longer follow from its size.
pub const FLAG_SPARSE: u32 = 1;

pub(super) const TYPE_MASK: u32 = 0o170_000;
const PERMISSION_MASK: u32 = 0o7777;

/// What an extended attribute's value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XattrValue {
    /// Kept in the record.
    Inline(Bytes),
    /// Kept in the data index; the bytes it has there.
    Large(u32),
}

impl XattrValue {
    fn inline(&self) -> &[u8] {
        match self {
            Self::Inline(value) => value,
            Self::Large(_) => &[],
        }
    }
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xattr {
    /// Its name with the name space in front.
    pub name: Bytes,
    /// Its value.
    pub value: XattrValue,
}

/// Everything about an inode but its name and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub file_type: FileType,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The stored number; for what users see of it see [`super::number`].
    pub number: u64,
    /// Generation of the number.
    pub generation: u64,
    /// Of a directory: XORed to the numbers of everything below. Not zero in the root of a clone.
    pub delta: u64,
    /// Device number of a device node.
    pub device: u64,
    /// When it was made.
    pub born: Timestamp,
    /// Last read.
    pub accessed: Timestamp,
    /// Bytes of a regular file or of a symlink's target.
    pub size: u64,
    /// 4 KiB blocks in use at most; has a meaning only with [`FLAG_SPARSE`].
    pub blocks: u64,
    /// Names in a directory.
    pub entries: u64,
    /// Names of this inode; 2 + subdirectories for a directory; 0 for an orphan.
    pub links: u32,
    /// [`FLAG_SPARSE`].
    pub flags: u32,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Target of a symbolic link.
    pub target: Bytes,
    /// Metadata key under which an orphan's data lie while they are parked; empty when under its own key.
    pub parked: Bytes,
    /// Extended attributes in the order they were made.
    pub xattrs: Vec<Xattr>,
}

/// What is wrong with the bytes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// It ends before its fields do.
    Short {
        /// Bytes there are.
        length: usize,
    },
    /// Written by a later version.
    Version {
        /// What its first byte says.
        found: u8,
    },
    /// It is not of the kind that was expected.
    Kind {
        /// What its second byte says.
        found: u8,
    },
    /// The type in its mode is none there is.
    FileType {
        /// The mode.
        mode: u32,
    },
    /// A part of variable length does not make sense.
    Variable,
    /// It says that its data lie under another key, and is no orphan's.
    Parked,
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short { length } => write!(f, "an inode record of {length} bytes ends too soon"),
            Self::Version { found } => {
                write!(f, "an inode record has version {found}, expected {RECORD_VERSION}")
            }
            Self::Kind { found } => write!(f, "a record is of kind {found}, which does not belong here"),
            Self::FileType { mode } => write!(f, "an inode record has the unknown mode {mode:o}"),
            Self::Variable => f.write_str("the variable part of an inode record makes no sense"),
            Self::Parked => f.write_str("an inode record that is no orphan's has its data under another key"),
        }
    }
}

impl Record {
    /// A new inode without names, data or attributes; all times are `now`.
    pub fn new(file_type: FileType, number: u64, now: Timestamp) -> Self {
        Self {
            file_type,
            mode: 0,
            uid: 0,
            gid: 0,
            number,
            generation: 1,
            delta: 0,
            device: 0,
            born: now,
            accessed: now,
            size: 0,
            blocks: 0,
            entries: 0,
            links: if file_type == FileType::Directory { 2 } else { 1 },
            flags: 0,
            modified: now,
            changed: now,
            target: Bytes::new(),
            parked: Bytes::new(),
            xattrs: Vec::new(),
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let variable: usize =
            self.xattrs.iter().map(|xattr| 6 + xattr.name.len() + xattr.value.inline().len()).sum();
        let counts = 3 * size_of::<u32>();
        let mut out =
            Vec::with_capacity(FIXED_LENGTH + counts + self.target.len() + self.parked.len() + variable);
        out.put_u8(RECORD_VERSION);
        out.put_u8(RECORD_KIND);
        out.put_u16_le((type_bits(self.file_type) | self.mode) as u16);
        out.put_u32_le(self.uid);
        out.put_u32_le(self.gid);
        out.put_u32_le(0);
        out.put_u64_le(self.number);
        out.put_u64_le(self.generation);
        out.put_u64_le(self.delta);
        out.put_u64_le(self.device);
        out.put_i64_le(self.born.seconds);
        out.put_i64_le(self.accessed.seconds);
        out.put_u32_le(self.born.nanoseconds);
        out.put_u32_le(self.accessed.nanoseconds);
        self.encode_hot(&mut out);
        debug_assert_eq!(out.len(), FIXED_LENGTH);
        out.put_u32_le(self.target.len() as u32);
        out.put_slice(&self.target);
        out.put_u32_le(self.parked.len() as u32);
        out.put_slice(&self.parked);
        out.put_u32_le(self.xattrs.len() as u32);
        for xattr in &self.xattrs {
            let (large, length) = match &xattr.value {
                XattrValue::Inline(value) => (0, value.len() as u32),
                XattrValue::Large(length) => (1, *length),
            };
            out.put_u8(large);
            out.put_u8(xattr.name.len() as u8);
            out.put_u32_le(length);
            out.put_slice(&xattr.name);
            out.put_slice(xattr.value.inline());
        }
        out.into()
    }

    fn encode_hot(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.size);
        out.put_u64_le(self.blocks);
        out.put_u64_le(self.entries);
        out.put_u32_le(self.links);
        out.put_u32_le(self.flags);
        out.put_i64_le(self.modified.seconds);
        out.put_i64_le(self.changed.seconds);
        out.put_u32_le(self.modified.nanoseconds);
        out.put_u32_le(self.changed.nanoseconds);
    }

    /// The blind update that brings the hot part of a stored record to what it is here.
    pub fn hot_update(&self) -> Vec<FieldUpdate> {
        let mut hot = Vec::with_capacity(FIXED_LENGTH - HOT_OFFSET);
        self.encode_hot(&mut hot);
        vec![FieldUpdate::Set { offset: HOT_OFFSET as u16, bytes: hot.into() }]
    }

    /// Refuses what only an orphan has, which lies in no tree: data under another key, which might be that of somebody else's file.
    pub fn in_tree(self) -> Result<Self, RecordError> {
        if self.parked.is_empty() { Ok(self) } else { Err(RecordError::Parked) }
    }

    /// Reads a record. Never trusts the bytes; the result shares none of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut input = Input { rest: bytes, length: bytes.len() };
        input.head(RECORD_KIND)?;
        let full_mode = u32::from(input.u16()?);
        let file_type = type_of(full_mode & TYPE_MASK).ok_or(RecordError::FileType { mode: full_mode })?;
        let (uid, gid, _) = (input.u32()?, input.u32()?, input.u32()?);
        let (number, generation, delta, device) = (input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        let (born_seconds, accessed_seconds) = (input.u64()? as i64, input.u64()? as i64);
        let born = Timestamp { seconds: born_seconds, nanoseconds: input.u32()? };
        let accessed = Timestamp { seconds: accessed_seconds, nanoseconds: input.u32()? };
        let (size, blocks, entries) = (input.u64()?, input.u64()?, input.u64()?);
        let (links, flags) = (input.u32()?, input.u32()?);
        let (modified_seconds, changed_seconds) = (input.u64()? as i64, input.u64()? as i64);
        let modified = Timestamp { seconds: modified_seconds, nanoseconds: input.u32()? };
        let changed = Timestamp { seconds: changed_seconds, nanoseconds: input.u32()? };
        let target = input.counted()?;
        if target.len() > TARGET_LENGTH_MAX {
            return Err(RecordError::Variable);
        }
        let parked = input.counted()?;
        let count = input.u32()?;
        let mut xattrs = Vec::new();
        for _ in 0..count {
            xattrs.push(input.xattr()?);
        }
        if !input.rest.is_empty() {
            return Err(RecordError::Variable);
        }
        Ok(Self {
            file_type,
            mode: full_mode & PERMISSION_MASK,
            uid,
            gid,
            number,
            generation,
            delta,
            device,
            born,
            accessed,
            size,
            blocks,
            entries,
            links,
            flags,
            modified,
            changed,
            target,
            parked,
            xattrs,
        })
    }

    /// Bytes of its data, at most.
    pub fn data_bytes(&self) -> u64 {
        if self.is_sparse() { self.blocks.saturating_mul(4096).min(self.size) } else { self.size }
    }

    /// True if the data index may hold keys of this inode.
    pub fn has_data(&self) -> bool {
        (self.file_type == FileType::Regular && self.size > 0) || self.has_large_xattrs()
    }

    /// True if an extended attribute lies in the data index.
    pub fn has_large_xattrs(&self) -> bool {
        self.xattrs.iter().any(|xattr| matches!(xattr.value, XattrValue::Large(_)))
    }

    /// True if the file may have holes.
    pub fn is_sparse(&self) -> bool {
        self.flags & FLAG_SPARSE != 0
    }

    /// What users see of it under this number.
    pub fn attributes(&self, inode: InodeNumber) -> Attributes {
        let size = if self.file_type == FileType::Directory { self.entries } else { self.size };
        let blocks = match self.file_type {
            FileType::Regular if self.is_sparse() => self.blocks.saturating_mul(8).min(size.div_ceil(512)),
            FileType::Regular => size.div_ceil(512),
            _ => 0,
        };
        Attributes {
            inode,
            generation: self.generation,
            file_type: self.file_type,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size,
            blocks,
            accessed: self.accessed.into(),
            modified: self.modified.into(),
            changed: self.changed.into(),
            born: self.born.into(),
        }
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, file_type, mode, uid, gid, links, size, entries, .. } = self;
        write!(f, "inode {number}: {file_type:?}, mode {mode:04o}, owner {uid}:{gid}, {links} links")?;
        match file_type {
            FileType::Directory => write!(f, ", {entries} entries")?,
            _ => write!(f, ", {size} bytes")?,
        }
        if self.delta != 0 {
            write!(f, ", delta {:016x}", self.delta)?;
        }
        if !self.xattrs.is_empty() {
            write!(f, ", {} attributes", self.xattrs.len())?;
        }
        if !self.parked.is_empty() {
            write!(f, ", parked under \"{}\"", self.parked.escape_ascii())?;
        }
        Ok(())
    }
}

/// What is left to decode.
pub(super) struct Input<'a> {
    pub(super) rest: &'a [u8],
    pub(super) length: usize,
}

impl<'a> Input<'a> {
    /// The first two bytes of every record.
    pub(super) fn head(&mut self, expected_kind: u8) -> Result<(), RecordError> {
        let [version, kind] = self.array()?;
        if version != RECORD_VERSION {
            return Err(RecordError::Version { found: version });
        }
        if kind == expected_kind { Ok(()) } else { Err(RecordError::Kind { found: kind }) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(RecordError::Short { length: self.length })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        Ok(self.take(N)?.try_into().expect("take gives what it was asked for"))
    }

    pub(super) fn u16(&mut self) -> Result<u16, RecordError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn counted(&mut self) -> Result<Bytes, RecordError> {
        let length = self.u32()?;
        Ok(Bytes::copy_from_slice(self.take(length as usize)?))
    }

    fn xattr(&mut self) -> Result<Xattr, RecordError> {
        let [large, name_length] = self.array()?;
        let length = self.u32()?;
        let name = Bytes::copy_from_slice(self.take(name_length as usize)?);
        if name.is_empty() {
            return Err(RecordError::Variable);
        }
        let value = match large {
            0 => XattrValue::Inline(Bytes::copy_from_slice(self.take(length as usize)?)),
            1 => XattrValue::Large(length),
            _ => return Err(RecordError::Variable),
        };
        Ok(Xattr { name, value })
    }
}

pub(super) fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

pub(super) fn type_of(bits: u32) -> Option<FileType> {
    let types = [
        FileType::Regular,
        FileType::Directory,
        FileType::Symlink,
        FileType::BlockDevice,
        FileType::CharDevice,
        FileType::Fifo,
        FileType::Socket,
    ];
    types.into_iter().find(|file_type| type_bits(*file_type) == bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut record =
            Record::new(FileType::Symlink, 77, Timestamp { seconds: -5, nanoseconds: 999_999_999 });
        record.mode = 0o4751;
        record.uid = 7;
        record.gid = u32::MAX;
        record.device = 3;
        record.target = Bytes::from_static(b"over/there");
        record.parked = Bytes::from_static(b"\0\0f");
        let inline = XattrValue::Inline(Bytes::from_static(b"v"));
        record.xattrs = vec![
            Xattr { name: Bytes::from_static(b"user.a"), value: inline },
            Xattr { name: Bytes::from_static(b"user.b"), value: XattrValue::Large(60_000) },
        ];
        record
    }

    #[test]
    fn a_record_survives_the_way_there_and_back() {
        assert_eq!(Record::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_cut_of_a_record_is_an_error() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            assert!(Record::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(Record::decode(&[&bytes[..], b"x"].concat()), Err(RecordError::Variable));
    }

    #[test]
    fn targets_and_attributes_that_nothing_has_and_places_that_only_orphans_have_are_errors() {
        let longest = Record { target: vec![b'x'; TARGET_LENGTH_MAX].into(), ..sample() };
        assert_eq!(Record::decode(&longest.encode()), Ok(longest));
        let too_long = Record { target: vec![b'x'; TARGET_LENGTH_MAX + 1].into(), ..sample() };
        assert_eq!(Record::decode(&too_long.encode()), Err(RecordError::Variable));
        let mut nameless = sample();
        nameless.xattrs[0].name = Bytes::new();
        assert_eq!(Record::decode(&nameless.encode()), Err(RecordError::Variable));
        assert_eq!(sample().in_tree(), Err(RecordError::Parked));
        let named = Record { parked: Bytes::new(), ..sample() };
        assert_eq!(named.clone().in_tree(), Ok(named));
    }

    #[test]
    fn the_hot_update_carries_everything_that_writes_and_name_operations_change() {
        let stored = sample().encode();
        let mut changed = sample();
        changed.size = 9;
        changed.blocks = 8;
        changed.entries = 7;
        changed.links = 6;
        changed.flags = FLAG_SPARSE;
        changed.modified = Timestamp { seconds: 5, nanoseconds: 4 };
        changed.changed = Timestamp { seconds: 3, nanoseconds: 2 };
        let update = pando_engine::Change::Update { fields: changed.hot_update() };
        let bytes = update.apply(Some(stored)).expect("an update keeps the value");
        assert_eq!(Record::decode(&bytes), Ok(changed));
    }
}
