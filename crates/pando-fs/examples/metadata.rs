//! What the requests of metadata loads cost in this layer and those below: the calls that the kernel makes of a program that writes small
//! files, lists them, and deletes them, on one thread and a device in memory.
//!
//!     cargo build --release -p pando-fs --example metadata
//!     target/release/examples/metadata 100000
//!
//! prints nanoseconds of processor time for each file, background work apart. With callgrind, instructions are counted by phase:
//!
//!     valgrind --tool=callgrind --toggle-collect='*measured_create*' target/release/examples/metadata 20000

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_fs::operations::{
    Caller, DirectoryEntry, FileType, ListAttributes, Operations, ROOT, SetAttributes, SetTime, WriteMode,
    waiting,
};
use pando_fs::{Error, FileSystem, FormatOptions, InodeNumber, Options, Result};
// Its allocator is the command's.
use pando_sim as _;

const FAN_OUT: usize = 128;
const FILE_BYTES: usize = 200;
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

/// Processor time of this thread.
fn now() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let running = times.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(running.expect("the first number is the time on a processor"))
}

struct Load {
    fs: Arc<FileSystem>,
    files: usize,
    requests: u64,
    background: Duration,
}

impl Load {
    fn open(device: &Arc<MemoryDevice>, files: usize) -> Self {
        let options = Options { background: pando_engine::Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device.clone(), options).expect("the volume was just made");
        Self { fs, files, requests: 0, background: Duration::ZERO }
    }

    fn directories(&self) -> usize {
        self.files.div_ceil(FAN_OUT)
    }

    fn query<T>(&mut self, call: impl FnMut(&FileSystem) -> Result<T>) -> Result<T> {
        waiting(&*self.fs, call)
    }

    fn change<T>(&mut self, call: impl FnMut(&FileSystem) -> Result<T>) -> T {
        self.requests += 1;
        if self.requests.is_multiple_of(256) || self.fs.make_room(0, false).is_err() {
            self.background_work();
        }
        waiting(&*self.fs, call).expect("nothing fails here")
    }

    #[inline(never)]
    fn background_work(&mut self) {
        let begin = now();
        while self.fs.engine().background_step().expect("a memory device does not fail") {}
        self.background += now() - begin;
    }

    fn directory(&mut self, number: usize) -> InodeNumber {
        let name = number.to_string();
        let found = self.query(|fs| fs.lookup(ROOT, name.as_bytes()));
        found.expect("the directory is there").attributes.inode
    }

    /// As readdir(3) does, with attributes; does not give back the references.
    fn list(&mut self, directory: InodeNumber) -> Vec<(Bytes, InodeNumber)> {
        let mut found = Vec::new();
        let mut cookie = 0;
        loop {
            let before = cookie;
            // Entries of 32 KiB, about what the C library asks for.
            let mut room = 32 << 10;
            let mut emit = |entry: &DirectoryEntry| {
                let bytes = 160 + entry.name.len();
                if bytes > room {
                    return false;
                }
                room -= bytes;
                cookie = entry.cookie;
                if entry.attributes.is_some() {
                    found.push((entry.name.clone(), entry.inode));
                }
                true
            };
            self.query(|fs| fs.read_directory(directory, before, ListAttributes::OfAll, &mut emit))
                .expect("nothing fails here");
            if cookie == before {
                break;
            }
        }
        found
    }

    fn report(&mut self, what: &str, begin: Duration) {
        let each = |time: Duration| time.as_nanos() / self.files as u128;
        let foreground = (now() - begin).saturating_sub(self.background);
        println!("{what:8} {:6} ns, background {:6} ns", each(foreground), each(self.background));
        self.background = Duration::ZERO;
    }
}

/// LOOKUP, MKNOD, GETXATTR, WRITE; with `archive` what tar asks for besides.
fn make_file(load: &mut Load, directory: InodeNumber, name: &[u8], contents: &Bytes, archive: bool) {
    let absent = load.query(|fs| fs.lookup(directory, name));
    assert!(matches!(absent, Err(Error::NotFound)), "no such file was made");
    let made = load.change(|fs| fs.make_node(&CALLER, directory, name, FileType::Regular, 0o644, 0));
    let inode = made.attributes.inode;
    let xattr = |load: &mut Load| {
        let value = load.query(|fs| fs.get_xattr(inode, b"security.capability"));
        assert!(matches!(value, Err(Error::NoAttribute)), "no such attribute was set");
    };
    xattr(load);
    load.change(|fs| fs.write(inode, 0, contents.clone(), WriteMode::PLAIN));
    if archive {
        let time = Some(SetTime::To(std::time::SystemTime::UNIX_EPOCH));
        let times = SetAttributes { accessed: time, modified: time, ..SetAttributes::default() };
        load.change(|fs| fs.set_attributes(inode, &times));
        xattr(load);
        let owner = SetAttributes { uid: Some(0), gid: Some(0), ..SetAttributes::default() };
        load.change(|fs| fs.set_attributes(inode, &owner));
        let mode = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        load.change(|fs| fs.set_attributes(inode, &mode));
    }
}

#[inline(never)]
fn measured_create(load: &mut Load, archive: bool) {
    let contents = Bytes::from(vec![3; FILE_BYTES]);
    for number in 0..load.directories() {
        let name = number.to_string();
        let made = load.change(|fs| fs.make_directory(&CALLER, ROOT, name.as_bytes(), 0o755));
        for file in 0..FAN_OUT.min(load.files - number * FAN_OUT) {
            make_file(load, made.attributes.inode, file.to_string().as_bytes(), &contents, archive);
        }
    }
}

#[inline(never)]
fn measured_list(load: &mut Load) {
    let mut found = 0;
    for number in 0..load.directories() {
        let directory = load.directory(number);
        found += load.list(directory).len();
    }
    assert_eq!(found, load.files);
}

#[inline(never)]
fn measured_remove(load: &mut Load) {
    for number in 0..load.directories() {
        let directory = load.directory(number);
        for (name, inode) in load.list(directory) {
            load.change(|fs| fs.unlink(directory, &name));
            load.fs.forget(inode, 1);
        }
        load.change(|fs| fs.remove_directory(ROOT, number.to_string().as_bytes()));
        load.fs.forget(directory, 1);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let files = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let archive = arguments.next().is_some_and(|text| text == "archive");
    let device = Arc::new(MemoryDevice::new(2 << 30));
    FileSystem::format(device.clone(), &FormatOptions::default()).expect("the device is large enough");
    let mut load = Load::open(&device, files);

    let begin = now();
    measured_create(&mut load, archive);
    load.report("create", begin);
    load.fs.close().expect("a memory device does not fail");

    load = Load::open(&device, files);
    let begin = now();
    measured_list(&mut load);
    load.report("list", begin);
    load.fs.close().expect("a memory device does not fail");

    load = Load::open(&device, files);
    let begin = now();
    measured_remove(&mut load);
    load.report("remove", begin);
    load.fs.close().expect("a memory device does not fail");
}
