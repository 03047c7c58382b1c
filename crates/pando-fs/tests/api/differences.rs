//! What is told of the difference between two snapshots, against the difference that a look at both finds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pando_device::simulated::Random;
use pando_engine::FormatOptions;
use pando_fs::difference::{Entry, What};
use pando_fs::operations::{
    FileType, Operations, ROOT, RenameMode, SNAPSHOTS, SetAttributes, WriteMode, XattrMode, waiting,
};
use pando_fs::{Error, InodeNumber};

use crate::common::Volume;

fn take(volume: &Volume, name: &str) {
    waiting(&*volume.fs, |fs| fs.take_snapshot(name.as_bytes(), false)).unwrap();
}

fn entries(volume: &Volume, old: &str, new: Option<&str>, renames: bool) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut emit = |entry: &Entry| {
        entries.push(entry.clone());
        true
    };
    volume.fs.differences(old.as_bytes(), new.map(str::as_bytes), renames, &mut emit).unwrap();
    entries
}

/// As the command prints them, sorted.
fn lines(volume: &Volume, old: &str, new: Option<&str>, renames: bool) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = |entry: Entry| match &entry.what {
        What::Created => format!("+ {}", text(&entry.path)),
        What::Deleted => format!("- {}", text(&entry.path)),
        What::Changed => format!("M {}", text(&entry.path)),
        What::Renamed(from) => format!("R {} -> {}", text(from), text(&entry.path)),
    };
    let mut lines: Vec<_> = entries(volume, old, new, renames).into_iter().map(line).collect();
    lines.sort();
    lines
}

fn write(volume: &Volume, path: &str, bytes: &[u8]) {
    let file = volume.walk(path).unwrap();
    waiting(&*volume.fs, |fs| fs.write(file, 0, bytes.to_vec().into(), WriteMode::PLAIN)).unwrap();
}

#[test]
fn each_kind_of_change_is_told() {
    let volume = Volume::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| volume.directory(ROOT, name));
    for name in ["kept", "written", "moded", "tagged", "deleted", "moved", "replaced", "linked"] {
        volume.file(a, name);
    }
    for number in 0..20 {
        let deep = volume.directory(b, &format!("d{number}"));
        volume.file(deep, "file");
    }
    volume.file(c, "x");
    take(&volume, "old");
    assert_eq!(lines(&volume, "old", None, true), [""; 0]);
    write(&volume, "a/written", b"text");
    let find = |path: &str| volume.walk(path).unwrap();
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    volume.fs.set_attributes(find("a/moded"), &mode).unwrap();
    volume.fs.set_xattr(find("a/tagged"), b"user.tag", b"1", XattrMode::Set, false).unwrap();
    volume.fs.unlink(a, b"deleted").unwrap();
    volume.rename(a, "moved", c, "moved too").unwrap();
    volume.fs.unlink(a, b"replaced").unwrap();
    volume.file(a, "replaced");
    volume.fs.link(find("a/linked"), c, b"other").unwrap();
    volume.rename(ROOT, "b", c, "inside").unwrap();
    write(&volume, "c/inside/d7/file", b"text");
    let made = volume.directory(ROOT, "made");
    volume.file(made, "new");
    take(&volume, "new");
    let expected = [
        "+ /a/replaced",
        "+ /c/other",
        "+ /made",
        "+ /made/new",
        "- /a/deleted",
        "- /a/replaced",
        "M /",
        "M /a",
        "M /a/linked",
        "M /a/moded",
        "M /a/tagged",
        "M /a/written",
        "M /c",
        "M /c/inside/d7/file",
        "R /a/moved -> /c/moved too",
        "R /b -> /c/inside",
    ];
    assert_eq!(lines(&volume, "old", Some("new"), true), expected);
    assert_eq!(lines(&volume, "old", None, true), expected);
    let plain = lines(&volume, "old", Some("new"), false);
    assert!(plain.contains(&"- /b/d3/file".to_owned()) && plain.contains(&"+ /c/inside/d3/file".to_owned()));
    assert!(!plain.iter().any(|line| line.starts_with('R')));
    let tagged = entries(&volume, "old", Some("new"), true);
    let tagged = tagged.iter().find(|entry| entry.path == "/a/tagged").unwrap();
    assert!(tagged.xattrs && !tagged.contents && !tagged.attributes && !tagged.links);
}

