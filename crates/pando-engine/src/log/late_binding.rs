//! Which values the log leaves out: runs of blocks that together fill at least half of a leaf, which is written then.
//!
//! FAST16 section 3: a large write would go to the device twice, in the log and in its leaf. When a batch is written, each
//! leaf that holds enough of the batch's runs is written first, and binding records say where in it the bytes lie, or in a leaf
//! that was written before. A run is left out only if all of it was found so; the others stay inline.
//!
//! The eviction token is held from the image of a leaf to its place in the block table, as for any write-back that no cut
//! may cross. What the bindings name stays in place (CP-1): a later write of the leaf frees it with the interval that is
//! going on, and that is released by the next checkpoint at the earliest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_device::BLOCK_SIZE;
use pando_format::log_record::{Binding, BoundPiece, bound_checksum};
use pando_format::operation::BLOCK_VALUE_LENGTH;
use pando_format::{BlockEntry, Bound, Compression, Extent, Lsn, NodeId, Operation, PartEntry, Tree};

use super::batch::{Binder, Record};
use crate::apply::space_for;
use crate::betree::leaf::Leaf;
use crate::betree::message_buffer::MessageBuffer;
use crate::betree::node::{Body, CachedNode, Image, NodeRef};
use crate::cache::write_back::{Cause, Written};
use crate::volume::Volume;
use crate::{Error, Result};

/// The shortest run that the log may leave out for a binding record, in bytes. It is a run of whole blocks.
pub const BOUND_BYTES_MIN: usize = 16 << 10;

/// Runs of fewer bytes together stay in their batch: a sync of little waits for one write, that of the log.
pub(super) const BOUND_TOGETHER_MIN: usize = 64 << 10;

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

/// A leaf and the blocks of the batch's runs that belong to it: (run, blocks), never none of them.
struct Target {
    node: NodeRef,
    /// Bytes that lifting takes off the keys on the way to the leaf.
    lifted: usize,
    blocks: Vec<(usize, Range<usize>)>,
}

/// Blocks `first..end` of a run, seen from a node from which the first `lifted` bytes of keys are hidden. There are hundreds, and they lie
/// next to each other: what can be said of all of them at once is not asked for each.
struct Stretch<'a> {
    run: &'a Run<'a>,
    first: usize,
    end: usize,
    lifted: usize,
}

impl Stretch<'_> {
    /// Ends it where its keys come to a pivot. It has blocks.
    fn end_at(&mut self, pivot: &Bound) {
        let is_below = |block| self.run.key(block).get(self.lifted..).is_some_and(|key| pivot.is_above(key));
        if is_below(self.end - 1) {
            return;
        }
        let mut left = self.first..self.end - 1;
        while !left.is_empty() {
            let middle = left.start + left.len() / 2;
            left = if is_below(middle) { middle + 1..left.end } else { left.start..middle };
        }
        self.end = left.start;
    }

    /// Ends it at the first block for which something waits.
    fn end_at_what_waits(&mut self, buffer: &MessageBuffer) {
        if buffer.is_empty() || self.first == self.end {
            return;
        }
        let length = self.run.key(self.first).len();
        let mut keys = Vec::with_capacity((self.end - self.first) * length);
        (self.first..self.end).for_each(|block| self.run.push_key(block, &mut keys));
        let seen = keys.chunks_exact(length).filter_map(|key| key.get(self.lifted..));
        let Some(last) = seen.clone().next_back() else { return };
        self.end = self.first + buffer.passed(seen, last);
    }
}

impl Binder for Volume {
    fn written(&self) {
        self.signals.progress();
    }

