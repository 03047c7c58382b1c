//! `pando snapshot`: takes, lists, compares and deletes snapshots, and goes back to one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use pando_fuse::mount_table;
use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Result, Status, errno_text, io_text};
use crate::output::{Output, exact_name, shown, write_failure};
use crate::size::human;
use crate::volume::{Purpose, Volume, name};
use crate::write_out::{self, write_out_mount};
use crate::{mounts, snapshots, usage};

const ABOUT: &str = "\
Keeps a whole volume as it is at one moment, at once and whatever its size. A snapshot is read-only unless it is made writable; it \
shares its data with the volume until either is changed. In a mounted volume the snapshots are found in the directory .snapshots of its root, which \
no listing shows: copy from there what is needed, or 'pando clone' it.

Each command takes the mount point of a mounted volume, or the image file or block device of one that is not mounted.";

const EXAMPLES: &str = "\
Examples:
  pando snapshot create /mnt before-upgrade
  pando snapshot list /mnt
  pando snapshot diff /mnt before-upgrade
  cp /mnt/.snapshots/before-upgrade/etc/fstab /mnt/etc/
  pando snapshot rollback /mnt before-upgrade
  pando snapshot create --writable /mnt trial
  pando snapshot create --of trial /mnt trial-works
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

#[derive(Debug, Args)]
struct DiffArgs {
    /// The directory that the volume is mounted on, or its image file or block device.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    place: PathBuf,
    /// The older snapshot.
    old: String,
    /// The newer one; without it, the volume as it is now.
    new: Option<String>,
    /// Show what has another name as gone and new, at once and in the order of the tree, without remembering anything.
    #[arg(long)]
    no_renames: bool,
    /// Print a JSON object in each line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take a snapshot.
    Create {
        #[command(flatten)]
        named: Named,
        /// Take it of this snapshot as it is now, instead of the volume: a read-only one of a writable one, to keep a state of it, or the other way round.
        #[arg(long, value_name = "SNAPSHOT")]
        of: Option<String>,
        /// Let what lies in it be changed, in .snapshots of the mounted volume.
        #[arg(long)]
        writable: bool,
    },
    /// List the snapshots, in the order in which they were taken, and the space they use.
    ///
    /// Columns: when it was taken; whether it is read-only or writable; bytes on the device that it leads to; those that nothing else leads to, which come
    /// back, about, when it is deleted, or - where they cannot be counted; its name. What several snapshots share comes back when the last of them is deleted.
    List {
        /// The directory that the volume is mounted on, or its image file or block device.
        #[arg(value_name = "MOUNTPOINT|VOLUME")]
        place: PathBuf,
        /// Print the names alone, at once; without it, the space that each uses is counted.
        #[arg(long)]
        names: bool,
        /// Print a JSON array, where what cannot be counted is null.
        #[arg(long, conflicts_with = "names")]
        json: bool,
    },
    /// Show what differs between a snapshot and another one, or the volume as it is now.
    ///
    /// Each line says what has happened and to which path: + for what is new, - for what has gone, M for what has changed, R for what has
    /// another name; with a directory goes all that is in it. What neither has changed is not looked at, so that it takes as long as there are
    /// differences; but where a file with several names has changed, the list of all hard links is read. Whether a file has changed is told by
    /// its size and times; when it was last read does not count.
    Diff(DiffArgs),
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
        Action::Create { named: Named { place, name }, of, writable } => {
            let asked = json!({
                "request": "snapshot", "action": "create", "name": name, "of": of, "writable": writable
            });
            request(place, &asked, Purpose::Change, &mut io::sink())?;
        }
        Action::Delete(Named { place, name }) => act(place, "delete", name)?,
        Action::Rollback(Named { place, name }) => act(place, "rollback", name)?,
        Action::List { place, names: true, .. } => list_names(place)?,
        Action::List { place, json, .. } => list(place, *json)?,
        Action::Diff(args) => diff(args)?,
    }
    Ok(Status::Success)
}

/// The device number of the mount at a place; `None` if it is no directory, and thus a volume.
pub fn mounted(place: &Path) -> Result<Option<String>, String> {
    if !place.is_dir() {
        return Ok(None);
    }
    let entry = mount_table::mounted_at(place).map_err(|error| io_text(&error))?;
    entry.map(|entry| Some(entry.device)).ok_or_else(|| "no PandoFS volume is mounted there".to_owned())
}

/// The same for what changes the volume, which the mount of a snapshot is no place for: it shares the volume's daemon.
pub fn mounted_volume(place: &Path) -> Result<Option<String>, String> {
    let device = mounted(place)?;
    if let Some(device) = &device {
        let info = control::request(device, "info").map_err(|error| error.to_string())?;
        if info["snapshot"].is_string() {
            return Err("a snapshot is mounted there; name the mount point of the volume".to_owned());
        }
    }
    Ok(device)
}

/// Where the kernel is asked to send what was written, given a mount and its device number: the mount of the volume, also for that of a snapshot, which
/// nobody writes to. `None` if that is not mounted, or out of sight.
fn written_in(place: &Path, device: &str) -> Result<Option<PathBuf>, String> {
    let info = control::request(device, "info").map_err(|error| error.to_string())?;
    if info["snapshot"].is_string() {
        return Ok(info["volume_device"].as_str().and_then(mounts::place_of));
    }
    Ok(Some(place.to_owned()))
}

/// Notes that nobody reads any more: who writes to it says that in words.
struct Closable<'a> {
    out: &'a mut dyn Write,
    is_closed: bool,
}

