//! Results of one run of the program, and their two forms: a table for people, JSON for comparing commits.

pub mod json;
pub mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Error;
use crate::file_system::FileSystem;
use crate::options::Options;

/// All rates measured, and on what.
#[derive(Serialize)]
pub struct Results {
    machine: json::Machine,
    commit: String,
    size_bytes: u64,
    files: u64,
    device_bytes: u64,
    /// In the order of the table's columns; ours first.
    file_systems: Vec<String>,
    #[serde(skip)]
    ours: Vec<String>,
    /// Row, then file system, then one rate a run.
    rates: BTreeMap<&'static str, BTreeMap<String, Vec<f64>>>,
    /// Row, then file system, then why there is no rate.
    failures: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl Results {
    /// Nothing measured yet.
    pub fn new(options: &Options, file_systems: &[FileSystem]) -> Results {
        let names =
            |ours| file_systems.iter().filter(move |one| one.ours == ours).map(|one| one.name.clone());
        Results {
            machine: json::Machine::this(),
            commit: json::commit(),
            size_bytes: options.size_bytes,
            files: options.files,
            device_bytes: options.device_bytes,
            file_systems: names(true).chain(names(false)).collect(),
            ours: names(true).collect(),
            rates: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// One more run of a row.
    pub fn add(&mut self, file_system: &str, row: &'static str, rate: f64) {
        self.rates.entry(row).or_default().entry(file_system.to_owned()).or_default().push(rate);
    }

    /// A run of a row that ended with an error.
    pub fn add_failure(&mut self, file_system: &str, row: &'static str, error: &Error) {
        self.failures.entry(row).or_default().insert(file_system.to_owned(), error.to_string());
    }

    /// The median over the runs, if there is any.
    pub fn median(&self, row: &str, file_system: &str) -> Option<f64> {
        let mut rates = self.rates.get(row)?.get(file_system)?.clone();
        rates.sort_by(f64::total_cmp);
        let upper = *rates.get(rates.len() / 2)?;
        let lower = rates[(rates.len() - 1) / 2];
        Some((lower + upper) / 2.0)
    }

    /// The peer with the highest median, and that.
    pub fn best_peer(&self, row: &str) -> Option<(&str, f64)> {
        let peers = self.file_systems.iter().filter(|name| !self.ours.contains(name));
        let medians = peers.filter_map(|name| Some((name.as_str(), self.median(row, name)?)));
        medians.max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Our median over the best peer's.
    pub fn ratio(&self, row: &str) -> Option<f64> {
        let ours = self.median(row, self.ours.first()?)?;
        Some(ours / self.best_peer(row)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let options = Options::parse(&[]).unwrap().unwrap();
        let file_system = |name: &str, ours| FileSystem {
            name: name.to_owned(),
            format: String::new(),
            mount: String::new(),
            umount: String::new(),
            ours,
        };
        Results::new(
            &options,
            &[file_system("ext4", false), file_system("pandofs", true), file_system("xfs", false)],
        )
    }

    #[test]
    fn the_ratio_is_between_medians_and_to_the_best_peer() {
        let mut results = results();
        for rate in [10.0, 50.0, 20.0] {
            results.add("pandofs", "untar", rate);
        }
        results.add("ext4", "untar", 30.0);
        results.add("ext4", "untar", 50.0);
        results.add("xfs", "untar", 35.0);
        assert_eq!(results.median("untar", "pandofs"), Some(20.0));
        assert_eq!(results.best_peer("untar"), Some(("ext4", 40.0)));
        assert_eq!(results.ratio("untar"), Some(0.5));
        assert_eq!(results.ratio("rm"), None);
    }

    #[test]
    fn the_table_names_rows_that_failed() {
        let mut results = results();
        results.add("ext4", "rm", 8.0);
        results.add_failure("pandofs", "rm", &Error::Wrong("it broke".to_owned()));
        let table = table::render(&results);
        assert!(table.contains("rm") && table.contains("FAILED") && table.contains("it broke"), "{table}");
    }
}
