//! An open volume: what the layers of the engine share.
//!
//! Lock order, outermost first. Nobody waits for the device with any of them held but `checkpointing`, the trees'
//! `maintenance` tokens and `eviction`. Beside background work, only these wait for one of them: a clone of a range, and replay, for `maintenance`;
//! who asks for a checkpoint or for fresh sums for `checkpointing`; a sync that binds late for `eviction`.
//!
//! 1. `checkpointing`: one checkpoint at a time.
//! 2. `maintenance` of the trees, in their order: see TREE-2.
//! 3. `eviction`: a write-back that no cut may cross.
//! 4. `sequencer`: gives LSNs; from there to the last injection of a record.
//! 5. `gate`: shared by each step of maintenance, exclusive for a cut.
//! 6. the root pointer of a tree, then nodes from parent to child.
//! 7. `pins`, under which come block table, allocator and what counts memory; `doomed`, under which come these, a cache shard and the failure.
//! 8. a cache shard; under it the block table, and a node that leaves the cache.
//! 9. block table, then allocator; the failure or the log, then signals; the dirty list, what is to be read ahead, and the other small ones: leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pando_device::{Device, complain};
use pando_format::{Compression, Lsn, NodeId, Superblock, Tree, VolumeId};
use parking_lot::{Mutex, RwLock};

use crate::background::Signals;
use crate::betree::ballast::Ballast;
use crate::betree::damaged::Damaged;
use crate::betree::node::{Body, CachedNode, Node, NodeRef};
use crate::betree::tree::TreeRoot;
use crate::cache::NodeCache;
use crate::log::redo_log::RedoLog;
use crate::options::Options;
use crate::space::allocator::Allocator;
use crate::space::block_table::BlockTable;
use crate::stats::Counters;
use crate::usage::Pins;
use crate::{Error, Result};

/// The sizes that shape the trees, in bytes and numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// A leaf splits above this; an interior node flushes above this.
    pub(crate) node_bytes: usize,
    /// About the size of a basement node.
    pub(crate) basement_bytes: usize,
    /// An interior node splits above so many edges.
    pub(crate) fanout: usize,
}

/// See the module.
pub(crate) struct Volume {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: Options,
    pub(crate) volume_id: VolumeId,
    pub(crate) compression: Compression,
    pub(crate) shape: Shape,
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) eviction: Mutex<()>,
    pub(crate) sequencer: Mutex<Lsn>,
    pub(crate) gate: RwLock<()>,
    trees: [TreeRoot; 2],
    pub(crate) cache: NodeCache,
    pub(crate) table: BlockTable,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) log: RedoLog,
    /// The superblock as it was last written.
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) next_generation: AtomicU64,
    /// False once no buffer holds a delete: none came since all were brought down.
    pub(crate) deletes_wait: AtomicBool,
    /// Set while deletes are brought down early because the volume was nearly full.
    pub(crate) reclaiming: AtomicBool,
    /// Bytes that waiting deletes free once they come down to their leaves, about: see [`crate::Batch::note_freed`].
    pub(crate) dead_bytes: AtomicU64,
    /// What deletes above the leaves have deleted in them.
    pub(crate) ballast: Ballast,
    /// Bytes that the log names in their places since the last checkpoint. A recovery keeps those places and writes the bytes anew.
    pub(crate) bound_bytes: AtomicU64,
    /// Nodes behind which damage keeps maintenance from working.
    pub(crate) damaged: Damaged,
    /// Nodes that nothing names any more, to be taken apart.
    pub(crate) doomed: Mutex<Vec<NodeId>>,
    /// Who reads the last checkpoint, or one before it.
    pub(crate) pins: Mutex<Pins>,
    pub(crate) stats: Counters,
    pub(crate) signals: Signals,
    failure: Mutex<Option<String>>,
    closed: AtomicBool,
}

/// What a volume is put together from.
pub(crate) struct Pieces {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    pub(crate) table: BlockTable,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) log: RedoLog,
    pub(crate) cache: NodeCache,
    pub(crate) roots: [NodeRef; 2],
    pub(crate) lsn: Lsn,
}

