//! Point and range operations on a tree without clones, for counting their instructions with callgrind:
//!
//!     cargo build --release -p pando-engine --example instructions
//!     valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/instructions puts
//!
//! The argument is one of puts, gets, scans, reads, deletes. Everything runs on one thread, so that a run counts the same each time; it uses
//! nothing of the engine that came late, so that it can be compared with earlier commits.

use std::hint::black_box;
use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_engine::{Background, Batch, Bound, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};

const KEYS: u64 = 60_000;
const OPERATIONS: u64 = 60_000;
/// Entries of a scan, and keys of a range that is deleted.
const RANGE: u64 = 50;
const FILES: u64 = 20_000;

/// Numbers in an order that looks random and repeats itself.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn key(number: u64) -> Vec<u8> {
    format!("\0some directory\0another one {:03}\0\0file {number:08}", number / 300).into_bytes()
}

fn apply(engine: &Engine, batch: Batch, number: u64) {
    engine.apply(batch).expect("there is room");
    if number.is_multiple_of(256) {
        while engine.background_step().expect("a memory device does not fail") {}
    }
}

fn put(engine: &Engine, number: u64, fill: u8) {
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, key(scattered(number) % KEYS), vec![fill; 150]);
    apply(engine, batch, number);
}

#[inline(never)]
fn measured_puts(engine: &Engine) {
    (0..OPERATIONS).for_each(|number| put(engine, KEYS + number, 2));
}

#[inline(never)]
fn measured_gets(engine: &Engine) {
    for number in 0..OPERATIONS {
        let key = key(scattered(number + 7) % KEYS);
        black_box(
            engine.waiting(|| engine.get(Tree::Metadata, &key)).expect("a memory device does not fail"),
        );
    }
}

#[inline(never)]
fn measured_scans(engine: &Engine) {
    let limit = ScanLimit { entries: RANGE as usize, bytes: 1 << 20 };
    for number in 0..OPERATIONS / 20 {
        let lower = Bound::before(key(scattered(number + 7) % KEYS));
        let range = KeyRange::new(lower, Bound::greatest());
        let scan = engine.waiting(|| engine.scan(Tree::Metadata, &range, limit));
        black_box(scan.expect("a memory device does not fail"));
    }
}

/// Blocks of 4 KiB in files of one to six, as a file system reads them: all of a file at a time, one file after the other.
fn block(file: u64, block: u64) -> Vec<u8> {
    [&key(file)[..], b"\0", &block.to_be_bytes()].concat()
}

fn fill_files(engine: &Engine) {
    for file in 0..FILES {
        let mut batch = Batch::new();
        for number in 0..1 + file % 6 {
            batch.put(Tree::Data, block(file, number), vec![file as u8; 4096]);
        }
        apply(engine, batch, file);
    }
}

#[inline(never)]
fn measured_reads(engine: &Engine) {
    for file in 0..FILES {
        let blocks = 1 + file % 6;
        let limit = ScanLimit { entries: blocks as usize, bytes: usize::MAX };
        let range = KeyRange::new(Bound::before(block(file, 0)), Bound::before(block(file, blocks)));
        let scan = engine.waiting(|| engine.scan(Tree::Data, &range, limit));
        black_box(scan.expect("a memory device does not fail"));
    }
}

#[inline(never)]
fn measured_deletes(engine: &Engine) {
    for number in 0..OPERATIONS {
        let mut batch = Batch::new();
        let at = scattered(number + 7) % KEYS;
        if number.is_multiple_of(20) {
            let (lower, upper) = (Bound::before(key(at)), Bound::before(key(at + RANGE)));
            batch.delete_range(Tree::Metadata, KeyRange::new(lower, upper));
        } else {
            batch.delete(Tree::Metadata, key(at));
        }
        apply(engine, batch, number);
    }
}

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let format = FormatOptions {
        node_bytes: Some(256 << 10),
        basement_bytes: Some(16 << 10),
        fanout: Some(8),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).expect("the device is large enough");
    let options = Options { background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device, options).expect("it was just formatted");
    (0..KEYS).for_each(|number| put(&engine, number, 1));
    engine.checkpoint().expect("a memory device does not fail");
    match what.as_str() {
        "puts" => measured_puts(&engine),
        "gets" => measured_gets(&engine),
        "scans" => measured_scans(&engine),
        "reads" => {
            fill_files(&engine);
            engine.checkpoint().expect("a memory device does not fail");
            measured_reads(&engine);
        }
        "deletes" => measured_deletes(&engine),
        other => {
            eprintln!("instructions: {other:?} is none of puts, gets, scans, reads, deletes");
            std::process::exit(2);
        }
    }
}
