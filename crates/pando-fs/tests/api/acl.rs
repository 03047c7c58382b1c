//! Access control lists beside the permission bits; the examples are those of acl(5).

use pando_fs::operations::{Attributes, Caller, FileType, Operations, ROOT, SetAttributes, XattrMode};
use pando_fs::{Error, InodeNumber, Result};
use pando_sim::model::acl::{Acl, NOBODY};

use crate::common::{Volume, bytes};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A list of entries: tag, number, permissions.
fn acl(entries: &[(u16, u32, u16)]) -> Vec<u8> {
    Acl(entries.iter().map(|(tag, number, permissions)| ((*tag, *number), *permissions)).collect()).bytes()
}

/// Owner, user 7, group, mask and others.
fn with_user(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    acl(&[(1, NOBODY, owner), (2, 7, user), (4, NOBODY, group), (16, NOBODY, mask), (32, NOBODY, other)])
}

fn plain(owner: u16, group: u16, other: u16) -> Vec<u8> {
    acl(&[(1, NOBODY, owner), (4, NOBODY, group), (32, NOBODY, other)])
}

fn set(volume: &Volume, inode: InodeNumber, name: &[u8], value: &[u8]) -> Result<()> {
    volume.fs.set_xattr(inode, name, value, XattrMode::Set, false)
}

fn get(volume: &Volume, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
    volume.fs.get_xattr(inode, name).map(|value| bytes(&value))
}

fn mode(volume: &Volume, inode: InodeNumber) -> u32 {
    volume.fs.get_attributes(inode).unwrap().mode
}

fn chmod(volume: &Volume, inode: InodeNumber, mode: u32) -> Attributes {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    volume.fs.set_attributes(inode, &set).unwrap()
}

/// Makes something with mode 0777 and a umask of 027.
fn make(volume: &Volume, parent: InodeNumber, name: &str, file_type: FileType, mode: u32) -> InodeNumber {
    let (fs, name) = (&volume.fs, name.as_bytes());
    let caller = Caller { umask: 0o027, ..volume.caller };
    let made = match file_type {
        FileType::Directory => fs.make_directory(&caller, parent, name, mode),
        FileType::Symlink => fs.make_symlink(&caller, parent, name, b"target"),
        other => fs.make_node(&caller, parent, name, other, mode, 0),
    };
    made.unwrap().attributes.inode
}

#[test]
fn an_access_list_and_the_mode_say_the_same() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    chmod(&volume, file, 0o6640);
    set(&volume, file, ACCESS, &with_user(7, 6, 4, 5, 1)).unwrap();
    assert_eq!(mode(&volume, file), 0o6751, "the group's bits are the mask");
    chmod(&volume, file, 0o623);
    assert_eq!(get(&volume, file, ACCESS), Ok(with_user(6, 6, 4, 2, 3)));

    // With a mask it is more than a mode, even if it names nobody.
    let masked = |mask| acl(&[(1, NOBODY, 6), (4, NOBODY, 4), (16, NOBODY, mask), (32, NOBODY, 0)]);
    set(&volume, file, ACCESS, &masked(2)).unwrap();
    assert_eq!((mode(&volume, file), get(&volume, file, ACCESS)), (0o620, Ok(masked(2))));
    chmod(&volume, file, 0o670);
    assert_eq!(get(&volume, file, ACCESS), Ok(masked(7)));

    set(&volume, file, ACCESS, &plain(6, 4, 4)).unwrap();
    assert_eq!((mode(&volume, file), get(&volume, file, ACCESS)), (0o644, Err(Error::NoAttribute)));
    assert_eq!(volume.fs.list_xattrs(file).unwrap(), "");
    // What goes leaves the mode as it is.
    set(&volume, file, ACCESS, &with_user(6, 6, 6, 6, 6)).unwrap();
    volume.fs.remove_xattr(file, ACCESS).unwrap();
    assert_eq!(mode(&volume, file), 0o666);
    // Who wants none has none, as on ext4 and XFS; nothing has changed by that.
    let changed = volume.fs.get_attributes(file).unwrap().changed;
    for name in [ACCESS, DEFAULT] {
        assert_eq!(volume.fs.remove_xattr(file, name), Ok(()));
        assert_eq!(get(&volume, file, name), Err(Error::NoAttribute));
    }
    assert_eq!(volume.fs.get_attributes(file).unwrap().changed, changed);
    set(&volume, file, ACCESS, &acl(&[])).unwrap();
    volume.assert_clean();
}

