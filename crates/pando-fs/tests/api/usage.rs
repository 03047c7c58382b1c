//! Space that the live tree and snapshots use: what is counted, and that it comes back.

use std::io::Read;
use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_device::simulated::Random;
use pando_engine::{Background, Options};
use pando_fs::operations::{FileType, Operations, ROOT, WriteMode, changing, changing_bytes, waiting};
use pando_fs::{Error, FileSystem, InodeNumber, Result, Usage};

use crate::common::Volume;

/// Bytes of a node of the volumes here, and some.
const NODE: u64 = 16 << 10;

fn consistent(fs: &FileSystem) -> Usage {
    let usage = fs.usage(true).unwrap();
    let owners = || std::iter::once(usage.live).chain(usage.snapshots.iter().map(|(_, owner)| *owner));
    let exclusive: u64 = owners().map(|owner| owner.exclusive).sum();
    let exclusive = exclusive + usage.unnamed.exclusive;
    assert_eq!(exclusive + usage.shared + usage.unowned, usage.used, "{usage:?}");
    for owner in owners() {
        assert!(owner.exclusive <= owner.referenced, "{usage:?}");
        assert!(owner.referenced <= owner.exclusive + usage.shared, "{usage:?}");
    }
    let space = fs.engine().space();
    assert!(usage.used <= space.capacity, "{usage:?}, {space:?}");
    usage
}

fn settle(volume: &Volume) {
    for _ in 0..3 {
        while volume.fs.engine().background_step().unwrap() {}
        volume.fs.engine().checkpoint().unwrap();
    }
}

fn fill(volume: &Volume, directory: InodeNumber, files: u32, byte: u8) {
    for number in 0..files {
        let file = volume.file(directory, &format!("{byte}-{number}"));
        volume.write(file, 0, &vec![byte; 20_000]);
        volume.fs.forget(file, 1);
    }
    settle(volume);
}

fn take(volume: &Volume, name: &str) {
    changing(&*volume.fs, |fs| fs.take_snapshot(name.as_bytes(), true)).unwrap();
}

#[test]
fn a_snapshot_has_what_has_been_removed_since_for_itself() {
    let volume = Volume::new();
    let [a, b] = ["a", "b"].map(|name| volume.directory(ROOT, name));
    fill(&volume, a, 50, 1);
    fill(&volume, b, 50, 2);
    let alone = consistent(&volume.fs);
    assert_eq!((alone.live.exclusive, alone.shared, alone.snapshots.len()), (alone.used, 0, 0));
    take(&volume, "one");
    settle(&volume);
    let both = consistent(&volume.fs);
    let one = both.snapshots[0].1;
    assert!(both.used < alone.used + 20 * NODE, "{both:?}");
    assert!(
        both.shared > 1_900_000 && one.exclusive < 20 * NODE && both.live.exclusive < 20 * NODE,
        "{both:?}"
    );
    // Half of it is written anew in the live tree.
    for number in 0..50 {
        let file = volume.walk(&format!("a/1-{number}")).unwrap();
        volume.write(file, 0, &[3; 20_000]);
    }
    settle(&volume);
    let apart = consistent(&volume.fs);
    let one = apart.snapshots[0].1;
    assert!(one.exclusive > 800_000 && apart.live.exclusive > 800_000 && apart.shared > 900_000, "{apart:?}");
    // What it had alone comes back.
    waiting(&*volume.fs, |fs| fs.delete_snapshot(b"one")).unwrap();
    settle(&volume);
    let after = consistent(&volume.fs);
    assert!(after.used - after.unowned + one.exclusive < apart.used + 40 * NODE, "{apart:?} {after:?}");
    assert_eq!(after.live.exclusive + after.unowned, after.used);
    assert_eq!(volume.fs.engine().check(&mut |_, _| {}).unwrap().problems, [""; 0]);
}

/// Reads a stream, and looks at something at its end.
struct AtTheEnd<'a>(&'a [u8], &'a mut dyn FnMut());

impl Read for AtTheEnd<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(bytes)?;
        if read == 0 {
            (self.1)();
        }
        Ok(read)
    }
}

/// It seemed to wait for being reclaimed.
#[test]
fn what_is_being_received_is_no_less_than_a_snapshot() {
    let sender = Volume::new();
    fill(&sender, ROOT, 50, 1);
    take(&sender, "one");
    let mut stream = Vec::new();
    sender.fs.send_snapshot(b"one", None, &mut stream).unwrap();
    let volume = Volume::new();
    assert_eq!(consistent(&volume.fs).unnamed.referenced, 0);
    let mut at_the_end = None;
    let mut look = || at_the_end = Some(consistent(&volume.fs));
    volume.fs.receive_snapshot(&mut AtTheEnd(&stream, &mut look), None).unwrap();
    let before = at_the_end.unwrap();
    assert!(before.unnamed.exclusive > 500_000 && before.unowned == 0, "{before:?}");
    let after = consistent(&volume.fs);
    assert!(after.unnamed.referenced == 0 && after.snapshots[0].1.exclusive > 500_000, "{after:?}");
}

#[test]
fn a_volume_that_is_only_read_counts_as_of_its_last_checkpoint() {
    let volume = Volume::new();
    let a = volume.directory(ROOT, "a");
    fill(&volume, a, 30, 1);
    take(&volume, "one");
    settle(&volume);
    let before = consistent(&volume.fs);
    let volume = volume.remount(true);
    let after = consistent(&volume.fs);
    assert_eq!(after.snapshots.len(), 1);
    assert!(after.used.abs_diff(before.used) < 40 * NODE);
}

