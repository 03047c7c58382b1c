//! The engine against the sorted map, on small nodes and a small cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_engine::stats::Stats;
use pando_engine::{Compression, FormatOptions};
use pando_sim::runner::{CAPACITY, Runner, describe, format_options};
use pando_sim::workload::{Mix, Step, generate};
use pando_sim::{seeds, shrink};

fn run(format: &FormatOptions, steps: &[Step]) -> Result<(), String> {
    run_counting(format, steps, 1000).map(|_| ())
}

/// Runs the steps with a look at every node each so many of them, and behind each as long as there are few nodes; returns what the
/// engine counted.
fn run_counting(format: &FormatOptions, steps: &[Step], check_every: usize) -> Result<Stats, String> {
    let device = Arc::new(SimulatedDevice::new(CAPACITY));
    let run = AssertUnwindSafe(|| {
        let runner = Runner::format(device, format).map_err(|error| error.to_string())?;
        let mut runner = runner.check_every(check_every);
        runner.run_checked(steps)?;
        Ok(runner.engine().stats())
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

fn check(format: &FormatOptions, mix: &Mix) {
    let seeds = seeds(8);
    let count: usize = seeds.iter().map(|seed| check_seed(format, mix, *seed)).sum();
    println!("PANDO_SEED={}..={}: {count} operations and queries", seeds[0], seeds[seeds.len() - 1]);
}

/// Runs what one seed gives; returns how many operations and queries that were.
fn check_seed(format: &FormatOptions, mix: &Mix, seed: u64) -> usize {
    let steps = generate(seed, mix);
    let Err(what) = run(format, &steps) else { return steps.iter().map(operations).sum() };
    println!("seed {seed}: {what}");
    let short = shrink::shrink(&steps, |steps| run(format, steps).is_err());
    println!("{} steps are enough:", short.len());
    for step in &short {
        println!("  {}", describe(step));
    }
    panic!("PANDO_SEED={seed}: {what}; shrunk: {}", run(format, &short).unwrap_err());
}

fn operations(step: &Step) -> usize {
    match step {
        Step::Apply(operations) => operations.len(),
        Step::Get(..) | Step::Scan(..) => 1,
        _ => 0,
    }
}

#[test]
fn answers_are_those_of_a_sorted_map() {
    check(&format_options(), &Mix { reopens: 0, ..Mix::QUERIES });
}

#[test]
fn answers_are_those_of_a_sorted_map_with_larger_nodes_and_compression() {
    let format =
        FormatOptions { node_bytes: Some(16 << 10), compression: Compression::Lz4, ..format_options() };
    check(&format, &Mix { reopens: 0, ..Mix::QUERIES });
}

/// Long records, among which are moves and clones: most operations for the time.
#[test]
fn a_million_operations_leave_what_a_sorted_map_holds() {
    const THREADS: usize = 2;
    let format = FormatOptions { log_bytes: Some(8 << 20), ..format_options() };
    let mix = Mix { steps: 1000, record_length_max: 30, ..Mix::QUERIES };
    let seeds = seeds(104);
    let run_every_second = &|first: usize| -> usize {
        seeds.iter().skip(first).step_by(THREADS).map(|seed| check_seed(&format, &mix, *seed)).sum()
    };
    let count: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|first| scope.spawn(move || run_every_second(first))).collect();
        threads.into_iter().map(|thread| thread.join().expect("its panic names the seed")).sum()
    });
    println!("PANDO_SEED={}..={}: {count} operations and queries", seeds[0], seeds[seeds.len() - 1]);
    assert!(count >= 1_000_000 || seeds.len() < 104, "only {count} operations");
}

#[test]
fn a_reopened_volume_holds_what_was_written() {
    check(&format_options(), &Mix { reopens: 20, ..Mix::QUERIES });
}

/// Larger nodes, so that a tree is a root and a few leaves: what background work does to a node that a checkpoint has just
/// written is then not hidden by the next record, which changes the same node. So it was with a root whose subtrees were
/// pruned, and nobody marked it changed.
#[test]
fn a_checkpoint_leaves_everything_on_the_device() {
    // A log for long records.
    let format = FormatOptions {
        node_bytes: Some(16 << 10),
        basement_bytes: Some(2 << 10),
        log_bytes: Some(8 << 20),
        ..format_options()
    };
    check(&format, &Mix::CHECKPOINTS);
    let compression = Compression::Lz4;
    check(
        &FormatOptions { node_bytes: Some(48 << 10), fanout: Some(16), compression, ..format },
        &Mix::CHECKPOINTS,
    );
}

#[test]
fn ranges_that_move_and_clones_hold_what_they_should() {
    let format = FormatOptions { node_bytes: Some(4 << 10), basement_bytes: Some(512), ..format_options() };
    check(&format, &Mix::CLONES);
    // That nodes were shared, copied and let go is what this is about.
    let steps = generate(1, &Mix { reopens: 0, ..Mix::CLONES });
    let stats = run_counting(&format, &steps, 1000).expect("what was checked above holds here");
    println!(
        "cloned {}, copied {}, nodes copied {}",
        stats.ranges_cloned, stats.ranges_copied, stats.shared_nodes_copied
    );
    assert!(stats.ranges_cloned > 100 && stats.shared_nodes_copied > 100, "{stats:?}");
}

#[test]
fn every_step_of_a_small_tree_of_clones_keeps_the_invariants() {
    let format = FormatOptions { node_bytes: Some(4 << 10), basement_bytes: Some(256), ..format_options() };
    for seed in seeds(4) {
        let steps = generate(seed, &Mix { steps: 600, clones: 100, ..Mix::CLONES });
        run_counting(&format, &steps, 1).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
    }
}
