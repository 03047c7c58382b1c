//! Snapshots that go to another volume, whole and as what has changed since another one.

mod chains;
mod counter;
mod crash;
mod moves;
mod rollback;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::Random;
use pando_engine::{Background, FormatOptions, KeyRange, Options, ScanLimit, Tree};
use pando_fs::operations::{
    AllocateMode, Caller, FileType, InodeNumber, Operations, ROOT, RenameMode, SNAPSHOTS, SetAttributes,
    SetTime, WriteMode, XattrMode, changing, waiting,
};
use pando_fs::schema::{NameRecord, Record, key};
use pando_fs::send::TransferError;
use pando_fs::{Error, FileSystem, Snapshot};

use crate::common::{Volume, small_nodes};

fn take(fs: &FileSystem, name: &str) {
    changing(fs, |fs| fs.take_snapshot(name.as_bytes(), false)).unwrap();
}

fn send(fs: &FileSystem, name: &str, base: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    fs.send_snapshot(name.as_bytes(), base.map(str::as_bytes), &mut stream).unwrap();
    stream
}

fn receive(fs: &FileSystem, mut stream: &[u8]) -> Result<Snapshot, TransferError> {
    fs.receive_snapshot(&mut stream, None).map(|(snapshot, _)| snapshot)
}

fn names(fs: &FileSystem) -> Vec<Bytes> {
    let snapshots = waiting(fs, FileSystem::snapshots).unwrap();
    snapshots.into_iter().map(|snapshot| snapshot.name).collect()
}

/// All keys and values of a snapshot as they were in the live tree; the root's record without what each volume chooses.
fn contents(fs: &FileSystem, name: &str) -> BTreeMap<(u8, Bytes), Bytes> {
    let snapshots = waiting(fs, FileSystem::snapshots).unwrap();
    let snapshot = snapshots.into_iter().find(|snapshot| snapshot.name == name).unwrap();
    let prefix = key::snapshot_prefix(snapshot.number.0);
    let mut found = BTreeMap::new();
    for tree in Tree::ALL {
        for (own, value) in below(fs, tree, &prefix) {
            let own = own.slice(prefix.len()..);
            let value = if own.is_empty() {
                Record { number: 0, delta: 0, ..Record::decode(&value).unwrap() }.encode()
            } else {
                value
            };
            found.insert((tree as u8, own), value);
        }
    }
    found
}

fn below(fs: &FileSystem, tree: Tree, prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
    let mut found = Vec::new();
    let mut rest = Some(KeyRange::prefix(prefix.to_vec()));
    while let Some(range) = rest {
        let limit = ScanLimit { entries: 1000, bytes: 1 << 20 };
        let engine = fs.engine();
        let scan = engine.waiting(|| engine.scan(tree, &range, limit)).unwrap();
        found.extend(scan.entries);
        rest = scan.rest;
    }
    found
}

/// Nothing is left of what was not received whole.
fn assert_nothing_is_left(fs: &FileSystem) {
    let snapshots = waiting(fs, FileSystem::snapshots).unwrap();
    assert_eq!(below(fs, Tree::Metadata, &[key::RECEIVING_TAG]), []);
    for tree in Tree::ALL {
        for (own, _) in below(fs, tree, &[key::SNAPSHOT_TAG]) {
            let known = snapshots.iter().any(|one| own.starts_with(&key::snapshot_prefix(one.number.0)));
            assert!(known, "{tree:?} {own:?} belongs to nothing");
        }
    }
    assert_eq!(fs.check().unwrap().problems, []);
}

