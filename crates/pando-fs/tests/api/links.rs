//! Files with several links, step by step; the model and the threads meet them in any order.

use std::sync::atomic::{AtomicBool, Ordering};

use pando_engine::{FormatOptions, KeyRange, Tree};
use pando_fs::operations::{
    Attributes, FileType, ListAttributes, Operations, ROOT, RenameMode, SetAttributes, WriteMode, XattrMode,
    waiting,
};
use pando_fs::schema::{Record, Redirect, key};
use pando_fs::{Error, InodeNumber, LINKS_MAX};

use crate::common::Volume;

fn link(volume: &Volume, inode: InodeNumber, parent: InodeNumber, name: &str) -> Attributes {
    volume.fs.link(inode, parent, name.as_bytes()).unwrap().attributes
}

fn attributes(volume: &Volume, inode: InodeNumber) -> Attributes {
    volume.fs.get_attributes(inode).unwrap()
}

fn keys(volume: &Volume, tree: Tree, prefix: &[u8]) -> usize {
    let range = KeyRange::prefix(prefix.to_vec());
    let limit = pando_engine::ScanLimit { entries: 1000, bytes: 1 << 20 };
    let engine = volume.fs.engine();
    let scan = engine.waiting(|| engine.scan(tree, &range, limit));
    scan.unwrap().entries.len()
}

/// A file of three blocks and a large attribute, linked as `/f` and `/d/g`.
fn linked_file(volume: &Volume) -> (InodeNumber, InodeNumber) {
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[7; 10_000]);
    volume.fs.set_xattr(file, b"user.x", &[1; 1000], XattrMode::Set, false).unwrap();
    assert_eq!(link(volume, file, directory, "g").links, 2);
    (file, directory)
}

#[test]
fn all_names_lead_to_one_inode() {
    let volume = Volume::new();
    let (file, _) = linked_file(&volume);
    let (f, g) = (volume.walk("f").unwrap(), volume.walk("d/g").unwrap());
    assert_eq!((f, g), (file, file));
    volume.write(g, 10_000, b"more");
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    volume.fs.set_attributes(f, &set).unwrap();
    let found = attributes(&volume, g);
    assert_eq!((found.links, found.size, found.mode), (2, 10_004, 0o600));
    volume.assert_clean();

    let volume = volume.remount(false);
    let (f, g) = (volume.walk("f").unwrap(), volume.walk("d/g").unwrap());
    assert_eq!((f, g, attributes(&volume, g)), (file, file, found));
    assert_eq!(volume.read(g, 9_999, 10), b"\x07more");
    assert_eq!(waiting(&*volume.fs, |fs| fs.get_xattr(f, b"user.x")).unwrap(), vec![1; 1000]);
    volume.assert_clean();
}

#[test]
fn a_file_is_deleted_with_its_last_name() {
    let volume = Volume::new();
    let (file, directory) = linked_file(&volume);
    let before = attributes(&volume, file);
    volume.fs.unlink(ROOT, b"f").unwrap();
    let after = attributes(&volume, file);
    assert_eq!(after.links, 1);
    assert!(after.changed > before.changed && after.modified == before.modified);
    assert_eq!(volume.walk("f"), Err(Error::NotFound));
    volume.fs.unlink(directory, b"g").unwrap();
    // Still referenced: an orphan, whose data stay where they are.
    assert_eq!((attributes(&volume, file).links, volume.read(file, 0, 5)), (0, vec![7; 5]));
    assert_eq!(keys(&volume, Tree::Data, &key::linked_key(file.0)), 4);
    volume.assert_clean();
    volume.fs.forget(file, 10);
    assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale));
    let report = volume.fs.check().unwrap();
    assert_eq!((report.files, report.links, report.orphans, report.data_bytes), (0, 0, 0, 0));
    assert_eq!(keys(&volume, Tree::Data, b""), 0);
    volume.assert_clean();
}

#[test]
fn names_nobody_refers_to_go_one_by_one() {
    let volume = Volume::new();
    let (file, _) = linked_file(&volume);
    let volume = volume.remount(false);
    let directory = volume.walk("d").unwrap();
    volume.fs.unlink(directory, b"g").unwrap();
    assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale), "no reference stays behind");
    assert_eq!(volume.fs.check().unwrap().links, 1);
    volume.assert_clean();
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(keys(&volume, Tree::Data, b""), 0);
    assert_eq!(volume.fs.check().unwrap().orphans, 0);
    volume.assert_clean();
}

