//! A volume of a million files.

use std::time::Instant;

use crate::compleat::small_files;
use crate::error::Error;
use crate::report::statistics::median;
use crate::row::{Measurement, ms_since};
use crate::volume::Volume;

const SNAPSHOTS: usize = 5;

/// The files.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    let directory = volume.root.join("many");
    if directory.exists() {
        return Ok(());
    }
    small_files::fill_directory(&directory, volume.options.many_files)?;
    volume.sync()
}

/// Milliseconds, the start of the program that takes it included.
pub fn snapshot(volume: &Volume) -> Result<Measurement, Error> {
    let mut each_ms = Vec::new();
    for number in 0..SNAPSHOTS {
        let begin = Instant::now();
        volume.snapshot(&format!("snapshot-{number}"))?;
        each_ms.push(ms_since(begin));
    }
    Ok(Measurement::of(median(&each_ms)))
}