/// Everything there can be in a volume.
fn filled() -> Volume {
    let volume = Volume::new();
    let fs = &*volume.fs;
    let a = volume.directory(ROOT, "a");
    let deep = volume.directory(a, "deep");
    for number in 0..60u32 {
        let file = volume.file(if number % 2 == 0 { a } else { deep }, &format!("f{number}"));
        volume.write(file, 0, &vec![number as u8 + 1; number as usize * 700]);
    }
    let file = volume.walk("a/f8").unwrap();
    fs.link(file, deep, b"linked").unwrap();
    for (inode, name) in [(ROOT, "user.root"), (a, "user.a"), (file, "user.file")] {
        fs.set_xattr(inode, name.as_bytes(), &[7; 3000], XattrMode::Set, false).unwrap();
        fs.set_xattr(inode, b"user.small", b"small", XattrMode::Set, false).unwrap();
    }
    let sparse = volume.file(ROOT, "sparse");
    volume.write(sparse, 1 << 30, b"far");
    fs.allocate(volume.walk("a/f50").unwrap(), AllocateMode::PunchHole, 4096, 9000, false).unwrap();
    fs.make_symlink(&volume.caller, deep, b"link", b"../f8").unwrap();
    fs.make_node(&volume.caller, deep, b"device", FileType::CharDevice, 0o600, 0x103).unwrap();
    fs.make_node(&volume.caller, deep, b"fifo", FileType::Fifo, 0o600, 0).unwrap();
    let times = SetAttributes {
        mode: Some(0o4711),
        uid: Some(77),
        gid: Some(78),
        modified: Some(SetTime::To(std::time::UNIX_EPOCH + std::time::Duration::new(5, 6))),
        ..SetAttributes::default()
    };
    fs.set_attributes(file, &times).unwrap();
    volume
}

#[test]
fn a_snapshot_arrives_as_it_was_sent() {
    let volume = filled();
    take(&volume.fs, "one");
    let other = Volume::new();
    other.file(ROOT, "in the way");
    let snapshot = receive(&other.fs, &send(&volume.fs, "one", None)).unwrap();
    assert_eq!(contents(&other.fs, "one"), contents(&volume.fs, "one"));
    other.assert_clean();
    // It is a snapshot as any other: seen, compared, gone back to.
    let root = waiting(&*other.fs, |fs| fs.lookup(SNAPSHOTS, b"one")).unwrap().attributes.inode;
    assert_eq!(root, snapshot.number);
    let other = other.remount(false);
    drop(waiting(&*other.fs, |fs| fs.roll_back(b"one")).unwrap());
    assert_eq!(other.read(other.walk("a/deep/f59").unwrap(), 0, 100_000), vec![60; 59 * 700]);
    let linked = [other.walk("a/f8").unwrap(), other.walk("a/deep/linked").unwrap()];
    assert_eq!(linked[0], linked[1]);
    let attributes = other.fs.get_attributes(linked[0]).unwrap();
    assert_eq!((attributes.mode, attributes.uid, attributes.links), (0o4711, 77, 2));
    assert_eq!(attributes.born, volume.fs.get_attributes(volume.walk("a/f8").unwrap()).unwrap().born);
    // What is made now has numbers that nothing received has.
    for number in 0..100 {
        other.file(ROOT, &format!("new {number}"));
    }
    other.assert_clean();
    take(&other.fs, "back");
    let found = other.fs.differences(b"one", Some(b"back"), true, &mut |entry| {
        assert!(entry.path == "/" || entry.path.starts_with(b"/new"), "{entry:?}");
        true
    });
    assert_eq!(found, Ok(()));
}

/// A quarter of its log is one record: more than a few KiB of changes were refused as one that is too large.
#[test]
fn a_snapshot_arrives_where_the_log_is_small() {
    let volume = filled();
    let large = volume.file(ROOT, "large");
    volume.write(large, 0, &vec![3; 600_000]);
    volume.fs.set_xattr(large, b"user.large", &[7; 50_000], XattrMode::Set, false).unwrap();
    take(&volume.fs, "one");
    volume.rename(ROOT, "a", ROOT, "moved").unwrap();
    volume.write(large, 100_000, &[4; 100_000]);
    take(&volume.fs, "two");
    let small_log = FormatOptions { log_bytes: Some(256 << 10), ..small_nodes() };
    let other = Volume::formatted(&small_log);
    for (name, base) in [("one", None), ("two", Some("one"))] {
        receive(&other.fs, &send(&volume.fs, name, base)).unwrap();
        assert!(contents(&other.fs, name) == contents(&volume.fs, name), "{name}");
    }
    other.assert_clean();
    // Its record has their names.
    for number in 0..240 {
        let name = format!("user.{number:0>250}");
        volume.fs.set_xattr(ROOT, name.as_bytes(), &[1; 1000], XattrMode::Set, false).unwrap();
    }
    take(&volume.fs, "three");
    let stream = send(&volume.fs, "three", Some("two"));
    let refused = receive(&other.fs, &stream);
    assert!(matches!(refused, Err(TransferError::Refused(why)) if why.contains("log")), "{refused:?}");
    assert_nothing_is_left(&other.fs);
}

