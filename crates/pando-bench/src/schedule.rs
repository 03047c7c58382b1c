//! Runs rows: for each group of them, in each round, one file system after the other makes a volume and runs the rows on
//! it, each in a process of its own. So what is compared is measured close together in time, and no load leaves
//! anything in the memory of a process that a later one could profit from.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::ptr::fn_addr_eq;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::bare;
use crate::command;
use crate::device::{Device, Traffic};
use crate::error::Error;
use crate::file_system::FileSystem;
use crate::journal::{Entry, Journal, Outcome};
use crate::options::Options;
use crate::owned;
use crate::row::{GROUPS, Group, Measurement, Needs, Row, rows};
use crate::trace::{self, summary::Summary};
use crate::volume::Volume;

/// The hidden first argument of the process of one row.
pub const ROW: &str = "--row-process";

/// One volume and the rows to run on it.
struct Turn<'a> {
    group: &'static Group,
    round: u64,
    file_system: &'a FileSystem,
    rows: Vec<&'static Row>,
}

/// Runs everything that was asked for and is not in the journal yet. A row that fails, or whose volume cannot be made, is
/// reported and left out, the others go on. An error is one after which nothing can go on.
pub fn run(options: &Options, file_systems: &[FileSystem], journal: &mut Journal) -> Result<(), Error> {
    tell_what_is_left_out(options);
    let mut turns = turns(options, file_systems);
    if turns.is_empty() {
        return Err(Error::Usage(
            "there is nothing to run: no file system that was asked for runs a row that was".to_owned(),
        ));
    }
    // Once: later on something of our own may hold it for a moment.
    Device::is_free(options)?;
    for turn in &mut turns {
        turn.rows.retain(|row| !journal.has(row.name, &turn.file_system.name, turn.round));
    }
    turns.retain(|turn| !turn.rows.is_empty());
    let count: usize = turns.iter().map(|turn| turn.rows.len()).sum();
    let bar = ProgressBar::new(count as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rows, {elapsed} gone, {left} left: {msg}");
    let style = style.expect("the template is right").with_key(
        "left",
        |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            // Whoever only draws the bar cannot be told of an error.
            let _ = match left(state.elapsed(), state.pos(), state.len().unwrap_or_default()) {
                Some(left) => write!(to, "{:#}", HumanDuration(left)),
                None => write!(to, "?"),
            };
        },
    );
    bar.set_style(style);
    let programs = command::checksum()?;
    for turn in turns {
        // Of what is stored nobody could tell which program it was.
        if command::checksum()? != programs {
            return Err(Error::Usage(
                "the programs have been built anew while they were measured".to_owned(),
            ));
        }
        run_turn(options, &turn, journal, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// What the rows left take at the mean of those done. The bar's own estimate forgets by the second, and one long row makes it years.
fn left(gone: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| gone.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

fn turns<'a>(options: &Options, file_systems: &'a [FileSystem]) -> Vec<Turn<'a>> {
    let with_fio = fio(options, file_systems);
    let mut turns = Vec::new();
    for group in GROUPS {
        for round in options.round_numbers() {
            // Each round begins with another: whoever is first comes after whatever the machine did before.
            let first = (round as usize).saturating_sub(1) % file_systems.len().max(1);
            for file_system in file_systems[first..].iter().chain(&file_systems[..first]) {
                let wanted = group.rows.iter().filter(|row| {
                    options.wants(row.name, row.short)
                        && file_system.takes(row.name)
                        && has(options, file_system, row, with_fio)
                });
                let rows: Vec<_> = wanted.collect();
                if !rows.is_empty() {
                    turns.push(Turn { group, round, file_system, rows });
                }
            }
        }
    }
    turns
}

/// Whether fio can be asked what the device does, where that will be asked.
fn fio(options: &Options, file_systems: &[FileSystem]) -> bool {
    let asked = !options.trace && file_systems.iter().any(|file_system| file_system.bare);
    let with_fio = asked && bare::has_fio();
    if asked && !with_fio {
        eprintln!(
            "the device's own sequential rates are left out: fio is not installed (Debian's package fio)"
        );
    }
    with_fio
}

fn has(options: &Options, file_system: &FileSystem, row: &Row, with_fio: bool) -> bool {
    if file_system.bare {
        return !options.trace && bare::takes(row, with_fio);
    }
    match row.needs {
        Needs::BareDevice => false,
        Needs::Nothing => true,
        Needs::Clone => !file_system.clone.is_empty(),
        Needs::Checkpoint => !file_system.checkpoint.is_empty(),
        Needs::Device => options.on.is_none() && !file_system.volatile,
        Needs::TwoDevices => options.on.is_none() && options.device.is_none() && !file_system.volatile,
        Needs::Snapshot => !file_system.snapshot.is_empty(),
        Needs::Machine(requirement) => (requirement.is_met)(),
    }
}

/// One sentence for each row that was asked for and cannot be run on this machine, or on the device that was given.
fn tell_what_is_left_out(options: &Options) {
    for row in rows().filter(|row| options.wants(row.name, row.short)) {
        let missing = match row.needs {
            Needs::Machine(requirement) if !(requirement.is_met)() => requirement.what,
            Needs::TwoDevices if options.device.is_some() => {
                "a second device like the first, so none may be given"
            }
            _ => continue,
        };
        eprintln!("{} is left out: it needs {missing}", row.name);
    }
}

fn run_turn(
    options: &Options,
    turn: &Turn<'_>,
    journal: &mut Journal,
    bar: &ProgressBar,
) -> Result<(), Error> {
    let Turn { group, round, file_system, .. } = turn;
    let device_size = options.device_size.min(group.device_bytes_max);
    let options = &Options { device_size, ..options.clone() };
    let which =
        if options.trace { "traced".to_owned() } else { format!("round {round} of {}", options.rounds) };
    bar.suspend(|| eprintln!("{}, {which}: {}", group.name, file_system.name));
    let device = if options.on.is_some() { None } else { Some(Device::attach(options)?) };
    let root = match &options.on {
        Some(directory) => owned::on(directory),
        None => options.directory.join("mnt"),
    };
    let volume = Volume {
        options: options.clone(),
        file_system: (*file_system).clone(),
        device: device.as_ref().map(|device| device.path.clone()),
        image: device.as_ref().and_then(|device| device.image.clone()),
        root,
    };
    let mut is_made = false;
    // Rows whose preparation has failed on a new volume: on the next one it would again, and may take as long.
    let mut unprepared: Vec<&Row> = Vec::new();
    for row in &turn.rows {
        bar.set_message(format!("{}: {}", file_system.name, row.name));
        let begin = Instant::now();
        // A row that fails may leave a part of what later ones would take for the whole: those have a new volume.
        let is_new = !is_made;
        let before = unprepared.iter().find(|before| fn_addr_eq(before.prepare, row.prepare));
        let made = match before.filter(|_| is_new) {
            Some(before) => {
                Err(Error::Program(format!("what it needs could not be made for {}", before.name)))
            }
            None if is_new => volume.make(),
            None => Ok(()),
        };
        let answer = made.and_then(|()| in_own_process(&volume, row));
        let Answer { outcome, traffic, trace, is_unprepared } =
            answer.unwrap_or_else(|error| Answer::failed(error.to_string()));
        if is_new && is_unprepared {
            unprepared.push(row);
        }
        is_made = matches!(outcome, Outcome::Measured(_));
        let seconds = begin.elapsed().as_secs_f64();
        bar.suspend(|| say(row, &outcome, trace.as_ref(), seconds));
        bar.inc(1);
        journal.add(Entry {
            row: row.name.to_owned(),
            file_system: file_system.name.clone(),
            round: *round,
            outcome,
            traffic,
            trace,
            seconds,
        })?;
    }
    if is_made && let Err(error) = volume.let_go() {
        bar.suspend(|| eprintln!("  {}: {error}", file_system.name));
    }
    volume.clear()
}

fn say(row: &Row, outcome: &Outcome, trace: Option<&Summary>, seconds: f64) {
    if let Some(trace) = trace {
        let requests: u64 =
            trace.phases.iter().map(|phase| phase.reads + phase.writes + phase.discards).sum();
        return eprintln!("  {:22} {requests:12} requests   ({seconds:.0} s in all)", row.name);
    }
    match outcome {
        Outcome::Measured(measurement) => {
            for (line, value) in row.lines.iter().zip(&measurement.values) {
                eprintln!("  {:22} {value:12.1} {:10} ({seconds:.0} s in all)", line.name, line.unit);
            }
        }
        Outcome::Failed(why) => eprintln!("  {:22} FAILED: {why}", row.name),
    }
}

/// What the process of a row is told.
#[derive(Serialize, Deserialize)]
struct Job {
    row: String,
    volume: Volume,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
struct Answer {
    outcome: Outcome,
    traffic: Option<Traffic>,
    trace: Option<Summary>,
    /// It failed before there was anything to measure.
    is_unprepared: bool,
}

impl Answer {
    fn failed(why: String) -> Answer {
        Answer { outcome: Outcome::Failed(why), traffic: None, trace: None, is_unprepared: false }
    }
}

fn in_own_process(volume: &Volume, row: &Row) -> Result<Answer, Error> {
    let broken = |what: &str| Error::Program(format!("the process of {} {what}", row.name));
    let own = std::env::current_exe().map_err(|error| broken(&format!("cannot be found: {error}")))?;
    let mut command = Command::new(own);
    command.arg(ROW).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| broken(&format!("cannot be started: {error}")))?;
    let job = Job { row: row.name.to_owned(), volume: volume.clone() };
    let text = serde_json::to_vec(&job).map_err(|error| broken(&error.to_string()))?;
    let mut input = child.stdin.take().expect("it was asked for");
    // A process that has ended shows in what it does not answer.
    let _ = input.write_all(&text);
    drop(input);
    let output = child.wait_with_output().map_err(|error| broken(&error.to_string()))?;
    match serde_json::from_slice::<Answer>(&output.stdout) {
        Ok(answer) => Ok(answer),
        Err(_) => Ok(Answer::failed(format!("its process ended with {}", output.status))),
    }
}

/// The process of one row.
pub fn row_process() -> ExitCode {
    let mut text = Vec::new();
    let job = std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string());
    let job = job.and_then(|_| serde_json::from_slice::<Job>(&text).map_err(|error| error.to_string()));
    let answer = match job {
        Ok(Job { row, volume }) => match rows().find(|one| one.name == row) {
            Some(row) => measure(row, &volume),
            None => Answer::failed(format!("there is no row {row}")),
        },
        Err(why) => Answer::failed(why),
    };
    match serde_json::to_writer(std::io::stdout(), &answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn measure(row: &Row, volume: &Volume) -> Answer {
    let (mut traffic, mut trace, mut is_unprepared) = (None, None, false);
    let mut run = || -> Result<Measurement, Error> {
        if volume.options.trace {
            let (measurement, summary) = trace::round::run(row, volume)?;
            trace = Some(summary);
            return Ok(measurement);
        }
        if volume.file_system.bare {
            return bare::measure(row, volume);
        }
        (row.prepare)(volume).inspect_err(|_| is_unprepared = true)?;
        volume.make_cold()?;
        let before = volume.device.as_deref().map(Traffic::of);
        let measurement = (row.measure)(volume)?;
        let after = volume.device.as_deref().map(Traffic::of);
        traffic = measurement.traffic.or(before.zip(after).map(|(before, after)| after.since(&before)));
        Ok(measurement)
    };
    match run() {
        Ok(measurement) if measurement.values.len() != row.lines.len() => {
            let (values, lines) = (measurement.values.len(), row.lines.len());
            Answer::failed(format!("{values} values for {lines} lines"))
        }
        Ok(measurement) => Answer { outcome: Outcome::Measured(measurement), traffic, trace, is_unprepared },
        Err(error) => Answer { is_unprepared, ..Answer::failed(error.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_rows_left_take_as_long_as_those_done() {
        let seconds = Duration::from_secs;
        assert_eq!(left(seconds(0), 0, 4), None);
        assert_eq!(left(seconds(30), 1, 4), Some(seconds(90)));
        assert_eq!(left(seconds(300), 4, 4), Some(seconds(0)));
    }

    /// The copy of an aged tree came to another device than the tree, and what is no checkpoint was timed as one.
    #[test]
    fn rows_are_for_file_systems_that_have_what_they_need() {
        let rows_of = |arguments: &str, file_system: &FileSystem| {
            let rows = "pando-bench --full --rows aging-git,settle-tree,rename-tree,scale-random";
            let options = Options::parse_from(rows.split(' ').chain(arguments.split_whitespace()));
            let turns = turns(&options, std::slice::from_ref(file_system));
            let mut rows: Vec<_> =
                turns.iter().flat_map(|turn| turn.rows.iter().map(|row| row.name)).collect();
            rows.retain(|row| !row.ends_with("-full") && !row.ends_with("-nogc") && !row.ends_with("-aged"));
            rows.sort_unstable();
            rows
        };
        let known = FileSystem { checkpoint: "true".to_owned(), ..FileSystem::directory() };
        assert_eq!(rows_of("", &known), ["aging-git", "rename-tree", "scale-random", "settle-tree"]);
        assert_eq!(
            rows_of("--device /dev/null --erase-device", &known),
            ["rename-tree", "scale-random", "settle-tree"]
        );
        assert_eq!(rows_of("", &FileSystem::directory()), ["aging-git", "rename-tree", "scale-random"]);
    }

    /// Runs rows in a directory, where all fail: the program that is tested has no processes for them. What became of each.
    fn outcomes(directory: &std::path::Path, file_systems: &[FileSystem]) -> Vec<(String, String, Outcome)> {
        let on = directory.display().to_string();
        let options = Options::parse_from(["pando-bench", "--on", &on, "--rows", "cold-read,random-4k"]);
        let mut journal = Journal::default();
        run(&options, file_systems, &mut journal).unwrap();
        let outcome = |entry: Entry| (entry.file_system, entry.row, entry.outcome);
        journal.entries.into_iter().map(outcome).collect()
    }

    #[test]
    fn a_row_that_failed_leaves_the_next_one_a_new_volume() {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let append = "dd if=/dev/zero bs=1 count=1 oflag=append conv=notrunc status=none";
        let format = format!("mkdir MOUNTPOINT/large && {append} of={}", made.display());
        let outcomes = outcomes(directory.path(), &[FileSystem { format, ..FileSystem::directory() }]);
        let processes_ended = outcomes.iter().all(|(_, _, outcome)| {
            matches!(outcome, Outcome::Failed(why) if why.starts_with("its process ended with"))
        });
        assert!(outcomes.len() == 2 && processes_ended, "{outcomes:?}");
        assert_eq!(std::fs::metadata(made).unwrap().len(), 2, "a volume for each row");
        assert!(!directory.path().join("pando-bench").exists());
    }

    #[test]
    fn a_volume_that_cannot_be_made_is_a_failure_of_its_rows() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name: &str, format: &str| FileSystem {
            name: name.to_owned(),
            format: format.to_owned(),
            ..FileSystem::default()
        };
        let outcomes = outcomes(directory.path(), &[named("broken", "false"), named("other", "true")]);
        let failed: Vec<_> = outcomes
            .iter()
            .map(|(file_system, row, outcome)| {
                let of_the_format = matches!(outcome, Outcome::Failed(why) if why.starts_with("'false': "));
                (file_system.as_str(), row.as_str(), of_the_format)
            })
            .collect();
        let rows = [("broken", true), ("other", false)].into_iter().flat_map(|(name, of_the_format)| {
            ["cold-read", "random-4k"].map(|row| (name, row, of_the_format))
        });
        assert_eq!(failed, rows.collect::<Vec<_>>());
    }
}
