//! Trees that are broken by hand: the check says so.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{Bound, Goto, KeyRange, Msn, NodeId, Pending, Tree, Xf};

use super::PROBLEMS_MAX;
use crate::betree::interior::{Child, Interior};
use crate::betree::node::{Body, Node, NodeRef};
use crate::betree::tree::TreeRoot;
use crate::small_volume::small_volume;
use crate::{Batch, CheckReport, Engine};

const KEYS: u64 = 4000;
const NODE_BYTES: u32 = 8 << 10;
const OLDEST: Msn = Msn { lsn: 1, sub: 0 };

fn key(number: u64) -> Vec<u8> {
    format!("key {:04}", number % KEYS).into_bytes()
}

/// A tree of three levels or more, with messages at each of them, and nothing shared.
fn tree() -> Engine {
    let (engine, _) = small_volume(NODE_BYTES, 2 << 10);
    for round in 0..2 {
        for number in 0..KEYS {
            // All keys, in an order that is not theirs.
            put(&engine, &key(number * 1171), &[round; 100]);
            while engine.background_step().unwrap() {}
            // What is clean takes no messages straight from above.
            if number % 500 == 0 {
                engine.checkpoint().unwrap();
            }
        }
    }
    assert_eq!(check(&engine).problems, Vec::<String>::new());
    assert!(root(&engine).state.read().height >= 2);
    engine
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(Tree::Data, key.to_vec(), value.to_vec());
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

fn check(engine: &Engine) -> CheckReport {
    engine.check(&mut |_, _| {}).unwrap()
}

#[track_caller]
fn expect_problem(engine: &Engine, beginning: &str) {
    let problems = check(engine).problems;
    let found = problems
        .iter()
        .any(|what| what.split_once(": ").is_some_and(|(_, what)| what.starts_with(beginning)));
    assert!(found, "no problem begins with {beginning:?} in {problems:?}");
}

fn root(engine: &Engine) -> NodeRef {
    engine.volume().root(Tree::Data).read().clone()
}

fn loaded(engine: &Engine, id: pando_format::NodeId) -> NodeRef {
    let node = engine.volume().node(id).unwrap();
    engine.volume().load_all(&node).unwrap();
    node
}

/// A key for which a message waits below the root and none in it, and the root's edge to it.
fn waiting_below(engine: &Engine) -> (usize, Bytes) {
    let root = root(engine);
    let above = root.state.read();
    for (index, edge) in above.interior().children.iter().enumerate() {
        let (_, prefix) = above.interior().bounds_below(index, &KeyRange::all()).unwrap();
        let below = loaded(engine, edge.id);
        let below = below.state.read();
        let keys = below.interior().children.iter().flat_map(|edge| {
            edge.buffer
                .get()
                .unwrap()
                .keyed()
                .map(|(key, _, _)| Bytes::from([&prefix[..], key].concat()))
                .collect::<Vec<_>>()
        });
        let passes = |key: &Bytes| edge.buffer.get().unwrap().passes(key);
        if let Some(key) = keys.into_iter().find(passes) {
            return (index, key);
        }
    }
    panic!("no message waits below the root alone");
}

/// Clones some keys of a leaf, so that a goto waits in the root; checkpoints that.
fn with_goto(engine: &Engine) -> Goto {
    for number in (0..KEYS).step_by(10) {
        let mut batch = Batch::new();
        let from = format!("key {:03}", number / 10).into_bytes();
        batch.clone_range(Tree::Data, from, format!("clone {number}\0").into_bytes());
        engine.changing(0, || engine.waiting(|| engine.apply(batch.clone()))).unwrap();
        let root = root(engine);
        let state = root.state.read();
        let gotos = state.interior().children.iter().flat_map(|edge| edge.buffer.get().unwrap().gotos());
        if let Some(goto) = gotos.into_iter().next().cloned() {
            drop(state);
            engine.checkpoint().unwrap();
            assert_eq!(check(engine).problems, Vec::<String>::new());
            return goto;
        }
    }
    panic!("no clone left a goto in the root");
}

#[test]
fn a_message_above_a_newer_one_for_its_key_is_found() {
    let engine = tree();
    let (index, key) = waiting_below(&engine);
    let root = root(&engine);
    root.state.write().interior_mut().children[index].push(key, OLDEST, Pending::Delete);
    expect_problem(&engine, "BT-1: a message of MSN");
}

/// What waits for an edge was compared with what is behind it, around and around.
#[test]
fn a_check_of_an_image_that_leads_in_a_circle_ends() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    let volume = engine.volume();
    let to = |id, strip, prepend: &'static [u8]| {
        let KeyRange { lower, upper } = KeyRange::all();
        let xf = Xf { strip: 0, prepend: Bytes::from_static(prepend), lower, upper };
        Child { xf: Some(xf), ..Child::new(id, strip) }
    };
    let add = |height, pivots: Vec<Bound>, children: Vec<Child>| {
        let body = Body::Interior(Interior { pivots, children });
        volume.add_node(Tree::Data, Node::new(height, body, KeyRange::all(), Msn::default()))
    };
    {
        let _gate = volume.gate.read_recursive();
        let below = add(1, Vec::new(), vec![to(NodeId::EMPTY, 0, b"z")]);
        // "k" leads there by the first edge, and comes back as "zk", which leads there as "k" by the second.
        let mut first = Child::new(below.id, 0);
        first.push("k".into(), OLDEST, Pending::Delete);
        let above = add(2, vec![Bound::before("z")], vec![first, to(below.id, 1, b"")]);
        below.state.write().interior_mut().children[0].id = above.id;
        above.pinned.store(true, Ordering::Relaxed);
        TreeRoot::replace(&mut volume.root(Tree::Data).write(), above);
    }
    let problems = engine.check(&mut |_, _| {}).unwrap().problems;
    assert!(problems.iter().any(|what| what.contains("BT-3")), "{problems:#?}");
}