#[test]
fn an_orphan_of_a_crash_that_had_links_is_deleted() {
    let volume = Volume::new();
    let (_, directory) = linked_file(&volume);
    volume.fs.unlink(ROOT, b"f").unwrap();
    volume.fs.unlink(directory, b"g").unwrap();
    let volume = volume.after_crash();
    assert_eq!(keys(&volume, Tree::Data, b""), 0);
    assert_eq!(volume.fs.check().unwrap().orphans, 0);
    volume.assert_clean();
}

#[test]
fn renames_move_the_name_alone() {
    let volume = Volume::new();
    let (file, directory) = linked_file(&volume);
    let other = volume.file(directory, "other");
    volume.write(other, 0, &[9; 5000]);
    // Of two names of one file, none goes.
    let before = attributes(&volume, file);
    volume.rename(ROOT, "f", directory, "g").unwrap();
    assert_eq!(attributes(&volume, file), before);
    assert_eq!((volume.walk("f"), volume.walk("d/g")), (Ok(file), Ok(file)));
    // Over another file, and another file over it.
    volume.rename(ROOT, "f", directory, "other").unwrap();
    assert_eq!((attributes(&volume, other).links, attributes(&volume, file).links), (0, 2));
    assert_eq!((volume.walk("d/other"), volume.walk("f")), (Ok(file), Err(Error::NotFound)));
    volume.assert_clean();
    let third = volume.file(ROOT, "third");
    volume.write(third, 0, &[3; 5000]);
    volume.rename(ROOT, "third", directory, "other").unwrap();
    assert_eq!((volume.walk("d/other"), attributes(&volume, file).links), (Ok(third), 1));
    assert_eq!((volume.read(third, 0, 3), volume.read(file, 0, 3)), (vec![3; 3], vec![7; 3]));
    volume.assert_clean();
}

#[test]
fn linked_files_are_exchanged() {
    let volume = Volume::new();
    let (file, directory) = linked_file(&volume);
    let other = volume.file(ROOT, "other");
    let below = volume.directory(ROOT, "e");
    let inner = volume.file(below, "inner");
    link(&volume, inner, below, "inner too");
    let exchange = |from, name: &str, to, new: &str| {
        let (name, new) = (name.as_bytes(), new.as_bytes());
        volume.fs.rename(from, name, to, new, RenameMode::Exchange).unwrap();
        volume.assert_clean();
    };
    exchange(ROOT, "other", directory, "g");
    assert_eq!((volume.walk("d/g"), volume.walk("other")), (Ok(other), Ok(file)));
    link(&volume, other, ROOT, "another");
    exchange(ROOT, "another", ROOT, "f");
    assert_eq!((volume.walk("f"), volume.walk("another")), (Ok(other), Ok(file)));
    exchange(ROOT, "f", ROOT, "e");
    assert_eq!((volume.walk("e"), volume.walk("f/inner too")), (Ok(other), Ok(inner)));
}

#[test]
fn a_directory_takes_its_names_in_the_list_along() {
    let volume = Volume::new();
    let (file, directory) = linked_file(&volume);
    let deeper = volume.directory(directory, "deeper");
    link(&volume, file, deeper, "h");
    volume.rename(ROOT, "d", ROOT, "moved").unwrap();
    volume.assert_clean();
    let below = key::link_name_key(&key::subtree_prefix(b"\0moved"));
    assert_eq!(keys(&volume, Tree::Metadata, &below), 2);
    let volume = volume.remount(false);
    assert_eq!((volume.walk("moved/deeper/h"), volume.walk("moved/g")), (Ok(file), Ok(file)));
    assert_eq!(volume.read(file, 0, 3), [7; 3]);
}

#[test]
fn every_kind_of_file_but_directories_is_linked() {
    let volume = Volume::new();
    let symlink = volume.fs.make_symlink(&volume.caller, ROOT, b"s", b"target").unwrap().attributes.inode;
    let fifo = volume.fs.make_node(&volume.caller, ROOT, b"p", FileType::Fifo, 0o600, 0).unwrap();
    link(&volume, symlink, ROOT, "s2");
    link(&volume, fifo.attributes.inode, ROOT, "p2");
    assert_eq!(volume.fs.read_link(volume.walk("s2").unwrap()).unwrap(), "target");
    let directory = volume.directory(ROOT, "d");
    assert_eq!(volume.fs.link(directory, ROOT, b"d2"), Err(Error::NotPermitted));
    assert_eq!(volume.fs.link(symlink, ROOT, b"p2"), Err(Error::Exists));
    assert_eq!(volume.fs.link(symlink, fifo.attributes.inode, b"x"), Err(Error::NotADirectory));
    assert_eq!(volume.fs.link(symlink, ROOT, &[b'x'; 256]), Err(Error::NameTooLong));
    volume.assert_clean();
}

