//! Files that are written past the kernel's cache (`O_DIRECT`) while they are read or written through it.
//!
//! The kernel drops the pages that such a write makes untrue before it sends the write, and afterwards only if the writer waits for it: not if it
//! was handed in by io_submit(2) or io_uring, which we cannot tell. What comes to the cache in between would stay there, older than what is stored. So
//! that is noted, and a write past the cache that finds a note is answered when the kernel has forgotten the contents, as a rule (`later.rs`). Where
//! many such answers wait, it is answered first.
//!
//! Forgetting has a price: the pages of a write through the cache are there before it is sent, and may be forgotten and read anew before it arrives.
//! So such a write has contents forgotten, too, if some were read since a write past the cache. Its own may be locked until it is answered, so it does
//! not wait. What the kernel has collected is not forgotten before it has arrived.
//!
//! One lock, held for no call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pando_fs::InodeNumber;
use parking_lot::Mutex;

use crate::notifier::{Forgetter, Notifier};
use crate::protocol::{Answer, Kept};
use crate::recent::Recent;

/// Files that are remembered. Of one that is not, the next write past the cache has all forgotten.
const FILES_MAX: usize = 1024;

/// So many answers wait for contents to be forgotten: fewer than there are requests under way that nobody waits for by name, since the reads that have
/// contents locked are among these.
const WAITING_MAX: usize = 16;

/// A write through the cache arrives within this time after its pages have come there.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(10);

/// The files that were written past the cache of late.
pub(crate) struct DirectWrites {
    /// If there is any: most volumes have none, and their reads and writes take no lock.
    any: AtomicBool,
    files: Mutex<Recent<InodeNumber, Cached>>,
    /// Answers that wait.
    waiting: AtomicUsize,
    /// The kernel keeps sizes and times itself, and goes by no others.
    kernel_keeps_times: bool,
    notifier: Notifier,
    forgetter: Arc<Forgetter>,
}

/// What has come to the cache since it last had to forget all of a file.
struct Cached {
    by_reads: bool,
    by_writes: bool,
    /// Threads that have it forget all of the file now: until they have, it may still show some.
    forgetting: u32,
    /// When all was last to be forgotten, or the file written past the cache.
    passed: Instant,
}

impl DirectWrites {
    pub(crate) fn new(kernel_keeps_times: bool, notifier: Notifier, forgetter: Arc<Forgetter>) -> Self {
        let files = Mutex::new(Recent::new(FILES_MAX));
        let (any, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { any, files, waiting, kernel_keeps_times, notifier, forgetter }
    }

    /// To be called before contents are read for the cache.
    pub(crate) fn will_read(&self, inode: InodeNumber) {
        // Of a read that comes too early to see the first write, the pages are found when all is forgotten: they are locked until it is answered.
        self.note(inode, |cached| cached.by_reads = true);
    }

    /// To be called before a write through the cache.
    pub(crate) fn will_write(&self, inode: InodeNumber) {
        self.note(inode, |cached| cached.by_writes = true);
    }

    /// The answer to a write past the cache that has been made, now or when contents have been forgotten.
    pub(crate) fn passed(self: &Arc<Self>, inode: InodeNumber, answer: Answer) -> Answer {
        if !self.must_forget(inode) {
            return answer;
        }
        let one_more = |waiting| (waiting < WAITING_MAX).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_err() {
            self.forgetter.forget_contents([inode]);
            self.has_forgotten(inode);
            return answer;
        }
        let writes = self.clone();
        // Pages are locked while a read of them is under way, which may wait for the thread at hand.
        let forget = move || {
            writes.notifier.forget_contents(inode);
            writes.has_forgotten(inode);
            writes.waiting.fetch_sub(1, Ordering::AcqRel);
        };
        Answer::Later(Box::new(answer), Box::new(forget))
    }

    /// For how long the kernel may go by attributes that have been read by now. Of a write past the cache that was handed in it takes it that the
    /// attributes are others since then, not since the answer; who asked in between would see to it that the times stayed old.
    pub(crate) fn kept(&self, inode: InodeNumber) -> Kept {
        let is_written =
            !self.kernel_keeps_times && self.any.load(Ordering::SeqCst) && self.files.lock().contains(&inode);
        if is_written { Kept::No } else { Kept::Forever }
    }

    /// When a write through the cache arrives that is at hand now, for [`Self::went_through`].
    pub(crate) fn arrival(&self) -> Option<Instant> {
        self.any.load(Ordering::SeqCst).then(Instant::now)
    }

    /// To be called after a write through the cache that arrived then.
    pub(crate) fn went_through(&self, inode: InodeNumber, arrived: Option<Instant>) {
        if self.may_have_been_read_on_the_way(inode, arrived) {
            self.forgetter.forget_contents([inode]);
        }
    }

    /// After a write past the cache: whether that may hold what is older. If so, [`Self::has_forgotten`] follows.
    fn must_forget(&self, inode: InodeNumber) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let mut files = self.files.lock();
        let passed = Instant::now();
        let Some(cached) = files.get_mut(&inode) else {
            // Who had read it before is not known.
            files.insert(inode, Cached { by_reads: false, by_writes: false, forgetting: 1, passed });
            return true;
        };
        let must_forget = cached.by_reads || cached.by_writes || cached.forgetting > 0;
        let forgetting = cached.forgetting + u32::from(must_forget);
        *cached = Cached { by_reads: false, by_writes: false, forgetting, passed };
        must_forget
    }

