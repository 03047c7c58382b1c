//! Requests about snapshots: what the daemon of a mounted volume answers, and `pando snapshot` itself for one that is
//! not mounted.

use std::path::{Path, PathBuf};

use pando_fs::operations::{Operations, ROOT, changing, waiting};
use pando_fs::{Error, FileSystem, Vanished};
use pando_fuse::Notifier;
use serde_json::{Map, Value, json};

use crate::output::put_name;
use crate::time::since_epoch;

/// Does what a request says in its fields `action` (`create`, `list`, `delete`, `rollback`), `name` and, to create one, `writable`. What
/// the kernel of a mount remembers and is no more it is told to forget. Waits for the device. An error is the end of a sentence.
pub fn answer(fs: &FileSystem, request: &Value, kernel: Option<&Notifier>) -> Result<Value, String> {
    let name = request["name"].as_str().unwrap_or_default().as_bytes();
    let done = |result: pando_fs::Result<()>| result.map(|()| Value::Null).map_err(|error| text(&error));
    match request["action"].as_str() {
        Some("create") => {
            let writable = request["writable"].as_bool().unwrap_or_default();
            done(changing(fs, |fs| fs.take_snapshot(name, writable)).and_then(|()| fs.sync()))
        }
        Some("delete") => {
            let deleted = changing(fs, |fs| fs.delete_snapshot(name));
            forget_gone(fs, kernel);
            done(deleted.and_then(|()| fs.sync()))
        }
        Some("rollback") => {
            let back = changing(fs, |fs| fs.roll_back(name));
            let told = back.and_then(|vanished| forget_vanished(fs, &vanished, kernel));
            done(told.and_then(|()| fs.sync()))
        }
        Some("list") => {
            let snapshots = waiting(fs, FileSystem::snapshots).map_err(|error| text(&error))?;
            let line = |snapshot: pando_fs::Snapshot| {
                let (seconds, _) = since_epoch(snapshot.taken);
                let mut line = Map::new();
                put_name(&mut line, "name", &snapshot.name);
                line.insert("taken".to_owned(), json!(seconds));
                line.insert("writable".to_owned(), json!(snapshot.writable));
                Value::from(line)
            };
            Ok(snapshots.into_iter().map(line).collect())
        }
        _ => Err("a request about snapshots says what to do in 'action'".to_owned()),
    }
}

/// Names first: what the kernel lets go of then it need not be told of.
fn forget_vanished(fs: &FileSystem, vanished: &Vanished, kernel: Option<&Notifier>) -> pando_fs::Result<()> {
    let Some(notifier) = kernel else { return Ok(()) };
    let present = waiting(fs, FileSystem::root_names)?;
    for name in vanished.names.iter().chain(&present) {
        notifier.forget_name(ROOT, name);
    }
    notifier.forget_attributes(ROOT);
    forget_gone(fs, kernel);
    Ok(())
}

fn forget_gone(fs: &FileSystem, kernel: Option<&Notifier>) {
    if let Some(notifier) = kernel {
        fs.gone_inodes().into_iter().for_each(|inode| notifier.forget_contents(inode));
    }
}

/// What a mount of a snapshot shows as its source.
pub fn mount_source(volume: &Path, name: &str) -> PathBuf {
    let mut source = volume.as_os_str().to_owned();
    source.push("@");
    source.push(name);
    source.into()
}

fn text(error: &Error) -> String {
    match error {
        Error::NotFound => "there is no such snapshot".to_owned(),
        Error::InUse => "it is mounted".to_owned(),
        Error::Exists => "there is one of this name already".to_owned(),
        Error::Invalid => "this cannot be a snapshot's name".to_owned(),
        error => error.to_string(),
    }
}
