//! Writable snapshots: trees of their own, apart from the live one and from each other.

use std::io::Write;

use bytes::Bytes;
use pando_engine::{Background, Batch, FormatOptions, KeyRange, Options, ScanLimit, Tree};
use pando_fs::operations::{
    FileType, Operations, ROOT, RenameMode, SNAPSHOTS, WriteMode, XattrMode, changing, waiting,
};
use pando_fs::schema::key;
use pando_fs::send::TransferError;
use pando_fs::{Error, InodeNumber, Result, SnapshotFiles};

use crate::common::{Volume, small_nodes};

fn take(volume: &Volume, name: &str, writable: bool) -> InodeNumber {
    waiting(&*volume.fs, |fs| fs.take_snapshot(name.as_bytes(), writable)).unwrap();
    waiting(&*volume.fs, |fs| fs.lookup(SNAPSHOTS, name.as_bytes())).unwrap().attributes.inode
}

fn unlink(volume: &Volume, directory: InodeNumber, name: &str) -> Result<()> {
    waiting(&*volume.fs, |fs| fs.unlink(directory, name.as_bytes()))
}

/// So many files that are in use and have no name any more, with what is in them.
fn unlinked_files(volume: &Volume, directory: InodeNumber, count: u32) -> Vec<(InodeNumber, String)> {
    let unlinked = (0..count).map(|number| {
        volume.fs.make_room(0, true).unwrap();
        let name = number.to_string();
        let file = volume.file(directory, &name);
        volume.write(file, 0, name.as_bytes());
        unlink(volume, directory, &name).unwrap();
        (file, name)
    });
    unlinked.collect()
}

fn links(volume: &Volume, path: &str) -> u32 {
    volume.fs.get_attributes(volume.walk(path).unwrap()).unwrap().links
}

/// `d` with files and hard links, one of them in the root.
fn filled() -> Volume {
    let volume = Volume::new();
    let d = volume.directory(ROOT, "d");
    for file in 0..40u32 {
        let inode = volume.file(d, &format!("f{file}"));
        volume.write(inode, 0, &vec![file as u8 + 1; file as usize * 700]);
    }
    volume.fs.link(volume.walk("d/f9").unwrap(), ROOT, b"linked").unwrap();
    volume.fs.set_xattr(ROOT, b"user.large", &[5; 3000], XattrMode::Set, false).unwrap();
    while volume.fs.engine().background_step().unwrap() {}
    volume
}

#[test]
fn what_is_done_in_one_tree_is_not_seen_in_another() {
    let volume = filled();
    let [one, two] = ["one", "two"].map(|name| take(&volume, name, true));
    let trees = [(ROOT, ""), (one, ".snapshots/one/"), (two, ".snapshots/two/")];
    for (tree, path) in trees {
        let d = volume.walk(&format!("{path}d")).unwrap();
        let mark = path.len() as u8;
        volume.write(volume.walk(&format!("{path}d/f30")).unwrap(), 5, &[mark; 10]);
        let new = volume.file(tree, "new");
        volume.write(new, 0, &[mark; 6000]);
        volume.fs.link(new, d, format!("second{mark}").as_bytes()).unwrap();
        volume.fs.link(volume.walk(&format!("{path}linked")).unwrap(), d, b"third").unwrap();
        unlink(&volume, d, &format!("f{mark}")).unwrap();
        volume.rename(d, "f31", tree, &format!("moved{mark}")).unwrap();
        volume.directory(d, "below");
        volume.rename(tree, "d", tree, "e").unwrap();
        volume.fs.set_xattr(tree, b"user.large", &[mark; 2000], XattrMode::Set, false).unwrap();
        volume.assert_clean();
    }
    let check = |volume: &Volume| {
        for (tree, path) in
            [ROOT, volume.walk(".snapshots/one").unwrap(), volume.walk(".snapshots/two").unwrap()]
                .into_iter()
                .zip(["", ".snapshots/one/", ".snapshots/two/"])
        {
            let mark = path.len() as u8;
            let read = |name: &str, offset| {
                volume.walk(&format!("{path}{name}")).map(|file| volume.read(file, offset, 10))
            };
            assert_eq!(read("e/f30", 5), Ok(vec![mark; 10]));
            assert_eq!(read("new", 5990), Ok(vec![mark; 10]));
            assert_eq!(read(&format!("e/second{mark}"), 0), Ok(vec![mark; 10]));
            assert_eq!(read(&format!("moved{mark}"), 0), Ok(vec![32; 10]));
            assert_eq!(read(&format!("e/f{mark}"), 0), Err(Error::NotFound));
            let names = ["linked", "e/f9", "e/third"].map(|name| format!("{path}{name}"));
            assert!(names.iter().all(|name| links(volume, name) == 3));
            assert!(names.iter().all(|name| volume.walk(name) == volume.walk(&names[0])));
            let value = waiting(&*volume.fs, |fs| fs.get_xattr(tree, b"user.large")).unwrap();
            assert_eq!(value, vec![mark; 2000]);
        }
        volume.assert_clean();
    };
    check(&volume);
    check(&volume.after_crash());
    let volume = volume.remount(false);
    check(&volume);
    let volume = volume.remount(true);
    check(&volume);
}

