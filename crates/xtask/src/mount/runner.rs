//! Starts each test in its namespaces, holds it to its time limit, and reports one line a test.
//!
//! The chain is: setpriv (dies with the runner), unshare (whose child dies with it), scripts/first-process, which is that of
//! the new process namespace, holds the limit and ends what a test has left, and the test itself, `xtask mount-one`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::volume::{self, Kind};
use super::{Context, Failure, LIMIT, LIMIT_FULL, Test};

/// Exit status of the inner process that says "skipped"; the reason is its last line of output.
const SKIPPED: u8 = 77;
/// Exit statuses of scripts/first-process after its time limit, which timeout(1) chooses.
const OUT_OF_TIME: [i32; 2] = [124, 137];
/// How long the first process may take to clean up after the limit of its test, before the kernel does.
const CLEANING: Duration = Duration::from_secs(120);
/// Tests under way at once. Each is a load and a daemon that mostly wait for each other.
const AT_A_TIME: usize = 2;
/// How much of the log of a failed test is shown.
const LOG_TAIL_LINES: usize = 40;

/// What the command line of `xtask mount` asks for.
#[derive(Debug)]
pub struct Options {
    names: Vec<String>,
    kind: Kind,
    full: bool,
    verbose: bool,
    keep: bool,
    /// Print the names of the tests and do nothing.
    pub list: bool,
}

impl Options {
    /// Errors are sentences for the user.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            names: Vec::new(),
            kind: Kind::Pando,
            full: false,
            verbose: false,
            keep: false,
            list: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--full" => options.full = true,
                "--verbose" => options.verbose = true,
                "--keep" => options.keep = true,
                "--list" => options.list = true,
                "--fs" => {
                    let name = arguments.next().ok_or("--fs needs the name of a file system")?;
                    options.kind = Kind::parse(name).ok_or(format!("'{name}' is neither pando nor ext4"))?;
                }
                name if name.starts_with('-') => return Err(format!("unknown option {name}")),
                name => options.names.push(name.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs the chosen tests, two at a time; one at a time when their output goes to the terminal.
pub fn run(tests: &[Test], options: &Options) -> ExitCode {
    if let Some(name) = options.names.iter().find(|name| tests.iter().all(|test| test.name != **name)) {
        eprintln!("xtask mount: there is no test {name}; --list names them");
        return ExitCode::from(2);
    }
    let chosen =
        |test: &&Test| options.names.is_empty() || options.names.iter().any(|name| name == test.name);
    let waiting = Mutex::new(tests.iter().filter(chosen));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let failed = AtomicBool::new(false);
    let work = || {
        while let Some(test) = next() {
            if !run_and_report(test, options) {
                failed.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..if options.verbose { 1 } else { AT_A_TIME } {
            scope.spawn(work);
        }
    });
    ExitCode::from(failed.into_inner() as u8)
}

/// Prints how the test went; true if it did not fail.
fn run_and_report(test: &Test, options: &Options) -> bool {
    let begin = Instant::now();
    let result = outcome(test, options);
    // In one piece, whatever another worker prints.
    let mut out = io::stdout().lock();
    let seconds = begin.elapsed().as_secs_f64();
    let _ = match &result {
        Ok(()) => writeln!(out, "ok {} ({seconds:.1} s)", test.name),
        Err(Failure::Skipped(reason)) => writeln!(out, "SKIPPED {}: {reason}", test.name),
        Err(failure) => {
            let text = failure.to_string().replace('\n', "\n    ");
            writeln!(out, "FAILED {} ({seconds:.1} s)\n    {text}", test.name)
        }
    };
    matches!(result, Ok(()) | Err(Failure::Skipped(_)))
}

fn outcome(test: &Test, options: &Options) -> Result<(), Failure> {
    let context = context(test, options)?;
    if let Some(reason) = cannot_run(test, &context) {
        return Err(Failure::Skipped(reason));
    }
    let io = |what| {
        let path = context.work.clone();
        move |error| Failure::Io(what, path, error)
    };
    // What an interrupted run has left.
    if context.work.exists() {
        fs::remove_dir_all(&context.work).map_err(io("cannot remove"))?;
    }
    fs::create_dir_all(&context.work).map_err(io("cannot create"))?;
    let log = context.work.join("log");
    let limit = if options.full { LIMIT_FULL } else { LIMIT };
    let status = run_isolated(test, options, &context, &log, limit).map_err(io("cannot start a test in"))?;
    let text = tail(&log).map_err(io("cannot read the log in"))?;
    let result = match status.filter(|status| !status.code().is_some_and(|code| OUT_OF_TIME.contains(&code)))
    {
        Some(status) if status.success() => Ok(()),
        Some(status) if status.code() == Some(SKIPPED.into()) => {
            Err(Failure::Skipped(text.lines().last().unwrap_or("for a reason it does not say").to_owned()))
        }
        Some(status) => Err(Failure::Program(format!("{text}\n{status}; the log is {}", log.display()))),
        None => Err(Failure::Program(format!(
            "{text}\nstopped after {} s; the log is {}",
            limit.as_secs(),
            log.display()
        ))),
    };
    if !options.keep {
        remove_all_but(&context.work, if result.is_ok() { None } else { Some(&log) });
    }
    result
}

fn context(test: &Test, options: &Options) -> Result<Context, Failure> {
    let own =
        std::env::current_exe().map_err(|error| Failure::Io("cannot find", PathBuf::from("xtask"), error))?;
    let programs = own.parent().expect("a program stands in a directory").to_owned();
    let target = programs.parent().expect("the profile's directory stands in the target directory");
    Ok(Context {
        kind: options.kind,
        full: options.full,
        work: target.join("mount-tests").join(test.name),
        tools: target.join("tools"),
        programs,
        source: Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    })
}

/// The reason why the test cannot run on this machine, if there is one.
fn cannot_run(test: &Test, context: &Context) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to mount in a namespace of its own".to_owned());
    }
    if context.kind == Kind::Pando && File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("needs /dev/fuse".to_owned());
    }
    if let Some(program) = test.needs.iter().find(|program| context.find(program).is_none()) {
        return Some(format!("needs the program {program}, which scripts/setup installs"));
    }
    let isolated =
        Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    match isolated {
        Ok(status) if status.success() => None,
        _ => Some("needs the right to create mount and process namespaces".to_owned()),
    }
}

