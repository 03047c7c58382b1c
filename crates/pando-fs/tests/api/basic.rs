//! One call after the other, each with what it must do to the tree.

use pando_engine::{Background, FormatOptions, Options};
use pando_fs::operations::{
    AllocateMode, FileType, Operations, ROOT, RenameMode, Seek, SetAttributes, WriteMode, XattrMode, changing,
};
use pando_fs::{Error, InodeNumber};

use crate::common::{Volume, bytes};

#[test]
fn a_file_is_made_written_read_and_removed() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"hello");
    volume.write(file, 5, b" world");
    assert_eq!(volume.read(file, 0, 100), b"hello world");
    assert_eq!(volume.read(file, 6, 3), b"wor");
    assert_eq!(volume.names(ROOT), ["f"]);
    volume.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(volume.fs.lookup(ROOT, b"f"), Err(Error::NotFound));
    assert!(volume.names(ROOT).is_empty());
}

#[test]
fn a_read_that_finds_all_its_blocks_asks_the_tree_once() {
    let volume = Volume::formatted(&FormatOptions::default());
    for size in [1, 4096, 4097, 8192, 10_000] {
        let file = volume.file(ROOT, &format!("of {size} bytes"));
        volume.write(file, 0, &vec![7; size]);
        let before = volume.fs.engine().stats().scans;
        assert_eq!(volume.read(file, 0, 100_000), vec![7; size]);
        assert_eq!(volume.fs.engine().stats().scans, before + 1, "of {size} bytes");
    }
}

/// The short block at their end had such files go through the log whole.
#[test]
fn a_file_that_is_written_at_once_is_left_out_of_the_log_whatever_its_length() {
    let volume = Volume::formatted(&FormatOptions::default());
    let file = volume.file(ROOT, "f");
    let contents: Vec<u8> = (0..100_000).map(|byte| (byte % 251) as u8).collect();
    volume.write(file, 0, &contents);
    let crashed = volume.copied();
    assert_eq!(volume.fs.engine().stats().runs_bound, 1);
    assert_eq!(crashed.read(crashed.walk("f").unwrap(), 0, 200_000), contents);
}

#[test]
fn an_unlinked_file_is_used_on_and_its_name_too() {
    let volume = Volume::new();
    let old = volume.file(ROOT, "f");
    volume.write(old, 0, &[7; 10_000]);
    volume.fs.unlink(ROOT, b"f").unwrap();
    volume.write(old, 10_000, b"tail");
    let new = volume.file(ROOT, "f");
    volume.write(new, 0, b"new");
    assert_eq!(volume.read(old, 9_998, 100), b"\x07\x07tail");
    assert_eq!(volume.read(new, 0, 100), b"new");
    assert_eq!(volume.fs.get_attributes(old).unwrap().links, 0);
    volume.fs.forget(old, 1);
    assert_eq!(volume.fs.get_attributes(old), Err(Error::Stale));
    assert_eq!(volume.read(new, 0, 100), b"new");
    volume.assert_clean();
}

#[test]
fn a_truncated_file_grows_with_zeros() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[1; 9000]);
    volume.resize(file, 5000);
    volume.resize(file, 9000);
    let read = volume.read(file, 0, 10_000);
    assert_eq!(read.len(), 9000);
    assert!(read[..5000].iter().all(|byte| *byte == 1) && read[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_directory_moves_with_all_that_is_below() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let b = volume.directory(a, "b");
    let file = volume.file(b, "f");
    volume.write(file, 0, b"data");
    let c = volume.directory(ROOT, "c");
    volume.rename(ROOT, "a", c, "d").unwrap();
    assert_eq!(volume.read(file, 0, 10), b"data");
    assert_eq!(volume.walk("c/d/b/f"), Ok(file));
    assert_eq!(volume.walk("a"), Err(Error::NotFound));
    assert_eq!(volume.rename(ROOT, "c", b, "x"), Err(Error::Invalid));
    assert_eq!(volume.fs.remove_directory(c, b"d"), Err(Error::NotEmpty));
    assert_eq!(volume.fs.get_attributes(c).unwrap().links, 3);
    assert_eq!(volume.fs.get_attributes(ROOT).unwrap().links, 3);
    volume.assert_clean();
}

#[test]
fn a_directory_that_moves_leaves_orphans_below_it_readable() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let file = volume.file(a, "f");
    volume.write(file, 0, b"data");
    volume.fs.unlink(a, b"f").unwrap();
    volume.rename(ROOT, "a", ROOT, "b").unwrap();
    let other = volume.directory(ROOT, "a");
    let successor = volume.file(other, "f");
    volume.write(successor, 0, b"successor");
    assert_eq!(volume.read(file, 0, 10), b"data");
    volume.assert_clean();
    volume.fs.forget(file, 1);
    assert_eq!(volume.read(successor, 0, 10), b"successor");
    volume.assert_clean();
}

