//! A file system that is mounted, as the loads see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::command;
use crate::device;
use crate::error::{Error, at};
use crate::file_system::FileSystem;
use crate::first_process;
use crate::memory;
use crate::options::Options;
use crate::owned;
use crate::trace::round;

/// For a mount to be there, and for broken off loads to let go of their files.
const PATIENCE: Duration = Duration::from_secs(60);

/// What drops the kernel's caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Whether this process may drop the kernel's caches, for which it must be root, and not in every container.
pub fn can_drop_caches() -> bool {
    fs::File::options().write(true).open(DROP_CACHES).is_ok()
}

/// Where a load runs, and all that it may know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// What was asked for.
    pub options: Options,
    /// The commands.
    pub file_system: FileSystem,
    /// The device, unless a directory was given.
    pub device: Option<PathBuf>,
    /// The file behind it, if it is a loop device of our own.
    pub image: Option<PathBuf>,
    /// The directory in which everything happens.
    pub root: PathBuf,
}

impl Volume {
    /// Formats and mounts; what was mounted there is unmounted, and what was in a directory is gone.
    pub fn make(&self) -> Result<(), Error> {
        self.make_by(&self.file_system.format)
    }

    /// The same, with room for a small file in each block.
    pub fn make_for_many_files(&self) -> Result<(), Error> {
        let own = &self.file_system.format_for_many_files;
        self.make_by(if own.is_empty() { &self.file_system.format } else { own })
    }

    fn make_by(&self, format: &str) -> Result<(), Error> {
        self.clear()?;
        match &self.options.on {
            Some(_) => owned::make(&self.root)?,
            None => at("cannot create", &self.root, fs::create_dir_all(&self.root))?,
        }
        self.command(format)?;
        // A run that is counted lets file systems discard, which makes holes all the time.
        if let Some((device, image)) = self.device.as_ref().zip(self.image.as_ref())
            && !self.options.trace
        {
            device::fill_image(device, image)?;
        }
        self.mount()
    }

    fn mount(&self) -> Result<(), Error> {
        let mut mount = self.file_system.mount.clone();
        // Of our own device they would make holes in its file.
        if self.options.device.is_none() && !self.options.trace {
            mount.push_str(&self.file_system.without_discards);
        }
        self.command(&mount)?;
        // Loads would write into the directory below.
        if !mount.is_empty() && !first_process::is_mounted(&self.root) {
            return Err(self.has_mounted_nothing());
        }
        if self.options.trace { round::note(&self.root) } else { Ok(()) }
    }

    /// Returns when everything is on the device.
    pub fn umount(&self) -> Result<(), Error> {
        self.command(&self.file_system.umount)
    }

