//! What a command prints: text for people, JSON for programs, raw bytes for pipes.
//!
//! A name may hold any byte. Where a person reads, control characters and bytes that are no UTF-8 are escaped, so that
//! no name can drive the terminal; where a program reads (a pipe), names go out as they are. In JSON a name that is no
//! UTF-8 is given with U+FFFD in place of the bad bytes, and exactly in a second field in hexadecimal.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::failure::{Failure, Result, io_text};

/// Standard output, buffered. Call [`Output::finish`] at the end: what is still buffered could fail to be written.
pub struct Output {
    out: BufWriter<Stdout>,
    terminal: bool,
}

impl Output {
    /// Takes standard output.
    pub fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { out: BufWriter::with_capacity(128 << 10, stdout), terminal }
    }

    /// A line of text.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.bytes(text.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_failure)
    }

    /// A name: escaped on a terminal, as it is elsewhere.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        if self.terminal { self.bytes(shown(name).as_bytes()) } else { self.bytes(name) }
    }

    /// A value as indented JSON and a line feed.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .expect("values printed here have string keys and no failing parts");
        self.line(text)
    }

    /// A value as JSON on one line, without a line feed.
    pub fn json_value(&mut self, value: &impl Serialize) -> Result<()> {
        let text =
            serde_json::to_string(value).expect("values printed here have string keys and no failing parts");
        self.bytes(text.as_bytes())
    }

    /// Writes what is buffered.
    pub fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(write_failure)
    }
}

/// The failure of a command that cannot write what it prints.
pub fn write_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::new(format!("cannot write to standard output: {}", io_text(&error))),
    }
}

/// A name or path for people. Plain where every character can be printed, else in quotes with escapes.
pub fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("\"{}\"", name.utf8_chunks().map(escaped).collect::<String>()),
    }
}

fn escaped(chunk: std::str::Utf8Chunk<'_>) -> String {
    let mut text: String = chunk
        .valid()
        .chars()
        .map(|c| {
            if c.is_control() || c == '"' || c == '\\' {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect();
    for byte in chunk.invalid() {
        text.push_str(&format!("\\x{byte:02x}"));
    }
    text
}

/// Puts a name into a JSON object: under `field`, and under `field_hex` too if it is no UTF-8.
pub fn put_name(object: &mut Map<String, Value>, field: &str, name: &[u8]) {
    object.insert(field.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        object.insert(format!("{field}_hex"), hex.into());
    }
}

/// The name that [`put_name`] put under a field.
pub fn exact_name(object: &Value, field: &str) -> Vec<u8> {
    let digits = object[format!("{field}_hex")].as_str();
    let Some(digits) = digits else {
        return object[field].as_str().unwrap_or_default().into();
    };
    let pairs = digits.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The same as a path; `None` if there is none.
pub fn exact_path(object: &Value, field: &str) -> Option<PathBuf> {
    object[field].is_string().then(|| OsString::from_vec(exact_name(object, field)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_reaches_a_terminal_with_control_characters() {
        assert_eq!(shown(b"plain name"), "plain name");
        assert_eq!(shown("fünf".as_bytes()), "fünf");
        assert_eq!(shown(b"a\nb"), r#""a\nb""#);
        assert_eq!(shown(b"\x1b[31m"), r#""\u{1b}[31m""#);
        assert_eq!(shown(b"\xff\"x"), r#""\xff\"x""#);
    }

    #[test]
    fn json_gives_odd_names_exactly() {
        let mut object = Map::new();
        put_name(&mut object, "name", b"a\xfe");
        assert_eq!(object["name"], "a\u{fffd}");
        assert_eq!(object["name_hex"], "61fe");
        let object = object.into();
        assert_eq!(exact_name(&object, "name"), b"a\xfe");
        assert_eq!(exact_path(&object, "name"), Some(OsString::from_vec(b"a\xfe".into()).into()));
        assert_eq!(exact_path(&object, "other"), None);
        let mut object = Map::new();
        put_name(&mut object, "name", b"a\n");
        assert_eq!(object["name"], "a\n");
        assert_eq!(object.get("name_hex"), None);
    }
}
