//! Each thread in a directory of its own, which must be as it was after one of the steps of its thread: none before the last that was durable,
//! none that had not been begun.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Mutex;

use bytes::Bytes;
use pando_device::simulated::Random;
use pando_engine::Error as Refused;
use pando_fs::operations::{
    Caller, FileType, Operations, ROOT, RenameMode, SetAttributes, WriteMode, changing, changing_bytes,
    waiting,
};
use pando_fs::{Error, FileSystem, InodeNumber, Result};
use pando_sim::concurrent::device::TimedDevice;
use pando_sim::{for_each_seed, seeds};

use super::{Recording, contents, names, text};

const THREADS: u64 = 3;
const STEPS: usize = 150;
const POINTS: usize = 16;
const SYNC_EVERY: u64 = 8;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };

/// What a thread has made: the name of its one directory, and the files there.
#[derive(Clone, Hash, Default)]
struct Tree {
    place: u64,
    files: BTreeMap<u64, Vec<u8>>,
}

impl Tree {
    fn sum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// A step, when it was begun, and what there was after it.
struct Mark {
    begin: u64,
    sum: u64,
}

/// What a thread did.
#[derive(Default)]
struct Done {
    marks: Vec<Mark>,
    /// When so many steps were known to be durable.
    durable: Vec<(u64, usize)>,
}

impl Done {
    /// The states that a crash at a moment may leave.
    fn allowed(&self, moment: u64) -> RangeInclusive<usize> {
        let durable = self.durable.iter().filter(|(end, _)| *end <= moment).map(|(_, steps)| *steps).max();
        let begun = self.marks.iter().take_while(|mark| mark.begin <= moment).count();
        durable.unwrap_or(0)..=begun
    }

    /// State n is that after n steps; nothing is there before the first.
    fn find(&self, sum: Option<u64>, allowed: &RangeInclusive<usize>) -> bool {
        let is = |state: usize| state.checked_sub(1).map(|step| self.marks[step].sum) == sum;
        allowed.clone().any(is)
    }
}

fn name(thread: u64) -> String {
    format!("thread {thread}")
}

/// A thread at work.
struct Worker<'a> {
    fs: &'a FileSystem,
    random: Random,
    own: InodeNumber,
    /// The directory with the files.
    inner: InodeNumber,
    tree: Tree,
    inodes: BTreeMap<u64, InodeNumber>,
}

