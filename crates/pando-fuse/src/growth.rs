//! Which files are growing, and by whose doing.
//!
//! The kernel gives who asks for attributes the size that the answer says; but what can be read of a memory map ends where its own notion of the
//! size ends, which grows only when the thread that made the file grow has taken its answer and gets a core. Who asks in between hears of pages
//! that a map does not have: to touch them is a SIGBUS. So an answer that may tell of them too early is held until that thread has gone on.
//!
//! A thread that makes a file grow says so first and changes the size then; who asks for the size reads it first and looks here then. The kernel
//! lets only one thread at a time make a file grow.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use crate::processes::{Processes, Progress};
use crate::slots::Slots;

/// Each remembers one file. Of two that take a slot from each other the older one's answers are not held.
const SLOTS: usize = 256;

/// So long after a file began to grow no answer is held any more. Who has not gone on by then waits for a core behind many others.
const LONGEST: Duration = Duration::from_millis(20);

/// The first wait for a thread, which is about as long as it takes to wake one; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_micros(50);
const WAIT_MAX: Duration = Duration::from_millis(1);

/// The files that have grown of late.
pub(crate) struct Growth {
    slots: Slots<Option<Growing>>,
    processes: Arc<Processes>,
}

/// A file that may become larger.
#[derive(Debug, Clone)]
pub(crate) struct Growing {
    inode: u64,
    /// Its size then, in bytes, if it was smaller before.
    end: u64,
    /// Who does it.
    thread: u32,
    began: Instant,
    /// Set when the thread has been answered, or is with the system call that comes next.
    answered: Arc<AtomicBool>,
}

/// A change that may make a file grow.
pub(crate) struct Change {
    growth: Arc<Growth>,
    inode: u64,
    thread: u32,
    /// See [`Growing`]; to be given to the reply.
    pub(crate) answered: Arc<AtomicBool>,
}

impl Change {
    /// To be called before the file is changed, each time that is tried: it may have `end` bytes then.
    pub(crate) fn begins(&self, end: u64) {
        let Self { inode, thread, ref answered, .. } = *self;
        let growing = Growing { inode, end, thread, began: Instant::now(), answered: answered.clone() };
        *self.growth.slots.of(inode).lock() = Some(growing);
    }
}

impl Growth {
    pub(crate) fn new(processes: Arc<Processes>) -> Self {
        Self { slots: Slots::new(SLOTS, || None), processes }
    }

    /// A change that a thread of a user makes; `None` if nothing could be known of it.
    pub(crate) fn change(self: &Arc<Self>, inode: u64, thread: u32, uid: u32) -> Option<Change> {
        let change = || Change { growth: self.clone(), inode, thread, answered: Arc::default() };
        self.processes.may_look_at(thread, uid).then(change)
    }

    /// To be called after the size of a file was read for the answer to a thread: what may have made it so large a moment ago, if the kernel may
    /// not know yet.
    pub(crate) fn may_be_news(&self, inode: u64, size: u64, asker: u32) -> Option<Growing> {
        let slot = self.slots.of(inode).lock();
        // A thread waits for each of its answers. And if it makes the file still larger, the kernel knows what was before, unless one write(2)
        // comes in several requests: the first of two mostly fills up the last page, which the kernel has.
        let is_news = |growing: &&Growing| {
            growing.inode == inode
                && growing.end == size
                && growing.thread != asker
                && growing.began.elapsed() < LONGEST
        };
        slot.as_ref().filter(is_news).cloned()
    }

    /// Waits until the kernel knows of it, or for long.
    pub(crate) fn wait(&self, growing: &Growing) {
        let is_last = || {
            let slot = self.slots.of(growing.inode).lock();
            slot.as_ref().is_some_and(|last| Arc::ptr_eq(&last.answered, &growing.answered))
        };
        let progress = || self.processes.progress_of(growing.thread);
        wait(growing, is_last, progress, std::thread::sleep);
    }
}

