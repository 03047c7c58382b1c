//! Power cuts while several threads change a volume and the engine's own write it.

use std::sync::Mutex;

use pando_engine::FormatOptions;
use pando_sim::concurrent::{Plan, Report, run};
use pando_sim::runner::format_options;
use pando_sim::{for_each_seed, seeds};

fn check(plan: &Plan, usual_seeds: u64) -> Report {
    let report = Mutex::new(Report::default());
    for_each_seed(seeds(usual_seeds), |seed| {
        let found = run(seed, plan).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
        report.lock().unwrap().add(&found);
    });
    let report = report.into_inner().unwrap();
    println!("{report:#?}");
    report
}

/// Small nodes and a small log: checkpoints, flushes and evictions all the time.
#[test]
fn every_crash_among_threads_leaves_a_prefix() {
    let plan = Plan {
        format: format_options(),
        cache_bytes: 1 << 20,
        threads: 4,
        records: 300,
        points: 40,
        states: 3,
        fails_within: 0,
    };
    let report = check(&plan, 4);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    assert!(report.checkpoints > 20 && report.ranges_cloned > 20 && report.bound_runs > 20);
    assert!(report.overlapping > 10 && report.passed_by > 20 && report.between > 20);
}

/// Nodes of a shape between those and the usual one.
#[test]
fn every_crash_among_threads_leaves_a_prefix_in_larger_nodes() {
    let format = FormatOptions {
        node_bytes: Some(256 << 10),
        basement_bytes: Some(16 << 10),
        log_bytes: Some(4 << 20),
        ..format_options()
    };
    let plan = Plan {
        format,
        cache_bytes: 4 << 20,
        threads: 3,
        records: 500,
        points: 30,
        states: 3,
        fails_within: 0,
    };
    let report = check(&plan, 2);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    assert!(report.checkpoints > 5 && report.bound_runs > 5);
    assert!(report.overlapping > 5 && report.passed_by > 10 && report.between > 10);
}

/// A device that fails once, or from some moment on.
#[test]
fn a_device_that_fails_among_threads_leaves_what_was_called_durable() {
    let plan = Plan {
        format: format_options(),
        cache_bytes: 1 << 20,
        threads: 4,
        records: 300,
        points: 8,
        states: 2,
        fails_within: 1500,
    };
    let report = check(&plan, 16);
    if std::env::var_os("PANDO_SEED").is_some() {
        return;
    }
    assert!(report.failed > 8 && report.between > 10);
}
