//! A node that moves while it is read (CACHE-1).

use std::sync::{Arc, OnceLock, Weak};

use pando_device::{Device, DeviceError, Layer, MemoryDevice, ReadRequest, WriteRequest};
use pando_format::{Compression, NodeId, Tree};
use parking_lot::Mutex;

use crate::betree::node::Body;
use crate::small_volume::{fill, manual, volume_on};
use crate::volume::Volume;
use crate::{Engine, Error, FormatOptions};

/// A device in memory on which a node moves, and its old place is written over, before the next read comes to it.
struct Moving {
    inner: MemoryDevice,
    volume: OnceLock<Weak<Volume>>,
    node: Mutex<Option<NodeId>>,
}

impl Moving {
    fn move_node(&self, id: NodeId) {
        let volume = self.volume.get().and_then(Weak::upgrade).expect("the volume is open");
        let before = volume.table.lookup(id).expect("the node is there");
        let node = volume.node(id).unwrap();
        {
            let _gate = volume.gate.read_recursive();
            let mut state = node.state.write();
            volume.mark_dirty(&node, &mut state);
            volume.account(&mut state);
        }
        drop(node);
        assert!(volume.write_back_one().unwrap());
        assert_ne!(volume.table.generation(id), Some(before.generation), "the node has not moved");
        for extent in &before.extents {
            let pieces = vec![vec![0xaa; extent.length as usize].into()];
            self.inner.write(&[WriteRequest { offset: extent.offset, pieces }]).unwrap();
        }
    }
}

impl Layer for Moving {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        let node = self.node.lock().take();
        if let Some(id) = node {
            self.move_node(id);
        }
        self.inner.read(batch)
    }
}

/// A volume of several leaves that has just been opened, and a leaf that is not in memory.
fn cold() -> (Engine, Arc<Moving>, NodeId) {
    let inner = MemoryDevice::new(64 << 20);
    let device = Arc::new(Moving { inner, volume: OnceLock::new(), node: Mutex::default() });
    let engine = volume_on(&device);
    let (engine, leaf) = filled_and_opened(engine, &device);
    assert!(device.volume.set(Arc::downgrade(engine.volume())).is_ok());
    (engine, device, leaf)
}

/// Fills a volume and opens it anew; with a leaf that is not in memory.
fn filled_and_opened(engine: Engine, device: &Arc<impl Device + 'static>) -> (Engine, NodeId) {
    fill(&engine, 400);
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(device.clone(), manual()).unwrap();
    let root = engine.volume().root(Tree::Data).read().clone();
    let leaf = match &root.state.read().body {
        Body::Interior(interior) => interior.children[0].id,
        Body::Leaf(_) => panic!("the tree has one leaf"),
    };
    assert!(engine.volume().cache.peek(leaf).is_none(), "the leaf is in memory");
    (engine, leaf)
}

#[test]
fn a_node_that_moves_while_its_header_is_read_is_not_damaged() {
    let (engine, device, leaf) = cold();
    *device.node.lock() = Some(leaf);
    engine.volume().node(leaf).expect("the node is whole in its new place");
    let value = engine.waiting(|| engine.get(Tree::Data, &0u32.to_be_bytes())).unwrap();
    assert_eq!(value.as_deref(), Some(&[0; 1024][..]));
}

#[test]
fn a_header_that_is_damaged_where_it_should_be_is_damage() {
    let (engine, device, leaf) = cold();
    let entry = engine.volume().table.lookup(leaf).unwrap();
    let pieces = vec![vec![0xaa; 4096].into()];
    device.inner.write(&[WriteRequest { offset: entry.extents[0].offset, pieces }]).unwrap();
    assert!(matches!(engine.volume().node(leaf), Err(Error::Damaged { .. })));
}

/// It was found missing by the checkpoint that wrote the leaf again, after which the volume took no changes.
#[test]
fn a_header_with_parts_behind_the_end_of_its_image_is_damage() {
    let (engine, _, leaf) = cold();
    let mut entry = engine.volume().table.lookup(leaf).unwrap();
    assert!(engine.volume().read_header(leaf, &entry).is_ok());
    entry.length -= 4096;
    assert!(matches!(engine.volume().read_header(leaf, &entry), Err(Error::Damaged { .. })));
}

/// By what they take on the device ten times as many could pass as there is memory for.
#[test]
fn parts_that_stream_by_count_by_their_memory() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        compression: Compression::Lz4,
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let (engine, leaf) = filled_and_opened(Engine::open(device.clone(), manual()).unwrap(), &device);
    let node = engine.volume().node(leaf).unwrap();
    let (parts, bytes) = engine.volume().load_part(&node, 0).unwrap();
    let state = node.state.read();
    let memory = parts.clone().map(|part| state.leaf().basements[part].part.get().unwrap().memory());
    assert!(parts.len() > 1);
    assert_eq!(bytes, memory.sum::<usize>());
}

/// Parts that are read in order are read together.
#[test]
fn a_part_that_is_damaged_costs_no_part_that_is_read_with_it() {
    let (engine, device, leaf) = cold();
    let volume = engine.volume();
    let place = volume.table.lookup(leaf).unwrap();
    let part = volume.read_header(leaf, &place).unwrap().parts[2].clone();
    assert_eq!(place.extents.len(), 1);
    let offset = place.extents[0].offset + u64::from(part.offset) * 4096;
    device.inner.write(&[WriteRequest { offset, pieces: vec![vec![0xaa; 4096].into()] }]).unwrap();
    let node = volume.node(leaf).unwrap();
    assert_eq!(volume.load_part(&node, 0).unwrap().0, 0..2, "what lies before the damage");
    assert!(matches!(volume.load_part(&node, 2), Err(Error::Damaged { .. })));
    let parts = node.state.read().leaf().basements.len();
    assert_eq!(volume.load_part(&node, 3).unwrap().0, 3..4);
    assert_eq!(volume.load_part(&node, 4).unwrap().0, 4..parts, "what lies behind the damage");
}

/// Who missed a node that is gone may ask for its id when a new node has it.
#[test]
fn a_node_that_was_never_written_is_found_in_the_cache() {
    let (engine, _, _) = cold();
    let volume = engine.volume();
    let _gate = volume.gate.read_recursive();
    let node = crate::betree::node::Node::empty_leaf(pando_format::KeyRange::all(), Default::default());
    let node = volume.add_node(Tree::Data, node);
    assert_eq!(volume.load_node(node.id), Ok(true));
}

/// A crafted leaf could have a part 4 GiB behind the one before it, and a buffer of so many bytes was made.
#[test]
fn what_lies_behind_a_gap_is_not_read_along() {
    let (engine, _, leaf) = cold();
    let volume = engine.volume();
    let node = volume.node(leaf).unwrap();
    match &mut node.state.write().body {
        Body::Leaf(leaf) => drop(leaf.basements.remove(1)),
        Body::Interior(_) => unreachable!("it is a leaf"),
    }
    assert_eq!(volume.load_part(&node, 0).unwrap().0, 0..1);
}
