//! A range that moves to another place and back, over and over.

use std::collections::BTreeMap;

use pando_engine::{Batch, Engine, FormatOptions, Tree};

use crate::common::{assert_sound, formatted, manual, open, scan, settle};

const PLACES: [&[u8]; 2] = [b"here/", b"there/"];
/// More than a clone carries.
const MANY: u32 = 1300;

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

fn apply(engine: &Engine, batch: &Batch) {
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

/// Puts keys below a place, and into the model.
fn write(engine: &Engine, keys: &mut Keys, place: &[u8], count: u32, round: u32) {
    let mut batch = Batch::new();
    for number in 0..count {
        let key = [place, &(number * 7919 % 5000).to_be_bytes()].concat();
        let value = [&round.to_be_bytes()[..], &[number as u8; 60]].concat();
        batch.put(Tree::Data, key.clone(), value.clone());
        keys.insert(key, value);
    }
    apply(engine, &batch);
}

fn move_from(engine: &Engine, keys: &mut Keys, from: &[u8], to: &[u8]) {
    let mut batch = Batch::new();
    batch.move_range(Tree::Data, from.to_vec(), to.to_vec());
    apply(engine, &batch);
    let moved: Vec<_> = keys.keys().filter(|key| key.starts_with(from)).cloned().collect();
    for key in moved {
        let value = keys.remove(&key).unwrap();
        keys.insert([to, &key[from.len()..]].concat(), value);
    }
}

fn assert_holds(engine: &Engine, keys: &Keys) {
    assert!(
        scan(engine, Tree::Data).into_iter().eq(keys.clone()),
        "what is there is not what was moved there"
    );
    assert_sound(engine);
}

fn filled() -> (Engine, Keys) {
    // Nodes in which as many messages may wait as a clone does not carry.
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    let engine = open(&formatted(256, &format), manual());
    let mut keys = Keys::new();
    for place in [PLACES[0], b"a", b"i", b"z"] {
        for round in 0..3 {
            write(&engine, &mut keys, place, 3000, round);
        }
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    (engine, keys)
}

/// The same two ranges were healed at every fourth move, and later once in a while: nodes at their ends were copied and joined, which no move
/// behind it needed, and which each shared again.
#[test]
fn moves_of_the_same_range_are_healed_with_others_or_at_the_end() {
    const MOVES: u32 = 1000;
    let (engine, mut keys) = filled();
    let before = engine.stats();
    for round in 0..MOVES {
        let [from, to] = [round, round + 1].map(|turn| PLACES[turn as usize % 2]);
        move_from(&engine, &mut keys, from, to);
        settle(&engine);
    }
    let after = engine.stats();
    assert_eq!(after.ranges_cloned - before.ranges_cloned, u64::from(MOVES));
    let copied = after.shared_nodes_copied - before.shared_nodes_copied;
    assert!(copied < 8, "{copied} nodes copied for {MOVES} moves");
    assert_holds(&engine, &keys);
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    assert_holds(&engine, &keys);
}

/// Where more messages than a clone carries wait in the root each time, each move raises the root until it is healed; moves of the same
/// range that only counted once left that to the last checkpoint.
#[test]
fn moves_that_find_many_messages_are_healed_before_long() {
    let (engine, mut keys) = filled();
    let height = engine.superblock().live.data.height;
    for round in 0..40 {
        let [from, to] = [round, round + 1].map(|turn| PLACES[turn as usize % 2]);
        write(&engine, &mut keys, from, MANY, round);
        move_from(&engine, &mut keys, from, to);
        settle(&engine);
        if round % 8 == 7 {
            assert_holds(&engine, &keys);
        }
    }
    engine.checkpoint().unwrap();
    let found = engine.superblock().live.data.height;
    assert!(found <= height + 2, "a tree of height {height} is {found} nodes high");
    assert_holds(&engine, &keys);
}

/// Messages that wait in the root came along with each move, and a range that went there and back took them with it each time.
#[test]
fn messages_come_along_once() {
    const WAITING: u32 = 500;
    const MOVES: u32 = 20;
    let (engine, mut keys) = filled();
    write(&engine, &mut keys, PLACES[0], WAITING, 3);
    let before = engine.stats();
    for round in 0..MOVES {
        let [from, to] = [round, round + 1].map(|turn| PLACES[turn as usize % 2]);
        move_from(&engine, &mut keys, from, to);
        settle(&engine);
    }
    let after = engine.stats();
    assert_eq!(after.ranges_cloned - before.ranges_cloned, u64::from(MOVES));
    let messages = after.messages - before.messages;
    assert!(messages >= u64::from(WAITING), "only {messages} messages waited");
    assert!(messages < u64::from(2 * WAITING), "{messages} messages for {MOVES} moves");
    assert_holds(&engine, &keys);
}
