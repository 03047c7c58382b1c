//! A mounted volume: what all operations share, how it is made, opened and closed, and the list of its operations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use pando_device::Device;
use pando_engine::{Background, Batch, Engine, FormatOptions, KeyRange, Options, ScanLimit, Tree};
use parking_lot::Mutex;

use crate::clock::{Clock, SystemClock};
use crate::inode::{HEARS_WITHIN, Inode, Place};
use crate::last_time::LastTime;
use crate::locks::{self, Rank, ReadGuard, WriteGuard};
use crate::namei::new_key_max;
use crate::names::NameBudget;
use crate::numbers::{self, Numbers};
use crate::operations::{
    AllocateMode, Attributes, Caller, DirectoryEntry, Entry, FileType, InodeNumber, ListAttributes,
    Operations, ROOT, RenameMode, Seek, SetAttributes, Statistics, WriteMode, XattrMode,
};
use crate::orphan::Parked;
use crate::schema::{Record, Timestamp, key};
use crate::store::{self, Store};
use crate::table::InodeTable;
use crate::view::View;
use crate::{Error, Miss, Result, Snapshot};

/// Memory for the names of directories that are known to be complete.
const NAME_BUDGET_BYTES: usize = 64 << 20;

/// A file system on a volume. See [`Operations`].
pub struct FileSystem {
    pub(crate) store: Store,
    pub(crate) table: InodeTable,
    pub(crate) numbers: Numbers,
    pub(crate) budget: Arc<NameBudget>,
    pub(crate) parked: Parked,
    /// When a file lost one of several names: saves looking for that of each.
    name_lost: LastTime,
    /// The snapshots that inodes in memory lie in, by number.
    pub(crate) views: Mutex<HashMap<InodeNumber, Weak<View>>>,
    /// How many hold a snapshot, by its number.
    pub(crate) held: Mutex<HashMap<InodeNumber, usize>>,
    /// What the directory of the snapshots had when it last changed, while somebody lists it.
    pub(crate) listed: Mutex<Option<(SystemTime, Arc<[Snapshot]>)>>,
    /// Bytes of the longest key that a new name gets.
    pub(crate) new_key_max: usize,
    /// Whether listings of the root show the directory of the snapshots.
    pub(crate) snapshots_listed: AtomicBool,
    /// Shared by all that makes keys; its value is the epoch of cached paths, raised when a directory moves.
    pub(crate) namespace: locks::RwLock<u64>,
    clock: Arc<dyn Clock>,
    /// For as long as it lives.
    pub(crate) read_only: bool,
    /// How often changes began to be refused until further notice, or to be let through again: odd while they are refused.
    refusal_turns: AtomicU64,
}

impl FileSystem {
    /// Makes an empty file system on the device: an empty volume with a root directory that belongs to root and has
    /// mode 0755. Durable when it returns.
    pub fn format(device: Arc<dyn Device>, options: &FormatOptions) -> Result<()> {
        Self::format_with_clock(device, options, &SystemClock)
    }

    /// As [`FileSystem::format`], with the time of birth from the clock.
    pub fn format_with_clock(
        device: Arc<dyn Device>,
        options: &FormatOptions,
        clock: &dyn Clock,
    ) -> Result<()> {
        Engine::format(device.clone(), options)?;
        let engine = Engine::open(device, Options { background: Background::Manual, ..Options::default() })?;
        Self::make_root(&engine, clock)?;
        engine.close()?;
        Ok(())
    }

