//! All that can be seen of a tree, as lines that can be compared: of a file system, and of the model.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use pando_fs::operations::{DirectoryEntry, FileType, ListAttributes, Operations, ROOT, SNAPSHOTS, waiting};
use pando_fs::{FileSystem, InodeNumber, Result};
use pando_sim::model::posix::{self, Content, Id, Posix};

/// One line a name, in the order of a walk.
pub type Picture = Vec<String>;

/// A name's line; `same` is the first name of the same inode on the walk.
fn line(
    path: &str,
    same: &str,
    attributes: impl Debug,
    content: &[u8],
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    xattrs.hash(&mut hasher);
    format!("{path} as {same}: {attributes:?}, sum {:016x}", hasher.finish())
}

/// The model's tree.
pub fn of_model(model: &Posix) -> Picture {
    let mut picture = Picture::new();
    let mut first: HashMap<Id, String> = HashMap::new();
    let mut waiting = vec![(String::new(), posix::ROOT)];
    waiting.extend(model.snapshots.iter().map(|(name, id)| (format!("@{}", name.escape_ascii()), *id)));
    while let Some((path, id)) = waiting.pop() {
        let node = model.node(id);
        let content = match &node.content {
            Content::File(bytes) | Content::Symlink(bytes) => bytes,
            Content::Directory { .. } | Content::Special(..) => &Vec::new(),
        };
        let attributes = (
            (node.file_type(), node.mode, node.links, node.uid, node.gid, node.size()),
            (node.accessed, node.modified, node.changed, node.born),
        );
        let xattrs: Vec<_> = node.all_xattrs().into_iter().collect();
        let same = first.entry(id).or_insert_with(|| path.clone());
        picture.push(line(&path, same, attributes, content, &xattrs));
        for (name, child) in model.list(id) {
            waiting.push((format!("{path}/{}", name.escape_ascii()), child));
        }
    }
    picture
}

/// The tree of a file system. Waits for the device; the references that it takes stay.
pub fn of_file_system(fs: &FileSystem) -> Result<Picture> {
    let mut picture = Picture::new();
    let mut first: HashMap<InodeNumber, String> = HashMap::new();
    let mut to_visit = vec![(String::new(), ROOT)];
    let mut snapshots = waiting(fs, FileSystem::snapshots)?;
    snapshots.sort_by(|a, b| a.name.cmp(&b.name));
    for snapshot in snapshots {
        let found = waiting(fs, |fs| fs.lookup(SNAPSHOTS, &snapshot.name))?;
        to_visit.push((format!("@{}", snapshot.name.escape_ascii()), found.attributes.inode));
    }
    while let Some((path, inode)) = to_visit.pop() {
        let found = fs.get_attributes(inode)?;
        let content = match found.file_type {
            FileType::Regular => waiting(fs, |fs| fs.read(inode, 0, found.size as usize))?.concat(),
            FileType::Symlink => fs.read_link(inode)?.to_vec(),
            _ => Vec::new(),
        };
        let mut xattrs = Vec::new();
        let names = fs.list_xattrs(inode)?;
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            xattrs.push((name.to_vec(), waiting(fs, |fs| fs.get_xattr(inode, name))?.to_vec()));
        }
        xattrs.sort();
        let attributes = (
            (found.file_type, found.mode, found.links, found.uid, found.gid, found.size),
            (found.accessed, found.modified, found.changed, found.born),
        );
        let same = first.entry(inode).or_insert_with(|| path.clone());
        picture.push(line(&path, same, attributes, &content, &xattrs));
        if found.file_type == FileType::Directory {
            for (name, child) in children(fs, inode)? {
                to_visit.push((format!("{path}/{}", name.escape_ascii()), child));
            }
        }
    }
    Ok(picture)
}

/// The names of a directory with their inodes, each of which counts one reference.
fn children(fs: &FileSystem, directory: InodeNumber) -> Result<Vec<(Vec<u8>, InodeNumber)>> {
    let (mut children, mut without_reference) = (Vec::new(), Vec::new());
    let (mut cookie, mut before) = (0, u64::MAX);
    while cookie != before {
        before = cookie;
        let mut emit = |entry: &DirectoryEntry| {
            cookie = entry.cookie;
            if ![&b"."[..], b".."].contains(&&entry.name[..]) {
                children.push((entry.name.to_vec(), entry.inode));
                without_reference.extend(entry.attributes.is_none().then(|| entry.name.clone()));
            }
            true
        };
        waiting(fs, |fs| fs.read_directory(directory, before, ListAttributes::OfAll, &mut emit))?;
    }
    for name in without_reference {
        waiting(fs, |fs| fs.lookup(directory, &name))?;
    }
    Ok(children)
}
