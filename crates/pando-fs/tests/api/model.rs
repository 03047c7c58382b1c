//! The file system beside a model of POSIX: seeded sequences of operations, their answers and the whole tree compared.
//!
//! Queries fail at random, so that every operation is cut off at each of its reads and made again; now and then the
//! volume is opened anew as after a crash. A failure names its seed (`PANDO_SEED`) and the steps it needs.

mod crash;
mod picture;
mod run;
mod step;
mod transfer;

use run::{Conditions, Counts, Run};
use step::{Mix, Step};

/// Runs the steps; what was done, or what went wrong.
fn run(steps: &[Step], seed: u64, mix: Mix) -> Result<Counts, String> {
    let conditions = if mix == Mix::Shares { Conditions::LARGE_FILES } else { Conditions::HARD };
    let run = || -> Result<Counts, String> {
        let mut run = Run::new(seed, conditions);
        for step in steps {
            run.step(step).map_err(|what| format!("{step:?}: {what}"))?;
        }
        run.compare()?;
        run.counts.ranges_cloned = run.fs().engine().stats().ranges_cloned;
        Ok(run.counts)
    };
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// Takes away steps without which it fails as well.
fn shrink(mut steps: Vec<Step>, seed: u64, mix: Mix) -> Vec<Step> {
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let mut start = 0;
        while start < steps.len() {
            let end = steps.len().min(start + chunk);
            let shorter = [&steps[..start], &steps[end..]].concat();
            if run(&shorter, seed, mix).is_err() {
                steps = shorter;
            } else {
                start = end;
            }
        }
        chunk /= 2;
    }
    steps
}

/// Runs the seeds; what was done in all of them, or nothing where it was not the usual ones.
fn check_seeds(mix: Mix, length: usize, usual: u64) -> Option<Counts> {
    let mut counts = Counts::default();
    let seeds = pando_sim::seeds(usual);
    for seed in &seeds {
        let steps = step::sequence(*seed, mix, length);
        match run(&steps, *seed, mix) {
            Ok(more) => counts.add(&more),
            Err(what) => {
                println!("seed {seed} of {mix:?}, to be shrunk: {what}");
                let steps = shrink(steps, *seed, mix);
                let what = run(&steps, *seed, mix).err().unwrap_or_default();
                panic!("seed {seed} of {mix:?}: {what}\n{steps:#?}");
            }
        }
    }
    println!("{mix:?}: {counts:?}");
    (seeds.len() as u64 >= usual).then_some(counts)
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

/// Clones of clones, renames and removals on either side, snapshots, and what is sent of them.
#[test]
fn operations_on_clones_agree_with_the_model() {
    let Some(counts) = check_seeds(Mix::Clones, 300, 60) else { return };
    assert!(counts.ranges_cloned >= 500, "{counts:?}");
    assert!(counts.refused_into_themselves >= 100 && counts.clones_of_clones >= 10, "{counts:?}");
    assert!(counts.renames_of_sources >= 50 && counts.renames_of_clones >= 50, "{counts:?}");
    assert!(counts.removals_of_sources >= 30 && counts.removals_of_clones >= 30, "{counts:?}");
    assert!(counts.rollbacks >= 30 && counts.snapshots_deleted >= 30, "{counts:?}");
}

/// Whole, as changes, and cut off; what arrives is what the model had, and stays that.
#[test]
fn snapshots_on_another_volume_agree_with_the_model() {
    let Some(counts) = check_seeds(Mix::Snapshots, 300, 40) else { return };
    assert!(counts.snapshots_sent >= 100 && counts.changes_sent >= 20, "{counts:?}");
    assert!(counts.streams_cut >= 30, "{counts:?}");
}

/// Files of some MiB, so that copies at equal offsets share what they can and copy the rest.
#[test]
fn copies_at_equal_offsets_agree_with_the_model() {
    let Some(counts) = check_seeds(Mix::Shares, 300, 20) else { return };
    assert!(counts.ranges_shared >= 100, "{counts:?}");
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
    assert!(report.beside_shares >= 10);
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
