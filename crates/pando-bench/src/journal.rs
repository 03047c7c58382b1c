//! What has been measured so far, one line of JSON for each row that was run. With --resume it is kept in a file, from
//! which a run that was broken off goes on, and to which another run can add rows and file systems.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::Traffic;
use crate::error::{Error, at};
use crate::row::Measurement;
use crate::trace::summary::Summary;

/// How the run of a row ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With this.
    Measured(Measurement),
    /// With an error.
    Failed(String),
}

/// One run of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Which row.
    pub row: String,
    /// On which file system.
    pub file_system: String,
    /// In which round, from 1; the one that is counted is 0.
    pub round: u64,
    /// What it gave.
    pub outcome: Outcome,
    /// What the measured part did to the device, where there is one.
    pub traffic: Option<Traffic>,
    /// What a trace says, of a run that was counted; its values are no measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Summary>,
    /// Time for all of it, preparations included.
    pub seconds: f64,
}

/// The first line of a file: results under different conditions must not be mixed.
#[derive(PartialEq, Serialize, Deserialize)]
struct Head {
    commit: String,
    sizes: String,
}

/// All entries of a run.
#[derive(Default)]
pub struct Journal {
    /// In the order in which they were made.
    pub entries: Vec<Entry>,
    file: Option<(File, PathBuf)>,
}

impl Journal {
    /// One that is kept in this file, with what is in it already.
    pub fn open(path: &Path, commit: &str, sizes: &str) -> Result<Journal, Error> {
        let head = Head { commit: commit.to_owned(), sizes: sizes.to_owned() };
        let text =
            if path.exists() { at("cannot read", path, fs::read_to_string(path))? } else { String::new() };
        let mut journal = Journal::default();
        // A last line without an end was being written when the run was broken off.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in whole.lines().enumerate() {
            let wrong = |_| Error::Usage(format!("{}:{}: this is no entry", path.display(), number + 1));
            if number > 0 {
                journal.add(serde_json::from_str(line).map_err(wrong)?)?;
            } else if serde_json::from_str::<Head>(line).map_err(wrong)? != head {
                let path = path.display();
                return Err(Error::Usage(format!("{path} is of another commit, or of other sizes: {line}")));
            }
        }
        let mut kept = serde_json::to_string(&head).expect("a head is text") + "\n";
        whole.lines().skip(1).for_each(|line| kept.extend([line, "\n"]));
        at("cannot write", path, fs::write(path, kept))?;
        let file = at("cannot open", path, File::options().append(true).open(path))?;
        journal.file = Some((file, path.to_owned()));
        Ok(journal)
    }

    /// Whether this has been measured. What failed is tried again.
    pub fn has(&self, row: &str, file_system: &str, round: u64) -> bool {
        self.entries.iter().any(|entry| {
            entry.row == row
                && entry.file_system == file_system
                && entry.round == round
                && !matches!(entry.outcome, Outcome::Failed(_))
        })
    }

    /// Adds an entry, in place of one that had failed.
    pub fn add(&mut self, entry: Entry) -> Result<(), Error> {
        if let Some((file, path)) = &mut self.file {
            let line = serde_json::to_string(&entry).expect("an entry has only text and numbers") + "\n";
            at("cannot write", path, file.write_all(line.as_bytes()))?;
        }
        let same = |other: &Entry| {
            (&other.row, &other.file_system, other.round) == (&entry.row, &entry.file_system, entry.round)
        };
        self.entries.retain(|other| !same(other));
        self.entries.push(entry);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(row: &str, outcome: Outcome) -> Entry {
        let file_system = "ext4".to_owned();
        Entry {
            row: row.to_owned(),
            file_system,
            round: 1,
            outcome,
            traffic: None,
            trace: None,
            seconds: 0.5,
        }
    }

    #[test]
    fn a_broken_off_run_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::open(&path, "c", "s").unwrap();
        journal.add(entry("rm", Outcome::Measured(Measurement::of(1.0)))).unwrap();
        journal.add(entry("untar", Outcome::Failed("it broke".to_owned()))).unwrap();
        drop(journal);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"row\":\"half");
        fs::write(&path, text).unwrap();
        let mut journal = Journal::open(&path, "c", "s").unwrap();
        assert!(
            journal.has("rm", "ext4", 1) && !journal.has("rm", "ext4", 2) && !journal.has("rm", "xfs", 1)
        );
        assert!(!journal.has("untar", "ext4", 1));
        journal.add(entry("untar", Outcome::Measured(Measurement::of(2.0)))).unwrap();
        assert_eq!(journal.entries.len(), 2);
        drop(journal);
        assert!(Journal::open(&path, "c", "s").unwrap().has("untar", "ext4", 1));
    }

    #[test]
    fn runs_under_other_conditions_are_kept_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        drop(Journal::open(&path, "c", "s").unwrap());
        assert!(Journal::open(&path, "c", "t").is_err() && Journal::open(&path, "d", "s").is_err());
        fs::write(&path, "rubbish\n").unwrap();
        assert!(Journal::open(&path, "c", "s").is_err());
    }
}
