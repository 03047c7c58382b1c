//! The claim on a block device: the kernel lets one at a time have it, be it a process that opened the device with O_EXCL or a file system that
//! is mounted from it.
//!
//! A mount of the type `fuseblk` claims the device for itself, so its daemon lets go right before mount(2), and takes the claim again if that was
//! refused, or where it goes on with the volume once the mount has ended. Meanwhile the lock on the device (flock) keeps out other processes of
//! this program.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::file::while_busy;

/// See the module.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// Which device it is, whatever its name may come to stand for.
    number: u64,
    held: Mutex<Option<OwnedFd>>,
}

impl Claim {
    /// That on the device of this name and number, if nobody has it.
    pub(crate) fn take(path: &Path, number: u64) -> Result<Self, Errno> {
        let held = Mutex::new(Some(open(path, number)?));
        Ok(Self { path: path.to_owned(), number, held })
    }

    /// Lets go of it. The device stays open.
    pub fn let_go(&self) {
        *self.held.lock() = None;
    }

    /// Takes it again. Who has it may be about to let go of it, and gets a second for that.
    ///
    /// # Errors
    /// EBUSY if somebody else has it, else what open(2) said.
    pub fn take_again(&self) -> Result<(), Errno> {
        let mut held = self.held.lock();
        if held.is_none() {
            *held = Some(while_busy(|| open(&self.path, self.number))?);
        }
        Ok(())
    }
}

/// Reading only: whoever watches for writers that close a device, as udev does, has nothing to look at.
fn open(path: &Path, number: u64) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::fs::fstat(&file)?.st_rdev == number {
        true => Ok(file),
        false => Err(Errno::NXIO),
    }
}
