//! Nodes that cannot be read, or are as no writer makes them. Maintenance leaves them as they are, once, and does what else there is to do; so do
//! replay, checks and queries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use pando_device::{Device, DeviceError, Layer, MemoryDevice, ReadRequest};
use pando_format::{Bound, Goto, KeyRange, Msn, NodeId, Pending, Tree, Xf};
use parking_lot::Mutex;

use super::interior::{Child, Interior};
use super::names::NAMES_LENGTH_MAX;
use super::node::{Body, Node, NodeRef};
use super::tree::{TreeRoot, root_above};
use crate::small_volume::{change, manual, small_volume};
use crate::{Batch, Engine, Error, FormatOptions, Result, ScanLimit};

pub(super) const TREE: Tree = Tree::Metadata;

/// A device of which some blocks cannot be read: they have other bytes, or give an error.
pub(super) struct Rotten {
    pub(super) inner: MemoryDevice,
    pub(super) blocks: Mutex<Vec<u64>>,
    pub(super) gives_error: bool,
    /// The error is that of an image file which ends before.
    pub(super) is_cut: AtomicBool,
    pub(super) is_on: AtomicBool,
    pub(super) reads: AtomicUsize,
    /// So many more reads of them fail.
    pub(super) failures_left: AtomicUsize,
}

impl Layer for Rotten {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.inner.read(batch)?;
        for request in batch {
            let end = request.offset + request.buffer.len() as u64;
            let mut blocks = self.blocks.lock().clone();
            blocks.retain(|block| (request.offset..end).contains(block));
            if blocks.is_empty() || !self.is_on.load(Ordering::Relaxed) {
                continue;
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
            let fails = |left: usize| left.checked_sub(1);
            if self.failures_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_err() {
                continue;
            }
            let offset = blocks[0];
            if self.is_cut.load(Ordering::Relaxed) {
                return Err(DeviceError::OutOfRange { offset, length: 4096, capacity: offset });
            }
            if self.gives_error {
                let (action, device) = ("read", self.name());
                return Err(DeviceError::Io { action, device, offset, code: 5 });
            }
            for block in blocks {
                request.buffer[(block - request.offset) as usize + 100] ^= 1;
            }
        }
        Ok(())
    }
}

impl Rotten {
    pub(super) fn new(bytes: Vec<u8>, blocks: Vec<u64>, gives_error: bool) -> Arc<Self> {
        let (inner, blocks) = (MemoryDevice::from_bytes(bytes), Mutex::new(blocks));
        Arc::new(Self {
            inner,
            blocks,
            gives_error,
            is_cut: AtomicBool::new(false),
            is_on: AtomicBool::new(true),
            reads: AtomicUsize::new(0),
            failures_left: AtomicUsize::new(usize::MAX),
        })
    }
}

pub(super) fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

pub(super) fn put(engine: &Engine, number: u32) {
    let mut batch = Batch::new();
    batch.put(TREE, key(number), vec![number as u8; 100]);
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

pub(super) fn settle(engine: &Engine) {
    for _ in 0..1000 {
        if !engine.background_step().unwrap() {
            return;
        }
    }
    panic!("maintenance finds no end");
}

/// A volume of so many keys, put in order, each after all that the one before had brought about.
pub(super) fn filled(keys: u32) -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    for number in 0..keys {
        put(&engine, number);
        settle(&engine);
    }
    (engine, device)
}

/// One of 2000 keys, each written twice, in an order that is not theirs, with messages in interior nodes: what is clean takes none straight from above.
pub(super) fn written_over() -> (Engine, Arc<MemoryDevice>) {
    let (engine, device) = small_volume(16 << 10, 2 << 10);
    for round in 0..8 {
        for number in 0..500 {
            put(&engine, (round * 500 + number) * 1171 % 2000);
            settle(&engine);
        }
        engine.checkpoint().unwrap();
    }
    (engine, device)
}

pub(super) fn root(engine: &Engine) -> NodeRef {
    engine.volume().root(TREE).read().clone()
}

