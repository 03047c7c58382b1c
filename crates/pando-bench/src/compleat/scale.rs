//! What happens to a rate as data grows: TokuBench with more and more files, and random overwrites of many times what the log
//! of a file system holds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::{sequential, toku};
use crate::device::Traffic;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::options::Options;
use crate::report::statistics::median;
use crate::row::{Measurement, per_second};
use crate::trace::{load_bytes, round};
use crate::volume::Volume;

/// Numbers of files, in per cent of `--many-files`.
const COUNTS_PERCENT: [u64; 3] = [30, 100, 300];

const BLOCK_BYTES: usize = 4096;
const STEPS: u64 = 40;
/// What is written is this part of the device: four times the log of PandoFS, and many times that of others.
const PART_WRITTEN: u64 = 4;

/// Files a second of the largest number, and how that stands to the smallest. Each number has a volume of its own.
pub fn toku(volume: &Volume) -> Result<Measurement, Error> {
    let (mut points, mut traffic) = (Vec::new(), Traffic::default());
    let device = volume.device.as_deref().unwrap_or(Path::new(""));
    for percent in COUNTS_PERCENT {
        let files = (volume.options.many_files * percent / 100).max(1);
        let volume = Volume { options: Options { files, ..volume.options.clone() }, ..volume.clone() };
        if !points.is_empty() {
            round::mark(round::UNMOUNT)?;
            volume.let_go()?;
        }
        round::mark(round::FORMAT)?;
        volume.make_for_many_files()?;
        volume.let_go()?;
        round::mark(round::MOUNT)?;
        volume.mount_cold()?;
        round::mark(round::LOAD)?;
        // Formats are no part of the load.
        let before = Traffic::of(device);
        let rate = toku::create(&volume)?.values.first().copied().unwrap_or_default();
        traffic = traffic.and(&Traffic::of(device).since(&before));
        points.push((files as f64, rate));
    }
    // What formats wrote is not the load's.
    load_bytes::are(points.iter().map(|point| point.0 as u64 * toku::FILE_BYTES as u64).sum());
    let [.., (_, largest)] = points[..] else { return Err(Error::Wrong("nothing was measured".to_owned())) };
    let values = vec![largest, largest / points[0].1];
    let traffic = volume.device.is_some().then_some(traffic);
    let measurement = Measurement { values, traffic, ..Measurement::default() };
    Ok(measurement.with("rate by number", "files", "files/s", points))
}

/// Writes a second, each part of them durable, and how the rate at the end stands to that at the beginning.
pub fn random(volume: &Volume) -> Result<Measurement, Error> {
    let path = sequential::path(volume);
    let file = at("cannot open", &path, File::options().write(true).open(&path))?;
    let blocks = (volume.options.size / BLOCK_BYTES as u64).max(1);
    let step = (volume.options.device_size / PART_WRITTEN / BLOCK_BYTES as u64 / STEPS).max(1);
    let mut bytes = vec![0; BLOCK_BYTES];
    fill(&mut bytes, 4);
    let mut random = Random(4);
    let begin = Instant::now();
    let mut points = Vec::new();
    for number in 1..=STEPS {
        let of_step = Instant::now();
        for _ in 0..step {
            let place = random.below(blocks) * BLOCK_BYTES as u64;
            bytes[..8].copy_from_slice(&random.next().to_le_bytes());
            at("cannot write", &path, file.write_all_at(&bytes, place))?;
        }
        at("cannot sync", &path, file.sync_all())?;
        let written_mib = (number * step * BLOCK_BYTES as u64) as f64 / (1 << 20) as f64;
        points.push((written_mib, per_second(step as f64, of_step.elapsed())));
    }
    let total = per_second((STEPS * step) as f64, begin.elapsed());
    let rates: Vec<f64> = points.iter().map(|point| point.1).collect();
    let quarter = rates.len() / 4;
    let kept = median(&rates[rates.len() - quarter..]) / median(&rates[..quarter]);
    let measurement = Measurement { values: vec![total, kept], ..Measurement::default() };
    Ok(measurement.with("rate of random writes", "MiB written", "writes/s", points))
}
