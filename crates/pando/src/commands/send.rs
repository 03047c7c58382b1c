//! `pando send`: writes a snapshot as a stream.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::commands::snapshot::request;
use crate::failure::{Failure, Result, Status};
use crate::output::write_failure;
use crate::volume::{Purpose, name};

const ABOUT: &str = "\
Writes a snapshot to standard output as a stream, from which 'pando receive' makes the same snapshot on another volume. With -i only what \
differs from an older snapshot is written, which the other volume must have: it knows it again whatever it is called there. All is kept: owners, modes, \
times, extended attributes, access control lists, hard links, sparse files.

Of a directory or a large file that was moved since the older snapshot only that is written, and what has changed in it. What the two share is not looked at.

A writable snapshot is sent as it is when the command begins, and arrives as a read-only one. It is no base for changes that are sent later: for that, take read-only \
snapshots of it with 'pando snapshot create --of' and send those.

The volume may be mounted and in use meanwhile. The stream can be kept in a file; it is checked when it is received.";

const EXAMPLES: &str = "\
Examples:
  pando send /mnt monday | pando receive /backup
  pando send -i monday /mnt tuesday | ssh host pando receive /backup
  pando send disk.img monday > monday.pando";

/// Arguments of `pando send`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct SendArgs {
    /// Write only what differs from this snapshot.
    #[arg(short = 'i', long = "base", value_name = "BASE")]
    base: Option<String>,
    /// The directory that the volume is mounted on, or its image file or block device.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    place: PathBuf,
    /// The snapshot to send.
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
}

/// Runs `pando send`.
pub fn run(args: &SendArgs) -> Result<Status> {
    let SendArgs { base, place, snapshot } = args;
    if io::stdout().is_terminal() {
        let what = format!("cannot send {snapshot} of {}", name(place));
        return Err(Failure::new(format!(
            "{what}: standard output is a terminal; write it to a pipe or a file"
        )));
    }
    let asked = json!({ "request": "snapshot", "action": "send", "name": snapshot, "base": base });
    let mut out = BufWriter::with_capacity(256 << 10, io::stdout());
    request(place, &asked, Purpose::Read, &mut out)?;
    out.flush().map_err(write_failure)?;
    Ok(Status::Success)
}
