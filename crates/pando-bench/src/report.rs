//! Results of one run of the program, and their forms: a table and a page for people, goals, JSON for comparing commits.

pub mod ablations;
mod device;
pub mod goals;
pub mod html;
pub mod json;
mod plot;
pub mod statistics;
pub mod table;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::file_system::{FileSystem, Role};
use crate::journal::{Entry, Outcome};
use crate::options::Options;
use crate::report::statistics::median;
use crate::row::{self, Better, Line, Measurement, Row, Series};
use crate::trace::round;

/// All that was measured, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Seconds since 1970.
    pub time_s: u64,
    /// What the values depend on besides the code.
    pub machine: json::Machine,
    /// Of this project.
    pub commit: String,
    /// The options that values depend on.
    pub sizes: String,
    /// The columns, ours first.
    pub columns: Vec<Column>,
    /// Ours with something left out or added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ablations: Vec<Column>,
    /// In the order in which they were run.
    pub entries: Vec<Entry>,
}

/// A file system as a column of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How it is compared.
    pub role: Role,
    /// How it was made.
    pub format: String,
    /// How it was mounted.
    pub mount: String,
    /// What its programs say of themselves.
    pub version: String,
}

impl Results {
    /// Puts together what a run gave.
    pub fn new(
        options: &Options,
        file_systems: &[FileSystem],
        commit: String,
        entries: Vec<Entry>,
    ) -> Results {
        let mut columns: Vec<Column> = Vec::new();
        let measured = |one: &&FileSystem| entries.iter().any(|entry| entry.file_system == one.name);
        for one in file_systems.iter().filter(measured) {
            columns.push(Column {
                name: one.name.clone(),
                role: one.role,
                format: one.format.clone(),
                mount: one.mount.clone(),
                version: json::version(&one.version),
            });
        }
        columns.sort_by_key(|column| match column.role {
            Role::Ours => 0,
            Role::Peer => 1,
            Role::Reference => 2,
            Role::Ablation => 3,
        });
        let first = columns.partition_point(|column| column.role != Role::Ablation);
        let ablations = columns.split_off(first);
        let machine = json::Machine::of(options);
        Results {
            time_s: json::now_s(),
            machine,
            commit,
            sizes: options.sizes(),
            columns,
            ablations,
            entries,
        }
    }

    fn of(&self, row: &str, column: &str) -> Vec<&Outcome> {
        let timed = self.entries.iter().filter(|entry| entry.round != round::ROUND);
        let entries = timed.filter(|entry| entry.row == row && entry.file_system == column);
        entries.map(|entry| &entry.outcome).collect()
    }

    /// None if a round has failed: the others would be a choice.
    fn measurements(&self, row: &str, column: &str) -> Vec<&Measurement> {
        let outcomes = self.of(row, column).into_iter();
        let measured = outcomes.map(|outcome| match outcome {
            Outcome::Measured(measurement) => Some(measurement),
            Outcome::Failed(_) => None,
        });
        measured.collect::<Option<_>>().unwrap_or_default()
    }

    /// In how many of its rounds a row was measured on a file system, in words; nothing if in all.
    pub fn rounds(&self, row: &str, column: &str) -> Option<String> {
        let columns = self.columns.iter().chain(&self.ablations);
        let all = columns.map(|column| self.of(row, &column.name).len()).max()?;
        let outcomes = self.of(row, column).into_iter();
        let measured = outcomes.filter(|outcome| matches!(outcome, Outcome::Measured(_))).count();
        (all > 1 && measured < all).then(|| format!("{measured} of {all} rounds"))
    }

    /// The values of a line, one a round; none if a round has failed.
    pub fn values(&self, line: &str, column: &str) -> Vec<f64> {
        let Some((row, index)) = place(line) else { return Vec::new() };
        self.measurements(row.name, column).iter().filter_map(|one| one.values.get(index).copied()).collect()
    }

    /// The median over the rounds, if there is any and none has failed.
    pub fn median(&self, line: &str, column: &str) -> Option<f64> {
        let values = self.values(line, column);
        if values.is_empty() { None } else { Some(median(&values)) }
    }

    /// A series of a row, each point the median over the rounds.
    pub fn series(&self, row: &str, column: &str, name: &str) -> Option<Series> {
        let all: Vec<&Series> = self.all_series(row, column).filter(|series| series.name == name).collect();
        let mut series = (*all.first()?).clone();
        for (index, point) in series.points.iter_mut().enumerate() {
            let values: Vec<f64> = all.iter().filter_map(|one| Some(one.points.get(index)?.1)).collect();
            point.1 = median(&values);
        }
        Some(series)
    }

