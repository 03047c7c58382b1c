//! The block table against a map, across checkpoints, failures and restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pando_device::simulated::{Event, Fault, SimulatedDevice};
use pando_device::{Buffer, Device, MemoryDevice, ReadRequest, WriteRequest};
use pando_format::{BlockEntry, Extent, NodeId, Region, TableRoot, Tree};
use proptest::prelude::*;

use super::allocator::Allocator;
use super::block_table::{BlockTable, Next, Version};
use crate::{Error, Result};

const VOLUME: [u8; 16] = [3; 16];
const REGION: Region = Region { device: 0, offset: 1 << 20, length: 8 << 20 };

fn allocator() -> Arc<Allocator> {
    Arc::new(Allocator::new(&[REGION]))
}

/// The least node id never used, where generations are no matter.
fn least(node: NodeId) -> Next {
    Next { node, generation: u64::MAX }
}

/// Id to (generation, references).
type Nodes = BTreeMap<NodeId, (u64, u32)>;

/// A volume of nodes of one to three blocks, each of which begins with its id and generation.
struct Volume {
    device: Arc<SimulatedDevice>,
    allocator: Arc<Allocator>,
    table: BlockTable,
    generation: u64,
    nodes: Nodes,
    /// Nodes whose present image is not on the device.
    dirty: BTreeSet<NodeId>,
    durable: (TableRoot, NodeId, Nodes),
}

impl Volume {
    fn new() -> Self {
        let allocator = allocator();
        Self {
            device: Arc::new(SimulatedDevice::new(REGION.end())),
            table: BlockTable::new(VOLUME, allocator.clone()),
            allocator,
            generation: 0,
            nodes: Nodes::new(),
            dirty: BTreeSet::new(),
            durable: (TableRoot::default(), NodeId(1), Nodes::new()),
        }
    }

    fn pick(&self, which: usize) -> Option<NodeId> {
        self.nodes.keys().nth(which % self.nodes.len().max(1)).copied()
    }

    fn insert(&mut self) {
        let id = self.table.insert_new(Tree::Data, 0);
        assert_eq!(self.nodes.insert(id, (0, 1)), None);
        self.dirty.insert(id);
    }

    fn remove(&mut self, id: NodeId) {
        self.table.remove(id);
        self.nodes.remove(&id);
        self.dirty.remove(&id);
    }

    /// Writes an image and says where.
    fn write_image(&mut self, id: NodeId) -> Result<BlockEntry> {
        self.generation += 1;
        let generation = self.generation;
        let length = 4096 * (1 + generation as u32 % 3);
        let extents = self.allocator.allocate(length.into(), &[4096, 8192]).ok_or(Error::NoSpace)?;
        for extent in &extents {
            let mut buffer = Buffer::zeroed(extent.length as usize);
            buffer[..8].copy_from_slice(&id.0.to_le_bytes());
            buffer[8..16].copy_from_slice(&generation.to_le_bytes());
            self.device.write(&[WriteRequest { offset: extent.offset, pieces: vec![buffer.freeze()] }])?;
        }
        let (header_length, header_checksum) = (4096, generation);
        Ok(BlockEntry {
            generation,
            extents,
            second_copy: Vec::new(),
            length,
            header_length,
            header_checksum,
            references: 77,
            pending_reclamation: false,
            height: 0,
            tree: Tree::Data,
        })
    }

    fn write_back(&mut self, id: NodeId) -> Result<()> {
        let place = self.write_image(id)?;
        self.table.record_write(id, &place);
        self.nodes.get_mut(&id).expect("the node was picked").0 = place.generation;
        self.dirty.remove(&id);
        Ok(())
    }

