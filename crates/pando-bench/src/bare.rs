//! The device itself, as a column: what it does with no file system on it. fio gives the rates that sequential rows are held against;
//! its natural transfer size (FAST17 3.1 and figure 1) is a row of its own.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::command;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::row::{Measurement, Needs, Row, cost, per_second};
use crate::volume::Volume;

/// The column's name.
pub const NAME: &str = "device";

/// Rows that fio runs, and what it calls them.
const BY_FIO: [(&str, &str); 2] = [("sequential-write", "write"), ("cold-read", "read")];
const MIB: u64 = 1 << 20;
/// Direct I/O needs no more than this on any usual device.
const ALIGNMENT: usize = 4096;
const SIZES: std::ops::RangeInclusive<u32> = 12..=26;
/// For each size of read.
const TIME: Duration = Duration::from_secs(1);

/// Reads of growing size.
pub const TRANSFER_SIZE: &[Row] = &[Row {
    name: "natural-transfer-size",
    what: "direct reads of 4 KiB to 64 MiB at random places of the bare device, one at a time; sizes that reach 50 % and 90 % of the best bandwidth",
    short: true,
    needs: Needs::BareDevice,
    lines: &[cost("natural-transfer-size-50", "KiB"), cost("natural-transfer-size-90", "KiB")],
    prepare: write_all,
    measure: transfer_sizes,
}];

/// Whether fio is installed.
pub fn has_fio() -> bool {
    command::run(&["fio", "--version"]).is_ok()
}

/// Whether the device has a value for this row, with fio or without.
pub fn takes(row: &Row, with_fio: bool) -> bool {
    matches!(row.needs, Needs::BareDevice) || (with_fio && BY_FIO.iter().any(|(name, _)| *name == row.name))
}

/// What a row gives on the device itself.
pub fn measure(row: &Row, volume: &Volume) -> Result<Measurement, Error> {
    let Some((_, operation)) = BY_FIO.iter().find(|(name, _)| *name == row.name) else {
        (row.prepare)(volume)?;
        volume.make_cold()?;
        return (row.measure)(volume);
    };
    if *operation == "read" {
        // What was only allocated is not read from the device.
        write_all(volume)?;
    }
    volume.make_cold()?;
    let path = device(volume).display().to_string();
    let size = volume.options.size / MIB * MIB;
    let text = format!(
        "fio --name=bare --filename={path} --rw={operation} --size={size} --bs=1M --direct=1 --ioengine=libaio --iodepth=8 \
         --end_fsync=1 --output-format=json"
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    let rate = bandwidth(&command::run(&words)?, operation)?;
    Ok(Measurement::of(rate / MIB as f64))
}

/// Bytes a second in fio's answer.
fn bandwidth(answer: &str, operation: &str) -> Result<f64, Error> {
    // Warnings may stand ahead of it.
    let begin = answer.find('{').unwrap_or(0);
    let parsed: Option<serde_json::Value> = serde_json::from_str(&answer[begin..]).ok();
    let rate = parsed.as_ref().and_then(|value| value["jobs"][0][operation]["bw_bytes"].as_f64());
    rate.filter(|rate| *rate > 0.0)
        .ok_or_else(|| Error::Wrong(format!("fio says nothing of a rate: {answer}")))
}

fn device(volume: &Volume) -> &Path {
    volume.device.as_deref().unwrap_or(Path::new(""))
}

/// Memory that direct I/O takes: the whole, and where the aligned part begins.
fn aligned(length: usize) -> (Vec<u8>, usize) {
    let bytes = vec![0; length + ALIGNMENT];
    let begin = bytes.as_ptr().align_offset(ALIGNMENT);
    (bytes, begin)
}

fn open(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
    at("cannot open", path, options.open(path))
}

/// The part that is read is written once.
fn write_all(volume: &Volume) -> Result<(), Error> {
    let path = device(volume);
    let file = open(path)?;
    let (mut bytes, begin) = aligned(MIB as usize);
    let chunk = &mut bytes[begin..begin + MIB as usize];
    fill(chunk, 11);
    for index in 0..volume.options.size / MIB {
        chunk[..8].copy_from_slice(&index.to_le_bytes());
        at("cannot write", path, file.write_all_at(chunk, index * MIB))?;
    }
    at("cannot sync", path, file.sync_all())
}

fn transfer_sizes(volume: &Volume) -> Result<Measurement, Error> {
    let path = device(volume);
    let file = open(path)?;
    let mut random = Random(23);
    let mut points = Vec::new();
    for size in SIZES.map(|power| 1_u64 << power).filter(|size| *size <= volume.options.size / 4) {
        let (mut bytes, begin) = aligned(size as usize);
        let chunk = &mut bytes[begin..begin + size as usize];
        let places = volume.options.size / MIB * MIB / size;
        let (started, mut read) = (Instant::now(), 0);
        while started.elapsed() < TIME {
            at("cannot read", path, file.read_exact_at(chunk, random.below(places) * size))?;
            read += size;
        }
        points.push((size as f64 / 1024.0, per_second(read as f64 / MIB as f64, started.elapsed())));
    }
    let values = [0.5, 0.9].map(|share| reaching(&points, share)).to_vec();
    let measurement = Measurement { values, ..Measurement::default() };
    Ok(measurement.with("effective bandwidth", "KiB a read", "MiB/s", points))
}

/// The smallest size from which on this share of the best bandwidth is kept.
fn reaching(points: &[(f64, f64)], share: f64) -> f64 {
    let best = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let kept = points.iter().rev().take_while(|point| point.1 >= share * best);
    kept.last().or(points.last()).map_or(0.0, |point| point.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_size_is_where_the_share_is_kept() {
        let points = [(4.0, 10.0), (8.0, 60.0), (16.0, 40.0), (32.0, 55.0), (64.0, 95.0), (128.0, 100.0)];
        assert_eq!((reaching(&points, 0.5), reaching(&points, 0.9)), (32.0, 64.0));
        assert_eq!(reaching(&[], 0.5), 0.0);
        assert_eq!(reaching(&[(4.0, 10.0), (8.0, 1.0)], 0.5), 8.0);
    }

    #[test]
    fn the_rate_is_taken_from_fios_answer() {
        let answer =
            "fio: a note\n{\"jobs\": [{\"read\": {\"bw_bytes\": 0}, \"write\": {\"bw_bytes\": 1048576}}]}";
        assert_eq!(bandwidth(answer, "write").unwrap(), 1048576.0);
        assert!(bandwidth(answer, "read").is_err() && bandwidth("", "read").is_err());
    }

    #[test]
    fn memory_for_direct_io_is_aligned() {
        let (bytes, begin) = aligned(8192);
        assert_eq!(bytes[begin..begin + 8192].as_ptr().align_offset(ALIGNMENT), 0);
    }
}
