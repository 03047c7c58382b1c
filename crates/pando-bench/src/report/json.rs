//! The stored form: one file a run of the program, named after time and commit, with what the machine was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Results, text_error};
use crate::command;
use crate::error::{Error, at};
use crate::options::Options;
use crate::volume;

/// Where results are collected, relative to the directory in which `make bench` runs.
const DIRECTORY: &str = "bench-results";

/// What the values depend on besides the code.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its model.
    pub processor: String,
    /// How many.
    pub cores: usize,
    /// Of the machine.
    pub memory_kib: u64,
    /// Release.
    pub kernel: String,
    /// What is behind the directory of the run: source, type and options of its file system; or the device that was given.
    pub storage: String,
    /// Whether FUSE may use io_uring.
    pub fuse_uring: String,
    /// Versions of the programs that loads are, those that are installed; empty in results of before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// `cold`, or `warm` where the kernel's cannot be dropped; empty in results of before.
    #[serde(default)]
    pub caches: String,
}

impl Machine {
    /// The one this runs on; what it does not tell stays empty.
    pub fn of(options: &Options) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let directory = options.on.as_ref().unwrap_or(&options.directory);
        let storage = match &options.device {
            Some(device) => device.display().to_string(),
            // Empty where it says nothing but on its standard error.
            None => {
                let words =
                    ["findmnt", "-n", "-o", "SOURCE,FSTYPE,OPTIONS", "-T", &directory.display().to_string()];
                command::run(&words).unwrap_or_default()
            }
        };
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_kib: memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            storage: storage.split_whitespace().collect::<Vec<_>>().join(" "),
            programs: programs(),
            fuse_uring: read("/sys/module/fuse/parameters/enable_uring").trim().to_owned(),
            // Elsewhere a row fails that cannot have them cold.
            caches: if options.on.is_none() || volume::can_drop_caches() { "cold" } else { "warm" }
                .to_owned(),
        }
    }
}

/// By which name a program is told, and what prints its version.
const PROGRAMS: [(&str, &str); 9] = [
    ("coreutils", "cp --version"),
    ("findutils", "find --version"),
    ("grep", "grep --version"),
    ("tar", "tar --version"),
    ("git", "git --version"),
    ("rsync", "rsync --version"),
    ("sqlite", "sqlite3 --version"),
    ("dovecot", "/usr/sbin/dovecot --version"),
    ("fio", "fio --version"),
];

fn programs() -> BTreeMap<String, String> {
    let postgres = crate::applications::postgres_version();
    let mut commands: Vec<_> = PROGRAMS.map(|(name, command)| (name, command.to_owned())).to_vec();
    commands.extend(postgres.map(|command| ("postgresql", command)));
    let told = commands.into_iter().map(|(name, command)| (name.to_owned(), version(&command)));
    told.filter(|(_, version)| !version.is_empty()).collect()
}

/// The commit that was measured, marked when there were changes on top of it.
pub fn commit() -> String {
    let git = "git describe --always --dirty --abbrev=12";
    command::run_text(git, &[]).map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

/// The first line that a command prints.
pub fn version(text: &str) -> String {
    command::all_output(text).lines().next().unwrap_or_default().trim().to_owned()
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Results that `store` has written.
pub fn load(path: &Path) -> Result<Results, Error> {
    let text = at("cannot read", path, fs::read_to_string(path))?;
    let wrong = |error: &dyn std::fmt::Display| {
        text_error(&format!("{} holds no results of this version", path.display()), error)
    };
    let mut document: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    serde_json::from_value(document["results"].take()).map_err(|error| wrong(&error))
}

/// Writes the results; the path of the file.
pub fn store(results: &Results) -> Result<PathBuf, Error> {
    let directory = Path::new(DIRECTORY);
    at("cannot create", directory, fs::create_dir_all(directory))?;
    let path = directory.join(format!("{}-{}.json", results.time_s, results.commit));
    let mut summary = serde_json::Map::new();
    for line in results.rows().flat_map(|row| row.lines) {
        let medians: serde_json::Map<_, _> = results
            .columns
            .iter()
            .filter_map(|column| Some((column.name.clone(), results.median(line.name, &column.name)?.into())))
            .collect();
        let peer = results.best_peer(line).map(|(name, _)| name);
        let summed = json!({
            "unit": line.unit, "better": line.better, "medians": medians, "best_peer": peer, "ratio": results.ratio(line),
        });
        summary.insert(line.name.to_owned(), summed);
    }
    let document = serde_json::to_value(results).map_err(|error| text_error("results", &error))?;
    let document = json!({ "results": document, "summary": summary });
    at("cannot write", &path, fs::write(&path, format!("{document:#}\n")))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_programs_are_told() {
        let programs = programs();
        assert!(programs["coreutils"].contains(' ') && programs["tar"].contains("tar"), "{programs:?}");
        assert!(programs.values().all(|version| version.lines().count() == 1), "{programs:?}");
    }
}
