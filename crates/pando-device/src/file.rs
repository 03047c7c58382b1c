//! A regular file or a block device, with direct I/O where the file system below takes it.
//!
//! A batch of one request is a plain `preadv` or `pwritev` on the calling thread: waking another core costs more than
//! it could save. A larger batch goes through io_uring, or through a few threads where the kernel offers no ring.
//!
//! Promises, beside those of [`Device`]:
//!
//! * FD-1 at most one process has a volume open for writing, and none has it open for reading meanwhile: a lock on
//!   the file (flock) and, on a block device, a claim (O_EXCL), which keeps out the kernel's own file systems, too, and which a mount may take over
//!   (`claim.rs`). A file that a loop device is
//!   over is not opened, and no loop device over a file that is open so: who opens the file locks it before it looks for loop devices, and
//!   who opens a loop device looks for locks of its file, and of other loop devices over the same bytes of it.
//! * FD-2 an open device belongs to the process that opened it: a child made by fork must not use it (rings do not
//!   survive a fork), so a daemon opens its volume after it has detached itself.
//! * FD-3 a failed flush is never repeated in the hope of success: after buffered writes the kernel forgets what it
//!   could not write, so whoever gets the error must take the volume for broken. It tells only one of those who flush at the same time;
//!   here all of them get the error (`flushes.rs`).

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::claim::Claim;
use crate::flushes::Flushes;
use crate::transfer::{Failure, Transfer, aligned_pieces};
use crate::uring::Rings;
use crate::{BLOCK_SIZE, Device, DeviceError, ReadRequest, WriteRequest, loops, pool};

/// How often, and how long apart, what is in use is tried. Uses that pass by themselves: of a process that was killed, until
/// the kernel has ended the requests of its rings, which hold the file after everything else of the process is gone; of
/// whoever probes new block devices (udev), who holds the lock for a moment whenever a writer has closed one; of a child that
/// another thread has forked, which keeps a descriptor closed meanwhile until it executes its program.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// What may be done with an open volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads only, shared with other readers.
    ReadOnly,
    /// Reads and writes, alone.
    Exclusive,
}

/// An open file or block device.
pub struct FileDevice {
    file: OwnedFd,
    /// Of a block device that may be written to.
    claim: Option<Arc<Claim>>,
    path: PathBuf,
    capacity: u64,
    is_block_device: bool,
    is_direct: bool,
    /// Without them batches go through threads.
    rings: Option<Rings>,
    flushes: Flushes,
    /// Set once discard turned out not to be supported.
    discard_refused: AtomicBool,
}

