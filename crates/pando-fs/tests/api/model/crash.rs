//! Power cuts, and I/Os that fail, while the file system works beside the model. The promises checked:
//!
//! * What is found afterwards is the model's tree after some step: no earlier than the last sync that returned, no later
//!   than the step under way. Link counts are part of it.
//! * The name space is sound, and nothing without a name is left.
//!
//! The log is written out behind every other record, so that a step that is not one record is caught between them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_device::SimulatedDevice;
use pando_device::simulated::{CrashPoint, Event, Fault, Image, Random};
use pando_fs::FileSystem;
use pando_fs::operations::{FileType, Operations};

use super::picture::{self, Picture};
use super::run::{Conditions, Run};
use super::step::{Mix, Step, sequence};

/// States between "all kept" and "all lost" that are tried at each moment.
const SUBSETS: usize = 3;

/// What happens after one step of so many.
const SYNC_EVERY: u64 = 3;
const CHECKPOINT_EVERY: u64 = 16;

/// What was looked at.
#[derive(Debug, Default)]
pub struct Report {
    pub states: usize,
    /// States in which the last step that was kept, or the first that was lost, made a link.
    pub beside_links: usize,
    /// The same for clones.
    pub beside_clones: usize,
    /// The same for what is done with snapshots.
    pub beside_snapshots: usize,
    /// The same for copies that left ranges shared.
    pub beside_shares: usize,
    /// States found that have names of linked files.
    pub with_links: usize,
}

/// How far things were when a step had returned.
struct Mark {
    /// Length of the trace.
    trace: usize,
    /// The last of the marks known to be durable.
    durable: usize,
    step: Option<Step>,
    /// Ranges that copies have left shared so far.
    ranges_shared: u64,
    picture: Picture,
}

/// A run up to its first failure.
struct Recording {
    base: Image,
    device: Arc<SimulatedDevice>,
    marks: Vec<Mark>,
}

impl Recording {
    fn make(seed: u64, steps: &[Step], fault: Fault) -> Result<Self, String> {
        let device = Arc::new(SimulatedDevice::new(pando_sim::runner::CAPACITY));
        let start = Run::format(&device).map_err(|error| error.to_string())?;
        let base = device.image();
        let device = Arc::new(SimulatedDevice::from_image(base.clone()));
        device.set_fault(fault);
        let mark = |run: &Run, durable, step| Mark {
            trace: device.trace_length(),
            durable,
            step,
            ranges_shared: run.counts.ranges_shared,
            picture: picture::of_model(run.model()),
        };
        let mut recording = Self { base, device: device.clone(), marks: Vec::new() };
        let mut run = match Run::open(device.clone(), start, seed, Conditions::HARD) {
            Ok(run) => run,
            Err(_) if !device.failed().is_empty() => return Ok(recording),
            Err(error) => return Err(format!("open: {error}")),
        };
        recording.marks.push(mark(&run, 0, None));
        write_out_at_random(&run, seed);
        let mut random = Random::new(seed);
        for step in steps {
            let done = run.step(step);
            let (syncs, checkpoints) = (random.chance(1, SYNC_EVERY), random.chance(1, CHECKPOINT_EVERY));
            let has_failed = !device.failed().is_empty();
            match done {
                Ok(()) => {}
                // A step that could not be done has done nothing, and the model is not asked any more.
                Err(_) if has_failed => break,
                Err(what) => return Err(format!("{step:?}: {what}")),
            }
            let last = recording.marks.len();
            let durable = recording.marks[last - 1].durable;
            let step = Some(step.clone());
            recording.marks.push(mark(&run, durable, step));
            if has_failed {
                break;
            }
            let synced = match (checkpoints, syncs) {
                (true, _) => run.fs().engine().checkpoint().is_ok(),
                (false, true) => run.fs().sync().is_ok(),
                (false, false) => continue,
            };
            match synced {
                true => {
                    recording.marks.push(mark(&run, last, None));
                }
                false if !device.failed().is_empty() => break,
                false => return Err("a sync failed and no I/O did".to_owned()),
            }
        }
        Ok(recording)
    }

    /// The marks that may be found after a crash behind the first `prefix` events.
    fn allowed(&self, prefix: usize) -> std::ops::RangeInclusive<usize> {
        let returned = self.marks.partition_point(|mark| mark.trace <= prefix);
        let durable = returned.checked_sub(1).map_or(0, |last| self.marks[last].durable);
        let running = self.marks.partition_point(|mark| mark.trace < prefix);
        durable..=running.max(returned.saturating_sub(1)).min(self.marks.len() - 1)
    }

