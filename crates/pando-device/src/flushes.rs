//! Flushes of one open file, one after the other; the first that fails is the last that is tried.
//!
//! Linux reports that it could not write something back once an open file: of two flushes at the same time one gets the error, and
//! the other, whose writes may be those that were lost, succeeds. So the log would call durable what the flush of a checkpoint has
//! found lost. The one that waits loses little: the block layer does not begin a flush of a device while another is under way.

use parking_lot::Mutex;
use rustix::io::Errno;

/// See the module.
#[derive(Default)]
pub(crate) struct Flushes {
    failed: Mutex<Option<Errno>>,
}

impl Flushes {
    /// Makes a flush, unless one has failed before.
    pub(crate) fn run(&self, flush: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut failed = self.failed.lock();
        match *failed {
            Some(code) => Err(code),
            None => flush().inspect_err(|code| *failed = Some(*code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// FD-3. As the kernel does: the first who asks gets the error, and it is forgotten then.
    #[test]
    fn who_flushes_beside_or_behind_a_failed_flush_gets_its_error() {
        let flushes = Flushes::default();
        assert_eq!(flushes.run(|| Ok(())), Ok(()));
        let failing = Barrier::new(2);
        std::thread::scope(|scope| {
            let failed = scope.spawn(|| {
                flushes.run(|| {
                    failing.wait();
                    Err(Errno::IO)
                })
            });
            failing.wait();
            assert_eq!(flushes.run(|| Ok(())), Err(Errno::IO));
            assert_eq!(failed.join().expect("it does not panic"), Err(Errno::IO));
        });
        assert_eq!(flushes.run(|| Ok(())), Err(Errno::IO));
    }
}
