//! Whether a receiving thread may wait for the device itself (FU-1): as long as the device is quick.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A wait that takes longer uses the patience up. The quickest disks need a tenth of it for a flush, those that turn ten times as much.
const LONG: Duration = Duration::from_millis(1);

/// So many waits are left to others then, before one is tried again.
const LEFT_TO_OTHERS: u32 = 64;

/// What the receiving threads of a session know of their device.
#[derive(Default)]
pub(crate) struct Patience {
    left_to_others: AtomicU32,
}

impl Patience {
    /// Whether the thread may wait itself. Asked once for each wait.
    pub(crate) fn is_left(&self) -> bool {
        self.left_to_others.fetch_update(Relaxed, Relaxed, |waits| waits.checked_sub(1)).is_err()
    }

    /// Says how long a thread has waited.
    pub(crate) fn note(&self, wait: Duration) {
        if wait > LONG {
            self.left_to_others.store(LEFT_TO_OTHERS, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_is_waited_for_once_in_a_while() {
        let patience = Patience::default();
        let waits = |wait| {
            (0..1000)
                .filter(|_| {
                    let is_left = patience.is_left();
                    if is_left {
                        patience.note(wait);
                    }
                    is_left
                })
                .count()
        };
        assert_eq!(waits(LONG), 1000);
        assert_eq!(waits(10 * LONG), 1000usize.div_ceil(1 + LEFT_TO_OTHERS as usize));
        let left = (1 + LEFT_TO_OTHERS as usize) - 1000 % (1 + LEFT_TO_OTHERS as usize);
        assert_eq!(waits(LONG), 1000 - left, "a device that has become quick again");
    }
}
