//! Clones, step by step; the model and the crashes meet them in any order.

use pando_engine::{Background, Batch, Bound, FormatOptions, KeyRange, Options, ScanLimit, Tree};
use pando_fs::operations::{
    Attributes, Caller, FileType, Operations, ROOT, SetAttributes, XattrMode, waiting,
};
use pando_fs::schema::key;
use pando_fs::{Error, InodeNumber, Result};
use pando_sim::model::acl::{Acl, NOBODY};

use crate::common::{Volume, small_nodes};

/// Neither root nor an owner of anything.
const OTHER: Caller = Caller { uid: 7, gid: 8, umask: 0 };

fn clone(volume: &Volume, source: InodeNumber, parent: InodeNumber, name: &str) -> InodeNumber {
    let cloned =
        waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], source, parent, name.as_bytes()));
    cloned.unwrap();
    waiting(&*volume.fs, |fs| fs.lookup(parent, name.as_bytes())).unwrap().attributes.inode
}

fn unlink(volume: &Volume, parent: InodeNumber, name: &[u8]) {
    waiting(&*volume.fs, |fs| fs.unlink(parent, name)).unwrap();
}

fn remove_directory(volume: &Volume, parent: InodeNumber, name: &[u8]) {
    waiting(&*volume.fs, |fs| fs.remove_directory(parent, name)).unwrap();
}

fn attributes(volume: &Volume, inode: InodeNumber) -> Attributes {
    volume.fs.get_attributes(inode).unwrap()
}

fn set(volume: &Volume, inode: InodeNumber, set: SetAttributes) {
    volume.fs.set_attributes(inode, &set).unwrap();
}

/// Keys of the data index that begin so, at most 1000.
fn data_keys(volume: &Volume, prefix: &[u8]) -> usize {
    let range = KeyRange::new(Bound::before(prefix.to_vec()), Bound::after(prefix.to_vec()));
    let limit = ScanLimit { entries: 1000, bytes: usize::MAX };
    let engine = volume.fs.engine();
    let scan = engine.waiting(|| engine.scan(Tree::Data, &range, limit)).unwrap();
    scan.entries.len()
}

/// `/tree` with so many files in each of four directories.
fn tree(volume: &Volume, files: u32) -> InodeNumber {
    let root = volume.directory(ROOT, "tree");
    for directory in 0..4 {
        let inode = volume.directory(root, &format!("d{directory}"));
        for file in 0..files {
            let name = format!("f{file}");
            let file = volume.file(inode, &name);
            volume.write(file, 0, name.repeat(300).as_bytes());
        }
    }
    root
}

#[test]
fn a_tree_and_its_clone_go_their_own_ways() {
    let volume = Volume::new();
    let root = tree(&volume, 300);
    while volume.fs.engine().background_step().unwrap() {}
    let cloned = volume.fs.engine().stats().ranges_cloned;
    let copy = clone(&volume, root, ROOT, "copy");
    assert!(volume.fs.engine().stats().ranges_cloned > cloned, "it was copied");
    volume.assert_clean();
    let name = |file: u32| format!("f{file}").repeat(300);
    for file in 0..300 {
        let (old, new) = (format!("tree/d1/f{file}"), format!("copy/d1/f{file}"));
        let (old, new) = (volume.walk(&old).unwrap(), volume.walk(&new).unwrap());
        assert_ne!(old, new);
        match file % 3 {
            0 => volume.write(old, 1, b"changed"),
            1 => volume.write(new, 1, b"changed"),
            _ => volume.resize(new, 2),
        }
        let of = |inode| String::from_utf8(volume.read(inode, 0, 5000)).unwrap();
        let changed = |text: String| format!("{}changed{}", &text[..1], &text[8..]);
        assert_eq!(of(old), if file % 3 == 0 { changed(name(file)) } else { name(file) });
        let expected = match file % 3 {
            0 => name(file),
            1 => changed(name(file)),
            _ => name(file)[..2].to_owned(),
        };
        assert_eq!(of(new), expected);
    }
    volume.file(copy, "new");
    assert_eq!(volume.walk("tree/new"), Err(Error::NotFound));
    // A clone of the clone outlives both.
    let third = clone(&volume, copy, ROOT, "third");
    for path in ["tree", "copy"] {
        let top = volume.walk(path).unwrap();
        for directory in volume.names(top) {
            let Ok(inode) = volume.walk(&format!("{path}/{directory}")) else { continue };
            if attributes(&volume, inode).file_type == FileType::Directory {
                for file in volume.names(inode) {
                    unlink(&volume, inode, file.as_bytes());
                }
                remove_directory(&volume, top, directory.as_bytes());
            } else {
                unlink(&volume, top, directory.as_bytes());
            }
        }
        remove_directory(&volume, ROOT, path.as_bytes());
    }
    let volume = volume.remount(false);
    assert_eq!(volume.names(ROOT), ["third"]);
    assert_eq!(volume.names(volume.walk("third").unwrap()), ["d0", "d1", "d2", "d3", "new"]);
    let file = volume.walk("third/d2/f7").unwrap();
    assert_eq!(volume.read(file, 0, 5000), name(7).as_bytes());
    let _ = third;
    volume.assert_clean();
}

