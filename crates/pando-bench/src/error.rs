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
