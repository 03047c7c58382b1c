//! Speed of a file system beside its peers, on the same loop device in turn, in one run: `make bench`.
//!
//! It knows file systems only by the commands that format, mount and unmount them (`file_system.rs`), and loads work
//! on a mounted directory (`compleat/`). Cold means: unmounted, the kernel's caches dropped, mounted again.

#![forbid(unsafe_code)]

mod compleat;
mod device;
mod error;
mod file_system;
mod isolation;
mod options;
mod report;

use std::process::ExitCode;

use crate::compleat::Bench;
use crate::error::Error;
use crate::options::Options;
use crate::report::Results;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::parse(&arguments) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", options::USAGE);
            compleat::ROWS.iter().for_each(|row| println!("  {:16} {}", row.name, row.what));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("pando-bench: {error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    if !isolation::inside() {
        return isolation::enter();
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pando-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Every file system, every run, every row; a row that fails is reported and left out, the others go on.
fn run(options: &Options) -> Result<(), Error> {
    let file_systems = file_system::available(options)?;
    let mut results = Results::new(options, &file_systems);
    for run in 1..=options.runs {
        for file_system in &file_systems {
            eprintln!("run {run} of {}: {}", options.runs, file_system.name);
            let mut bench = Bench::prepare(options, file_system)?;
            for row in compleat::ROWS.iter().filter(|row| options.wants(row.name)) {
                match bench.run(row) {
                    Ok(rate) => {
                        eprintln!("  {:16} {rate:12.1} {}", row.name, row.unit);
                        results.add(&file_system.name, row.name, rate);
                    }
                    Err(error) => {
                        eprintln!("  {:16} FAILED: {error}", row.name);
                        results.add_failure(&file_system.name, row.name, &error);
                    }
                }
            }
            bench.finish()?;
        }
    }
    println!("{}", report::table::render(&results));
    let path = report::json::store(&results)?;
    println!("stored in {}", path.display());
    Ok(())
}