/// Where a basement node of a leaf lies: the one behind so many quarters of it.
pub(super) fn block_of(engine: &Engine, leaf: NodeId, quarter: usize) -> u64 {
    let place = engine.volume().table.lookup(leaf).unwrap();
    let parts = engine.volume().read_header(leaf, &place).unwrap().parts;
    assert!(parts.len() > 3 && place.extents.len() == 1);
    place.extents[0].offset + u64::from(parts[(parts.len() - 1) * quarter / 4].offset) * 4096
}

/// Closes a volume and opens it anew on a device that has basement nodes of a leaf rotten as soon as it is told so: those at these
/// quarters of it.
pub(super) fn reopened(
    engine: Engine,
    device: &MemoryDevice,
    leaf: NodeId,
    quarters: &[usize],
    gives_error: bool,
) -> (Engine, Arc<Rotten>) {
    engine.close().unwrap();
    let blocks = quarters.iter().map(|quarter| block_of(&engine, leaf, *quarter)).collect();
    drop(engine);
    let device = Rotten::new(device.to_bytes(), blocks, gives_error);
    device.is_on.store(false, Ordering::Relaxed);
    (Engine::open(device.clone(), manual()).unwrap(), device)
}

/// A root of height 1 whose last leaf, some basement nodes of which are rotten, has become too large on the straight path; that leaf, and
/// the first key that is free behind it.
fn overgrown(quarters: &[usize], gives_error: bool) -> (Engine, Arc<Rotten>, NodeId, u32) {
    let mut next = 260;
    let (engine, device) = filled(next);
    assert_eq!(root(&engine).state.read().height, 1);
    let leaf = root(&engine).state.read().interior().children.last().unwrap().id;
    let (engine, device) = reopened(engine, &device, leaf, quarters, gives_error);
    put(&engine, next);
    let root = root(&engine);
    let last = root.state.read().interior().children.len() - 1;
    engine.volume().flush_child(&root, &KeyRange::all(), last).unwrap();
    device.is_on.store(true, Ordering::Relaxed);
    while engine.volume().root(TREE).overgrown.lock().is_empty() {
        next += 1;
        put(&engine, next);
        assert!(next < 1000, "the leaf does not grow");
    }
    (engine, device, leaf, next + 1)
}

fn evict(leaf: &NodeRef) {
    for slot in &mut leaf.state.write().leaf_mut().basements {
        slot.part.evict();
    }
}

/// Keys below `end` that cannot be read.
pub(super) fn lost(engine: &Engine, end: u32) -> Vec<u32> {
    let get = |number: &u32| engine.waiting(|| engine.get(TREE, &key(*number)));
    (0..end).filter(|number| get(number).is_err()).collect()
}

/// A file that goes on growing behind damage finds room, and costs no more than what was lost.
#[test]
fn a_leaf_that_grows_beside_damage_is_split_around_it() {
    for (quarters, gives_error) in [(&[2][..], false), (&[2], true), (&[0], false), (&[1, 2], false)] {
        let (engine, device, leaf, next) = overgrown(quarters, gives_error);
        settle(&engine);
        assert!(!engine.volume().damaged.contains(leaf));
        let node = engine.volume().node(leaf).unwrap();
        assert!(!node.state.read().leaf().is_too_large(16 << 10), "it is split");
        if !gives_error {
            engine.checkpoint().unwrap();
        }
        let before = lost(&engine, next);
        assert!((1..40).contains(&before.len()), "{before:?}");
        if gives_error {
            // A write of the leaf would take the part along, and has to read it.
            continue;
        }
        let reads = device.reads.load(Ordering::Relaxed);
        for number in next..next + 1000 {
            put(&engine, number);
            settle(&engine);
        }
        engine.checkpoint().unwrap();
        assert!(device.reads.load(Ordering::Relaxed) < reads + 20, "it is tried again and again");
        assert_eq!(lost(&engine, next + 1000), before);
        assert_eq!(engine.failure(), None);
    }
}

