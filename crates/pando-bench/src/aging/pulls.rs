//! A developer's repository (FAST17 6), which pulls commit after commit from one outside of the volume.

use std::fs;

use super::grep_cost::age;
use crate::applications::git::{change, git};
use crate::compleat::source_tree::untar_parts;
use crate::error::{Error, at};
use crate::generate::Random;
use crate::row::Measurement;
use crate::volume::Volume;

/// In the short run and in the full one.
const PULLS: [u64; 2] = [20, 60];
const PARTS: [&str; 3] = ["mm", "kernel", "lib"];

/// A pull leaves its objects as files of their own, as pulls of few objects do; many of them are collected into a pack. Git's
/// own limit would not be reached in so few pulls.
const COLLECTED: [&str; 4] = ["-c", "fetch.unpackLimit=1000000", "-c", "gc.auto=1000"];
const NOT_COLLECTED: [&str; 4] = ["-c", "fetch.unpackLimit=1000000", "-c", "gc.auto=0"];

/// Ages, and looks five times.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    pull(volume, &COLLECTED)
}

/// The same with no garbage collection by git.
pub fn run_without_collection(volume: &Volume) -> Result<Measurement, Error> {
    pull(volume, &NOT_COLLECTED)
}

fn pull(volume: &Volume, configuration: &[&str]) -> Result<Measurement, Error> {
    let upstream = volume.options.directory.join("upstream");
    if upstream.exists() {
        at("cannot remove", &upstream, fs::remove_dir_all(&upstream))?;
    }
    at("cannot create", &upstream, fs::create_dir_all(&upstream))?;
    untar_parts(volume, &upstream, &PARTS)?;
    git(&upstream, &["init", "-q"])?;
    let mut random = Random(17);
    let tree = volume.root.join("pulled");
    let pulls = PULLS[usize::from(volume.options.full)];
    let measurement = age(volume, &tree, (pulls, pulls / 4), |pull| {
        if pull > 0 {
            change(&upstream, &mut random)?;
        }
        git(&upstream, &["add", "-A"])?;
        git(&upstream, &["commit", "-q", "-m", "a commit"])?;
        let from = upstream.display().to_string();
        if pull == 0 {
            return git(&volume.root, &["clone", "-q", "--no-hardlinks", &from, "pulled"]).map(drop);
        }
        git(&tree, &[configuration, &["pull", "-q", "--ff-only"]].concat())?;
        volume.sync()
    });
    at("cannot remove", &upstream, fs::remove_dir_all(&upstream))?;
    measurement
}
