//! Files that are written past the kernel's cache (`O_DIRECT`) while they are read or written through it.
//!
//! The kernel drops the pages that such a write makes untrue before it sends the write, and afterwards only if the writer waits for it: not if it
//! was handed in by io_submit(2) or io_uring, which we cannot tell. What comes to the cache in between would stay there, older than what is stored. So
//! that is noted, and a write past the cache that finds a note has the contents forgotten.
//!
//! They are forgotten behind the answer. A read keeps its pages locked while it waits to be sent, and the kernel sends only so many requests at a
//! time: an answer that waited for those pages might be what the read waits for.
//!
//! Forgetting has a price: the pages of a write through the cache are there before it is sent, and may be forgotten and read anew before it arrives.
//! So such a write has contents forgotten, too, if some were read since a write past the cache.
//!
//! One lock, held for no call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_fs::{InodeNumber, Result};
use parking_lot::Mutex;

use crate::notifier::Forgetter;
use crate::recent::Recent;

/// Files that are remembered. Of one that is not, the next write past the cache has all forgotten.
const FILES_MAX: usize = 1024;

/// A write through the cache arrives within this time after its pages have come there.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(10);

/// The files that were written past the cache of late.
pub(crate) struct DirectWrites {
    /// If there is any: most volumes have none, and their reads and writes take no lock.
    any: AtomicBool,
    files: Mutex<Recent<InodeNumber, Cached>>,
    forgetter: Arc<Forgetter>,
}

/// What has come to the cache since it last had to forget all of a file.
struct Cached {
    by_reads: bool,
    by_writes: bool,
    /// When the file was last written past it.
    passed: Instant,
}

impl Cached {
    fn nothing() -> Self {
        Self { by_reads: false, by_writes: false, passed: Instant::now() }
    }
}

impl DirectWrites {
    pub(crate) fn new(forgetter: Arc<Forgetter>) -> Self {
        Self { any: AtomicBool::new(false), files: Mutex::new(Recent::new(FILES_MAX)), forgetter }
    }

    /// To be called before contents are read for the cache.
    pub(crate) fn will_read(&self, inode: InodeNumber) {
        // Of a read that comes too early to see the first write, the pages are found when all is forgotten: they are locked until it is answered.
        self.note(inode, |cached| cached.by_reads = true);
    }

    /// Makes a write, past the cache or through it, and has forgotten what may be older there.
    pub(crate) fn write<T>(
        &self,
        inode: InodeNumber,
        direct: bool,
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !direct {
            self.note(inode, |cached| cached.by_writes = true);
        }
        let written = write()?;
        if if direct { self.passed(inode) } else { self.went_through(inode) } {
            self.forgetter.forget_contents([inode]);
        }
        Ok(written)
    }

    /// After a write past the cache: whether that may hold what is older.
    fn passed(&self, inode: InodeNumber) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let mut files = self.files.lock();
        let Some(cached) = files.get_mut(&inode) else {
            // Who had read it before is not known.
            files.insert(inode, Cached::nothing());
            return true;
        };
        let before = std::mem::replace(cached, Cached::nothing());
        before.by_reads || before.by_writes
    }

    /// After a write through the cache: whether pages of it may have been forgotten and read before it came.
    fn went_through(&self, inode: InodeNumber) -> bool {
        let mut were_read = false;
        self.note(inode, |cached| {
            if cached.passed.elapsed() < ON_ITS_WAY_MAX {
                were_read = std::mem::take(&mut cached.by_reads);
            }
        });
        were_read
    }

    fn note(&self, inode: InodeNumber, change: impl FnOnce(&mut Cached)) {
        if self.any.load(Ordering::SeqCst) {
            self.files.lock().get_mut(&inode).map(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Device;

    const FILE: InodeNumber = InodeNumber(7);

    fn direct_writes() -> DirectWrites {
        let nowhere = std::fs::File::options().write(true).open("/dev/null").unwrap();
        DirectWrites::new(Forgetter::new(&Arc::new(Device::new(nowhere.into()))))
    }

    #[test]
    fn a_write_past_the_cache_has_forgotten_what_came_there_since_the_last() {
        let writes = direct_writes();
        writes.will_read(FILE);
        assert!(writes.passed(FILE), "who had read the file before is not known");
        assert!(!writes.passed(FILE));
        writes.will_read(InodeNumber(FILE.0 + 1));
        assert!(!writes.passed(FILE));
        writes.will_read(FILE);
        assert!(writes.passed(FILE));
        assert!(!writes.passed(FILE));
        writes.write(FILE, false, || Ok(())).unwrap();
        assert!(writes.passed(FILE));
    }

    #[test]
    fn a_write_through_the_cache_has_forgotten_what_was_read_while_it_was_on_its_way() {
        let writes = direct_writes();
        writes.will_read(FILE);
        assert!(!writes.went_through(FILE), "nobody has passed the cache by");
        writes.passed(FILE);
        assert!(!writes.went_through(FILE));
        writes.will_read(FILE);
        assert!(writes.went_through(FILE));
        assert!(!writes.went_through(FILE));
        writes.will_read(FILE);
        writes.note(FILE, |cached| cached.passed -= ON_ITS_WAY_MAX);
        assert!(!writes.went_through(FILE), "it is long since");
        assert!(writes.passed(FILE));
    }

    #[test]
    fn a_file_that_is_not_remembered_any_more_counts_as_read() {
        let writes = direct_writes();
        (0..=FILES_MAX as u64).for_each(|file| assert!(writes.passed(InodeNumber(file))));
        assert!(!writes.passed(InodeNumber(1)));
        assert!(writes.passed(InodeNumber(0)));
    }
}