#[test]
fn a_file_without_a_name_gets_one() {
    let volume = Volume::new();
    let temporary = volume.fs.make_temporary(&volume.caller, ROOT, 0o600).unwrap().attributes.inode;
    volume.write(temporary, 0, &[5; 9000]);
    assert_eq!(link(&volume, temporary, ROOT, "t").links, 1);
    assert_eq!(lie(&volume, temporary, b"", b"t"), [0, 3]);
    volume.assert_clean();
    // Unlinked under its own name, then given that name again: its data are in the way of nobody but itself.
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[6; 9000]);
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(link(&volume, file, ROOT, "f").links, 1);
    volume.fs.unlink(ROOT, b"t").unwrap();
    assert_eq!(link(&volume, temporary, ROOT, "u").links, 1);
    volume.assert_clean();
    let volume = volume.after_crash();
    assert_eq!(volume.read(volume.walk("u").unwrap(), 0, 9000), [5; 9000]);
    assert_eq!(volume.read(volume.walk("f").unwrap(), 0, 9000), [6; 9000]);
}

#[test]
fn a_name_under_which_an_orphan_is_parked_becomes_a_link() {
    let volume = Volume::new();
    let (file, _) = linked_file(&volume);
    let orphan = volume.file(ROOT, "o");
    volume.write(orphan, 0, &[8; 9000]);
    volume.fs.unlink(ROOT, b"o").unwrap();
    link(&volume, file, ROOT, "o");
    assert_eq!((volume.read(orphan, 0, 3), volume.read(file, 0, 3)), (vec![8; 3], vec![7; 3]));
    volume.assert_clean();
}

#[test]
fn more_links_than_can_be_counted_are_refused() {
    let volume = Volume::new();
    let (file, _) = linked_file(&volume);
    let engine = volume.fs.engine();
    let own = key::linked_key(file.0);
    let mut record = Record::decode(&engine.get(Tree::Metadata, &own).unwrap().unwrap()).unwrap();
    record.links = LINKS_MAX - 1;
    let mut batch = pando_engine::Batch::new();
    batch.put(Tree::Metadata, own, record.encode());
    engine.apply(batch).unwrap();
    let volume = volume.after_crash();
    let file = volume.walk("f").unwrap();
    assert_eq!(link(&volume, file, ROOT, "last").links, LINKS_MAX);
    assert_eq!(volume.fs.link(file, ROOT, b"one more"), Err(Error::TooManyLinks));
    assert_eq!(volume.walk("one more"), Err(Error::NotFound));
}

/// The names of the root with their inodes, and what a listing with attributes says of their links; its references are given back.
fn listed(volume: &Volume, with_attributes: bool) -> Vec<(Vec<u8>, InodeNumber, FileType, Option<u32>)> {
    let mut found = Vec::new();
    let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
        let links = entry.attributes.map(|attributes| attributes.links);
        found.push((entry.name.to_vec(), entry.inode, entry.file_type, links));
        true
    };
    let attributes = if with_attributes { ListAttributes::OfAll } else { ListAttributes::OfNone };
    volume.fs.read_directory(ROOT, 2, attributes, &mut emit).unwrap();
    for (_, inode, _, links) in &found {
        volume.fs.forget(*inode, u64::from(links.is_some()));
    }
    found
}

#[test]
fn listings_show_the_inode_under_each_name() {
    let volume = Volume::new();
    let (file, _) = linked_file(&volume);
    link(&volume, file, ROOT, "f2");
    let volume = volume.remount(false);
    for with_attributes in [false, true] {
        let links = with_attributes.then_some(3);
        let expected = |name: &str| (name.as_bytes().to_vec(), file, FileType::Regular, links);
        assert_eq!(listed(&volume, with_attributes)[1..], [expected("f"), expected("f2")]);
        assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale), "a reference an entry");
    }
}

