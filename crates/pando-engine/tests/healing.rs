//! What a clone does not show does not stay for its sake.

mod common;

use common::{assert_sound, formatted, manual, open, put, scan, settle, small_nodes};
use pando_engine::{Batch, Bound, Engine, KeyRange, Tree};

const DIRECTORIES: usize = 20;
const KEYS: usize = 1100;

fn nodes(engine: &Engine) -> u64 {
    engine.check(&mut |_, _| {}).unwrap().nodes_known
}

/// A twentieth of a tree is cloned from its root, where too many of its messages wait to come along; then the rest goes.
#[test]
fn the_source_of_a_clone_gives_back_what_the_clone_does_not_show() {
    let device = formatted(24, &small_nodes());
    let engine = open(&device, manual());
    let key = |directory: usize, number: usize| format!("from {directory:02}/{number:04}").into_bytes();
    for directory in 0..DIRECTORIES {
        for number in 0..KEYS {
            put(&engine, Tree::Data, key(directory, number), vec![7; 100]);
        }
    }
    settle(&engine);
    // Clean, so that what comes now waits in the root.
    engine.checkpoint().unwrap();
    let before = nodes(&engine);
    let mut batch = Batch::new();
    (0..KEYS).for_each(|number| batch.put(Tree::Data, key(9, number), vec![8; 100]));
    engine.apply(batch).unwrap();
    let clone = || {
        let mut batch = Batch::new();
        batch.clone_range(Tree::Data, &b"from 09/"[..], &b"to/"[..]);
        engine.apply(batch)
    };
    engine.waiting(clone).unwrap();
    assert_eq!(engine.stats().ranges_cloned, 1);
    settle(&engine);

    // So much that the checkpoints bring the deletes down to what they free.
    let mut batch = Batch::reclaiming();
    batch.note_freed((DIRECTORIES * KEYS * 100) as u64);
    let clone = KeyRange::prefix(b"to/".as_slice());
    batch.delete_range(Tree::Data, KeyRange::new(Bound::least(), clone.lower));
    batch.delete_range(Tree::Data, KeyRange::new(clone.upper, Bound::greatest()));
    engine.apply(batch).unwrap();
    for _ in 0..3 {
        settle(&engine);
        engine.checkpoint().unwrap();
    }
    let (after, left) = (nodes(&engine), scan(&engine, Tree::Data));
    assert!(after * 4 < before, "{after} nodes of {before} are left");
    assert_eq!(left.len(), KEYS);
    assert!(left.iter().all(|(key, value)| key.starts_with(b"to/") && value[0] == 8));
    assert_sound(&engine);
}
