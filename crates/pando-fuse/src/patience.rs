//! Whether a receiving thread may wait for the device itself (FU-1): as long as the device is quick.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A wait that takes longer uses the patience up. The quickest disks need a tenth of it for a flush, those that turn ten times as much.
const LONG: Duration = Duration::from_millis(1);

/// At most so many waits are left to others then, before one is tried again.
const LEFT_TO_OTHERS_MAX: u32 = 64;

/// What the receiving threads of a session know of their device. After a long wait among quick ones a single wait is left to others, then twice as many
/// each time, half as many after each quick one.
pub(crate) struct Patience {
    left_to_others: AtomicU32,
    /// How many are, after the next long wait.
    next: AtomicU32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { left_to_others: AtomicU32::new(0), next: AtomicU32::new(1) }
    }

    /// Whether the thread may wait itself. Asked once for each wait.
    pub(crate) fn is_left(&self) -> bool {
        self.left_to_others.fetch_update(Relaxed, Relaxed, |waits| waits.checked_sub(1)).is_err()
    }

    /// Says how long a thread has waited.
    pub(crate) fn note(&self, wait: Duration) {
        let next = self.next.load(Relaxed);
        if wait > LONG {
            self.left_to_others.store(next, Relaxed);
            self.next.store((next * 2).min(LEFT_TO_OTHERS_MAX), Relaxed);
        } else if next > 1 {
            self.next.store(next / 2, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 1000 waits the thread may make itself, which take so long by turns.
    fn own_waits(patience: &Patience, lengths: &[Duration]) -> usize {
        let mut lengths = lengths.iter().cycle();
        let waits = |_: &u32| {
            let is_left = patience.is_left();
            if is_left {
                patience.note(*lengths.next().unwrap());
            }
            is_left
        };
        (0..1000).filter(waits).count()
    }

    #[test]
    fn a_slow_device_is_waited_for_once_in_a_while() {
        let patience = Patience::new();
        assert_eq!(own_waits(&patience, &[LONG]), 1000);
        // 1, 2, 4 and so on are left to others, then 64 each time.
        assert_eq!(own_waits(&patience, &[10 * LONG]), 6 + (1000usize - 6 - 63).div_ceil(65));
        own_waits(&patience, &[LONG]);
        assert_eq!(own_waits(&patience, &[LONG]), 1000, "a device that has become quick again");
    }

    /// 64 waits were, and of a device that is slow once in a hundred times two fifths.
    #[test]
    fn a_single_long_wait_leaves_one_to_others() {
        let mut lengths = [LONG; 100];
        lengths[50] = 10 * LONG;
        assert_eq!(own_waits(&Patience::new(), &lengths), 990);
        assert!(own_waits(&Patience::new(), &[10 * LONG, LONG]) > 600);
    }
}