impl Worker<'_> {
    fn step(&mut self) -> Result<()> {
        let file = self.random.below(5);
        let there = self.inodes.get(&file).copied();
        match (self.random.below(10), there) {
            (0, Some(_)) => self.unlink(file),
            (1, Some(inode)) => {
                let size = self.random.below(30_000);
                let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
                changing(self.fs, |fs| fs.set_attributes(inode, &set))?;
                self.tree.files.entry(file).or_default().resize(size as usize, 0);
                Ok(())
            }
            (2, Some(_)) => self.rename(file),
            (3, _) => self.move_all(),
            (_, Some(inode)) => self.write(file, inode),
            (_, None) => {
                let name = file.to_string();
                let made = changing(self.fs, |fs| {
                    fs.make_node(&CALLER, self.inner, name.as_bytes(), FileType::Regular, 0o644, 0)
                })?;
                self.inodes.insert(file, made.attributes.inode);
                self.tree.files.insert(file, Vec::new());
                Ok(())
            }
        }
    }

    fn write(&mut self, file: u64, inode: InodeNumber) -> Result<()> {
        let contents = self.tree.files.entry(file).or_default();
        let offset = if self.random.chance(1, 2) { contents.len() as u64 } else { self.random.below(20_000) };
        let length = match self.random.below(8) {
            // Enough for the log to say only where it is.
            0 => 64 << 10,
            1..4 => 1 + self.random.below(9000),
            _ => 1 + self.random.below(100),
        };
        let (start, end) = (offset as usize, (offset + length) as usize);
        // A file that only grows would fill the volume.
        if end > 300_000 {
            return Ok(());
        }
        let bytes = Bytes::from(vec![self.random.bits() as u8; length as usize]);
        changing_bytes(self.fs, length, |fs| fs.write(inode, offset, bytes.clone(), WriteMode::PLAIN))?;
        let contents = self.tree.files.entry(file).or_default();
        contents.resize(contents.len().max(end), 0);
        contents[start..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn unlink(&mut self, file: u64) -> Result<()> {
        let name = file.to_string();
        changing(self.fs, |fs| fs.unlink(self.inner, name.as_bytes()))?;
        let inode = self.inodes.remove(&file);
        self.tree.files.remove(&file);
        inode.into_iter().for_each(|inode| self.fs.forget(inode, 1));
        Ok(())
    }

    /// To a name that may be there.
    fn rename(&mut self, file: u64) -> Result<()> {
        let to = self.random.below(5);
        let (old, new) = (file.to_string(), to.to_string());
        changing(self.fs, |fs| {
            fs.rename(self.inner, old.as_bytes(), self.inner, new.as_bytes(), RenameMode::Replace)
        })?;
        if to != file {
            let contents = self.tree.files.remove(&file).expect("it is there");
            self.tree.files.insert(to, contents);
            let inode = self.inodes.remove(&file).expect("it is there");
            let replaced = self.inodes.insert(to, inode);
            replaced.into_iter().for_each(|inode| self.fs.forget(inode, 1));
        }
        Ok(())
    }

    /// The directory gets another name.
    fn move_all(&mut self) -> Result<()> {
        let (old, new) = (self.tree.place.to_string(), (self.tree.place + 1).to_string());
        changing(self.fs, |fs| {
            fs.rename(self.own, old.as_bytes(), self.own, new.as_bytes(), RenameMode::Replace)
        })?;
        self.tree.place += 1;
        Ok(())
    }
}

/// Up to the first error.
fn work(fs: &FileSystem, device: &TimedDevice, thread: u64, seed: u64, done: &mut Done) -> Result<()> {
    let own = waiting(fs, |fs| fs.lookup(ROOT, name(thread).as_bytes()))?.attributes.inode;
    // The first step.
    let begin = device.tick();
    let made = changing(fs, |fs| fs.make_directory(&CALLER, own, b"0", 0o755))?;
    done.marks.push(Mark { begin, sum: Tree::default().sum() });
    let (random, tree) = (Random::new(seed * THREADS + thread), Tree::default());
    let inner = made.attributes.inode;
    let mut worker = Worker { fs, random, own, inner, tree, inodes: BTreeMap::new() };
    for _ in 0..STEPS {
        let begin = device.tick();
        worker.step()?;
        done.marks.push(Mark { begin, sum: worker.tree.sum() });
        if worker.random.chance(1, SYNC_EVERY) {
            fs.sync()?;
            done.durable.push((device.tick(), done.marks.len()));
        }
    }
    Ok(())
}

/// What a thread's directory holds; nothing, if that is so.
fn found(fs: &FileSystem, thread: u64) -> Result<Option<u64>> {
    let own = waiting(fs, |fs| fs.lookup(ROOT, name(thread).as_bytes()))?.attributes.inode;
    let Some(place) = names(fs, own)?.pop() else { return Ok(None) };
    let inner = waiting(fs, |fs| fs.lookup(own, place.as_bytes()))?.attributes.inode;
    let mut tree = Tree { place: place.parse().expect("a number"), files: BTreeMap::new() };
    for name in names(fs, inner)? {
        let file = waiting(fs, |fs| fs.lookup(inner, name.as_bytes()))?.attributes;
        tree.files.insert(name.parse().expect("a number"), contents(fs, file.inode, file.size)?);
    }
    Ok(Some(tree.sum()))
}

#[derive(Debug, Default)]
struct Report {
    states: u64,
    overlapping: u64,
    between: u64,
    /// States of devices that had failed.
    failed: u64,
}

/// With `fails_within` above 0 one of the device's first so many I/Os fails, and for every other seed all writes and flushes behind it.
fn run(seed: u64, fails_within: u64, report: &Mutex<Report>) -> std::result::Result<(), String> {
    let (recording, fs) = Recording::begin(seed, None, |fs| {
        (0..THREADS).try_for_each(|thread| {
            changing(fs, |fs| fs.make_directory(&CALLER, ROOT, name(thread).as_bytes(), 0o755)).map(drop)
        })
    })
    .map_err(text)?;
    let device = &recording.device;
    if fails_within > 0 {
        device.fail_within(fails_within, seed.is_multiple_of(2));
    }
    // After a failure of the device that is what everybody is to hear.
    let heard = |result: Result<()>| match result {
        Err(Error::ReadOnly | Error::Engine(Refused::Device(_) | Refused::ReadOnly { .. }))
            if device.failed_count() > 0 =>
        {
            Ok(())
        }
        other => other.map_err(text),
    };
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let fs = &fs;
        let work = |thread| {
            let mut done = Done::default();
            heard(work(fs, device, thread, seed, &mut done)).map(|()| done)
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            done.push(thread.join().map_err(|_| "a thread panicked")??);
            Ok::<_, String>(())
        })
    })?;
    heard(fs.close())?;
    drop(fs);
    let end = device.tick();
    let mut random = Random::new(seed);
    let moments: Vec<_> = (0..POINTS).map(|_| random.below(end + 1)).chain([end]).collect();
    recording.cut(&moments, &mut random, |moment, cut, fs| {
        let mut between = false;
        for (thread, done) in done.iter().enumerate() {
            let allowed = done.allowed(moment);
            let sum = found(fs, thread as u64).map_err(text)?;
            if !done.find(sum, &allowed) {
                let any = done.find(sum, &(0..=done.marks.len()));
                return Err(format!("thread {thread}: not a state of {allowed:?}, of others: {any}"));
            }
            between |= !done.find(sum, &(*allowed.start()..=*allowed.start()));
        }
        let mut report = report.lock().unwrap();
        report.states += 1;
        report.overlapping += u64::from(cut.under_way > 1);
        report.between += u64::from(between);
        report.failed += u64::from(device.failed_count() > 0);
        Ok(())
    })
}

fn run_all(usual_seeds: u64, fails_within: u64) -> Report {
    let report = Mutex::default();
    for_each_seed(seeds(usual_seeds), |seed| {
        run(seed, fails_within, &report).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
    });
    let report = report.into_inner().unwrap();
    println!("{report:#?}");
    report
}

#[test]
fn every_crash_among_threads_leaves_what_each_had_made() {
    let report = run_all(8, 0);
    if std::env::var_os("PANDO_SEED").is_none() {
        assert!(report.overlapping > 20 && report.between > 20);
    }
}

#[test]
fn a_device_that_fails_among_threads_leaves_what_each_had_made_durable() {
    let report = run_all(8, 1500);
    if std::env::var_os("PANDO_SEED").is_none() {
        assert!(report.failed > 20 && report.between > 20);
    }
}
