//! One run, with what it did to the device and when.

use std::collections::BTreeMap;
use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_device::simulated::{Event, Image};
use pando_engine::stats::Stats;
use pando_engine::{Change, Operation};

use crate::model::History;
use crate::recovery::Bounds;
use crate::runner::{CAPACITY, Runner, format, format_options, name};
use crate::workload::Step;

/// A run.
pub(super) struct Recording {
    /// The volume just formatted.
    pub base: Image,
    /// What was done to it since.
    pub trace: Vec<Event>,
    /// All records that were applied.
    pub history: History,
    marks: Vec<Mark>,
}

/// How far things were when a step had returned.
struct Mark {
    step: &'static str,
    /// Length of the trace.
    trace: usize,
    /// Records applied.
    applied: usize,
    /// Records known to be durable.
    durable: usize,
    /// Records covered by the last checkpoint asked for.
    checkpointed: usize,
    /// What the engine had counted since the volume was opened.
    stats: Stats,
    /// The mark behind the last checkpoint there was then: everything since is in memory only.
    written: usize,
}

/// How often something has happened.
type Count = fn(&Stats) -> u64;

/// What changes nodes in memory, until a checkpoint writes them: cut between the two, the device has the state before.
const EVENTS: [(&str, Count); 9] = [
    ("a range was cloned", |stats| stats.ranges_cloned),
    ("a goto was flushed", |stats| stats.gotos_flushed),
    ("a goto became an edge", |stats| stats.gotos_converted),
    ("a goto took the place of several edges", |stats| stats.gotos_spanning),
    ("a shared node was copied", |stats| stats.shared_nodes_copied),
    ("a node was split", |stats| stats.splits),
    ("nodes were merged", |stats| stats.merges),
    ("a subtree was cut off", |stats| stats.pruned_subtrees),
    ("a node was reclaimed", |stats| stats.nodes_reclaimed),
];

impl Recording {
    /// Runs the steps on a new volume.
    pub fn make(steps: &[Step]) -> Result<Self, String> {
        let device = Arc::new(SimulatedDevice::new(CAPACITY));
        format(&device, &format_options()).map_err(|error| error.to_string())?;
        let base = device.image();
        let device = Arc::new(SimulatedDevice::from_image(base.clone()));
        let mut runner = Runner::open(device.clone(), History::new()).map_err(|error| error.to_string())?;
        let start = Mark {
            step: "open",
            trace: device.trace_length(),
            applied: 0,
            durable: 0,
            checkpointed: 0,
            stats: runner.engine().stats(),
            written: 0,
        };
        let mut marks = vec![start];
        for (number, step) in steps.iter().enumerate() {
            let outcome = runner.step(step)?;
            outcome.map_err(|error| format!("step {number} ({}): {error}", name(step)))?;
            let applied = runner.history().length();
            let checkpointed = match step {
                Step::Checkpoint | Step::Reopen | Step::Look => applied,
                _ => marks.last().map_or(0, |mark| mark.checkpointed),
            };
            let durable = runner.durable();
            let stats = runner.engine().stats();
            let last = marks.last().expect("there is the start");
            let is_new = matches!(step, Step::Reopen | Step::Restart);
            let is_written = is_new || stats.checkpoints > last.stats.checkpoints;
            let written = if is_written { marks.len() } else { last.written };
            marks.push(Mark {
                step: name(step),
                trace: device.trace_length(),
                applied,
                durable,
                checkpointed,
                stats,
                written,
            });
        }
        Ok(Self { base, trace: device.trace(), history: runner.history().clone(), marks })
    }

    /// What may be found after a crash behind the first `prefix` events.
    pub fn bounds(&self, prefix: usize) -> Bounds {
        let returned = self.marks.iter().take_while(|mark| mark.trace <= prefix).last();
        Bounds {
            durable: returned.map_or(0, |mark| mark.durable),
            applied: self.marks[self.running(prefix)].applied,
        }
    }

    /// Says where in the run a prefix ends.
    pub fn describe(&self, prefix: usize) -> String {
        let running = self.running(prefix);
        let events = self.trace.len();
        format!("crash after I/O {prefix} of {events}, in step {running} ({})", self.marks[running].step)
    }

    /// Counts what a recovery from this prefix to a state had to deal with.
    pub fn count_hits(&self, prefix: usize, state: usize, hits: &mut BTreeMap<String, u64>) {
        let returned = self.marks.iter().take_while(|mark| mark.trace <= prefix).last();
        let checkpointed = returned.map_or(0, |mark| mark.checkpointed);
        let mut kinds: Vec<_> = self.history.between(checkpointed, state).map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            *hits.entry(format!("replayed {kind}")).or_default() += 1;
        }
        let running = self.running(prefix);
        let Some(before) = running.checked_sub(1).map(|before| &self.marks[before]) else { return };
        let start = before.trace;
        let is_inside = (start + 1..self.marks[running].trace).contains(&prefix);
        let is_checkpoint = self.marks[running].step == "checkpoint" && is_inside;
        if is_checkpoint {
            let flushes = self.trace[start..prefix].iter().filter(|event| **event == Event::Flush).count();
            *hits.entry(format!("checkpoint cut after {flushes} flushes")).or_default() += 1;
        }
        let mut hit = |what: String| *hits.entry(what).or_default() += 1;
        let written = &self.marks[before.written].stats;
        for (event, count) in EVENTS {
            if count(&before.stats) > count(written) {
                hit(format!("{event}, then cut"));
                if is_checkpoint {
                    hit(format!("{event}, its checkpoint cut"));
                }
            }
        }
        if before.stats.nodes_reclaimed > written.nodes_reclaimed && before.stats.nodes_doomed > 0 {
            hit("some nodes were reclaimed and others not, then cut".to_owned());
        }
    }

    /// The step in which the last event of the prefix happened.
    fn running(&self, prefix: usize) -> usize {
        self.marks.partition_point(|mark| mark.trace < prefix).min(self.marks.len() - 1)
    }
}

fn kind(operation: &Operation) -> &'static str {
    match operation {
        Operation::Put { .. } => "put",
        Operation::PutRun { .. } => "put run",
        Operation::Delete { .. } => "delete",
        Operation::Change { change: Change::Patch { .. }, .. } => "patch",
        Operation::Change { change: Change::Truncate { .. }, .. } => "truncate",
        Operation::Change { change: Change::Update { .. }, .. } => "update",
        Operation::DeleteRange { .. } => "delete range",
        Operation::MoveRange { .. } => "move range",
        Operation::CloneRange { .. } => "clone range",
    }
}
