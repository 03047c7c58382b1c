//! What a row is: a load, and the lines of the table that it fills.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::device::Traffic;
use crate::error::Error;
use crate::volume::Volume;

/// A load. Rows of one group run on one volume, in this order: later ones use what earlier ones have made.
pub struct Row {
    /// Name for --rows.
    pub name: &'static str,
    /// What is done, for --help and the report.
    pub what: &'static str,
    /// Runs without --full.
    pub short: bool,
    /// The file system must have this.
    pub needs: Needs,
    /// What it reports; the first line has the row's name unless it reports several.
    pub lines: &'static [Line],
    /// Makes what the load needs and may be missing when only some rows are run; not measured.
    pub prepare: Prepare,
    /// Runs the load, which starts with cold caches and times itself.
    pub measure: Measure,
}

/// How a row is prepared.
pub type Prepare = fn(&Volume) -> Result<(), Error>;

/// How it is run.
pub type Measure = fn(&Volume) -> Result<Measurement, Error>;

/// What not every file system has.
#[derive(Clone, Copy, Debug)]
pub enum Needs {
    /// A directory to work in.
    Nothing,
    /// A way to clone directories.
    Clone,
    /// A way to take a snapshot of the volume.
    Snapshot,
    /// A way to have a checkpoint made.
    Checkpoint,
    /// A device of its own.
    Device,
    /// Two alike, which only those are that a run makes itself.
    TwoDevices,
    /// No file system at all.
    BareDevice,
    /// Something of this machine, as `Requirement` tells.
    Machine(Requirement),
}

/// What not every machine has.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// Whether it is there.
    pub is_met: fn() -> bool,
    /// What it is, for a sentence.
    pub what: &'static str,
}

/// One line of the table.
#[derive(Debug)]
pub struct Line {
    /// Unique among all lines.
    pub name: &'static str,
    /// Of the value.
    pub unit: &'static str,
    /// Whether a large value is a good one.
    pub better: Better,
}

/// Which values are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    More,
    /// Times and costs.
    Less,
}

/// A line of which more is better.
pub const fn rate(name: &'static str, unit: &'static str) -> Line {
    Line { name, unit, better: Better::More }
}

/// A line of which less is better.
pub const fn cost(name: &'static str, unit: &'static str) -> Line {
    Line { name, unit, better: Better::Less }
}

/// What a load has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// One for each line of the row, in order.
    pub values: Vec<f64>,
    /// Values that depend on something: a plot each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// What the load did to the device, where more than the load was done to it meanwhile.
    #[serde(skip)]
    pub traffic: Option<Traffic>,
}

/// How a value depends on something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What it shows; unique within the row.
    pub name: String,
    /// What the first number of a point is, with its unit.
    pub x: String,
    /// What the second is.
    pub y: String,
    /// In order of the first number.
    pub points: Vec<(f64, f64)>,
}

impl Measurement {
    /// Amount a second, done since `begin`.
    pub fn rate(begin: Instant, amount: f64) -> Measurement {
        Measurement::of(per_second(amount, begin.elapsed()))
    }

    /// One value.
    pub fn of(value: f64) -> Measurement {
        Measurement { values: vec![value], ..Measurement::default() }
    }

    /// Adds a plot.
    pub fn with(mut self, name: &str, x: &str, y: &str, points: Vec<(f64, f64)>) -> Measurement {
        self.series.push(Series { name: name.to_owned(), x: x.to_owned(), y: y.to_owned(), points });
        self
    }
}

/// A rate over nothing measurable would be infinite; JSON has no such number.
pub fn per_second(amount: f64, elapsed: Duration) -> f64 {
    amount / elapsed.max(Duration::from_micros(1)).as_secs_f64()
}

/// Milliseconds since `begin`.
pub fn ms_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// Rows that share a volume, which is formatted for them.
pub struct Group {
    /// Name for messages.
    pub name: &'static str,
    /// In the order in which they are run.
    pub rows: &'static [Row],
    /// Largest size of the device.
    pub device_bytes_max: u64,
}

const fn group(name: &'static str, rows: &'static [Row]) -> Group {
    Group { name, rows, device_bytes_max: u64::MAX }
}

/// Loads that age a volume: some fill most of it, and all need a second one for copies.
const fn aging(name: &'static str, rows: &'static [Row]) -> Group {
    Group { name, rows, device_bytes_max: 4 << 30 }
}

/// All rows there are.
pub const GROUPS: &[Group] = &[
    group("bare device", crate::bare::TRANSFER_SIZE),
    group("large file", crate::compleat::LARGE_FILE),
    group("copied file", crate::compleat::COPY),
    group("small files", crate::compleat::SMALL_FILES),
    group("TokuBench", crate::compleat::TOKU),
    group("TokuBench growing", crate::compleat::TOKU_SCALE),
    group("random writes growing", crate::compleat::RANDOM_SCALE),
    group("source tree", crate::compleat::SOURCE_TREE),
    group("rsync", crate::applications::RSYNC),
    group("git", crate::applications::GIT),
    group("databases", crate::applications::DATABASES),
    group("PostgreSQL", crate::applications::POSTGRES),
    group("mail server", crate::applications::IMAP),
    group("Filebench", crate::applications::FILEBENCH),
    group("latency", crate::applications::LATENCY),
    group("directories", crate::namespace::DIRECTORIES),
    group("files by size", crate::namespace::FILES_BY_SIZE),
    group("aged volume", crate::namespace::AGED),
    group("scan", crate::namespace::SCAN),
    group("clone rounds", crate::namespace::CLONE_ROUNDS),
    group("many files", crate::namespace::MANY_FILES),
    aging("aging by git", crate::aging::PULLS),
    aging("aging by git, kept", crate::aging::PULLS_KEPT),
    aging("aging by mail", crate::aging::MAIL),
    aging("aging within files", crate::aging::INTRAFILE),
    aging("aging between files", crate::aging::INTERFILE),
    aging("aging of a full volume", crate::aging::FULL_VOLUME),
];

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// Every line of the table.
pub fn lines() -> impl Iterator<Item = &'static Line> {
    rows().flat_map(|row| row.lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = rows().map(|row| row.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        let mut names: Vec<_> = lines().map(|line| line.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn a_rate_is_never_infinite() {
        assert_eq!(per_second(10.0, Duration::from_secs(5)), 2.0);
        assert!(per_second(1.0, Duration::ZERO).is_finite());
    }
}
