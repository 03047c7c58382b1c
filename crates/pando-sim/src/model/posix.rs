//! A POSIX file system in memory, simple enough to be obviously right: a tree of nodes, files as byte vectors.
//!
//! It says what each operation answers and what the tree looks like afterwards. Not modelled: what permission bits and
//! access control lists forbid, blocks in use, inode numbers. A node without a name lives on, as a file does that is still open.

use std::collections::BTreeMap;
use std::time::SystemTime;

use pando_fs::operations::{AllocateMode, FileType, RenameMode, SetAttributes, SetTime, XattrMode};
use pando_fs::{Error, Result};

use crate::model::acl::Acl;

/// A node of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(usize);

/// A tree there is, or was: the live one, or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tree(usize);

/// What it is, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A regular file's bytes.
    File(Vec<u8>),
    /// A directory's names, and its own parent; `None` once it is removed.
    Directory {
        /// The names.
        entries: BTreeMap<Vec<u8>, Id>,
        /// Where `..` leads.
        parent: Option<Id>,
    },
    /// A symbolic link's target.
    Symlink(Vec<u8>),
    /// A device node with its number, a fifo or a socket.
    Special(FileType, u64),
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it holds.
    pub content: Content,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names, as `st_nlink` counts them.
    pub links: u32,
    /// Extended attributes but for access control lists.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Access control list, where the mode does not say it all.
    pub access: Option<Acl>,
    /// Access control list of what is made in a directory.
    pub default: Option<Acl>,
    /// Last read.
    pub accessed: SystemTime,
    /// Last change of the contents.
    pub modified: SystemTime,
    /// Last change of the inode.
    pub changed: SystemTime,
    /// Made.
    pub born: SystemTime,
    tree: Tree,
}

impl Node {
    /// Its type.
    pub fn file_type(&self) -> FileType {
        match &self.content {
            Content::File(_) => FileType::Regular,
            Content::Directory { .. } => FileType::Directory,
            Content::Symlink(_) => FileType::Symlink,
            Content::Special(file_type, _) => *file_type,
        }
    }

    /// `st_size`: bytes, or names of a directory.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::File(bytes) | Content::Symlink(bytes) => bytes.len() as u64,
            Content::Directory { entries, .. } => entries.len() as u64,
            Content::Special(..) => 0,
        }
    }

    /// All extended attributes.
    pub fn all_xattrs(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = self.xattrs.clone();
        for (name, acl) in [(ACCESS, &self.access), (DEFAULT, &self.default)] {
            all.extend(acl.iter().map(|acl| (name.to_vec(), acl.bytes())));
        }
        all
    }

    fn set_access(&mut self, acl: &Acl) {
        self.mode = self.mode & 0o7000 | acl.mode();
        self.access = Some(acl.clone()).filter(|acl| !acl.is_mode());
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory { .. })
    }
}

/// The tree. `now` is the time of the next operation.
#[derive(Debug, Clone)]
pub struct Posix {
    nodes: Vec<Node>,
    /// Time of the next operation.
    pub now: SystemTime,
    /// The roots of the snapshots.
    pub snapshots: BTreeMap<Vec<u8>, Id>,
    live: Tree,
    /// Whether what lies in it may change, of each tree that ever was.
    writable: Vec<bool>,
}

/// The root directory.
pub const ROOT: Id = Id(0);

/// The extended attributes that are access control lists.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// See [`ACCESS`].
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

impl Posix {
    /// An empty root directory with mode 0755, made `now`.
    pub fn new(now: SystemTime) -> Self {
        let live = Tree(0);
        let mut posix =
            Self { nodes: Vec::new(), now, snapshots: BTreeMap::new(), live, writable: vec![true] };
        let content = Content::Directory { entries: BTreeMap::new(), parent: Some(ROOT) };
        posix.add(content, 0o755, 0, 0, live);
        posix
    }

    fn new_tree(&mut self, writable: bool) -> Tree {
        self.writable.push(writable);
        Tree(self.writable.len() - 1)
    }

    /// True for what lies in a tree that is no more, and has a name there.
    pub fn is_gone(&self, id: Id) -> bool {
        let node = self.node(id);
        let has_name = match &node.content {
            Content::Directory { parent, .. } => parent.is_some(),
            _ => node.links > 0,
        };
        let is_there =
            node.tree == self.live || self.snapshots.values().any(|root| self.node(*root).tree == node.tree);
        has_name && !is_there
    }

