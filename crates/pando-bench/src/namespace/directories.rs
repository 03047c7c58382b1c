//! Renames and clones of whole directories.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::aging::pulls;
use crate::compleat::source_tree;
use crate::error::{Error, at};
use crate::report::statistics::median;
use crate::row::{Measurement, ms_since};
use crate::volume::Volume;

/// After one there and back, which brings what is cold into memory.
const RENAMES: usize = 400;
/// As many as in the THESIS.
const RENAMES_AGED: usize = 100;
const SETTLES: usize = 5;
const CLONES: usize = 3;
const WRITTEN_DIRECTORIES: usize = 8;

fn empty(volume: &Volume) -> PathBuf {
    volume.root.join("empty")
}

fn other(volume: &Volume) -> PathBuf {
    volume.root.join("other")
}

fn make(path: &Path) -> Result<(), Error> {
    at("cannot create", path, fs::create_dir_all(path))
}

/// A directory of 8 empty ones, and the directory to move to.
pub fn make_empty(volume: &Volume) -> Result<(), Error> {
    make(&other(volume))?;
    (0..WRITTEN_DIRECTORIES).try_for_each(|number| make(&empty(volume).join(number.to_string())))
}

/// The source, and the directory to move to.
pub fn make_tree(volume: &Volume) -> Result<(), Error> {
    make(&other(volume))?;
    source_tree::ensure(volume)
}

/// Renames of the empty directory a second.
pub fn rename_empty(volume: &Volume) -> Result<Measurement, Error> {
    rename(volume, &empty(volume), RENAMES)
}

/// Renames of the source a second.
pub fn rename_tree(volume: &Volume) -> Result<Measurement, Error> {
    rename(volume, &source_tree::tree(volume), RENAMES)
}

/// A repository that has aged, and the directory to move to.
pub fn make_aged(volume: &Volume) -> Result<(), Error> {
    make(&other(volume))?;
    pulls::ensure(volume)
}

/// Renames of it a second.
pub fn rename_aged(volume: &Volume) -> Result<Measurement, Error> {
    rename(volume, &pulls::tree(volume), RENAMES_AGED)
}

/// From its place to the other directory, and back the next time.
fn places(volume: &Volume, here: &Path, number: usize) -> (PathBuf, PathBuf) {
    let there = other(volume).join(here.file_name().unwrap_or_default());
    if number.is_multiple_of(2) { (here.to_owned(), there) } else { (there, here.to_owned()) }
}

fn rename(volume: &Volume, here: &Path, renames: usize) -> Result<Measurement, Error> {
    let move_once = |number| {
        let (from, to) = places(volume, here, number);
        rename_synced(&from, &to)
    };
    (0..2).try_for_each(move_once)?;
    let begin = Instant::now();
    (0..renames).try_for_each(move_once)?;
    Ok(Measurement::rate(begin, renames as f64))
}

/// A rename that is durable when this returns.
pub fn rename_synced(from: &Path, to: &Path) -> Result<(), Error> {
    at("cannot rename", from, fs::rename(from, to))?;
    let parent = to.parent().unwrap_or(to);
    at("cannot sync", parent, File::open(parent).and_then(|directory| directory.sync_all()))
}

/// Milliseconds for the empty directory.
pub fn settle_empty(volume: &Volume) -> Result<Measurement, Error> {
    settle(volume, &empty(volume))
}

/// Milliseconds for the source.
pub fn settle_tree(volume: &Volume) -> Result<Measurement, Error> {
    settle(volume, &source_tree::tree(volume))
}

/// A rename together with the work that a file system may have put off until after it.
fn settle(volume: &Volume, here: &Path) -> Result<Measurement, Error> {
    let mut names = written_directories(here)?;
    if names.len() < WRITTEN_DIRECTORIES {
        return Err(Error::Wrong(format!("{} has only {} directories", here.display(), names.len())));
    }
    names.truncate(WRITTEN_DIRECTORIES);
    let mut total_ms = Vec::new();
    // An even number of renames puts it back; the first is not counted: it finds cold caches.
    for number in 0..=SETTLES {
        let (from, to) = places(volume, here, number);
        let begin = Instant::now();
        rename_synced(&from, &to)?;
        volume.checkpoint()?;
        for name in &names {
            let path = to.join(name).join("settle");
            at("cannot write", &path, fs::write(&path, b"one write below a directory that was renamed"))?;
        }
        if number > 0 {
            total_ms.push(ms_since(begin));
        }
    }
    Ok(Measurement::of(median(&total_ms)))
}

/// Directories in the given one, relative to it, in order; in its only child if it has but one, as unpacked archives have.
fn written_directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut names = Vec::new();
    for entry in at("cannot list", directory, fs::read_dir(directory))? {
        let entry = at("cannot list", directory, entry)?;
        if at("cannot look at", &entry.path(), entry.file_type())?.is_dir() {
            names.push(PathBuf::from(entry.file_name()));
        }
    }
    names.sort();
    match &names[..] {
        [only] => {
            let inner = written_directories(&directory.join(only))?;
            Ok(inner.into_iter().map(|name| only.join(name)).collect())
        }
        _ => Ok(names),
    }
}

/// Milliseconds until the clone is durable, the start of the program that clones included.
pub fn clone_tree(volume: &Volume) -> Result<Measurement, Error> {
    let mut each_ms = Vec::new();
    let directory = volume.root.join("clones");
    make(&directory)?;
    for number in 0..CLONES {
        let target = directory.join(number.to_string());
        let begin = Instant::now();
        volume.clone_directory(&source_tree::tree(volume), &target)?;
        volume.sync()?;
        each_ms.push(ms_since(begin));
        if written_directories(&target)?.is_empty() {
            return Err(Error::Wrong(format!("{} is empty", target.display())));
        }
    }
    Ok(Measurement::of(median(&each_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_only_child_is_entered() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        assert_eq!(written_directories(top).unwrap(), Vec::<PathBuf>::new());
        for name in ["linux/b", "linux/a"] {
            make(&top.join(name)).unwrap();
        }
        fs::write(top.join("file"), "").unwrap();
        assert_eq!(written_directories(top).unwrap(), ["linux/a", "linux/b"].map(PathBuf::from));
    }
}