fn make_chain(volume: &Volume, first: &str, depth: usize) -> InodeNumber {
    let rest = std::iter::repeat_n("x".repeat(255), depth - 1);
    std::iter::once(first.to_owned()).chain(rest).fold(ROOT, |above, name| {
        let make = |fs: &_| Operations::make_directory(fs, &volume.caller, above, name.as_bytes(), 0o755);
        changing(&*volume.fs, make).unwrap().attributes.inode
    })
}

/// It was sent, and nobody could receive it.
#[test]
fn what_has_a_path_that_has_become_too_long_is_not_sent() {
    let volume = Volume::of_long_paths();
    let (deep, moved) = (make_chain(&volume, &"a".repeat(255), 512), "b".repeat(255));
    let bottom = make_chain(&volume, &moved, 511);
    volume.file(bottom, &"f".repeat(254));
    take(&volume.fs, "before");
    let rename =
        |fs: &_| Operations::rename(fs, ROOT, moved.as_bytes(), deep, moved.as_bytes(), RenameMode::Replace);
    changing(&*volume.fs, rename).unwrap();
    take(&volume.fs, "after");
    let whole = volume.fs.send_snapshot(b"after", None, &mut Vec::new());
    assert!(matches!(whole, Err(TransferError::PathTooLong(path)) if path.starts_with("/aaa")));
    receive(&Volume::new().fs, &send(&volume.fs, "before", None)).unwrap();
}

/// Its entry in the list of names that redirect is a byte longer, and the whole stream was refused.
#[test]
fn a_link_with_the_longest_path_arrives() {
    let volume = Volume::of_long_paths();
    let file = volume.file(ROOT, "file");
    let depth = key::METADATA_KEY_LENGTH_MAX / 256;
    let bottom = make_chain(&volume, &"a".repeat(255), depth);
    let name = "l".repeat(key::METADATA_KEY_LENGTH_MAX - 256 * depth - 2);
    changing(&*volume.fs, |fs| fs.link(file, bottom, name.as_bytes())).unwrap();
    take(&volume.fs, "one");
    let other = Volume::new();
    receive(&other.fs, &send(&volume.fs, "one", None)).unwrap();
    assert_eq!(contents(&other.fs, "one"), contents(&volume.fs, "one"));
}

#[test]
fn what_has_changed_is_all_that_is_sent() {
    let volume = filled();
    let other = Volume::new();
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    receive(&other.fs, &whole).unwrap();
    volume.write(volume.walk("a/f9").unwrap_or(ROOT).max(volume.walk("a/deep/f9").unwrap()), 100, b"changed");
    volume.fs.unlink(volume.walk("a").unwrap(), b"f10").unwrap();
    take(&volume.fs, "two");
    let changes = send(&volume.fs, "two", Some("one"));
    assert!(changes.len() < whole.len() / 20, "{} of {}", changes.len(), whole.len());
    // From there it goes on, under whatever name.
    let third = Volume::new();
    third.fs.receive_snapshot(&mut &send(&other.fs, "one", None)[..], Some(b"renamed")).unwrap();
    for to in [&other, &third] {
        receive(&to.fs, &changes).unwrap();
        assert_eq!(contents(&to.fs, "two"), contents(&volume.fs, "two"));
        to.assert_clean();
    }
    assert_eq!(names(&third.fs), ["renamed", "two"]);
    // Backwards, and to where it came from.
    let back = send(&third.fs, "renamed", Some("two"));
    volume.fs.receive_snapshot(&mut &back[..], Some(b"again")).unwrap();
    assert_eq!(contents(&volume.fs, "again"), contents(&volume.fs, "one"));
    volume.assert_clean();
}

