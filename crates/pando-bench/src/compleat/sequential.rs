//! One large file: written from its beginning to its end, and read cold.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command;
use crate::error::{Error, at};
use crate::generate::fill;
use crate::row::Measurement;
use crate::volume::Volume;

const MIB: u64 = 1 << 20;

/// The file that the random writes use too.
pub fn path(volume: &Volume) -> PathBuf {
    volume.root.join("large")
}

/// A new file must not overwrite an old one's blocks.
pub fn remove(volume: &Volume) -> Result<(), Error> {
    remove_file(&path(volume))
}

fn remove_file(path: &Path) -> Result<(), Error> {
    if path.exists() { at("cannot remove", path, fs::remove_file(path)) } else { Ok(()) }
}

/// Makes the file if its row was not asked for.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    if path(volume).exists() { Ok(()) } else { write(volume).map(drop) }
}

/// MiB written.
pub fn write(volume: &Volume) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let path = path(volume);
    let mut file = at("cannot create", &path, File::create(&path))?;
    let mut chunk = vec![0; MIB as usize];
    fill(&mut chunk, 1);
    for index in 0..volume.options.size / MIB {
        // Different chunks, at the price of eight bytes and not of a generator that is slower than the device.
        chunk[..8].copy_from_slice(&index.to_le_bytes());
        at("cannot write", &path, file.write_all(&chunk))?;
    }
    at("cannot sync", &path, file.sync_all())?;
    Ok(Measurement::rate(begin, (volume.options.size / MIB) as f64))
}

/// MiB read.
pub fn read(volume: &Volume) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let path = path(volume);
    let mut file = at("cannot open", &path, File::open(&path))?;
    let mut chunk = vec![0; MIB as usize];
    let mut bytes = 0;
    loop {
        match at("cannot read", &path, file.read(&mut chunk))? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    let wanted = volume.options.size / MIB * MIB;
    if bytes != wanted {
        return Err(Error::Wrong(format!("{} has {bytes} bytes instead of {wanted}", path.display())));
    }
    Ok(Measurement::rate(begin, (bytes / MIB) as f64))
}

fn copy_path(volume: &Volume) -> PathBuf {
    path(volume).with_extension("copy")
}

/// The file is there, and no copy of it.
pub fn ensure_alone(volume: &Volume) -> Result<(), Error> {
    ensure(volume)?;
    remove_file(&copy_path(volume))
}

/// MiB copied, by the program that people use.
pub fn copy(volume: &Volume) -> Result<Measurement, Error> {
    let copy = copy_path(volume);
    let [from, to] = [&path(volume), &copy].map(|path| path.display().to_string());
    let begin = Instant::now();
    command::run(&["cp".to_owned(), from, to])?;
    volume.sync()?;
    let measurement = Measurement::rate(begin, (volume.options.size / MIB) as f64);
    let length = at("cannot look at", &copy, fs::metadata(&copy))?.len();
    if length == volume.options.size / MIB * MIB {
        Ok(measurement)
    } else {
        Err(Error::Wrong(format!("cp made {length} bytes of {}", volume.options.size)))
    }
}
