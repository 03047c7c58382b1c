//! `pando clone`: makes a clone of a file or a directory, in a mount or in a volume that is not mounted.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;
use pando_fs::Error;
use pando_fuse::ioctl;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Cause, Failure, Result, Status, errno_text};
use crate::files::Files;
use crate::location::{Location, VolumePath};
use crate::output::shown;
use crate::path::{LastLink, walk};
use crate::volume::{Purpose, Volumes};
use crate::write_out::write_out;

const ABOUT: &str = "\
Makes a clone of a file or of a directory with everything below it, whatever its size, at once. Clone and source share \
their data until one of them is changed; neither sees the other's changes. Everything is kept as 'cp -a' keeps it: modes, \
owners, times, extended attributes, sparse files, and hard links among the names that are cloned. Both places are in the same \
mounted volume, or in the same volume that is not mounted. There must be nothing at the target yet. The clone is \
whole or not there at all, also after a crash.

Like for cp, the source must be readable and the target's directory writable. A directory can be cloned by its \
owner and by root. What is written through memory maps belongs to the clone of a directory once it has been synced.";

const EXAMPLES: &str = "\
Examples:
  pando clone /mnt/project /mnt/project-before
  pando clone disk.img:/machine.qcow2 disk.img:/test.qcow2";

/// Arguments of `pando clone`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct CloneArgs {
    /// What to clone: a file or directory of a mounted volume, or VOLUME:/path.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The clone's name, in the same volume.
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Runs `pando clone`.
pub fn run(args: &CloneArgs) -> Result<Status> {
    let fail = |why: &dyn std::fmt::Display| {
        let (source, target) = (shown(args.source.as_bytes()), shown(args.target.as_bytes()));
        Failure::new(format!("cannot clone {source} to {target}: {why}"))
    };
    match (Location::parse(&args.source), Location::parse(&args.target)) {
        (Location::Host(source), Location::Host(target)) => {
            in_mount(&source, &target).map_err(|why| fail(&why))?;
        }
        (Location::Volume(source), Location::Volume(target)) => {
            let mut volumes = Volumes::default();
            let volume = volumes.open(&target.volume, Purpose::Change)?;
            if volumes.open(&source.volume, Purpose::Change)? != volume {
                return Err(fail(&"they are in different volumes; use 'pando cp -a'"));
            }
            let outcome = in_volume(volumes.files(volume), &source, &target).map_err(|cause| fail(&cause));
            volumes.close().and(outcome)?;
        }
        _ => return Err(fail(&"one is in a volume that is not mounted; use 'pando cp -a'")),
    }
    Ok(Status::Success)
}

fn in_mount(source: &Path, target: &Path) -> Result<(), String> {
    let (Some(name), Some(directory)) = (target.file_name(), target.parent()) else {
        return Err("the target has no name".to_owned());
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let open = |path: &Path, flags| {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        opened.map_err(|errno| format!("{}: {}", shown(path.as_os_str().as_bytes()), errno_text(errno)))
    };
    let metadata = source.symlink_metadata().map_err(|error| crate::failure::io_text(&error))?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err("only files and directories can be cloned in a mount".to_owned());
    }
    let (source, directory) = (open(source, OFlags::NOFOLLOW)?, open(directory, OFlags::DIRECTORY)?);
    // What the kernel has of it and has not sent yet belongs to it.
    let sent = if metadata.is_file() { rustix::fs::fsync(&source) } else { write_out(&source) };
    let cloned = sent.and_then(|()| ioctl::clone_tree(source.as_fd(), directory.as_fd(), name.as_bytes()));
    cloned.map_err(|errno| match errno {
        Errno::NOTTY => "it is in no mounted PandoFS volume; use 'cp -a'".to_owned(),
        Errno::XDEV => "they are in different file systems; use 'cp -a'".to_owned(),
        Errno::INVAL if metadata.is_dir() => "a directory cannot be cloned into itself".to_owned(),
        Errno::PERM => "only its owner and root may clone a directory".to_owned(),
        errno => errno_text(errno),
    })
}

fn in_volume(files: &Files, source: &VolumePath, target: &VolumePath) -> Result<(), Cause> {
    let source = walk(files, &source.path, LastLink::Keep)?;
    let target = walk(files, &target.path, LastLink::Keep)?;
    let (inode, _) = source.node.as_ref().ok_or(Error::NotFound)?;
    if target.name.is_empty() {
        return Err(Error::Exists.into());
    }
    match files.clone_tree(inode.number(), target.parent.number(), &target.name) {
        Err(Error::Invalid) => Err(Cause::Refused("a directory cannot be cloned into itself")),
        outcome => Ok(outcome?),
    }
}