/// Its value lies elsewhere, and the record says how long it is alone.
#[test]
fn a_large_attribute_that_is_as_long_as_before_has_changed() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    let put = |byte| volume.fs.set_xattr(file, b"user.large", &[byte; 6000], XattrMode::Set, false).unwrap();
    put(1);
    take(&volume, "old");
    put(2);
    take(&volume, "new");
    let entries = entries(&volume, "old", Some("new"), true);
    let changed = entries.iter().find(|entry| entry.path == "/f").unwrap();
    assert!(changed.xattrs && !changed.contents && !changed.attributes && !changed.links);
}

#[test]
fn names_of_one_file_are_not_paired_at_random() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "one");
    volume.fs.link(file, ROOT, b"two").unwrap();
    volume.fs.link(file, ROOT, b"three").unwrap();
    take(&volume, "old");
    volume.rename(ROOT, "one", ROOT, "uno").unwrap();
    take(&volume, "one renamed");
    volume.rename(ROOT, "two", ROOT, "due").unwrap();
    write(&volume, "due", b"text");
    take(&volume, "two renamed");
    assert_eq!(
        lines(&volume, "old", Some("one renamed"), true),
        ["M /", "M /three", "M /two", "R /one -> /uno"]
    );
    let two = ["+ /due", "+ /uno", "- /one", "- /two", "M /", "M /three"];
    assert_eq!(lines(&volume, "old", Some("two renamed"), true), two);
}

#[test]
fn a_clone_is_no_rename_and_a_deleted_snapshot_no_answer() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    for number in 0..50 {
        volume.file(a, &format!("f{number:02}"));
    }
    take(&volume, "old");
    waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], a, ROOT, b"b")).unwrap();
    for name in volume.names(a) {
        volume.fs.unlink(a, name.as_bytes()).unwrap();
    }
    volume.fs.remove_directory(ROOT, b"a").unwrap();
    take(&volume, "new");
    let found = lines(&volume, "old", Some("new"), true);
    assert_eq!(found.len(), 51 + 51 + 1, "{found:?}");
    assert!(found.iter().all(|line| !line.starts_with('R')), "{found:?}");
    let mut told = 0;
    let mut emit = |_: &Entry| {
        if told == 0 {
            waiting(&*volume.fs, |fs| fs.delete_snapshot(b"new")).unwrap();
        }
        told += 1;
        true
    };
    let outcome = volume.fs.differences(b"old", Some(b"new"), false, &mut emit);
    assert_eq!(outcome, Err(Error::Stale));
    assert_eq!(volume.fs.differences(b"old", Some(b"new"), true, &mut |_| true), Err(Error::NotFound));
}

/// Of a directory that finds its other half late, children had found theirs; they were told as deleted once more.
#[test]
fn what_was_renamed_out_of_a_directory_is_told_once() {
    let volume = Volume::new();
    let [p, s] = ["P", "S"].map(|name| volume.directory(ROOT, name));
    volume.directory(p, "N");
    volume.directory(s, "X");
    take(&volume, "old");
    volume.rename(p, "N", ROOT, "N").unwrap();
    volume.rename(s, "X", ROOT, "X").unwrap();
    let n = volume.walk("N").unwrap();
    volume.rename(ROOT, "S", n, "S").unwrap();
    volume.fs.remove_directory(ROOT, b"P").unwrap();
    take(&volume, "new");
    let mut found = lines(&volume, "old", Some("new"), true);
    found.retain(|line| line != "M /");
    assert_eq!(found, ["- /P", "R /P/N -> /N", "R /S -> /N/S", "R /S/X -> /X"]);
}

/// A directory that was found again, once what lies above it had found its other half, was opened twice.
#[test]
fn what_is_in_a_directory_that_was_found_twice_is_told_once() {
    let volume = Volume::new();
    let d = volume.directory(ROOT, "D");
    let [_, inner] = ["X", "X2"].map(|name| volume.directory(d, name));
    for name in ["c1", "c2"] {
        volume.file(inner, name);
    }
    take(&volume, "old");
    volume.rename(d, "X", ROOT, "X").unwrap();
    let x = volume.walk("X").unwrap();
    volume.rename(ROOT, "D", x, "D").unwrap();
    for name in ["c1", "c2"] {
        volume.fs.unlink(inner, name.as_bytes()).unwrap();
    }
    volume.fs.remove_directory(d, b"X2").unwrap();
    take(&volume, "new");
    let mut found = lines(&volume, "old", Some("new"), true);
    found.retain(|line| line != "M /");
    let deleted = ["- /D/X2", "- /D/X2/c1", "- /D/X2/c2"];
    assert_eq!(found, [&deleted[..], &["R /D -> /X/D", "R /D/X -> /X"]].concat());
}

