//! How a command ends when it does not end well.
//!
//! Every error a user sees is one sentence: what failed, on what, why, and what to do where there is something to do.
//! `main` prints it once, behind `pando: `, and chooses the exit status.

use std::fmt;

pub use pando_device::{complain, io_text};
use rustix::io::Errno;

/// Results of commands.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command did not do all it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The sentence for the user.
    Sentence(String),
    /// Whoever read the output has gone; nobody wants to hear about it.
    OutputClosed,
}

impl Failure {
    /// A failure with its sentence, without a full stop.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self::Sentence(sentence.into())
    }
}

/// How a command ended that could run to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// All done.
    Success,
    /// Something went wrong and was printed, the rest was done; or `check` found problems.
    Problems,
}

/// A broken invariant of ours ends the process, whichever thread meets it: what is on the device is better than what a limping process adds.
pub fn stop_on_panic(say: impl Fn(&str) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic| {
        say(&format!("stopped by a broken invariant, please report it: {panic}"));
        std::process::abort();
    }));
}

/// Why one step on one file failed, in a volume or on the host. Its text is the last part of a sentence.
#[derive(Debug)]
pub enum Cause {
    /// The volume said no.
    Volume(pando_fs::Error),
    /// The operating system said no.
    Host(Errno),
    /// More than [`crate::path::SYMLINKS_MAX`] symbolic links on the way.
    TooManySymlinks,
    /// What the command does not do, in words.
    Refused(&'static str),
}

impl Cause {
    /// True if the reason is that there is no such name.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Volume(pando_fs::Error::NotFound) | Self::Host(Errno::NOENT))
    }

    /// True if the reason is that something on the way, or at its end, is no directory.
    pub fn is_not_a_directory(&self) -> bool {
        matches!(self, Self::Volume(pando_fs::Error::NotADirectory) | Self::Host(Errno::NOTDIR))
    }

    /// True if the reason is that the name is taken.
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Volume(pando_fs::Error::Exists) | Self::Host(Errno::EXIST))
    }

    /// True if there is no such extended attribute.
    pub fn is_no_attribute(&self) -> bool {
        matches!(self, Self::Volume(pando_fs::Error::NoAttribute) | Self::Host(Errno::NODATA))
    }

    /// True if the place cannot keep such a thing at all, or not for this user.
    pub fn is_not_supported(&self) -> bool {
        use pando_fs::Error::{NotPermitted, NotSupported};
        matches!(self, Self::Volume(NotPermitted | NotSupported) | Self::Host(Errno::PERM | Errno::OPNOTSUPP))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(error) => error.fmt(f),
            Self::Host(errno) => f.write_str(&errno_text(*errno)),
            Self::TooManySymlinks => f.write_str("too many levels of symbolic links"),
            Self::Refused(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Cause {}

impl From<pando_fs::Error> for Cause {
    fn from(error: pando_fs::Error) -> Self {
        Self::Volume(error)
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

/// What a step on one argument may fail with: a reason that concerns this argument alone, or the end of the command.
#[derive(Debug)]
pub enum Trouble {
    /// To be printed with the argument's name; the command goes on with the next.
    Here(Cause),
    /// The command ends.
    Everywhere(Failure),
}

impl<T: Into<Cause>> From<T> for Trouble {
    fn from(cause: T) -> Self {
        Self::Here(cause.into())
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Everywhere(failure)
    }
}

/// An error number as the C library words it, in the middle of a sentence: no capital, no number.
pub fn errno_text(errno: Errno) -> String {
    io_text(&std::io::Error::from(errno))
}