/// Each message is one here; what is told has an end.
#[test]
fn a_check_tells_of_so_many_problems_and_no_more() {
    let engine = tree();
    let newest = Msn { lsn: engine.stats().last_lsn, sub: 0 };
    let root = root(&engine);
    let (first, below) = {
        let mut above = root.state.write();
        let (bounds, _) = above.interior().bounds_below(0, &KeyRange::all()).unwrap();
        let edge = &mut above.interior_mut().children[0];
        for number in 0..PROBLEMS_MAX + 100 {
            edge.push(format!("key 000 {number}").into(), OLDEST, Pending::Delete);
        }
        (edge.id, bounds)
    };
    let node = loaded(&engine, first);
    node.state.write().interior_mut().push_range(&below, &below, newest);
    assert_eq!(check(&engine).problems.len(), PROBLEMS_MAX);
}

/// Where a range moves by copy, what deletes the old keys there may be further down than the new ones.
#[test]
fn a_message_above_the_range_delete_of_its_operation_is_in_order() {
    let engine = tree();
    let (index, key) = waiting_below(&engine);
    let newest = Msn { lsn: engine.stats().last_lsn, sub: 0 };
    let root = root(&engine);
    root.state.write().interior_mut().children[index].push(key.clone(), newest, Pending::Delete);
    let below = loaded(&engine, root.state.read().interior().children[index].id);
    let strip = root.state.read().interior().children[index].strip as usize;
    let local = key.slice(strip..);
    let edge = below.state.read().interior().index_of(&local);
    below.state.write().interior_mut().children[edge].push_range(KeyRange::prefix(local.clone()), newest);
    let problems = check(&engine).problems;
    assert!(!problems.iter().any(|what| what.contains("BT-1")), "{problems:?}");
    let value = Pending::Put(Bytes::from_static(b"of another operation"));
    below.state.write().interior_mut().children[edge].push(local, newest, value);
    expect_problem(&engine, "BT-1: a message of MSN");
}

#[test]
fn a_range_delete_above_a_newer_message_for_one_of_its_keys_is_found() {
    let engine = tree();
    let (index, key) = waiting_below(&engine);
    let root = root(&engine);
    root.state.write().interior_mut().children[index].push_range(KeyRange::prefix(key), OLDEST);
    expect_problem(&engine, "BT-1: a message of MSN");
}

