//! git on a repository whose history is generated: a part of the Linux source, and commits that change, add and remove
//! files of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command;
use crate::compleat::source_tree;
use crate::error::{Error, at};
use crate::generate::Random;
use crate::row::Measurement;
use crate::trace::load_bytes;
use crate::volume::Volume;

const PARTS: [&str; 5] = ["fs", "mm", "kernel", "block", "lib"];
const COMMITS: u64 = 20;

fn repository(volume: &Volume) -> PathBuf {
    volume.root.join("repository")
}

/// What keeps git from the configuration of the user and of the machine. The last is where it looks for a user's attributes and files to ignore.
const NO_OTHERS: [(&str, &str); 4] = [
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("XDG_CONFIG_HOME", "/dev/null"),
];

/// git, in a repository, with no configuration but this.
pub fn git(directory: &Path, arguments: &[&str]) -> Result<String, Error> {
    let mut words = vec!["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    words.extend(["-c", "gc.autoDetach=false", "-c", "safe.directory=*"]);
    words.extend(arguments);
    command::run_with(directory, &NO_OTHERS, &words)
}

/// All regular files below a directory, in order, `.git` left out.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut entries = Vec::new();
    for entry in at("cannot list", directory, fs::read_dir(directory))? {
        entries.push(at("cannot list", directory, entry)?);
    }
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let kind = at("cannot look at", &entry.path(), entry.file_type())?;
        if kind.is_dir() && entry.file_name() != ".git" {
            found.extend(files(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// One commit's worth of changes: files that grow, that change in the middle, that go and that come.
pub fn change(directory: &Path, random: &mut Random) -> Result<(), Error> {
    let all = files(directory)?;
    let count = all.len() as u64;
    for number in 0..count / 10 {
        let path = &all[random.below(count) as usize];
        if !path.exists() {
            continue;
        }
        let mut text = at("cannot read", path, fs::read(path))?;
        match random.below(8) {
            0 => at("cannot remove", path, fs::remove_file(path))?,
            1 => {
                let name = format!("new-{:x}-{number}.c", random.next());
                let new = path.with_file_name(name);
                at("cannot write", &new, fs::write(&new, &text))?;
            }
            2..=4 => {
                text.extend_from_slice(format!("/* {:x} */\n", random.next()).as_bytes());
                at("cannot write", path, fs::write(path, &text))?;
            }
            _ => {
                let place = random.below(text.len() as u64 + 1) as usize;
                let line = format!("\n/* {:x} */\n", random.next());
                text.splice(place..place, line.into_bytes());
                at("cannot write", path, fs::write(path, &text))?;
            }
        }
    }
    Ok(())
}

/// The repository with its history.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    let place = repository(volume);
    if place.exists() {
        return Ok(());
    }
    at("cannot create", &place, fs::create_dir(&place))?;
    source_tree::untar_parts(volume, &place, &PARTS)?;
    git(&place, &["init", "-q"])?;
    let mut random = Random(7);
    for number in 0..=COMMITS {
        if number > 0 {
            change(&place, &mut random)?;
        }
        git(&place, &["add", "-A"])?;
        git(&place, &["commit", "-q", "-m", "a commit"])?;
        git(&place, &["tag", &format!("v{number}")])?;
    }
    volume.sync()
}

/// Seconds.
pub fn clone(volume: &Volume) -> Result<Measurement, Error> {
    let target = volume.root.join("cloned-repository");
    if target.exists() {
        at("cannot remove", &target, fs::remove_dir_all(&target))?;
        volume.make_cold()?;
    }
    let begin = Instant::now();
    git(&volume.root, &["clone", "-q", "--no-hardlinks", "repository", "cloned-repository"])?;
    volume.sync()?;
    Ok(Measurement::of(begin.elapsed().as_secs_f64()))
}

/// Seconds.
pub fn diff(volume: &Volume) -> Result<Measurement, Error> {
    load_bytes::are(0);
    let begin = Instant::now();
    let text = git(&repository(volume), &["diff", "v0", &format!("v{COMMITS}")])?;
    let elapsed = begin.elapsed();
    if text.is_empty() {
        return Err(Error::Wrong("the first and the last commit are equal".to_owned()));
    }
    Ok(Measurement::of(elapsed.as_secs_f64()))
}
