//! Making and opening a volume: superblock, block table, roots, then the log (design 5).
//!
//! * CP-2 replay is idempotent: the trees of a checkpoint hold exactly the records up to its cut, and recovery writes to free
//!   space only until its own checkpoint is durable. A crash during recovery is just another crash.
//! * CP-5 what is recovered from is durable before anything else is written. A superblock whose flush failed may be read
//!   for as long as the kernel keeps it, and never come to the device: so it is written once more, and flushed with the log. To its own slot: the
//!   other one may hold all that the device leads to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_device::{Buffer, Device, complain};
use pando_format::superblock::{
    BASEMENT_BYTES_MIN, FANOUT_MIN, LABEL_LENGTH_MAX, LOG_LENGTH_MIN, MARGIN_LENGTH, NODE_BYTES,
    SUPERBLOCK_LENGTH, superblock_offsets,
};
use pando_format::version::Access;
use pando_format::{
    BlockEntry, Features, KeyRange, Lsn, Msn, NodeId, Region, Root, RootPair, Superblock, TableRoot, Tree,
};

use crate::betree::node::{CachedNode, Node, NodeRef};
use crate::betree::tree::TreeRoot;
use crate::cache::NodeCache;
use crate::checkpoint::{Occasion, now_nanoseconds, put_superblock};
use crate::log::batch::LOG_START;
use crate::log::redo_log::RedoLog;
use crate::log::replay::{LogSource, Replay};
use crate::options::{Background, FormatOptions, Options};
use crate::space::allocator::Allocator;
use crate::space::block_table::{BlockTable, Next};
use crate::superblocks::Slots;
use crate::volume::{Pieces, Volume};
use crate::{Error, Result};

/// The smallest volume, in bytes.
pub const CAPACITY_MIN: u64 = 16 << 20;

const MIB: u64 = 1 << 20;

/// Writes an empty volume. Durable when it returns.
pub(crate) fn format(device: Arc<dyn Device>, options: &FormatOptions) -> Result<()> {
    let superblock = plan(device.capacity(), options)?;
    // Both superblocks are made unreadable first, so that a crash leaves no old volume half overwritten.
    wipe(&*device, &superblock)?;
    let allocator = Arc::new(Allocator::new(&superblock.node_regions));
    let table = BlockTable::new(superblock.volume, allocator.clone());
    let cache = NodeCache::new(superblock.checkpoint);
    let roots = Tree::ALL.map(|tree| {
        let id = table.insert_new(tree, 0);
        let node = CachedNode::new(id, tree, Node::empty_leaf(KeyRange::all(), Msn::default()));
        cache.insert(node.clone());
        node
    });
    let log = RedoLog::open(
        device.clone(),
        superblock.log,
        superblock.volume,
        superblock.epoch,
        LOG_START,
        LOG_START,
        Lsn(0),
    )?;
    let options = Options { background: Background::Manual, ..Options::default() };
    let volume = Volume::new(Pieces {
        device,
        options,
        superblock,
        table,
        allocator,
        log,
        cache,
        roots: roots.clone(),
        lsn: Lsn(0),
    });
    for root in &roots {
        let mut state = root.state.write();
        volume.mark_dirty(root, &mut state);
        volume.account(&mut state);
    }
    // Twice, so that both superblocks are there.
    volume.checkpoint(Occasion::Closing)?;
    volume.checkpoint(Occasion::Closing)
}

/// What a volume of this size is to look like.
pub(crate) fn plan(capacity: u64, options: &FormatOptions) -> Result<Superblock> {
    let capacity = capacity / 4096 * 4096;
    if capacity < CAPACITY_MIN {
        let what = format!(
            "a volume needs at least {} MiB, and the device has {} KiB",
            CAPACITY_MIN / MIB,
            capacity >> 10
        );
        return Err(Error::Invalid { what });
    }
    if options.label.len() > LABEL_LENGTH_MAX {
        return Err(Error::Invalid { what: format!("a label has at most {LABEL_LENGTH_MAX} bytes") });
    }
    // Small volumes get small nodes, so that the reserve for copy on write stays a small part of them.
    let node_bytes = options.node_bytes.unwrap_or(1 << (capacity / 256).ilog2().clamp(18, 22));
    // A basement node of whole blocks has one more for its keys: short ones would waste much of a small volume.
    let basement_bytes = options.basement_bytes.unwrap_or((node_bytes / 4).min(128 << 10));
    let fanout = options.fanout.unwrap_or(16);
    let basement_fits = (BASEMENT_BYTES_MIN..=node_bytes / 2).contains(&basement_bytes);
    if !NODE_BYTES.contains(&node_bytes) || !basement_fits || fanout < FANOUT_MIN {
        let what = "nodes need 4 KiB to 8 MiB, at least 4 children, and room for two basement nodes of 256 bytes or more";
        return Err(Error::Invalid { what: what.to_owned() });
    }
    let log_bytes = options.log_bytes.unwrap_or_else(|| {
        // 64 MiB to 4 GiB where the volume has the room.
        (capacity / 16).clamp((64 * MIB).min(capacity / 8), 4096 * MIB)
    });
    let log_bytes = log_bytes / 4096 * 4096;
    let log_start = 2 * MARGIN_LENGTH;
    let nodes_start = (log_start + log_bytes).next_multiple_of(MARGIN_LENGTH);
    let nodes_end = superblock_offsets(capacity)[1] / MARGIN_LENGTH * MARGIN_LENGTH;
    if log_bytes < LOG_LENGTH_MIN || nodes_start + 4 * MIB > nodes_end {
        return Err(Error::Invalid {
            what: "the log leaves no room for nodes, or is smaller than 256 KiB".to_owned(),
        });
    }
    let now = now_nanoseconds();
    let none = Root { node: NodeId::EMPTY, height: 0 };
    Ok(Superblock {
        volume: options.volume_id,
        features: Features::default(),
        label: options.label.clone(),
        capacity,
        node_bytes,
        basement_bytes,
        fanout,
        compression: options.compression,
        clean: true,
        device: 0,
        device_count: 1,
        log: Region { device: 0, offset: log_start, length: log_bytes },
        node_regions: vec![Region { device: 0, offset: nodes_start, length: nodes_end - nodes_start }],
        epoch: 1,
        checkpoint: 0,
        cut: Lsn(0),
        replay: LOG_START,
        table: TableRoot::default(),
        live: RootPair { metadata: none, data: none },
        snapshots: None,
        next_node: 1,
        next_generation: 1,
        ballast: 0,
        created: now,
        written: now,
    })
}

