//! What a damaged volume, or one that was made for it, says: an error for what is damaged, and the rest can be used.

use bytes::Bytes;
use pando_engine::{Batch, FormatOptions, Tree};
use pando_fs::operations::{AllocateMode, Operations, ROOT, SNAPSHOTS, Seek, waiting};
use pando_fs::schema::{Record, key};
use pando_fs::{Error, FileSystem, InodeNumber};

use crate::common::Volume;

/// The volume after a change of a record that no operation makes, and a crash.
fn with_record(volume: &Volume, metadata_key: &[u8], change: impl FnOnce(&mut Record)) -> Volume {
    let value = volume.fs.engine().get(Tree::Metadata, metadata_key).unwrap().unwrap();
    let mut record = Record::decode(&value).unwrap();
    change(&mut record);
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, metadata_key.to_vec(), record.encode());
    volume.fs.engine().apply(batch).unwrap();
    volume.after_crash()
}

fn is_damage<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Engine(pando_engine::Error::Damaged { .. })))
}

/// A file had the number that the next one without a name was to have: the daemon ended.
#[test]
fn a_number_that_is_in_use_is_given_to_no_temporary_file() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"mine");
    let next = volume.fs.engine().get(Tree::Metadata, key::INODE_COUNTER).unwrap().unwrap();
    let next = u64::from_le_bytes(next[..].try_into().unwrap());
    let volume = with_record(&volume, &key::child_key(b"", b"f"), |record| record.number = next);
    let file = volume.walk("f").unwrap();
    assert_eq!(file.0, next);
    let temporary = || waiting(&*volume.fs, |fs| fs.make_temporary(&volume.caller, ROOT, 0o600));
    assert!(is_damage(temporary()));
    assert_eq!(volume.fs.engine().get(Tree::Metadata, &key::orphan_key(next)).unwrap(), None);
    assert_eq!(volume.read(file, 0, 9), b"mine");
    // The next number is that of no other.
    let temporary = temporary().unwrap().attributes.inode;
    volume.write(temporary, 0, b"x");
    volume.fs.link(temporary, ROOT, b"named").unwrap();
    volume.fs.forget(file, 1);
    volume.fs.unlink(ROOT, b"f").unwrap();
    volume.assert_clean();
}

/// A file was read and changed whose key the record of another named as the place of its data.
#[test]
fn a_record_that_names_another_place_for_its_data_is_not_followed() {
    let secret = key::child_key(b"", b"secret");
    for is_linked in [false, true] {
        let volume = Volume::new();
        let file = volume.file(ROOT, "secret");
        volume.write(file, 0, b"secret");
        let bad = volume.file(volume.directory(ROOT, "d"), "bad");
        volume.write(bad, 0, b"mine!!");
        let bad_key = if is_linked {
            volume.fs.link(bad, ROOT, b"second").unwrap();
            key::linked_key(bad.0)
        } else {
            key::child_key(b"\0d", b"bad")
        };
        let volume = with_record(&volume, &bad_key, |record| record.parked = secret.clone());
        let directory = volume.walk("d").unwrap();
        assert!(is_damage(volume.walk("d/bad")));
        assert!(is_damage(waiting(&*volume.fs, |fs| fs.unlink(directory, b"bad"))));
        assert!(is_damage(volume.rename(directory, "bad", ROOT, "elsewhere")));
        // All else is as it was.
        let file = volume.walk("secret").unwrap();
        assert_eq!(volume.read(file, 0, 9), b"secret");
        volume.write(volume.file(directory, "new"), 0, b"x");
        let problems = volume.fs.check().unwrap().problems;
        assert!(matches!(&problems[..], [one] if one.invariant == "FS-1"), "{problems:#?}");
    }
}

/// The same in a directory, whose large attributes lie there, in the root of a snapshot, and in a snapshot.
#[test]
fn no_directory_names_another_place_for_its_data() {
    let volume = Volume::new();
    volume.file(volume.directory(ROOT, "d"), "f");
    waiting(&*volume.fs, |fs| fs.take_snapshot(b"s", false)).unwrap();
    let root = volume.walk(".snapshots/s").unwrap();
    let prefix = key::snapshot_prefix(root.0);
    let in_snapshot = key::in_snapshot(&prefix, &key::child_key(b"", b"d"));
    for (metadata_key, path) in
        [(key::child_key(b"", b"d"), "d"), (in_snapshot, ".snapshots/s/d"), (prefix, ".snapshots/s")]
    {
        let parked = Bytes::from_static(b"\0etc\0\0shadow");
        let damaged = with_record(&volume, &metadata_key, |record| record.parked = parked);
        assert!(is_damage(damaged.walk(path)), "{path}");
        let problems = damaged.fs.check().unwrap().problems;
        assert!(matches!(&problems[..], [one] if one.invariant == "FS-1"), "{problems:#?}");
        with_record(&damaged, &metadata_key, |record| record.parked = Bytes::new()).assert_clean();
    }
}