    /// Cuts, lets `meanwhile` happen, then writes what was dirty at the cut, and the table.
    fn checkpoint(&mut self, meanwhile: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut version = self.table.snapshot();
        let dirty = std::mem::take(&mut self.dirty);
        let mut at_cut = self.nodes.clone();
        meanwhile(self)?;
        for id in dirty {
            let place = self.write_image(id)?;
            self.table.record_checkpoint_write(&mut version, id, &place);
            let before = at_cut.get_mut(&id).expect("the node was dirty at the cut");
            if let Some(now) = self.nodes.get_mut(&id).filter(|now| now.0 == before.0) {
                now.0 = place.generation;
            }
            before.0 = place.generation;
        }
        let root = self.table.write(&version, &*self.device, 1)?;
        self.check_durable();
        self.device.flush()?;
        self.durable = (root, version.next(), at_cut);
        self.check_durable();
        let device = self.device.clone();
        self.table.release(version, |run| {
            device.discard(run.offset, run.length).expect("discards do not fail here")
        });
        self.check_durable();
        Ok(())
    }

    /// CP-1: what the last checkpoint reaches is there, and nothing else is in its table.
    fn check_durable(&self) {
        let (root, next, nodes) = &self.durable;
        let device = SimulatedDevice::from_image(self.device.image());
        let table =
            BlockTable::load(VOLUME, allocator(), &device, *root, least(*next)).expect("the table is whole");
        assert_eq!(contents(&table.snapshot()), *nodes);
        for id in nodes.keys() {
            let entry = table.lookup(*id).expect("it was listed");
            for extent in &entry.extents {
                let mut request = [ReadRequest { offset: extent.offset, buffer: Buffer::zeroed(4096) }];
                device.read(&mut request).expect("nothing fails here");
                assert_eq!(request[0].buffer[..8], id.0.to_le_bytes());
                assert_eq!(request[0].buffer[8..16], entry.generation.to_le_bytes());
            }
        }
    }

    fn check_live(&self) {
        for (id, (generation, references)) in &self.nodes {
            let entry = self.table.lookup(*id).expect("the node is live");
            assert_eq!((entry.generation, entry.references), (*generation, *references));
        }
    }

    fn restart(&mut self) {
        let (root, next, nodes) = self.durable.clone();
        self.device = Arc::new(SimulatedDevice::from_image(self.device.image()));
        self.allocator = allocator();
        self.table = BlockTable::load(VOLUME, self.allocator.clone(), &*self.device, root, least(next))
            .expect("it is whole");
        self.nodes = nodes;
        self.dirty.clear();
    }
}

fn contents(version: &Version) -> Nodes {
    version.iter().map(|(id, entry)| (id, (entry.generation, entry.references))).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Insert(usize),
    Remove(usize),
    Dirty(usize),
    WriteBack(usize),
    Count(usize, u32),
}