    /// Gives an empty volume its root directory.
    fn make_root(engine: &Engine, clock: &dyn Clock) -> Result<()> {
        let mut root = Record::new(FileType::Directory, ROOT.0, clock.now().into());
        root.mode = 0o755;
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::ROOT, root.encode());
        batch.put(Tree::Metadata, key::INODE_COUNTER, numbers::encode_counter(numbers::FIRST));
        engine.apply(batch)?;
        engine.sync()?;
        Ok(())
    }

    fn is_empty(engine: &Engine) -> Result<bool> {
        let mut range = Some(KeyRange::all());
        while let Some(part) = range {
            let limit = ScanLimit { entries: 1, bytes: 1 };
            let scan = engine.waiting(|| engine.scan(Tree::Metadata, &part, limit))?;
            if !scan.entries.is_empty() {
                return Ok(false);
            }
            range = scan.rest;
        }
        Ok(true)
    }

    /// Opens a volume: recovers it, deletes the orphans of the last mount unless `read_only`. Waits for the device.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Arc<Self>> {
        Self::open_with_clock(device, options, Arc::new(SystemClock))
    }

    /// As [`FileSystem::open`], with time stamps from the clock.
    pub fn open_with_clock(
        device: Arc<dyn Device>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let read_only = options.read_only;
        // With the engine's own words, also where it can only be read.
        let engine = Arc::new(Engine::open(device, options).map_err(Error::Engine)?);
        Self::on_engine(engine, read_only, clock)
    }

    /// As [`FileSystem::open_with_clock`], on an engine that is open already: what the engine holds is taken for the
    /// state that a crash left.
    pub fn on_engine(engine: Arc<Engine>, read_only: bool, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        if !read_only && Self::is_empty(&engine)? {
            // A crash came between the two steps of a format.
            Self::make_root(&engine, &*clock)?;
        }
        // Whoever only reads gives out no numbers, and can do without the counter where it is damaged.
        let counter = if read_only {
            numbers::FIRST
        } else {
            let stored = engine.waiting(|| engine.get(Tree::Metadata, key::INODE_COUNTER))?;
            numbers::decode_counter(stored.as_ref())?
        };
        let root = engine.waiting(|| engine.get(Tree::Metadata, key::ROOT))?;
        let missing = || Error::damaged("the root directory is missing");
        let root = store::decode(key::ROOT, &root.ok_or_else(missing)?)?;
        let budget = Arc::new(NameBudget::new(NAME_BUDGET_BYTES));
        let fs = Self {
            new_key_max: new_key_max(&engine),
            store: Store::new(engine),
            table: InodeTable::new(),
            numbers: Numbers::new(counter),
            budget,
            parked: Parked::new(),
            views: Mutex::default(),
            held: Mutex::default(),
            listed: Mutex::default(),
            snapshots_listed: AtomicBool::new(false),
            namespace: locks::RwLock::new(Rank::Namespace, 0, 0),
            clock,
            read_only,
            name_lost: LastTime::default(),
            refusal_turns: AtomicU64::new(0),
        };
        let live = View::new(Bytes::new(), root.delta, true);
        let root = Inode::detached(root, Place::Root(live), &fs.budget, false);
        if root.number != ROOT || !root.is_directory() {
            return Err(missing());
        }
        root.attach();
        fs.table.insert(&root);
        let snapshots = fs.snapshots_directory();
        snapshots.attach();
        fs.table.insert(&snapshots);
        if !read_only {
            fs.delete_orphans()?;
            fs.give_up_receiving()?;
        }
        Ok(Arc::new(fs))
    }

    /// Deletes what is unlinked but still referenced, writes a checkpoint and stops. Nothing is to be asked
    /// of the file system afterwards; once it is closed this does nothing. Waits for the device.
    pub fn close(&self) -> Result<()> {
        if !self.read_only && !self.engine().is_closed() {
            self.store.engine().make_room(0)?;
            self.reclaim_all_orphans();
        }
        self.store.engine().close().map_err(Error::Engine)
    }

    /// Refuses changes from now on, or no longer; those that have begun are done when it returns. Unlinked files that are let go of are still deleted.
    /// Gives what was so before.
    pub fn refuse_changes(&self, refuse: bool) -> bool {
        let turn = |turns: u64| (is_refusal(turns) != refuse).then_some(turns + 1);
        let turned = self.refusal_turns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, turn);
        let (Ok(before) | Err(before)) = turned;
        if refuse {
            drop(self.namespace.write());
        }
        is_refusal(before)
    }

    /// Which refusal of changes is in force, if one is: no two have the same number.
    pub(crate) fn refusal(&self) -> Option<u64> {
        let turns = self.refusal_turns.load(Ordering::Relaxed);
        (self.read_only || is_refusal(turns)).then_some(turns)
    }

    /// Whether nothing changes any more for as long as it lives: it was opened so, or a write has failed.
    pub(crate) fn never_changes(&self) -> bool {
        self.read_only || self.store.engine().failure().is_some()
    }

    /// The engine below.
    pub fn engine(&self) -> &Arc<Engine> {
        self.store.engine()
    }

    /// For tests: asks before every query; when the answer is true the operation under way fails with
    /// [`Error::Busy`], as with a miss, and is to be made again. Only the first call counts.
    #[doc(hidden)]
    pub fn interrupt_queries(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.store.interrupt(Box::new(interrupt));
    }

    /// For tests: calls `observe` behind each record, with the operation's locks held. Only the first call counts.
    #[doc(hidden)]
    pub fn observe_records(&self, observe: impl Fn() + Send + Sync + 'static) {
        self.store.observe(Box::new(observe));
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().into()
    }

    /// The inode that a request names.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        self.table.get(number).ok_or(Error::Stale)
    }

    /// The inode that a changing operation names. `ReadOnly` if it lies in a snapshot that is not writable.
    pub(crate) fn writable_inode(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        self.check_writable()?;
        let inode = self.inode(number)?;
        if inode.is_writable() { Ok(inode) } else { Err(Error::ReadOnly) }
    }

    /// Notes that a file has lost one of several names; before anybody can see the lower count of links.
    pub(crate) fn note_lost_name(&self, inode: &Inode) {
        self.name_lost.note();
        inode.lost_a_name.note();
    }

    /// For the start of each changing operation.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.refusal().is_some() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The name space lock for a change that nobody refuses: who has had it exclusively since changes are refused meets none any more.
    pub(crate) fn for_change(&self) -> Result<ReadGuard<'_, u64>> {
        let epoch = self.namespace.read();
        self.check_writable().map(|()| epoch)
    }

    /// The same, exclusively.
    pub(crate) fn for_change_alone(&self) -> Result<WriteGuard<'_, u64>> {
        let epoch = self.namespace.write();
        self.check_writable().map(|()| epoch)
    }
}

