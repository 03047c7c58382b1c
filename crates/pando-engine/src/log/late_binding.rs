//! Which values the log leaves out: runs of blocks that fill at least half of a leaf which is written now anyway.
//!
//! FAST16 section 3: a large write would go to the device twice, in the log and in its leaf. When a batch is written, each
//! leaf that holds enough of the batch's runs is written first, and binding records say where in it the bytes lie, or in a leaf
//! that was written before. A run is left out only if all of it was found so; the others stay inline.
//!
//! The eviction token is held from the image of a leaf to its place in the block table, as for any write-back that no cut
//! may cross. What the bindings name stays in place (CP-1): a later write of the leaf frees it with the interval that is
//! going on, and that is released by the next checkpoint at the earliest.

use std::collections::BTreeMap;

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_device::BLOCK_SIZE;
use pando_format::log_record::{Binding, BoundPiece, bound_checksum};
use pando_format::operation::BLOCK_VALUE_LENGTH;
use pando_format::{BlockEntry, Compression, Extent, Lsn, NodeId, Operation, PartEntry, Tree};

use super::batch::{Binder, Record};
use crate::apply::space_for;
use crate::betree::leaf::{Basement, Leaf};
use crate::betree::node::{Body, CachedNode, Image, NodeRef};
use crate::cache::write_back::{Cause, Written};
use crate::volume::Volume;
use crate::{Error, Result};

/// The shortest run that is worth a binding record, in bytes.
pub(crate) const BOUND_BYTES_MIN: usize = 64 << 10;

/// True for runs that are worth a binding record, and whole blocks each of which has a place.
pub(super) fn may_be_bound(operation: &Operation) -> bool {
    let Operation::PutRun { bytes, .. } = operation else { return false };
    bytes.len() >= BOUND_BYTES_MIN && bytes.len().is_multiple_of(BLOCK_VALUE_LENGTH)
}

/// A run that may be left out.
struct Run<'a> {
    lsn: Lsn,
    operation: u32,
    tree: Tree,
    prefix: &'a Bytes,
    first: u64,
    bytes: &'a Bytes,
    /// Where each block lies on the device, once its leaf is written.
    places: Vec<Option<u64>>,
}

/// A leaf and the blocks of the batch's runs in it: (run, block).
struct Target {
    node: NodeRef,
    /// Bytes that lifting takes off the keys on the way to the leaf.
    lifted: usize,
    blocks: Vec<(usize, usize)>,
}

/// Blocks `first..end` of a run, seen from a node from which the first `lifted` bytes of keys are hidden.
struct Stretch<'a> {
    run: &'a Run<'a>,
    first: usize,
    end: usize,
    lifted: usize,
}

impl Stretch<'_> {
    fn key(&self, block: usize) -> Vec<u8> {
        self.run.key(block)
    }

    /// Ends it at the first block whose key must not be in it.
    fn shorten(&mut self, is_outside: impl Fn(&[u8]) -> bool) {
        let outside = |block: &usize| self.key(*block).get(self.lifted..).is_none_or(&is_outside);
        self.end = (self.first..self.end).find(outside).unwrap_or(self.end);
    }
}

impl Binder for Volume {
    fn written(&self) {
        self.signals.progress();
    }