impl FileDevice {
    /// Opens what is there. Its capacity is that of this moment, in whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if somebody else has it open in a way that excludes this, else [`DeviceError::Io`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, DeviceError> {
        Self::open_freeing(path.as_ref(), access, || false)
    }

    /// Opens what is there to write to it. If it is a block device that somebody has claimed, but no process of this program has open, `free` may see to
    /// it that it is let go of; it tells whether it has.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_claimed(path: impl AsRef<Path>, free: impl Fn() -> bool) -> Result<Self, DeviceError> {
        Self::open_freeing(path.as_ref(), Access::Exclusive, free)
    }

    fn open_freeing(path: &Path, access: Access, free: impl Fn() -> bool) -> Result<Self, DeviceError> {
        let failed = |code| open_error(path, code);
        let flags = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::Exclusive => OFlags::RDWR,
        };
        let (file, is_direct) = while_busy(|| open_direct(path, flags, Mode::empty())).map_err(failed)?;
        let number = rustix::fs::fstat(&file).map_err(failed)?.st_rdev;
        let mut device = Self::adopt(file, path, is_direct, access)?;
        // Behind the lock: a mount of this program that is just taking a claim over is not disturbed.
        if device.is_block_device && access == Access::Exclusive {
            let take = || while_busy(|| Claim::take(path, number));
            let claim = match take() {
                Err(Errno::BUSY) if free() => take(),
                taken => taken,
            };
            device.claim = Some(Arc::new(claim.map_err(failed)?));
        }
        Ok(device)
    }

    /// Makes an image file of `length` bytes, sparse, readable by its owner alone, and opens it. The file and its
    /// name are durable when this returns.
    ///
    /// # Errors
    /// [`DeviceError::Io`], among others where a file of that name is there. Nothing is left of one that could not be made.
    pub fn create(path: impl AsRef<Path>, length: u64) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let mode = Mode::RUSR | Mode::WUSR;
        let (file, is_direct) = open_direct(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
            .map_err(|code| open_error(path, code))?;
        Self::fill(file, path, is_direct, length).inspect_err(|_| {
            // If it cannot be removed, the error names it anyway.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Gives a file that was just made its length.
    fn fill(file: OwnedFd, path: &Path, is_direct: bool, length: u64) -> Result<Self, DeviceError> {
        let failed = |code| open_error(path, code);
        rustix::fs::ftruncate(&file, length).map_err(failed)?;
        rustix::fs::fsync(&file).map_err(failed)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = File::open(directory).map_err(|error| io_error(path, "open", 0, errno(&error)))?;
        rustix::fs::fsync(&directory).map_err(failed)?;
        Self::adopt(file, path, is_direct, Access::Exclusive)
    }

    fn adopt(file: OwnedFd, path: &Path, is_direct: bool, access: Access) -> Result<Self, DeviceError> {
        let failed = |code| open_error(path, code);
        let file = File::from(file);
        let status = file.metadata().map_err(|error| io_error(path, "open", 0, errno(&error)))?;
        let is_block_device = status.file_type().is_block_device();
        if status.is_dir() {
            return Err(failed(Errno::ISDIR));
        }
        if !is_block_device && !status.is_file() {
            return Err(failed(Errno::NOTBLK));
        }
        let file = OwnedFd::from(file);
        lock(&file, access).map_err(failed)?;
        // A loop device that was let go of stays as long as somebody looks at it, udev for one.
        let look = || loops::over(&status).map_or(Ok(()), |_| Err(Errno::BUSY));
        let is_below_loops = while_busy(look).is_err();
        let used_by_other_name = is_below_loops
            || is_block_device
                && (loops::behind(status.rdev()).is_some_and(|file| is_claimed(&file, access))
                    || loops::beside(status.rdev()).iter().any(|device| is_claimed(device, access)));
        if used_by_other_name {
            return Err(failed(Errno::BUSY));
        }
        // Seeking to the end tells the size of a block device as well.
        let length = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(failed)?;
        Ok(Self {
            file,
            claim: None,
            path: path.to_owned(),
            capacity: length - length % BLOCK_SIZE as u64,
            is_block_device,
            is_direct,
            rings: Rings::probe(),
            flushes: Flushes::default(),
            discard_refused: AtomicBool::new(false),
        })
    }

    /// The claim on a block device that may be written to, for who hands it over to a mount. It ends with the device, whoever else has it.
    pub fn claim(&self) -> Option<Arc<Claim>> {
        self.claim.clone()
    }

    /// What is open, which something else may have come to the path of.
    ///
    /// # Errors
    /// That of fstat(2), or where no descriptor is left.
    pub fn metadata(&self) -> std::io::Result<Metadata> {
        File::from(self.file.try_clone()?).metadata()
    }

    /// Refuses what lies outside. A request that is not made of whole blocks is a mistake of the caller.
    fn check(&self, offset: u64, length: usize) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(BLOCK_SIZE as u64), "offset {offset} is not a multiple of a block");
        assert!(length.is_multiple_of(BLOCK_SIZE), "length {length} is not a multiple of a block");
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, length: length as u64, capacity: self.capacity }),
        }
    }

    /// Moves transfers, and does other work meanwhile, if there is any.
    fn run(
        &self,
        action: &'static str,
        transfers: &mut [Transfer<'_>],
        work: Option<&mut dyn FnMut()>,
    ) -> Result<(), DeviceError> {
        let file = self.file.as_fd();
        let ring = || self.rings.as_ref().and_then(|rings| Some((rings, rings.take()?)));
        let result = match (transfers, work) {
            ([], None) => Ok(()),
            ([single], None) => single.finish(file),
            (transfers, work) => match ring() {
                Some((rings, mut ring)) => {
                    let result = ring.run(file, transfers, work);
                    rings.give_back(ring);
                    result
                }
                None => pool::run(file, transfers, work),
            },
        };
        result.map_err(|failure| self.explain(action, failure))
    }

    /// Refuses to change a device that has become somebody else's.
    fn check_claim(&self) -> Result<(), DeviceError> {
        let checked = self.claim.as_ref().map_or(Ok(()), |claim| claim.check());
        checked.map_err(|code| open_error(&self.path, code))
    }

    fn write_and(&self, batch: &[WriteRequest], work: Option<&mut dyn FnMut()>) -> Result<(), DeviceError> {
        if !self.is_direct {
            let mut transfers: Vec<_> = batch.iter().map(|r| Transfer::write(r.offset, &r.pieces)).collect();
            return self.run("write", &mut transfers, work);
        }
        let aligned: Vec<(u64, Vec<Bytes>)> = batch.iter().map(|r| (r.offset, aligned_pieces(r))).collect();
        let mut transfers: Vec<_> =
            aligned.iter().map(|(offset, pieces)| Transfer::write(*offset, pieces)).collect();
        self.run("write", &mut transfers, work)
    }

    /// Refuses a batch of which a part lies outside, or for a device that has become somebody else's.
    fn check_all(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.check_claim()?;
        for request in batch {
            let mut end = request.offset;
            for piece in &request.pieces {
                self.check(end, piece.len())?;
                end += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn explain(&self, action: &'static str, failure: Failure) -> DeviceError {
        match failure.code {
            Some(code) => io_error(&self.path, action, failure.offset, code),
            // The file was cut behind our back.
            None => DeviceError::OutOfRange {
                offset: failure.offset,
                length: BLOCK_SIZE as u64,
                capacity: rustix::fs::fstat(&self.file).map_or(0, |status| status.st_size.cast_unsigned()),
            },
        }
    }
}

impl Drop for FileDevice {
    /// Unlocks by name: a child that another thread has just forked holds the descriptor, and with it the lock, until it executes
    /// its program.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        if let Some(claim) = &self.claim {
            claim.let_go();
        }
    }
}

impl Device for FileDevice {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        for request in batch.iter() {
            self.check(request.offset, request.buffer.len())?;
        }
        let mut transfers: Vec<_> = batch.iter_mut().map(Transfer::read).collect();
        self.run("read", &mut transfers, None)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.check_all(batch)?;
        self.write_and(batch, None)
    }

    fn write_meanwhile(&self, batch: &[WriteRequest], work: &mut dyn FnMut()) -> Result<(), DeviceError> {
        if let Err(error) = self.check_all(batch) {
            work();
            return Err(error);
        }
        self.write_and(batch, Some(work))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let flush = || rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file));
        self.flushes.run(flush).map_err(|code| io_error(&self.path, "flush", 0, code))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let capacity = self.capacity;
        if offset.checked_add(length).is_none_or(|end| end > capacity) {
            return Err(DeviceError::OutOfRange { offset, length, capacity });
        }
        if length == 0 || self.discard_refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.check_claim()?;
        let once = || {
            if self.is_block_device {
                return crate::discard::discard_blocks(self.file.as_fd(), offset, length);
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, offset, length)
        };
        let result = rustix::io::retry_on_intr(once);
        match result {
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => {
                self.discard_refused.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => other.map_err(|code| io_error(&self.path, "discard", offset, code)),
        }
    }

    fn name(&self) -> String {
        let path = self.path.display();
        if self.is_direct { path.to_string() } else { format!("{path} (without direct I/O)") }
    }
}