/// What lies between basement nodes that cannot be read stays with them.
#[test]
fn a_leaf_that_cannot_be_split_is_left_as_it_is() {
    let (engine, device, leaf, next) = overgrown(&[], false);
    engine.checkpoint().unwrap();
    *device.blocks.lock() = [0, 4].map(|quarter| block_of(&engine, leaf, quarter)).into();
    evict(&engine.volume().node(leaf).unwrap());
    settle(&engine);
    assert!(engine.volume().damaged.contains(leaf));
    let reads = device.reads.load(Ordering::Relaxed);
    for number in next..next + 20 {
        put(&engine, number);
        settle(&engine);
    }
    assert_eq!(device.reads.load(Ordering::Relaxed), reads, "it is tried once");
    engine.checkpoint().unwrap();
    let lost = lost(&engine, next + 20);
    assert!((1..60).contains(&lost.len()), "{lost:?}");
    assert_eq!(engine.failure(), None);
}

/// A root is in memory whole, so a leaf that cannot be read does not become one.
#[test]
fn a_root_with_a_single_edge_to_damage_stays() {
    for gives_error in [false, true] {
        let (engine, device) = small_volume(16 << 10, 2 << 10);
        (0..100).for_each(|number| put(&engine, number));
        let leaf = root(&engine).id;
        let (engine, device) = reopened(engine, &device, leaf, &[2], gives_error);
        let volume = engine.volume();
        {
            let _gate = volume.gate.read_recursive();
            let leaf = root(&engine);
            let state = root_above(&leaf, 1, Msn::default());
            TreeRoot::replace(&mut volume.root(TREE).write(), volume.add_root(TREE, state));
            evict(&leaf);
        }
        device.is_on.store(true, Ordering::Relaxed);
        settle(&engine);
        assert_eq!(root(&engine).state.read().height, 1);
        let reads = device.reads.load(Ordering::Relaxed);
        assert!(reads > 0);
        put(&engine, 100);
        settle(&engine);
        assert_eq!(device.reads.load(Ordering::Relaxed), reads, "it is tried once");
        let lost = lost(&engine, 100);
        assert!((1..30).contains(&lost.len()), "{lost:?}");
        assert_eq!(engine.failure(), None);
    }
}

/// Of a key for which no message waits: where the buffer at the last edge on the way to it lies, the header of its leaf, and the basement node that
/// holds it. `None` if there are no messages in that buffer, or one of this key above.
pub(super) fn places_of(engine: &Engine, number: u32) -> Option<[u64; 3]> {
    let block = |id: NodeId, part: usize| {
        let place = engine.volume().table.lookup(id).unwrap();
        let parts = engine.volume().read_header(id, &place).unwrap().parts;
        assert_eq!(place.extents.len(), 1);
        (place.extents[0].offset, u64::from(parts[part].offset) * 4096)
    };
    let (mut node, mut key) = (root(engine), Bytes::from(key(number)));
    loop {
        let (index, child) = {
            let state = node.state.read();
            let index = state.interior().index_of(&key);
            (index, state.interior().children[index].clone())
        };
        if !child.buffer.get().unwrap().passes(&key) {
            return None;
        }
        key = key.slice(child.strip as usize..);
        let below = engine.volume().node(child.id).unwrap();
        if below.height == 0 {
            let (start, buffer) = block(node.id, index);
            let (leaf, part) = block(below.id, below.state.read().leaf().index_of(&key));
            return (child.buffer_bytes > 0).then_some([start + buffer, leaf, leaf + part]);
        }
        node = below;
    }
}

