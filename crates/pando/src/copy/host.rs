//! Directories and files of the host.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use pando_fs::operations::FileType;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::copy::tree::{Directory, Identity, Metadata, OpenFile, Remembered, Result, Settings};
use crate::failure::Cause;
use crate::time::{from_epoch, since_epoch};

/// Names given out at a time.
const NAMES_MAX: usize = 1024;

/// The longest value an extended attribute may have in Linux, and the longest list of names, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY);

/// A directory of the host.
pub struct HostDirectory {
    directory: Rc<OwnedFd>,
    way: Rc<Way>,
    names: Option<Dir>,
}

/// How a directory was reached from one that is open. Symbolic links are never followed on it, so it leads to no other
/// place, and it may be longer than `PATH_MAX`.
enum Way {
    Open(Rc<OwnedFd>),
    Below(Rc<Way>, Vec<u8>),
}

/// A file of the host by its name.
pub struct HostFileName {
    way: Rc<Way>,
    name: Vec<u8>,
}

/// A file of the host.
pub struct HostFile {
    file: OwnedFd,
}

impl HostDirectory {
    /// Opens a directory by its path.
    pub fn open(path: &Path) -> Result<Self> {
        let directory = Rc::new(open_directory_at(CWD, path.as_os_str().as_encoded_bytes(), true)?);
        Ok(Self { way: Rc::new(Way::Open(directory.clone())), directory, names: None })
    }

    /// A path for calls that take no directory: through the descriptor, so it is short and cannot be led astray.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        Path::new(&directory).join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
    }

    fn open_file_at(&self, name: &[u8], flags: OFlags, mode: u32) -> Result<Box<dyn OpenFile>> {
        let file = rustix::fs::openat(&self.directory, name, OPEN | flags, Mode::from_raw_mode(mode))?;
        Ok(Box::new(HostFile { file }))
    }
}

fn open_directory_at(directory: impl AsFd, name: &[u8], follow: bool) -> Result<OwnedFd> {
    let link = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    Ok(rustix::fs::openat(directory, name, OPEN | OFlags::DIRECTORY | link, Mode::empty())?)
}

impl Way {
    fn open(&self) -> Result<Rc<OwnedFd>> {
        let mut names = Vec::new();
        let mut way = self;
        let mut at = loop {
            match way {
                Way::Open(directory) => break directory.clone(),
                Way::Below(above, name) => {
                    names.push(name);
                    way = above;
                }
            }
        };
        for name in names.into_iter().rev() {
            at = Rc::new(open_directory_at(&at, name, false)?);
        }
        Ok(at)
    }
}

