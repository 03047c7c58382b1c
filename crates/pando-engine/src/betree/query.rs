//! Point queries: from the root down, as far as the answer needs.
//!
//! The lock of every node on the path is held, shared, until the answer is there, so a flush cannot carry a message past
//! the query. Messages are applied to the answer, never to the tree.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{NodeId, Pending, Tree};

use super::names::NAMES_LENGTH_MAX;
use super::node::{Body, CachedNode};
use super::sharing::lifts_too_much;
use crate::Result;
use crate::volume::Volume;

impl Volume {
    /// The value of a key, or [`crate::Error::Miss`].
    pub(crate) fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>> {
        self.stats.gets.fetch_add(1, Ordering::Relaxed);
        let root = self.root(tree).read();
        self.get_in(&root, key, None)
    }

    fn get_in(&self, node: &CachedNode, key: &[u8], height: Option<u8>) -> Result<Option<Bytes>> {
        node.expect_height(height)?;
        let state = node.state.read();
        let interior = match &state.body {
            Body::Leaf(leaf) => {
                if leaf.basements.is_empty() {
                    return Ok(None);
                }
                let index = leaf.index_of(key);
                let part = &leaf.basements[index].part;
                let Some(basement) = part.get() else { return Err(self.missing(node.id, index, part)) };
                return Ok(basement.get(key).cloned());
            }
            Body::Interior(interior) => interior,
        };
        let index = interior.index_of(key);
        let child = &interior.children[index];
        let Some(buffer) = child.buffer.get() else {
            return Err(self.missing(node.id, index, &child.buffer));
        };
        let pending = buffer.pending(key);
        if let Some(pending @ (Pending::Put(_) | Pending::Delete)) = pending {
            return Ok(pending.apply(None));
        }
        let below = if let Some(goto) = buffer.goto_of(key) {
            let rest = key.get(goto.xf.strip as usize..).ok_or_else(|| lifts_too_much(node))?;
            self.get_translated(node, goto.target, &[&goto.xf.prepend[..], rest].concat(), goto.height)?
        } else if child.id.is_empty() || buffer.deletes(key) {
            None
        } else if child.xf.is_some() {
            let key = child.translate(key).ok_or_else(|| lifts_too_much(node))?;
            self.get_translated(node, child.id, &key, state.height - 1)?
        } else {
            let lowered = key.get(child.strip as usize..).ok_or_else(|| lifts_too_much(node))?;
            self.get_in(&*self.cached(child.id)?, lowered, Some(state.height - 1))?
        };
        Ok(match pending {
            Some(pending) => pending.apply(below),
            None => below,
        })
    }

    /// The same behind an xf or goto of a node. Where damage lets each of them make the key longer, they would take all memory.
    fn get_translated(&self, node: &CachedNode, id: NodeId, key: &[u8], height: u8) -> Result<Option<Bytes>> {
        if key.len() > NAMES_LENGTH_MAX {
            return Err(lifts_too_much(node));
        }
        self.get_in(&*self.cached(id)?, key, Some(height))
    }
}