/// A volume could not be opened any more if what a move had found in memory could not be read at its replay.
#[test]
fn a_move_of_what_has_become_unreadable_is_replayed() {
    let (engine, device) = written_over();
    let (number, places) = (0..2000).find_map(|number| Some((number, places_of(&engine, number)?))).unwrap();
    let before = device.to_bytes();
    let move_it = |engine: &Engine| {
        let mut batch = Batch::new();
        batch.move_range(TREE, key(number), b"moved".to_vec());
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    };
    move_it(&engine);
    assert_eq!(engine.stats().ranges_copied, 1);
    engine.sync().unwrap();
    drop(engine);
    for (place, gives_error) in places.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let engine =
            Engine::open(Rotten::new(device.to_bytes(), vec![place], gives_error), manual()).unwrap();
        let get = |key: &[u8]| engine.waiting(|| engine.get(TREE, key));
        assert_eq!(get(&key(number)), Ok(None));
        assert!(get(b"moved").is_err_and(|error| error.is_unreadable()));
        let lost = lost(&engine, 2000);
        assert!((1..200).contains(&lost.len()), "{lost:?}");
        settle(&engine);
        engine.checkpoint().unwrap();
        assert_eq!(engine.failure(), None);
    }
    // Nor could it be moved from then on, since so small a range is copied.
    for (place, gives_error) in places[1..].iter().flat_map(|place| [(*place, false), (*place, true)]) {
        let engine = Engine::open(Rotten::new(before.clone(), vec![place], gives_error), manual()).unwrap();
        move_it(&engine);
        let get = |key: &[u8]| engine.waiting(|| engine.get(TREE, key));
        assert_eq!(get(&key(number)), Ok(None));
        assert!(get(b"moved").is_err_and(|error| error.is_unreadable()));
    }
}

/// A volume of so many keys on which a node has been written with other contents than any that come about.
fn made_to_harm(keys: u32, node: fn(&Engine) -> NodeRef, change: impl FnOnce(&mut Node)) -> Engine {
    let (engine, device) = filled(keys);
    // Beside what is dirty the next one would bring something down.
    engine.checkpoint().unwrap();
    {
        let (volume, node) = (engine.volume(), node(&engine));
        let _gate = volume.gate.read_recursive();
        let mut state = node.state.write();
        volume.mark_dirty(&node, &mut state);
        change(&mut state);
        volume.account(&mut state);
    }
    engine.checkpoint().unwrap();
    drop(engine);
    Engine::open(device, manual()).unwrap()
}

const MSN: Msn = Msn { lsn: 1, sub: 0 };

/// Whoever asked for a key behind it missed the node, and asked again, for ever.
#[test]
fn a_way_to_a_node_that_is_not_there_is_damage() {
    let nowhere = NodeId(77_777);
    let edge = |root: &mut Node| root.interior_mut().children[1].id = nowhere;
    let goto = |root: &mut Node| {
        let KeyRange { lower, upper } = KeyRange::all();
        let xf = Xf { strip: 0, prepend: Bytes::new(), lower, upper };
        let goto = Goto { range: KeyRange::prefix("key "), msn: MSN, target: nowhere, height: 0, xf };
        let height = root.height;
        root.interior_mut().push_goto(&goto, &KeyRange::all(), height);
    };
    let changes: [&dyn Fn(&mut Node); 2] = [&edge, &goto];
    for change in changes {
        let engine = made_to_harm(1000, root, change);
        assert!(root(&engine).height > 1);
        let behind = |number: &u32| root(&engine).state.read().interior().index_of(&key(*number)) == 1;
        let answer = engine.get(TREE, &key((0..1000).find(behind).unwrap()));
        let Err(Error::Damaged { what }) = answer else { panic!("{answer:?}") };
        assert!(what.contains("no such node"), "{what}");
    }
}

fn second_child(engine: &Engine) -> NodeRef {
    let id = root(engine).state.read().interior().children[1].id;
    engine.volume().node(id).unwrap()
}

fn assert_outside(changed: Result<()>) {
    let Err(Error::Damaged { what }) = changed else { panic!("{changed:?}") };
    assert!(what.contains("outside the bounds of its edge"), "{what}");
}

/// Such a key does not begin with what the edge lifts, and ended the process.
#[test]
fn a_message_outside_its_edge_is_damage() {
    let engine = made_to_harm(450, root, |root| {
        root.interior_mut().children[1].push("other".into(), MSN, Pending::Put(Bytes::new()));
    });
    assert!(root(&engine).state.read().interior().children[1].strip > 0);
    assert_outside(engine.volume().flush_child(&root(&engine), &KeyRange::all(), 1));
}

