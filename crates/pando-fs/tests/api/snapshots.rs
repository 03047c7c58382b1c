//! Snapshots: what is in them, that it stays, and that it comes back.

use pando_engine::{Batch, KeyRange, ScanLimit, Tree};
use pando_fs::operations::{
    AllocateMode, Attributes, FileType, ListAttributes, Operations, ROOT, RenameMode, SNAPSHOTS,
    SetAttributes, WriteMode, XattrMode, waiting,
};
use pando_fs::schema::key;
use pando_fs::{Error, FileSystem, InodeNumber, Result};

use crate::common::Volume;

fn take(volume: &Volume, name: &str) {
    waiting(&*volume.fs, |fs| fs.take_snapshot(name.as_bytes(), false)).unwrap();
}

fn roll_back(volume: &Volume, name: &str) -> Result<()> {
    waiting(&*volume.fs, |fs| fs.roll_back(name.as_bytes())).map(drop)
}

fn delete(volume: &Volume, name: &str) -> Result<()> {
    waiting(&*volume.fs, |fs| fs.delete_snapshot(name.as_bytes()))
}

fn attributes(volume: &Volume, inode: InodeNumber) -> Attributes {
    volume.fs.get_attributes(inode).unwrap()
}

/// All that can be seen below a directory but numbers, and the numbers of what is no directory by their first name.
fn picture(volume: &Volume, directory: InodeNumber, path: &str, lines: &mut Vec<String>) {
    for name in volume.names(directory) {
        let path = format!("{path}/{name}");
        let found = waiting(&*volume.fs, |fs| fs.lookup(directory, name.as_bytes())).unwrap().attributes;
        let text = match found.file_type {
            FileType::Regular => format!("{:x?}", volume.read(found.inode, 0, 1 << 20)),
            _ => String::new(),
        };
        let kept = (found.file_type, found.mode, found.links, found.uid, found.size, found.modified);
        lines.push(format!("{path}: {kept:?} {}", text.len()));
        lines.push(text);
        if found.file_type == FileType::Directory {
            picture(volume, found.inode, &path, lines);
        }
        volume.fs.forget(found.inode, 1);
    }
}

fn picture_of(volume: &Volume, directory: InodeNumber) -> Vec<String> {
    let mut lines = Vec::new();
    picture(volume, directory, "", &mut lines);
    lines
}

fn snapshot(volume: &Volume, name: &str) -> InodeNumber {
    waiting(&*volume.fs, |fs| fs.lookup(SNAPSHOTS, name.as_bytes())).unwrap().attributes.inode
}

/// A tree with links, large attributes, one of the root too, and files of many sizes.
fn filled() -> Volume {
    let volume = Volume::new();
    for directory in ["a", "b"] {
        let inode = volume.directory(ROOT, directory);
        for file in 0..40u32 {
            let inode = volume.file(inode, &format!("f{file}"));
            volume.write(inode, 0, &vec![file as u8 + 1; file as usize * 1000]);
        }
    }
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    let file = volume.walk("a/f7").unwrap();
    volume.fs.link(file, b, b"linked").unwrap();
    volume.fs.link(file, a, b"linked").unwrap();
    for inode in [ROOT, a, file] {
        volume.fs.set_xattr(inode, b"user.large", &[5; 3000], XattrMode::Set, false).unwrap();
    }
    while volume.fs.engine().background_step().unwrap() {}
    volume
}

