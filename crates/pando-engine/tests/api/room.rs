//! Who waits for room, and who does not.

use pando_engine::{Batch, Engine, FormatOptions, Options, Tree};

use crate::common::{formatted, manual, open, put, settle};

/// Bytes from which on a change is large.
const LARGE: u64 = 64 << 10;

/// A volume with a tree of several leaves, none of which is dirty: what comes now waits in the root.
fn volume(log_bytes: u64) -> Engine {
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        log_bytes: Some(log_bytes),
        ..FormatOptions::default()
    };
    let engine = open(&formatted(64, &format), Options { cache_bytes: 16 << 20, ..manual() });
    for number in 0..200_u32 {
        put(&engine, Tree::Data, number.to_be_bytes(), vec![1; 4096]);
    }
    settle(&engine);
    engine.checkpoint().unwrap();
    engine
}

/// Puts, without any background work, until a large change would wait.
fn assert_that_small_changes_find_room(engine: &Engine, mut key: impl FnMut(u32) -> u32) {
    for number in 0.. {
        if !engine.has_room(LARGE) {
            break;
        }
        let mut batch = Batch::new();
        batch.put(Tree::Data, key(number).to_be_bytes().to_vec(), vec![2; 4096]);
        engine.apply(batch).unwrap();
    }
    assert!(engine.has_room(LARGE - 1), "a small change waits as soon as a large one");
    engine.make_room(LARGE).unwrap();
    assert!(engine.has_room(LARGE));
}

/// All waited for the root to be flushed before, a create of 100 bytes as well as the write of a megabyte.
#[test]
fn small_changes_find_room_in_a_root_that_a_stream_has_filled() {
    assert_that_small_changes_find_room(&volume(8 << 20), |number| number % 200);
}

#[test]
fn small_changes_find_room_in_a_log_that_a_stream_has_filled() {
    // Always the same key, so that the root does not fill.
    assert_that_small_changes_find_room(&volume(1 << 20), |_| 7);
}
