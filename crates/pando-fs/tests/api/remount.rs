//! What is there after a volume was closed and opened again.

use pando_fs::operations::{FileType, Operations, ROOT, SetAttributes, WriteMode, XattrMode};
use pando_fs::{Error, InodeNumber};

use crate::common::Volume;

#[test]
fn everything_but_orphans_is_there_after_a_remount() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let file = volume.file(a, "f");
    volume.write(file, 3, &[5; 70_000]);
    volume.fs.set_xattr(file, b"user.large", &[6; 3000], XattrMode::Set, false).unwrap();
    let gone = volume.file(a, "gone");
    volume.write(gone, 0, &[7; 70_000]);
    volume.fs.unlink(a, b"gone").unwrap();
    volume.rename(ROOT, "a", ROOT, "b").unwrap();
    let before = volume.fs.get_attributes(file).unwrap();

    let volume = volume.remount(false);
    let report = volume.fs.check().unwrap();
    assert_eq!((report.orphans, report.files, report.directories, report.data_bytes), (0, 1, 2, 70_003));
    volume.assert_clean();
    assert_eq!(volume.walk("b/f"), Ok(file));
    assert_eq!(volume.fs.get_attributes(file), Ok(before));
    assert_eq!(volume.read(file, 0, 100_000), [vec![0; 3], vec![5; 70_000]].concat());
    assert_eq!(volume.fs.get_xattr(file, b"user.large").unwrap().len(), 3000);
}

#[test]
fn inode_numbers_are_never_given_out_twice() {
    let volume = Volume::new();
    let first = volume.file(ROOT, "f");
    volume.fs.unlink(ROOT, b"f").unwrap();
    let after_crash = volume.after_crash();
    let second = after_crash.file(ROOT, "f");
    let third = after_crash.remount(false).file(ROOT, "g");
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
}

#[test]
fn a_volume_opened_read_only_refuses_every_change() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"data");
    let volume = volume.remount(true);
    assert_eq!(volume.walk("f"), Ok(file));
    assert_eq!(volume.read(file, 0, 9), b"data");
    let (fs, caller, refused) = (&volume.fs, &volume.caller, Error::ReadOnly);
    assert_eq!(fs.write(file, 0, "x".into(), WriteMode::PLAIN), Err(refused.clone()));
    assert_eq!(fs.make_node(caller, ROOT, b"g", FileType::Fifo, 0, 0), Err(refused.clone()));
    assert_eq!(fs.make_temporary(caller, ROOT, 0), Err(refused.clone()));
    assert_eq!(fs.unlink(ROOT, b"f"), Err(refused.clone()));
    assert_eq!(volume.rename(ROOT, "f", ROOT, "g"), Err(refused.clone()));
    assert_eq!(fs.set_attributes(file, &SetAttributes::default()), Err(refused.clone()));
    assert_eq!(fs.set_xattr(file, b"user.a", b"", XattrMode::Set, false), Err(refused));
    assert_eq!((fs.sync(), fs.make_room(0, false)), (Ok(()), Ok(())));
    fs.forget(InodeNumber(file.0), 1);
}