#[test]
fn nothing_is_moved_or_linked_between_trees() {
    let volume = filled();
    let (one, two) = (take(&volume, "one", true), take(&volume, "two", true));
    let read_only = take(&volume, "three", false);
    let (caller, fs) = (&volume.caller, &*volume.fs);
    for (from, to) in [(ROOT, one), (one, ROOT), (one, two)] {
        for mode in [RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace] {
            let renamed = fs.rename(from, b"linked", to, b"linked", mode);
            assert_eq!(renamed, Err(Error::OtherTree));
        }
        let file = waiting(fs, |fs| fs.lookup(from, b"linked")).unwrap().attributes.inode;
        assert_eq!(fs.link(file, to, b"n").map(drop), Err(Error::OtherTree));
        // A file without a name belongs to the tree that it was made in.
        let temporary = fs.make_temporary(caller, from, 0o600).unwrap().attributes.inode;
        assert_eq!(fs.link(temporary, to, b"n").map(drop), Err(Error::OtherTree));
        waiting(fs, |fs| fs.link(temporary, from, b"named")).unwrap();
        assert_eq!(fs.rename(from, b"linked", read_only, b"n", RenameMode::Replace), Err(Error::ReadOnly));
        // Clones and copies are made across.
        waiting(fs, |fs| fs.clone_tree(caller, &[], from, to, format!("of {}", from.0).as_bytes())).unwrap();
        let copy = volume.file(to, &format!("copy of {}", from.0));
        waiting(fs, |fs| fs.copy_range(file, 0, copy, 0, 1 << 20, false)).unwrap();
        assert_eq!(volume.read(copy, 0, 1 << 20), vec![10; 6300]);
        unlink(&volume, from, "named").unwrap();
    }
    assert_eq!(
        fs.make_node(caller, read_only, b"n", FileType::Regular, 0, 0).map(drop),
        Err(Error::ReadOnly)
    );
    assert_eq!(fs.make_directory(caller, SNAPSHOTS, b"n", 0).map(drop), Err(Error::ReadOnly));
    assert_eq!(fs.remove_directory(SNAPSHOTS, b"one"), Err(Error::ReadOnly));
    volume.assert_clean();
    volume.remount(false).assert_clean();
}

