//! The witness of the kill test: a writer whose operations follow from their number, so that any state a crash leaves
//! can be compared with the prefixes of what it did. It says which steps it has fsynced.
//!
//! Each step appends to a log, writes a new file, renames it, overwrites eight bytes in a table, gives the file a second
//! name and deletes both names of an older file. All of these are single operations of the file system, made one after the other by one thread, so what a
//! crash leaves must be the state between two of them (the promise of the README).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

use super::pattern::{fill, mix};
use super::tool::at;
use super::{Failure, Outcome};

/// Files older than this many steps are deleted.
const KEPT: u64 = 40;
const TABLE_SLOTS: u64 = 2048;
const RECORD_BYTES: u64 = 16;
/// Operations of a step: append, create, write, rename, overwrite, link, unlink, unlink.
const OPERATIONS: u64 = 8;

fn record(step: u64) -> String {
    format!("{step:015}\n")
}

fn contents(step: u64) -> Vec<u8> {
    let mut contents = vec![0; 100 + (mix(step) % 20_000) as usize];
    fill(&mut contents, step);
    contents
}

fn slot(step: u64) -> u64 {
    mix(step) % TABLE_SLOTS
}

/// Steps between two fsyncs vary, so that kills meet short and long tails of unsynced work.
fn syncs_after(step: u64) -> bool {
    mix(step ^ 0xfeed).is_multiple_of(1 + (step / 64) % 16)
}

/// Runs until it is killed, or a call fails. Prints the number of a step when its fsync has returned.
pub fn write(directory: &Path) -> ExitCode {
    if let Err(error) = steps(directory, 0.., &mut std::io::stdout()) {
        eprintln!("the witness ends: {error}");
    }
    ExitCode::FAILURE
}

fn steps(
    directory: &Path,
    steps: impl Iterator<Item = u64>,
    acknowledged: &mut impl Write,
) -> std::io::Result<()> {
    let mut log = File::options().create(true).append(true).open(directory.join("log"))?;
    let table =
        File::options().create(true).truncate(true).read(true).write(true).open(directory.join("table"))?;
    table.write_all_at(&[0; (TABLE_SLOTS * 8) as usize], 0)?;
    table.sync_all()?;
    // The preparation above is what every later state contains; from here on single steps are told apart.
    writeln!(acknowledged, "ready")?;
    for step in steps {
        log.write_all(record(step).as_bytes())?;
        let new = directory.join(format!("new.{step}"));
        let mut file = File::create_new(&new)?;
        file.write_all(&contents(step))?;
        fs::rename(&new, directory.join(format!("done.{step}")))?;
        table.write_all_at(&step.to_le_bytes(), slot(step) * 8)?;
        fs::hard_link(directory.join(format!("done.{step}")), directory.join(format!("link.{step}")))?;
        if step >= KEPT {
            for name in ["done", "link"] {
                fs::remove_file(directory.join(format!("{name}.{}", step - KEPT)))?;
            }
        }
        if syncs_after(step) {
            // Any of the files will do: what is durable is a prefix of all operations.
            if step.is_multiple_of(2) {
                log.sync_all()?
            } else {
                file.sync_data()?
            }
            writeln!(acknowledged, "{step}")?;
        }
    }
    Ok(())
}

/// What the witness has said so far: that its files are prepared, and the last step that is durable.
pub fn acknowledgement(text: &str) -> (bool, Option<u64>) {
    // A kill may leave a number in part.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let ready = lines.next() == Some("ready");
    (ready, lines.filter_map(|line| line.parse().ok()).next_back())
}

/// A file of the witness, as one of its names shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contents {
    /// Which step's contents it has; None while it is empty.
    step: Option<u64>,
    links: u64,
}

/// What the directory of the witness holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    records: u64,
    table: Vec<u64>,
    files: BTreeMap<String, Contents>,
}

impl State {
    /// What the steps before `step` leave, and the first `operations` of that one.
    fn after(step: u64, operations: u64) -> State {
        let mut state = State { table: vec![0; TABLE_SLOTS as usize], ..State::default() };
        // Older files are gone, older slots are not.
        for step in 0..step {
            state.table[slot(step) as usize] = step;
        }
        for kept in step.saturating_sub(KEPT)..step {
            state.put(format!("done.{kept}"), Some(kept), 2);
            state.put(format!("link.{kept}"), Some(kept), 2);
        }
        state.records = step;
        (0..operations).for_each(|operation| state.apply(step, operation));
        state
    }

    fn apply(&mut self, step: u64, operation: u64) {
        let name = |kind: &str, step| format!("{kind}.{step}");
        let old = step.checked_sub(KEPT);
        match (operation, old) {
            (0, _) => self.records += 1,
            (1, _) => self.put(name("new", step), None, 1),
            (2, _) => self.put(name("new", step), Some(step), 1),
            (3, _) => {
                self.files.remove(&name("new", step));
                self.put(name("done", step), Some(step), 1);
            }
            (4, _) => self.table[slot(step) as usize] = step,
            (5, _) => {
                self.put(name("done", step), Some(step), 2);
                self.put(name("link", step), Some(step), 2);
            }
            (6, Some(old)) => {
                self.files.remove(&name("done", old));
                self.put(name("link", old), Some(old), 1);
            }
            (_, Some(old)) => drop(self.files.remove(&name("link", old))),
            (_, None) => {}
        }
    }

