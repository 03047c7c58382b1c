//! What a clone does not show does not stay for its sake.

use pando_engine::{Batch, Bound, Engine, FormatOptions, KeyRange, Tree};

use crate::common::{assert_sound, formatted, manual, open, put, scan, settle, small_nodes};

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

/// Pieces of a range that are cloned one after the other, as a copy of a part of a file does it. Each shows little of the nodes that it
/// leads to: they were joined with their neighbours, and all that had been shared was copied.
#[test]
fn pieces_that_are_cloned_side_by_side_stay_shared() {
    const PIECES: u8 = 60;
    const KEYS: u16 = 256;
    let options = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        fanout: Some(16),
        ..small_nodes()
    };
    let device = formatted(64, &options);
    let engine = open(&device, manual());
    let key = |file: u8, piece: u8, number: u16| [&[file, piece][..], &number.to_be_bytes()].concat();
    for piece in 0..PIECES {
        for number in 0..KEYS {
            put(&engine, Tree::Data, key(b'a', piece, number), vec![piece; 30]);
        }
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    let bytes = |engine: &Engine| engine.check(&mut |_, _| {}).unwrap().bytes;
    let before = bytes(&engine);
    for piece in 2..PIECES - 3 {
        let clone = || {
            let mut batch = Batch::new();
            batch.clone_range(Tree::Data, vec![b'a', piece], vec![b'b', piece]);
            engine.apply(batch)
        };
        engine.waiting(clone).unwrap();
        if piece % 5 == 0 {
            settle(&engine);
        }
        engine.make_room(0).unwrap();
    }
    assert_eq!(engine.stats().ranges_cloned, u64::from(PIECES - 5));
    settle(&engine);
    engine.close().unwrap();
    let engine = open(&device, manual());
    let after = bytes(&engine);
    assert!(
        (after - before) * 5 < before * 3,
        "{before} bytes of nodes became {after} by clones of nearly all"
    );
    for (found, value) in scan(&engine, Tree::Data) {
        assert_eq!(value, vec![found[1]; 30]);
    }
    assert_eq!(scan(&engine, Tree::Data).len(), (2 * PIECES as usize - 5) * KEYS as usize);
    assert_sound(&engine);
}