fn wipe(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    let zero = |offset| {
        let pieces = vec![Buffer::zeroed(SUPERBLOCK_LENGTH).freeze()];
        device.write(&[pando_device::WriteRequest { offset, pieces }])
    };
    superblock_offsets(superblock.capacity).into_iter().try_for_each(zero)?;
    // Behind them the first batch of an old log, in case the volume is given the same id again: an old volume is there with its log, or not at all.
    device.flush()?;
    zero(superblock.log.offset)?;
    Ok(device.flush()?)
}

/// Refuses what this version may not do with a volume that uses these features.
fn check_features(features: &Features, read_only: bool) -> Result<()> {
    match features.access().map_err(|error| Error::Unsupported { what: error.to_string() })? {
        Access::ReadOnly if !read_only => Err(Error::Unsupported {
            what: format!(
                "the volume uses read-only compatible features {:#x} that are unknown to this version; open it \
                 read-only",
                features.unknown_to_writers()
            ),
        }),
        Access::ReadOnly | Access::ReadWrite => Ok(()),
    }
}

/// Opens a volume and replays its log.
pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>> {
    let superblock = Slots::read(&*device).newest(&*device, options.read_only)?;
    check_features(&superblock.features, options.read_only)?;
    let allocator = Arc::new(Allocator::new(&superblock.node_regions));
    let next = Next { node: NodeId(superblock.next_node), generation: superblock.next_generation };
    let load = if options.read_only { BlockTable::load_in_part } else { BlockTable::load };
    let table = load(superblock.volume, allocator.clone(), &*device, superblock.table, next)?;
    for what in table.lost() {
        complain(format_args!("{}: {what}", device.name()));
    }
    let closed = superblock.clean;
    let source = LogSource {
        device: device.clone(),
        region: superblock.log,
        volume: superblock.volume,
        epoch: superblock.epoch,
        start: superblock.replay,
        cut: superblock.cut,
        closed,
    };
    let replay = Replay::find(source)?;
    // What bindings name must survive until the checkpoint below (CP-1).
    let bound = replay.bound_extents();
    for extent in &bound {
        allocator.reserve(*extent)?;
        allocator.free_later(*extent);
    }
    if !options.read_only {
        // Durable with what is read of the log, which flushes when it is opened (CP-5).
        put_superblock(&*device, &superblock)?;
    }
    let epoch = superblock.epoch + 1;
    let log = RedoLog::open(
        device.clone(),
        superblock.log,
        superblock.volume,
        epoch,
        superblock.replay,
        replay.end(),
        replay.last(),
    )?;
    let cut = superblock.cut;
    let live = superblock.live;
    let cache = NodeCache::new(superblock.checkpoint);
    // The roots come in through the volume's own way of loading, so it is put together first with what it needs for that.
    let placeholder = |tree, root: Root| {
        CachedNode::new(root.node, tree, Node::empty_leaf(KeyRange::all(), Msn::default()))
    };
    let roots = [placeholder(Tree::Metadata, live.metadata), placeholder(Tree::Data, live.data)];
    let volume = Arc::new(Volume::new(Pieces {
        device,
        options,
        superblock,
        table,
        allocator,
        log,
        cache,
        roots,
        lsn: cut,
    }));
    for (tree, root) in [(Tree::Metadata, live.metadata), (Tree::Data, live.data)] {
        let node: NodeRef = volume.node(root.node)?;
        volume.load_all(&node)?;
        node.expect_height(Some(root.height))?;
        // A root is changed where it is, and never reclaimed (BT-4, BT-5).
        let is_root =
            |entry: BlockEntry| entry.tree == tree && entry.references == 1 && !entry.pending_reclamation;
        if !volume.table.lookup(root.node).is_some_and(is_root) {
            let what = "the block table does not have it as a root";
            return Err(Error::damaged_node(Some(tree), root.node, what));
        }
        node.pinned.store(true, Ordering::Relaxed);
        TreeRoot::replace(&mut volume.root(tree).write(), node);
    }
    volume.stats.bound_runs_replayed.store(replay.bound_runs(), Ordering::Relaxed);
    volume.doomed.lock().extend(volume.table.pending_reclamation().into_iter().map(|(id, _)| id));
    replay.for_each(|lsn, operations| {
        volume.stats.records_replayed.fetch_add(1, Ordering::Relaxed);
        volume.replay_record(lsn, operations)?;
        volume.make_room_for_replay()
    })?;
    if !volume.options.read_only {
        // The new epoch is durable before anything is appended (LOG-3), and the log is empty again.
        volume.checkpoint(if closed { Occasion::Opening } else { Occasion::Running })?;
    }
    Ok(volume)
}
