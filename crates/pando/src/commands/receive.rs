//! `pando receive`: makes a snapshot of a stream.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::commands::snapshot::mounted_volume;
use crate::control;
use crate::failure::{Failure, Result, Status, io_text};
use crate::output::Output;
use crate::snapshots;
use crate::volume::{Purpose, Volume, name};

const ABOUT: &str = "\
Makes a snapshot of a stream that 'pando send' wrote, read from standard input. It appears when the whole stream has been received and proved to be \
undamaged, and is on the device then; a stream that ends too soon or does not fit leaves nothing. To a stream of changes belongs the \
snapshot that they begin from, which must be on the volume.

The files of the volume are not touched. To have the snapshot's instead, go back to it with 'pando snapshot rollback'.

A stream should come from somebody who is trusted: what is in it, be it a program with set-user-ID, is made as it says.";

const EXAMPLES: &str = "\
Examples:
  pando send /mnt monday | pando receive /backup
  pando receive --name laptop-monday backup.img < monday.pando";

/// Arguments of `pando receive`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct ReceiveArgs {
    /// What to call the snapshot, if not as it was called where it comes from.
    #[arg(long)]
    name: Option<String>,
    /// The directory that the volume is mounted on, or its image file or block device.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    place: PathBuf,
}

/// Runs `pando receive`.
pub fn run(args: &ReceiveArgs) -> Result<Status> {
    let ReceiveArgs { name: new_name, place } = args;
    let failed = |why: String| Failure::new(format!("cannot receive a snapshot on {}: {why}", name(place)));
    let mut input = io::stdin();
    if input.is_terminal() {
        return Err(failed(
            "standard input is a terminal; it is to be the output of 'pando send'".to_owned(),
        ));
    }
    let asked = json!({ "request": "receive", "name": new_name });
    let answer = match mounted_volume(place).map_err(failed)? {
        Some(device) => match control::request_with_input(&device, &asked, &mut input) {
            Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
            Err(error) => return Err(failed(format!("the stream cannot be read: {}", io_text(&error)))),
        },
        None => {
            let volume = Volume::open(place, Purpose::Change)?;
            let outcome = snapshots::receive(volume.file_system(), &asked, None, &mut input).map_err(failed);
            let closed = volume.close();
            let answer = outcome?;
            closed?;
            answer
        }
    };
    let mut output = Output::new();
    output.bytes(b"received ")?;
    output.name(answer.get("name").and_then(Value::as_str).unwrap_or_default().as_bytes())?;
    output.line("")?;
    output.finish()?;
    Ok(Status::Success)
}
