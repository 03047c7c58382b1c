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

use crate::slots::Slots;

/// Each remembers one directory. Of two that take a slot from each other by turns the kernel is told of each change.
const SLOTS: usize = 4096;

/// Who has asked for the attributes of directories, and how many changes there were to them.
pub(crate) struct Askers {
    changes: AtomicU64,
    slots: Slots<Slot>,
}

/// Who has asked for the attributes of one directory since the kernel was told of it last.
#[derive(Clone, Copy)]
struct Slot {
    /// 0 for none yet.
    directory: u64,
    asker: Asker,
    /// How often somebody has.
    questions: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    Nobody,
    Thread(u32),
    /// Several, or one that has no number here, or it is not known any more.
    Anybody,
}

/// How many changes there were, taken before attributes are read.
#[derive(Clone, Copy)]
pub(crate) struct Before(u64);

impl Askers {
    pub(crate) fn new() -> Self {
        let empty = || Slot { directory: 0, asker: Asker::Nobody, questions: 0 };
        Self { changes: AtomicU64::new(0), slots: Slots::new(SLOTS, empty) }
    }

    /// To be called before attributes are read that somebody asks for.
    pub(crate) fn before(&self) -> Before {
        Before(self.changes.load(Ordering::SeqCst))
    }

    /// A thread is to be given the attributes of a directory. Returns whether they may be from before a change already.
    pub(crate) fn note(&self, directory: u64, thread: u32, before: Before) -> bool {
        {
            let mut slot = self.slots.of(directory).lock();
            slot.questions += 1;
            if slot.directory != directory {
                // Who asked for this one before another took its place is forgotten.
                let is_first = slot.directory == 0;
                slot.asker = if is_first { Asker::Nobody } else { Asker::Anybody };
                slot.directory = directory;
            }
            slot.asker = match slot.asker {
                // The kernel gives threads of other namespaces no number.
                Asker::Nobody if thread != 0 => Asker::Thread(thread),
                asker if asker == Asker::Thread(thread) => asker,
                _ => Asker::Anybody,
            };
        }
        self.before().0 != before.0
    }

    /// A thread has changed the attributes of a directory, and does not know yet. Has the kernel told if need be.
    pub(crate) fn changed(&self, directory: u64, thread: u32, tell: impl FnOnce()) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let slot = self.slots.of(directory);
        let asked = *slot.lock();
        let asker = match asked.directory {
            0 => Asker::Nobody,
            of if of == directory => asked.asker,
            _ => Asker::Anybody,
        };
        if asker == Asker::Nobody || asker == Asker::Thread(thread) {
            return;
        }
        tell();
        let mut slot = slot.lock();
        // Who has asked meanwhile may have been given what the next change makes old.
        if slot.directory == directory && slot.questions == asked.questions {
            slot.asker = Asker::Nobody;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const DIRECTORY: u64 = 7;

    fn ask(askers: &Askers, thread: u32) -> bool {
        askers.note(DIRECTORY, thread, askers.before())
    }

    fn is_told_of(askers: &Askers, directory: u64, thread: u32) -> bool {
        let mut is_told = false;
        askers.changed(directory, thread, || is_told = true);
        is_told
    }

    fn is_told(askers: &Askers, thread: u32) -> bool {
        is_told_of(askers, DIRECTORY, thread)
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

    /// What was said of one cleared the other's.
    #[test]
    fn of_two_in_one_slot_neither_is_forgotten() {
        let askers = Askers::new();
        let slot = |directory| std::ptr::from_ref(askers.slots.of(directory));
        let other = (DIRECTORY + 1..).find(|&other| slot(other) == slot(DIRECTORY)).unwrap();
        ask(&askers, 1);
        assert!(is_told_of(&askers, other, 2) && is_told(&askers, 2));
        ask(&askers, 1);
        askers.note(other, 2, askers.before());
        assert!(is_told_of(&askers, other, 2) && !is_told_of(&askers, other, 2));
        assert!(is_told(&askers, 2), "thread 1 has asked");
        // Its next asker takes the slot back, and is not known to be the only one.
        ask(&askers, 2);
        assert!(is_told(&askers, 2) && !is_told(&askers, 2));
    }

    /// Each change is seen by who has read the directory before it, or by who makes it.
    #[test]
    fn of_two_at_once_one_sees_the_other() {
        const ROUNDS: u32 = 50_000;
        let askers = Askers::new();
        // What attributes there are to be read: how many changes were made.
        let attributes = AtomicU32::new(0);
        // Both wait awake, or they would hardly ever be at it at the same time.
        let arrived = AtomicU32::new(0);
        let asked = AtomicU32::new(0);
        let meet = |turn: u32| {
            arrived.fetch_add(1, Ordering::SeqCst);
            let mut looks = 0;
            while arrived.load(Ordering::SeqCst) < 2 * turn {
                looks += 1;
                if looks % 10_000 == 0 {
                    std::thread::yield_now();
                }
            }
        };
        let mut overlapped = 0;
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let ask = |round| {
                    meet(2 * round + 1);
                    let before = askers.before();
                    let read_old = attributes.load(Ordering::Relaxed) == round;
                    let has_noticed = askers.note(DIRECTORY, 1, before);
                    asked.store(round + 1, Ordering::Relaxed);
                    meet(2 * round + 2);
                    read_old && !has_noticed
                };
                (0..ROUNDS).map(ask).collect::<Vec<_>>()
            });
            let change = |round| {
                meet(2 * round + 1);
                // So that now the one is first, and now the other; in some rounds the asker, also where both share a busy core.
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                while round % 64 == 63 && asked.load(Ordering::Relaxed) <= round {
                    std::thread::yield_now();
                }
                attributes.store(round + 1, Ordering::Relaxed);
                let is_told = is_told(&askers, 2);
                meet(2 * round + 2);
                // Who asked is told of; nothing is left for the next round.
                is_told_of(&askers, DIRECTORY, 2);
                is_told
            };
            let told: Vec<_> = (0..ROUNDS).map(change).collect();
            for (would_keep_old, is_told) in asking.join().unwrap().into_iter().zip(told) {
                assert!(!would_keep_old || is_told);
                overlapped += u32::from(would_keep_old);
            }
        });
        assert!(overlapped > 0, "nobody has asked before a change");
    }
}
