//! Which files are growing, and by whose doing.
//!
//! The kernel gives who asks for attributes the size that the answer says; but what can be read of a memory map ends where its own notion of the
//! size ends, which grows only when the thread that made the file grow has taken its answer and gets a core. Who asks in between hears of pages
//! that a map does not have: to touch them is a SIGBUS. So an answer that may tell of them too early is held until that thread has gone on.
//!
//! A thread that makes a file grow says so first and changes the size then; who asks for the size reads it first and looks here then. The kernel
//! lets only one thread at a time make a file grow.
//!
//! Each slot has a lock, held for a few instructions, and no other lock is taken under it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::processes::{Processes, Progress};

/// Each remembers one file. Of two that take a slot from each other the older one's answers are not held.
const SLOTS: usize = 256;

/// For so long an answer is held at most. Who has not gone on by then waits for a core behind many others.
const LONGEST: Duration = Duration::from_millis(50);

/// The first wait for a thread, which is about as long as it takes to wake one; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_micros(50);
const WAIT_MAX: Duration = Duration::from_millis(1);

/// The files that have grown of late.
pub(crate) struct Growth {
    slots: Box<[Mutex<Option<Growing>>]>,
    processes: Processes,
}

/// A file that may become larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Growing {
    inode: u64,
    /// Its size then, in bytes, if it was smaller before.
    end: u64,
    /// Who does it.
    thread: u32,
    began: Instant,
}

impl Growth {
    pub(crate) fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| Mutex::default()).collect(), processes: Processes::new() }
    }

    /// To be called before a thread changes a file that may have `end` bytes then.
    pub(crate) fn begins(&self, inode: u64, end: u64, thread: u32) {
        *self.slot(inode).lock() = Some(Growing { inode, end, thread, began: Instant::now() });
    }

    /// To be called after the size of a file was read for the answer to a thread: what may have made it so large a moment ago, if the kernel may
    /// not know yet.
    pub(crate) fn may_be_news(&self, inode: u64, size: u64, asker: u32) -> Option<Growing> {
        let growing = (*self.slot(inode).lock())?;
        // If the thread makes it still larger, the kernel knows of what was before.
        let is_it = growing.inode == inode && growing.end == size;
        // A thread waits for each of its answers; those of other namespaces all have the same number.
        let by_another = growing.thread != asker || asker == 0;
        (is_it && by_another && growing.began.elapsed() < LONGEST).then_some(growing)
    }

    /// Waits until the kernel knows of it, or for long.
    pub(crate) fn wait(&self, growing: Growing) {
        wait(
            || *self.slot(growing.inode).lock() == Some(growing),
            || self.processes.progress_of(growing.thread),
        );
    }

    fn slot(&self, inode: u64) -> &Mutex<Option<Growing>> {
        // Fibonacci hashing: numbers that follow each other spread over all slots.
        let hash = inode.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.slots[(hash >> 32) as usize % SLOTS]
    }
}

/// Waits while it is the last growth, and its thread has not gone on since.
fn wait(is_last: impl Fn() -> bool, progress: impl Fn() -> Option<Progress>) {
    let begin = Instant::now();
    let mut pause = FIRST_WAIT;
    let mut before: Option<Progress> = None;
    while begin.elapsed() < LONGEST {
        std::thread::sleep(pause);
        pause = (2 * pause).min(WAIT_MAX);
        if !is_last() {
            return;
        }
        let Some(now) = progress() else { return };
        match &before {
            // It has had a core since. One look would not do: who is about to answer it may have lost the core before.
            Some(before) if now.ran != before.ran => return,
            // It was woken before, and waits for something else now.
            Some(before) if !now.is_runnable && !before.is_runnable => return,
            _ => before = Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn news_are_of_another_thread_of_this_size_and_young() {
        let growth = Growth::new();
        assert_eq!(growth.may_be_news(7, 100, 2), None);
        growth.begins(7, 100, 1);
        assert!(growth.may_be_news(7, 100, 2).is_some());
        for (inode, size, asker) in [(8, 100, 2), (7, 99, 2), (7, 101, 2), (7, 100, 1)] {
            assert_eq!(growth.may_be_news(inode, size, asker), None, "{inode} {size} {asker}");
        }
        growth.begins(7, 100, 0);
        assert!(growth.may_be_news(7, 100, 0).is_some(), "another thread without a number");
        std::thread::sleep(LONGEST);
        assert_eq!(growth.may_be_news(7, 100, 2), None);
    }

    /// How often the thread is looked at before the answer is sent; `None` if that is until the longest wait has passed.
    fn looks(is_last: impl Fn(u32) -> bool, progress: impl Fn(u32) -> Option<(bool, u32)>) -> Option<u32> {
        let looks = Cell::new(0);
        let begin = Instant::now();
        let look = || {
            looks.set(looks.get() + 1);
            let (is_runnable, ran) = progress(looks.get())?;
            Some(Progress { is_runnable, ran: ran.to_string() })
        };
        wait(|| is_last(looks.get()), look);
        (begin.elapsed() < LONGEST).then_some(looks.get())
    }

    #[test]
    fn an_answer_is_held_until_the_thread_has_gone_on() {
        let last = |_| true;
        assert_eq!(looks(last, |_| None), Some(1), "nothing is known of it");
        assert_eq!(looks(last, |_| Some((false, 1))), Some(2), "it waits");
        assert_eq!(looks(last, |look| Some((look < 4, 1))), Some(5), "it waits after a while");
        assert_eq!(looks(last, |look| Some((true, look / 4))), Some(4), "it has got a core");
        assert_eq!(looks(|looks| looks < 3, |_| Some((true, 1))), Some(3), "it goes on with the next");
        assert_eq!(looks(last, |_| Some((true, 1))), None, "it does not get a core");
    }
}