    /// True for what lies in a tree that may change.
    pub fn is_writable(&self, id: Id) -> bool {
        self.writable[self.node(id).tree.0]
    }

    fn check_writable(&self, id: Id) -> Result<()> {
        if self.is_writable(id) { Ok(()) } else { Err(Error::ReadOnly) }
    }

    fn check_beside(&self, id: Id, other: Id) -> Result<()> {
        if self.node(id).tree == self.node(other).tree { Ok(()) } else { Err(Error::OtherTree) }
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0]
    }

    fn add(&mut self, content: Content, mode: u32, uid: u32, gid: u32, tree: Tree) -> Id {
        let now = self.now;
        let links = if matches!(content, Content::Directory { .. }) { 2 } else { 1 };
        self.nodes.push(Node {
            content,
            mode,
            uid,
            gid,
            links,
            xattrs: BTreeMap::new(),
            access: None,
            default: None,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            tree,
        });
        Id(self.nodes.len() - 1)
    }

    fn entries(&self, directory: Id) -> Result<&BTreeMap<Vec<u8>, Id>> {
        match &self.node(directory).content {
            Content::Directory { parent: None, .. } => Err(Error::NotFound),
            Content::Directory { entries, .. } => Ok(entries),
            _ => Err(Error::NotADirectory),
        }
    }

    /// Puts a name into a directory, or takes it away.
    fn set_entry(&mut self, directory: Id, name: &[u8], id: Option<Id>) {
        let now = self.now;
        let old = self.entries(directory).ok().and_then(|entries| entries.get(name).copied());
        let count = |id: Option<Id>| u32::from(id.is_some_and(|id| self.node(id).is_directory()));
        let (less, more) = (count(old), count(id));
        if let Some(id) = id
            && let Content::Directory { parent, .. } = &mut self.nodes[id.0].content
        {
            *parent = Some(directory);
        }
        let node = &mut self.nodes[directory.0];
        node.links = node.links + more - less;
        (node.modified, node.changed) = (now, now);
        if let Content::Directory { entries, .. } = &mut node.content {
            match id {
                Some(id) => entries.insert(name.to_vec(), id),
                None => entries.remove(name),
            };
        }
    }

    /// Finds a name.
    pub fn lookup(&self, directory: Id, name: &[u8]) -> Result<Id> {
        self.entries(directory)?.get(name).copied().ok_or(Error::NotFound)
    }

    /// All names of a directory that is there.
    pub fn list(&self, directory: Id) -> Vec<(Vec<u8>, Id)> {
        let entries = self.entries(directory).cloned().unwrap_or_default();
        entries.into_iter().collect()
    }

    /// How many names there are in all.
    pub fn names(&self) -> usize {
        let mut names = 0;
        let mut waiting = vec![ROOT];
        while let Some(directory) = waiting.pop() {
            for (_, id) in self.list(directory) {
                names += 1;
                waiting.push(id);
            }
        }
        names
    }

    /// Makes anything; a directory's content is made empty.
    pub fn make(
        &mut self,
        owner: (u32, u32),
        directory: Id,
        name: &[u8],
        content: Content,
        (mode, umask): (u32, u32),
    ) -> Result<Id> {
        self.check_writable(directory)?;
        let entries = self.entries(directory)?;
        if entries.contains_key(name) {
            return Err(Error::Exists);
        }
        let (uid, mut gid) = owner;
        let mut mode = mode;
        let parent = self.node(directory);
        if parent.mode & 0o2000 != 0 {
            gid = parent.gid;
            if matches!(content, Content::Directory { .. }) {
                mode |= 0o2000;
            }
        }
        let default = parent.default.clone();
        let tree = parent.tree;
        let id = self.add(content, mode, uid, gid, tree);
        let node = &mut self.nodes[id.0];
        match default {
            _ if node.file_type() == FileType::Symlink => {}
            None => node.mode &= !umask,
            Some(default) => {
                let mut access = default.clone();
                access.set_mode(default.mode() & mode);
                node.set_access(&access);
                node.default = node.is_directory().then_some(default);
            }
        }
        self.set_entry(directory, name, Some(id));
        Ok(id)
    }

    /// What happens to a node when one of its names goes.
    fn lose_name(&mut self, id: Id) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        node.changed = now;
        if let Content::Directory { parent, .. } = &mut node.content {
            *parent = None;
            node.links = 0;
        } else {
            node.links -= 1;
        }
    }

    /// link. A node that lost its name gets one again: that only files of `O_TMPFILE` may is the kernel's affair.
    pub fn link(&mut self, id: Id, directory: Id, name: &[u8]) -> Result<Id> {
        self.check_writable(id)?;
        self.check_writable(directory)?;
        if self.node(id).is_directory() {
            return Err(Error::NotPermitted);
        }
        self.check_beside(id, directory)?;
        if self.entries(directory)?.contains_key(name) {
            return Err(Error::Exists);
        }
        self.set_entry(directory, name, Some(id));
        let now = self.now;
        let node = &mut self.nodes[id.0];
        node.links += 1;
        node.changed = now;
        Ok(id)
    }

    /// unlink or rmdir.
    pub fn remove(&mut self, directory: Id, name: &[u8], is_directory: bool) -> Result<()> {
        self.check_writable(directory)?;
        let id = self.lookup(directory, name)?;
        match (is_directory, self.node(id).is_directory()) {
            (true, false) => return Err(Error::NotADirectory),
            (false, true) => return Err(Error::IsADirectory),
            _ => {}
        }
        if is_directory && !self.entries(id)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.set_entry(directory, name, None);
        self.lose_name(id);
        Ok(())
    }

    /// True if `id` is the directory or above it.
    fn is_above(&self, id: Id, directory: Id) -> bool {
        let mut at = directory;
        loop {
            if at == id {
                return true;
            }
            match &self.node(at).content {
                Content::Directory { parent: Some(parent), .. }
                    if at != ROOT && self.check_beside(at, *parent).is_ok() =>
                {
                    at = *parent;
                }
                _ => return false,
            }
        }
    }

    /// rename.
    pub fn rename(&mut self, from: (Id, &[u8]), to: (Id, &[u8]), mode: RenameMode) -> Result<()> {
        self.check_writable(from.0)?;
        self.check_writable(to.0)?;
        self.check_beside(from.0, to.0)?;
        if !self.node(from.0).is_directory() || !self.node(to.0).is_directory() {
            return Err(Error::NotADirectory);
        }
        self.entries(to.0)?;
        let source = self.lookup(from.0, from.1)?;
        let target = self.lookup(to.0, to.1).ok();
        match (target, mode) {
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (Some(_), mode) if mode != RenameMode::Exchange && !mode.replaces() => return Err(Error::Exists),
            (Some(target), mode) if mode.replaces() => {
                match (self.node(source).is_directory(), self.node(target).is_directory()) {
                    (true, false) => return Err(Error::NotADirectory),
                    (false, true) => return Err(Error::IsADirectory),
                    _ => {}
                }
            }
            _ => {}
        }
        if target == Some(source) {
            return Ok(());
        }
        if self.is_above(source, to.0) {
            return Err(Error::Invalid);
        }
        if let Some(target) = target
            && mode == RenameMode::Exchange
            && self.is_above(target, from.0)
        {
            return Err(Error::Invalid);
        }
        if let Some(target) = target
            && mode.replaces()
            && self.node(target).is_directory()
            && !self.entries(target)?.is_empty()
        {
            return Err(Error::NotEmpty);
        }
        let now = self.now;
        self.set_entry(from.0, from.1, None);
        self.set_entry(to.0, to.1, Some(source));
        self.nodes[source.0].changed = now;
        match (target, mode) {
            (Some(target), RenameMode::Exchange) => {
                self.set_entry(from.0, from.1, Some(target));
                self.nodes[target.0].changed = now;
            }
            (Some(target), _) => self.lose_name(target),
            (None, _) => {}
        }
        if let Some(caller) = mode.whiteout() {
            let whiteout = Content::Special(FileType::CharDevice, 0);
            self.make((caller.uid, caller.gid), from.0, from.1, whiteout, (0, caller.umask))?;
        }
        Ok(())
    }

    /// A clone of anything, under a new name: root's own, or, of a directory, its owner's.
    pub fn clone_tree(&mut self, caller: (u32, u32), source: Id, directory: Id, name: &[u8]) -> Result<()> {
        self.check_writable(directory)?;
        let entries = self.entries(directory)?;
        let taken = entries.contains_key(name);
        if self.node(source).is_directory() && self.is_above(source, directory) {
            return Err(Error::Invalid);
        }
        if taken {
            return Err(Error::Exists);
        }
        if self.node(source).is_directory() {
            self.entries(source)?;
        }
        self.check_may_clone(caller, source, directory)?;
        let clone = self.copy_below(source, self.node(directory).tree, &mut BTreeMap::new());
        let now = self.now;
        let node = &mut self.nodes[clone.0];
        (node.changed, node.born) = (now, now);
        if caller.0 != 0 {
            node.xattrs.retain(|name, _| name.starts_with(b"user."));
            if (node.uid, node.gid) != caller {
                (node.uid, node.gid) = caller;
                node.mode &= 0o1777;
            }
        }
        self.set_entry(directory, name, Some(clone));
        if !self.node(clone).is_directory() {
            self.nodes[clone.0].links = 1;
        }
        Ok(())
    }

    /// Takes a snapshot of all there is.
    pub fn take_snapshot(&mut self, name: &[u8], writable: bool) -> Result<()> {
        if self.snapshots.contains_key(name) {
            return Err(Error::Exists);
        }
        let tree = self.new_tree(writable);
        let root = self.copy_below(ROOT, tree, &mut BTreeMap::new());
        self.snapshots.insert(name.to_vec(), root);
        Ok(())
    }

    /// What a tree is now, as another one that does not change: a snapshot as it is sent.
    pub fn copy_of(&mut self, root: Id) -> Id {
        let tree = self.new_tree(false);
        self.copy_below(root, tree, &mut BTreeMap::new())
    }

    /// Deletes a snapshot.
    pub fn delete_snapshot(&mut self, name: &[u8]) -> Result<()> {
        self.snapshots.remove(name).map(drop).ok_or(Error::NotFound)
    }

    /// Makes the tree what it was. What was in it and has a name there is gone, but the root.
    pub fn roll_back(&mut self, name: &[u8]) -> Result<()> {
        let snapshot = *self.snapshots.get(name).ok_or(Error::NotFound)?;
        self.live = self.new_tree(true);
        let copy = self.copy_below(snapshot, self.live, &mut BTreeMap::new());
        self.nodes[ROOT.0] = self.node(copy).clone();
        for (_, id) in self.list(ROOT) {
            if let Content::Directory { parent, .. } = &mut self.nodes[id.0].content {
                *parent = Some(ROOT);
            }
        }
        Ok(())
    }

    fn check_may_clone(&self, (uid, gid): (u32, u32), source: Id, directory: Id) -> Result<()> {
        let may = |node: &Node, bits: u32| {
            let shift = if uid == node.uid { 6 } else { 3 * u32::from(gid == node.gid) };
            // Of lists of others nobody takes the trouble to know what they allow.
            (uid == node.uid || node.access.is_none()) && node.mode >> shift & bits == bits
        };
        let node = self.node(source);
        match &node.content {
            _ if uid == 0 => return Ok(()),
            Content::Directory { .. } if node.uid != uid => return Err(Error::NotPermitted),
            Content::Special(FileType::CharDevice | FileType::BlockDevice, _) => {
                return Err(Error::NotPermitted);
            }
            Content::File(_) | Content::Special(..) if !may(node, 4) => return Err(Error::AccessDenied),
            _ => {}
        }
        if may(self.node(directory), 3) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// New nodes for one and all below it, one for each that has names there. `made` are those that there are already.
    fn copy_below(&mut self, source: Id, tree: Tree, made: &mut BTreeMap<Id, Id>) -> Id {
        if let Some(copy) = made.get(&source) {
            return *copy;
        }
        let node = Node { tree, ..self.node(source).clone() };
        let names = if node.is_directory() { self.list(source) } else { Vec::new() };
        self.nodes.push(node);
        let copy = Id(self.nodes.len() - 1);
        made.insert(source, copy);
        match &mut self.nodes[copy.0].content {
            Content::Directory { entries, .. } => entries.clear(),
            _ => self.nodes[copy.0].links = 0,
        }
        for (name, child) in names {
            let child = self.copy_below(child, tree, made);
            let node = &mut self.nodes[child.0];
            match &mut node.content {
                Content::Directory { parent, .. } => *parent = Some(copy),
                _ => node.links += 1,
            }
            if let Content::Directory { entries, .. } = &mut self.nodes[copy.0].content {
                entries.insert(name, child);
            }
        }
        copy
    }

    fn bytes(&mut self, id: Id) -> Result<&mut Vec<u8>> {
        match &mut self.nodes[id.0].content {
            Content::File(bytes) => Ok(bytes),
            Content::Directory { .. } => Err(Error::IsADirectory),
            _ => Err(Error::Invalid),
        }
    }

    fn touch(&mut self, id: Id) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        (node.modified, node.changed) = (now, now);
    }

    /// read.
    pub fn read(&mut self, id: Id, offset: usize, length: usize) -> Result<Vec<u8>> {
        let bytes = self.bytes(id)?;
        let start = offset.min(bytes.len());
        Ok(bytes[start..bytes.len().min(offset + length)].to_vec())
    }

    /// write.
    pub fn write(&mut self, id: Id, offset: usize, data: &[u8], kill_set_id: bool) -> Result<()> {
        self.check_writable(id)?;
        let bytes = self.bytes(id)?;
        if data.is_empty() {
            return Ok(());
        }
        let length = bytes.len().max(offset + data.len());
        bytes.resize(length, 0);
        bytes[offset..offset + data.len()].copy_from_slice(data);
        self.touch(id);
        if kill_set_id {
            self.kill_set_id(id);
            self.nodes[id.0].xattrs.remove(&b"security.capability"[..]);
        }
        Ok(())
    }

    fn kill_set_id(&mut self, id: Id) {
        let mode = &mut self.nodes[id.0].mode;
        *mode &= !0o4000;
        if *mode & 0o010 != 0 {
            *mode &= !0o2000;
        }
    }

    /// fallocate.
    pub fn allocate(&mut self, id: Id, mode: AllocateMode, offset: usize, length: usize) -> Result<()> {
        self.check_writable(id)?;
        let bytes = self.bytes(id)?;
        let end = offset + length;
        let grows = match mode {
            AllocateMode::Allocate { keep_size } => !keep_size,
            AllocateMode::PunchHole => false,
            AllocateMode::ZeroRange { keep_size } => !keep_size,
        };
        if !matches!(mode, AllocateMode::Allocate { .. }) {
            let inside = offset.min(bytes.len())..end.min(bytes.len());
            bytes[inside].fill(0);
        }
        if grows && end > bytes.len() {
            bytes.resize(end, 0);
        }
        self.touch(id);
        Ok(())
    }

    /// Why copy_file_range of so many bytes does nothing, if so.
    pub fn check_copy(&self, from: (Id, usize), to: (Id, usize), length: usize) -> Result<()> {
        self.check_writable(to.0)?;
        for id in [from.0, to.0] {
            match &self.node(id).content {
                Content::File(_) => {}
                Content::Directory { .. } => return Err(Error::IsADirectory),
                _ => return Err(Error::Invalid),
            }
        }
        let overlaps = from.0 == to.0 && from.1 < to.1 + length && to.1 < from.1 + length;
        if overlaps { Err(Error::Invalid) } else { Ok(()) }
    }

    /// copy_file_range, of which `copied` bytes were done.
    pub fn copy(&mut self, from: (Id, usize), to: (Id, usize), copied: usize) -> Result<()> {
        let data = self.read(from.0, from.1, copied)?;
        self.write(to.0, to.1, &data, false)
    }

    /// setattr.
    pub fn set_attributes(&mut self, id: Id, set: &SetAttributes) -> Result<()> {
        self.check_writable(id)?;
        let now = self.now;
        if let Some(size) = set.size {
            self.bytes(id)?.resize(size as usize, 0);
            self.nodes[id.0].modified = now;
        }
        let node = &mut self.nodes[id.0];
        let is_directory = node.is_directory();
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            node.mode = mode;
            if let Some(acl) = &mut node.access {
                acl.set_mode(mode);
            }
        }
        let time = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::To(time)) => time,
        };
        node.accessed = time(set.accessed, node.accessed);
        node.modified = time(set.modified, node.modified);
        node.changed = set.changed.unwrap_or(now);
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        if !is_directory && ((changes_owner && set.mode.is_none()) || set.kill_set_id) {
            self.kill_set_id(id);
        }
        if !is_directory && set.kill_set_id {
            self.nodes[id.0].xattrs.remove(&b"security.capability"[..]);
        }
        Ok(())
    }

    /// setxattr.
    pub fn set_xattr(&mut self, id: Id, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.check_writable(id)?;
        let now = self.now;
        let node = &mut self.nodes[id.0];
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.changed = now;
        Ok(())
    }

    /// setxattr of an access control list; `None` for one without entries.
    pub fn set_acl(
        &mut self,
        id: Id,
        is_default: bool,
        acl: Option<Acl>,
        kill_set_group_id: bool,
    ) -> Result<()> {
        self.check_writable(id)?;
        let now = self.now;
        let node = &mut self.nodes[id.0];
        match (node.file_type(), is_default, acl) {
            (FileType::Symlink, _, _) => return Err(Error::NotSupported),
            (FileType::Directory, true, acl) => node.default = acl,
            (_, true, _) => return Err(Error::AccessDenied),
            (_, false, None) => node.access = None,
            (_, false, Some(acl)) => {
                node.set_access(&acl);
                if kill_set_group_id {
                    node.mode &= !0o2000;
                }
            }
        }
        node.changed = now;
        Ok(())
    }

    /// removexattr.
    pub fn remove_xattr(&mut self, id: Id, name: &[u8]) -> Result<()> {
        self.check_writable(id)?;
        let now = self.now;
        let node = &mut self.nodes[id.0];
        let removed = match name {
            ACCESS => node.access.take().is_some(),
            DEFAULT => node.default.take().is_some(),
            name => node.xattrs.remove(name).map(|_| true).ok_or(Error::NoAttribute)?,
        };
        if removed {
            node.changed = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Content {
        Content::Directory { entries: BTreeMap::new(), parent: None }
    }

    #[test]
    fn links_of_directories_follow_renames() {
        let mut posix = Posix::new(SystemTime::UNIX_EPOCH);
        let a = posix.make((0, 0), ROOT, b"a", directory(), (0o755, 0)).unwrap();
        let b = posix.make((0, 0), a, b"b", directory(), (0o755, 0)).unwrap();
        assert_eq!((posix.node(ROOT).links, posix.node(a).links), (3, 3));
        posix.rename((a, b"b"), (ROOT, b"b"), RenameMode::Replace).unwrap();
        assert_eq!((posix.node(ROOT).links, posix.node(a).links), (4, 2));
        let into_itself = posix.rename((ROOT, b"b"), (b, b"c"), RenameMode::Replace);
        assert_eq!(into_itself, Err(Error::Invalid));
        posix.remove(ROOT, b"a", true).unwrap();
        assert_eq!(posix.make((0, 0), a, b"x", directory(), (0, 0)), Err(Error::NotFound));
    }

    #[test]
    fn a_file_is_there_as_long_as_one_of_its_names() {
        let mut posix = Posix::new(SystemTime::UNIX_EPOCH);
        let file = posix.make((0, 0), ROOT, b"f", Content::File(Vec::new()), (0o644, 0)).unwrap();
        posix.link(file, ROOT, b"g").unwrap();
        assert_eq!(posix.link(file, ROOT, b"f"), Err(Error::Exists));
        assert_eq!(posix.link(ROOT, ROOT, b"r"), Err(Error::NotPermitted));
        // Of two names of one file, none goes.
        posix.rename((ROOT, b"f"), (ROOT, b"g"), RenameMode::Replace).unwrap();
        assert_eq!((posix.node(file).links, posix.list(ROOT).len()), (2, 2));
        posix.remove(ROOT, b"f", false).unwrap();
        assert_eq!((posix.node(file).links, posix.lookup(ROOT, b"g")), (1, Ok(file)));
        posix.remove(ROOT, b"g", false).unwrap();
        assert_eq!(posix.node(file).links, 0);
    }

    #[test]
    fn what_is_cut_off_does_not_come_back() {
        let mut posix = Posix::new(SystemTime::UNIX_EPOCH);
        let file = posix.make((0, 0), ROOT, b"f", Content::File(Vec::new()), (0o644, 0)).unwrap();
        posix.write(file, 2, b"abc", false).unwrap();
        let resize = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
        posix.set_attributes(file, &resize(3)).unwrap();
        posix.set_attributes(file, &resize(5)).unwrap();
        assert_eq!(posix.read(file, 0, 9).unwrap(), b"\0\0a\0\0");
    }
}
