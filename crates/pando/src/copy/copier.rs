//! The walk over a source that builds its copy.
//!
//! It does what cp does: a file that cannot be copied is named with the reason, and the copy goes on with the next one;
//! a directory that is there already is filled up; a file that is there already is overwritten in place; a symbolic
//! link below the top is replaced and never followed on the target's side.
//!
//! When the copy ends, what was made on the host is durable: a single file was synced, and the directory that it is in; of a tree each file
//! system that it lies on was, once, since files one by one would take a commit of its journal each. Only where a file system cannot be synced
//! as a whole each file and directory is.
//!
//! A name that leads out of its directory is refused, wherever it came from.
//!
//! Where links are kept, a file with several names is copied once, and its other names become links to the copy.
//!
//! There is no recursion: directories on the way stand in a vector, so depth is bounded by memory, not by the stack.

use std::vec::IntoIter;

use pando_fs::operations::FileType;
use pando_fs::schema::key;

use crate::copy::links::{Copies, Copy};
use crate::copy::tree::{Directory, Identity, Metadata, OpenFile, Result, Settings};
use crate::failure::{Cause, Failure, complain};
use crate::output::{Output, shown};
use crate::path::join;

/// Bytes of a file in memory at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Files up to this size are read whole, without asking where their holes are.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The extended attributes that are access control lists.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Which symbolic links of the source are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// None: links are copied as links.
    None,
    /// Those named on the command line.
    Arguments,
    /// All.
    All,
}

/// How to copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyOptions {
    /// Directories with all that is in them; else they are left out.
    pub recursive: bool,
    /// Links to follow.
    pub follow: Which,
    /// Keep modes and access control lists.
    pub modes: bool,
    /// Keep owners and groups.
    pub owners: bool,
    /// Keep times.
    pub times: bool,
    /// Keep the other extended attributes.
    pub xattrs: bool,
    /// Make hard links of the copies of hard links.
    pub links: bool,
    /// Remove a target that cannot be opened, and try again.
    pub force: bool,
    /// Leave files that are there already as they are.
    pub no_clobber: bool,
    /// Name what is copied.
    pub verbose: bool,
}

/// A name in an open directory, and the path that people know it by.
pub struct Target {
    /// The directory.
    pub directory: Box<dyn Directory>,
    /// The name in it; `.` for the directory itself.
    pub name: Vec<u8>,
    /// The path, for messages.
    pub path: Vec<u8>,
    /// It was named itself, and is a symbolic link that cannot be followed: no file takes its place.
    pub is_lost_link: bool,
}

/// Copies trees, one after the other.
pub struct Copier<'a> {
    options: CopyOptions,
    output: &'a mut Output,
    problems: u64,
    /// The paths of what is being copied.
    source_path: Vec<u8>,
    target_path: Vec<u8>,
    /// That of the target of this call.
    is_lost_link: bool,
    /// The target of the whole copy: it is not copied into itself.
    top: Option<Identity>,
    /// Images and devices of the volumes that are copied from or to, on the host.
    volumes: Vec<Identity>,
    copies: Copies,
}

/// A directory on the way: what is still to be copied in it.
struct Level {
    source: Box<dyn Directory>,
    target: Box<dyn Directory>,
    metadata: Metadata,
    /// The file system of the target.
    system: u64,
    /// It is synced as a whole.
    is_synced_whole: bool,
    is_new: bool,
    names: IntoIter<Vec<u8>>,
    source_path_length: usize,
    target_path_length: usize,
}

/// What became of a name.
enum Copied {
    Done,
    LeftOut,
    Directory(Level),
}

/// One step that failed.
struct Problem {
    action: &'static str,
    at_source: bool,
    cause: Cause,
}

