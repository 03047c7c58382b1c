//! What background work does when a clone waits for the token: little, and the rest later.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use pando_format::{Bound, KeyRange, Tree};

use super::node::NodeRef;
use super::sink::{Sunk, Walk};
use super::token::Maintenance;
use crate::small_volume::small_volume;
use crate::{Batch, Engine, ScanLimit};

const TREE: Tree = Tree::Data;

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(engine: &Engine, keys: &mut Keys, number: u32, round: u8) {
    let key = (number.wrapping_mul(2_654_435_761)).to_be_bytes().to_vec();
    let mut batch = Batch::new();
    batch.put(TREE, key.clone(), vec![round; 200]);
    engine.apply(batch).unwrap();
    keys.insert(key, vec![round; 200]);
}

/// A tree of at least three levels above its leaves, all of it on the device, in whose root wait many nodes' worth of messages.
fn overfull() -> (Engine, Keys) {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    let mut keys = Keys::new();
    for number in 0..10_000 {
        put(&engine, &mut keys, number, 1);
        engine.make_room(0).unwrap();
    }
    while engine.background_step().unwrap() {}
    engine.checkpoint().unwrap();
    for number in 0..2000 {
        put(&engine, &mut keys, number * 5, 2);
    }
    assert!(height(&engine) >= 3, "the tree is {} high", height(&engine));
    (engine, keys)
}

fn root(engine: &Engine) -> NodeRef {
    engine.volume().root(TREE).read().clone()
}

fn height(engine: &Engine) -> u64 {
    root(engine).state.read().height.into()
}

fn maintenance(engine: &Engine) -> &Maintenance {
    &engine.volume().root(TREE).maintenance
}

/// Nodes, not shared, in which more messages wait than should.
fn overfull_below(engine: &Engine, node: &NodeRef) -> usize {
    let state = node.state.read();
    if state.height == 0 {
        return 0;
    }
    let interior = state.interior();
    let below = interior.children.iter().filter(|child| !child.id.is_empty());
    let below = below.filter_map(|child| engine.volume().cache.peek(child.id));
    usize::from(interior.buffer_bytes() > engine.volume().shape.node_bytes)
        + below.map(|child| overfull_below(engine, &child)).sum::<usize>()
}

