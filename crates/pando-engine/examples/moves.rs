//! What a move of a tree costs: moves one of many files to another directory and back, with a sync after each.
//!
//!     cargo run --release -p pando-engine --example moves [FILES [MOVES]]
//!
//! Background work is done in steps on the same thread, so that the instructions that callgrind counts are the same each time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_device::MemoryDevice;
use pando_engine::{Background, Batch, Engine, FormatOptions, Options, Tree};

/// Files of a directory.
const FILES_EACH: usize = 20;

fn key(files: usize, number: usize) -> Vec<u8> {
    let directory = number / FILES_EACH;
    let upper = directory / (files / FILES_EACH / 30 + 1);
    format!("\0a\0tree\0subsystem {upper:02}\0driver {directory:05}\0\0some file {number:06}.c").into_bytes()
}

fn build(engine: &Engine, files: usize) {
    for number in 0..files {
        let mut batch = Batch::new();
        let key = key(files, number);
        let data = [&key[..], b"\0", &[0; 8]].concat();
        batch.put(Tree::Metadata, key, vec![number as u8; 100]);
        batch.put(Tree::Data, data, vec![number as u8; 300 + number * 7919 % 3000]);
        engine.changing(0, || engine.apply(batch.clone())).expect("a memory device does not fail");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let (files, moves) = (arguments.next().unwrap_or(60_000), arguments.next().unwrap_or(400));
    let device = Arc::new(MemoryDevice::new(4 << 30));
    Engine::format(device.clone(), &FormatOptions::default()).expect("the device is large enough");
    let options = Options { background: Background::Manual, ..Options::default() };
    let engine = Engine::open(device, options).expect("it was just formatted");
    build(&engine, files);
    engine.checkpoint().expect("a memory device does not fail");

    let before = engine.stats();
    let (mut calls, mut work) = (Duration::ZERO, Duration::ZERO);
    let (from, to) = (b"\0a\0tree\0".as_slice(), b"\0b\0tree\0".as_slice());
    for number in 0..moves {
        let (from, to) = if number % 2 == 0 { (from, to) } else { (to, from) };
        let mut batch = Batch::new();
        batch.move_range(Tree::Metadata, from.to_vec(), to.to_vec());
        batch.move_range(Tree::Data, from.to_vec(), to.to_vec());
        batch.put(Tree::Metadata, to[..to.len() - 1].to_vec(), vec![1; 100]);
        batch.delete(Tree::Metadata, from[..from.len() - 1].to_vec());
        let start = Instant::now();
        engine.make_room(0).expect("a memory device does not fail");
        engine.waiting(|| engine.apply(batch.clone())).expect("there is room");
        calls += start.elapsed();
        let start = Instant::now();
        engine.sync().expect("a memory device does not fail");
        while engine.background_step().expect("a memory device does not fail") {}
        work += start.elapsed();
    }
    let after = engine.stats();
    let each = |count: u64| count as f64 / moves as f64;
    println!("{moves} moves of {files} files: {:.3} ms a call", calls.as_secs_f64() * 1e3 / moves as f64);
    println!("background work: {:.3} ms a move", work.as_secs_f64() * 1e3 / moves as f64);
    println!(
        "a move: {:.1} messages, {:.2} flushes, {:.2} merges, {:.2} splits, {:.2} nodes copied",
        each(after.messages - before.messages),
        each(after.flushes - before.flushes),
        each(after.merges - before.merges),
        each(after.splits - before.splits),
        each(after.shared_nodes_copied - before.shared_nodes_copied),
    );
}
