//! All threads in one small tree, with links, clones, snapshots and ways back. Now and then all pause, and what there is then is made durable: a crash
//! while they pause leaves that and nothing else, one at another moment a file system in which nothing is wrong, and so does an end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use pando_device::simulated::Random;
use pando_fs::operations::{FileType, Operations, ROOT, SNAPSHOTS, waiting};
use pando_fs::{FileSystem, InodeNumber, Result};
use pando_sim::{for_each_seed, seeds};

use super::{Recording, check, contents, names, text};
use crate::threads::step::{Actor, Made};

const THREADS: u64 = 3;
const PHASES: usize = 8;
const STEPS: usize = 60;
/// Cuts while all pause, in each pause, and cuts at any moment.
const POINTS_PAUSED: u64 = 2;
const POINTS: u64 = 16;

/// A time in which nobody changed anything, and what there was.
struct Pause {
    begin: u64,
    end: u64,
    sum: u64,
}

/// What users see below a directory.
fn hash(fs: &FileSystem, directory: InodeNumber, hasher: &mut DefaultHasher) -> Result<()> {
    for name in names(fs, directory)? {
        let found = waiting(fs, |fs| fs.lookup(directory, name.as_bytes()))?.attributes;
        name.hash(hasher);
        (found.mode, found.links, found.size, found.modified, found.changed).hash(hasher);
        match found.file_type {
            FileType::Directory => hash(fs, found.inode, hasher)?,
            _ => contents(fs, found.inode, found.size)?.hash(hasher),
        }
        "end".hash(hasher);
        fs.forget(found.inode, 1);
    }
    Ok(())
}

/// What users see of the live tree and of the snapshots.
fn sum(fs: &FileSystem) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    hash(fs, ROOT, &mut hasher)?;
    hash(fs, SNAPSHOTS, &mut hasher)?;
    Ok(hasher.finish())
}

#[derive(Debug, Default)]
struct Report {
    states: u64,
    paused: u64,
    overlapping: u64,
    made: u64,
}

fn run(seed: u64, report: &Mutex<Report>) -> Result<(), String> {
    // Moves and clones by gotos, and by copies.
    let copied_bytes = [None, Some(0), Some(16 << 10)][(seed % 3) as usize];
    let (recording, fs) = Recording::begin(seed, copied_bytes, |_| Ok(())).map_err(text)?;
    let device = &recording.device;
    let made = Made::default();
    let mut pauses = Vec::new();
    let mut actors: Vec<_> =
        (0..THREADS).map(|thread| Actor::new(&fs, seed * THREADS + thread, &made)).collect();
    for _ in 0..PHASES {
        std::thread::scope(|scope| {
            for actor in &mut actors {
                scope.spawn(|| (0..STEPS).for_each(|_| actor.step()));
            }
        });
        fs.sync().map_err(text)?;
        let begin = device.tick();
        let sum = sum(&fs).map_err(text)?;
        // Whatever the background has begun meanwhile.
        pauses.push(Pause { begin, sum, end: device.tick() });
    }
    drop(actors);
    check(&fs).map_err(|what| format!("before it was closed: {what}"))?;
    fs.close().map_err(text)?;
    drop(fs);
    report.lock().unwrap().made += made.directories.into_inner() + made.links.into_inner();
    let mut random = Random::new(seed);
    let end = device.tick();
    pauses.last_mut().expect("there are some").end = end;
    let mut moments: Vec<_> = (0..POINTS).map(|_| random.below(end + 1)).collect();
    for pause in &pauses {
        moments.extend((0..POINTS_PAUSED).map(|_| pause.begin + random.below(pause.end - pause.begin + 1)));
    }
    recording.cut(&moments, &mut random, |moment, cut, fs| {
        let found = sum(fs).map_err(text)?;
        let pause = pauses.iter().find(|pause| pause.begin <= moment && moment <= pause.end);
        if pause.is_some_and(|pause| pause.sum != found) {
            return Err("not what there was when all paused".to_owned());
        }
        let mut report = report.lock().unwrap();
        report.states += 1;
        report.paused += u64::from(pause.is_some());
        report.overlapping += u64::from(cut.under_way > 1);
        Ok(())
    })
}

#[test]
fn every_crash_among_threads_in_one_tree_leaves_it_sound() {
    let report = Mutex::default();
    for_each_seed(seeds(6), |seed| {
        run(seed, &report).unwrap_or_else(|what| panic!("PANDO_SEED={seed}: {what}"));
    });
    let report = report.into_inner().unwrap();
    println!("{report:#?}");
    if std::env::var_os("PANDO_SEED").is_none() {
        assert!(report.overlapping > 20 && report.paused > 100 && report.made > 50);
    }
}
