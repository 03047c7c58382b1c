//! What a move of a small directory costs by copy and by goto, for the size below which ranges are copied:
//!
//!     cargo run --release -p pando-engine --example small_moves [entries|blocks]
//!
//! Directories of 8 to 8192 keys get new names among many others, each move with a sync, background work, and a
//! checkpoint after each fourth; then all are scanned. A call and a scan are medians of time; of all the work it is the processor's time in this
//! one thread, so that it says as little as can be about what else the machine does.

use std::sync::Arc;
use std::time::Instant;

use pando_device::MemoryDevice;
use pando_engine::{Background, Batch, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};

const MOVES: u64 = 64;
const CHECKPOINT_EVERY: u64 = 4;

/// The largest directory that is moved.
const LARGEST_BYTES: usize = 2 << 20;

/// What is in the directories.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    tree: Tree,
    value_bytes: usize,
    keys: u64,
}

const KINDS: [Kind; 2] = [
    Kind { name: "entries", tree: Tree::Metadata, value_bytes: 100, keys: 600_000 },
    Kind { name: "blocks", tree: Tree::Data, value_bytes: 4096, keys: 150_000 },
];

/// The prefix of a directory. Neighbours by name have nothing else in common.
fn prefix(directory: u64) -> Vec<u8> {
    let scattered = directory.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    format!("\0home\0somebody\0{scattered:010x}\0").into_bytes()
}

fn key(kind: Kind, directory: u64, number: u64) -> Vec<u8> {
    let name = match kind.tree {
        Tree::Metadata => format!("\0some file {number:06}.c").into_bytes(),
        Tree::Data => [&b"file\0"[..], &number.to_be_bytes()].concat(),
    };
    [prefix(directory), name].concat()
}

fn settle(engine: &Engine) {
    while engine.background_step().expect("a memory device does not fail") {}
}

/// Nanoseconds that this thread has had of a processor.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel tells it");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number")
}

fn written(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.checkpoint_bytes + stats.eviction_bytes + stats.binding_bytes + stats.log_bytes
}

fn build(kind: Kind, directory_keys: u64, copied_bytes: usize) -> Engine {
    let device = Arc::new(MemoryDevice::new(8 << 30));
    Engine::format(device.clone(), &FormatOptions::default()).expect("the device is large enough");
    let copied_bytes = Some(copied_bytes);
    let options = Options {
        background: Background::Manual,
        cache_bytes: 4 << 30,
        discard: false,
        copied_bytes,
        ..Options::default()
    };
    let engine = Engine::open(device, options).expect("it was just formatted");
    for directory in 0..kind.keys / directory_keys {
        let mut batch = Batch::new();
        for number in 0..directory_keys {
            batch.put(kind.tree, key(kind, directory, number), vec![number as u8; kind.value_bytes]);
        }
        engine.changing(0, || engine.apply(batch.clone())).expect("a memory device does not fail");
        settle(&engine);
    }
    engine.checkpoint().expect("a memory device does not fail");
    engine
}

fn median_us(mut ns: Vec<u128>) -> f64 {
    ns.sort_unstable();
    ns[ns.len() / 2] as f64 / 1e3
}

/// Microseconds of the call alone, of all work for a move, and of a scan after all; KiB written for a move.
fn measure(kind: Kind, directory_keys: u64, copied_bytes: usize) -> [f64; 4] {
    let engine = build(kind, directory_keys, copied_bytes);
    let directories = kind.keys / directory_keys;
    let (begin, before) = (processor_ns(), written(&engine));
    let (mut calls, mut scans) = (Vec::new(), Vec::new());
    for number in 0..MOVES {
        let [from, to] = [number * 7919 % directories, directories + number].map(prefix);
        let mut batch = Batch::new();
        batch.move_range(kind.tree, from, to);
        engine.make_room(0).expect("a memory device does not fail");
        let begin = Instant::now();
        engine.waiting(|| engine.apply(batch.clone())).expect("there is room");
        calls.push(begin.elapsed().as_nanos());
        engine.sync().expect("a memory device does not fail");
        settle(&engine);
        if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1 {
            engine.checkpoint().expect("a memory device does not fail");
        }
    }
    let (moved, bytes) = (processor_ns() - begin, written(&engine) - before);
    let stats = engine.stats();
    let expected = if copied_bytes == 0 { stats.ranges_cloned } else { stats.ranges_copied };
    assert!(expected >= MOVES, "the ranges went the way that is measured");
    for number in 0..MOVES {
        let range = KeyRange::prefix(prefix(directories + number));
        let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
        let begin = Instant::now();
        let scan = engine.waiting(|| engine.scan(kind.tree, &range, limit));
        scans.push(begin.elapsed().as_nanos());
        assert!(!scan.expect("a memory device does not fail").entries.is_empty(), "what has moved is there");
    }
    let each = |total: u64, unit: f64| total as f64 / unit / MOVES as f64;
    [median_us(calls), each(moved, 1e3), median_us(scans), each(bytes, 1024.0)]
}

fn main() {
    let wanted = std::env::args().nth(1);
    for kind in KINDS.into_iter().filter(|kind| wanted.as_ref().is_none_or(|wanted| wanted == kind.name)) {
        println!("{}, by copy and by goto: us a call, us of all work, us a scan, KiB written", kind.name);
        for directory_keys in [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192] {
            let bytes = directory_keys as usize * (key(kind, 0, 0).len() + kind.value_bytes);
            if bytes > LARGEST_BYTES {
                break;
            }
            let ways = [usize::MAX, 0].map(|copied_bytes| measure(kind, directory_keys, copied_bytes));
            let shown = ways
                .map(|[call, all, scan, written]| format!("{call:8.0} {all:8.0} {scan:6.0} {written:6.0}"));
            println!("{directory_keys:5} keys, {:4} KiB: {}   {}", bytes / 1024, shown[0], shown[1]);
        }
    }
}
