//! Cuts the power while several threads change a volume and the engine's own threads write it.
//!
//! The rest of the simulation does one thing after the other; here the log is written while a checkpoint is, batches come while others
//! are made durable, and a flush begins while writes are under way. Of those it promises nothing: only a write that had returned before a flush was
//! asked for is durable by it (DEV-2), and a crash may keep any that had begun. The promises checked are CR-1 of [`crate::crash`], on the order
//! that the LSNs of the records say: what is found are the contents after a prefix of them, no shorter than what a sync or checkpoint that had
//! returned covers, no longer than what had been begun. Without a crash the contents are those after all of them.
//!
//! The same where the device fails at some moment: who was told of an end before, or hears of one afterwards, was told the truth.
//!
//! Meanwhile each thread finds what it has made of its keys, whatever the others and the background do.
//!
//! Each thread has keys of its own, since who changes the same keys at the same time must keep the order himself. Threads come as they
//! come: a seed says what they do, not in which order, so a failure is not seen again by its seed alone.

pub mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::{Image, Random};
use pando_engine::{Background, Engine, Error, FormatOptions, KeyRange, Lsn, Operation, Options, Tree};

use self::device::{Cut, TimedDevice, TimedEvent, some_choices};
use crate::model::{History, Map};
use crate::recovery::{Bounds, recover, without_panic};
use crate::runner::{CAPACITY, apply, contents, difference, options, scan, waiting};
use crate::workload;

/// A thread makes what it has done durable once in so many records.
const SYNC_EVERY: u64 = 12;
/// A thread asks for a checkpoint once in so many records, besides those that come by themselves.
const CHECKPOINT_EVERY: u64 = 150;
/// It asks for one of its keys once in so many records, and for all of them.
const GET_EVERY: u64 = 2;
const SCAN_EVERY: u64 = 40;
/// Operations in a record, at most.
const RECORD_LENGTH_MAX: u64 = 6;

/// What is done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How the volume is made.
    pub format: FormatOptions,
    /// Bytes of its cache.
    pub cache_bytes: usize,
    /// Threads that change it.
    pub threads: u8,
    /// Records of each of them.
    pub records: usize,
    /// Moments at which the power is cut.
    pub points: usize,
    /// States looked at for each of them, besides those in which all is kept, and all is lost.
    pub states: usize,
    /// One of the device's first so many I/Os fails, and in every other run all writes and flushes behind it; 0 for none. What had been
    /// called durable must be there all the same.
    pub fails_within: u64,
}

/// What was looked at.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Crash states.
    pub states: u64,
    /// Moments at which more than one write, or a write and a flush, were under way.
    pub overlapping: u64,
    /// Writes that were there when the last flush before a moment had ended, and not covered by it.
    pub passed_by: u64,
    /// States found that were neither the least nor the most that was allowed.
    pub between: u64,
    /// Runs that recoveries read from where the log was bound to.
    pub bound_runs: u64,
    /// Checkpoints of the run.
    pub checkpoints: u64,
    /// Ranges that moved or were cloned by gotos.
    pub ranges_cloned: u64,
    /// Runs in which the device failed.
    pub failed: u64,
}

impl Report {
    /// Adds what another run looked at.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.overlapping += other.overlapping;
        self.passed_by += other.passed_by;
        self.between += other.between;
        self.bound_runs += other.bound_runs;
        self.checkpoints += other.checkpoints;
        self.ranges_cloned += other.ranges_cloned;
        self.failed += other.failed;
    }
}

/// Runs one seed.
///
/// # Errors
/// The first broken promise: when the power was cut, what was kept, and what was found.
pub fn run(seed: u64, plan: &Plan) -> Result<Report, String> {
    let recording = without_panic(|| Recording::make(seed, plan))?;
    let mut random = Random::new(seed);
    let mut report = Report {
        checkpoints: recording.checkpoints,
        ranges_cloned: recording.ranges_cloned,
        failed: u64::from(recording.failed),
        ..Report::default()
    };
    for _ in 0..plan.points {
        let moment = random.below(recording.end + 1);
        recording.cut_at(moment, plan, &mut random, &mut report)?;
    }
    Ok(report)
}

/// A record, and when it was handed to the engine.
struct Applied {
    lsn: Lsn,
    begin: u64,
    operations: Vec<Operation>,
}

/// All records up to this one are durable from then on.
struct Durable {
    end: u64,
    lsn: Lsn,
}

/// What one thread did, up to the first error.
#[derive(Default)]
struct Done {
    applied: Vec<Applied>,
    durable: Vec<Durable>,
}

