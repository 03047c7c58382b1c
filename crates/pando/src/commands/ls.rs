//! `pando ls`: lists files.
//!
//! Directories are listed as they are read, in the order in which the volume keeps names, so that one of a million
//! entries needs no more memory than one of a thousand.

use std::ffi::OsString;

use clap::Args;
use pando_fs::operations::{Attributes, FileType};

use crate::attributes::{device_numbers, mode_string, to_json};
use crate::commands::for_each_place;
use crate::commands::stat::link_target;
use crate::failure::{Cause, Failure, Result, Status, Trouble, complain};
use crate::files::{Files, Inode};
use crate::location::VolumePath;
use crate::output::{Output, shown};
use crate::path::{LastLink, find, join};
use crate::size::human;
use crate::time::DateTime;
use crate::volume::Purpose;

const ABOUT: &str = "\
Lists files and directories in a volume that is not mounted. Names come in the order in which the volume \
keeps them, that of their bytes. Owners are numbers and times are UTC: a volume knows no user names and no time zone.";

const EXAMPLES: &str = "\
Examples:
  pando ls disk.img:/
  pando ls -lR disk.img:/etc
  pando ls --json disk.img:/ | jq -r '.[].path'";

/// Arguments of `pando ls`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct LsArgs {
    /// Directories or files, as VOLUME:/path.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Type and permissions, links, owner and group (as numbers), size, and time of the last change in UTC.
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot too, and '.' and '..'.
    #[arg(short, long)]
    all: bool,
    /// Names that begin with a dot too.
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Directories themselves, not what is in them.
    #[arg(short, long)]
    directory: bool,
    /// Directories below as well.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Numbers of inodes in front.
    #[arg(short, long)]
    inode: bool,
    /// Sizes as 4.0K, 1.2G.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// One name a line; this is what happens anyway.
    #[arg(short = '1')]
    one: bool,
    /// End each line with NUL, and never escape.
    #[arg(long)]
    zero: bool,
    /// Print a JSON array with one object a file.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Runs `pando ls`.
pub fn run(args: &LsArgs) -> Result<Status> {
    let mut list =
        List { args, output: Output::new(), objects: 0, blocks: 0, widths: [0; 5], problems: false };
    let status = for_each_place(&args.paths, Purpose::Read, "list", |files, place| {
        list.argument(files, place)?;
        Ok(if std::mem::take(&mut list.problems) { Status::Problems } else { Status::Success })
    })?;
    if args.json {
        list.output.line(if list.objects == 0 { "[]" } else { "\n]" })?;
    }
    list.output.finish()?;
    Ok(status)
}

/// A file to be printed.
struct Item {
    name: Vec<u8>,
    path: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

struct List<'a> {
    args: &'a LsArgs,
    output: Output,
    /// JSON objects printed.
    objects: u64,
    /// Directories printed under a heading.
    blocks: u64,
    /// Of the columns of the long form; they never shrink, since what comes is not known yet.
    widths: [usize; 5],
    problems: bool,
}

