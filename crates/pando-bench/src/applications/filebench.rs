//! Four personalities of Filebench as loads of our own: the file sets, threads and operations of `oltp.f`, `fileserver.f`,
//! `webserver.f` and `webproxy.f`, for a fixed number of loops in place of a fixed time, with all data durable at the end.
//!
//! Each operation counts as one, as in Filebench: an open, a read of a whole file, a close.

mod fileset;
mod oltp;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use self::fileset::{FileSet, Shape, contents};
use super::in_threads;
use crate::error::{Error, at};
use crate::generate::Random;
use crate::row::Measurement;
use crate::volume::Volume;

pub use oltp::{prepare as prepare_oltp, run as oltp};

/// Size of a read or write.
const IO_BYTES: usize = 1 << 20;
/// Largest append; their lengths are uniform up to it.
const APPEND_BYTES_MAX: u64 = 16 << 10;
/// Of the file, proxy and web server's log, in Filebench the mean of one file.
const LOG_BYTES: u64 = 16 << 10;

/// A personality: threads that go through its loop.
struct Personality {
    name: &'static str,
    threads: u64,
    shape: fn(&Volume) -> Shape,
    /// Loops of all threads together, in the short run and in the full one.
    loops: [u64; 2],
    /// One loop; how many operations it did.
    body: fn(&Worker<'_>, &mut Thread) -> Result<u64, Error>,
}

const FILE_SERVER: Personality = Personality {
    name: "fileserver",
    threads: 50,
    shape: |volume| Shape {
        files: if volume.options.full { 10_000 } else { 2_000 },
        made_percent: 80,
        mean_bytes: 128 << 10,
        mean_width: 20,
    },
    loops: [6_000, 60_000],
    body: |worker, Thread { random, buffer }| {
        Ok(worker.create(random, true)?
            + worker.append(random)?
            + worker.read(buffer)?
            + worker.delete()?
            + worker.stat()?)
    },
};

const WEB_SERVER: Personality = Personality {
    name: "webserver",
    threads: 100,
    shape: |_| Shape { files: 1_000, made_percent: 100, mean_bytes: 16 << 10, mean_width: 20 },
    loops: [6_000, 60_000],
    body: |worker, Thread { random, buffer }| {
        let mut operations = 0;
        for _ in 0..10 {
            operations += worker.read(buffer)?;
        }
        Ok(operations + worker.append_log(random)?)
    },
};

const WEB_PROXY: Personality = Personality {
    name: "webproxy",
    threads: 100,
    shape: |volume| Shape {
        files: if volume.options.full { 10_000 } else { 2_000 },
        made_percent: 80,
        mean_bytes: 16 << 10,
        mean_width: 1_000_000,
    },
    loops: [12_000, 120_000],
    body: |worker, Thread { random, buffer }| {
        let mut operations = worker.delete()? + worker.create(random, false)?;
        for _ in 0..5 {
            operations += worker.read(buffer)?;
        }
        Ok(operations)
    },
};

/// What a thread has of its own.
struct Thread {
    random: Random,
    /// To read to.
    buffer: Vec<u8>,
}

/// What a thread works on.
struct Worker<'a> {
    set: &'a FileSet,
    log: &'a File,
    /// What is written is cut from this: to make it anew for each file takes longer than to write it.
    noise: &'a [u8],
}

