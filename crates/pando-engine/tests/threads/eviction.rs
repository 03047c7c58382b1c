//! Several threads and the engine's own in a cache that holds almost nothing: what one has just loaded, another evicts.

use pando_engine::{Batch, Bound, Engine, FormatOptions, KeyRange, Options, Tree};

use crate::common::{assert_sound, formatted, open, scan};

const THREADS: u32 = 4;
const ROUNDS: u32 = 40_000;
/// Keys of a thread.
const KEYS: u32 = 3000;

fn key(thread: u32, number: u32) -> Vec<u8> {
    [&b"\0directory\0"[..], &thread.to_be_bytes(), &number.to_be_bytes()].concat()
}

fn value(round: u32) -> Vec<u8> {
    vec![round as u8; 50 + round as usize % 300]
}

/// Seeded, and not more random than it needs to be.
fn next(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state >> 8
}

/// Writes, deletes and reads a thread's own keys; returns what is left in them.
fn work(engine: &Engine, thread: u32) -> Vec<Option<Vec<u8>>> {
    let mut expected = vec![None; KEYS as usize];
    let mut state = thread + 1;
    for round in 0..ROUNDS {
        let number = next(&mut state) % KEYS;
        let mut batch = Batch::new();
        match next(&mut state) % 8 {
            0 => {
                let end = (number + 1 + next(&mut state) % 60).min(KEYS);
                batch.delete_range(
                    Tree::Data,
                    KeyRange::new(Bound::before(key(thread, number)), Bound::before(key(thread, end))),
                );
                expected[number as usize..end as usize].fill(None);
            }
            1 => {
                batch.delete(Tree::Data, key(thread, number));
                expected[number as usize] = None;
            }
            2 | 3 => {
                let found = engine.waiting(|| engine.get(Tree::Data, &key(thread, number))).unwrap();
                assert_eq!(found.map(Vec::from), expected[number as usize], "thread {thread}, key {number}");
                continue;
            }
            _ => {
                batch.put(Tree::Data, key(thread, number), value(round));
                expected[number as usize] = Some(value(round));
            }
        }
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
    }
    expected
}

/// A flush found the buffer gone that it had loaded, evicted for a query of another thread, and stopped the daemon.
#[test]
fn flushes_and_queries_share_a_cache_that_is_too_small() {
    crate::abort_on_panic();
    let format = FormatOptions {
        node_bytes: Some(8 << 10),
        basement_bytes: Some(1 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    let device = formatted(64, &format);
    let options = Options { cache_bytes: 192 << 10, ..Options::default() };
    let engine = open(&device, options.clone());
    let expected: Vec<_> = std::thread::scope(|scope| {
        let engine = &engine;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(engine, thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    engine.close().unwrap();
    drop(engine);

    let engine = open(&device, options);
    assert_sound(&engine);
    let found = scan(&engine, Tree::Data);
    let expected = expected.into_iter().zip(0..).flat_map(|(values, thread)| {
        let numbered = values.into_iter().zip(0..);
        numbered.filter_map(move |(value, number)| Some((key(thread, number), value?)))
    });
    assert!(found.into_iter().eq(expected), "what is there is not what was written");
}
