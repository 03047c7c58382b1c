//! `pando cat`: contents of files to standard output.

use std::ffi::OsString;

use clap::Args;
use pando_fs::Error;
use pando_fs::operations::FileType;

use crate::commands::for_each_place;
use crate::failure::{Cause, Result, Status, Trouble};
use crate::files::Files;
use crate::output::Output;
use crate::path::{LastLink, find};
use crate::volume::Purpose;

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

const ABOUT: &str = "\
Writes the contents of files in a volume that is not mounted to standard output, one after the other.";

const EXAMPLES: &str = "\
Examples:
  pando cat disk.img:/etc/fstab
  pando cat disk.img:/backup.tar | tar x";

/// Arguments of `pando cat`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct CatArgs {
    /// Files, as VOLUME:/path. Symbolic links are followed.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    files: Vec<OsString>,
}

/// Runs `pando cat`.
pub fn run(args: &CatArgs) -> Result<Status> {
    let mut output = Output::new();
    let status = for_each_place(&args.files, Purpose::Read, "read", |files, place| {
        write_out(files, &place.path, &mut output)?;
        Ok(Status::Success)
    })?;
    output.finish()?;
    Ok(status)
}

fn write_out(files: &Files, path: &[u8], output: &mut Output) -> Result<(), Trouble> {
    let (inode, attributes) = find(files, path, LastLink::Follow)?;
    match attributes.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsADirectory.into()),
        _ => return Err(Cause::Refused("it is a special file and has no contents").into()),
    }
    let mut offset = 0;
    loop {
        let pieces = files.read(inode.number(), offset, PIECE_BYTES)?;
        if pieces.is_empty() {
            return Ok(());
        }
        for piece in pieces {
            output.bytes(&piece)?;
            offset += piece.len() as u64;
        }
    }
}
