//! What has been measured so far, one line of JSON for each row that was run. With --resume it is kept in a file, from
//! which a run that was broken off goes on, and to which another run can add rows and file systems.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::command;
use crate::device::Traffic;
use crate::error::{Error, at};
use crate::file_system::FileSystem;
use crate::options::Options;
use crate::report::json::Machine;
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    commit: String,
    sizes: String,
    /// A checksum: the commit is that of the directory, and says nothing of changes on top of it.
    programs: String,
    /// The device or the directory that was given.
    given: Option<PathBuf>,
    storage: String,
    kernel: String,
    fuse_uring: String,
    caches: String,
    /// Commands by name. A run that goes on may add some.
    file_systems: BTreeMap<String, String>,
}

impl Conditions {
    /// Those of this run.
    pub fn new(options: &Options, commit: &str, file_systems: &[FileSystem]) -> Result<Conditions, Error> {
        let machine = Machine::of(options);
        let commands = |one: &FileSystem| {
            let commands = [one.format.as_str(), &one.mount, &one.umount].join(";");
            (one.name.clone(), commands)
        };
        Ok(Conditions {
            commit: commit.to_owned(),
            sizes: options.sizes(),
            programs: command::checksum()?,
            given: options.device.clone().or(options.on.clone()),
            storage: machine.storage,
            kernel: machine.kernel,
            fuse_uring: machine.fuse_uring,
            caches: machine.caches,
            file_systems: file_systems.iter().map(commands).collect(),
        })
    }

    /// Together with those of the run that this one goes on with; None if they differ.
    fn after(&self, earlier: &Conditions) -> Option<Conditions> {
        let mut both = Conditions { file_systems: earlier.file_systems.clone(), ..self.clone() };
        let is_the_same = both == *earlier;
        both.file_systems.extend(self.file_systems.clone());
        let is_kept =
            earlier.file_systems.iter().all(|(name, commands)| both.file_systems[name] == *commands);
        (is_the_same && is_kept).then_some(both)
    }
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
    pub fn open(path: &Path, mut conditions: Conditions) -> Result<Journal, Error> {
        let text =
            if path.exists() { at("cannot read", path, fs::read_to_string(path))? } else { String::new() };
        let mut journal = Journal::default();
        // A last line without an end was being written when the run was broken off.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in whole.lines().enumerate() {
            let wrong = |_| Error::Usage(format!("{}:{}: this is no entry", path.display(), number + 1));
            if number > 0 {
                journal.add(serde_json::from_str(line).map_err(wrong)?)?;
                continue;
            }
            let both = conditions.after(&serde_json::from_str(line).map_err(wrong)?);
            conditions = both.ok_or_else(|| {
                let path = path.display();
                Error::Usage(format!("{path} was begun under other conditions: {line}"))
            })?;
        }
        let mut kept = serde_json::to_string(&conditions).expect("conditions are text") + "\n";
        whole.lines().skip(1).for_each(|line| kept.extend([line, "\n"]));
        // The only copy of hours of work is there until the new one is.
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let mut file = at("cannot create", &new, File::create(&new))?;
        at("cannot write", &new, file.write_all(kept.as_bytes()).and_then(|()| file.sync_all()))?;
        at("cannot rename", &new, fs::rename(&new, path))?;
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

    fn conditions() -> Conditions {
        Conditions { commit: "c".to_owned(), sizes: "s".to_owned(), ..Conditions::default() }
    }

    #[test]
    fn what_is_kept_is_never_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let (path, same) = (directory.path().join("journal"), directory.path().join("same"));
        drop(Journal::open(&path, conditions()).unwrap());
        let text = fs::read(&path).unwrap();
        fs::hard_link(&path, &same).unwrap();
        let mut journal = Journal::open(&path, conditions()).unwrap();
        journal.add(entry("rm", Outcome::Measured(Measurement::of(1.0)))).unwrap();
        assert!(fs::read(&same).unwrap() == text && fs::read(&path).unwrap().len() > text.len());
    }

    #[test]
    fn a_broken_off_run_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::open(&path, conditions()).unwrap();
        journal.add(entry("rm", Outcome::Measured(Measurement::of(1.0)))).unwrap();
        journal.add(entry("untar", Outcome::Failed("it broke".to_owned()))).unwrap();
        drop(journal);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"row\":\"half");
        fs::write(&path, text).unwrap();
        let mut journal = Journal::open(&path, conditions()).unwrap();
        assert!(
            journal.has("rm", "ext4", 1) && !journal.has("rm", "ext4", 2) && !journal.has("rm", "xfs", 1)
        );
        assert!(!journal.has("untar", "ext4", 1));
        journal.add(entry("untar", Outcome::Measured(Measurement::of(2.0)))).unwrap();
        assert_eq!(journal.entries.len(), 2);
        drop(journal);
        assert!(Journal::open(&path, conditions()).unwrap().has("untar", "ext4", 1));
    }

    #[test]
    fn runs_under_other_conditions_are_kept_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        drop(Journal::open(&path, conditions()).unwrap());
        let variant = |options: &str| BTreeMap::from([("variant".to_owned(), options.to_owned())]);
        let others = [
            Conditions { commit: "d".to_owned(), ..conditions() },
            Conditions { sizes: "t".to_owned(), ..conditions() },
            Conditions { programs: "1".to_owned(), ..conditions() },
            Conditions { given: Some("/dev/other".into()), ..conditions() },
            Conditions { storage: "/dev/other ext4".to_owned(), ..conditions() },
            Conditions { storage: "/dev/other ext4 rw,sync".to_owned(), ..conditions() },
            Conditions { kernel: "6.19".to_owned(), ..conditions() },
            Conditions { caches: "warm".to_owned(), ..conditions() },
            Conditions { fuse_uring: "N".to_owned(), ..conditions() },
            Conditions { file_systems: variant("cache=1G"), ..conditions() },
        ];
        // A file system that is added is one of the conditions from then on.
        let added = Conditions { file_systems: variant("cache=2G"), ..conditions() };
        assert!(Journal::open(&path, added.clone()).is_ok() && Journal::open(&path, conditions()).is_ok());
        for other in others {
            assert!(Journal::open(&path, other.clone()).is_err(), "{other:?}");
        }
        assert!(Journal::open(&path, added).is_ok());
        fs::write(&path, "rubbish\n").unwrap();
        assert!(Journal::open(&path, conditions()).is_err());
    }
}