fn scribble(volume: &Volume) {
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    for file in 0..40 {
        match file % 4 {
            0 => volume.write(volume.walk(&format!("a/f{file}")).unwrap(), 3, b"scribble"),
            1 => waiting(&*volume.fs, |fs| fs.unlink(b, format!("f{file}").as_bytes())).unwrap(),
            2 => volume.resize(volume.walk(&format!("b/f{file}")).unwrap(), 10),
            _ => waiting(&*volume.fs, |fs| {
                let (old, new) = (format!("f{file}"), format!("new{file}"));
                fs.rename(a, old.as_bytes(), b, new.as_bytes(), RenameMode::Replace)
            })
            .map(drop)
            .unwrap(),
        }
    }
    volume.rename(ROOT, "a", b, "moved").unwrap();
    waiting(&*volume.fs, |fs| fs.remove_xattr(ROOT, b"user.large")).unwrap();
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let volume = filled();
    let before = picture_of(&volume, ROOT);
    take(&volume, "one");
    volume.assert_clean();
    scribble(&volume);
    let one = snapshot(&volume, "one");
    assert_eq!(picture_of(&volume, one), before);
    assert_ne!(picture_of(&volume, ROOT), before);
    assert_eq!(waiting(&*volume.fs, |fs| fs.get_xattr(one, b"user.large")).unwrap(), vec![5; 3000]);
    volume.assert_clean();
    let volume = volume.remount(false);
    assert_eq!(picture_of(&volume, snapshot(&volume, "one")), before);
    let volume = volume.remount(true);
    assert_eq!(picture_of(&volume, snapshot(&volume, "one")), before);
    assert_eq!(volume.fs.check().unwrap().snapshots, 1);
    volume.assert_clean();
}

#[test]
fn all_numbers_in_a_snapshot_are_its_own() {
    let volume = filled();
    take(&volume, "one");
    take(&volume, "two");
    let paths = ["", "/a", "/a/f1", "/a/f7", "/b/linked"];
    let of = |root: InodeNumber| {
        paths.map(|path| {
            let mut at = root;
            for name in path.split('/').skip(1) {
                at = waiting(&*volume.fs, |fs| fs.lookup(at, name.as_bytes())).unwrap().attributes.inode;
            }
            at
        })
    };
    let numbers = [ROOT, snapshot(&volume, "one"), snapshot(&volume, "two")].map(of);
    for numbers in &numbers {
        assert_eq!(numbers[3], numbers[4], "they are one file");
    }
    let mut all: Vec<_> = numbers.iter().flat_map(|numbers| &numbers[..4]).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 12);
    assert_eq!(attributes(&volume, numbers[1][3]).links, 3);
}

#[test]
fn nothing_in_a_snapshot_changes() {
    let volume = filled();
    take(&volume, "one");
    let (one, caller, fs) = (snapshot(&volume, "one"), &volume.caller, &*volume.fs);
    let a = waiting(fs, |fs| fs.lookup(one, b"a")).unwrap().attributes.inode;
    let file = waiting(fs, |fs| fs.lookup(a, b"f7")).unwrap().attributes.inode;
    let live = volume.walk("b").unwrap();
    let read_only = Err(Error::ReadOnly);
    assert_eq!(fs.make_node(caller, a, b"n", FileType::Regular, 0, 0).map(drop), read_only);
    assert_eq!(fs.make_directory(caller, a, b"n", 0).map(drop), read_only);
    assert_eq!(fs.make_symlink(caller, a, b"n", b"t").map(drop), read_only);
    assert_eq!(fs.make_temporary(caller, a, 0).map(drop), read_only);
    assert_eq!(fs.unlink(a, b"f1"), read_only);
    assert_eq!(fs.remove_directory(one, b"a"), read_only);
    for (from, to) in [(a, live), (live, a), (a, a)] {
        assert_eq!(fs.rename(from, b"f1", to, b"n", RenameMode::Replace).map(drop), read_only);
    }
    assert_eq!(fs.link(file, live, b"n").map(drop), read_only);
    assert_eq!(fs.link(volume.walk("b/f1").unwrap(), a, b"n").map(drop), read_only);
    assert_eq!(fs.write(file, 0, "x".into(), WriteMode::PLAIN), read_only);
    assert_eq!(fs.allocate(file, AllocateMode::PunchHole, 0, 10, false), read_only);
    assert_eq!(fs.copy_range(live, 0, file, 0, 10, false).map(drop), read_only);
    assert_eq!(fs.set_attributes(file, &SetAttributes::default()).map(drop), read_only);
    assert_eq!(fs.set_xattr(file, b"user.x", b"", XattrMode::Set, false), read_only);
    assert_eq!(fs.remove_xattr(file, b"user.large"), read_only);
    assert_eq!(fs.clone_tree(caller, &[], live, a, b"n"), read_only);
    // Nor does the directory of the snapshots, nor its name.
    assert_eq!(fs.make_directory(caller, SNAPSHOTS, b"n", 0).map(drop), read_only);
    assert_eq!(fs.remove_directory(SNAPSHOTS, b"one"), read_only);
    assert_eq!(fs.make_directory(caller, ROOT, b".snapshots", 0).map(drop), Err(Error::NotPermitted));
    assert_eq!(fs.remove_directory(ROOT, b".snapshots"), Err(Error::NotPermitted));
    assert_eq!(volume.rename(ROOT, ".snapshots", ROOT, "n"), Err(Error::NotPermitted));
    assert_eq!(volume.rename(ROOT, "a", ROOT, ".snapshots"), Err(Error::NotPermitted));
    volume.assert_clean();
}