impl Directory for HostDirectory {
    fn metadata(&self, name: &[u8], follow: bool) -> Result<Metadata> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(metadata(&rustix::fs::statat(&self.directory, name, flags)?))
    }

    fn next_names(&mut self) -> Result<Vec<Vec<u8>>> {
        if self.names.is_none() {
            self.names = Some(Dir::read_from(&self.directory)?);
        }
        let directory = self.names.as_mut().expect("it was opened above");
        let mut names = Vec::new();
        while names.len() < NAMES_MAX {
            match directory.read() {
                Some(entry) => names.push(entry?.file_name().to_bytes().to_vec()),
                None => break,
            }
            names.pop_if(|name| name == b"." || name == b"..");
        }
        Ok(names)
    }

    fn open_directory(&self, name: &[u8], follow: bool) -> Result<Box<dyn Directory>> {
        let directory = Rc::new(open_directory_at(&self.directory, name, follow)?);
        // A link that was followed may lead anywhere.
        let way =
            if follow { Way::Open(directory.clone()) } else { Way::Below(self.way.clone(), name.to_vec()) };
        Ok(Box::new(Self { directory, way: Rc::new(way), names: None }))
    }

    fn open_file(&self, name: &[u8], follow: bool) -> Result<Box<dyn OpenFile>> {
        let link = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open_file_at(name, OFlags::RDONLY | link, 0)
    }

    fn overwrite_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        self.open_file_at(name, OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW, 0)
    }

    fn make_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn OpenFile>> {
        self.open_file_at(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)
    }

    fn make_directory(&self, name: &[u8], mode: u32) -> Result<()> {
        Ok(rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(mode))?)
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.directory, name)?)
    }

    fn make_special(&self, name: &[u8], file_type: FileType, mode: u32, device: u64) -> Result<()> {
        let kind = match file_type {
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            FileType::Socket => rustix::fs::FileType::Socket,
            FileType::Regular | FileType::Directory | FileType::Symlink => {
                return Err(Cause::Host(Errno::INVAL));
            }
        };
        Ok(rustix::fs::mknodat(&self.directory, name, kind, Mode::from_raw_mode(mode), device)?)
    }

    fn remember(&self, name: &[u8]) -> Result<Remembered> {
        Ok(Remembered::Host(HostFileName { way: self.way.clone(), name: name.to_vec() }))
    }

    fn make_link(&self, name: &[u8], to: &Remembered) -> Result<()> {
        match to {
            Remembered::Host(HostFileName { way, name: old }) => {
                Ok(rustix::fs::linkat(way.open()?, old, &self.directory, name, AtFlags::empty())?)
            }
            Remembered::Inside(_) => Err(Cause::Refused("a link cannot lead into a volume")),
        }
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.directory, name, Vec::new())?.into_bytes())
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn apply(&self, name: &[u8], settings: &Settings) -> Result<()> {
        let mut settings = *settings;
        if let Some((uid, gid)) = settings.owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            let changed = rustix::fs::chownat(&self.directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            if !not_for_everyone(changed)? {
                settings = settings.without_set_id();
            }
        }
        if let Some(mode) = settings.mode {
            // Linux has no modes on links, and no fchmodat without following before 6.6. Somebody may put a link in its place meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let named = rustix::fs::openat(&self.directory, name, flags, Mode::empty())?;
            if !metadata(&rustix::fs::fstat(&named)?).is_symlink() {
                let path = format!("/proc/self/fd/{}", named.as_raw_fd());
                rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
            }
        }
        if let Some((accessed, modified)) = settings.times {
            let times = timestamps(accessed, modified);
            rustix::fs::utimensat(&self.directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn xattrs(&self, name: &[u8], follow: bool) -> Result<Vec<(Vec<u8>, Bytes)>> {
        let path = self.path_of(name);
        let mut buffer = vec![0; XATTR_BYTES_MAX];
        let length = match follow {
            true => rustix::fs::listxattr(&path, &mut buffer[..]),
            false => rustix::fs::llistxattr(&path, &mut buffer[..]),
        };
        let length = match length {
            Err(Errno::OPNOTSUPP) => 0,
            length => length?,
        };
        let list = buffer[..length].to_vec();
        let mut attributes = Vec::new();
        for name in list.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            let length = match follow {
                true => rustix::fs::getxattr(&path, name, &mut buffer[..]),
                false => rustix::fs::lgetxattr(&path, name, &mut buffer[..]),
            };
            match length {
                Ok(length) => attributes.push((name.to_vec(), Bytes::copy_from_slice(&buffer[..length]))),
                // Removed meanwhile, or not for us to read.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(attributes)
    }

    fn change_xattr(&self, name: &[u8], attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        let path = self.path_of(name);
        match value {
            Some(value) => rustix::fs::lsetxattr(path, attribute, value, XattrFlags::empty())?,
            None => rustix::fs::lremovexattr(path, attribute)?,
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        sync(&self.directory)
    }

    fn is_synced_whole(&self) -> bool {
        rustix::fs::fstatfs(&self.directory)
            .is_ok_and(|system| !NOT_SYNCED_WHOLE.contains(&(system.f_type as u32)))
    }

    fn sync_system(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.directory)?)
    }
}

impl OpenFile for HostFile {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(&rustix::fs::fstat(&self.file)?))
    }

    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Files that know no holes, such as those of /proc, are all data.
            Err(Errno::INVAL | Errno::SPIPE | Errno::OPNOTSUPP) => return Ok(Some(offset..size)),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
        Ok((start < size && start < end).then(|| start..end.min(size)))
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match rustix::io::pread(&self.file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.truncate(filled);
        if filled < length / 2 {
            // The volume keeps what it is given in memory for a while, unused capacity included.
            buffer.shrink_to_fit();
        }
        Ok(if buffer.is_empty() { Vec::new() } else { vec![buffer.into()] })
    }

    fn write(&self, offset: u64, bytes: &Bytes) -> Result<()> {
        let (mut done, mut is_pipe) = (0, false);
        while done < bytes.len() {
            let rest = &bytes[done..];
            let written = match is_pipe {
                true => rustix::io::write(&self.file, rest),
                false => rustix::io::pwrite(&self.file, rest, offset + done as u64),
            };
            match written {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::SPIPE) if !is_pipe => is_pipe = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(&self.file, size)?)
    }

    fn apply(&self, settings: &Settings) -> Result<bool> {
        let mut settings = *settings;
        let mut has_owner = true;
        if let Some((uid, gid)) = settings.owner {
            let changed = rustix::fs::fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            has_owner = not_for_everyone(changed)?;
            if !has_owner {
                settings = settings.without_set_id();
            }
        }
        if let Some(mode) = settings.mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        if let Some((accessed, modified)) = settings.times {
            rustix::fs::futimens(&self.file, &timestamps(accessed, modified))?;
        }
        Ok(has_owner)
    }

    fn change_xattr(&self, attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => rustix::fs::fsetxattr(&self.file, attribute, value, XattrFlags::empty())?,
            None => rustix::fs::fremovexattr(&self.file, attribute)?,
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        sync(&self.file)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(pando_device::descriptors::close(self.file)?)
    }
}

