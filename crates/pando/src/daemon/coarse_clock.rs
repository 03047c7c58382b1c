//! The clock by which the kernel itself stamps files, which goes on by its ticks only, 1 to 10 ms.
//!
//! Where it keeps times of its own (`-o writeback`), ours must not be ahead of them: a file would be born after its last change.

use std::time::{Duration, SystemTime};

use pando_fs::clock::Clock;
use rustix::time::{ClockId, clock_gettime};

pub struct CoarseClock;

impl Clock for CoarseClock {
    fn now(&self) -> SystemTime {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let seconds = Duration::from_secs(now.tv_sec.unsigned_abs());
        let second =
            if now.tv_sec < 0 { SystemTime::UNIX_EPOCH - seconds } else { SystemTime::UNIX_EPOCH + seconds };
        second + Duration::from_nanos(now.tv_nsec.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_time_and_is_never_ahead() {
        let (before, coarse, after) = (SystemTime::now(), CoarseClock.now(), SystemTime::now());
        assert!(
            coarse <= after && before < coarse + Duration::from_secs(1),
            "{before:?} {coarse:?} {after:?}"
        );
    }
}
