//! `pando mount`: starts the daemon and returns when the mount is usable.
//!
//! The daemon is this program started again. It inherits nothing but its standard streams: its standard output tells when
//! the mount is usable, its standard error why it is not.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use pando_device::{Access, DeviceError, FileDevice};
use pando_fuse::MountEntry;
use serde_json::json;

use crate::control;
use crate::daemon::{READY, Service, serve};
use crate::failure::{Failure, Result, Status, errno_text, io_text};
use crate::mount_options::{MountSettings, OptionError, cache_bytes};
use crate::mounts;
use crate::output::shown;
use crate::write_out::write_out_mount;

/// So long a daemon may take to have a volume mounted of which a snapshot is to be mounted: with a log to be replayed, some seconds.
const MOUNTING_TIME_MAX: Duration = Duration::from_secs(30);

const ABOUT: &str = "\
Mounts a volume on a directory and returns when it is usable; a daemon serves it until it is unmounted. After a crash \
the volume needs no check: mounting it brings back what was durable. Root mounts for all users; other users need \
fusermount3, and mount for themselves. SIGTERM, SIGINT and SIGHUP make the daemon unmount.";

/// Arguments of `pando mount`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = OPTIONS_HELP)]
pub struct MountArgs {
    /// Mount options, separated by commas.
    #[arg(short = 'o', long, value_parser = checked)]
    options: Vec<String>,
    /// Memory for the node cache, such as 512M or 4G, at least 16M; a quarter of the machine's memory, or of its control group's, unless told.
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes)]
    cache: Option<u64>,
    /// Stay in the foreground and log to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Be the daemon of a command that waits for word on this process's standard output.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    daemon: bool,
    /// An image file or a block device.
    #[arg(value_name = "PATH")]
    volume: PathBuf,
    /// The directory to mount it on.
    mountpoint: PathBuf,
}

const OPTIONS_HELP: &str = "\
Mount options:
  ro, rw                   refuse changes, or allow them (default)
  noatime, nosuid, nodev, noexec, nosymfollow, lazytime, and their opposites: as for any mount
  dirsync, sync            have changes of names, or all changes, durable before they are answered; `mount -o remount`
                           changes that for write(2) alone
  context=LABEL, fscontext=, defcontext=, rootcontext=: what SELinux, where there is one, is told of the labels of files;
                           root's mounts only
  allow_other              let other users in (default if root mounts); no_allow_other does not
  no_default_permissions   do not check permission bits
  writeback                let the kernel collect small writes
  show_snapshots           list .snapshots in the root directory; hide_snapshots (default) does not
  snapshot=NAME            mount this snapshot alone, read-only, also while the volume is mounted: the daemon that has it
                           serves it, with the options of that mount where they concern the volume; of a writable
                           snapshot the mount shows what it is now, and nothing that is changed in it later; if another
                           process has the volume for itself, as a daemon that is about to mount it does, half a minute
                           is waited for that mount; mounted before the volume, a snapshot has a daemon of its own, and
                           keeps the volume from being mounted
  transport=WAY            how requests come from the kernel: uring, dev (/dev/fuse), or auto (default)
  nodiscard                do not tell the device which extents are free
  cache=SIZE               memory for the node cache, as --cache (default: a quarter of the memory there is)
  checkpoint=SECONDS       time between checkpoints
  commit=SECONDS           time after which a change is durable without fsync

  From allow_other on, `mount -o remount` passes over what it is told; unmount, and mount again, to have it otherwise.

Examples:
  pando mount disk.img /mnt
  pando mount -o ro,cache=256M /dev/sdb1 /srv
  mount -t fuse.pando /srv/disk.img /mnt
  mount -o remount,ro /mnt
  pando mount -o snapshot=monday disk.img /media

In /etc/fstab:
  # systemd is told to mount the snapshot after its volume
  /srv/disk.img  /mnt    fuse.pando  defaults,nofail  0  0
  /srv/disk.img  /media  fuse.pando  snapshot=monday,nofail,x-systemd.requires-mounts-for=/mnt  0  0";

/// A list of options that is understood.
fn checked(list: &str) -> Result<String, OptionError> {
    MountSettings::default().add(list).map(|()| list.to_owned())
}

