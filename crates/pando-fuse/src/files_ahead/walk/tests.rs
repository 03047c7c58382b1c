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
    /// Files that were read though they were in the cache.
    again: usize,
}

impl Tree for Memory {
    fn list(&mut self, directory: &[u8]) -> Vec<Name> {
        self.listings += 1;
        self.directories.get(directory).cloned().unwrap_or_default()
    }

    fn read(&mut self, file: &[u8]) {
        if self.cached.insert(file.to_vec()) {
            self.wasted.insert(file.to_vec());
        } else {
            self.again += 1;
        }
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
    assert!(run.tree.wasted.is_empty() && run.tree.again == 0);
    // Each directory, and the one above them.
    assert_eq!(run.tree.listings, 80 + 1);
    assert!(!run.walks.step(&mut run.tree) && run.walks.walks.iter().all(|walk| walk.directory().is_none()));
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
}

/// Each took the place of the other's first file, so neither walk ever began; and a walk ended all others below a directory that had been listed.
#[test]
fn programs_that_read_by_turns_are_all_followed() {
    for (names, depth) in [(["a", "b", "c", "d"], 2), (["a", "b", "c", "d"], 0)] {
        let mut tree = Memory::default();
        for name in names {
            (0..600).for_each(|file| tree.add(&format!("x/{name}/{:03}/{:03}", file / 30, file % 30)));
        }
        let mut run = Run { tree, ..Run::default() };
        let files = names.map(|name| run.tree.files(format!("x/{name}").as_bytes()));
        let mut asked = 0;
        for index in 0..600 {
            for files in &files {
                asked += usize::from(run.read(depth, &files[index]));
            }
        }
        assert!(asked < 240, "{asked} of 2400, from depth {depth}");
        // At the end of its own tree each may go on into that of the next.
        assert!(run.tree.again <= WALKS_MAX * WINDOW_MAX, "{} again", run.tree.again);
        assert!(run.walks.walks.len() <= WALKS_MAX);
    }
}

#[test]
fn more_directories_than_can_be_remembered_are_read_as_ever() {
    let mut tree = Memory::default();
    (0..2 * BEGINNINGS_MAX)
        .for_each(|directory| (0..50).for_each(|file| tree.add(&format!("{directory}/{file:02}"))));
    let mut run = Run { tree, ..Run::default() };
    for file in 0..50 {
        for directory in 0..2 * BEGINNINGS_MAX {
            assert!(run.read(1, format!("{directory}/{file:02}").as_bytes()));
        }
    }
    assert!(run.walks.beginnings.len() <= BEGINNINGS_MAX && run.tree.listings == 0);
}

#[test]
fn no_more_names_are_kept_than_a_walk_may_have() {
    let mut tree = Memory::default();
    let wide: Vec<Name> = (0..NAMES_MAX / 2)
        .map(|file| Name { name: format!("{file:06}").into_bytes(), is_directory: false })
        .collect();
    let below = |names: &[Name]| [&[Name { name: b"0".to_vec(), is_directory: true }], names].concat();
    tree.directories.insert(b"a".to_vec(), [wide[..2].to_vec(), below(&wide[2..])].concat());
    tree.directories.insert(b"a/0".to_vec(), below(&wide[2..]));
    tree.directories.insert(b"a/0/0".to_vec(), wide);
    let mut run = Run { tree, ..Run::default() };
    for file in ["a/000000", "a/000001"] {
        run.read(1, file.as_bytes());
    }
    let levels: Vec<_> = run.walks.walks[0].levels.iter().map(|level| &level.path[..]).collect();
    assert_eq!(levels, [&b"a"[..], b"a/0"], "not into the third");
    assert!(run.tree.cached.contains(&b"a/0/000002"[..]), "but past it");
}

#[test]
fn paths_are_taken_apart() {
    assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
    assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
    let ancestors: Vec<_> = (0..4).map(|depth| ancestor(b"a/bc/d", depth)).collect();
    assert_eq!(ancestors, [&b""[..], b"a", b"a/bc", b"a/bc/d"]);
}