impl Volume {
    pub(crate) fn new(pieces: Pieces) -> Self {
        let Pieces { device, options, superblock, table, allocator, log, cache, roots, lsn } = pieces;
        for root in &roots {
            root.pinned.store(true, Ordering::Relaxed);
        }
        allocator.set_node_bytes(superblock.node_bytes.into());
        // What an earlier mount left is unknown: enough to look for it once when space is short.
        let dead_before = allocator.capacity() / 64;
        let shape = Shape {
            node_bytes: superblock.node_bytes as usize,
            basement_bytes: superblock.basement_bytes as usize,
            fanout: superblock.fanout as usize,
        };
        Self {
            device,
            volume_id: superblock.volume,
            compression: superblock.compression,
            shape,
            checkpointing: Mutex::new(()),
            eviction: Mutex::new(()),
            sequencer: Mutex::new(lsn),
            gate: RwLock::new(()),
            trees: roots.map(TreeRoot::new),
            cache,
            table,
            allocator,
            log,
            next_generation: AtomicU64::new(superblock.next_generation),
            ballast: Ballast::of(superblock.ballast),
            superblock: Mutex::new(superblock),
            deletes_wait: AtomicBool::new(true),
            reclaiming: AtomicBool::new(false),
            dead_bytes: AtomicU64::new(dead_before),
            bound_bytes: AtomicU64::new(0),
            damaged: Damaged::new(&shape),
            doomed: Mutex::default(),
            pins: Mutex::default(),
            stats: Counters::default(),
            signals: Signals::new(options.background),
            failure: Mutex::default(),
            closed: AtomicBool::new(false),
            options,
        }
    }

    /// One of the trees.
    pub(crate) fn root(&self, tree: Tree) -> &TreeRoot {
        &self.trees[tree as usize]
    }

    /// Makes a new node known. The caller holds the gate or the sequencer.
    pub(crate) fn add_node(&self, tree: Tree, state: Node) -> NodeRef {
        self.make_known(tree, state, false)
    }

    /// The same of one that is to be a root: nobody may take a part from it (TREE-1), who finds it in the cache as little as anybody later.
    pub(crate) fn add_root(&self, tree: Tree, state: Node) -> NodeRef {
        self.make_known(tree, state, true)
    }

    fn make_known(&self, tree: Tree, mut state: Node, is_root: bool) -> NodeRef {
        let id = self.table.insert_new(tree, state.height);
        // That was another node of the same id.
        self.damaged.remove(id);
        self.account(&mut state);
        let node = CachedNode::new(id, tree, state);
        node.pinned.store(is_root, Ordering::Relaxed);
        self.cache.insert(node.clone());
        let mut state = node.state.write();
        self.mark_dirty(&node, &mut state);
        self.account(&mut state);
        drop(state);
        node
    }

    /// Does away with a node that no tree leads to any more. The caller holds the gate and the node's lock.
    pub(crate) fn drop_node(&self, node: &NodeRef, state: &mut Node) {
        if state.dirty.is_some() {
            // A checkpoint may still have to write what it was at the cut. Nothing else keeps it in memory.
            self.mark_dirty(node, state);
            self.cache.forget_dirty(node);
        }
        state.dropped = true;
        state.dirty = None;
        self.discount(state);
        // In this order nobody who reads it now can bring it back into the cache (CACHE-1).
        self.remove_from_table(node.id);
        self.cache.remove(node.id);
    }

    /// BT-4: a node is let go once, unless the block table has counted wrong.
    fn remove_from_table(&self, id: NodeId) {
        if !self.table.remove(id) {
            self.poison(&Error::damaged_node(None, id, "an edge led to it when it was reclaimed"));
        }
    }

    /// Bytes of a node on the device; 0 if it has not been written.
    pub(crate) fn stored_length(&self, id: NodeId) -> usize {
        self.table.lookup(id).map_or(0, |entry| entry.length as usize)
    }

