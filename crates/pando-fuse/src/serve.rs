//! What each request means to the file system.
//!
//! Requests that the kernel stops sending after one ENOSYS are answered so: OPEN and FLUSH because there is nothing to
//! do, OPENDIR because the kernel then keeps listings as well (unless it is not to), CREATE because the kernel then sends MKNOD, which is the same without
//! a RELEASE at the end. The kernel holds the
//! directory's lock over lookup and MKNOD, so O_EXCL stays atomic. INTERRUPT is answered so too: every wait here is for the device, or for a moment, and
//! ends by itself, as in any file system on a disk, so there is nothing that a signal could cut short.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use pando_fs::operations::{AllocateMode, Attributes, FileType, SNAPSHOTS, SetAttributes, WriteMode};
use pando_fs::{Error, InodeNumber, ListAttributes, Operations, Result};
use rustix::io::Errno;

use crate::convert::{self, caller};
use crate::direct_writes::DirectWrites;
use crate::dispatch::Dispatcher;
use crate::files_ahead::FilesAhead;
use crate::growth::{Change, Growth};
use crate::interest::Interest;
use crate::ioctl::{self, Tickets};
use crate::kernel_cache::KernelCache;
use crate::mount_point::Durable;
use crate::negotiate::Agreement;
use crate::notifier::{Forgetter, Notifier};
use crate::processes::Processes;
use crate::protocol::{
    Answer, BLOCK_BYTES, Header, Kept, Layout, Listing, Operation, REQUEST_BYTES_MAX, Write, entry_and_file,
};
use crate::session::Unmounted;
use crate::transport::{Device, Gathered, Reply};

/// Serves the requests of one connection; from any thread.
pub(crate) struct Server {
    dispatcher: Dispatcher,
    agreement: Agreement,
    kernel: Arc<KernelCache>,
    /// Which sizes the kernel may not know yet.
    growth: Arc<Growth>,
    forgetter: Arc<Forgetter>,
    direct_writes: Arc<DirectWrites>,
    tickets: Tickets,
    /// Tell the groups of those who clone.
    processes: Arc<Processes>,
    /// If listings go without attributes of files for programs that do not look at them.
    interest: Option<Arc<Interest>>,
    durable: Durable,
    unmounted: Option<Unmounted>,
    /// What that told.
    is_over: Arc<AtomicBool>,
    /// The forgets that gather in the kernel.
    pub(crate) gathered: Option<Gathered>,
    /// Told of what is listed and read.
    pub(crate) files_ahead: Option<FilesAhead>,
}

impl Server {
    pub(crate) fn new(
        dispatcher: Dispatcher,
        agreement: Agreement,
        kernel: Arc<Device>,
        interest: Option<Arc<Interest>>,
        durable: Durable,
        unmounted: Option<Unmounted>,
    ) -> Self {
        let forgetter = Forgetter::new(&kernel);
        let direct_writes =
            Arc::new(DirectWrites::new(agreement.writeback, Notifier::new(&kernel), forgetter.clone()));
        let kernel = KernelCache::new(kernel);
        let processes = Arc::new(Processes::new());
        Self {
            dispatcher,
            agreement,
            kernel,
            growth: Arc::new(Growth::new(processes.clone())),
            direct_writes,
            forgetter,
            tickets: Tickets::default(),
            processes,
            interest,
            durable,
            unmounted,
            is_over: Arc::default(),
            gathered: None,
            files_ahead: None,
        }
    }

    /// How requests of this connection are laid out.
    pub(crate) fn layout(&self) -> Layout {
        self.agreement.layout
    }