/// A run, with what it did to the device and when.
struct Recording {
    base: Image,
    events: Vec<TimedEvent>,
    /// The records in the order of their LSNs, and when each was begun.
    history: History,
    begins: Vec<u64>,
    /// When so many records were known to be durable.
    durable: Vec<(u64, usize)>,
    /// The last moment.
    end: u64,
    checkpoints: u64,
    ranges_cloned: u64,
    /// The device failed.
    failed: bool,
}

impl Recording {
    fn make(seed: u64, plan: &Plan) -> Result<Self, String> {
        let device = Arc::new(SimulatedDevice::untraced(CAPACITY));
        Engine::format(device.clone(), &plan.format).map_err(|error| error.to_string())?;
        let base = device.image();
        let device = Arc::new(TimedDevice::new(base.clone(), seed));
        let options = Options {
            cache_bytes: plan.cache_bytes,
            background: Background::Threads,
            checkpoint_interval: Duration::from_millis(20),
            log_interval: Duration::from_millis(5),
            ..Options::default()
        };
        let engine = Engine::open(device.clone(), options).map_err(|error| format!("open: {error}"))?;
        if plan.fails_within > 0 {
            device.fail_within(plan.fails_within, seed.is_multiple_of(2));
        }
        let failed = AtomicBool::new(false);
        let mut done = Done::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..plan.threads)
                .map(|number| {
                    let (engine, device, failed) = (&engine, &device, &failed);
                    scope.spawn(move || {
                        let mut done = Done::default();
                        let result = work(seed, number, plan, engine, device, failed, &mut done);
                        if result.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        match result {
                            Err(Stop::Wrong(what)) => return Err(format!("thread {number}: {what}")),
                            // After a failure of the device that is what everybody is to hear.
                            Err(Stop::Refused(error)) if device.failed_count() == 0 => {
                                return Err(format!("thread {number}: {error}"));
                            }
                            Err(Stop::Refused(_)) | Ok(()) => {}
                        }
                        Ok(done)
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let own = thread.join().map_err(|_| "a thread panicked".to_owned())??;
                done.applied.extend(own.applied);
                done.durable.extend(own.durable);
                Ok::<_, String>(())
            })
        })?;
        done.applied.sort_unstable_by_key(|record| record.lsn);
        if let Some(two) = done.applied.windows(2).find(|two| two[0].lsn == two[1].lsn) {
            return Err(format!("two records have the LSN {:?}", two[0].lsn));
        }
        let mut history = History::new();
        done.applied.iter().for_each(|record| history.push(&record.operations));
        let stats = engine.stats();
        let failed = device.failed_count() > 0;
        if !failed {
            same(&engine, &history).map_err(|what| format!("before it was closed: {what}"))?;
        }
        let closed = engine.close();
        drop(engine);
        let up_to = |lsn| done.applied.partition_point(|record| record.lsn <= lsn);
        let mut durable: Vec<_> = done.durable.iter().map(|mark| (mark.end, up_to(mark.lsn))).collect();
        let end = device.tick();
        match closed {
            Ok(()) => durable.push((end, history.length())),
            Err(error) if device.failed_count() == 0 => return Err(format!("close: {error}")),
            Err(_) => {}
        }
        let recording = Self {
            base,
            events: device.events(),
            begins: done.applied.iter().map(|record| record.begin).collect(),
            history,
            durable,
            end,
            checkpoints: stats.checkpoints,
            ranges_cloned: stats.ranges_cloned,
            failed,
        };
        if device.failed_count() > 0 {
            return Ok(recording);
        }
        let closed = Arc::new(SimulatedDevice::from_image(device.image()));
        let engine = Engine::open(closed, self::options()).map_err(|error| error.to_string())?;
        same(&engine, &recording.history).map_err(|what| format!("after it was closed: {what}"))?;
        Ok(recording)
    }

    /// What may be found after a crash at a moment.
    fn bounds(&self, moment: u64) -> Bounds {
        let durable = self.durable.iter().filter(|(end, _)| *end <= moment).map(|(_, length)| *length).max();
        let begun = self.begins.iter().take_while(|begin| **begin <= moment).count();
        Bounds { durable: durable.unwrap_or(0), applied: begun }
    }

    fn cut_at(
        &self,
        moment: u64,
        plan: &Plan,
        random: &mut Random,
        report: &mut Report,
    ) -> Result<(), String> {
        let Cut { point, under_way, passed_by } = Cut::at(moment, &self.base, &self.events, random);
        report.passed_by += passed_by;
        report.overlapping += u64::from(under_way > 1);
        let bounds = self.bounds(moment);
        for choice in some_choices(&point, plan.states, random) {
            let recovered = recover(&point.image(&choice), &self.history, bounds).map_err(|what| {
                format!("crash at {moment} of {}, {under_way} under way; {choice}: {what}", self.end)
            })?;
            report.states += 1;
            report.between += u64::from(recovered.state > bounds.durable && recovered.state < bounds.applied);
            report.bound_runs += recovered.found.bound_runs;
        }
        Ok(())
    }
}