#[test]
fn a_clone_keeps_what_cp_keeps() {
    let volume = Volume::new();
    let root = tree(&volume, 1);
    volume.fs.set_xattr(root, b"user.large", &[3; 2000], XattrMode::Set, false).unwrap();
    volume.fs.set_xattr(root, b"user.small", b"x", XattrMode::Set, false).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(77);
    let old = Some(pando_fs::operations::SetTime::To(time));
    set(
        &volume,
        root,
        SetAttributes {
            mode: Some(0o2751),
            uid: Some(5),
            gid: Some(6),
            accessed: old,
            modified: old,
            ..SetAttributes::default()
        },
    );
    let copy = clone(&volume, root, ROOT, "copy");
    let (before, after) = (attributes(&volume, root), attributes(&volume, copy));
    let kept = |a: Attributes| (a.file_type, a.mode, a.links, a.uid, a.gid, a.size, a.accessed, a.modified);
    assert_eq!(kept(after), kept(before));
    assert!(after.born > before.born);
    assert_eq!(volume.fs.get_xattr(copy, b"user.large").unwrap(), vec![3; 2000]);
    assert_eq!(volume.fs.get_xattr(copy, b"user.small").unwrap(), "x");
    assert_eq!(attributes(&volume, ROOT).links, 4);
    volume.fs.remove_xattr(copy, b"user.large").unwrap();
    assert_eq!(volume.fs.get_xattr(root, b"user.large").unwrap(), vec![3; 2000]);
    // Of what lies below, all is kept.
    let (old, new) = (volume.walk("tree/d0/f0").unwrap(), volume.walk("copy/d0/f0").unwrap());
    let (old, new) = (attributes(&volume, old), attributes(&volume, new));
    assert_eq!(Attributes { inode: old.inode, ..new }, old);
    volume.assert_clean();
}

#[test]
fn a_clone_has_links_of_its_own_among_its_own_names() {
    let volume = Volume::new();
    let root = volume.directory(ROOT, "tree");
    let inner = volume.directory(root, "inner");
    let both = volume.file(root, "both");
    volume.write(both, 0, &[1; 100_000]);
    volume.fs.set_xattr(both, b"user.large", &[3; 2000], XattrMode::Set, false).unwrap();
    volume.fs.link(both, inner, b"both").unwrap();
    let outside = volume.file(inner, "outside");
    volume.fs.link(outside, ROOT, b"outside").unwrap();
    let copy = clone(&volume, root, ROOT, "copy");
    volume.assert_clean();
    let (one, two) = (volume.walk("copy/both").unwrap(), volume.walk("copy/inner/both").unwrap());
    let alone = volume.walk("copy/inner/outside").unwrap();
    assert_eq!((one, attributes(&volume, one).links), (two, 2));
    assert_eq!((attributes(&volume, alone).links, attributes(&volume, outside).links), (1, 2));
    assert!(one != both && alone != outside);
    volume.write(one, 5, b"changed");
    assert_eq!(volume.read(both, 0, 100_000), [1; 100_000]);
    assert_eq!(volume.read(two, 5, 7), b"changed");
    assert_eq!(volume.fs.get_xattr(two, b"user.large").unwrap(), vec![3; 2000]);
    // The clone of one linked file is a file of its own.
    let single = clone(&volume, both, copy, "single");
    assert_eq!((attributes(&volume, single).links, attributes(&volume, both).links), (1, 2));
    assert_eq!(volume.read(single, 0, 100_000), [1; 100_000]);
    volume.fs.unlink(root, b"both").unwrap();
    volume.fs.unlink(inner, b"both").unwrap();
    assert_eq!(volume.read(single, 0, 100_000), [1; 100_000]);
    let volume = volume.remount(false);
    assert_eq!(attributes(&volume, volume.walk("copy/inner/both").unwrap()).links, 2);
    volume.assert_clean();
}

