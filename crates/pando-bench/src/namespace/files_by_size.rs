//! Files from 4 KiB to the size of the large file, in steps of four: renamed and unlinked.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::directories::rename_synced;
use crate::aging::pulls;
use crate::error::{Error, at};
use crate::generate::fill;
use crate::row::{Measurement, ms_since, per_second};
use crate::volume::Volume;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const RENAMES: u32 = 100;

fn directory(volume: &Volume) -> PathBuf {
    volume.root.join("sizes")
}

fn sizes(largest: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(4 * KIB), |size| size.checked_mul(4)).take_while(move |size| *size <= largest)
}

/// In the repository that has aged.
fn aged_directory(volume: &Volume) -> PathBuf {
    pulls::tree(volume).join("sizes")
}

/// One file of each size.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    make(volume, directory(volume))
}

/// The same on an aged volume.
pub fn ensure_aged(volume: &Volume) -> Result<(), Error> {
    pulls::ensure(volume)?;
    make(volume, aged_directory(volume))
}

fn make(volume: &Volume, directory: PathBuf) -> Result<(), Error> {
    at("cannot create", &directory, fs::create_dir_all(&directory))?;
    let mut chunk = vec![0; MIB as usize];
    fill(&mut chunk, 4);
    for size in sizes(volume.options.size) {
        let path = directory.join(size.to_string());
        if path.exists() {
            continue;
        }
        let mut file = at("cannot create", &path, File::create(&path))?;
        for place in (0..size).step_by(MIB as usize) {
            chunk[..8].copy_from_slice(&place.to_le_bytes());
            at("cannot write", &path, file.write_all(&chunk[..(size - place).min(MIB) as usize]))?;
        }
    }
    volume.sync()
}

/// Renames a second by size in KiB; the value is the slowest.
pub fn rename(volume: &Volume) -> Result<Measurement, Error> {
    rename_in(volume, directory(volume))
}

/// The same on an aged volume.
pub fn rename_aged(volume: &Volume) -> Result<Measurement, Error> {
    rename_in(volume, aged_directory(volume))
}

fn rename_in(volume: &Volume, directory: PathBuf) -> Result<Measurement, Error> {
    let mut points = Vec::new();
    for size in sizes(volume.options.size) {
        let (here, there) = (directory.join(size.to_string()), directory.join("renamed"));
        // The first rename finds cold caches, which depend on the file's neighbours and not on its size.
        rename_synced(&here, &there)?;
        rename_synced(&there, &here)?;
        let begin = Instant::now();
        for _ in 0..RENAMES / 2 {
            rename_synced(&here, &there)?;
            rename_synced(&there, &here)?;
        }
        points.push(((size / KIB) as f64, per_second(f64::from(RENAMES), begin.elapsed())));
    }
    let slowest = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    Ok(Measurement::of(slowest).with("renames by size", "KiB", "renames/s", points))
}

/// Milliseconds by size in KiB; the value is the slowest.
pub fn unlink(volume: &Volume) -> Result<Measurement, Error> {
    let directory = directory(volume);
    let remove_synced = |path: &Path| {
        at("cannot remove", path, fs::remove_file(path))?;
        at("cannot sync", &directory, File::open(&directory).and_then(|opened| opened.sync_all()))
    };
    // The first finds cold caches, whatever its size.
    let first = directory.join("first");
    at("cannot write", &first, fs::write(&first, [1; KIB as usize]))?;
    remove_synced(&first)?;
    let mut points = Vec::new();
    for size in sizes(volume.options.size) {
        let path = directory.join(size.to_string());
        let begin = Instant::now();
        remove_synced(&path)?;
        points.push(((size / KIB) as f64, ms_since(begin)));
    }
    let slowest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    Ok(Measurement::of(slowest).with("unlinks by size", "KiB", "ms", points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_in_steps_of_four() {
        assert_eq!(sizes(70 * KIB).collect::<Vec<_>>(), [4 * KIB, 16 * KIB, 64 * KIB]);
        assert_eq!(sizes(4 << 30).last(), Some(4 << 30));
        assert_eq!(sizes(u64::MAX).count(), 26);
    }
}