/// Why a thread does not go on.
enum Stop {
    /// The engine has answered with an error.
    Refused(Error),
    /// What it has answered is not so, whether the device fails or not.
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Changes keys that begin with the number of the thread.
fn work(
    seed: u64,
    number: u8,
    plan: &Plan,
    engine: &Engine,
    device: &TimedDevice,
    failed: &AtomicBool,
    done: &mut Done,
) -> Result<(), Stop> {
    let mut random = Random::new(seed ^ (u64::from(number) + 1).rotate_right(8));
    let mut map = Map::default();
    while done.applied.len() < plan.records && !failed.load(Ordering::Relaxed) {
        let operations: Vec<_> = (0..=random.below(RECORD_LENGTH_MAX))
            .map(|_| own(number, workload::operation(&mut random)))
            .collect();
        if operations.iter().map(Operation::length).sum::<usize>() > workload::RECORD_BYTES_MAX {
            continue;
        }
        let begin = device.tick();
        let lsn = apply(engine, &operations)?;
        map.apply(&operations);
        done.applied.push(Applied { lsn, begin, operations });
        look(number, engine, &map, &mut random)?;
        let reached = if random.chance(1, SYNC_EVERY) {
            let reached = engine.sync()?;
            if reached < lsn {
                return Err(Stop::Wrong(format!("a sync behind {lsn:?} reached {reached:?}")));
            }
            reached
        } else if random.chance(1, CHECKPOINT_EVERY) {
            engine.checkpoint()?;
            lsn
        } else {
            continue;
        };
        done.durable.push(Durable { end: device.tick(), lsn: reached });
    }
    Ok(())
}

/// Nobody else changes these keys: what is found is what this thread has made of them, whatever else goes on.
fn look(number: u8, engine: &Engine, map: &Map, random: &mut Random) -> Result<(), Stop> {
    let tree = Tree::ALL[random.below(2) as usize];
    if random.chance(1, GET_EVERY) {
        let key = own_key(number, &workload::present_key(random));
        let found = waiting(engine, || engine.get(tree, &key))?;
        if found.as_ref() != map.get(tree, &key) {
            return Err(Stop::Wrong(format!(
                "get {tree:?} {key:?} gave {}",
                found.map_or(0, |value| value.len())
            )));
        }
    }
    if random.chance(1, SCAN_EVERY) {
        let range = KeyRange::prefix(vec![number]);
        let found = scan(engine, tree, &range, 100).map_err(Stop::Wrong)??;
        let expected = map.range(tree, &range);
        if !found.iter().map(|(key, value)| (key, value)).eq(expected) {
            return Err(Stop::Wrong(format!(
                "a scan of {tree:?} gave {} keys that are not its own",
                found.len()
            )));
        }
    }
    Ok(())
}

/// A key that begins with the number of a thread.
fn own_key(number: u8, key: &[u8]) -> Bytes {
    [&[number], key].concat().into()
}

/// The same operation on keys that begin with the number of a thread.
fn own(number: u8, operation: Operation) -> Operation {
    let key = |key: Bytes| own_key(number, &key);
    match operation {
        Operation::Put { tree, key: at, value } => Operation::Put { tree, key: key(at), value },
        Operation::PutRun { tree, prefix, first, bytes } => {
            Operation::PutRun { tree, prefix: key(prefix), first, bytes }
        }
        Operation::Delete { tree, key: at } => Operation::Delete { tree, key: key(at) },
        Operation::Change { tree, key: at, change } => Operation::Change { tree, key: key(at), change },
        Operation::DeleteRange { tree, range } => {
            let range = KeyRange::new(range.lower.prepend(&[number]), range.upper.prepend(&[number]));
            Operation::DeleteRange { tree, range }
        }
        Operation::MoveRange { tree, from, to } => {
            Operation::MoveRange { tree, from: key(from), to: key(to) }
        }
        Operation::CloneRange { tree, from, to } => {
            Operation::CloneRange { tree, from: key(from), to: key(to) }
        }
    }
}

/// Compares the contents of a volume with the last state of a history, and looks at its nodes.
fn same(engine: &Engine, history: &History) -> Result<(), String> {
    if contents(engine)? != history.now().digest() {
        return Err(difference(engine, history.now()));
    }
    let problems = engine.check(&mut |_, _| {}).map_err(|error| error.to_string())?.problems;
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}