impl Step {
    fn run(&self, volume: &mut Volume) -> Result<()> {
        match *self {
            // The space is never near full: that is the allocator's test.
            Self::Insert(count) if volume.nodes.len() < 250 => (0..count).for_each(|_| volume.insert()),
            Self::Insert(_) => {}
            Self::Remove(which) => {
                volume.pick(which).into_iter().for_each(|id| volume.remove(id));
            }
            Self::Dirty(which) => volume.dirty.extend(volume.pick(which)),
            Self::WriteBack(which) => return volume.pick(which).map_or(Ok(()), |id| volume.write_back(id)),
            Self::Count(which, references) => {
                if let Some(id) = volume.pick(which) {
                    let counted = &mut volume.nodes.get_mut(&id).expect("it was picked").1;
                    let change = i64::from(references) - i64::from(*counted);
                    assert_eq!(volume.table.change_references(id, change), Some(references));
                    *counted = references;
                }
            }
        }
        Ok(())
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1usize..40).prop_map(Step::Insert),
        4 => any::<usize>().prop_map(Step::Remove),
        3 => any::<usize>().prop_map(Step::Dirty),
        3 => any::<usize>().prop_map(Step::WriteBack),
        2 => (any::<usize>(), 1u32..9).prop_map(|(which, count)| Step::Count(which, count)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Before, during and after each checkpoint the device holds the last durable one whole; a restart finds
    /// exactly it, and the same free space as the table that was never closed.
    #[test]
    fn each_checkpoint_is_whole_until_the_next_is_durable(
        rounds in prop::collection::vec((steps(), steps(), any::<bool>()), 1..6)
    ) {
        let mut volume = Volume::new();
        for (before, meanwhile, restart) in rounds {
            before.iter().try_for_each(|step| step.run(&mut volume)).expect("nothing fails here");
            volume.check_durable();
            let result = volume.checkpoint(|volume| meanwhile.iter().try_for_each(|step| step.run(volume)));
            result.expect("nothing fails here");
            volume.check_live();
            if restart {
                volume.restart();
                volume.check_live();
            }
        }
        // With nothing under way, two checkpoints settle everything that was deferred.
        for _ in 0..2 {
            volume.checkpoint(|_| Ok(())).expect("nothing fails here");
        }
        let free = volume.allocator.free_runs();
        prop_assert_eq!(volume.allocator.counters().deferred, 0);
        volume.restart();
        prop_assert_eq!(volume.allocator.free_runs(), free);
    }

    /// The n-th I/O of a checkpoint fails: the one before is still whole.
    #[test]
    fn a_checkpoint_that_fails_leaves_the_one_before(first in steps(), second in steps(), n in 0u64..40) {
        let mut volume = Volume::new();
        volume.insert();
        first.iter().try_for_each(|step| step.run(&mut volume)).expect("nothing fails here");
        volume.checkpoint(|_| Ok(())).expect("nothing fails here");
        second.iter().try_for_each(|step| step.run(&mut volume)).expect("nothing fails here");
        volume.insert();
        volume.device.set_fault(Fault::WritesFrom(volume.device.io_count() + n));
        let before = volume.durable.clone();
        // Discards are I/Os, too: they come after the checkpoint is durable, and are let through.
        let result = volume.checkpoint_without_discard();
        if result.is_err() {
            prop_assert_eq!(&volume.durable, &before);
        }
        volume.check_durable();
        volume.restart();
        volume.check_live();
    }
}

impl Volume {
    fn checkpoint_without_discard(&mut self) -> Result<()> {
        let mut version = self.table.snapshot();
        for id in std::mem::take(&mut self.dirty) {
            let place = self.write_image(id)?;
            self.table.record_checkpoint_write(&mut version, id, &place);
        }
        let root = self.table.write(&version, &*self.device, 1)?;
        self.device.flush()?;
        self.durable = (root, version.next(), contents(&version));
        self.table.release(version, |_| {});
        Ok(())
    }
}

/// A table of `count` nodes, written in checkpoints of the given sizes.
fn table_of(device: &dyn Device, sizes: &[u64]) -> (BlockTable, TableRoot, NodeId) {
    let table = BlockTable::new(VOLUME, Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }])));
    let mut root = TableRoot::default();
    let mut next = NodeId(1);
    for (checkpoint, size) in (1..).zip(sizes) {
        for _ in 0..*size {
            let id = table.insert_new(Tree::Metadata, 0);
            let offset = (128 << 20) + id.0 * 4096;
            let extents = vec![Extent { device: 0, offset, length: 4096 }];
            let place = BlockEntry {
                generation: id.0,
                extents,
                length: 4096,
                header_length: 4096,
                ..table.lookup(id).expect("it was just inserted")
            };
            table.record_write(id, &place);
        }
        let version = table.snapshot();
        root = table.write(&version, device, checkpoint).expect("nothing fails here");
        next = version.next();
        table.release(version, |_| {});
    }
    (table, root, next)
}