/// Numbers add up after whatever was done with snapshots, and nothing is shared when all are deleted.
#[test]
fn counts_add_up_in_random_runs() {
    for seed in pando_sim::seeds(8) {
        println!("PANDO_SEED={seed}");
        let mut random = Random::new(seed);
        let volume = Volume::new();
        let fs = &*volume.fs;
        for step in 0..60 {
            let name = format!("s{}", random.below(4)).into_bytes();
            let done: Result<()> = match random.below(10) {
                0 | 1 => changing(fs, |fs| fs.take_snapshot(&name, true)),
                2 => changing(fs, |fs| fs.delete_snapshot(&name)),
                3 => changing(fs, |fs| fs.roll_back(&name)).map(drop),
                4 => {
                    let names = volume.names(ROOT);
                    let of = names.first().cloned().unwrap_or_default();
                    let found = waiting(fs, |fs| fs.lookup(ROOT, of.as_bytes()));
                    found.and_then(|found| {
                        let to = format!("clone{step}");
                        let source = found.attributes.inode;
                        changing(fs, |fs| fs.clone_tree(&volume.caller, &[], source, ROOT, to.as_bytes()))
                    })
                }
                5 => {
                    let names = volume.names(ROOT);
                    let of = names.last().cloned().unwrap_or_default();
                    changing(fs, |fs| fs.unlink(ROOT, of.as_bytes()))
                }
                _ => {
                    let root = waiting(fs, |fs| fs.lookup(pando_fs::operations::SNAPSHOTS, &name));
                    let root = root.map_or(ROOT, |entry| entry.attributes.inode);
                    let to = format!("file{step}");
                    let made = changing(fs, |fs| {
                        fs.make_node(&volume.caller, root, to.as_bytes(), FileType::Regular, 0o644, 0)
                    });
                    made.and_then(|made| {
                        let bytes = vec![step as u8; random.below(300_000) as usize];
                        changing_bytes(fs, bytes.len() as u64, |fs| {
                            fs.write(made.attributes.inode, 0, bytes.clone().into(), WriteMode::PLAIN)
                        })
                    })
                }
            };
            if let Err(error) = done {
                let expected = [Error::Exists, Error::NotFound, Error::Invalid, Error::IsADirectory];
                assert!(expected.contains(&error), "{error:?}");
            }
            for _ in 0..random.below(30) {
                fs.engine().background_step().unwrap();
            }
            if random.chance(1, 5) {
                consistent(fs);
            }
        }
        for snapshot in waiting(fs, FileSystem::snapshots).unwrap() {
            changing(fs, |fs| fs.delete_snapshot(&snapshot.name)).unwrap();
        }
        let volume = volume.remount(false);
        settle(&volume);
        let left = consistent(&volume.fs);
        assert_eq!((left.shared, left.snapshots.len()), (0, 0), "{left:?}");
        volume.assert_clean();
    }
}

#[test]
fn a_volume_full_of_snapshots_is_writable_again_when_they_are_deleted() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    FileSystem::format(device.clone(), &crate::common::small_nodes()).unwrap();
    let options = Options { background: Background::Manual, ..Options::default() };
    let fs = FileSystem::open(device, options).unwrap();
    let caller = pando_fs::operations::Caller { uid: 0, gid: 0, umask: 0 };
    let made = changing(&*fs, |fs| fs.make_node(&caller, ROOT, b"f", FileType::Regular, 0o644, 0)).unwrap();
    let file = made.attributes.inode;
    let write = |round: u8| -> Result<()> {
        for piece in 0..8u64 {
            let bytes = vec![round; 1 << 20];
            changing_bytes(&*fs, 1 << 20, |fs| {
                fs.write(file, piece << 20, bytes.clone().into(), WriteMode::PLAIN)
            })?;
        }
        Ok(())
    };
    let settled = || {
        for _ in 0..3 {
            while fs.engine().background_step().unwrap() {}
            fs.engine().checkpoint().unwrap();
        }
        fs.statistics().unwrap().available
    };
    write(99).unwrap();
    let before = settled();
    let mut rounds = 0u8;
    let full = loop {
        let done = changing(&*fs, |fs| fs.take_snapshot(&[b's', b'0' + rounds], rounds.is_multiple_of(2)));
        if let Err(error) = done.and_then(|()| write(rounds)) {
            break error;
        }
        rounds += 1;
        assert!(rounds < 60, "it never was full");
    };
    assert_eq!(full, Error::NoSpace);
    assert!(rounds >= 1, "{rounds}");
    for snapshot in waiting(&*fs, FileSystem::snapshots).unwrap() {
        changing(&*fs, |fs| fs.delete_snapshot(&snapshot.name)).unwrap();
    }
    // At once, without anybody's waiting for anything.
    write(100).unwrap();
    let available = settled();
    // What was written over and over does not fill its nodes as well as at first.
    let usage = consistent(&fs);
    assert!(usage.unowned < 1 << 20 && usage.shared == 0, "{usage:?}");
    assert!(available > before / 4 * 3, "{available} bytes are available, {before} were before; {usage:?}");
    assert_eq!(fs.check().unwrap().problems, []);
}
