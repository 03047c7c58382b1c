//! Volumes whose logs take short records alone, in which long paths have little room.

use bytes::Bytes;
use pando_engine::FormatOptions;
use pando_fs::operations::{
    AllocateMode, FileType, Operations, ROOT, RenameMode, SetAttributes, WriteMode, XattrMode, changing,
    changing_bytes,
};
use pando_fs::{Error, FileSystem, InodeNumber, Result};

use crate::common::Volume;

const NAME: [u8; 240] = [b'd'; 240];

/// A volume with the log of one of 16 MiB, a record of which takes 512 KiB, and much space.
fn with_small_log() -> Volume {
    let format =
        FormatOptions { log_bytes: Some(2 << 20), node_bytes: Some(4 << 20), ..FormatOptions::default() };
    Volume::formatted(&format)
}

fn change<T>(volume: &Volume, call: impl FnMut(&FileSystem) -> Result<T>) -> Result<T> {
    changing(&*volume.fs, call)
}

fn make(volume: &Volume, above: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
    change(volume, |fs| fs.make_directory(&volume.caller, above, name, 0o755))
        .map(|entry| entry.attributes.inode)
}

/// Directories that lie in each other, so many at most: the first has this name.
fn dig(volume: &Volume, first: &[u8], most: usize) -> Vec<InodeNumber> {
    let mut directories = vec![make(volume, ROOT, first).unwrap()];
    while directories.len() < most {
        match make(volume, directories[directories.len() - 1], &NAME) {
            Ok(directory) => directories.push(directory),
            Err(error) => {
                assert_eq!(error, Error::NameTooLong);
                break;
            }
        }
    }
    directories
}

/// Removes empty directories that lie in each other, after which nothing is left.
fn remove_all(volume: Volume, directories: &[InodeNumber]) {
    for above in directories[..directories.len() - 1].iter().rev().chain([&ROOT]) {
        change(&volume, |fs| fs.remove_directory(*above, &NAME)).unwrap();
    }
    let volume = volume.remount(false);
    volume.assert_clean();
    assert!(volume.names(ROOT).is_empty());
}

/// A directory could be made where none could ever be removed, a file with contents where it could not be unlinked, and a large write to one failed.
#[test]
fn what_has_the_longest_path_can_be_used_and_removed() {
    let volume = with_small_log();
    let directories = dig(&volume, &NAME, usize::MAX);
    assert!((340..370).contains(&directories.len()), "{}", directories.len());
    let bottom = directories[directories.len() - 1];
    let longest = (1..=NAME.len()).rev().find(|length| make(&volume, bottom, &NAME[..*length]).is_ok());
    let longest = longest.unwrap();
    assert_eq!(make(&volume, bottom, &vec![b'd'; longest + 1]), Err(Error::NameTooLong));
    let [name, other, lost] = [b'f', b'o', b'l'].map(|byte| vec![byte; longest]);
    let file = volume.file(bottom, std::str::from_utf8(&name).unwrap());

    let contents: Vec<u8> = (0..250 << 10).map(|at| (at / 1000) as u8).collect();
    let resize = |file, size| {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        change(&volume, |fs| fs.set_attributes(file, &set)).unwrap();
    };
    // Within the file, so that it ends in a part of a block, which has its own key in the record.
    let write = |file| {
        resize(file, 1 << 20);
        let bytes = Bytes::from(contents.clone());
        changing_bytes(&*volume.fs, contents.len() as u64, |fs| {
            fs.write(file, 100, bytes.clone(), WriteMode::PLAIN)
        })
    };
    write(file).unwrap();
    assert_eq!(volume.read(file, 100, contents.len()), contents);
    change(&volume, |fs| fs.set_xattr(file, b"user.x", &[5; 65_536], XattrMode::Set, false)).unwrap();
    change(&volume, |fs| fs.allocate(file, AllocateMode::PunchHole, 5000, 10_000, false)).unwrap();
    let zero = AllocateMode::ZeroRange { keep_size: false };
    change(&volume, |fs| fs.allocate(file, zero, 100_000, 1_000_000, false)).unwrap();
    resize(file, 10_001);
    change(&volume, |fs| fs.rename(bottom, &name, bottom, &other, RenameMode::Replace)).unwrap();
    assert_eq!(volume.read(file, 100, 4900), contents[..4900]);

    // One that is in use, and one that is not.
    let left = volume.file(bottom, std::str::from_utf8(&lost).unwrap());
    write(left).unwrap();
    volume.fs.forget(left, 1);
    change(&volume, |fs| fs.unlink(bottom, &other)).unwrap();
    change(&volume, |fs| fs.unlink(bottom, &lost)).unwrap();
    volume.fs.forget(file, 1);
    change(&volume, |fs| fs.remove_directory(bottom, &NAME[..longest])).unwrap();
    remove_all(volume, &directories);
}