#[test]
fn a_message_above_newer_ones_for_other_keys_is_none() {
    let engine = tree();
    let (index, key) = waiting_below(&engine);
    // Older than all that waits beside it, but nobody else has this key.
    let key = Bytes::from([&key[..], b" and more"].concat());
    let root = root(&engine);
    root.state.write().interior_mut().children[index].push(key, OLDEST, Pending::Delete);
    assert_eq!(check(&engine).problems, Vec::<String>::new());
}

#[test]
fn a_message_of_no_record_is_found() {
    let engine = tree();
    let root = root(&engine);
    let never = Msn { lsn: u64::MAX, sub: 0 };
    root.state.write().interior_mut().push(Bytes::from_static(b"key"), never, Pending::Delete);
    expect_problem(&engine, "BT-1: it holds MSN");
}

#[test]
fn a_message_below_an_older_range_in_its_buffer_is_found() {
    let engine = tree();
    let newest = Msn { lsn: engine.stats().last_lsn, sub: 0 };
    let root = root(&engine);
    {
        let mut state = root.state.write();
        let edge = &mut state.interior_mut().children[0];
        edge.push_range(KeyRange::prefix(&b"key 00"[..]), newest);
        edge.push(Bytes::from_static(b"key 0000 0"), OLDEST, Pending::Put(Bytes::new()));
    }
    expect_problem(&engine, "BUF-3");
}

#[test]
fn a_goto_to_what_is_newer_is_found() {
    let engine = tree();
    let goto = with_goto(&engine);
    put(&engine, b"later", b"");
    let target = loaded(&engine, goto.target);
    match &mut target.state.write().body {
        Body::Leaf(leaf) => leaf.basements[0].msn.lsn = goto.msn.lsn + 1,
        Body::Interior(_) => unreachable!("some keys lie in one leaf"),
    }
    expect_problem(&engine, "BT-1: a goto of MSN");
}

#[test]
fn a_shared_node_that_has_changed_is_found() {
    let engine = tree();
    let goto = with_goto(&engine);
    let target = loaded(&engine, goto.target);
    target.state.write().dirty = Some(engine.volume().cache.interval());
    expect_problem(&engine, "BT-5: it has changed");
}

#[test]
fn a_change_that_no_checkpoint_would_write_is_found() {
    let engine = tree();
    let root = root(&engine);
    engine.volume().mark_dirty(&root, &mut root.state.write());
    assert_eq!(check(&engine).problems, Vec::<String>::new());
    engine.volume().cache.forget_dirty(&root);
    expect_problem(&engine, "CACHE-3");
}

#[test]
fn a_shared_node_that_passes_for_one_of_a_single_name_is_found() {
    let engine = tree();
    let goto = with_goto(&engine);
    loaded(&engine, goto.target).shared.store(false, Ordering::Relaxed);
    expect_problem(&engine, "BT-5: what the cache says");
}

#[test]
#[should_panic(expected = "BT-5")]
fn a_shared_node_does_not_change() {
    let engine = tree();
    let goto = with_goto(&engine);
    let target = loaded(&engine, goto.target);
    engine.volume().mark_dirty(&target, &mut target.state.write());
}

#[test]
fn sizes_are_those_of_the_largest_nodes() {
    let engine = tree();
    let sizes = check(&engine).sizes;
    let node_bytes = NODE_BYTES as usize;
    assert!((2..=8).contains(&sizes.edges) && sizes.roots_of_one_edge == 0, "{sizes:?}");
    assert!((node_bytes / 4..=node_bytes * 3).contains(&sizes.leaf_bytes), "{sizes:?}");
    assert!((1..=node_bytes).contains(&sizes.message_bytes), "{sizes:?}");
    assert!((1..=node_bytes).contains(&sizes.root_message_bytes), "{sizes:?}");

    let (index, key) = waiting_below(&engine);
    let root = root(&engine);
    let id = root.state.read().interior().children[index].id;
    let below = loaded(&engine, id);
    let newest = Msn { lsn: engine.stats().last_lsn, sub: 0 };
    let value = Pending::Put(Bytes::from(vec![0; node_bytes * 2]));
    let last = below.state.read().interior().children.len() - 1;
    below.state.write().interior_mut().children[last].push(key, newest, value);
    assert!(check(&engine).sizes.message_bytes > node_bytes * 2);
}