/// Beside those of a neighbour it came into no order that could be written, which ended the process.
#[test]
fn a_goto_outside_its_edge_is_damage() {
    let engine = made_to_harm(1000, root, |root| {
        let all = KeyRange::all();
        let xf = Xf { strip: 0, prepend: Bytes::new(), lower: all.lower, upper: all.upper };
        let range = KeyRange::prefix("other");
        let goto = Goto { range, msn: MSN, target: root.interior_mut().children[0].id, height: 0, xf };
        root.interior_mut().children[1].push_goto(goto);
    });
    assert_outside(engine.volume().flush_child(&root(&engine), &KeyRange::all(), 1));
    assert_outside(engine.volume().merge_pair(&root(&engine), &KeyRange::all(), 0));
}

/// Where the node behind it is shared and seen through it, its pivots would be cut out from the back to the front.
#[test]
fn an_edge_without_room_is_damage() {
    let engine = made_to_harm(450, root, |root| {
        let interior = root.interior_mut();
        interior.pivots[0] = Bound::least();
        interior.children[0].strip = 0;
    });
    let Err(Error::Damaged { what }) =
        root(&engine).state.read().interior().bounds_below(0, &KeyRange::all())
    else {
        panic!("an edge has room where there is none")
    };
    assert!(what.contains("no room"), "{what}");
    let merged = engine.volume().merge_pair(&root(&engine), &KeyRange::all(), 0);
    assert!(matches!(merged, Err(Error::Damaged { .. })), "{merged:?}");
}

/// The same of a leaf that is split.
#[test]
fn a_key_outside_its_leaf_is_damage() {
    let engine = made_to_harm(260, second_child, |leaf| {
        leaf.leaf_mut().apply("!".into(), MSN, Pending::Put(Bytes::new()), 2 << 10);
    });
    assert_outside(engine.volume().split_child(&root(&engine), &KeyRange::all(), 1));
    // Joined, its keys would no longer rise, which is found when they are to be written.
    assert_outside(engine.volume().merge_pair(&root(&engine), &KeyRange::all(), 0));
}

/// A chain of such ways took all memory.
#[test]
fn a_way_that_makes_keys_too_long_is_damage() {
    let (engine, _) = filled(1000);
    let root = root(&engine);
    let KeyRange { lower, upper } = KeyRange::all();
    let prepend = Bytes::from(vec![b'z'; NAMES_LENGTH_MAX]);
    let xf = Xf { strip: 0, prepend, lower, upper };
    let target = second_child(&engine).state.read().interior().children[0].id;
    let goto = Goto { range: KeyRange::prefix("other"), msn: MSN, target, height: 0, xf };
    root.state.write().interior_mut().push_goto(&goto, &KeyRange::all(), root.height);
    let answer = engine.waiting(|| engine.get(TREE, b"other"));
    let Err(Error::Damaged { what }) = answer else { panic!("{answer:?}") };
    assert!(what.contains("longer than they can be"), "{what}");
}

/// Where it was joined or reclaimed, the other tree would have lost it.
#[test]
fn an_edge_into_the_other_tree_is_damage() {
    let other = {
        let (engine, _) = small_volume(16 << 10, 2 << 10);
        engine.volume().root(Tree::Data).read().id
    };
    let engine = made_to_harm(1000, second_child, |node| node.interior_mut().children[0].id = other);
    assert_eq!(engine.volume().root(Tree::Data).read().id, other);
    let id = root(&engine).state.read().interior().children[1].id;
    let Err(Error::Damaged { what }) = engine.volume().node(id) else { panic!("it is taken") };
    assert!(what.contains("the other tree's"), "{what}");
}

/// A key that belongs into the next basement node. What was cut from that one came in front of it, which ended the process when the leaf was written.
#[test]
fn a_key_outside_its_basement_node_is_damage() {
    let engine = made_to_harm(260, second_child, |leaf| {
        let slot = &mut leaf.leaf_mut().basements[0];
        let basement = slot.part.change().unwrap();
        basement.apply("~".into(), Pending::Put(Bytes::new()));
        (slot.bytes, slot.entries) = (basement.bytes, basement.entries.len() as u32);
    });
    let leaf = second_child(&engine);
    let Err(Error::Damaged { what }) = engine.volume().load_all(&leaf) else { panic!("it is taken") };
    assert!(what.contains("belong to those beside it"), "{what}");
    let lost = lost(&engine, 260).len();
    assert!((1..40).contains(&lost), "{lost} keys cannot be read");
}

