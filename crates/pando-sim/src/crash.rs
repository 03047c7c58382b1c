//! Cuts the power at every moment of a run and looks at what recovery makes of it.
//!
//! A workload runs once on a simulated device, which records its I/Os. Then, for every prefix of that trace and every
//! state in which a crash there may leave the device, the volume is opened and read in full, unless all that is read of it was the same in one
//! before. The promises checked:
//!
//! * CR-1 opening succeeds, and the contents are those after a prefix of the records in the order they were applied,
//!   no shorter than the last sync or checkpoint that had returned, no longer than what had been applied. Without one of the flushes of
//!   a checkpoint, say, they are not (CP-4 of the engine).
//! * CR-2 the same holds after a crash at any moment of the recovery itself (CP-2).
//! * CR-3 a recovered volume takes changes, and after its own next sync and crash it holds exactly those.
//! * CR-4 background work goes on where the crash has cut it off: in the end nothing is left to be reclaimed, the contents
//!   are the same, and the trees are sound.
//!
//! CR-1 is checked on every state, or on a seeded sample of them; CR-2 to CR-4 on a sample of those, since they multiply the states.

mod recording;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use pando_device::simulated::{Choice, CrashPoint, Event, Image, Random};
use pando_format::Superblock;
use pando_format::superblock::superblock_offsets;

use self::recording::Recording;
use crate::model::History;
use crate::recovery::{Bounds, Found, Recovered, Recoveries, recover, without_panic};
use crate::runner::Runner;
use crate::workload::{Mix, Step, generate, operation};

/// States in between, about, that are looked at for each moment of a recovery.
const RECOVERY_CHOICES: u64 = 3;

/// What a crash test does.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What is run.
    pub mix: Mix,
    /// One of so many states is looked at; 1 for all of them.
    pub states_every: u64,
    /// One of so many states looked at is crashed again during its recovery (CR-2); 0 for none.
    pub crash_recovery_every: u64,
    /// One of so many states looked at is written to after its recovery (CR-3), and a few more are brought to rest (CR-4), above all where
    /// something was to be reclaimed; 0 for none.
    pub go_on_every: u64,
}

/// What was looked at.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Moments at which the power was cut.
    pub points: u64,
    /// Different states looked at.
    pub states: u64,
    /// How often that, or what the next two tell, took a recovery: elsewhere all that is read was known.
    pub recoveries: u64,
    /// States recovered that a crash during a recovery left.
    pub recovery_states: u64,
    /// States that were written to after their recovery.
    pub gone_on: u64,
    /// States that were brought to rest after their recovery.
    pub settled: u64,
    /// How many states had what to deal with: each kind of operation that was replayed from the log, and each phase
    /// of a checkpoint that was cut short.
    pub hits: BTreeMap<String, u64>,
}

impl Report {
    /// Adds what another run looked at.
    pub fn add(&mut self, other: Self) {
        self.points += other.points;
        self.states += other.states;
        self.recoveries += other.recoveries;
        self.recovery_states += other.recovery_states;
        self.gone_on += other.gone_on;
        self.settled += other.settled;
        for (what, count) in other.hits {
            *self.hits.entry(what).or_default() += count;
        }
    }
}

/// Runs one seed; `only_point` looks at one moment alone, to see a failure again.
///
/// # Errors
/// The first broken promise: where the power was cut, what was kept, and what was found.
pub fn run(seed: u64, plan: &Plan, only_point: Option<usize>) -> Result<Report, String> {
    run_steps(seed, &generate(seed, &plan.mix), plan, only_point)
}

