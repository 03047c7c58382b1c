//! Ranges that move while others write and checkpoints are made: all of them want the same tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_engine::{Background, Batch, Engine, Options, Tree};

use crate::common::{assert_sound, formatted, open, put, scan, small_nodes};

const PLACES: [&[u8]; 2] = [b"here/", b"there/"];
const KEYS: u32 = 1500;
const MOVES: usize = 101;
const WRITES: u32 = 4000;
const CHECKPOINTS: usize = 12;

fn moved(engine: &Engine, number: usize) {
    let mut batch = Batch::new();
    for tree in Tree::ALL {
        batch.move_range(tree, PLACES[number % 2].to_vec(), PLACES[(number + 1) % 2].to_vec());
    }
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
}

fn other(thread: u32, number: u32) -> Vec<u8> {
    [&b"other/"[..], &thread.to_be_bytes(), &(number.wrapping_mul(2_654_435_761)).to_be_bytes()].concat()
}

#[test]
fn moves_checkpoints_and_flushes_share_the_tokens() {
    crate::abort_on_panic();
    let options = Options {
        cache_bytes: 8 << 20,
        background: Background::Threads,
        checkpoint_interval: Duration::from_secs(3600),
        ..Options::default()
    };
    let engine = open(&formatted(256, &small_nodes()), options);
    let mut keys = BTreeMap::new();
    for number in 0..KEYS {
        let key = |place: &[u8]| [place, &number.to_be_bytes()].concat();
        for tree in Tree::ALL {
            put(&engine, tree, key(PLACES[0]), vec![number as u8; 100]);
        }
        // An odd number of moves.
        keys.insert(key(PLACES[1]), vec![number as u8; 100]);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| (0..MOVES).for_each(|number| moved(&engine, number)));
        for thread in 0..2 {
            let engine = &engine;
            scope.spawn(move || {
                for number in 0..WRITES {
                    put(engine, Tree::ALL[thread as usize], other(thread, number), vec![thread as u8; 150]);
                }
            });
        }
        scope.spawn(|| (0..CHECKPOINTS).for_each(|_| engine.checkpoint().unwrap()));
    });
    for thread in 0..2 {
        let mut keys = keys.clone();
        keys.extend((0..WRITES).map(|number| (other(thread, number), vec![thread as u8; 150])));
        let found: BTreeMap<_, _> = scan(&engine, Tree::ALL[thread as usize]).into_iter().collect();
        assert!(found == keys, "{} keys are not the {} that were written", found.len(), keys.len());
    }
    engine.close().unwrap();
    assert_sound(&engine);
}