    /// Whether the thread that serves a request may make changes durable for it.
    pub(crate) fn may_sync(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Sync => true,
            Operation::Write(write) => write.direct && write.durable,
            Operation::Read { .. } | Operation::Lookup { .. } | Operation::GetAttributes { .. } => false,
            _ => self.durable != Durable::None,
        }
    }

    /// Serves one request. It is answered when this returns, or soon from the pool (FU-2).
    pub(crate) fn serve(&self, header: &Header, operation: Operation, reply: Reply) {
        if let Some(ahead) = &self.files_ahead {
            let inode = InodeNumber(header.node);
            match operation {
                Operation::ReadDirectory { cookie: 0, .. } => ahead.note_listing(inode),
                Operation::Read { offset: 0, .. } => ahead.note_read(self.dispatcher.fs(), header.pid, inode),
                _ => {}
            }
        }
        match operation {
            Operation::Forget { .. } | Operation::ForgetMany(_) => self.forget(header, &operation, reply),
            Operation::Lookup { name } => self.lookup(header, name, reply),
            Operation::ReadDirectory { cookie, size, attributes } => {
                self.list(header, cookie, size, attributes, reply);
            }
            Operation::GetAttributes { for_kernel } => {
                self.attributes(header, for_kernel, Answer::attributes, reply);
            }
            Operation::GetAllAttributes { for_kernel } => {
                self.attributes(header, for_kernel, Answer::all_attributes, reply);
            }
            Operation::ReadLink
            | Operation::Read { .. }
            | Operation::Statistics
            | Operation::GetXattr { .. }
            | Operation::ListXattrs { .. } => self.query(header, operation, reply),
            // What the kernel has collected is no hole. It takes all for data then.
            Operation::Seek { .. } if self.agreement.writeback => reply.send(Answer::Refused(Errno::NOSYS)),
            Operation::Seek { .. } => self.query(header, operation, reply),
            Operation::Sync => self.dispatcher.sync(reply),
            // Every kernel that can be mounted with takes it for good.
            Operation::Open => reply.send(Answer::Refused(Errno::NOSYS)),
            Operation::OpenDirectory => reply.send(match self.agreement.no_opendir {
                true => Answer::Refused(Errno::NOSYS),
                false => Answer::opened(),
            }),
            Operation::Release | Operation::ReleaseDirectory => reply.send(Answer::Done),
            Operation::Destroy => self.unmounted(reply),
            Operation::Ioctl { command, argument } => self.ioctl(header, command, &argument, reply),
            Operation::Unknown => reply.send(Answer::Refused(Errno::NOSYS)),
            Operation::Write(write) => self.write(header, write, reply),
            operation => self.change(header, operation, reply),
        }
    }

    /// The last request of a mount of a block device: umount(2) ends when it is answered.
    fn unmounted(&self, reply: Reply) {
        let Some(unmounted) = self.unmounted.clone() else { return reply.send(Answer::Done) };
        let is_over = self.is_over.clone();
        self.dispatcher.run_waiting(move || {
            is_over.store(unmounted(), Relaxed);
            reply.send(Answer::Done);
        });
    }

    /// Whether the kernel has unmounted what is served, and nothing will be written any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    fn ioctl(&self, header: &Header, command: u32, argument: &Bytes, reply: Reply) {
        let inode = InodeNumber(header.node);
        match command {
            ioctl::IDENTIFY => reply.send(Answer::ioctl(&self.tickets.issue(header.uid, inode))),
            ioctl::CLONE => match self.tickets.clone_request(header.uid, argument) {
                Ok((source, name)) => {
                    let caller = caller(header, 0);
                    // A group that a file's mode says less to than to others cannot be passed over.
                    let Some(groups) =
                        self.processes.groups_of(header.pid).or((caller.uid == 0).then(Vec::new))
                    else {
                        return reply.send(Answer::Refused(Errno::ACCESS));
                    };
                    let (name, kernel) = (Bytes::copy_from_slice(name), self.kernel.clone());
                    self.make_change(true, reply, move |fs| {
                        fs.clone_tree(&caller, &groups, source, inode, &name)?;
                        Ok(kernel.came_to_be(inode, name.clone()))
                    });
                }
                Err(errno) => reply.send(Answer::Refused(errno)),
            },
            _ => reply.send(Answer::Refused(Errno::NOTTY)),
        }
    }

    /// Serves the forgets that have come, where another thread lets them gather.
    fn take_forgets(&self) {
        if let Some(gathered) = &self.gathered {
            gathered.take(self);
        }
    }

    fn forget(&self, header: &Header, operation: &Operation, reply: Reply) {
        reply.withhold();
        let fs = self.dispatcher.fs();
        match operation {
            Operation::Forget { count } => fs.forget(InodeNumber(header.node), *count),
            Operation::ForgetMany(inodes) => {
                let forgotten: Vec<_> =
                    inodes.iter().map(|&(inode, count)| (InodeNumber(inode), count)).collect();
                fs.forget_many(&forgotten);
            }
            _ => unreachable!("no other request is called a forget"),
        }
    }

    fn lookup(&self, header: &Header, name: Bytes, reply: Reply) {
        let (directory, caller) = (InodeNumber(header.node), header.pid);
        let (interest, forgetter) = (self.interest.clone(), self.forgetter.clone());
        let (kernel, direct_writes) = (self.kernel.clone(), self.direct_writes.clone());
        self.dispatcher.query(reply, move |fs| {
            let before = kernel.before();
            let entry = match fs.lookup(directory, &name) {
                // Snapshots come and go without the kernel's doing: it must ask each time.
                result if directory == SNAPSHOTS => {
                    let entry = result?;
                    kernel.will_hear(fs, caller, &entry.attributes, before);
                    return Ok(Answer::fleeting(&entry));
                }
                Err(Error::NotFound) => return Ok(Answer::absent()),
                result => result?,
            };
            if let Some(interest) = &interest
                && entry.attributes.file_type != FileType::Directory
            {
                let forgotten = interest.note_look(caller, directory);
                if !forgotten.is_empty() {
                    // Another thread's doing: the kernel may hold what is locked for this very request (FU-4).
                    forgetter.forget_contents(forgotten);
                }
            }
            kernel.will_hear(fs, caller, &entry.attributes, before);
            Ok(Answer::found(&entry, direct_writes.kept(entry.attributes.inode)))
        });
    }

    fn list(&self, header: &Header, cookie: u64, size: u32, with_attributes: bool, reply: Reply) {
        let (directory, caller) = (InodeNumber(header.node), header.pid);
        let (interest, kernel) = (self.interest.clone(), self.kernel.clone());
        let direct_writes = self.direct_writes.clone();
        let attributes = match &interest {
            _ if !with_attributes => ListAttributes::OfNone,
            None => ListAttributes::OfAll,
            Some(interest) => interest.attributes(caller, cookie == 0),
        };
        self.dispatcher.query(reply, move |fs| {
            let mut listing = Listing::new(size.min(REQUEST_BYTES_MAX) as usize, attributes);
            let before = kernel.before();
            let (has_mark, directories) =
                list(fs, directory, cookie, &mut listing, |inode| direct_writes.kept(inode))?;
            for directory in directories {
                kernel.will_hear_of_directory(caller, directory, before);
            }
            if let Some(interest) = &interest {
                if has_mark {
                    interest.note_mark(caller, directory);
                } else if listing.is_empty() {
                    interest.note_end(caller, directory);
                }
            }
            Ok(listing.into_answer())
        });
    }

    fn attributes(
        &self,
        header: &Header,
        for_kernel: bool,
        answer: fn(&Attributes, Kept) -> Answer,
        reply: Reply,
    ) {
        let (inode, caller) = (InodeNumber(header.node), header.pid);
        let (kernel, direct_writes) = (self.kernel.clone(), self.direct_writes.clone());
        let growth = (!for_kernel).then(|| self.growth.clone());
        let mut is_on_pool = false;
        self.dispatcher.query(reply, move |fs| {
            let before = kernel.before();
            // What cannot be answered at once is called again on the pool.
            let was_on_pool = std::mem::replace(&mut is_on_pool, true);
            let mut attributes = fs.get_attributes(inode)?;
            if let Some(growth) = &growth
                && let Some(growing) = growth.may_be_news(inode.0, attributes.size, caller)
            {
                if !was_on_pool {
                    return Err(Error::Busy);
                }
                growth.wait(&growing);
                // The kernel might keep what is old by now. If the file has grown again, it asks again.
                let now = fs.get_attributes(inode)?;
                if now.size == attributes.size {
                    attributes = now;
                }
            }
            kernel.will_hear(fs, caller, &attributes, before);
            Ok(answer(&attributes, direct_writes.kept(inode)))
        });
    }

    fn query(&self, header: &Header, operation: Operation, reply: Reply) {
        let (inode, uid) = (InodeNumber(header.node), header.uid);
        let for_cache = matches!(operation, Operation::Read { direct: false, .. });
        let direct_writes = for_cache.then(|| self.direct_writes.clone());
        self.dispatcher.query(reply, move |fs| {
            Ok(match &operation {
                Operation::ReadLink => Answer::Pieces(vec![fs.read_link(inode)?]),
                Operation::Read { offset, size, .. } => {
                    if let Some(writes) = &direct_writes {
                        writes.will_read(inode);
                    }
                    let size = (*size).min(REQUEST_BYTES_MAX);
                    Answer::Pieces(fs.read(inode, *offset, size as usize)?)
                }
                Operation::Statistics => Answer::statistics(&fs.statistics()?),
                Operation::GetXattr { name, size } => xattr(fs.get_xattr(inode, name)?, *size),
                Operation::ListXattrs { size } => xattr(names_for(uid, fs.list_xattrs(inode)?), *size),
                Operation::Seek { offset, whence } => match convert::seek(*whence) {
                    // Offsets are signed on the other side.
                    Some(_) if *offset > i64::MAX as u64 => Answer::Refused(Errno::NXIO),
                    Some(what) => Answer::number(fs.seek(inode, *offset, what)?),
                    None => Answer::Refused(Errno::INVAL),
                },
                _ => unreachable!("no other request is called a query"),
            })
        });
    }

    /// The kernel makes O_APPEND into an offset by its own notion of the size, which nobody else changes. In
    /// writeback mode pages arrive long after the write, so the flag must mean nothing here, and the kernel says when
    /// they were written, maybe before they arrive.
    fn write(&self, header: &Header, write: Write, mut reply: Reply) {
        let Write { offset, data, collected, direct, kill_set_id, durable } = write;
        let inode = InodeNumber(header.node);
        let keep_modified = collected && self.agreement.writeback;
        let mode = WriteMode { kill_set_id, keep_modified };
        // What the kernel has collected makes no file larger than it knows.
        let growth = (!collected).then(|| self.may_grow(header, &mut reply)).flatten();
        let (kernel, forgetter) = (self.kernel.clone(), self.forgetter.clone());
        let (direct_writes, arrived) = (self.direct_writes.clone(), self.direct_writes.arrival());
        let bytes = data.len();
        let call = move |fs: &dyn Operations| {
            let end = offset.saturating_add(data.len() as u64);
            begins(fs, inode, end, growth.as_ref());
            if !direct {
                direct_writes.will_write(inode);
            }
            kernel.killing_set_id(fs, inode, kill_set_id, || {
                let written = fs.write(inode, offset, data.clone(), mode);
                if let Err(Error::ReadOnly | Error::Stale) = written {
                    // No open is asked for, so one for writing is not refused. What came through a memory map would stay in the kernel's
                    // pages, and be read from there.
                    forgetter.forget_contents([inode]);
                }
                written
            })?;
            let answer = Answer::count(data.len() as u32);
            if direct {
                return Ok(direct_writes.passed(inode, answer));
            }
            if !collected {
                direct_writes.went_through(inode, arrived);
            }
            Ok(answer)
        };
        // Of any other write the kernel asks for an fsync itself before it tells the writer. Of one past the cache it does not know, when that
        // was handed in by io_submit(2) or io_uring.
        self.dispatcher.change(bytes, direct && durable, reply, &|| (), call);
    }

    /// For a request that may make a file grow.
    fn may_grow(&self, header: &Header, reply: &mut Reply) -> Option<Change> {
        let (inode, thread, uid) = (header.node, header.pid, header.uid);
        // Where the kernel collects writes, the size is its alone.
        let change = (!self.agreement.writeback).then(|| self.growth.change(inode, thread, uid)).flatten()?;
        reply.note_sent(change.answered.clone());
        Some(change)
    }

    /// Makes a change, of names or not, and has it durable before it is answered if that is wanted.
    fn make_change(
        &self,
        of_names: bool,
        reply: Reply,
        call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        let durable = match self.durable {
            Durable::All => true,
            Durable::Names => of_names,
            Durable::None => false,
        };
        self.dispatcher.change(0, durable, reply, &|| self.take_forgets(), call);
    }

    fn change(&self, header: &Header, operation: Operation, mut reply: Reply) {
        let (header, inode, acls) = (*header, InodeNumber(header.node), self.agreement.acls);
        let (kernel, direct_writes) = (self.kernel.clone(), self.direct_writes.clone());
        let growth = match operation {
            Operation::CopyRange { to, .. } => self.may_grow(&Header { node: to, ..header }, &mut reply),
            _ if end_of(&operation).is_some() => self.may_grow(&header, &mut reply),
            _ => None,
        };
        // These two requests, unlike a write, do not say whether set-id bits are to go.
        let kill = header.uid != 0;
        let of_names = directories_changed(inode, &operation).next().is_some();
        self.make_change(of_names, reply, move |fs| {
            let (invalid, unsupported) = (Answer::Refused(Errno::INVAL), Answer::Refused(Errno::OPNOTSUPP));
            if let Some(end) = end_of(&operation) {
                begins(fs, inode, end, growth.as_ref());
            }
            let answer = match &operation {
                Operation::SetAttributes(set) => {
                    let kill_set_id = set.kill_set_id || is_own_chown(fs, header.uid, inode, set)?;
                    let attributes = fs.set_attributes(inode, &SetAttributes { kill_set_id, ..*set })?;
                    Answer::attributes(&attributes, direct_writes.kept(inode))
                }
                Operation::MakeNode { name, mode, device, umask } => match convert::node_type(*mode) {
                    Some(file_type) => {
                        let (caller, mode) = (caller(&header, *umask), mode & 0o7777);
                        let device = u64::from(*device);
                        Answer::entry(&fs.make_node(&caller, inode, name, file_type, mode, device)?)
                    }
                    None => invalid,
                },
                Operation::MakeDirectory { name, mode, umask } => {
                    let caller = caller(&header, *umask);
                    Answer::entry(&fs.make_directory(&caller, inode, name, mode & 0o7777)?)
                }
                Operation::MakeSymlink { name, target } => {
                    Answer::entry(&fs.make_symlink(&caller(&header, 0), inode, name, target)?)
                }
                Operation::MakeTemporary { mode, umask } => {
                    entry_and_file(&fs.make_temporary(&caller(&header, *umask), inode, mode & 0o7777)?)
                }
                Operation::Unlink { name } => done(fs.unlink(inode, name))?,
                Operation::RemoveDirectory { name } => done(fs.remove_directory(inode, name))?,
                Operation::Rename { name, new_parent, new_name, flags } => {
                    match convert::rename_mode(*flags, caller(&header, 0)) {
                        Some(mode) => {
                            kernel.moved(fs.rename(inode, name, InodeNumber(*new_parent), new_name, mode)?)
                        }
                        None => invalid,
                    }
                }
                Operation::Link { inode: from, name } => {
                    let entry = fs.link(InodeNumber(*from), inode, name)?;
                    Answer::found(&entry, direct_writes.kept(entry.attributes.inode))
                }
                // Nobody would enforce it. To take it would be a lie.
                Operation::SetXattr { name, .. } | Operation::RemoveXattr { name }
                    if !acls && name.starts_with(b"system.posix_acl_") =>
                {
                    unsupported
                }
                Operation::SetXattr { name, value, flags, kill_set_group_id } => {
                    match convert::xattr_mode(*flags) {
                        Some(mode) => {
                            fs.set_xattr(inode, name, value, mode, *kill_set_group_id)?;
                            // A list has changed the mode, and all have the time of change. The kernel asks for that, but might keep an
                            // older answer that is on its way.
                            kernel.forget_attributes(inode);
                            Answer::Done
                        }
                        None => invalid,
                    }
                }
                Operation::RemoveXattr { name } => {
                    fs.remove_xattr(inode, name)?;
                    kernel.forget_attributes(inode);
                    Answer::Done
                }
                Operation::Allocate { offset, length, mode } => match convert::allocate_mode(*mode) {
                    // The set-id bits have gone, and blocks and times changed.
                    Some(mode) => {
                        fs.allocate(inode, mode, *offset, *length, kill)?;
                        kernel.forget_attributes(inode);
                        Answer::Done
                    }
                    None => unsupported,
                },
                Operation::CopyRange { from_offset, to, to_offset, length, wide } => {
                    // The caller asks again for what does not fit into a short answer.
                    let longest = if *wide { u64::MAX } else { u64::from(u32::MAX - (BLOCK_BYTES - 1)) };
                    let (to, length) = (InodeNumber(*to), (*length).min(longest));
                    let before = growth.as_ref().and_then(|_| fs.get_attributes(to).ok());
                    let copied = fs.copy_range(inode, *from_offset, to, *to_offset, length, kill)?;
                    // How long it would become was not known before: whoever asks between these two lines may hear of it too early.
                    let end = to_offset.saturating_add(copied);
                    if before.is_some_and(|before| before.size < end)
                        && let Some(growth) = &growth
                    {
                        growth.begins(end);
                    }
                    // The set-id bits may have gone. Before Linux 5.16 an answer with attributes from before the copy, and come after it, would be kept.
                    kernel.forget_attributes(to);
                    if *wide { Answer::number(copied) } else { Answer::count(copied as u32) }
                }
                _ => unreachable!("no other request is called a change"),
            };
            for directory in directories_changed(inode, &operation) {
                kernel.names_changed(header.pid, directory);
            }
            Ok(answer)
        });
    }
}