#[test]
fn a_rename_tells_which_directories_have_come_to_another() {
    let volume = Volume::new();
    let [a, b] = ["a", "b"].map(|name| volume.directory(ROOT, name));
    let (c, d) = (volume.directory(a, "c"), volume.directory(b, "d"));
    volume.file(a, "f");
    let rename = |from, name: &str, to, new: &str, mode| {
        volume.fs.rename(from, name.as_bytes(), to, new.as_bytes(), mode).unwrap()
    };
    [c, d].into_iter().for_each(|directory| drop(volume.names(directory)));
    assert_eq!(rename(a, "f", b, "f", RenameMode::Replace), []);
    assert_eq!(rename(a, "c", a, "e", RenameMode::Replace), []);
    assert_eq!(rename(a, "e", b, "d", RenameMode::Exchange), [c, d]);
    assert_eq!(rename(a, "e", b, "f", RenameMode::Exchange), [d]);
    volume.directory(a, "new");
    assert_eq!(rename(a, "new", b, "new", RenameMode::Replace), [], "nobody has listed it");
}

#[test]
fn names_are_exchanged() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let inner = volume.file(a, "inner");
    volume.write(inner, 0, b"inner");
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"file");
    let exchange = |from: &str, to: &str| {
        volume.fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Exchange)
    };
    exchange("a", "f").unwrap();
    assert_eq!(volume.walk("f/inner"), Ok(inner));
    assert_eq!(volume.walk("a"), Ok(file));
    assert_eq!((volume.read(inner, 0, 9), volume.read(file, 0, 9)), (b"inner".to_vec(), b"file".to_vec()));
    assert_eq!(exchange("a", "none"), Err(Error::NotFound));
    volume.assert_clean();
}

/// What is read in order goes again before so much has been read, so a search that began anew at each miss would never end.
#[test]
fn data_are_found_behind_a_long_hole() {
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        ..FormatOptions::default()
    };
    let volume = Volume::formatted(&format);
    let file = volume.file(ROOT, "f");
    let (end, step) = (16 << 20, 20 << 10);
    for offset in (0..end).step_by(1 << 20) {
        volume.fs.engine().make_room(1 << 20).unwrap();
        volume.write(file, offset, &[9; 1 << 20]);
    }
    while volume.fs.engine().background_step().unwrap() {}
    // In pieces of which none hides a leaf.
    let hole = end / step * step;
    let first = step;
    for offset in (first..hole).step_by(step as usize) {
        volume.fs.allocate(file, AllocateMode::PunchHole, offset, step, false).unwrap();
    }
    let small = Options { background: Background::Manual, cache_bytes: 8 << 20, ..Options::default() };
    // A checkpoint would bring so many deletes down.
    let volume = volume.killed(small);
    let file = volume.walk("f").unwrap();
    let seek = |from, what| {
        let mut reads = 0;
        let found = loop {
            match volume.fs.seek(file, from, what) {
                Err(Error::Miss(miss)) => volume.fs.fetch(miss).unwrap(),
                found => break found,
            }
            reads += 1;
            assert!(reads < 10_000, "it reads for ever");
        };
        (found, reads)
    };
    let (found, reads) = seek(first, Seek::Data);
    assert_eq!(found, Ok(hole));
    assert!(reads > 300, "{reads} reads: this proves nothing");
    // Whether more lies behind the hole needs not be known.
    let (found, reads) = seek(0, Seek::Hole);
    assert_eq!(found, Ok(first));
    assert!(reads < 10, "{reads} reads");
    volume.assert_clean();
}

