//! Small overwrites at random places of the large file, cold, with one fsync at the end.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::sequential;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::row::Measurement;
use crate::volume::Volume;

const WRITES: u64 = 65_536;

/// Aligned blocks of 4 KiB; writes done.
pub fn blocks(volume: &Volume) -> Result<Measurement, Error> {
    overwrite(volume, 4096, 4096)
}

/// Words of 4 bytes: less than a block, so that most file systems read the block first.
pub fn words(volume: &Volume) -> Result<Measurement, Error> {
    overwrite(volume, 4, 1)
}

fn overwrite(volume: &Volume, length: usize, align: u64) -> Result<Measurement, Error> {
    let path = sequential::path(volume);
    let file = at("cannot open", &path, File::options().write(true).open(&path))?;
    let mut bytes = vec![0; length];
    fill(&mut bytes, 2);
    let mut random = Random(length as u64);
    let places = (volume.options.size - length as u64) / align + 1;
    let begin = Instant::now();
    for _ in 0..WRITES {
        at("cannot write", &path, file.write_all_at(&bytes, random.next() % places * align))?;
    }
    at("cannot sync", &path, file.sync_all())?;
    Ok(Measurement::rate(begin, WRITES as f64))
}
