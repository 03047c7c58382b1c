//! Room for changes: what there must be of memory, log and space before one is taken, and the wait for it.

use std::sync::atomic::Ordering;

use pando_format::Tree;

use crate::Result;
use crate::apply::space_for;
use crate::betree::tree::HEALING_DUE;
use crate::options::Background;
use crate::volume::Volume;

/// How often a change waits for room before it goes on without: background work that cannot make any, on a full volume
/// say, must not hold up what could.
const WAITS_MAX: u32 = 100;
/// Bytes that may wait for the log, at most: about a second's worth of a hard disk.
const LOG_WAITING_BYTES_MAX: u64 = 128 << 20;

/// Changes from so many bytes on leave the last node's worth of messages in a root, and the last eighth of the log that
/// changes may fill and fifth of what may wait for it, to those below it: a small change does not wait because a stream has filled the root.
const LARGE_BYTES: u64 = 64 << 10;

/// So many nodes' worth of messages may wait in a root. A node has a few extents only, so a root must not grow much longer than a node.
pub(crate) const ROOT_NODES_MAX: usize = 4;

/// What waits in a root for maintenance.
pub(crate) struct RootLoad {
    /// Memory of messages.
    pub(crate) bytes: usize,
    /// Clones put theirs there first, so they can be many more than there should be.
    pub(crate) edges: usize,
    /// Weight of the surgeries that are not healed.
    pub(crate) wounds: usize,
}

impl Volume {
    /// True if a change of so many bytes may come without waiting: memory, log and space have room, and no change that was
    /// refused waits for a checkpoint.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        !self.signals.turns.is_awaited() && self.has_room_now(bytes)
    }

    fn has_room_now(&self, bytes: u64) -> bool {
        let eighths = if bytes < LARGE_BYTES { 7 } else { 6 };
        let (used_bytes, waiting_bytes) = self.log.load();
        used_bytes <= self.log.capacity() / 8 * eighths
            && waiting_bytes <= self.log_waiting_bytes_max(bytes)
            && self.has_memory(bytes)
            && !self.wants_space(bytes)
    }

    /// What may wait for the log when a change of so many bytes comes. It is memory beside the cache, and an age: what a crash takes is what a slow device has not written yet.
    fn log_waiting_bytes_max(&self, bytes: u64) -> u64 {
        let most = self.options.cache_bytes as u64 / 8;
        let most = self.log.waiting_bytes_max(most.min(LOG_WAITING_BYTES_MAX));
        if bytes < LARGE_BYTES { most / 4 * 5 } else { most }
    }

    /// True if space is short for a change of so many bytes and a checkpoint would release some.
    pub(crate) fn wants_space(&self, bytes: u64) -> bool {
        let counters = self.allocator.counters();
        let margin = (counters.capacity / 64).max(space_for(bytes));
        counters.usable < self.space_needed().saturating_add(margin) && self.checkpoint_releases()
    }

    /// True if the next checkpoint releases space worth waiting for. What is going to be free is looked for in the order in
    /// which it gets there, so that none of it is missed on its way.
    pub(crate) fn checkpoint_releases(&self) -> bool {
        let dead = self.dead_bytes.load(Ordering::Relaxed);
        let to_be_written = self.space_to_be_written();
        let counters = self.allocator.counters();
        counters.deferred.saturating_add(to_be_written).saturating_add(dead) > counters.capacity / 128
    }

    /// True if the cache is within its budget, and maintenance not far behind, for a change of so many bytes.
    pub(crate) fn has_memory(&self, bytes: u64) -> bool {
        let nodes = if bytes < LARGE_BYTES { ROOT_NODES_MAX } else { ROOT_NODES_MAX - 1 };
        self.cache.memory() <= self.options.cache_bytes
            && Tree::ALL.into_iter().all(|tree| {
                let load = self.root_load(tree);
                load.bytes <= self.shape.node_bytes * nodes
                    && load.edges <= self.shape.fanout * 2
                    && load.wounds < HEALING_DUE * 2
            })
    }

    /// Waits until there is room for a change of so many bytes, or helps with the work that makes it. No lock may be held.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        let mut waits = 0;
        // What is refused from now on does not hold up whoever waits already.
        let awaited = self.signals.turns.awaited();
        loop {
            let released = self.signals.turns.is_done(awaited);
            if self.options.read_only || released && self.has_room_now(bytes) {
                return Ok(());
            }
            let rounds = self.signals.rounds();
            // What it has heard of the roots may be what they were. Nobody would tell it once more.
            Tree::ALL.into_iter().for_each(|tree| self.root(tree).look(&self.damaged));
            let released = self.signals.turns.is_done(awaited);
            if released && self.has_room_now(bytes) {
                return Ok(());
            }
            self.check_writable()?;
            self.wake_workers();
            if !self.signals.turns.has_begun(awaited) || self.wants_space(bytes) {
                self.signals.want_checkpoint();
            }
            match self.options.background {
                Background::Manual => {
                    if !self.background_step()? {
                        return Ok(());
                    }
                }
                Background::Threads => {
                    if waits == WAITS_MAX || self.signals.is_stopping() {
                        return Ok(());
                    }
                    // A checkpoint ends, however long it takes.
                    waits += u32::from(released);
                    self.wait_for_progress(rounds);
                }
            }
        }
    }

    /// What waits in a root for maintenance.
    pub(crate) fn root_load(&self, tree: Tree) -> RootLoad {
        let slot = self.root(tree);
        let (bytes, edges) = slot.load(&self.damaged);
        RootLoad { bytes, edges, wounds: slot.wounds.lock().weight }
    }
}
