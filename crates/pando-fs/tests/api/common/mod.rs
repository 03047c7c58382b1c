//! A volume in memory and short names for what tests do with it.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_engine::{Background, FormatOptions, Options};
use pando_fs::clock::{Clock, SystemClock};
use pando_fs::operations::{
    Caller, FileType, ListAttributes, Operations, ROOT, RenameMode, SetAttributes, WriteMode, changing,
    changing_bytes, waiting,
};
use pando_fs::{FileSystem, InodeNumber, Result};

/// A clock that has not gone on since 1970.
struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

pub struct Volume {
    pub fs: Arc<FileSystem>,
    pub caller: Caller,
    device: Arc<MemoryDevice>,
}

/// Nodes so small that the trees of a test are deep.
pub fn small_nodes() -> FormatOptions {
    FormatOptions {
        node_bytes: Some(8 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    }
}

impl Volume {
    pub fn new() -> Self {
        Self::formatted(&small_nodes())
    }

    /// One that takes paths of any length.
    pub fn of_long_paths() -> Self {
        Self::formatted(&FormatOptions { node_bytes: Some(4 << 20), ..FormatOptions::default() })
    }

    pub fn formatted(format: &FormatOptions) -> Self {
        Self::of_size(256 << 20, format)
    }

    pub fn of_size(capacity: u64, format: &FormatOptions) -> Self {
        let device = Arc::new(MemoryDevice::new(capacity));
        FileSystem::format(device.clone(), format).unwrap();
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device.clone(), options).unwrap();
        Self { fs, caller: Caller { uid: 0, gid: 0, umask: 0 }, device }
    }

    /// The volume as a crash right now leaves it, mounted again.
    pub fn after_crash(&self) -> Self {
        self.with_clock(Arc::new(SystemClock))
    }

    /// The volume for whose changes no time goes by.
    pub fn without_time(&self) -> Self {
        self.with_clock(Arc::new(StoppedClock))
    }

    fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        let fs = FileSystem::on_engine(self.fs.engine().clone(), false, clock).unwrap();
        Self { fs, caller: self.caller, device: self.device.clone() }
    }

    /// Closes the volume and opens it again from its device.
    pub fn remount(self, read_only: bool) -> Self {
        self.remount_with(Options { background: Background::Manual, read_only, ..Options::default() })
    }

    pub fn remount_with(self, options: Options) -> Self {
        self.fs.close().unwrap();
        self.opened_anew(options)
    }

    /// Without having been closed, but with all that was done.
    pub fn killed(self, options: Options) -> Self {
        self.fs.engine().sync().unwrap();
        self.opened_anew(options)
    }

    fn opened_anew(self, options: Options) -> Self {
        drop(self.fs);
        let fs = FileSystem::open(self.device.clone(), options).unwrap();
        Self { fs, caller: self.caller, device: self.device }
    }

    /// Closes the volume, turns over a bit in each place of the device where these bytes lie, and opens it again.
    pub fn damaged(self, bytes: &[u8]) -> Self {
        self.fs.close().unwrap();
        let mut image = self.device.to_bytes();
        let places = image.windows(bytes.len()).enumerate().filter(|(_, at)| *at == bytes);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        assert!(!places.is_empty(), "they are on the device");
        places.into_iter().for_each(|place| image[place] ^= 1);
        let device = Arc::new(MemoryDevice::from_bytes(image));
        Self { fs: self.fs, caller: self.caller, device }
            .opened_anew(Options { background: Background::Manual, ..Options::default() })
    }

    /// A copy of the device, mounted.
    pub fn copied(&self) -> Self {
        self.fs.engine().sync().unwrap();
        let device = Arc::new(MemoryDevice::from_bytes(self.device.to_bytes()));
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device.clone(), options).unwrap();
        Self { fs, caller: self.caller, device }
    }

    pub fn file(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        let made = changing(&*self.fs, |fs| {
            fs.make_node(&self.caller, parent, name.as_bytes(), FileType::Regular, 0o644, 0)
        });
        made.unwrap().attributes.inode
    }

    pub fn directory(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        let made = changing(&*self.fs, |fs| fs.make_directory(&self.caller, parent, name.as_bytes(), 0o755));
        made.unwrap().attributes.inode
    }

    pub fn write(&self, file: InodeNumber, offset: u64, data: &[u8]) {
        self.fs.write(file, offset, Bytes::copy_from_slice(data), WriteMode::PLAIN).unwrap();
    }

    /// Writes behind the end of the file.
    pub fn append(&self, file: InodeNumber, data: &Bytes) -> Result<()> {
        let size = waiting(&*self.fs, |fs| fs.get_attributes(file))?.size;
        let write = |fs: &FileSystem| fs.write(file, size, data.clone(), WriteMode::PLAIN);
        changing_bytes(&*self.fs, data.len() as u64, write)
    }

    pub fn read(&self, file: InodeNumber, offset: u64, length: usize) -> Vec<u8> {
        waiting(&*self.fs, |fs| fs.read(file, offset, length)).unwrap().concat()
    }

    /// As copy_file_range(2): both files at these offsets, and how many bytes at most.
    pub fn copy_range(&self, from: (InodeNumber, u64), to: (InodeNumber, u64), length: u64) -> Result<u64> {
        waiting(&*self.fs, |fs| fs.copy_range(from.0, from.1, to.0, to.1, length, false))
    }

    pub fn resize(&self, file: InodeNumber, size: u64) {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.set_attributes(file, &set).unwrap();
    }

    pub fn rename(&self, from: InodeNumber, name: &str, to: InodeNumber, new_name: &str) -> Result<()> {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        self.fs.rename(from, name, to, new_name, RenameMode::Replace).map(drop)
    }

    /// The inode at the end of a path; the references that this takes stay.
    pub fn walk(&self, path: &str) -> Result<InodeNumber> {
        let mut at = ROOT;
        for name in path.split('/') {
            at = waiting(&*self.fs, |fs| fs.lookup(at, name.as_bytes()))?.attributes.inode;
        }
        Ok(at)
    }

    /// All names but `.` and `..`.
    pub fn names(&self, directory: InodeNumber) -> Vec<String> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let before = cookie;
            let mut emit = |entry: &pando_fs::operations::DirectoryEntry| {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
                true
            };
            waiting(&*self.fs, |fs| fs.read_directory(directory, before, ListAttributes::OfNone, &mut emit))
                .unwrap();
            if cookie == before {
                break;
            }
        }
        names.split_off(2)
    }

    /// The name space on the volume breaks no invariant, nor do the trees below it.
    pub fn assert_clean(&self) {
        let report = self.fs.check().unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        let report = self.fs.engine().check(&mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

pub fn bytes(bytes: &Bytes) -> Vec<u8> {
    bytes.to_vec()
}
