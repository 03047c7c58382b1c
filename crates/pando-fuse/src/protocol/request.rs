//! Requests: their header, and what each kind asks for.

use bytes::Bytes;
use pando_fs::operations::{SetAttributes, SetTime};
use rustix::fs::OFlags;

use super::wire::{Reader, join_time};

/// Bytes of the header of a request.
const HEADER_BYTES: usize = 40;

/// The numbers of the kinds of request.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Which fields of SETATTR are set.
mod set {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ACCESSED: u32 = 1 << 4;
    pub(super) const MODIFIED: u32 = 1 << 5;
    pub(super) const ACCESSED_NOW: u32 = 1 << 7;
    pub(super) const MODIFIED_NOW: u32 = 1 << 8;
    pub(super) const CHANGED: u32 = 1 << 10;
    pub(super) const KILL_SET_ID: u32 = 1 << 11;
}

/// The bit of WRITE's flags that takes set-id bits off.
const WRITE_KILL_SET_ID: u32 = 1 << 2;
/// A write of pages that were changed some time ago.
const WRITE_CACHE: u32 = 1 << 0;

/// The user who sets an access control list may not keep the file's set-group-ID bit.
const SETXATTR_KILL_SET_GROUP_ID: u32 = 1 << 0;

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// They end before the request does.
    TooShort,
    /// The header gives another length than they have.
    WrongLength,
    /// A name has no NUL behind it.
    NoEndOfName,
    /// A time that this machine cannot name.
    NoSuchTime,
}

/// What the handshake decided about layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// SETXATTR has its second flags field.
    pub(crate) extended_xattr: bool,
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// The number that the answer carries.
    pub(crate) unique: u64,
    /// The inode it is about; for a name, the directory.
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

impl Header {
    /// The header in front of a whole request, and the body behind it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (length, header) = Self::fields(bytes)?;
        match length as usize == bytes.len() {
            true => Ok((header, &bytes[HEADER_BYTES..])),
            false => Err(Malformed::WrongLength),
        }
    }

    /// A header that stands alone; its length may be that of anything.
    pub(crate) fn alone(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::fields(bytes).map(|(_, header)| header)
    }

    fn fields(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let mut bytes = Reader::new(bytes);
        let length = bytes.u32()?;
        let opcode = bytes.u32()?;
        let (unique, node) = (bytes.u64()?, bytes.u64()?);
        let (uid, gid, pid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        // Extensions, behind all else, are not asked for; four bytes speak of them.
        bytes.u32()?;
        Ok((length, Self { opcode, unique, node, uid, gid, pid }))
    }
}