/// A target of more than 1 MiB ended the daemon.
#[test]
fn a_target_that_no_link_can_have_is_damage() {
    let volume = Volume::new();
    volume.fs.make_symlink(&volume.caller, ROOT, b"l", b"there").unwrap();
    let metadata_key = key::child_key(b"", b"l");
    let volume = with_record(&volume, &metadata_key, |record| record.target = vec![b'x'; 4096].into());
    assert!(is_damage(volume.walk("l")));
    assert!(volume.fs.check().unwrap().problems.iter().any(|problem| problem.invariant == "FS-2"));
}

/// It was, and what else was in it was gone.
#[test]
fn a_directory_that_says_it_is_empty_is_not_replaced_by_what_is_in_it() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let b = volume.directory(a, "b");
    for name in 0..100 {
        volume.write(volume.file(b, &name.to_string()), 0, &[7; 5000]);
    }
    let volume = with_record(&volume, &key::child_key(b"", b"a"), |record| record.entries = 0);
    let a = volume.walk("a").unwrap();
    assert_eq!(volume.rename(a, "b", ROOT, "a"), Err(Error::NotEmpty));
    assert_eq!(volume.read(volume.walk("a/b/7").unwrap(), 0, 9), [7; 9]);
}

/// A snapshot with the number of the directory of the snapshots was that directory: there was no end to what lay in it. With those of others
/// it was the live root, or a directory in it.
#[test]
fn a_snapshot_that_has_the_number_of_something_else_leads_nowhere() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    waiting(&*volume.fs, |fs| fs.take_snapshot(b"s", true)).unwrap();
    let own = volume.walk(".snapshots/s").unwrap();
    let with_number = |number: InodeNumber| {
        let mut snapshot = waiting(&*volume.fs, FileSystem::snapshots).unwrap().remove(0);
        (snapshot.name, snapshot.number) = (Bytes::from_static(b"evil"), number);
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::snapshot_name_key(b"evil"), snapshot.encode());
        volume.fs.engine().apply(batch).unwrap();
        assert!(is_damage(volume.walk(".snapshots/evil")), "{number:?}");
        assert_eq!(volume.walk(".snapshots/s"), Ok(own));
        let problems = volume.fs.check().unwrap().problems;
        assert!(matches!(&problems[..], [one] if one.invariant == "FS-8"), "{problems:#?}");
        let mut batch = Batch::new();
        batch.delete(Tree::Metadata, key::snapshot_name_key(b"evil"));
        volume.fs.engine().apply(batch).unwrap();
    };
    [SNAPSHOTS, ROOT, directory, InodeNumber(0), InodeNumber(u64::MAX - 1)].into_iter().for_each(with_number);
    // Also while it is not in use.
    volume.fs.forget(directory, 1);
    with_number(directory);
    volume.assert_clean();
}

/// All of them were gathered in memory and given up, one by one, before the volume could be used. Nodes that several ways lead to show any number of
/// keys.
#[test]
fn more_is_not_given_up_than_can_have_been_received() {
    let volume = Volume::new();
    for first in (0..=65_536_u64).step_by(4096) {
        let mut batch = Batch::new();
        for number in first..first + 4096 {
            batch.put(Tree::Metadata, key::receiving_key(1000 + number), &b"\x01"[..]);
        }
        volume.fs.make_room(0, true).unwrap();
        volume.fs.engine().apply(batch).unwrap();
    }
    let volume = volume.after_crash();
    let first =
        volume.fs.engine().waiting(|| volume.fs.engine().get(Tree::Metadata, &key::receiving_key(1000)));
    assert!(first.unwrap().is_some());
    volume.file(ROOT, "new");
    assert!(is_damage(volume.fs.usage(false)));
    let problems = volume.fs.check().unwrap().problems;
    assert!(matches!(&problems[..], [one] if one.invariant == "FS-8"), "{problems:#?}");
}

