//! The stored form: one file a run of the program, named after time and commit, with what the machine was.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::json;

use super::Results;
use crate::error::{self, Error, at};

/// Where results are collected, relative to the directory in which `make bench` runs.
const DIRECTORY: &str = "bench-results";

/// What the rates depend on besides the code.
#[derive(Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_kib: u64,
    kernel: String,
}

impl Machine {
    /// The one this runs on; what it does not tell stays empty.
    pub fn this() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_kib: memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// The commit that was measured, marked when there were changes on top of it.
pub fn commit() -> String {
    let git = error::words("git describe --always --dirty --abbrev=12");
    error::run(&git).map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

/// Writes the results; the path of the file.
pub fn store(results: &Results) -> Result<PathBuf, Error> {
    let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let directory = Path::new(DIRECTORY);
    at("cannot create", directory, fs::create_dir_all(directory))?;
    let path = directory.join(format!("{time_s}-{}.json", results.commit));
    let rows = results.rates.keys().map(|row| {
        let peer = results.best_peer(row).map(|(name, _)| name);
        (row.to_string(), json!({ "best_peer": peer, "ratio": results.ratio(row) }))
    });
    let summary: serde_json::Map<String, serde_json::Value> = rows.collect();
    let document = json!({ "time_s": time_s, "results": results, "summary": summary });
    at("cannot write", &path, fs::write(&path, format!("{document:#}\n")))?;
    Ok(path)
}
