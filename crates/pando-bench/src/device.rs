//! The block device that all file systems use in turn: a loop device over a file that is allocated anew for each of
//! them, or one that was given. And the kernel's counters of what was read from it and written to it.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

use crate::command;
use crate::error::{Error, at};
use crate::options::Options;
use crate::profile;

/// Name of the file behind the loop device, in the bench's directory.
pub const IMAGE: &str = "device.img";

/// Name of the file behind a second one, for copies.
pub const SECOND_IMAGE: &str = "fresh.img";

/// A block device. If it is a loop device of our own it is detached when it is closed for the last time, however this
/// program ends.
pub struct Device {
    /// Such as /dev/loop0.
    pub path: PathBuf,
    image: Option<PathBuf>,
    /// Its number, if its requests are limited.
    limited: Option<String>,
    _open: File,
}

impl Device {
    /// The device that was given, or a new loop device with direct I/O.
    pub fn attach(options: &Options) -> Result<Device, Error> {
        match &options.device {
            Some(path) => Device::given(path)?.limited(options),
            None => Device::over_a_file(options, IMAGE),
        }
    }

    fn limited(mut self, options: &Options) -> Result<Device, Error> {
        let number = at("cannot look at", &self.path, fs::metadata(&self.path))?.rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        if profile::limit(options.profile, &number, &options.directory)? {
            self.limited = Some(number);
        }
        Ok(self)
    }

    fn given(path: &Path) -> Result<Device, Error> {
        let metadata = at("cannot look at", path, fs::metadata(path))?;
        if !metadata.file_type().is_block_device() {
            return Err(Error::Usage(format!("{} is not a block device", path.display())));
        }
        let open = at("cannot open", path, File::open(path))?;
        Ok(Device { path: path.to_owned(), image: None, limited: None, _open: open })
    }

    /// A new loop device over a new file of this name.
    pub fn over_a_file(options: &Options, name: &str) -> Result<Device, Error> {
        let (directory, size_bytes) = (&options.directory, options.device_size);
        at("cannot create", directory, fs::create_dir_all(directory))?;
        let image = directory.join(name);
        // A file that an earlier run left may still be attached.
        if image.exists() {
            at("cannot remove", &image, fs::remove_file(&image))?;
        }
        let file = at("cannot create", &image, File::create(&image))?;
        // Unwritten extents: every file system pays the same for the first write to a place.
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, size_bytes).map_err(Into::into);
        at("cannot allocate", &image, allocated)?;
        let attach = "losetup --find --show --direct-io=on IMAGE";
        let path = PathBuf::from(command::run_text(attach, &[("IMAGE", &image)])?.trim_end());
        let open = at("cannot open", &path, File::open(&path))?;
        // Detaching a device that is open makes the kernel do it at the last close.
        command::run_text("losetup --detach DEVICE", &[("DEVICE", &path)])?;
        Device { path, image: Some(image), limited: None, _open: open }.limited(options)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.limited.iter().for_each(|number| profile::unlimit(number));
        // The blocks are given back when the device is closed; a file that stays is replaced by the next run.
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
    }
}

/// What went to a device and came from it since it was attached; `since` makes it what a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Requests.
    pub reads: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Requests.
    pub writes: u64,
    /// Bytes.
    pub written_bytes: u64,
    /// Bytes of discards.
    pub discarded_bytes: u64,
    /// Cache flushes.
    pub flushes: u64,
}

impl Traffic {
    /// The kernel's counters of a device; zeros if it does not keep them.
    pub fn of(device: &Path) -> Traffic {
        let read = || {
            let number = fs::metadata(device).ok()?.rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()
        };
        Traffic::parse(&read().unwrap_or_default())
    }

    fn parse(stat: &str) -> Traffic {
        const SECTOR: u64 = 512;
        let fields: Vec<u64> = stat.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        Traffic {
            reads: field(0),
            read_bytes: field(2) * SECTOR,
            writes: field(4),
            written_bytes: field(6) * SECTOR,
            discarded_bytes: field(13) * SECTOR,
            flushes: field(15),
        }
    }

    /// What was counted after `before` was taken.
    pub fn since(&self, before: &Traffic) -> Traffic {
        Traffic {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            discarded_bytes: self.discarded_bytes.saturating_sub(before.discarded_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_taken_from_their_places() {
        let before = Traffic::parse("1 0 8 5 2 0 16 7 0 1 1 3 0 24 1 4 9\n");
        let after = Traffic::parse("3 0 16 5 2 0 32 7 0 1 1 3 0 24 1 5 9\n");
        assert_eq!(before.read_bytes, 4096);
        let load = after.since(&before);
        assert_eq!((load.reads, load.read_bytes, load.writes, load.written_bytes), (2, 4096, 0, 8192));
        assert_eq!((load.discarded_bytes, load.flushes), (0, 1));
    }

    #[test]
    fn counters_of_an_old_kernel_are_zero_where_it_has_none() {
        assert_eq!(Traffic::parse("1 0 8 5 2 0 16 7 0 1 1").flushes, 0);
        assert_eq!(Traffic::parse(""), Traffic::default());
    }
}
