//! Several threads in one small tree. Debug builds assert the lock order; afterwards the name space is sound.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use pando_device::simulated::Random;
use pando_engine::{Background, Options};
use pando_fs::operations::{
    FileType, ListAttributes, Operations, ROOT, RenameMode, SNAPSHOTS, WriteMode, waiting,
};
use pando_fs::{Error, FileSystem, InodeNumber, Result};

use crate::common::Volume;

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
            let mut list = |entry: &pando_fs::operations::DirectoryEntry| {
                found.extend(entry.attributes.map(|attributes| attributes.inode));
                true
            };
            let listed = fs.read_directory(root, 0, ListAttributes::OfAll, &mut list);
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
        3 => fs.unlink(at, old).map(|()| None),
        4 => fs.remove_directory(at, old).map(|()| None),
        5 => fs.rename(at, old, to, new, RenameMode::Replace).map(|_| None),
        6 => fs.rename(at, old, to, new, RenameMode::Exchange).map(|_| None),
        8 | 9 => match held.last() {
            Some(inode) => fs.link(*inode, to, new).map(Some),
            None => Ok(None),
        },
        11 => {
            let mut list = |entry: &pando_fs::operations::DirectoryEntry| {
                held.extend(entry.attributes.map(|attributes| attributes.inode));
                true
            };
            let listed = fs.read_directory(at, 0, ListAttributes::OfAll, &mut list);
            listed.map(|()| None)
        }
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
            if linked.is_ok() && random.chance(1, 2) {
                // The other name is the only one then, unless somebody else has taken this one.
                let _ = fs.unlink(at, old);
            }
            linked.map(Some)
        }),
        _ => match held.last() {
            Some(inode) => {
                fs.write(*inode, random.below(9000), vec![1; 5000].into(), WriteMode::PLAIN).map(|()| None)
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
    // Small nodes, but moves of files are copies.
    let options = Options { copied_bytes: Some(16 << 10), ..Options::default() };
    let volume = Volume::new().remount_with(Options { background: Background::Manual, ..options });
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

/// A link that waited for a roll back made a name, in the tree that had come, for a file of the one that had gone: what may be linked to what
/// is looked at with the name space locked.
#[test]
fn a_link_that_waits_for_a_roll_back_joins_no_two_trees() {
    let volume = Volume::new();
    let (fs, caller) = (volume.fs.clone(), volume.caller);
    fs.take_snapshot(b"one", false).unwrap();
    let file = fs.make_temporary(&caller, ROOT, 0o600).unwrap().attributes.inode;
    let (armed, linking) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
    let (is_armed, started, linker) = (armed.clone(), linking.clone(), fs.clone());
    // Behind the record of the roll back, whose locks are held.
    fs.observe_records(move || {
        if !is_armed.swap(false, Ordering::Relaxed) {
            return;
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let fs = linker.clone();
        *started.lock().unwrap() = Some(std::thread::spawn(move || {
            sender.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            fs.link(file, ROOT, b"name").map(drop)
        }));
        let thread = receiver.recv().unwrap();
        // Until it sleeps, which is for the lock. If that takes too long the roll back goes on all the same: the link comes behind it
        // in any case.
        let begin = std::time::Instant::now();
        let sleeps = || {
            let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(&thread).join("stat"));
            stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
        };
        while !sleeps() && begin.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
    });
    armed.store(true, Ordering::Relaxed);
    drop(fs.roll_back(b"one").unwrap());
    assert!(!armed.load(Ordering::Relaxed));
    let linking = linking.lock().unwrap().take().unwrap();
    assert_eq!(linking.join().unwrap(), Err(Error::OtherTree));
    assert_eq!(fs.lookup(ROOT, b"name").map(drop), Err(Error::NotFound));
    volume.assert_clean();
}

/// Notes how many batches had been applied when the first bytes came.
struct Noting<'a> {
    fs: &'a FileSystem,
    begun: Option<u64>,
}

impl std::io::Write for Noting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.begun.get_or_insert_with(|| self.fs.engine().stats().batches);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Who has asked, and waits for the name space while changes begin to be refused, is refused as well.
#[test]
fn nothing_changes_while_a_writable_snapshot_is_sent_behind_a_refusal() {
    for _ in 0..40 {
        let volume = Volume::new();
        let d = volume.directory(ROOT, "d");
        volume.file(d, "f");
        waiting(&*volume.fs, |fs| fs.take_snapshot(b"one", true)).unwrap();
        let one = volume.walk(".snapshots/one").unwrap();
        let d = volume.walk(".snapshots/one/d").unwrap();
        let start = Barrier::new(THREADS as usize + 1);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, caller, start) = (&volume.fs, &volume.caller, &start);
                scope.spawn(move || {
                    start.wait();
                    let mut names = (0..).map(|number| format!("clone {number} of {thread}"));
                    let clone = |name: String| {
                        waiting(&**fs, |fs| fs.clone_tree(caller, &[], d, one, name.as_bytes()))
                    };
                    assert_eq!(names.find_map(|name| clone(name).err()), Some(Error::ReadOnly));
                });
            }
            start.wait();
            std::thread::sleep(std::time::Duration::from_micros(300));
            volume.fs.refuse_changes(true);
            let mut noting = Noting { fs: &volume.fs, begun: None };
            volume.fs.send_snapshot(b"one", None, &mut noting).expect("nobody lets changes through");
            let begun = noting.begun;
            assert_eq!(begun, Some(volume.fs.engine().stats().batches), "batches when it began, and now");
        });
    }
}
