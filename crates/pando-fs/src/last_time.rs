//! When something happened last.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What times are counted from. Any will do that none of them precedes.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When something happened last, if it ever did; noted and asked for by any thread.
#[derive(Debug, Default)]
pub(crate) struct LastTime {
    /// Nanoseconds, never 0 but for never.
    since_start: AtomicU64,
}

impl LastTime {
    /// It happens now.
    pub(crate) fn note(&self) {
        self.since_start.fetch_max(nanoseconds_since_start() + 1, Ordering::Release);
    }

    /// Whether it happened less than `period` ago.
    pub(crate) fn is_within(&self, period: Duration) -> bool {
        let noted = self.since_start.load(Ordering::Acquire);
        // Without a look at the clock where it never happened.
        noted != 0 && u128::from(nanoseconds_since_start().saturating_sub(noted)) < period.as_nanos()
    }
}

fn nanoseconds_since_start() -> u64 {
    // Enough for 584 years.
    START.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happened_is_never_recent_and_what_did_is_for_a_while() {
        let time = LastTime::default();
        assert!(!time.is_within(Duration::MAX));
        time.note();
        assert!(time.is_within(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(2));
        assert!(!time.is_within(Duration::from_millis(1)));
        time.note();
        assert!(time.is_within(Duration::from_secs(3600)));
    }
}
