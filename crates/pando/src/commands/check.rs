//! `pando check`: verifies a whole volume.
//!
//! The volume is opened as for reading: its log is replayed in memory and nothing is written. Exit status 2 says that
//! the check could not run to its end, and that nothing is known about what it did not reach.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pando_fs::check::Report;
use serde_json::json;

use crate::failure::{Failure, Result, Status};
use crate::output::Output;
use crate::size::human;
use crate::volume::{Purpose, Volume, name};

const ABOUT: &str = "\
Verifies a volume that is not mounted: that everything in it can be read and carries its checksum, that the name space \
is sound, and that no data belongs to nobody. Problems are listed on standard output. Nothing is written or repaired. A \
volume that was not unmounted needs no check: the next mount recovers it from its log.";

const EXAMPLES: &str = "\
Examples:
  pando check disk.img
  pando check --json /dev/sdb1 | jq -r '.problems[]'";

/// How often the progress bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Arguments of `pando check`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct CheckArgs {
    /// An image file or a block device that is not mounted.
    path: PathBuf,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `pando check`.
pub fn run(args: &CheckArgs) -> Result<Status> {
    let volume = Volume::open(&args.path, Purpose::Read)?;
    let progress = progress_bar();
    let report = pando_fs::check::check(volume.engine(), &mut |inodes| progress.set_position(inodes));
    progress.finish_and_clear();
    let report = report
        .map_err(|error| Failure::new(format!("cannot check {} to the end: {error}", name(&args.path))))?;
    volume.close()?;
    let mut output = Output::new();
    print(&mut output, args, &report)?;
    output.finish()?;
    Ok(if report.problems.is_empty() { Status::Success } else { Status::Problems })
}

/// A line on standard error if that is a terminal; nothing elsewhere. How many inodes there will be is written nowhere,
/// so it counts and does not promise.
fn progress_bar() -> ProgressBar {
    let style = "{spinner} {pos} inodes checked in {elapsed}, {per_sec}";
    let style = ProgressStyle::with_template(style).expect("the template has only known fields");
    let bar = ProgressBar::new_spinner().with_style(style);
    bar.enable_steady_tick(TICK);
    bar
}

fn print(output: &mut Output, args: &CheckArgs, report: &Report) -> Result<()> {
    let Report { problems, directories, files, orphans, data_bytes } = report;
    let path = name(&args.path);
    if args.json {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return output.json(&json!({
            "path": path,
            "clean": problems.is_empty(),
            "problems": problems,
            "directories": directories,
            "files": files,
            "orphans": orphans,
            "data_bytes": data_bytes,
        }));
    }
    for problem in problems {
        output.line(problem.to_string())?;
    }
    let held = format!(
        "{directories} directories, {files} files, {orphans} orphans, {} of data",
        human(*data_bytes)
    );
    match problems.len() {
        0 => output.line(format!("{path}: clean: {held}")),
        1 => output.line(format!("{path}: 1 problem: {held}")),
        count => output.line(format!("{path}: {count} problems: {held}")),
    }
}