#[test]
fn what_cannot_be_received_changes_nothing() {
    let volume = filled();
    take(&volume.fs, "one");
    volume.file(ROOT, "more");
    take(&volume.fs, "two");
    let (whole, changes) = (send(&volume.fs, "one", None), send(&volume.fs, "two", Some("one")));
    let other = Volume::new();
    assert!(matches!(receive(&other.fs, &changes), Err(TransferError::NoBase)));
    let mut later = whole.clone();
    later[8] += 1;
    let later = receive(&other.fs, &later).unwrap_err().to_string();
    assert!(later.contains("version 3") && later.contains("version 2"), "{later}");
    assert!(receive(&other.fs, b"#!/bin/sh and more").unwrap_err().to_string().contains("no stream"));
    assert!(matches!(receive(&other.fs, b""), Err(TransferError::CutOff)));
    let longer = [&whole[..], b"x"].concat();
    assert!(matches!(receive(&other.fs, &longer), Err(TransferError::GoesOn)));
    let mut random = Random::new(7);
    let seed = 7;
    for _ in 0..60 {
        let at = random.below(whole.len() as u64) as usize;
        assert!(matches!(receive(&other.fs, &whole[..at]), Err(TransferError::CutOff)), "{at}, seed {seed}");
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << random.below(8);
        assert!(receive(&other.fs, &damaged).is_err(), "{at}, seed {seed}");
    }
    assert_eq!(names(&other.fs), [""; 0]);
    assert_nothing_is_left(&other.fs);
    receive(&other.fs, &whole).unwrap();
    assert!(matches!(receive(&other.fs, &whole), Err(TransferError::Volume(Error::Exists))));
    let no_text = other.fs.receive_snapshot(&mut &whole[..], Some(b"\xff"));
    assert!(matches!(no_text, Err(TransferError::Refused(why)) if why.contains("UTF-8")), "{no_text:?}");
    let slash = other.fs.receive_snapshot(&mut &whole[..], Some(b"a/b"));
    assert!(matches!(slash, Err(TransferError::Volume(Error::Invalid))));
    // A base of the same name that is another snapshot is not the base.
    let third = Volume::new();
    take(&third.fs, "one");
    assert!(matches!(receive(&third.fs, &changes), Err(TransferError::NoBase)));
    assert_nothing_is_left(&other.fs);
    let closed = other.remount(true);
    assert!(matches!(receive(&closed.fs, &changes), Err(TransferError::Volume(Error::ReadOnly))));
}

/// A volume that was made read-only went on to change as long as the stream lasted, and had a snapshot more in the end.
#[test]
fn nothing_is_received_from_when_changes_are_refused() {
    /// A stream during which changes are refused, behind so many bytes, and the batches that there had been by then.
    struct Refusing<'a> {
        stream: &'a [u8],
        fs: &'a FileSystem,
        left: usize,
        batches: Option<u64>,
    }
    impl std::io::Read for Refusing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = buffer.len().min(self.left);
            if length > 0 {
                self.left -= length;
                return self.stream.read(&mut buffer[..length]);
            }
            self.fs.refuse_changes(true);
            self.batches.get_or_insert(self.fs.engine().stats().batches);
            self.stream.read(buffer)
        }
    }
    let volume = filled();
    take(&volume.fs, "one");
    let stream = send(&volume.fs, "one", None);
    // In the beginning, before the first change, among them, and before the end.
    for left in [50, stream.len() / 100, stream.len() / 2, stream.len() - 1] {
        let other = Volume::new();
        let mut input = Refusing { stream: &stream, fs: &other.fs, left, batches: None };
        let received = other.fs.receive_snapshot(&mut input, None);
        assert!(matches!(received, Err(TransferError::Volume(Error::ReadOnly))), "{left}: {received:?}");
        let batches = other.fs.engine().stats().batches - input.batches.unwrap();
        assert!(batches <= 1, "{left}: {batches} batches, of which one gives up what has come");
        other.fs.refuse_changes(false);
        assert_eq!(names(&other.fs), Vec::<Bytes>::new());
        assert_nothing_is_left(&other.fs);
        receive(&other.fs, &stream).unwrap();
    }
}