    /// Takes one node apart that nothing names any more; false if there is none. What it names alone is doomed next. The block
    /// table remembers the doomed, so a crash does not lose sight of them. Leaves are freed unread.
    pub(crate) fn reclaim_doomed(&self) -> Result<bool> {
        let Some(id) = self.doomed.lock().pop() else { return Ok(false) };
        let Some(entry) = self.table.lookup(id).filter(|entry| entry.pending_reclamation) else {
            // An edge led to it still, and it was let go by that; the id may be another's by now.
            let what = "it was to be reclaimed, but the block table does not say so";
            return Err(self.poison(&Error::damaged_node(None, id, what)));
        };
        if entry.height == 0 {
            let _gate = self.gate.read_recursive();
            self.free_doomed(id);
            return Ok(true);
        }
        let node = match self.node(id).and_then(|node| self.load_all(&node).map(|()| node)) {
            Ok(node) => node,
            // Its mark in the block table stays, and its space is lost until the volume is repaired.
            Err(error) if error.is_unreadable() => {
                complain(format_args!("space behind a damaged node cannot be reclaimed: {error}"));
                return Ok(true);
            }
            Err(error) => {
                self.doomed.lock().push(id);
                return Err(error);
            }
        };
        let _gate = self.gate.read_recursive();
        let named = {
            let state = node.state.read();
            if state.missing_part().is_some() {
                self.doomed.lock().push(id);
                return Ok(true);
            }
            match &state.body {
                Body::Interior(interior) => interior.names().collect(),
                Body::Leaf(_) => Vec::new(),
            }
        };
        self.let_go(&named, entry.height);
        self.free_doomed(id);
        Ok(true)
    }

    /// Settles the counts of nodes that a node of this height no longer names, since what was seen there has been deleted: all they have (true), or
    /// some of it. Leaves of which all was, and which nothing else names, are no ballast any more. Of others that is not known, nor of those whose
    /// place copies took: nearly all that they have lives on. To count too much of it is put right by the next pass.
    pub(crate) fn let_go(&self, named: &[(NodeId, bool)], height: u8) {
        let whole = named.iter().filter(|(_, is_whole)| *is_whole && height == 1);
        // Looked for before: another thread may take them apart at once.
        let lengths: Vec<_> = whole.map(|(id, _)| (*id, self.stored_length(*id))).collect();
        self.settle(named.iter().map(|(id, _)| *id), []);
        for (id, length) in lengths {
            if self.table.references(id) == 0 {
                self.ballast.shed(length as u64);
            }
        }
    }

    fn free_doomed(&self, id: NodeId) {
        self.stats.nodes_reclaimed.fetch_add(1, Ordering::Relaxed);
        match self.cache.peek(id) {
            Some(node) => {
                let mut state = node.state.write();
                self.drop_node(&node, &mut state);
            }
            None => {
                self.remove_from_table(id);
                // Somebody may have been reading it until now.
                if let Some(node) = self.cache.peek(id) {
                    let mut state = node.state.write();
                    state.dropped = true;
                    self.discount(&mut state);
                    self.cache.remove(id);
                }
            }
        }
    }

    /// Notes that a write failed: from now on the volume takes no changes.
    pub(crate) fn poison(&self, cause: &dyn std::fmt::Display) -> Error {
        let mut failure = self.failure.lock();
        let why = failure.get_or_insert_with(|| {
            let why = cause.to_string();
            complain(format_args!("the volume takes no changes any more: {why}"));
            why
        });
        let why = why.clone();
        self.signals.progress();
        Error::ReadOnly { why }
    }

    /// Fails if the volume takes no changes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly { why: "it was opened so".to_owned() });
        }
        if self.is_closed() {
            return Err(Error::ReadOnly { why: "it was closed".to_owned() });
        }
        self.failure().map_or(Ok(()), |why| Err(Error::ReadOnly { why }))
    }

    /// True after the last checkpoint of a volume that is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Says that nothing may change any more.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Why the volume takes no changes since it was opened, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        let own = self.failure.lock().clone();
        own.or_else(|| self.log.failure())
    }
}
