//! The helpers that mount(8) and umount(8) call: this program under the names `mount.fuse.pando` and `umount.fuse.pando`, and `fuseblk` in place of
//! `fuse`, as mounts of block devices are listed.
//! So a line in /etc/fstab works as it does for any file system.
//!
//! They understand what mount(8) passes on and keep its exit statuses; the work is that of `pando mount` and `pando umount`.
//! Changing a mount that is there exists only here: `mount -o remount`.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};
use pando_fuse::{VfsOption, mount_point, mount_table};
use rustix::fs::StatVfsMountFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use crate::commands::mount;
use crate::commands::umount::{self, PATIENCE, Unmounted};
use crate::control::{Connection, ControlError};
use crate::failure::{Failure, Result, Status, complain, io_text};
use crate::mount_options::{MountSettings, OptionError, split};
use crate::mounts;

/// Exit status of mount(8) and umount(8) for a mount or an unmount that failed.
const FAILED: u8 = 32;

/// Exit status of mount(8) for a command line that makes no sense.
const USAGE: u8 = 1;

/// How options begin that the kernel or mount(8) shows of a mount, and nobody asks for.
const OF_THE_KERNEL: &[&str] = &[
    "user_id=",
    "group_id=",
    "rootmode=",
    "fd=",
    "max_read=",
    "blksize=",
    "fsname=",
    "subtype=",
    "seclabel",
];

/// What both are told, most of which they need not know.
#[derive(Debug, Args)]
struct PassedOn {
    #[arg(short = 'n')]
    no_mtab: bool,
    #[arg(short = 'v')]
    verbose: bool,
    /// The mount namespace to work in, by its file or a process of it. Helpers are run outside.
    #[arg(short = 'N')]
    namespace: Option<OsString>,
    #[arg(short = 't')]
    file_system_type: Option<OsString>,
}

impl PassedOn {
    /// Before anything else is looked up.
    fn enter_namespace(&self) -> Result<()> {
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let is_process = namespace.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
        let path = match is_process {
            true => Path::new("/proc").join(namespace).join("ns/mnt"),
            false => PathBuf::from(namespace),
        };
        let failed = |error: io::Error| {
            Failure::new(format!("cannot enter the mount namespace {}: {}", path.display(), io_text(&error)))
        };
        let file = File::open(&path).map_err(failed)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|error| failed(error.into()))
    }
}

/// `mount.fuse.pando SOURCE DIRECTORY [-sfnv] [-N NS] [-o OPTIONS] [-t TYPE]`.
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.pando", disable_help_flag = true)]
#[command(about = "Mount a PandoFS volume, called by mount(8)")]
struct MountHelper {
    volume: PathBuf,
    mountpoint: PathBuf,
    #[arg(short = 'o')]
    options: Vec<String>,
    /// Pass over options that are not known.
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything but mount.
    #[arg(short = 'f')]
    fake: bool,
    #[command(flatten)]
    passed_on: PassedOn,
}

/// `umount.fuse.pando DIRECTORY [-flnrv] [-N NS] [-t TYPE]`.
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.pando", disable_help_flag = true)]
#[command(about = "Unmount a PandoFS volume, called by umount(8)")]
struct UmountHelper {
    mountpoint: PathBuf,
    #[arg(short = 'l')]
    lazy: bool,
    #[arg(short = 'f')]
    force: bool,
    /// If it cannot be unmounted, make it read-only.
    #[arg(short = 'r')]
    read_only: bool,
    #[command(flatten)]
    passed_on: PassedOn,
}

/// Runs as the helper of mount(8). The first argument is the name of the program.
pub fn run_mount(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match MountHelper::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            complain(error);
            return ExitCode::from(USAGE);
        }
    };
    if args.passed_on.namespace.is_some() {
        // The daemon is a program, and would be one of those in there.
        complain(
            "a volume is mounted in another mount namespace by a mount(8) in there: nsenter --mount=NAMESPACE mount ...",
        );
        return ExitCode::from(USAGE);
    }
    let mut options: Vec<String> =
        args.options.iter().flat_map(|list| split(list)).map(str::to_owned).collect();
    let before = options.len();
    options.retain(|option| option != "remount");
    let is_remount = options.len() < before;
    let mut known = Vec::new();
    let mut settings = MountSettings::default();
    for option in options {
        // As /proc/self/mountinfo shows what is mounted, which mount(8) passes on.
        if is_remount && OF_THE_KERNEL.iter().any(|name| option.starts_with(name)) {
            continue;
        }
        match settings.add(&option) {
            Ok(()) => known.push(option),
            Err(OptionError::Unknown(_)) if args.sloppy => {}
            Err(error) => {
                complain(error);
                return ExitCode::from(USAGE);
            }
        }
    }
    if args.fake {
        return ExitCode::SUCCESS;
    }
    if is_remount {
        return status(remount(&args.mountpoint, &known).map(|()| Status::Success), FAILED);
    }
    // mount(8) knows by its source that a volume is mounted. A snapshot has another one than its line in /etc/fstab, and so has what the line names by a link, as
    // those of /dev/mapper are.
    let is_read_only = |place: &Path| {
        let flags = rustix::fs::statvfs(place).ok()?.f_flag;
        Some(flags.contains(StatVfsMountFlags::RDONLY))
    };
    if mounts::is_at(&args.volume, settings.snapshot.as_deref(), &args.mountpoint)
        && is_read_only(&args.mountpoint) == Some(settings.is_read_only())
    {
        return ExitCode::SUCCESS;
    }
    status(mount::in_background(args.volume, args.mountpoint, known), FAILED)
}

