//! Several threads in one small tree. Debug builds assert the lock order; afterwards the name space is sound.

pub mod step;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use pando_engine::{Background, Options};
use pando_fs::operations::{Operations, ROOT, waiting};
use pando_fs::{Error, FileSystem};

use self::step::{Actor, Made};
use crate::common::Volume;

const THREADS: u64 = 4;
const STEPS: usize = 3000;

#[test]
fn threads_in_one_tree_leave_it_sound() {
    // Small nodes, but moves of files are copies.
    let options = Options { copied_bytes: Some(16 << 10), ..Options::default() };
    let volume = Volume::new().remount_with(Options { background: Background::Manual, ..options });
    let made = Made::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, made) = (&volume, &made);
            scope.spawn(move || {
                let mut actor = Actor::new(&volume.fs, thread, made);
                (0..STEPS).for_each(|_| actor.step());
            });
        }
    });
    volume.assert_clean();
    let report = volume.fs.check().unwrap();
    assert_eq!(report.orphans, 0, "every reference was given back");
    // What the last roll back has left of it is chance.
    assert!(
        [&made.directories, &made.links].into_iter().all(|count| count.load(Ordering::Relaxed) > 0),
        "{made:?}"
    );
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
