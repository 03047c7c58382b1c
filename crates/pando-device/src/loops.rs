//! Loop devices: block devices over a file. The same bytes have two names then, and a lock on one says nothing to who opens the other.
//!
//! sysfs tells which there are. Where it cannot be read, none is known.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The loop device over the file with this inode number on this device, such as `/dev/loop0`.
pub fn over(device: u64, inode: u64) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.filter_map(Result::ok).find_map(|looped| {
        let file = backing_file(&looped.path())?.metadata().ok()?;
        (file.dev() == device && file.ino() == inode).then(|| Path::new("/dev").join(looped.file_name()))
    })
}

/// The file behind the block device with this number (`st_rdev`), if it is a loop device or a partition of one.
pub fn behind(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    backing_file(&device).or_else(|| backing_file(&device.join("..")))
}

/// The other loop devices over bytes of the file that the block device with this number, if it is a loop device, is over.
pub fn beside(number: u64) -> Vec<PathBuf> {
    let place = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let Some(own) = Looped::at(Path::new(&place)) else { return Vec::new() };
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let looped = devices.filter_map(|device| {
        let name = Path::new("/dev").join(device.file_name());
        let is_own = name.metadata().is_ok_and(|metadata| metadata.rdev() == number);
        (!is_own).then(|| Some((Looped::at(&device.path())?, name)))?
    });
    looped.filter(|(other, _)| own.meets(other)).map(|(_, name)| name).collect()
}

/// What a loop device is over.
struct Looped {
    file: (u64, u64),
    from: u64,
    /// `None` if it is over all that is behind.
    length: Option<u64>,
}

impl Looped {
    /// What sysfs says of the loop device that it has in this directory.
    fn at(directory: &Path) -> Option<Self> {
        let file = backing_file(directory)?.metadata().ok()?;
        let bytes = |name: &str| -> Option<u64> {
            fs::read_to_string(directory.join("loop").join(name)).ok()?.trim().parse().ok()
        };
        let length = bytes("sizelimit").filter(|limit| *limit > 0);
        Some(Self { file: (file.dev(), file.ino()), from: bytes("offset").unwrap_or(0), length })
    }

    /// True if some bytes are behind both.
    fn meets(&self, other: &Self) -> bool {
        let ends_before =
            |a: &Self, b: &Self| a.length.is_some_and(|length| a.from.saturating_add(length) <= b.from);
        self.file == other.file && !ends_before(self, other) && !ends_before(other, self)
    }
}

/// What sysfs says of the file behind the device that it has in this directory.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let mut path = fs::read(device.join("loop/backing_file")).ok()?;
    path.pop_if(|byte| *byte == b'\n');
    Some(OsString::from_vec(path).into())
}
