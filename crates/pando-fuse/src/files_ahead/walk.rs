//! Which files come next: walks through trees that programs are on, a few steps ahead of each.
//!
//! A walk begins when two files of a directory were read one soon after the other in the order of its names, and goes on from there, down
//! into each directory where its name comes, and up again as far as the program listed directories. It goes so far ahead as it has been
//! right: the *window*, which begins small and doubles with each proof. Programs say nothing about files that they find in the kernel's
//! cache, so every few files one is a *mark*: left unread, to be heard of when the program comes to it. A program that goes elsewhere, or
//! stops, meets no mark, and costs no more than what is left of the window.

use std::collections::VecDeque;
use std::rc::Rc;

use super::message::Read;

/// Steps ahead at the beginning.
const WINDOW_MIN: usize = 16;

/// Steps ahead at the most. A step is a file, or the listing of a directory.
const WINDOW_MAX: usize = 512;

/// Marks in a window.
const MARKS: usize = 8;

/// Files between marks at the least.
const MARK_DISTANCE_MIN: usize = 4;

/// Names among which the next file is looked for: programs leave some out.
const NEAR: usize = 5;

/// Walks at a time.
const WALKS_MAX: usize = 4;

/// Directories in which a walk may begin.
const BEGINNINGS_MAX: usize = 8;

/// Names of all directories that a walk is in; what would make them more is passed over.
const NAMES_MAX: usize = 1 << 17;

/// What walks lead through. Paths are relative to the root of the mount, which is the empty one.
pub(super) trait Tree {
    /// The files and directories of a directory in the order in which they are listed; none if it cannot be listed.
    fn list(&mut self, directory: &[u8]) -> Vec<Name>;
    /// Has a file read into the kernel's cache.
    fn read(&mut self, file: &[u8]);
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    pub(super) is_directory: bool,
}

/// All walks, and what may become one.
#[derive(Default)]
pub(super) struct Walks {
    /// The one that was heard of last stands last.
    walks: Vec<Walk>,
    /// The latest stands last.
    beginnings: Vec<Beginning>,
}

/// A directory in which a file was read that no walk foresaw.
struct Beginning {
    directory: Vec<u8>,
    /// The first such file.
    name: Vec<u8>,
    /// From the second file on, and where in it the last one is.
    listing: Option<(Listing, Option<usize>)>,
}

type Listing = Rc<[Name]>;

/// A walk through one tree.
struct Walk {
    /// The directories from the topmost, behind whose last name it ends, to that where it is.
    levels: Vec<Level>,
    /// What was passed and is not known to be behind the program: files and directories.
    passed: VecDeque<Passed>,
    window: usize,
    since_mark: usize,
}

struct Level {
    path: Vec<u8>,
    names: Listing,
    next: usize,
}

struct Passed {
    path: Vec<u8>,
    is_mark: bool,
}

impl Walks {
    /// A program has read a file that was not in the cache.
    pub(super) fn note(&mut self, read: &Read, tree: &mut impl Tree) {
        if let Some(index) = self.walks.iter_mut().position(|walk| walk.note(&read.path)) {
            let walk = self.walks.remove(index);
            self.walks.push(walk);
        } else if let Some(walk) = self.begin(read, tree) {
            // The same program, most likely, which has left out more than was expected.
            self.walks.retain(|other| other.directory() != walk.directory());
            if self.walks.len() == WALKS_MAX {
                self.walks.remove(0);
            }
            self.walks.push(walk);
        }
    }

    /// Goes one step on with each walk; false if none may go on. The walks that are at their ends are no more.
    pub(super) fn step(&mut self, tree: &mut impl Tree) -> bool {
        let mut went_on = false;
        self.walks.retain_mut(|walk| {
            went_on |= walk.may_step() && walk.step(tree);
            !walk.levels.is_empty() || !walk.passed.is_empty()
        });
        went_on
    }