/// In the root of the volume it would be hidden by the directory of the snapshots, for ever.
#[test]
fn nothing_in_the_root_of_a_tree_is_called_like_the_directory_of_the_snapshots() {
    let volume = filled();
    let one = take(&volume, "one", true);
    let (caller, fs) = (&volume.caller, &*volume.fs);
    for tree in [ROOT, one] {
        let d = fs.lookup(tree, b"d").unwrap().attributes.inode;
        let linked = fs.lookup(tree, b"linked").unwrap().attributes.inode;
        let refused = |done: Result<()>| assert_eq!(done, Err(Error::NotPermitted));
        refused(fs.make_directory(caller, tree, b".snapshots", 0o755).map(drop));
        refused(fs.make_node(caller, tree, b".snapshots", FileType::Regular, 0o644, 0).map(drop));
        refused(fs.make_symlink(caller, tree, b".snapshots", b"d").map(drop));
        refused(fs.link(linked, tree, b".snapshots").map(drop));
        refused(waiting(fs, |fs| fs.rename(tree, b"d", tree, b".snapshots", RenameMode::Replace)).map(drop));
        refused(waiting(fs, |fs| fs.clone_tree(caller, &[], d, tree, b".snapshots")).map(drop));
        waiting(fs, |fs| fs.make_directory(caller, d, b".snapshots", 0o755)).unwrap();
    }
    // One that was there before that was refused keeps the tree from coming back, and can be removed.
    let was = volume.file(one, "was");
    volume.fs.forget(was, 1);
    let root = key::snapshot_prefix(fs.snapshots().unwrap()[0].number.0);
    let [before, hidden] = [&b"was"[..], b".snapshots"].map(|name| key::child_key(&root, name));
    let record = fs.engine().get(Tree::Metadata, &before).unwrap().unwrap();
    let mut batch = Batch::new();
    batch.delete(Tree::Metadata, before);
    batch.put(Tree::Metadata, hidden, record);
    fs.engine().apply(batch).unwrap();
    let volume = volume.after_crash();
    let roll_back = || waiting(&*volume.fs, |fs| fs.roll_back(b"one")).map(drop);
    assert_eq!(roll_back(), Err(Error::NotPermitted));
    let one = volume.walk(".snapshots/one").unwrap();
    for mode in [RenameMode::Exchange, RenameMode::Whiteout { caller: volume.caller, replace: true }] {
        let renamed = waiting(&*volume.fs, |fs| fs.rename(one, b".snapshots", one, b"linked", mode));
        assert_eq!(renamed, Err(Error::NotPermitted));
    }
    unlink(&volume, one, ".snapshots").unwrap();
    roll_back().unwrap();
    volume.assert_clean();
}

#[test]
fn files_without_a_name_outlive_their_snapshot() {
    let volume = filled();
    let one = take(&volume, "one", true);
    let (d, linked) =
        (volume.walk(".snapshots/one/d").unwrap(), volume.walk(".snapshots/one/linked").unwrap());
    let file = volume.walk(".snapshots/one/d/f20").unwrap();
    unlink(&volume, d, "f20").unwrap();
    unlink(&volume, d, "f9").unwrap();
    unlink(&volume, one, "linked").unwrap();
    let named = volume.walk(".snapshots/one/d/f21").unwrap();
    volume.assert_clean();
    // A snapshot is never taken of one; the live tree goes back without what is parked.
    waiting(&*volume.fs, |fs| fs.roll_back(b"one")).map(drop).unwrap();
    assert_eq!(volume.walk("d/f20"), Err(Error::NotFound));
    assert_eq!(volume.walk("linked"), Err(Error::NotFound));
    volume.assert_clean();
    waiting(&*volume.fs, |fs| fs.delete_snapshot(b"one")).unwrap();
    assert_eq!(volume.read(file, 0, 4), [21; 4]);
    assert_eq!(volume.read(linked, 0, 4), [10; 4]);
    volume.write(file, 0, b"alive");
    assert_eq!(volume.fs.read(named, 0, 4).map(drop), Err(Error::Stale));
    volume.assert_clean();
    for inode in [file, linked, named, d, one] {
        volume.fs.forget(inode, u64::MAX);
    }
    assert_eq!(volume.fs.check().unwrap().orphans, 0);
    volume.assert_clean();
}

