//! Requests about snapshots: what the daemon of a mounted volume answers, and `pando snapshot` itself for one that is
//! not mounted.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pando_fs::difference::{Entry, What};
use pando_fs::operations::{Operations, ROOT, SNAPSHOTS, changing, waiting};
use pando_fs::send::TransferError;
use pando_fs::{Error, FileSystem, InodeNumber, Snapshot, Vanished};
use pando_fuse::Notifier;
use serde_json::{Map, Value, json};

use crate::attributes::type_name;
use crate::failure::io_text;
use crate::output::{put_name, shown};
use crate::time::DateTime;

/// Does what a request says in its fields `action` (`create`, `list`, `delete`, `rollback`, `diff`, `send`), `name` and, to create one, `of` and `writable`. What
/// comes before the answer goes to `out`. What
/// the kernel of a mount remembers and is no more it is told to forget. Waits for the device. An error is the end of a sentence.
pub fn answer(
    fs: &FileSystem,
    request: &Value,
    kernel: Option<&Notifier>,
    out: &mut dyn Write,
) -> Result<Value, String> {
    let name = request["name"].as_str().unwrap_or_default().as_bytes();
    let done =
        |result: pando_fs::Result<()>| result.map(|()| Value::Null).map_err(|error| error.snapshot_text());
    match request["action"].as_str() {
        Some("create") => {
            let writable = request["writable"].as_bool().unwrap_or_default();
            let of = request["of"].as_str();
            let taken = changing(fs, |fs| fs.take_snapshot_of(of.map(str::as_bytes), name, writable));
            match (of, taken) {
                (Some(of), Err(Error::NotFound)) => {
                    Err(format!("there is no snapshot {}", shown(of.as_bytes())))
                }
                (_, taken) => {
                    forget_snapshots_listing(kernel);
                    done(taken.and_then(|()| fs.sync()))
                }
            }
        }
        Some("delete") => {
            let deleted = changing(fs, |fs| fs.delete_snapshot(name));
            forget_snapshots_listing(kernel);
            forget_gone(fs, kernel);
            done(deleted.and_then(|()| fs.sync()))
        }
        Some("rollback") => {
            let back = changing(fs, |fs| fs.roll_back(name));
            // Whatever can be told: the volume is another one now, and stays so.
            let done_so_far = back.and_then(|vanished| {
                let told = forget_vanished(fs, &vanished, kernel);
                fs.sync().map(|()| told)
            });
            match done_so_far {
                Ok(Err(why)) => Err(format!(
                    "the volume is as it was in the snapshot, but names that were absent before may seem so still: {}",
                    why.snapshot_text()
                )),
                other => done(other.map(drop)),
            }
        }
        Some("diff") => diff(fs, name, request, out),
        Some("send") => {
            let base = request["base"].as_str().map(str::as_bytes);
            let sent = fs.send_snapshot(name, base, out).map_err(|error| transfer_text(&error))?;
            Ok(json!({ "changes": sent.changes, "bytes": sent.bytes }))
        }
        Some("list") => {
            let snapshots = waiting(fs, FileSystem::snapshots).map_err(|error| error.snapshot_text())?;
            let without_usage = |snapshot: Snapshot| {
                let mut line = listed(&snapshot);
                // Not known here.
                line.extend(["referenced", "exclusive"].map(|field| (field.to_owned(), Value::Null)));
                Value::from(line)
            };
            Ok(snapshots.into_iter().map(without_usage).collect())
        }
        _ => Err("a request about snapshots says what to do in 'action'".to_owned()),
    }
}

/// What is told of a snapshot wherever it is listed.
pub fn listed(snapshot: &Snapshot) -> Map<String, Value> {
    let mut line = Map::new();
    put_name(&mut line, "name", &snapshot.name);
    line.insert("taken".to_owned(), json!(DateTime::from(snapshot.taken).exact()));
    line.insert("writable".to_owned(), json!(snapshot.writable));
    line
}

/// What remembers names, attributes and contents, those of directories among them, for a mount: the kernel.
trait Memory {
    fn forget_name(&self, directory: InodeNumber, name: &[u8]);
    fn forget_contents(&self, inode: InodeNumber);
}

impl Memory for Notifier {
    fn forget_name(&self, directory: InodeNumber, name: &[u8]) {
        self.forget_name(directory, name);
    }

    fn forget_contents(&self, inode: InodeNumber) {
        self.forget_contents(inode);
    }
}

/// Names first: what the kernel lets go of then it need not be told of.
fn forget_vanished(
    fs: &FileSystem,
    vanished: &Vanished,
    kernel: Option<&impl Memory>,
) -> pando_fs::Result<()> {
    let Some(memory) = kernel else { return Ok(()) };
    let forget = |names: &[Bytes]| names.iter().for_each(|name| memory.forget_name(ROOT, name));
    forget(&vanished.names);
    memory.forget_contents(ROOT);
    // What can fail keeps nothing else from being told.
    let present = waiting(fs, FileSystem::root_names).map(|present| forget(&present));
    forget_gone(fs, kernel);
    present
}

/// The snapshots are others.
fn forget_snapshots_listing(kernel: Option<&impl Memory>) {
    if let Some(memory) = kernel {
        memory.forget_contents(SNAPSHOTS);
    }
}

fn forget_gone(fs: &FileSystem, kernel: Option<&impl Memory>) {
    if let Some(memory) = kernel {
        fs.gone_inodes().into_iter().for_each(|inode| memory.forget_contents(inode));
    }
}