#[test]
fn holes_are_punched_and_found() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, &[9; 20_000]);
    volume.fs.allocate(file, AllocateMode::PunchHole, 5000, 10_000, false).unwrap();
    let read = volume.read(file, 0, 20_000);
    assert!(read.iter().enumerate().all(|(at, byte)| (*byte == 0) == (5000..15_000).contains(&at)));
    assert_eq!(volume.fs.seek(file, 0, Seek::Hole), Ok(8192));
    assert_eq!(volume.fs.seek(file, 9000, Seek::Data), Ok(12_288));
    assert_eq!(volume.fs.seek(file, 13_000, Seek::Hole), Ok(20_000));
    assert_eq!(volume.fs.seek(file, 20_000, Seek::Data), Err(Error::NoData));
    volume.write(file, 1 << 62, b"far");
    assert_eq!(volume.fs.seek(file, 20_480, Seek::Data), Ok(1 << 62));
    assert_eq!(volume.read(file, (1 << 62) - 2, 10), b"\0\0far");
    assert!(volume.fs.get_attributes(file).unwrap().blocks < 100);
    volume.assert_clean();
}

/// Each hole made more of them, up to all that the file can have, and none made less.
#[test]
fn blocks_in_use_go_down_with_the_holes_of_a_sparse_file() {
    const BLOCK: u64 = 4096;
    const SIZE: u64 = 101 * BLOCK - 10;
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    let blocks = || volume.fs.get_attributes(file).unwrap().blocks / 8;
    let punch = |start, end: u64| {
        volume.fs.allocate(file, AllocateMode::PunchHole, start, end - start, false).unwrap();
        volume.assert_clean();
    };
    let write_all = || {
        volume.resize(file, 0);
        volume.write(file, 0, &[9; SIZE as usize]);
        punch(BLOCK, 2 * BLOCK);
        assert_eq!(blocks(), 100);
    };
    // (start and end of a hole, and at most so many blocks afterwards, of which there were 100 of 101)
    let holes = [
        (0, SIZE, 0),
        (0, u64::MAX >> 1, 0),
        (BLOCK, SIZE, 1),
        (BLOCK + 1, SIZE, 2),
        (50 * BLOCK, SIZE - 1, 51),
        (0, 100 * BLOCK, 1),
        (0, 90 * BLOCK, 11),
        (0, 90 * BLOCK + 1, 11),
        (10, 90 * BLOCK + 10, 12),
        (1, BLOCK, 100),
        (100 * BLOCK, SIZE, 100),
        (100 * BLOCK + 1, SIZE, 100),
        // Zeros in the one hole that there is.
        (BLOCK, BLOCK + 1, 101),
        (BLOCK + 10, BLOCK + 20, 101),
        (0, BLOCK + 1, 100),
    ];
    for (start, end, most) in holes {
        write_all();
        punch(start, end);
        assert_eq!(blocks(), most, "{start} to {end}");
        let zeros = AllocateMode::ZeroRange { keep_size: true };
        write_all();
        volume.fs.allocate(file, zeros, start, end - start, false).unwrap();
        assert_eq!(blocks(), most, "{start} to {end}");
        volume.assert_clean();
    }
    write_all();
    (0..100).for_each(|block| punch(block * BLOCK, (block + 1) * BLOCK));
    assert!(blocks() <= 100, "whole blocks bring nothing to a hole");
}