#[test]
fn what_is_unlinked_and_still_open_is_no_part_of_a_clone() {
    let volume = Volume::new();
    let root = volume.directory(ROOT, "tree");
    let directory = volume.directory(root, "d");
    for name in ["open", "linked"] {
        let file = volume.file(directory, name);
        volume.write(file, 0, &[9; 50_000]);
    }
    let linked = volume.walk("tree/d/linked").unwrap();
    volume.fs.link(linked, directory, b"second").unwrap();
    let open = volume.walk("tree/d/open").unwrap();
    for name in ["open", "linked", "second"] {
        volume.fs.unlink(directory, name.as_bytes()).unwrap();
    }
    volume.file(directory, "stays");
    clone(&volume, root, ROOT, "copy");
    assert_eq!(data_keys(&volume, &key::subtree_prefix(b"\0copy")), 0);
    assert_eq!(volume.names(volume.walk("copy/d").unwrap()), ["stays"]);
    assert_eq!(volume.read(open, 0, 50_000), [9; 50_000]);
    assert_eq!(volume.read(linked, 0, 50_000), [9; 50_000]);
    volume.assert_clean();
}

#[test]
fn what_is_parked_where_a_clone_comes_is_not_lost() {
    let volume = Volume::new();
    let target = volume.directory(ROOT, "copy");
    let mut orphans = Vec::new();
    for name in ["a", "b"] {
        let file = volume.file(target, name);
        volume.write(file, 0, name.repeat(9000).as_bytes());
        volume.fs.unlink(target, name.as_bytes()).unwrap();
        orphans.push((file, name));
    }
    volume.fs.remove_directory(ROOT, b"copy").unwrap();
    let source = volume.directory(ROOT, "tree");
    volume.write(volume.file(source, "a"), 0, b"of the clone");
    clone(&volume, source, ROOT, "copy");
    for (orphan, name) in orphans {
        assert_eq!(volume.read(orphan, 0, 20_000), name.repeat(9000).as_bytes());
    }
    assert_eq!(volume.read(volume.walk("copy/a").unwrap(), 0, 100), b"of the clone");
    volume.assert_clean();
    volume.after_crash().assert_clean();
}

