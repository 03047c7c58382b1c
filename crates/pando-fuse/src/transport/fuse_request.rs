//! The other way round: a program's ioctl on an open file of a FUSE mount, for which there is no safe wrapper.
#![expect(unsafe_code, reason = "no safe wrapper makes an ioctl of a number of our own")]

use std::os::fd::BorrowedFd;

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};

/// `FUSE_SUPER_MAGIC` of linux/magic.h.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// The type of all requests that may be made here: the second byte of their numbers. Nothing in the kernel uses it.
pub(crate) const REQUEST_TYPE: u8 = 0xda;

/// Makes the request `REQUEST` of the daemon behind an open file: `argument` goes there and comes back as the daemon leaves it, each as far
/// as the request's number says. ENOTTY where the file is on no FUSE mount.
pub(crate) fn fuse_request<const REQUEST: Opcode, const LENGTH: usize>(
    file: BorrowedFd<'_>,
    argument: &mut [u8; LENGTH],
) -> Result<(), Errno> {
    const {
        assert!((REQUEST >> 16) & 0x3fff == LENGTH as Opcode, "the request's number says its length");
        assert!((REQUEST >> 8) & 0xff == REQUEST_TYPE as Opcode, "no other type is known to be safe");
    }
    if fstatfs(file)?.f_type as u64 != FUSE_MAGIC {
        return Err(Errno::NOTTY);
    }
    // SAFETY: on a file of a FUSE mount the kernel knows no request of this type, and for those it does not know it reads and writes at most
    // the bytes that the request's number says: those of `argument`.
    unsafe { ioctl(file, Updater::<REQUEST, [u8; LENGTH]>::new(argument)) }
}
