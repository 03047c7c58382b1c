//! Running other programs, and a few system calls with errors that name their path.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Context, Failure};

impl Context {
    /// Where a program is: built here, built by scripts/setup, or on the PATH.
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = vec![self.programs.clone(), self.tools.join("bin")];
        places.extend(std::env::split_paths(&path));
        places.extend([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]);
        places.into_iter().map(|place| place.join(program)).find(|candidate| candidate.is_file())
    }

    /// A program that is to be started.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.find(name).unwrap_or_else(|| PathBuf::from(name)))
    }

    /// Runs a program with these arguments; it must end well. Its output goes to the log.
    pub fn run<A: AsRef<OsStr>>(
        &self,
        name: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<(), Failure> {
        let mut command = self.program(name);
        command.args(arguments);
        run(&mut command)
    }
}

/// Runs a command that must end well; its output goes to the log.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    eprintln!("+ {command:?}");
    let status = command.stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Program(format!("{command:?}: {status}"))),
        Err(error) => Err(Failure::Program(format!("{command:?} cannot be started: {error}"))),
    }
}

/// Runs a command that must end well, with this input, and returns what it printed.
pub fn output(command: &mut Command, input: &str) -> Result<String, Failure> {
    eprintln!("+ {command:?}");
    let cannot = |error| Failure::Program(format!("cannot be run: {error}"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // The programs used here read all of their input before they print more than a pipe holds.
    stdin.write_all(input.as_bytes()).map_err(cannot)?;
    drop(stdin);
    let output = child.wait_with_output().map_err(cannot)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(Failure::Program(format!("{command:?}: {}\n{text}", output.status)))
    }
}

/// Runs a shell script in a directory; it must end well.
pub fn shell(directory: &Path, script: &str) -> Result<(), Failure> {
    eprintln!("{script}");
    run(Command::new("sh").arg("-euc").arg(script).current_dir(directory))
}

/// The same for a script with pipes, where the failure of any of their programs ends it, as one within `$(...)` does that
/// is assigned.
pub fn shell_with_pipes(directory: &Path, script: &str) -> Result<(), Failure> {
    eprintln!("{script}");
    let options = ["-O", "inherit_errexit", "-o", "pipefail", "-euc"];
    run(Command::new("bash").args(options).arg(script).current_dir(directory))
}

/// For how long [`until`] waits: on a busy machine things take their time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until something is so.
pub fn until(what: &str, mut is: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let begin = Instant::now();
    while !is()? {
        if begin.elapsed() > PATIENCE {
            return Err(Failure::Wrong(format!("it took too long until {what}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    eprintln!("{what}, after {} ms", begin.elapsed().as_millis());
    Ok(())
}

/// Gives an I/O error its path.
pub fn at<T>(what: &'static str, path: &Path, result: std::io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure::Io(what, path.to_owned(), error))
}

/// Creates a directory and those above it.
pub fn create_directory(path: &Path) -> Result<(), Failure> {
    at("cannot create", path, fs::create_dir_all(path))
}

/// Makes everything done in a directory durable: an fsync of a file in it, since syncfs(2) does not reach the mount of an
/// image.
pub fn sync(directory: &Path) -> Result<(), Failure> {
    let path = directory.join(".sync");
    let file = at("cannot create", &path, File::create(&path))?;
    at("cannot sync", &path, file.sync_all())?;
    at("cannot remove", &path, fs::remove_file(&path))
}

/// Bytes an ordinary user may still write, as statfs(2) tells.
pub fn free_bytes(path: &Path) -> Result<u64, Failure> {
    let stat = at("cannot statfs", path, rustix::fs::statvfs(path).map_err(Into::into))?;
    Ok(stat.f_bavail * stat.f_frsize)
}