/// The pivot came into its neighbour, which was whole; or, where it was split, into the node above.
#[test]
fn a_pivot_outside_its_node_is_damage() {
    let engine = made_to_harm(1000, second_child, |node| {
        node.interior_mut().pivots[0] = Bound::before("!");
    });
    assert!(root(&engine).height > 1);
    assert_outside(engine.volume().merge_pair(&root(&engine), &KeyRange::all(), 0));
}

/// A goto to among the keys of such an edge ended the process, at each replay again.
#[test]
fn a_part_of_an_edge_that_lifts_too_much_is_as_damaged() {
    let child = Child::new(NodeId(7), 5);
    let all = KeyRange::all();
    let part = child.narrowed(&all, &KeyRange::prefix("k"));
    assert_eq!(part.strip, 5);
    assert_eq!(part.xf.map(|xf| (xf.lower, xf.upper)), Some((Bound::least(), Bound::greatest())));
}

/// The edges to nothing of both trees would have waited for ever.
#[test]
fn nobody_gives_up_on_edges_to_nothing() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    let damage = |node| Error::damaged_node(Some(Tree::Data), node, "a buffer cannot be read");
    let volume = engine.volume();
    for node in [NodeId::EMPTY, NodeId(77)] {
        volume.give_up_on(node, damage(node)).unwrap();
    }
    let damaged = &volume.damaged;
    assert!(!damaged.contains(NodeId::EMPTY) && damaged.contains(NodeId(77)));
}

/// Edges that were joined before damage came were taken off nobody's count (BT-4): what they lead to was never free again.
#[test]
fn twins_joined_before_damage_are_counted() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    let volume = engine.volume();
    let _gate = volume.gate.read_recursive();
    let leaf = volume.add_node(TREE, Node::empty_leaf(KeyRange::all(), Msn::default()));
    volume.settle([], [leaf.id; 3]);
    // The last two lift more than their keys share.
    let children = [0, 0, 200, 200].map(|strip| {
        let KeyRange { lower, upper } = KeyRange::all();
        let xf = Xf { strip: 0, prepend: Default::default(), lower, upper };
        Child { xf: Some(xf), ..Child::new(leaf.id, strip) }
    });
    let pivots = ["b", "c", "d"].map(Bound::before).into();
    let interior = Body::Interior(Interior { pivots, children: children.into() });
    let parent = volume.add_node(TREE, Node::new(1, interior, KeyRange::all(), Msn::default()));
    let joined = volume.join_twins(&parent, &KeyRange::all());
    assert!(matches!(joined, Err(Error::Damaged { .. })), "{joined:?}");
    assert_eq!(parent.state.read().interior().children.len(), 3);
    assert_eq!(volume.table.references(leaf.id), 3);
}

/// In an image that leads in a circle the node behind an edge may be one whose lock is held already, and whoever waited to change it kept
/// the read waiting for ever, and itself.
#[test]
fn nobody_waits_for_a_node_of_a_wrong_height() {
    let (engine, _) = filled(260);
    let (volume, root) = (engine.volume(), root(&engine));
    assert_eq!(root.height, 1);
    let wrong = {
        let _gate = volume.gate.read_recursive();
        volume.add_node(TREE, root_above(&root, 1, Msn::default()))
    };
    root.state.write().interior_mut().children[0].id = wrong.id;
    put(&engine, 0);
    let limit = ScanLimit { entries: 1, bytes: 1 };
    let key = key(1);
    let ways: [&(dyn Fn() -> Result<()> + Sync); 5] = [
        &|| engine.get(TREE, &key).map(drop),
        &|| engine.scan(TREE, &KeyRange::all(), limit).map(drop),
        &|| engine.compare(TREE, &"key ".into(), &"yek ".into(), &KeyRange::all(), limit).map(drop),
        &|| volume.flush_child(&root, &KeyRange::all(), 0),
        &|| volume.split_child(&root, &KeyRange::all(), 0),
    ];
    for (number, way) in ways.iter().enumerate() {
        let busy = wrong.state.write();
        std::thread::scope(|scope| {
            let (done, is_done) = std::sync::mpsc::channel();
            scope.spawn(move || done.send(way()));
            let answer = is_done.recv_timeout(std::time::Duration::from_secs(10));
            drop(busy);
            let Ok(Err(Error::Damaged { what })) = answer else { panic!("way {number}: {answer:?}") };
            assert!(what.contains("its height is 1"), "way {number}: {what}");
        });
    }
}