/// Runs these steps instead of those the seed would make, to find the few that a failure needs.
///
/// # Errors
/// As [`run`].
pub fn run_steps(
    seed: u64,
    steps: &[Step],
    plan: &Plan,
    only_point: Option<usize>,
) -> Result<Report, String> {
    let recording = without_panic(|| Recording::make(steps))?;
    let regions = torn_regions(&recording.base)?;
    let states_every = if only_point.is_some() { 1 } else { plan.states_every };
    let random = Random::new(seed);
    let (recoveries, report) = Default::default();
    let mut test = Test { plan, recording: &recording, states_every, random, recoveries, report };
    let mut point = CrashPoint::start(recording.base.clone());
    let mut seen = HashSet::new();
    for prefix in 0..=recording.trace.len() {
        if let Some(event) = prefix.checked_sub(1).map(|last| &recording.trace[last]) {
            point.push(event);
            if *event == Event::Flush {
                seen.clear();
            }
        }
        if only_point.is_none_or(|only| only == prefix) {
            test.cut_at(prefix, &point, &regions, &mut seen)?;
        }
    }
    Ok(test.report)
}

struct Test<'a> {
    plan: &'a Plan,
    recording: &'a Recording,
    /// As the plan says, or 1 where a single moment is looked at.
    states_every: u64,
    random: Random,
    recoveries: Recoveries,
    report: Report,
}