    /// All series of a row, of all rounds, and those that were counted.
    pub fn all_series(&self, row: &str, column: &str) -> impl Iterator<Item = &Series> {
        let timed = self.measurements(row, column).into_iter().flat_map(|measurement| &measurement.series);
        let counted = self.traced(row, column).and_then(|entry| entry.trace.as_ref());
        timed.chain(counted.into_iter().flat_map(|trace| &trace.series))
    }

    /// The first error of a row on a file system.
    pub fn failure(&self, row: &str, column: &str) -> Option<&str> {
        self.of(row, column).into_iter().find_map(|outcome| match outcome {
            Outcome::Failed(why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// Every row and column that has failed, timed or counted, with the first reason.
    pub fn failures(&self) -> Vec<(&'static str, &str, &str)> {
        let mut failures = Vec::new();
        let columns = || self.columns.iter().chain(&self.ablations);
        for (row, column) in row::rows().flat_map(|row| columns().map(move |column| (row, column))) {
            let timed = self.failure(row.name, &column.name);
            let counted = self.traced(row.name, &column.name).and_then(|entry| match &entry.outcome {
                Outcome::Failed(why) => Some(why.as_str()),
                _ => None,
            });
            failures.extend(timed.or(counted).map(|why| (row.name, column.name.as_str(), why)));
        }
        failures
    }

    /// Our column.
    pub fn ours(&self) -> Option<&str> {
        self.columns.iter().find(|column| column.role == Role::Ours).map(|column| column.name.as_str())
    }

    /// The peer with the best median, and that.
    pub fn best_peer(&self, line: &Line) -> Option<(&str, f64)> {
        let peers = self.columns.iter().filter(|column| column.role == Role::Peer);
        let medians =
            peers.filter_map(|column| Some((column.name.as_str(), self.median(line.name, &column.name)?)));
        medians.max_by(|one, other| match line.better {
            Better::More => one.1.total_cmp(&other.1),
            Better::Less => other.1.total_cmp(&one.1),
        })
    }

    /// How a column's median stands to the best of all that are compared, itself included: at most one. Nothing of a column that is
    /// only shown.
    pub fn share_of_best(&self, line: &Line, column: &str) -> Option<f64> {
        let is_shown_only = |one: &Column| one.name == column && one.role == Role::Reference;
        if self.columns.iter().any(is_shown_only) {
            return None;
        }
        let own = self.median(line.name, column)?;
        let compared = self.columns.iter().filter(|column| column.role != Role::Reference);
        let medians = compared.filter_map(|column| self.median(line.name, &column.name));
        let share = match line.better {
            Better::More => own / medians.reduce(f64::max)?,
            Better::Less => medians.reduce(f64::min)? / own,
        };
        Some(share).filter(|share| share.is_finite())
    }

    /// How a column's median stands to the best peer's: above one is better, whether more or less is better.
    pub fn ratio_of(&self, line: &Line, column: &str) -> Option<f64> {
        let own = self.median(line.name, column)?;
        let best = self.best_peer(line)?.1;
        let ratio = match line.better {
            Better::More => own / best,
            Better::Less => best / own,
        };
        Some(ratio).filter(|ratio| ratio.is_finite())
    }

    /// How ours stands to the best peer.
    pub fn ratio(&self, line: &Line) -> Option<f64> {
        self.ratio_of(line, self.ours()?)
    }

    /// Rows that were timed.
    pub fn rows(&self) -> impl Iterator<Item = &'static Row> {
        self.rows_where(|entry| entry.round != round::ROUND)
    }

    /// Rows that were counted.
    pub fn traced_rows(&self) -> impl Iterator<Item = &'static Row> {
        self.rows_where(|entry| entry.round == round::ROUND)
    }

    /// How a row was counted on a file system.
    pub fn traced(&self, row: &str, column: &str) -> Option<&Entry> {
        let mut counted = self.entries.iter().filter(|entry| entry.round == round::ROUND);
        counted.find(|entry| entry.row == row && entry.file_system == column)
    }

    /// Rows that were timed or counted.
    pub fn rows_of_any_kind(&self) -> impl Iterator<Item = &'static Row> {
        self.rows_where(|_| true)
    }

    fn rows_where(&self, wanted: fn(&Entry) -> bool) -> impl Iterator<Item = &'static Row> {
        row::rows().filter(move |row| self.entries.iter().any(|entry| entry.row == row.name && wanted(entry)))
    }
}

/// The row that fills a line, and the line's number in it.
fn place(line: &str) -> Option<(&'static Row, usize)> {
    row::rows().find_map(|row| Some((row, row.lines.iter().position(|one| one.name == line)?)))
}

/// One error for a table or a JSON file that cannot be written.
fn text_error(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Wrong(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests;
