//! `pando cp`: copies between the host and volumes, and inside volumes.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use pando_fs::operations::FileType;

use crate::copy::host::HostDirectory;
use crate::copy::inside::InsideDirectory;
use crate::copy::{Copier, CopyOptions, Directory, Target, Which};
use crate::failure::{Cause, Failure, Result, Status, complain};
use crate::location::{Location, VolumePath};
use crate::output::Output;
use crate::path::{LastLink, join, last_component, walk};
use crate::volume::{Purpose, Volumes};

const ABOUT: &str = "\
Copies files and trees from this machine into a volume, from a volume to this machine, from one volume to another, \
or inside a volume; the volumes must not be mounted. No root and no FUSE are needed. What cannot be copied is named, and \
the copy goes on. Holes in files stay holes. Symbolic links of the target are written through only where they are \
named on the command line; below, they are replaced. Everything copied is on the device when the command ends. Hard \
links among what is copied are kept with -a, and become separate files without it.";

const EXAMPLES: &str = "\
Examples:
  pando cp -a rootfs/. disk.img:/      fill an image; without -a as the user who copies
  pando cp disk.img:/var/log/messages .
  pando cp -a old.img:/home new.img:/";

/// Arguments of `pando cp`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct CpArgs {
    /// What to copy, then where to. A place in a volume is VOLUME:/path, everything else is a path of this machine.
    /// With a directory as the last one, everything is copied into it under its own name.
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Copy everything as exactly as possible: the same as -r -P -p, extended attributes and hard links.
    #[arg(short, long)]
    archive: bool,
    /// Copy directories with everything in them.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Keep modes with access control lists, owners, groups and times.
    #[arg(short, long)]
    preserve: bool,
    /// Copy what symbolic links point at.
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "dereference_arguments"])]
    dereference: bool,
    /// Copy symbolic links as links; what -r and -a do anyway.
    #[arg(short = 'P', long, short_alias = 'd', overrides_with_all = ["dereference", "dereference_arguments"])]
    no_dereference: bool,
    /// Follow symbolic links that are named on the command line, and no others.
    #[arg(short = 'H', overrides_with_all = ["dereference", "no_dereference"])]
    dereference_arguments: bool,
    /// Remove a file that cannot be overwritten, and make it anew.
    #[arg(short, long)]
    force: bool,
    /// Leave files that are there already as they are.
    #[arg(short, long)]
    no_clobber: bool,
    /// Copy everything into this directory.
    #[arg(short, long, value_name = "DIRECTORY", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// Take the last path as the copy's own, even if it is a directory.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Name what is copied.
    #[arg(short, long)]
    verbose: bool,
}

/// Runs `pando cp`.
pub fn run(args: &CpArgs) -> Result<Status> {
    let mut sources: Vec<Location> = args.paths.iter().map(|path| Location::parse(path)).collect();
    let target = match &args.target_directory {
        Some(directory) => Location::parse(directory),
        None => sources.pop().expect("the parser asks for at least one"),
    };
    if sources.is_empty() {
        return Err(Failure::new(format!("nothing to copy to {target}; name the source first")));
    }
    if !sources.iter().chain([&target]).any(|location| matches!(location, Location::Volume(_))) {
        return Err(Failure::new("no path names a volume; write VOLUME:/path for a place in one"));
    }
    raise_open_files_limit();
    let mut volumes = Volumes::default();
    // First, since it is the one to be changed; a source may be in the same volume.
    if let Location::Volume(place) = &target {
        volumes.open(&place.volume, Purpose::Change)?;
    }
    for source in &sources {
        if let Location::Volume(place) = source {
            volumes.open(&place.volume, Purpose::Read)?;
        }
    }
    let outcome = copy_all(&volumes, args, &sources, &target);
    volumes.close().and(outcome)
}

fn copy_all(volumes: &Volumes, args: &CpArgs, sources: &[Location], target: &Location) -> Result<Status> {
    let directory = if args.no_target_directory { None } else { open_directory(volumes, target)? };
    if directory.is_none() && (sources.len() > 1 || args.target_directory.is_some()) {
        return Err(Failure::new(format!("cannot copy into {target}: it is no directory")));
    }
    let mut output = Output::new();
    let mut copier = Copier::new(options(args), volumes.identities(), &mut output);
    let mut status = Status::Success;
    for source in sources {
        let from = match locate(volumes, source, LastLink::Keep) {
            Ok(from) => from,
            Err(cause) => {
                complain(format_args!("cannot read {source}: {cause}"));
                status = Status::Problems;
                continue;
            }
        };
        let to = match &directory {
            Some(_) => inside(volumes, target, &own_name(source)),
            None => locate(volumes, target, LastLink::Follow),
        };
        let to = to.map_err(|cause| Failure::new(format!("cannot copy to {target}: {cause}")))?;
        copier.copy(&from, &to)?;
    }
    if copier.problems() > 0 {
        status = Status::Problems;
    }
    output.finish()?;
    Ok(status)
}

