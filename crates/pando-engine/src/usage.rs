//! Who uses the space: what ranges of keys, each an owner's, keep alive, alone or together with others.
//!
//! The count is that of the last checkpoint, from which it reads interior nodes; leaves are only counted. What it reads is
//! kept from being written over for so long ([`Pinned`]), and nothing else waits for it. Memory: four bytes and a bit for each node that
//! there is, eight for each edge.
//!
//! * US-1 a node that only one edge leads to, on a way of such nodes from the root and without an xf, changes in place: what an owner does not see of it goes
//!   when that is deleted. So from there only ways into the owner's ranges are followed. Any other node stays as it is, whole, and keeps alive
//!   all that it names.
//! * US-2 exclusive bytes of all owners, shared bytes, and bytes that are nobody's come to all bytes in use.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use pando_device::BLOCK_SIZE;
use pando_format::{
    BlockEntry, BufferPart, KeyRange, NodeId, PartEntry, RootPair, Structure, Tree, open_part,
};

use crate::betree::interior::Interior;
use crate::betree::lifting::range_below;
use crate::betree::node::Body;
use crate::space::block_table::{Pages, Version};
use crate::volume::Volume;
use crate::{Engine, Error, Result};

/// How often a count begins anew because its checkpoint could not be kept.
const TRIES: usize = 5;

/// Nodes at the top of the trees that are remembered from owner to owner.
const TOPS_MAX: usize = 64;

/// What one owner uses, in bytes on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerUsage {
    /// What it leads to.
    pub referenced: u64,
    /// What no other owner leads to: about what its deletion frees.
    pub exclusive: u64,
}

/// Who uses the space for nodes, in bytes on the device, as of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the order in which they were asked for.
    pub owners: Vec<OwnerUsage>,
    /// What several owners lead to, counted once.
    pub shared: u64,
    /// What no owner leads to: it waits to be reclaimed.
    pub unowned: u64,
    /// All of it.
    pub used: u64,
}

impl Engine {
    /// Counts what owners use, each the ranges of keys that are its own in both trees; no two overlap. As of the last checkpoint.
    /// Waits for the device, while changes go on.
    ///
    /// # Errors
    /// [`Error::Damaged`] where a node on the way cannot be read; [`Error::Invalid`] if checkpoints come too fast on a volume that has no
    /// room to keep one.
    pub fn usage(&self, owners: &[Vec<KeyRange>]) -> Result<Usage> {
        for _ in 0..TRIES {
            let pinned = Pinned::new(self.volume());
            match Count::new(&pinned).all(owners) {
                Err(_) if pinned.is_lost() => {}
                counted => return counted,
            }
        }
        let what = "the space cannot be counted while the volume is nearly full and changes".to_owned();
        Err(Error::Invalid { what })
    }
}

/// Whose checkpoint is to be kept.
#[derive(Default)]
pub(crate) struct Pins {
    holders: usize,
    /// Raised when those who hold one lose it.
    round: u64,
    /// What later checkpoints would have freed, in their order.
    held: Vec<Version>,
}

impl Volume {
    /// Frees what a checkpoint, durable now, no longer needs; or keeps it for those who read an older one, if there is room for that.
    pub(crate) fn release_version(&self, version: Version) {
        let free = {
            let mut pins = self.pins.lock();
            pins.held.push(version);
            if pins.holders > 0 {
                let space = self.allocator.counters();
                let roomy = space.usable / 2 > space.deferred.max(self.space_needed());
                if roomy {
                    return;
                }
                pins.round += 1;
            }
            std::mem::take(&mut pins.held)
        };
        self.release_all(free);
    }

    fn release_all(&self, versions: Vec<Version>) {
        for version in versions {
            self.table.release(version, |run| self.discard(run));
        }
    }
}

/// The last checkpoint, kept as it is on the device.
struct Pinned<'a> {
    volume: &'a Volume,
    table: Pages,
    live: RootPair,
    round: u64,
}

impl<'a> Pinned<'a> {
    fn new(volume: &'a Volume) -> Self {
        let _one = volume.checkpointing.lock();
        let live = volume.superblock.lock().live;
        let mut pins = volume.pins.lock();
        pins.holders += 1;
        Self { volume, table: volume.table.stored(), live, round: pins.round }
    }

