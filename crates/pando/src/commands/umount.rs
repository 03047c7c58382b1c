//! `pando umount`: returns when the daemon's last checkpoint is on the device.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::Args;
use pando_fuse::mount_point;
use pando_fuse::mount_table::{self, MountEntry};
use serde_json::Value;

use crate::control::{self, Connection, ControlError};
use crate::failure::{Failure, Result, Status, complain, io_text};
use crate::mounts;
use crate::output::{exact_path, shown as output_shown};
use crate::volume::name;

/// After this time the user is told what is waited for: the daemon, or who keeps the volume from being closed.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// So long a daemon has to hear of a lazy unmount before it: one that answers needs far less, and one that hangs is not waited for.
const MOMENT: Duration = Duration::from_millis(100);

const ABOUT: &str = "\
Unmounts a volume and returns when its last checkpoint is on the device, so that the device can be taken away. If the \
volume is mounted elsewhere in this mount namespace, as by mount --bind, it goes on, and you are told. A plain umount \
works as well: with the helper that `make install` puts in place it waits, too.";

const EXAMPLES: &str = "\
Examples:
  pando umount /mnt";

/// Arguments of `pando umount`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct UmountArgs {
    /// Take the mount out of the tree at once, and wait for those who still use it.
    #[arg(long, short)]
    lazy: bool,
    /// The directory it is mounted on.
    mountpoint: PathBuf,
}

/// What is known of a volume that was unmounted.
pub enum Unmounted {
    /// It has been closed, or its daemon had been killed, which was said.
    Closed,
    /// It goes on, since it is mounted there as well.
    Elsewhere(PathBuf),
    /// Its daemon cannot be reached, as this sentence says.
    Unknown(String),
}

/// Runs `pando umount`: done when the volume is unmounted and closed, or still mounted elsewhere.
pub fn run(args: &UmountArgs) -> Result<Status> {
    match unmount(&args.mountpoint, args.lazy)? {
        Unmounted::Closed => Ok(Status::Success),
        Unmounted::Elsewhere(mountpoint) => {
            complain(format!("the volume goes on: it is mounted on {} as well", mountpoint.display()));
            Ok(Status::Success)
        }
        Unmounted::Unknown(why) => Err(Failure::new(why)),
    }
}

/// Unmounts without a word to the daemon, which may hang: out of the tree if `lazy`, whoever uses it, and by `force`.
pub fn unmount_at_once(mountpoint: &Path, lazy: bool, force: bool) -> Result<()> {
    let entry = entry_of(mountpoint)?;
    let unmount = if force { mount_point::unmount_by_force } else { mount_point::unmount };
    unmount(&entry.mountpoint, lazy).map_err(|error| Failure::new(error.to_string()))
}

fn failed(mountpoint: &Path, why: &str) -> Failure {
    Failure::new(format!("cannot unmount {}: {why}", mountpoint.display()))
}

fn entry_of(mountpoint: &Path) -> Result<MountEntry> {
    let entry = mount_table::mounted_at(mountpoint).map_err(|error| failed(mountpoint, &io_text(&error)))?;
    entry.ok_or_else(|| failed(mountpoint, "no PandoFS volume is mounted there"))
}

/// Where the volume is mounted in this mount namespace, in the order of mounting: a part of it that is bound to another place is a mount as well.
fn mounts_of(entry: &MountEntry) -> Vec<PathBuf> {
    let mut mounted = mount_table::mounted().unwrap_or_default();
    mounted.retain(|mount| mount.device == entry.device && mount.source == entry.source);
    mounted.into_iter().map(|mount| mount.mountpoint).collect()
}