#[test]
fn an_open_file_without_a_name_is_cloned_to_the_name_that_it_had() {
    // By a copy, and by a goto.
    for length in [100, 500_000] {
        let options = Options { background: Background::Manual, ..Options::default() };
        let volume = Volume::new().remount_with(options.clone());
        let file = volume.file(ROOT, "f");
        volume.write(file, 0, &vec![9; length]);
        volume.fs.engine().checkpoint().unwrap();
        volume.fs.unlink(ROOT, b"f").unwrap();
        let copy = clone(&volume, file, ROOT, "f");
        volume.write(copy, 0, b"new");
        let expected = [&b"new"[..], &vec![9; length - 3]].concat();
        assert_eq!(volume.read(file, 0, length), vec![9; length]);
        assert_eq!(volume.read(copy, 0, length), expected);
        assert_eq!((attributes(&volume, file).links, attributes(&volume, copy).links), (0, 1));
        volume.assert_clean();
        assert_eq!(length > 100, volume.fs.engine().stats().ranges_cloned > 0);
        let volume = volume.killed(options);
        assert_eq!(volume.read(volume.walk("f").unwrap(), 0, length), expected);
        volume.assert_clean();
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let volume = Volume::new();
    let root = tree(&volume, 1);
    let inner = volume.walk("tree/d0").unwrap();
    let clone = |source, parent, name: &[u8]| volume.fs.clone_tree(&volume.caller, &[], source, parent, name);
    assert_eq!(clone(root, inner, b"copy"), Err(Error::Invalid));
    assert_eq!(clone(root, root, b"copy"), Err(Error::Invalid));
    assert_eq!(clone(ROOT, root, b"copy"), Err(Error::Invalid));
    assert_eq!(clone(inner, ROOT, b"tree"), Err(Error::Exists));
    assert_eq!(clone(inner, ROOT, b"a/b"), Err(Error::Invalid));
    let file = volume.walk("tree/d0/f0").unwrap();
    assert_eq!(clone(root, file, b"copy"), Err(Error::NotADirectory));
    volume.fs.unlink(inner, b"f0").unwrap();
    volume.fs.remove_directory(root, b"d0").unwrap();
    assert_eq!(clone(inner, ROOT, b"copy"), Err(Error::NotFound));
    assert_eq!(clone(root, inner, b"copy"), Err(Error::NotFound));
    let read_only = volume.remount(true);
    let root = read_only.walk("tree").unwrap();
    let refused = read_only.fs.clone_tree(&read_only.caller, &[], root, ROOT, b"copy");
    assert_eq!(refused, Err(Error::ReadOnly));
}

#[test]
fn who_may_clone_is_who_may_copy() {
    let volume = Volume::new();
    let root = tree(&volume, 1);
    let open = volume.directory(ROOT, "open");
    set(&volume, open, SetAttributes { mode: Some(0o777), ..SetAttributes::default() });
    let file = volume.walk("tree/d0/f0").unwrap();
    let clone = |groups: &[u32], source, parent| -> Result<Attributes> {
        volume.fs.clone_tree(&OTHER, groups, source, parent, b"copy")?;
        let copy = volume.fs.lookup(parent, b"copy").unwrap().attributes;
        volume.fs.forget(copy.inode, 1);
        match copy.file_type {
            FileType::Directory => Ok(copy),
            _ => volume.fs.unlink(parent, b"copy").map(|()| copy),
        }
    };
    let mode = |inode, mode, uid, gid| {
        set(&volume, inode, SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() });
        set(&volume, inode, SetAttributes { mode: Some(mode), ..SetAttributes::default() });
    };
    // Reading the source, by owner, group and others.
    for (bits, uid, gid, groups, expected) in [
        (0o400, 7, 0, &[][..], true),
        (0o044, 7, 0, &[], false),
        (0o040, 0, 8, &[], true),
        (0o404, 0, 8, &[], false),
        (0o040, 0, 9, &[9], true),
        (0o040, 0, 9, &[], false),
        (0o004, 0, 9, &[], true),
        (0o440, 0, 9, &[], false),
    ] {
        mode(file, bits, uid, gid);
        let found = clone(groups, file, open);
        assert_eq!(found.is_ok(), expected, "{bits:o} {uid} {gid}");
        assert!(expected || found == Err(Error::AccessDenied));
    }
    // An access control list may say less than the bits.
    mode(file, 0o644, 0, 0);
    let entries = [(1, 6), (4, 4), (16, 4), (32, 4)].map(|(tag, permissions)| ((tag, NOBODY), permissions));
    let list = Acl(entries.into()).bytes();
    volume.fs.set_xattr(file, b"system.posix_acl_access", &list, XattrMode::Set, false).unwrap();
    assert_eq!(clone(&[], file, open), Err(Error::AccessDenied));
    volume.fs.remove_xattr(file, b"system.posix_acl_access").unwrap();
    // Writing the directory.
    mode(file, 0o644, 7, 8);
    mode(open, 0o733, 0, 0);
    assert!(clone(&[], file, open).is_ok());
    for bits in [0o775, 0o772, 0o771] {
        mode(open, bits, 0, 0);
        assert_eq!(clone(&[], file, open), Err(Error::AccessDenied), "{bits:o}");
    }
    mode(open, 0o777, 0, 0);
    // What was another's is the caller's, without its privileges; not so root's own clones.
    mode(file, 0o6755, 0, 0);
    volume.fs.set_xattr(file, b"security.capability", &[1; 600], XattrMode::Set, false).unwrap();
    volume.fs.set_xattr(file, b"user.a", &[2; 600], XattrMode::Set, false).unwrap();
    let copy = clone(&[], file, open).unwrap();
    assert_eq!((copy.uid, copy.gid, copy.mode), (7, 8, 0o755));
    volume.fs.clone_tree(&OTHER, &[], file, open, b"kept").unwrap();
    let kept = volume.walk("open/kept").unwrap();
    assert_eq!(volume.fs.list_xattrs(kept).unwrap(), "user.a\0");
    assert_eq!(volume.fs.get_xattr(kept, b"user.a").unwrap(), vec![2; 600]);
    let data = key::data_prefix(&key::child_key(b"\0open", b"kept"));
    assert_eq!(data_keys(&volume, &key::xattr_key(&data, b"security.capability")), 0);
    volume.fs.clone_tree(&volume.caller, &[], file, open, b"root").unwrap();
    let copy = attributes(&volume, volume.walk("open/root").unwrap());
    assert_eq!((copy.uid, copy.gid, copy.mode), (0, 0, 0o6755));
    // Directories: their owners and root.
    assert_eq!(clone(&[], root, open), Err(Error::NotPermitted));
    mode(root, 0o755, 7, 0);
    let copy = clone(&[], root, open).unwrap();
    assert_eq!((copy.uid, copy.gid), (7, 8));
    volume.assert_clean();
}

