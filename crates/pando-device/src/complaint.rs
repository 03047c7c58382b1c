//! Words for whoever reads standard error.

use std::fmt::Display;
use std::io::Write;

/// Prints a sentence on standard error. If nobody can read it there, nobody can be told: the terminal may be gone, or what was at
/// the other end of a pipe. `eprintln` would panic, and end a daemon that serves on.
pub fn complain(sentence: impl Display) {
    // In one piece, so that the lines of two processes do not mix.
    let line = format!("pando: {sentence}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