    fn bind(&self, first: Lsn, records: &[Record]) -> Result<Vec<Binding>> {
        let mut runs = if self.binds() { candidates(first, records) } else { Vec::new() };
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        // No cut comes between what is counted and what is bound.
        let _token = self.eviction.lock();
        if !self.has_space_to_bind(&runs) {
            return Ok(Vec::new());
        }
        let targets = self.leaves_of(&runs);
        let images = self.take_filled(&targets, &runs);
        let mut bindings = Vec::new();
        let mut bind = |written: &[Written]| {
            note_all_places(&targets, &images, written, &mut runs);
            bindings = runs.iter().filter_map(Run::binding).collect();
        };
        let leaves = images.iter().map(|(_, image)| image);
        let written = match self.write_images_meanwhile(leaves, Cause::Binding, Some(&mut bind)) {
            Ok(written) => written,
            Err(error) => {
                images.iter().for_each(|(target, _)| self.give_image_back(&target.node));
                if error != Error::NoSpace {
                    return Err(error);
                }
                // Without space for the leaves the values go into the log, but for those in leaves that were written before.
                note_all_places(&targets, &[], &[], &mut runs);
                bindings = runs.iter().filter_map(Run::binding).collect();
                Vec::new()
            }
        };
        for ((target, image), written) in images.iter().zip(&written) {
            self.place_written(&target.node, image, written);
            self.cache.forget_written(&target.node);
        }
        // The images are dropped before: they keep the parts.
        let passed = images.into_iter().zip(&written).map(|((target, _), _)| &target.node);
        let passed: Vec<_> = passed.collect();
        passed.into_iter().for_each(|node| self.pass_whole(node));
        let pieces = bindings.iter().flat_map(|binding| &binding.pieces);
        let bytes = pieces.map(|piece| u64::from(piece.length)).sum();
        self.bound_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.stats.runs_bound.fetch_add(bindings.len() as u64, Ordering::Relaxed);
        Ok(bindings)
    }

    /// The last records wait if the leaf that they end in is being filled: it is written once, with those that will follow.
    fn ripe(&self, records: &[Record]) -> usize {
        if !self.binds() {
            return records.len();
        }
        let runs = candidates(Lsn(0), records);
        let mut ripe = records.len();
        let mut filled = None;
        for run in runs.iter().rev() {
            let leaf = self.leaf_of_block(run, run.places.len() - 1).map(|(node, _)| node.id);
            if leaf.is_none() || *filled.get_or_insert(leaf) != leaf {
                break;
            }
            ripe = run.lsn.0 as usize;
        }
        // A stream of runs that all end in one leaf must not pile up.
        if ripe >= records.len() / 2 { ripe } else { records.len() }
    }
}

/// The runs that may be left out. Of two that share memory one: written to the same keys they would have one place, which has one owner (SP-2).
fn candidates(first: Lsn, records: &[Record]) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    // Where it begins and ends.
    let mut memory = BTreeMap::new();
    let mut is_apart = |bytes: &Bytes| {
        let start = bytes.as_ptr().addr();
        let end = start + bytes.len();
        let is_apart = memory.range(..end).next_back().is_none_or(|(_, before)| *before <= start);
        if is_apart {
            memory.insert(start, end);
        }
        is_apart
    };
    for (lsn, record) in (first.0..).zip(records) {
        for (operation, what) in (0..).zip(record.operations()) {
            let Operation::PutRun { tree, prefix, first, bytes } = what else { continue };
            if may_be_bound(what) && is_apart(bytes) {
                let places = vec![None; bytes.len() / BLOCK_VALUE_LENGTH];
                let lsn = Lsn(lsn);
                runs.push(Run { lsn, operation, tree: *tree, prefix, first: *first, bytes, places });
            }
        }
    }
    runs
}

impl Volume {
    /// True if blocks are bound to places at all. A compressed block has none of its own on the device.
    fn binds(&self) -> bool {
        self.options.late_binding && self.compression == Compression::None
    }

