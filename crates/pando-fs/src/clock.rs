//! The clock, handed in so that a simulation can replace it.

use std::time::SystemTime;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Wall-clock time.
    fn now(&self) -> SystemTime;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}
