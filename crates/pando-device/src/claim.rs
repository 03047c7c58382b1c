//! The claim on a block device: the kernel lets one at a time have it, be it a process that opened the device with O_EXCL or a file system that
//! is mounted from it.
//!
//! A mount of the type `fuseblk` claims the device for itself, so its daemon lets go right before mount(2), and takes the claim back where it goes on
//! with the volume once the mount has ended. Meanwhile the lock on the device (flock) keeps out other processes of this program. If somebody else gets
//! the claim in between, the device takes no writes any more: it is theirs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::file::while_busy;

/// So long a kernel may take apart what it has cached of a mount, and then let go of the device.
const END_TIME_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// See the module.
pub struct Claim {
    path: PathBuf,
    /// Which device it is, whatever its name may come to stand for.
    number: u64,
    state: Mutex<State>,
    /// Whether writes have to ask: who had it is to give it back, or it is lost.
    is_doubtful: AtomicBool,
}

/// Whether the kernel still has a mount that took the claim over.
type IsMounted = Box<dyn Fn() -> bool + Send>;

enum State {
    Held {
        _file: OwnedFd,
    },
    /// A mount has it, or nobody any more.
    LetGo,
    /// The mount has ended, or will.
    ToComeBack(IsMounted),
    Lost(Errno),
}

impl Claim {
    /// That on the device of this name and number, if nobody has it.
    pub(crate) fn take(path: &Path, number: u64) -> Result<Self, Errno> {
        let state = Mutex::new(State::Held { _file: open(path, number)? });
        Ok(Self { path: path.to_owned(), number, state, is_doubtful: AtomicBool::new(false) })
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
        self.comes_back(|| false);
        self.check().map(|()| false)
    }

    /// Is to be said when the mount that took it over has ended, or will: from now on each write takes the claim back, or waits until it can be taken.
    /// `is_mounted` tells whether the kernel still has the mount; as long as it has, that keeps the claim, and writes go on.
    pub fn comes_back(&self, is_mounted: impl Fn() -> bool + Send + 'static) {
        let mut state = self.state.lock();
        if matches!(*state, State::LetGo) {
            self.is_doubtful.store(true, Ordering::SeqCst);
            *state = State::ToComeBack(Box::new(is_mounted));
        }
    }

    /// What each write asks.
    ///
    /// # Errors
    /// EBUSY if somebody else has it, else what open(2) said. It is lost then: nothing is written any more.
    pub fn check(&self) -> Result<(), Errno> {
        match self.is_doubtful.load(Ordering::SeqCst) {
            false => Ok(()),
            true => self.settle(&mut self.state.lock()),
        }
    }

    /// Lets go of it for good, or for a mount. The device stays open.
    pub(crate) fn let_go(&self) {
        *self.state.lock() = State::LetGo;
    }

    fn settle(&self, state: &mut State) -> Result<(), Errno> {
        let begin = Instant::now();
        loop {
            let is_mounted = match state {
                State::Held { .. } | State::LetGo => return Ok(()),
                State::Lost(errno) => return Err(*errno),
                State::ToComeBack(is_mounted) => is_mounted,
            };
            let errno = match open(&self.path, self.number) {
                Ok(_file) => {
                    *state = State::Held { _file };
                    self.is_doubtful.store(false, Ordering::SeqCst);
                    return Ok(());
                }
                Err(Errno::BUSY) if is_mounted() => return Ok(()),
                Err(errno) => errno,
            };
            if begin.elapsed() > END_TIME_MAX {
                *state = State::Lost(errno);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
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