    /// True if a recovery finds room for the runs beside the places that they are bound to, which it keeps.
    fn has_space_to_bind(&self, runs: &[Run<'_>]) -> bool {
        let bytes: usize = runs.iter().map(|run| run.bytes.len()).sum();
        self.allocator.counters().usable >= self.space_needed() + space_for(bytes as u64)
    }

    /// The leaves in memory that hold blocks of the runs now.
    fn leaves_of(&self, runs: &[Run<'_>]) -> BTreeMap<NodeId, Target> {
        let mut targets: BTreeMap<NodeId, Target> = BTreeMap::new();
        for (number, run) in runs.iter().enumerate() {
            let mut block = 0;
            while block < run.places.len() {
                let Some((node, found)) = self.leaf_of_block(run, block) else {
                    block += 1;
                    continue;
                };
                let (end, lifted) = (found.end, found.lifted);
                let target = targets.entry(node.id).or_insert(Target { node, lifted, blocks: Vec::new() });
                // A leaf that has been joined with its neighbour since lifts less: what comes to it now goes into the log itself.
                if target.lifted == lifted {
                    target.blocks.extend((block..end).map(|block| (number, block)));
                }
                block = end;
            }
        }
        targets
    }

    /// The leaf that a block of a run belongs to, and how much of the run from there on does.
    fn leaf_of_block<'a>(&self, run: &'a Run<'a>, block: usize) -> Option<(NodeRef, Stretch<'a>)> {
        // Held on the way down: below a new root this one lifts off what its keys share, and they are not found by their whole length.
        let root = self.root(run.tree).read();
        self.leaf_of(&root, Stretch { run, first: block, end: run.places.len(), lifted: 0 })
    }

    /// The leaf that the first block of a stretch belongs to, and how much of the stretch lies there, if the way is in
    /// memory and no message waits for these keys.
    fn leaf_of<'a>(&self, node: &CachedNode, mut stretch: Stretch<'a>) -> Option<(NodeRef, Stretch<'a>)> {
        let state = node.state.read();
        let interior = match &state.body {
            Body::Leaf(_) => return Some((self.cache.peek(node.id)?, stretch)),
            Body::Interior(interior) => interior,
        };
        let index = interior.index_of(stretch.key(stretch.first).get(stretch.lifted..)?);
        let child = &interior.children[index];
        let buffer = child.buffer.get()?;
        if let Some(pivot) = interior.pivots.get(index) {
            stretch.shorten(|key| !pivot.is_above(key));
        }
        if !buffer.is_empty() {
            stretch.shorten(|key| !buffer.passes(key));
        }
        if child.id.is_empty() || child.xf.is_some() || stretch.first == stretch.end {
            return None;
        }
        stretch.lifted += child.strip as usize;
        let below = self.cache.peek(child.id)?;
        below.expect_height(node.height.checked_sub(1)).ok()?;
        self.leaf_of(&below, stretch)
    }

    /// The images of those leaves of which the runs fill at least half.
    fn take_filled<'a>(
        &self,
        targets: &'a BTreeMap<NodeId, Target>,
        runs: &[Run<'_>],
    ) -> Vec<(&'a Target, Image)> {
        let mut images = Vec::new();
        for target in targets.values() {
            let mut state = target.node.state.write();
            let Body::Leaf(leaf) = &state.body else { continue };
            let fills = |blocks: usize| blocks * BLOCK_VALUE_LENGTH * 2 >= leaf.bytes();
            // What was deleted since is in no leaf.
            let is_there =
                |(run, block): &&(usize, usize)| leaf.holds(&runs[*run].key(*block)[target.lifted..]);
            let enough = fills(target.blocks.len()) && fills(target.blocks.iter().filter(is_there).count());
            let free =
                self.is_dirty_now(&state) && state.frozen.is_none() && !state.writing && !state.dropped;
            if enough && free {
                images.push((target, self.take_image(&target.node, &mut state)));
            }
        }
        images
    }

    /// Lets a leaf leave memory that was written whole. No image may keep its parts any more.
    fn pass_whole(&self, node: &NodeRef) {
        let (parts, bytes) = match &node.state.read().body {
            Body::Leaf(leaf) => (leaf.basements.len(), leaf.bytes()),
            Body::Interior(_) => return,
        };
        self.pass(node, 0..parts, bytes);
    }
}

