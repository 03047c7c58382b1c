//! The requests a file system serves: the wall between POSIX semantics and whoever brings the requests.
//!
//! Requests name inodes by the numbers that `lookup` and the calls that make inodes gave out. Every reply with an
//! [`Entry`] counts one reference to its inode; [`Operations::forget`] gives references back. An inode with no name and
//! no reference is reclaimed.
//!
//! No call waits for the device but those that say so: a call that needs something not in memory answers
//! [`Error::Miss`] and has changed nothing. The caller gives the miss to [`Operations::fetch`] with a thread that may
//! wait, then makes the same call again.

use std::time::SystemTime;

use bytes::Bytes;
use pando_engine::Refusals;

use crate::{Error, Miss};

/// Results of this layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The number of an inode as users see it (`st_ino`), and as requests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

/// The root directory.
pub const ROOT: InodeNumber = InodeNumber(1);

/// The directory of the snapshots; see [`crate::snapshot`]. What it names may go and come at any time, so nobody is to remember it.
pub const SNAPSHOTS: InodeNumber = InodeNumber(u64::MAX);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Bits taken off the mode of what the caller makes, unless the directory has a default access control list.
    pub umask: u32,
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device node.
    BlockDevice,
    /// A character device node.
    CharDevice,
    /// A fifo.
    Fifo,
    /// A socket.
    Socket,
}

/// The attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// `st_ino`.
    pub inode: InodeNumber,
    /// Changes when a number is used again for another inode.
    pub generation: u64,
    /// What it is.
    pub file_type: FileType,
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device node, as `makedev` packs them.
    pub device: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes in use.
    pub blocks: u64,
    /// Last read.
    pub accessed: SystemTime,
    /// Last change of the contents.
    pub modified: SystemTime,
    /// Last change of the inode.
    pub changed: SystemTime,
    /// When it was made.
    pub born: SystemTime,
}

/// An inode found or made; counts one reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes.
    pub attributes: Attributes,
}

/// A new value for a time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    To(SystemTime),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates, or extends with a hole.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<SetTime>,
    /// Last change of the contents.
    pub modified: Option<SetTime>,
    /// Last change of the inode, where the kernel keeps it.
    pub changed: Option<SystemTime>,
    /// Clear the set-user-id and set-group-id bits, as a write or chown does.
    pub kill_set_id: bool,
}

/// How a write is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteMode {
    /// Takes set-id bits off as a write by an unprivileged user does.
    pub kill_set_id: bool,
    /// Leaves the time of modification as it is: the kernel has collected the write, and tells when it was made. The time of change is that of the
    /// call nevertheless, so that what has changed can be told by it.
    pub keep_modified: bool,
}

impl WriteMode {
    /// As root writes.
    pub const PLAIN: Self = Self { kill_set_id: false, keep_modified: false };
    /// As an unprivileged user writes.
    pub const KILLING_SET_ID: Self = Self { kill_set_id: true, ..Self::PLAIN };
}

/// One name of a directory listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Where a listing goes on behind this name.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// Its inode's number.
    pub inode: InodeNumber,
    /// Its inode's type.
    pub file_type: FileType,
    /// All of its attributes, if asked for; such an entry counts one reference. Never for `.` and `..`, not in [`SNAPSHOTS`], and not
    /// for what has lost one of several names within the last ten seconds.
    pub attributes: Option<Attributes>,
}

/// Whose attributes a listing carries. None for `.` and `..` in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListAttributes {
    /// Names alone.
    OfNone,
    /// Those of directories.
    OfDirectories,
    /// All but those of the first file that nobody holds a reference to.
    OfAllButOneFile,
    /// All.
    OfAll,
}

impl ListAttributes {
    /// Whether the next entry carries them: one of this type, to which somebody holds a reference or nobody does.
    pub fn are_for(self, file_type: FileType, has_references: bool) -> bool {
        match self {
            Self::OfNone => false,
            Self::OfDirectories => file_type == FileType::Directory,
            Self::OfAllButOneFile => file_type == FileType::Directory || has_references,
            Self::OfAll => true,
        }
    }

    /// What holds for the entries behind one that went without.
    pub fn behind_one_without(self) -> Self {
        match self {
            Self::OfAllButOneFile => Self::OfAll,
            other => other,
        }
    }
}

/// How a rename treats what is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// As rename(2).
    Replace,
    /// `RENAME_NOREPLACE`.
    NoReplace,
    /// `RENAME_EXCHANGE`.
    Exchange,
    /// `RENAME_WHITEOUT`: the old name is a whiteout of the caller's afterwards, a character device with the number 0 and no permissions. It
    /// says in the upper layer of an overlay that the name is gone, whatever lies below. A rename to another name of the same file changes nothing,
    /// and leaves none.
    Whiteout {
        /// Who renames.
        caller: Caller,
        /// False with `RENAME_NOREPLACE` beside it.
        replace: bool,
    },
}