/// After each new directory the comparison began again, and found the next thousand differences anew.
#[test]
fn many_new_directories_are_compared_at_once() {
    let volume = Volume::new();
    take(&volume, "old");
    for number in 0..100 {
        let directory = volume.directory(ROOT, &format!("d{number}"));
        volume.file(directory, "file");
    }
    let before = volume.fs.engine().stats().gets;
    assert_eq!(lines(&volume, "old", None, true).len(), 201);
    // Two for each directory. Each piece that is compared is followed by a look at the snapshot.
    let gets = volume.fs.engine().stats().gets - before;
    assert!(gets < 250, "{gets}");
}

/// Between a directory and its clone nothing differs but the number of the topmost record, and all that is in them.
#[test]
fn a_directory_that_its_clone_replaces_is_told_with_all_that_is_in_it() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let inner = volume.directory(a, "inner");
    volume.file(inner, "file");
    take(&volume, "old");
    waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], a, ROOT, b"b")).unwrap();
    volume.rename(ROOT, "a", ROOT, "c").unwrap();
    volume.rename(ROOT, "b", ROOT, "a").unwrap();
    take(&volume, "new");
    let mut found = lines(&volume, "old", Some("new"), false);
    found.retain(|line| line != "M /" && !line.contains("/c"));
    let names = ["/a", "/a/inner", "/a/inner/file"];
    let expected = ["+", "-"].map(|sign| names.map(|name| format!("{sign} {name}"))).concat();
    assert_eq!(found, expected);
}

/// The deltas of a path were found by a function that called itself for each name in it.
#[test]
fn a_difference_at_a_long_path_needs_little_stack() {
    let volume = Volume::new();
    let mut at = ROOT;
    for _ in 0..800 {
        at = volume.directory(at, "d");
    }
    take(&volume, "old");
    volume.file(at, "new");
    std::thread::scope(|scope| {
        let compare = || {
            let mut told = 0;
            let mut emit = |_: &Entry| {
                told += 1;
                true
            };
            volume.fs.differences(b"old", None, false, &mut emit).unwrap();
            told
        };
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, compare).unwrap();
        assert_eq!(thread.join().unwrap(), 2);
    });
}

/// The directory of a name that was found may be something else by the time that it is looked at for the numbers below it: that was called damage.
#[test]
fn the_live_tree_may_change_while_it_is_compared() {
    let volume = Volume::new();
    let fs = &*volume.fs;
    let d = volume.directory(ROOT, "d");
    let f = volume.file(ROOT, "f");
    let y = volume.file(d, "y");
    take(&volume, "old");
    volume.file(ROOT, "a");
    volume.file(d, "x");
    volume.write(y, 0, b"text");
    let mut told = Vec::new();
    let mut emit = |entry: &Entry| {
        if entry.path == "/a" {
            fs.unlink(d, b"x").unwrap();
            fs.unlink(d, b"y").unwrap();
            fs.remove_directory(ROOT, b"d").unwrap();
            fs.link(f, ROOT, b"d").unwrap();
        }
        told.push((entry.what.clone(), entry.path.clone()));
        true
    };
    fs.differences(b"old", None, false, &mut emit).unwrap();
    let expected =
        [(What::Changed, "/"), (What::Created, "/a"), (What::Changed, "/d"), (What::Deleted, "/d/y")];
    assert_eq!(told, expected.map(|(what, path)| (what, path.into())));
}

/// Names below a directory that was made anew were told of twice: as those of a file with several links, which had changed, and as what the
/// directories have that came and went.
#[test]
fn links_in_a_directory_that_was_made_again_are_told_once() {
    for more in [false, true] {
        let volume = Volume::new();
        let fs = &*volume.fs;
        let file = volume.file(ROOT, "f");
        let names = [&b"n"[..], b"k"];
        let names = if more { &names[..] } else { &names[..1] };
        let a = volume.directory(ROOT, "a");
        for name in names {
            fs.link(file, a, name).unwrap();
        }
        take(&volume, "old");
        for name in names {
            fs.unlink(a, name).unwrap();
        }
        fs.remove_directory(ROOT, b"a").unwrap();
        let a = volume.directory(ROOT, "a");
        fs.link(file, a, b"n").unwrap();
        take(&volume, "new");
        let expected = ["+ /a", "- /a", "- /a/k", "M /", "M /a/n", "M /f"];
        let expected = expected.into_iter().filter(|line| more || !line.ends_with('k')).collect::<Vec<_>>();
        for renames in [false, true] {
            assert_eq!(lines(&volume, "old", Some("new"), renames), expected, "{renames}");
        }
        // With one name left the file lies under it.
        fs.unlink(ROOT, b"f").unwrap();
        take(&volume, "alone");
        let expected = expected.into_iter().map(|line| if line == "M /f" { "- /f" } else { line });
        let mut expected: Vec<_> = expected.collect();
        expected.sort_unstable();
        for renames in [false, true] {
            assert_eq!(lines(&volume, "old", Some("alone"), renames), expected, "{renames}");
        }
    }
}