/// Runs `pando mount`: done when the mount is usable; in the foreground, when the volume was unmounted and closed.
pub fn run(args: &MountArgs) -> Result<Status> {
    let mut settings = MountSettings::default();
    for list in &args.options {
        settings.add(list).map_err(|error| Failure::new(error.to_string()))?;
    }
    if !args.daemon {
        let snapshot = settings.snapshot.as_deref();
        let mount = snapshot.and_then(|_| awaited(&args.volume));
        // Behind the wait, in which somebody else may have mounted it. Who only reads would get a second daemon, over the first.
        if mounts::is_at(&args.volume, snapshot, &args.mountpoint) {
            let what = snapshot.map(|name| format!("{} of ", shown(name.as_bytes()))).unwrap_or_default();
            let (volume, mountpoint) = (args.volume.display(), args.mountpoint.display());
            return Err(Failure::new(format!("{what}{volume} is mounted on {mountpoint} already")));
        }
        if let Some((name, mount)) = snapshot.zip(mount) {
            return beside(args, name, &mount);
        }
    }
    if !args.foreground && !args.daemon {
        return start(args);
    }
    settings.cache_bytes = args.cache.or(settings.cache_bytes);
    let volume = args.volume.canonicalize();
    let volume = volume.map_err(|error| {
        Failure::new(format!("cannot mount {}: {}", args.volume.display(), io_text(&error)))
    })?;
    serve(Service { volume, mountpoint: args.mountpoint.clone(), settings, background: args.daemon })?;
    Ok(Status::Success)
}

/// Mounts in the background with these options, as the helper of mount(8) does.
pub fn in_background(volume: PathBuf, mountpoint: PathBuf, options: Vec<String>) -> Result<Status> {
    run(&MountArgs { options, cache: None, foreground: false, daemon: false, volume, mountpoint })
}

/// The mount of the volume. Who has the volume for himself may be a daemon that has not got as far, as where both are lines of /etc/fstab.
fn awaited(volume: &Path) -> Option<MountEntry> {
    let end = Instant::now() + MOUNTING_TIME_MAX;
    let mut mount = mounts::served(volume);
    while mount.is_none() {
        // That it is in use takes a second to say.
        let is_in_use = matches!(FileDevice::open(volume, Access::ReadOnly), Err(DeviceError::InUse { .. }));
        // One that is left of a killed daemon is no use. That of the daemon itself may be, which is looked for once more.
        let is_used = mounts::of_volume(volume).is_none() && mounts::user_of(volume, false).is_some();
        let is_over = !is_in_use || is_used || Instant::now() >= end;
        mount = mounts::served(volume);
        if is_over {
            break;
        }
    }
    mount
}

/// Mounts a snapshot of a volume that is mounted: its daemon does.
fn beside(args: &MountArgs, name: &str, mount: &MountEntry) -> Result<Status> {
    let failed = |why: String| {
        let (name, volume) = (shown(name.as_bytes()), args.volume.display());
        Failure::new(format!("cannot mount {name} of {volume}: {why}"))
    };
    if args.foreground {
        let why = "the volume is mounted, and its daemon would serve the snapshot; leave out --foreground";
        return Err(failed(why.to_owned()));
    }
    // The daemon has another working directory.
    let mountpoint = args.mountpoint.canonicalize();
    let mountpoint =
        mountpoint.map_err(|error| failed(format!("{}: {}", args.mountpoint.display(), io_text(&error))))?;
    let mountpoint = mountpoint.to_str().ok_or_else(|| failed("the mount point is no UTF-8".to_owned()))?;
    let options = args.options.join(",");
    // Of a writable snapshot, what was written before is shown.
    write_out_mount(&mount.mountpoint).map_err(|errno| failed(errno_text(errno)))?;
    let asked = json!({ "request": "mount", "name": name, "mountpoint": mountpoint, "options": options });
    let mounted = control::request_value(&mount.device, &asked);
    mounted.map(|_| Status::Success).map_err(|error| failed(error.to_string()))
}

/// Starts the daemon and waits for its word. If it fails it has said why.
fn start(args: &MountArgs) -> Result<Status> {
    let program = std::env::current_exe();
    let program =
        program.map_err(|error| Failure::new(format!("cannot find this program: {}", io_text(&error))))?;
    let mut command = Command::new(program);
    command.arg0("pando").args(["mount", "--daemon"]);
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    if let Some(bytes) = args.cache {
        command.arg("--cache").arg(bytes.to_string());
    }
    // A name such as /dev/fd/3 means nothing to the daemon, which has not what is open here. What is not there it says.
    let found = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    command.arg("--").arg(found(&args.volume)).arg(found(&args.mountpoint));
    // Without /proc on an old kernel they are inherited, and the mount is as good.
    let _ = pando_device::descriptors::keep_from_programs();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = command
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start the daemon: {}", io_text(&error))))?;
    let mut word = [0; READY.len()];
    let mut stdout = daemon.stdout.take().expect("standard output is piped");
    match stdout.read_exact(&mut word) {
        Ok(()) if word == READY => Ok(Status::Success),
        _ => match daemon.wait().ok().and_then(|status| status.code()) {
            Some(code) if code != 0 => Ok(Status::Problems),
            _ => Err(Failure::new(format!(
                "cannot mount {}: the daemon ended too early",
                args.volume.display()
            ))),
        },
    }
}