    fn bind(&self, first: Lsn, records: &[Record]) -> Result<Vec<Binding>> {
        let mut runs = if self.binds() { candidates(first, records) } else { Vec::new() };
        if bytes_of(&runs) < BOUND_TOGETHER_MIN {
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

fn bytes_of(runs: &[Run<'_>]) -> usize {
    runs.iter().map(|run| run.bytes.len()).sum()
}

impl Volume {
    /// True if blocks are bound to places at all. A compressed block has none of its own on the device.
    fn binds(&self) -> bool {
        self.options.late_binding && self.compression == Compression::None
    }

    /// True if a recovery finds room for the runs beside the places that they are bound to, which it keeps.
    fn has_space_to_bind(&self, runs: &[Run<'_>]) -> bool {
        self.allocator.counters().usable >= self.space_needed() + space_for(bytes_of(runs) as u64)
    }

    /// The leaves in memory that hold blocks of the runs now, of those runs all blocks of which are in leaves.
    fn leaves_of(&self, runs: &[Run<'_>]) -> BTreeMap<NodeId, Target> {
        let mut targets: BTreeMap<NodeId, Target> = BTreeMap::new();
        for (number, run) in runs.iter().enumerate() {
            for (node, found) in self.leaves_of_run(run) {
                let (blocks, lifted) = (found.first..found.end, found.lifted);
                let target = targets.entry(node.id).or_insert(Target { node, lifted, blocks: Vec::new() });
                // A leaf that has been joined with its neighbour since lifts less: what comes to it now goes into the log itself.
                if target.lifted == lifted {
                    target.blocks.push((number, blocks));
                }
            }
        }
        targets
    }

    /// The leaves that hold all blocks of a run; none if some are not in leaves, as most of those that are written here and there.
    fn leaves_of_run<'a>(&self, run: &'a Run<'a>) -> Vec<(NodeRef, Stretch<'a>)> {
        let mut leaves = Vec::new();
        let mut block = 0;
        while block < run.places.len() {
            let Some((node, found)) = self.leaf_of_block(run, block) else { return Vec::new() };
            block = found.end;
            leaves.push((node, found));
        }
        leaves
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
        let key = stretch.run.key(stretch.first);
        // None if an edge lifts more than keys have: damage.
        let key = key.get(stretch.lifted..)?;
        let state = node.state.read();
        let interior = match &state.body {
            Body::Leaf(_) => return Some((self.cache.peek(node.id)?, stretch)),
            Body::Interior(interior) => interior,
        };
        let index = interior.index_of(key);
        let child = &interior.children[index];
        let buffer = child.buffer.get()?;
        if let Some(pivot) = interior.pivots.get(index) {
            stretch.end_at(pivot);
        }
        stretch.end_at_what_waits(buffer);
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
            let mut there = 0;
            let enough = fills(target.blocks.iter().map(|(_, blocks)| blocks.len()).sum()) && {
                each_found(target, leaf, runs, |_| there += 1);
                fills(there)
            };
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
    let mut places = Vec::new();
    each_found(target, leaf, runs, |found| {
        let Found { run, block, value, basement, left } = found;
        // The leaf may hold a newer value by now: what counts is that these very bytes were written.
        if value.as_ptr() == runs[run].block(block).as_ptr()
            && let Some(part) = stored(basement)
            && part.compression == Compression::None
        {
            // The blocks of a part lie at its end (EUROSYS22, 6).
            let in_part = part.raw_length as usize - left * BLOCK_VALUE_LENGTH;
            places.push((run, block, place_in(place, part.offset as usize * BLOCK_SIZE + in_part)));
        }
    });
    for (run, block, place) in places {
        runs[run].places[block] = place;
    }
}

/// A block of a run in a leaf.
struct Found<'a> {
    run: usize,
    block: usize,
    value: &'a Bytes,
    basement: usize,
    /// How many blocks its basement has from it to the end.
    left: usize,
}

/// The blocks of the runs that a leaf has in memory, whichever values they have there.
fn each_found(target: &Target, leaf: &Leaf, runs: &[Run<'_>], mut each: impl FnMut(Found<'_>)) {
    let is_block = |(_, value): &&(Bytes, Bytes)| value.len() == BLOCK_VALUE_LENGTH;
    for (number, blocks) in &target.blocks {
        let run = &runs[*number];
        let (first, last) = (run.key(blocks.start), run.key(blocks.end - 1));
        let (first, last) = (&first[target.lifted..], &last[target.lifted..]);
        for index in leaf.index_of(first)..=leaf.index_of(last) {
            let Some(basement) = leaf.basements.get(index).and_then(|slot| slot.part.get()) else { continue };
            let from = basement.entries.lower_bound(first);
            let behind = || basement.entries.between(from, basement.entries.end());
            let mut left = behind().filter(is_block).count();
            for (key, value) in behind().take_while(|(key, _)| key[..] <= *last).filter(is_block) {
                // What is as long, and lies between the two, has their prefix.
                if key.len() == first.len() {
                    let block = run.block_of(key, blocks.start);
                    each(Found { run: *number, block, value, basement: index, left });
                }
                left -= 1;
            }
        }
    }
}

/// Where on the device a byte of a node lies.
fn place_in(node: &BlockEntry, offset: usize) -> Option<u64> {
    let mut start = 0;
    for extent in &node.extents {
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
        let mut key = Vec::with_capacity(self.prefix.len() + size_of::<u64>());
        self.push_key(block, &mut key);
        key
    }

    /// Adds a key to others.
    fn push_key(&self, block: usize, keys: &mut Vec<u8>) {
        keys.extend_from_slice(self.prefix);
        keys.extend_from_slice(&(self.first + block as u64).to_be_bytes());
    }

    /// The block with a key in a leaf to which block `near` belongs, too: lifting may have taken what their numbers share off the keys there.
    fn block_of(&self, key: &[u8], near: usize) -> usize {
        let mut number = (self.first + near as u64).to_be_bytes();
        let seen = key.len().min(number.len());
        let hidden = number.len() - seen;
        number[hidden..].copy_from_slice(&key[key.len() - seen..]);
        (u64::from_be_bytes(number) - self.first) as usize
    }

    fn block(&self, block: usize) -> &[u8] {
        let start = block * BLOCK_VALUE_LENGTH;
        &self.bytes[start..start + BLOCK_VALUE_LENGTH]
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