    /// Whether something may have been written over.
    fn is_lost(&self) -> bool {
        self.volume.pins.lock().round != self.round
    }

    fn entry(&self, id: NodeId) -> Result<&BlockEntry> {
        let missing =
            || Error::damaged_node(None, id, "a way leads to it, but the block table has no such node");
        self.table.get(id).ok_or_else(missing)
    }

    fn open(&self, id: NodeId) -> Result<Opened> {
        let entry = self.entry(id)?;
        let header = self.volume.read_header(id, entry)?;
        let parts = header.parts.clone();
        let Body::Interior(interior) = self.volume.node_of(header, entry.clone()).body else {
            return Err(Error::damaged_node(
                Some(entry.tree),
                id,
                "it is a leaf, and its height says it is none",
            ));
        };
        let gotos = parts.iter().map(|part| self.gotos(id, entry, part)).collect::<Result<Vec<_>>>()?;
        Ok(Opened { interior, gotos })
    }

    /// Where the gotos in a buffer lead.
    fn gotos(&self, id: NodeId, entry: &BlockEntry, part: &PartEntry) -> Result<Vec<(KeyRange, NodeId)>> {
        if part.stored_length == 0 {
            return Ok(Vec::new());
        }
        let damaged = |what: &dyn std::fmt::Display| Error::damaged_node(Some(entry.tree), id, what);
        let stored =
            self.volume.read_image(entry, part.offset as usize * BLOCK_SIZE, part.padded_length())?;
        let raw = open_part(Structure::BufferPart, &stored, part).map_err(|error| damaged(&error))?;
        let buffer = BufferPart::decode(&raw).map_err(|error| damaged(&error))?;
        Ok(buffer.gotos.into_iter().map(|goto| (goto.range, goto.target)).collect())
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let free = {
            let mut pins = self.volume.pins.lock();
            pins.holders -= 1;
            if pins.holders > 0 {
                return;
            }
            std::mem::take(&mut pins.held)
        };
        self.volume.release_all(free);
    }
}

/// An interior node without its messages.
struct Opened {
    interior: Interior,
    /// For each edge.
    gotos: Vec<Vec<(KeyRange, NodeId)>>,
}

/// Bytes that a node takes on the device.
fn bytes_of(entry: &BlockEntry) -> u64 {
    entry.extents.iter().chain(&entry.second_copy).map(|extent| u64::from(extent.length)).sum()
}

/// Nobody's, as an owner's mark.
const NOBODY: u32 = 0;
/// Several owners', as a mark.
const SEVERAL: u32 = u32::MAX;

struct Count<'a> {
    pinned: &'a Pinned<'a>,
    /// Of each node by its id: whose it is.
    marks: Vec<u32>,
    /// The nodes that the present owner has been found to lead to.
    seen: Vec<u64>,
    /// The interior nodes that the present range has been followed through.
    followed: HashSet<NodeId>,
    /// What whole nodes name.
    named: HashMap<NodeId, Rc<[NodeId]>>,
    /// Nodes that are seen in part.
    tops: HashMap<NodeId, Rc<Opened>>,
    usage: Usage,
}

impl<'a> Count<'a> {
    fn new(pinned: &'a Pinned<'a>) -> Self {
        let nodes = pinned.table.end() as usize;
        Self {
            pinned,
            marks: vec![NOBODY; nodes],
            seen: vec![0; nodes.div_ceil(64)],
            followed: HashSet::new(),
            named: HashMap::new(),
            tops: HashMap::new(),
            usage: Usage::default(),
        }
    }

