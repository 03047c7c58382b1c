//! `pando files-ahead`: the helper that the daemon of a mount starts, with a socket as its standard input. Not for people.

use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result, Status, io_text};

/// Arguments of `pando files-ahead`.
#[derive(Debug, Args)]
pub struct FilesAheadArgs {
    /// The directory it is mounted on.
    mountpoint: PathBuf,
    /// The number of its device, as `major:minor`.
    device: String,
}

/// Runs `pando files-ahead`: done when it is unmounted, or the daemon is gone.
pub fn run(args: &FilesAheadArgs) -> Result<Status> {
    let served = pando_fuse::files_ahead::run(std::io::stdin().as_fd(), &args.mountpoint, &args.device);
    served.map_err(|error| Failure::new(format!("cannot read files ahead: {}", io_text(&error))))?;
    Ok(Status::Success)
}
