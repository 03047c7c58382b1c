//! Directories and files, on the host or in a volume alike.
//!
//! Names are looked up in open directories, never through whole paths: paths may be longer than `PATH_MAX`, and nobody
//! can lead a copy elsewhere by exchanging a directory for a symbolic link meanwhile.

use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use pando_fs::operations::FileType;

use crate::copy::host::HostFileName;
use crate::failure::Cause;
use crate::files::Inode;

/// Results of one step on one file.
pub type Result<T, E = Cause> = std::result::Result<T, E>;

/// Which file something is: two equal ones are the same inode. Numbers mean something on their own system only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The device on the host, or a number for each open volume that no device has.
    pub system: u64,
    /// The inode's number there.
    pub inode: u64,
}

/// What a copy needs to know of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Which file it is.
    pub identity: Identity,
    /// What it is.
    pub file_type: FileType,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// Major and minor number of a device node, as `makedev` packs them.
    pub device: u64,
    /// Last read.
    pub accessed: SystemTime,
    /// Last change.
    pub modified: SystemTime,
}

impl Metadata {
    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

/// Attributes a copy gets; `None` leaves one as it is. Where the owner is not for this user to give, the set-id bits are left
/// out, which would let the program run as somebody else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Permission, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Last read and last change.
    pub times: Option<(SystemTime, SystemTime)>,
}

impl Settings {
    /// The set-user-ID and set-group-ID bits.
    const SET_ID: u32 = 0o6000;

    /// The same for a copy that does not get its owner.
    pub fn without_set_id(self) -> Self {
        Self { mode: self.mode.map(|mode| mode & !Self::SET_ID), ..self }
    }
}

/// A file that links can be made to, however many other files are remembered: it keeps no descriptor open.
pub enum Remembered {
    /// By the way to it on the host.
    Host(HostFileName),
    /// By a reference in a volume.
    Inside(Inode),
}

/// An open directory. The name `.` stands for the directory itself in `metadata`, `open_directory` and `apply`.
pub trait Directory {
    /// What a name is; a symbolic link itself unless `follow`.
    fn metadata(&self, name: &[u8], follow: bool) -> Result<Metadata>;
    /// Names that follow those of the last call, without `.` and `..`; none at the end.
    fn next_names(&mut self) -> Result<Vec<Vec<u8>>>;
    /// Opens a directory in this one.
    fn open_directory(&self, name: &[u8], follow: bool) -> Result<Box<dyn Directory>>;
    /// Opens a file for reading.
    fn open_file(&self, name: &[u8], follow: bool) -> Result<Box<dyn OpenFile>>;
    /// Opens a file that is there, empties it, and gives it for writing. A symbolic link is not followed.
    fn overwrite_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>>;
    /// Makes a file where no name is.
    fn make_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn OpenFile>>;
    /// Makes a directory.
    fn make_directory(&self, name: &[u8], mode: u32) -> Result<()>;
    /// Makes a symbolic link.
    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()>;
    /// Makes a device node, fifo or socket.
    fn make_special(&self, name: &[u8], file_type: FileType, mode: u32, device: u64) -> Result<()>;
    /// Remembers what a name is, to make links to it.
    fn remember(&self, name: &[u8]) -> Result<Remembered>;
    /// Makes a hard link to a file of the same system.
    fn make_link(&self, name: &[u8], to: &Remembered) -> Result<()>;
    /// The target of a symbolic link.
    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>>;
    /// Removes anything but a directory.
    fn remove(&self, name: &[u8]) -> Result<()>;
    /// Changes attributes of a name, never through a symbolic link.
    fn apply(&self, name: &[u8], settings: &Settings) -> Result<()>;
    /// The extended attributes of a name, with their values; of a symbolic link itself unless `follow`.
    fn xattrs(&self, name: &[u8], follow: bool) -> Result<Vec<(Vec<u8>, Bytes)>>;
    /// Sets an extended attribute of a name, or removes it, never through a symbolic link.
    fn change_xattr(&self, name: &[u8], attribute: &[u8], value: Option<&[u8]>) -> Result<()>;
    /// Makes durable which names are in it; those of a volume are when the volume is closed.
    fn sync(&self) -> Result<()>;
    /// True if [`Directory::sync_system`] reaches the device.
    fn is_synced_whole(&self) -> bool;
    /// Makes durable everything on the file system that it is on; in a volume that is when the volume is closed.
    fn sync_system(&self) -> Result<()>;
}

/// An open file.
pub trait OpenFile {
    /// What it is now.
    fn metadata(&self) -> Result<Metadata>;
    /// The next range at or behind `offset` that may hold other bytes than zeros; `None` if there is none.
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>>;
    /// At most `length` bytes from `offset`; none at the end.
    fn read(&self, offset: u64, length: usize) -> Result<Vec<Bytes>>;
    /// Writes all of the bytes.
    fn write(&self, offset: u64, bytes: &Bytes) -> Result<()>;
    /// Cuts, or extends with a hole.
    fn set_size(&self, size: u64) -> Result<()>;
    /// Changes attributes. False if the owner is not for this user to give.
    fn apply(&self, settings: &Settings) -> Result<bool>;
    /// Sets an extended attribute, or removes it.
    fn change_xattr(&self, attribute: &[u8], value: Option<&[u8]>) -> Result<()>;
    /// Makes durable what was written to it; in a volume it is when the volume is closed.
    fn sync(&self) -> Result<()>;
    /// Closes it, with the errors that come of that.
    fn close(self: Box<Self>) -> Result<()>;
}
