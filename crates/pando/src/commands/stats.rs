//! `pando stats`: live counters of a mounted volume.

use std::path::PathBuf;

use clap::Args;
use pando_fuse::mount_table;
use serde_json::{Map, Value, json};

use crate::control;
use crate::failure::{Failure, Result, Status, io_text};
use crate::output::{Output, shown};
use crate::size::human;
use crate::usage;

/// Counters of bytes written to the device, by cause.
const WRITTEN: [&str; 5] =
    ["log_bytes", "checkpoint_bytes", "eviction_bytes", "binding_bytes", "table_bytes"];

const ABOUT: &str = "\
Shows what a mounted volume has done since it was mounted: operations, bytes that came in, bytes written to the \
device by cause, what was found in memory, flushes, the log, and checkpoints. Then the space that the live tree and each snapshot use as \
of the last checkpoint: bytes that they lead to, and those of them that nothing else leads to. If the volume takes no changes any more, \
`failure` says why.";

const EXAMPLES: &str = "\
Examples:
  pando stats /mnt
  watch -n 1 pando stats /mnt";

/// Arguments of `pando stats`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct StatsArgs {
    /// The directory that the volume is mounted on.
    mountpoint: PathBuf,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `pando stats`.
pub fn run(args: &StatsArgs) -> Result<Status> {
    let place = crate::volume::name(&args.mountpoint);
    let failed = |why: String| Failure::new(format!("cannot show the counters of {place}: {why}"));
    let entry = mount_table::mounted_at(&args.mountpoint).map_err(|error| failed(io_text(&error)))?;
    let entry = entry.ok_or_else(|| failed("no PandoFS volume is mounted there".to_owned()))?;
    let answer = control::request(&entry.device, "stats").map_err(|error| failed(error.to_string()))?;
    let Value::Object(mut counters) = answer else {
        return Err(failed("its daemon gave an answer that is no list of counters".to_owned()));
    };
    add_ratios(&mut counters);
    // Where it cannot be counted the counters are told all the same.
    if let Ok(usage) = control::request(&entry.device, "usage") {
        counters.insert("space".to_owned(), usage);
    }
    let mut output = Output::new();
    if args.json {
        output.json(&counters)?;
    } else {
        let usage = counters.remove("space");
        print(&mut output, &counters)?;
        for (of, bytes) in usage.iter().flat_map(usage::lines) {
            output.line(format!("{of}: {bytes}"))?;
        }
    }
    output.finish()?;
    Ok(Status::Success)
}

fn counter(counters: &Map<String, Value>, name: &str) -> u64 {
    counters.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// What follows from the counters: bytes written for each byte that came in, and the share of queries that were
/// answered from memory. Left out where nothing has been counted.
fn add_ratios(counters: &mut Map<String, Value>) {
    let written: u64 = WRITTEN.iter().map(|name| counter(counters, name)).sum();
    counters.insert("device_bytes_written".to_owned(), json!(written));
    let bytes_in = counter(counters, "bytes_in");
    if bytes_in > 0 {
        counters.insert("write_amplification".to_owned(), json!(written as f64 / bytes_in as f64));
    }
    let queries = counter(counters, "gets") + counter(counters, "scans");
    if queries > 0 {
        let hits = queries.saturating_sub(counter(counters, "misses"));
        counters.insert("cache_hit_rate".to_owned(), json!(hits as f64 / queries as f64));
    }
}

fn print(output: &mut Output, counters: &Map<String, Value>) -> Result<()> {
    let width = counters.keys().map(String::len).max().unwrap_or_default();
    for (name, value) in counters {
        let text = match value.as_u64() {
            // There is none.
            None if value.is_null() => continue,
            Some(bytes) if name.contains("bytes") && bytes >= 1024 => format!("{bytes} ({})", human(bytes)),
            Some(count) => count.to_string(),
            None => match value.as_str() {
                Some(sentence) => shown(sentence.as_bytes()),
                None => value.as_f64().map_or(value.to_string(), |ratio| format!("{ratio:.3}")),
            },
        };
        // The daemon may be another user's.
        let name = shown(name.replace('_', " ").as_bytes());
        output.line(format!("{name:>width$}: {text}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_what_was_counted() {
        let mut counters =
            json!({ "bytes_in": 100, "log_bytes": 120, "checkpoint_bytes": 80, "gets": 4, "misses": 1 });
        let counters = counters.as_object_mut().unwrap();
        add_ratios(counters);
        assert_eq!(counters["device_bytes_written"], 200);
        assert_eq!(counters["write_amplification"], 2.0);
        assert_eq!(counters["cache_hit_rate"], 0.75);
        let mut nothing = Map::new();
        add_ratios(&mut nothing);
        assert_eq!(nothing.get("write_amplification"), None);
    }
}
