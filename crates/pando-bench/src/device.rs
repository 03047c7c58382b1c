//! The loop device that all file systems use in turn, over a file that is allocated anew for each of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use crate::error::{self, Error, at};

/// A loop device with direct I/O. It is detached when it is closed for the last time, however this program ends.
pub struct LoopDevice {
    /// Such as /dev/loop0.
    pub path: PathBuf,
    image: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Allocates a file of this size in the directory and attaches it.
    pub fn attach(directory: &Path, size_bytes: u64) -> Result<LoopDevice, Error> {
        at("cannot create", directory, fs::create_dir_all(directory))?;
        let image = directory.join("device.img");
        let file = at("cannot create", &image, File::create(&image))?;
        // Unwritten extents: every file system pays the same for the first write to a place.
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, size_bytes).map_err(Into::into);
        at("cannot allocate", &image, allocated)?;
        let mut command = error::words("losetup --find --show --direct-io=on");
        command.push(image.display().to_string());
        let path = PathBuf::from(error::run(&command)?.trim_end());
        let open = at("cannot open", &path, File::open(&path))?;
        // Detaching a device that is open makes the kernel do it at the last close.
        error::run(&["losetup".to_owned(), "--detach".to_owned(), path.display().to_string()])?;
        Ok(LoopDevice { path, image, _open: open })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The blocks are given back when the device is closed; a file that stays is replaced by the next run.
        let _ = fs::remove_file(&self.image);
    }
}
