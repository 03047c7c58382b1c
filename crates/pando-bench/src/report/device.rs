//! What the rows that were counted did to the device (flash view, SSDFS; layout, FAST17 3.3) and asked of a daemon,
//! and where that waited for locks, as cells of tables.

use super::Results;
use super::table::number;
use crate::row::Row;
use crate::trace::round::{LOAD, MOUNT, UNMOUNT};
use crate::trace::summary::{Phase, Summary};

/// A table: its head, and its lines.
pub struct Table {
    /// Of the columns.
    pub head: Vec<&'static str>,
    /// As many cells as the head each.
    pub lines: Vec<Vec<String>>,
}

/// One line for each row on each file system: traffic by phase, amplification, erase blocks, layout score.
pub fn flash(results: &Results) -> Table {
    let head = vec![
        "row",
        "file system",
        "load wrote",
        "read",
        "written",
        "then written",
        "discarded",
        "flushes",
        "amplification",
        "128 KiB",
        "512 KiB",
        "8 MiB",
        "layout",
        "of requests",
    ];
    let mut lines = Vec::new();
    each(results, |row, column, trace| {
        // What is only in memory has no device.
        if trace.phases.iter().any(|phase| phase.reads + phase.writes > 0) {
            lines.push(flash_line(row, column, trace));
        }
    });
    Table { head, lines }
}

/// Requests to daemons.
pub fn round_trips(results: &Results) -> Table {
    let mut lines = Vec::new();
    each(results, |row, column, trace| {
        let mut kinds: Vec<_> = trace.round_trips.iter().collect();
        kinds.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), (*kind).clone()));
        if !kinds.is_empty() {
            let total: u64 = trace.round_trips.values().sum();
            let list: Vec<_> =
                kinds.iter().map(|(kind, count)| format!("{} {count}", kind.to_lowercase())).collect();
            lines.push(vec![row.name.to_owned(), column.to_owned(), total.to_string(), list.join(", ")]);
        }
    });
    Table { head: vec!["row", "file system", "requests", "of which"], lines }
}

/// Waits of serving threads for locks, where requests were counted.
pub fn lock_waits(results: &Results) -> Table {
    let mut lines = Vec::new();
    each(results, |row, column, trace| {
        if let Some(waits) = trace.lock_waits.filter(|_| !trace.round_trips.is_empty()) {
            lines.push(vec![
                row.name.to_owned(),
                column.to_owned(),
                waits.count.to_string(),
                number(waits.waited_us as f64 / 1e3),
                format!("{:.3}", waits.threads()),
            ]);
        }
    });
    Table { head: vec!["row", "file system", "waits", "ms", "threads at a time"], lines }
}

fn each(results: &Results, mut see: impl FnMut(&Row, &str, &Summary)) {
    for row in results.traced_rows() {
        for column in &results.columns {
            if let Some(trace) = results.traced(row.name, &column.name).and_then(|entry| entry.trace.as_ref())
            {
                see(row, &column.name, trace);
            }
        }
    }
}

fn mib(bytes: u64) -> String {
    number(bytes as f64 / f64::from(1 << 20))
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.3}"))
}

fn flash_line(row: &Row, column: &str, trace: &Summary) -> Vec<String> {
    let nothing = Phase::default();
    let phase = |name| trace.phase(name).unwrap_or(&nothing);
    let (mount, load, after) = (phase(MOUNT), phase(LOAD), phase(UNMOUNT));
    let with_requests = |bytes: u64, requests: u64| format!("{} ({requests})", mib(bytes));
    let written = if trace.load_bytes == 0 { "-".to_owned() } else { mib(trace.load_bytes) };
    let mut cells = vec![
        row.name.to_owned(),
        column.to_owned(),
        written,
        with_requests(mount.read_bytes + load.read_bytes, mount.reads + load.reads),
        with_requests(load.written_bytes, load.writes),
        with_requests(after.written_bytes, after.writes),
        with_requests(load.discarded_bytes + after.discarded_bytes, load.discards + after.discards),
        (load.flushes + after.flushes).to_string(),
        trace.amplification().map_or("-".to_owned(), number),
    ];
    cells.extend(trace.erase_blocks.map(|blocks| blocks.to_string()));
    cells.extend([
        share(load.layout.map(|layout| layout.by_block)),
        share(load.layout.map(|layout| layout.by_request)),
    ]);
    cells
}