fn assert_holds(engine: &Engine, keys: &Keys) {
    let mut rest = Some(KeyRange::all());
    let mut found = Keys::new();
    while let Some(range) = rest {
        let limit = ScanLimit { entries: 1000, bytes: 1 << 20 };
        let scan = engine.waiting(|| engine.scan(TREE, &range, limit)).unwrap();
        found.extend(scan.entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        rest = scan.rest;
    }
    assert!(found == *keys, "{} keys are not the {} that were written", found.len(), keys.len());
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_clone_waits_for_one_flush_of_each_level_at_most() {
    let (engine, keys) = overfull();
    let flushes = || engine.stats().flushes;
    let mut steps = 0;
    let mut left_full = 0;
    // As if a clone came at each step.
    while overfull_below(&engine, &root(&engine)) > 0 {
        let before = flushes();
        let token = maintenance(&engine).wait();
        let waiting = maintenance(&engine).announce_clone();
        engine.volume().maintain_with_token(TREE).unwrap();
        let done = flushes() - before;
        assert!(
            done <= height(&engine),
            "a clone waited for {done} flushes, in a tree {} high",
            height(&engine)
        );
        drop((token, waiting));
        let full = overfull_below(&engine, &root(&engine));
        left_full += usize::from(full > 1 || engine.volume().root(TREE).unrelieved.load(Ordering::Relaxed));
        steps += 1;
        assert!(steps < 10_000, "{full} nodes stay too full");
    }
    assert!(left_full > 0, "no clone came before a flush below the root: this proves nothing");
    assert_holds(&engine, &keys);
}

#[test]
fn background_work_lets_a_waiting_clone_go_first() {
    let (engine, keys) = overfull();
    let before = engine.stats().flushes;
    let waiting = maintenance(&engine).announce_clone();
    assert!(!engine.volume().maintain(TREE).unwrap() && engine.stats().flushes == before);
    drop(waiting);
    assert!(maintenance(&engine).take_turned_away(), "nobody would wake it when the clone is done");
    assert!(engine.volume().maintain(TREE).unwrap() && engine.stats().flushes > before);
    assert!(!maintenance(&engine).take_turned_away());
    assert_holds(&engine, &keys);
}

/// Deletes many ranges, none of them a whole leaf.
fn delete_ranges(engine: &Engine, keys: &mut Keys) {
    let all: Vec<_> = keys.keys().cloned().collect();
    for piece in all.chunks(20) {
        let mut batch = Batch::new();
        batch.delete_range(
            TREE,
            KeyRange::new(Bound::before(piece[0].clone()), Bound::before(piece[1].clone())),
        );
        engine.apply(batch).unwrap();
        keys.remove(&piece[0]);
    }
}

/// Whether all deletes came down, and by how many flushes. The caller holds the token.
fn sink(engine: &Engine, may_pause: bool) -> (bool, u64) {
    let before = engine.stats().flushes;
    let walk = Walk { may_pause, may_relieve: may_pause, ..Walk::for_space() };
    let sunk = engine.volume().sink_with_token(TREE, &walk).unwrap();
    (sunk != Sunk::InPart, engine.stats().flushes - before)
}

#[test]
fn bringing_deletes_down_pauses_for_a_clone() {
    let (engine, mut keys) = overfull();
    while engine.background_step().unwrap() {}
    delete_ranges(&engine, &mut keys);
    let token = maintenance(&engine).wait();
    let waiting = maintenance(&engine).announce_clone();
    assert_eq!(sink(&engine, true), (false, 0), "a clone would wait for more");
    let (down, flushes) = sink(&engine, false);
    assert!(down && flushes > 10, "{flushes} flushes, all down: {down}");
    drop((token, waiting));
    assert_holds(&engine, &keys);
}

/// All that waits in the root comes to its children, where much more waits then than should, if a clone waits.
fn empty_root(engine: &Engine) -> NodeRef {
    let top = root(engine);
    let first_full = || {
        let state = top.state.read();
        let mut children = state.interior().children.iter().enumerate();
        children.find(|(_, child)| child.buffer_bytes > 0).map(|(index, child)| (index, child.id))
    };
    while let Some(edge) = first_full() {
        engine.volume().flush_around_damage(&top, &KeyRange::all(), edge).unwrap();
    }
    top
}

#[test]
fn bringing_deletes_down_pauses_below_the_root_too() {
    let (engine, mut keys) = overfull();
    delete_ranges(&engine, &mut keys);
    let token = maintenance(&engine).wait();
    let waiting = maintenance(&engine).announce_clone();
    let top = empty_root(&engine);
    let full = overfull_below(&engine, &top);
    assert!(full > 2, "{full} nodes are too full: this proves nothing");
    let (down, flushes) = sink(&engine, true);
    assert!(!down && flushes <= height(&engine), "a clone waited for {flushes} flushes");
    let (down, flushes) = sink(&engine, false);
    assert!(down && flushes > 10, "{flushes} flushes, all down: {down}");
    drop((token, waiting));
    assert_holds(&engine, &keys);
}

#[test]
fn clones_do_not_keep_a_checkpoint_from_bringing_deletes_down() {
    let (engine, mut keys) = overfull();
    delete_ranges(&engine, &mut keys);
    engine.volume().reclaiming.store(true, Ordering::Relaxed);
    // As if one followed the other.
    let waiting = maintenance(&engine).announce_clone();
    engine.checkpoint().unwrap();
    assert!(maintenance(&engine).is_wanted());
    let token = maintenance(&engine).wait();
    assert_eq!(sink(&engine, false), (true, 0), "deletes were left where they were");
    drop((token, waiting));
    assert_holds(&engine, &keys);
}

#[test]
fn a_move_of_a_few_keys_waits_for_no_flush() {
    let (engine, mut keys) = overfull();
    let from = keys.keys().nth(5000).unwrap().clone();
    let to = [&from[..], b"moved"].concat();
    let moves = || {
        let mut batch = Batch::new();
        batch.move_range(TREE, from.clone(), to.clone());
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    };
    let token = maintenance(&engine).wait();
    std::thread::scope(|scope| {
        let (done, is_done) = std::sync::mpsc::channel();
        scope.spawn(move || {
            moves();
            done.send(())
        });
        let waited = is_done.recv_timeout(std::time::Duration::from_secs(10));
        drop(token);
        assert!(waited.is_ok(), "it waits for the token");
    });
    assert_eq!(engine.stats().ranges_copied, 1);
    let value = keys.remove(&from).unwrap();
    keys.insert(to, value);
    assert_holds(&engine, &keys);
}

/// Relieving a node may leave it with so few edges that the neighbour in front of it takes them.
#[test]
fn a_node_may_be_joined_while_it_is_relieved() {
    let (engine, _) = small_volume(16 << 10, 2 << 10);
    let mut keys = Keys::new();
    let key = |number: u32| number.to_be_bytes().to_vec();
    let change = |key: Vec<u8>, value: Option<Vec<u8>>| {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(TREE, key, value),
            None => batch.delete(TREE, key),
        }
        engine.apply(batch).unwrap();
    };
    for number in 0.. {
        change(key(number), Some(vec![1; 200]));
        keys.insert(key(number), vec![1; 200]);
        engine.make_room(0).unwrap();
        if height(&engine) == 2 {
            break;
        }
    }
    while engine.background_step().unwrap() {}
    // No message goes straight to its leaf then.
    engine.checkpoint().unwrap();
    let top = root(&engine);
    let border = top.state.read().interior().pivots[0].bytes.to_vec();
    let behind: Vec<_> = keys.keys().filter(|key| **key >= border).skip(3).cloned().collect();

    let token = maintenance(&engine).wait();
    let waiting = maintenance(&engine).announce_clone();
    // Deletes of nearly all that is behind the second edge, and of many keys that have never been.
    for key in behind {
        for number in 0..20 {
            change([&key[..], &[number; 40]].concat(), None);
        }
        change(key.clone(), None);
        keys.remove(&key);
    }
    empty_root(&engine);
    drop(waiting);
    let edges = || top.state.read().interior().children.len();
    let (full, before) = (overfull_below(&engine, &top), edges());
    assert!(full > 0 && before > 1, "{full} of {before} nodes are too full: this proves nothing");
    while engine.volume().maintain_with_token(TREE).unwrap() {}
    assert!(edges() < before, "none was joined: this proves nothing");
    drop(token);
    assert_holds(&engine, &keys);
}
