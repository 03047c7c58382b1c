//! How long an operation on cached files takes while others write, create and sync.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::report::statistics::percentile;
use crate::row::Measurement;
use crate::volume::Volume;

const FILES: u64 = 1000;
const TIME: Duration = Duration::from_secs(20);
/// Operations are due one after the other, so far apart, whatever became of those before.
const PERIOD: Duration = Duration::from_millis(1);
/// The writer begins again at this size, so that it never fills the volume.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;

fn directory(volume: &Volume) -> PathBuf {
    volume.root.join("latency")
}

fn file(directory: &Path, number: u64) -> PathBuf {
    directory.join(number.to_string())
}

/// The files that will be cached.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    let directory = directory(volume);
    at("cannot create", &directory, fs::create_dir_all(&directory))?;
    for number in 0..FILES {
        let path = file(&directory, number);
        at("cannot write", &path, fs::write(&path, [7; 4096]))?;
    }
    Ok(())
}

/// The 99.9th percentile and the largest, in milliseconds.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let directory = directory(volume);
    for number in 0..FILES {
        touch(&file(&directory, number))?;
    }
    let over = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let others = [
            scope.spawn(|| write_large(&directory.join("large"), &over)),
            scope.spawn(|| create_small(&directory.join("small"), &over)),
            scope.spawn(|| checkpoints(volume, &over)),
        ];
        let mut random = Random(99);
        let begin = Instant::now();
        let measured = on_schedule(&|| begin.elapsed(), &std::thread::sleep, || {
            touch(&file(&directory, random.below(FILES)))
        });
        over.store(true, Ordering::Relaxed);
        let ended = others.map(|other| other.join().expect("a load does not panic"));
        ended.into_iter().fold(Ok(()), Result::and).and(measured)
    });
    let each_ms = measured?;
    let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];
    let points = quantiles.map(|share| (share * 100.0, percentile(&each_ms, share))).to_vec();
    let values = vec![percentile(&each_ms, 0.999), percentile(&each_ms, 1.0)];
    let measurement = Measurement { values, ..Measurement::default() };
    Ok(measurement.with("time of an operation", "percentile", "ms", points))
}

/// The time of each operation in milliseconds, from the moment when it was due. Whoever issues the next one only when the last has ended would
/// see a stall once, however long it is, and not those that it makes wait.
fn on_schedule(
    now: &dyn Fn() -> Duration,
    sleep: &dyn Fn(Duration),
    mut operation: impl FnMut() -> Result<(), Error>,
) -> Result<Vec<f64>, Error> {
    let mut each_ms = Vec::new();
    let mut due = Duration::ZERO;
    while due < TIME {
        let early = due.saturating_sub(now());
        if !early.is_zero() {
            sleep(early);
        }
        operation()?;
        each_ms.push(now().saturating_sub(due).as_secs_f64() * 1e3);
        due += PERIOD;
    }
    Ok(each_ms)
}

fn touch(path: &Path) -> Result<(), Error> {
    at("cannot look at", path, fs::metadata(path))?;
    let mut bytes = [0; 4096];
    at("cannot read", path, File::open(path).and_then(|mut file| file.read_exact(&mut bytes)))
}

fn write_large(path: &Path, over: &AtomicBool) -> Result<(), Error> {
    let mut chunk = vec![0; 1 << 20];
    fill(&mut chunk, 5);
    let mut opened = at("cannot create", path, File::create(path))?;
    let mut written = 0;
    while !over.load(Ordering::Relaxed) {
        if written == WRITTEN_BYTES_MAX {
            at("cannot seek in", path, opened.seek(SeekFrom::Start(0)))?;
            written = 0;
        }
        at("cannot write", path, opened.write_all(&chunk))?;
        written += chunk.len() as u64;
    }
    Ok(())
}

fn create_small(directory: &Path, over: &AtomicBool) -> Result<(), Error> {
    at("cannot create", directory, fs::create_dir_all(directory))?;
    let mut number = 0_u64;
    while !over.load(Ordering::Relaxed) {
        let path = file(directory, number % 20_000);
        at("cannot write", &path, fs::write(&path, [1; 200]))?;
        number += 1;
    }
    Ok(())
}

fn checkpoints(volume: &Volume, over: &AtomicBool) -> Result<(), Error> {
    let mut last = Instant::now();
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        if last.elapsed() > Duration::from_secs(2) {
            volume.sync()?;
            last = Instant::now();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Of the operations that one thread did one after the other, one in some hundred thousand was in a stall.
    #[test]
    fn a_stall_is_that_of_all_operations_that_were_due_meanwhile() {
        let clock = Cell::new(Duration::ZERO);
        let advance = |by: Duration| clock.set(clock.get() + by);
        let last = Cell::new(0);
        let each_ms = on_schedule(&|| clock.get(), &advance, || {
            let second = clock.get().as_secs();
            let stalls = second > last.replace(second);
            advance(if stalls { Duration::from_millis(400) } else { Duration::from_micros(5) });
            Ok(())
        });
        let each_ms = each_ms.unwrap();
        assert_eq!(each_ms.len(), 20_000);
        let [middle, high] = [0.5, 0.999].map(|share| percentile(&each_ms, share));
        assert!(middle < 0.1 && (390.0..=400.0).contains(&high), "{middle} {high}");
    }
}