/// It could not be sent at all where a read-only mount of the volume sent it.
#[test]
fn what_refuses_changes_for_a_while_sends_a_writable_snapshot_unless_it_may_change_again() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"kept");
    volume.write(volume.file(ROOT, "open"), 0, b"without a name");
    let one = take(&volume, "one", true);
    volume.walk(".snapshots/one/open").unwrap();
    unlink(&volume, one, "open").unwrap();
    volume.fs.refuse_changes(true);
    let records = volume.fs.engine().stats().batches;
    let mut stream = Vec::new();
    volume.fs.send_snapshot(b"one", None, &mut stream).unwrap();
    assert_eq!(volume.fs.engine().stats().batches, records, "nothing was written");
    let receiver = Volume::new();
    receiver.fs.receive_snapshot(&mut &stream[..], None).unwrap();
    assert_eq!(receiver.names(receiver.walk(".snapshots/one").unwrap()), ["f"]);
    assert_eq!(receiver.read(receiver.walk(".snapshots/one/f").unwrap(), 0, 9), b"kept");
    receiver.assert_clean();
    // Refused again behind it is not refused all the time.
    let mut out = LettingThrough(&volume);
    let sent = volume.fs.send_snapshot(b"one", None, &mut out);
    assert!(matches!(sent, Err(TransferError::ChangesAgain)), "{sent:?}");
}

/// Lets changes through for a moment whenever something is written.
struct LettingThrough<'a>(&'a Volume);

impl Write for LettingThrough<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fs.refuse_changes(false);
        self.0.fs.refuse_changes(true);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// All were moved out of the way in the record of the change, which the log did not take.
#[test]
fn more_is_parked_in_the_way_than_one_record_takes() {
    type Change = fn(&Volume) -> Result<()>;
    let changes: [Change; 5] = [
        |volume| changing(&*volume.fs, |fs| fs.delete_snapshot(b"one")),
        |volume| changing(&*volume.fs, |fs| fs.roll_back(b"one")).map(drop),
        |volume| changing(&*volume.fs, |fs| fs.take_snapshot(b"two", false)),
        |volume| changing(&*volume.fs, |fs| fs.rename(ROOT, b"d", ROOT, b"e", RenameMode::Replace)).map(drop),
        |volume| {
            let d = volume.walk("d")?;
            changing(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], d, ROOT, b"e"))
        },
    ];
    // A record takes 64 KiB.
    let volume = Volume::formatted(&FormatOptions { log_bytes: Some(256 << 10), ..small_nodes() });
    let d = volume.directory(ROOT, "d");
    let names: Vec<_> = (0..200).map(|number| format!("{number:0>240}")).collect();
    for name in &names {
        volume.fs.make_room(0, true).unwrap();
        let file = volume.file(d, name);
        volume.write(file, 0, name.as_bytes());
    }
    take(&volume, "one", true);
    for change in changes {
        let volume = volume.copied();
        let mut orphans = Vec::new();
        for directory in ["d", ".snapshots/one/d"].map(|path| volume.walk(path).unwrap()) {
            for name in &names {
                volume.fs.make_room(0, true).unwrap();
                let found = waiting(&*volume.fs, |fs| fs.lookup(directory, name.as_bytes())).unwrap();
                unlink(&volume, directory, name).unwrap();
                orphans.push((found.attributes.inode, name));
            }
        }
        volume.file(volume.walk("d").unwrap(), "stays");
        assert_eq!(change(&volume), Ok(()));
        for (orphan, name) in orphans {
            assert_eq!(volume.read(orphan, 0, 300), name.as_bytes());
        }
        volume.assert_clean();
        volume.after_crash().assert_clean();
    }
}

/// Each move of a large file leaves something to be healed, and every wait for that counted as one for space: behind fifteen of them there was none, on a
/// volume with next to nothing in it.
#[test]
fn any_number_of_large_files_is_parked_in_the_way() {
    type Change = fn(&Volume) -> Result<()>;
    let changes: [Change; 4] = [
        |volume| changing(&*volume.fs, |fs| fs.roll_back(b"one")).map(drop),
        |volume| changing(&*volume.fs, |fs| fs.take_snapshot(b"two", false)),
        |volume| changing(&*volume.fs, |fs| fs.rename(ROOT, b"d", ROOT, b"e", RenameMode::Replace)).map(drop),
        |volume| {
            let d = volume.walk("d")?;
            changing(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], d, ROOT, b"e"))
        },
    ];
    for change in changes {
        // Every range is a large one.
        let options = Options { background: Background::Manual, copied_bytes: Some(0), ..Options::default() };
        let volume = Volume::formatted(&FormatOptions::default()).remount_with(options);
        let d = volume.directory(ROOT, "d");
        take(&volume, "one", false);
        let orphans = unlinked_files(&volume, d, 1200);
        volume.file(d, "stays");
        assert_eq!(change(&volume), Ok(()));
        for (orphan, name) in orphans {
            assert_eq!(volume.read(orphan, 0, 10), name.as_bytes());
        }
        volume.assert_clean();
    }
}