/// Opens with O_DIRECT, or without where the file system refuses it; the flag says which.
fn open_direct(path: &Path, flags: OFlags, mode: Mode) -> Result<(OwnedFd, bool), Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        Err(Errno::INVAL) => {
            // A refused open may have made the file already; it is ours then, so O_EXCL must not refuse it.
            let flags = if flags.contains(OFlags::CREATE) { flags - OFlags::EXCL } else { flags };
            Ok((rustix::fs::open(path, flags, mode)?, false))
        }
        other => Ok((other?, true)),
    }
}

/// FD-1. The lock goes with the open file, so it ends with the process, however that ends.
fn lock(file: &OwnedFd, access: Access) -> Result<(), Errno> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    while_busy(|| rustix::fs::flock(file, operation))
}

/// How to open what is only looked at.
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// As [`is_locked`], of what may be a block device, which the kernel's own file systems claim without a lock.
fn is_claimed(path: &Path, access: Access) -> bool {
    let claim = || rustix::fs::open(path, LOOK | OFlags::EXCL, Mode::empty());
    while_busy(claim).is_err_and(|code| code == Errno::BUSY) || is_locked(path, access)
}

/// Whether somebody has a file open in a way that excludes this. Who may not open it is told that nobody has.
fn is_locked(path: &Path, access: Access) -> bool {
    let Ok(file) = rustix::fs::open(path, LOOK, Mode::empty()) else { return false };
    let locked = lock(&file, access);
    let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
    locked == Err(Errno::WOULDBLOCK)
}

/// Makes a call that somebody else's use of the device may refuse, again and again for a second, since that use may be a
/// passing one.
pub(crate) fn while_busy<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut tries = BUSY_TRIES;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK | Errno::BUSY) if tries > 1 => {
                tries -= 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}

fn open_error(path: &Path, code: Errno) -> DeviceError {
    match code {
        Errno::WOULDBLOCK | Errno::BUSY => DeviceError::InUse { device: path.display().to_string() },
        code => io_error(path, "open", 0, code),
    }
}

fn io_error(path: &Path, action: &'static str, offset: u64, code: Errno) -> DeviceError {
    DeviceError::Io { action, device: path.display().to_string(), offset, code: code.raw_os_error() }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
