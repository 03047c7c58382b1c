//! TokuBench: files of 200 bytes in a balanced tree of fan-out 128, by 4 threads, and their deletion.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::command;
use crate::error::{Error, at};
use crate::generate::fill;
use crate::row::{Measurement, per_second};
use crate::volume::Volume;

const FAN_OUT: u64 = 128;
const THREADS: u64 = 4;
/// Of each file.
pub const FILE_BYTES: usize = 200;
const POINTS: u64 = 20;

fn top(volume: &Volume) -> PathBuf {
    volume.root.join("toku")
}

/// The place of a file: two levels of directories, of 128 entries each, below as many at the top as are needed.
fn place(number: u64) -> [u64; 3] {
    [number / (FAN_OUT * FAN_OUT), number / FAN_OUT % FAN_OUT, number % FAN_OUT]
}

/// What an earlier run left.
pub fn remove(volume: &Volume) -> Result<(), Error> {
    let top = top(volume);
    if top.exists() { at("cannot remove", &top, fs::remove_dir_all(&top)) } else { Ok(()) }
}

/// The files, if their row was not asked for.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    if top(volume).exists() { Ok(()) } else { create(volume).map(drop) }
}

/// Files a second; by how many there are already, in steps of a twentieth.
pub fn create(volume: &Volume) -> Result<Measurement, Error> {
    let files = volume.options.files;
    let top = top(volume);
    let next = AtomicU64::new(0);
    let begin = Instant::now();
    let steps: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| one_thread(&top, files, &next))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a writer does not panic")).collect()
    });
    let mut times: Vec<(u64, Duration)> = Vec::new();
    for thread in steps {
        times.extend(thread?.into_iter().map(|(number, time)| (number, time.duration_since(begin))));
    }
    volume.sync()?;
    let measurement = Measurement::rate(begin, files as f64);
    times.sort_unstable();
    let points = times.iter().map(|(number, time)| (*number as f64, per_second(*number as f64, *time)));
    Ok(measurement.with("cumulative rate", "files", "files/s", points.collect()))
}

/// Each thread takes the next directory of 128 files; when a step of all files is passed, it notes the time.
fn one_thread(top: &Path, files: u64, next: &AtomicU64) -> Result<Vec<(u64, Instant)>, Error> {
    let mut contents = [0; FILE_BYTES];
    fill(&mut contents, 3);
    let step = (files / POINTS).max(1);
    let mut times = Vec::new();
    loop {
        let first = next.fetch_add(FAN_OUT, Ordering::Relaxed);
        if first >= files {
            return Ok(times);
        }
        let [high, middle, _] = place(first);
        let directory = top.join(high.to_string()).join(middle.to_string());
        at("cannot create", &directory, fs::create_dir_all(&directory))?;
        let end = files.min(first + FAN_OUT);
        for number in first..end {
            let path = directory.join(place(number)[2].to_string());
            at("cannot write", &path, fs::write(&path, contents))?;
        }
        if first / step != end / step {
            times.push((end, Instant::now()));
        }
    }
}

/// Files deleted a second.
pub fn delete(volume: &Volume) -> Result<Measurement, Error> {
    let begin = Instant::now();
    command::run(&["rm".to_owned(), "-rf".to_owned(), top(volume).display().to_string()])?;
    volume.sync()?;
    Ok(Measurement::rate(begin, volume.options.files as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_balanced_and_unique() {
        assert_eq!(place(0), [0, 0, 0]);
        assert_eq!(place(129), [0, 1, 1]);
        assert_eq!(place(128 * 128 * 3 + 5), [3, 0, 5]);
        let all: std::collections::BTreeSet<_> = (0..40_000).map(place).collect();
        assert_eq!(all.len(), 40_000);
    }
}
