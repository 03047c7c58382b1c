//! SQLite with many small transactions, by its own program.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::error::{Error, at};
use crate::row::Measurement;
use crate::volume::Volume;

const INSERTS: u64 = 2000;

fn database(volume: &Volume) -> PathBuf {
    volume.root.join("database")
}

/// What an earlier run left.
pub fn remove(volume: &Volume) -> Result<(), Error> {
    let base = database(volume);
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let path = base.with_file_name(format!("database{suffix}"));
        if path.exists() {
            at("cannot remove", &path, fs::remove_file(&path))?;
        }
    }
    Ok(())
}

/// Inserts a second.
pub fn rollback(volume: &Volume) -> Result<Measurement, Error> {
    insert(volume, "delete")
}

/// Inserts a second.
pub fn write_ahead_log(volume: &Volume) -> Result<Measurement, Error> {
    insert(volume, "wal")
}

fn insert(volume: &Volume, journal: &str) -> Result<Measurement, Error> {
    let path = database(volume);
    let mut script = format!("PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;\n");
    script.push_str("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);\n");
    for number in 0..INSERTS {
        script.push_str(&format!("INSERT INTO t (a) VALUES ('{number:0200}');\n"));
    }
    script.push_str("SELECT count(*), sum(length(a)) FROM t;\n");
    let begin = Instant::now();
    let mut command = Command::new("sqlite3");
    command.arg("-bail").arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = at("cannot start sqlite3 on", &path, command.spawn())?;
    let mut input = child.stdin.take().expect("it was asked for");
    at("cannot tell sqlite3 what to do with", &path, input.write_all(script.as_bytes()))?;
    drop(input);
    let output = at("cannot wait for sqlite3 on", &path, child.wait_with_output())?;
    let measurement = Measurement::rate(begin, INSERTS as f64);
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!("{INSERTS}|{}", INSERTS * 200);
    if output.status.success() && text.lines().last() == Some(&expected) {
        Ok(measurement)
    } else {
        Err(Error::Wrong(format!("sqlite3 says {} instead of {expected}", text.trim_end())))
    }
}