#[test]
fn what_is_no_list_or_has_no_place_is_refused() {
    let volume = Volume::new();
    let (file, directory) = (volume.file(ROOT, "f"), volume.directory(ROOT, "d"));
    let link = make(&volume, ROOT, "l", FileType::Symlink, 0);
    let list = with_user(7, 7, 7, 7, 7);
    for (inode, name) in [(file, ACCESS), (directory, DEFAULT)] {
        assert_eq!(set(&volume, inode, name, b"opaque"), Err(Error::Invalid));
        assert_eq!(set(&volume, inode, name, &list[..12]), Err(Error::Invalid));
        let replace = volume.fs.set_xattr(inode, name, &list, XattrMode::Replace, false);
        assert_eq!(replace, Err(Error::NoAttribute));
        set(&volume, inode, name, &list).unwrap();
        let create = volume.fs.set_xattr(inode, name, &list, XattrMode::Create, false);
        assert_eq!(create, Err(Error::Exists));
    }
    assert_eq!(set(&volume, file, DEFAULT, &list), Err(Error::AccessDenied));
    assert_eq!(set(&volume, link, ACCESS, &list), Err(Error::NotSupported));
    assert_eq!(set(&volume, file, b"system.posix_acl", &list), Err(Error::NotSupported));
    volume.assert_clean();
}

#[test]
fn a_default_list_takes_the_place_of_the_umask() {
    let volume = Volume::new();
    let directory = make(&volume, ROOT, "d", FileType::Directory, 0o777);
    assert_eq!(mode(&volume, directory), 0o750);
    let default = with_user(7, 6, 5, 7, 5);
    set(&volume, directory, DEFAULT, &default).unwrap();
    assert_eq!(mode(&volume, directory), 0o750, "it is not for the directory itself");

    let file = make(&volume, directory, "f", FileType::Regular, 0o664);
    assert_eq!((mode(&volume, file), get(&volume, file, ACCESS)), (0o664, Ok(with_user(6, 6, 5, 6, 4))));
    assert_eq!(get(&volume, file, DEFAULT), Err(Error::NoAttribute));
    let below = make(&volume, directory, "below", FileType::Directory, 0o777);
    assert_eq!((mode(&volume, below), get(&volume, below, ACCESS)), (0o775, Ok(with_user(7, 6, 5, 7, 5))));
    assert_eq!(get(&volume, below, DEFAULT), Ok(default));
    let link = make(&volume, below, "l", FileType::Symlink, 0);
    assert_eq!((mode(&volume, link), volume.fs.list_xattrs(link).unwrap().len()), (0o777, 0));

    // A default list that is no more than a mode becomes one.
    set(&volume, below, DEFAULT, &plain(7, 6, 2)).unwrap();
    let fifo = make(&volume, below, "p", FileType::Fifo, 0o1753);
    assert_eq!((mode(&volume, fifo), get(&volume, fifo, ACCESS)), (0o1742, Err(Error::NoAttribute)));
    let temporary = volume.fs.make_temporary(&volume.caller, directory, 0o600).unwrap().attributes;
    let list = get(&volume, temporary.inode, ACCESS);
    assert_eq!((temporary.mode, list), (0o600, Ok(with_user(6, 6, 5, 0, 0))));

    volume.fs.remove_xattr(below, DEFAULT).unwrap();
    let again = make(&volume, below, "g", FileType::Regular, 0o666);
    assert_eq!(mode(&volume, again), 0o640);
    let volume = {
        volume.assert_clean();
        volume.remount(false)
    };
    let file = volume.walk("d/f").unwrap();
    assert_eq!((mode(&volume, file), get(&volume, file, ACCESS)), (0o664, Ok(with_user(6, 6, 5, 6, 4))));
}