#[test]
fn extended_attributes_of_all_sizes_follow_their_file() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    let set = |name: &[u8], value: &[u8], mode| volume.fs.set_xattr(file, name, value, mode, false);
    set(b"user.small", b"1", XattrMode::Create).unwrap();
    set(b"user.large", &[5; 60_000], XattrMode::Set).unwrap();
    assert_eq!(set(b"user.small", b"2", XattrMode::Create), Err(Error::Exists));
    assert_eq!(set(b"user.none", b"2", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(set(b"bad", b"2", XattrMode::Set), Err(Error::NotSupported));
    assert_eq!(set(b"user.huge", &[5; 65_537], XattrMode::Set), Err(Error::AttributeTooBig));
    volume.rename(ROOT, "f", ROOT, "g").unwrap();
    assert_eq!(bytes(&volume.fs.get_xattr(file, b"user.large").unwrap()), vec![5; 60_000]);
    assert_eq!(&volume.fs.list_xattrs(file).unwrap()[..], b"user.small\0user.large\0");
    volume.assert_clean();
    set(b"user.large", b"now small", XattrMode::Replace).unwrap();
    volume.fs.remove_xattr(file, b"user.small").unwrap();
    assert_eq!(volume.fs.get_xattr(file, b"user.small"), Err(Error::NoAttribute));
    volume.assert_clean();
}

/// As ext4 answers, whatever is done: to ask for such a name, or to take it away, said only that there is none.
#[test]
fn attributes_that_cannot_be_are_told_from_those_that_are_not_there() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    for (name, error) in [
        (&b"user.none"[..], Error::NoAttribute),
        (b"security.none", Error::NoAttribute),
        (b"system.posix_acl_access", Error::NoAttribute),
        (b"user.", Error::Invalid),
        (b"trusted.", Error::Invalid),
        (b"user", Error::NotSupported),
        (b"system.none", Error::NotSupported),
        (b"other.none", Error::NotSupported),
    ] {
        assert_eq!(volume.fs.get_xattr(file, name).map(drop), Err(error.clone()), "{}", name.escape_ascii());
        // Of a list that is not there `acl.rs` tells.
        if !name.starts_with(b"system.posix_acl_") {
            assert_eq!(volume.fs.remove_xattr(file, name), Err(error.clone()), "{}", name.escape_ascii());
        }
        if error != Error::NoAttribute {
            assert_eq!(volume.fs.set_xattr(file, name, b"", XattrMode::Set, false), Err(error));
        }
    }
    volume.assert_clean();
}

#[test]
fn copies_keep_data_and_holes() {
    let volume = Volume::new();
    let (from, to) = (volume.file(ROOT, "from"), volume.file(ROOT, "to"));
    volume.write(from, 0, &[3; 5000]);
    volume.write(from, 100_000, &[4; 5000]);
    volume.write(to, 0, &[9; 60_000]);
    assert_eq!(volume.copy_range((from, 10), (to, 7), 1 << 40), Ok(104_990));
    let expected = [&[9; 7][..], &volume.read(from, 10, 200_000)].concat();
    assert_eq!(volume.read(to, 0, 200_000), expected);
    assert_eq!(volume.copy_range((from, 0), (from, 10), 100), Err(Error::Invalid));
    volume.assert_clean();
}