#[test]
fn the_radix_tree_grows_level_by_level() {
    for (sizes, levels) in [
        (&[0][..], 0),
        (&[63], 0),
        (&[64], 1),
        (&[63, 1, 1], 1),
        (&[64 * 128 - 1], 1),
        (&[64 * 128], 2),
        (&[10, 64 * 128, 1], 2),
    ] {
        let device = MemoryDevice::new(512 << 20);
        let (table, root, next) = table_of(&device, sizes);
        assert_eq!(root.levels, levels, "{sizes:?}");
        let allocator = Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }]));
        let loaded =
            BlockTable::load(VOLUME, allocator, &device, root, least(next)).expect("the table is whole");
        assert_eq!(contents(&loaded.snapshot()), contents(&table.snapshot()));
    }
}

#[test]
fn only_changed_pages_are_written() {
    let device = SimulatedDevice::new(512 << 20);
    let (table, root, _) = table_of(&device, &[64 * 200]);
    let again = table.write(&table.snapshot(), &device, 2).expect("nothing fails here");
    assert_eq!(again, root);
    let before = device.io_count();
    table.change_references(NodeId(5000), 1);
    let changed = table.write(&table.snapshot(), &device, 3).expect("nothing fails here");
    assert_ne!(changed, root);
    // A table page, its index page, and the topmost one, level by level.
    assert_eq!(device.io_count() - before, 3);
}

/// Each byte of each page is covered: a flipped bit is damage, never another table.
#[test]
fn rot_in_any_page_is_damage() {
    let device = SimulatedDevice::new(512 << 20);
    let (_, root, next) = table_of(&device, &[64 * 3]);
    let image = device.image();
    let pages = device.trace();
    assert!(pages.len() > 1);
    for event in &pages {
        let Event::Write { offset, bytes } = event else { continue };
        for seed in 0..200 {
            let device = SimulatedDevice::from_image(image.clone());
            device.flip_bits(*offset..*offset + bytes.len() as u64, 1, seed);
            let allocator = Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }]));
            let result = BlockTable::load(VOLUME, allocator, &device, root, least(next));
            assert!(matches!(result, Err(Error::Damaged { .. })), "seed {seed}");
        }
    }
}

/// A write that never reached the device leaves an older page in its place, whole and of the right number.
#[test]
fn a_stale_page_is_damage() {
    let device = SimulatedDevice::new(512 << 20);
    let (table, _, next) = table_of(&device, &[10]);
    table.change_references(NodeId(5), 1);
    let root = table.write(&table.snapshot(), &device, 2).expect("nothing fails here");
    let pages = device.trace();
    let [Event::Write { bytes: old, .. }, Event::Write { offset, bytes: new }] = &pages[..] else {
        panic!("{pages:?}")
    };
    assert_eq!(old.len(), new.len());
    let load = |device: &SimulatedDevice| {
        let allocator = Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }]));
        BlockTable::load(VOLUME, allocator, device, root, least(next)).map(|table| table.lookup(NodeId(5)))
    };
    assert_eq!(load(&device).expect("it is whole").expect("it is there").references, 2);
    device.write(&[WriteRequest { offset: *offset, pieces: vec![old.clone()] }]).expect("nothing fails here");
    assert!(matches!(load(&device), Err(Error::Damaged { .. })));
}

/// A node whose generation is given away again would not be found when it is written.
#[test]
fn a_generation_that_was_never_used_is_damage() {
    let device = MemoryDevice::new(512 << 20);
    let (_, root, node) = table_of(&device, &[10]);
    let load = |generation| {
        let allocator = Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }]));
        BlockTable::load(VOLUME, allocator, &device, root, Next { node, generation }).map(drop)
    };
    assert_eq!(load(11), Ok(()));
    let Err(Error::Damaged { what }) = load(10) else { panic!("{:?}", load(10)) };
    assert!(what.contains("node 10 has generation 10"), "{what}");
}