#[test]
fn a_snapshot_that_is_deleted_meanwhile_is_not_sent() {
    struct Deleting<'a>(&'a FileSystem, usize);
    impl std::io::Write for Deleting<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 += 1;
            if self.1 == 2 {
                changing(self.0, |fs| fs.delete_snapshot(b"one")).unwrap();
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let volume = filled();
    take(&volume.fs, "one");
    let sent = volume.fs.send_snapshot(b"one", None, &mut Deleting(&volume.fs, 0));
    assert!(matches!(sent, Err(TransferError::Volume(Error::Stale))), "{sent:?}");
    let sent = volume.fs.send_snapshot(b"one", None, &mut Vec::new());
    assert!(matches!(sent, Err(TransferError::Volume(Error::NotFound))), "{sent:?}");
}

#[test]
fn a_writable_snapshot_is_sent_as_it_was_at_the_start() {
    /// Changes and deletes what is being sent.
    struct Changing<'a>(&'a Volume, Vec<u8>);
    impl std::io::Write for Changing<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.1.is_empty() {
                let trial = self.0.walk(".snapshots/trial").unwrap();
                self.0.file(trial, "late");
                changing(&*self.0.fs, |fs| fs.unlink(trial, b"sparse")).unwrap();
                changing(&*self.0.fs, |fs| fs.delete_snapshot(b"trial")).unwrap();
            }
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let volume = filled();
    take(&volume.fs, "one");
    changing(&*volume.fs, |fs| fs.take_snapshot(b"trial", true)).unwrap();
    let trial = volume.walk(".snapshots/trial").unwrap();
    let file = volume.file(trial, "new");
    volume.write(file, 0, &[3; 9000]);
    // Still in use: it is in no snapshot, nor is what is removed.
    let open = volume.walk(".snapshots/trial/a/f20").unwrap();
    changing(&*volume.fs, |fs| fs.unlink(volume.walk(".snapshots/trial/a")?, b"f20")).unwrap();
    changing(&*volume.fs, |fs| fs.take_snapshot_of(Some(b"trial"), b"then", false)).unwrap();
    assert_eq!(volume.fs.check().unwrap().problems, []);
    let then = contents(&volume.fs, "then");
    let base = volume.fs.send_snapshot(b"one", Some(b"trial"), &mut Vec::new());
    assert!(matches!(base, Err(TransferError::WritableBase)), "{base:?}");
    let mut out = Changing(&volume, Vec::new());
    volume.fs.send_snapshot(b"trial", None, &mut out).unwrap();
    let stream = out.1;
    let other = Volume::new();
    receive(&other.fs, &stream).unwrap();
    assert!(contents(&other.fs, "trial") == then);
    other.assert_clean();
    assert_eq!(volume.read(open, 0, 2), [21; 2]);
    // Nothing is left of what was sent, and it is nothing to begin from.
    assert_nothing_is_left(&volume.fs);
    let received = waiting(&*other.fs, FileSystem::snapshots).unwrap().pop().unwrap();
    let (_, number) = received.origin.unwrap();
    assert!(!received.writable && number > trial.0);
    // As changes, too, and one that breaks off leaves nothing either.
    receive(&other.fs, &send(&volume.fs, "one", None)).unwrap();
    changing(&*volume.fs, |fs| fs.take_snapshot_of(Some(b"then"), b"again", true)).unwrap();
    volume.file(volume.walk(".snapshots/again").unwrap(), "newest");
    let changes = send(&volume.fs, "again", Some("one"));
    assert!(changes.len() < stream.len() / 10, "{} of {}", changes.len(), stream.len());
    receive(&other.fs, &changes).unwrap();
    assert!(contents(&other.fs, "again") == contents(&volume.fs, "again"));
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sent = volume.fs.send_snapshot(b"again", None, &mut Full);
    assert!(matches!(sent, Err(TransferError::Output(_))), "{sent:?}");
    assert_nothing_is_left(&volume.fs);
    // Of a volume that takes no changes it is sent as well, and to its receiver is another one each time.
    let volume = volume.remount(true);
    receive(&Volume::new().fs, &send(&volume.fs, "again", None)).unwrap();
    let third = Volume::new();
    for name in ["first", "second"] {
        let stream = send(&volume.fs, "again", None);
        third.fs.receive_snapshot(&mut &stream[..], Some(name.as_bytes())).unwrap();
        assert!(contents(&third.fs, name) == contents(&volume.fs, "again"));
    }
    let origins: Vec<_> = waiting(&*third.fs, FileSystem::snapshots).unwrap();
    assert_ne!(origins[0].taken, origins[1].taken);
}

