//! Batches without io_uring: each request is a plain `preadv` or `pwritev` on one of a few threads.
//!
//! The threads live as long as the batch. That costs a spawn where a resident pool pays a wake-up, the same order of
//! cost, and lets the borrow checker prove that no thread outlives the memory of the batch.

use std::os::fd::BorrowedFd;

use parking_lot::Mutex;

use crate::transfer::{Failure, Transfer};

/// Threads that work on one batch, the calling one included.
const THREADS_MAX: usize = 8;

/// Moves every transfer, the calling thread among the others, or once it has done other work; the first failure is reported
/// after all of them have ended.
pub(crate) fn run(
    file: BorrowedFd<'_>,
    transfers: &mut [Transfer<'_>],
    other_work: Option<&mut dyn FnMut()>,
) -> Result<(), Failure> {
    let threads = transfers.len().min(THREADS_MAX);
    let queue = Mutex::new(transfers.iter_mut());
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let Some(transfer) = queue.lock().next() else { return };
            if let Err(failed) = transfer.finish(file) {
                failure.lock().get_or_insert(failed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in usize::from(other_work.is_none())..threads {
            // Where the system has no thread to give, the ones that are there do the work.
            if std::thread::Builder::new().name("pando-io".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        if let Some(other_work) = other_work {
            other_work();
        }
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}
