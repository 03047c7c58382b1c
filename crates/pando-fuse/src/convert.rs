//! What flags of system calls mean to the file system.

use pando_fs::operations::{AllocateMode, Caller, FileType, RenameMode, Seek, XattrMode};
use rustix::fs::{FallocateFlags, FileType as ModeType, RenameFlags, XattrFlags};

use crate::protocol::Header;

pub(crate) fn caller(header: &Header, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask }
}

/// What mknod(2) is to make. A mode without a type means a regular file.
pub(crate) fn node_type(mode: u32) -> Option<FileType> {
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

pub(crate) fn rename_mode(flags: u32, caller: Caller) -> Option<RenameMode> {
    let flags = RenameFlags::from_bits_retain(flags);
    let replace = !flags.contains(RenameFlags::NOREPLACE);
    let rest = flags - RenameFlags::NOREPLACE;
    if rest.is_empty() {
        Some(if replace { RenameMode::Replace } else { RenameMode::NoReplace })
    } else if rest == RenameFlags::EXCHANGE && replace {
        Some(RenameMode::Exchange)
    } else if rest == RenameFlags::WHITEOUT {
        Some(RenameMode::Whiteout { caller, replace })
    } else {
        None
    }
}

pub(crate) fn allocate_mode(mode: u32) -> Option<AllocateMode> {
    let flags = FallocateFlags::from_bits_retain(mode);
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

/// What lseek(2) looks for; the kernel keeps the other kinds to itself.
pub(crate) fn seek(whence: u32) -> Option<Seek> {
    match whence {
        3 => Some(Seek::Data),
        4 => Some(Seek::Hole),
        _ => None,
    }
}

pub(crate) fn xattr_mode(flags: u32) -> Option<XattrMode> {
    let flags = XattrFlags::from_bits_retain(flags);
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
    fn node_types_of_mknod() {
        assert_eq!(node_type(0o644), Some(FileType::Regular));
        assert_eq!(node_type(0o100_644), Some(FileType::Regular));
        assert_eq!(node_type(0o010_600), Some(FileType::Fifo));
        assert_eq!(node_type(0o140_600), Some(FileType::Socket));
        assert_eq!(node_type(0o040_755), None);
    }

    #[test]
    fn modes_of_rename() {
        let caller = Caller { uid: 1, gid: 2, umask: 0 };
        let mode = |flags| rename_mode(flags, caller);
        assert_eq!(
            [0, 1, 2].map(mode),
            [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange].map(Some)
        );
        assert_eq!(mode(4), Some(RenameMode::Whiteout { caller, replace: true }));
        assert_eq!(mode(4 | 1), Some(RenameMode::Whiteout { caller, replace: false }));
        assert_eq!([2 | 1, 4 | 2, 4 | 2 | 1, 8].map(mode), [None; 4]);
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
