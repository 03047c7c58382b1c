//! Locks with ranks. The lock order, written down once:
//!
//! 1. [`Rank::Namespace`]: shared by every operation that makes a key; exclusive while a directory moves. Even then an orphan whose last reference
//!    goes is deleted without it ([`crate::link::Found`]): its record, its parked data and the memory of where these lie change with its
//!    state locked, and whoever moves what is parked has that locked too.
//! 2. [`Rank::Names`]: the names of one directory; of several, in rising order of their inode numbers.
//! 3. [`Rank::State`]: record and data of one inode; of several, in rising order of their inode numbers.
//! 4. Leaf locks (plain `parking_lot`): an inode's place and cached path, a shard of the inode table, the parked
//!    orphans, the number allocator, the tables of views and of held snapshots, the known names of a linked file, what was
//!    unlinked a moment ago. Nothing is locked while one of them is held, but that the allocator calls the engine.
//!
//! No lock is held across device I/O: a miss returns through all of them. Debug builds assert the order.

use std::ops::{Deref, DerefMut};

/// Where a lock stands in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Namespace,
    Names,
    State,
}

/// A guard that keeps the record of the order up to date.
pub(crate) struct Guard<G> {
    inner: G,
    _held: Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

/// Guard of a [`Mutex`].
pub(crate) type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// Shared guard of a [`RwLock`].
pub(crate) type ReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// Exclusive guard of a [`RwLock`].
pub(crate) type WriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

/// A mutex with a place in the order.
pub(crate) struct Mutex<T> {
    rank: Rank,
    number: u64,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, number: u64, value: T) -> Self {
        Self { rank, number, inner: parking_lot::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::new(self.rank, self.number);
        Guard { inner: self.inner.lock(), _held: held }
    }
}

/// A reader-writer lock with a place in the order.
pub(crate) struct RwLock<T> {
    rank: Rank,
    number: u64,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    pub(crate) fn new(rank: Rank, number: u64, value: T) -> Self {
        Self { rank, number, inner: parking_lot::RwLock::new(value) }
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::new(self.rank, self.number);
        Guard { inner: self.inner.read(), _held: held }
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::new(self.rank, self.number);
        Guard { inner: self.inner.write(), _held: held }
    }
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<(Rank, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// One lock that this thread holds or waits for.
    pub(crate) struct Held(Rank, u64);

    impl Held {
        pub(crate) fn new(rank: Rank, number: u64) -> Self {
            HELD.with_borrow_mut(|held| {
                if let Some(wrong) = held.iter().find(|other| **other >= (rank, number)) {
                    panic!("lock order: {rank:?} {number} taken under {wrong:?}");
                }
                held.push((rank, number));
            });
            Self(rank, number)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| held.retain(|other| *other != (self.0, self.1)));
        }
    }
}

#[cfg(not(debug_assertions))]
mod order {
    use super::Rank;

    pub(crate) struct Held;

    impl Held {
        pub(crate) fn new(_: Rank, _: u64) -> Self {
            Self
        }
    }
}

use order::Held;

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_and_numbers_are_taken() {
        let (names, low, high) = (
            Mutex::new(Rank::Names, 9, ()),
            RwLock::new(Rank::State, 1, ()),
            RwLock::new(Rank::State, 2, ()),
        );
        let _a = names.lock();
        let b = low.read();
        let _c = high.write();
        drop(b);
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn falling_numbers_are_caught() {
        let (low, high) = (RwLock::new(Rank::State, 1, ()), RwLock::new(Rank::State, 2, ()));
        let _a = high.write();
        let _b = low.read();
    }
}
