//! What `RENAME_WHITEOUT` leaves at the old name.

use pando_fs::operations::{
    Attributes, Caller, DirectoryEntry, FileType, ListAttributes, Operations, ROOT, RenameMode,
    SetAttributes, XattrMode, waiting,
};
use pando_fs::{Error, InodeNumber, Result};

use crate::common::Volume;

const CALLER: Caller = Caller { uid: 7, gid: 8, umask: 0o022 };

/// One end of a rename.
type End<'a> = (InodeNumber, &'a str);

fn rename(volume: &Volume, from: End, to: End, replace: bool) -> Result<Vec<InodeNumber>> {
    let mode = RenameMode::Whiteout { caller: CALLER, replace };
    waiting(&*volume.fs, |fs| fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode))
}

/// Hides what is at the first end, replacing what is at the second.
fn hide(volume: &Volume, from: End, to: End) {
    rename(volume, from, to, true).unwrap();
    volume.assert_clean();
}

/// What a path leads to. No reference stays.
fn attributes(volume: &Volume, path: &str) -> Result<Attributes> {
    let found = volume.walk(path)?;
    let attributes = volume.fs.get_attributes(found);
    volume.fs.forget(found, 1);
    attributes
}

fn is_whiteout(volume: &Volume, path: &str) -> bool {
    let found = attributes(volume, path).unwrap();
    (found.file_type, found.device, found.mode) == (FileType::CharDevice, 0, 0)
        && (found.uid, found.gid, found.links, found.size) == (7, 8, 1, 0)
}

/// Names and types but for `.` and `..`, in order.
fn listed(volume: &Volume, directory: InodeNumber) -> Vec<(String, FileType)> {
    let mut found = Vec::new();
    let mut emit = |entry: &DirectoryEntry| {
        found.push((String::from_utf8_lossy(&entry.name).into_owned(), entry.file_type));
        true
    };
    waiting(&*volume.fs, |fs| fs.read_directory(directory, 0, ListAttributes::OfNone, &mut emit)).unwrap();
    found.retain(|(name, _)| !name.starts_with('.'));
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[test]
fn it_is_a_device_of_the_callers() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(directory, "f");
    volume.write(file, 0, &[5; 9000]);
    hide(&volume, (directory, "f"), (directory, "g"));
    assert!(is_whiteout(&volume, "d/f"));
    assert_eq!((volume.walk("d/g"), volume.read(file, 8999, 9)), (Ok(file), vec![5]));
    let names = [("f".to_owned(), FileType::CharDevice), ("g".to_owned(), FileType::Regular)];
    assert_eq!(listed(&volume, directory), names);
    let found = attributes(&volume, "d").unwrap();
    assert_eq!((found.size, found.links), (2, 2));
    for volume in [volume.after_crash(), volume.remount(false)] {
        assert!(is_whiteout(&volume, "d/f"));
        let directory = volume.walk("d").unwrap();
        assert_eq!(listed(&volume, directory), names);
        volume.assert_clean();
    }
}

#[test]
fn its_group_is_that_of_a_set_group_id_directory() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let set = SetAttributes { mode: Some(0o2777), gid: Some(42), ..SetAttributes::default() };
    volume.fs.set_attributes(directory, &set).unwrap();
    volume.file(directory, "f");
    hide(&volume, (directory, "f"), (ROOT, "f"));
    let found = attributes(&volume, "d/f").unwrap();
    assert_eq!((found.mode, found.uid, found.gid), (0, 7, 42));
}

/// One with a default list; nobody comes to be allowed anything by it.
#[test]
fn a_list_of_access_control_allows_nothing() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 9), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    volume.fs.set_xattr(directory, b"system.posix_acl_default", &list, XattrMode::Set, false).unwrap();
    volume.file(directory, "f");
    hide(&volume, (directory, "f"), (ROOT, "f"));
    assert!(is_whiteout(&volume, "d/f"));
}

#[test]
fn what_has_the_new_name_is_replaced_or_not() {
    let volume = Volume::new();
    let (a, b) = (volume.directory(ROOT, "a"), volume.directory(ROOT, "b"));
    let (file, there) = (volume.file(a, "f"), volume.file(b, "f"));
    volume.write(file, 0, &[1; 5000]);
    volume.write(there, 0, &[2; 5000]);
    assert_eq!(rename(&volume, (a, "f"), (b, "f"), false), Err(Error::Exists));
    assert_eq!((volume.walk("a/f"), volume.walk("b/f")), (Ok(file), Ok(there)));
    hide(&volume, (a, "f"), (b, "f"));
    assert!(is_whiteout(&volume, "a/f"));
    assert_eq!(volume.walk("b/f"), Ok(file));
    // What was there is still in use.
    assert_eq!((volume.read(file, 0, 1), volume.read(there, 0, 1)), (vec![1], vec![2]));
    volume.fs.forget(there, 2);
    assert_eq!(volume.fs.get_attributes(there), Err(Error::Stale));
    rename(&volume, (b, "f"), (b, "g"), false).unwrap();
    assert!(is_whiteout(&volume, "b/f"));
    // A whiteout is renamed, replaced and removed like anything else.
    hide(&volume, (b, "f"), (a, "f"));
    assert!(is_whiteout(&volume, "b/f") && is_whiteout(&volume, "a/f"));
    volume.rename(b, "g", a, "f").unwrap();
    assert_eq!(volume.walk("a/f"), Ok(file));
    volume.fs.unlink(b, b"f").unwrap();
    assert!(listed(&volume, b).is_empty());
    assert_eq!(rename(&volume, (b, "f"), (b, "g"), true), Err(Error::NotFound));
    volume.assert_clean();
}