fn options(args: &CpArgs) -> CopyOptions {
    let recursive = args.recursive || args.archive;
    let follow = if args.dereference {
        Which::All
    } else if args.dereference_arguments {
        Which::Arguments
    } else if args.no_dereference || recursive {
        Which::None
    } else {
        Which::All
    };
    let preserve = args.preserve || args.archive;
    CopyOptions {
        recursive,
        follow,
        modes: preserve,
        owners: preserve,
        times: preserve,
        xattrs: args.archive,
        links: args.archive,
        force: args.force,
        no_clobber: args.no_clobber,
        verbose: args.verbose,
    }
}

/// The target as an open directory; `None` if it is something else, or nothing yet.
fn open_directory(volumes: &Volumes, location: &Location) -> Result<Option<Box<dyn Directory>>> {
    let opened = match location {
        Location::Host(path) => {
            HostDirectory::open(path).map(|directory| Some(Box::new(directory) as Box<dyn Directory>))
        }
        Location::Volume(place) => inside_directory(volumes, place),
    };
    match opened {
        Err(cause) if cause.is_not_found() || cause.is_not_a_directory() => Ok(None),
        opened => opened.map_err(|cause| Failure::new(format!("cannot copy to {location}: {cause}"))),
    }
}

fn inside_directory(volumes: &Volumes, place: &VolumePath) -> Result<Option<Box<dyn Directory>>, Cause> {
    let (number, files) = volumes.get(&place.volume).expect("volumes of the target are open");
    let found = walk(files, &place.path, LastLink::Follow)?;
    match found.node {
        Some((inode, attributes)) if attributes.file_type == FileType::Directory => {
            let path = join(&found.parent_path, if found.name.is_empty() { b"." } else { &found.name });
            Ok(Some(Box::new(InsideDirectory::new(files.clone(), number as u64, inode, &path))))
        }
        _ => Ok(None),
    }
}

/// A name in the directory that `location` is.
fn inside(volumes: &Volumes, location: &Location, name: &[u8]) -> Result<Target, Cause> {
    let (directory, path): (Box<dyn Directory>, _) = match location {
        Location::Host(path) => (Box::new(HostDirectory::open(path)?), path.as_os_str().as_encoded_bytes()),
        Location::Volume(place) => {
            let directory = inside_directory(volumes, place)?;
            (directory.ok_or(pando_fs::Error::NotADirectory)?, &place.path[..])
        }
    };
    let path = if name == b"." { path.to_vec() } else { join(path, name) };
    Ok(Target { directory, name: name.to_vec(), path, is_lost_link: false })
}

/// The directory that holds what `location` names, and the name in it.
fn locate(volumes: &Volumes, location: &Location, last_link: LastLink) -> Result<Target, Cause> {
    match location {
        Location::Host(path) => locate_on_host(path, last_link),
        Location::Volume(place) => locate_inside(volumes, place, last_link),
    }
}

fn locate_on_host(path: &Path, last_link: LastLink) -> Result<Target, Cause> {
    let shown = path.as_os_str().as_encoded_bytes().to_vec();
    // A link to something that is there is written through; the directory that counts is that of its target.
    let followed = (last_link == LastLink::Follow).then(|| path.canonicalize().ok()).flatten();
    let is_lost_link = last_link == LastLink::Follow && followed.is_none() && path.is_symlink();
    let path = followed.as_deref().unwrap_or(path);
    let (above, name) = match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) if !names_contents(path) => (above, name.as_encoded_bytes()),
        // `/`, `.`, `..` and what ends in them are directories by themselves.
        _ => (path, &b"."[..]),
    };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    Ok(Target {
        directory: Box::new(HostDirectory::open(above)?),
        name: name.to_vec(),
        path: shown,
        is_lost_link,
    })
}

/// True for a directory that is to be opened itself, even where a link leads to it: one with a slash or dot behind it.
fn names_contents(path: &Path) -> bool {
    ends_in_dot(path) || path.as_os_str().as_encoded_bytes().ends_with(b"/") && path.is_dir()
}

/// `Path` drops a `.` at the end, which says "what is in it".
fn ends_in_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes == b"." || bytes.ends_with(b"/.")
}

fn locate_inside(volumes: &Volumes, place: &VolumePath, last_link: LastLink) -> Result<Target, Cause> {
    let (number, files) = volumes.get(&place.volume).ok_or(Cause::Refused("its volume is not open"))?;
    let found = walk(files, &place.path, last_link)?;
    let (directory, name) = if found.name.is_empty() {
        let (inode, _) = found.node.ok_or(pando_fs::Error::NotFound)?;
        (InsideDirectory::new(files.clone(), number as u64, inode, &found.parent_path), b".".to_vec())
    } else {
        (InsideDirectory::new(files.clone(), number as u64, found.parent, &found.parent_path), found.name)
    };
    Ok(Target { directory: Box::new(directory), name, path: place.path.clone(), is_lost_link: false })
}

/// The name that a copy gets in a directory: `.` where the source has none, so that its contents are copied.
fn own_name(location: &Location) -> Vec<u8> {
    let name = match location {
        Location::Host(path) if ends_in_dot(path) => b".".to_vec(),
        Location::Host(path) => last_component(path.as_os_str().as_encoded_bytes()),
        Location::Volume(place) => last_component(&place.path),
    };
    if name == b".." { b".".to_vec() } else { name }
}

/// A copy holds one descriptor open for each level of directories of the host.
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised, only very deep trees notice, and say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
