//! Which threads have asked for the attributes of directories of late.
//!
//! The kernel remembers the attributes of an answer unless it has heard, after it asked, that they have changed. Of files it
//! hears that with each answer that says so; of directories it only notes, when a name in one has changed, that it must ask
//! again. So an answer made before such a change, and come after it, would be remembered for good. The kernel must be told
//! before it hears of the change, which is a system call. There is nothing to tell where nobody but the thread that makes the
//! change has asked since the last time: it waits for each of its answers, so none is on its way.
//!
//! Whoever asks, and whoever makes a change, each says so first and looks for the other then. One of them sees the other.

use std::sync::atomic::{AtomicU64, Ordering};

/// Directories share a slot by their numbers; so may more be told than need be.
const SLOTS: usize = 4096;

/// In place of a thread: nobody has asked.
const NOBODY: u32 = 0;
/// In place of a thread: several have, or one that has no number here.
const SEVERAL: u32 = u32::MAX;

/// Who has asked for the attributes of directories, and how many changes there were to them.
pub(crate) struct Askers {
    changes: AtomicU64,
    /// In the lower half who has asked since the kernel was told last, in the upper one how often somebody has.
    slots: Box<[AtomicU64]>,
}

/// How many changes there were, taken before attributes are read.
#[derive(Clone, Copy)]
pub(crate) struct Before(u64);

impl Askers {
    pub(crate) fn new() -> Self {
        Self { changes: AtomicU64::new(0), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// To be called before attributes are read that somebody asks for.
    pub(crate) fn before(&self) -> Before {
        Before(self.changes.load(Ordering::SeqCst))
    }

    /// A thread is to be given the attributes of a directory. Returns whether they may be from before a change already.
    pub(crate) fn note(&self, directory: u64, thread: u32, before: Before) -> bool {
        // The kernel gives threads of other namespaces no number.
        let thread = if thread == 0 { SEVERAL } else { thread };
        let add = |slot: u64| {
            let asker = match slot as u32 {
                NOBODY => thread,
                asker if asker == thread => thread,
                _ => SEVERAL,
            };
            Some(((slot >> 32) + 1) << 32 | u64::from(asker))
        };
        // It always has something to add.
        let _ = self.slot(directory).fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        self.before().0 != before.0
    }

    /// A thread has changed the attributes of a directory, and does not know yet. Has the kernel told if need be.
    pub(crate) fn changed(&self, directory: u64, thread: u32, tell: impl FnOnce()) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let slot = self.slot(directory);
        let asked = slot.load(Ordering::SeqCst);
        match asked as u32 {
            NOBODY => return,
            asker if asker == thread && asker != SEVERAL => return,
            _ => tell(),
        }
        // Who has asked meanwhile may have been given what the next change makes old.
        let nobody = asked & !u64::from(u32::MAX) | u64::from(NOBODY);
        let _ = slot.compare_exchange(asked, nobody, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn slot(&self, directory: u64) -> &AtomicU64 {
        // Fibonacci hashing: numbers that follow each other spread over all slots.
        let hash = directory.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.slots[(hash >> 32) as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const DIRECTORY: u64 = 7;

    fn ask(askers: &Askers, thread: u32) -> bool {
        askers.note(DIRECTORY, thread, askers.before())
    }

    fn is_told(askers: &Askers, thread: u32) -> bool {
        let mut is_told = false;
        askers.changed(DIRECTORY, thread, || is_told = true);
        is_told
    }

    #[test]
    fn the_kernel_is_told_once_if_another_has_asked() {
        let askers = Askers::new();
        assert!(!is_told(&askers, 1));
        ask(&askers, 1);
        assert!(!is_told(&askers, 1) && !is_told(&askers, 1));
        assert!(is_told(&askers, 2) && !is_told(&askers, 2));
        for (first, second) in [(1, 2), (2, 1)] {
            ask(&askers, first);
            ask(&askers, second);
            assert!(is_told(&askers, 1) && !is_told(&askers, 1));
        }
    }

    #[test]
    fn a_thread_without_a_number_is_anybody() {
        let askers = Askers::new();
        ask(&askers, 0);
        assert!(is_told(&askers, 0) && !is_told(&askers, 0));
        ask(&askers, 1);
        assert!(is_told(&askers, 0));
    }

    #[test]
    fn who_asks_while_the_kernel_is_told_counts_for_the_next_change() {
        let askers = Askers::new();
        ask(&askers, 1);
        askers.changed(DIRECTORY, 2, || assert!(!ask(&askers, 1)));
        assert!(is_told(&askers, 2) && !is_told(&askers, 2));
    }

    #[test]
    fn a_change_while_attributes_are_read_is_noticed() {
        let askers = Askers::new();
        let before = askers.before();
        assert!(!askers.note(DIRECTORY, 1, before));
        assert!(is_told(&askers, 2));
        assert!(askers.note(DIRECTORY, 1, before));
    }

    /// Each change is noticed by who reads the directory before, or is told of.
    #[test]
    fn of_two_at_once_one_sees_the_other() {
        let askers = Askers::new();
        for _ in 0..5_000 {
            let changed = AtomicBool::new(false);
            let (read_old, noticed, told) = std::thread::scope(|scope| {
                let asker = scope.spawn(|| {
                    let before = askers.before();
                    let read_old = !changed.load(Ordering::Relaxed);
                    (read_old, askers.note(DIRECTORY, 1, before))
                });
                changed.store(true, Ordering::Relaxed);
                let told = is_told(&askers, 2);
                let (read_old, noticed) = asker.join().unwrap();
                (read_old, noticed, told)
            });
            assert!(!read_old || noticed || told);
            askers.changed(DIRECTORY, 2, || ());
        }
    }
}