/// Each hole and each run of data between holes brings its keys into the record of a copy.
#[test]
fn a_file_of_many_holes_is_copied_to_a_long_path() {
    const BLOCK: usize = 4096;
    let volume = with_small_log();
    let bottom = *dig(&volume, &NAME, 60).last().unwrap();
    let (from, to) = (volume.file(ROOT, "from"), volume.file(bottom, "to"));
    let size = 127 * BLOCK;
    for offset in (0..size).step_by(2 * BLOCK) {
        volume.write(from, offset as u64, &[7; BLOCK]);
    }
    volume.write(to, 0, &vec![1; size + BLOCK]);
    let (mut done, mut calls) = (0, 0);
    while done < size {
        let (at, left) = (done as u64, (size - done) as u64);
        let copy = |fs: &FileSystem| fs.copy_range(from, at, to, at + BLOCK as u64, left, false);
        let copied = change(&volume, copy).unwrap();
        assert!(copied > 0);
        done += copied as usize;
        calls += 1;
    }
    assert!((2..size / BLOCK).contains(&calls), "{calls} calls");
    let expected: Vec<u8> = (0..size).map(|at| if (at / BLOCK).is_multiple_of(2) { 7 } else { 0 }).collect();
    assert_eq!(volume.read(to, BLOCK as u64, size), expected);
    volume.assert_clean();
}

/// Below a directory that has moved.
#[test]
fn a_directory_whose_path_has_become_longer_can_be_removed_and_what_cannot_be_says_why() {
    let volume = with_small_log();
    let deep = dig(&volume, b"deep", 338);
    let chain = dig(&volume, b"chain", 338);
    let (above, bottom) = (deep[deep.len() - 1], chain[chain.len() - 1]);
    make(&volume, bottom, b"below").unwrap();
    let file = volume.file(bottom, "file");
    volume.write(file, 0, &[7; 5000]);
    volume.fs.forget(file, 1);
    let rename = |from, to| {
        change(&volume, |fs| fs.rename(from, b"chain", to, b"chain", RenameMode::Replace)).unwrap();
    };
    rename(ROOT, above);
    assert_eq!(make(&volume, bottom, b"new"), Err(Error::NameTooLong));
    change(&volume, |fs| fs.remove_directory(bottom, b"below")).unwrap();
    assert_eq!(change(&volume, |fs| fs.unlink(bottom, b"file")), Err(Error::NameTooLong));
    volume.assert_clean();
    rename(above, ROOT);
    change(&volume, |fs| fs.unlink(bottom, b"file")).unwrap();
    assert!(volume.names(bottom).is_empty());
    volume.assert_clean();
}

/// As one is made by default.
#[test]
fn the_smallest_volume_lets_go_of_the_longest_path() {
    let volume = Volume::of_size(16 << 20, &FormatOptions::default());
    let directories = dig(&volume, &NAME, usize::MAX);
    let bottom = directories[directories.len() - 1];
    let file = volume.file(bottom, "f");
    volume.write(file, 0, &[7; 5000]);
    change(&volume, |fs| fs.unlink(bottom, b"f")).unwrap();
    volume.fs.forget(file, 1);
    remove_all(volume, &directories);
}

/// Nodes became many times as long as they should be, and what a checkpoint had to write found no place: the volume took no changes any more.
#[test]
fn a_volume_is_filled_with_small_files_of_long_paths() {
    let volume = Volume::of_size(32 << 20, &FormatOptions::default());
    let bottom = *dig(&volume, &NAME, usize::MAX).last().unwrap();
    let write = |number: u32| -> Result<()> {
        let name = number.to_string();
        let make = |fs: &FileSystem| {
            fs.make_node(&volume.caller, bottom, name.as_bytes(), FileType::Regular, 0o644, 0)
        };
        let file = change(&volume, make)?.attributes.inode;
        let bytes = Bytes::from_static(&[7; 5000]);
        changing_bytes(&*volume.fs, 5000, |fs| fs.write(file, 0, bytes.clone(), WriteMode::PLAIN))?;
        volume.fs.forget(file, 1);
        Ok(())
    };
    let full = (0..10_000).find_map(|number| write(number).err());
    assert_eq!(full, Some(Error::NoSpace));
    volume.fs.sync().unwrap();
    volume.remount(false).assert_clean();
}