    fn put(&mut self, name: String, step: Option<u64>, links: u64) {
        self.files.insert(name, Contents { step, links });
    }

    /// Reads what is there; contents that no step has written are a failure at once.
    pub fn read(directory: &Path) -> Result<State, Failure> {
        let mut state = State::default();
        for entry in at("cannot list", directory, fs::read_dir(directory))? {
            let path = at("cannot list", directory, entry)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = at("cannot read", &path, fs::read(&path))?;
            match name.as_str() {
                "log" => state.records = State::read_log(&path, &bytes)?,
                "table" => {
                    let slots = bytes.chunks_exact(8);
                    state.table =
                        slots.map(|slot| u64::from_le_bytes(slot.try_into().expect("8 bytes"))).collect();
                }
                _ => {
                    let links = at("cannot stat", &path, fs::metadata(&path))?.nlink();
                    state.put(name.clone(), State::read_file(&path, &name, &bytes)?, links);
                }
            }
        }
        Ok(state)
    }

    fn read_log(path: &Path, bytes: &[u8]) -> Result<u64, Failure> {
        let records = bytes.len() as u64 / RECORD_BYTES;
        let wanted: String = (0..records).map(record).collect();
        if wanted.as_bytes() != bytes {
            return Err(Failure::Wrong(format!("{} is not a sequence of whole records", path.display())));
        }
        Ok(records)
    }

    fn read_file(path: &Path, name: &str, bytes: &[u8]) -> Result<Option<u64>, Failure> {
        let step = name.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
        match step {
            _ if bytes.is_empty() => Ok(None),
            Some(step) if contents(step) == bytes => Ok(Some(step)),
            _ => Err(Failure::Wrong(format!("{} has contents that were never written", path.display()))),
        }
    }

    /// The state must lie between two operations, no earlier than the end of the acknowledged step.
    pub fn verify(&self, acknowledged: Option<u64>) -> Outcome {
        if let Some(step) = acknowledged.filter(|step| self.records <= *step) {
            let message = format!("step {step} was fsynced, but only {} records are there", self.records);
            return Err(Failure::Wrong(message));
        }
        // The log shows in which step the crash came; that step may lack any of its later operations.
        let step = self.records.saturating_sub(1);
        // An fsync stands at the end of its step, and covers all of it.
        let from =
            if acknowledged == Some(step) && self.records > 0 { OPERATIONS } else { self.records.min(1) };
        let mut candidates = (from..=OPERATIONS).map(|operations| State::after(step, operations));
        if candidates.any(|candidate| candidate == *self) {
            return Ok(());
        }
        let whole = State::after(step, OPERATIONS);
        Err(Failure::Wrong(format!(
            "the state is not a prefix of what was done: {} records, step {acknowledged:?} acknowledged\n\
             files {:?}\nwith step {step} whole {:?}\ntables differ in the slots {:?}",
            self.records,
            self.files,
            whole.files,
            (0..TABLE_SLOTS as usize)
                .filter(|slot| self.table.get(*slot) != whole.table.get(*slot))
                .collect::<Vec<_>>(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_says_what_the_steps_leave() {
        for steps in [0, 1, KEPT, KEPT + 1, 3 * KEPT] {
            let name = format!("pando-witness-{}-{steps}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir(&directory).unwrap();
            let mut acknowledged = Vec::new();
            super::steps(&directory, 0..steps, &mut acknowledged).unwrap();
            let state = State::read(&directory).unwrap();
            fs::remove_dir_all(&directory).unwrap();
            assert_eq!(state, State::after(steps, 0), "after {steps} steps");
            let (ready, last) = acknowledgement(&String::from_utf8(acknowledged).unwrap());
            assert!(ready);
            assert_eq!(last, (0..steps).rfind(|step| syncs_after(*step)));
            state.verify(last).unwrap();
        }
    }

    #[test]
    fn every_prefix_is_accepted() {
        for step in [0, 1, KEPT, KEPT + 1, 200] {
            for operations in 1..=OPERATIONS {
                State::after(step, operations).verify(step.checked_sub(1)).unwrap();
            }
        }
    }

    #[test]
    fn a_state_older_than_the_acknowledged_step_is_refused() {
        assert!(State::after(100, 1).verify(Some(100)).is_err());
        assert!(State::after(100, OPERATIONS).verify(Some(101)).is_err());
    }

    #[test]
    fn an_operation_without_its_predecessors_is_refused() {
        let mut state = State::after(100, 3);
        state.table[slot(100) as usize] = 100;
        assert!(state.verify(Some(99)).is_err());
    }
}
