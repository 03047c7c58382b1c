//! Checkpoints: the state of one instant moves to the device while operations go on (design 5).
//!
//! * CP-1 nothing reachable from the last checkpoint, or named by a binding record after it, is overwritten or discarded
//!   before the next is durable: what is freed waits in the allocator for the release of its interval.
//! * CP-3 the cut: with the sequencer and the gate held, no record is half applied and no message is between two nodes. What
//!   is dirty then is written as it was then (NODE-2).
//! * CP-4 the order is: nodes and block table, flush, superblock, flush, then release and reclaim.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use pando_device::{Device, WriteRequest};
use pando_format::superblock::{SUPERBLOCK_LENGTH, superblock_offsets};
use pando_format::{LogPosition, Lsn, Root, RootPair, Superblock, Tree};

use crate::Result;
use crate::betree::node::{Image, NodeRef};
use crate::cache::write_back::Cause;
use crate::space::block_table::Version;
use crate::space::free_map::Run;
use crate::volume::Volume;

/// Runs of free space are discarded from this part of a node on.
const DISCARDED_PART: usize = 64;

/// Full nodes that a checkpoint writes together.
const WRITTEN_NODES: usize = 4;

/// Nodes, however small, that it writes together at most.
const WRITTEN_IMAGES_MAX: usize = 256;

/// So many writings of nodes behind a checkpoint keep their generations to themselves also when a crash undoes them.
const GENERATIONS_AHEAD: u64 = 1 << 20;

/// When a checkpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// A volume is opened that had been closed: nothing is to be written but that it is open.
    Opening,
    /// It is in use, or comes back from a crash.
    Running,
    /// The last one.
    Closing,
}

/// What a cut fixes.
struct Cut {
    dirty: Vec<NodeRef>,
    interval: u64,
    lsn: Lsn,
    log: LogPosition,
    version: Version,
    live: RootPair,
    /// Of [`Volume::bound_bytes`], what lies before it.
    bound_bytes: u64,
    ballast: u64,
}

impl Volume {
    /// Writes a checkpoint of the present state. Durable when it returns.
    pub(crate) fn checkpoint(&self, occasion: Occasion) -> Result<()> {
        let _one = self.checkpointing.lock();
        self.check_writable()?;
        let start = Instant::now();
        self.signals.checkpoint_begins();
        let result = self.write_checkpoint(occasion);
        if let Err(error) = result {
            return Err(self.poison(&format_args!("a checkpoint failed: {error}")));
        }
        self.stats.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.stats.checkpoint_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.signals.checkpoint_is_done();
        // Changes that came meanwhile have left it to this one. Space that is short has somebody who waits for it.
        if self.log_needs_checkpoint() {
            self.signals.want_checkpoint();
        }
        Ok(())
    }

    fn write_checkpoint(&self, occasion: Occasion) -> Result<()> {
        if occasion != Occasion::Opening {
            self.heal_for_checkpoint(occasion == Occasion::Closing)?;
            self.sink_deletes()?;
            self.shorten_roots()?;
        }
        let mut cut = self.cut();
        // The longest nodes before all others use up the long runs of free space: roots, and those that have just taken what waited in one. The rest
        // as they are, next to each other.
        let usual = self.shape.node_bytes * 2;
        cut.dirty.sort_by_cached_key(|node| {
            let state = node.state.read();
            // As it was at the cut, not as what has gone on since has left it.
            let length = if state.frozen.is_some() { state.counted_image } else { state.write_estimate() };
            Reverse(if length > usual { length } else { 0 })
        });
        let mut dirty = std::mem::take(&mut cut.dirty).into_iter();
        while self.write_cut_nodes(&mut dirty, &mut cut)? {}
        // Above all nodes of this checkpoint, and with a margin above those that are written until the next.
        let next_generation = self.next_generation.load(Ordering::Relaxed) + GENERATIONS_AHEAD;
        let mut superblock = self.superblock.lock().clone();
        superblock.checkpoint += 1;
        let table = self.table.write(&cut.version, &*self.device, superblock.checkpoint)?;
        self.device.flush()?;
        superblock.clean = occasion == Occasion::Closing;
        superblock.cut = cut.lsn;
        superblock.replay = cut.log;
        superblock.epoch = self.log.epoch();
        superblock.table = table;
        superblock.live = cut.live;
        superblock.next_generation = next_generation;
        superblock.next_node = cut.version.next().0;
        superblock.ballast = cut.ballast;
        superblock.written = now_nanoseconds();
        // A thread that has panicked meanwhile may have left things half done before the cut.
        self.check_writable()?;
        self.write_superblock(&superblock)?;
        *self.superblock.lock() = superblock;
        self.log.reclaim(cut.log);
        self.bound_bytes.fetch_sub(cut.bound_bytes, Ordering::Relaxed);
        self.release_version(cut.version);
        Ok(())
    }