#[test]
fn a_directory_goes_with_all_that_is_below() {
    let volume = Volume::new();
    let (a, b) = (volume.directory(ROOT, "a"), volume.directory(ROOT, "b"));
    let moved = volume.directory(a, "d");
    let below = volume.directory(moved, "below");
    let file = volume.file(below, "f");
    volume.write(file, 0, &[3; 9000]);
    let gone = volume.file(below, "gone");
    volume.write(gone, 0, &[4; 9000]);
    volume.fs.unlink(below, b"gone").unwrap();
    volume.directory(b, "d");
    assert_eq!(rename(&volume, (a, "d"), (below, "d"), true), Err(Error::Invalid));
    let full = volume.directory(b, "full");
    volume.file(full, "f");
    assert_eq!(rename(&volume, (a, "d"), (b, "full"), true), Err(Error::NotEmpty));
    volume.file(b, "file");
    assert_eq!(rename(&volume, (a, "d"), (b, "file"), true), Err(Error::NotADirectory));
    assert_eq!(listed(&volume, a), [("d".to_owned(), FileType::Directory)]);
    hide(&volume, (a, "d"), (b, "d"));
    assert!(is_whiteout(&volume, "a/d"));
    assert_eq!((volume.walk("b/d/below/f"), volume.walk("a/d/below")), (Ok(file), Err(Error::NotADirectory)));
    assert_eq!((volume.read(file, 8999, 9), volume.read(gone, 8999, 9)), (vec![3], vec![4]));
    let counts = |path| attributes(&volume, path).map(|found| (found.size, found.links));
    assert_eq!((counts("a"), counts("b")), (Ok((1, 2)), Ok((3, 4))));
    // In one directory, too, and the name may be a directory's again.
    hide(&volume, (b, "d"), (b, "e"));
    assert_eq!(counts("b"), Ok((4, 4)));
    volume.fs.unlink(b, b"d").unwrap();
    volume.directory(b, "d");
    assert_eq!(volume.walk("b/d/below"), Err(Error::NotFound));
    let volume = volume.after_crash();
    let file = volume.walk("b/e/below/f").unwrap();
    assert_eq!(volume.read(file, 8999, 9), [3]);
    assert!(is_whiteout(&volume, "a/d"));
    volume.assert_clean();
}

#[test]
fn one_name_of_several_is_hidden() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[6; 9000]);
    volume.fs.link(file, directory, b"g").unwrap();
    // Both names lead to one file, and stay.
    rename(&volume, (ROOT, "f"), (directory, "g"), true).unwrap();
    assert_eq!((volume.walk("f"), volume.walk("d/g")), (Ok(file), Ok(file)));
    hide(&volume, (ROOT, "f"), (directory, "h"));
    assert!(is_whiteout(&volume, "f"));
    assert_eq!((volume.walk("d/g"), volume.walk("d/h")), (Ok(file), Ok(file)));
    assert_eq!(attributes(&volume, "d/g").unwrap().links, 2);
    // A whiteout of several names, as overlayfs makes them, goes to the place of one of them.
    let whiteout = volume.walk("f").unwrap();
    volume.fs.link(whiteout, directory, b"w").unwrap();
    hide(&volume, (directory, "w"), (directory, "h"));
    assert_eq!((volume.walk("d/h"), attributes(&volume, "f").unwrap().links), (Ok(whiteout), 2));
    assert!(is_whiteout(&volume, "d/w"));
    // It has gone home, and a name that is a whiteout now was known as its.
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(
        (attributes(&volume, "d/h").unwrap().links, attributes(&volume, "d/g").unwrap().links),
        (1, 1)
    );
    volume.assert_clean();
    let volume = volume.remount(false);
    assert!(is_whiteout(&volume, "d/w") && is_whiteout(&volume, "d/h"));
    assert_eq!(volume.walk("f"), Err(Error::NotFound));
}

#[test]
fn each_tree_has_its_own() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(directory, "f");
    volume.write(file, 0, &[1; 5000]);
    volume.fs.take_snapshot(b"one", true).unwrap();
    hide(&volume, (directory, "f"), (ROOT, "f"));
    let below = volume.walk(".snapshots/one/d").unwrap();
    assert_eq!(attributes(&volume, ".snapshots/one/d/f").unwrap().file_type, FileType::Regular);
    hide(&volume, (below, "f"), (below, "g"));
    assert!(is_whiteout(&volume, "d/f") && is_whiteout(&volume, ".snapshots/one/d/f"));
    let numbers = ["d/f", ".snapshots/one/d/f"].map(|path| attributes(&volume, path).unwrap().inode);
    assert_ne!(numbers[0], numbers[1]);
    let volume = volume.remount(false);
    assert_eq!(["d/f", ".snapshots/one/d/f"].map(|path| attributes(&volume, path).unwrap().inode), numbers);
    drop(waiting(&*volume.fs, |fs| fs.roll_back(b"one")).unwrap());
    assert!(is_whiteout(&volume, "d/f"));
    assert_eq!(volume.walk("f"), Err(Error::NotFound));
    volume.assert_clean();
}
