//! What is mounted where, as the kernel lists it in /proc/self/mountinfo. A mount itself is never asked: it might not answer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Uid;

/// The types that /proc/mounts shows: of any mount, and of one of a block device.
pub(crate) const FILE_SYSTEM_TYPE: &str = "fuse.pando";
pub(crate) const BLOCK_FILE_SYSTEM_TYPE: &str = "fuseblk.pando";

/// Whether a type in /proc/mounts is ours.
fn is_ours(kind: &OsStr) -> bool {
    kind == FILE_SYSTEM_TYPE || kind == BLOCK_FILE_SYSTEM_TYPE
}

/// What the kernel says is mounted in the mount namespace of this process.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// How long to wait for what cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A mounted PandoFS, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// `st_dev` of everything in it, as `major:minor`.
    pub device: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The path of the volume, as it was when it was mounted. Any user can have anything listed here.
    pub source: PathBuf,
    /// The user whose process serves it; `None` if the kernel does.
    pub owner: Option<Uid>,
}

/// Symbolic links in a row that the kernel follows.
const LINKS_MAX: usize = 40;

/// What a path leads to, as the kernel names mount points. What is mounted there is not asked, since it might not answer: parents are resolved, and of the path itself it is
/// read where it leads, which the root of a mount is no link for the kernel to ask about.
fn mountpoint_of(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let named = parent.canonicalize()?.join(name);
        let Ok(target) = std::fs::read_link(&named) else { return Ok(named) };
        path = named.with_file_name(target);
    }
    path.canonicalize()
}

/// What the kernel says is mounted. It is kept open where something will have to be unmounted: who has as many files open as it may could not
/// open it then, and would leave a dead mount. (For who is not root, fusermount3 unmounts, which cannot be started without descriptors.)
#[derive(Debug)]
pub(crate) struct MountTable {
    /// It goes on from where the last read ended only as long as nobody else reads it.
    mountinfo: Mutex<File>,
}

impl MountTable {
    /// That of the mount namespace of this process.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { mountinfo: Mutex::new(File::open(MOUNTINFO)?) })
    }

    /// What is mounted now, in the order of mounting, with the file system types.
    fn entries(&self) -> io::Result<Vec<(OsString, MountEntry)>> {
        // Opened anew, it is told of what can be seen from our root; that may have become another one.
        if let Ok(text) = std::fs::read(MOUNTINFO) {
            return Ok(entries(&text));
        }
        let mut kept = self.mountinfo.lock();
        kept.rewind()?;
        let mut text = Vec::new();
        kept.read_to_end(&mut text)?;
        Ok(entries(&text))
    }

    /// As [`mounted`].
    pub(crate) fn mounted(&self) -> io::Result<Vec<MountEntry>> {
        let ours = self.entries()?.into_iter().filter(|(kind, _)| is_ours(kind));
        Ok(ours.map(|(_, entry)| entry).collect())
    }

    /// As [`mounted_at`].
    pub(crate) fn mounted_at(&self, path: &Path) -> io::Result<Option<MountEntry>> {
        let path = mountpoint_of(path)?;
        let top = self.entries()?.into_iter().rfind(|(_, entry)| entry.mountpoint == path);
        Ok(top.filter(|(kind, _)| is_ours(kind)).map(|(_, entry)| entry))
    }

    /// Waits until something is mounted or unmounted, or has been since the last wait or since this was opened; at most for a part of a second.
    pub(crate) fn wait_for_change(&self, at_most: Duration) {
        let rest = Timespec { tv_sec: 0, tv_nsec: at_most.subsec_nanos().into() };
        // Interrupted, the caller looks again. Who may open nothing at all is refused.
        match poll(&mut [PollFd::new(&*self.mountinfo.lock(), PollFlags::PRI)], Some(&rest)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(at_most.min(LOOK_AGAIN)),
        }
    }
}

/// All mounted PandoFS that this process can see, in the order of mounting.
pub fn mounted() -> io::Result<Vec<MountEntry>> {
    MountTable::open()?.mounted()
}

/// Everything that is mounted, of any type, in the order of mounting.
pub fn mounted_of_any_type() -> io::Result<Vec<MountEntry>> {
    Ok(MountTable::open()?.entries()?.into_iter().map(|(_, entry)| entry).collect())
}

/// The PandoFS mounted exactly at this path, if that is what one sees there.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    MountTable::open()?.mounted_at(path)
}

/// The lines of a mountinfo file, with their file system types.
fn entries(mountinfo: &[u8]) -> Vec<(OsString, MountEntry)> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

/// `id parent major:minor root mountpoint options [optional...] - type source options`
fn entry(line: &[u8]) -> Option<(OsString, MountEntry)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = PathBuf::from(unescape(fields.nth(1)?));
    fields.find(|field| *field == b"-")?;
    let kind = unescape(fields.next()?);
    let source = PathBuf::from(unescape(fields.next()?));
    let owner = fields.next().and_then(owner);
    Some((kind, MountEntry { device, mountpoint, source, owner }))
}

/// The user that the options of a FUSE mount tell.
fn owner(options: &[u8]) -> Option<Uid> {
    let id = options.split(|&byte| byte == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(id).ok()?.parse().ok().map(Uid::from_raw)
}

/// Undoes the kernel's `\ooo` for blanks, line ends and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read_with_its_escapes() {
        let text = b"36 35 98:0 / /mnt\\040two rw,noatime master:1 - fuse.pando /data/a\\134b rw,user_id=7\n\
                     37 35 0:51 / /mnt/x rw - ext4 /dev/sda rw\nrubbish\n";
        let all = entries(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].0, "fuse.pando");
        assert_eq!(all[0].1.device, "98:0");
        assert_eq!(all[0].1.mountpoint, Path::new("/mnt two"));
        assert_eq!(all[0].1.source, Path::new("/data/a\\b"));
        assert_eq!(all[0].1.owner, Some(Uid::from_raw(7)));
        assert_eq!((&*all[1].0, all[1].1.owner), ("ext4".as_ref(), None));
    }
}
