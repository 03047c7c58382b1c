//! One run, with what it did to the device and when.

use std::collections::BTreeMap;
use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_device::simulated::{Event, Image};
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
    /// Ranges cloned by gotos since the volume was opened.
    ranges_cloned: u64,
    /// Nodes copied because they were shared, since the volume was opened.
    shared_nodes_copied: u64,
}

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
            ranges_cloned: 0,
            shared_nodes_copied: 0,
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
            marks.push(Mark {
                step: name(step),
                trace: device.trace_length(),
                applied,
                durable,
                checkpointed,
                ranges_cloned: stats.ranges_cloned,
                shared_nodes_copied: stats.shared_nodes_copied,
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
        let mut hit = |what: &str| *hits.entry(what.to_owned()).or_default() += 1;
        if self.marks[running].ranges_cloned > 0 {
            hit("cut after a range was cloned");
        }
        // What the device has is older than the copies: they are made in memory, and a checkpoint writes them.
        let before = &self.marks[..running];
        let is_on_device = |mark: &&Mark| mark.step == "checkpoint" || mark.step == "reopen";
        let written = before.iter().rev().find(is_on_device).map_or(0, |mark| mark.shared_nodes_copied);
        if before.last().is_some_and(|mark| mark.shared_nodes_copied > written) {
            hit("cut after shared nodes were copied, before a checkpoint");
        }
        let start = running.checked_sub(1).map_or(0, |before| self.marks[before].trace);
        let is_inside = (start + 1..self.marks[running].trace).contains(&prefix);
        if self.marks[running].step == "checkpoint" && is_inside {
            let flushes = self.trace[start..prefix].iter().filter(|event| **event == Event::Flush).count();
            *hits.entry(format!("checkpoint cut after {flushes} flushes")).or_default() += 1;
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
