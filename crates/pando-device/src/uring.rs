//! Batches through io_uring: one system call hands over many requests, and the device sees them all at once.
//!
//! A ring belongs to one batch at a time. Idle rings wait in a list whose lock is held only to take one out or put
//! one back, so concurrent callers never wait for each other's I/O.
//!
//! Invariant UR-1: [`Ring::run`] does not return, nor unwind, while the kernel may still touch memory of the batch.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::AssertUnwindSafe;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::complaint::complain;
use crate::transfer::{Failure, Memory, Transfer};

/// Requests in flight in one ring.
const DEPTH: usize = 64;
/// Rings kept for later batches.
const IDLE_MAX: usize = 16;
/// Most bytes of one read; the kernel moves less than 2 GiB at a time anyway.
const READ_MAX: usize = 1 << 30;

/// Rings, made as concurrent callers need them.
pub(crate) struct Rings {
    idle: Mutex<Vec<Ring>>,
}

impl Rings {
    /// `None` if the kernel does not offer io_uring to this process, or an old one without what is asked for here: rings are older
    /// (Linux 5.1) than reads into plain memory (5.6).
    pub fn probe() -> Option<Self> {
        let ring = Ring::new()?;
        let mut offered = Probe::new();
        ring.ring.submitter().register_probe(&mut offered).ok()?;
        if ![opcode::Read::CODE, opcode::Writev::CODE].into_iter().all(|code| offered.is_supported(code)) {
            return None;
        }
        Some(Self { idle: Mutex::new(vec![ring]) })
    }

    /// A ring for one batch, to be given back; `None` if none can be had.
    pub fn take(&self) -> Option<Ring> {
        let idle = self.idle.lock().pop();
        idle.or_else(Ring::new)
    }

    pub fn give_back(&self, ring: Ring) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(ring);
        }
    }
}

pub(crate) struct Ring {
    ring: IoUring,
}

impl Ring {
    fn new() -> Option<Self> {
        Some(Self { ring: IoUring::new(DEPTH as u32).ok()? })
    }

    /// Submits each transfer once, does other work, if there is any, while they are under way, waits for all, then finishes
    /// what came back short. The first failure is reported.
    pub fn run(
        &mut self,
        file: BorrowedFd<'_>,
        transfers: &mut [Transfer<'_>],
        mut work: Option<&mut dyn FnMut()>,
    ) -> Result<(), Failure> {
        let mut outcomes = vec![0_i32; transfers.len()];
        let mut submitted = 0;
        let mut completed = 0;
        // A panic of the caller's work is passed on when nothing is in flight any more (UR-1).
        let mut worked = Ok(());
        while completed < transfers.len() {
            while submitted < transfers.len() && submitted - completed < DEPTH {
                let entry = entry(file, &mut transfers[submitted]).user_data(submitted as u64);
                // SAFETY: the memory of the entry is borrowed by `transfers`, which is neither changed nor
                // given back before every completion has been seen (UR-1).
                let pushed = unsafe { self.ring.submission().push(&entry) };
                pushed.expect("no more requests are in flight than the ring has entries");
                submitted += 1;
            }
            if let Some(work) = work.take() {
                self.enter(0);
                worked = std::panic::catch_unwind(AssertUnwindSafe(work));
            }
            self.enter(1);
            for completion in self.ring.completion() {
                outcomes[completion.user_data() as usize] = completion.result();
                completed += 1;
            }
        }
        if let Some(work) = work {
            work();
        }
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
        let mut failure = None;
        for (transfer, outcome) in transfers.iter_mut().zip(outcomes) {
            if let Err(failed) = settle(file, transfer, outcome) {
                failure.get_or_insert(failed);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Submits what was pushed and waits for so many completions.
    fn enter(&self, completions: usize) {
        while let Err(error) = self.ring.submit_and_wait(completions) {
            let code = Errno::from_io_error(&error);
            if !matches!(code, Some(Errno::AGAIN | Errno::BUSY | Errno::INTR)) {
                // UR-1: requests are in flight, so their memory must not be given back, not even by a panic.
                complain(format_args!("io_uring_enter failed with requests in flight: {error}"));
                std::process::abort();
            }
        }
    }
}

fn entry(file: BorrowedFd<'_>, transfer: &mut Transfer<'_>) -> squeue::Entry {
    let file = types::Fd(file.as_raw_fd());
    match &mut transfer.memory {
        Memory::Read(rest) => {
            let length = rest.len().min(READ_MAX) as u32;
            opcode::Read::new(file, rest.as_mut_ptr(), length).offset(transfer.offset).build()
        }
        Memory::Write(..) => {
            // IoSlice is guaranteed to have the layout of iovec.
            let pieces = transfer.next_pieces();
            let length = pieces.len() as u32;
            opcode::Writev::new(file, pieces.as_ptr().cast(), length).offset(transfer.offset).build()
        }
    }
}

/// Takes a completion's result into account and moves what is left.
fn settle(file: BorrowedFd<'_>, transfer: &mut Transfer<'_>, outcome: i32) -> Result<(), Failure> {
    if let Ok(moved) = usize::try_from(outcome) {
        transfer.advance(moved);
        return transfer.finish(file);
    }
    match Errno::from_raw_os_error(-outcome) {
        Errno::INTR | Errno::AGAIN => transfer.finish(file),
        code => Err(Failure { offset: transfer.offset, code: Some(code) }),
    }
}