/// So many names of one file, of 200 bytes each, in a new directory.
fn linked_names(volume: &Volume, count: usize) -> InodeNumber {
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(directory, "first");
    for number in 1..count {
        volume.fs.make_room(0, true).unwrap();
        waiting(&*volume.fs, |fs| fs.link(file, directory, format!("{number:0>200}").as_bytes())).unwrap();
    }
    directory
}

/// The list was read first, with all other changes of names waiting.
#[test]
fn who_may_not_clone_a_directory_is_told_without_a_look_at_its_links() {
    let volume = Volume::new();
    let directory = linked_names(&volume, 3);
    let open = volume.directory(ROOT, "open");
    set(&volume, open, SetAttributes { mode: Some(0o777), ..SetAttributes::default() });
    volume.fs.interrupt_queries(|| true);
    assert_eq!(volume.fs.clone_tree(&OTHER, &[], directory, open, b"copy"), Err(Error::NotPermitted));
    assert_eq!(volume.fs.clone_tree(&volume.caller, &[], directory, open, b"copy"), Err(Error::Busy));
}

/// The whole list was read before.
#[test]
fn a_clone_with_too_many_links_is_refused_as_soon_as_that_is_known() {
    // A record of the log takes a quarter of it: some 150 such names.
    let volume = Volume::formatted(&FormatOptions { log_bytes: Some(256 << 10), ..small_nodes() });
    let directory = linked_names(&volume, 1000);
    let before = volume.fs.engine().stats().scans;
    let cloned = waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], directory, ROOT, b"copy"));
    assert_eq!(cloned, Err(Error::TooBig));
    let scans = volume.fs.engine().stats().scans - before;
    assert!(scans <= 5, "{scans}");
}

/// `/d` with so many files of two names each, `a0` and `b0` and so on; those for which `elsewhere` is true have both in `/other`. Files of
/// several kinds are among them: some hold nothing, or an attribute alone.
fn pairs(volume: &Volume, count: usize, elsewhere: impl Fn(usize) -> bool) -> InodeNumber {
    let (directory, other) = (volume.directory(ROOT, "d"), volume.directory(ROOT, "other"));
    for number in 0..count {
        volume.fs.make_room(4096, true).unwrap();
        let parent = if elsewhere(number) { other } else { directory };
        let file = volume.file(parent, &format!("a{number}"));
        if number % 7 != 3 {
            volume.write(file, 0, &contents(number));
        }
        if number % 14 == 3 {
            volume.fs.set_xattr(file, b"user.large", &contents(number), XattrMode::Set, false).unwrap();
        }
        waiting(&*volume.fs, |fs| fs.link(file, parent, format!("b{number}").as_bytes())).unwrap();
        volume.fs.forget(file, 1);
    }
    directory
}

fn contents(number: usize) -> Vec<u8> {
    format!("{number:04}").repeat(900).into_bytes()
}

/// All that lay there was held in memory, with all other changes of names waiting. Nodes that several ways lead to show any number of keys.
#[test]
fn of_the_neighbours_of_files_with_several_links_no_more_are_looked_at_than_there_can_be() {
    let volume = Volume::new();
    let directory = pairs(&volume, 8, |_| false);
    let neighbours = key::linked_key(volume.walk("d/a0").unwrap().0);
    let mut batch = Batch::new();
    for number in 0..5000_u32 {
        let none = [&neighbours[..neighbours.len() - 1], &[0xff], &number.to_be_bytes()].concat();
        batch.put(Tree::Metadata, none, &b"x"[..]);
    }
    volume.fs.engine().apply(batch).unwrap();
    let before = volume.fs.engine().stats().scans;
    clone(&volume, directory, ROOT, "copy");
    let scans = volume.fs.engine().stats().scans - before;
    assert!(scans <= 5, "{scans}");
    assert_pairs(&volume, "copy", 8, |_| true);
}