/// A new name was told as one that has changed, too, where the old side had one in the place: of the same file, in a directory that has moved.
#[test]
fn a_new_link_where_one_was_moved_away_with_its_directory_has_not_changed() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    let a = volume.directory(ROOT, "a");
    volume.fs.link(file, a, b"n").unwrap();
    take(&volume, "old");
    volume.rename(ROOT, "a", ROOT, "b").unwrap();
    let a = volume.directory(ROOT, "a");
    volume.fs.link(file, a, b"n").unwrap();
    take(&volume, "new");
    let expected = ["+ /a", "+ /a/n", "M /", "M /b/n", "M /f", "R /a -> /b"];
    assert_eq!(lines(&volume, "old", Some("new"), true), expected);
}

/// What had gone on the old side was taken for gone on the new one, and was not told of.
#[test]
fn a_writable_snapshot_may_change_while_something_is_compared_with_it() {
    let volume = Volume::new();
    let fs = &*volume.fs;
    let d = volume.directory(ROOT, "d");
    let x = volume.file(d, "x");
    waiting(fs, |fs| fs.take_snapshot(b"trial", true)).unwrap();
    volume.file(ROOT, "a");
    volume.write(x, 0, b"text");
    let mut told = Vec::new();
    let mut emit = |entry: &Entry| {
        if entry.path == "/a" {
            let (trial, d) =
                (volume.walk(".snapshots/trial").unwrap(), volume.walk(".snapshots/trial/d").unwrap());
            fs.unlink(d, b"x").unwrap();
            fs.remove_directory(trial, b"d").unwrap();
        }
        told.push((entry.what.clone(), entry.path.clone()));
        true
    };
    fs.differences(b"trial", None, false, &mut emit).unwrap();
    let expected = [(What::Changed, "/"), (What::Created, "/a"), (What::Created, "/d/x")];
    assert_eq!(told, expected.map(|(what, path)| (what, path.into())));
}

/// The deltas of the directory that was looked at last were kept for what had come in its place.
#[test]
fn a_directory_may_be_replaced_by_a_clone_while_it_is_compared() {
    let volume = Volume::new();
    let fs = &*volume.fs;
    let source = volume.directory(ROOT, "source");
    // More than is compared at once.
    let names: Vec<_> = (0..1200).map(|number| format!("{number:04}")).collect();
    for name in &names {
        volume.file(source, name);
    }
    let clone = || waiting(fs, |fs| fs.clone_tree(&volume.caller, &[], source, ROOT, b"d")).unwrap();
    clone();
    take(&volume, "old");
    let change = |directory: &str, mode| {
        let mode = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        for name in &names {
            fs.set_attributes(volume.walk(&format!("{directory}/{name}")).unwrap(), &mode).unwrap();
        }
    };
    change("d", 0o600);
    let mut told = Vec::new();
    let mut emit = |entry: &Entry| {
        if entry.path == "/d/0000" {
            volume.rename(ROOT, "d", source, "moved").unwrap();
            change("source", 0o640);
            clone();
        }
        told.push((entry.what.clone(), entry.path.clone()));
        true
    };
    fs.differences(b"old", None, false, &mut emit).unwrap();
    for what in [What::Created, What::Deleted] {
        assert!(told.contains(&(what.clone(), "/d/1199".into())), "{what:?}");
    }
}

/// What a look at a snapshot finds: of each path the number in the live tree, the type, and what changes.
type Picture = BTreeMap<String, (u64, FileType, String)>;

fn look(volume: &Volume, at: InodeNumber, path: &str, xor: u64, picture: &mut Picture) {
    for name in volume.names(at) {
        let found = waiting(&*volume.fs, |fs| fs.lookup(at, name.as_bytes())).unwrap().attributes;
        let path = format!("{path}/{name}");
        let changing = format!("{:?}", (found.mode, found.size, found.modified, found.changed, found.links));
        picture.insert(path.clone(), (found.inode.0 ^ xor, found.file_type, changing));
        if found.file_type == FileType::Directory {
            look(volume, found.inode, &path, xor, picture);
        }
        volume.fs.forget(found.inode, 1);
    }
}