/// An image may have an edge to a node that is not there. The count of that node was to be lowered when the edge was cut off.
#[test]
fn an_edge_to_no_node_can_be_cut_off() {
    let (engine, _) = filled(260);
    let root = root(&engine);
    root.state.write().interior_mut().children[0].id = NodeId(7777);
    change(&engine, |batch| batch.delete_range(TREE, KeyRange::all()));
    settle(&engine);
    assert_eq!(engine.stats().pruned_subtrees, 2);
    put(&engine, 0);
    assert_eq!(lost(&engine, 260), []);
    assert_eq!(engine.failure(), None);
}

/// The volume takes no changes any more, and says why.
fn assert_failed(engine: &Engine, why: &str) {
    let failure = engine.failure().unwrap();
    assert!(failure.contains(why), "{failure}");
    assert!(matches!(engine.checkpoint(), Err(Error::ReadOnly { .. })));
}

const MISCOUNTED: &str = "what leads to it is not what the block table counts";

/// Two edges to a node that counts one were cut off together, which ended the daemon.
#[test]
fn more_edges_to_a_node_than_are_counted_are_damage() {
    let engine = made_to_harm(260, root, |root| {
        let edges = &mut root.interior_mut().children;
        edges[1].id = edges[0].id;
    });
    change(&engine, |batch| batch.delete_range(TREE, KeyRange::all()));
    assert!(engine.volume().maintain(TREE).unwrap());
    assert_failed(&engine, MISCOUNTED);
    assert_eq!(engine.get(TREE, &key(0)), Ok(None));
}

/// A clone gave the root a second name by an edge that leads back to it, and the next change of the root ended the daemon.
#[test]
fn an_edge_to_the_root_is_damage() {
    let engine = made_to_harm(1000, root, |_| {});
    let root = root(&engine);
    root.state.write().interior_mut().children[1].id = root.id;
    change(&engine, |batch| batch.clone_range(TREE, b"key ".to_vec(), b"clone ".to_vec()));
    assert_failed(&engine, MISCOUNTED);
    assert_eq!(engine.volume().table.references(root.id), 1);
}

/// What waits for reclamation was changed, and joined with others, as long as an edge led to it.
#[test]
fn an_edge_that_is_not_counted_is_damage() {
    let engine = made_to_harm(260, root, |_| {});
    let (volume, root) = (engine.volume(), root(&engine));
    let leaf = root.state.read().interior().children[0].id;
    volume.settle([leaf], []);
    put(&engine, 0);
    let flushed = volume.flush_child(&root, &KeyRange::all(), 0);
    let Err(Error::Damaged { what }) = flushed else { panic!("{flushed:?}") };
    assert!(what.contains("the block table counts none"), "{what}");
    // By the edge it may be let go before.
    let node = volume.node(leaf).unwrap();
    assert_eq!(volume.reclaim_doomed(), Ok(true));
    volume.drop_node(&node, &mut node.state.write());
    assert_failed(&engine, "an edge led to it when it was reclaimed");
}

/// Its id may be another's by now.
#[test]
fn what_has_names_is_not_reclaimed() {
    let engine = made_to_harm(260, root, |_| {});
    let leaf = root(&engine).state.read().interior().children[0].id;
    engine.volume().doomed.lock().push(leaf);
    assert!(matches!(engine.volume().reclaim_doomed(), Err(Error::ReadOnly { .. })));
    assert_failed(&engine, "it was to be reclaimed");
    assert_eq!(lost(&engine, 260), []);
}