/// What a mount of a snapshot shows as its source.
pub fn mount_source(volume: &Path, name: &str) -> PathBuf {
    let mut source = volume.as_os_str().to_owned();
    source.push("@");
    source.push(name);
    source.into()
}

/// Makes a snapshot of a stream. Waits for the stream and for the device.
pub fn receive(
    fs: &FileSystem,
    request: &Value,
    kernel: Option<&Notifier>,
    input: &mut dyn Read,
) -> Result<Value, String> {
    let name = request["name"].as_str().map(str::as_bytes);
    let received = fs.receive_snapshot(input, name);
    forget_snapshots_listing(kernel);
    let (snapshot, received) = received.map_err(|error| transfer_text(&error))?;
    Ok(json!({
        "name": String::from_utf8_lossy(&snapshot.name), "changes": received.changes, "bytes": received.bytes
    }))
}

fn transfer_text(error: &TransferError) -> String {
    match error {
        TransferError::Output(error) => format!("the stream cannot be written: {}", io_text(error)),
        TransferError::Input(error) => format!("the stream cannot be read: {}", io_text(error)),
        error => error.to_string(),
    }
}

/// Writes what differs, each entry as JSON in a line of its own.
fn diff(fs: &FileSystem, old: &[u8], request: &Value, out: &mut dyn Write) -> Result<Value, String> {
    let new = request["new"].as_str().map(str::as_bytes);
    let renames = request["renames"].as_bool().unwrap_or(true);
    let mut written = Ok(());
    let outcome = fs.differences(old, new, renames, &mut |entry| {
        written = writeln!(out, "{}", line(entry));
        written.is_ok()
    });
    written.map_err(|error| io_text(&error))?;
    outcome.map(|()| Value::Null).map_err(|error| error.snapshot_text())
}

fn line(entry: &Entry) -> Value {
    let mut object = Map::new();
    let what = match &entry.what {
        What::Created => "created",
        What::Deleted => "deleted",
        What::Changed => "changed",
        What::Renamed(from) => {
            put_name(&mut object, "from", from);
            "renamed"
        }
    };
    object.insert("what".to_owned(), what.into());
    put_name(&mut object, "path", &entry.path);
    object.insert("type".to_owned(), type_name(entry.file_type).into());
    let changes = [
        ("contents", entry.contents),
        ("attributes", entry.attributes),
        ("xattrs", entry.xattrs),
        ("links", entry.links),
    ];
    let changes: Vec<_> = changes.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect();
    object.insert("changes".to_owned(), changes.into());
    object.into()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use pando_device::MemoryDevice;
    use pando_engine::{Background, FormatOptions, Options};
    use pando_fs::operations::{Caller, FileType};

    use super::*;

    /// Keeps what it is told.
    #[derive(Default)]
    struct Told(RefCell<Vec<String>>);

    impl Memory for Told {
        fn forget_name(&self, directory: InodeNumber, name: &[u8]) {
            assert_eq!(directory, ROOT);
            self.0.borrow_mut().push(format!("name {}", name.escape_ascii()));
        }

        fn forget_contents(&self, inode: InodeNumber) {
            self.0.borrow_mut().push(format!("contents of {}", inode.0));
        }
    }

    /// A listing that fails left the kernel with the tree of before.
    #[test]
    fn what_went_with_a_roll_back_is_told_whether_or_not_the_root_can_be_listed() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        FileSystem::format(device.clone(), &FormatOptions::default()).unwrap();
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open(device, options).unwrap();
        let failing = Arc::new(AtomicBool::new(false));
        let interrupted = failing.clone();
        fs.interrupt_queries(move || interrupted.load(Ordering::Relaxed));
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let make = |name: &str| {
            let make =
                |fs: &FileSystem| fs.make_node(&caller, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0);
            changing(&*fs, make).unwrap().attributes.inode
        };
        make("back");
        changing(&*fs, |fs| fs.take_snapshot(b"one", false)).unwrap();
        changing(&*fs, |fs| fs.unlink(ROOT, b"back")).unwrap();
        // Remembered as absent.
        assert_eq!(waiting(&*fs, |fs| fs.lookup(ROOT, b"back")).map(drop), Err(Error::NotFound));
        let gone = make("gone");
        let vanished = changing(&*fs, |fs| fs.roll_back(b"one")).unwrap();

        failing.store(true, Ordering::Relaxed);
        let told = Told::default();
        assert_eq!(forget_vanished(&fs, &vanished, Some(&told)), Err(Error::Busy));
        let told = told.0.into_inner();
        let place = |what: &str| told.iter().position(|told| told == what);
        let (name, contents) =
            (place("name gone").unwrap(), place(&format!("contents of {}", gone.0)).unwrap());
        assert!(name < contents, "{told:?}");
        assert!(place("contents of 1").is_some_and(|at| at < contents), "{told:?}");

        failing.store(false, Ordering::Relaxed);
        let told = Told::default();
        assert_eq!(forget_vanished(&fs, &vanished, Some(&told)), Ok(()));
        let told = told.0.into_inner();
        let place = |what: &str| told.iter().position(|told| told == what);
        assert!(place("name gone") < place("name back"), "{told:?}");
        assert!(place("name back") < place(&format!("contents of {}", gone.0)), "{told:?}");
    }
}
