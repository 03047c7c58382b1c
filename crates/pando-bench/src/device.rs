//! The block device that all file systems use in turn: a loop device over a file, or one that was given. And the kernel's
//! counters of what was read from it and written to it.
//!
//! The file behaves like a disk in use: it is written in full before its first use and after each format, and nothing is
//! discarded while time is measured. In a file that is only allocated, or has holes, the first write to a place makes the
//! file system below change its own metadata, and the next cache flush waits for its journal; whoever writes to new places,
//! a log above all, would pay for that at every fsync, and whoever overwrites would not.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::command;
use crate::error::{Error, at};
use crate::generate::fill;
use crate::options::Options;
use crate::owned;
use crate::profile;

/// Name of the file behind the loop device, in the bench's own directory.
const IMAGE: &str = "device.img";

/// Name of the file behind a second one, for copies.
pub const SECOND_IMAGE: &str = "fresh.img";

/// Images are written in steps of this.
const CHUNK: usize = 1 << 20;

/// A block device. If it is a loop device of our own it is detached when it is closed for the last time, however this
/// program ends.
pub struct Device {
    /// Such as /dev/loop0.
    pub path: PathBuf,
    /// The file behind it, if it is a loop device of our own.
    pub image: Option<PathBuf>,
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

    /// An error if the device that was given is in use: what is mounted would be overwritten under those who use it.
    pub fn is_free(options: &Options) -> Result<(), Error> {
        let Some(path) = &options.device else { return Ok(()) };
        let given = Device::given(path)?;
        let mut exclusive = File::options();
        exclusive.read(true).custom_flags(OFlags::EXCL.bits() as i32);
        match exclusive.open(&given.path) {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                Err(Error::Usage(format!("{} is in use", path.display())))
            }
            opened => at("cannot open", path, opened).map(drop),
        }
    }

    /// A new loop device over the file of this name, which is made when it is first needed.
    pub fn over_a_file(options: &Options, name: &str) -> Result<Device, Error> {
        let size_bytes = options.device_size;
        let image = owned::scratch(&options.directory).join(name);
        if fs::metadata(&image).map_or(0, |metadata| metadata.len()) < size_bytes {
            make_image(&image, size_bytes)?;
        }
        let limit = size_bytes.to_string();
        let attach = "losetup --find --show --direct-io=on --sizelimit BYTES IMAGE";
        let attached = command::run_text(attach, &[("IMAGE", &image), ("BYTES", Path::new(&limit))])?;
        let path = PathBuf::from(attached.trim_end());
        let open = at("cannot open", &path, File::open(&path))?;
        // Detaching a device that is open makes the kernel do it at the last close.
        command::run_text("losetup --detach DEVICE", &[("DEVICE", &path)])?;
        Device { path, image: Some(image), limited: None, _open: open }.limited(options)
    }
}

/// Writes a file in full. It has its name only when it is complete.
fn make_image(image: &Path, size_bytes: u64) -> Result<(), Error> {
    let new = image.with_extension("new");
    let mut file = at("cannot create", &new, File::create(&new))?;
    let allocated = fallocate(&file, FallocateFlags::empty(), 0, size_bytes).map_err(Into::into);
    at("cannot allocate", &new, allocated)?;
    let mut chunk = vec![0; CHUNK];
    fill(&mut chunk, 1);
    let mut left = size_bytes;
    while left > 0 {
        let length = left.min(CHUNK as u64);
        at("cannot write", &new, file.write_all(&chunk[..length as usize]))?;
        left -= length;
    }
    at("cannot write", &new, written_back(&file))?;
    at("cannot rename", &new, fs::rename(&new, image))
}

/// Everything of the file is on its disk, and nothing in the page cache, past which the device goes.
fn written_back(file: &File) -> std::io::Result<()> {
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Writes what is not written of the file behind a device, by the zeros that it is read as. A format has the kernel zero
/// parts of the device, such as the journal of ext4 and the log of XFS, and of those the file system below only notes that
/// they were never written.
pub fn fill_image(device: &Path, image: &Path) -> Result<(), Error> {
    // Nothing that the format has written may still be on its way to a hole.
    at("cannot sync", device, File::open(device).and_then(|device| device.sync_all()))?;
    let file = at("cannot open", image, File::options().read(true).write(true).open(image))?;
    let zeros = vec![0; CHUNK];
    for hole in at("cannot look for holes in", image, holes(&file))? {
        for place in hole.clone().step_by(CHUNK) {
            let length = (hole.end - place).min(CHUNK as u64) as usize;
            at("cannot write", image, file.write_all_at(&zeros[..length], place))?;
        }
    }
    at("cannot write", image, written_back(&file))
}

/// The parts of a file that are not written, in bytes, allocated or not.
pub fn holes(file: &File) -> std::io::Result<Vec<Range<u64>>> {
    let length = file.metadata()?.len();
    let mut holes = Vec::new();
    let mut place = 0;
    while place < length {
        let begin = seek(file, SeekFrom::Hole(place))?;
        place = match seek(file, SeekFrom::Data(begin)) {
            Err(Errno::NXIO) => length,
            data => data?,
        };
        if begin < place {
            holes.push(begin..place);
        }
    }
    Ok(holes)
}

impl Drop for Device {
    fn drop(&mut self) {
        self.limited.iter().for_each(|number| profile::unlimit(number));
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

    /// Both together.
    pub fn and(&self, other: &Traffic) -> Traffic {
        Traffic {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes + other.written_bytes,
            discarded_bytes: self.discarded_bytes + other.discarded_bytes,
            flushes: self.flushes + other.flushes,
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
    fn a_file_whose_parts_were_only_allocated_is_written_in_full() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let length = 3 * CHUNK as u64 + 4096;
        fallocate(&file, FallocateFlags::empty(), 0, length).unwrap();
        file.write_all_at(&[7; 4096], CHUNK as u64).unwrap();
        file.sync_all().unwrap();
        assert_eq!(holes(&file).unwrap(), [0..CHUNK as u64, CHUNK as u64 + 4096..length]);
        fill_image(&path, &path).unwrap();
        assert_eq!(holes(&file).unwrap(), []);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, length);
        assert!(bytes.iter().enumerate().all(|(place, byte)| *byte == 7 * u8::from(place / 4096 == 256)));
    }

    #[test]
    fn counters_are_taken_from_their_places() {
        let before = Traffic::parse("1 0 8 5 2 0 16 7 0 1 1 3 0 24 1 4 9\n");
        let after = Traffic::parse("3 0 16 5 2 0 32 7 0 1 1 3 0 24 1 5 9\n");
        assert_eq!(before.read_bytes, 4096);
        let load = after.since(&before);
        assert_eq!((load.reads, load.read_bytes, load.writes, load.written_bytes), (2, 4096, 0, 8192));
        assert_eq!((load.discarded_bytes, load.flushes), (0, 1));
        assert_eq!(before.and(&load), after);
    }

    #[test]
    fn counters_of_an_old_kernel_are_zero_where_it_has_none() {
        assert_eq!(Traffic::parse("1 0 8 5 2 0 16 7 0 1 1").flushes, 0);
        assert_eq!(Traffic::parse(""), Traffic::default());
    }
}
