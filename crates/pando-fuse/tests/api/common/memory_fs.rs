//! A small file system in memory behind [`Operations`]: enough POSIX to see that requests arrive and answers go back.
//!
//! It counts references as the kernel's are counted, and can answer `Busy` to see requests go through the pool.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use pando_fs::operations::*;
use pando_fs::{Error, InodeNumber, Miss, Operations, Result};
use parking_lot::Mutex;

#[derive(Clone)]
struct Node {
    attributes: Attributes,
    names: BTreeMap<Bytes, InodeNumber>,
    parent: InodeNumber,
    data: Vec<u8>,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
    references: u64,
}

struct State {
    nodes: HashMap<InodeNumber, Node>,
    next: u64,
}

/// The file system.
pub struct MemoryFs {
    state: Mutex<State>,
    /// Calls to go until a change is answered with `Busy` once; 0 for never.
    pub busy_every: u64,
    calls: AtomicU64,
    /// Times that a thread which may wait made room.
    pub waited: AtomicU64,
    /// Names of the threads that `sync` was called on.
    pub syncs: Mutex<Vec<String>>,
    /// Calls of it that are under way, and the most there were.
    pub syncing: Mutex<(usize, usize)>,
    /// How long it takes.
    pub sync_takes: Mutex<Duration>,
    /// Whether it fails after that.
    pub sync_fails: AtomicBool,
    /// Whether it is said to be short.
    pub sync_is_short: AtomicBool,
    /// Names of the threads that lookups came on.
    pub threads: Mutex<BTreeSet<String>>,
    /// Lookups that found a file, not a directory.
    pub files_looked_up: AtomicU64,
    /// Listings that were begun.
    pub listings: AtomicU64,
}

impl MemoryFs {
    pub fn new() -> Self {
        let mut fs = Self {
            state: Mutex::new(State { nodes: HashMap::new(), next: 1 }),
            busy_every: 0,
            calls: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            syncs: Mutex::default(),
            syncing: Mutex::default(),
            sync_takes: Mutex::default(),
            sync_fails: AtomicBool::new(false),
            sync_is_short: AtomicBool::new(true),
            threads: Mutex::default(),
            files_looked_up: AtomicU64::new(0),
            listings: AtomicU64::new(0),
        };
        let root = Caller { uid: 0, gid: 0, umask: 0 };
        fs.state.get_mut().add(&root, ROOT, FileType::Directory, 0o755, 0);
        fs
    }

    /// References that the kernel holds on everything but the root.
    pub fn references(&self) -> u64 {
        let state = self.state.lock();
        state.nodes.iter().filter(|(inode, _)| **inode != ROOT).map(|(_, node)| node.references).sum()
    }

    /// Takes back all references, which an unmount may leave.
    pub fn take_back(&self) {
        self.state.lock().nodes.values_mut().for_each(|node| node.references = 0);
    }

    /// Files, not directories, that the kernel holds references to.
    pub fn known_files(&self) -> usize {
        let state = self.state.lock();
        let files = state.nodes.values().filter(|node| node.attributes.file_type != FileType::Directory);
        files.filter(|node| node.references > 0).count()
    }

    /// Inodes there are.
    pub fn inodes(&self) -> usize {
        self.state.lock().nodes.len()
    }
}

impl State {
    fn add(
        &mut self,
        caller: &Caller,
        parent: InodeNumber,
        file_type: FileType,
        mode: u32,
        device: u64,
    ) -> Attributes {
        let inode = InodeNumber(self.next);
        self.next += 1;
        let now = SystemTime::now();
        let attributes = Attributes {
            inode,
            generation: 0,
            file_type,
            mode,
            links: 1 + u32::from(file_type == FileType::Directory),
            uid: caller.uid,
            gid: caller.gid,
            device,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
        };
        let node = Node {
            attributes,
            names: BTreeMap::new(),
            parent,
            data: Vec::new(),
            target: Bytes::new(),
            xattrs: BTreeMap::new(),
            references: 0,
        };
        self.nodes.insert(inode, node);
        attributes
    }

