//! A row that is run to be counted. Its phases: the mount, the load, and the unmount with what the load left to be written.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::summary::Summary;
use super::{Trace, kernel_number, load_bytes};
use crate::error::{Error, at};
use crate::row::{Measurement, Row};
use crate::volume::Volume;

/// The number of the round that is counted; those that are timed begin at 1.
pub const ROUND: u64 = 0;
/// The phase in which the load runs.
pub const LOAD: &str = "load";

/// Runs a row under a trace.
pub fn run(row: &Row, volume: &Volume) -> Result<(Measurement, Summary), Error> {
    let device = volume.device.as_deref().unwrap_or(Path::new(""));
    (row.prepare)(volume)?;
    volume.let_go()?;
    let trace = Trace::start(&volume.options.directory, "row", device)?;
    trace.mark("mount")?;
    volume.mount_cold()?;
    let (mut connections, before) = (vec![connection(volume)?], load_bytes::counted());
    trace.mark(LOAD)?;
    let mut measurement = (row.measure)(volume)?;
    trace.mark("unmount")?;
    let written = load_bytes::since(before);
    // A row may have mounted it anew.
    connections.push(connection(volume)?);
    volume.make_cold()?;
    let mut summary = Summary::of(&trace.finish()?, &connections, written);
    summary.series = measurement.series.extract_if(.., |series| series.y == LAYOUT_SCORE).collect();
    Ok((measurement, summary))
}

/// What series of layout scores say of their values.
pub const LAYOUT_SCORE: &str = "layout score";

/// The number that the kernel's FUSE events have for the volume, if it is one.
fn connection(volume: &Volume) -> Result<u64, Error> {
    Ok(kernel_number(at("cannot look at", &volume.root, fs::metadata(&volume.root))?.dev()))
}