trait Attempt<T> {
    fn reading(self, action: &'static str) -> Result<T, Problem>;
    fn making(self, action: &'static str) -> Result<T, Problem>;
}

impl<T> Attempt<T> for Result<T> {
    fn reading(self, action: &'static str) -> Result<T, Problem> {
        self.map_err(|cause| Problem { action, at_source: true, cause })
    }
    fn making(self, action: &'static str) -> Result<T, Problem> {
        self.map_err(|cause| Problem { action, at_source: false, cause })
    }
}

fn refuse<T>(action: &'static str, at_source: bool, why: &'static str) -> Result<T, Problem> {
    Err(Problem { action, at_source, cause: Cause::Refused(why) })
}

impl<'a> Copier<'a> {
    /// A copier that names what it copies on `output`, if asked to. `volumes` are the files of the host in which the open volumes are: they
    /// are neither copied, since they change meanwhile, nor overwritten.
    pub fn new(options: CopyOptions, volumes: Vec<Identity>, output: &'a mut Output) -> Self {
        let (source_path, target_path) = (Vec::new(), Vec::new());
        let copies = Copies::default();
        Self {
            options,
            output,
            problems: 0,
            source_path,
            target_path,
            is_lost_link: false,
            top: None,
            volumes,
            copies,
        }
    }

    /// How many things could not be copied so far. Each has been printed.
    pub fn problems(&self) -> u64 {
        self.problems
    }

    /// Copies one file or tree.
    ///
    /// # Errors
    /// Only if the output fails; files that could not be copied are counted instead.
    pub fn copy(&mut self, source: &Target, target: &Target) -> Result<(), Failure> {
        self.source_path.clone_from(&source.path);
        self.target_path.clone_from(&target.path);
        self.is_lost_link = target.is_lost_link;
        self.top = None;
        let mut levels: Vec<Level> = Vec::new();
        let from = (&*source.directory, &source.name[..]);
        let outcome = self.entry(&levels, from, (&*target.directory, &target.name));
        self.settle(&mut levels, outcome)?;
        while let Some(level) = levels.last_mut() {
            self.source_path.truncate(level.source_path_length);
            self.target_path.truncate(level.target_path_length);
            let Some(name) = level.names.next() else {
                match level.source.next_names() {
                    Ok(names) if !names.is_empty() => level.names = names.into_iter(),
                    end => {
                        let finished = end.reading("read directory").map(|_| ());
                        self.note(finished);
                        let level = levels.pop().expect("the loop runs while there is one");
                        self.leave(&level);
                        if !level.is_synced_whole {
                            self.note(level.target.sync().making("sync"));
                        } else if levels.last().is_none_or(|above| above.system != level.system) {
                            self.note(level.target.sync_system().making("sync"));
                        }
                    }
                }
                continue;
            };
            self.source_path = join(&self.source_path, &name);
            self.target_path = join(&self.target_path, &name);
            let level = levels.last().expect("the loop runs while there is one");
            let outcome = if key::is_name(&name) {
                self.entry(&levels, (&*level.source, &name), (&*level.target, &name))
            } else {
                refuse("copy", true, "this cannot be a name in a directory, so the volume is damaged")
            };
            self.settle(&mut levels, outcome)?;
        }
        self.target_path.clone_from(&target.path);
        self.note(target.directory.sync().making("sync the directory of"));
        Ok(())
    }

    /// Deals with what became of a name: goes down, names it, or complains.
    fn settle(&mut self, levels: &mut Vec<Level>, outcome: Result<Copied, Problem>) -> Result<(), Failure> {
        let copied = match outcome {
            Ok(copied) => copied,
            Err(problem) => {
                self.note(Err(problem));
                return Ok(());
            }
        };
        let is_new = match &copied {
            Copied::LeftOut => false,
            Copied::Done => true,
            Copied::Directory(level) => level.is_new,
        };
        if is_new && self.options.verbose {
            self.output.line(format!("{} -> {}", shown(&self.source_path), shown(&self.target_path)))?;
        }
        if let Copied::Directory(level) = copied {
            levels.push(level);
        }
        Ok(())
    }

    fn note(&mut self, outcome: Result<(), Problem>) {
        if let Err(Problem { action, at_source, cause }) = outcome {
            self.problems += 1;
            let path = if at_source { &self.source_path } else { &self.target_path };
            complain(format_args!("cannot {action} {}: {cause}", shown(path)));
        }
    }

    fn entry(
        &mut self,
        levels: &[Level],
        (source, name): (&dyn Directory, &[u8]),
        (target, target_name): (&dyn Directory, &[u8]),
    ) -> Result<Copied, Problem> {
        let follow = match self.options.follow {
            Which::None => false,
            Which::Arguments => levels.is_empty(),
            Which::All => true,
        };
        let metadata = source.metadata(name, follow).reading("read")?;
        let from = Source { directory: source, name, follow, metadata };
        if metadata.is_directory() {
            return self.directory(levels, &from, target, target_name);
        }
        // A slash behind the copy's name asks for a directory.
        if self.target_path.ends_with(b"/") {
            return refuse("make file", false, "not a directory");
        }
        if let Some(copied) = self.link_to_copy(&from, target, target_name)? {
            return Ok(copied);
        }
        let copied = self.single(&from, target, target_name, levels.last())?;
        if matches!(copied, Copied::Done) {
            self.remember(&from, target, target_name)?;
        }
        Ok(copied)
    }

    /// Anything but a directory, on its own.
    fn single(
        &mut self,
        from: &Source<'_>,
        target: &dyn Directory,
        target_name: &[u8],
        level: Option<&Level>,
    ) -> Result<Copied, Problem> {
        match from.metadata.file_type {
            FileType::Regular => self.file(from, target, target_name, level),
            FileType::Symlink => {
                let link = from.directory.read_link(from.name).reading("read link")?;
                self.small(from, target, target_name, &|| target.make_symlink(target_name, &link))
            }
            _ if !self.options.recursive => {
                refuse("copy", true, "it is a special file; copy it with -r or -a")
            }
            special => {
                let mode = self.mode(&from.metadata);
                let make = || target.make_special(target_name, special, mode, from.metadata.device);
                self.small(from, target, target_name, &make)
            }
        }
    }

    /// Makes a link if another name of the file was copied before; `None` if not.
    fn link_to_copy(
        &mut self,
        from: &Source<'_>,
        target: &dyn Directory,
        name: &[u8],
    ) -> Result<Option<Copied>, Problem> {
        let Some(copy) = self.copies.take(from.metadata.identity) else { return Ok(None) };
        let is_there = target.metadata(name, false).is_ok_and(|existing| existing.identity == copy.identity);
        let made = if is_there {
            Ok(true)
        } else {
            self.make_or_replace(from, target, name, &|| target.make_link(name, &copy.file))
        };
        self.copies.put(from.metadata.identity, copy);
        Ok(Some(if made? { Copied::Done } else { Copied::LeftOut }))
    }

    /// Remembers a copy if another name of its source may come.
    fn remember(&mut self, from: &Source<'_>, target: &dyn Directory, name: &[u8]) -> Result<(), Problem> {
        // Symbolic links that are followed are more names of the file than it knows of.
        let names_left = if from.follow { u64::MAX } else { from.metadata.links.saturating_sub(1) };
        if self.options.links && names_left > 0 {
            let identity = target.metadata(name, false).making("read")?.identity;
            let file = target.remember(name).making("read")?;
            self.copies.put(from.metadata.identity, Copy { file, identity, names_left });
        }
        Ok(())
    }

    fn directory(
        &mut self,
        levels: &[Level],
        from: &Source<'_>,
        target: &dyn Directory,
        target_name: &[u8],
    ) -> Result<Copied, Problem> {
        let identity = from.metadata.identity;
        if !self.options.recursive {
            return refuse("copy", true, "it is a directory; copy it with -r or -a");
        }
        if self.top == Some(identity) {
            return refuse("copy", true, "a directory cannot be copied into itself");
        }
        if self.options.follow == Which::All && levels.iter().any(|level| level.metadata.identity == identity)
        {
            return refuse("copy", true, "symbolic links lead back to it from below");
        }
        let source = from.directory.open_directory(from.name, from.follow).reading("open directory")?;
        // Writable for us until it is filled.
        let mode = self.mode(&from.metadata) & 0o777 | 0o700;
        let is_new = match target_name {
            b"." => false,
            _ => match target.make_directory(target_name, mode) {
                Ok(()) => true,
                Err(cause) if cause.is_exists() => false,
                Err(cause) => return Err(cause).making("make directory"),
            },
        };
        let target = match target.open_directory(target_name, false) {
            Err(_) if !is_new && !target.metadata(target_name, false).is_ok_and(|m| m.is_directory()) => {
                return refuse("make directory", false, "something else has this name");
            }
            opened => opened.making("open directory")?,
        };
        let made = target.metadata(b".", false).making("read")?;
        if made.identity == identity {
            return refuse("copy", true, "source and target are the same directory");
        }
        self.top.get_or_insert(made.identity);
        Ok(Copied::Directory(Level {
            source,
            is_synced_whole: target.is_synced_whole(),
            target,
            metadata: from.metadata,
            system: made.identity.system,
            is_new,
            names: Vec::new().into_iter(),
            source_path_length: self.source_path.len(),
            target_path_length: self.target_path.len(),
        }))
    }

    /// Gives a directory its attributes, now that its contents no longer change them.
    fn leave(&mut self, level: &Level) {
        let mut settings = self.settings(&level.metadata);
        let too_much = 0o700 & !self.mode(&level.metadata);
        if level.is_new && settings.mode.is_none() && too_much != 0 {
            let made = level.target.metadata(b".", false).making("read");
            settings.mode = made.as_ref().ok().map(|made| made.mode & !too_much);
            self.note(made.map(drop));
        }
        let change =
            |attribute: &[u8], value: Option<&[u8]>| level.target.change_xattr(b".", attribute, value);
        let outcome = self.xattrs(&*level.source, b".", false, &change);
        self.note(outcome);
        self.note(level.target.apply(b".", &settings).making("set attributes of"));
    }

    fn file(
        &mut self,
        from: &Source<'_>,
        target: &dyn Directory,
        name: &[u8],
        level: Option<&Level>,
    ) -> Result<Copied, Problem> {
        if self.volumes.contains(&from.metadata.identity) {
            return refuse("copy", true, "it is a volume that this copy reads or writes");
        }
        let source = from.directory.open_file(from.name, from.follow).reading("open")?;
        // Nobody else reads it before it has its owner and mode.
        let mode = if self.options.owners { 0o600 } else { self.mode(&from.metadata) };
        let copy = match target.make_file(name, mode) {
            Err(cause) if cause.is_exists() => {
                let existing = target.metadata(name, false).making("read")?;
                if existing.identity == from.metadata.identity {
                    return refuse("copy", true, "source and target are the same file");
                }
                if self.options.no_clobber {
                    return Ok(Copied::LeftOut);
                }
                // /dev/stdout, whose pipe has no name, or the way to a disk that is not there.
                if self.is_lost_link && level.is_none() {
                    return refuse(
                        "copy to",
                        false,
                        "it is a symbolic link that cannot be followed to a name",
                    );
                }
                self.expect_no_volume(&existing)?;
                self.copies.forget(existing.identity);
                self.replace(target, name, &existing, mode)?
            }
            made => made.making("make")?,
        };
        copy_contents(&*source, &*copy)?;
        let mut settings = self.settings(&from.metadata);
        // First, and once: a new owner takes capabilities off.
        if let Some(owner) = settings.owner.take() {
            let owner = Settings { owner: Some(owner), ..Settings::default() };
            if !copy.apply(&owner).making("set owner of")? {
                settings = settings.without_set_id();
            }
        }
        // Of what was opened: somebody may give the name to another file meanwhile.
        let change = |attribute: &[u8], value: Option<&[u8]>| copy.change_xattr(attribute, value);
        self.xattrs(from.directory, from.name, from.follow, &change)?;
        if settings != Settings::default() {
            copy.apply(&settings).making("set attributes of")?;
        }
        let Metadata { file_type, identity, .. } = copy.metadata().making("read")?;
        let is_synced_later =
            level.is_some_and(|level| level.is_synced_whole && level.system == identity.system);
        if !is_synced_later || file_type != FileType::Regular {
            copy.sync().making("sync")?;
        }
        copy.close().making("close")?;
        Ok(Copied::Done)
    }

    /// Empties a file for its new contents, or makes a new one where a link is.
    fn replace(
        &self,
        target: &dyn Directory,
        name: &[u8],
        existing: &Metadata,
        mode: u32,
    ) -> Result<Box<dyn OpenFile>, Problem> {
        if existing.is_directory() {
            return refuse("overwrite", false, "it is a directory");
        }
        if !existing.is_symlink() {
            match target.overwrite_file(name) {
                Err(_) if self.options.force => {}
                opened => return opened.making("overwrite"),
            }
        }
        target.remove(name).making("remove")?;
        target.make_file(name, mode).making("make")
    }

    /// Before something takes its place.
    fn expect_no_volume(&self, existing: &Metadata) -> Result<(), Problem> {
        if self.volumes.contains(&existing.identity) {
            return refuse("overwrite", false, "it is a volume that this copy reads or writes");
        }
        Ok(())
    }

    /// Makes in one step what takes the place of anything but a directory. False if what is there stays.
    fn make_or_replace(
        &mut self,
        from: &Source<'_>,
        target: &dyn Directory,
        name: &[u8],
        make: &dyn Fn() -> Result<()>,
    ) -> Result<bool, Problem> {
        match make() {
            Err(cause) if cause.is_exists() => {
                let existing = target.metadata(name, false).making("read")?;
                if existing.identity == from.metadata.identity {
                    return refuse("copy", true, "source and target are the same file");
                }
                if self.options.no_clobber {
                    return Ok(false);
                }
                if existing.is_directory() {
                    return refuse("overwrite", false, "it is a directory");
                }
                self.expect_no_volume(&existing)?;
                self.copies.forget(existing.identity);
                target.remove(name).making("remove")?;
                make().making("make")?;
            }
            made => made.making("make")?,
        }
        Ok(true)
    }

    /// A symbolic link or special file.
    fn small(
        &mut self,
        from: &Source<'_>,
        target: &dyn Directory,
        name: &[u8],
        make: &dyn Fn() -> Result<()>,
    ) -> Result<Copied, Problem> {
        if !self.make_or_replace(from, target, name, make)? {
            return Ok(Copied::LeftOut);
        }
        let change = |attribute: &[u8], value: Option<&[u8]>| target.change_xattr(name, attribute, value);
        self.xattrs(from.directory, from.name, from.follow, &change)?;
        let mut settings = self.settings(&from.metadata);
        if from.metadata.is_symlink() {
            settings.mode = None;
        }
        target.apply(name, &settings).making("set attributes of")?;
        Ok(Copied::Done)
    }

    /// Copies the extended attributes that are to be kept. Access control lists, which a new file may have from the
    /// directory it is in, are part of the mode: where the source has none, the copy keeps none.
    fn xattrs(
        &self,
        source: &dyn Directory,
        name: &[u8],
        follow: bool,
        change: &ChangeXattr<'_>,
    ) -> Result<(), Problem> {
        let CopyOptions { modes, xattrs, .. } = self.options;
        if !modes && !xattrs {
            return Ok(());
        }
        let mut inherited = ACLS.to_vec();
        for (attribute, value) in source.xattrs(name, follow).reading("read extended attributes of")? {
            let is_acl = ACLS.contains(&&attribute[..]);
            if !(if is_acl { modes } else { xattrs }) {
                continue;
            }
            inherited.retain(|acl| *acl != attribute);
            match change(&attribute, Some(&value)) {
                Err(cause) if cause.is_not_supported() => {}
                set => set.making("set extended attributes of")?,
            }
        }
        for acl in inherited.into_iter().filter(|_| modes) {
            match change(acl, None) {
                Err(cause) if cause.is_not_supported() || cause.is_no_attribute() => {}
                removed => removed.making("remove the access control list of")?,
            }
        }
        Ok(())
    }

    /// The mode to make a copy with; where modes are not kept, the umask is taken off as it is made.
    fn mode(&self, metadata: &Metadata) -> u32 {
        if self.options.modes { metadata.mode } else { metadata.mode & 0o777 }
    }

    fn settings(&self, metadata: &Metadata) -> Settings {
        Settings {
            owner: self.options.owners.then_some((metadata.uid, metadata.gid)),
            mode: self.options.modes.then_some(metadata.mode),
            times: self.options.times.then_some((metadata.accessed, metadata.modified)),
        }
    }
}

/// Sets an extended attribute of a copy, or removes it.
type ChangeXattr<'a> = dyn Fn(&[u8], Option<&[u8]>) -> Result<()> + 'a;

/// What is being copied.
struct Source<'a> {
    directory: &'a dyn Directory,
    name: &'a [u8],
    follow: bool,
    metadata: Metadata,
}

/// Copies the bytes of a file into an empty one, in which holes stay holes, or over what a device holds.
fn copy_contents(source: &dyn OpenFile, target: &dyn OpenFile) -> Result<(), Problem> {
    // Asked again now that it is open: it may be another file, or have grown.
    let size = source.metadata().reading("read")?.size;
    if size <= SMALL_FILE_BYTES {
        // To the end, not to the size: files of /proc say that they are empty.
        return copy_until_end(source, target, size);
    }
    // A device keeps what is not written, and its size.
    let is_emptied = target.metadata().making("read")?.file_type == FileType::Regular;
    let next = |end| match is_emptied {
        true => source.next_data(end, size),
        false => Ok((end < size).then_some(end..size)),
    };
    let mut end = 0;
    while let Some(range) = next(end).reading("read")? {
        let mut offset = range.start;
        while offset < range.end {
            let length = (range.end - offset).min(PIECE_BYTES as u64) as usize;
            let bytes = pando_fs::join(&source.read(offset, length).reading("read")?);
            if bytes.is_empty() {
                break;
            }
            target.write(offset, &bytes).making("write")?;
            offset += bytes.len() as u64;
        }
        end = range.end;
    }
    if end < size && is_emptied {
        target.set_size(size).making("write")?;
    }
    Ok(())
}

fn copy_until_end(source: &dyn OpenFile, target: &dyn OpenFile, size: u64) -> Result<(), Problem> {
    // One byte more than there should be: then a short answer says that this was the end.
    let length = (size as usize + 1).next_multiple_of(4096);
    let mut offset = 0;
    loop {
        let bytes = pando_fs::join(&source.read(offset, length).reading("read")?);
        let is_end = bytes.len() < length;
        if !bytes.is_empty() {
            offset += bytes.len() as u64;
            target.write(offset - bytes.len() as u64, &bytes).making("write")?;
        }
        if is_end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
