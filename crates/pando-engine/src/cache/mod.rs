//! The node cache: every node in memory, under one budget for clean and dirty ones. What images hold beside the nodes, those of a checkpoint
//! that runs and of what is being written, is outside of it.
//!
//! * CACHE-1 there is one copy of a node: who finds it missing loads it and adds it only if the block table still says what
//!   was read ([`load`]).
//! * CACHE-2 a node leaves the cache only when it is clean and nobody holds it; parts leave alone ([`evict`]).
//! * CACHE-3 a node that became dirty in the interval that is going on is in the dirty list, from which the next checkpoint is made.
//!
//! Lock order: the mutexes of a shard, of the clock hand, of the dirty list, of what is being read ([`in_flight`]), is to be read ([`read_ahead`]) and cannot be ([`lost`]),
//! and of what streams by ([`passing`]) come after every node's lock and are held for a few instructions; under a shard are locked only a node
//! that leaves the cache ([`evict`]) and the block table (CACHE-1). Who waits for somebody else's read holds no lock.

#[cfg(test)]
mod dropped_tests;
pub(crate) mod evict;
#[cfg(test)]
mod evict_tests;
#[cfg(test)]
mod frozen_tests;
mod in_flight;
pub(crate) mod load;
#[cfg(test)]
mod load_tests;
mod lost;
mod passing;
pub(crate) mod read_ahead;
#[cfg(test)]
mod read_ahead_tests;
#[cfg(test)]
mod root_tests;
#[cfg(test)]
mod shared_tests;
pub(crate) mod write_back;
#[cfg(test)]
mod write_back_tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pando_format::NodeId;
use parking_lot::Mutex;

use self::in_flight::InFlight;
use self::lost::Lost;
use self::passing::Passing;
use self::read_ahead::ReadAhead;
use crate::betree::node::{CachedNode, Node, NodeRef};
use crate::volume::Volume;

const SHARDS: usize = 16;

type Shard = HashMap<NodeId, NodeRef, BuildHasherDefault<NodeHasher>>;

/// Spreads numbers of nodes, which nobody but us gives. Every operation looks up some nodes.
#[derive(Default)]
struct NodeHasher(u64);

impl Hasher for NodeHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 over the golden ratio; a product's upper bits depend on all of the number.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// The node that the eviction looked at last; nodes follow each other by shard, then by id.
#[derive(Debug, Clone, Copy)]
struct Hand {
    shard: usize,
    node: NodeId,
}

/// All nodes in memory.
pub(crate) struct NodeCache {
    shards: [Mutex<Shard>; SHARDS],
    hand: Mutex<Hand>,
    /// Nodes that became dirty in the current interval.
    dirty: Mutex<Vec<NodeRef>>,
    /// The interval between two cuts that is going on, by the checkpoint that will end it; see NODE-1.
    interval: AtomicU64,
    /// Memory of all nodes, in bytes.
    memory: AtomicI64,
    /// What writing back all dirty nodes takes on the device, in bytes.
    dirty_bytes: AtomicI64,
    /// What writing images of nodes takes that are frozen or under way, in bytes.
    image_bytes: AtomicI64,
    /// What is being read.
    in_flight: InFlight,
    /// What could not be read.
    lost: Lost,
    /// What streams by.
    passing: Passing,
    /// What is to be read next.
    pub(crate) read_ahead: ReadAhead,
}

impl NodeCache {
    /// An empty cache of a volume whose last checkpoint was this one.
    pub(crate) fn new(checkpoint: u64) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hand: Mutex::new(Hand { shard: 0, node: NodeId::EMPTY }),
            dirty: Mutex::default(),
            interval: AtomicU64::new(checkpoint + 1),
            memory: AtomicI64::new(0),
            dirty_bytes: AtomicI64::new(0),
            image_bytes: AtomicI64::new(0),
            in_flight: InFlight::default(),
            lost: Lost::default(),
            passing: Passing::default(),
            read_ahead: ReadAhead::default(),
        }
    }

    fn shard(&self, id: NodeId) -> &Mutex<Shard> {
        &self.shards[id.0 as usize % SHARDS]
    }

    /// The node, if it is in memory.
    pub(crate) fn peek(&self, id: NodeId) -> Option<NodeRef> {
        let node = self.shard(id).lock().get(&id).cloned()?;
        if !node.used.load(Ordering::Relaxed) {
            node.used.store(true, Ordering::Relaxed);
        }
        Some(node)
    }

    /// Adds a node that nobody else can have added.
    pub(crate) fn insert(&self, node: NodeRef) {
        let old = self.shard(node.id).lock().insert(node.id, node);
        assert!(old.is_none(), "CACHE-1: a new node has a new id");
    }

    /// Takes a node out that no tree leads to any more.
    pub(crate) fn remove(&self, id: NodeId) {
        self.shard(id).lock().remove(&id);
    }

    /// Memory of all nodes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed).max(0) as usize
    }

    /// Bytes that writing back all dirty nodes takes on the device.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes that writing all dirty nodes takes on the device, and the images of nodes that have no place yet: a node that has changed
    /// since the cut is written twice.
    pub(crate) fn bytes_to_be_written(&self) -> u64 {
        // In the order in which what is written goes from one to the other.
        self.dirty_bytes() + self.image_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// The interval that is going on.
    pub(crate) fn interval(&self) -> u64 {
        self.interval.load(Ordering::Relaxed)
    }

    /// Ends the interval; returns its number and the nodes that became dirty in it. The caller holds back every change.
    pub(crate) fn cut(&self) -> (u64, Vec<NodeRef>) {
        let mut dirty = self.dirty.lock();
        (self.interval.fetch_add(1, Ordering::Relaxed), std::mem::take(&mut *dirty))
    }

    /// CACHE-3 of a node, whose lock the caller holds.
    pub(crate) fn will_be_written(&self, node: &CachedNode, state: &Node) -> bool {
        let dirty = self.dirty.lock();
        state.dirty != Some(self.interval()) || dirty.iter().any(|other| std::ptr::eq(&**other, node))
    }

    /// Takes a node off the list of dirty ones if it has been written since: the list's reference would keep its header
    /// in memory until the next cut.
    pub(crate) fn forget_written(&self, node: &NodeRef) {
        let state = node.state.read();
        if state.dirty.is_none() {
            self.forget_dirty(node);
        }
    }

    /// Takes a node off the list of dirty ones.
    pub(crate) fn forget_dirty(&self, node: &NodeRef) {
        self.dirty.lock().retain(|other| !Arc::ptr_eq(other, node));
    }

    /// The nodes that became dirty in the interval that is going on.
    pub(crate) fn dirty_nodes(&self) -> Vec<NodeRef> {
        self.dirty.lock().clone()
    }
}

