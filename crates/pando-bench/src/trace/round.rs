//! A row that is run to be counted. Its phases: the mount, the load, and the unmount with what the load left to be written.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::summary::Summary;
use super::{Trace, kernel_number, load_bytes};
use crate::error::{Error, at};
use crate::row::{Measurement, Row};
use crate::volume::Volume;

/// The number of the round that is counted; those that are timed begin at 1.
pub const ROUND: u64 = 0;
/// The phase in which a file system is mounted for a load.
pub const MOUNT: &str = "mount";
/// The phase in which the load runs.
pub const LOAD: &str = "load";
/// The phase in which what a load has left is written.
pub const UNMOUNT: &str = "unmount";
/// The phase in which a row that makes volumes of its own makes one, which is no part of its load.
pub const FORMAT: &str = "format";

/// Runs a row under a trace.
pub fn run(row: &Row, volume: &Volume) -> Result<(Measurement, Summary), Error> {
    let device = volume.device.as_deref().unwrap_or(Path::new(""));
    (row.prepare)(volume)?;
    volume.let_go()?;
    let trace = Trace::start(&volume.options.directory, "row", device)?;
    *MARKS.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace.marks());
    mark(MOUNT)?;
    volume.mount_cold()?;
    // One that stays mounted was mounted by another process.
    note(&volume.root)?;
    let before = load_bytes::counted();
    mark(LOAD)?;
    let mut measurement = (row.measure)(volume)?;
    mark(UNMOUNT)?;
    let written = load_bytes::since(before);
    volume.let_go()?;
    let sees_locks = trace.sees_locks();
    let events = trace.finish()?;
    volume.mount_cold()?;
    let mut summary = Summary::of(&events, &noted(), written);
    summary.lock_waits = summary.lock_waits.filter(|_| sees_locks);
    summary.series = measurement.series.extract_if(.., |series| series.y == LAYOUT_SCORE).collect();
    Ok((measurement, summary))
}

/// The file that takes the marks of the trace of this process, if its row is counted.
static MARKS: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A phase begins, or one goes on that was there before, if the row is counted.
pub fn mark(phase: &str) -> Result<(), Error> {
    match &*MARKS.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(marks) => at("cannot write", marks, fs::write(marks, phase)),
        None => Ok(()),
    }
}

/// What series of layout scores say of their values.
pub const LAYOUT_SCORE: &str = "layout score";

/// The numbers of the kernel's FUSE events for what this process mounted; a row may mount several times, and several volumes.
static CONNECTIONS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Counts the requests of what is mounted here, if it is a FUSE file system.
pub fn note(root: &Path) -> Result<(), Error> {
    let device = at("cannot look at", root, fs::metadata(root))?.dev();
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(kernel_number(device));
    Ok(())
}

fn noted() -> BTreeSet<u64> {
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