#[test]
fn listings_say_nothing_of_what_has_lost_a_name_while_it_was_known() {
    let volume = Volume::new();
    let (file, directory) = linked_file(&volume);
    link(&volume, file, ROOT, "f2");
    let links = |volume: &Volume| listed(volume, true)[1..].iter().map(|entry| entry.3).collect::<Vec<_>>();
    assert_eq!(links(&volume), [Some(3); 2]);
    assert!(!volume.fs.attributes_may_mislead(file));
    volume.fs.unlink(directory, b"g").unwrap();
    // The kernel may not have heard of the unlink, and would take one off the count that is listed.
    assert_eq!(links(&volume), [None; 2]);
    assert!(volume.fs.attributes_may_mislead(file) && !volume.fs.attributes_may_mislead(directory));
    // Once it has forgotten the file it has no count. One that made the file knows it once, and through each link once more.
    volume.fs.forget(file, 3);
    assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale));
    assert_eq!(links(&volume), [Some(2); 2]);

    let file = volume.walk("f").unwrap();
    volume.file(directory, "other");
    let (other, mode) = (&b"other"[..], RenameMode::Replace);
    volume.fs.rename(directory, other, ROOT, b"f2", mode).unwrap();
    assert_eq!(attributes(&volume, file).links, 1);
    assert_eq!(links(&volume), [None, Some(1)], "what another file has taken the name of");
}

#[test]
fn the_kernel_may_keep_a_mode_that_it_only_learns_of_when_it_asks() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "file");
    let lose_name = || {
        link(&volume, file, ROOT, "second");
        volume.fs.unlink(ROOT, b"second").unwrap();
    };
    lose_name();
    assert!(volume.fs.attributes_may_mislead(file));
    let set = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
    volume.fs.set_attributes(file, &set).unwrap();
    volume.fs.write(file, 0, "x".into(), WriteMode::PLAIN).unwrap();
    assert!(volume.fs.attributes_may_mislead(file), "the answer to a chmod says which mode it made");
    volume.fs.write(file, 0, "x".into(), WriteMode::KILLING_SET_ID).unwrap();
    assert_eq!(attributes(&volume, file).mode, 0o755);
    lose_name();
    volume.fs.set_attributes(file, &SetAttributes::default()).unwrap();
    assert!(!volume.fs.attributes_may_mislead(file), "the kernel would go on to execute it by the old mode");
}

#[test]
fn names_that_lead_to_the_wrong_inode_are_damage() {
    let volume = Volume::new();
    let named = volume.file(ROOT, "named");
    let directory = volume.directory(ROOT, "directory");
    let fifo = volume.fs.make_node(&volume.caller, ROOT, b"fifo", FileType::Fifo, 0o600, 0).unwrap();
    link(&volume, fifo.attributes.inode, ROOT, "fifo too");
    for volume in [&volume, &volume.after_crash()] {
        for number in [ROOT, named, directory, fifo.attributes.inode, InodeNumber(1 << 40)] {
            let redirect = Redirect { number: number.0, file_type: FileType::Regular };
            let mut batch = pando_engine::Batch::new();
            batch.put(Tree::Metadata, key::child_key(b"", b"wrong"), redirect.encode());
            volume.fs.engine().apply(batch).unwrap();
            let found = volume.walk("wrong");
            assert!(
                matches!(found, Err(Error::Engine(pando_engine::Error::Damaged { .. }))),
                "{number:?}: {found:?}"
            );
        }
    }
}

/// A volume on which files of some KiB move by copy.
fn with_large_nodes() -> Volume {
    Volume::formatted(&FormatOptions::default())
}

/// Blocks, and large attributes, that lie under the file's own key and under a path.
fn lie(volume: &Volume, file: InodeNumber, path: &[u8], name: &[u8]) -> [usize; 2] {
    [key::linked_key(file.0), key::child_key(path, name)]
        .map(|key| keys(volume, Tree::Data, &key::data_prefix(&key)))
}