    fn node(&mut self, inode: InodeNumber) -> Result<&mut Node> {
        self.nodes.get_mut(&inode).ok_or(Error::Stale)
    }

    fn child(&mut self, parent: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        self.node(parent)?.names.get(name).copied().ok_or(Error::NotFound)
    }

    fn make(
        &mut self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        file_type: FileType,
        mode: u32,
        device: u64,
    ) -> Result<Entry> {
        if self.child(parent, name).is_ok() {
            return Err(Error::Exists);
        }
        let attributes = self.add(caller, parent, file_type, mode, device);
        self.node(parent)?.names.insert(Bytes::copy_from_slice(name), attributes.inode);
        self.entry(attributes.inode)
    }

    fn entry(&mut self, inode: InodeNumber) -> Result<Entry> {
        let node = self.node(inode)?;
        node.references += 1;
        Ok(Entry { attributes: node.attributes })
    }

    fn drop_name(&mut self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        let inode = self.child(parent, name)?;
        self.node(parent)?.names.remove(name);
        let node = self.node(inode)?;
        let directory = node.attributes.file_type == FileType::Directory;
        node.attributes.links -= 1 + u32::from(directory);
        self.reclaim(inode);
        Ok(())
    }

    fn reclaim(&mut self, inode: InodeNumber) {
        let gone = |node: &Node| node.attributes.links == 0 && node.references == 0;
        if self.nodes.get(&inode).is_some_and(gone) {
            self.nodes.remove(&inode);
        }
    }

    fn set_size(&mut self, inode: InodeNumber, size: u64) -> Result<()> {
        let node = self.node(inode)?;
        node.data.resize(size as usize, 0);
        node.attributes.size = size;
        node.attributes.blocks = size.div_ceil(512);
        Ok(())
    }
}