#[test]
fn snapshots_are_found_in_a_directory_that_is_not_listed() {
    let volume = filled();
    assert_eq!(volume.names(ROOT), ["a", "b"]);
    assert_eq!(volume.walk(".snapshots").unwrap(), SNAPSHOTS);
    assert_eq!(volume.names(SNAPSHOTS), [""; 0]);
    for name in ["z", "a", "m"] {
        take(&volume, name);
    }
    assert_eq!(waiting(&*volume.fs, |fs| fs.take_snapshot(b"m", false)), Err(Error::Exists));
    assert_eq!(volume.fs.take_snapshot(b"a/b", false), Err(Error::Invalid));
    assert_eq!(volume.names(SNAPSHOTS), ["z", "a", "m"]);
    assert_eq!(volume.names(ROOT), ["a", "b"]);
    assert_eq!(volume.walk(".snapshots/m/a/f3").map(|file| volume.read(file, 0, 5)), Ok(vec![4; 5]));
    assert_eq!(volume.walk(".snapshots/n"), Err(Error::NotFound));
    // A snapshot has none inside.
    assert_eq!(volume.walk(".snapshots/m/.snapshots"), Err(Error::NotFound));
    let names: Vec<_> = waiting(&*volume.fs, FileSystem::snapshots)
        .unwrap()
        .into_iter()
        .map(|snapshot| snapshot.name)
        .collect();
    assert_eq!(names, ["z", "a", "m"]);
    volume.assert_clean();
}

#[test]
fn a_snapshot_that_is_deleted_is_gone_at_once() {
    let volume = filled();
    take(&volume, "one");
    take(&volume, "two");
    let two = picture_of(&volume, snapshot(&volume, "two"));
    let a = volume.walk(".snapshots/one/a").unwrap();
    let (file, linked) =
        (volume.walk(".snapshots/one/a/f3").unwrap(), volume.walk(".snapshots/one/a/f7").unwrap());
    delete(&volume, "one").unwrap();
    assert_eq!(delete(&volume, "one"), Err(Error::NotFound));
    assert_eq!(volume.names(SNAPSHOTS), ["two"]);
    for inode in [file, linked] {
        assert_eq!(waiting(&*volume.fs, |fs| fs.read(inode, 0, 10)).map(drop), Err(Error::Stale));
    }
    assert_eq!(volume.fs.lookup(a, b"f4").map(drop), Err(Error::Stale));
    // One of the same name is another.
    take(&volume, "one");
    assert_eq!(volume.fs.read(file, 0, 10).map(drop), Err(Error::Stale));
    assert_eq!(volume.fs.read(linked, 0, 10).map(drop), Err(Error::Stale));
    assert_ne!(volume.walk(".snapshots/one/a/f3").unwrap(), file);
    for name in ["one", "two"] {
        assert_eq!(picture_of(&volume, snapshot(&volume, name)), two);
    }
    for name in ["one", "two"] {
        delete(&volume, name).unwrap();
    }
    volume.assert_clean();
    for tree in Tree::ALL {
        let range = KeyRange::prefix(vec![key::SNAPSHOT_TAG]);
        let engine = volume.fs.engine();
        let limit = ScanLimit { entries: 1, bytes: 1 };
        let scan = engine.waiting(|| engine.scan(tree, &range, limit)).unwrap();
        assert!(scan.entries.is_empty());
    }
    volume.remount(false).assert_clean();
}

