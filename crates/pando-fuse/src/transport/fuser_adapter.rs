//! Requests as `fuser` delivers them, given to the dispatcher.
//!
//! What a request borrows from the receive buffer is copied once, so that the request can leave this thread if it must
//! wait. Requests that the kernel stops sending after one ENOSYS are answered so: OPEN and FLUSH because there is
//! nothing to do, CREATE because the kernel then sends MKNOD, which is the same without a RELEASE at the end. The kernel
//! holds the directory's lock over lookup and MKNOD, so O_EXCL stays atomic.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pando_fs::operations::{Attributes, DirectoryEntry, Entry, Seek, SetAttributes, Statistics};
use pando_fs::{Error, InodeNumber, Result};

use super::convert::{self, BLOCK_BYTES, caller, inode, number};
use super::negotiate::{Agreement, negotiate};
use crate::dispatch::Dispatcher;

/// How long the kernel may believe names and attributes: until we say otherwise, since nobody else changes them.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Tells the kernel what it must no longer believe.
#[derive(Clone, Default)]
pub(crate) struct KernelCache(Arc<OnceLock<Notifier>>);

impl KernelCache {
    /// Connects it to a session.
    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Drops the attributes of an inode. It takes no lock of the inode's in the kernel, so it is allowed from within a
    /// request to it (FU-4).
    fn drop_attributes(&self, inode: InodeNumber) {
        if let Some(notifier) = self.0.get() {
            // It fails only when the connection is gone, and the kernel's memory with it.
            let _ = notifier.inval_inode(INodeNo(inode.0), -1, 0);
        }
    }
}

/// The file system as fuser calls it.
pub(crate) struct Adapter {
    dispatcher: Dispatcher,
    writeback: bool,
    agreement: Agreement,
    kernel_cache: KernelCache,
}

impl Adapter {
    pub(crate) fn new(dispatcher: Dispatcher, writeback: bool, kernel_cache: KernelCache) -> Self {
        let agreement = Agreement { no_open: false, kills_set_id: false };
        Self { dispatcher, writeback, agreement, kernel_cache }
    }
}

fn bytes(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn answer_entry(reply: ReplyEntry, result: Result<Entry>) {
    match result {
        Ok(Entry { attributes }) => {
            reply.entry(&FOREVER, &convert::attributes(&attributes), Generation(attributes.generation));
        }
        Err(error) => reply.error(number(&error)),
    }
}

fn answer_attributes(reply: ReplyAttr, result: Result<Attributes>) {
    match result {
        Ok(attributes) => reply.attr(&FOREVER, &convert::attributes(&attributes)),
        Err(error) => reply.error(number(&error)),
    }
}

fn answer_empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(number(&error)),
    }
}

/// A value of any length; with a size of 0, the caller asks for its length.
fn answer_xattr(reply: ReplyXattr, result: Result<Bytes>, size: u32) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(number(&error)),
    }
}

/// What a listing has gathered, and whether the file system was cut short.
struct Listing<R> {
    reply: R,
    entries: usize,
}

impl<R> Listing<R> {
    fn new(reply: R) -> Self {
        Self { reply, entries: 0 }
    }

    /// A listing that cannot go on after some names ends there for now: the kernel asks again behind them, so
    /// nothing is sent twice and no reference is counted twice (FU-3).
    fn outcome(&self, result: Result<()>) -> Result<()> {
        if self.entries > 0 { Ok(()) } else { result }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.agreement = negotiate(config, self.writeback)?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = bytes(name);
        self.dispatcher.query(
            reply,
            move |fs, _| fs.lookup(inode(parent), &name),
            |reply, result| match result {
                Err(Error::NotFound) => reply.entry(&FOREVER, &convert::absent(), Generation(0)),
                result => answer_entry(reply, result),
            },
        );
    }