/// The same for those that have names.
#[test]
fn more_snapshots_than_there_can_be_are_not_listed() {
    let volume = Volume::new();
    waiting(&*volume.fs, |fs| fs.take_snapshot(b"s", false)).unwrap();
    let mut one = waiting(&*volume.fs, FileSystem::snapshots).unwrap().remove(0);
    // Each step makes names that are longer by a letter, and two of each.
    let step = |step: u8| vec![0x7f, step];
    let mut batch = Batch::new();
    one.name = Bytes::from_static(b"x");
    batch.put(Tree::Metadata, [step(0), one.name.to_vec()].concat(), one.encode());
    volume.fs.engine().apply(batch).unwrap();
    for number in 0..20 {
        let mut batch = Batch::new();
        for letter in [b"a", b"b"] {
            batch.clone_range(Tree::Metadata, step(number), [&step(number + 1)[..], letter].concat());
        }
        volume.fs.make_room(0, true).unwrap();
        waiting(&*volume.fs, |fs| Ok(fs.engine().apply(batch.clone())?)).unwrap();
    }
    let mut batch = Batch::new();
    batch.clone_range(Tree::Metadata, step(20), [&[key::SNAPSHOT_NAME_TAG][..], b"many"].concat());
    waiting(&*volume.fs, |fs| Ok(fs.engine().apply(batch.clone())?)).unwrap();
    assert_eq!(waiting(&*volume.fs, FileSystem::snapshots), Err(Error::TooManyLinks));
    // What is asked for by its name is there.
    volume.walk(".snapshots/s").unwrap();
}

/// Blocks that do not get shorter by compression, and none of which is there twice.
fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..blocks * 1024).flat_map(|_| word().to_le_bytes()).collect()
}

fn settle(volume: &Volume) {
    while volume.fs.engine().background_step().unwrap() {}
}

/// All that was written later among the keys of a damaged basement node could not be read either, as soon as it was not in memory: a read is a scan,
/// which needs what lies below its messages.
#[test]
fn what_is_written_after_damage_can_be_read() {
    const BLOCK: usize = 4096;
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(16 << 10),
        ..FormatOptions::default()
    };
    let volume = Volume::formatted(&format);
    let old = noise(16, 1);
    volume.write(volume.file(ROOT, "log.001"), 0, &old);
    settle(&volume);
    let volume = volume.damaged(&old[15 * BLOCK..]);
    let first = volume.walk("log.001").unwrap();
    let is_lost = |volume: &Volume, file, block: usize| {
        is_damage(waiting(&*volume.fs, |fs| fs.read(file, (block * BLOCK) as u64, BLOCK)))
    };
    assert!(is_lost(&volume, first, 15) && !is_lost(&volume, first, 1));
    let (new, more) = (noise(40, 2), noise(3, 3));
    let second = volume.file(ROOT, "log.002");
    volume.write(second, 0, &new);
    volume.write(first, 16 * BLOCK as u64, &more);
    // With a hole behind it, of which damage hides that it is one.
    let sparse = volume.file(ROOT, "log.003");
    volume.write(sparse, 0, &new[..2 * BLOCK]);
    volume.resize(sparse, 4 * BLOCK as u64);
    settle(&volume);
    volume.fs.engine().checkpoint().unwrap();
    let volume = volume.copied();
    let [first, second, sparse] = ["log.001", "log.002", "log.003"].map(|name| volume.walk(name).unwrap());
    assert_eq!(volume.read(second, 0, 100 * BLOCK), new);
    assert_eq!(volume.read(second, 7 * BLOCK as u64 + 100, 5000), new[7 * BLOCK + 100..][..5000]);
    assert_eq!(volume.read(first, 16 * BLOCK as u64, 100 * BLOCK), more);
    assert_eq!(volume.read(first, 0, 12 * BLOCK), old[..12 * BLOCK]);
    assert_eq!(volume.read(sparse, 0, 2 * BLOCK), new[..2 * BLOCK]);
    assert!(is_lost(&volume, first, 15), "no hole is made of what is lost");
    assert!(is_lost(&volume, sparse, 2), "nor is what cannot be known said to be one");
    assert_eq!(volume.copy_range((second, 0), (first, 0), 5 * BLOCK as u64), Ok(5 * BLOCK as u64));
    assert_eq!(volume.read(first, 0, 5 * BLOCK), new[..5 * BLOCK]);
    // A hole is not looked through to its end for what may be told behind it.
    let gets = || volume.fs.engine().stats().gets;
    volume.resize(first, 1 << 40);
    volume.fs.allocate(first, AllocateMode::PunchHole, 19 * BLOCK as u64, 1 << 30, false).unwrap();
    let before = gets();
    assert!(is_damage(waiting(&*volume.fs, |fs| fs.seek(first, 19 * BLOCK as u64, Seek::Data))));
    assert!((1000..10_000).contains(&(gets() - before)), "{}", gets() - before);
    volume.resize(first, 19 * BLOCK as u64);
    // Written over, it is whole again.
    volume.write(first, 0, &old);
    settle(&volume);
    let volume = volume.remount(false);
    let first = volume.walk("log.001").unwrap();
    assert_eq!(volume.read(first, 0, 100 * BLOCK), [&old[..], &more].concat());
    assert_eq!(volume.fs.engine().failure(), None);
}