impl Write for Closable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes).inspect_err(|error| self.is_closed |= error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What the daemon or the volume itself answers to a request.
pub fn request(place: &Path, request: &Value, purpose: Purpose, out: &mut dyn Write) -> Result<Value> {
    let action = request["action"].as_str().unwrap_or_default();
    let of = request["name"].as_str().map(|name| format!("{name} of ")).unwrap_or_default();
    let failed = |why: String| {
        let what = match action {
            "create" => "take the snapshot",
            "delete" => "delete the snapshot",
            "rollback" => "go back to the snapshot",
            "diff" => "compare the snapshot",
            "send" => "send the snapshot",
            _ => "list the snapshots of",
        };
        Failure::new(format!("cannot {what} {of}{}: {why}", name(place)))
    };
    let changes = matches!(action, "create" | "delete" | "rollback");
    let device = if changes { mounted_volume(place) } else { mounted(place) };
    match device.map_err(failed)? {
        Some(device) => {
            // What was written before belongs to what is kept, compared, sent, or gone back to: a writable snapshot may be mapped as well.
            let written = written_in(place, &device).map_err(failed)?;
            match (action, &written) {
                (_, None) => {}
                ("create" | "diff" | "send" | "rollback", Some(place)) => {
                    write_out_mount(place).map_err(|errno| failed(errno_text(errno)))?
                }
                (_, Some(place)) => write_out::send(place),
            }
            let answered = control::request_pieces(&device, request, out).map_err(write_failure)?;
            answered.map_err(|error| failed(error.to_string()))
        }
        None => {
            let volume = Volume::open(place, purpose)?;
            let mut out = Closable { out, is_closed: false };
            let outcome = match request["request"].as_str() {
                Some("usage") => usage::answer(volume.file_system(), false),
                _ => snapshots::answer(volume.file_system(), request, None, &mut out),
            };
            let outcome =
                outcome.map_err(|why| if out.is_closed { Failure::OutputClosed } else { failed(why) });
            volume.close().and(outcome)
        }
    }
}

fn act(place: &Path, action: &str, name: &str) -> Result<()> {
    let asked = json!({ "request": "snapshot", "action": action, "name": name });
    request(place, &asked, Purpose::Change, &mut io::sink()).map(drop)
}

fn list_request() -> Value {
    json!({ "request": "snapshot", "action": "list" })
}

fn list_names(place: &Path) -> Result<()> {
    let answer = request(place, &list_request(), Purpose::Read, &mut io::sink())?;
    let mut output = Output::new();
    for snapshot in answer.as_array().into_iter().flatten() {
        output.name(snapshot["name"].as_str().unwrap_or_default().as_bytes())?;
        output.line("")?;
    }
    output.finish()
}

fn list(place: &Path, as_json: bool) -> Result<()> {
    let asked = json!({ "request": "usage", "fresh": true });
    let answer = match request(place, &asked, Purpose::Read, &mut io::sink()) {
        Ok(mut usage) => usage["snapshots"].take(),
        // Space that cannot be counted, on a full volume for example, is no reason to hide what may be deleted there.
        Err(_) => request(place, &list_request(), Purpose::Read, &mut io::sink())?,
    };
    let bytes = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), human);
    let mut output = Output::new();
    if as_json {
        output.json(&answer)?;
    } else {
        for snapshot in answer.as_array().into_iter().flatten() {
            let taken = to_minute(&snapshot["taken"]);
            let name = shown(snapshot["name"].as_str().unwrap_or_default().as_bytes());
            let access = if snapshot["writable"] == true { "rw" } else { "ro" };
            let (referenced, exclusive) = (bytes(&snapshot["referenced"]), bytes(&snapshot["exclusive"]));
            output.line(format!("{taken}  {access}  {referenced:>8}  {exclusive:>8}  {name}"))?;
        }
    }
    output.finish()
}

/// When a snapshot was taken, for people.
fn to_minute(taken: &Value) -> String {
    let exact = taken.as_str().unwrap_or_default();
    exact.get(..16).unwrap_or(exact).replace('T', " ")
}

fn diff(args: &DiffArgs) -> Result<()> {
    let DiffArgs { place, old, new, no_renames, json } = args;
    let asked = json!({
        "request": "snapshot", "action": "diff", "name": old, "new": new, "renames": !no_renames
    });
    let mut lines = Lines { output: Output::new(), json: *json, partial: Vec::new(), failure: None };
    let outcome = request(place, &asked, Purpose::Read, &mut lines);
    if let Some(failure) = lines.failure {
        return Err(failure);
    }
    // What was found before a failure is printed before it is told.
    lines.output.finish()?;
    outcome.map(drop)
}

/// Prints what differs, given as lines of JSON in pieces.
struct Lines {
    output: Output,
    json: bool,
    partial: Vec<u8>,
    failure: Option<Failure>,
}

impl Lines {
    fn line(&mut self, line: &[u8]) -> Result<()> {
        if self.json {
            self.output.bytes(line)?;
            return self.output.line("");
        }
        let Ok(entry) = serde_json::from_slice::<Value>(line) else { return Ok(()) };
        let path = exact_name(&entry, "path");
        let what = entry["what"].as_str().unwrap_or_default();
        let renamed = what == "renamed";
        if renamed {
            self.output.bytes(b"R ")?;
            self.output.name(&exact_name(&entry, "from"))?;
            self.output.bytes(b" -> ")?;
            self.output.name(&path)?;
            self.output.line("")?;
        }
        let changed = entry["changes"].as_array().is_some_and(|changes| !changes.is_empty());
        if renamed && (!changed || entry["type"] == "directory") {
            return Ok(());
        }
        self.output.bytes(match what {
            "created" => b"+ ",
            "deleted" => b"- ",
            _ => b"M ",
        })?;
        self.output.name(&path)?;
        self.output.line("")
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Ok(bytes.len()) };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        for line in whole[..end].split(|byte| *byte == b'\n') {
            if let Err(failure) = self.line(line) {
                self.failure = Some(failure);
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
