//! The command line.

use std::path::PathBuf;

use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::profile::Profile;
use crate::row;
use crate::trace::round;

const ABOUT: &str = "\
Runs loads on PandoFS, ext4, XFS and Btrfs, one file system after the other on the same device, and prints what each \
reached and the ratio to the best peer. Each load runs in a process of its own. The device is a loop device over a file \
in --directory unless --device names one. Needs root, except with --on.";

/// What to measure, and how large.
#[derive(Clone, Debug, Parser, Serialize, Deserialize)]
#[command(name = "pando-bench", about = "Measure file systems beside each other", long_about = ABOUT, version)]
pub struct Options {
    /// Rows to run: a whole name, or a part of names for all that have it.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub rows: Vec<String>,
    /// All rows, the long ones included, and the larger sizes of some; without it those of about ten minutes.
    #[arg(long)]
    pub full: bool,
    /// Columns to run; without it pandofs, floor, device, ext4, xfs, btrfs and btrfs-subvolume, those that the machine has.
    #[arg(long = "fs", value_delimiter = ',', value_name = "NAME,...")]
    pub file_systems: Vec<String>,
    /// One more of the known peers: f2fs, bcachefs, zfs.
    #[arg(long = "peer", value_name = "NAME")]
    pub peers: Vec<String>,
    /// One more file system, by its commands, in which DEVICE and MOUNTPOINT stand for the real ones.
    #[arg(long = "file-system", value_name = "NAME=FORMAT;MOUNT;UMOUNT")]
    pub given: Vec<String>,
    /// One more column: PandoFS with these mount options, to see what they do.
    #[arg(long = "variant", value_name = "NAME=OPTIONS")]
    pub variants: Vec<String>,
    /// A table of its own: PandoFS with each of its techniques left out, as in EUROSYS22 table 3.
    #[arg(long)]
    pub ablations: bool,
    /// Run on this mounted directory alone, whatever file system it is on.
    #[arg(long, value_name = "DIR", value_parser = absolute, conflicts_with_all = ["file_systems", "peers", "given", "variants", "ablations", "device"])]
    pub on: Option<PathBuf>,
    /// Size of the large file, at least 1M.
    #[arg(long, default_value = "4G", value_parser = large_size)]
    pub size: u64,
    /// Number of small files.
    #[arg(long, default_value = "200000", value_parser = size)]
    pub files: u64,
    /// Number of files in a volume of many.
    #[arg(long, default_value = "1000000", value_parser = size)]
    pub many_files: u64,
    /// Rounds over all file systems; the median is reported.
    #[arg(long, visible_alias = "runs", default_value = "1", value_parser = size)]
    pub rounds: u64,
    /// Free memory that a virtual machine has from its host before each measurement, at most half of what is free. A large file takes twice its
    /// size where a daemon has it as well.
    #[arg(long, default_value = "10G", value_parser = size_or_none)]
    pub memory: u64,
    /// Limit the device to what another can do, by cgroups.
    #[arg(long, default_value = "raw", conflicts_with = "on")]
    pub profile: Profile,
    /// Count instead of measuring time: trace what each row does to the device and asks of a daemon, once.
    #[arg(long, conflicts_with_all = ["on", "rounds"])]
    pub trace: bool,
    /// Size of the loop device.
    #[arg(long, default_value = "16G", value_parser = size)]
    pub device_size: u64,
    /// A block device to use instead. Everything on it is lost.
    #[arg(long, value_name = "PATH", requires = "erase_device")]
    pub device: Option<PathBuf>,
    /// Says that everything on --device may be lost.
    #[arg(long)]
    pub erase_device: bool,
    /// Where the file behind the loop device and the mount point are made.
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value_os_t = own_directory().join("bench"))]
    pub directory: PathBuf,
    /// Keep a journal in this file, and go on with the run that it tells of.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Where the report is written, a page for a browser [default: report.html in --directory].
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Run nothing: print and report the stored results in this file.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// List the rows.
    #[arg(long)]
    pub list: bool,
}

impl Options {
    /// An error if a row was asked for that there is not.
    pub fn check(&self) -> Result<(), Error> {
        let is_none =
            |name: &&String| name.is_empty() || !row::rows().any(|row| row.name.contains(name.as_str()));
        match self.rows.iter().find(is_none) {
            Some(name) => {
                Err(Error::Usage(format!("'{name}' is no row, nor a part of the name of one (--list)")))
            }
            None => Ok(()),
        }
    }

