//! Programs that people use, on a tree of the Linux source or on files of their own (EUROSYS22 7.2), and how long single
//! operations take while others go on.

mod filebench;
pub mod git;
mod imap;
mod latency;
mod postgres;
mod rsync;
mod server;
mod sqlite;

use crate::error::Error;
use crate::row::{Needs, Requirement, Row, cost, rate};

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

/// A database server.
pub const POSTGRES: &[Row] = &[Row {
    name: "pgbench",
    what: "PostgreSQL: pgbench, 8 clients, 500 transactions each (--full: 20000) at scale 10 (--full: 100)",
    short: true,
    needs: Needs::Machine(Requirement {
        is_met: || rustix::process::geteuid().is_root() && postgres::program("pgbench").is_some(),
        what: "root, and the package postgresql",
    }),
    lines: &[rate("pgbench", "transactions/s")],
    prepare: postgres::prepare,
    measure: postgres::run,
}];

/// A mail server.
pub const IMAP: &[Row] = &[Row {
    name: "imap",
    what: "Dovecot: 8 IMAP clients on 10 folders of 500 messages (--full: 2500) of up to 32 KiB, 250 operations each (--full: 10000), half reads, half marks, moves and deletions, synced",
    short: true,
    needs: Needs::Machine(Requirement {
        is_met: || rustix::process::geteuid().is_root() && imap::is_installed(),
        what: "root, and version 2.3 of Dovecot (dovecot-imapd)",
    }),
    lines: &[rate("imap", "ops/s")],
    prepare: imap::prepare,
    measure: imap::run,
}];

/// Servers, as Filebench sees them.
pub const FILEBENCH: &[Row] = &[
    Row {
        name: "filebench-oltp",
        what: "Filebench's OLTP: 200 threads read 2 KiB at random of 10 files of 10 MiB, 10 write as much synchronously, one writes a log",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("filebench-oltp", "ops/s")],
        prepare: filebench::prepare_oltp,
        measure: filebench::oltp,
    },
    Row {
        name: "filebench-fileserver",
        what: "Filebench's file server: 50 threads create, append to, read, delete and stat files of 128 KiB in the mean, synced",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("filebench-fileserver", "ops/s")],
        prepare: filebench::prepare_file_server,
        measure: filebench::file_server,
    },
    Row {
        name: "filebench-webserver",
        what: "Filebench's web server: 100 threads read ten files of 16 KiB in the mean and append to a log, synced",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("filebench-webserver", "ops/s")],
        prepare: filebench::prepare_web_server,
        measure: filebench::web_server,
    },
    Row {
        name: "filebench-webproxy",
        what: "Filebench's web proxy: 100 threads delete a file, create one and read five of 16 KiB in the mean, in one directory, synced",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("filebench-webproxy", "ops/s")],
        prepare: filebench::prepare_web_proxy,
        measure: filebench::web_proxy,
    },
];

/// Single operations under load.
pub const LATENCY: &[Row] = &[Row {
    name: "latency",
    what: "stat and read of one of 1000 cached files each millisecond for 20 s, counted from when it was due, while others write a large file, create small ones and sync; 99.9th percentile and largest",
    short: false,
    needs: Needs::Nothing,
    lines: &[cost("latency-p99.9", "ms"), cost("latency-max", "ms")],
    prepare: latency::ensure,
    measure: latency::run,
}];

/// The command that prints the version of the PostgreSQL that rows use, if there is one.
pub fn postgres_version() -> Option<String> {
    postgres::program("postgres").map(|path| format!("{} --version", path.display()))
}

/// Runs a load in so many threads at once; the first error of any.
fn in_threads(threads: u64, load: impl Fn(u64) -> Result<(), Error> + Sync) -> Result<(), Error> {
    let load = &load;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || load(thread))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().expect("a load does not panic"));
        ends.fold(Ok(()), Result::and)
    })
}
