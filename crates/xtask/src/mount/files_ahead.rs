//! A program that walks through a tree finds files in the kernel's cache before it has read them, always with what they hold; and whoever has them
//! read there keeps no mount from being unmounted, no volume from being closed, and is gone with the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use super::tool::{self, at, until};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

const DIRECTORIES: usize = 12;
const FILES: usize = 40;
/// Mounts that are unmounted in the midst of a walk, by turns with each of the two commands.
const ROUNDS: usize = 12;
/// Of the file that the kernel has cached when its mount goes.
const LARGE_BYTES: usize = 256 << 20;
/// The helper's name in /proc.
const HELPER: &str = "pando-files";

/// With a helper, and without one.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("no other file system has a daemon".to_owned()));
    }
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    for directory in 0..DIRECTORIES {
        let path = volume.root.join(format!("tree/{directory:02}"));
        tool::create_directory(&path)?;
        for file in 0..FILES {
            let path = path.join(format!("{file:02}"));
            at("cannot write", &path, fs::write(&path, contents(&path)))?;
        }
    }
    until("half of the files come into the cache before they are read", || {
        volume.remount()?;
        Ok(read_all(context, &volume)? >= DIRECTORIES * FILES / 2)
    })?;
    for round in 0..ROUNDS {
        volume.remount_while_reading(round % 2 == 0)?;
    }
    // With so much in the kernel's cache, and nothing to be written, the helper takes longer than the daemon alone.
    let large = volume.root.join("large");
    at("cannot write", &large, fs::write(&large, vec![1; LARGE_BYTES]))?;
    volume.remount()?;
    at("cannot read", &large, fs::read(&large))?;
    volume.remount_while_reading(false)?;
    let helper = begin_walk(&volume)?;
    volume.kill()?;
    until("the helper of a killed daemon has ended", || Ok(!is_helper(helper)))?;

    volume.set_options(&["-o", "without=files_ahead"]);
    volume.mount()?;
    read(&volume.root.join("tree/00"), 0..4)?;
    if helper_of(&volume)?.is_some() {
        return Err(Failure::Wrong("there is a helper without being allowed".to_owned()));
    }
    volume.finish()
}

impl Volume {
    /// Begins a walk, unmounts at once, and mounts again.
    fn remount_while_reading(&mut self, by_system: bool) -> Outcome {
        let helper = begin_walk(self)?;
        if by_system {
            self.umount_by_system()?;
            until("the helper has ended with its daemon", || Ok(!is_helper(helper)))?;
        } else {
            self.umount()?;
            if is_helper(helper) {
                return Err(Failure::Wrong("the helper is there behind the end of its daemon".to_owned()));
            }
        }
        self.mount()
    }
}

/// Reads all files in the order of the listings. How many were in the cache before; some of them are changed then, and read again.
fn read_all(context: &Context, volume: &Volume) -> Result<usize, Failure> {
    begin_walk(volume)?;
    let mut ahead = 0;
    for number in 0..DIRECTORIES {
        let directory = volume.root.join(format!("tree/{number:02}"));
        at("cannot list", &directory, fs::read_dir(&directory))?.for_each(drop);
        for file in 0..FILES {
            let path = directory.join(format!("{file:02}"));
            if is_cached(context, &path)? {
                ahead += 1;
                if file % 8 == 3 {
                    let new = [contents(&path), b"changed".to_vec()].concat();
                    at("cannot write", &path, fs::write(&path, &new))?;
                    is_right(&path, &new)?;
                    at("cannot write", &path, fs::write(&path, contents(&path)))?;
                }
            }
            is_right(&path, &contents(&path))?;
        }
    }
    Ok(ahead)
}

/// Lists and reads until there is a helper that has begun to read; its process.
fn begin_walk(volume: &Volume) -> Result<u32, Failure> {
    let tree = volume.root.join("tree");
    for path in [&tree, &tree.join("00")] {
        at("cannot list", path, fs::read_dir(path))?.for_each(drop);
    }
    let mut helper = None;
    until("there is a helper", || {
        helper = helper_of(volume)?;
        Ok(helper.is_some())
    })?;
    read(&tree.join("00"), 0..4)?;
    Ok(helper.expect("it was found"))
}

/// Whether the daemon has a helper that will end its connection for it if it is killed.
pub fn has_guard(volume: &Volume) -> Result<bool, Failure> {
    let Some(helper) = helper_of(volume)? else { return Ok(false) };
    let tasks = std::fs::read_dir(format!("/proc/{helper}/task")).into_iter().flatten().flatten();
    let mut names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    Ok(names.any(|name| name.trim_end() == "pando-guard"))
}

/// The daemon's helper, once it has its name.
fn helper_of(volume: &Volume) -> Result<Option<u32>, Failure> {
    let daemon = volume.daemon_id().expect("it is mounted");
    let path = Path::new("/proc");
    let processes = at("cannot list", path, fs::read_dir(path))?;
    let numbers = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parent = format!("\nPPid:\t{daemon}\n");
    Ok(numbers.into_iter().find(|number| status(*number).contains(&parent) && is_helper(*number)))
}

/// What the kernel tells of a process; nothing if there is none.
fn status(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default()
}

fn is_helper(process: u32) -> bool {
    let status = status(process);
    status.starts_with(&format!("Name:\t{HELPER}\n")) && !status.contains("\nState:\tZ")
}

/// Whether any page of a file is in the kernel's cache.
fn is_cached(context: &Context, path: &Path) -> Result<bool, Failure> {
    let mut command = context.program("fincore");
    let text = tool::output(command.args(["--noheadings", "--bytes", "--output", "PAGES"]).arg(path), "")?;
    Ok(text.trim() != "0")
}

fn read(directory: &Path, files: std::ops::Range<usize>) -> Outcome {
    for file in files {
        let path = directory.join(format!("{file:02}"));
        is_right(&path, &contents(&path))?;
    }
    Ok(())
}

fn is_right(path: &Path, contents: &[u8]) -> Outcome {
    let found = at("cannot read", path, fs::read(path))?;
    if found == contents { Ok(()) } else { Err(Failure::Wrong(format!("{} is wrong", path.display()))) }
}

/// What a file holds: its name, some times, so that no two are alike.
fn contents(path: &Path) -> Vec<u8> {
    let name: PathBuf = path.components().rev().take(2).collect();
    name.to_string_lossy().repeat(1000).into_bytes()
}
