use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A tree in memory, and what the kernel would have in its cache.
#[derive(Default)]
struct Memory {
    /// The names of each directory, in the order of its listing.
    directories: BTreeMap<Vec<u8>, Vec<Name>>,
    cached: BTreeSet<Vec<u8>>,
    /// What was read by the helper and never by a program.
    wasted: BTreeSet<Vec<u8>>,
    listings: usize,
}

impl Tree for Memory {
    fn list(&mut self, directory: &[u8]) -> Vec<Name> {
        self.listings += 1;
        self.directories.get(directory).cloned().unwrap_or_default()
    }

    fn read(&mut self, file: &[u8]) {
        assert!(self.cached.insert(file.to_vec()), "{} once", String::from_utf8_lossy(file));
        self.wasted.insert(file.to_vec());
    }
}

impl Memory {
    fn add(&mut self, path: &str) {
        let mut is_directory = false;
        let mut path = path.as_bytes();
        loop {
            let (directory, name) = split(path);
            let names = self.directories.entry(directory.to_vec()).or_default();
            if !names.iter().any(|known| known.name == name) {
                names.push(Name { name: name.to_vec(), is_directory });
            }
            if directory.is_empty() {
                return;
            }
            (path, is_directory) = (directory, true);
        }
    }

    /// Directories of files and of directories of files.
    fn wide(directories: usize, files: usize) -> Self {
        let mut tree = Self::default();
        for directory in 0..directories {
            (0..files).for_each(|file| tree.add(&format!("top/{directory:03}/{file:03}")));
            (0..files).for_each(|file| tree.add(&format!("top/{directory:03}/100 below/{file:03}")));
        }
        tree
    }

    /// All files below a directory in the order of the listings.
    fn files(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let mut files = Vec::new();
        for name in &self.directories[directory] {
            let path = joined(directory, &name.name);
            if name.is_directory { files.extend(self.files(&path)) } else { files.push(path) }
        }
        files
    }
}

/// Programs, the daemon and the helper, one step after the other.
#[derive(Default)]
struct Run {
    walks: Walks,
    tree: Memory,
}

impl Run {
    /// A program whose walk began at a depth reads a file; true if it had to ask for it. Then the helper does all it may.
    fn read(&mut self, depth: usize, path: &[u8]) -> bool {
        self.tree.wasted.remove(path);
        let asked = self.tree.cached.insert(path.to_vec());
        if asked {
            self.walks.note(&Read { depth, path: path.to_vec() }, &mut self.tree);
            while self.walks.step(&mut self.tree) {}
        }
        asked
    }

    fn read_all(&mut self, depth: usize, files: &[Vec<u8>]) -> usize {
        files.iter().filter(|path| self.read(depth, path)).count()
    }
}

#[test]
fn a_program_that_reads_a_tree_asks_for_few_of_its_files() {
    let mut run = Run { tree: Memory::wide(40, 30), ..Run::default() };
    let files = run.tree.files(b"top");
    assert_eq!(files.len(), 2400);
    let asked = run.read_all(1, &files);
    assert!(asked < 100, "{asked} of 2400");
    assert!(run.tree.wasted.is_empty());
    // Each directory, and the one above them.
    assert_eq!(run.tree.listings, 80 + 1);
    assert!(!run.walks.step(&mut run.tree) && run.walks.walks.iter().all(|walk| walk.levels.is_empty()));
}

#[test]
fn a_walk_ends_where_it_began() {
    let mut run = Run { tree: Memory::wide(3, 30), ..Run::default() };
    let files = run.tree.files(b"top/001/100 below");
    run.read_all(3, &files);
    assert!(run.tree.cached.iter().all(|path| path.starts_with(b"top/001/100 below/")));
}

#[test]
fn files_in_another_order_are_not_followed() {
    let mut run = Run { tree: Memory::wide(1, 100), ..Run::default() };
    let files = run.tree.files(b"top/000/100 below");
    for index in 0..100 {
        // Far apart, and backwards.
        assert!(run.read(3, &files[(100 - index) * 61 % 100]));
    }
    assert!(run.tree.wasted.is_empty() && run.walks.walks.is_empty());
    assert_eq!(run.tree.listings, 1, "of the one directory");
}

#[test]
fn a_program_that_stops_costs_no_more_than_a_window() {
    for count in [2, 3, 40, 200, 900] {
        let mut run = Run { tree: Memory::wide(40, 30), ..Run::default() };
        let files = run.tree.files(b"top");
        run.read_all(1, &files[..count]);
        let window = run.walks.walks[0].window;
        assert!(window <= 16.max(2 * count * MARKS), "{count}: {window}");
        assert!(run.tree.wasted.len() <= window.min(WINDOW_MAX), "{count}: {}", run.tree.wasted.len());
    }
}

#[test]
fn some_files_may_be_left_out() {
    let mut run = Run { tree: Memory::wide(40, 30), ..Run::default() };
    let files: Vec<_> = run.tree.files(b"top").into_iter().step_by(3).collect();
    let asked = run.read_all(1, &files);
    assert!(asked < files.len() / 4, "{asked} of {}", files.len());
}

#[test]
fn a_program_is_found_again_where_it_went_past() {
    let mut run = Run { tree: Memory::wide(40, 30), ..Run::default() };
    let files = run.tree.files(b"top");
    // All but some were in the cache from before: no mark is met on the way.
    run.read_all(1, &files[..20]);
    let begun = run.walks.walks[0].passed.back().unwrap().path.clone();
    let head = files.iter().position(|path| *path == begun).unwrap() + 1;
    assert!(run.read(1, &files[head + 2]), "a little ahead of the walk");
    assert!(!run.read(1, &files[head + 3]), "which goes on from there");
    let asked = run.read_all(1, &files[head + 400..head + 800]);
    assert!(asked < 60, "far ahead, it begins anew: {asked}");
    assert_eq!(run.walks.walks.len(), 1);
}

#[test]
fn several_programs_are_followed() {
    let mut tree = Memory::default();
    for name in ["a", "b", "c", "d", "e"] {
        (0..300).for_each(|file| tree.add(&format!("{name}/{file:03}")));
    }
    let mut run = Run { tree, ..Run::default() };
    let mut asked = 0;
    for name in ["a", "b", "c", "d", "e"] {
        // Each has begun before the others go on.
        let files = run.tree.files(name.as_bytes());
        run.read_all(1, &files[..2]);
    }
    assert_eq!(run.walks.walks.len(), WALKS_MAX, "the oldest made room");
    for index in 2..300 {
        for name in ["b", "c", "d", "e"] {
            asked += usize::from(run.read(1, format!("{name}/{index:03}").as_bytes()));
        }
    }
    assert!(asked < 120, "{asked} of 1192");
}

#[test]
fn paths_are_taken_apart() {
    assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
    assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
    let ancestors: Vec<_> = (0..4).map(|depth| ancestor(b"a/bc/d", depth)).collect();
    assert_eq!(ancestors, [&b""[..], b"a", b"a/bc", b"a/bc/d"]);
    assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b""));
    assert!(!is_within(b"ab", b"a") && !is_within(b"a", b"a/b"));
}