/// Bytes of the fixed part of a request's body.
pub(crate) fn fixed_bytes(code: u32, layout: Layout) -> usize {
    match code {
        opcode::FORGET | opcode::MKDIR | opcode::RENAME | opcode::LINK => 8,
        opcode::OPEN | opcode::OPENDIR | opcode::SYNCFS => 8,
        opcode::GETXATTR | opcode::LISTXATTR | opcode::BATCH_FORGET => 8,
        opcode::SETXATTR => 8 + 8 * usize::from(layout.extended_xattr),
        opcode::GETATTR | opcode::MKNOD | opcode::TMPFILE | opcode::RENAME2 => 16,
        opcode::FSYNC | opcode::FSYNCDIR => 16,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::LSEEK | opcode::STATX => 24,
        opcode::IOCTL | opcode::FALLOCATE => 32,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => 40,
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => 56,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

/// In the flags of a read or a write: whose locks it respects. The kernel says so of those alone that pass its cache by.
const LOCK_OWNER: u32 = 1 << 1;

/// A request for attributes names the open file.
const GETATTR_FH: u32 = 1;

/// What a WRITE brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
    /// From pages that were changed some time ago.
    pub(crate) collected: bool,
    /// Past the kernel's cache.
    pub(crate) direct: bool,
    pub(crate) kill_set_id: bool,
    /// By a descriptor or a call that wants it durable (`O_DSYNC`, `RWF_DSYNC`).
    pub(crate) durable: bool,
}

/// What a request asks for; the inode it is about stands in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    Lookup {
        name: Bytes,
    },
    Forget {
        count: u64,
    },
    /// Inodes and counts.
    ForgetMany(Vec<(u64, u64)>),
    GetAttributes {
        /// They are for the kernel itself, and not for who calls stat(2).
        for_kernel: bool,
    },
    /// The same, with the time of birth.
    GetAllAttributes {
        for_kernel: bool,
    },
    SetAttributes(SetAttributes),
    ReadLink,
    MakeSymlink {
        name: Bytes,
        target: Bytes,
    },
    MakeNode {
        name: Bytes,
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: Bytes,
        mode: u32,
        umask: u32,
    },
    MakeTemporary {
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: Bytes,
    },
    RemoveDirectory {
        name: Bytes,
    },
    Rename {
        name: Bytes,
        new_parent: u64,
        new_name: Bytes,
        flags: u32,
    },
    Link {
        inode: u64,
        name: Bytes,
    },
    Open,
    Release,
    Read {
        offset: u64,
        size: u32,
        /// Past the kernel's cache.
        direct: bool,
    },
    Write(Write),
    Statistics,
    /// fsync and syncfs, of anything.
    Sync,
    SetXattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
        kill_set_group_id: bool,
    },
    GetXattr {
        name: Bytes,
        size: u32,
    },
    ListXattrs {
        size: u32,
    },
    RemoveXattr {
        name: Bytes,
    },
    OpenDirectory,
    ReadDirectory {
        cookie: u64,
        size: u32,
        attributes: bool,
    },
    ReleaseDirectory,
    /// On an open file; what it reads comes along.
    Ioctl {
        command: u32,
        argument: Bytes,
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    /// `wide`: the answer has 64 bits.
    CopyRange {
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
        wide: bool,
    },
    Destroy,
    /// One that is not served; the kernel does without it.
    Unknown,
}

