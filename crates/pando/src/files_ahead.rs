//! The helper of a daemon that has the kernel read files ahead: this program under the name that the daemon starts it by, with a socket as its
//! standard input. Not for people.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pando_fuse::files_ahead;

use crate::failure::complain;

/// `pando-files-ahead MOUNTPOINT DEVICE`.
#[derive(Debug, Parser)]
#[command(name = files_ahead::NAME, about = "Have the kernel read files ahead, called by the daemon of a mount")]
struct FilesAhead {
    /// The directory it is mounted on.
    mountpoint: PathBuf,
    /// The number of its device, as `major:minor`.
    device: String,
}

/// Runs as the helper until it is unmounted, or the daemon is gone. The first argument is the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = FilesAhead::parse_from(args);
    match files_ahead::run(std::io::stdin().as_fd(), &args.mountpoint, &args.device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("cannot read files ahead: {error}"));
            ExitCode::FAILURE
        }
    }
}
