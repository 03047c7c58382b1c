//! Inodes that are forgotten many at a time.

use bytes::Bytes;
use pando_engine::FormatOptions;
use pando_fs::operations::{Operations, ROOT, WriteMode, changing, changing_bytes};
use pando_fs::{Error, InodeNumber};

use crate::common::{Volume, small_nodes};

#[test]
fn unlinked_files_that_are_forgotten_together_are_deleted_by_few_records() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let files: Vec<InodeNumber> = (0..200).map(|n| volume.file(directory, &format!("f{n}"))).collect();
    let still_named = volume.file(directory, "named");
    let linked = volume.file(directory, "linked");
    volume.fs.link(linked, ROOT, b"other name").unwrap();
    for (n, file) in files.iter().enumerate() {
        volume.write(*file, 0, b"contents");
        volume.fs.unlink(directory, format!("f{n}").as_bytes()).unwrap();
    }
    // The key of the first is in use again, and so its data lie elsewhere.
    let again = volume.file(directory, "f0");
    volume.write(again, 0, b"new");
    // One of them is referred to once more than is forgotten.
    let kept = files[150];
    let entry = volume.fs.link(kept, directory, b"kept").unwrap();
    assert_eq!(entry.attributes.inode, kept);
    volume.fs.unlink(directory, b"kept").unwrap();

    let mut forgotten: Vec<(InodeNumber, u64)> = files.iter().rev().map(|file| (*file, 1)).collect();
    forgotten.extend([(still_named, 1), (linked, 2), (files[0], 1), (InodeNumber(1 << 40), 7), (ROOT, 1)]);
    let before = volume.fs.engine().stats().batches;
    volume.fs.forget_many(&forgotten);
    let records = volume.fs.engine().stats().batches - before;
    // Eight come in a record: enough to spare the log, and few enough that changes on other cores do not wait for long.
    assert_eq!(records, 199_u64.div_ceil(8));
    for file in files.iter().filter(|file| **file != kept) {
        assert_eq!(volume.fs.get_attributes(*file), Err(Error::Stale));
    }
    assert_eq!(volume.read(kept, 0, 100), b"contents");
    assert_eq!(volume.read(again, 0, 100), b"new");
    assert_eq!(volume.names(directory), ["f0", "linked", "named"]);

    volume.fs.forget(kept, 1);
    assert_eq!(volume.fs.write(kept, 0, Bytes::from_static(b"x"), WriteMode::PLAIN), Err(Error::Stale));
    let volume = volume.remount(false);
    volume.assert_clean();
    assert_eq!(volume.names(volume.walk("d").unwrap()), ["f0", "linked", "named"]);
}

/// Their record was larger than the log of a small volume takes, and what was refused counted as done.
#[test]
fn files_of_long_paths_are_deleted_too() {
    let volume = Volume::formatted(&FormatOptions { log_bytes: Some(1 << 20), ..small_nodes() });
    // The log is smaller than what is made here.
    let settle = || {
        while volume.fs.engine().background_step().unwrap() {}
        volume.fs.engine().sync().unwrap();
    };
    let mut directory = ROOT;
    for _ in 0..40 {
        settle();
        directory = volume.directory(directory, &"long".repeat(60));
    }
    let make = |n| {
        settle();
        volume.file(directory, &format!("f{n}"))
    };
    let files: Vec<InodeNumber> = (0..60).map(make).collect();
    for (n, file) in files.iter().enumerate() {
        settle();
        volume.write(*file, 0, &[7; 5000]);
        volume.fs.unlink(directory, format!("f{n}").as_bytes()).unwrap();
    }
    assert!(60 * 2 * 40 * 240 > volume.fs.engine().stats().log_capacity_bytes / 4, "the test is too small");
    settle();
    volume.fs.forget_many(&files.iter().map(|file| (*file, 1)).collect::<Vec<_>>());
    // Nothing of the old file shows in a new one of the same path.
    let again = volume.file(directory, "f7");
    volume.resize(again, 8192);
    assert!(volume.read(again, 0, 8192).iter().all(|byte| *byte == 0));
    volume.write(again, 0, b"new");
    let volume = volume.remount(false);
    volume.assert_clean();
    let again = volume.walk(&format!("{}f7", format!("{}/", "long".repeat(60)).repeat(40))).unwrap();
    assert_eq!(volume.read(again, 0, 3), b"new");
}

/// The kernel forgets an unlinked file behind the answer to the unlink. On a full volume whoever deleted and wrote at once was
/// told that there is no space, file after file while the machine had much else to do.
#[test]
fn a_write_behind_an_unlink_on_a_full_volume_waits_for_the_forget() {
    const FILE: usize = 16 << 20;
    let volume = Volume::new();
    let contents = Bytes::from(vec![7; 1 << 20]);
    let write = |file, offset: usize| {
        changing_bytes(&*volume.fs, contents.len() as u64, |fs| {
            fs.write(file, offset as u64, contents.clone(), WriteMode::PLAIN)
        })
    };
    let new = volume.file(ROOT, "new");
    let mut files = Vec::new();
    let full = 'full: loop {
        files.push(volume.file(ROOT, &format!("f{}", files.len())));
        for offset in (0..FILE).step_by(contents.len()) {
            if let Err(error) = write(files[files.len() - 1], offset) {
                break 'full error;
            }
        }
    };
    assert_eq!(full, Error::NoSpace);

    changing(&*volume.fs, |fs| fs.unlink(ROOT, b"f0")).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (fs, unlinked) = (&volume.fs, files[0]);
        scope.spawn(move || {
            told.recv().unwrap();
            fs.forget(unlinked, 1);
        });
        let written = changing_bytes(&*volume.fs, contents.len() as u64, |fs| {
            let written = fs.write(new, 0, contents.clone(), WriteMode::PLAIN);
            let _ = tell.send(());
            written
        });
        assert_eq!(written.map(drop), Ok(()));
    });
    assert_eq!(volume.read(new, 0, contents.len()), contents);
}
