//! Opens what a crash has left and finds out which state of the history it is.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::Image;
use pando_engine::Engine;

use crate::model::{Digest, History};
use crate::runner::{contents, difference, options};

/// Recoveries that are remembered, the newest: each holds a reference to every block it read.
const REMEMBERED_MAX: usize = 256;

/// Which states of the history are allowed, both included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The last state that is known to be durable.
    pub durable: usize,
    /// The last state there was.
    pub applied: usize,
}

/// A volume that was opened after a crash.
pub(crate) struct Recovered {
    /// The device, with what the recovery did to it in its trace.
    pub device: Arc<SimulatedDevice>,
    /// The state of the history that it holds.
    pub state: usize,
    /// What else was found.
    pub found: Found,
}

/// What a recovery has found, whatever the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    digest: Digest,
    /// Runs that it read from where the log was bound to.
    pub bound_runs: u64,
    /// Nodes that are to be taken apart still.
    pub doomed: u64,
}

impl Found {
    /// Which state of the history it is, of those allowed.
    pub fn state(&self, history: &History, bounds: Bounds) -> Option<usize> {
        history.find(self.digest, bounds.durable..=bounds.applied)
    }
}

/// Recoveries that were done, and the blocks that decided each. What crashes leave differs above all in nodes that no recovery reads: an
/// image that agrees with an earlier one in all that was read of that is found to hold the same.
#[derive(Default)]
pub(crate) struct Recoveries {
    /// The newest first.
    done: VecDeque<(Vec<(u64, Bytes)>, Found)>,
}

impl Recoveries {
    /// What an image holds, as far as earlier recoveries tell.
    pub fn known(&self, image: &Image) -> Option<Found> {
        let agrees =
            |blocks: &[(u64, Bytes)]| blocks.iter().all(|(number, bytes)| image.shares(*number, bytes));
        self.done.iter().find(|(blocks, _)| agrees(blocks)).map(|(_, found)| *found)
    }

    /// As [`recover`], which is remembered.
    ///
    /// # Errors
    /// As [`recover`], or it finds something else than an earlier one of the same blocks.
    pub fn recover(&mut self, image: &Image, history: &History, bounds: Bounds) -> Result<Recovered, String> {
        let known = self.known(image);
        let recovered = recover(image, history, bounds)?;
        match known {
            None => {
                self.done.truncate(REMEMBERED_MAX - 1);
                self.done.push_front((recovered.device.blocks_read(), recovered.found));
            }
            Some(known) if known != recovered.found => {
                return Err(format!("found {:?}, and {known:?} before, of the same blocks", recovered.found));
            }
            Some(_) => {}
        }
        Ok(recovered)
    }
}

/// Opens an image, reads all of it, and checks its nodes and the references to them.
///
/// # Errors
/// The recovery failed or panicked, or the contents are none of those allowed, or an invariant of the trees is broken.
pub(crate) fn recover(image: &Image, history: &History, bounds: Bounds) -> Result<Recovered, String> {
    let device = Arc::new(SimulatedDevice::from_image(image.clone()));
    device.note_reads();
    let (state, found) = without_panic(|| {
        let engine = Engine::open(device.clone(), options()).map_err(|error| format!("open: {error}"))?;
        let opened = engine.stats();
        let digest = contents(&engine)?;
        let report = engine.check(&mut |_, _| {}).map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("recovered, but {}", report.problems.join("; ")));
        }
        let found = Found { digest, bound_runs: opened.bound_runs_replayed, doomed: opened.nodes_doomed };
        found.state(history, bounds).map(|state| (state, found)).ok_or_else(|| {
            let Bounds { durable, applied } = bounds;
            let others = history.find_all(digest);
            if others.is_empty() {
                let difference = difference(&engine, &history.state(durable));
                return format!(
                    "no state of the history; against state {durable} (up to {applied} allowed) {difference}"
                );
            }
            format!("state {others:?}, not one of {durable} to {applied}")
        })
    })?;
    Ok(Recovered { device, state, found })
}

/// A panic is a failure like another, so that the message says where in the test it came from.
pub(crate) fn without_panic<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}
