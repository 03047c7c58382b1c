//! Power cuts at every I/O of seeded workloads.
//!
//! `PANDO_SEED` and `PANDO_POINT` look at one moment of one run again; `PANDO_SEEDS` runs more.

use pando_sim::crash::{Plan, Report, run};
use pando_sim::seeds;
use pando_sim::workload::Mix;

/// Everything that must have been dealt with, and how often at least.
const HITS_MIN: u64 = 100;
const KINDS: [&str; 8] =
    ["put", "put run", "delete", "patch", "truncate", "update", "delete range", "move range"];

fn check(usual_seeds: u64, plan: &Plan) -> Report {
    let point = std::env::var("PANDO_POINT").ok().map(|text| text.parse().unwrap());
    let mut report = Report::default();
    for seed in seeds(usual_seeds) {
        match run(seed, plan, point) {
            Ok(more) => report.add(more),
            Err(what) => panic!("PANDO_SEED={seed}: {what}"),
        }
    }
    println!("{report:#?}");
    report
}

#[test]
#[ignore = "needs an engine that keeps what is written"]
fn every_crash_leaves_a_prefix() {
    let plan = Plan { mix: Mix { steps: 150, ..Mix::CRASHES }, crash_recovery_every: 100, go_on_every: 50 };
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
