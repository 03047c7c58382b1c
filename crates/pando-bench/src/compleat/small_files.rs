//! Files of 200 bytes by several threads, each in directories of its own.

use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::error::{Error, at};
use crate::generate::fill;
use crate::row::Measurement;
use crate::volume::Volume;

const THREADS: u64 = 4;
const FILE_BYTES: usize = 200;
const FILES_PER_DIRECTORY: u64 = 1000;

/// What an earlier run left.
pub fn remove(volume: &Volume) -> Result<(), Error> {
    let path = volume.root.join("small");
    if path.exists() { at("cannot remove", &path, fs::remove_dir_all(&path)) } else { Ok(()) }
}

/// Files created.
pub fn create(volume: &Volume) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let files = fill_directory(&volume.root.join("small"), volume.options.files)?;
    volume.sync()?;
    Ok(Measurement::rate(begin, files as f64))
}

/// Makes at least so many files; how many.
pub fn fill_directory(directory: &Path, files: u64) -> Result<u64, Error> {
    let each = files.div_ceil(THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let place = directory.join(thread.to_string());
                scope.spawn(move || one_thread(&place, each))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a writer does not panic"))
    })?;
    Ok(each * THREADS)
}

fn one_thread(place: &Path, files: u64) -> Result<(), Error> {
    let mut contents = [0; FILE_BYTES];
    fill(&mut contents, 3);
    let mut directory = place.to_owned();
    for number in 0..files {
        if number % FILES_PER_DIRECTORY == 0 {
            directory = place.join((number / FILES_PER_DIRECTORY).to_string());
            at("cannot create", &directory, fs::create_dir_all(&directory))?;
        }
        let path = directory.join(number.to_string());
        at("cannot write", &path, fs::write(&path, contents))?;
    }
    Ok(())
}
