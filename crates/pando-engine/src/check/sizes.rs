//! BT-6: how large nodes are.
//!
//! Messages and surgery may take a node out of its bounds at any moment, and maintenance brings it back later: it splits what is too large
//! when it next flushes there, heals the ends of ranges that have moved when there are some, and after a crash does not know any more which
//! these were. So a size alone is no damage: the check reports sizes apart from problems, for who knows that maintenance has nothing left
//! to do, as the simulation does.

use super::Check;
use crate::betree::node::{Body, Node};

/// The extremes among the nodes that maintenance may change: those of one name that no xf or goto leads to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Most edges of a root.
    pub root_edges: usize,
    /// Most memory of the messages that wait in a root, in bytes.
    pub root_message_bytes: usize,
    /// Roots of a single edge.
    pub roots_of_one_edge: u64,
    /// Most edges of an interior node below a root.
    pub edges: usize,
    /// Most memory of the messages that wait in an interior node below a root, in bytes.
    pub message_bytes: usize,
    /// Most bytes of keys and values in a leaf of more than one basement node.
    pub leaf_bytes: usize,
}

impl Check<'_> {
    /// Notes how large a node is.
    pub(super) fn size_of(&mut self, state: &Node, is_root: bool) {
        let sizes = &mut self.report.sizes;
        match &state.body {
            Body::Leaf(leaf) if leaf.basements.len() > 1 => {
                sizes.leaf_bytes = sizes.leaf_bytes.max(leaf.bytes());
            }
            Body::Leaf(_) => {}
            Body::Interior(interior) => {
                let (edges, bytes) = if is_root {
                    sizes.roots_of_one_edge += u64::from(interior.children.len() == 1);
                    (&mut sizes.root_edges, &mut sizes.root_message_bytes)
                } else {
                    (&mut sizes.edges, &mut sizes.message_bytes)
                };
                *edges = interior.children.len().max(*edges);
                *bytes = interior.buffer_bytes().max(*bytes);
            }
        }
    }
}
