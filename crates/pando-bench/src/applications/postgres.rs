//! PostgreSQL by its own benchmark, pgbench: transactions of the kind of TPC-B, each durable when it is told so.
//!
//! The server listens on an abstract socket only, which needs no file, and lets in its own user only.

use std::fs;
use std::path::PathBuf;

use super::server::{self, HOME, Server};
use crate::error::Error;
use crate::row::Measurement;
use crate::volume::Volume;

/// Where Debian puts the versions of its package.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Per unit of scale there are 100000 accounts, about 15 MiB; in the short run and in the full one.
const SCALE: [&str; 2] = ["10", "100"];
const CLIENTS: &str = "8";
const THREADS: &str = "2";
/// Transactions of each client.
const TRANSACTIONS: [&str; 2] = ["500", "20000"];

/// A program of the newest version that is installed.
pub fn program(name: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut found: Vec<_> =
        versions.map(|entry| entry.path()).filter_map(|path| Some((number(&path)?, path))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path.join("bin").join(name)).find(|path| path.is_file())
}

fn path(name: &str) -> Result<String, Error> {
    let missing =
        || Error::Usage(format!("there is no {name} below {VERSIONS}; install the package postgresql"));
    program(name).map(|path| path.display().to_string()).ok_or_else(missing)
}

fn home(volume: &Volume) -> PathBuf {
    server::home(volume, "postgres")
}

/// No two runs on a machine at once have the same.
fn socket() -> String {
    format!(
        "@pando-bench-{}-{:?}",
        std::process::id(),
        std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos()
    )
}

/// Starts the server; it and its socket.
fn start(volume: &Volume) -> Result<(Server, String), Error> {
    let (home, socket) = (home(volume), socket());
    let data = format!("{HOME}/data");
    let words = [
        &path("postgres")?,
        "-D",
        &data,
        "-k",
        &socket,
        "-c",
        "listen_addresses=",
        "-c",
        "logging_collector=off",
    ];
    let mut server = Server::start("PostgreSQL", &home, &words)?;
    let ready = [&path("pg_isready")?, "-q", "-h", &socket];
    server.wait_for(|| server::run(&home, &ready))?;
    Ok((server, socket))
}

/// A database cluster with pgbench's tables.
pub fn prepare(volume: &Volume) -> Result<(), Error> {
    let home = home(volume);
    server::renew(&home)?;
    let data = format!("{HOME}/data");
    server::run(&home, &[&path("initdb")?, "-D", &data, "--auth=peer", "--locale=C", "--encoding=UTF8"])?;
    let (server, socket) = start(volume)?;
    let scale = SCALE[usize::from(volume.options.full)];
    let made = server::run(&home, &[&path("pgbench")?, "-h", &socket, "-i", "-q", "-s", scale, "postgres"]);
    server.stop()?;
    made.map(drop)
}

/// Transactions a second.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let (server, socket) = start(volume)?;
    let transactions = TRANSACTIONS[usize::from(volume.options.full)];
    let words =
        [&path("pgbench")?, "-h", &socket, "-c", CLIENTS, "-j", THREADS, "-t", transactions, "postgres"];
    let said = server::run(&home(volume), &words);
    server.stop()?;
    let said = said?;
    rate(&said).map(Measurement::of).ok_or_else(|| Error::Wrong(format!("pgbench says {}", said.trim_end())))
}

/// What pgbench tells, if no transaction failed.
fn rate(said: &str) -> Option<f64> {
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let failed = value("number of failed transactions: ").is_some_and(|count| !count.starts_with("0 "));
    let rate = value("tps = ")?.split(' ').next()?.parse::<f64>().ok()?;
    Some(rate).filter(|rate| !failed && *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_pgbench_says() {
        let said = "number of failed transactions: 0 (0.000%)\nlatency average = 1 ms\n\
                    tps = 3521.417 (without initial connection time)\n";
        assert_eq!(rate(said), Some(3521.417));
        assert_eq!(rate(&said.replace(": 0 (", ": 3 (")), None);
        assert_eq!(rate("tps = much"), None);
        assert_eq!(rate(""), None);
    }
}