/// To move each of them takes space, more in all than is kept for changes that give some back.
#[test]
fn many_are_parked_on_a_full_volume_and_it_goes_on() {
    let threads = Options { background: Background::Threads, ..Options::default() };
    let volume = Volume::formatted(&FormatOptions::default()).remount_with(threads);
    let append = |file, length| volume.append(file, &vec![7; length].into());
    let names: Vec<_> = (0..9000).map(|number| format!("{number:0>200}")).collect();
    let d = volume.directory(ROOT, "d");
    for name in &names {
        volume.fs.make_room(0, true).unwrap();
        let file = volume.file(d, name);
        append(file, 15_000).unwrap();
        volume.fs.forget(file, 1);
    }
    changing(&*volume.fs, |fs| fs.take_snapshot(b"one", true)).unwrap();
    let one = volume.walk(".snapshots/one").unwrap();
    let d = volume.walk(".snapshots/one/d").unwrap();
    let mut orphans = Vec::new();
    for name in &names {
        let found = waiting(&*volume.fs, |fs| fs.lookup(d, name.as_bytes())).unwrap();
        changing(&*volume.fs, |fs| fs.unlink(d, name.as_bytes())).unwrap();
        orphans.push(found.attributes.inode);
    }
    let large = volume.file(ROOT, "large");
    for length in [64 << 10, 4096, 1] {
        while append(large, length).is_ok() {}
    }
    let renamed = changing(&*volume.fs, |fs| fs.rename(one, b"d", one, b"e", RenameMode::Replace));
    assert_eq!(renamed.map(drop), Err(Error::NoSpace));
    assert_eq!(changing(&*volume.fs, |fs| fs.delete_snapshot(b"one")), Err(Error::NoSpace));
    volume.fs.engine().checkpoint().unwrap();
    for orphan in orphans {
        assert_eq!(volume.read(orphan, 0, 3), [7; 3]);
        volume.fs.forget(orphan, 1);
    }
    assert_eq!(changing(&*volume.fs, |fs| fs.delete_snapshot(b"one")), Ok(()));
}

/// What came along with them is deleted under keys that are much longer.
#[test]
fn what_is_parked_comes_out_of_the_way_of_a_move_to_a_deep_place() {
    type Change = fn(&Volume, InodeNumber, InodeNumber) -> Result<()>;
    let changes: [Change; 2] = [
        |volume, _, deep| {
            changing(&*volume.fs, |fs| fs.rename(ROOT, b"d", deep, b"e", RenameMode::Replace)).map(drop)
        },
        |volume, d, deep| changing(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], d, deep, b"e")),
    ];
    for change in changes {
        // A record takes 64 KiB.
        let volume = Volume::formatted(&FormatOptions { log_bytes: Some(256 << 10), ..small_nodes() });
        let d = volume.directory(ROOT, "d");
        let deep = (0..8).fold(ROOT, |above, _| volume.directory(above, &"x".repeat(250)));
        let orphans = unlinked_files(&volume, d, 60);
        volume.file(d, "stays");
        assert_eq!(change(&volume, d, deep), Ok(()));
        for (orphan, name) in orphans {
            assert_eq!(volume.read(orphan, 0, 300), name.as_bytes());
        }
        volume.assert_clean();
        volume.after_crash().assert_clean();
    }
}

