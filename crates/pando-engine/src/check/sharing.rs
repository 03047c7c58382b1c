//! What a check asks of each node as it is in memory, above all BT-5: what several ways lead to stays as it is.
//!
//! Whether a node was shared when it changed cannot be seen afterwards, but this can: names that nodes hold which are as the last
//! checkpoint wrote them have been there all the time since. A node of two such names was shared all that time, one behind such an xf or goto
//! was seen by others or in part (INT-3), and both, and all below them, must be as the last checkpoint wrote them.
//!
//! What was shared for a shorter time is covered where it would be changed (`Volume::mark_dirty` asserts that it has but one name), and, as long as
//! the goto is there that shared it, by its MSN (`order.rs`).

use std::sync::atomic::Ordering;

use pando_format::{Msn, NodeId};

use super::Check;
use crate::betree::node::{Body, CachedNode, Node};

/// Lasting names from which on a node is shared.
const SHARED: u32 = 2;

impl Check<'_> {
    /// Looks at what a node that is loaded shows alone (CACHE-3, INT-1, BUF-3), and notes what BT-1 and BT-5 ask of it.
    pub(super) fn first_look(&mut self, node: &CachedNode, state: &Node) {
        let id = node.id;
        if !self.volume.cache.will_be_written(node, state) {
            self.problem(id, "CACHE-3: it has changed, and the next checkpoint would not write it");
        }
        let is_shared = self.volume.is_shared(id);
        if node.shared.load(Ordering::Relaxed) != is_shared {
            self.problem(id, "BT-5: what the cache says of its being shared differs from the block table");
        }
        let written = self.checkpoint.get(id).map(|entry| entry.generation);
        let has_changed = state.dirty.is_some()
            || state.frozen.is_some()
            || written.is_none()
            || written != self.volume.table.generation(id);
        let mut waiting = Msn::default();
        let mut names = Vec::new();
        let newest = match &state.body {
            Body::Leaf(leaf) => leaf.newest(),
            Body::Interior(interior) => {
                for (index, child) in interior.children.iter().enumerate() {
                    let Some(buffer) = child.buffer.get() else { continue };
                    let newest = buffer.msns().map(|(_, newest)| newest).unwrap_or_default();
                    waiting = waiting.max(newest);
                    if newest > child.buffer_msn {
                        self.problem(id, &format!("INT-1: messages for edge {index} are newer than it says"));
                    }
                    if !buffer.is_in_order() {
                        self.problem(id, &format!("BUF-3: messages for edge {index} lie below older ranges"));
                    }
                    if !has_changed {
                        let edge = Some(child.id).filter(|id| !id.is_empty());
                        self.lasts(edge, if child.xf.is_some() { SHARED } else { 1 });
                        buffer.targets().for_each(|target| self.lasts(Some(target), SHARED));
                    }
                }
                names = interior.references();
                waiting
            }
        };
        if newest.lsn > self.volume.sequencer.lock().0 {
            self.problem(id, &format!("BT-1: it holds MSN {newest}, newer than the last record"));
        }
        if let Some(known) = self.known(id) {
            (known.has_changed, known.waiting, known.newest, known.names) =
                (has_changed, waiting, newest, names);
        }
    }

    fn lasts(&mut self, id: Option<NodeId>, names: u32) {
        if let Some(known) = id.and_then(|id| self.known(id)) {
            known.lasting = known.lasting.saturating_add(names);
        }
    }

    /// Compares what was shared since the last checkpoint with what that wrote. The whole volume has been looked at.
    pub(super) fn shared_nodes(&mut self) {
        // What could not be written is written anew, changed or not.
        if self.volume.failure().is_some() {
            return;
        }
        let shared = self.known.iter().filter(|(_, known)| known.lasting >= SHARED);
        let mut stack: Vec<_> = shared.map(|(id, _)| *id).collect();
        // So that it finds the same in the same order.
        stack.sort_unstable();
        while let Some(id) = stack.pop() {
            let Some(known) = self.known(id) else { continue };
            // Once each.
            stack.extend(std::mem::take(&mut known.names));
            if std::mem::take(&mut known.has_changed) {
                self.problem(
                    id,
                    "BT-5: it has changed since the last checkpoint, and was shared all the time",
                );
            }
        }
    }
}
