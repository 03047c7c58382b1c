//! Power cuts at every I/O of seeded workloads.
//!
//! `PANDO_SEED` and `PANDO_POINT` look at one moment of one run again; `PANDO_SEEDS` runs more; `PANDO_SHRINK` takes
//! away the steps that a failure does not need, which takes its time.

use std::sync::Mutex;

use pando_sim::crash::{Plan, Report, run, run_steps};
use pando_sim::runner::describe;
use pando_sim::workload::{Mix, generate};
use pando_sim::{seeds, shrink};

/// Everything that must have been dealt with, and how often at least.
const HITS_MIN: u64 = 100;
const KINDS: [&str; 10] = [
    "put",
    "put run",
    "bound run",
    "delete",
    "patch",
    "truncate",
    "update",
    "delete range",
    "move range",
    "clone range",
];

fn check(usual_seeds: u64, plan: &Plan) -> Report {
    let point = std::env::var("PANDO_POINT").ok().map(|text| text.parse().unwrap());
    let seeds = Mutex::new(seeds(usual_seeds).into_iter());
    let report = Mutex::new(Report::default());
    // Runs depend on nothing but their seeds, so each core may have one.
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else { return };
                    let found = run(seed, plan, point).unwrap_or_else(|what| fail(seed, plan, &what));
                    report.lock().unwrap().add(found);
                }
            });
        }
    });
    let report = report.into_inner().unwrap();
    println!("{report:#?}");
    report
}

fn fail(seed: u64, plan: &Plan, what: &str) -> ! {
    if std::env::var_os("PANDO_SHRINK").is_some() {
        print_shrunk(seed, plan);
    }
    panic!("PANDO_SEED={seed}: {what}");
}

fn print_shrunk(seed: u64, plan: &Plan) {
    let fails = |steps: &[_]| run_steps(seed, steps, plan, None).is_err();
    let short = shrink::shrink(&generate(seed, &plan.mix), fails);
    println!("{} steps are enough:", short.len());
    short.iter().for_each(|step| println!("  {}", describe(step)));
    println!("{}", run_steps(seed, &short, plan, None).unwrap_err());
}

#[test]
fn every_crash_leaves_a_prefix() {
    let plan = Plan {
        mix: Mix { steps: 90, checkpoints: 50, ..Mix::CRASHES },
        crash_recovery_every: 400,
        go_on_every: 60,
    };
    let report = check(4, &plan);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    for kind in KINDS {
        let count = report.hits.get(&format!("replayed {kind}")).copied().unwrap_or(0);
        assert!(count >= HITS_MIN, "{kind} was replayed {count} times only");
    }
    for flushes in 0..2 {
        let count = report.hits.get(&format!("checkpoint cut after {flushes} flushes")).copied().unwrap_or(0);
        assert!(count >= HITS_MIN, "checkpoints were cut after {flushes} flushes {count} times only");
    }
    assert!(report.recovery_states >= HITS_MIN && report.gone_on >= HITS_MIN);
}

/// Loads of moves and clones: gotos on their way down, edges made of them, copies of shared nodes, and nodes taken apart.
#[test]
fn every_crash_among_clones_leaves_a_prefix() {
    let plan = Plan {
        mix: Mix { steps: 90, checkpoints: 40, background: 250, clones: 150, ..Mix::CRASHES },
        crash_recovery_every: 1000,
        go_on_every: 100,
    };
    let report = check(2, &plan);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    for what in ["cut after a range was cloned", "cut after shared nodes were copied, before a checkpoint"] {
        let count = report.hits.get(what).copied().unwrap_or(0);
        assert!(count >= HITS_MIN, "{what}: {count} times only");
    }
}
