//! Syncs that come while another is under way, made together.
//!
//! A sync makes everything durable that was done before it, so one call serves all requests that were waiting when it began. With a thread for each
//! of them, every one of these threads would be woken, only to hear that another's flush has served it.
//!
//! One lock, held for pushes and takes only.

use std::sync::Arc;

use parking_lot::Mutex;

/// Those who wait for a sync.
pub(crate) struct Syncs<Reply> {
    state: Mutex<State<Reply>>,
}

struct State<Reply> {
    waiting: Vec<Reply>,
    has_worker: bool,
}

/// Makes the syncs that are waited for; there is one of it, until nobody waits.
pub(crate) struct Worker<Reply> {
    syncs: Arc<Syncs<Reply>>,
}

impl<Reply> Syncs<Reply> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { waiting: Vec::new(), has_worker: false }) })
    }

    /// One more waits. The worker, if there was none: it must be set to work.
    pub(crate) fn add(self: &Arc<Self>, reply: Reply) -> Option<Worker<Reply>> {
        let mut state = self.state.lock();
        state.waiting.push(reply);
        let had_worker = std::mem::replace(&mut state.has_worker, true);
        (!had_worker).then(|| Worker { syncs: self.clone() })
    }
}

impl<Reply> Worker<Reply> {
    /// Gives all who wait by now to `sync`, which answers them, until nobody waits.
    pub(crate) fn work(self, mut sync: impl FnMut(Vec<Reply>)) {
        while let Some(waiting) = self.take() {
            sync(waiting);
        }
    }

    /// All who wait; if nobody does, the worker is one no longer.
    fn take(&self) -> Option<Vec<Reply>> {
        let mut state = self.syncs.state.lock();
        state.has_worker = !state.waiting.is_empty();
        state.has_worker.then(|| std::mem::take(&mut state.waiting))
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
            assert!(syncs.add(2).is_none(), "there is one");
            let mut served = Vec::new();
            worker.work(|replies| {
                if served.is_empty() {
                    // What these did may have come too late for this sync.
                    assert!(syncs.add(3).is_none() && syncs.add(4).is_none());
                }
                served.push(replies);
            });
            assert_eq!(served, [[1, 2], [3, 4]]);
        }
    }
}