/// Compares what [`pairs`] made with what is there now.
fn assert_pairs(volume: &Volume, path: &str, count: usize, there: impl Fn(usize) -> bool) {
    for number in 0..count {
        let [a, b] = ['a', 'b'].map(|letter| volume.walk(&format!("{path}/{letter}{number}")));
        if !there(number) {
            assert_eq!((a, b), (Err(Error::NotFound), Err(Error::NotFound)), "{path} {number}");
            continue;
        }
        let file = a.unwrap();
        assert_eq!(b, Ok(file), "{path} {number}");
        let expected = if number % 7 == 3 { Vec::new() } else { contents(number) };
        assert!(volume.read(file, 0, 4096) == expected, "{path} {number}");
        let value = waiting(&*volume.fs, |fs| fs.get_xattr(file, b"user.large"));
        assert_eq!(value.is_ok_and(|value| value == contents(number)), number % 14 == 3, "{path} {number}");
        volume.fs.forget(file, 2);
    }
}

fn ranges(volume: &Volume) -> u64 {
    let stats = volume.fs.engine().stats();
    stats.ranges_cloned + stats.ranges_copied
}

/// There was an operation for each file, and a walk over all of them again for each part of the tree that had to be read: 20 000 took 43 s.
#[test]
fn linked_files_whose_numbers_are_neighbours_are_cloned_together() {
    let format =
        FormatOptions { node_bytes: Some(256 << 10), basement_bytes: Some(16 << 10), ..small_nodes() };
    let volume = Volume::formatted(&format);
    const FILES: usize = 1000;
    pairs(&volume, FILES, |_| false);
    let cold = Options { background: Background::Manual, cache_bytes: 1 << 20, ..Options::default() };
    let volume = volume.remount_with(cold);
    let directory = volume.walk("d").unwrap();
    clone(&volume, directory, ROOT, "copy");
    let (cloned, misses) = (ranges(&volume), volume.fs.engine().stats().misses);
    assert!(cloned <= 2 + 5 && misses < 60, "{cloned} ranges, {misses} misses");
    assert_pairs(&volume, "copy", FILES, |_| true);
    assert_pairs(&volume, "d", FILES, |_| true);
    volume.assert_clean();
}

/// What lies between the files of a clone, and has its names elsewhere or none, is no part of it. In a tree whose root has a delta, as that of a snapshot that was
/// gone back to, numbers are stored otherwise than they are shown.
#[test]
fn of_neighbours_only_those_with_names_in_the_source_are_cloned() {
    const FILES: usize = 700;
    // Of three rows one is of the source alone.
    let elsewhere = |number: usize| number == 100;
    let unnamed = 350;
    for gone_back in [false, true] {
        let volume = Volume::new();
        pairs(&volume, FILES, elsewhere);
        if gone_back {
            waiting(&*volume.fs, |fs| fs.take_snapshot(b"s", false)).unwrap();
            waiting(&*volume.fs, |fs| fs.roll_back(b"s")).map(drop).unwrap();
        }
        // In use.
        let file = volume.walk(&format!("d/a{unnamed}")).unwrap();
        let directory = volume.walk("d").unwrap();
        unlink(&volume, directory, format!("a{unnamed}").as_bytes());
        unlink(&volume, directory, format!("b{unnamed}").as_bytes());
        let before = ranges(&volume);
        clone(&volume, directory, ROOT, "copy");
        let cloned = ranges(&volume) - before;
        assert!((300..500).contains(&cloned), "{cloned}");
        assert_eq!(volume.read(file, 0, 4096), contents(unnamed));
        volume.assert_clean();
        let volume = volume.killed(Options { background: Background::Manual, ..Options::default() });
        let named = |number: usize| number != unnamed && !elsewhere(number);
        assert_pairs(&volume, "copy", FILES, named);
        assert_pairs(&volume, "other", FILES, elsewhere);
        volume.assert_clean();
        // A clone of the clone, whose own numbers are neighbours, too.
        let copy = volume.walk("copy").unwrap();
        let before = ranges(&volume);
        clone(&volume, copy, ROOT, "again");
        assert!(ranges(&volume) - before < 12);
        assert_pairs(&volume, "again", FILES, named);
        volume.assert_clean();
    }
}
