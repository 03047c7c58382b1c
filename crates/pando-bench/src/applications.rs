//! Programs that people use, on a tree of the Linux source or on files of their own (EUROSYS22 7.2), and how long single
//! operations take while others go on.

pub mod git;
mod latency;
mod rsync;
mod sqlite;

use crate::row::{Needs, Row, cost, rate};

/// Copies of the Linux source.
pub const RSYNC: &[Row] = &[
    Row {
        name: "rsync",
        what: "rsync -a of the Linux source to another directory, cold, synced",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("rsync", "files/s")],
        prepare: rsync::ensure,
        measure: rsync::run,
    },
    Row {
        name: "rsync-inplace",
        what: "the same with --inplace, which writes under the final name",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("rsync-inplace", "files/s")],
        prepare: rsync::ensure,
        measure: rsync::run_in_place,
    },
];

/// A repository with a history.
pub const GIT: &[Row] = &[
    Row {
        name: "git-clone",
        what: "git clone --no-hardlinks of a repository of a part of the Linux source with 20 commits, cold, synced",
        short: false,
        needs: Needs::Nothing,
        lines: &[cost("git-clone", "s")],
        prepare: git::ensure,
        measure: git::clone,
    },
    Row {
        name: "git-diff",
        what: "git diff between its first and its last commit, cold",
        short: false,
        needs: Needs::Nothing,
        lines: &[cost("git-diff", "s")],
        prepare: git::ensure,
        measure: git::diff,
    },
];

/// Databases.
pub const DATABASES: &[Row] = &[
    Row {
        name: "sqlite",
        what: "SQLite: 2000 inserts of 200 bytes, each a transaction, rollback journal",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("sqlite", "inserts/s")],
        prepare: sqlite::remove,
        measure: sqlite::rollback,
    },
    Row {
        name: "sqlite-wal",
        what: "the same with a write-ahead log, an fsync for each transaction",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("sqlite-wal", "inserts/s")],
        prepare: sqlite::remove,
        measure: sqlite::write_ahead_log,
    },
];

/// Single operations under load.
pub const LATENCY: &[Row] = &[Row {
    name: "latency",
    what: "stat and read of 1000 cached files for 20 s, while others write a large file, create small ones and sync; 99.9th percentile and largest",
    short: false,
    needs: Needs::Nothing,
    lines: &[cost("latency-p99.9", "ms"), cost("latency-max", "ms")],
    prepare: latency::ensure,
    measure: latency::run,
}];