/// Waits while it is the last growth, and its thread has not gone on since it was answered.
fn wait(
    growing: &Growing,
    is_last: impl Fn() -> bool,
    progress: impl Fn() -> Option<Progress>,
    sleep: impl Fn(Duration),
) {
    let mut pause = FIRST_WAIT;
    let mut before: Option<Progress> = None;
    while is_last() && growing.began.elapsed() < LONGEST {
        if growing.answered.load(Acquire) {
            let Some(now) = progress() else { return };
            match &before {
                // It has had a core since.
                Some(before) if now.ran != before.ran => return,
                // It was woken before, and waits for something else now. At the first look it may not have been woken yet.
                Some(before) if !now.is_runnable && !before.is_runnable => return,
                _ => before = Some(now),
            }
        }
        sleep(pause);
        pause = (2 * pause).min(WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::Ordering::Release;

    use super::*;

    const INODE: u64 = 7;

    fn growing(end: u64, thread: u32) -> Growing {
        Growing { inode: INODE, end, thread, began: Instant::now(), answered: Arc::default() }
    }

    #[test]
    fn news_are_of_another_thread_of_this_size_and_young() {
        let growth = Arc::new(Growth::new(Arc::new(Processes::new())));
        let is_news = |inode, size, asker| growth.may_be_news(inode, size, asker).is_some();
        assert!(!is_news(INODE, 100, 2));
        let uid = rustix::process::geteuid().as_raw();
        let change = growth.change(INODE, 1, uid).expect("tests run where /proc is");
        change.begins(100);
        assert!(is_news(INODE, 100, 2));
        for (inode, size, asker) in [(8, 100, 2), (INODE, 99, 2), (INODE, 101, 2), (INODE, 100, 1)] {
            assert!(!is_news(inode, size, asker), "{inode} {size} {asker}");
        }
        std::thread::sleep(LONGEST);
        assert!(!is_news(INODE, 100, 2));
        assert!(growth.change(INODE, 0, uid).is_none(), "a thread of another namespace");
    }

    /// How often the thread is looked at before the answer is sent; `None` if that is until it is long ago.
    fn looks(
        answered_after: u32,
        is_last: impl Fn(u32) -> bool,
        progress: impl Fn(u32) -> Option<(bool, u64)>,
    ) -> Option<u32> {
        let (looks, sleeps) = (Cell::new(0), Cell::new(0));
        let growing = Growing { began: Instant::now() + 1000 * LONGEST, ..growing(100, 1) };
        let look = || {
            looks.set(looks.get() + 1);
            let (is_runnable, ran) = progress(looks.get())?;
            Some(Progress { is_runnable, ran: [ran, 1] })
        };
        let sleep = |_| {
            sleeps.set(sleeps.get() + 1);
            growing.answered.store(sleeps.get() >= answered_after, Release);
        };
        growing.answered.store(answered_after == 0, Release);
        wait(&growing, || is_last(looks.get()) && sleeps.get() < 100, look, sleep);
        (sleeps.get() < 100).then_some(looks.get())
    }

    #[test]
    fn an_answer_is_held_until_the_thread_has_gone_on() {
        let last = |_| true;
        assert_eq!(looks(0, last, |_| None), Some(1), "it has ended");
        assert_eq!(looks(0, last, |_| Some((false, 1))), Some(2), "it waits");
        assert_eq!(looks(0, last, |look| Some((look < 4, 1))), Some(5), "it waits after a while");
        assert_eq!(looks(0, last, |look| Some((true, u64::from(look / 4)))), Some(4), "it has got a core");
        assert_eq!(looks(0, |looks| looks < 3, |_| Some((true, 1))), Some(3), "it goes on with the next");
        assert_eq!(looks(0, last, |_| Some((true, 1))), None, "it does not get a core");
        assert_eq!(looks(9, last, |_| Some((false, 1))), Some(2), "before, it waits for its answer");
        assert_eq!(looks(1000, last, |_| Some((false, 1))), None, "it is not answered");
    }

    #[test]
    fn what_began_long_ago_is_not_waited_for() {
        let growing = growing(100, 1);
        let begin = Instant::now();
        wait(&growing, || true, || Some(Progress { is_runnable: true, ran: [1, 1] }), std::thread::sleep);
        assert!(begin.elapsed() >= LONGEST / 2);
    }
}
