//! A little memory for each of many files: as many slots as there are, each for whichever of its files came last.
//!
//! Each slot has a lock, to be held for a few instructions, and no other lock is taken under it.

use parking_lot::Mutex;

/// The slots; what is in one says of which file it is.
pub(crate) struct Slots<T>(Box<[Mutex<T>]>);

impl<T> Slots<T> {
    /// So many, each with this in it.
    pub(crate) fn new(count: usize, empty: impl Fn() -> T) -> Self {
        Self((0..count).map(|_| Mutex::new(empty())).collect())
    }

    /// The slot of the inode of this number.
    pub(crate) fn of(&self, inode: u64) -> &Mutex<T> {
        // Fibonacci hashing: numbers that follow each other spread over all slots.
        let hash = inode.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.0[(hash >> 32) as usize % self.0.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_spread() {
        let slots = Slots::new(256, || 0);
        (1000..1256).for_each(|inode| *slots.of(inode).lock() += 1);
        let used = slots.0.iter().filter(|slot| *slot.lock() != 0).count();
        assert!(used > 128, "{used} of 256");
    }
}
