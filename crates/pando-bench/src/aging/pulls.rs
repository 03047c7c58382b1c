//! A developer's repository (FAST17 6), which pulls commit after commit from one outside of the volume.

use std::fs;
use std::path::PathBuf;

use super::grep_cost::age;
use crate::applications::git::{change, git};
use crate::compleat::source_tree::untar_parts;
use crate::error::{Error, at};
use crate::generate::Random;
use crate::owned;
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

fn pull(volume: &Volume, configuration: &'static [&str]) -> Result<Measurement, Error> {
    let mut repository = Repository::new(volume, configuration)?;
    let pulls = PULLS[usize::from(volume.options.full)];
    let measurement = age(volume, &tree(volume), (pulls, pulls / 4), |pull| repository.pull(pull));
    repository.end()?;
    measurement
}

/// The repository that pulls, or has pulled.
pub fn tree(volume: &Volume) -> PathBuf {
    volume.root.join("pulled")
}

/// Ages by pulls alone, unless an earlier row of the group has.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    if tree(volume).exists() {
        return Ok(());
    }
    let mut repository = Repository::new(volume, &COLLECTED)?;
    for pull in 0..=PULLS[usize::from(volume.options.full)] {
        repository.pull(pull)?;
    }
    repository.end()
}

/// A repository outside of the volume, which one on the volume pulls from.
struct Repository<'a> {
    volume: &'a Volume,
    upstream: PathBuf,
    configuration: &'static [&'static str],
    random: Random,
}

impl<'a> Repository<'a> {
    fn new(volume: &'a Volume, configuration: &'static [&str]) -> Result<Self, Error> {
        let upstream = owned::scratch(&volume.options.directory).join("upstream");
        if upstream.exists() {
            at("cannot remove", &upstream, fs::remove_dir_all(&upstream))?;
        }
        at("cannot create", &upstream, fs::create_dir_all(&upstream))?;
        untar_parts(volume, &upstream, &PARTS)?;
        git(&upstream, &["init", "-q"])?;
        Ok(Self { volume, upstream, configuration, random: Random(17) })
    }

    /// A commit, and what brings it to the volume: the first time a clone, then pulls.
    fn pull(&mut self, number: u64) -> Result<(), Error> {
        let upstream = &self.upstream;
        if number > 0 {
            change(upstream, &mut self.random)?;
        }
        git(upstream, &["add", "-A"])?;
        git(upstream, &["commit", "-q", "-m", "a commit"])?;
        let from = upstream.display().to_string();
        if number == 0 {
            return git(&self.volume.root, &["clone", "-q", "--no-hardlinks", &from, "pulled"]).map(drop);
        }
        git(&tree(self.volume), &[self.configuration, &["pull", "-q", "--ff-only"]].concat())?;
        self.volume.sync()
    }

    fn end(self) -> Result<(), Error> {
        at("cannot remove", &self.upstream, fs::remove_dir_all(&self.upstream))
    }
}
