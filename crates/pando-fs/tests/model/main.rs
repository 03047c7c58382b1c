//! The file system beside a model of POSIX: seeded sequences of operations, their answers and the whole tree compared.
//!
//! Queries fail at random, so that every operation is cut off at each of its reads and made again; now and then the
//! volume is opened anew as after a crash. A failure names its seed (`PANDO_SEED`) and the steps it needs.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod picture;
mod run;
mod step;

use std::sync::atomic::{AtomicU64, Ordering};

use run::Run;
use step::{Mix, Step};

/// Ranges that were moved or cloned without copying what is in them, in all runs so far.
static RANGES_CLONED: AtomicU64 = AtomicU64::new(0);

/// Runs the steps; what went wrong, if something did.
fn failure(steps: &[Step], seed: u64) -> Option<String> {
    let run = || -> Result<(), String> {
        let mut run = Run::new(seed);
        for step in steps {
            run.step(step).map_err(|what| format!("{step:?}: {what}"))?;
        }
        RANGES_CLONED.fetch_add(run.fs().engine().stats().ranges_cloned, Ordering::Relaxed);
        run.compare()
    };
    match std::panic::catch_unwind(run) {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Some(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
        }
    }
}

/// Takes away steps without which it fails as well.
fn shrink(mut steps: Vec<Step>, seed: u64) -> Vec<Step> {
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let mut start = 0;
        while start < steps.len() {
            let end = steps.len().min(start + chunk);
            let shorter = [&steps[..start], &steps[end..]].concat();
            if failure(&shorter, seed).is_some() {
                steps = shorter;
            } else {
                start = end;
            }
        }
        chunk /= 2;
    }
    steps
}

fn check_seeds(mix: Mix, length: usize, usual: u64) {
    for seed in pando_sim::seeds(usual) {
        let steps = step::sequence(seed, mix, length);
        if failure(&steps, seed).is_some() {
            let steps = shrink(steps, seed);
            let what = failure(&steps, seed).unwrap_or_default();
            panic!("seed {seed} of {mix:?}: {what}\n{steps:#?}");
        }
    }
}

#[test]
fn mixed_operations_agree_with_the_model() {
    check_seeds(Mix::Everything, 400, 60);
}

#[test]
fn name_operations_agree_with_the_model() {
    check_seeds(Mix::Names, 400, 60);
}

#[test]
fn operations_on_linked_files_agree_with_the_model() {
    check_seeds(Mix::Links, 400, 60);
}

#[test]
fn operations_on_clones_agree_with_the_model() {
    let before = RANGES_CLONED.load(Ordering::Relaxed);
    check_seeds(Mix::Clones, 300, 60);
    let cloned = RANGES_CLONED.load(Ordering::Relaxed) - before;
    assert!(cloned >= 500 || pando_sim::seeds(60).len() < 60, "only {cloned} ranges were not copied");
}

#[test]
fn file_operations_agree_with_the_model() {
    check_seeds(Mix::Data, 300, 60);
}

#[test]
fn a_crash_at_any_moment_leaves_what_the_model_had() {
    let mut report = crash::Report::default();
    for seed in pando_sim::seeds(8) {
        crash::cut_power(seed, 150, &mut report).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
    }
    println!("{report:?}");
    assert!(report.beside_links >= 100 && report.with_links >= 100);
    assert!(report.beside_clones >= 100 && report.beside_snapshots >= 30);
}

#[test]
fn an_io_that_fails_loses_nothing_that_was_synced() {
    let mut report = crash::Report::default();
    for seed in pando_sim::seeds(6) {
        crash::fail_each_io(seed, 150, &mut report)
            .unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
    }
    println!("{report:?}");
    assert!(report.beside_links >= 100 && report.with_links >= 100);
    assert!(report.beside_clones >= 100 && report.beside_snapshots >= 30);
}