/// The directories in which a request changes names.
fn directories_changed(inode: InodeNumber, operation: &Operation) -> impl Iterator<Item = InodeNumber> {
    let (changed, other) = match operation {
        Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::MakeSymlink { .. }
        | Operation::Link { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. } => (true, None),
        Operation::Rename { new_parent, .. } => (true, Some(InodeNumber(*new_parent))),
        _ => (false, None),
    };
    changed.then_some(inode).into_iter().chain(other.filter(|other| *other != inode))
}

/// The size that a request makes a file have, in bytes, if it is smaller and that is known before.
fn end_of(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::SetAttributes(set) => set.size,
        Operation::Allocate { offset, length, mode } => match convert::allocate_mode(*mode)? {
            AllocateMode::Allocate { keep_size: false } | AllocateMode::ZeroRange { keep_size: false } => {
                Some(offset.saturating_add(*length))
            }
            _ => None,
        },
        _ => None,
    }
}

/// True for what comes of a chown(2) by the owner which names neither owner: it takes set-id bits off, and nothing in the request says so. The kernel lets through that of
/// anybody, who may not; and the same comes before somebody else, or root, writes to a file with such bits, who says of them what is to be said with the write.
fn is_own_chown(fs: &dyn Operations, uid: u32, inode: InodeNumber, set: &SetAttributes) -> Result<bool> {
    let names_none = SetAttributes { changed: None, ..*set } == SetAttributes::default();
    Ok(names_none && uid != 0 && fs.get_attributes(inode)?.uid == uid)
}