#[test]
fn whole_files_and_aligned_ranges_are_shared_and_stay_apart() {
    const MIB: usize = 1 << 20;
    let volume = Volume::new();
    let (from, to, other) = (volume.file(ROOT, "from"), volume.file(ROOT, "to"), volume.file(ROOT, "other"));
    let mut expected: Vec<u8> = (0..3 * MIB + 5000).map(|at| (at / 4096) as u8).collect();
    for (piece, bytes) in expected.chunks(128 << 10).enumerate() {
        volume.fs.make_room(0, true).unwrap();
        volume.write(from, (piece * (128 << 10)) as u64, bytes);
    }
    let before = volume.fs.engine().stats().ranges_cloned;
    assert_eq!(volume.copy_range((from, 0), (to, 0), 1 << 40), Ok(expected.len() as u64));
    assert_eq!(volume.fs.engine().stats().ranges_cloned, before + 1, "shared, not copied");
    assert_eq!(volume.read(to, 0, 4 * MIB), expected);
    // A longer file keeps what lies behind.
    let mut longer = vec![7; 3 * MIB + 9000];
    for (piece, bytes) in longer.chunks(128 << 10).enumerate() {
        volume.write(other, (piece * (128 << 10)) as u64, bytes);
    }
    assert_eq!(volume.copy_range((from, MIB as u64), (other, MIB as u64), 1 << 40), Ok(2 * MIB as u64));
    longer[MIB..3 * MIB].copy_from_slice(&expected[MIB..3 * MIB]);
    assert_eq!(volume.read(other, 0, 4 * MIB), longer);
    volume.assert_clean();
    // From here on each is on its own.
    let old = expected.clone();
    volume.write(to, 70_000, b"clone");
    volume.write(from, 2_000_000, b"source");
    volume
        .fs
        .allocate(other, pando_fs::operations::AllocateMode::PunchHole, MIB as u64, 8192, false)
        .unwrap();
    longer[MIB..MIB + 8192].fill(0);
    expected[2_000_000..2_000_006].copy_from_slice(b"source");
    let mut clone = old;
    clone[70_000..70_005].copy_from_slice(b"clone");
    assert_eq!(volume.read(from, 0, 4 * MIB), expected);
    assert_eq!(volume.read(to, 0, 4 * MIB), clone);
    assert_eq!(volume.read(other, 0, 4 * MIB), longer);
    volume.fs.unlink(ROOT, b"from").unwrap();
    volume.fs.forget(from, 1);
    volume.assert_clean();
    assert_eq!(volume.read(to, 0, 4 * MIB), clone);
    assert_eq!(volume.read(other, 0, 4 * MIB), longer);
}

#[test]
fn a_range_that_begins_anywhere_is_shared_from_the_next_border_on() {
    const MIB: u64 = 1 << 20;
    let volume = Volume::new();
    let (from, to) = (volume.file(ROOT, "from"), volume.file(ROOT, "to"));
    let bytes: Vec<u8> = (0..4 * MIB + 5000).map(|at| (at / 4096) as u8).collect();
    for (piece, bytes) in bytes.chunks(128 << 10).enumerate() {
        volume.fs.make_room(0, true).unwrap();
        volume.write(from, (piece * (128 << 10)) as u64, bytes);
    }
    let before = volume.fs.engine().stats().ranges_cloned;
    let mut at = MIB / 2 + 100;
    let mut calls = Vec::new();
    while at < bytes.len() as u64 {
        volume.fs.make_room(0, true).unwrap();
        let copied = volume.copy_range((from, at), (to, at), 1 << 40).unwrap();
        calls.push(copied);
        at += copied;
    }
    // A copy up to the border, then all whole units and the end by one clone each of their keys.
    assert_eq!(calls, [MIB / 2 - 100, 3 * MIB + 5000]);
    assert_eq!(volume.fs.engine().stats().ranges_cloned, before + 4);
    let mut expected = bytes;
    expected[..MIB as usize / 2 + 100].fill(0);
    assert_eq!(volume.read(to, 0, 5 << 20), expected);
    volume.assert_clean();
}

/// The count of a sparse source became that of a target of the same size, whatever part of it was shared.
#[test]
fn a_file_of_which_a_part_is_shared_keeps_the_blocks_of_the_rest() {
    const MIB: u64 = 1 << 20;
    let volume = Volume::new();
    let (from, to) = (volume.file(ROOT, "from"), volume.file(ROOT, "to"));
    volume.resize(from, 3 * MIB);
    for piece in 0..24 {
        volume.fs.make_room(0, true).unwrap();
        volume.write(to, piece * (128 << 10), &[7; 128 << 10]);
    }
    let blocks = || volume.fs.get_attributes(to).unwrap().blocks;
    assert_eq!(volume.copy_range((from, 0), (to, 0), MIB), Ok(MIB));
    assert!(blocks() >= 2 * MIB / 512, "{} blocks", blocks());
    assert_eq!(volume.read(to, MIB - 1, 2), [0, 7]);
    assert_eq!(volume.copy_range((from, 0), (to, 0), 3 * MIB), Ok(3 * MIB));
    assert_eq!(blocks(), 0);
    volume.assert_clean();
}

