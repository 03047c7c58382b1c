//! Cold greps of a tree, of its clone, and of itself after a rename.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::directories::rename_synced;
use crate::compleat::source_tree;
use crate::error::Error;
use crate::report::statistics::median;
use crate::row::Measurement;
use crate::volume::Volume;

const GREPS: usize = 3;

fn clone(volume: &Volume) -> PathBuf {
    volume.root.join("linux-clone")
}

fn moved(volume: &Volume) -> PathBuf {
    volume.root.join("moved")
}

/// The tree, unless it has been renamed.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    if moved(volume).exists() { Ok(()) } else { source_tree::ensure(volume) }
}

/// Clones the tree.
pub fn make_clone(volume: &Volume) -> Result<(), Error> {
    ensure(volume)?;
    if clone(volume).exists() {
        return Ok(());
    }
    volume.clone_directory(&source_tree::tree(volume), &clone(volume))?;
    volume.sync()
}

/// Renames the tree.
pub fn rename(volume: &Volume) -> Result<(), Error> {
    ensure(volume)?;
    if moved(volume).exists() {
        return Ok(());
    }
    rename_synced(&source_tree::tree(volume), &moved(volume))
}

/// Entries a second.
pub fn original(volume: &Volume) -> Result<Measurement, Error> {
    grep(volume, &source_tree::tree(volume))
}

/// Entries a second.
pub fn cloned(volume: &Volume) -> Result<Measurement, Error> {
    grep(volume, &clone(volume))
}

/// Entries a second.
pub fn renamed(volume: &Volume) -> Result<Measurement, Error> {
    grep(volume, &moved(volume))
}

fn grep(volume: &Volume, tree: &Path) -> Result<Measurement, Error> {
    let mut seconds = Vec::new();
    for _ in 0..GREPS {
        volume.make_cold()?;
        let begin = Instant::now();
        source_tree::grep_in(tree)?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(Measurement::of(source_tree::count(volume)? / median(&seconds)))
}