/// The picture of a snapshot. A file "marker" tells how its numbers differ from those of the live tree.
fn picture(volume: &Volume, name: &str) -> Picture {
    let root = waiting(&*volume.fs, |fs| fs.lookup(SNAPSHOTS, name.as_bytes())).unwrap().attributes.inode;
    let number = |at| {
        let found = waiting(&*volume.fs, |fs| fs.lookup(at, b"marker")).unwrap().attributes.inode;
        volume.fs.forget(found, 1);
        found.0
    };
    let mut picture = Picture::new();
    look(volume, root, "", number(root) ^ number(ROOT), &mut picture);
    volume.fs.forget(root, 1);
    picture
}

fn scribble(volume: &Volume, random: &mut Random, steps: usize) {
    let fs = &*volume.fs;
    let caller = &volume.caller;
    for _ in 0..steps {
        let mut directories = vec![(ROOT, String::new())];
        let mut files = Vec::new();
        let mut at = 0;
        while at < directories.len() {
            let (directory, path) = directories[at].clone();
            for name in volume.names(directory) {
                let found = waiting(fs, |fs| fs.lookup(directory, name.as_bytes())).unwrap().attributes;
                let path = format!("{path}/{name}");
                match found.file_type {
                    FileType::Directory if path.len() < 24 => directories.push((found.inode, path)),
                    _ if name != "marker" => files.push((directory, name, found.inode, found.file_type)),
                    _ => {}
                }
            }
            at += 1;
        }
        let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
        let (to, _) = directories[pick(random, directories.len())].clone();
        let name = ["a", "b", "c", "ab", "\u{1}", "zz"][pick(random, 6)];
        let name = name.as_bytes();
        let (from, from_name, file, file_type) = match pick(random, files.len() + directories.len()) {
            at if at < files.len() => files[at].clone(),
            at => {
                let (_, path) = &directories[at - files.len()];
                let Some((above, name)) = path.rsplit_once('/') else { continue };
                let (directory, _) = directories.iter().find(|(_, path)| path == above).unwrap();
                (*directory, name.to_owned(), directories[at - files.len()].0, FileType::Directory)
            }
        };
        let from_name = from_name.as_bytes();
        // What cannot be done is refused, and that is no matter here.
        let _ = match random.below(12) {
            0..3 => waiting(fs, |fs| fs.make_node(caller, to, name, FileType::Regular, 0o644, 0)).map(drop),
            3..5 => waiting(fs, |fs| fs.make_directory(caller, to, name, 0o755)).map(drop),
            5 if file_type == FileType::Directory => waiting(fs, |fs| fs.remove_directory(from, from_name)),
            5 => waiting(fs, |fs| fs.unlink(from, from_name)),
            6 => waiting(fs, |fs| fs.link(file, to, name)).map(drop),
            7 => waiting(fs, |fs| fs.clone_tree(caller, &[], file, to, name)),
            8 => volume.append(file, &"text".into()),
            9 => {
                let mode = RenameMode::Exchange;
                waiting(fs, |fs| fs.rename(from, from_name, to, name, mode)).map(drop)
            }
            _ => waiting(fs, |fs| fs.rename(from, from_name, to, name, RenameMode::Replace)).map(drop),
        };
    }
}

#[test]
fn what_is_told_is_what_a_look_at_both_finds() {
    let seeds: Vec<u64> = match std::env::var("PANDO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=20).collect(),
    };
    for seed in seeds {
        println!("PANDO_SEED={seed}");
        let mut random = Random::new(seed);
        let volume = Volume::new();
        volume.file(ROOT, "marker");
        scribble(&volume, &mut random, 60);
        for round in 0..4 {
            take(&volume, "old");
            let steps = 1 + random.below(25) as usize;
            scribble(&volume, &mut random, steps);
            if random.chance(1, 2) {
                while volume.fs.engine().background_step().unwrap() {}
            }
            take(&volume, "new");
            let (old, new) = (picture(&volume, "old"), picture(&volume, "new"));
            assert_told(&volume, &old, &new, &format!("PANDO_SEED={seed}, round {round}"));
            for name in ["old", "new"] {
                waiting(&*volume.fs, |fs| fs.delete_snapshot(name.as_bytes())).unwrap();
            }
        }
        volume.assert_clean();
    }
}