impl Volume {
    /// Says that a node is about to change (NODE-1, NODE-2). The caller holds its lock and, so that no cut can come in
    /// between, the gate or the sequencer.
    ///
    /// # Panics
    /// If the node has other names: whoever looks at it through them would see the change (BT-5).
    pub(crate) fn mark_dirty(&self, node: &NodeRef, state: &mut Node) {
        if state.dirty == Some(self.cache.interval()) {
            debug_assert!(self.may_change(node), "BT-5: a shared node is copied before it is changed");
            return;
        }
        assert!(self.may_change(node), "BT-5: a shared node is copied before it is changed");
        self.note_dirty(node, state);
    }

    /// BT-5 for the node alone; that it does not hang below a shared one is up to who came down to it (`sharing.rs`).
    fn may_change(&self, node: &NodeRef) -> bool {
        // The mark follows the count a moment later.
        !node.shared.load(Ordering::Relaxed) || !self.is_shared(node.id)
    }

    /// Says that a node is to be written, as it is now or after a change.
    pub(super) fn note_dirty(&self, node: &NodeRef, state: &mut Node) {
        let now = self.cache.interval();
        match state.dirty {
            Some(since) if since == now => return,
            Some(since) => {
                assert!(since + 1 == now && state.frozen.is_none(), "NODE-2: one checkpoint at a time");
                state.frozen = Some(Box::new(state.image(node.id, node.tree)));
                self.count_image(state);
            }
            None => {}
        }
        state.dirty = Some(now);
        self.cache.dirty.lock().push(node.clone());
    }

    /// True if the node will be written anyway for what changed since the last cut.
    pub(crate) fn is_dirty_now(&self, state: &Node) -> bool {
        state.dirty == Some(self.cache.interval())
    }

    /// Brings the cache's counts in line after a node changed. A dropped one counts no more, whoever still holds it.
    pub(crate) fn account(&self, state: &mut Node) {
        if state.dropped {
            return;
        }
        let memory = state.memory();
        self.cache.memory.fetch_add(memory as i64 - state.counted as i64, Ordering::Relaxed);
        state.counted = memory;
        let dirty = if state.dirty.is_some() { state.write_estimate() } else { 0 };
        self.cache.dirty_bytes.fetch_add(dirty as i64 - state.counted_dirty as i64, Ordering::Relaxed);
        state.counted_dirty = dirty;
    }

    /// Counts the image of a node as it is now, until it has a place.
    pub(super) fn count_image(&self, state: &mut Node) {
        debug_assert!(state.counted_image == 0, "NODE-2: a node has one image at a time");
        state.counted_image = state.write_estimate();
        self.cache.image_bytes.fetch_add(state.counted_image as i64, Ordering::Relaxed);
    }

    /// Ends the writing of a node's image, which has a place now or needs none. Also of a dropped node, whose image is written all the same.
    pub(crate) fn finish_image(&self, state: &mut Node) {
        state.writing = false;
        let counted = std::mem::take(&mut state.counted_image);
        self.cache.image_bytes.fetch_sub(counted as i64, Ordering::Relaxed);
    }

    /// Takes a node's weight off the cache's counts.
    pub(crate) fn discount(&self, state: &mut Node) {
        self.cache.memory.fetch_sub(state.counted as i64, Ordering::Relaxed);
        self.cache.dirty_bytes.fetch_sub(state.counted_dirty as i64, Ordering::Relaxed);
        state.counted = 0;
        state.counted_dirty = 0;
    }
}