/// Unmounts and waits until the volume has been closed, if that was its last mount.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<Unmounted> {
    let shown = mountpoint.display();
    let entry = entry_of(mountpoint)?;
    let mut info = Value::Null;
    if !lazy {
        info = ask_for_info(&entry).unwrap_or_default();
        // Unless the volume goes on. (If one unmount takes all its mounts along, as where mounts are shared, it then waits for the snapshot's.)
        let is_last = info["snapshot"].is_null() && mounts_of(&entry).len() <= 1;
        let snapshots = info["snapshots"].as_array().filter(|_| is_last);
        let mut snapshots = snapshots.into_iter().flatten().filter_map(Value::as_str);
        if let Some(other) = snapshots.next() {
            let why = format!(
                "a snapshot of it is mounted on {}; unmount that first",
                output_shown(other.as_bytes())
            );
            return Err(failed(mountpoint, &why));
        }
    }
    // The daemon must have heard of us before it is unmounted, since it might end before we get to it.
    let waiting = Connection::open(&entry.device).and_then(|mut daemon| {
        daemon.send("wait")?;
        let has_heard = !lazy || daemon.has_answer_within(MOMENT);
        if has_heard {
            daemon.receive()?;
        }
        Ok((daemon, has_heard))
    });
    let volume = name(&entry.source);
    // The kernel has a block device closed before its unmount ends.
    let said = waiting.as_ref().map_or("the daemon".to_owned(), |(daemon, _)| shown_daemon(daemon));
    let unmounting = complain_later(format!("waiting for {said} to close {volume}"));
    let unmounted = mount_point::unmount(&entry.mountpoint, lazy);
    drop(unmounting);
    unmounted.map_err(|error| Failure::new(error.to_string()))?;
    if let Some(elsewhere) = mounts_of(&entry).pop() {
        return Ok(Unmounted::Elsewhere(elsewhere));
    }
    let (mut daemon, mut has_heard) = match waiting {
        Ok(waiting) => waiting,
        Err(error) if control::remove_dead(&entry.device, &error) => {
            complain(format!(
                "the daemon of {shown} had been killed; the next mount of {volume} recovers from its log"
            ));
            return Ok(Unmounted::Closed);
        }
        Err(error) => {
            let why =
                format!("{shown} is unmounted, but whether {volume} has been closed is unknown: {error}");
            return Ok(Unmounted::Unknown(why));
        }
    };
    let mut heard = Ok(Value::Null);
    if !has_heard && daemon.has_answer_within(PATIENCE) {
        heard = daemon.receive();
        has_heard = true;
    }
    if !has_heard || !daemon.has_answer_within(PATIENCE) {
        let mounts = keeping_open(&entry, &info).into_iter();
        let mut others: Vec<_> =
            mounts.map(|(source, mountpoint)| format!("the end of {source} on {mountpoint}")).collect();
        others.extend(mounts::holders(&entry.device).into_iter().map(|(process, name)| {
            let name = output_shown(name.as_bytes());
            format!("the mount namespace of process {process} ({name}), in which {volume} is still mounted")
        }));
        if !has_heard || others.is_empty() {
            let users = if lazy { ", which those who still use it may keep open" } else { "" };
            others.insert(0, format!("{} to close {volume}{users}", shown_daemon(&daemon)));
        }
        others.iter().for_each(|other| complain(format!("waiting for {other}")));
    }
    if !has_heard {
        heard = daemon.receive_at_last();
    }
    match heard.and_then(|_| daemon.receive_at_last()) {
        Ok(_) => {
            daemon.wait_for_end();
            Ok(Unmounted::Closed)
        }
        Err(ControlError::Refused(why)) => {
            Err(Failure::new(format!("{shown} is unmounted, but {volume} could not be closed: {why}")))
        }
        Err(error) => Err(Failure::new(format!(
            "{shown} is unmounted, but {error}; what was not synced is recovered from the log at the next mount"
        ))),
    }
}

/// Says so after a while, unless what is returned is dropped before.
fn complain_later(sentence: String) -> mpsc::Sender<()> {
    let (done, is_done) = mpsc::channel();
    // Who can start no thread is told nothing.
    let _ = std::thread::Builder::new().spawn(move || {
        if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            complain(sentence);
        }
    });
    done
}

/// What the daemon says of itself. It may hang: if it says nothing for long, the user is told.
fn ask_for_info(entry: &MountEntry) -> Result<Value, ControlError> {
    let mut daemon = Connection::open(&entry.device)?;
    daemon.send("info")?;
    if !daemon.has_answer_within(PATIENCE) {
        let (who, shown) = (shown_daemon(&daemon), name(&entry.mountpoint));
        complain(format!("waiting for an answer of {who}; with -l, {shown} is unmounted without one"));
    }
    daemon.receive()
}

fn shown_daemon(daemon: &Connection) -> String {
    daemon.pid().map_or("the daemon".to_owned(), |pid| format!("the daemon (process {pid})"))
}

/// The mounts of snapshots, by what and where, without whose end a volume is not closed: its own mount is gone.
fn keeping_open(gone: &MountEntry, info: &Value) -> Vec<(String, String)> {
    let volume = exact_path(info, "volume").unwrap_or_else(|| gone.source.clone());
    let mut mounted = mount_table::mounted().unwrap_or_default();
    mounted.retain(|mount| mount.device != gone.device && mounts::is_of(mount, &volume));
    if mounted.iter().any(|mount| mount.source == volume) {
        return Vec::new();
    }
    let text = |path: &Path| output_shown(path.as_os_str().as_bytes());
    mounted.iter().map(|mount| (text(&mount.source), text(&mount.mountpoint))).collect()
}