    fn has_forgotten(&self, inode: InodeNumber) {
        // One that was new again meanwhile counts one less.
        self.note(inode, |cached| cached.forgetting = cached.forgetting.saturating_sub(1));
    }

    /// After a write through the cache: whether pages of it may have been forgotten and read before it came.
    fn may_have_been_read_on_the_way(&self, inode: InodeNumber, arrived: Option<Instant>) -> bool {
        let mut were_read = false;
        self.note(inode, |cached| {
            // If nothing had been written past the cache before it arrived, it was since.
            if arrived.is_none_or(|arrived| arrived < cached.passed + ON_ITS_WAY_MAX) && cached.by_reads {
                (cached.by_reads, cached.passed) = (false, Instant::now());
                were_read = true;
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

    fn direct_writes() -> Arc<DirectWrites> {
        direct_writes_where(false)
    }

    fn direct_writes_where(kernel_keeps_times: bool) -> Arc<DirectWrites> {
        let nowhere = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let device = Arc::new(Device::new(nowhere.into()));
        Arc::new(DirectWrites::new(kernel_keeps_times, Notifier::new(&device), Forgetter::new(&device)))
    }

    /// Whether a write past the cache waits until contents have been forgotten, which they then are.
    fn waits(writes: &Arc<DirectWrites>, inode: InodeNumber) -> bool {
        match writes.passed(inode, Answer::Done) {
            Answer::Later(_, forget) => {
                forget();
                true
            }
            _ => false,
        }
    }

    #[test]
    fn a_write_past_the_cache_has_forgotten_what_came_there_since_the_last() {
        let writes = direct_writes();
        writes.will_read(FILE);
        assert!(waits(&writes, FILE), "who had read the file before is not known");
        assert!(!waits(&writes, FILE));
        writes.will_read(InodeNumber(FILE.0 + 1));
        assert!(!waits(&writes, FILE));
        writes.will_read(FILE);
        assert!(waits(&writes, FILE));
        assert!(!waits(&writes, FILE));
        writes.will_write(FILE);
        assert!(waits(&writes, FILE));
    }

    #[test]
    fn nobody_is_told_of_a_write_while_older_contents_are_still_being_forgotten() {
        let writes = direct_writes();
        let Answer::Later(_, forget) = writes.passed(FILE, Answer::Done) else { panic!("it is the first") };
        assert!(waits(&writes, FILE));
        assert!(waits(&writes, FILE));
        forget();
        assert!(!waits(&writes, FILE));
    }

    #[test]
    fn only_so_many_answers_wait() {
        let writes = direct_writes();
        let answers = (0..2 * WAITING_MAX).map(|_| writes.passed(FILE, Answer::Done));
        let waiting: Vec<_> = answers.filter(|answer| matches!(answer, Answer::Later(..))).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        for answer in waiting {
            let Answer::Later(_, forget) = answer else { unreachable!() };
            forget();
        }
        assert!(!waits(&writes, FILE));
        writes.will_read(FILE);
        assert!(waits(&writes, FILE));
    }

    #[test]
    fn a_write_through_the_cache_has_forgotten_what_was_read_while_it_was_on_its_way() {
        let writes = direct_writes();
        let read_on_the_way = || writes.may_have_been_read_on_the_way(FILE, Some(Instant::now()));
        writes.will_read(FILE);
        assert!(!read_on_the_way(), "nobody has passed the cache by");
        assert!(waits(&writes, FILE));
        assert!(!read_on_the_way());
        writes.will_read(FILE);
        assert!(read_on_the_way());
        assert!(!read_on_the_way());
        writes.will_read(FILE);
        writes.note(FILE, |cached| cached.passed -= ON_ITS_WAY_MAX);
        assert!(!read_on_the_way(), "it is long since");
        assert!(waits(&writes, FILE));
    }

    #[test]
    fn attributes_of_a_file_that_is_written_past_the_cache_are_kept_only_where_the_kernel_has_its_own() {
        for (kernel_keeps_times, kept) in [(false, Kept::No), (true, Kept::Forever)] {
            let writes = direct_writes_where(kernel_keeps_times);
            assert_eq!(writes.kept(FILE), Kept::Forever);
            writes.passed(FILE, Answer::Done);
            assert_eq!(writes.kept(FILE), kept);
        }
    }

    #[test]
    fn a_file_that_is_not_remembered_any_more_counts_as_read() {
        let writes = direct_writes();
        (0..=FILES_MAX as u64).for_each(|file| assert!(waits(&writes, InodeNumber(file))));
        assert!(!waits(&writes, InodeNumber(1)));
        assert_eq!([0, 1].map(|file| writes.kept(InodeNumber(file))), [Kept::Forever, Kept::No]);
        assert!(waits(&writes, InodeNumber(0)));
    }
}
