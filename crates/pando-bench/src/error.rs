//! What can go wrong with a benchmark: each error names what it was about.

use std::path::{Path, PathBuf};

/// An error of the benchmark itself or of what it measures.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The command line, or the machine, is not as it must be; the text is for the user.
    Usage(String),
    /// A program could not be started or ended with an error.
    Program(String),
    /// A system call failed: what was done, to what.
    Io(&'static str, PathBuf, std::io::Error),
    /// Something was measured that is not what should have been there.
    Wrong(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Usage(text) | Error::Program(text) | Error::Wrong(text) => f.write_str(text),
            Error::Io(what, path, error) => write!(f, "{what} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Gives an I/O error what was done, and to what.
pub fn at<T>(what: &'static str, path: &Path, result: std::io::Result<T>) -> Result<T, Error> {
    result.map_err(|error| Error::Io(what, path.to_owned(), error))
}

/// Runs a program that must end well; its output is shown only if it does not.
pub fn run(arguments: &[String]) -> Result<String, Error> {
    let (program, rest) = arguments.split_first().expect("a command has a program");
    let output = std::process::Command::new(program).args(rest).output();
    let output = output.map_err(|error| Error::Program(format!("{program} cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Error::Program(format!("{}: {}: {}", arguments.join(" "), output.status, text.trim_end())))
}

/// A command written as one string of words.
pub fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}
