//! `pando rm`: removes files and trees.

use std::ffi::OsString;

use clap::Args;
use pando_fs::operations::{Attributes, FileType};
use pando_fs::{Error, InodeNumber};

use crate::commands::for_each_place;
use crate::failure::{Cause, Failure, Result, Status, Trouble, complain};
use crate::files::{Files, Inode, Listing};
use crate::location::VolumePath;
use crate::output::{Output, shown};
use crate::path::{LastLink, join, walk};
use crate::volume::Purpose;

const ABOUT: &str = "\
Removes files, and with -r whole trees, from a volume that is not mounted. What cannot be removed is named, and \
the rest is removed. Symbolic links are removed, never followed.";

const EXAMPLES: &str = "\
Examples:
  pando rm -r disk.img:/tmp/build";

/// Arguments of `pando rm`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct RmArgs {
    /// What to remove, as VOLUME:/path.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Remove directories with everything in them.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Say nothing about what is not there.
    #[arg(short, long)]
    force: bool,
    /// Remove empty directories too.
    #[arg(short, long)]
    dir: bool,
    /// Name what is removed.
    #[arg(short, long)]
    verbose: bool,
}

/// Runs `pando rm`.
pub fn run(args: &RmArgs) -> Result<Status> {
    let mut output = Output::new();
    let status = for_each_place(&args.paths, Purpose::Change, "remove", |files, place| {
        let found = walk(files, &place.path, LastLink::Name);
        let found = match found {
            Err(cause) if args.force && cause.is_not_found() => return Ok(Status::Success),
            found => found?,
        };
        let Some((inode, attributes)) = found.node else {
            return if args.force { Ok(Status::Success) } else { Err(Error::NotFound.into()) };
        };
        if found.name.is_empty() {
            return Err(Cause::Refused("the root, '.' and '..' cannot be removed").into());
        }
        let mut removal = Removal { files, args, place, output: &mut output, problems: false };
        removal.run(found.parent.number(), &found.name, inode, &attributes)?;
        Ok(if removal.problems { Status::Problems } else { Status::Success })
    })?;
    output.finish()?;
    Ok(status)
}

/// The removal of one argument.
struct Removal<'a> {
    files: &'a Files,
    args: &'a RmArgs,
    place: &'a VolumePath,
    output: &'a mut Output,
    problems: bool,
}

/// A directory whose entries are being removed.
struct Level {
    inode: Inode,
    listing: Listing,
    names: std::vec::IntoIter<Vec<u8>>,
    name: Vec<u8>,
    path: usize,
}

impl Removal<'_> {
    fn run(
        &mut self,
        parent: InodeNumber,
        name: &[u8],
        inode: Inode,
        attributes: &Attributes,
    ) -> Result<(), Trouble> {
        let mut path = self.place.path.clone();
        if attributes.file_type != FileType::Directory {
            self.files.unlink(parent, name)?;
            return Ok(self.tell(&path)?);
        }
        if !self.args.recursive {
            if !self.args.dir {
                return Err(Cause::Refused(
                    "it is a directory; remove it with -r, or with -d if it is empty",
                )
                .into());
            }
            self.files.remove_directory(parent, name)?;
            return Ok(self.tell(&path)?);
        }
        let mut levels = vec![self.enter(inode, name.to_vec(), path.len())?];
        // No recursion: depth is bounded by memory, not by the stack.
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path);
            let here = level.inode.number();
            if let Some(name) = level.names.next() {
                path = join(&path, &name);
                match self.remove_or_enter(here, name, path.len()) {
                    Ok(Some(below)) => levels.push(below),
                    Ok(None) => self.tell(&path)?,
                    Err(cause) => self.complain(&path, &cause),
                }
                continue;
            }
            match self.files.next_entries(&mut level.listing) {
                Ok(entries) if !entries.is_empty() => {
                    level.names =
                        entries.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>().into_iter();
                }
                end => {
                    if let Err(error) = end {
                        self.complain(&path, &error.into());
                    }
                    let Level { name, .. } = levels.pop().expect("the loop runs while there is one");
                    let above = levels.last().map_or(parent, |level| level.inode.number());
                    match self.files.remove_directory(above, &name) {
                        Ok(()) => self.tell(&path)?,
                        Err(error) => self.complain(&path, &error.into()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes a name, or opens the directory that it is.
    fn remove_or_enter(
        &self,
        parent: InodeNumber,
        name: Vec<u8>,
        path: usize,
    ) -> Result<Option<Level>, Cause> {
        match self.files.unlink(parent, &name) {
            Ok(()) => Ok(None),
            Err(Error::IsADirectory | Error::NotPermitted) => {
                let (inode, _) = self.files.lookup(parent, &name)?;
                Ok(Some(self.enter(inode, name, path)?))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn enter(&self, inode: Inode, name: Vec<u8>, path: usize) -> Result<Level, Cause> {
        let listing = self.files.list(inode.number());
        Ok(Level { inode, listing, names: Vec::new().into_iter(), name, path })
    }

    fn tell(&mut self, path: &[u8]) -> Result<(), Failure> {
        if self.args.verbose { self.output.line(format!("removed {}", shown(path))) } else { Ok(()) }
    }

    fn complain(&mut self, path: &[u8], cause: &Cause) {
        let place = VolumePath { volume: self.place.volume.clone(), path: path.to_vec() };
        complain(format_args!("cannot remove {place}: {cause}"));
        self.problems = true;
    }
}
