//! A set of files as Filebench makes it: sizes and widths of directories from a gamma distribution, a part of the files
//! made before, and names that are picked at random to be created, used and deleted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, at};
use crate::generate::{Random, fill};

/// How a set is made.
pub struct Shape {
    /// Names there are.
    pub files: usize,
    /// Of these, per cent that exist at the beginning.
    pub made_percent: usize,
    /// Mean size.
    pub mean_bytes: u64,
    /// Mean number of entries of a directory.
    pub mean_width: u64,
}

/// Names, and which of them exist.
pub struct FileSet {
    files: Vec<(PathBuf, u64)>,
    state: Mutex<State>,
}

struct State {
    existing: Vec<usize>,
    absent: Vec<usize>,
    /// How many use each file; it is not deleted meanwhile.
    users: Vec<u32>,
    random: Random,
}

impl FileSet {
    /// Chooses names and sizes below a directory. The same shape makes the same set.
    pub fn new(top: &Path, shape: &Shape) -> FileSet {
        let mut random = Random(shape.files as u64);
        let mut files: Vec<(PathBuf, u64)> = Vec::with_capacity(shape.files);
        let mut directory = 0;
        while files.len() < shape.files {
            let width = random.gamma(shape.mean_width).max(1) as usize;
            let place = place(top, directory, shape.mean_width, shape.files as u64);
            for number in 0..width.min(shape.files - files.len()) {
                files.push((place.join(format!("{number:08}")), random.gamma(shape.mean_bytes)));
            }
            directory += 1;
        }
        let mut order: Vec<usize> = (0..shape.files).collect();
        random.shuffle(&mut order);
        let absent = order.split_off(shape.files * shape.made_percent / 100);
        let users = vec![0; shape.files];
        FileSet { files, state: Mutex::new(State { existing: order, absent, users, random }) }
    }

    /// Makes the directories, and the files that exist at the beginning.
    pub fn make(&self) -> Result<(), Error> {
        for (path, _) in &self.files {
            let directory = path.parent().unwrap_or(path);
            at("cannot create", directory, fs::create_dir_all(directory))?;
        }
        let existing = self.state().existing.clone();
        for index in existing {
            let (path, bytes) = &self.files[index];
            at("cannot write", path, fs::write(path, contents(*bytes, index as u64)))?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Path and size of a file.
    pub fn file(&self, index: usize) -> (&Path, u64) {
        let (path, bytes) = &self.files[index];
        (path, *bytes)
    }

    /// Any file that exists; it stays until `done`.
    pub fn pick(&self) -> Option<usize> {
        let mut state = self.state();
        let State { existing, users, random, .. } = &mut *state;
        let index = *existing.get(random.below(existing.len().max(1) as u64) as usize)?;
        users[index] += 1;
        Some(index)
    }

    /// A file picked or created is not used any more.
    pub fn done(&self, index: usize) {
        self.state().users[index] -= 1;
    }

    /// A name that is free, for a new file; it is picked once that is `created`.
    pub fn pick_absent(&self) -> Option<usize> {
        let mut state = self.state();
        let State { absent, random, .. } = &mut *state;
        if absent.is_empty() {
            return None;
        }
        Some(absent.swap_remove(random.below(absent.len() as u64) as usize))
    }

    /// There is a file of this name now, which is picked.
    pub fn created(&self, index: usize) {
        let mut state = self.state();
        state.existing.push(index);
        state.users[index] += 1;
    }

    /// A file that nobody uses, and that nobody picks from now on.
    pub fn pick_to_delete(&self) -> Option<usize> {
        let mut state = self.state();
        let State { existing, users, random, .. } = &mut *state;
        let start = random.below(existing.len().max(1) as u64) as usize;
        let free = |place: &usize| users[existing[*place]] == 0;
        let place = (start..existing.len()).chain(0..start).find(free)?;
        Some(existing.swap_remove(place))
    }

    /// There is no file of this name any more.
    pub fn deleted(&self, index: usize) {
        self.state().absent.push(index);
    }
}

/// The directory of a number: a tree of the given width, as deep as the number of files asks for.
fn place(top: &Path, number: u64, width: u64, files: u64) -> PathBuf {
    let width = width.max(2);
    let mut levels = 1;
    let mut held = width;
    while held < files.div_ceil(width) {
        held = held.saturating_mul(width);
        levels += 1;
    }
    (0..levels).rev().fold(top.to_owned(), |path, level| {
        let above = width.saturating_pow(level);
        // Directories that came out small make more of them than the tree has room for; they go into its top.
        let digit = if level + 1 == levels { number / above } else { number / above % width };
        path.join(format!("d{digit:06}"))
    })
}

/// Bytes that do not compress.
pub fn contents(bytes: u64, seed: u64) -> Vec<u8> {
    let mut buffer = vec![0; bytes as usize];
    fill(&mut buffer, seed);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { files: 500, made_percent: 80, mean_bytes: 1000, mean_width: 20 };

    #[test]
    fn names_are_unique_and_sizes_have_their_mean() {
        let set = FileSet::new(Path::new("/top"), &SHAPE);
        let names: std::collections::BTreeSet<_> = set.files.iter().map(|file| &file.0).collect();
        assert_eq!(names.len(), SHAPE.files);
        let mean = set.files.iter().map(|file| file.1).sum::<u64>() / SHAPE.files as u64;
        assert!((800..1200).contains(&mean), "{mean}");
    }

    #[test]
    fn a_file_in_use_is_not_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let shape = Shape { files: 10, made_percent: 20, ..SHAPE };
        let set = FileSet::new(directory.path(), &shape);
        set.make().unwrap();
        let used = set.pick().unwrap();
        assert!(set.file(used).0.is_file());
        let other = set.pick_to_delete().unwrap();
        assert_ne!(used, other);
        assert_eq!(set.pick_to_delete(), None);
        set.deleted(other);
        set.done(used);
        assert_eq!(set.pick_to_delete(), Some(used));
        assert_eq!(set.pick(), None);
        let new = (0..9).map(|_| set.pick_absent().unwrap()).last().unwrap();
        assert_eq!(set.pick_absent(), None);
        set.created(new);
        assert_eq!(set.pick(), Some(new));
    }
}
