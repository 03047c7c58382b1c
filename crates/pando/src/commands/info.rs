//! `pando info`: what a volume is.

use std::path::{Path, PathBuf};

use clap::Args;
use pando_device::{Access, DeviceError, FileDevice};
use pando_format::Superblock;
use pando_format::version::FORMAT_VERSION;
use pando_fuse::mount_table::{MountEntry, mounted_at};
use serde_json::{Map, Value, json};

use crate::commands::format::uuid;
use crate::control;
use crate::failure::{Failure, Result, Status};
use crate::output::{Output, exact_path, put_name, shown};
use crate::raw::RawVolume;
use crate::size::human;
use crate::time::{DateTime, from_epoch};
use crate::volume::{Purpose, Volume, device_failure, name};
use crate::{mounts, usage};

const ABOUT: &str = "\
Shows what a volume is: its size and how full it is, its label and id, its geometry and its state. It may be \
mounted meanwhile. A volume that is not mounted is opened for reading to tell how full it is; nothing is written. Where \
another process has it for itself, as a daemon in another mount namespace, that is left out.";

const EXAMPLES: &str = "\
Examples:
  pando info disk.img
  pando info --json /mnt | jq .used";

/// Arguments of `pando info`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct InfoArgs {
    /// An image file, a block device, or a directory that a volume is mounted on.
    #[arg(value_name = "PATH|MOUNTPOINT")]
    path: PathBuf,
    /// Print a JSON object; if another process has the volume for itself, `in_use` says so, and what cannot be told is null. If a mounted volume takes
    /// no changes any more, `failure` says why.
    #[arg(long)]
    json: bool,
}

/// Runs `pando info`.
pub fn run(args: &InfoArgs) -> Result<Status> {
    let mounted = mounted_at(&args.path).ok().flatten();
    let (volume, mount) = match mounted {
        Some(mount) => {
            let volume = volume_of(&mount);
            if mounts::is_of_another(&mount, &volume) {
                let (place, volume) = (name(&mount.mountpoint), name(&volume));
                return Err(Failure::new(format!(
                    "cannot show the volume mounted on {place}: it is not what is at {volume} now"
                )));
            }
            (volume, Some(mount))
        }
        None => (args.path.clone(), mounts::served(&args.path)),
    };
    let superblock = RawVolume::open(&volume)?.newest_superblock(&volume)?;
    let in_use = if mount.is_none() { in_use(&volume) } else { None };
    let (space, usage) = match &mount {
        Some(mount) => (space_of_mount(mount)?, control::request(&mount.device, "usage").ok()),
        None if in_use.is_some() => (None, None),
        None => space_of_volume(&volume).map(|(space, usage)| (Some(space), usage))?,
    };
    let daemon = mount.as_ref().and_then(|mount| control::request(&mount.device, "info").ok());
    let of_daemon = |field: &str| Some(shown(daemon.as_ref()?.get(field)?.as_str()?.as_bytes()));
    let (transport, failure) = (of_daemon("transport"), of_daemon("failure"));
    let (transport, failure) = (transport.as_deref(), failure.as_deref());
    let mut output = Output::new();
    if args.json {
        let mut object = to_json(&volume, mount.as_ref(), transport, &superblock, space);
        object["usage"] = usage.unwrap_or_default();
        object["in_use"] = json!(in_use);
        object["failure"] = json!(failure);
        output.json(&object)?;
    } else {
        print(&mut output, &volume, mount.as_ref(), failure, &superblock, space, in_use.as_deref())?;
        if let Some(transport) = transport {
            output.line(format!("{:>11}: {transport}", "Transport"))?;
        }
        for (of, bytes) in usage.iter().flat_map(usage::lines) {
            output.line(format!("{of:>11}: {bytes}"))?;
        }
    }
    output.finish()?;
    Ok(Status::Success)
}

/// The volume that is mounted, or a snapshot of which is.
fn volume_of(mount: &MountEntry) -> PathBuf {
    let info = control::request(&mount.device, "info").unwrap_or_default();
    let is_snapshot = info["snapshot"].is_string();
    exact_path(&info, "volume").filter(|_| is_snapshot).unwrap_or_else(|| mount.source.clone())
}

/// How full a volume is, in bytes.
#[derive(Debug, Clone, Copy)]
struct Space {
    capacity: u64,
    free: u64,
    available: u64,
}

impl Space {
    fn used(&self) -> u64 {
        self.capacity.saturating_sub(self.free)
    }
}

/// `None` if it cannot be told.
fn space_of_mount(mount: &MountEntry) -> Result<Option<Space>> {
    let stat = rustix::fs::statvfs(&mount.mountpoint).map_err(|error| {
        let why = crate::failure::errno_text(error);
        Failure::new(format!("cannot ask the mount {}: {why}", name(&mount.mountpoint)))
    })?;
    // What FUSE tells whom the mount does not let in, as root where another user has mounted for himself.
    if stat.f_blocks == 0 {
        let told = control::request(&mount.device, "space").unwrap_or_default();
        let bytes = |field: &str| told[field].as_u64();
        let all = bytes("capacity").zip(bytes("free")).zip(bytes("available"));
        return Ok(all.map(|((capacity, free), available)| Space { capacity, free, available }));
    }
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Some(Space {
        capacity: bytes(stat.f_blocks),
        free: bytes(stat.f_bfree),
        available: bytes(stat.f_bavail),
    }))
}