    /// Tells the device that nothing needs these bytes, if they are worth it: the small runs that a small checkpoint frees are
    /// soon written again, each discard costs as much as a write, and on a file it makes the next flush commit a journal.
    pub(crate) fn discard(&self, run: Run) {
        let is_worth_it = run.length >= (self.shape.node_bytes / DISCARDED_PART) as u64;
        if self.options.discard && is_worth_it && self.device.discard(run.offset, run.length).is_ok() {
            self.stats.discarded_bytes.fetch_add(run.length, Ordering::Relaxed);
        }
    }

    /// The instant of the checkpoint (CP-3).
    fn cut(&self) -> Cut {
        let _eviction = self.eviction.lock();
        let start = Instant::now();
        let sequencer = self.sequencer.lock();
        let _gate = self.gate.write();
        let (interval, dirty) = self.cache.cut();
        let bound_bytes = self.bound_bytes.load(Ordering::Relaxed);
        let root = |tree| {
            let node = self.root(tree).read();
            Root { node: node.id, height: node.height }
        };
        let cut = Cut {
            dirty,
            interval,
            lsn: *sequencer,
            log: self.log.cut(),
            version: self.table.snapshot(),
            live: RootPair { metadata: root(Tree::Metadata), data: root(Tree::Data) },
            bound_bytes,
            ballast: self.ballast.count().bytes,
        };
        drop(sequencer);
        self.stats.cut_micros.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        cut
    }

    /// Writes the next of these nodes as they were at the cut, together as much as a few full nodes, so that a small checkpoint waits for
    /// the device once and not for each node, and a large one serializes nodes while others are written; whether there were any.
    fn write_cut_nodes(&self, nodes: &mut impl Iterator<Item = NodeRef>, cut: &mut Cut) -> Result<bool> {
        let mut images = Vec::new();
        let mut bytes = 0;
        // What is on its way cannot leave a small cache, and nobody needs thousands of requests at a time.
        let enough = self
            .shape
            .node_bytes
            .max((WRITTEN_NODES * self.shape.node_bytes).min(self.options.cache_bytes / 8));
        while bytes < enough
            && images.len() < WRITTEN_IMAGES_MAX
            && let Some(node) = nodes.next()
        {
            if let Some((image, length)) = self.take_cut_image(&node, cut) {
                bytes += length;
                images.push((node, image));
            }
        }
        let written = self.write_images(images.iter().map(|(_, image)| image), Cause::Checkpoint)?;
        for ((node, image), written) in images.iter().zip(&written) {
            let mut state = node.state.write();
            self.table.record_checkpoint_write(&mut cut.version, node.id, &written.entry);
            self.place_parts(&mut state, image, written);
        }
        Ok(!images.is_empty())
    }

    /// A node as it was at the cut, and about how many bytes it takes on the device; nothing if the checkpoint does not need it.
    fn take_cut_image(&self, node: &NodeRef, cut: &Cut) -> Option<(Image, usize)> {
        let mut state = node.state.write();
        let image = match state.frozen.take() {
            Some(image) => {
                state.writing = true;
                *image
            }
            None if state.dirty == Some(cut.interval) => self.take_image(node, &mut state),
            // Written by the eviction before the cut, or listed twice.
            None => return None,
        };
        if cut.version.lookup(node.id).is_none() {
            // It came and went before the cut.
            self.finish_image(&mut state);
            return None;
        }
        Some((image, state.counted_image))
    }

    pub(crate) fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.stats.table_bytes.fetch_add(SUPERBLOCK_LENGTH as u64, Ordering::Relaxed);
        put_superblock(&*self.device, superblock)?;
        self.device.flush()?;
        Ok(())
    }
}

/// Writes a superblock to its slot. Not durable before a flush.
pub(crate) fn put_superblock(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    let offset = superblock_offsets(superblock.capacity)[superblock.slot()];
    Ok(device.write(&[WriteRequest { offset, pieces: vec![Bytes::from(superblock.encode())] }])?)
}

/// Nanoseconds since 1970.
pub(crate) fn now_nanoseconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
