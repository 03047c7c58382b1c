//! A node in memory.
//!
//! A node is a vector of reference-counted parts. Taking its [`Image`] copies pointers; what changes afterwards is copied
//! part by part. That is how a checkpoint writes the state of its cut while operations go on:
//!
//! * NODE-1 `dirty` is the interval in which the node changed first since its image was last taken.
//! * NODE-2 a node that is dirty since before the cut gives up its image (`frozen`) before the first change after the cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use pando_device::BLOCK_SIZE;
use pando_format::block_table::BlockEntry;
use pando_format::{KeyRange, Msn, NodeId, Tree};
use parking_lot::RwLock;

use super::interior::{Interior, Lowered, Placed};
use super::leaf::Leaf;
use crate::cache::read_ahead::NO_MARK;
use crate::volume::Shape;
use crate::{Error, Result};

/// A node that the cache knows.
#[derive(Debug)]
pub(crate) struct CachedNode {
    /// Its name in the block table.
    pub(crate) id: NodeId,
    /// The tree it belongs to.
    pub(crate) tree: Tree,
    /// That of its contents, which never changes: a tree grows by new nodes above the old ones.
    pub(crate) height: u8,
    /// Set when somebody looks at it, cleared by the clock hand of the eviction.
    pub(crate) used: AtomicBool,
    /// True for a root (TREE-1): it stays in memory.
    pub(crate) pinned: AtomicBool,
    /// True if more than one edge, goto or root names it (BT-5): it must not change.
    pub(crate) shared: AtomicBool,
    /// Of a leaf: the part at which a scan asks for more to be read ahead, and how much (`read_ahead`); a hint.
    pub(crate) mark: AtomicU64,
    /// The contents. Lock order: parent before child; the gate before any node.
    pub(crate) state: RwLock<Node>,
}

/// How the rest of the engine holds a node.
pub(crate) type NodeRef = Arc<CachedNode>;

/// What a node holds.
#[derive(Debug)]
pub(crate) struct Node {
    /// 0 for a leaf.
    pub(crate) height: u8,
    /// Basement nodes, or edges with their buffers.
    pub(crate) body: Body,
    /// The full keys it held when it was made, for salvage.
    pub(crate) key_range: KeyRange,
    /// The MSN when it was made.
    pub(crate) born: Msn,
    /// Where its stored parts lie; `None` before it is first written.
    pub(crate) place: Option<BlockEntry>,
    /// See NODE-1.
    pub(crate) dirty: Option<u64>,
    /// See NODE-2.
    pub(crate) frozen: Option<Box<Image>>,
    /// True from the moment its image is taken until the write is done.
    pub(crate) writing: bool,
    /// Memory that the cache has counted for it.
    pub(crate) counted: usize,
    /// Bytes of dirty nodes on the device that the cache has counted for it.
    pub(crate) counted_dirty: usize,
    /// The same for its image that is frozen or being written.
    pub(crate) counted_image: usize,
    /// True once no tree leads to it any more, or it has left the cache.
    pub(crate) dropped: bool,
}

/// Leaf or interior.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Height 0.
    Leaf(Leaf),
    /// Height 1 and more.
    Interior(Interior),
}

/// A node's contents at one instant, to be written.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) id: NodeId,
    pub(crate) tree: Tree,
    pub(crate) height: u8,
    pub(crate) body: Body,
    pub(crate) key_range: KeyRange,
    pub(crate) born: Msn,
    /// Where parts lie that are not in memory.
    pub(crate) place: Option<BlockEntry>,
    /// The checkpoint that is to name it: the one that ends the interval in which the node changed.
    pub(crate) checkpoint: u64,
}

impl CachedNode {
    /// A node with new contents.
    pub(crate) fn new(id: NodeId, tree: Tree, node: Node) -> NodeRef {
        Arc::new(Self {
            id,
            tree,
            height: node.height,
            used: AtomicBool::new(true),
            pinned: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            mark: AtomicU64::new(NO_MARK),
            state: RwLock::new(node),
        })
    }

    /// BT-3: a node has the height that the way to it says. Damage can break that, so it is an error and no assertion. Asked before the
    /// node is locked by who holds the lock of one above it: where an image leads in a circle, that may be the same node, and whoever waits
    /// to change it would keep both waiting for ever.
    pub(crate) fn expect_height(&self, height: Option<u8>) -> Result<()> {
        match height {
            Some(height) if height != self.height => {
                let what = format!("its height is {}, but the edge to it says {height}", self.height);
                Err(Error::damaged_node(Some(self.tree), self.id, what))
            }
            _ => Ok(()),
        }
    }
}

impl Node {
    /// True if an image of the node holds its parts: to drop them from it would free nothing.
    pub(crate) fn is_held(&self) -> bool {
        self.frozen.is_some() || self.writing
    }

    /// A node that is not on the device yet.
    pub(crate) fn new(height: u8, body: Body, key_range: KeyRange, born: Msn) -> Self {
        Self {
            height,
            body,
            key_range,
            born,
            place: None,
            dirty: None,
            frozen: None,
            writing: false,
            counted: 0,
            counted_dirty: 0,
            counted_image: 0,
            dropped: false,
        }
    }

    /// An empty leaf.
    pub(crate) fn empty_leaf(key_range: KeyRange, born: Msn) -> Self {
        Self::new(0, Body::Leaf(Leaf::default()), key_range, born)
    }