    /// True if nothing is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.walks.is_empty() && self.beginnings.is_empty()
    }

    /// A walk that begins behind a file, if that comes soon after the one read before.
    fn begin(&mut self, read: &Read, tree: &mut impl Tree) -> Option<Walk> {
        let (directory, name) = split(&read.path);
        let known = self.beginnings.iter().position(|known| known.directory == directory);
        let Some(mut beginning) = known.map(|index| self.beginnings.remove(index)) else {
            if self.beginnings.len() == BEGINNINGS_MAX {
                self.beginnings.remove(0);
            }
            let (directory, name) = (directory.to_vec(), name.to_vec());
            self.beginnings.push(Beginning { directory, name, listing: None });
            return None;
        };
        let (names, before) = beginning.listing.get_or_insert_with(|| {
            let names: Listing = tree.list(directory).into();
            let before = position(&names, 0, names.len(), &beginning.name);
            (names, before)
        });
        let soon = before.and_then(|before| position(names, before + 1, NEAR, name));
        let Some(index) = soon else {
            *before = position(names, 0, names.len(), name);
            self.beginnings.push(beginning);
            return None;
        };
        let (names, next) = (names.clone(), index + 1);
        let above = (read.depth..read.path.iter().filter(|&&byte| byte == b'/').count()).map(|depth| {
            let path = ancestor(&read.path, depth);
            let below = ancestor(&read.path, depth + 1);
            let names: Listing = tree.list(path).into();
            let next = position(&names, 0, names.len(), split(below).1).map_or(names.len(), |at| at + 1);
            Level { path: path.to_vec(), names, next }
        });
        let levels =
            above.collect::<Vec<_>>().into_iter().chain([Level { path: directory.to_vec(), names, next }]);
        Some(Walk { levels: levels.collect(), passed: VecDeque::new(), window: WINDOW_MIN, since_mark: 0 })
    }
}

impl Walk {
    /// Where it is; none at its end.
    fn directory(&self) -> Option<&[u8]> {
        self.levels.last().map(|level| &level.path[..])
    }

    /// True if it is this walk that leads to the file.
    fn note(&mut self, path: &[u8]) -> bool {
        if let Some(index) = self.passed.iter().position(|passed| passed.path == path) {
            if self.passed[index].is_mark {
                self.window = (self.window * 2).min(WINDOW_MAX);
            }
            self.passed.drain(..=index);
            return true;
        }
        // The program has come to where the walk is: past files that were in the cache all along, or faster than we are.
        let (directory, name) = split(path);
        let Some(level) = self.levels.last_mut().filter(|level| level.path == directory) else {
            return false;
        };
        let Some(index) = position(&level.names, level.next, NEAR, name) else { return false };
        level.next = index + 1;
        self.passed.clear();
        true
    }

    fn may_step(&self) -> bool {
        self.passed.len() < self.window
    }

    /// False at the end of the walk.
    fn step(&mut self, tree: &mut impl Tree) -> bool {
        let (path, is_directory) = loop {
            let Some(level) = self.levels.last_mut() else { return false };
            match level.names.get(level.next) {
                Some(name) => {
                    level.next += 1;
                    break (joined(&level.path, &name.name), name.is_directory);
                }
                None => drop(self.levels.pop()),
            }
        };
        self.since_mark += usize::from(!is_directory);
        let is_mark = !is_directory && self.since_mark > (self.window / MARKS).max(MARK_DISTANCE_MIN);
        if is_mark {
            self.since_mark = 0;
        } else if is_directory {
            let names: Listing = tree.list(&path).into();
            if names.len() + self.levels.iter().map(|level| level.names.len()).sum::<usize>() <= NAMES_MAX {
                self.levels.push(Level { path: path.clone(), names, next: 0 });
            }
        } else {
            tree.read(&path);
        }
        self.passed.push_back(Passed { path, is_mark });
        true
    }
}

/// Where a name is among so many from one on.
fn position(names: &[Name], from: usize, count: usize, name: &[u8]) -> Option<usize> {
    let index = names.iter().skip(from).take(count).position(|known| known.name == name)?;
    Some(from + index)
}

/// The directory of a path, and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        directory => [directory, b"/", name].concat(),
    }
}

/// So many names of a path.
fn ancestor(path: &[u8], depth: usize) -> &[u8] {
    let mut slashes = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(index, _)| index);
    match depth.checked_sub(1) {
        Some(before) => &path[..slashes.nth(before).unwrap_or(path.len())],
        None => b"",
    }
}

#[cfg(test)]
mod tests;
