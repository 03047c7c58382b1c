//! Snapshots mounted on their own, through the daemon that has the volume: one more session each, with a control socket of its own.
//!
//! They outlive the mount of the volume where that is taken away under them; the volume is closed when the last has ended. One lock, for the list;
//! nothing is locked while it is held.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fs::{Error, FileSystem, SnapshotFiles};
use pando_fuse::{Session, Unmounter};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::Pid;
use serde_json::Value;

use super::control_server::ControlServer;
use super::log::Log;
use super::{Answerer, mount_options, start_control};
use crate::failure::io_text;
use crate::mount_options::MountSettings;
use crate::output::shown;
use crate::snapshots::mount_source;

/// For so long one may end that the kernel has let go of.
const ENDING_TIME_MAX: Duration = Duration::from_secs(2);

/// The list; see the module.
#[derive(Default)]
pub struct SnapshotMounts {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The mount of the volume has ended: no more come.
    closing: bool,
    /// All are being unmounted: one that is just coming is, too.
    leaving: bool,
    /// Those that run, or are about to.
    running: usize,
    /// Numbers given out: a device number is used again as soon as its mount is gone.
    numbered: u64,
    unmounters: Vec<(u64, Unmounter)>,
    /// Those who wait for the end of one that ended after the mount of the volume wait for the volume to be closed.
    ended: Vec<ControlServer>,
}

impl SnapshotMounts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they are mounted. One that was just unmounted may still be on its way out.
    pub fn mountpoints(&self) -> Vec<PathBuf> {
        let unmounters = self.lock().unmounters.clone();
        unmounters.iter().flat_map(|(_, unmounter)| unmounter.mountpoints().unwrap_or_default()).collect()
    }

    /// Unmounts all; those that are in use live on for their users.
    pub fn unmount(&self, log: &Log) {
        let unmounters = {
            let mut state = self.lock();
            state.leaving = true;
            state.unmounters.clone()
        };
        for (_, unmounter) in unmounters {
            unmount(&unmounter, log);
        }
    }

    /// The volume stays mounted after all: more may come again.
    pub fn stay(&self) {
        self.lock().leaving = false;
    }

    /// Lets no more come if there are none, or none but some that the kernel has let go of and that end within a moment; tells whether it is so.
    pub fn close_if_none(&self) -> bool {
        let end = Instant::now() + ENDING_TIME_MAX;
        loop {
            let (unmounters, running) = {
                let state = self.lock();
                (state.unmounters.clone(), state.running)
            };
            let is_any_alive =
                unmounters.len() < running || unmounters.iter().any(|(_, unmounter)| unmounter.is_alive());
            let mut state = self.lock();
            if state.running == 0 {
                state.closing = true;
                return true;
            }
            let rest = end.saturating_duration_since(Instant::now());
            if is_any_alive || rest.is_zero() {
                return false;
            }
            let _ = self.changed.wait_timeout(state, rest);
        }
    }

    /// Waits until all have ended, and lets no more come. The volume is closed next; tell these.
    pub fn wait_for_end(&self) -> Vec<ControlServer> {
        let mut state = self.lock();
        state.closing = true;
        while state.running > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut state.ended)
    }

    /// One has ended, or was never mounted. `closing` if the mount of the volume is gone.
    fn end(&self, number: Option<u64>, control: Option<ControlServer>, closing: bool) {
        let mut state = self.lock();
        state.running -= 1;
        state.unmounters.retain(|(other, _)| Some(*other) != number);
        let tell = if closing || state.closing {
            state.ended.extend(control);
            None
        } else {
            control
        };
        drop(state);
        self.changed.notify_all();
        if let Some(control) = tell {
            control.finish(Ok(()));
        }
    }
}

/// Does what a request to mount a snapshot says in `name`, `mountpoint` and `options`, for the process `peer`, which is refused if it is
/// not known. An error is the end of a sentence.
pub fn mount(
    answerer: &Arc<Answerer>,
    fs: &Arc<FileSystem>,
    request: &Value,
    peer: Option<Pid>,
) -> Result<Value, String> {
    let text = |field: &str| request[field].as_str().ok_or_else(|| format!("the request lacks '{field}'"));
    let (name, mountpoint) = (text("name")?, PathBuf::from(text("mountpoint")?));
    let mut settings = MountSettings::default();
    settings.add(text("options")?).map_err(|error| error.to_string())?;
    check_namespace(peer)?;
    let mounts = &answerer.mounts;
    {
        let mut state = mounts.lock();
        if state.closing || state.leaving {
            return Err("the volume is being closed".to_owned());
        }
        state.running += 1;
    }
    let started = start(answerer, fs, name, mountpoint, &settings);
    if started.is_err() {
        mounts.end(None, None, false);
    }
    started.map(|()| Value::Null)
}