    fn all(mut self, owners: &[Vec<KeyRange>]) -> Result<Usage> {
        for (mark, ranges) in (1..).zip(owners) {
            self.seen.fill(0);
            self.usage.owners.push(OwnerUsage::default());
            for tree in Tree::ALL {
                let root = match tree {
                    Tree::Metadata => self.pinned.live.metadata,
                    Tree::Data => self.pinned.live.data,
                };
                for range in ranges {
                    self.followed.clear();
                    let height = self.pinned.entry(root.node)?.height;
                    self.part(root.node, height, mark, &KeyRange::all(), range)?;
                }
            }
        }
        for (id, entry) in self.pinned.table.entries() {
            let bytes = bytes_of(entry);
            self.usage.used += bytes;
            match self.marks[id.0 as usize] {
                NOBODY => self.usage.unowned += bytes,
                SEVERAL => self.usage.shared += bytes,
                mark => self.usage.owners[mark as usize - 1].exclusive += bytes,
            }
        }
        if self.pinned.is_lost() {
            return Err(Error::Invalid { what: "the checkpoint is gone".to_owned() });
        }
        Ok(self.usage)
    }

    /// Counts a node for an owner; false if that has been done.
    fn count(&mut self, id: NodeId, mark: u32) -> Result<bool> {
        let entry = self.pinned.entry(id)?;
        let (word, bit) = (id.0 as usize / 64, 1 << (id.0 % 64));
        if self.seen[word] & bit != 0 {
            return Ok(false);
        }
        self.seen[word] |= bit;
        self.usage.owners[mark as usize - 1].referenced += bytes_of(entry);
        let known = &mut self.marks[id.0 as usize];
        *known = if matches!(*known, NOBODY) || *known == mark { mark } else { SEVERAL };
        Ok(true)
    }

    /// A node of which the owner has a part (US-1), given the bounds of its keys and of those wanted, as it calls them.
    fn part(&mut self, id: NodeId, height: u8, mark: u32, own: &KeyRange, wanted: &KeyRange) -> Result<()> {
        let found = self.pinned.entry(id)?.height;
        if found != height {
            // Also what keeps an image that leads in a circle from being followed for ever.
            let what = format!("its height is {found}, its parent says {height}");
            return Err(Error::damaged_node(None, id, what));
        }
        self.count(id, mark)?;
        let Some(below_height) = height.checked_sub(1) else { return Ok(()) };
        if !self.followed.insert(id) {
            // As many ways as such edges make would all be followed.
            let what = "two edges lead to it, and the block table says one";
            return Err(Error::damaged_node(None, id, what));
        }
        let opened = self.top(id)?;
        let interior = &opened.interior;
        for index in interior.indexes_in(wanted) {
            let bounds = interior.bounds_of(index, own);
            let piece = bounds.intersection(wanted);
            if piece.is_empty() {
                continue;
            }
            let child = &interior.children[index];
            if !child.id.is_empty() {
                if child.xf.is_some() || self.pinned.entry(child.id)?.references > 1 {
                    self.whole(child.id, mark)?;
                } else {
                    let (below, prefix) = interior.bounds_below(index, own)?;
                    self.part(child.id, below_height, mark, &below, &range_below(&piece, &bounds, &prefix))?;
                }
            }
            for (range, target) in &opened.gotos[index] {
                if !range.intersection(&piece).is_empty() {
                    self.whole(*target, mark)?;
                }
            }
        }
        Ok(())
    }

    /// A node that the owner has with all that it names.
    fn whole(&mut self, id: NodeId, mark: u32) -> Result<()> {
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            if self.count(id, mark)? && self.pinned.entry(id)?.height > 0 {
                waiting.extend_from_slice(&self.named(id)?);
            }
        }
        Ok(())
    }

    fn top(&mut self, id: NodeId) -> Result<Rc<Opened>> {
        if let Some(opened) = self.tops.get(&id) {
            return Ok(opened.clone());
        }
        let opened = Rc::new(self.pinned.open(id)?);
        if self.tops.len() == TOPS_MAX {
            self.tops.clear();
        }
        self.tops.insert(id, opened.clone());
        Ok(opened)
    }

    fn named(&mut self, id: NodeId) -> Result<Rc<[NodeId]>> {
        if let Some(named) = self.named.get(&id) {
            return Ok(named.clone());
        }
        let opened = self.pinned.open(id)?;
        let edges = opened.interior.children.iter().map(|child| child.id).filter(|id| !id.is_empty());
        let gotos = opened.gotos.iter().flatten().map(|(_, target)| *target);
        let named: Rc<[NodeId]> = edges.chain(gotos).collect();
        self.named.insert(id, named.clone());
        Ok(named)
    }
}

#[cfg(test)]
mod tests;
