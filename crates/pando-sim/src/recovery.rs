//! Opens what a crash has left and finds out which state of the history it is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_device::simulated::Image;
use pando_engine::Engine;

use crate::model::History;
use crate::runner::{contents, difference, options};

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
    /// Runs that the recovery read from where the log was bound to.
    pub bound_runs: u64,
    /// Nodes that it found to be taken apart still.
    pub doomed: u64,
}

/// Opens an image, reads all of it, and checks its nodes and the references to them.
///
/// # Errors
/// The recovery failed or panicked, or the contents are none of those allowed, or an invariant of the trees is broken.
pub(crate) fn recover(image: &Image, history: &History, bounds: Bounds) -> Result<Recovered, String> {
    let device = Arc::new(SimulatedDevice::from_image(image.clone()));
    let (state, opened) = without_panic(|| {
        let engine = Engine::open(device.clone(), options()).map_err(|error| format!("open: {error}"))?;
        let opened = engine.stats();
        let digest = contents(&engine)?;
        let report = engine.check(&mut |_, _| {}).map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("recovered, but {}", report.problems.join("; ")));
        }
        let allowed = bounds.durable..=bounds.applied;
        history.find(digest, allowed).map(|state| (state, opened)).ok_or_else(|| {
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
    let (bound_runs, doomed) = (opened.bound_runs_replayed, opened.nodes_doomed);
    Ok(Recovered { device, state, bound_runs, doomed })
}

/// A panic is a failure like another, so that the message says where in the test it came from.
pub(crate) fn without_panic<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}