impl Worker<'_> {
    /// At most [`IO_BYTES`] to write.
    fn noise(&self, random: &mut Random, bytes: usize) -> &[u8] {
        let begin = random.below(IO_BYTES as u64) as usize;
        &self.noise[begin..begin + bytes]
    }

    /// As much as an append adds.
    fn appended(&self, random: &mut Random) -> &[u8] {
        let bytes = 1 + random.below(APPEND_BYTES_MAX);
        self.noise(random, bytes as usize)
    }

    /// A new file, open: create, write or append, close.
    fn create(&self, random: &mut Random, whole: bool) -> Result<u64, Error> {
        let Some(index) = self.set.pick_absent() else { return Ok(0) };
        let (path, size_bytes) = self.set.file(index);
        let mut file = at("cannot create", path, File::create(path))?;
        if whole {
            for written in (0..size_bytes).step_by(IO_BYTES) {
                let bytes = (size_bytes - written).min(IO_BYTES as u64) as usize;
                at("cannot write", path, file.write_all(self.noise(random, bytes)))?;
            }
        } else {
            at("cannot write", path, file.write_all(self.appended(random)))?;
        }
        drop(file);
        self.set.created(index);
        self.set.done(index);
        Ok(3)
    }

    /// Open, append, close.
    fn append(&self, random: &mut Random) -> Result<u64, Error> {
        let Some(index) = self.set.pick() else { return Ok(0) };
        let (path, _) = self.set.file(index);
        let mut file = at("cannot open", path, File::options().append(true).open(path))?;
        at("cannot write", path, file.write_all(self.appended(random)))?;
        drop(file);
        self.set.done(index);
        Ok(3)
    }

    /// Open, read to the end, close.
    fn read(&self, buffer: &mut [u8]) -> Result<u64, Error> {
        let Some(index) = self.set.pick() else { return Ok(0) };
        let (path, _) = self.set.file(index);
        let mut file = at("cannot open", path, File::open(path))?;
        while at("cannot read", path, file.read(buffer))? > 0 {}
        drop(file);
        self.set.done(index);
        Ok(3)
    }

    fn delete(&self) -> Result<u64, Error> {
        let Some(index) = self.set.pick_to_delete() else { return Ok(0) };
        let (path, _) = self.set.file(index);
        at("cannot remove", path, fs::remove_file(path))?;
        self.set.deleted(index);
        Ok(1)
    }

    fn stat(&self) -> Result<u64, Error> {
        let Some(index) = self.set.pick() else { return Ok(0) };
        let (path, _) = self.set.file(index);
        at("cannot look at", path, fs::metadata(path))?;
        self.set.done(index);
        Ok(1)
    }

    /// The log that all threads share.
    fn append_log(&self, random: &mut Random) -> Result<u64, Error> {
        let mut log = self.log;
        at("cannot write", Path::new("the log of the web server"), log.write_all(self.appended(random)))?;
        Ok(1)
    }
}

fn top(volume: &Volume, name: &str) -> PathBuf {
    volume.root.join("filebench").join(name)
}

/// A directory that an earlier run left is removed, and made anew.
fn renew(top: &Path) -> Result<(), Error> {
    if top.exists() {
        at("cannot remove", top, fs::remove_dir_all(top))?;
    }
    at("cannot create", top, fs::create_dir_all(top))
}

fn prepare(volume: &Volume, personality: &Personality) -> Result<(), Error> {
    let top = top(volume, personality.name);
    renew(&top)?;
    FileSet::new(&top.join("files"), &(personality.shape)(volume)).make()?;
    let log = top.join("log");
    at("cannot write", &log, fs::write(&log, contents(LOG_BYTES, 1)))?;
    volume.sync()
}

fn run(volume: &Volume, personality: &Personality) -> Result<Measurement, Error> {
    let top = top(volume, personality.name);
    let set = FileSet::new(&top.join("files"), &(personality.shape)(volume));
    let log = top.join("log");
    let log = at("cannot open", &log, File::options().append(true).open(&log))?;
    let loops = personality.loops[usize::from(volume.options.full)];
    let (next, operations) = (AtomicU64::new(0), AtomicU64::new(0));
    let noise = contents(2 * IO_BYTES as u64, 0);
    let worker = Worker { set: &set, log: &log, noise: &noise };
    let begin = Instant::now();
    in_threads(personality.threads, |thread| {
        let mut thread = Thread { random: Random(thread), buffer: vec![0; IO_BYTES] };
        while next.fetch_add(1, Ordering::Relaxed) < loops {
            let done = (personality.body)(&worker, &mut thread)?;
            operations.fetch_add(done, Ordering::Relaxed);
        }
        Ok(())
    })?;
    volume.sync()?;
    Ok(Measurement::rate(begin, operations.load(Ordering::Relaxed) as f64))
}

/// The file set.
pub fn prepare_file_server(volume: &Volume) -> Result<(), Error> {
    prepare(volume, &FILE_SERVER)
}

/// Operations a second.
pub fn file_server(volume: &Volume) -> Result<Measurement, Error> {
    run(volume, &FILE_SERVER)
}

/// The file set.
pub fn prepare_web_server(volume: &Volume) -> Result<(), Error> {
    prepare(volume, &WEB_SERVER)
}

/// Operations a second.
pub fn web_server(volume: &Volume) -> Result<Measurement, Error> {
    run(volume, &WEB_SERVER)
}

/// The file set.
pub fn prepare_web_proxy(volume: &Volume) -> Result<(), Error> {
    prepare(volume, &WEB_PROXY)
}

/// Operations a second.
pub fn web_proxy(volume: &Volume) -> Result<Measurement, Error> {
    run(volume, &WEB_PROXY)
}