#[test]
fn one_can_go_back_to_a_changed_snapshot_and_clone_out_of_it() {
    let volume = filled();
    let one = take(&volume, "one", true);
    let d = volume.walk(".snapshots/one/d").unwrap();
    for file in 0..30 {
        unlink(&volume, d, &format!("f{file}")).unwrap();
    }
    let new = volume.file(one, "new");
    volume.write(new, 0, &[7; 9000]);
    waiting(&*volume.fs, |fs| fs.link(new, d, b"same")).unwrap();
    waiting(&*volume.fs, |fs| fs.clone_tree(&volume.caller, &[], d, ROOT, b"clone")).unwrap();
    assert_eq!(links(&volume, "clone/same"), 1);
    assert_eq!(volume.names(volume.walk("clone").unwrap()).len(), 11);
    volume.write(new, 0, b"later");
    waiting(&*volume.fs, |fs| fs.roll_back(b"one")).map(drop).unwrap();
    assert_eq!(volume.names(ROOT), ["d", "linked", "new"]);
    assert_eq!(links(&volume, "linked"), 1);
    assert_eq!(links(&volume, "d/same"), 2);
    assert_eq!(volume.read(volume.walk("new").unwrap(), 0, 5), b"later");
    volume.assert_clean();
    // Apart again.
    volume.write(volume.walk("new").unwrap(), 0, b"third");
    assert_eq!(volume.read(new, 0, 5), b"later");
    let live = volume.walk("new").unwrap();
    waiting(&*volume.fs, |fs| fs.link(live, ROOT, b"newest")).unwrap();
    assert_eq!(volume.walk("newest").unwrap(), live);
    volume.assert_clean();
    volume.remount(false).assert_clean();
}

#[test]
fn all_numbers_are_different() {
    let volume = filled();
    let mut trees = vec![ROOT];
    for round in 0..4u32 {
        trees.push(take(&volume, &format!("s{round}"), true));
        for (index, tree) in trees.clone().into_iter().enumerate() {
            let file = volume.file(tree, &format!("new{round}-{index}"));
            if round % 2 == 0 {
                waiting(&*volume.fs, |fs| fs.link(file, tree, format!("link{round}-{index}").as_bytes()))
                    .unwrap();
            }
        }
    }
    // The check finds numbers that are there twice.
    volume.assert_clean();
    let mut numbers: Vec<_> = trees
        .iter()
        .map(|tree| waiting(&*volume.fs, |fs| fs.lookup(*tree, b"linked")).unwrap().attributes.inode)
        .collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), trees.len());
}

#[test]
fn a_snapshot_of_a_snapshot_is_apart_from_it() {
    let volume = filled();
    let one = take(&volume, "one", true);
    volume.write(volume.walk(".snapshots/one/d/f9").unwrap(), 0, b"first");
    volume.file(one, "only in one");
    let of = |source: &str, name: &str, writable| {
        waiting(&*volume.fs, |fs| fs.take_snapshot_of(Some(source.as_bytes()), name.as_bytes(), writable))
    };
    of("one", "kept", false).unwrap();
    of("kept", "two", true).unwrap();
    assert_eq!(of("none", "three", true), Err(Error::NotFound));
    assert_eq!(of("one", "two", true), Err(Error::Exists));
    assert_eq!(of("one", "a/b", true), Err(Error::Invalid));
    for (name, bytes) in [("one", b"in 1."), ("two", b"in 2.")] {
        let path = format!(".snapshots/{name}/d/f9");
        volume.write(volume.walk(&path).unwrap(), 0, bytes);
    }
    let check = |volume: &Volume| {
        for (name, bytes) in [("one", b"in 1."), ("two", b"in 2."), ("kept", b"first")] {
            // The names of the file are the snapshot's own.
            for path in ["d/f9", "linked"] {
                let file = volume.walk(&format!(".snapshots/{name}/{path}")).unwrap();
                assert_eq!(volume.read(file, 0, 5), bytes, "{name}");
                assert_eq!(volume.fs.get_attributes(file).unwrap().links, 2);
            }
            volume.walk(&format!(".snapshots/{name}/only in one")).unwrap();
        }
        assert_eq!(volume.read(volume.walk("linked").unwrap(), 0, 5), [10; 5]);
        volume.assert_clean();
    };
    check(&volume);
    let kept = volume.walk(".snapshots/kept").unwrap();
    let made = volume.fs.make_node(&volume.caller, kept, b"n", FileType::Regular, 0, 0).map(drop);
    assert_eq!(made, Err(Error::ReadOnly));
    waiting(&*volume.fs, |fs| fs.delete_snapshot(b"one")).unwrap();
    assert_eq!(of("one", "three", true), Err(Error::NotFound));
    waiting(&*volume.fs, |fs| fs.take_snapshot_of(Some(b"kept"), b"one", true)).unwrap();
    volume.write(volume.walk(".snapshots/one/d/f9").unwrap(), 0, b"in 1.");
    check(&volume);
    check(&volume.remount(false));
}