#[test]
fn a_roll_back_brings_everything_back() {
    let volume = filled();
    let first = picture_of(&volume, ROOT);
    let number = volume.walk("a/f7").unwrap();
    take(&volume, "one");
    scribble(&volume);
    let second = picture_of(&volume, ROOT);
    take(&volume, "two");
    assert_eq!(roll_back(&volume, "none"), Err(Error::NotFound));
    roll_back(&volume, "one").unwrap();
    assert_eq!(picture_of(&volume, ROOT), first);
    assert_eq!(waiting(&*volume.fs, |fs| fs.get_xattr(ROOT, b"user.large")).unwrap(), vec![5; 3000]);
    assert_ne!(volume.walk("a/f7").unwrap(), number);
    volume.assert_clean();
    // What is done then is not seen by either snapshot.
    volume.write(volume.walk("a/f7").unwrap(), 0, b"again");
    volume.directory(ROOT, "new");
    let volume = volume.remount(false);
    assert_eq!(picture_of(&volume, snapshot(&volume, "one")), first);
    assert_eq!(picture_of(&volume, snapshot(&volume, "two")), second);
    let volume = volume.remount(false);
    roll_back(&volume, "two").unwrap();
    delete(&volume, "two").unwrap();
    assert_eq!(picture_of(&volume, ROOT), second);
    volume.assert_clean();
}

#[test]
fn what_is_in_use_at_a_roll_back_is_gone_but_the_root() {
    let volume = filled();
    let first = picture_of(&volume, ROOT);
    take(&volume, "one");
    let two = picture_of(&volume, snapshot(&volume, "one"));
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    let paths = ["a/f3", "a/f7", "b/linked", "b/f9"];
    let files = paths.map(|path| volume.walk(path).unwrap());
    let kept = volume.walk(".snapshots/one/a/f3").unwrap();
    let top = volume.file(ROOT, "top");
    // Without a name, its data parked; and one that never had any.
    let open = volume.walk("a/f20").unwrap();
    waiting(&*volume.fs, |fs| fs.unlink(a, b"f20")).unwrap();
    let temporary = volume.fs.make_temporary(&volume.caller, b, 0o600).unwrap().attributes.inode;
    volume.write(temporary, 0, b"temporary");
    let vanished = waiting(&*volume.fs, |fs| fs.roll_back(b"one")).unwrap();
    for name in [&b"a"[..], b"b", b"top"] {
        assert!(vanished.names.contains(&name.to_vec().into()));
    }
    for inode in files.into_iter().chain([a, b, top]) {
        assert_eq!(volume.fs.get_attributes(inode).map(drop), Err(Error::Stale));
        assert!(volume.fs.gone_inodes().contains(&inode));
    }
    for file in files {
        assert_eq!(volume.fs.read(file, 0, 1).map(drop), Err(Error::Stale));
        assert_eq!(volume.fs.write(file, 0, "x".into(), WriteMode::PLAIN), Err(Error::Stale));
        assert_eq!(volume.fs.link(file, ROOT, b"n").map(drop), Err(Error::OtherTree));
        assert_eq!(volume.fs.set_xattr(file, b"user.x", b"", XattrMode::Set, false), Err(Error::Stale));
    }
    assert_eq!(volume.fs.lookup(a, b"f3").map(drop), Err(Error::Stale));
    assert_eq!(volume.fs.make_directory(&volume.caller, a, b"n", 0).map(drop), Err(Error::Stale));
    assert_eq!(volume.fs.make_temporary(&volume.caller, a, 0).map(drop), Err(Error::Stale));
    assert_eq!(volume.rename(a, "f3", ROOT, "n"), Err(Error::OtherTree));
    assert_eq!(volume.fs.read_directory(a, 0, ListAttributes::OfNone, &mut |_| true), Err(Error::Stale));
    // These live on.
    assert_eq!(volume.read(open, 0, 3), [21; 3]);
    assert_eq!(volume.read(temporary, 0, 20), b"temporary");
    volume.write(open, 0, b"still");
    assert_eq!(volume.read(kept, 0, 3), [4; 3]);
    let mut names = Vec::new();
    let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
        names.push(entry.name.to_vec());
        true
    };
    waiting(&*volume.fs, |fs| fs.read_directory(ROOT, 2, ListAttributes::OfNone, &mut emit)).unwrap();
    assert_eq!(names, [b"a", b"b"]);
    // The same names are other files.
    for (path, old) in paths.into_iter().zip(files) {
        assert_ne!(volume.walk(path).unwrap(), old);
    }
    assert_eq!(volume.walk("top"), Err(Error::NotFound));
    assert_eq!(picture_of(&volume, ROOT), first);
    assert_eq!(picture_of(&volume, snapshot(&volume, "one")), two);
    let top = volume.file(ROOT, "top");
    volume.write(top, 0, b"again");
    assert_eq!(volume.fs.check().unwrap().problems, []);
    for inode in files.into_iter().chain([a, b, open, temporary]) {
        volume.fs.forget(inode, u64::MAX);
    }
    assert_eq!(volume.fs.check().unwrap().orphans, 0);
    let volume = volume.after_crash();
    assert_eq!(volume.walk("top").map(|file| volume.read(file, 0, 9)), Ok(b"again".to_vec()));
    volume.assert_clean();
    volume.remount(false).assert_clean();
}