/// See [`FileSystem::refusal_turns`].
fn is_refusal(turns: u64) -> bool {
    turns % 2 == 1
}

impl Operations for FileSystem {
    fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        self.lookup_name(parent, name)
    }

    fn forget(&self, inode: InodeNumber, count: u64) {
        self.forget_inode(inode, count);
    }

    fn forget_many(&self, forgotten: &[(InodeNumber, u64)]) {
        self.forget_inodes(forgotten);
    }

    fn forgets_gather(&self) {
        self.store.leaving().forgets_gather();
    }

    fn get_attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        Ok(self.inode(inode)?.read()?.record.attributes(inode))
    }

    fn attributes_may_mislead(&self, inode: InodeNumber) -> bool {
        self.name_lost.is_within(HEARS_WITHIN)
            && self.table.get(inode).is_some_and(|inode| inode.attributes_may_mislead())
    }

    fn set_attributes(&self, inode: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        self.change_attributes(inode, set)
    }

    fn read_link(&self, inode: InodeNumber) -> Result<Bytes> {
        let inode = self.inode(inode)?;
        if inode.file_type != FileType::Symlink {
            return Err(Error::Invalid);
        }
        Ok(inode.read()?.record.target.clone())
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
        if matches!(file_type, FileType::Directory | FileType::Symlink) {
            return Err(Error::Invalid);
        }
        self.create(caller, parent, name, file_type, |record| {
            record.mode = mode & 0o7777;
            record.device = device;
        })
    }

    fn make_directory(&self, caller: &Caller, parent: InodeNumber, name: &[u8], mode: u32) -> Result<Entry> {
        self.create(caller, parent, name, FileType::Directory, |record| record.mode = mode & 0o7777)
    }

    fn make_symlink(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        self.create_symlink(caller, parent, name, target)
    }

    fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        self.link_inode(inode, parent, name)
    }

    fn make_temporary(&self, caller: &Caller, parent: InodeNumber, mode: u32) -> Result<Entry> {
        self.create_temporary(caller, parent, mode)
    }

    fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(parent, name, false)
    }

    fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(parent, name, true)
    }

    fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Vec<InodeNumber>> {
        self.rename_name(parent, name, new_parent, new_name, mode)
    }

    fn clone_tree(
        &self,
        caller: &Caller,
        groups: &[u32],
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        self.clone_inode(caller, groups, source, parent, name)
    }

    fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        self.read_file(inode, offset, length)
    }

    fn write(&self, inode: InodeNumber, offset: u64, bytes: Bytes, mode: WriteMode) -> Result<()> {
        self.write_file(inode, offset, bytes, mode)
    }

    fn allocate(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<()> {
        self.allocate_range(inode, mode, offset, length, kill_set_id)
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
        self.copy_file_range(from, from_offset, to, to_offset, length, kill_set_id)
    }

    fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        self.seek_file(inode, offset, what)
    }

    fn read_directory(
        &self,
        inode: InodeNumber,
        cookie: u64,
        attributes: ListAttributes,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        self.read_listing(inode, cookie, attributes, emit)
    }

    fn get_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Bytes> {
        self.xattr_value(inode, name)
    }

    fn list_xattrs(&self, inode: InodeNumber) -> Result<Bytes> {
        self.xattr_names(inode)
    }

    fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_set_group_id: bool,
    ) -> Result<()> {
        self.put_xattr(inode, name, value, mode, kill_set_group_id)
    }

    fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        self.delete_xattr(inode, name)
    }

    fn sync(&self) -> Result<()> {
        if !self.read_only {
            self.store.engine().sync()?;
        }
        Ok(())
    }

    fn place(&self, inode: InodeNumber) -> Option<(InodeNumber, Bytes)> {
        match self.table.get(inode)?.place() {
            Place::Named { parent, name } => Some((parent.number, name)),
            _ => None,
        }
    }

    fn sync_is_short(&self) -> bool {
        self.store.engine().sync_is_short()
    }

    fn statistics(&self) -> Result<Statistics> {
        let space = self.store.engine().space();
        // Inodes need no room of their own; zeros say, as on other file systems without an inode table, that there
        // is no such limit.
        Ok(Statistics {
            capacity: space.capacity,
            free: space.free,
            available: space.available,
            inodes: 0,
            inodes_free: 0,
        })
    }

    fn fetch(&self, miss: Miss) -> Result<()> {
        Ok(self.store.engine().fetch(miss)?)
    }

    fn make_room(&self, bytes: u64, may_wait: bool) -> Result<()> {
        let engine = self.store.engine();
        if may_wait {
            self.store.leaving().await_forgets();
        }
        if engine.has_room(bytes) {
            return Ok(());
        }
        if !may_wait {
            return Err(Error::Busy);
        }
        Ok(engine.make_room(bytes)?)
    }
}