#[test]
fn the_files_of_a_writable_snapshot_stay_what_they_were() {
    let volume = filled();
    let one = take(&volume, "one", true);
    volume.write(volume.walk(".snapshots/one/d/f9").unwrap(), 0, b"first");
    let files = SnapshotFiles::open(&volume.fs, b"one").unwrap();
    let read = |files: &SnapshotFiles, path: [&str; 2]| {
        let directory = waiting(files, |files| files.lookup(ROOT, path[0].as_bytes()))?.attributes.inode;
        let file = waiting(files, |files| files.lookup(directory, path[1].as_bytes()))?.attributes.inode;
        Ok(waiting(files, |files| files.read(file, 0, 5))?.concat())
    };
    let check = |files: &SnapshotFiles| {
        assert_eq!(read(files, ["d", "f9"]), Ok(b"first".to_vec()));
        assert_eq!(read(files, ["d", "f20"]), Ok(vec![21; 5]));
        assert_eq!(read(files, ["d", "new"]), Err(Error::NotFound));
        assert_eq!(files.get_attributes(ROOT).map(|root| root.links), Ok(3));
    };
    check(&files);
    let d = volume.walk(".snapshots/one/d").unwrap();
    volume.write(volume.walk(".snapshots/one/linked").unwrap(), 0, b"later");
    unlink(&volume, d, "f20").unwrap();
    volume.file(d, "new");
    volume.directory(one, "more");
    check(&files);
    volume.assert_clean();
    // It is mounted, as a read-only one is.
    assert_eq!(waiting(&*volume.fs, |fs| fs.delete_snapshot(b"one")), Err(Error::InUse));
    let later = SnapshotFiles::open(&volume.fs, b"one").unwrap();
    assert_eq!(read(&later, ["d", "f9"]), Ok(b"later".to_vec()));
    assert_eq!(read(&later, ["d", "f20"]), Err(Error::NotFound));
    // What a crash leaves of them goes.
    let crashed = volume.after_crash();
    let of_snapshots = |volume: &Volume| {
        let engine = volume.fs.engine();
        let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
        let range = KeyRange::prefix(vec![key::RECEIVING_TAG]);
        engine.waiting(|| engine.scan(Tree::Metadata, &range, limit)).unwrap().entries
    };
    assert_eq!(of_snapshots(&crashed), []);
    crashed.assert_clean();
    drop(crashed);
    let volume = filled();
    take(&volume, "one", true);
    let files = SnapshotFiles::open(&volume.fs, b"one").unwrap();
    assert_eq!(of_snapshots(&volume).len(), 1);
    drop(files);
    assert_eq!(of_snapshots(&volume), []);
    assert_eq!(waiting(&*volume.fs, |fs| fs.delete_snapshot(b"one")), Ok(()));
    volume.assert_clean();
}

#[test]
fn a_volume_that_refuses_changes_for_a_while_freezes_nothing() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    waiting(&*volume.fs, |fs| fs.take_snapshot(b"writable", true)).unwrap();
    assert!(!volume.fs.refuse_changes(true));
    let refused = waiting(&*volume.fs, |fs| fs.take_snapshot(b"other", false));
    assert_eq!(refused, Err(Error::ReadOnly));
    let write = volume.fs.write(file, 0, Bytes::from_static(b"x"), WriteMode::PLAIN);
    assert_eq!(write, Err(Error::ReadOnly));
    // Mounted as it is, it could change before that has ended.
    assert_eq!(SnapshotFiles::open(&volume.fs, b"writable").err(), Some(Error::ReadOnly));
    assert!(volume.fs.refuse_changes(false));
    volume.write(file, 0, b"x");
    volume.fs.send_snapshot(b"writable", None, &mut Vec::new()).unwrap();
    volume.assert_clean();
}