#[test]
fn a_temporary_file_has_no_name() {
    let volume = Volume::new();
    let temporary = volume.fs.make_temporary(&volume.caller, ROOT, 0o600).unwrap().attributes;
    assert_eq!((temporary.links, temporary.file_type), (0, FileType::Regular));
    volume.write(temporary.inode, 0, b"x");
    volume.assert_clean();
    volume.fs.forget(temporary.inode, 1);
    volume.assert_clean();
}

#[test]
fn long_names_and_targets_are_refused() {
    let volume = Volume::new();
    let make = |name: &[u8]| volume.fs.make_directory(&volume.caller, ROOT, name, 0o755);
    assert_eq!(make(&[b'x'; 256]), Err(Error::NameTooLong));
    assert!(make(&[0xff; 255]).is_ok());
    let symlink = volume.fs.make_symlink(&volume.caller, ROOT, b"l", &[b'y'; 4095]).unwrap();
    assert_eq!(volume.fs.read_link(symlink.attributes.inode).unwrap().len(), 4095);
    assert_eq!(volume.fs.make_symlink(&volume.caller, ROOT, b"m", &[b'y'; 4096]), Err(Error::NameTooLong));
}

#[test]
fn a_path_grows_past_path_max_by_relative_steps() {
    let volume = Volume::new();
    let name = [b'd'; 255];
    let mut at = ROOT;
    for _ in 0..40 {
        at = volume.fs.make_directory(&volume.caller, at, &name, 0o755).unwrap().attributes.inode;
    }
    let file = volume.file(at, "x");
    volume.write(file, 0, b"deep");
    assert_eq!(volume.read(file, 0, 10), b"deep");
    volume.assert_clean();
}

#[test]
fn a_write_takes_set_id_bits_off_when_told() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    let set = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    volume.fs.set_attributes(file, &set).unwrap();
    volume.fs.write(file, 0, bytes::Bytes::from_static(b"x"), WriteMode::KILLING_SET_ID).unwrap();
    assert_eq!(volume.fs.get_attributes(file).unwrap().mode, 0o755);
}

#[test]
fn what_changes_a_file_without_a_write_takes_set_id_bits_off_when_told() {
    const LENGTH: u64 = 100_000;
    let volume = Volume::new();
    let source = volume.file(ROOT, "source");
    volume.write(source, 0, &[1; LENGTH as usize]);
    let changes: [&dyn Fn(InodeNumber, bool); 5] = [
        &|file, kill| volume.fs.copy_range(source, 0, file, 0, LENGTH, kill).map(drop).unwrap(),
        &|file, kill| volume.fs.copy_range(source, 0, file, 1, 10, kill).map(drop).unwrap(),
        &|file, kill| {
            volume.fs.allocate(file, AllocateMode::Allocate { keep_size: false }, 0, LENGTH, kill).unwrap();
        },
        &|file, kill| volume.fs.allocate(file, AllocateMode::PunchHole, 0, 10, kill).unwrap(),
        &|file, kill| {
            volume.fs.allocate(file, AllocateMode::ZeroRange { keep_size: true }, 0, 10, kill).unwrap();
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let file = volume.file(ROOT, &format!("{number}"));
        volume.write(file, 0, b"a program");
        for name in [&b"security.capability"[..], b"user.kept"] {
            volume.fs.set_xattr(file, name, &[2; 1000], XattrMode::Set, false).unwrap();
        }
        let set = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
        volume.fs.set_attributes(file, &set).unwrap();
        change(file, false);
        assert_eq!(volume.fs.get_attributes(file).unwrap().mode, 0o6755, "change {number}");
        change(file, true);
        assert_eq!(volume.fs.get_attributes(file).unwrap().mode, 0o755, "change {number}");
        assert_eq!(volume.fs.list_xattrs(file).unwrap(), "user.kept\0", "change {number}");
        volume.assert_clean();
        volume.fs.forget(file, 1);
        let file = volume.walk(&format!("{number}")).unwrap();
        assert_eq!(volume.fs.get_attributes(file).unwrap().mode, 0o755, "change {number}");
    }
}

#[test]
fn forgotten_inodes_come_back_from_the_volume() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    let file = volume.file(a, "f");
    volume.write(file, 0, b"data");
    volume.fs.forget(a, 1);
    volume.fs.forget(file, 1);
    assert_eq!(volume.fs.get_attributes(a), Err(Error::Stale));
    assert_eq!(volume.walk("a/f"), Ok(file));
    assert_eq!(volume.read(file, 0, 10), b"data");
    assert_eq!(volume.fs.get_attributes(InodeNumber(77)), Err(Error::Stale));
}

