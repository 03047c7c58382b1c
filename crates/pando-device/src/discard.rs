//! BLKDISCARD, the one request to a block device that has no safe wrapper.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Tells a block device that a range holds nothing any more.
pub(crate) fn discard_blocks(device: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64, offset and length, through its pointer argument.
    unsafe {
        let request = Setter::<BLKDISCARD, [u64; 2]>::new([offset, length]);
        ioctl(device, request)
    }
}
