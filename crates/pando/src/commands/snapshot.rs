//! `pando snapshot`: takes, lists, deletes snapshots, and goes back to one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use pando_fuse::mount_point;
use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Result, Status, io_text};
use crate::output::{Output, shown};
use crate::size::human;
use crate::time::{DateTime, from_epoch};
use crate::volume::{Purpose, Volume, name};
use crate::{snapshots, usage};

const ABOUT: &str = "\
Keeps a whole volume as it is at one moment, at once and whatever its size. A snapshot is read-only unless it is made writable; it \
shares its data with the volume until either is changed. In a mounted volume the snapshots are found in the directory .snapshots of its root, which \
no listing shows: copy from there what is needed, or 'pando clone' it.

Each command takes the mount point of a mounted volume, or the image file or block device of one that is not mounted.";

const EXAMPLES: &str = "\
Examples:
  pando snapshot create /mnt before-upgrade
  pando snapshot list /mnt
  cp /mnt/.snapshots/before-upgrade/etc/fstab /mnt/etc/
  pando snapshot rollback /mnt before-upgrade
  pando snapshot create --writable /mnt trial
  pando snapshot delete /mnt before-upgrade";

/// Arguments of `pando snapshot`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Args)]
struct Named {
    /// The directory that the volume is mounted on, or its image file or block device.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    place: PathBuf,
    /// The snapshot's name.
    name: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take a snapshot.
    Create {
        #[command(flatten)]
        named: Named,
        /// Let what lies in it be changed, in .snapshots of the mounted volume.
        #[arg(long)]
        writable: bool,
    },
    /// List the snapshots, in the order in which they were taken, and the space they use.
    ///
    /// Columns: when it was taken; whether it is read-only or writable; bytes on the device that it leads to; those that nothing else leads to, which come
    /// back, about, when it is deleted; its name. What several snapshots share comes back when the last of them is deleted.
    List {
        /// The directory that the volume is mounted on, or its image file or block device.
        #[arg(value_name = "MOUNTPOINT|VOLUME")]
        place: PathBuf,
        /// Print the names alone, at once; without it, the space that each uses is counted.
        #[arg(long)]
        names: bool,
        /// Print a JSON array.
        #[arg(long, conflicts_with = "names")]
        json: bool,
    },
    /// Delete a snapshot; the space that nothing else uses comes back in the background.
    Delete(Named),
    /// Make a volume what it was when the snapshot was taken.
    ///
    /// All that has changed since is lost, unless another snapshot has it; the snapshots stay. It is done whole or not at all, also over a
    /// crash. In a mounted volume, what is in use but the root directory answers that it is gone ("stale file handle"): open files, working
    /// directories, memory maps. Files that were removed before and are still open live on. What is mounted below is unmounted. All but the
    /// root directory shows new inode numbers.
    Rollback(Named),
}

/// Runs `pando snapshot`.
pub fn run(args: &SnapshotArgs) -> Result<Status> {
    match &args.action {
        Action::Create { named: Named { place, name }, writable } => {
            let asked =
                json!({ "request": "snapshot", "action": "create", "name": name, "writable": writable });
            request(place, &asked, Purpose::Change)?;
        }
        Action::Delete(Named { place, name }) => act(place, "delete", name)?,
        Action::Rollback(Named { place, name }) => act(place, "rollback", name)?,
        Action::List { place, names: true, .. } => list_names(place)?,
        Action::List { place, json, .. } => list(place, *json)?,
    }
    Ok(Status::Success)
}

/// The device number of the mount at a place; `None` if it is no directory, and thus a volume.
fn mounted(place: &Path) -> Result<Option<String>, String> {
    if !place.is_dir() {
        return Ok(None);
    }
    let entry = mount_point::mounted_at(place).map_err(|error| io_text(&error))?;
    entry.map(|entry| Some(entry.device)).ok_or_else(|| "no PandoFS volume is mounted there".to_owned())
}

/// What the daemon or the volume itself answers to a request.
fn request(place: &Path, request: &Value, purpose: Purpose) -> Result<Value> {
    let action = request["action"].as_str().unwrap_or_default();
    let of = request["name"].as_str().map(|name| format!("{name} of ")).unwrap_or_default();
    let failed = |why: String| {
        let what = match action {
            "create" => "take the snapshot",
            "delete" => "delete the snapshot",
            "rollback" => "go back to the snapshot",
            _ => "list the snapshots of",
        };
        Failure::new(format!("cannot {what} {of}{}: {why}", name(place)))
    };
    match mounted(place).map_err(failed)? {
        Some(device) => {
            // What the kernel has written and not sent yet belongs to it. A mount that cannot be opened says so itself.
            if let Ok(directory) = std::fs::File::open(place) {
                let _ = rustix::fs::syncfs(directory);
            }
            control::request_value(&device, request).map_err(|error| failed(error.to_string()))
        }
        None => {
            let volume = Volume::open(place, purpose)?;
            let outcome = match request["request"].as_str() {
                Some("usage") => usage::answer(volume.file_system(), false),
                _ => snapshots::answer(volume.file_system(), request, None),
            };
            let outcome = outcome.map_err(failed);
            volume.close().and(outcome)
        }
    }
}

fn act(place: &Path, action: &str, name: &str) -> Result<()> {
    let asked = json!({ "request": "snapshot", "action": action, "name": name });
    request(place, &asked, Purpose::Change).map(drop)
}

fn list_names(place: &Path) -> Result<()> {
    let asked = json!({ "request": "snapshot", "action": "list" });
    let answer = request(place, &asked, Purpose::Read)?;
    let mut output = Output::new();
    for snapshot in answer.as_array().into_iter().flatten() {
        output.name(snapshot["name"].as_str().unwrap_or_default().as_bytes())?;
        output.line("")?;
    }
    output.finish()
}

fn list(place: &Path, as_json: bool) -> Result<()> {
    let asked = json!({ "request": "usage", "fresh": true });
    let answer = request(place, &asked, Purpose::Read)?;
    let answer = &answer["snapshots"];
    let bytes = |value: &Value| human(value.as_u64().unwrap_or_default());
    let mut output = Output::new();
    if as_json {
        output.json(&answer)?;
    } else {
        for snapshot in answer.as_array().into_iter().flatten() {
            let seconds = snapshot["taken"].as_i64().unwrap_or_default();
            let taken: SystemTime = from_epoch(seconds, 0);
            let name = shown(snapshot["name"].as_str().unwrap_or_default().as_bytes());
            let access = if snapshot["writable"] == true { "rw" } else { "ro" };
            let (referenced, exclusive) = (bytes(&snapshot["referenced"]), bytes(&snapshot["exclusive"]));
            let taken = DateTime::from(taken).to_minute();
            output.line(format!("{taken}  {access}  {referenced:>8}  {exclusive:>8}  {name}"))?;
        }
    }
    output.finish()
}