impl RenameMode {
    /// Who leaves a whiteout, if anybody does.
    pub fn whiteout(self) -> Option<Caller> {
        match self {
            Self::Whiteout { caller, .. } => Some(caller),
            _ => None,
        }
    }

    /// Whether it takes the place of what has the new name.
    pub fn replaces(self) -> bool {
        matches!(self, Self::Replace | Self::Whiteout { replace: true, .. })
    }
}

/// How setxattr treats what is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Either way.
    Set,
    /// `XATTR_CREATE`.
    Create,
    /// `XATTR_REPLACE`.
    Replace,
}

/// What fallocate does; all but `Allocate` and `ZeroRange` without `keep_size` leave the size as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserves space; extends the file unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Makes a hole.
    PunchHole,
    /// Makes zeros.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// What lseek looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What statfs tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes not in use.
    pub free: u64,
    /// Bytes that users may still fill.
    pub available: u64,
    /// Inodes in all: in use and still possible.
    pub inodes: u64,
    /// Inodes still possible.
    pub inodes_free: u64,
}

/// A file system. All calls may come from any thread at the same time. Permission bits are checked by the caller (the kernel's
/// `default_permissions`), and sticky bits too, since the kernel alone knows capabilities; what only the file system can know (link
/// counts) is not.
///
/// Nothing is durable before `sync` returns; every call that answers `Ok` is part of the prefix that a crash leaves.
pub trait Operations: Send + Sync {
    /// Finds a name. `NotFound` if there is none.
    fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry>;
    /// Gives back `count` references. Never fails, never waits.
    fn forget(&self, inode: InodeNumber, count: u64);
    /// As so many calls of [`Operations::forget`].
    fn forget_many(&self, forgotten: &[(InodeNumber, u64)]) {
        forgotten.iter().for_each(|&(inode, count)| self.forget(inode, count));
    }
    /// Says that forgets wait until somebody looks for them: from now on [`Error::Unforgotten`] is answered where that helps.
    fn forgets_gather(&self) {}
    /// Attributes of an inode.
    fn get_attributes(&self, inode: InodeNumber) -> Result<Attributes>;
    /// True if the kernel had better not remember the attributes that were read just before: those of a file that has lost one of several
    /// names within the last ten seconds, while it had references. The kernel takes one off its count of links when it hears of an unlink. If it
    /// has heard of the lower count before, it comes to one too few. False if the mode has changed, since somebody got a reference, by
    /// what the kernel only learns of when it asks, an access control list or set-id bits that went: a wrong count does less harm.
    /// Never waits.
    fn attributes_may_mislead(&self, _inode: InodeNumber) -> bool {
        false
    }
    /// Changes attributes and returns the new ones.
    fn set_attributes(&self, inode: InodeNumber, set: &SetAttributes) -> Result<Attributes>;
    /// The target of a symbolic link.
    fn read_link(&self, inode: InodeNumber) -> Result<Bytes>;
    /// Makes an empty regular file, device node, fifo or socket. The mode is what the caller asks for; the umask, or the
    /// directory's default access control list, is applied to it here, as in all calls that make something.
    fn make_node(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        file_type: FileType,
        mode: u32,
        device: u64,
    ) -> Result<Entry>;
    /// Makes a directory.
    fn make_directory(&self, caller: &Caller, parent: InodeNumber, name: &[u8], mode: u32) -> Result<Entry>;
    /// Makes a symbolic link.
    fn make_symlink(&self, caller: &Caller, parent: InodeNumber, name: &[u8], target: &[u8])
    -> Result<Entry>;
    /// Gives an inode one more name. `NotPermitted` for a directory, `TooManyLinks` for one with [`crate::LINKS_MAX`]
    /// names, `Exists` if the name is taken. An inode without a name (`O_TMPFILE`) gets one.
    fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry>;
    /// Makes a regular file without a name (`O_TMPFILE`).
    fn make_temporary(&self, caller: &Caller, parent: InodeNumber, mode: u32) -> Result<Entry>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()>;
    /// Renames; atomic, also over a crash. Gives the directories that have come to another parent, if they were ever listed: who
    /// remembers such a listing remembers the wrong one under `..`.
    fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Vec<InodeNumber>>;
    /// Makes a clone of an inode under a new name: the same bytes, attributes and, of a directory, everything below, as `cp -a`
    /// makes them, at once and without copying. Both can be changed from then on, and neither sees the other's changes. Atomic, also over a
    /// crash. Files with several names have as many in the clone as lie below the source. The clone itself is born now.
    ///
    /// May the caller do it is checked here, as for cp: `groups` are the caller's other groups. A directory only root and its owner may
    /// clone (else `NotPermitted`): nobody looks at what lies below. `Exists` if the name is taken, `Invalid` where the clone would lie
    /// below its source.
    fn clone_tree(
        &self,
        caller: &Caller,
        groups: &[u32],
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> Result<()>;
    /// Reads at most `length` bytes; fewer only at the end of the file. The pieces lie back to back.
    fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>>;
    /// Writes all of `bytes`: in one operation, but on a volume whose log takes shorter records alone, where an error may come when a part is written.
    fn write(&self, inode: InodeNumber, offset: u64, bytes: Bytes, mode: WriteMode) -> Result<()>;
    /// fallocate(2). `kill_set_id` as in [`WriteMode`].
    fn allocate(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<()>;
    /// Copies inside the file system, returns the bytes copied. `kill_set_id` as in a write, of the target.
    fn copy_range(
        &self,
        from: InodeNumber,
        from_offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<u64>;
    /// The offset of the next data or hole at or behind `offset`; `NoData` (ENXIO) behind the end.
    fn seek(&self, inode: InodeNumber, offset: u64, what: Seek) -> Result<u64>;
    /// Names behind `cookie` (0: from the start), `.` and `..` first, given to `emit` in order until it answers false,
    /// which says that this name found no room and will be asked for again. Entries carry those `attributes`. The cookie of an
    /// entry stays good while its name is there, whoever uses it. A name that was removed is remembered for a time, among some thousands
    /// of its directory; behind one that is not any more the listing begins again.
    fn read_directory(
        &self,
        inode: InodeNumber,
        cookie: u64,
        attributes: ListAttributes,
        emit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()>;
    /// The value of an extended attribute. `NoAttribute` (ENODATA) if there is none.
    fn get_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Bytes>;
    /// All names of extended attributes, each ended by NUL.
    fn list_xattrs(&self, inode: InodeNumber) -> Result<Bytes>;
    /// Sets an extended attribute. The access control lists (`system.posix_acl_access`, `system.posix_acl_default`) are
    /// given as the kernel represents them and are `Invalid` otherwise; an access list changes the permission bits, and
    /// with `kill_set_group_id` takes off that bit, as it does for a caller outside the file's group.
    fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_set_group_id: bool,
    ) -> Result<()>;
    /// Removes an extended attribute. To remove an access control list that is not there is no error, and no change.
    fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()>;
    /// Makes everything done so far durable. Waits for the device.
    fn sync(&self) -> Result<()>;
    /// The directory that an inode lies in and its name there, as far as that is known without looking for it: not of the root, and not of what
    /// has, or had, several names or none. Never waits.
    fn place(&self, _inode: InodeNumber) -> Option<(InodeNumber, Bytes)> {
        None
    }
    /// True if a sync now would write little, and take about as long as the device needs for a flush.
    fn sync_is_short(&self) -> bool;
    /// Sizes and counts.
    fn statistics(&self) -> Result<Statistics>;
    /// Brings what a call missed into memory. Waits for the device.
    fn fetch(&self, miss: Miss) -> Result<()>;
    /// Waits until there is room for a change of so many bytes. Call before each changing request, with a thread that may
    /// wait if it answers [`Error::Busy`] to `may_wait == false`.
    fn make_room(&self, bytes: u64, may_wait: bool) -> Result<()>;
}

/// Runs a call, fetching what it misses, until it has an answer. Waits for the device.
pub fn waiting<O: Operations + ?Sized, T>(fs: &O, mut call: impl FnMut(&O) -> Result<T>) -> Result<T> {
    loop {
        match call(fs) {
            Err(Error::Miss(miss)) => fs.fetch(miss)?,
            other => return other,
        }
    }
}

/// Runs a call that writes a few bytes: see [`changing_bytes`].
pub fn changing<O: Operations + ?Sized, T>(fs: &O, call: impl FnMut(&O) -> Result<T>) -> Result<T> {
    changing_bytes(fs, 0, call)
}

/// Runs a call that writes so many bytes: waits for room before each try. What still finds no room behind as many waits as
/// [`Refusals`] allow does not fit. Waits for the device.
pub fn changing_bytes<O: Operations + ?Sized, T>(
    fs: &O,
    bytes: u64,
    mut call: impl FnMut(&O) -> Result<T>,
) -> Result<T> {
    let mut refusals = Refusals::default();
    loop {
        fs.make_room(bytes, true)?;
        match call(fs) {
            Err(Error::Miss(miss)) => fs.fetch(miss)?,
            Err(Error::Busy) if refusals.may_wait() => {}
            Err(Error::Busy) => return Err(Error::NoSpace),
            // Nobody brings forgets meanwhile.
            Err(Error::Unforgotten) => {}
            // No refusal: it goes on.
            Err(Error::Unfinished) => {}
            other => return other,
        }
    }
}