/// That somebody has a volume for himself, as a sentence.
fn in_use(path: &Path) -> Option<String> {
    match FileDevice::open(path, Access::ReadOnly) {
        Err(error @ DeviceError::InUse { .. }) => match device_failure(path, &error) {
            Failure::Sentence(sentence) => Some(sentence),
            Failure::OutputClosed => None,
        },
        // What else is wrong comes up when it is opened.
        _ => None,
    }
}

/// How full it is and, if it can be counted, by what.
fn space_of_volume(path: &Path) -> Result<(Space, Option<Value>)> {
    let volume = Volume::open(path, Purpose::Read)?;
    let statistics = volume.files.statistics();
    let usage = usage::answer(volume.file_system(), false).ok();
    volume.close()?;
    let statistics = statistics
        .map_err(|error| Failure::new(format!("cannot tell how full {} is: {error}", name(path))))?;
    let space =
        Space { capacity: statistics.capacity, free: statistics.free, available: statistics.available };
    Ok((space, usage))
}

fn time(nanoseconds: u64) -> String {
    DateTime::from(from_epoch((nanoseconds / 1_000_000_000) as i64, (nanoseconds % 1_000_000_000) as u32))
        .exact()
}

fn to_json(
    path: &Path,
    mount: Option<&MountEntry>,
    transport: Option<&str>,
    superblock: &Superblock,
    space: Option<Space>,
) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "path", path.as_os_str().as_encoded_bytes());
    match mount {
        Some(mount) => put_name(&mut object, "mountpoint", mount.mountpoint.as_os_str().as_encoded_bytes()),
        None => drop(object.insert("mountpoint".to_owned(), Value::Null)),
    }
    let Superblock { label, node_bytes, basement_bytes, fanout, compression, clean, .. } = superblock;
    let Superblock { checkpoint, epoch, capacity, log, created, written, .. } = superblock;
    let fields = [
        ("transport", json!(transport)),
        ("id", json!(uuid(&superblock.volume))),
        ("label", json!(label)),
        ("format_version", json!(FORMAT_VERSION)),
        ("size", json!(capacity)),
        ("node_space", json!(space.map(|space| space.capacity))),
        ("used", json!(space.map(|space| space.used()))),
        ("available", json!(space.map(|space| space.available))),
        ("log_bytes", json!(log.length)),
        ("node_bytes", json!(node_bytes)),
        ("basement_bytes", json!(basement_bytes)),
        ("fanout", json!(fanout)),
        ("compression", json!(compression.name())),
        ("created", json!(time(*created))),
        ("checkpoint", json!({ "number": checkpoint, "written": time(*written) })),
        ("opened", json!(epoch)),
        ("clean", json!(clean)),
    ];
    object.extend(fields.map(|(field, value)| (field.to_owned(), value)));
    object.into()
}

fn print(
    output: &mut Output,
    path: &Path,
    mount: Option<&MountEntry>,
    failure: Option<&str>,
    superblock: &Superblock,
    space: Option<Space>,
    in_use: Option<&str>,
) -> Result<()> {
    let Superblock { label, node_bytes, basement_bytes, fanout, compression, clean, .. } = superblock;
    let Superblock { checkpoint, epoch, capacity, log, created, written, .. } = superblock;
    let state = match (mount, clean) {
        _ if in_use.is_some() => "in use".to_owned(),
        (Some(mount), _) => {
            let failed = failure.map(|why| format!("; it takes no changes any more: {why}"));
            let mountpoint = shown(mount.mountpoint.as_os_str().as_encoded_bytes());
            format!("mounted on {mountpoint}{}", failed.unwrap_or_default())
        }
        (None, true) => "clean".to_owned(),
        (None, false) => "not closed; the next mount replays the log".to_owned(),
    };
    let label = if label.is_empty() { "none".to_owned() } else { shown(label.as_bytes()) };
    let used = match space {
        Some(space) => format!(
            "{} of {}, {} available",
            human(space.used()),
            human(space.capacity),
            human(space.available)
        ),
        None => {
            let why = "the mount lets only its user in, and its daemon cannot be reached";
            format!("not known, since {}", in_use.unwrap_or(why))
        }
    };
    let lines = [
        ("Volume", name(path)),
        ("State", state),
        ("Label", label),
        ("Id", uuid(&superblock.volume)),
        ("Size", format!("{} ({capacity} bytes)", human(*capacity))),
        ("Used", used),
        ("Log", human(log.length)),
        (
            "Nodes",
            format!(
                "{}, basement nodes {}, fan-out {fanout}",
                human((*node_bytes).into()),
                human((*basement_bytes).into())
            ),
        ),
        ("Compression", compression.name().to_owned()),
        ("Format", format!("version {FORMAT_VERSION}")),
        ("Created", time(*created)),
        ("Checkpoint", format!("{checkpoint}, written {}", time(*written))),
        ("Opened", format!("{epoch} times for writing")),
    ];
    for (field, value) in lines {
        output.line(format!("{field:>11}: {value}"))?;
    }
    Ok(())
}
