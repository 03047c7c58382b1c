//! The first process of the bench's namespaces. When it ends, the kernel kills every other one with SIGKILL, and a
//! daemon that dies so together with the namespace that holds its mount may never let go of the requests under way. So it
//! ends last: it starts the run, waits for it or for the word to stop, kills the loads, unmounts, lets the daemons write
//! what they have to write, and only then goes.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::command;
use crate::error::{Error, at};
use crate::isolation::FIRST_PROCESS;
use crate::owned;
use crate::profile;
use crate::trace;

/// The hidden first argument of the process that runs the rows.
pub const INSIDE: &str = "--inside";

/// For loads to die and for daemons to write their last checkpoint. What takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs this program as the only child, and cleans up after it below `directory`.
pub fn run(directory: &Path) -> ExitCode {
    // Until this process ends: two runs would write to the same images.
    let _alone = match prepare(directory) {
        Ok(lock) => lock,
        Err(error) => {
            eprintln!("pando-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match start() {
        Ok(child) => wait_for(child, directory),
        Err(error) => {
            eprintln!("pando-bench: cannot start itself: {error}");
            1
        }
    };
    unmount_all(directory);
    end_all();
    trace::remove_left(directory);
    profile::remove_left(directory);
    // What cannot be removed is for the next run.
    let _ = owned::remove(&owned::scratch(directory));
    ExitCode::from(code)
}

/// Keeps other runs out of a directory, which is made if it is not there, and makes room for this one in it.
fn prepare(directory: &Path) -> Result<Option<File>, Error> {
    at("cannot create", directory, fs::create_dir_all(directory))?;
    let lock = owned::lock(directory)?;
    // An earlier run may have been killed, and something may still use its images.
    owned::renew(&owned::scratch(directory))?;
    Ok(lock)
}

fn start() -> std::io::Result<Pid> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe()?);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != FIRST_PROCESS);
    command.arg(INSIDE).args(arguments).stdin(Stdio::null()).process_group(0);
    let child = command.spawn()?;
    Ok(Pid::from_child(&child))
}

/// Waits until the run has ended; its exit status. All orphans of the namespace become children of this process and
/// are reaped here.
fn wait_for(run: Pid, directory: &Path) -> u8 {
    let place = directory.to_owned();
    std::thread::spawn(move || {
        // Nothing is ever written: this returns when the process at the other end has gone.
        let _ = std::io::stdin().read(&mut [0]);
        let _ = rustix::process::kill_process_group(run, Signal::KILL);
        // A load that waits for a daemon that does not answer cannot even be killed.
        std::thread::sleep(PATIENCE);
        abort_connections(&place);
    });
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == run => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                // Loads that it started may still be there after a signal.
                let _ = rustix::process::kill_process_group(run, Signal::KILL);
                return code;
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
    }
}

/// What is mounted below the directory, the last mount first: device number and place.
fn mounts(directory: &Path) -> Vec<(String, PathBuf)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mut mounts = parse_mounts(&table);
    mounts.retain(|(_, place)| place.starts_with(&directory) && *place != directory);
    mounts.reverse();
    mounts
}

/// Whether something is mounted at a place, even if it does not answer any more.
pub fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let parent = place.parent().and_then(|parent| parent.canonicalize().ok());
    let place = parent.zip(place.file_name()).map_or(place.to_owned(), |(parent, name)| parent.join(name));
    parse_mounts(&table).iter().any(|(_, one)| *one == place)
}

fn parse_mounts(table: &str) -> Vec<(String, PathBuf)> {
    let entry = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.to_owned();
        Some((device, fields.nth(1)?.replace("\\040", " ").into()))
    };
    table.lines().filter_map(entry).collect()
}

fn unmount_all(directory: &Path) {
    for (_, place) in mounts(directory) {
        let place = place.display().to_string();
        let begin = Instant::now();
        // Killed loads let go of their files one by one.
        while command::run(&["umount", "-i", &place]).is_err() {
            if begin.elapsed() > Duration::from_secs(10) {
                let _ = command::run(&["umount", "-i", "-l", &place]);
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Ends every other process of the namespace, and waits until all have ended.
fn end_all() {
    signal_others(Signal::TERM);
    let begin = Instant::now();
    let mut killed = false;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                if !killed && begin.elapsed() > PATIENCE {
                    signal_others(Signal::KILL);
                    killed = true;
                } else if begin.elapsed() > 2 * PATIENCE {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return,
        }
    }
}

fn signal_others(signal: Signal) {
    let own = rustix::process::getpid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in numbers.filter_map(Pid::from_raw).filter(|pid| *pid != own) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Gives up the FUSE mounts below the directory: what waits for them gets an error.
fn abort_connections(directory: &Path) {
    for (device, _) in mounts(directory) {
        if let Some(number) = connection(&device) {
            let _ = fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
        }
    }
}

/// The kernel's number of a FUSE connection: the device number of the mount.
fn connection(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    Some(trace::kernel_number(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_from_the_kernels_table() {
        let table =
            "36 35 0:45 / /mnt/a\\040b rw - fuse.pando /dev/loop0 rw\n40 36 7:1 /x /c rw - ext4 d rw\nbad\n";
        let expected = [("0:45", "/mnt/a b"), ("7:1", "/c")];
        assert_eq!(parse_mounts(table), expected.map(|(device, place)| (device.to_owned(), place.into())));
    }

    #[test]
    fn connections_are_device_numbers() {
        assert_eq!(connection("0:45"), Some(45));
        // As seen of a volume that was mounted from /dev/loop0.
        assert_eq!(connection("7:0"), Some(7_340_032));
        assert_eq!(connection("7:257"), Some(0x70_0101));
        assert_eq!(connection("x"), None);
    }
}
