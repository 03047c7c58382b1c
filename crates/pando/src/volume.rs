//! Opening volumes for the unmounted commands.
//!
//! A volume is opened as a mount opens it: locked, its log replayed. So no other process can have it open for writing
//! meanwhile; who has it is named. A volume that is only read is not written, not even by recovery.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_device::Access;
use pando_device::{DeviceError, FileDevice};
use pando_engine::{Engine, Options};
use pando_format::FormatError;
use pando_fs::FileSystem;
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::copy::tree::Identity;
use crate::failure::{Failure, Result, errno_text};
use crate::files::Files;
use crate::memory;
use crate::mounts;
use crate::output::shown;
use crate::raw::{RawError, RawVolume};

/// Memory for nodes. The commands are short and run beside other things.
const CACHE_BYTES: usize = 256 << 20;

/// What a volume is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Looking only.
    Read,
    /// Changing files.
    Change,
}

/// An open volume.
pub struct Volume {
    /// Its files.
    pub files: Files,
    path: PathBuf,
    fs: Arc<FileSystem>,
}

impl Volume {
    /// Opens the volume in an image file or on a block device. Opening the first one may begin the program anew
    /// ([`memory::use_huge_pages`]): nothing may have been read, printed or changed before.
    pub fn open(path: &Path, purpose: Purpose) -> Result<Self> {
        memory::use_huge_pages();
        let access = if purpose == Purpose::Read { Access::ReadOnly } else { Access::Exclusive };
        let device = open_device(path, access)?;
        let fs = FileSystem::open(Arc::new(device), options(purpose))
            .map_err(|error| open_failure(path, &error))?;
        Ok(Self { files: Files::new(fs.clone(), umask()), path: path.to_owned(), fs })
    }

    /// What serves it, for what is no matter of files.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Makes everything durable and closes the volume.
    pub fn close(self) -> Result<()> {
        let Self { files, path, fs } = self;
        drop(files);
        fs.close().map_err(|error| {
            Failure::new(format!("cannot write the last changes to {}: {error}", name(&path)))
        })
    }
}

/// Opens a volume for reading without the file system on it, which may be damaged so that nothing can serve it. Like
/// [`Volume::open`], it may begin the program anew.
pub fn open_engine(path: &Path) -> Result<Engine> {
    memory::use_huge_pages();
    let device = open_device(path, Access::ReadOnly)?;
    Engine::open(Arc::new(device), options(Purpose::Read))
        .map_err(|error| open_failure(path, &pando_fs::Error::Engine(error)))
}

fn options(purpose: Purpose) -> Options {
    let read_only = purpose == Purpose::Read;
    Options { cache_bytes: CACHE_BYTES, read_only, ..Options::default() }
}

/// The volumes that one command has open, each once however often it is named.
#[derive(Default)]
pub struct Volumes {
    open: Vec<(Identity, Volume)>,
}

impl Volumes {
    /// The number of a volume, opened at the first call. A volume that is to be changed is to be asked for as such
    /// the first time.
    pub fn open(&mut self, path: &Path, purpose: Purpose) -> Result<usize> {
        let identity = identity(path)?;
        if let Some(index) = self.open.iter().position(|(other, _)| *other == identity) {
            return Ok(index);
        }
        self.open.push((identity, Volume::open(path, purpose)?));
        Ok(self.open.len() - 1)
    }

    /// The number and the files of a volume that is open.
    pub fn get(&self, path: &Path) -> Option<(usize, &Files)> {
        let identity = identity(path).ok()?;
        let number = self.open.iter().position(|(other, _)| *other == identity)?;
        Some((number, self.files(number)))
    }

    /// What they are in, on the host.
    pub fn identities(&self) -> Vec<Identity> {
        self.open.iter().map(|(identity, _)| *identity).collect()
    }

    /// The files of a volume.
    pub fn files(&self, number: usize) -> &Files {
        &self.open[number].1.files
    }

    /// Makes everything durable and closes all. Fails with the first error, having closed the others.
    pub fn close(self) -> Result<()> {
        let mut outcome = Ok(());
        for (_, volume) in self.open {
            outcome = outcome.and(volume.close());
        }
        outcome
    }
}

/// Opens and locks the device of a volume; the error names who uses it.
pub fn open_device(path: &Path, access: Access) -> Result<FileDevice> {
    FileDevice::open(path, access).map_err(|error| device_failure(path, &error))
}

/// The sentence for a device that could not be opened.
pub fn device_failure(path: &Path, error: &DeviceError) -> Failure {
    let name = name(path);
    Failure::new(match error {
        DeviceError::InUse { .. } => match mounts::of_volume(path) {
            Some(mount) => {
                let mountpoint = self::name(&mount.mountpoint);
                format!(
                    "{name} is mounted on {mountpoint}; use the files there, or unmount it first with \
                     'pando umount {mountpoint}'"
                )
            }
            None => match mounts::user_of(path, true) {
                Some(user) => format!("{name} is in use: {user}"),
                None => format!(
                    "{name} is in use by another process, or, if it is a disk, by a partition of it, an array or a volume group"
                ),
            },
        },
        DeviceError::Io { action: "open", code, .. } => {
            format!("cannot open {name}: {}", errno_text(Errno::from_raw_os_error(*code)))
        }
        error => format!("cannot open {name}: {error}"),
    })
}

fn open_failure(path: &Path, error: &pando_fs::Error) -> Failure {
    let name = name(path);
    Failure::new(match error {
        pando_fs::Error::Engine(pando_engine::Error::NotAVolume { what }) => {
            // Not to whoever has a part of a volume, or one of a later version.
            let advice = if holds_superblock(path) { "" } else { "; make one with 'pando format'" };
            format!("cannot open {name}: {what}{advice}")
        }
        pando_fs::Error::Engine(pando_engine::Error::Damaged { what }) => {
            format!("cannot open the volume {name}: {what}; see what is there with 'pando dump {name}'")
        }
        error => format!("cannot open the volume {name}: {error}"),
    })
}

/// Whether there is something of a superblock, whatever is wrong with it.
fn holds_superblock(path: &Path) -> bool {
    use FormatError::{Magic, Truncated};
    let slots = RawVolume::open(path).map(|raw| raw.superblocks());
    let nothing = |slot: &Result<_, RawError>| {
        matches!(slot, Err(RawError::Format(Magic { .. } | Truncated { .. }) | RawError::OutOfRange))
    };
    slots.is_ok_and(|slots| !slots.iter().all(|(_, slot)| nothing(slot)))
}

fn identity(path: &Path) -> Result<Identity> {
    let stat = rustix::fs::stat(path)
        .map_err(|error| Failure::new(format!("cannot open {}: {}", name(path), errno_text(error))))?;
    Ok(Identity { system: stat.st_dev, inode: stat.st_ino })
}

/// The path of a host's file for people.
pub fn name(path: &Path) -> String {
    shown(path.as_os_str().as_encoded_bytes())
}

/// The process's umask. It can only be read by setting it; nothing else runs when the first volume is opened.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