impl Operations for MemoryFs {
    fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        let thread = std::thread::current();
        self.threads.lock().insert(thread.name().unwrap_or_default().to_owned());
        let mut state = self.state.lock();
        let inode = state.child(parent, name)?;
        let entry = state.entry(inode)?;
        if entry.attributes.file_type != FileType::Directory {
            self.files_looked_up.fetch_add(1, Ordering::Relaxed);
        }
        Ok(entry)
    }

    fn forget(&self, inode: InodeNumber, count: u64) {
        let mut state = self.state.lock();
        if inode != ROOT {
            let node = state.nodes.get_mut(&inode).expect("the kernel forgets what it was told of");
            node.references = node.references.checked_sub(count).expect("no more is forgotten than was told");
            state.reclaim(inode);
        }
    }

    fn get_attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        Ok(self.state.lock().node(inode)?.attributes)
    }

    fn set_attributes(&self, inode: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        let mut state = self.state.lock();
        if let Some(size) = set.size {
            state.set_size(inode, size)?;
        }
        let attributes = &mut state.node(inode)?.attributes;
        let time = |set: SetTime| match set {
            SetTime::Now => SystemTime::now(),
            SetTime::To(time) => time,
        };
        if set.kill_set_id && attributes.file_type == FileType::Regular {
            attributes.mode &= !0o6000;
        }
        attributes.mode = set.mode.unwrap_or(attributes.mode);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.accessed = set.accessed.map_or(attributes.accessed, time);
        attributes.modified = set.modified.map_or(attributes.modified, time);
        attributes.changed = SystemTime::now();
        Ok(*attributes)
    }

    fn read_link(&self, inode: InodeNumber) -> Result<Bytes> {
        Ok(self.state.lock().node(inode)?.target.clone())
    }

    fn make_node(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        file_type: FileType,
        mode: u32,
        device: u64,
    ) -> Result<Entry> {
        self.state.lock().make(caller, parent, name, file_type, mode & !caller.umask, device)
    }

    fn make_directory(&self, caller: &Caller, parent: InodeNumber, name: &[u8], mode: u32) -> Result<Entry> {
        self.state.lock().make(caller, parent, name, FileType::Directory, mode & !caller.umask, 0)
    }

    fn make_symlink(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        let mut state = self.state.lock();
        let entry = state.make(caller, parent, name, FileType::Symlink, 0o777, 0)?;
        let node = state.node(entry.attributes.inode)?;
        node.target = Bytes::copy_from_slice(target);
        node.attributes.size = target.len() as u64;
        Ok(Entry { attributes: node.attributes })
    }

    fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        let mut state = self.state.lock();
        if state.child(parent, name).is_ok() {
            return Err(Error::Exists);
        }
        state.node(inode)?.attributes.links += 1;
        state.node(parent)?.names.insert(Bytes::copy_from_slice(name), inode);
        state.entry(inode)
    }

    fn make_temporary(&self, caller: &Caller, parent: InodeNumber, mode: u32) -> Result<Entry> {
        let mut state = self.state.lock();
        let inode = state.add(caller, parent, FileType::Regular, mode, 0).inode;
        state.node(inode)?.attributes.links = 0;
        state.entry(inode)
    }

    fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.state.lock().drop_name(parent, name)
    }

    fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let inode = state.child(parent, name)?;
        match state.node(inode)?.names.is_empty() {
            true => state.drop_name(parent, name),
            false => Err(Error::NotEmpty),
        }
    }

    fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Vec<InodeNumber>> {
        let mut state = self.state.lock();
        let inode = state.child(parent, name)?;
        let there = state.child(new_parent, new_name).ok();
        match (mode, there) {
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (RenameMode::Exchange, Some(other)) => {
                state.node(parent)?.names.insert(Bytes::copy_from_slice(name), other);
            }
            (mode, Some(_)) if !mode.replaces() => return Err(Error::Exists),
            (_, there) => {
                if there.is_some() {
                    state.drop_name(new_parent, new_name)?;
                }
                state.node(parent)?.names.remove(name);
            }
        }
        state.node(new_parent)?.names.insert(Bytes::copy_from_slice(new_name), inode);
        if let Some(caller) = mode.whiteout() {
            let whiteout = state.make(&caller, parent, name, FileType::CharDevice, 0, 0)?;
            state.node(whiteout.attributes.inode)?.references = 0;
        }
        let node = state.node(inode)?;
        node.parent = new_parent;
        let moved = node.attributes.file_type == FileType::Directory && parent != new_parent;
        Ok(moved.then_some(inode).into_iter().collect())
    }

    /// Without what is below.
    fn clone_tree(
        &self,
        caller: &Caller,
        _: &[u32],
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let mut state = self.state.lock();
        let Node { attributes, data, .. } = state.node(source)?.clone();
        let clone = state.make(caller, parent, name, attributes.file_type, attributes.mode, 0)?;
        let node = state.node(clone.attributes.inode)?;
        (node.data, node.attributes.size, node.references) = (data, attributes.size, 0);
        Ok(())
    }

    fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        let mut state = self.state.lock();
        let data = &state.node(inode)?.data;
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + length);
        // Two pieces, as from two blocks.
        let middle = start + (end - start) / 2;
        Ok(vec![Bytes::copy_from_slice(&data[start..middle]), Bytes::copy_from_slice(&data[middle..end])])
    }

    fn write(&self, inode: InodeNumber, offset: u64, bytes: Bytes, mode: WriteMode) -> Result<()> {
        let mut state = self.state.lock();
        let size = state.node(inode)?.attributes.size;
        let end = offset + bytes.len() as u64;
        if end > size {
            state.set_size(inode, end)?;
        }
        let node = state.node(inode)?;
        node.data[offset as usize..end as usize].copy_from_slice(&bytes);
        if !mode.keep_modified {
            node.attributes.modified = SystemTime::now();
        }
        if mode.kill_set_id {
            node.attributes.mode &= !0o6000;
        }
        Ok(())
    }

    fn allocate(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let size = state.node(inode)?.attributes.size;
        let end = offset + length;
        let extends = matches!(
            mode,
            AllocateMode::Allocate { keep_size: false } | AllocateMode::ZeroRange { keep_size: false }
        );
        if extends && end > size {
            state.set_size(inode, end)?;
        }
        if !matches!(mode, AllocateMode::Allocate { .. }) {
            let data = &mut state.node(inode)?.data;
            let (start, end) = (data.len().min(offset as usize), data.len().min(end as usize));
            data[start..end].fill(0);
        }
        if kill_set_id {
            state.node(inode)?.attributes.mode &= !0o6000;
        }
        Ok(())
    }

    fn copy_range(
        &self,
        from: InodeNumber,
        from_offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<u64> {
        let bytes = self.read(from, from_offset, length as usize)?.concat();
        let copied = bytes.len() as u64;
        self.write(to, to_offset, bytes.into(), WriteMode { kill_set_id, ..WriteMode::PLAIN })?;
        Ok(copied)
    }

    fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        let size = self.state.lock().node(inode)?.attributes.size;
        match what {
            _ if offset >= size => Err(Error::NoData),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn read_directory(
        &self,
        inode: InodeNumber,
        cookie: u64,
        mut attributes: ListAttributes,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        self.listings.fetch_add(u64::from(cookie == 0), Ordering::Relaxed);
        let mut state = self.state.lock();
        let parent = state.node(inode)?.parent;
        let dots = [(Bytes::from_static(b"."), inode), (Bytes::from_static(b".."), parent)];
        let names = dots.into_iter().chain(state.node(inode)?.names.clone());
        for (index, (name, inode)) in names.enumerate().skip(cookie as usize) {
            let node = state.node(inode)?;
            let is_wanted = index > 1 && attributes.are_for(node.attributes.file_type, node.references > 0);
            let entry = DirectoryEntry {
                cookie: index as u64 + 1,
                name,
                inode,
                file_type: node.attributes.file_type,
                attributes: is_wanted.then_some(node.attributes),
            };
            if !emit(&entry) {
                break;
            }
            if index > 1 && !is_wanted {
                attributes = attributes.behind_one_without();
            }
            node.references += u64::from(entry.attributes.is_some());
        }
        Ok(())
    }

    fn get_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Bytes> {
        self.state.lock().node(inode)?.xattrs.get(name).cloned().ok_or(Error::NoAttribute)
    }

    fn list_xattrs(&self, inode: InodeNumber) -> Result<Bytes> {
        let mut state = self.state.lock();
        let names = state.node(inode)?.xattrs.keys().flat_map(|name| [&name[..], b"\0"].concat());
        Ok(names.collect::<Vec<_>>().into())
    }

    fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        _: bool,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let xattrs = &mut state.node(inode)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(Error::Exists),
            (XattrMode::Replace, false) => Err(Error::NoAttribute),
            _ => {
                xattrs.insert(Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
                Ok(())
            }
        }
    }

    fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        self.state.lock().node(inode)?.xattrs.remove(name).map(|_| ()).ok_or(Error::NoAttribute)
    }

    fn sync(&self) -> Result<()> {
        self.syncs.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
        let change = |begins| {
            let mut syncing = self.syncing.lock();
            let now = if begins { syncing.0 + 1 } else { syncing.0 - 1 };
            *syncing = (now, syncing.1.max(now));
        };
        change(true);
        let takes = *self.sync_takes.lock();
        std::thread::sleep(takes);
        change(false);
        if self.sync_fails.load(Ordering::Relaxed) { Err(Error::NoSpace) } else { Ok(()) }
    }

    fn sync_is_short(&self) -> bool {
        self.sync_is_short.load(Ordering::Relaxed)
    }

    fn statistics(&self) -> Result<Statistics> {
        Ok(Statistics {
            capacity: 1 << 30,
            free: 1 << 29,
            available: 1 << 28,
            inodes: 1000,
            inodes_free: 900,
        })
    }

    fn fetch(&self, _: Miss) -> Result<()> {
        unreachable!("nothing is ever missing from memory")
    }

    fn make_room(&self, _: u64, may_wait: bool) -> Result<()> {
        if may_wait {
            self.waited.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.busy_every > 0 && call.is_multiple_of(self.busy_every) {
            true => Err(Error::Busy),
            false => Ok(()),
        }
    }
}