#[test]
fn the_set_group_id_bit_goes_with_a_list_from_outside_the_group() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    for (kill, expected) in [(false, 0o6755), (true, 0o4755)] {
        chmod(&volume, file, 0o6700);
        let list = with_user(7, 0, 5, 5, 5);
        volume.fs.set_xattr(file, ACCESS, &list, XattrMode::Set, kill).unwrap();
        assert_eq!(mode(&volume, file), expected);
    }
    // In a directory that hands down its group, both go along with the default list.
    let directory = volume.directory(ROOT, "d");
    chmod(&volume, directory, 0o2775);
    volume.fs.set_xattr(directory, DEFAULT, &with_user(7, 7, 7, 7, 0), XattrMode::Set, true).unwrap();
    let below = make(&volume, directory, "below", FileType::Directory, 0o777);
    assert_eq!((mode(&volume, directory), mode(&volume, below)), (0o2775, 0o2770));
    volume.assert_clean();
}

#[test]
fn the_longest_list_is_inherited_without_a_read_and_moves_with_its_file() {
    let volume = Volume::new();
    let mut entries = vec![(1, NOBODY, 7), (4, NOBODY, 5), (16, NOBODY, 7), (32, NOBODY, 0)];
    entries.extend((0..507).map(|user| (2, user, 4)));
    let longest = acl(&entries);
    let directory = volume.directory(ROOT, "d");
    set(&volume, directory, DEFAULT, &longest).unwrap();
    set(&volume, directory, b"user.x", &[1; 500]).unwrap();
    entries.push((2, 507, 4));
    assert_eq!(set(&volume, directory, DEFAULT, &acl(&entries)), Err(Error::AttributeTooBig));
    let file = make(&volume, directory, "f", FileType::Regular, 0o777);
    volume.fs.link(file, ROOT, b"second").unwrap();
    volume.rename(ROOT, "d", ROOT, "e").unwrap();
    chmod(&volume, file, 0o700);
    let volume = volume.remount(false);
    let file = volume.walk("e/f").unwrap();
    assert_eq!(volume.walk("second"), Ok(file));
    entries.pop();
    entries[2].2 = 0;
    assert_eq!(get(&volume, file, ACCESS), Ok(acl(&entries)));
    assert_eq!(get(&volume, volume.walk("e").unwrap(), DEFAULT), Ok(longest));
    volume.assert_clean();
}

/// What listxattr(2) could not tell any more.
#[test]
fn a_list_makes_the_names_of_attributes_no_longer_than_they_may_be() {
    let volume = Volume::new();
    let file = make(&volume, ROOT, "f", FileType::Regular, 0o644);
    let name = |number: usize| format!("user.{number:0>250}").into_bytes();
    let full = (0..).find(|number| set(&volume, file, &name(*number), b"1") == Err(Error::NoSpace)).unwrap();
    assert_eq!(volume.fs.list_xattrs(file).unwrap().len(), 64 << 10);
    let access = acl(&[(1, NOBODY, 6), (2, 1, 4), (4, NOBODY, 4), (16, NOBODY, 4), (32, NOBODY, 4)]);
    assert_eq!(set(&volume, file, ACCESS, &access), Err(Error::NoSpace));
    // One that is there is changed all the same, and makes room when it goes.
    set(&volume, file, &name(0), b"2").unwrap();
    volume.fs.remove_xattr(file, &name(full - 1)).unwrap();
    set(&volume, file, ACCESS, &access).unwrap();
}
