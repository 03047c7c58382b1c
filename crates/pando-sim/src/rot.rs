//! Turns over bits of a volume at rest and reads it. The promises checked:
//!
//! * RO-1 every answer is the right one or an error that names the damage; none panics.
//! * RO-2 damage in one place leaves keys elsewhere readable (how many is reported, and judged by the test).
//! * RO-3 where a key gives an error, a check of the volume finds a problem.

use std::sync::Arc;

use pando_device::simulated::Random;
use pando_device::{BLOCK_SIZE, SimulatedDevice};
use pando_engine::{Engine, Error, KeyRange, Tree};
use pando_format::superblock::superblock_offsets;

use crate::recovery::without_panic;
use crate::runner::{CAPACITY, Runner, format_options, options, waiting};
use crate::workload::Step;

/// How a damaged volume answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    /// Keys whose value came out as it was.
    pub right: u64,
    /// Keys that gave an error.
    pub damaged: u64,
    /// 1 if the volume could not even be opened.
    pub not_opened: u64,
}

/// Runs the steps, closes the volume, turns over one bit in one block of those that matter and asks for every key; `tries`
/// times, each from the undamaged volume. Superblocks are left alone: behind a lost newest one lies an older state.
///
/// # Errors
/// A wrong answer.
pub fn run(seed: u64, steps: &[Step], tries: u64) -> Result<Answers, String> {
    let device = Arc::new(SimulatedDevice::new(CAPACITY));
    let mut runner = Runner::format(device.clone(), &format_options()).map_err(|error| error.to_string())?;
    runner.run(steps)?;
    runner.engine().close().map_err(|error| error.to_string())?;
    let blocks = blocks_asked(&device, &runner)?;
    let mut random = Random::new(seed);
    let mut answers = Answers::default();
    for _ in 0..tries {
        let damaged = SimulatedDevice::from_image(device.image());
        let block = blocks[random.below(blocks.len() as u64) as usize] * BLOCK_SIZE as u64;
        damaged.flip_bits(block..block + BLOCK_SIZE as u64, 1, random.bits());
        without_panic(|| ask(Arc::new(damaged), &runner, &mut answers))
            .map_err(|what| format!("a bit turned over in the block at {block}: {what}"))?;
    }
    Ok(answers)
}

/// Returns how many problems a check finds.
fn ask(device: Arc<SimulatedDevice>, runner: &Runner, answers: &mut Answers) -> Result<usize, String> {
    let engine = match Engine::open(device, options()) {
        Ok(engine) => engine,
        Err(error) => {
            answers.not_opened += 1;
            return check_error(&error).map(|()| 0);
        }
    };
    let damaged_before = answers.damaged;
    for tree in Tree::ALL {
        for (key, value) in runner.history().now().range(tree, &KeyRange::all()) {
            match waiting(&engine, || engine.get(tree, key)) {
                Ok(found) if found.as_ref() == Some(value) => answers.right += 1,
                Ok(found) => return Err(format!("get {tree:?} {key:?} gave {found:?}, not {value:?}")),
                Err(error) => {
                    answers.damaged += 1;
                    check_error(&error)?;
                }
            }
        }
    }
    let damaged = answers.damaged - damaged_before;
    let problems = match engine.check(&mut |_, _| {}) {
        Ok(report) => report.problems.len(),
        Err(error) => check_error(&error).map(|()| 1)?,
    };
    match (damaged, problems) {
        (1.., 0) => Err(format!("a check finds nothing, and {damaged} keys are damaged")),
        _ => Ok(problems),
    }
}

fn check_error(error: &Error) -> Result<(), String> {
    match error {
        Error::Damaged { .. } => Ok(()),
        other => Err(format!("{other:?} where bytes are damaged")),
    }
}

/// The blocks that are read to open the volume, to ask for every key and to check it, superblocks excepted.
fn blocks_asked(device: &SimulatedDevice, runner: &Runner) -> Result<Vec<u64>, String> {
    let sound = Arc::new(SimulatedDevice::from_image(device.image()));
    sound.note_reads();
    let mut answers = Answers::default();
    let problems = ask(sound.clone(), runner, &mut answers)?;
    if answers.damaged > 0 || answers.not_opened > 0 || problems > 0 {
        return Err(format!("the sound volume answers {answers:?}, and a check finds {problems} problems"));
    }
    let superblocks = superblock_offsets(CAPACITY).map(|offset| offset / BLOCK_SIZE as u64);
    Ok(sound
        .blocks_read()
        .into_iter()
        .map(|(block, _)| block)
        .filter(|block| !superblocks.contains(block))
        .collect())
}
