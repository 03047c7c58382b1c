//! Maintenance beside parts that cannot be read: it leaves them as they are, once, and does what else there is to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pando_device::{Device, DeviceError, MemoryDevice, ReadRequest, WriteRequest};
use pando_format::{KeyRange, Msn, NodeId, Tree};

use super::node::NodeRef;
use super::tree::{TreeRoot, root_above};
use crate::small_volume::{manual, small_volume};
use crate::{Batch, Engine, Error};

const TREE: Tree = Tree::Metadata;

/// A device of which one block cannot be read: it has other bytes, or gives an error.
struct Rotten {
    inner: MemoryDevice,
    block: u64,
    gives_error: bool,
    is_on: AtomicBool,
    reads: AtomicUsize,
}

impl Device for Rotten {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.inner.read(batch)?;
        for request in batch {
            let end = request.offset + request.buffer.len() as u64;
            if !self.is_on.load(Ordering::Relaxed) || !(request.offset..end).contains(&self.block) {
                continue;
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
            if self.gives_error {
                let (action, device) = ("read", self.name());
                return Err(DeviceError::Io { action, device, offset: self.block, code: 5 });
            }
            request.buffer[(self.block - request.offset) as usize + 100] ^= 1;
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.inner.write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, length)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn put(engine: &Engine, number: u32) {
    let mut batch = Batch::new();
    batch.put(TREE, key(number), vec![number as u8; 100]);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

fn settle(engine: &Engine) {
    for _ in 0..1000 {
        if !engine.background_step().unwrap() {
            return;
        }
    }
    panic!("maintenance finds no end");
}

fn root(engine: &Engine) -> NodeRef {
    engine.volume().root(TREE).read().clone()
}

/// Closes a volume and opens it anew on a device that has a basement node in the middle of a leaf rotten as soon as it is told so.
fn reopened(engine: Engine, device: &MemoryDevice, leaf: NodeId, gives_error: bool) -> (Engine, Arc<Rotten>) {
    engine.close().unwrap();
    let place = engine.volume().table.lookup(leaf).unwrap();
    let header = engine.volume().read_header(leaf, &place).unwrap();
    let middle = header.parts.len() / 2;
    assert!(middle > 0 && middle + 1 < header.parts.len(), "{header}");
    let block = place.extents[0].offset + u64::from(header.parts[middle].offset) * 4096;
    drop(engine);
    let inner = MemoryDevice::from_bytes(device.to_bytes());
    let (is_on, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let device = Arc::new(Rotten { inner, block, gives_error, is_on, reads });
    (Engine::open(device.clone(), manual()).unwrap(), device)
}

/// The leaf becomes too large on the straight path, and cannot be split.
#[test]
fn a_leaf_that_grows_beside_damage_is_left_as_it_is() {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    let keys = 260;
    for number in 0..keys {
        put(&engine, number);
        settle(&engine);
    }
    let root_node = root(&engine);
    assert_eq!(root_node.state.read().height, 1);
    let leaf = root_node.state.read().interior().children.last().unwrap().id;
    let (engine, device) = reopened(engine, &device, leaf, false);
    device.is_on.store(true, Ordering::Relaxed);
    let volume = engine.volume();
    put(&engine, keys);
    let root_node = root(&engine);
    let last = root_node.state.read().interior().children.len() - 1;
    volume.flush_child(&root_node, &KeyRange::all(), last).unwrap();
    let mut next = keys + 1;
    while volume.root(TREE).overgrown.lock().is_empty() {
        put(&engine, next);
        next += 1;
        assert!(next < keys + 500, "the leaf does not grow");
    }
    settle(&engine);
    assert!(volume.damaged.lock().contains(&leaf));
    let reads = device.reads.load(Ordering::Relaxed);
    for number in next..next + 20 {
        put(&engine, number);
        settle(&engine);
    }
    assert_eq!(device.reads.load(Ordering::Relaxed), reads, "it is tried once");
    engine.checkpoint().unwrap();
    assert_eq!(engine.failure(), None);
    let get = |number: u32| engine.waiting(|| engine.get(TREE, &key(number)));
    let lost: Vec<u32> = (0..next + 20).filter(|number| get(*number).is_err()).collect();
    assert!((1..30).contains(&lost.len()), "{lost:?}");
    assert!(matches!(get(lost[0]), Err(Error::Damaged { .. })));
}

/// A root is in memory whole, so a leaf that cannot be read does not become one.
#[test]
fn a_root_with_a_single_edge_to_damage_stays() {
    for gives_error in [false, true] {
        let (engine, device) = small_volume(16 << 10, 2 << 10);
        (0..100).for_each(|number| put(&engine, number));
        let leaf = root(&engine).id;
        let (engine, device) = reopened(engine, &device, leaf, gives_error);
        let volume = engine.volume();
        {
            let _gate = volume.gate.read_recursive();
            let leaf = root(&engine);
            let state = root_above(&leaf, 1, Msn::default());
            TreeRoot::replace(&mut volume.root(TREE).write(), volume.add_node(TREE, state));
            for slot in &mut leaf.state.write().leaf_mut().basements {
                slot.part.evict();
            }
        }
        device.is_on.store(true, Ordering::Relaxed);
        settle(&engine);
        assert_eq!(root(&engine).state.read().height, 1);
        let reads = device.reads.load(Ordering::Relaxed);
        assert!(reads > 0);
        put(&engine, 100);
        settle(&engine);
        assert_eq!(device.reads.load(Ordering::Relaxed), reads, "it is tried once");
        let get = |number: u32| engine.waiting(|| engine.get(TREE, &key(number)));
        let lost = (0..100).filter(|number| get(*number).is_err()).count();
        assert!((1..30).contains(&lost), "{lost}");
        assert_eq!(engine.failure(), None);
    }
}