fn assert_told(volume: &Volume, old: &Picture, new: &Picture, seed: &str) {
    let identity =
        |picture: &Picture, path: &str| picture.get(path).map(|(number, kind, _)| (*number, *kind));
    let mut expected = Vec::new();
    for path in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (identity(old, path), identity(new, path));
        if before == after {
            if old[path] != new[path] {
                expected.push(format!("M {path}"));
            }
            continue;
        }
        expected.extend(before.map(|_| format!("- {path}")));
        expected.extend(after.map(|_| format!("+ {path}")));
    }
    expected.sort();
    let mut found = lines(volume, "old", Some("new"), false);
    found.retain(|line| line != "M /");
    assert_eq!(found, expected, "{seed}");

    let mut renamed = BTreeMap::new();
    let (mut created, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    let mut changed = BTreeSet::new();
    for entry in entries(volume, "old", Some("new"), true) {
        let path = String::from_utf8(entry.path.to_vec()).unwrap();
        let fresh = match &entry.what {
            What::Created => created.insert(path),
            What::Deleted => deleted.insert(path),
            What::Changed => changed.insert(path),
            What::Renamed(from) => {
                if entry.is_changed() {
                    changed.insert(path.clone());
                }
                renamed.insert(path, String::from_utf8(from.to_vec()).unwrap()).is_none()
            }
        };
        assert!(fresh, "{entry:?} is told twice, {seed}");
    }
    // Where each name of the new side comes from.
    let mut origins = BTreeSet::new();
    for (path, (number, kind, _)) in new {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]).chain([&path[..]]);
        let origin = match above
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .find_map(|above| Some((above, renamed.get(above)?)))
        {
            Some((above, from)) => format!("{from}{}", &path[above.len()..]),
            None => path.clone(),
        };
        if created.contains(path) {
            let several = |picture: &Picture| picture.values().filter(|other| other.0 == *number).count() > 1;
            let known = old.values().any(|other| other.0 == *number);
            assert!(!known || several(old) || several(new), "{path} is told as new, {seed}");
            assert_ne!(identity(old, &origin), Some((*number, *kind)), "{path} from {origin}, {seed}");
            assert!(!changed.contains(path), "{path} is told as new and as changed, {seed}");
            continue;
        }
        assert_eq!(identity(old, &origin), Some((*number, *kind)), "{path} from {origin}, {seed}");
        assert!(!deleted.contains(&origin), "{origin} is told as deleted, {seed}");
        // A rename changes nothing but the time of change.
        if old[&origin] != new[path] && !renamed.contains_key(path) {
            assert!(changed.contains(path), "{path} has changed, {seed}");
        }
        origins.insert(origin);
    }
    for path in old.keys() {
        assert!(origins.contains(path) != deleted.contains(path), "{path}, {seed}");
    }
}

/// Whatever is read of the live tree before and after a file goes from its own key to its name: it is there all the time.
#[test]
fn a_file_that_goes_home_meanwhile_is_told_of() {
    goes_home_meanwhile(None);
    goes_home_meanwhile(Some("writable"));
}

fn goes_home_meanwhile(new: Option<&str>) {
    let mut met = 0;
    for query in 0.. {
        let volume = Volume::formatted(&FormatOptions::default());
        take(&volume, "old");
        let root = new.map_or(ROOT, |name| {
            waiting(&*volume.fs, |fs| fs.take_snapshot(name.as_bytes(), true)).unwrap();
            waiting(&*volume.fs, |fs| fs.lookup(SNAPSHOTS, name.as_bytes())).unwrap().attributes.inode
        });
        let directory = volume.directory(root, "d");
        let file = volume.file(root, "f");
        waiting(&*volume.fs, |fs| fs.write(file, 0, vec![7; 5000].into(), WriteMode::PLAIN)).unwrap();
        volume.fs.link(file, directory, b"g").unwrap();
        let (fs, asked) = (volume.fs.clone(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        volume.fs.interrupt_queries(move || {
            if count.fetch_add(1, Ordering::Relaxed) == query {
                let fs = fs.clone();
                std::thread::spawn(move || fs.unlink(root, b"f")).join().unwrap().unwrap();
            }
            false
        });
        let told = lines(&volume, "old", new, false);
        assert!(told.contains(&"+ /d/g".to_owned()), "at query {query}: {told:?}");
        if asked.load(Ordering::Relaxed) <= query {
            break;
        }
        met += 1;
    }
    assert!(met > 2, "{met}");
}
