//! Which checkpoint a change waits for that was refused for want of space.
//!
//! Checkpoints are numbered from 1. One that has begun before a refusal may have made its cut before what it would have to
//! release was freed; so a refused change waits for the first one that begins behind the refusal, to its end.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CheckpointTurns {
    /// The one that began last; changed by the holder of `checkpointing` alone.
    begun: AtomicU64,
    /// The last one that is durable and has released what it could.
    done: AtomicU64,
    /// The last one that a refused change waits for.
    awaited: AtomicU64,
}

impl CheckpointTurns {
    /// A checkpoint begins.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// The checkpoint that began last is done.
    pub(crate) fn end(&self) {
        self.done.store(self.begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// True if one has begun and is not done, or has failed.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_done(self.begun.load(Ordering::SeqCst))
    }

    /// A change was refused.
    pub(crate) fn await_next(&self) {
        self.awaited.fetch_max(self.begun.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    /// The one that all changes refused so far wait for, at most.
    pub(crate) fn awaited(&self) -> u64 {
        self.awaited.load(Ordering::SeqCst)
    }

    /// True as long as that one is not done.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.is_done(self.awaited())
    }

    /// True if a checkpoint has begun.
    pub(crate) fn has_begun(&self, checkpoint: u64) -> bool {
        self.begun.load(Ordering::SeqCst) >= checkpoint
    }

    /// True if a checkpoint is done.
    pub(crate) fn is_done(&self, checkpoint: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= checkpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_began_before_a_refusal_is_not_the_one_to_wait_for() {
        let turns = CheckpointTurns::default();
        assert!(!turns.is_awaited() && !turns.is_running());
        turns.begin();
        assert!(turns.is_running());
        turns.await_next();
        let awaited = turns.awaited();
        assert!(turns.is_awaited() && !turns.has_begun(awaited));
        turns.end();
        assert!(turns.is_awaited() && !turns.is_running() && !turns.has_begun(awaited));
        turns.begin();
        assert!(turns.is_awaited() && turns.has_begun(awaited));
        turns.end();
        assert!(!turns.is_awaited() && turns.is_done(awaited));
    }
}