#[test]
fn a_file_with_one_name_left_lies_under_it() {
    let volume = with_large_nodes();
    let (file, directory) = linked_file(&volume);
    let before = attributes(&volume, file);
    assert_eq!(lie(&volume, file, b"\0d", b"g"), [4, 0]);
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(lie(&volume, file, b"\0d", b"g"), [0, 4]);
    let after = attributes(&volume, file);
    assert_eq!((after.links, after.inode, after.modified), (1, file, before.modified));
    assert!(after.changed > before.changed);
    volume.write(file, 10_000, b"more");
    volume.rename(directory, "g", ROOT, "h").unwrap();
    volume.assert_clean();
    let report = volume.fs.check().unwrap();
    assert_eq!((report.files, report.links), (1, 0), "no redirect is left");

    let volume = volume.after_crash();
    let found = volume.walk("h").unwrap();
    assert_eq!((found, volume.read(found, 9_999, 10)), (file, b"\x07more".to_vec()));
    assert_eq!(waiting(&*volume.fs, |fs| fs.get_xattr(found, b"user.x")).unwrap(), vec![1; 1000]);
    volume.assert_clean();
}

#[test]
fn a_file_goes_home_to_either_name_and_to_one_that_was_renamed() {
    let volume = with_large_nodes();
    let (file, directory) = linked_file(&volume);
    volume.fs.unlink(directory, b"g").unwrap();
    assert_eq!(lie(&volume, file, b"", b"f"), [0, 4]);
    // Once more, in one directory, and the name that stays has moved, with the directory as well.
    link(&volume, file, ROOT, "tmp");
    volume.rename(ROOT, "tmp", directory, "cur").unwrap();
    volume.rename(ROOT, "d", ROOT, "e").unwrap();
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(lie(&volume, file, b"\0e", b"cur"), [0, 4]);
    assert_eq!((volume.walk("e/cur"), volume.read(file, 9_999, 10)), (Ok(file), vec![7]));
    volume.assert_clean();
}

#[test]
fn a_file_stays_where_nobody_knows_its_name_or_it_is_large() {
    let volume = with_large_nodes();
    let (file, directory) = linked_file(&volume);
    link(&volume, file, ROOT, "third");
    volume.fs.unlink(ROOT, b"third").unwrap();
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(lie(&volume, file, b"\0d", b"g"), [4, 0], "with three names it had none that was known");
    // Known again, but another file has taken that name.
    link(&volume, file, ROOT, "f");
    volume.rename(ROOT, "f", ROOT, "moved").unwrap();
    let other = volume.file(ROOT, "other");
    volume.rename(ROOT, "other", ROOT, "moved").unwrap();
    assert_eq!((attributes(&volume, file).links, volume.walk("moved")), (1, Ok(other)));
    link(&volume, file, ROOT, "again");
    volume.fs.unlink(directory, b"g").unwrap();
    assert_eq!(volume.walk("again"), Ok(file));
    volume.assert_clean();

    let large = volume.file(ROOT, "large");
    volume.write(large, 0, &vec![5; 2 << 20]);
    link(&volume, large, ROOT, "larger");
    volume.fs.unlink(ROOT, b"large").unwrap();
    let [own, home] = lie(&volume, large, b"", b"larger");
    assert!(own > 0 && home == 0);
    assert_eq!((attributes(&volume, large).links, volume.read(large, 2_000_000, 2)), (1, vec![5; 2]));
    volume.assert_clean();
}

#[test]
fn nobody_waits_for_a_file_to_go_home() {
    let volume = with_large_nodes();
    let (file, _) = linked_file(&volume);
    // So much that not all of it is in the root, which is always in memory.
    let large = volume.file(ROOT, "large");
    for part in 0..12 {
        volume.fs.make_room(0, true).unwrap();
        volume.write(large, part << 20, &vec![5; 1 << 20]);
    }
    let volume = volume.remount(false);
    let found = volume.walk("f").unwrap();
    let directory = volume.walk("d").unwrap();
    for new in ["one", "two"] {
        link(&volume, found, ROOT, new);
    }
    for (parent, old) in [(ROOT, "f"), (directory, "g"), (ROOT, "two")] {
        // What is known of its names would do, but its blocks are on the device alone.
        volume.fs.unlink(parent, old.as_bytes()).unwrap();
    }
    assert_eq!((attributes(&volume, file).links, volume.walk("one")), (1, Ok(file)));
    let own = key::data_prefix(&key::linked_key(file.0));
    let block = volume.fs.engine().get(Tree::Data, &[&own[..], &[0; 8]].concat());
    assert!(matches!(block, Err(pando_engine::Error::Miss(_))), "it was read: {block:?}");
    assert_eq!(lie(&volume, file, b"", b"one"), [4, 0]);
    volume.assert_clean();
}