#[test]
fn a_volume_goes_back_again_and_again() {
    let volume = filled();
    take(&volume, "one");
    let first = picture_of(&volume, ROOT);
    let mut numbers = std::collections::BTreeSet::new();
    for round in 0..10u8 {
        scribble(&volume);
        let new = volume.file(ROOT, "new");
        volume.fs.link(new, ROOT, b"newer").unwrap();
        take(&volume, &format!("s{round}"));
        roll_back(&volume, "one").unwrap();
        for path in ["a", "a/f7", "a/f8"] {
            assert!(numbers.insert(volume.walk(path).unwrap()));
        }
        assert_eq!(picture_of(&volume, ROOT), first);
        volume.assert_clean();
    }
    let late = picture_of(&volume, snapshot(&volume, "s3"));
    roll_back(&volume, "s3").unwrap();
    assert_eq!(picture_of(&volume, ROOT), late);
    assert_eq!(volume.walk("new").unwrap(), volume.walk("newer").unwrap());
    volume.assert_clean();
    volume.remount(false).assert_clean();
}

/// Each reply read the whole table.
#[test]
fn a_listing_of_the_snapshots_reads_them_once() {
    let volume = Volume::new();
    let all: Vec<_> = (0..40).map(|number| format!("s{}", (number * 7) % 40)).collect();
    all.iter().for_each(|name| take(&volume, name));
    let scans = || volume.fs.engine().stats().scans;
    let before = scans();
    waiting(&*volume.fs, FileSystem::snapshots).unwrap();
    let (once, before) = (scans() - before, scans());
    // One name in each reply.
    let (mut cookie, mut names) = (0, Vec::new());
    let mut list_on = || {
        let behind = cookie;
        let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
            let fits = cookie == behind;
            if fits {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
            fits
        };
        waiting(&*volume.fs, |fs| fs.read_directory(SNAPSHOTS, behind, ListAttributes::OfAll, &mut emit))
            .unwrap();
        (cookie != behind).then(|| names.clone())
    };
    for _ in 0..22 {
        list_on().unwrap();
    }
    assert_eq!(scans() - before, once);
    // What has come and gone since is seen.
    take(&volume, "new");
    delete(&volume, &all[30]).unwrap();
    let mut listed = Vec::new();
    while let Some(names) = list_on() {
        listed = names;
    }
    let mut expected = all.clone();
    expected.remove(30);
    expected.extend(["new".to_owned()]);
    assert_eq!(listed[2..], expected);
}

