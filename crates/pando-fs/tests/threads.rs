//! Several threads in one small tree. Debug builds assert the lock order; afterwards the name space is sound.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::Volume;
use pando_device::simulated::Random;
use pando_fs::operations::{FileType, Operations, ROOT, RenameMode, SNAPSHOTS};
use pando_fs::{Error, InodeNumber, Result};

const THREADS: u64 = 4;
const STEPS: usize = 3000;

/// Calls of the kinds that make the test worth while and that were answered well, by all threads.
static DIRECTORIES_MADE: AtomicU64 = AtomicU64::new(0);
static LINKS_MADE: AtomicU64 = AtomicU64::new(0);

/// Takes a snapshot, deletes one, goes back to one, or looks into one.
fn snapshot(volume: &Volume, random: &mut Random, name: &[u8]) -> Result<()> {
    let fs = &volume.fs;
    match random.below(7) {
        6 => {
            let held = fs.hold_snapshot(name)?;
            let attributes = fs.get_attributes(held.root()).expect("it is not deleted while it is held");
            assert_eq!(attributes.file_type, FileType::Directory);
            Ok(())
        }
        0 => fs.take_snapshot(name, random.chance(2, 3)),
        1 => fs.delete_snapshot(name),
        2 => fs.roll_back(name).map(drop),
        _ => {
            let root = fs.lookup(SNAPSHOTS, name)?.attributes.inode;
            let mut found = Vec::new();
            let handle = fs.open_directory(root)?;
            let mut list = |entry: &pando_fs::operations::DirectoryEntry| {
                found.extend(entry.attributes.map(|attributes| attributes.inode));
                true
            };
            let listed = fs.read_directory(root, handle, 0, true, &mut list);
            fs.close_directory(root, handle);
            for inode in found {
                match fs.read(inode, 0, 100) {
                    Ok(_) | Err(Error::IsADirectory | Error::Stale) => {}
                    Err(error) => panic!("{error:?}"),
                }
                fs.forget(inode, 1);
            }
            fs.forget(root, 1);
            listed
        }
    }
}

/// Walks to a directory by random steps, does one thing there, and gives all references back.
fn step(volume: &Volume, random: &mut Random) {
    let names = [&b"a"[..], b"b", b"c"];
    let name = |random: &mut Random| names[random.below(3) as usize];
    let mut held: Vec<InodeNumber> = Vec::new();
    let walk = |random: &mut Random, held: &mut Vec<InodeNumber>| {
        let mut at = ROOT;
        if random.chance(1, 4)
            && let Ok(entry) = volume.fs.lookup(SNAPSHOTS, name(random))
        {
            at = entry.attributes.inode;
            held.push(at);
        }
        for _ in 0..random.below(3) {
            match volume.fs.lookup(at, name(random)) {
                Ok(entry) => {
                    held.push(entry.attributes.inode);
                    if entry.attributes.file_type != FileType::Directory {
                        break;
                    }
                    at = entry.attributes.inode;
                }
                Err(error) => {
                    assert!(matches!(error, Error::NotFound | Error::Stale), "{error:?}");
                    break;
                }
            }
        }
        at
    };
    let (at, to) = (walk(random, &mut held), walk(random, &mut held));
    let (caller, fs) = (&volume.caller, &volume.fs);
    let (old, new) = (name(random), name(random));
    let kind = random.below(15);
    let made = match kind {
        0 => fs.make_node(caller, at, old, FileType::Regular, 0o644, 0).map(Some),
        1 | 2 => fs.make_directory(caller, at, old, 0o755).map(Some),
        3 => fs.unlink(caller, at, old).map(|()| None),
        4 => fs.remove_directory(caller, at, old).map(|()| None),
        5 => fs.rename(caller, at, old, to, new, RenameMode::Replace).map(|()| None),
        6 => fs.rename(caller, at, old, to, new, RenameMode::Exchange).map(|()| None),
        8 | 9 => match held.last() {
            Some(inode) => fs.link(*inode, to, new).map(Some),
            None => Ok(None),
        },
        11 => fs.open_directory(at).and_then(|handle| {
            let mut list = |entry: &pando_fs::operations::DirectoryEntry| {
                held.extend(entry.attributes.map(|attributes| attributes.inode));
                true
            };
            let listed = fs.read_directory(at, handle, 0, true, &mut list);
            fs.close_directory(at, handle);
            listed.map(|()| None)
        }),
        // Of directories only those without others: clones of clones would fill the volume.
        12 | 13 => match held.last().map(|inode| fs.get_attributes(*inode)) {
            Some(Ok(found)) if found.file_type != FileType::Directory || found.links == 2 => {
                fs.clone_tree(caller, &[], found.inode, to, new).map(|()| None)
            }
            _ => Ok(None),
        },
        14 => snapshot(volume, random, old).map(|()| None),
        // A file and a link to it, made with nothing else between them by this thread.
        10 => fs.make_node(caller, at, old, FileType::Regular, 0o644, 0).and_then(|entry| {
            let linked = fs.link(entry.attributes.inode, to, new);
            fs.forget(entry.attributes.inode, 1);
            linked.map(Some)
        }),
        _ => match held.last() {
            Some(inode) => {
                fs.write(*inode, random.below(9000), vec![1; 5000].into(), false, false).map(|()| None)
            }
            None => Ok(None),
        },
    };
    match (kind, &made) {
        (1 | 2, Ok(_)) => DIRECTORIES_MADE.fetch_add(1, Ordering::Relaxed),
        (10, Ok(_)) => LINKS_MADE.fetch_add(1, Ordering::Relaxed),
        _ => 0,
    };
    match made {
        Ok(entry) => held.extend(entry.map(|entry| entry.attributes.inode)),
        Err(error) => assert!(
            matches!(
                error,
                // Nothing has changed, and the next step waits for room.
                Error::Busy
                    | Error::NotFound
                    | Error::Exists
                    | Error::NotEmpty
                    | Error::IsADirectory
                    | Error::NotADirectory
                    | Error::Invalid
                    | Error::NotPermitted
                    | Error::ReadOnly
                    | Error::OtherTree
                    | Error::InUse
                    // It was deleted, or the live tree went back, meanwhile.
                    | Error::Stale
            ),
            "{error:?}"
        ),
    }
    for inode in held {
        fs.forget(inode, 1);
    }
}

#[test]
fn threads_in_one_tree_leave_it_sound() {
    let volume = Volume::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..STEPS {
                    volume.fs.make_room(0, true).unwrap();
                    step(volume, &mut random);
                }
            });
        }
    });
    volume.assert_clean();
    let report = volume.fs.check().unwrap();
    assert_eq!(report.orphans, 0, "every reference was given back");
    // What the last roll back has left of it is chance.
    let made = [&DIRECTORIES_MADE, &LINKS_MADE].map(|count| count.load(Ordering::Relaxed));
    assert!(made.iter().all(|count| *count > 0), "{made:?}");
}
