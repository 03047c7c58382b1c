//! Data that streams by: what a sequential reader or writer leaves behind goes first.
//!
//! Parts of the data tree that were read in order, or written whole by late binding, are seldom asked for again: the
//! kernel's page cache has them. They queue up, and beyond 128 MiB, or an eighth of a smaller cache, or 32 leaves, the oldest are
//! dropped if they are clean. That leaves the cache to what is worth keeping, and lets the stream run in the same few buffers
//! over and over: faulting in fresh memory costs more than reading it from a fast device.
//!
//! The queue holds no node in memory. What it drops may have been used since, and is read again then. Only what queries
//! read queues up: a flush or merge would never get all of its parts together if the first left as the last came. The
//! queue is never shorter than what the requests of many readers need at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use pando_format::Tree;
use parking_lot::Mutex;

use crate::betree::node::{Body, CachedNode, NodeRef};
use crate::volume::Volume;

/// Leaves that the queue may hold at least.
const LEAVES_MIN: usize = 32;

/// Bytes that it holds at most, unless so many leaves are more.
const BYTES_MAX: usize = 128 << 20;

/// What has streamed by of late, oldest first.
#[derive(Default)]
pub(crate) struct Passing {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    runs: VecDeque<Run>,
    bytes: usize,
}

/// Parts of a leaf that came by together.
struct Run {
    node: Weak<CachedNode>,
    parts: Range<usize>,
    bytes: usize,
}

impl Queue {
    /// The oldest run, if there are more bytes than `budget` in more than one.
    fn pop_surplus(&mut self, budget: usize) -> Option<Run> {
        let run = (self.bytes > budget && self.runs.len() > 1).then(|| self.runs.pop_front()).flatten()?;
        self.bytes -= run.bytes;
        Some(run)
    }
}

impl Volume {
    /// Memory for what streams by, where there is enough of it.
    fn stream_share(&self) -> usize {
        self.options.cache_bytes / 8
    }

    /// True if what streams by needs no more than its share.
    pub(crate) fn has_room_for_streams(&self) -> bool {
        self.stream_share() >= LEAVES_MIN * self.shape.node_bytes
    }

    /// Notes parts of a leaf that stream by, `bytes` in memory, and drops what came by long ago. The caller holds no node.
    pub(crate) fn pass(&self, node: &NodeRef, parts: Range<usize>, bytes: usize) {
        if node.tree != Tree::Data {
            return;
        }
        let run = Run { node: std::sync::Arc::downgrade(node), parts, bytes };
        {
            let mut queue = self.cache.passing.queue.lock();
            queue.bytes += run.bytes;
            queue.runs.push_back(run);
        }
        let budget = self.stream_share().min(BYTES_MAX).max(LEAVES_MIN * self.shape.node_bytes);
        loop {
            let surplus = self.cache.passing.queue.lock().pop_surplus(budget);
            let Some(run) = surplus else { return };
            self.drop_run(&run);
        }
    }

    fn drop_run(&self, run: &Run) {
        let Some(node) = run.node.upgrade() else { return };
        // Somebody at work there is a reason to leave it to the clock hand.
        let Some(mut state) = node.state.try_write() else { return };
        // TREE-1: a root stays whole.
        if node.pinned.load(Ordering::Relaxed) || state.is_held() {
            return;
        }
        let Body::Leaf(leaf) = &mut state.body else { return };
        // After a split or merge other parts stand in these places; they are clean or stay all the same.
        let end = run.parts.end.min(leaf.basements.len());
        for slot in leaf.basements.get_mut(run.parts.start..end).unwrap_or_default() {
            slot.part.evict();
        }
        self.account(&mut state);
    }
}
