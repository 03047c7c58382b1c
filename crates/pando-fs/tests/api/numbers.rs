//! Inode numbers under directories with deltas: what users see of an inode stays, wherever it goes.

use std::collections::BTreeMap;

use pando_engine::{Batch, Tree};
use pando_fs::InodeNumber;
use pando_fs::operations::{FileType, ListAttributes, Operations, ROOT, RenameMode};
use pando_fs::schema::{NameRecord, Record, key};

use crate::common::Volume;

const DELTA: u64 = 0xfeed_beef_0123_4567;

fn stored(volume: &Volume, key: &[u8]) -> Record {
    let value = volume.fs.engine().get(Tree::Metadata, key).unwrap().unwrap();
    match NameRecord::decode(&value).unwrap() {
        NameRecord::Inode(record) => record,
        NameRecord::Redirect(_) => panic!("a redirect"),
    }
}

/// Directories `a` and `b` with a file each; `a` has a delta. What users see is as if it had none.
fn volume() -> Volume {
    let volume = Volume::new();
    for name in ["a", "b"] {
        let directory = volume.directory(ROOT, name);
        let file = volume.file(directory, "f");
        volume.write(file, 0, name.as_bytes());
        volume.file(volume.directory(directory, "d"), "deep");
    }
    let mut batch = Batch::new();
    let a = key::child_key(b"", b"a");
    batch.put(Tree::Metadata, a.clone(), Record { delta: DELTA, ..stored(&volume, &a) }.encode());
    volume.fs.engine().apply(batch).unwrap();
    let volume = volume.after_crash();
    volume.assert_clean();
    volume
}

/// Numbers by path, as lookups give them; listings must give the same.
fn numbers(volume: &Volume) -> BTreeMap<String, InodeNumber> {
    let mut numbers = BTreeMap::new();
    let mut directories = vec![(String::new(), ROOT)];
    while let Some((path, inode)) = directories.pop() {
        let mut listed = Vec::new();
        let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
            listed.push(entry.clone());
            true
        };
        volume.fs.read_directory(inode, 0, ListAttributes::OfNone, &mut emit).unwrap();
        for entry in listed.split_off(2) {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            let found = volume.fs.lookup(inode, &entry.name).unwrap().attributes;
            assert_eq!(found.inode, entry.inode, "{path}");
            assert_eq!(volume.fs.get_attributes(found.inode).unwrap().inode, found.inode);
            if entry.file_type == FileType::Directory {
                directories.push((path.clone(), found.inode));
            }
            numbers.insert(path, found.inode);
        }
    }
    numbers
}

/// Does it, and finds the numbers where they are to be; also when nothing is remembered any more.
fn moves(volume: &Volume, renamed: &[(&str, &str)], act: impl FnOnce(&Volume)) {
    let mut expected = BTreeMap::new();
    for (path, number) in numbers(volume) {
        let moved = renamed.iter().find_map(|(from, to)| Some(format!("{to}{}", path.strip_prefix(from)?)));
        expected.insert(moved.unwrap_or(path), number);
    }
    act(volume);
    assert_eq!(numbers(volume), expected);
    let after = volume.after_crash();
    assert_eq!(numbers(&after), expected);
    after.assert_clean();
}

#[test]
fn a_delta_changes_all_numbers_below_and_not_the_directory_s_own() {
    let volume = volume();
    let numbers = numbers(&volume);
    let stored = |path: &[u8], name: &[u8]| stored(&volume, &key::child_key(path, name)).number;
    assert_eq!(numbers["/a"].0, stored(b"", b"a"));
    assert_eq!(numbers["/a/f"].0, stored(b"\0a", b"f") ^ DELTA);
    assert_eq!(numbers["/a/d/deep"].0, stored(b"\0a\0d", b"deep") ^ DELTA);
    assert_eq!(numbers["/b/f"].0, stored(b"\0b", b"f"));
}

#[test]
fn numbers_stay_when_files_move_into_and_out_of_deltas() {
    let volume = volume();
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    moves(&volume, &[("/a/f", "/b/g")], |volume| volume.rename(a, "f", b, "g").unwrap());
    moves(&volume, &[("/b/f", "/a/h")], |volume| volume.rename(b, "f", a, "h").unwrap());
}

#[test]
fn numbers_stay_when_directories_move_into_and_out_of_deltas() {
    let volume = volume();
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    moves(&volume, &[("/a/d", "/b/e")], |volume| volume.rename(a, "d", b, "e").unwrap());
    moves(&volume, &[("/b/d", "/a/d")], |volume| volume.rename(b, "d", a, "d").unwrap());
    let e = volume.walk("b/e").unwrap();
    // Deltas inside deltas.
    moves(&volume, &[("/a", "/b/e/a")], |volume| volume.rename(ROOT, "a", e, "a").unwrap());
    let new = volume.file(e, "new");
    moves(&volume, &[("/b/e", "/e")], |volume| volume.rename(b, "e", ROOT, "e").unwrap());
    assert_eq!(volume.walk("e/new").unwrap(), new);
}

#[test]
fn numbers_stay_in_an_exchange() {
    let volume = volume();
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    moves(&volume, &[("/a/d", "/b/f"), ("/b/f", "/a/d")], |volume| {
        volume.fs.rename(a, b"d", b, b"f", RenameMode::Exchange).unwrap();
    });
}

#[test]
fn a_file_keeps_its_number_when_it_gets_links_and_when_it_loses_its_names() {
    let volume = volume();
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    let file = volume.walk("a/f").unwrap();
    assert_eq!(volume.fs.link(file, b, b"l").unwrap().attributes.inode, file);
    assert_eq!((volume.walk("b/l").unwrap(), volume.walk("a/f").unwrap()), (file, file));
    volume.assert_clean();
    volume.fs.unlink(a, b"f").unwrap();
    volume.fs.unlink(b, b"l").unwrap();
    assert_eq!(volume.fs.get_attributes(file).unwrap().inode, file);
    assert_eq!(volume.read(file, 0, 9), b"a");
    let deep = volume.walk("a/d/deep").unwrap();
    volume.fs.unlink(volume.walk("a/d").unwrap(), b"deep").unwrap();
    volume.fs.link(deep, a, b"again").unwrap();
    assert_eq!(volume.walk("a/again").unwrap(), deep);
    volume.assert_clean();
}
