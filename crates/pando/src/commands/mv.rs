//! `pando mv`: renames and moves inside a volume.

use std::ffi::OsString;

use clap::Args;
use pando_fs::Error;
use pando_fs::operations::{FileType, RenameMode};

use crate::failure::{Cause, Failure, Result, Status, Trouble, complain};
use crate::files::Files;
use crate::location::VolumePath;
use crate::output::{Output, shown};
use crate::path::{LastLink, join, last_component, walk};
use crate::volume::{Purpose, Volumes};

const ABOUT: &str = "\
Renames files and directories in a volume that is not mounted, or moves them to another directory of it. Each \
rename is atomic, also over a crash. What is at the target is replaced, a directory only if it is empty.";

const EXAMPLES: &str = "\
Examples:
  pando mv disk.img:/draft disk.img:/final
  pando mv disk.img:/a disk.img:/b disk.img:/old/";

/// Arguments of `pando mv`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct MvArgs {
    /// What to move, then where to, as VOLUME:/path, all in one volume. With a directory as the last one, or more than
    /// two, everything moves into that directory.
    #[arg(required = true, num_args = 1.., value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Move everything into this directory.
    #[arg(short, long, value_name = "VOLUME:/DIRECTORY", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// Take the last path as the new name even if it is a directory; an empty directory is replaced.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not overwrite what is there.
    #[arg(short, long)]
    no_clobber: bool,
    /// Overwrite without asking; this is what happens anyway.
    #[arg(short, long)]
    force: bool,
    /// Name what is moved.
    #[arg(short, long)]
    verbose: bool,
}

/// Runs `pando mv`.
pub fn run(args: &MvArgs) -> Result<Status> {
    let mut paths = args.paths.iter().map(|path| VolumePath::parse(path)).collect::<Result<Vec<_>>>()?;
    let target = match &args.target_directory {
        Some(directory) => VolumePath::parse(directory)?,
        None => paths.pop().expect("the parser asks for at least one"),
    };
    if paths.is_empty() {
        return Err(Failure::new(format!("nothing to move to {target}; name the source first")));
    }
    let mut volumes = Volumes::default();
    let volume = volumes.open(&target.volume, Purpose::Change)?;
    for path in &paths {
        if volumes.open(&path.volume, Purpose::Change)? != volume {
            return Err(Failure::new(format!(
                "cannot move {path} to {target}: they are in different volumes; copy it with 'pando cp -a', then \
                 remove it with 'pando rm -r'"
            )));
        }
    }
    let outcome = move_all(volumes.files(volume), args, &paths, &target);
    volumes.close().and(outcome)
}

fn move_all(files: &Files, args: &MvArgs, sources: &[VolumePath], target: &VolumePath) -> Result<Status> {
    let is_directory = !args.no_target_directory
        && walk(files, &target.path, LastLink::Follow)
            .is_ok_and(|place| place.node.is_some_and(|(_, a)| a.file_type == FileType::Directory));
    if !is_directory && (sources.len() > 1 || args.target_directory.is_some()) {
        return Err(Failure::new(format!("cannot move into {target}: it is no directory")));
    }
    let mut output = Output::new();
    let mut status = Status::Success;
    for source in sources {
        let to = if is_directory {
            join(&target.path, &last_component(&source.path))
        } else {
            target.path.clone()
        };
        match move_one(files, args, &source.path, &to) {
            Ok(true) if args.verbose => {
                output.line(format!("{} -> {}", shown(&source.path), shown(&to)))?;
            }
            Ok(_) => {}
            Err(Trouble::Here(cause)) => {
                complain(format_args!("cannot move {source} to {}: {cause}", shown(&to)));
                status = Status::Problems;
            }
            Err(Trouble::Everywhere(failure)) => return Err(failure),
        }
    }
    output.finish()?;
    Ok(status)
}

/// False if something was there and was to be kept.
fn move_one(files: &Files, args: &MvArgs, from: &[u8], to: &[u8]) -> Result<bool, Trouble> {
    let source = walk(files, from, LastLink::Name)?;
    let target = walk(files, to, LastLink::Name)?;
    let (inode, attributes) = source.node.as_ref().ok_or(Error::NotFound)?;
    if source.name.is_empty() || target.name.is_empty() {
        return Err(Cause::Refused("the root, '.' and '..' cannot be renamed").into());
    }
    if to.ends_with(b"/") && attributes.file_type != FileType::Directory {
        return Err(Error::NotADirectory.into());
    }
    match &target.node {
        Some(_) if args.no_clobber => return Ok(false),
        Some((there, _)) if there.number() == inode.number() => {
            return Err(Cause::Refused("both are the same file").into());
        }
        _ => {}
    }
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    match files.rename((source.parent.number(), &source.name), (target.parent.number(), &target.name), mode) {
        Err(Error::Invalid) => Err(Cause::Refused("a directory cannot be moved into itself").into()),
        outcome => Ok(outcome.map(|()| true)?),
    }
}
