//! Loop devices: block devices over a file. The same bytes have two names then, and a lock on one says nothing to who opens the other.
//!
//! sysfs tells which there are. Where it cannot be read, none is known.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The loop device over this file or block device, such as `/dev/loop0`.
pub fn over(file: &Metadata) -> Option<PathBuf> {
    let mut devices = all();
    devices.find(|(looped, _)| looped.file == identity(file)).map(|(_, name)| name)
}

/// The file behind the block device with this number (`st_rdev`), if it is a loop device or a partition of one.
pub fn behind(number: u64) -> Option<PathBuf> {
    let device = directory(number);
    backing_file(&device).or_else(|| backing_file(&device.join("..")))
}

/// Other loop devices over bytes of the file that the block device with this number, if it is a loop device or a partition of one, is over.
pub fn beside(number: u64) -> Vec<PathBuf> {
    let Some((own, whole)) = Looped::of(number) else { return Vec::new() };
    all().filter(|(other, name)| *name != whole && own.meets(other)).map(|(_, name)| name).collect()
}

/// What a loop device is over.
struct Looped {
    file: (u64, u64),
    from: u64,
    /// `None` if it is over all that is behind.
    length: Option<u64>,
}

impl Looped {
    /// What the block device with this number is over, and the loop device that it is, or is a partition of.
    fn of(number: u64) -> Option<(Self, PathBuf)> {
        let device = directory(number).canonicalize().ok()?;
        if let Some(looped) = Self::at(&device) {
            return Some((looped, named(&device)?));
        }
        let whole = device.parent()?;
        let looped = Self::at(whole)?;
        // In sectors of 512 bytes, whatever the device's own are.
        let bytes = |name: &str| Some(number_in(&device.join(name))?.saturating_mul(512));
        let from = looped.from.saturating_add(bytes("start")?);
        Some((Self { from, length: bytes("size"), ..looped }, named(whole)?))
    }

    /// What sysfs says of the loop device that it has in this directory.
    fn at(directory: &Path) -> Option<Self> {
        let file = identity(&backing_file(directory)?.metadata().ok()?);
        let bytes = |name: &str| number_in(&directory.join("loop").join(name));
        let length = bytes("sizelimit").filter(|limit| *limit > 0);
        Some(Self { file, from: bytes("offset").unwrap_or(0), length })
    }

    /// True if some bytes are behind both.
    fn meets(&self, other: &Self) -> bool {
        let ends_before =
            |a: &Self, b: &Self| a.length.is_some_and(|length| a.from.saturating_add(length) <= b.from);
        self.file == other.file && !ends_before(self, other) && !ends_before(other, self)
    }
}

/// All loop devices that are over something, and their names.
fn all() -> impl Iterator<Item = (Looped, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    devices.filter_map(|device| Some((Looped::at(&device.path())?, named(&device.path())?)))
}

/// The name in `/dev` of what sysfs has in this directory.
fn named(directory: &Path) -> Option<PathBuf> {
    Some(Path::new("/dev").join(directory.file_name()?))
}

/// Where sysfs has the block device with this number.
fn directory(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

/// What is the same for all names of a file or of a block device, and for no other.
fn identity(file: &Metadata) -> (u64, u64) {
    if file.file_type().is_block_device() { (file.rdev(), 0) } else { (file.dev(), file.ino()) }
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What sysfs says of the file behind the device that it has in this directory.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let mut path = fs::read(device.join("loop/backing_file")).ok()?;
    path.pop_if(|byte| *byte == b'\n');
    Some(OsString::from_vec(path).into())
}
