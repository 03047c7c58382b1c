//! The end of a connection whose daemon was killed.
//!
//! The kernel aborts it when the daemon's last thread has ended. One that waits there for pages to be forgotten (`notifier.rs`) may wait for an answer of
//! the daemon's, and cannot be killed: then neither would ever end, nor anybody who waits for the mount. So another process aborts it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A way to abort one connection, and no later one of the same device number.
pub(super) struct Connection(File);

impl Connection {
    /// That of a mount with this device number, `major:minor`. Only for who may mount.
    pub(super) fn of(device: &str) -> io::Result<Self> {
        let unknown = || io::Error::new(io::ErrorKind::InvalidInput, "not the number of a device");
        let (major, minor) = device.split_once(':').ok_or_else(unknown)?;
        let numbers = (major.parse::<u32>(), minor.parse::<u32>());
        let (Ok(major), Ok(minor)) = numbers else { return Err(unknown()) };
        let control = control()?;
        // As the kernel writes a device number that it uses itself.
        let path = format!("{}/abort", major << 20 | minor);
        let abort = openat(control, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self(abort.into()))
    }

    /// Has the kernel end all requests, now and in future, with an error. What is gone already stays so.
    pub(super) fn abort(mut self) {
        // The connection may have ended meanwhile, as it should.
        let _ = self.0.write_all(b"1");
    }
}

/// The directory of all connections, which need not be mounted anywhere.
fn control() -> io::Result<OwnedFd> {
    let file_system = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&file_system)?;
    Ok(fsmount(file_system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}
