//! The compleat suite: the loads that a general purpose file system meets, none of them its favourite. One file a load.

mod random;
mod sequential;
mod small_files;
mod source_tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::device::LoopDevice;
use crate::error::{Error, at};
use crate::file_system::FileSystem;
use crate::options::Options;

/// One line of the table: a load and the rate that it reports.
pub struct Row {
    /// Name in tables and for --rows.
    pub name: &'static str,
    /// What is done, for --help.
    pub what: &'static str,
    /// Of the rate; more is better.
    pub unit: &'static str,
    /// Makes what the load needs and may be missing when only some rows are run; not measured.
    prepare: fn(&mut Bench<'_>) -> Result<(), Error>,
    /// Runs the load, which starts with cold caches and times itself.
    measure: fn(&mut Bench<'_>) -> Result<Measurement, Error>,
}

/// What a load has done: MiB, operations or files, and how long that took.
pub struct Measurement {
    amount: f64,
    elapsed: Duration,
}

impl Measurement {
    /// This much was done since `begin`.
    fn since(begin: Instant, amount: f64) -> Measurement {
        Measurement { amount, elapsed: begin.elapsed() }
    }

    /// Amount a second. A rate over nothing measurable would be infinite; JSON has no such number.
    fn rate(&self) -> f64 {
        self.amount / self.elapsed.max(Duration::from_micros(1)).as_secs_f64()
    }
}

/// In the order in which they are run: later rows use what earlier ones have made.
pub const ROWS: &[Row] = &[
    Row {
        name: "sequential-write",
        what: "one large file in writes of 1 MiB, fsync",
        unit: "MiB/s",
        prepare: sequential::remove,
        measure: sequential::write,
    },
    Row {
        name: "cold-read",
        what: "that file, read from its beginning to its end, cold",
        unit: "MiB/s",
        prepare: sequential::ensure,
        measure: sequential::read,
    },
    Row {
        name: "random-4k",
        what: "65536 random overwrites of 4 KiB in that file, one fsync",
        unit: "writes/s",
        prepare: sequential::ensure,
        measure: random::blocks,
    },
    Row {
        name: "random-4b",
        what: "65536 random overwrites of 4 bytes in that file, one fsync",
        unit: "writes/s",
        prepare: sequential::ensure,
        measure: random::words,
    },
    Row {
        name: "copy-file",
        what: "cp of that file, cold, synced; cp shares the data where the file system can",
        unit: "MiB/s",
        prepare: sequential::ensure,
        measure: sequential::copy,
    },
    Row {
        name: "small-files",
        what: "200000 files of 200 bytes by 4 threads, synced",
        unit: "files/s",
        prepare: small_files::remove,
        measure: small_files::create,
    },
    Row {
        name: "untar",
        what: "the Linux source, unpacked from a tar in memory, synced",
        unit: "files/s",
        prepare: source_tree::load_archive,
        measure: source_tree::untar,
    },
    Row {
        name: "cold-find",
        what: "find in the Linux source, cold",
        unit: "files/s",
        prepare: source_tree::ensure,
        measure: source_tree::find,
    },
    Row {
        name: "cold-grep",
        what: "grep -r in the Linux source, cold",
        unit: "files/s",
        prepare: source_tree::ensure,
        measure: source_tree::grep,
    },
    Row {
        name: "cold-tar",
        what: "tar of the Linux source, cold",
        unit: "files/s",
        prepare: source_tree::ensure,
        measure: source_tree::tar,
    },
    Row {
        name: "rename-tree",
        what: "the Linux source, moved to another directory and back 20 times, an fsync of the directory after each",
        unit: "renames/s",
        prepare: source_tree::ensure,
        measure: source_tree::rename,
    },
    Row {
        name: "rm",
        what: "rm -rf of the Linux source, cold, synced",
        unit: "files/s",
        prepare: source_tree::ensure,
        measure: source_tree::remove,
    },
];

/// A mounted file system and what the loads share.
pub struct Bench<'a> {
    options: &'a Options,
    file_system: &'a FileSystem,
    device: LoopDevice,
    /// Where it is mounted.
    root: PathBuf,
}

impl<'a> Bench<'a> {
    /// Formats a fresh device and mounts it.
    pub fn prepare(options: &'a Options, file_system: &'a FileSystem) -> Result<Bench<'a>, Error> {
        let device = LoopDevice::attach(&options.directory, options.device_bytes)?;
        let root = options.directory.join("mnt");
        at("cannot create", &root, fs::create_dir_all(&root))?;
        file_system.run(&file_system.format, &device.path, &root)?;
        let bench = Bench { options, file_system, device, root };
        bench.mount()?;
        Ok(bench)
    }

    fn mount(&self) -> Result<(), Error> {
        self.file_system.run(&self.file_system.mount, &self.device.path, &self.root)
    }

    fn umount(&self) -> Result<(), Error> {
        self.file_system.run(&self.file_system.umount, &self.device.path, &self.root)
    }

    /// Runs one row; its rate.
    pub fn run(&mut self, row: &Row) -> Result<f64, Error> {
        (row.prepare)(self)?;
        self.make_cold()?;
        (row.measure)(self).map(|measurement| measurement.rate())
    }

    /// Nothing of the file system stays in memory, neither in the kernel nor in a daemon.
    fn make_cold(&self) -> Result<(), Error> {
        self.umount()?;
        let control = Path::new("/proc/sys/vm/drop_caches");
        at("cannot write", control, fs::write(control, "3"))?;
        self.mount()
    }

    /// Unmounts; the device goes with it.
    pub fn finish(self) -> Result<(), Error> {
        self.umount()
    }

    /// Makes durable what a load has done, by both ways there are: an fsync of a file, and syncfs(2), which reaches a
    /// FUSE file system only where it is mounted as fuseblk.
    fn sync(&self) -> Result<(), Error> {
        let path = self.root.join(".sync");
        let file = at("cannot create", &path, fs::File::create(&path))?;
        at("cannot sync", &path, file.sync_all())?;
        at("cannot sync", &path, rustix::fs::syncfs(&file).map_err(Into::into))
    }
}

/// Bytes that do not compress and follow from a seed.
fn fill(buffer: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for word in buffer.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
    }
}

/// A repeatable sequence of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}
