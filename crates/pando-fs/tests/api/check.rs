//! The check of the name space finds what is broken, and says which invariant.

use pando_engine::{Batch, Tree};
use pando_fs::check::Report;
use pando_fs::operations::{FileType, Operations, ROOT, XattrMode};
use pando_fs::schema::{Record, Redirect, Xattr, XattrValue, key};
use pando_sim::model::acl::{Acl, NOBODY};

use crate::common::Volume;

/// The invariants found broken after a batch that no operation would make.
fn broken_by(make: impl FnOnce(&Volume, &mut Batch)) -> Vec<&'static str> {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let file = volume.file(a, "f");
    volume.write(file, 0, &[1; 10_000]);
    volume.assert_clean();
    let mut batch = Batch::new();
    make(&volume, &mut batch);
    volume.fs.engine().apply(batch).unwrap();
    broken(&volume)
}

/// What is found broken of what is stored: nothing in memory knows of it.
fn broken(volume: &Volume) -> Vec<&'static str> {
    let mut report = Report::default();
    pando_fs::check::check(volume.fs.engine(), &mut report, &mut |_| {}).unwrap();
    report.problems.into_iter().map(|problem| problem.invariant).collect()
}

#[test]
fn what_is_stored_otherwise_than_in_memory_is_found() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let file = volume.file(a, "f");
    volume.assert_clean();
    let change = |record: &mut Record| record.mode ^= 0o100;
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, file_key(), changed(&volume, &file_key(), change));
    volume.fs.engine().apply(batch).unwrap();
    assert_eq!(broken(&volume), [""; 0], "either is a sound name space");
    let problems = volume.fs.check().unwrap().problems;
    assert_eq!(problems.len(), 1);
    assert_eq!(
        (problems[0].invariant, problems[0].what.contains(&file_key().escape_ascii().to_string())),
        ("IN-1", true),
        "{}",
        problems[0]
    );
    // Nobody knows of it any more.
    volume.fs.forget(file, 1);
    volume.assert_clean();
}

fn file_key() -> bytes::Bytes {
    key::child_key(b"\0a", b"f")
}

fn changed(volume: &Volume, metadata_key: &[u8], change: impl FnOnce(&mut Record)) -> bytes::Bytes {
    let value = volume.fs.engine().get(Tree::Metadata, metadata_key).unwrap().unwrap();
    let mut record = Record::decode(&value).unwrap();
    change(&mut record);
    record.encode()
}

#[test]
fn blocks_without_a_file_are_found() {
    let broken = broken_by(|_, batch| {
        let prefix = key::data_prefix(&key::child_key(b"\0a", b"none"));
        batch.put(Tree::Data, key::block_key(&prefix, 0), &b"x"[..]);
    });
    assert_eq!(broken, ["FS-1"]);
}

#[test]
fn blocks_behind_the_end_and_lost_blocks_are_found() {
    let prefix = key::data_prefix(&file_key());
    let behind = broken_by(|_, batch| batch.put(Tree::Data, key::block_key(&prefix, 3), &b"x"[..]));
    // Behind the end, and one more than the file has.
    assert_eq!(behind, ["FS-1", "FS-1"]);
    assert_eq!(broken_by(|_, batch| batch.delete(Tree::Data, key::block_key(&prefix, 1))), ["FS-1"]);
}

