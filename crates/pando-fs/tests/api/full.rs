//! What a full volume still does.

use pando_engine::{Background, FormatOptions, Options};
use pando_fs::operations::{AllocateMode, Operations, ROOT, WriteMode, XattrMode, changing};
use pando_fs::{Error, InodeNumber, Result};

use crate::common::Volume;

/// Writes so many bytes to the end of the file.
fn append(volume: &Volume, file: InodeNumber, length: usize) -> Result<()> {
    volume.append(file, &vec![7; length].into())
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

/// Makes the file as long as that, without writing.
fn allocate(volume: &Volume, file: InodeNumber, size: u64) -> Result<()> {
    let mode = AllocateMode::Allocate { keep_size: false };
    changing(&*volume.fs, |fs| fs.allocate(file, mode, 0, size, false))
}

/// What is not there yet takes space, wherever the size says that the file ends.
#[test]
fn an_allocation_in_a_hole_is_refused_where_it_will_not_fit() {
    let volume = Volume::formatted(&FormatOptions::default());
    let [sparse, written, kept] = ["sparse", "written", "kept"].map(|name| volume.file(ROOT, name));
    volume.resize(sparse, 10 << 30);
    volume.write(sparse, 1 << 30, &[1; 8192]);
    let quarter = volume.fs.statistics().unwrap().available / 4;
    while volume.fs.get_attributes(written).unwrap().size < quarter * 3 {
        append(&volume, written, 1 << 20).unwrap();
    }
    let inside = |file, offset, length| {
        changing(&*volume.fs, |fs| {
            fs.allocate(file, AllocateMode::Allocate { keep_size: true }, offset, length, false)
        })
    };
    assert_eq!(inside(sparse, 0, 10 << 30), Err(Error::NoSpace));
    assert_eq!(inside(sparse, 5 << 30, 1 << 30), Err(Error::NoSpace));
    assert_eq!(inside(sparse, 1 << 20, 1 << 20), Ok(()));
    // What is there needs none.
    assert_eq!(inside(written, 0, quarter * 3), Ok(()));
    volume.resize(written, 10 << 30);
    assert_eq!(inside(written, 0, quarter * 3), Ok(()));
    assert_eq!(inside(written, 0, quarter * 5), Err(Error::NoSpace));
    // What has been taken out of it does.
    volume.resize(written, quarter * 3);
    for length in [4096, quarter * 3] {
        changing(&*volume.fs, |fs| fs.allocate(written, AllocateMode::PunchHole, 0, length, false)).unwrap();
    }
    while append(&volume, kept, 1 << 20).is_ok() {}
    assert_eq!(inside(written, 0, quarter * 3), Err(Error::NoSpace));
}

/// A record of the log takes a quarter of it, 64 KiB here, and on a volume of 16 MiB half of what the kernel hands over at once.
#[test]
fn what_no_record_holds_is_written_and_copied_in_pieces() {
    let volume = Volume::formatted(&FormatOptions { log_bytes: Some(256 << 10), ..FormatOptions::default() });
    let (file, copy) = (volume.file(ROOT, "f"), volume.file(ROOT, "copy"));
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    changing(&*volume.fs, |fs| fs.write(file, 100, bytes.clone().into(), WriteMode::PLAIN)).unwrap();
    let mut copied = 0;
    while copied < 1 << 20 {
        copied += volume.copy_range((file, 100 + copied), (copy, copied), (1 << 20) - copied).unwrap();
    }
    let volume = volume.killed(Options { background: Background::Manual, ..Options::default() });
    for (name, offset) in [("f", 100), ("copy", 0)] {
        let file = volume.walk(name).unwrap();
        assert_eq!(volume.fs.get_attributes(file).unwrap().size, offset + (1 << 20), "{name}");
        assert!(volume.read(file, offset, 1 << 20) == bytes, "{name}");
    }
    volume.assert_clean();
}

/// What was deleted is free behind the next checkpoint. An allocation that needed it was refused at once.
#[test]
fn an_allocation_waits_for_what_is_about_to_be_free() {
    let volume = Volume::formatted(&FormatOptions::default());
    let (kept, removed) = (volume.file(ROOT, "kept"), volume.file(ROOT, "removed"));
    let quarter = volume.fs.statistics().unwrap().available / 4;
    while volume.fs.get_attributes(removed).unwrap().size < quarter * 3 {
        append(&volume, removed, 1 << 20).unwrap();
    }
    assert_eq!(allocate(&volume, kept, quarter * 2), Err(Error::NoSpace));
    changing(&*volume.fs, |fs| fs.unlink(ROOT, b"removed")).unwrap();
    // The kernel forgets it behind the answer to the unlink, when somebody waits for that already.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let fs = &volume.fs;
        scope.spawn(move || {
            told.recv().unwrap();
            fs.forget(removed, 1);
        });
        let allocated = changing(&*volume.fs, |fs| {
            let mode = AllocateMode::Allocate { keep_size: false };
            let allocated = fs.allocate(kept, mode, 0, quarter * 2, false);
            let _ = tell.send(());
            allocated
        });
        assert_eq!(allocated, Ok(()));
    });
    assert_eq!(volume.fs.get_attributes(kept).unwrap().size, quarter * 2);
}

#[test]
fn an_allocation_waits_for_the_little_that_is_dead_on_a_volume_with_room() {
    let volume = Volume::formatted(&FormatOptions::default());
    let kept = volume.file(ROOT, "kept");
    let make = |n| {
        let file = volume.file(ROOT, &format!("f{n}"));
        append(&volume, file, 64 << 10).unwrap();
        file
    };
    let files: Vec<InodeNumber> = (0..200).map(make).collect();
    volume.fs.engine().checkpoint().unwrap();
    let available = volume.fs.statistics().unwrap().available;
    assert_eq!(allocate(&volume, kept, available + (4 << 20)), Err(Error::NoSpace));
    // No node is empty then.
    for (n, file) in files.iter().enumerate().step_by(2) {
        let name = format!("f{n}");
        changing(&*volume.fs, |fs| fs.unlink(ROOT, name.as_bytes())).unwrap();
        volume.fs.forget(*file, 1);
    }
    allocate(&volume, kept, available + (4 << 20)).unwrap();
    // What cannot fit in any case is refused without a checkpoint.
    let before = volume.fs.engine().stats().checkpoints;
    assert_eq!(allocate(&volume, kept, 1 << 40), Err(Error::NoSpace));
    assert_eq!(volume.fs.engine().stats().checkpoints, before);
}
