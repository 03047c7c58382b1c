//! rsync of the Linux source to another directory of the same volume.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use crate::command;
use crate::compleat::source_tree::{self, tree_bytes};
use crate::error::{Error, at};
use crate::row::{Measurement, per_second};
use crate::trace::load_bytes;
use crate::volume::Volume;

fn target(volume: &Volume) -> PathBuf {
    volume.root.join("rsync")
}

/// The source is there, and no copy of it.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    source_tree::ensure(volume)?;
    if volume.options.trace {
        // Its processes send each other what they write.
        load_bytes::are(tree_bytes(&source_tree::tree(volume))?);
    }
    let target = target(volume);
    if target.exists() { at("cannot remove", &target, fs::remove_dir_all(&target)) } else { Ok(()) }
}

/// Entries a second.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    copy(volume, &[])
}

/// Entries a second.
pub fn run_in_place(volume: &Volume) -> Result<Measurement, Error> {
    copy(volume, &["--inplace"])
}

fn copy(volume: &Volume, options: &[&str]) -> Result<Measurement, Error> {
    let from = format!("{}/", source_tree::tree(volume).display());
    let to = target(volume).display().to_string();
    let mut words = vec!["rsync", "-a"];
    words.extend(options);
    words.extend([from.as_str(), to.as_str()]);
    let begin = Instant::now();
    command::run(&words)?;
    volume.sync()?;
    let elapsed = begin.elapsed();
    Ok(Measurement::of(per_second(source_tree::count(volume)?, elapsed)))
}
