//! OLTP: threads that read at random places of the data files, and writers that follow at their pace: for each thousand reads
//! each of ten writers writes a hundred blocks, for 3200 reads a block goes to the log; every write is synchronous.
//!
//! The two restatements: a writer writes its hundred blocks one after the other where Filebench has them under way at once,
//! and the reader's loops that only use processor time are left out.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::fileset::contents;
use super::{renew, top};
use crate::applications::in_threads;
use crate::error::{Error, at};
use crate::generate::Random;
use crate::row::Measurement;
use crate::volume::Volume;

const FILES: u64 = 10;
const FILE_BYTES: u64 = 10 << 20;
const BLOCK_BYTES: usize = 2 << 10;
const LOG_BLOCK_BYTES: usize = 256 << 10;
const READERS: u64 = 200;
const WRITERS: u64 = 10;
/// Blocks that a writer writes for so many reads.
const WRITES: u64 = 100;
const READS_PER_WRITES: u64 = 1000;
/// Reads for which the log gets a block.
const READS_PER_LOG_BLOCK: u64 = 3200;
/// Reads that may be done before the writers have done what belongs to them.
const READS_AHEAD_MAX: u64 = 2000;
/// Reads that a reader reports together.
const READS_AT_ONCE: u64 = 10;
/// Reads of all threads, in the short run and in the full one.
const READS: [u64; 2] = [10_000, 100_000];

fn data(volume: &Volume, number: u64) -> PathBuf {
    top(volume, "oltp").join(format!("data-{number}"))
}

fn log(volume: &Volume) -> PathBuf {
    top(volume, "oltp").join("log")
}

/// The data files and the log.
pub fn prepare(volume: &Volume) -> Result<(), Error> {
    renew(&top(volume, "oltp"))?;
    for number in 0..FILES {
        let path = data(volume, number);
        at("cannot write", &path, fs::write(&path, contents(FILE_BYTES, number)))?;
    }
    let path = log(volume);
    at("cannot write", &path, fs::write(&path, contents(FILE_BYTES, FILES)))?;
    volume.sync()
}

/// How far readers and writers are.
struct Pace {
    done: Mutex<Done>,
    changed: Condvar,
    reads: u64,
}

#[derive(Default)]
struct Done {
    /// Reads begun or done.
    reads: u64,
    /// Reads for which each writer has written.
    followed: [u64; WRITERS as usize],
    /// A thread has failed: the others end.
    over: bool,
}

impl Pace {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&Done) -> bool) -> MutexGuard<'_, Done> {
        let waited = self.changed.wait_while(self.done(), |done| !done.over && condition(done));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// How many reads to do next; none at the end.
    fn next_reads(&self) -> u64 {
        let behind = |done: &Done| done.followed.iter().copied().min().unwrap_or(0);
        let mut done =
            self.wait_while(|done| done.reads < self.reads && done.reads >= behind(done) + READS_AHEAD_MAX);
        let count = if done.over { 0 } else { READS_AT_ONCE.min(self.reads - done.reads) };
        done.reads += count;
        if done.reads / READS_PER_WRITES != (done.reads - count) / READS_PER_WRITES
            || done.reads == self.reads
        {
            self.changed.notify_all();
        }
        count
    }

    /// Waits until there have been so many reads; whether there will be.
    fn wait_for_reads(&self, reads: u64) -> bool {
        reads <= self.reads && !self.wait_while(|done| done.reads < reads).over
    }

    fn followed(&self, writer: u64, reads: u64) {
        self.done().followed[writer as usize] = reads;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.done().over = true;
        self.changed.notify_all();
    }
}

/// Operations a second: reads, and writes of data and log.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let reads = READS[usize::from(volume.options.full)];
    let pace = Pace { done: Mutex::default(), changed: Condvar::new(), reads };
    let synchronous = rustix::fs::OFlags::DSYNC.bits() as i32;
    let open = |path: PathBuf| {
        let file = File::options().read(true).write(true).custom_flags(synchronous).open(&path);
        at("cannot open", &path, file)
    };
    let files = (0..FILES).map(|number| open(data(volume, number))).collect::<Result<Vec<_>, _>>()?;
    let log = open(log(volume))?;
    let begin = Instant::now();
    in_threads(READERS + WRITERS + 1, |thread| {
        let mut random = Random(thread);
        let ended = match thread {
            0 => write_log(&pace, &log, &mut random),
            1..=WRITERS => write_data(&pace, &files, thread - 1, &mut random),
            _ => read(&pace, &files, &mut random),
        };
        if ended.is_err() {
            pace.end();
        }
        ended
    })?;
    volume.sync()?;
    let writes = reads / READS_PER_WRITES * WRITES * WRITERS + reads / READS_PER_LOG_BLOCK;
    Ok(Measurement::rate(begin, (reads + writes) as f64))
}

fn place(random: &mut Random, block_bytes: usize) -> u64 {
    random.below(FILE_BYTES / block_bytes as u64) * block_bytes as u64
}

fn read(pace: &Pace, files: &[File], random: &mut Random) -> Result<(), Error> {
    let mut block = [0; BLOCK_BYTES];
    loop {
        let count = pace.next_reads();
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            let file = &files[random.below(FILES) as usize];
            let read = file.read_exact_at(&mut block, place(random, BLOCK_BYTES));
            at("cannot read", Path::new("a data file"), read)?;
        }
    }
}

fn write_data(pace: &Pace, files: &[File], writer: u64, random: &mut Random) -> Result<(), Error> {
    let block = contents(BLOCK_BYTES as u64, writer);
    let mut reads = READS_PER_WRITES;
    while pace.wait_for_reads(reads) {
        for _ in 0..WRITES {
            let file = &files[random.below(FILES) as usize];
            let written = file.write_all_at(&block, place(random, BLOCK_BYTES));
            at("cannot write", Path::new("a data file"), written)?;
        }
        pace.followed(writer, reads);
        reads += READS_PER_WRITES;
    }
    Ok(())
}

fn write_log(pace: &Pace, log: &File, random: &mut Random) -> Result<(), Error> {
    let block = contents(LOG_BLOCK_BYTES as u64, 99);
    let mut reads = READS_PER_LOG_BLOCK;
    while pace.wait_for_reads(reads) {
        let written = log.write_all_at(&block, place(random, LOG_BLOCK_BYTES));
        at("cannot write", Path::new("the log of the database"), written)?;
        reads += READS_PER_LOG_BLOCK;
    }
    Ok(())
}