/// Runs one test in new namespaces; None when it was killed because its time was over.
fn run_isolated(
    test: &Test,
    options: &Options,
    context: &Context,
    log: &Path,
    limit: Duration,
) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(context.source.join("scripts/first-process")).arg(limit.as_secs().to_string());
    command.arg(std::env::current_exe()?);
    command.args(["mount-one", test.name, options.kind.name(), if options.full { "full" } else { "short" }]);
    command.stdin(Stdio::null());
    if !options.verbose {
        let output = File::create(log)?;
        command.stdout(output.try_clone()?).stderr(output);
    } else {
        File::create(log)?.write_all(b"(the output went to the terminal)\n")?;
    }
    debug_assert!(context.work.is_dir());
    let mut child = command.spawn()?;
    let deadline = Instant::now() + limit + CLEANING;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tail(log: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(log)?.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"))
}

/// Removes images and trees, which are large; the log of a failed test stays.
fn remove_all_but(work: &Path, kept: Option<&Path>) {
    let Some(kept) = kept else {
        // Left-over bytes in the target directory harm nobody, and the next run tries again.
        let _ = fs::remove_dir_all(work);
        return;
    };
    for entry in fs::read_dir(work).into_iter().flatten().flatten().filter(|entry| entry.path() != kept) {
        let path = entry.path();
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

/// The inside: runs the body of the named test and turns its outcome into an exit status.
pub fn run_one(tests: &[Test], arguments: &[String]) -> ExitCode {
    let [name, kind, scale] = arguments else { return ExitCode::from(2) };
    let (Some(test), Some(kind)) = (tests.iter().find(|test| test.name == name), Kind::parse(kind)) else {
        return ExitCode::from(2);
    };
    let options =
        Options { names: Vec::new(), kind, full: scale == "full", verbose: true, keep: true, list: false };
    let run = || -> Result<(), Failure> {
        volume::mount_scratch()?;
        (test.body)(&context(test, &options)?)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Skipped(reason)) => {
            println!("{reason}");
            ExitCode::from(SKIPPED)
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}
