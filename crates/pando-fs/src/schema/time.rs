//! Time stamps as records keep them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 and nanoseconds behind them; any date of `struct timespec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// 0 to 999 999 999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The first one behind it; itself if there is none.
    pub fn next(self) -> Self {
        match (self.nanoseconds, self.seconds.checked_add(1)) {
            (..999_999_999, _) => Self { nanoseconds: self.nanoseconds + 1, ..self },
            (_, Some(seconds)) => Self { seconds, nanoseconds: 0 },
            (_, None) => self,
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                let seconds = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
                Self { seconds, nanoseconds: after.subsec_nanos() }
            }
            Err(error) => {
                let before = error.duration();
                let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                match before.subsec_nanos() {
                    0 => Self { seconds, nanoseconds: 0 },
                    nanoseconds => {
                        Self { seconds: seconds.saturating_sub(1), nanoseconds: 1_000_000_000 - nanoseconds }
                    }
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    /// The epoch where the platform cannot express the date.
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole =
            if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
        let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
        whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_survive_the_way_there_and_back() {
        for (seconds, nanoseconds) in
            [(0, 0), (-1, 1), (-1, 999_999_999), (-2, 0), (1 << 40, 5), (4_294_967_296, 0), (-(1 << 40), 7)]
        {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn each_but_the_last_has_a_next() {
        let of = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        assert_eq!(of(1, 7).next(), of(1, 8));
        assert_eq!(of(-1, 999_999_999).next(), of(0, 0));
        assert_eq!(of(i64::MAX, 999_999_999).next(), of(i64::MAX, 999_999_999));
    }
}
