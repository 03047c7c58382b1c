//! Between the types of fuser and those of pando-fs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType as FuseType, INodeNo, RenameFlags, Request, TimeOrNow};
use pando_fs::operations::{AllocateMode, Attributes, Caller, FileType, RenameMode, SetTime, XattrMode};
use pando_fs::{Error, InodeNumber};
use rustix::fs::{FallocateFlags, FileType as ModeType, XattrFlags};

/// The unit in which statfs and stat speak of blocks, in bytes.
pub(super) const BLOCK_BYTES: u32 = 4096;

pub(super) fn number(error: &Error) -> Errno {
    Errno::from_i32(crate::errno::errno(error).raw_os_error())
}

pub(super) fn inode(ino: INodeNo) -> InodeNumber {
    InodeNumber(ino.0)
}

pub(super) fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid(), umask }
}

pub(super) fn attributes(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.inode.0),
        size: from.size,
        blocks: from.blocks,
        atime: from.accessed,
        mtime: from.modified,
        ctime: from.changed,
        crtime: from.born,
        kind: file_type(from.file_type),
        perm: (from.mode & 0o7777) as u16,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        // The kernel's 32 bits are the lower half of what makedev gives for any number the kernel can have.
        rdev: from.device as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// What a name that does not exist is answered with: inode 0, which the kernel remembers for as long as it is told.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FuseType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// An entry of which a listing tells only number and type.
pub(super) fn bare(inode: InodeNumber, kind: FileType) -> FileAttr {
    FileAttr { ino: INodeNo(inode.0), kind: file_type(kind), ..absent() }
}

pub(super) fn file_type(from: FileType) -> FuseType {
    match from {
        FileType::Regular => FuseType::RegularFile,
        FileType::Directory => FuseType::Directory,
        FileType::Symlink => FuseType::Symlink,
        FileType::BlockDevice => FuseType::BlockDevice,
        FileType::CharDevice => FuseType::CharDevice,
        FileType::Fifo => FuseType::NamedPipe,
        FileType::Socket => FuseType::Socket,
    }
}

/// What mknod(2) is to make. A mode without a type means a regular file.
pub(super) fn node_type(mode: u32) -> Option<FileType> {
    if mode & 0o170_000 == 0 {
        return Some(FileType::Regular);
    }
    match ModeType::from_raw_mode(mode) {
        ModeType::RegularFile => Some(FileType::Regular),
        ModeType::BlockDevice => Some(FileType::BlockDevice),
        ModeType::CharacterDevice => Some(FileType::CharDevice),
        ModeType::Fifo => Some(FileType::Fifo),
        ModeType::Socket => Some(FileType::Socket),
        _ => None,
    }
}

pub(super) fn set_time(from: TimeOrNow) -> SetTime {
    match from {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(instant(time)),
    }
}

/// The time that was meant. Before 1970 fuser 0.18 counts the nanoseconds backwards from the second instead of forwards.
pub(super) fn instant(from: SystemTime) -> SystemTime {
    match UNIX_EPOCH.duration_since(from) {
        Ok(before) => {
            let nanoseconds = Duration::from_nanos(2 * u64::from(before.subsec_nanos()));
            from.checked_add(nanoseconds).unwrap_or(from)
        }
        Err(_) => from,
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}

pub(super) fn allocate_mode(mode: i32) -> Option<AllocateMode> {
    let flags = FallocateFlags::from_bits_retain(mode as u32);
    let keep_size = flags.contains(FallocateFlags::KEEP_SIZE);
    let rest = flags - FallocateFlags::KEEP_SIZE;
    if rest.is_empty() {
        Some(AllocateMode::Allocate { keep_size })
    } else if rest == FallocateFlags::PUNCH_HOLE && keep_size {
        Some(AllocateMode::PunchHole)
    } else if rest == FallocateFlags::ZERO_RANGE {
        Some(AllocateMode::ZeroRange { keep_size })
    } else {
        None
    }
}

pub(super) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    let flags = XattrFlags::from_bits_retain(flags as u32);
    if flags.is_empty() {
        Some(XattrMode::Set)
    } else if flags == XattrFlags::CREATE {
        Some(XattrMode::Create)
    } else if flags == XattrFlags::REPLACE {
        Some(XattrMode::Replace)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // Half a second before 1970 is (-1 s, +0.5 s); fuser makes (-1 s, -0.5 s) of it.
        let from_fuser = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(instant(from_fuser), UNIX_EPOCH - Duration::from_millis(500));
        let whole = UNIX_EPOCH - Duration::from_secs(7);
        assert_eq!(instant(whole), whole);
        let after = UNIX_EPOCH + Duration::from_millis(1500);
        assert_eq!(instant(after), after);
    }

    #[test]
    fn node_types_of_mknod() {
        assert_eq!(node_type(0o644), Some(FileType::Regular));
        assert_eq!(node_type(0o100_644), Some(FileType::Regular));
        assert_eq!(node_type(0o010_600), Some(FileType::Fifo));
        assert_eq!(node_type(0o140_600), Some(FileType::Socket));
        assert_eq!(node_type(0o040_755), None);
    }

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(allocate_mode(0), Some(AllocateMode::Allocate { keep_size: false }));
        assert_eq!(allocate_mode(1), Some(AllocateMode::Allocate { keep_size: true }));
        assert_eq!(allocate_mode(3), Some(AllocateMode::PunchHole));
        assert_eq!(allocate_mode(0x10), Some(AllocateMode::ZeroRange { keep_size: false }));
        assert_eq!(allocate_mode(0x8), None, "a range cannot be cut out");
    }
}