/// File systems of whose servers syncfs(2) asks less than fsync(2) does, or nothing: FUSE, SMB with two numbers, 9P.
const NOT_SYNCED_WHOLE: [u32; 4] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];

/// fsync(2), where there is anything to sync: pipes, terminals and the like have no such call.
fn sync(descriptor: impl AsFd) -> Result<()> {
    match rustix::io::retry_on_intr(|| rustix::fs::fsync(&descriptor)) {
        Err(Errno::INVAL) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Only root can give files away; cp says nothing about it either. False if this user cannot.
fn not_for_everyone(outcome: rustix::io::Result<()>) -> Result<bool> {
    match outcome {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

fn timestamps(accessed: std::time::SystemTime, modified: std::time::SystemTime) -> Timestamps {
    let time = |time| {
        let (tv_sec, nanoseconds) = since_epoch(time);
        Timespec { tv_sec, tv_nsec: nanoseconds.into() }
    };
    Timestamps { last_access: time(accessed), last_modification: time(modified) }
}

fn metadata(stat: &Stat) -> Metadata {
    let file_type = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::Fifo => FileType::Fifo,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::RegularFile | rustix::fs::FileType::Unknown => FileType::Regular,
    };
    Metadata {
        identity: Identity { system: stat.st_dev, inode: stat.st_ino },
        file_type,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        links: stat.st_nlink,
        size: stat.st_size as u64,
        device: stat.st_rdev,
        accessed: from_epoch(stat.st_atime, stat.st_atime_nsec as u32),
        modified: from_epoch(stat.st_mtime, stat.st_mtime_nsec as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_synced_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let name = b"file";
        std::fs::write(directory.path().join("file"), "bytes").unwrap();
        let host = HostDirectory::open(directory.path()).unwrap();
        assert!(host.sync().is_ok() && host.sync_system().is_ok());
        assert!(host.overwrite_file(name).unwrap().sync().is_ok());
        // Through these nothing can be synced, whatever the file system.
        let in_vain = host.open_file_at(name, OFlags::PATH, 0).unwrap();
        assert!(matches!(in_vain.sync(), Err(Cause::Host(Errno::BADF))));
        let path_alone = Rc::new(rustix::fs::open(directory.path(), OFlags::PATH, Mode::empty()).unwrap());
        let in_vain = HostDirectory { way: host.way.clone(), directory: path_alone, names: None };
        assert!(matches!(in_vain.sync(), Err(Cause::Host(Errno::BADF))));
        assert!(matches!(in_vain.sync_system(), Err(Cause::Host(Errno::BADF))));
    }

    #[test]
    fn what_has_nothing_to_sync_is_written() {
        let host = HostDirectory::open(Path::new("/dev")).unwrap();
        let null = host.overwrite_file(b"null").unwrap();
        assert!(null.write(0, &Bytes::from_static(b"bytes")).is_ok() && null.sync().is_ok());
        assert!(null.close().is_ok());
    }
}
