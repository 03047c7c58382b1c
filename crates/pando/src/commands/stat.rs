//! `pando stat`: everything about files.

use std::ffi::OsString;

use clap::Args;
use pando_fs::operations::{Attributes, FileType};

use crate::attributes::{device_numbers, mode_string, to_json, type_name};
use crate::commands::for_each_place;
use crate::failure::{Result, Status, Trouble};
use crate::files::{Files, Inode};
use crate::output::{Output, shown};
use crate::path::{LastLink, find};
use crate::time::DateTime;
use crate::volume::Purpose;

const ABOUT: &str = "\
Shows everything about files in a volume that is not mounted: type, size, room taken, permissions, owner, \
inode, links, and the times of the last access, last change of contents, last change of attributes and birth, in UTC.";

const EXAMPLES: &str = "\
Examples:
  pando stat disk.img:/etc/passwd
  pando stat --json disk.img:/ | jq '.[0].mode'";

/// Arguments of `pando stat`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct StatArgs {
    /// Files, as VOLUME:/path.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    files: Vec<OsString>,
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print a JSON array with one object a file.
    #[arg(long)]
    json: bool,
}

/// Runs `pando stat`.
pub fn run(args: &StatArgs) -> Result<Status> {
    let mut output = Output::new();
    let mut objects = Vec::new();
    let last_link = if args.dereference { LastLink::Follow } else { LastLink::Keep };
    let status = for_each_place(&args.files, Purpose::Read, "show", |files, place| {
        let (inode, attributes) = find(files, &place.path, last_link)?;
        let target = link_target(files, &inode, &attributes)?;
        if args.json {
            objects.push(to_json(&place.path, &attributes, target.as_deref()));
        } else {
            print(&mut output, &place.path, &attributes, target.as_deref())?;
        }
        Ok(Status::Success)
    })?;
    if args.json {
        output.json(&objects)?;
    }
    output.finish()?;
    Ok(status)
}

/// Where a symbolic link points; `None` for anything else.
pub fn link_target(
    files: &Files,
    inode: &Inode,
    attributes: &Attributes,
) -> Result<Option<Vec<u8>>, Trouble> {
    let is_link = attributes.file_type == FileType::Symlink;
    Ok(if is_link { Some(files.read_link(inode.number())?.to_vec()) } else { None })
}

fn print(output: &mut Output, path: &[u8], attributes: &Attributes, target: Option<&[u8]>) -> Result<()> {
    let Attributes { file_type, mode, uid, gid, links, size, blocks, inode, .. } = *attributes;
    let target = target.map(|target| format!(" -> {}", shown(target))).unwrap_or_default();
    let time = |time| DateTime::from(time).exact();
    output.line(format!("    File: {}{target}", shown(path)))?;
    match device_numbers(attributes) {
        Some((major, minor)) => {
            output.line(format!("    Type: {}, {major}:{minor}", type_name(file_type)))?
        }
        None => output.line(format!("    Type: {}", type_name(file_type)))?,
    }
    output.line(format!("    Size: {size} bytes, {} allocated", blocks.saturating_mul(512)))?;
    output.line(format!("    Mode: {mode:04o} ({})", mode_string(file_type, mode)))?;
    output.line(format!("   Owner: {uid}:{gid}"))?;
    output.line(format!("   Inode: {}", inode.0))?;
    output.line(format!("   Links: {links}"))?;
    output.line(format!("Accessed: {}", time(attributes.accessed)))?;
    output.line(format!("Modified: {}", time(attributes.modified)))?;
    output.line(format!(" Changed: {}", time(attributes.changed)))?;
    output.line(format!("    Born: {}", time(attributes.born)))
}
