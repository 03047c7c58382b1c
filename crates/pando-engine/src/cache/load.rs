//! Nodes and their parts from the device into the cache.
//!
//! Reads happen with no lock held. What was read is used only if the node still lies where it was read; otherwise it has
//! been rewritten in the meantime and is looked up again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, Buffer, ReadRequest};
use pando_format::{
    BlockEntry, BufferPart, NodeBody, NodeHeader, NodeId, PartEntry, Structure, Tree, decode_leaf_part,
    open_part, stored_checksum,
};

use crate::betree::interior::{Child, Interior};
use crate::betree::leaf::{Basement, BasementSlot, Leaf};
use crate::betree::message_buffer::{ENTRY_OVERHEAD, MessageBuffer};
use crate::betree::node::{Body, CachedNode, Node, NodeRef};
use crate::betree::part::Part;
use crate::cache::in_flight::{Claim, InFlight};
use crate::cache::lost::Piece;
use crate::cache::read_ahead::{WINDOW_MIN, mark};
use crate::volume::Volume;
use crate::{Error, Miss, Result};

/// Neighbouring parts of a leaf that are read together, if the predecessor of the first has been read, in bytes.
const RUN_BYTES: usize = 1 << 20;
/// The same of bytes in memory: what is compressed very well may come to thousands of times as many.
const RUN_BYTES_RAW: usize = 16 << 20;

/// A part decoded from the device.
enum LoadedPart {
    Basement(Arc<Basement>),
    Buffer(Arc<MessageBuffer>),
}

impl LoadedPart {
    /// Memory that it takes, in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Basement(basement) => basement.memory(),
            Self::Buffer(buffer) => buffer.bytes(),
        }
    }
}

/// Neighbouring parts of a node on their way into memory.
pub(super) struct Run<'a> {
    _claim: Claim<'a>,
    place: BlockEntry,
    /// At least one, by number.
    wanted: Vec<(usize, PartEntry)>,
}

impl Volume {
    /// The node, or [`Error::Miss`], or why it could not be read a moment ago. The caller holds the lock of a node that names it, so it is in the block
    /// table unless that is damaged: who missed such a node would ask for it for ever.
    pub(crate) fn cached(&self, id: NodeId) -> Result<NodeRef> {
        match self.cache.peek(id) {
            Some(node) => Ok(node),
            None if self.table.generation(id).is_none() => Err(unknown(id)),
            None => Err(self.lost_header(id).unwrap_or(Error::Miss(Miss { node: id, part: None }))),
        }
    }

    /// The node, read if need be.
    pub(crate) fn node(&self, id: NodeId) -> Result<NodeRef> {
        loop {
            if let Some(node) = self.cache.peek(id) {
                return Ok(node);
            }
            if !self.load_node(id)? {
                return Err(unknown(id));
            }
        }
    }

    /// Reads what was missing. A node or part that is gone by now is no error: who missed it will go another way.
    pub(crate) fn fetch(&self, miss: Miss) -> Result<()> {
        let Some(node) = self.cache.peek(miss.node) else {
            self.load_node(miss.node)?;
            return Ok(());
        };
        match miss.part {
            Some(part) => self.load_part(&node, part as usize).map(drop),
            None => Ok(()),
        }
    }

    /// Reads what a query missed. If that cannot be read, the query finds this when it asks again, and may do without; who misses it nevertheless is told
    /// here.
    pub(crate) fn fetch_for_query(&self, miss: Miss) -> Result<()> {
        if let Some(error) = self.lost(miss) {
            return Err(error);
        }
        match self.read_missed(miss) {
            Err(_) if self.lost(miss).is_some() => Ok(()),
            done => done,
        }
    }

