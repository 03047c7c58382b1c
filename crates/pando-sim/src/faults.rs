//! Lets the n-th I/O of a run fail and looks at what the engine makes of it. The promises checked:
//!
//! * FA-1 every call returns `Ok` or an error that names the device's failure or a read-only volume; none panics.
//! * FA-2 what a sync or checkpoint has acknowledged is there after the volume is opened again, whether what was not
//!   flushed survives or not; the contents are those after a prefix of the records (a call that returned an error
//!   has applied nothing).
//! * FA-3 once a write or flush has failed below a sync or checkpoint that said so, nothing is acknowledged any more.

use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_device::simulated::{Choice, CrashPoint, Fault};
use pando_engine::Error;

use crate::model::History;
use crate::recovery::{Bounds, recover, without_panic};
use crate::runner::{CAPACITY, Runner, format, format_options, name};
use crate::workload::Step;

/// What came of a run.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// I/Os there were.
    pub ios: u64,
    /// I/Os up to the last that was no read.
    pub changing_ios: u64,
    /// I/Os that failed.
    pub failed: usize,
    /// Calls that returned an error.
    pub errors: usize,
}

/// Runs the steps on a new volume whose I/Os fail as told, from its opening on.
///
/// # Errors
/// The first broken promise.
pub fn run(steps: &[Step], fault: Fault) -> Result<Outcome, String> {
    let device = Arc::new(SimulatedDevice::new(CAPACITY));
    format(&device, &format_options()).map_err(|error| format!("format: {error}"))?;
    let base = device.image();
    let device = Arc::new(SimulatedDevice::from_image(base.clone()));
    device.set_fault(fault);

    let mut errors = 0;
    let mut history = History::new();
    let mut durable = 0;
    without_panic(|| {
        let mut runner = match Runner::open(device.clone(), History::new()) {
            Ok(runner) => runner,
            Err(error) => {
                errors += 1;
                return check_error("open", &error);
            }
        };
        let result = run_steps(&mut runner, &device, steps, &mut errors);
        history = runner.history().clone();
        durable = runner.durable();
        result
    })?;

    let (ios, changing_ios) = (device.io_count(), device.changing_io_count());
    let outcome = Outcome { ios, changing_ios, failed: device.failed().len(), errors };
    let bounds = Bounds { durable, applied: history.length() };
    let trace = device.trace();
    let point = CrashPoint::after(base, &trace, trace.len());
    for (image, what) in [(device.image(), "kept"), (point.image(&Choice::none()), "lost")] {
        recover(&image, &history, bounds)
            .map_err(|error| format!("opened again with unflushed writes {what}: {error}"))?;
    }
    Ok(outcome)
}

fn run_steps(
    runner: &mut Runner,
    device: &SimulatedDevice,
    steps: &[Step],
    errors: &mut usize,
) -> Result<(), String> {
    let mut broken_by: Option<String> = None;
    for (number, step) in steps.iter().enumerate() {
        let failed_before = device.failed().len();
        let at = |what: String| format!("step {number} ({}): {what}", name(step));
        let Err(error) = runner.step(step).map_err(at)? else {
            match &broken_by {
                Some(before) if matches!(step, Step::Apply(_) | Step::Sync | Step::Checkpoint) => {
                    return Err(at(format!("succeeded after {before}")));
                }
                _ => continue,
            }
        };
        *errors += 1;
        check_error(name(step), &error)?;
        let failed = device.failed();
        let has_write_failed =
            failed[failed_before..].iter().any(|action| matches!(*action, "write" | "flush"));
        if has_write_failed && matches!(step, Step::Sync | Step::Checkpoint) {
            broken_by = Some(at(error.to_string()));
        }
        if matches!(step, Step::Reopen | Step::Restart) {
            // Closed, or half open: nothing more can be asked of it.
            return Ok(());
        }
    }
    Ok(())
}

fn check_error(step: &str, error: &Error) -> Result<(), String> {
    match error {
        Error::Device(_) | Error::ReadOnly { .. } => Ok(()),
        other => Err(format!("{step} said {other:?} where the device had failed")),
    }
}
