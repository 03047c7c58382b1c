//! The command line.

use std::path::PathBuf;

use crate::error::Error;

/// Printed by --help, before the list of rows.
pub const USAGE: &str = "\
usage: pando-bench [--rows NAME,...] [--fs NAME,...] [--size 4G] [--files 200000] [--runs 1]
                   [--device-size 16G] [--directory DIR]

Runs loads on PandoFS, ext4, XFS and Btrfs, one after the other on a loop device over a file in DIR (default: the
build directory), and prints rates, more is better. Needs root. A row is chosen by any part of its name.
Rows:";

/// What to measure, and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Parts of names of rows; all rows if empty.
    pub rows: Vec<String>,
    /// Names of file systems; all that the machine has if empty.
    pub file_systems: Vec<String>,
    /// Size of the large file.
    pub size_bytes: u64,
    /// Number of small files.
    pub files: u64,
    /// Repetitions, of which the median is reported.
    pub runs: u64,
    /// Size of the loop device.
    pub device_bytes: u64,
    /// Where the file behind the loop device is made.
    pub directory: PathBuf,
}

impl Options {
    /// None when help was asked for.
    pub fn parse(arguments: &[String]) -> Result<Option<Options>, Error> {
        let mut options = Options {
            rows: Vec::new(),
            file_systems: Vec::new(),
            size_bytes: 4 << 30,
            files: 200_000,
            runs: 1,
            device_bytes: 16 << 30,
            directory: own_directory().join("bench"),
        };
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            if option == "--help" || option == "-h" {
                return Ok(None);
            }
            let value = arguments.next().ok_or_else(|| Error::Usage(format!("{option} needs a value")))?;
            let list = || value.split(',').map(str::to_owned).collect();
            match option.as_str() {
                "--rows" => options.rows = list(),
                "--fs" => options.file_systems = list(),
                "--size" => options.size_bytes = size(value)?,
                "--files" => options.files = size(value)?,
                "--runs" => options.runs = size(value)?,
                "--device-size" => options.device_bytes = size(value)?,
                "--directory" => options.directory = PathBuf::from(value),
                _ => return Err(Error::Usage(format!("unknown option {option}"))),
            }
        }
        Ok(Some(options))
    }

    /// Whether this row was asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part.as_str()))
    }
}

/// The directory above the one where this program stands, which is the build directory.
pub fn own_directory() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().and_then(|profile| profile.parent()).map(PathBuf::from).unwrap_or_default()
}

/// A number with a binary suffix: 4G, 512M, 200000. Never zero.
fn size(text: &str) -> Result<u64, Error> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((end, 'K')) => (&text[..end], 10),
        Some((end, 'M')) => (&text[..end], 20),
        Some((end, 'G')) => (&text[..end], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| Error::Usage(format!("'{text}' is not a size such as 4G")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Options>, Error> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse("--size 3M").unwrap().unwrap().size_bytes, 3 << 20);
        for bad in ["--size 0", "--size G", "--size 4X", "--size 99999999999G", "--size", "--sizes 1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_are_chosen_by_parts_of_their_names() {
        let options = parse("--rows random,find").unwrap().unwrap();
        assert!(options.wants("random-4b") && options.wants("cold-find") && !options.wants("untar"));
    }
}