impl Test<'_> {
    /// `seen` are the choices that were tried at earlier points since the last flush.
    fn cut_at(
        &mut self,
        prefix: usize,
        point: &CrashPoint,
        regions: &[Range<u64>],
        seen: &mut HashSet<Choice>,
    ) -> Result<(), String> {
        self.report.points += 1;
        let seed = self.random.bits();
        let choices = self.choices(prefix, point, regions, seed);
        for choice in choices {
            if !seen.insert(choice.clone()) || !self.random.chance(1, self.states_every) {
                continue;
            }
            let image = point.image(&choice);
            let moment = self.recording.describe(prefix);
            self.check(prefix, &image).map_err(|what| format!("{moment}; {choice}: {what}"))?;
        }
        Ok(())
    }

    /// Every subset; the tears of the newest write, and those of all of them just before a flush, when there are most
    /// others to keep.
    fn choices(&self, prefix: usize, point: &CrashPoint, regions: &[Range<u64>], seed: u64) -> Vec<Choice> {
        if self.recording.trace.get(prefix).is_none_or(|next| *next == Event::Flush) {
            return point.choices(regions, seed);
        }
        let mut choices = point.subsets(seed);
        if let Some(Event::Write { offset, .. }) = point.unflushed().last()
            && regions.iter().any(|region| region.contains(offset))
        {
            choices.extend(point.tears(point.unflushed().len() - 1, seed));
        }
        choices
    }

    fn check(&mut self, prefix: usize, image: &Image) -> Result<(), String> {
        let bounds = self.recording.bounds(prefix);
        let (state, found, recovered) = self.find(image, bounds)?;
        self.report.states += 1;
        self.recording.count_hits(prefix, state, &mut self.report.hits);
        if found.bound_runs > 0 {
            *self.report.hits.entry("replayed bound run".to_owned()).or_default() += 1;
        }
        let is_chosen = |random: &mut Random, every| every > 0 && random.chance(1, every);
        let settle_every = if found.doomed > 0 { self.plan.go_on_every / 4 } else { self.plan.go_on_every };
        if found.doomed > 0 {
            *self.report.hits.entry("recovered with nodes to reclaim".to_owned()).or_default() += 1;
        }
        let crashes_again = is_chosen(&mut self.random, self.plan.crash_recovery_every);
        let settles = is_chosen(&mut self.random, settle_every);
        let goes_on = is_chosen(&mut self.random, self.plan.go_on_every);
        if !(crashes_again || settles || goes_on) {
            return Ok(());
        }
        let recovered = match recovered {
            Some(recovered) => recovered,
            None => self.recover(image, bounds)?,
        };
        if crashes_again {
            self.crash_recovery(image, &recovered.device.trace(), bounds)?;
        }
        if settles {
            self.settle(&recovered).map_err(|what| format!("coming to rest after the recovery: {what}"))?;
        }
        if goes_on {
            let mut history = self.recording.history.clone();
            history.truncate(recovered.state);
            self.report.gone_on += 1;
            let base = recovered.device.image();
            drop(recovered);
            self.go_on(&base, history).map_err(|what| format!("going on after the recovery: {what}"))?;
        }
        Ok(())
    }

    /// Which state of the history an image holds, and what a recovery finds there; the latter is done only where no other has told
    /// the same.
    fn find(&mut self, image: &Image, bounds: Bounds) -> Result<(usize, Found, Option<Recovered>), String> {
        if let Some(found) = self.recoveries.known(image)
            && let Some(state) = found.state(&self.recording.history, bounds)
        {
            return Ok((state, found, None));
        }
        let recovered = self.recover(image, bounds)?;
        Ok((recovered.state, recovered.found, Some(recovered)))
    }

    fn recover(&mut self, image: &Image, bounds: Bounds) -> Result<Recovered, String> {
        self.report.recoveries += 1;
        self.recoveries.recover(image, &self.recording.history, bounds)
    }

    /// CR-2: cuts the power at each moment of a recovery: all kept, all lost, and some of the states in between.
    fn crash_recovery(&mut self, image: &Image, trace: &[Event], bounds: Bounds) -> Result<(), String> {
        let mut point = CrashPoint::start(image.clone());
        for (number, event) in trace.iter().enumerate() {
            point.push(event);
            let choices = point.subsets(self.random.bits());
            let others = choices.len().saturating_sub(2) as u64;
            for (place, choice) in choices.iter().enumerate() {
                if place >= 2 && !self.random.chance(RECOVERY_CHOICES, others.max(RECOVERY_CHOICES)) {
                    continue;
                }
                self.find(&point.image(choice), bounds)
                    .map_err(|what| format!("crash after I/O {number} of the recovery; {choice}: {what}"))?;
                self.report.recovery_states += 1;
            }
        }
        Ok(())
    }

    /// CR-4.
    fn settle(&mut self, recovered: &Recovered) -> Result<(), String> {
        let mut history = self.recording.history.clone();
        history.truncate(recovered.state);
        let device = pando_device::SimulatedDevice::from_image(recovered.device.image());
        let mut runner = Runner::open(device.into(), history).map_err(|error| error.to_string())?;
        let doomed = runner.engine().stats().nodes_doomed;
        runner.run(&[Step::Settle])?;
        let stats = runner.engine().stats();
        if stats.nodes_doomed > 0 || stats.nodes_reclaimed < doomed {
            return Err(format!("{} of {doomed} nodes are still to be reclaimed", stats.nodes_doomed));
        }
        self.report.settled += 1;
        if doomed > 0 {
            *self.report.hits.entry("reclaimed after the recovery".to_owned()).or_default() += 1;
        }
        Ok(())
    }

    /// CR-3: some more records, a sync, one more record, and a crash.
    fn go_on(&mut self, image: &Image, history: History) -> Result<(), String> {
        let device = pando_device::SimulatedDevice::from_image(image.clone());
        let mut runner = Runner::open(device.into(), history).map_err(|error| error.to_string())?;
        let mut steps: Vec<_> = (0..3).map(|_| Step::Apply(vec![operation(&mut self.random)])).collect();
        steps.push(if self.random.chance(1, 4) { Step::Checkpoint } else { Step::Sync });
        steps.push(Step::Apply(vec![operation(&mut self.random)]));
        runner.run(&steps)?;
        let trace = runner.device().trace();
        let bounds = Bounds { durable: runner.durable(), applied: runner.history().length() };
        let point = CrashPoint::after(image.clone(), &trace, trace.len());
        for choice in point.subsets(self.random.bits()) {
            recover(&point.image(&choice), runner.history(), bounds)
                .map_err(|what| format!("{choice}: {what}"))?;
        }
        Ok(())
    }
}

/// Where writes are torn at every sector: both superblocks and the log.
fn torn_regions(image: &Image) -> Result<Vec<Range<u64>>, String> {
    let mut regions = Vec::new();
    for offset in superblock_offsets(image.capacity()) {
        let block = image.block(offset / pando_device::BLOCK_SIZE as u64);
        regions.push(offset..offset + block.len() as u64);
        if let Ok(superblock) = Superblock::decode(&block) {
            regions.push(superblock.log.offset..superblock.log.offset + superblock.log.length);
        }
    }
    if regions.len() > 2 { Ok(regions) } else { Err("a new volume has no superblock".to_owned()) }
}
