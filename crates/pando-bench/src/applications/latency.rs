//! How long an operation on cached files takes while others write, create and sync.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::report::statistics::percentile;
use crate::row::{Measurement, ms_since};
use crate::volume::Volume;

const FILES: u64 = 1000;
const TIME: Duration = Duration::from_secs(20);
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
    let mut each_ms = Vec::new();
    let measured = std::thread::scope(|scope| {
        let others = [
            scope.spawn(|| write_large(&directory.join("large"), &over)),
            scope.spawn(|| create_small(&directory.join("small"), &over)),
            scope.spawn(|| checkpoints(volume, &over)),
        ];
        let mut measure = || {
            let mut random = Random(99);
            let begin = Instant::now();
            while begin.elapsed() < TIME {
                let path = file(&directory, random.below(FILES));
                let operation = Instant::now();
                touch(&path)?;
                each_ms.push(ms_since(operation));
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        let ended = others.map(|other| other.join().expect("a load does not panic"));
        ended.into_iter().fold(measured, Result::and)
    });
    measured?;
    let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];
    let points = quantiles.map(|share| (share * 100.0, percentile(&each_ms, share))).to_vec();
    let values = vec![percentile(&each_ms, 0.999), percentile(&each_ms, 1.0)];
    let measurement = Measurement { values, ..Measurement::default() };
    Ok(measurement.with("time of an operation", "percentile", "ms", points))
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
