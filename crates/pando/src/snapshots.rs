//! Requests about snapshots: what the daemon of a mounted volume answers, and `pando snapshot` itself for one that is
//! not mounted.

use pando_fs::operations::{Operations, changing, waiting};
use pando_fs::{Error, FileSystem};
use serde_json::{Value, json};

use crate::time::since_epoch;

/// Does what a request says in its fields `action` (`create`, `list`, `delete`, `rollback`) and `name`. Waits for the device.
/// An error is the end of a sentence.
pub fn answer(fs: &FileSystem, request: &Value) -> Result<Value, String> {
    let name = request["name"].as_str().unwrap_or_default().as_bytes();
    let done = |result: pando_fs::Result<()>| result.map(|()| Value::Null).map_err(|error| text(&error));
    match request["action"].as_str() {
        Some("create") => done(changing(fs, |fs| fs.take_snapshot(name)).and_then(|()| fs.sync())),
        Some("delete") => done(changing(fs, |fs| fs.delete_snapshot(name)).and_then(|()| fs.sync())),
        Some("rollback") => done(changing(fs, |fs| fs.roll_back(name)).and_then(|()| fs.sync())),
        Some("list") => {
            let snapshots = waiting(fs, FileSystem::snapshots).map_err(|error| text(&error))?;
            let line = |snapshot: pando_fs::Snapshot| {
                let (seconds, _) = since_epoch(snapshot.taken);
                json!({ "name": String::from_utf8_lossy(&snapshot.name), "taken": seconds })
            };
            Ok(snapshots.into_iter().map(line).collect())
        }
        _ => Err("a request about snapshots says what to do in 'action'".to_owned()),
    }
}

fn text(error: &Error) -> String {
    match error {
        Error::NotFound => "there is no such snapshot".to_owned(),
        Error::Exists => "there is one of this name already".to_owned(),
        Error::Invalid => "this cannot be a snapshot's name".to_owned(),
        error => error.to_string(),
    }
}