/// A listing of the directory that was read meanwhile is known by that to be an old one, also if the clock has not gone on.
#[test]
fn the_directory_of_the_snapshots_tells_when_it_changed() {
    for volume in [filled(), filled().without_time()] {
        let times = || {
            let found = attributes(&volume, SNAPSHOTS);
            (found.modified, found.changed)
        };
        let before = times();
        take(&volume, "one");
        let taken = times();
        let mut stream = Vec::new();
        volume.fs.send_snapshot(b"one", None, &mut stream).unwrap();
        assert_eq!(times(), taken);
        volume.fs.receive_snapshot(&mut &stream[..], Some(b"two")).unwrap();
        let received = times();
        delete(&volume, "one").unwrap();
        let all = [before, taken, received, times()];
        assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{all:?}");
    }
}

#[test]
fn listings_show_the_snapshots_if_they_are_told_to() {
    let volume = filled();
    take(&volume, "one");
    volume.fs.list_snapshots_directory(true);
    assert_eq!(volume.names(ROOT), [".snapshots", "a", "b"]);
    assert_eq!(volume.names(volume.walk(".snapshots/one").unwrap()), ["a", "b"]);
    // In pieces of one name each.
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let before = cookie;
        let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
            let is_first = cookie == before;
            if is_first {
                names.push(entry.name.to_vec());
                cookie = entry.cookie;
                volume.fs.forget(entry.inode, u64::from(entry.attributes.is_some()));
            }
            is_first
        };
        waiting(&*volume.fs, |fs| fs.read_directory(ROOT, before, ListAttributes::OfAll, &mut emit)).unwrap();
        if cookie == before {
            break;
        }
    }
    assert_eq!(names, [&b"."[..], b"..", b".snapshots", b"a", b"b"]);
    volume.fs.list_snapshots_directory(false);
    assert_eq!(volume.names(ROOT), ["a", "b"]);
}

#[test]
fn a_snapshot_that_is_held_is_not_deleted() {
    let volume = filled();
    take(&volume, "one");
    assert_eq!(volume.fs.hold_snapshot(b"two").map(drop), Err(Error::NotFound));
    let held = [0; 2].map(|_| volume.fs.hold_snapshot(b"one").unwrap());
    let [first, second] = held;
    assert_eq!(first.root(), snapshot(&volume, "one"));
    drop(first);
    assert_eq!(delete(&volume, "one"), Err(Error::InUse));
    roll_back(&volume, "one").unwrap();
    assert_eq!(volume.names(second.root()), ["a", "b"]);
    drop(second);
    assert_eq!(delete(&volume, "one"), Ok(()));
}

#[test]
fn what_lies_in_a_snapshot_can_be_cloned_and_copied_out() {
    let volume = filled();
    let before = picture_of(&volume, ROOT);
    take(&volume, "one");
    scribble(&volume);
    let one = snapshot(&volume, "one");
    let clone = |source, name: &str| {
        let made =
            waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], source, ROOT, name.as_bytes()));
        made.unwrap();
        volume.walk(name).unwrap()
    };
    let whole = clone(one, "whole");
    volume.assert_clean();
    assert_eq!(picture_of(&volume, whole), before);
    assert_eq!(waiting(&*volume.fs, |fs| fs.get_xattr(whole, b"user.large")).unwrap(), vec![5; 3000]);
    let a = clone(volume.walk(".snapshots/one/a").unwrap(), "again");
    assert_eq!(attributes(&volume, volume.walk("again/linked").unwrap()).links, 2);
    let linked = clone(volume.walk(".snapshots/one/b/linked").unwrap(), "linked");
    assert_eq!(attributes(&volume, linked).links, 1);
    volume.write(linked, 0, b"changed");
    let file = volume.file(a, "copy");
    let source = volume.walk(".snapshots/one/a/f30").unwrap();
    let copied = waiting(&*volume.fs, |fs| fs.copy_range(source, 0, file, 0, 1 << 20, false)).unwrap();
    assert_eq!(volume.read(file, 0, 1 << 20), vec![31; copied as usize]);
    volume.write(volume.walk("whole/a/f30").unwrap(), 0, b"changed");
    assert_eq!(picture_of(&volume, one), before);
    volume.assert_clean();
    volume.remount(false).assert_clean();
}

