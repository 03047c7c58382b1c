//! Words for whoever reads standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a sentence on standard error. If nobody can read it there, nobody can be told: the terminal may be gone, or what was at
/// the other end of a pipe. `eprintln` would panic, and end a daemon that serves on.
pub fn complain(sentence: impl Display) {
    // In one piece, so that the lines of two processes do not mix.
    let line = format!("pando: {sentence}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// An I/O error in the middle of a sentence: no capital, no number.
pub fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}