    /// The contents as they are now, of a node that has changed.
    pub(crate) fn image(&self, id: NodeId, tree: Tree) -> Image {
        Image {
            id,
            tree,
            height: self.height,
            body: self.body.clone(),
            key_range: self.key_range.clone(),
            born: self.born,
            place: self.place.clone(),
            checkpoint: self.dirty.expect("NODE-1: only what has changed is written"),
        }
    }

    /// The leaf inside; the caller knows the height.
    pub(crate) fn leaf(&self) -> &Leaf {
        match &self.body {
            Body::Leaf(leaf) => leaf,
            Body::Interior(_) => unreachable!("BT-3: a node of height {} is no leaf", self.height),
        }
    }

    /// The leaf inside, for a change.
    pub(crate) fn leaf_mut(&mut self) -> &mut Leaf {
        match &mut self.body {
            Body::Leaf(leaf) => leaf,
            Body::Interior(_) => unreachable!("BT-3: a node of height {} is no leaf", self.height),
        }
    }

    /// The interior inside; the caller knows the height.
    pub(crate) fn interior(&self) -> &Interior {
        match &self.body {
            Body::Interior(interior) => interior,
            Body::Leaf(_) => unreachable!("BT-3: a node of height 0 is a leaf"),
        }
    }

    /// The interior inside, for a change.
    pub(crate) fn interior_mut(&mut self) -> &mut Interior {
        match &mut self.body {
            Body::Interior(interior) => interior,
            Body::Leaf(_) => unreachable!("BT-3: a node of height 0 is a leaf"),
        }
    }

    /// Memory it takes.
    pub(crate) fn memory(&self) -> usize {
        let body = match &self.body {
            Body::Leaf(leaf) => leaf.memory() + leaf.basements.len() * 160,
            Body::Interior(interior) => interior.memory(),
        };
        body + 512
    }

    /// Bytes that writing it takes on the device, at most, without compression.
    pub(crate) fn write_estimate(&self) -> usize {
        let (bytes, parts) = match &self.body {
            // A few bytes an entry, and each part is padded to a block twice (packed front, blocks behind it).
            Body::Leaf(leaf) => (leaf.bytes() + leaf.entries() * 8, leaf.basements.len()),
            // An empty buffer takes no block; each edge has its place in the header.
            Body::Interior(interior) => {
                let header: usize = interior.pivots.iter().map(|pivot| pivot.bytes.len() + 16).sum();
                let edges =
                    interior.children.iter().map(|child| 160 + child.prepended().len()).sum::<usize>();
                let waiting = interior.children.iter().filter(|child| child.buffer_bytes > 0).count();
                (interior.buffer_bytes() + header + edges, waiting)
            }
        };
        bytes + parts * (2 * BLOCK_SIZE + 128) + 2 * BLOCK_SIZE
    }

    /// The index of a part that is not in memory, if there is one.
    pub(crate) fn missing_part(&self) -> Option<u32> {
        let index = match &self.body {
            Body::Leaf(leaf) => leaf.basements.iter().position(|slot| slot.part.get().is_none()),
            Body::Interior(interior) => {
                interior.children.iter().position(|child| child.buffer.get().is_none())
            }
        };
        index.map(|index| index as u32)
    }
}

impl Body {
    /// False if a key, or a pivot, is outside of the node's bounds, as no writer leaves it: what was made of it together with sound nodes would be damaged,
    /// too, and could not be written.
    pub(crate) fn lies_inside(&self, own: &KeyRange) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.lies_inside(own),
            Self::Interior(interior) => {
                interior.pivots.iter().all(|pivot| own.lower < *pivot && *pivot < own.upper)
            }
        }
    }

    /// Takes in the messages of the edge above, range deletes and gotos first (BUF-3). What they need is in memory. Says what
    /// became of each goto, and how many bytes the range deletes have freed.
    pub(crate) fn receive(
        &mut self,
        messages: Lowered,
        bounds: &KeyRange,
        shape: &Shape,
        height: u8,
    ) -> (Vec<Placed>, usize) {
        let mut freed = 0;
        match self {
            Self::Leaf(leaf) => {
                assert!(messages.gotos.is_empty(), "BT-3: no goto leads below a leaf");
                for (range, msn) in &messages.ranges {
                    freed += leaf.delete_range(range, *msn);
                }
                for (key, msn, pending) in messages.keyed {
                    leaf.apply(key, msn, pending, shape.basement_bytes);
                }
                leaf.drop_empty();
                leaf.join_small(shape.basement_bytes);
                (Vec::new(), freed)
            }
            Self::Interior(interior) => {
                for (range, msn) in &messages.ranges {
                    freed += interior.push_range(range, bounds, *msn);
                }
                let placed =
                    messages.gotos.iter().map(|goto| interior.push_goto(goto, bounds, height)).collect();
                for (key, msn, pending) in messages.keyed {
                    interior.push(key, msn, pending);
                }
                (placed, freed)
            }
        }
    }

    /// Forgets where the parts lie, because they go to another node; all are in memory.
    pub(crate) fn leave_image(&mut self) {
        match self {
            Self::Leaf(leaf) => leaf.basements.iter_mut().for_each(|slot| slot.part.leave_image()),
            Self::Interior(interior) => {
                interior.children.iter_mut().for_each(|child| child.buffer.leave_image())
            }
        }
    }
}

impl Image {
    /// The highest MSN in it.
    pub(crate) fn newest(&self) -> Msn {
        match &self.body {
            Body::Leaf(leaf) => leaf.newest(),
            Body::Interior(interior) => interior.newest(),
        }
    }
}
