//! `pando mkdir`: directories in a volume.

use std::ffi::OsString;

use clap::Args;
use pando_fs::Error;
use pando_fs::operations::{FileType, SetAttributes};

use crate::commands::for_each_place;
use crate::failure::{Cause, Result, Status, Trouble};
use crate::files::Files;
use crate::path::{LastLink, components, join, walk};
use crate::volume::Purpose;

const ABOUT: &str = "\
Makes directories in a volume that is not mounted. They belong to the user who makes them.";

const EXAMPLES: &str = "\
Examples:
  pando mkdir -p disk.img:/srv/www/html";

/// Arguments of `pando mkdir`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct MkdirArgs {
    /// Directories to make, as VOLUME:/path.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    directories: Vec<OsString>,
    /// Make the directories above as well; one that is there already is no error.
    #[arg(short, long)]
    parents: bool,
    /// Permissions, in octal; 777 less the umask if not given.
    #[arg(short, long, value_parser = parse_mode)]
    mode: Option<u32>,
}

/// Runs `pando mkdir`.
pub fn run(args: &MkdirArgs) -> Result<Status> {
    for_each_place(&args.directories, Purpose::Change, "make directory", |files, place| {
        if args.parents {
            make_with_parents(files, &place.path, args.mode)?
        } else {
            make(files, &place.path, args.mode)?
        }
        Ok(Status::Success)
    })
}

fn make(files: &Files, path: &[u8], mode: Option<u32>) -> Result<(), Trouble> {
    // As mkdir(2) has it, what is there is there, a link that leads nowhere too, with a slash behind it or without.
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let place = walk(files, &path[..end], LastLink::Keep)?;
    if place.node.is_some() {
        return Err(Error::Exists.into());
    }
    let made = files.make_directory(place.parent.number(), &place.name, mode.unwrap_or(0o777))?;
    // Exactly the mode that was asked for, whatever the umask takes off and the directory above hands down.
    if let Some(mode) = mode {
        files
            .set_attributes(made.number(), &SetAttributes { mode: Some(mode), ..SetAttributes::default() })?;
    }
    Ok(())
}

fn make_with_parents(files: &Files, path: &[u8], mode: Option<u32>) -> Result<(), Trouble> {
    let names: Vec<_> = components(path).collect();
    let mut so_far = b"/".to_vec();
    for (i, name) in names.iter().enumerate() {
        so_far = join(&so_far, name);
        let found = walk(files, &so_far, LastLink::Follow)?.node.map(|(_, attributes)| attributes.file_type);
        match found {
            Some(FileType::Directory) => {}
            Some(_) => return Err(Error::NotADirectory.into()),
            None if name == b".." => return Err(Error::NotFound.into()),
            None => make(files, &so_far, mode.filter(|_| i + 1 == names.len()))?,
        }
    }
    Ok(())
}

fn parse_mode(text: &str) -> Result<u32, Cause> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o7777 && !text.starts_with('+'));
    mode.ok_or(Cause::Refused("write up to four octal digits, such as 755"))
}
