//! Power cuts at every I/O of seeded workloads, and a sample of the states that each may leave (`PANDO_SAMPLE=1`: all of them).
//!
//! `PANDO_SEED` and `PANDO_POINT` look at one moment of one run again; `PANDO_SEEDS` runs more; `PANDO_SHRINK` takes
//! away the steps that a failure does not need, which takes its time.

use std::sync::Mutex;

use pando_sim::crash::{Plan, Report, run, run_steps};
use pando_sim::runner::describe;
use pando_sim::workload::{Mix, generate};
use pando_sim::{for_each_seed, sample, seeds, shrink};

/// How often everything must have been dealt with at least where every state is looked at; of a sample that much less.
const HITS_MIN: u64 = 100;
/// The same where one of 60 states is looked at.
const SAMPLED_HITS_MIN: u64 = 20;
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
    let report = Mutex::new(Report::default());
    for_each_seed(seeds(usual_seeds), |seed| {
        let found = run(seed, plan, point).unwrap_or_else(|what| fail(seed, plan, &what));
        report.lock().unwrap().add(found);
    });
    let report = report.into_inner().unwrap();
    println!("{report:#?}");
    report
}

/// Asserts that each of these was met often enough, unless a single seed was run.
fn assert_hits(report: &Report, hits_min: u64, all: &[&str]) {
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    for what in all {
        let count = report.hits.get(*what).copied().unwrap_or(0);
        assert!(count >= hits_min, "{what}: {count} times only");
    }
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
        states_every: sample(),
        crash_recovery_every: 400,
        go_on_every: 60,
    };
    let report = check(4, &plan);
    let replayed = KINDS.map(|kind| format!("replayed {kind}"));
    let cut = [0, 1].map(|flushes| format!("checkpoint cut after {flushes} flushes"));
    let all: Vec<_> = replayed.iter().chain(&cut).map(String::as_str).collect();
    assert_hits(&report, HITS_MIN / sample(), &all);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    assert!(report.recovery_states >= HITS_MIN && report.gone_on >= HITS_MIN);
}

/// Loads of moves and clones: gotos on their way down, edges made of them, copies of shared nodes, and nodes taken apart.
#[test]
fn every_crash_among_clones_leaves_a_prefix() {
    let plan = Plan {
        mix: Mix { steps: 90, checkpoints: 40, background: 250, clones: 150, ..Mix::CRASHES },
        states_every: sample(),
        crash_recovery_every: 1000,
        go_on_every: 100,
    };
    let report = check(2, &plan);
    let all = [
        "a range was cloned, then cut",
        "a goto became an edge, then cut",
        "a goto became an edge, its checkpoint cut",
        "a shared node was copied, then cut",
        "a shared node was copied, its checkpoint cut",
    ];
    assert_hits(&report, HITS_MIN / sample(), &all);
}

/// Clones of some nodes that are deleted again, and background work that is cut off among what they leave.
#[test]
fn every_crash_during_reclamation_leaves_a_prefix() {
    let mix = Mix {
        steps: 70,
        record_length_max: 30,
        checkpoints: 50,
        background: 400,
        clones: 150,
        clone_deletes: 100,
        ..Mix::CRASHES
    };
    let plan = Plan { mix, states_every: 60, crash_recovery_every: 300, go_on_every: 30 };
    let report = check(8, &plan);
    let all = [
        "a goto was flushed, then cut",
        "a goto was flushed, its checkpoint cut",
        "a goto became an edge, then cut",
        "a goto became an edge, its checkpoint cut",
        "a goto took the place of several edges, then cut",
        "nodes were merged, its checkpoint cut",
        "a subtree was cut off, its checkpoint cut",
        "a node was reclaimed, then cut",
        "a node was reclaimed, its checkpoint cut",
        "some nodes were reclaimed and others not, then cut",
        "recovered with nodes to reclaim",
        "reclaimed after the recovery",
    ];
    assert_hits(&report, SAMPLED_HITS_MIN, &all);
}
