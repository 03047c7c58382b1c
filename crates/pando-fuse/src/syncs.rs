//! Syncs that come while another is under way, made together.
//!
//! A sync makes everything durable that was done before it, so one call serves all requests that were waiting when it began. With a thread for each
//! of them, every one of these threads would be woken, only to hear that another's flush has served it. Two may be under way at once, as
//! two flushes may: who comes during one does not wait for it to end.
//!
//! One lock, held for pushes and takes only.

use std::sync::Arc;

use parking_lot::Mutex;

/// Syncs at once.
const WORKERS_MAX: u32 = 2;

/// Those who wait for a sync.
pub(crate) struct Syncs<Reply> {
    state: Mutex<State<Reply>>,
}

struct State<Reply> {
    waiting: Vec<Reply>,
    workers: u32,
}

/// Makes the syncs that are waited for, until nobody waits.
pub(crate) struct Worker<Reply> {
    syncs: Arc<Syncs<Reply>>,
}

impl<Reply> Syncs<Reply> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { waiting: Vec::new(), workers: 0 }) })
    }

    /// One more waits. A worker, if there may be one more: it must be set to work.
    pub(crate) fn add(self: &Arc<Self>, reply: Reply) -> Option<Worker<Reply>> {
        let mut state = self.state.lock();
        state.waiting.push(reply);
        let is_wanted = state.workers < WORKERS_MAX;
        state.workers += u32::from(is_wanted);
        is_wanted.then(|| Worker { syncs: self.clone() })
    }
}

impl<Reply> Worker<Reply> {
    /// Gives all who wait by now to `sync`, which answers them, until nobody waits.
    pub(crate) fn work(self, mut sync: impl FnMut(Vec<Reply>)) {
        while let Some(waiting) = self.take() {
            sync(waiting);
        }
    }

    /// All who wait; if nobody does, this is a worker no longer.
    fn take(&self) -> Option<Vec<Reply>> {
        let mut state = self.syncs.state.lock();
        let is_done = state.waiting.is_empty();
        state.workers -= u32::from(is_done);
        (!is_done).then(|| std::mem::take(&mut state.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_meanwhile_is_served_by_the_next_sync_and_nobody_is_forgotten() {
        let syncs = Syncs::new();
        for _ in 0..2 {
            let worker = syncs.add(1).expect("there is none");
            let other = syncs.add(2).expect("there is one");
            assert!(syncs.add(3).is_none(), "there are two");
            let mut served = Vec::new();
            worker.work(|replies| {
                if served.is_empty() {
                    // What these did may have come too late for this sync.
                    assert!(syncs.add(4).is_none() && syncs.add(5).is_none());
                }
                served.push(replies);
            });
            assert_eq!(served, [vec![1, 2, 3], vec![4, 5]]);
            let worker = syncs.add(6).expect("one has ended");
            let mut served = Vec::new();
            other.work(|replies| served.push(replies));
            worker.work(|replies| served.push(replies));
            assert_eq!(served, [[6]], "whichever worker comes first");
        }
    }
}
