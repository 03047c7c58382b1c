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

/// What sysfs says of the file behind the device that it has in this directory.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let mut path = fs::read(device.join("loop/backing_file")).ok()?;
    path.pop_if(|byte| *byte == b'\n');
    Some(OsString::from_vec(path).into())
}