/// A volume of so many keys, the last leaf of which cannot be read, and that leaf.
fn rotten_at_its_end(keys: u32, fanout: u32) -> (Engine, Arc<Rotten>, NodeId) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let format = FormatOptions {
        node_bytes: Some(16 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(fanout),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    for number in 0..keys {
        put(&engine, number);
        settle(&engine);
    }
    engine.close().unwrap();
    let mut node = root(&engine);
    while node.height > 0 {
        let last = node.state.read().interior().children.last().unwrap().id;
        node = engine.volume().node(last).unwrap();
    }
    let place = engine.volume().table.lookup(node.id).unwrap();
    let device = Rotten::new(device.to_bytes(), vec![place.extents[0].offset], false);
    (Engine::open(device.clone(), manual()).unwrap(), device, node.id)
}

/// Messages waited at one edge, however many came, until no part could hold them and the daemon ended, and so did each that replayed the log.
#[test]
fn any_number_of_messages_may_wait_for_damage() {
    const BLOCKS: u32 = 20_000;
    for (keys, height) in [(260, 1), (700, 2)] {
        let (engine, device, leaf) = rotten_at_its_end(keys, 4);
        assert_eq!(root(&engine).height, height);
        let block = |number: u32| vec![number as u8; 4096];
        for first in (keys..keys + BLOCKS).step_by(20) {
            change(&engine, |batch| {
                (first..first + 20).for_each(|number| batch.put(TREE, key(number), block(number)));
            });
            settle(&engine);
        }
        assert!(engine.volume().damaged.contains(leaf));
        engine.checkpoint().unwrap();
        assert_eq!(engine.failure(), None);
        let number = keys + BLOCKS;
        change(&engine, |batch| batch.put(TREE, key(number), block(number)));
        engine.sync().unwrap();
        drop(engine);
        let engine = Engine::open(device, manual()).unwrap();
        for number in keys..=keys + BLOCKS {
            let found = engine.waiting(|| engine.get(TREE, &key(number)));
            assert_eq!(found, Ok(Some(block(number).into())), "{number}");
        }
        settle(&engine);
        assert!((1..200).contains(&lost(&engine, keys).len()));
        let problems = engine.check(&mut |_, _| {}).unwrap().problems;
        assert!(
            problems.iter().all(|problem| problem.starts_with(&format!("node {}", leaf.0))),
            "{problems:?}"
        );
        engine.close().unwrap();
    }
}

/// What waited for one unreadable leaf held up every change of the volume for ten seconds, and had maintenance flush the others for every
/// few bytes.
#[test]
fn what_waits_for_damage_holds_nobody_up() {
    let (engine, _, leaf) = rotten_at_its_end(260, 32);
    for number in 260..2000 {
        put(&engine, number);
        settle(&engine);
        assert!(engine.volume().has_room(0), "{number}");
    }
    assert!(engine.volume().damaged.contains(leaf));
    // No node becomes much longer than others.
    let longest = root(&engine).state.read().interior().buffer_bytes();
    assert!(root(&engine).height > 1 && longest < 3 * (16 << 10), "{longest}");
}

/// Where no space is left for a flush, maintenance does nothing; the checkpoint, which has to write what waits, does.
#[test]
fn a_checkpoint_cuts_what_is_too_long_for_it() {
    let (engine, _, leaf) = rotten_at_its_end(260, 32);
    engine.volume().damaged.insert(leaf);
    (260..500).for_each(|number| put(&engine, number));
    let longest = || {
        let root = root(&engine);
        let state = root.state.read();
        state.interior().children.iter().map(|child| child.buffer_bytes).max().unwrap()
    };
    let allowed = engine.volume().damaged.joined_bytes_max(leaf);
    assert!(longest() > 2 * (16 << 10) && allowed < 16 << 10, "maintenance has not been there");
    engine.checkpoint().unwrap();
    assert!(longest() <= allowed);
    assert!(engine.volume().table.references(leaf) > 2);
}
