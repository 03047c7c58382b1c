//! One more descriptor for a connection: requests read from it wait for their answers in a queue of their own, so that
//! threads which each have one do not meet at a lock.
#![expect(unsafe_code, reason = "no safe wrapper knows the ioctl of /dev/fuse")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: makes the descriptor one more of the connection that another belongs to.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Another descriptor of the same connection.
pub(super) fn clone(device: impl AsFd) -> io::Result<OwnedFd> {
    let clone = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_fd().as_raw_fd() as u32;
    // SAFETY: the kernel reads a u32 from the address given, whatever the direction in the opcode says, and nothing else.
    unsafe { ioctl(&clone, Setter::<CLONE, u32>::new(number)) }?;
    Ok(clone.into())
}