    fn check(&self, image: Image, prefix: usize, report: &mut Report) -> Result<(), String> {
        let device = Arc::new(SimulatedDevice::from_image(image));
        let fs = FileSystem::open(device, pando_sim::runner::options())
            .map_err(|error| format!("open: {error}"))?;
        let found = picture::of_file_system(&fs).map_err(|error| format!("walk: {error}"))?;
        let allowed = self.allowed(prefix);
        let kept = allowed.clone().rev().find(|number| self.marks[*number].picture == found);
        let Some(kept) = kept else {
            let others: Vec<_> =
                (0..self.marks.len()).filter(|number| self.marks[*number].picture == found).collect();
            return Err(format!("the state after steps {others:?}, not one of {allowed:?}:\n{found:#?}"));
        };
        let checked = fs.check().map_err(|error| format!("check: {error}"))?;
        if !checked.problems.is_empty() || checked.orphans > 0 {
            return Err(format!("{} orphans, {:#?}", checked.orphans, checked.problems));
        }
        report.states += 1;
        let neighbours = &self.marks[kept..self.marks.len().min(kept + 2)];
        let beside = |is: fn(&Step) -> bool| {
            usize::from(neighbours.iter().any(|mark| mark.step.as_ref().is_some_and(is)))
        };
        report.beside_links += beside(|step| matches!(step, Step::Link { .. }));
        report.beside_snapshots += beside(|step| {
            matches!(step, Step::TakeSnapshot { .. } | Step::DeleteSnapshot { .. } | Step::RollBack { .. })
        });
        report.beside_clones += beside(|step| matches!(step, Step::Clone { .. }));
        let shared = |mark: &Mark| mark.ranges_shared;
        let before = kept.checked_sub(1).map_or(0, |before| shared(&self.marks[before]));
        report.beside_shares += usize::from(neighbours.iter().any(|mark| shared(mark) > before));
        report.with_links += usize::from(checked.links > 0);
        Ok(())
    }
}

/// Has the log written and flushed behind one record of two.
fn write_out_at_random(run: &Run, seed: u64) {
    let (engine, state) = (run.fs().engine().clone(), AtomicU64::new(seed));
    run.fs().observe_records(move || {
        if Random::new(state.fetch_add(1, Ordering::Relaxed)).chance(1, 2) {
            // Where it fails, the step under way or a later one says so.
            let _ = engine.sync();
        }
    });
}

/// Two files, of which one is made the other's whole contents again and again.
fn shares() -> Vec<Step> {
    let make = |name| Step::Make { directory: 0, name, file_type: FileType::Regular, mode: 0o644, uid: 0 };
    let mut steps = vec![make(0), make(1)];
    for round in 0..4 {
        let (offset, byte) = (16_000 + 5000 * round, 1 + round as u8);
        steps.push(Step::Write { file: 2, offset, length: 9000, byte, append: false, kill_set_id: false });
        steps.push(Step::CopyInPlace { from: 2, to: 1, offset: 0, length: 60_000 });
    }
    steps
}

fn steps(seed: u64, length: usize) -> Vec<Step> {
    let mix = if seed.is_multiple_of(2) { Mix::Links } else { Mix::Clones };
    let mut steps = sequence(seed, mix, length);
    if seed % 4 == 3 {
        steps.splice(0..0, shares());
    }
    // These look, or are a crash themselves.
    steps.retain(|step| {
        let looks = matches!(step, Step::Compare | Step::List { .. } | Step::Seek { .. } | Step::Send { .. });
        !looks && *step != Step::Crash
    });
    steps
}

/// Cuts the power at every moment of a run.
pub fn cut_power(seed: u64, length: usize, report: &mut Report) -> Result<(), String> {
    let recording = Recording::make(seed, &steps(seed, length), Fault::None)?;
    let trace = recording.device.trace();
    let mut random = Random::new(seed);
    let mut point = CrashPoint::start(recording.base.clone());
    let mut seen = HashSet::new();
    for prefix in 0..=trace.len() {
        if let Some(event) = prefix.checked_sub(1).map(|last| &trace[last]) {
            point.push(event);
            if *event == Event::Flush {
                seen.clear();
            }
        }
        for choice in point.subsets(random.bits()).into_iter().take(2 + SUBSETS) {
            if seen.insert(choice.clone()) {
                let checked = recording.check(point.image(&choice), prefix, report);
                checked.map_err(|what| format!("crash after I/O {prefix}; {choice}: {what}"))?;
            }
        }
    }
    Ok(())
}

/// Lets each I/O of a run fail in turn, and opens what is on the device then: with and without what was not flushed.
pub fn fail_each_io(seed: u64, length: usize, report: &mut Report) -> Result<(), String> {
    let steps = steps(seed, length);
    let ios = Recording::make(seed, &steps, Fault::None)?.device.io_count();
    for number in 0..ios {
        let recording = Recording::make(seed, &steps, Fault::At(number))?;
        if recording.marks.is_empty() {
            continue;
        }
        let trace = recording.device.trace();
        let point = CrashPoint::after(recording.base.clone(), &trace, trace.len());
        for image in [recording.device.image(), point.image(&pando_device::simulated::Choice::none())] {
            let checked = recording.check(image, trace.len(), report);
            checked.map_err(|what| format!("I/O {number} failed: {what}"))?;
        }
    }
    Ok(())
}
