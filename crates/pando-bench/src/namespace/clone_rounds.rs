//! Clones of clones, each written to, as in THESIS figure 6.9.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::compleat::source_tree::grep_in;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::report::statistics::median;
use crate::row::{Measurement, ms_since};
use crate::volume::Volume;

const ROUNDS: u64 = 9;
const DIRECTORIES: u64 = 8;
const FILES: u64 = 8;
const FILE_BYTES: usize = 4 << 20;
const WRITE_BYTES: u64 = 16;

fn generation(volume: &Volume, number: u64) -> PathBuf {
    volume.root.join(format!("generation-{number}"))
}

fn files(tree: &Path) -> impl Iterator<Item = PathBuf> {
    let tree = tree.to_owned();
    (0..DIRECTORIES * FILES)
        .map(move |number| tree.join((number / FILES).to_string()).join((number % FILES).to_string()))
}

/// The tree that is cloned.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    let tree = generation(volume, 0);
    if tree.exists() {
        return Ok(());
    }
    volume.make_directory(&tree)?;
    let mut contents = vec![0; FILE_BYTES];
    for (number, path) in files(&tree).enumerate() {
        fill(&mut contents, number as u64);
        let parent = path.parent().unwrap_or(&path);
        at("cannot create", parent, fs::create_dir_all(parent))?;
        at("cannot write", &path, File::create(&path).and_then(|mut file| file.write_all(&contents)))?;
    }
    volume.sync()
}

/// Medians over the rounds of the time until the clone is durable, until the writes are, to grep, and of the space that a
/// round costs; and each of them by the round.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    const NAMES: [(&str, &str); 4] =
        [("clone time", "ms"), ("write time", "ms"), ("grep time", "ms"), ("space of a clone", "MiB")];
    let mut points: [Vec<(f64, f64)>; 4] = Default::default();
    let mut random = Random(69);
    volume.checkpoint()?;
    for round in 1..=ROUNDS {
        let (source, clone) = (generation(volume, round - 1), generation(volume, round));
        let before = volume.used_bytes()?;
        let begin = Instant::now();
        volume.clone_directory(&source, &clone)?;
        volume.sync()?;
        let clone_ms = ms_since(begin);
        let begin = Instant::now();
        for path in files(&clone) {
            let place = random.below(FILE_BYTES as u64 - WRITE_BYTES);
            let file = at("cannot open", &path, File::options().write(true).open(&path))?;
            at("cannot write", &path, file.write_all_at(b"sixteen bytes...", place))?;
        }
        volume.sync()?;
        let write_ms = ms_since(begin);
        // What was written goes into its place before the grep, which is cold, and the space is looked at.
        volume.make_cold()?;
        let begin = Instant::now();
        grep_in(&clone)?;
        let grep_ms = ms_since(begin);
        let space_mib = (volume.used_bytes()? as f64 - before as f64) / f64::from(1 << 20);
        for (points, value) in points.iter_mut().zip([clone_ms, write_ms, grep_ms, space_mib]) {
            points.push((round as f64, value));
        }
    }
    let value = |points: &Vec<(f64, f64)>| median(&points.iter().map(|point| point.1).collect::<Vec<_>>());
    let mut measurement =
        Measurement { values: points.iter().map(value).collect(), ..Measurement::default() };
    for ((name, unit), points) in NAMES.into_iter().zip(points) {
        measurement = measurement.with(name, "round", unit, points);
    }
    Ok(measurement)
}