impl List<'_> {
    fn argument(&mut self, files: &Files, place: &VolumePath) -> Result<(), Trouble> {
        // As ls: a link to a directory leads into it, but in the long form a link is a link.
        let last_link = if self.args.long || self.args.directory { LastLink::Keep } else { LastLink::Follow };
        let (inode, attributes) = match find(files, &place.path, last_link) {
            // A link that leads nowhere is listed itself.
            Err(cause) if cause.is_not_found() => find(files, &place.path, LastLink::Keep)?,
            found => found?,
        };
        if attributes.file_type != FileType::Directory || self.args.directory {
            let target = link_target(files, &inode, &attributes)?;
            let path = place.path.clone();
            return Ok(self.print(&[Item { name: path.clone(), path, attributes, target }])?);
        }
        self.tree(files, inode, place)
    }

    /// A directory, and with `-R` those below: depth first, as ls does. What waits are paths, not open directories.
    fn tree(&mut self, files: &Files, top: Inode, place: &VolumePath) -> Result<(), Trouble> {
        let mut below = Vec::new();
        self.directory(files, &top, &place.path, &mut below)?;
        let mut waiting: Vec<Vec<u8>> = below.into_iter().rev().collect();
        while let Some(path) = waiting.pop() {
            let mut below = Vec::new();
            let listed = find(files, &path, LastLink::Keep)
                .map_err(Trouble::from)
                .and_then(|(inode, _)| self.directory(files, &inode, &path, &mut below));
            match listed {
                Err(Trouble::Here(cause)) => self.complain(place, &path, &cause),
                listed => listed?,
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn directory(
        &mut self,
        files: &Files,
        inode: &Inode,
        path: &[u8],
        below: &mut Vec<Vec<u8>>,
    ) -> Result<(), Trouble> {
        if !self.args.json && (self.args.recursive || self.args.paths.len() > 1) {
            if self.blocks > 0 {
                self.end_line()?;
            }
            self.output.name(path)?;
            self.output.bytes(b":")?;
            self.end_line()?;
        }
        self.blocks += 1;
        let mut listing = files.list(inode.number());
        if self.args.all && !self.args.json {
            let here = files.attributes(inode.number())?;
            let above = find(files, &join(path, b".."), LastLink::Keep)?.1;
            let item = |name: &[u8], attributes| Item {
                name: name.to_vec(),
                path: path.to_vec(),
                attributes,
                target: None,
            };
            self.print(&[item(b".", here), item(b"..", above)])?;
        }
        loop {
            let entries = files.next_entries(&mut listing)?;
            if entries.is_empty() {
                return Ok(());
            }
            let hidden = self.args.all || self.args.almost_all || self.args.json;
            let mut items = Vec::new();
            for entry in entries.iter().filter(|entry| hidden || !entry.name.starts_with(b".")) {
                let path = join(path, &entry.name);
                if self.args.recursive && entry.file_type == FileType::Directory {
                    below.push(path.clone());
                }
                let (inode, attributes) = match files.lookup(inode.number(), &entry.name) {
                    Ok(found) => found,
                    Err(error) => {
                        complain(format_args!("cannot list {}: {error}", shown(&path)));
                        self.problems = true;
                        continue;
                    }
                };
                let target = link_target(files, &inode, &attributes)?;
                items.push(Item { name: entry.name.to_vec(), path, attributes, target });
            }
            self.print(&items)?;
        }
    }

    fn print(&mut self, items: &[Item]) -> Result<(), Failure> {
        if self.args.json {
            return self.print_json(items);
        }
        let rows: Vec<[String; 5]> =
            if self.args.long { items.iter().map(|item| self.columns(item)).collect() } else { vec![] };
        for row in &rows {
            for (width, column) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(column.len());
            }
        }
        for (i, item) in items.iter().enumerate() {
            if self.args.inode {
                self.output.bytes(format!("{:>8} ", item.attributes.inode.0).as_bytes())?;
            }
            if let Some([links, uid, gid, size, time]) = rows.get(i) {
                let mode = mode_string(item.attributes.file_type, item.attributes.mode);
                let [a, b, c, d, e] = self.widths;
                let text = format!("{mode} {links:>a$} {uid:>b$} {gid:>c$} {size:>d$} {time:>e$} ");
                self.output.bytes(text.as_bytes())?;
            }
            self.name(&item.name)?;
            if let Some(target) = item.target.as_ref().filter(|_| self.args.long) {
                self.output.bytes(b" -> ")?;
                self.name(target)?;
            }
            self.end_line()?;
        }
        Ok(())
    }

    fn columns(&self, item: &Item) -> [String; 5] {
        let Attributes { links, uid, gid, size, modified, .. } = item.attributes;
        let size = match device_numbers(&item.attributes) {
            Some((major, minor)) => format!("{major}, {minor}"),
            None if self.args.human_readable => human(size),
            None => size.to_string(),
        };
        [links.to_string(), uid.to_string(), gid.to_string(), size, DateTime::from(modified).to_minute()]
    }

    fn print_json(&mut self, items: &[Item]) -> Result<(), Failure> {
        for item in items {
            self.output.bytes(if self.objects == 0 { b"[\n" } else { b",\n" })?;
            self.objects += 1;
            self.output.json_value(&to_json(&item.path, &item.attributes, item.target.as_deref()))?;
        }
        Ok(())
    }

    fn name(&mut self, name: &[u8]) -> Result<(), Failure> {
        if self.args.zero { self.output.bytes(name) } else { self.output.name(name) }
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        self.output.bytes(if self.args.zero { b"\0" } else { b"\n" })
    }

    fn complain(&mut self, place: &VolumePath, path: &[u8], cause: &Cause) {
        let place = VolumePath { volume: place.volume.clone(), path: path.to_vec() };
        complain(format_args!("cannot list {place}: {cause}"));
        self.problems = true;
    }
}
