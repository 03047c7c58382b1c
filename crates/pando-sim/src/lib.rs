//! Simulation: the production engine above a simulated device, beside a model that says what must come out.
//!
//! [`workload`] makes seeded sequences of steps, [`runner`] takes an engine and a model through them and compares,
//! [`crash`] cuts the power at every moment of a run, [`faults`] lets I/Os fail, [`full`] fills a volume, [`rot`]
//! turns over bits, [`shrink`] makes a failing sequence short. Everything runs on one thread and depends on nothing but
//! its seed, so the seed that a failure names is enough to see it again (`PANDO_SEED`). Only [`concurrent`], which cuts the power
//! while many threads are at work, does not.
#![forbid(unsafe_code)]

use std::sync::Mutex;

pub mod concurrent;
pub mod crash;
pub mod faults;
pub mod full;
pub mod model;
mod recovery;
pub mod rot;
pub mod runner;
pub mod shrink;
pub mod workload;

/// A simulation opens a small volume many thousands of times, which is mostly a matter of memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One of so many crash states and failing I/Os is looked at, where the whole of them takes minutes: `PANDO_SAMPLE`, or 3. With 1 it is
/// all of them, as in `scripts/test --full`.
pub fn sample() -> u64 {
    variable("PANDO_SAMPLE").unwrap_or(3).max(1)
}

/// The seeds a test runs: the one in `PANDO_SEED` alone, so that a failure can be run again; else 1, 2, ... up to
/// `PANDO_SEEDS` or `usual`.
pub fn seeds(usual: u64) -> Vec<u64> {
    match variable("PANDO_SEED") {
        Some(seed) => vec![seed],
        None => (1..=variable("PANDO_SEEDS").unwrap_or(usual)).collect(),
    }
}

/// Runs all of these seeds, one at a time on each core: runs depend on nothing of each other.
pub fn for_each_seed(seeds: Vec<u64>, run: impl Fn(u64) + Sync) {
    let seeds = Mutex::new(seeds.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else { return };
                    run(seed);
                }
            });
        }
    });
}

/// What somebody has mistyped would go unnoticed among runs of other seeds.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
