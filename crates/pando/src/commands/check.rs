//! `pando check`: verifies a whole volume.
//!
//! The volume is opened as for reading: its log is replayed in memory and nothing is written. Exit status 2 says that
//! the check could not run to its end, and that nothing is known about what it did not reach; what it had found by then is listed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pando_engine::{Engine, PROBLEMS_MAX};
use pando_fs::check::Report;
use serde_json::{Map, json};

use crate::failure::{Failure, Result, Status};
use crate::output::{Output, put_name};
use crate::size::human;
use crate::volume::{name, open_engine};

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
    /// Print a JSON object, whatever comes of the check: `complete` tells whether everything was looked at, `error` why the check could not
    /// run to its end, and `clean` is null where nothing wrong was found before.
    #[arg(long)]
    json: bool,
}

/// What both halves of a check found.
#[derive(Default)]
struct Findings {
    /// One sentence each.
    problems: Vec<String>,
    /// `None` if not all could be looked at.
    nodes: Option<u64>,
    /// `None` if the name space could not be walked to its end.
    names: Option<Report>,
    /// Why not, unless it was damage that is among the problems.
    failure: Option<pando_fs::Error>,
}

/// Runs `pando check`.
pub fn run(args: &CheckArgs) -> Result<Status> {
    let (findings, failure) = match find(args) {
        Ok(mut findings) => {
            let failure = findings
                .failure
                .take()
                .map(|error| Failure::new(format!("cannot check {} to the end: {error}", name(&args.path))));
            (findings, failure)
        }
        Err(failure) => (Findings::default(), Some(failure)),
    };
    if args.json || failure.is_none() || !findings.problems.is_empty() {
        let mut output = Output::new();
        print(&mut output, args, &findings, failure.as_ref())?;
        output.finish()?;
    }
    match failure {
        Some(failure) => Err(failure),
        None if findings.problems.is_empty() => Ok(Status::Success),
        None => Ok(Status::Problems),
    }
}

fn find(args: &CheckArgs) -> Result<Findings> {
    let engine = open_engine(&args.path)?;
    let progress = progress_bar();
    let findings = check(&engine, &progress);
    progress.finish_and_clear();
    Ok(findings)
}

/// First the structures: every byte of every node, the invariants of the trees, the block table. Then the name space on
/// top of them, whose walk ends at the first damaged node; that is listed already then.
fn check(engine: &Engine, progress: &ProgressBar) -> Findings {
    let structures = engine.check(&mut |done, all| {
        progress.set_length(all);
        progress.set_position(done);
    });
    let mut findings = match structures {
        Ok(structures) => {
            let (problems, nodes) = (structures.problems, Some(structures.nodes));
            Findings { problems, nodes, ..Findings::default() }
        }
        Err(error) => return Findings { failure: Some(error.into()), ..Findings::default() },
    };
    let is_damaged = !findings.problems.is_empty();
    // First what all else follows from.
    findings.problems.splice(..0, engine.check_roots());
    progress.set_style(style("{spinner} {pos} inodes checked in {elapsed}, {per_sec}"));
    let mut report = Report::default();
    let names = pando_fs::check::check(engine, &mut report, &mut |inodes| progress.set_position(inodes));
    findings.problems.extend(report.problems.iter().map(ToString::to_string));
    match names {
        Ok(()) => findings.names = Some(report),
        Err(pando_fs::Error::Engine(error)) if error.is_unreadable() && is_damaged => {}
        Err(error) => findings.failure = Some(error),
    }
    findings
}

/// A line on standard error if that is a terminal; nothing elsewhere. How many inodes there will be is written nowhere,
/// so for them it counts and does not promise.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0).with_style(style("{bar:30} {pos} of {len} nodes verified in {elapsed}"));
    bar.enable_steady_tick(TICK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template has only known fields")
}

fn print(
    output: &mut Output,
    args: &CheckArgs,
    findings: &Findings,
    failure: Option<&Failure>,
) -> Result<()> {
    let Findings { problems, nodes, names, .. } = findings;
    let path = name(&args.path);
    if args.json {
        let error = match failure {
            Some(Failure::Sentence(sentence)) => Some(sentence),
            _ => None,
        };
        let is_complete = failure.is_none() && names.is_some();
        // Of what was not looked at to the end nobody knows.
        let is_clean = (is_complete || !problems.is_empty()).then_some(problems.is_empty());
        let mut object = Map::new();
        put_name(&mut object, "path", args.path.as_os_str().as_encoded_bytes());
        let found = json!({
            "complete": is_complete,
            "error": error,
            "clean": is_clean,
            "problems": problems,
            "nodes": nodes,
            "directories": names.as_ref().map(|names| names.directories),
            "files": names.as_ref().map(|names| names.files),
            "links": names.as_ref().map(|names| names.links),
            "orphans": names.as_ref().map(|names| names.orphans),
            "snapshots": names.as_ref().map(|names| names.snapshots),
            "data_bytes": names.as_ref().map(|names| names.data_bytes),
        });
        object.extend(found.as_object().cloned().unwrap_or_default());
        return output.json(&object);
    }
    let nodes = nodes.unwrap_or_default();
    for problem in problems {
        output.line(problem.clone())?;
    }
    let held = match names {
        Some(Report { directories, files, links, orphans, snapshots, data_bytes, .. }) => format!(
            "{nodes} nodes, {directories} directories, {files} files, {links} hard links, {orphans} orphans, \
             {snapshots} snapshots, {} of data",
            human(*data_bytes)
        ),
        None => format!("{nodes} nodes; the name space cannot be walked to its end"),
    };
    match problems.len() {
        0 => output.line(format!("{path}: clean: {held}")),
        1 => output.line(format!("{path}: 1 problem: {held}")),
        count if count < PROBLEMS_MAX => output.line(format!("{path}: {count} problems: {held}")),
        count => output.line(format!("{path}: {count} problems or more: {held}")),
    }
}
