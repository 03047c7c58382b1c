//! The claim on a block device: the kernel lets one at a time have it, be it a process that opened the device with O_EXCL or a file system that
//! is mounted from it.
//!
//! A mount of the type `fuseblk` claims the device for itself, so its daemon lets go right before mount(2), and takes the claim back where it goes on
//! with the volume once the mount has ended. Meanwhile the lock on the device (flock) keeps out other processes of this program. If somebody else gets
//! the claim in between, the device takes no writes any more: it is theirs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// None while a mount has it, and when it is lost.
    held: Mutex<Option<OwnedFd>>,
    /// Whether writes have to ask: it is being taken back, or lost.
    is_doubtful: AtomicBool,
    is_lost: AtomicBool,
}

impl Claim {
    /// That on the device of this name and number, if nobody has it.
    pub(crate) fn take(path: &Path, number: u64) -> Result<Self, Errno> {
        let held = Mutex::new(Some(open(path, number)?));
        let (is_doubtful, is_lost) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { path: path.to_owned(), number, held, is_doubtful, is_lost })
    }

    /// Lets go of it for a mount that takes it over. If that is refused, it is taken again, and this is false.
    ///
    /// # Errors
    /// EBUSY if somebody else was faster, else what open(2) said. It is lost then.
    pub fn hand_over(&self, mount: impl FnMut() -> Result<(), Errno>) -> Result<bool, Errno> {
        self.let_go();
        if while_busy(mount).is_ok() {
            return Ok(true);
        }
        self.take_back(|| false).map(|()| false)
    }

    /// Takes it back from a mount that has ended; nothing if it was not handed over. Writes to the device wait meanwhile. `is_mounted` tells whether
    /// the kernel still has the mount, dead: then the claim stays with that.
    ///
    /// # Errors
    /// EBUSY if somebody else has it, else what open(2) said. It is lost then.
    pub fn take_back(&self, is_mounted: impl Fn() -> bool) -> Result<(), Errno> {
        let mut held = self.held.lock();
        if held.is_some() {
            return Ok(());
        }
        self.is_doubtful.store(true, Ordering::SeqCst);
        let taken = while_busy(|| match open(&self.path, self.number) {
            Err(Errno::BUSY) if is_mounted() => Ok(None),
            taken => taken.map(Some),
        });
        let taken = taken.inspect_err(|_| self.is_lost.store(true, Ordering::SeqCst))?;
        *held = taken;
        self.is_doubtful.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Lets go of it for good, or for a mount. The device stays open.
    pub(crate) fn let_go(&self) {
        *self.held.lock() = None;
    }

    /// False if the device is somebody else's. Waits until that is known.
    pub(crate) fn lets_write(&self) -> bool {
        if !self.is_doubtful.load(Ordering::SeqCst) {
            return true;
        }
        drop(self.held.lock());
        !self.is_lost.load(Ordering::SeqCst)
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
