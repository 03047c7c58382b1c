//! What a full volume still does.

mod common;

use bytes::Bytes;
use common::Volume;
use pando_fs::operations::{AllocateMode, Operations, ROOT, XattrMode, changing, changing_bytes};
use pando_fs::{Error, InodeNumber, Result};

/// Writes so many bytes to the end of the file.
fn append(volume: &Volume, file: InodeNumber, length: usize) -> Result<()> {
    let contents = Bytes::from(vec![7; length]);
    changing_bytes(&*volume.fs, length as u64, |fs| fs.write(file, 0, contents.clone(), true, false))
}

/// Appends to the file until not even a byte goes in.
fn fill(volume: &Volume, file: InodeNumber) {
    for length in [1 << 20, 4096, 1] {
        let full = loop {
            if let Err(error) = append(volume, file, length) {
                break error;
            }
        };
        assert_eq!(full, Error::NoSpace, "{length} bytes");
    }
}

#[test]
fn holes_are_punched_and_attributes_removed_on_a_full_volume() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.fs.set_xattr(file, b"user.large", &[5; 60_000], XattrMode::Set, false).unwrap();
    fill(&volume, file);
    changing(&*volume.fs, |fs| fs.remove_xattr(file, b"user.large")).unwrap();
    let size = volume.fs.get_attributes(file).unwrap().size;
    let hole = |start, length| {
        changing(&*volume.fs, |fs| fs.allocate(file, AllocateMode::PunchHole, start, length, false))
    };
    // Its end is filled up with zeros, which could take space.
    assert_eq!(hole(4096, 1), Err(Error::NoSpace));
    hole(10, (16 << 20) - 10).unwrap();
    hole(size - 10_000, 1 << 20).unwrap();
    assert_eq!(volume.read(file, size - 10_001, 2), [7, 0]);
    // There is space at once.
    (0..8).for_each(|_| append(&volume, file, 1 << 20).unwrap());
    volume.assert_clean();
}
