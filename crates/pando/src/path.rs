//! From a path in a volume to an inode.
//!
//! As the kernel does it: from the root, component by component, following symbolic links in the middle always and at
//! the end where asked to. An absolute link target starts at the volume's root, never at the host's; `..` of the root
//! is the root. Paths may be longer than `PATH_MAX`.

use std::collections::VecDeque;

use pando_fs::Error;
use pando_fs::operations::{Attributes, FileType};

use crate::failure::Cause;
use crate::files::{Files, Inode};

/// Symbolic links followed on the way to one file, as in Linux.
pub const SYMLINKS_MAX: usize = 40;

/// Where a path leads: a name in a directory, and what it names.
pub struct Place {
    /// The directory that holds the name.
    pub parent: Inode,
    /// The path of that directory from the root, without links, `.` and `..`; where there is no name, the path of what
    /// is there.
    pub parent_path: Vec<u8>,
    /// The last component after links were followed; empty where the path ends in the root, `.` or `..`.
    pub name: Vec<u8>,
    /// What is there.
    pub node: Option<(Inode, Attributes)>,
}

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// Go where it points.
    Follow,
    /// Stay at the link, unless a slash is behind it.
    Keep,
    /// Stay at the link: its name is to be changed or taken away. With a slash behind it, it is no directory.
    Name,
}

/// Walks a path to its end. The last component may be missing: then the place has no node. Everything before it must
/// be there.
pub fn walk(files: &Files, path: &[u8], last_link: LastLink) -> Result<Place, Cause> {
    let mut walk = Walk { files, above: Vec::new(), names: Vec::new(), current: files.root() };
    let mut rest: VecDeque<Vec<u8>> = components(path).collect();
    let mut must_be_directory = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let is_last = rest.is_empty();
        match &name[..] {
            b"." => continue,
            b".." => {
                walk.go_up();
                continue;
            }
            _ => {}
        }
        let (inode, attributes) = match files.lookup(walk.current.number(), &name) {
            Ok(found) => found,
            Err(Error::NotFound) if is_last => {
                return Ok(Place { parent_path: walk.path(), parent: walk.current, name, node: None });
            }
            Err(error) => return Err(error.into()),
        };
        let follow = match last_link {
            LastLink::Follow => true,
            LastLink::Keep => !is_last || must_be_directory,
            LastLink::Name => !is_last,
        };
        match attributes.file_type {
            FileType::Symlink if follow => {
                links += 1;
                if links > SYMLINKS_MAX {
                    return Err(Cause::TooManySymlinks);
                }
                let target = files.read_link(inode.number())?;
                must_be_directory |= is_last && target.ends_with(b"/");
                if target.starts_with(b"/") {
                    walk.go_to_root();
                }
                components(&target).rev().for_each(|component| rest.push_front(component));
            }
            FileType::Directory if !is_last => walk.go_down(inode, name),
            _ if !is_last || must_be_directory && attributes.file_type != FileType::Directory => {
                return Err(Error::NotADirectory.into());
            }
            _ => {
                let node = Some((inode, attributes));
                return Ok(Place { parent_path: walk.path(), parent: walk.current, name, node });
            }
        }
    }
    let attributes = files.attributes(walk.current.number())?;
    let parent_path = walk.path();
    let parent = walk.above.pop().unwrap_or_else(|| files.root());
    Ok(Place { parent, parent_path, name: Vec::new(), node: Some((walk.current, attributes)) })
}

/// Walks to something that must be there.
pub fn find(files: &Files, path: &[u8], last_link: LastLink) -> Result<(Inode, Attributes), Cause> {
    walk(files, path, last_link)?.node.ok_or(Cause::Volume(Error::NotFound))
}

/// The components of a path, without the empty ones.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|&b| b == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// The last component of a path as it is written, `.` if there is none (the root).
pub fn last_component(path: &[u8]) -> Vec<u8> {
    components(path).next_back().unwrap_or_else(|| b".".to_vec())
}

/// `directory/name`, with exactly one slash between them.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The directories on the way, so that `..` finds its way back.
struct Walk<'a> {
    files: &'a Files,
    above: Vec<Inode>,
    /// From the root to the current one.
    names: Vec<Vec<u8>>,
    current: Inode,
}

impl Walk<'_> {
    fn path(&self) -> Vec<u8> {
        [b"/", &self.names.join(&b'/')[..]].concat()
    }

    fn go_down(&mut self, inode: Inode, name: Vec<u8>) {
        self.names.push(name);
        self.above.push(std::mem::replace(&mut self.current, inode));
    }

    fn go_up(&mut self) {
        if let Some(parent) = self.above.pop() {
            self.current = parent;
            self.names.pop();
        }
    }

    fn go_to_root(&mut self) {
        self.above.clear();
        self.names.clear();
        self.current = self.files.root();
    }
}