#[test]
fn what_is_unlinked_and_still_open_is_in_no_snapshot() {
    let volume = filled();
    let files = [volume.walk("a/f9").unwrap(), volume.walk("a/f7").unwrap()];
    let (a, b) = (volume.walk("a").unwrap(), volume.walk("b").unwrap());
    for (directory, name) in [(a, "f9"), (a, "f7"), (a, "linked"), (b, "linked")] {
        waiting(&*volume.fs, |fs| fs.unlink(directory, name.as_bytes())).unwrap();
    }
    take(&volume, "one");
    volume.assert_clean();
    for (file, byte) in files.into_iter().zip([10, 8]) {
        assert_eq!(volume.read(file, 0, 3), [byte; 3]);
    }
    let volume = volume.remount(false);
    assert_eq!(volume.walk(".snapshots/one/a/f9"), Err(Error::NotFound));
    volume.assert_clean();
}

#[test]
fn broken_snapshots_are_found() {
    let broken_by = |make: &dyn Fn(u64, &mut Batch)| {
        let volume = filled();
        take(&volume, "one");
        let number = waiting(&*volume.fs, FileSystem::snapshots).unwrap()[0].number;
        let mut batch = Batch::new();
        make(number.0, &mut batch);
        volume.fs.engine().apply(batch).unwrap();
        let problems = volume.fs.check().unwrap().problems;
        problems.into_iter().map(|problem| problem.invariant).collect::<Vec<_>>()
    };
    let nameless = broken_by(&|_, batch| batch.delete(Tree::Metadata, key::snapshot_name_key(b"one")));
    assert_eq!(nameless, ["FS-8"]);
    let two = broken_by(&|_, batch| batch.put(Tree::Metadata, key::snapshot_name_key(b"two"), &b"x"[..]));
    assert_eq!(two, ["FS-8"]);
    let block = broken_by(&|number, batch| {
        let file = key::in_snapshot(&key::snapshot_prefix(number), &key::child_key(b"\0a", b"f30"));
        batch.delete(Tree::Data, key::block_key(&key::data_prefix(&file), 1));
    });
    assert_eq!(block, ["FS-1"]);
    let name = broken_by(&|number, batch| {
        batch.delete(
            Tree::Metadata,
            key::in_snapshot(&key::snapshot_prefix(number), &key::child_key(b"", b"b")),
        );
    });
    assert!(name.contains(&"FS-2") && name.contains(&"FS-3"), "{name:?}");
    let link = broken_by(&|number, batch| {
        let name = key::link_name_key(&key::child_key(b"\0b", b"linked"));
        batch.delete(Tree::Metadata, key::in_snapshot(&key::snapshot_prefix(number), &name));
    });
    assert_eq!(link, ["FS-6"]);
}

/// With nothing to copy it said that it had copied nothing.
#[test]
fn what_is_gone_with_its_tree_is_not_copied() {
    let volume = Volume::new();
    let (from, to) = (volume.file(ROOT, "from"), volume.file(ROOT, "to"));
    volume.write(from, 0, b"text");
    assert_eq!(volume.copy_range((from, 4), (to, 0), 100), Ok(0));
    take(&volume, "one");
    roll_back(&volume, "one").unwrap();
    assert_eq!(volume.copy_range((from, 4), (to, 0), 100), Err(Error::Stale));
}