#[test]
fn a_file_that_goes_home_with_nobody_holding_it_leaves_the_table() {
    let volume = with_large_nodes();
    let (file, _) = linked_file(&volume);
    // Made, and linked.
    volume.fs.forget(file, 2);
    assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale));
    let found = volume.walk("d/g").unwrap();
    link(&volume, found, ROOT, "h");
    volume.fs.unlink(ROOT, b"h").unwrap();
    volume.fs.forget(file, 2);
    assert_eq!(volume.fs.get_attributes(file), Err(Error::Stale), "no reference stays behind");
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(volume.walk("d/g"), Ok(file));
    volume.assert_clean();
}

#[test]
fn a_file_in_a_clone_goes_home_with_its_number() {
    let volume = with_large_nodes();
    let directory = volume.directory(ROOT, "d");
    volume.file(directory, "other");
    let cloned = waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], directory, ROOT, b"clone"));
    cloned.unwrap();
    let clone = volume.walk("clone").unwrap();
    let file = volume.file(clone, "tmp");
    volume.write(file, 0, &[7; 5000]);
    link(&volume, file, clone, "object");
    volume.fs.unlink(clone, b"tmp").unwrap();
    assert_eq!(lie(&volume, file, b"\0clone", b"object"), [0, 2]);
    let temporary = volume.fs.make_temporary(&volume.caller, clone, 0o600).unwrap().attributes.inode;
    link(&volume, temporary, clone, "temporary");
    volume.assert_clean();
    let volume = volume.after_crash();
    assert_eq!((volume.walk("clone/object"), volume.walk("clone/temporary")), (Ok(file), Ok(temporary)));
    volume.assert_clean();
}

#[test]
fn a_file_that_goes_home_while_it_gets_a_name_gets_it() {
    let volume = with_large_nodes();
    volume.directory(ROOT, "e");
    // Its names are not known any more, so that they are looked up.
    let volume = volume.remount(false);
    let (file, directory) = (linked_file(&volume).0, volume.walk("e").unwrap());
    let fs = volume.fs.clone();
    let is_first = AtomicBool::new(true);
    // When the link looks whether there is such a name, it has seen that the file lies under a key of its own.
    volume.fs.interrupt_queries(move || {
        if is_first.swap(false, Ordering::Relaxed) {
            let fs = fs.clone();
            std::thread::spawn(move || fs.unlink(ROOT, b"f")).join().unwrap().unwrap();
        }
        false
    });
    assert_eq!(link(&volume, file, directory, "new").links, 2);
    assert_eq!(
        (volume.walk("d/g"), volume.walk("e/new"), volume.walk("f")),
        (Ok(file), Ok(file), Err(Error::NotFound))
    );
    assert_eq!(lie(&volume, file, b"\0d", b"g"), [4, 0]);
    volume.assert_clean();
}

#[test]
fn a_name_goes_although_the_file_cannot_go_home() {
    // A record of the log takes a quarter of it. The key of the name that is left comes three times in what takes the file there.
    let volume = Volume::formatted(&FormatOptions { log_bytes: Some(256 << 10), ..FormatOptions::default() });
    let chain = |top: &str| {
        (0..41).fold(volume.directory(ROOT, top), |directory, depth| {
            volume.fs.make_room(0, true).unwrap();
            volume.directory(directory, &format!("{depth:0>255}"))
        })
    };
    let (deep, deeper, deepest) = (chain("a"), chain("b"), chain("c"));
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[7; 5000]);
    link(&volume, file, deepest, "g");
    for (name, above) in [("c", deeper), ("b", deep)] {
        volume.fs.make_room(0, true).unwrap();
        volume.rename(ROOT, name, above, name).unwrap();
    }
    volume.fs.make_room(0, true).unwrap();
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(attributes(&volume, file).links, 1);
    assert_eq!(volume.fs.check().unwrap().links, 1, "it stayed where it was");
}

#[test]
fn what_has_lost_its_name_to_another_file_goes_home_later() {
    let volume = with_large_nodes();
    let (file, directory) = linked_file(&volume);
    volume.file(ROOT, "other");
    volume.rename(ROOT, "other", ROOT, "f").unwrap();
    link(&volume, file, ROOT, "new");
    volume.fs.unlink(ROOT, b"new").unwrap();
    assert_eq!(lie(&volume, file, b"\0d", b"g"), [0, 4]);
    assert_eq!(volume.fs.lookup(directory, b"g").unwrap().attributes.inode, file);
    volume.assert_clean();
}