/// Neither belongs to a file that has something else in the data index: what is there besides was looked at for blocks of regular files alone.
#[test]
fn data_that_an_inode_does_not_name_are_found() {
    let volume = Volume::new();
    let target = b"target";
    let link = volume.fs.make_symlink(&volume.caller, ROOT, b"link", target).unwrap().attributes.inode;
    let inodes = [ROOT, volume.directory(ROOT, "d"), volume.file(ROOT, "f"), link];
    for inode in inodes {
        // The key of one is as long as that of a block.
        for name in [&b"user.named"[..], b"user.ab"] {
            volume.fs.set_xattr(inode, name, &[1; 1000], XattrMode::Set, false).unwrap();
        }
    }
    let directory = volume.directory(ROOT, "\u{ff}");
    volume.write(volume.file(directory, "f"), 0, b"contents");
    volume.fs.take_snapshot(b"snapshot", false).unwrap();
    volume.assert_clean();
    let number = volume.fs.snapshots().unwrap()[0].number.0;
    let snapshot = key::snapshot_prefix(number);
    for tree in [&b""[..], &snapshot] {
        for name in ["", "d", "f", "link"] {
            let live = if name.is_empty() { key::ROOT.into() } else { key::child_key(b"", name.as_bytes()) };
            let prefix = key::data_prefix(&key::in_snapshot(tree, &live));
            let mut keys = vec![key::xattr_key(&prefix, b"user.nobody"), key::xattr_key(&prefix, b"user.no")];
            if !name.is_empty() {
                keys.push([&prefix[..], b"\0odd"].concat().into());
            }
            if matches!(name, "d" | "link") {
                keys.push(key::block_key(&prefix, 7));
            }
            for lost in keys {
                let mut batch = Batch::new();
                batch.put(Tree::Data, lost.clone(), &b"x"[..]);
                volume.fs.engine().apply(batch).unwrap();
                assert_eq!(broken(&volume), ["FS-1"], "{}", lost.escape_ascii());
                let mut batch = Batch::new();
                batch.delete(Tree::Data, lost);
                volume.fs.engine().apply(batch).unwrap();
                volume.assert_clean();
            }
        }
    }
}

#[test]
fn names_without_a_directory_are_found() {
    let broken = broken_by(|_, batch| batch.delete(Tree::Metadata, key::child_key(b"", b"a")));
    // The name lies in nothing, and the root counts one entry and one subdirectory too many.
    assert_eq!(broken, ["FS-2", "FS-3", "FS-3"]);
}

#[test]
fn names_that_are_none_are_found() {
    for bad in [&b"../evil"[..], b"..", b"/", &[b'x'; key::NAME_LENGTH_MAX + 1]] {
        let broken = broken_by(|volume, batch| {
            let record = changed(volume, &file_key(), |record| record.number = 7);
            batch.put(Tree::Metadata, key::child_key(b"\0a", bad), record);
        });
        assert!(broken.contains(&"FS-2"), "{bad:?}: {broken:?}");
    }
}

#[test]
fn wrong_counts_are_found() {
    let broken = broken_by(|volume, batch| {
        let a = key::child_key(b"", b"a");
        batch.put(Tree::Metadata, a.clone(), changed(volume, &a, |record| record.entries = 7));
    });
    assert_eq!(broken, ["FS-3"]);
}

#[test]
fn numbers_used_twice_are_found() {
    let broken = broken_by(|volume, batch| {
        let record = changed(volume, &file_key(), |record| record.number = ROOT.0);
        batch.put(Tree::Metadata, file_key(), record);
    });
    assert_eq!(broken, ["FS-4"]);
}

#[test]
fn numbers_that_the_counter_will_give_out_are_found() {
    let broken = broken_by(|volume, batch| {
        batch.put(
            Tree::Metadata,
            file_key(),
            changed(volume, &file_key(), |record| record.number += 1 << 20),
        );
    });
    assert_eq!(broken, ["FS-4"]);
    // Of what was cloned and moved out of the clone, numbers are so large.
    let sound = broken_by(|volume, batch| {
        batch.put(
            Tree::Metadata,
            file_key(),
            changed(volume, &file_key(), |record| record.number |= 1 << 50),
        );
    });
    assert_eq!(sound, [""; 0]);
}

/// Neither a check nor whoever only reads said anything else of a volume whose counter was gone.
#[test]
fn without_the_counter_the_rest_is_checked_and_read() {
    for counter in [None, Some(&b"short"[..])] {
        let volume = Volume::new();
        let file = volume.file(ROOT, "f");
        volume.write(file, 0, b"contents");
        let mut batch = Batch::new();
        match counter {
            None => batch.delete(Tree::Metadata, key::INODE_COUNTER),
            Some(counter) => batch.put(Tree::Metadata, key::INODE_COUNTER, counter),
        }
        let lost = key::block_key(&key::data_prefix(&key::child_key(b"", b"none")), 0);
        batch.put(Tree::Data, lost, &b"x"[..]);
        volume.fs.engine().apply(batch).unwrap();
        assert_eq!(broken(&volume), ["FS-4", "FS-1"]);
        let volume = volume.remount(true);
        assert_eq!(volume.read(volume.walk("f").unwrap(), 0, 100), b"contents");
    }
}