/// Runs as the helper of umount(8). The first argument is the name of the program.
pub fn run_umount(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match UmountHelper::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            complain(error);
            return ExitCode::FAILURE;
        }
    };
    let unmounted = args.passed_on.enter_namespace().and_then(|()| {
        let before = mount_table::mounted_at(&args.mountpoint).ok().flatten();
        unmount(&args).or_else(|failure| {
            // What is unmounted and could not be closed, say, may have uncovered another mount.
            let now = mount_table::mounted_at(&args.mountpoint).ok().flatten();
            let is_there = before.zip(now).is_some_and(|(before, now)| before.device == now.device);
            if args.read_only && is_there {
                remount(&args.mountpoint, &["ro".to_owned()])
            } else {
                Err(failure)
            }
        })
    });
    status(unmounted.map(|()| Status::Success), FAILED)
}

/// Who asks for it lazily or by force has no time for a daemon that may hang.
fn unmount(args: &UmountHelper) -> Result<()> {
    if args.lazy || args.force {
        return umount::unmount_at_once(&args.mountpoint, args.lazy, args.force);
    }
    // Unmounted it is, and nobody has asked for more.
    if let Unmounted::Unknown(why) = umount::unmount(&args.mountpoint, false)? {
        complain(why);
    }
    Ok(())
}

/// The exit status for a result, whose sentence is printed.
fn status(result: Result<Status>, failed: u8) -> ExitCode {
    match result {
        Ok(Status::Success) => return ExitCode::SUCCESS,
        Err(Failure::Sentence(sentence)) => complain(sentence),
        // What went wrong has been said.
        Ok(Status::Problems) | Err(Failure::OutputClosed) => {}
    }
    ExitCode::from(failed)
}

/// Gives a mounted volume other options of those that the kernel keeps. mount(8) has joined those asked for with those of
/// /etc/fstab and of the mount itself, so what the daemon alone could change is passed over. `options` are known ones.
///
/// When a mount becomes read-only, the daemon refuses what does not come through the kernel as well, such as snapshots, and everything is
/// on the device and in a checkpoint before this returns.
fn remount(mountpoint: &Path, options: &[String]) -> Result<()> {
    let shown = mountpoint.display();
    let failed = |why: String| Failure::new(format!("cannot remount {shown}: {why}"));
    let entry = mount_table::mounted_at(mountpoint).map_err(|error| failed(io_text(&error)))?;
    let entry = entry.ok_or_else(|| failed("no PandoFS volume is mounted there".to_owned()))?;
    let options: Vec<VfsOption> = options.iter().filter_map(|option| VfsOption::parse(option)).collect();
    let read_only = mount_point::is_read_only(&options);
    let unanswered = |error: ControlError| failed(error.to_string());
    // What is asked later is asked of the same daemon: another mount may get the device number.
    let mut daemon = Connection::open(&entry.device).map_err(unanswered)?;
    let refuse_changes = |refuse: bool| json!({ "request": "refuse_changes", "refuse": refuse });
    daemon.send("remount").map_err(unanswered)?;
    daemon.send_value(&json!({ "request": "info", "brief": true })).map_err(unanswered)?;
    if !read_only {
        // Before the kernel lets changes through, and behind what it still has to write. A daemon that went on refusing would
        // have the kernel lose what programs were told is written. One that has opened the volume for reading only refuses for good.
        daemon.send_value(&refuse_changes(false)).map_err(unanswered)?;
    }
    if !daemon.has_answer_within(PATIENCE) {
        complain(format!("waiting for the daemon of {shown}, or for another remount of it"));
    }
    match daemon.receive() {
        // From before an upgrade, it lets remounts through at the same time.
        Ok(_) | Err(ControlError::Refused(_)) => {}
        Err(error) => return Err(unanswered(error)),
    }
    // Also where it would be made read-only: without the daemon it would be so in part.
    let info = daemon.receive().map_err(unanswered)?;
    if !read_only && info["read_only"] == true {
        let why = "its daemon has opened the volume for reading only; unmount it and mount it again";
        return Err(failed(why.to_owned()));
    }
    let refused = !read_only && daemon.receive().map_err(unanswered)? == true;
    if let Err(error) = mount_point::remount(&entry.mountpoint, &options) {
        if refused {
            // The first error is the one to tell.
            let _ = daemon.send_value(&refuse_changes(true)).and_then(|()| daemon.receive());
        }
        return Err(Failure::new(error.to_string()));
    }
    if read_only {
        let mut close_to_changes = || {
            daemon.send_value(&refuse_changes(true))?;
            daemon.send("checkpoint")?;
            daemon.receive().and_then(|_| daemon.receive())
        };
        close_to_changes().map_err(|why| Failure::new(format!("{shown} is read-only now, but: {why}")))?;
    }
    Ok(())
}