    /// Whether this row was asked for; `short` rows are those that run without a wish.
    pub fn wants(&self, row: &str, short: bool) -> bool {
        if self.rows.is_empty() {
            return self.full || short;
        }
        let is_whole = |name: &String| row::rows().any(|row| row.name == name);
        self.rows.iter().any(|name| if is_whole(name) { row == name } else { row.contains(name.as_str()) })
    }

    /// Numbers of the rounds: those that are timed, or that which is counted.
    pub fn round_numbers(&self) -> std::ops::RangeInclusive<u64> {
        if self.trace { round::ROUND..=round::ROUND } else { 1..=self.rounds }
    }

    /// The part of the options that results depend on, as text; two runs that differ in it cannot be put together.
    pub fn sizes(&self) -> String {
        let profile = match self.profile {
            Profile::Raw => String::new(),
            profile => format!(" --profile {}", profile.name()),
        };
        // Loads of servers and of aging are larger with it.
        let full = if self.full { " --full" } else { "" };
        format!(
            "--size {} --files {} --many-files {} --device-size {} --memory {}{profile}{full}",
            self.size, self.files, self.many_files, self.device_size, self.memory
        )
    }
}

/// The directory above the one where this program stands, which is the build directory.
fn own_directory() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().and_then(|profile| profile.parent()).map(PathBuf::from).unwrap_or_default()
}

/// A path that means the same in every directory: programs are started in others.
fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| format!("'{text}': {error}"))
}

/// A size, or 0.
fn size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

/// Loads go through it in steps of 1 MiB.
fn large_size(text: &str) -> Result<u64, String> {
    size(text)
        .and_then(|bytes| if bytes < 1 << 20 { Err(format!("'{text}' is less than 1M")) } else { Ok(bytes) })
}

/// A number with a binary suffix: 4G, 512M, 200000. Never zero.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((end, 'K')) => (&text[..end], 10),
        Some((end, 'M')) => (&text[..end], 20),
        Some((end, 'G')) => (&text[..end], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|number| *number > 0).ok_or_else(|| format!("'{text}' is not a size such as 4G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once("pando-bench").chain(text.split_whitespace()))
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse("--size 3M").unwrap().size, 3 << 20);
        assert_eq!(parse("--memory 0").unwrap().memory, 0);
        for bad in [
            "--size 0",
            "--size G",
            "--size 4X",
            "--size 99999999999G",
            "--size",
            "--sizes 1",
            "--size 1023K",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_are_chosen_by_their_names_or_parts_of_them() {
        let options = parse("--rows random,find").unwrap();
        assert!(options.wants("random-4b", true) && options.wants("cold-find", false));
        assert!(!options.wants("untar", true));
        let options = parse("--rows rm").unwrap();
        assert!(
            options.wants("rm", true) && !options.wants("tokubench-rm", true),
            "a whole name is that row's"
        );
        assert!(!parse("").unwrap().wants("untar", false) && parse("--full").unwrap().wants("untar", false));
    }

    #[test]
    fn each_wish_for_a_row_must_mean_one() {
        for good in ["", "--rows rm", "--rows aging-,settle-,4k"] {
            assert!(parse(good).unwrap().check().is_ok(), "{good}");
        }
        for bad in ["--rows untarr", "--rows rm,untarr", "--rows rm,"] {
            assert!(parse(bad).unwrap().check().is_err(), "{bad}");
        }
    }

    #[test]
    fn results_of_a_full_run_are_not_put_together_with_others() {
        assert_ne!(parse("").unwrap().sizes(), parse("--full").unwrap().sizes());
        assert_eq!(parse("").unwrap().sizes(), parse("--rows rm").unwrap().sizes());
    }

    #[test]
    fn directories_mean_the_same_everywhere() {
        let here = std::env::current_dir().unwrap();
        let options = parse("--on a --directory b/c").unwrap();
        assert_eq!((options.on.unwrap(), options.directory), (here.join("a"), here.join("b/c")));
        assert_eq!(parse("").unwrap().directory, own_directory().join("bench"));
    }

    #[test]
    fn a_device_is_erased_only_when_that_is_said() {
        assert!(parse("--device /dev/sdz").is_err());
        assert!(parse("--device /dev/sdz --erase-device").is_ok());
        assert!(parse("--on /mnt --fs ext4").is_err());
    }
}