/// To be called before a file comes to reach at least so far.
fn begins(fs: &dyn Operations, inode: InodeNumber, end: u64, growth: Option<&Change>) {
    // What it fails with, the change does.
    if let Some(growth) = growth
        && fs.get_attributes(inode).is_ok_and(|before| before.size < end)
    {
        growth.begins(end);
    }
}

fn done(result: Result<()>) -> Result<Answer> {
    result.map(|()| Answer::Done)
}

/// The names of extended attributes that a user is shown: only root those that the kernel lets only root read.
fn names_for(uid: u32, names: Bytes) -> Bytes {
    if uid == 0 {
        return names;
    }
    let names = names.split_inclusive(|byte| *byte == 0);
    names.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

/// A value of any length; with a size of 0, the caller asks for its length.
fn xattr(value: Bytes, size: u32) -> Answer {
    match size {
        0 => Answer::count(value.len() as u32),
        size if value.len() > size as usize => Answer::Refused(Errno::RANGE),
        _ => Answer::Pieces(vec![value]),
    }
}

/// A listing that cannot go on after some names ends there for now: the kernel asks again behind them, so nothing is
/// sent twice and no reference is counted twice (FU-3). Returns whether a file is in it for whose attributes the kernel will ask if somebody wants
/// them, and the directories that are in it with theirs.
fn list(
    fs: &dyn Operations,
    inode: InodeNumber,
    cookie: u64,
    listing: &mut Listing,
    kept: impl Fn(InodeNumber) -> Kept,
) -> Result<(bool, Vec<InodeNumber>)> {
    let attributes = listing.attributes();
    let mut has_mark = false;
    let mut directories = Vec::new();
    let result = fs.read_directory(inode, cookie, attributes, &mut |entry| {
        let fits = listing.add(entry, kept(entry.inode));
        let is_directory = entry.file_type == FileType::Directory;
        has_mark |= fits && entry.attributes.is_none() && !is_directory;
        if fits && entry.attributes.is_some() && is_directory {
            directories.push(entry.inode);
        }
        fits
    });
    if listing.is_empty() {
        result?;
    }
    // Without attributes there is none of all, and with all of them only what has lost a name, which the kernel may know.
    let has_mark = has_mark && !matches!(attributes, ListAttributes::OfNone | ListAttributes::OfAll);
    Ok((has_mark, directories))
}
