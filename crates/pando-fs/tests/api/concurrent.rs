//! Power cuts while several threads change files, and the engine's threads write them.

mod apart;
mod together;

use std::sync::Arc;
use std::time::Duration;

use pando_device::SimulatedDevice;
use pando_device::simulated::{Image, Random};
use pando_engine::{Background, Options};
use pando_fs::operations::{DirectoryEntry, ListAttributes, Operations, waiting};
use pando_fs::{FileSystem, InodeNumber, Result};
use pando_sim::concurrent::device::{Cut, TimedDevice, some_choices};
use pando_sim::runner::CAPACITY;

use crate::common::small_nodes;

/// States looked at for each cut, besides those in which all is kept, and all is lost.
const STATES: usize = 2;
/// Bytes read at once: the cache of a recovery here holds no more.
const PIECE: usize = 32 << 10;

/// A run, with what it does to the device and when.
struct Recording {
    base: Image,
    device: Arc<TimedDevice>,
}

impl Recording {
    /// Makes a volume, prepares it, and opens it with the engine's threads at work.
    fn begin(
        seed: u64,
        copied_bytes: Option<usize>,
        prepare: impl FnOnce(&FileSystem) -> Result<()>,
    ) -> Result<(Self, Arc<FileSystem>)> {
        let device = Arc::new(SimulatedDevice::untraced(CAPACITY));
        FileSystem::format(device.clone(), &small_nodes())?;
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device.clone(), options)?;
        prepare(&fs)?;
        fs.close()?;
        let base = device.image();
        let device = Arc::new(TimedDevice::new(base.clone(), seed));
        let options = Options {
            cache_bytes: 1 << 20,
            background: Background::Threads,
            checkpoint_interval: Duration::from_millis(20),
            log_interval: Duration::from_millis(5),
            copied_bytes,
            ..Options::default()
        };
        let fs = FileSystem::open(device.clone(), options)?;
        Ok((Self { base, device }, fs))
    }

    /// Cuts the power at these moments, and has somebody look at what is found after each. What is found has to be sound.
    fn cut(
        &self,
        moments: &[u64],
        random: &mut Random,
        mut look: impl FnMut(u64, &Cut, &FileSystem) -> Result<(), String>,
    ) -> Result<(), String> {
        let (events, end) = (self.device.events(), self.device.tick());
        for &moment in moments {
            let cut = Cut::at(moment, &self.base, &events, random);
            for choice in some_choices(&cut.point, STATES, random) {
                let failed = |what: String| format!("crash at {moment} of {end}; {choice}: {what}");
                let device = Arc::new(SimulatedDevice::from_image(cut.point.image(&choice)));
                let fs =
                    FileSystem::open(device, pando_sim::runner::options()).map_err(text).map_err(failed)?;
                look(moment, &cut, &fs).map_err(failed)?;
                check(&fs).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Nothing is wrong with a file system, and nothing is left in it that has no name.
fn check(fs: &FileSystem) -> Result<(), String> {
    let checked = fs.check().map_err(text)?;
    if checked.problems.is_empty() && checked.orphans == 0 {
        return Ok(());
    }
    Err(format!("{} orphans, {:#?}", checked.orphans, checked.problems))
}

fn text(error: pando_fs::Error) -> String {
    error.to_string()
}

/// All names but `.` and `..`.
fn names(fs: &FileSystem, directory: InodeNumber) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let (mut cookie, mut before) = (0, u64::MAX);
    while cookie != before {
        before = cookie;
        let mut emit = |entry: &DirectoryEntry| {
            cookie = entry.cookie;
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
            true
        };
        waiting(fs, |fs| fs.read_directory(directory, before, ListAttributes::OfNone, &mut emit))?;
    }
    Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
}

/// All bytes of a file.
fn contents(fs: &FileSystem, file: InodeNumber, size: u64) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    for offset in (0..size).step_by(PIECE) {
        contents.extend(waiting(fs, |fs| fs.read(file, offset, PIECE))?.concat());
    }
    Ok(contents)
}
