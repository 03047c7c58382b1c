//! The n-th I/O of a mixed load fails, for every n or a sample of them (`PANDO_SAMPLE=1`: for every n); and volumes are filled to the brim.

use pando_device::simulated::Fault;
use pando_sim::full::{self, Filling};
use pando_sim::workload::{Mix, generate};
use pando_sim::{faults, rot, sample, seeds};

/// I/Os of a load that are made to fail, at most.
const IOS_MAX: u64 = 2000;

/// `first` tells the samples of different faults apart.
fn check(first: u64, fault: fn(u64) -> Fault) {
    for seed in seeds(2) {
        let steps = generate(seed, &Mix { steps: 200, gets: 50, scans: 10, ..Mix::CRASHES });
        let sound = faults::run(&steps, Fault::None).unwrap();
        // Behind the last write there are reads, which `WritesFrom` lets through.
        let ios = if matches!(fault(0), Fault::WritesFrom(_)) { sound.changing_ios } else { sound.ios };
        assert!(ios >= 100, "seed {seed} does {ios} I/Os only");
        let numbers = (first % sample()..ios.min(IOS_MAX)).step_by(sample() as usize);
        for number in numbers.clone() {
            let outcome = faults::run(&steps, fault(number))
                .unwrap_or_else(|what| panic!("PANDO_SEED={seed}, {:?}: {what}", fault(number)));
            assert!(outcome.failed > 0, "I/O {number} did not come, in a run with the same seed");
        }
        println!("seed {seed}: {} of {} I/Os failed once each", numbers.count(), ios.min(IOS_MAX));
    }
}

#[test]
fn one_failed_io_loses_nothing_acknowledged() {
    check(0, Fault::At);
}

#[test]
fn a_device_that_takes_no_more_writes_loses_nothing_acknowledged() {
    check(1, Fault::WritesFrom);
}

#[test]
fn a_device_that_goes_away_loses_nothing_acknowledged() {
    check(2, Fault::From);
}

#[test]
fn a_volume_full_of_small_values_can_be_emptied() {
    full::run(Filling::SmallValues).unwrap();
}

#[test]
fn a_volume_full_of_one_large_run_can_be_emptied() {
    full::run(Filling::LargeRun).unwrap();
}

#[test]
fn a_volume_full_of_overwrites_can_be_emptied() {
    full::run(Filling::Overwrites).unwrap();
}

#[test]
fn a_rotten_bit_is_an_error_and_not_an_answer() {
    for seed in seeds(2) {
        let steps = generate(seed, &Mix { steps: 1000, ..Mix::QUERIES });
        let answers = rot::run(seed, &steps, 60).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
        println!("seed {seed}: {answers:?}");
        assert!(answers.damaged > 0, "no bit that mattered was hit");
        assert!(answers.right > answers.damaged, "one bit costs more than half of the keys");
    }
}