/// Notes where on the device the blocks of the runs lie, or will: in images that are being written, or in leaves that were.
fn note_all_places(
    targets: &BTreeMap<NodeId, Target>,
    images: &[(&Target, Image)],
    written: &[Written],
    runs: &mut [Run<'_>],
) {
    // Both are in the order of the nodes.
    let mut images = images.iter().zip(written).peekable();
    for (id, target) in targets {
        if let Some(((_, image), written)) = images.next_if(|((target, _), _)| target.node.id == *id) {
            let Body::Leaf(leaf) = &image.body else { continue };
            note_places(target, leaf, &written.entry, |part| written.parts.get(part), runs);
        } else {
            let state = target.node.state.read();
            let (Body::Leaf(leaf), Some(place)) = (&state.body, &state.place) else { continue };
            note_places(target, leaf, place, |part| leaf.basements[part].part.stored(), runs);
        }
    }
}

/// Notes where on the device those blocks of the runs lie that a leaf has there. `stored` tells the place of a part.
fn note_places<'a>(
    target: &Target,
    leaf: &Leaf,
    place: &BlockEntry,
    stored: impl Fn(usize) -> Option<&'a PartEntry>,
    runs: &mut [Run<'_>],
) {
    for (number, block) in &target.blocks {
        let run = &mut runs[*number];
        let key = &run.key(*block)[target.lifted..];
        let index = leaf.index_of(key);
        let Some(basement) = leaf.basements.get(index).and_then(|slot| slot.part.get()) else { continue };
        let Some(stored) = stored(index) else { continue };
        // The leaf may hold a newer value by now: what counts is that these very bytes were written.
        let value = run.block(*block);
        run.places[*block] = place_of(basement, key, &value, place, stored);
    }
}

/// Where the block with this key lies on the device, if it is this very value.
fn place_of(
    basement: &Basement,
    key: &[u8],
    value: &Bytes,
    place: &BlockEntry,
    part: &PartEntry,
) -> Option<u64> {
    let entries = &basement.entries;
    let at = entries.find(key).ok()?;
    let found = &entries.at(at).1;
    if found.as_ptr() != value.as_ptr()
        || found.len() != BLOCK_VALUE_LENGTH
        || part.compression != Compression::None
    {
        return None;
    }
    let is_block = |(_, value): &&(Bytes, Bytes)| value.len() == BLOCK_VALUE_LENGTH;
    let before = entries.between(entries.start(), at).filter(is_block).count();
    let behind = entries.between(at, entries.end()).filter(is_block).count();
    // The blocks of a part lie at its end (EUROSYS22, 6).
    let front = part.raw_length as usize - (before + behind) * BLOCK_VALUE_LENGTH;
    let offset = part.offset as usize * BLOCK_SIZE + front + before * BLOCK_VALUE_LENGTH;
    let mut start = 0;
    for extent in &place.extents {
        let end = start + extent.length as usize;
        if (start..end).contains(&offset) {
            return Some(extent.offset + (offset - start) as u64);
        }
        start = end;
    }
    None
}

impl Run<'_> {
    fn key(&self, block: usize) -> Vec<u8> {
        [&self.prefix[..], &(self.first + block as u64).to_be_bytes()].concat()
    }

    fn block(&self, block: usize) -> Bytes {
        let start = block * BLOCK_VALUE_LENGTH;
        self.bytes.slice(start..start + BLOCK_VALUE_LENGTH)
    }

    /// The record that binds the run, if all of it was found on the device.
    fn binding(&self) -> Option<Binding> {
        let places: Vec<u64> = self.places.iter().copied().collect::<Option<_>>()?;
        let mut pieces = Vec::new();
        let mut from = 0;
        while from < places.len() {
            let follows =
                |block: &usize| places[*block] == places[from] + ((block - from) * BLOCK_VALUE_LENGTH) as u64;
            let to = (from + 1..places.len()).take_while(follows).last().unwrap_or(from) + 1;
            let (start, length) = (from * BLOCK_VALUE_LENGTH, (to - from) * BLOCK_VALUE_LENGTH);
            pieces.push(BoundPiece {
                start: start as u32,
                length: length as u32,
                extent: Extent { device: 0, offset: places[from], length: length as u32 },
                checksum: bound_checksum(&[self.bytes.slice(start..start + length)]),
            });
            from = to;
        }
        Some(Binding { lsn: self.lsn, operation: self.operation, pieces })
    }
}