/// Of a damaged volume, whose counts may be any.
#[test]
fn a_count_that_cannot_be_changes_nothing() {
    let table = BlockTable::new(VOLUME, allocator());
    let id = table.insert_new(Tree::Data, 0);
    let most = i64::from(u32::MAX);
    let changes = [(-2, None), (most, None), (most - 1, Some(u32::MAX)), (-most, Some(0)), (1, None)];
    for (change, counted) in changes {
        assert_eq!(table.change_references(id, change), counted, "{change}");
    }
    assert!(table.lookup(id).is_some_and(|entry| entry.references == 0 && entry.pending_reclamation));
    assert!(table.remove(id) && !table.remove(id));
    assert_eq!(table.change_references(id, 1), None);
}

/// BT-7: a node that was new at a cut and is gone before it was written leaves its id unused; else its image
/// would be taken for that of the node that has the id now.
#[test]
fn a_removed_nodes_id_waits_for_the_checkpoint() {
    let table = BlockTable::new(VOLUME, allocator());
    let (first, second) = (table.insert_new(Tree::Data, 0), table.insert_new(Tree::Data, 0));
    table.remove(first);
    let version = table.snapshot();
    table.remove(second);
    assert_eq!(table.insert_new(Tree::Data, 0), NodeId(3));
    table.release(version, |_| {});
    assert_eq!(table.insert_new(Tree::Data, 0), first);
    assert_eq!(table.insert_new(Tree::Data, 0), NodeId(4));
    let version = table.snapshot();
    table.release(version, |_| {});
    assert_eq!(table.insert_new(Tree::Data, 0), second);
}

/// How many ids there were says how many can be used again, not how much memory the table takes.
#[test]
fn pages_without_a_node_take_no_memory() {
    let device = SimulatedDevice::new(512 << 20);
    let (_, root, next) = table_of(&device, &[64 * 200]);
    let load = |root| {
        let allocator = Arc::new(Allocator::new(&[Region { length: 256 << 20, ..REGION }]));
        BlockTable::load(VOLUME, allocator, &device, root, least(next)).expect("the table is whole")
    };
    let table = load(root);
    let removed = 100..10_000;
    removed.clone().for_each(|id| assert!(table.remove(NodeId(id))));
    let loaded = load(table.write(&table.snapshot(), &device, 2).expect("nothing fails here"));
    let used =
        |page: u64| (page * 64..page * 64 + 64).any(|id| id != 0 && id < next.0 && !removed.contains(&id));
    let pages = loaded.pages().0;
    assert!(pages.iter().zip(0..).all(|(page, number)| page.is_some() == used(number)));
    for id in removed.chain(next.0..next.0 + 100) {
        assert_eq!(loaded.insert_new(Tree::Data, 0), NodeId(id), "low ids come first");
    }
}

/// The pages of the first group are placed, those of the next are not: nothing is kept, and the old table
/// stays.
#[test]
fn a_table_that_finds_no_space_takes_none() {
    let device = MemoryDevice::new(256 << 20);
    // The nodes lie in a region of their own, full but for a block.
    let nodes = Region { device: 0, offset: 0, length: 64 * 300 * 4096 };
    let pages = Region { device: 0, offset: 128 << 20, length: 280 * 4096 };
    let allocator = Arc::new(Allocator::new(&[nodes, pages]));
    let table = BlockTable::new(VOLUME, allocator.clone());
    for number in 0..64 * 300 - 1 {
        let id = table.insert_new(Tree::Data, 0);
        let extent = Extent { device: 0, offset: number * 4096, length: 4096 };
        allocator.reserve(extent).expect("the region is free");
        let entry = table.lookup(id).expect("it was just inserted");
        table.record_write(
            id,
            &BlockEntry { generation: 1, extents: vec![extent], length: 4096, header_length: 4096, ..entry },
        );
    }
    let before = allocator.free_runs();
    let version = table.snapshot();
    assert_eq!(table.write(&version, &device, 1), Err(Error::NoSpace));
    assert_eq!(allocator.free_runs(), before);
    assert_eq!(allocator.counters().deferred, 0);
}