fn start(
    answerer: &Arc<Answerer>,
    fs: &Arc<FileSystem>,
    name: &str,
    mountpoint: PathBuf,
    settings: &MountSettings,
) -> Result<(), String> {
    let files = open(fs, name)?;
    let log = answerer.log.clone();
    let options = mount_options(mount_source(&answerer.volume, name), settings, log.clone(), true);
    let session =
        Session::mount(Arc::new(files), &mountpoint, &options).map_err(|error| error.to_string())?;
    let unmounter = session.unmounter();
    let control = start_control(answerer, &session, Some(name), settings);
    let answerer = answerer.clone();
    let spawned = std::thread::Builder::new().name("pando-snapshot".into());
    let (number, leaving) = {
        let mut state = answerer.mounts.lock();
        state.numbered += 1;
        let number = state.numbered;
        state.unmounters.push((number, unmounter.clone()));
        (number, state.leaving)
    };
    if leaving {
        unmount(&unmounter, &log);
    }
    let run = {
        let answerer = answerer.clone();
        move || {
            serve(session, control.as_ref(), &log);
            // The thread of the mount of the volume may not have got as far as to say so.
            let closing = !answerer.live.is_mounted();
            answerer.mounts.end(Some(number), control, closing);
        }
    };
    let spawned = spawned.spawn(run).map(drop);
    spawned.map_err(|error| {
        // The session that was given to the thread has unmounted itself.
        answerer.mounts.lock().unmounters.retain(|(other, _)| *other != number);
        format!("no thread can be started: {}", io_text(&error))
    })
}

/// One that was unmounted already is as good.
fn unmount(unmounter: &Unmounter, log: &Log) {
    if let Err(error) = unmounter.unmount(true) {
        log.error(&error.to_string());
    }
}

/// The files of a snapshot; an error is the end of a sentence.
pub fn open(fs: &Arc<FileSystem>, name: &str) -> Result<SnapshotFiles, String> {
    SnapshotFiles::open(fs, name.as_bytes()).map_err(|error| match error {
        Error::NotFound => format!("there is no snapshot {}", shown(name.as_bytes())),
        error => error.to_string(),
    })
}

fn serve(session: Session, control: Option<&ControlServer>, log: &Log) {
    if let Err(error) = session.run() {
        log.error(&format!("the connection to the kernel of a snapshot's mount broke: {}", io_text(&error)));
    }
    if let Some(control) = control {
        control.hide();
    }
}

/// Refuses who would not see the mount.
fn check_namespace(peer: Option<Pid>) -> Result<(), String> {
    // Our own number would mean nothing there.
    let Some(peer) = peer else {
        let why = "its daemon is in another pid namespace, from where it cannot be seen whose mount this would be; run \
                   the command in there, or copy from .snapshots of the mounted volume";
        return Err(why.to_owned());
    };
    let is_ours = |what: &str| {
        // A root directory may be another mount of the same one.
        let of = |process: &str| {
            let path = format!("/proc/{process}/{what}");
            let known = StatxFlags::INO | StatxFlags::MNT_ID;
            let data = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), known);
            data.map(|data| (data.stx_dev_major, data.stx_dev_minor, data.stx_ino, data.stx_mnt_id))
        };
        matches!((of(&peer.as_raw_pid().to_string()), of("self")), (Ok(theirs), Ok(ours)) if theirs == ours)
    };
    // Where both are, a path is the same place for both.
    let (elsewhere, option) = match (is_ours("ns/mnt"), is_ours("root")) {
        (true, true) => return Ok(()),
        (true, false) => ("has another root directory", "-r -m"),
        (false, _) => ("is in another mount namespace", "-m"),
    };
    Err(format!(
        "its daemon, process {0}, {elsewhere}; enter that first, with `nsenter -t {0} {option}`, or copy from \
         .snapshots of the mounted volume",
        std::process::id()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_seen_is_refused() {
        assert_eq!(check_namespace(Some(rustix::process::getpid())), Ok(()));
        assert!(check_namespace(None).unwrap_err().contains("another pid namespace"));
    }
}
