//! Speed of a file system beside its peers, on the same device in turn, in one run: `make bench`.
//!
//! It knows file systems only by their commands (`file_system.rs`), and loads work on a mounted directory (`volume.rs`).
//! Cold means: unmounted, the kernel's caches dropped, mounted again.
//!
//! The program starts itself three times over: outside it makes namespaces (`isolation.rs`), their first process cleans up
//! (`first_process.rs`), its child runs the rows (`schedule.rs`), and each row is a process of its own.

#![forbid(unsafe_code)]

mod aging;
mod applications;
mod bare;
mod command;
mod compleat;
mod device;
mod error;
mod file_system;
mod first_process;
mod generate;
mod isolation;
mod journal;
mod memory;
mod namespace;
mod options;
mod owned;
mod profile;
mod report;
mod row;
mod schedule;
mod trace;
mod volume;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::error::{Error, at};
use crate::journal::{Conditions, Journal};
use crate::options::Options;
use crate::report::Results;

fn main() -> ExitCode {
    let mut arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let hidden = [isolation::FIRST_PROCESS, first_process::INSIDE, schedule::ROW];
    let stage = hidden.into_iter().find(|stage| arguments.get(1).is_some_and(|argument| argument == stage));
    if stage == Some(schedule::ROW) {
        return schedule::row_process();
    }
    if stage.is_some() {
        arguments.remove(1);
    }
    let options = Options::parse_from(arguments);
    if options.list {
        row::rows().for_each(|row| println!("{:22} {}", row.name, row.what));
        return ExitCode::SUCCESS;
    }
    if let Err(error) = options.check() {
        return finish(Err(error));
    }
    if let Some(stored) = &options.from {
        return finish(report::json::load(stored).and_then(|results| present(&options, &results)));
    }
    match stage {
        Some(isolation::FIRST_PROCESS) => first_process::run(&options.directory),
        Some(_) => finish(run(&options)),
        None => match &options.on {
            Some(directory) => finish(run_on(directory, &options)),
            None => isolation::enter(),
        },
    }
}

fn finish(outcome: Result<(), Error>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pando-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs in a directory that was given, with no namespaces and nobody who cleans up.
fn run_on(directory: &Path, options: &Options) -> Result<(), Error> {
    // A directory that is made here would be on whatever file system is there while the one that was meant is not mounted.
    if !directory.is_dir() {
        return Err(Error::Usage(format!("{} is not a directory", directory.display())));
    }
    at("cannot create", &options.directory, fs::create_dir_all(&options.directory))?;
    let _alone = owned::lock(directory)?;
    let is_same = directory.canonicalize().ok() == options.directory.canonicalize().ok();
    let _no_other = if is_same { None } else { owned::lock(&options.directory)? };
    let scratch = owned::scratch(&options.directory);
    owned::remove(&owned::on(directory))?;
    owned::renew(&scratch)?;
    let ran = run(options);
    ran.and(owned::remove(&scratch))
}

/// Runs the rows, prints the table and stores the results.
fn run(options: &Options) -> Result<(), Error> {
    profile::enter(options.profile)?;
    let file_systems = file_system::available(options)?;
    if options.trace {
        trace::is_possible()?;
    }
    let commit = report::json::commit();
    let mut journal = match &options.resume {
        Some(path) => Journal::open(path, Conditions::new(options, &commit, &file_systems)?)?,
        None => Journal::default(),
    };
    let ran = schedule::run(options, &file_systems, &mut journal);
    if ran.is_err() && journal.entries.is_empty() {
        return ran;
    }
    // What was measured before an error is kept.
    let results = Results::new(options, &file_system::all(options)?, commit, journal.entries);
    let stored = report::json::store(&results).and_then(|path| {
        present(options, &results)?;
        println!("stored in {}", path.display());
        Ok(())
    });
    ran.and(stored)
}

/// Prints the table, and writes the report.
fn present(options: &Options, results: &Results) -> Result<(), Error> {
    println!("{}", report::table::render(results));
    println!("{}", report::goals::render(results));
    println!("{}", report::ablations::render(results));
    let page = match &options.html {
        Some(page) => page.clone(),
        None => {
            at("cannot create", &options.directory, fs::create_dir_all(&options.directory))?;
            options.directory.join("report.html")
        }
    };
    at("cannot write", &page, fs::write(&page, report::html::render(results)?))?;
    println!("report in {}", page.display());
    Ok(())
}