#[test]
fn what_finds_no_room_behind_a_few_waits_does_not_fit() {
    let volume = Volume::new();
    let mut calls = 0;
    let answer: pando_fs::Result<()> = changing(&*volume.fs, |_| {
        calls += 1;
        Err(Error::Busy)
    });
    assert_eq!(answer, Err(Error::NoSpace));
    assert!((6..=16).contains(&calls), "{calls} calls");
}

#[test]
fn a_write_that_was_collected_keeps_the_time_of_modification_and_sets_that_of_change() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "file");
    let before = volume.fs.get_attributes(file).unwrap();
    let mode = WriteMode { keep_modified: true, ..WriteMode::PLAIN };
    volume.fs.write(file, 0, "collected".into(), mode).unwrap();
    let after = volume.fs.get_attributes(file).unwrap();
    assert_eq!((after.modified, after.size), (before.modified, 9));
    assert!(after.changed > before.changed);
    volume.write(file, 0, b"written");
    let written = volume.fs.get_attributes(file).unwrap();
    assert!(written.modified > before.modified);
    let volume = volume.without_time();
    volume.walk("file").unwrap();
    volume.fs.write(file, 0, "collected".into(), mode).unwrap();
    let after = volume.fs.get_attributes(file).unwrap();
    assert_eq!(after.modified, written.modified);
    assert!(after.changed > written.changed, "also if the clock has not gone on");
}

/// Where a directory has moved, what is below may have a path that is too long. Its name was taken away, and a file parked under what nothing could
/// delete: the volume could not be opened for writing any more.
#[test]
fn a_file_whose_path_has_become_too_long_keeps_its_name_until_it_has_moved_back() {
    let volume = Volume::of_long_paths();
    let moved = "b".repeat(255);
    let make = |above, name: String| {
        let make = |fs: &_| Operations::make_directory(fs, &volume.caller, above, name.as_bytes(), 0o755);
        changing(&*volume.fs, make).unwrap().attributes.inode
    };
    let chain = |name: &str, depth: usize| {
        let rest = std::iter::repeat_n("x".repeat(255), depth - 1);
        std::iter::once(name.to_owned()).chain(rest).fold(ROOT, make)
    };
    let rename = |from, to| {
        let rename = |fs: &_| {
            Operations::rename(fs, from, moved.as_bytes(), to, moved.as_bytes(), RenameMode::Replace)
        };
        changing(&*volume.fs, rename).unwrap();
    };
    let unlink = |directory, name: &str| changing(&*volume.fs, |fs| fs.unlink(directory, name.as_bytes()));
    let deep = chain(&"a".repeat(255), 512);
    let bottom = chain(&moved, 511);
    let name = "f".repeat(254);
    let file = volume.file(bottom, &name);
    volume.write(file, 0, &[7; 5000]);
    rename(ROOT, deep);
    assert_eq!(unlink(bottom, &name), Err(Error::NameTooLong));
    assert_eq!(volume.fs.write(file, 0, "more".into(), WriteMode::PLAIN), Err(Error::NameTooLong));
    assert_eq!(volume.read(file, 0, 5000), [7; 5000]);
    volume.assert_clean();
    rename(deep, ROOT);
    unlink(bottom, &name).unwrap();
    volume.fs.forget(file, 1);
    let after = volume.after_crash();
    after.file(ROOT, "new");
    after.assert_clean();
}