    /// Leaves nothing mounted, whatever became of the rows before, and nothing in a directory that was given.
    pub fn clear(&self) -> Result<(), Error> {
        let begin = Instant::now();
        while first_process::is_mounted(&self.root) {
            let unmounted = self.umount();
            if begin.elapsed() > PATIENCE {
                let stays = || Error::Program(format!("'{}' has unmounted nothing", self.file_system.umount));
                return unmounted.and(Err(stays()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if self.options.on.is_some() { owned::remove(&self.root) } else { Ok(()) }
    }

    fn command(&self, text: &str) -> Result<(), Error> {
        self.command_on(text, Path::new(""), Path::new(""))
    }

    fn command_on(&self, text: &str, source: &Path, target: &Path) -> Result<(), Error> {
        let device = self.device.clone().unwrap_or_default();
        let places: [(&str, &Path); 4] =
            [("DEVICE", &device), ("MOUNTPOINT", &self.root), ("SOURCE", source), ("TARGET", target)];
        match text.strip_suffix('&') {
            _ if text.is_empty() => Ok(()),
            None => command::run_text(text, &places).map(drop),
            Some(server) => {
                command::start_text(server, &places)?;
                self.wait_for_mount()
            }
        }
    }

    /// Until something is mounted: a program that serves in the foreground says nothing when it begins.
    fn wait_for_mount(&self) -> Result<(), Error> {
        let begin = Instant::now();
        while !first_process::is_mounted(&self.root) {
            if begin.elapsed() > PATIENCE {
                return Err(self.has_mounted_nothing());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn has_mounted_nothing(&self) -> Error {
        Error::Program(format!("'{}' has mounted nothing", self.file_system.mount))
    }

    /// Nothing of the file system stays in memory, neither in the kernel nor in a daemon. In a directory that was given
    /// only the kernel's caches can be dropped.
    pub fn make_cold(&self) -> Result<(), Error> {
        self.let_go()?;
        self.mount_cold()
    }

    fn stays_mounted(&self) -> bool {
        self.device.is_none() || self.file_system.volatile
    }

    /// The first half of it: unmounts, so that everything is on the device.
    pub fn let_go(&self) -> Result<(), Error> {
        if self.stays_mounted() { self.sync() } else { self.umount() }
    }

    /// The second: drops the kernel's caches, and mounts. What follows finds memory and programs at hand.
    pub fn mount_cold(&self) -> Result<(), Error> {
        // What others have left to be written, to the machine's own disk too, would be written meanwhile.
        rustix::fs::sync();
        let control = Path::new(DROP_CACHES);
        let dropped = fs::write(control, "3");
        command::read_programs();
        if !self.options.trace {
            memory::take(self.options.memory)?;
        }
        // Results from a directory tell whether it could be done.
        if self.options.on.is_none() {
            at("cannot write", control, dropped)?;
        }
        if self.stays_mounted() { Ok(()) } else { self.mount() }
    }

    /// Makes durable what a load has done, by both ways there are: an fsync of a file, and syncfs(2), which reaches no FUSE file system that is
    /// mounted as `fuse`, and one that is mounted as `fuseblk` on late kernels alone.
    pub fn sync(&self) -> Result<(), Error> {
        let path = self.root.join(".sync");
        let file = at("cannot create", &path, fs::File::create(&path))?;
        at("cannot sync", &path, file.sync_all())?;
        at("cannot sync", &path, rustix::fs::syncfs(&file).map_err(Into::into))
    }

    /// Everything that was done is in its place, not only in a log.
    pub fn checkpoint(&self) -> Result<(), Error> {
        if self.file_system.checkpoint.is_empty() {
            return self.sync();
        }
        self.command(&self.file_system.checkpoint)
    }

    /// Clones a directory by the file system's own way.
    pub fn clone_directory(&self, source: &Path, target: &Path) -> Result<(), Error> {
        self.command_on(&self.file_system.clone, source, target)
    }

    /// Makes a directory that `clone_directory` takes.
    pub fn make_directory(&self, target: &Path) -> Result<(), Error> {
        match self.file_system.make_directory.as_str() {
            "" => at("cannot create", target, fs::create_dir(target)),
            text => self.command_on(text, Path::new(""), target),
        }
    }

    /// Takes a read-only snapshot of the whole volume.
    pub fn snapshot(&self, name: &str) -> Result<(), Error> {
        self.command_on(&self.file_system.snapshot, Path::new(""), Path::new(name))
    }

    /// Bytes of the volume that are in use, by statfs(2).
    pub fn used_bytes(&self) -> Result<u64, Error> {
        let status = self.space()?;
        Ok((status.f_blocks - status.f_bfree) * status.f_frsize)
    }

    /// Bytes that can still be used, by statfs(2).
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let status = self.space()?;
        Ok(status.f_bavail * status.f_frsize)
    }

    fn space(&self) -> Result<rustix::fs::StatVfs, Error> {
        let status = rustix::fs::statvfs(&self.root).map_err(Into::into);
        at("cannot ask for the space of", &self.root, status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn volume(root: &Path, file_system: FileSystem) -> Volume {
        let options = Options::parse_from(["pando-bench"]);
        Volume { options, file_system, device: None, image: None, root: root.join("mnt") }
    }

    /// As the kernel does where a format asks it to zero a part of the device.
    #[test]
    fn an_image_that_was_written_in_full_is_so_after_a_format() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        fs::write(&image, vec![1; 1 << 17]).unwrap();
        let format = "fallocate --punch-hole --keep-size --offset 65536 --length 32768 DEVICE".to_owned();
        let volume = volume(directory.path(), FileSystem { format, ..FileSystem::default() });
        let volume = Volume { device: Some(image.clone()), image: Some(image.clone()), ..volume };
        volume.make().unwrap();
        let bytes = fs::read(&image).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 32768, "it was formatted");
        assert_eq!(device::holes(&fs::File::open(&image).unwrap()).unwrap(), []);
    }
}