    /// What it reads in order streams by.
    fn read_missed(&self, miss: Miss) -> Result<()> {
        let (Some(node), Some(part)) = (self.cache.peek(miss.node), miss.part) else {
            return self.fetch(miss);
        };
        let (parts, bytes) = self.load_part(&node, part as usize)?;
        if parts.len() > 1 {
            node.mark.store(mark(parts.start + parts.len() / 2, WINDOW_MIN), Ordering::Relaxed);
            self.pass(&node, parts, bytes);
        }
        Ok(())
    }

    /// Reads every part of a node that is not in memory.
    pub(crate) fn load_all(&self, node: &NodeRef) -> Result<()> {
        loop {
            let missing = node.state.read().missing_part();
            match missing {
                Some(part) => _ = self.load_part(node, part as usize)?,
                None => return Ok(()),
            }
        }
    }

    /// Reads a node's header; false if there is no such node any more.
    pub(super) fn load_node(&self, id: NodeId) -> Result<bool> {
        loop {
            let Some(entry) = self.table.lookup(id) else { return Ok(false) };
            // Never written: a new node, which enters the table a moment before the cache, and stays there until it is written.
            if entry.extents.is_empty() {
                if self.cache.peek(id).is_some() {
                    return Ok(true);
                }
                std::thread::yield_now();
                continue;
            }
            let begun = Instant::now();
            let header = self.read_header(id, &entry).and_then(|header| {
                self.expect_in_tree(entry.tree, id, header.children())?;
                Ok(header)
            });
            let header = match header {
                // What lay there was written over after the node had moved: look it up again.
                Err(Error::Damaged { .. }) if self.table.generation(id) != Some(entry.generation) => continue,
                header => header.inspect_err(|error| {
                    self.stats.count_failed_read(error);
                    self.cache.lost.note(id, Piece::Header(entry.generation), error, begun);
                })?,
            };
            let mut state = self.node_of(header, entry.clone());
            let mut shard = self.cache.shard(id).lock();
            // CACHE-1: between the read and now the node may have been loaded, changed, written and evicted.
            let now = self.table.lookup(id);
            if now.as_ref().map(|now| now.generation) != Some(entry.generation) {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(vacant) = shard.entry(id) {
                self.account(&mut state);
                let node = CachedNode::new(id, entry.tree, state);
                node.shared.store(now.is_some_and(|now| now.references > 1), Ordering::Relaxed);
                vacant.insert(node);
                self.stats.nodes_read.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(true);
        }
    }

    /// No way leads from one tree to a node of the other, which would be taken apart under that one's feet. What a way leads to that is not there is told of by
    /// who goes it.
    fn expect_in_tree(&self, tree: Tree, id: NodeId, targets: impl Iterator<Item = NodeId>) -> Result<()> {
        for target in targets {
            if self.table.tree(target).is_some_and(|other| other != tree) {
                let what = format!("a way leads from it to node {}, which is the other tree's", target.0);
                return Err(Error::damaged_node(Some(tree), id, what));
            }
        }
        Ok(())
    }

    /// Reads and verifies the header of a node at a place.
    pub(crate) fn read_header(&self, id: NodeId, entry: &BlockEntry) -> Result<NodeHeader> {
        if entry.extents.is_empty() {
            return Err(Error::damaged_node(Some(entry.tree), id, "the block table has no place for it"));
        }
        let bytes = self.read_image(entry, 0, entry.header_length as usize)?;
        let damaged = |what: String| Error::damaged_node(Some(entry.tree), id, what);
        let header = NodeHeader::decode(&bytes).map_err(|error| damaged(error.to_string()))?;
        if stored_checksum(&bytes) != entry.header_checksum {
            return Err(damaged("its header is not the one that the block table names".to_owned()));
        }
        let matches = header.volume == self.volume_id
            && header.node == id
            && header.generation == entry.generation
            && header.height == entry.height
            && header.tree == entry.tree;
        if !matches {
            return Err(damaged(format!("its header says that it is another node: {header}")));
        }
        // Or a part would be missing only when the node is written again, by a checkpoint, which has nothing to put in its place.
        let end = header.image_length(entry.header_length);
        if end > u64::from(entry.length) {
            return Err(damaged(format!(
                "its parts end at byte {end} of an image of {} bytes",
                entry.length
            )));
        }
        Ok(header)
    }

    /// A node in memory with all its parts on the device.
    pub(crate) fn node_of(&self, header: NodeHeader, place: BlockEntry) -> Node {
        let body = match header.body {
            NodeBody::Leaf { first_keys } => {
                let slots = first_keys.into_iter().zip(header.parts).map(|(first_key, entry)| BasementSlot {
                    first_key,
                    bytes: entry.live_bytes as usize,
                    entries: entry.entry_count,
                    msn: entry.msn,
                    part: Part::on_device(entry),
                });
                Body::Leaf(Leaf::of(slots.collect()))
            }
            NodeBody::Interior { pivots, edges } => {
                let children = edges.into_iter().zip(header.parts).map(|(edge, entry)| {
                    let mut child = Child::new(edge.child, edge.strip as usize);
                    child.xf = edge.xf;
                    child.buffer_msn = entry.msn;
                    if entry.stored_length == 0 {
                        child.buffer.set_stored(entry);
                    } else {
                        child.buffer_bytes =
                            entry.live_bytes as usize + entry.entry_count as usize * ENTRY_OVERHEAD;
                        child.buffer = Part::on_device(entry);
                    }
                    child
                });
                Body::Interior(Interior { pivots, children: children.collect() })
            }
        };
        let mut node = Node::new(header.height, body, header.range, header.birth);
        node.place = Some(place);
        node
    }

    /// Reads one part, and for a leaf that is read in order the parts behind it, up to one that cannot be read. Returns which, and
    /// their bytes in memory: none if somebody else has read the part.
    pub(crate) fn load_part(&self, node: &NodeRef, index: usize) -> Result<(Range<usize>, usize)> {
        match self.claim_run(node, index, InFlight::claim) {
            Some(run) => self.load_run(node, run).inspect_err(|error| self.stats.count_failed_read(error)),
            None => Ok((index..index, 0)),
        }
    }

    /// What [`Volume::load_part`] is to read; nobody else reads it meanwhile. `None` if somebody else has, or if the claim is refused.
    pub(super) fn claim_run<'a>(
        &'a self,
        node: &NodeRef,
        index: usize,
        claim: impl FnOnce(&'a InFlight, NodeId, u32, u32) -> Option<Claim<'a>>,
    ) -> Option<Run<'a>> {
        let count = self.parts_to_read(node, &node.state.read(), index).len();
        if count == 0 {
            return None;
        }
        let claim = claim(&self.cache.in_flight, node.id, index as u32, count as u32)?;
        let state = node.state.read();
        let place = state.place.clone()?;
        let mut wanted = self.parts_to_read(node, &state, index);
        wanted.truncate(claim.count());
        (!wanted.is_empty()).then_some(Run { _claim: claim, place, wanted })
    }

    /// Reads a run of parts.
    pub(super) fn load_run(&self, node: &NodeRef, run: Run<'_>) -> Result<(Range<usize>, usize)> {
        let Run { _claim, place, wanted } = run;
        let begun = Instant::now();
        let (index, first) = &wanted[0];
        let (index, start) = (*index, first.offset as usize * BLOCK_SIZE);
        let nothing = (index..index, 0);
        let last = &wanted[wanted.len() - 1].1;
        let length = last.offset as usize * BLOCK_SIZE + last.padded_length() - start;
        let mut read = self.read_image(&place, start, length);
        if read.is_err() && wanted.len() > 1 {
            // Not because of what should only have been read along.
            read = self.read_image(&place, start, wanted[0].1.padded_length());
        }
        let loaded = read.and_then(|bytes| {
            let mut loaded = Vec::with_capacity(wanted.len());
            for (_, entry) in &wanted {
                let from = entry.offset as usize * BLOCK_SIZE - start;
                let to = from + entry.padded_length();
                if to > bytes.len() {
                    break;
                }
                match self.decode_part(node, place.height, bytes.slice(from..to), entry) {
                    Ok(part) => loaded.push(part),
                    Err(error) if loaded.is_empty() => return Err(error),
                    // Whoever needs that part is told.
                    Err(_) => break,
                }
            }
            Ok(loaded)
        });
        let mut state = node.state.write();
        let moved = state.dropped || state.place.as_ref().map(|now| now.generation) != Some(place.generation);
        let loaded = match loaded {
            Ok(loaded) => loaded,
            // What lay there was written over after the node had moved: ask again.
            Err(Error::Damaged { .. }) if moved => return Ok(nothing),
            Err(error) => {
                self.cache.lost.note(node.id, Piece::of(&wanted[0].1), &error, begun);
                return Err(error);
            }
        };
        if moved {
            return Ok(nothing);
        }
        let in_order = |((index, entry), part): &(&(usize, PartEntry), &LoadedPart)| {
            is_in_order(&state, *index, entry, part)
        };
        let sound = wanted.iter().zip(&loaded).take_while(in_order).count();
        if sound == 0 {
            // It would be written, or split, as no leaf may be (LEAF-1).
            let what = "a basement node has keys that belong to those beside it";
            let error = Error::damaged_node(Some(node.tree), node.id, what);
            self.cache.lost.note(node.id, Piece::of(&wanted[0].1), &error, begun);
            return Err(error);
        }
        let parts = index..index + sound;
        let bytes = loaded[..sound].iter().map(LoadedPart::bytes).sum();
        for ((index, entry), part) in wanted.into_iter().zip(loaded).take(sound) {
            install(&mut state, index, &entry, part);
        }
        self.stats.parts_read.fetch_add(1, Ordering::Relaxed);
        self.account(&mut state);
        Ok((parts, bytes))
    }

    fn decode_part(
        &self,
        node: &CachedNode,
        height: u8,
        stored: Bytes,
        entry: &PartEntry,
    ) -> Result<LoadedPart> {
        let damaged = |what: &dyn std::fmt::Display| Error::damaged_node(Some(node.tree), node.id, what);
        let shared_bytes = stored.len();
        if height == 0 {
            let raw = open_part(Structure::LeafPart, &stored, entry).map_err(|error| damaged(&error))?;
            let entries = decode_leaf_part(&raw).map_err(|error| damaged(&error))?;
            let mut basement = Basement::new(entries);
            if basement.entries.is_empty()
                || basement.bytes != entry.live_bytes as usize
                || basement.entries.len() != entry.entry_count as usize
            {
                return Err(damaged(&"a basement node does not hold what the header says"));
            }
            basement.shared_bytes = shared_bytes.max(raw.len());
            return Ok(LoadedPart::Basement(Arc::new(basement)));
        }
        let raw = open_part(Structure::BufferPart, &stored, entry).map_err(|error| damaged(&error))?;
        let part = BufferPart::decode(&raw).map_err(|error| damaged(&error))?;
        self.expect_in_tree(node.tree, node.id, part.gotos.iter().map(|goto| goto.target))?;
        let buffer = MessageBuffer::from_parts(height, part.keyed, part.ranges, part.gotos);
        buffer
            .map(|buffer| LoadedPart::Buffer(Arc::new(buffer)))
            .ok_or_else(|| damaged(&"its messages overlap, or lead no lower"))
    }

    /// Bytes of a node's image, from one or more extents.
    pub(crate) fn read_image(&self, place: &BlockEntry, start: usize, length: usize) -> Result<Bytes> {
        let mut requests = Vec::new();
        let (mut position, end) = (0usize, start + length);
        for extent in &place.extents {
            let (from, to) = (start.max(position), end.min(position + extent.length as usize));
            if from < to {
                let offset = extent.offset + (from - position) as u64;
                requests.push(ReadRequest { offset, buffer: Buffer::for_overwrite(to - from) });
            }
            position += extent.length as usize;
        }
        if end > position {
            let what = format!("a node's image ends at byte {position}, but byte {end} of it is needed");
            return Err(Error::Damaged { what });
        }
        self.device.read(&mut requests)?;
        self.stats.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        if requests.len() == 1 {
            return Ok(requests.remove(0).buffer.freeze());
        }
        let mut whole = Buffer::for_overwrite(length);
        let mut filled = 0;
        for request in &requests {
            whole[filled..filled + request.buffer.len()].copy_from_slice(&request.buffer);
            filled += request.buffer.len();
        }
        Ok(whole.freeze())
    }

    /// Part `index` and those behind it that are worth reading along, none of them in memory. Nothing if the part is.
    fn parts_to_read(&self, node: &CachedNode, state: &Node, index: usize) -> Vec<(usize, PartEntry)> {
        match &state.body {
            Body::Leaf(leaf) => {
                let stored = |index: usize| {
                    let part = &leaf.basements.get(index)?.part;
                    part.get().is_none().then(|| part.stored().cloned()).flatten()
                };
                let Some(first) = stored(index) else { return Vec::new() };
                let in_order = index == 0
                    || leaf.basements[index - 1].part.get().is_some()
                    || self.cache.in_flight.contains(node.id, index as u32 - 1);
                let (mut bytes, mut raw) = (first.padded_length(), first.raw_length as usize);
                let mut end = first.end_block();
                let mut wanted = vec![(index, first)];
                while in_order && bytes < RUN_BYTES && raw < RUN_BYTES_RAW {
                    // Deletes leave gaps, which cost a request; a crafted leaf may have one of any length.
                    let behind = |next: &PartEntry| u64::from(next.offset) == end;
                    let Some(next) = stored(index + wanted.len()).filter(behind) else { break };
                    bytes += next.padded_length();
                    raw += next.raw_length as usize;
                    end = next.end_block();
                    wanted.push((index + wanted.len(), next));
                }
                wanted
            }
            Body::Interior(interior) => {
                let part = interior.children.get(index).map(|child| &child.buffer);
                let missing = part.filter(|part| part.get().is_none());
                missing.and_then(Part::stored).map(|entry| (index, entry.clone())).into_iter().collect()
            }
        }
    }
}

/// The error of an edge or goto to a node that is not there.
fn unknown(id: NodeId) -> Error {
    Error::damaged_node(None, id, "an edge leads to it, but the block table has no such node")
}

/// False for a basement node with keys that lie before its first key or behind the next one's, if the slot still stands for the same bytes.
fn is_in_order(state: &Node, index: usize, entry: &PartEntry, loaded: &LoadedPart) -> bool {
    let (Body::Leaf(leaf), LoadedPart::Basement(basement)) = (&state.body, loaded) else { return true };
    let is_same = leaf.basements.get(index).is_some_and(|slot| slot.part.stored() == Some(entry));
    !is_same || basement.lies_inside(&leaf.range_of(index))
}

/// Gives a decoded part to its slot, if the slot still stands for the same bytes.
fn install(state: &mut Node, index: usize, entry: &PartEntry, loaded: LoadedPart) {
    match (&mut state.body, loaded) {
        (Body::Leaf(leaf), LoadedPart::Basement(basement)) => {
            if let Some(slot) = leaf.basements.get_mut(index).filter(|slot| slot.part.stored() == Some(entry))
            {
                slot.part.load(basement);
            }
        }
        (Body::Interior(interior), LoadedPart::Buffer(buffer)) => {
            if let Some(child) =
                interior.children.get_mut(index).filter(|child| child.buffer.stored() == Some(entry))
            {
                child.buffer.load(buffer);
                child.count_buffer();
            }
        }
        _ => unreachable!("the part was decoded for the node's height"),
    }
}
