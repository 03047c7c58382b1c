//! Keeping the cache within its budget: clean parts go, dirty nodes are written and go later.
//!
//! A clock hand runs over the nodes, from where the last round left it; one that has been used since the hand last passed is spared. The
//! round is one step of background work. It holds the `eviction` token, which a checkpoint takes for the moment of its cut, so that no
//! write-back is under way across a cut.

use std::sync::atomic::Ordering;

use super::write_back::Cause;
use super::{Hand, SHARDS};
use crate::Result;
use crate::betree::node::{Body, Node, NodeRef};
use crate::volume::Volume;

impl Volume {
    /// Memory from which on nodes are evicted.
    fn memory_goal(&self) -> usize {
        self.options.cache_bytes / 8 * 7
    }

    /// Bytes of dirty nodes from which on they are written before the next checkpoint asks for it.
    pub(crate) fn dirty_goal(&self) -> u64 {
        (self.options.cache_bytes / 2) as u64
    }

    /// True if the cache holds more than it should.
    pub(crate) fn wants_eviction(&self) -> bool {
        self.cache.memory() > self.memory_goal()
    }

    /// One round of eviction; false if there was nothing to gain.
    pub(crate) fn evict(&self) -> Result<bool> {
        let Some(_token) = self.eviction.try_lock() else { return Ok(false) };
        let before = self.cache.memory();
        let goal = self.memory_goal();
        // First what is clean and has not been used for a round, then what is clean, then what is dirty.
        for spare_used in [true, false] {
            self.drop_clean(goal, spare_used);
            if self.cache.memory() <= goal {
                return Ok(true);
            }
        }
        while self.cache.memory() > goal {
            if self.write_oldest()?.is_none() {
                break;
            }
            self.drop_clean(goal, false);
        }
        Ok(self.cache.memory() < before)
    }

    /// A round for a query that has just read what it missed and will look again. What was used of late is spared,
    /// even if the budget is exceeded by as much: it is the path of that query, and dropping it would let the query miss
    /// for ever. Dirty leaves are written instead.
    pub(crate) fn evict_for_query(&self) -> Result<()> {
        let Some(_token) = self.eviction.try_lock() else { return Ok(()) };
        self.drop_clean(self.memory_goal(), true);
        while self.cache.memory() > self.options.cache_bytes {
            let Some(node) = self.write_oldest()? else { break };
            let mut state = node.state.write();
            if node.pinned.load(Ordering::Relaxed) {
                continue;
            }
            drop_parts(&mut state);
            self.account(&mut state);
        }
        Ok(())
    }

    /// Drops what is clean until the goal is reached, or every node has been looked at.
    pub(crate) fn drop_clean(&self, goal: usize, spare_used: bool) {
        let start = *self.cache.hand.lock();
        let mut hand = start;
        // The hand's own shard comes first with what lies behind the hand, and last with the rest.
        for step in 0..=SHARDS {
            let shard = (start.shard + step) % SHARDS;
            let mut nodes: Vec<NodeRef> = self.cache.shards[shard].lock().values().cloned().collect();
            match step {
                0 => nodes.retain(|node| node.id > start.node),
                SHARDS => nodes.retain(|node| node.id <= start.node),
                _ => {}
            }
            nodes.sort_unstable_by_key(|node| node.id);
            for node in nodes {
                if self.cache.memory() <= goal {
                    *self.cache.hand.lock() = hand;
                    return;
                }
                hand = Hand { shard, node: node.id };
                if node.pinned.load(Ordering::Relaxed)
                    || (node.used.swap(false, Ordering::Relaxed) && spare_used)
                {
                    continue;
                }
                let Some(mut state) = node.state.try_write() else { continue };
                // It may have become a root since. What is being written is held by its image as well.
                if node.pinned.load(Ordering::Relaxed) || state.is_held() {
                    continue;
                }
                drop_parts(&mut state);
                self.account(&mut state);
                let gone = state.dirty.is_none() && nothing_loaded(&state);
                drop(state);
                if gone {
                    self.remove_if_unused(node);
                }
            }
        }
    }

    /// CACHE-2: the shard and the caller hold the only references, and while the shard is locked no new one can come but from a weak one
    /// ([`super::passing`]), whose holder finds a node that counts no more. So the node can be locked under the shard, against the order: only
    /// that holder may have its lock, and waits for no shard.
    fn remove_if_unused(&self, node: NodeRef) {
        let mut shard = self.cache.shard(node.id).lock();
        if std::sync::Arc::strong_count(&node) != 2 {
            return;
        }
        let mut state = node.state.write();
        if state.dirty.is_none() && state.frozen.is_none() && !state.writing && nothing_loaded(&state) {
            self.discount(&mut state);
            state.dropped = true;
            shard.remove(&node.id);
        }
    }

    /// Writes the node that has been dirty longest and gives it back; `None` if there is none that may be written.
    fn write_oldest(&self) -> Result<Option<NodeRef>> {
        // What a replay made dirty stays in memory then, whatever the budget says.
        if self.options.read_only {
            return Ok(None);
        }
        let now = self.cache.interval();
        for node in self.cache.dirty_nodes() {
            if node.pinned.load(Ordering::Relaxed) {
                continue;
            }
            let image = {
                let mut state = node.state.write();
                // What was dirty at the last cut is the running checkpoint's to write.
                let free =
                    state.dirty == Some(now) && state.frozen.is_none() && !state.writing && !state.dropped;
                if !free {
                    continue;
                }
                self.take_image(&node, &mut state)
            };
            let written = match self.write_image(&image, Cause::Eviction) {
                Ok(written) => written,
                Err(error) => {
                    self.give_image_back(&node);
                    return Err(error);
                }
            };
            self.place_written(&node, &image, &written);
            self.cache.forget_written(&node);
            return Ok(Some(node));
        }
        Ok(None)
    }

    /// Writes one dirty node back before the next checkpoint asks for it; false if none may be.
    pub(crate) fn write_back_one(&self) -> Result<bool> {
        let Some(_token) = self.eviction.try_lock() else { return Ok(false) };
        Ok(self.write_oldest()?.is_some())
    }

    /// A node whose write did not come about is as dirty as before.
    pub(crate) fn give_image_back(&self, node: &NodeRef) {
        let mut state = node.state.write();
        if !state.dropped {
            if state.dirty.is_none() {
                // It is on the list still, and comes to its end now.
                self.cache.forget_dirty(node);
            }
            self.note_dirty(node, &mut state);
            self.account(&mut state);
        }
        self.finish_image(&mut state);
    }
}

fn drop_parts(state: &mut Node) {
    match &mut state.body {
        Body::Leaf(leaf) => {
            for slot in &mut leaf.basements {
                slot.part.evict();
            }
        }
        Body::Interior(interior) => {
            for child in &mut interior.children {
                if child.buffer_bytes > 0 {
                    child.buffer.evict();
                }
            }
        }
    }
}

pub(super) fn nothing_loaded(state: &Node) -> bool {
    match &state.body {
        Body::Leaf(leaf) => leaf.basements.iter().all(|slot| slot.part.get().is_none()),
        Body::Interior(interior) => {
            interior.children.iter().all(|child| child.buffer_bytes == 0 || child.buffer.get().is_none())
        }
    }
}