    /// Batches arrive here one by one.
    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.dispatcher.fs().forget(inode(ino), count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.dispatcher.query(reply, move |fs, _| fs.get_attributes(inode(ino)), answer_attributes);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = caller(request, 0);
        // A change of owner always takes set-id bits off, a truncation only if the caller may not keep them. The
        // kernel says which in a flag that fuser 0.18 hides; the user tells the same but for odd capabilities.
        let owner_changes = uid.is_some() || gid.is_some();
        let kill_set_id =
            self.agreement.kills_set_id && (owner_changes || (size.is_some() && caller.uid != 0));
        let set = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            accessed: atime.map(convert::set_time),
            modified: mtime.map(convert::set_time),
            changed: ctime.map(convert::instant),
            kill_set_id,
        };
        self.dispatcher.change(
            reply,
            move |fs, _| fs.set_attributes(&caller, inode(ino), &set),
            answer_attributes,
        );
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.dispatcher.query(
            reply,
            move |fs, _| fs.read_link(inode(ino)),
            |reply, result| match result {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(number(&error)),
            },
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(file_type) = convert::node_type(mode) else { return reply.error(Errno::EINVAL) };
        let (caller, name) = (caller(request, umask), bytes(name));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.make_node(&caller, inode(parent), &name, file_type, mode & 0o7777, rdev.into()),
            answer_entry,
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request, umask), bytes(name));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.make_directory(&caller, inode(parent), &name, mode & 0o7777),
            answer_entry,
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request, 0), bytes(name));
        self.dispatcher.change(reply, move |fs, _| fs.unlink(&caller, inode(parent), &name), answer_empty);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request, 0), bytes(name));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.remove_directory(&caller, inode(parent), &name),
            answer_empty,
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, name, target) = (caller(request, 0), bytes(name), bytes(target.as_os_str()));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.make_symlink(&caller, inode(parent), &name, &target),
            answer_entry,
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::rename_mode(flags) else { return reply.error(Errno::EINVAL) };
        let (caller, name, new_name) = (caller(request, 0), bytes(name), bytes(new_name));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.rename(&caller, inode(parent), &name, inode(new_parent), &new_name, mode),
            answer_empty,
        );
    }

    fn link(&self, _: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let name = bytes(new_name);
        self.dispatcher.change(
            reply,
            move |fs, _| fs.link(inode(ino), inode(new_parent), &name),
            answer_entry,
        );
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.agreement.no_open {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.dispatcher.query(
            reply,
            move |fs, _| fs.read(inode(ino), offset, size as usize),
            |reply, result| match result {
                Ok(pieces) => reply.data(&pando_fs::join(&pieces)),
                Err(error) => reply.error(number(&error)),
            },
        );
    }

    /// The kernel makes O_APPEND into an offset by its own notion of the size, which nobody else changes. In
    /// writeback mode pages arrive long after the write, so the flag must mean nothing here.
    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let inode = inode(ino);
        let length = data.len() as u32;
        let data = pando_fs::copy_for_device(data);
        let kill_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let kernel_cache = self.kernel_cache.clone();
        self.dispatcher.change(
            reply,
            move |fs, _| {
                let had_set_id = kill_set_id && fs.get_attributes(inode)?.mode & 0o6000 != 0;
                fs.write(inode, offset, data.clone(), false, kill_set_id)?;
                Ok(had_set_id)
            },
            move |reply, result| match result {
                Ok(lost_set_id) => {
                    if lost_set_id {
                        // The kernel would go on to believe in the old mode, and execute by it.
                        kernel_cache.drop_attributes(inode);
                    }
                    reply.written(length);
                }
                Err(error) => reply.error(number(&error)),
            },
        );
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.dispatcher.wait(reply, |fs, _| fs.sync(), answer_empty);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.dispatcher.wait(reply, |fs, _| fs.sync(), answer_empty);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.dispatcher.query(
            reply,
            move |fs, _| fs.open_directory(inode(ino)),
            |reply, result| match result {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
                Err(error) => reply.error(number(&error)),
            },
        );
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, cookie: u64, reply: ReplyDirectory) {
        self.dispatcher.query(
            Listing::new(reply),
            move |fs, listing| {
                let result = fs.read_directory(inode(ino), handle.0, cookie, false, &mut |entry| {
                    let name = OsStr::from_bytes(&entry.name);
                    let kind = convert::file_type(entry.file_type);
                    let fits = !listing.reply.add(INodeNo(entry.inode.0), entry.cookie, kind, name);
                    listing.entries += usize::from(fits);
                    fits
                });
                listing.outcome(result)
            },
            |listing, result| match result {
                Ok(()) => listing.reply.ok(),
                Err(error) => listing.reply.error(number(&error)),
            },
        );
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.dispatcher.query(
            Listing::new(reply),
            move |fs, listing| {
                let result = fs.read_directory(inode(ino), handle.0, cookie, true, &mut |entry| {
                    let fits = add_with_attributes(&mut listing.reply, entry);
                    listing.entries += usize::from(fits);
                    fits
                });
                listing.outcome(result)
            },
            |listing, result| match result {
                Ok(()) => listing.reply.ok(),
                Err(error) => listing.reply.error(number(&error)),
            },
        );
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.dispatcher.fs().close_directory(inode(ino), handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.dispatcher.query(reply, |fs, _| fs.statistics(), answer_statistics);
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::xattr_mode(flags) else { return reply.error(Errno::EINVAL) };
        // Nobody would enforce an access control list: fuser does not negotiate FUSE_POSIX_ACL. To take one would be a lie.
        if name.as_bytes().starts_with(b"system.posix_acl_") {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (name, value) = (bytes(name), Bytes::copy_from_slice(value));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.set_xattr(inode(ino), &name, &value, mode),
            answer_empty,
        );
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = bytes(name);
        self.dispatcher.query(
            reply,
            move |fs, _| fs.get_xattr(inode(ino), &name),
            move |reply, result| answer_xattr(reply, result, size),
        );
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.dispatcher.query(
            reply,
            move |fs, _| fs.list_xattrs(inode(ino)),
            move |reply, result| answer_xattr(reply, result, size),
        );
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = bytes(name);
        self.dispatcher.change(reply, move |fs, _| fs.remove_xattr(inode(ino), &name), answer_empty);
    }

    /// Sent only without `default_permissions`, where everyone may do everything.
    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::allocate_mode(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.dispatcher.change(
            reply,
            move |fs, _| fs.allocate(inode(ino), mode, offset, length),
            answer_empty,
        );
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // The kernel keeps the other kinds to itself.
        let what = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.dispatcher.query(
            reply,
            move |fs, _| fs.seek(inode(ino), offset, what),
            |reply, result| match result {
                Ok(found) => reply.offset(found as i64),
                Err(error) => reply.error(number(&error)),
            },
        );
    }

    fn copy_file_range(
        &self,
        _: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The reply has 32 bits; the caller asks again for what is left.
        let length = length.min(u64::from(u32::MAX - (BLOCK_BYTES - 1)));
        self.dispatcher.change(
            reply,
            move |fs, _| fs.copy_range(inode(from), from_offset, inode(to), to_offset, length),
            |reply, result| match result {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(number(&error)),
            },
        );
    }
}

/// Adds an entry if it fits. `.` and `..` go without attributes: the kernel looks them up by itself.
fn add_with_attributes(reply: &mut ReplyDirectoryPlus, entry: &DirectoryEntry) -> bool {
    let name = OsStr::from_bytes(&entry.name);
    let (attributes, generation) = match &entry.attributes {
        Some(attributes) => (convert::attributes(attributes), attributes.generation),
        None => {
            assert!(
                &entry.name[..] == b"." || &entry.name[..] == b"..",
                "a listing with attributes has them"
            );
            (convert::bare(entry.inode, entry.file_type), 0)
        }
    };
    !reply.add(attributes.ino, entry.cookie, name, &FOREVER, &attributes, Generation(generation))
}

fn answer_statistics(reply: ReplyStatfs, result: Result<Statistics>) {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    match result {
        Ok(s) => reply.statfs(
            blocks(s.capacity),
            blocks(s.free),
            blocks(s.available),
            s.inodes,
            s.inodes_free,
            BLOCK_BYTES,
            NAME_BYTES_MAX as u32,
            BLOCK_BYTES,
        ),
        Err(error) => reply.error(number(&error)),
    }
}