/// The data of unlinked files, which a crash had left, went along: the next files of these names at the receiver had them in their holes.
#[test]
fn orphans_of_a_crash_are_not_sent_from_a_volume_that_takes_no_changes() {
    let volume = Volume::new();
    let fs = &*volume.fs;
    let directory = volume.directory(ROOT, "d");
    for name in ["before", "large", "linked"] {
        volume.write(volume.file(directory, name), 0, &[1; 100_000]);
    }
    fs.link(volume.walk("d/linked").unwrap(), ROOT, b"other").unwrap();
    take(fs, "base");
    changing(fs, |fs| fs.take_snapshot_of(Some(b"base"), b"w", true)).unwrap();
    let w = volume.walk(".snapshots/w").unwrap();
    volume.rename(w, "d", w, "moved").unwrap();
    let moved = volume.walk(".snapshots/w/moved").unwrap();
    volume.write(volume.file(moved, "secret"), 0, &[7; 20_000]);
    let open = volume.walk(".snapshots/w/moved/linked").unwrap();
    for (directory, name) in
        [(moved, "secret"), (moved, "before"), (moved, "large"), (moved, "linked"), (w, "other")]
    {
        changing(fs, |fs| fs.lookup(directory, name.as_bytes())).unwrap();
        changing(fs, |fs| fs.unlink(directory, name.as_bytes())).unwrap();
    }
    assert_eq!(volume.read(open, 0, 2), [1; 2]);
    changing(fs, |fs| fs.take_snapshot_of(Some(b"w"), b"then", false)).unwrap();
    let read_only = Options { background: Background::Manual, read_only: true, ..Options::default() };
    let volume = volume.killed(read_only);
    for base in [None, Some("base")] {
        let other = Volume::new();
        if let Some(base) = base {
            receive(&other.fs, &send(&volume.fs, base, None)).unwrap();
        }
        receive(&other.fs, &send(&volume.fs, "w", base)).unwrap();
        other.assert_clean();
        assert!(contents(&other.fs, "w") == contents(&volume.fs, "then"), "{base:?}");
    }
}

#[test]
fn a_volume_that_is_too_small_keeps_what_it_has() {
    let volume = Volume::new();
    let mut random = Random::new(3);
    for number in 0..60u32 {
        let file = volume.file(ROOT, &format!("f{number}"));
        let bytes: Vec<u8> = (0..500_000).map(|_| random.bits() as u8).collect();
        waiting(&*volume.fs, |fs| fs.write(file, 0, bytes.clone().into(), WriteMode::PLAIN)).unwrap();
        volume.fs.make_room(500_000, true).unwrap();
    }
    take(&volume.fs, "large");
    let stream = send(&volume.fs, "large", None);
    let device = Arc::new(SimulatedDevice::new(24 << 20));
    FileSystem::format(device.clone(), &crash::small()).unwrap();
    let fs = crash::open(device.clone()).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    changing(&*fs, |fs| fs.make_directory(&caller, ROOT, b"kept", 0o755)).unwrap();
    let outcome = receive(&fs, &stream);
    assert!(matches!(outcome, Err(TransferError::Volume(Error::NoSpace))), "{outcome:?}");
    assert_nothing_is_left(&fs);
    fs.close().unwrap();
    drop(fs);
    let fs = crash::open(device).unwrap();
    assert_eq!(names(&fs), [""; 0]);
    assert!(changing(&*fs, |fs| fs.lookup(ROOT, b"kept")).is_ok());
    let value = below(&fs, Tree::Metadata, &key::child_key(b"", b"kept"));
    assert!(matches!(NameRecord::decode(&value[0].1), Ok(NameRecord::Inode(_))));
    assert_eq!(fs.check().unwrap().problems, []);
}