#[test]
fn numbers_used_twice_under_different_deltas_are_found() {
    let broken = broken_by(|volume, batch| {
        let a = key::child_key(b"", b"a");
        let directory = volume.walk("a").unwrap().0;
        // The file's number, XORed, becomes its directory's.
        let file = changed(volume, &file_key(), |record| record.number = directory ^ 4096);
        batch.put(Tree::Metadata, file_key(), file);
        batch.put(Tree::Metadata, a.clone(), changed(volume, &a, |record| record.delta = 4096));
    });
    assert_eq!(broken, ["FS-4"]);
}

#[test]
fn records_that_are_none_are_found() {
    assert_eq!(broken_by(|_, batch| batch.put(Tree::Metadata, &b"\x09"[..], &b"x"[..])), ["FS-2"]);
}

/// As [`broken_by`], with a second link `/l` to the file.
fn broken_with_links_by(make: impl FnOnce(&Volume, u64, &mut Batch)) -> Vec<&'static str> {
    broken_by(|volume, batch| {
        let file = volume.walk("a/f").unwrap();
        volume.fs.link(file, ROOT, b"l").unwrap();
        volume.assert_clean();
        make(volume, file.0, batch);
    })
}

#[test]
fn wrong_counts_of_links_are_found() {
    let broken = broken_with_links_by(|volume, number, batch| {
        let own = key::linked_key(number);
        batch.put(Tree::Metadata, own.clone(), changed(volume, &own, |record| record.links = 3));
    });
    assert_eq!(broken, ["FS-5"]);
}

#[test]
fn names_that_lead_nowhere_are_found() {
    let broken = broken_with_links_by(|_, number, batch| {
        batch.delete(Tree::Metadata, key::linked_key(number));
    });
    // Its blocks belong to nothing any more.
    assert_eq!(broken, ["FS-5", "FS-1"]);
}

#[test]
fn linked_files_without_names_are_found() {
    let broken = broken_with_links_by(|volume, _, batch| {
        for name in [file_key(), key::child_key(b"", b"l")] {
            batch.delete(Tree::Metadata, key::link_name_key(&name));
            batch.delete(Tree::Metadata, name);
        }
        for directory in [&b""[..], &key::child_key(b"", b"a")] {
            let record = changed(volume, directory, |record| record.entries -= 1);
            batch.put(Tree::Metadata, directory.to_vec(), record);
        }
    });
    assert_eq!(broken, ["FS-5"]);
}

#[test]
fn a_list_of_redirects_that_is_not_theirs_is_found() {
    let name = key::child_key(b"", b"l");
    let missing = broken_with_links_by(|_, _, batch| batch.delete(Tree::Metadata, key::link_name_key(&name)));
    assert_eq!(missing, ["FS-6"]);
    let other = key::link_name_key(&key::child_key(b"\0a", b"g"));
    let superfluous = broken_with_links_by(|_, number, batch| {
        batch.put(Tree::Metadata, other, number.to_le_bytes().to_vec());
    });
    assert_eq!(superfluous, ["FS-6"]);
    let wrong = broken_with_links_by(|_, number, batch| {
        batch.put(Tree::Metadata, key::link_name_key(&name), (number + 1).to_le_bytes().to_vec());
    });
    // The name misses its entry, the entry its name.
    assert_eq!(wrong, ["FS-6", "FS-6"]);
}

#[test]
fn names_that_say_another_type_are_found() {
    let broken = broken_with_links_by(|_, number, batch| {
        let redirect = Redirect { number, file_type: FileType::Fifo };
        batch.put(Tree::Metadata, key::child_key(b"", b"l"), redirect.encode());
    });
    // It differs from the other name, and from the record the first one seen does.
    assert_eq!(broken, ["FS-5", "FS-5"]);
}