fn owned(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Operation {
    /// Reads the two parts of a body.
    pub(crate) fn decode(
        header: &Header,
        layout: Layout,
        fixed: &[u8],
        rest: &[u8],
    ) -> Result<Self, Malformed> {
        let (mut fixed, mut rest) = (Reader::new(fixed), Reader::new(rest));
        Ok(match header.opcode {
            opcode::LOOKUP => Self::Lookup { name: owned(rest.name()?) },
            opcode::FORGET => Self::Forget { count: fixed.u64()? },
            opcode::BATCH_FORGET => {
                let count = fixed.u32()? as usize;
                let mut pairs = Reader::new(rest.bytes(count.saturating_mul(16))?);
                let pairs = (0..count).map(|_| Ok((pairs.u64()?, pairs.u64()?)));
                Self::ForgetMany(pairs.collect::<Result<_, _>>()?)
            }
            // The kernel gives the open file along where a read or a seek needs the size, and never for stat(2).
            opcode::GETATTR => Self::GetAttributes { for_kernel: fixed.u32()? & GETATTR_FH != 0 },
            opcode::STATX => Self::GetAllAttributes { for_kernel: fixed.u32()? & GETATTR_FH != 0 },
            opcode::SETATTR => Self::SetAttributes(set_attributes(fixed)?),
            opcode::READLINK => Self::ReadLink,
            opcode::SYMLINK => Self::MakeSymlink { name: owned(rest.name()?), target: owned(rest.name()?) },
            opcode::MKNOD => {
                let (mode, device, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
                Self::MakeNode { name: owned(rest.name()?), mode, device, umask }
            }
            opcode::MKDIR => {
                let (mode, umask) = (fixed.u32()?, fixed.u32()?);
                Self::MakeDirectory { name: owned(rest.name()?), mode, umask }
            }
            opcode::TMPFILE => {
                let _open_flags = fixed.u32()?;
                Self::MakeTemporary { mode: fixed.u32()?, umask: fixed.u32()? }
            }
            opcode::UNLINK => Self::Unlink { name: owned(rest.name()?) },
            opcode::RMDIR => Self::RemoveDirectory { name: owned(rest.name()?) },
            opcode::RENAME | opcode::RENAME2 => {
                let new_parent = fixed.u64()?;
                let flags = if header.opcode == opcode::RENAME2 { fixed.u32()? } else { 0 };
                let (name, new_name) = (owned(rest.name()?), owned(rest.name()?));
                Self::Rename { name, new_parent, new_name, flags }
            }
            opcode::LINK => Self::Link { inode: fixed.u64()?, name: owned(rest.name()?) },
            opcode::OPEN => Self::Open,
            opcode::RELEASE => Self::Release,
            opcode::READ => {
                let (_handle, offset) = (fixed.u64()?, fixed.u64()?);
                let (size, flags) = (fixed.u32()?, fixed.u32()?);
                Self::Read { offset, size, direct: flags & LOCK_OWNER != 0 }
            }
            opcode::WRITE => {
                let (_handle, offset) = (fixed.u64()?, fixed.u64()?);
                let (size, flags) = (fixed.u32()?, fixed.u32()?);
                let (_lock_owner, open_flags) = (fixed.u64()?, fixed.u32()?);
                let durable = open_flags & OFlags::DSYNC.bits() != 0;
                let data = pando_fs::copy_for_device(rest.bytes(size as usize)?);
                let [collected, direct, kill_set_id] =
                    [WRITE_CACHE, LOCK_OWNER, WRITE_KILL_SET_ID].map(|flag| flags & flag != 0);
                Self::Write(Write { offset, data, collected, direct, kill_set_id, durable })
            }
            opcode::STATFS => Self::Statistics,
            opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => Self::Sync,
            opcode::SETXATTR => {
                let (size, flags) = (fixed.u32()?, fixed.u32()?);
                let (extended, _padding) =
                    if layout.extended_xattr { (fixed.u32()?, fixed.u32()?) } else { (0, 0) };
                let kill_set_group_id = extended & SETXATTR_KILL_SET_GROUP_ID != 0;
                let name = owned(rest.name()?);
                Self::SetXattr { name, value: owned(rest.bytes(size as usize)?), flags, kill_set_group_id }
            }
            opcode::GETXATTR => Self::GetXattr { size: fixed.u32()?, name: owned(rest.name()?) },
            opcode::LISTXATTR => Self::ListXattrs { size: fixed.u32()? },
            opcode::REMOVEXATTR => Self::RemoveXattr { name: owned(rest.name()?) },
            opcode::OPENDIR => Self::OpenDirectory,
            opcode::READDIR | opcode::READDIRPLUS => {
                let (_handle, cookie, size) = (fixed.u64()?, fixed.u64()?, fixed.u32()?);
                let attributes = header.opcode == opcode::READDIRPLUS;
                Self::ReadDirectory { cookie, size, attributes }
            }
            opcode::RELEASEDIR => Self::ReleaseDirectory,
            opcode::IOCTL => {
                let (_handle, _flags, command) = (fixed.u64()?, fixed.u32()?, fixed.u32()?);
                let (_address, length, _room) = (fixed.u64()?, fixed.u32()?, fixed.u32()?);
                Self::Ioctl { command, argument: owned(rest.bytes(length as usize)?) }
            }
            opcode::FALLOCATE => {
                let (_handle, offset, length) = (fixed.u64()?, fixed.u64()?, fixed.u64()?);
                Self::Allocate { offset, length, mode: fixed.u32()? }
            }
            opcode::LSEEK => {
                let (_handle, offset) = (fixed.u64()?, fixed.u64()?);
                Self::Seek { offset, whence: fixed.u32()? }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let (_handle, from_offset) = (fixed.u64()?, fixed.u64()?);
                let (to, _to_handle, to_offset) = (fixed.u64()?, fixed.u64()?, fixed.u64()?);
                let wide = header.opcode == opcode::COPY_FILE_RANGE_64;
                Self::CopyRange { from_offset, to, to_offset, length: fixed.u64()?, wide }
            }
            opcode::DESTROY => Self::Destroy,
            _ => Self::Unknown,
        })
    }
}

fn set_attributes(mut fixed: Reader<'_>) -> Result<SetAttributes, Malformed> {
    let (valid, _, _handle, size, _lock_owner) =
        (fixed.u32()?, fixed.u32()?, fixed.u64()?, fixed.u64()?, fixed.u64()?);
    let seconds = [fixed.u64()?, fixed.u64()?, fixed.u64()?];
    let nanoseconds = [fixed.u32()?, fixed.u32()?, fixed.u32()?];
    let (mode, _, uid, gid) = (fixed.u32()?, fixed.u32()?, fixed.u32()?, fixed.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |index: usize, bit: u32, now: u32| {
        Ok(match (has(now), has(bit)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::To(join_time(seconds[index], nanoseconds[index])?)),
            (false, false) => None,
        })
    };
    Ok(SetAttributes {
        // The type of a file does not change.
        mode: has(set::MODE).then_some(mode & 0o7777),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        accessed: time(0, set::ACCESSED, set::ACCESSED_NOW)?,
        modified: time(1, set::MODIFIED, set::MODIFIED_NOW)?,
        changed: match has(set::CHANGED) {
            true => Some(join_time(seconds[2], nanoseconds[2])?),
            false => None,
        },
        kill_set_id: has(set::KILL_SET_ID),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::Put;
    use super::*;

    const LAYOUT: Layout = Layout { extended_xattr: true };

    /// A whole request, as /dev/fuse brings it.
    fn request(code: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.u32(0);
        bytes.u32(code);
        bytes.u64(77);
        bytes.u64(5);
        for word in [1000, 1001, 4242, 0] {
            bytes.u32(word);
        }
        body(&mut bytes);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Operation, Malformed> {
        let (header, body) = Header::decode(bytes)?;
        let fixed = fixed_bytes(header.opcode, LAYOUT).min(body.len());
        let (fixed, rest) = body.split_at(fixed);
        Operation::decode(&header, LAYOUT, fixed, rest)
    }

    /// One of every kind whose body has an end that can be cut off.
    fn samples() -> Vec<Vec<u8>> {
        let numbers = |count: usize| {
            move |body: &mut Vec<u8>| {
                for _ in 0..count {
                    body.u64(1);
                }
            }
        };
        let mut all = Vec::new();
        for (code, words) in [
            (opcode::FORGET, 1),
            (opcode::READ, 5),
            (opcode::READDIR, 5),
            (opcode::READDIRPLUS, 5),
            (opcode::RELEASEDIR, 3),
            (opcode::FALLOCATE, 4),
            (opcode::LSEEK, 3),
            (opcode::COPY_FILE_RANGE, 7),
            (opcode::COPY_FILE_RANGE_64, 7),
            (opcode::LISTXATTR, 1),
            (opcode::SETATTR, 11),
        ] {
            all.push(request(code, numbers(words)));
        }
        for (code, words, names) in [
            (opcode::LOOKUP, 0, "a\0"),
            (opcode::UNLINK, 0, "a\0"),
            (opcode::RMDIR, 0, "a\0"),
            (opcode::SYMLINK, 0, "a\0there\0"),
            (opcode::MKNOD, 2, "a\0"),
            (opcode::MKDIR, 1, "a\0"),
            (opcode::TMPFILE, 2, ""),
            (opcode::RENAME, 1, "a\0b\0"),
            (opcode::RENAME2, 2, "a\0b\0"),
            (opcode::LINK, 1, "a\0"),
            (opcode::GETXATTR, 1, "user.x\0"),
            (opcode::REMOVEXATTR, 0, "user.x\0"),
            (opcode::SETXATTR, 2, "user.x\0v"),
            (opcode::WRITE, 5, "v"),
            (opcode::IOCTL, 4, "v"),
            (opcode::BATCH_FORGET, 1, "0123456789abcdef"),
        ] {
            all.push(request(code, |body| {
                numbers(words)(body);
                body.put(names.as_bytes());
            }));
        }
        all
    }

    /// The body of a READ or WRITE: the handle, the offset, the length, and flags; then an owner of locks and what the file was opened with.
    fn transfer(flags: u32, open_flags: u32) -> impl Fn(&mut Vec<u8>) {
        move |bytes| {
            [1, 2].iter().for_each(|&word| bytes.u64(word));
            [0, flags].iter().for_each(|&word| bytes.u32(word));
            bytes.u64(3);
            [open_flags, 0].iter().for_each(|&word| bytes.u32(word));
        }
    }

    #[test]
    fn a_write_says_whether_it_is_to_be_durable() {
        for (open_flags, durable) in
            [(OFlags::DSYNC, true), (OFlags::SYNC, true), (OFlags::RDWR | OFlags::DIRECT, false)]
        {
            let Ok(Operation::Write(write)) =
                decode(&request(opcode::WRITE, transfer(1 << 1, open_flags.bits())))
            else {
                panic!("no write")
            };
            assert_eq!(write.durable, durable, "{open_flags:?}");
        }
    }

    #[test]
    fn what_passes_the_cache_by_says_whose_locks_it_respects() {
        let body = |flags: u32| transfer(flags, 0);
        for (flags, passes) in [(0, false), (1 << 0 | 1 << 2, false), (1 << 1, true)] {
            let read = decode(&request(opcode::READ, body(flags))).unwrap();
            assert_eq!(read, Operation::Read { offset: 2, size: 0, direct: passes });
            let Ok(Operation::Write(write)) = decode(&request(opcode::WRITE, body(flags))) else {
                panic!("no write")
            };
            assert_eq!((write.offset, write.direct, write.collected), (2, passes, flags & 1 != 0));
        }
    }

    #[test]
    fn what_is_cut_off_is_refused_and_never_read() {
        for whole in samples() {
            decode(&whole).unwrap();
            for length in 0..whole.len() {
                assert!(decode(&whole[..length]).is_err(), "the header tells that something is missing");
                // With a header that agrees, some of the fixed part may be unused.
                let mut cut = whole[..length].to_vec();
                if let Some(field) = cut.get_mut(..4) {
                    field.copy_from_slice(&(length as u32).to_ne_bytes());
                }
                let _ = decode(&cut);
            }
        }
    }

    #[test]
    fn a_count_of_forgets_is_bounded_by_what_was_sent() {
        let bytes = request(opcode::BATCH_FORGET, |body| {
            body.u64(u64::from(u32::MAX));
            body.zeros(32);
        });
        assert_eq!(decode(&bytes), Err(Malformed::TooShort));
    }

    #[test]
    fn names_end_where_they_say() {
        let bytes = request(opcode::RENAME2, |body| {
            body.u64(9);
            body.u64(2);
            body.put(b"old\0new\0");
        });
        let (name, new_name) = (owned(b"old"), owned(b"new"));
        assert_eq!(decode(&bytes), Ok(Operation::Rename { name, new_parent: 9, new_name, flags: 2 }));
        let bytes = request(opcode::LOOKUP, |body| body.put(b"endless"));
        assert_eq!(decode(&bytes), Err(Malformed::NoEndOfName));
    }

    #[test]
    fn set_attributes_sets_what_is_valid() {
        let bytes = request(opcode::SETATTR, |body| {
            body.u32(set::MODE | set::SIZE | set::MODIFIED | set::ACCESSED_NOW | set::KILL_SET_ID);
            body.u32(0);
            for number in [0, 12345, 0] {
                body.u64(number);
            }
            for seconds in [1, -1i64 as u64, 3] {
                body.u64(seconds);
            }
            for word in [1, 500_000_000, 3, 0o100_644, 0, 8, 9, 0] {
                body.u32(word);
            }
        });
        let set = SetAttributes {
            mode: Some(0o644),
            size: Some(12345),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::To(UNIX_EPOCH - Duration::from_millis(500))),
            kill_set_id: true,
            ..SetAttributes::default()
        };
        assert_eq!(decode(&bytes), Ok(Operation::SetAttributes(set)));
    }

    #[test]
    fn who_asks_for_attributes_with_an_open_file_is_the_kernel() {
        for (flags, for_kernel) in [(0, false), (GETATTR_FH, true), (2, false), (3, true)] {
            let ask = |code, words: usize| {
                decode(&request(code, |body| {
                    body.u32(flags);
                    (1..words).for_each(|_| body.u32(u32::MAX));
                }))
            };
            assert_eq!(ask(opcode::GETATTR, 4), Ok(Operation::GetAttributes { for_kernel }));
            assert_eq!(ask(opcode::STATX, 6), Ok(Operation::GetAllAttributes { for_kernel }));
        }
    }

    #[test]
    fn what_is_not_known_is_not_an_error() {
        assert_eq!(decode(&request(40, |body| body.zeros(24))), Ok(Operation::Unknown));
    }
}