#[test]
fn orphans_of_a_crash_are_deleted_at_the_next_open() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    for name in ["f", "g"] {
        let file = volume.file(a, name);
        volume.write(file, 0, &[1; 10_000]);
        volume.fs.set_xattr(file, b"user.x", &[1; 1000], XattrMode::Set, false).unwrap();
        volume.fs.unlink(a, name.as_bytes()).unwrap();
    }
    // The blocks of one of them no longer lie under its old name.
    volume.file(a, "g");
    assert_eq!(volume.fs.check().unwrap().orphans, 2);
    let after = volume.after_crash();
    let report = after.fs.check().unwrap();
    assert_eq!((report.orphans, report.data_bytes, report.files), (0, 0, 1));
    after.assert_clean();
    assert_eq!(after.names(after.walk("a").unwrap()), ["g"]);
}

#[test]
fn access_control_lists_that_do_not_fit_are_found() {
    let broken_list = |name: &'static str, value: XattrValue| {
        broken_by(|volume, batch| {
            let xattr = Xattr { name: name.into(), value };
            let record = changed(volume, &file_key(), |record| record.xattrs = vec![xattr]);
            batch.put(Tree::Metadata, file_key(), record);
        })
    };
    let inline = |mode| {
        let entries = [(1, 6), (4, 4), (16, mode), (32, 4)];
        let entries = entries.map(|(tag, permissions)| ((tag, NOBODY), permissions));
        XattrValue::Inline(Acl(entries.into()).bytes().into())
    };
    assert_eq!(broken_list("system.posix_acl_access", inline(4)), [""; 0]);
    assert_eq!(broken_list("system.posix_acl_access", inline(5)), ["FS-7"]);
    assert_eq!(broken_list("system.posix_acl_default", inline(4)), ["FS-7"]);
    let opaque = XattrValue::Inline("opaque".into());
    assert_eq!(broken_list("system.posix_acl_access", opaque), ["FS-7"]);
    let mode_alone = XattrValue::Inline(
        Acl([(1, 6), (4, 4), (32, 4)].map(|(tag, permissions)| ((tag, NOBODY), permissions)).into())
            .bytes()
            .into(),
    );
    assert_eq!(broken_list("system.posix_acl_access", mode_alone), ["FS-7"]);
}

/// One record that could not be decoded kept the volume from being opened for writing.
/// The volume could not be opened for writing any more.
#[test]
fn an_orphan_whose_data_can_be_under_no_key_is_left_alone() {
    let volume = Volume::new();
    let orphans = ["a", "b"].map(|name| volume.file(ROOT, name));
    for (orphan, name) in orphans.iter().zip(["a", "b"]) {
        volume.write(*orphan, 0, &[1; 10_000]);
        volume.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let keys = orphans.map(|orphan| key::orphan_key(orphan.0));
    let record = changed(&volume, &keys[0], |record| record.parked = vec![b'x'; 256 << 10].into());
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, keys[0].clone(), record);
    volume.fs.engine().apply(batch).unwrap();
    let volume = volume.after_crash();
    let there = keys.map(|key| volume.fs.engine().get(Tree::Metadata, &key).unwrap().is_some());
    assert_eq!(there, [true, false]);
    volume.file(ROOT, "new");
}

#[test]
fn an_orphan_whose_record_makes_no_sense_is_found_and_left_alone() {
    let volume = Volume::new();
    let orphans = ["a", "b"].map(|name| volume.file(ROOT, name));
    for (orphan, name) in orphans.iter().zip(["a", "b"]) {
        volume.write(*orphan, 0, &[1; 10_000]);
        volume.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let damaged = key::orphan_key(orphans[0].0);
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, damaged.clone(), &b"x"[..]);
    volume.fs.engine().apply(batch).unwrap();
    let volume = volume.after_crash();
    let there = |key: &[u8]| volume.fs.engine().get(Tree::Metadata, key).unwrap().is_some();
    assert_eq!((there(&damaged), there(&key::orphan_key(orphans[1].0))), (true, false));
    volume.file(ROOT, "new");
    let problems = volume.fs.check().unwrap().problems;
    assert!(problems.iter().any(|problem| problem.what.contains("\\x03")), "{problems:#?}");
}
