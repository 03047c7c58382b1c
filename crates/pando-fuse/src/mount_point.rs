//! Attaching a FUSE connection to a directory, and detaching it.
//!
//! A process that may call mount(2) does; others go through the set-user-id program `fusermount3`.
//!
//! What is kept on a block device is mounted as such (`fuseblk`) by a process that may call mount(2), from Linux 6.18 on: then the kernel passes on sync(2)
//! and syncfs(2), and its unmount ends when the file system has been closed (DESTROY). Everything else is mounted as `fuse`.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pando_device::{BLOCK_SIZE, Claim, io_text};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::mount_table::{BLOCK_FILE_SYSTEM_TYPE, FILE_SYSTEM_TYPE, MountEntry, MountTable, mounted_at};
use crate::protocol::REQUEST_BYTES_MAX;

/// Why a file system was not mounted or unmounted; each prints as one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point cannot be used.
    MountPoint {
        /// The path given.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// /dev/fuse cannot be opened.
    Device(io::Error),
    /// The kernel or fusermount3 refused.
    Refused {
        /// `mount`, `remount` or `unmount`.
        action: &'static str,
        /// The mount point.
        path: PathBuf,
        /// The reason given.
        why: String,
    },
    /// Something still uses the mount.
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel and we did not agree on a protocol.
    Handshake(io::Error),
}

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MountPoint { path, why } => write!(f, "cannot mount at {}: {why}", path.display()),
            Self::Device(error) if error.kind() == io::ErrorKind::NotFound => f.write_str(
                "there is no /dev/fuse; load the module with `modprobe fuse`, or use the unmounted commands",
            ),
            Self::Device(error) => write!(f, "cannot open /dev/fuse: {}", io_text(error)),
            Self::Refused { action, path, why } => write!(f, "cannot {action} {}: {why}", path.display()),
            Self::Busy { path } => {
                write!(f, "{} is in use; `fuser -vm {}` shows by whom", path.display(), path.display())
            }
            Self::Handshake(error) => {
                write!(f, "the kernel's FUSE does not accept the connection: {}", io_text(error))
            }
        }
    }
}

impl std::error::Error for MountError {}

/// The options of any mount that the kernel keeps itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfsOption {
    name: &'static str,
    set: MountFlags,
    clear: MountFlags,
}

const fn option(name: &'static str, set: MountFlags, clear: MountFlags) -> VfsOption {
    VfsOption { name, set, clear }
}

const NONE: MountFlags = MountFlags::empty();

const VFS_OPTIONS: &[VfsOption] = &[
    option("rw", NONE, MountFlags::RDONLY),
    option("ro", MountFlags::RDONLY, NONE),
    option("suid", NONE, MountFlags::NOSUID),
    option("nosuid", MountFlags::NOSUID, NONE),
    option("dev", NONE, MountFlags::NODEV),
    option("nodev", MountFlags::NODEV, NONE),
    option("exec", NONE, MountFlags::NOEXEC),
    option("noexec", MountFlags::NOEXEC, NONE),
    option("async", NONE, MountFlags::SYNCHRONOUS),
    option("sync", MountFlags::SYNCHRONOUS, NONE),
    option("dirsync", MountFlags::DIRSYNC, NONE),
    option("atime", NONE, MountFlags::NOATIME),
    option("noatime", MountFlags::NOATIME, NONE),
    option("diratime", NONE, MountFlags::NODIRATIME),
    option("nodiratime", MountFlags::NODIRATIME, NONE),
    option("relatime", MountFlags::RELATIME, NONE),
    option("norelatime", NONE, MountFlags::RELATIME),
    option("strictatime", MountFlags::STRICTATIME, NONE),
    option("nostrictatime", NONE, MountFlags::STRICTATIME),
    option("lazytime", MountFlags::LAZYTIME, NONE),
    option("nolazytime", NONE, MountFlags::LAZYTIME),
    option("symfollow", NONE, MountFlags::NOSYMFOLLOW),
    option("nosymfollow", MountFlags::NOSYMFOLLOW, NONE),
];

/// Those that fusermount3 may refuse, and that are none of safety. Times of access are not kept anyway.
const NOT_OF_HELPER: &[&str] = &[
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "symfollow",
];

impl VfsOption {
    /// The option of this name, if the kernel has it for any file system.
    pub fn parse(name: &str) -> Option<Self> {
        VFS_OPTIONS.iter().find(|option| option.name == name).copied()
    }
}

/// Which changes are durable when they are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// None.
    None,
    /// Those of names.
    Names,
    /// All but writes, behind which the kernel asks for a sync.
    All,
}

/// Whether a list of options makes the kernel refuse changes.
pub fn is_read_only(options: &[VfsOption]) -> bool {
    flags(options).contains(MountFlags::RDONLY)
}

/// Which changes a list of options wants to be durable. The kernel leaves these to the file system.
pub(crate) fn durable(options: &[VfsOption]) -> Durable {
    let flags = flags(options);
    if flags.contains(MountFlags::SYNCHRONOUS) {
        Durable::All
    } else if flags.contains(MountFlags::DIRSYNC) {
        Durable::Names
    } else {
        Durable::None
    }
}

/// The flags that a list of options amounts to; later ones win.
fn flags(options: &[VfsOption]) -> MountFlags {
    options.iter().fold(NONE, |flags, option| (flags - option.clear) | option.set)
}

/// What a mount looks like from outside.
pub(crate) struct Appearance<'a> {
    pub(crate) source: &'a Path,
    /// If the source is a block device that the kernel may claim for the mount.
    pub(crate) claim: Option<&'a Claim>,
    pub(crate) vfs_options: &'a [VfsOption],
    pub(crate) contexts: &'a [String],
    pub(crate) allow_other: bool,
    pub(crate) default_permissions: bool,
}

impl Appearance<'_> {
    /// The options for fusermount3, which takes all by name, and the source among them.
    fn names(&self) -> Vec<Vec<u8>> {
        let mut source = b"fsname=".to_vec();
        for &byte in self.source.as_os_str().as_bytes() {
            source.extend(matches!(byte, b'\\' | b',').then_some(b'\\'));
            source.push(byte);
        }
        let mut names = vec![source, "subtype=pando".into()];
        names.push(format!("max_read={REQUEST_BYTES_MAX}").into());
        if self.allow_other {
            names.push("allow_other".into());
        }
        if self.default_permissions {
            names.push("default_permissions".into());
        }
        // What a later one takes back need not be known to it.
        let mut amount_to = flags(self.vfs_options);
        if amount_to.contains(MountFlags::STRICTATIME) {
            // As in the kernel, whatever the order.
            amount_to -= MountFlags::NOATIME;
        }
        let known =
            |option: &&VfsOption| amount_to.contains(option.set) && !NOT_OF_HELPER.contains(&option.name);
        names.extend(self.vfs_options.iter().filter(known).map(|option| option.name.into()));
        names.extend(self.contexts.iter().map(|context| context.as_bytes().into()));
        names
    }

    /// What mount(2) is told beside the flags.
    fn data(&self, device: &File) -> String {
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},max_read={REQUEST_BYTES_MAX}",
            device.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        if self.default_permissions {
            data.push_str(",default_permissions");
        }
        for context in self.contexts {
            data.push(',');
            data.push_str(context);
        }
        data
    }
}

/// Fails where mounting is of no use. What a killed daemon of ours left mounted there stays, and is no reason.
pub fn check(mountpoint: &Path) -> Result<(), MountError> {
    let refuse = |error| MountError::MountPoint { path: mountpoint.to_owned(), why: io_text(&error) };
    match mountpoint.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(refuse(Errno::NOTDIR.into())),
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(()),
        Err(error) => Err(refuse(error)),
    }
}

/// The mount point as an absolute path without symbolic links, if it is a directory. What a killed daemon of ours left
/// mounted there is taken away.
pub(crate) fn resolve(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let refuse = |error: io::Error| {
        let why = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOTCONN) => "a dead mount is in the way; unmount it first".into(),
            _ => io_text(&error),
        };
        MountError::MountPoint { path: mountpoint.to_owned(), why }
    };
    // Several may lie one over the other.
    while let Some(top) = mounted_at(mountpoint).map_err(refuse)?
        && is_dead(&top.mountpoint)
    {
        unmount(&top.mountpoint, true)?;
    }
    let path = mountpoint.canonicalize().map_err(refuse)?;
    match path.metadata().map_err(refuse)?.is_dir() {
        true => Ok(path),
        false => Err(refuse(Errno::NOTDIR.into())),
    }
}

/// Whether nobody answers for what is mounted there any more. Asked anew: the kernel knows the attributes of a root, whoever serves it.
pub fn is_dead(mountpoint: &Path) -> bool {
    let status = statx(CWD, mountpoint, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    // The second where the kernel had not learned of the daemon's end when it was asked.
    status.is_err_and(|errno| matches!(errno, Errno::NOTCONN | Errno::CONNABORTED))
}

/// Mounts, and returns the descriptor of the connection.
pub(crate) fn mount(mountpoint: &Path, look: &Appearance<'_>) -> Result<OwnedFd, MountError> {
    // fusermount3 opens it with the user's rights, too, and does not say so well when it may not.
    let device = File::options().read(true).write(true).open("/dev/fuse").map_err(MountError::Device)?;
    match mount_directly(device, mountpoint, look)? {
        Some(device) => Ok(device),
        None => mount_through_helper(mountpoint, look),
    }
}

/// Mounts with mount(2). `None` if the caller may not, and has to ask fusermount3.
fn mount_directly(
    device: File,
    mountpoint: &Path,
    look: &Appearance<'_>,
) -> Result<Option<OwnedFd>, MountError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let data = look.data(&device);
    let refused = |errno: Errno| match look.contexts {
        [context, ..] if errno == Errno::INVAL => {
            let why = format!(
                "invalid argument; there may be no SELinux for '{context}', or it knows no such label"
            );
            MountError::Refused { action: "mount", path: mountpoint.to_owned(), why }
        }
        _ => refuse("mount", mountpoint, &errno.into()),
    };
    let mount = |kind: &str, data: &str| {
        let data = CString::new(data).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount(look.source, mountpoint, kind, flags(look.vfs_options), &*data)
    };
    if let Some(claim) = look.claim.filter(|_| has_good_block_mounts()) {
        // The kernel's default would be 512 bytes, which not every device has.
        let data = format!("{data},blksize={BLOCK_SIZE}");
        // Refused in a user namespace for one, or where mounted devices are not to be open for writing.
        let handed_over = claim.hand_over(|| mount(BLOCK_FILE_SYSTEM_TYPE, &data));
        if handed_over.map_err(|errno| refuse("mount", mountpoint, &errno.into()))? {
            return Ok(Some(device.into()));
        }
    }
    match mount(FILE_SYSTEM_TYPE, &data) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(refused(errno)),
    }
}

/// From this version of Linux on, sync(2) reaches the server of a block device's mount, and a server's thread is not made to wait for its own answer to a
/// RELEASE there.
const GOOD_BLOCK_MOUNTS: (u32, u32) = (6, 18);

fn has_good_block_mounts() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= GOOD_BLOCK_MOUNTS
}

/// Has fusermount3 mount. It opens /dev/fuse itself and sends the descriptor through a socket, which it gets as its
/// standard input.
fn mount_through_helper(mountpoint: &Path, look: &Appearance<'_>) -> Result<OwnedFd, MountError> {
    let refuse = |why: String| MountError::Refused { action: "mount", path: mountpoint.to_owned(), why };
    let no_helper = |error| no_helper("mount", mountpoint, &error);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| no_helper(errno.into()))?;
    let mut command = Command::new("fusermount3");
    let options = OsString::from_vec(look.names().join(&b','));
    command.arg("-o").arg(options).arg("--").arg(mountpoint);
    command.env("LC_ALL", "C").env("_FUSE_COMMFD", "0");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let helper = command.spawn().map_err(no_helper)?;
    // The command holds their end; while it lives, the socket does not end with the helper.
    drop(command);
    let received = receive_descriptor(&ours);
    let output = helper.wait_with_output().map_err(no_helper)?;
    match received {
        Some(device) if output.status.success() => Ok(device),
        _ => Err(refuse(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
    }
}

/// A descriptor that comes with one byte of data; `None` if the other end closes without sending one.
fn receive_descriptor(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let data = &mut [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })
    .ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Gives what is mounted there these options in place of those it has. Only root may. To become read-only, nobody may
/// have a file open for writing, else it is [`MountError::Busy`]; the kernel has sent everything when this returns.
pub fn remount(mountpoint: &Path, options: &[VfsOption]) -> Result<(), MountError> {
    match rustix::mount::mount_remount(mountpoint, flags(options), c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy { path: mountpoint.to_owned() }),
        Err(errno) => Err(refuse("remount", mountpoint, &errno.into())),
    }
}

/// Unmounts what is mounted there. `lazy` takes it out of the tree at once and lets its users finish; without it, a
/// mount in use is [`MountError::Busy`].
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_with(mountpoint, lazy, false)
}

/// The same by force: the connection to the daemon is broken first, so whoever waits for its answer gets an error, and what the kernel has not
/// sent is lost. Only root has it; for others it is as without force. A daemon that serves no requests has to unmount so: else the kernel might wait for its
/// answer to the last one (DESTROY), for ever.
pub fn unmount_by_force(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_with(mountpoint, lazy, true)
}

fn unmount_with(mountpoint: &Path, lazy: bool, force: bool) -> Result<(), MountError> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    flags.set(UnmountFlags::FORCE, force);
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy { path: mountpoint.to_owned() }),
        Err(Errno::PERM) => unmount_through_helper(mountpoint, lazy),
        Err(Errno::INVAL) => {
            Err(refuse("unmount", mountpoint, &io::Error::other("nothing is mounted there")))
        }
        Err(errno) => Err(refuse("unmount", mountpoint, &errno.into())),
    }
}

/// Why something was not done: `mount`, `remount` or `unmount`.
pub(crate) fn refuse(action: &'static str, mountpoint: &Path, error: &io::Error) -> MountError {
    MountError::Refused { action, path: mountpoint.to_owned(), why: io_text(error) }
}

fn unmount_through_helper(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    run_unmount(&mut command, mountpoint).map_err(|error| no_helper("unmount", mountpoint, &error))?
}

/// Why something was not done, if fusermount3 cannot be run.
fn no_helper(action: &'static str, mountpoint: &Path, error: &io::Error) -> MountError {
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("fusermount3 is not installed; install the package fuse3, or {action} as root")
        }
        _ => format!("cannot run fusermount3: {}", io_text(error)),
    };
    MountError::Refused { action, path: mountpoint.to_owned(), why }
}

/// Unmounts what this process serves, as [`unmount`] does. The kernel may wait for the answer to the last request (DESTROY); a thread that was killed
/// with the process while it waited for that would wait for ever, and keep the connection from ending. So another process waits, which may not be
/// had. For who is not root there is no such request.
pub(crate) fn unmount_own(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return unmount(mountpoint, lazy);
    }
    let mut command = Command::new("umount");
    // No helper of ours, and no look at the mount itself. What a terminal sends to the daemon is not for it.
    command.args(["-i", "-c"]).args(lazy.then_some("-l")).arg("--").arg(mountpoint).process_group(0);
    run_unmount(&mut command, mountpoint).map_err(|error| refuse("unmount", mountpoint, &error))?
}

/// Runs a program that unmounts. The outer error is that it cannot be run.
fn run_unmount(command: &mut Command, mountpoint: &Path) -> io::Result<Result<(), MountError>> {
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let path = mountpoint.to_owned();
    Ok(Err(match why.replace(&*path.to_string_lossy(), "").contains("busy") {
        true => MountError::Busy { path },
        false => MountError::Refused { action: "unmount", path, why },
    }))
}

/// What was mounted here from this source a moment ago, and is in the table. Another PandoFS may have been mounted over it since. It is unmounted if nothing can be
/// learned of it; what somebody else has put in its place stays.
pub(crate) fn just_mounted_at(
    table: &MountTable,
    path: &Path,
    source: &Path,
) -> Result<MountEntry, MountError> {
    let mounted = table.mounted().map_err(|error| {
        // The first error is the one to tell.
        let _ = unmount_by_force(path, true);
        refuse("mount", path, &error)
    })?;
    // As it is, or as fusermount3 was given it.
    let given = source.to_string_lossy();
    let is_it = |entry: &&MountEntry| {
        entry.mountpoint == path && (entry.source == source || entry.source.as_os_str() == &*given)
    };
    let unlisted = || io::Error::other("the kernel does not list it in /proc/self/mountinfo");
    let entry = mounted.iter().rfind(is_it).cloned();
    entry.ok_or_else(|| refuse("mount", path, &unlisted()))
}

/// Lets the kernel read further ahead than the 128 KiB that FUSE offers in its handshake. Best effort: only root may,
/// and only where sysfs is mounted.
pub(crate) fn set_read_ahead(device: &str, bytes: u32) {
    // The name without an ending is that of the block device itself, for a mount of one.
    for name in [format!("{device}-fuseblk"), device.to_owned()] {
        let path = Path::new("/sys/class/bdi").join(name).join("read_ahead_kb");
        if std::fs::write(path, (bytes / 1024).to_string()).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn parse(names: &[&str]) -> Vec<VfsOption> {
        names.iter().map(|name| VfsOption::parse(name).unwrap()).collect()
    }

    #[test]
    fn the_helper_is_told_what_options_amount_to() {
        let told = |source: &[u8], names| {
            let look = Appearance {
                source: Path::new(OsStr::from_bytes(source)),
                claim: None,
                vfs_options: &parse(names),
                contexts: &["fscontext=l".to_owned()],
                allow_other: false,
                default_permissions: false,
            };
            let data = look.data(&File::open("/dev/null").unwrap());
            assert!(data.ends_with(",fscontext=l"), "{data}");
            let mut names = look.names();
            assert_eq!(names.pop().as_deref(), Some(&b"fscontext=l"[..]));
            names
        };
        assert_eq!(told(b"/a,b\\\xff", &[])[0], b"fsname=/a\\,b\\\\\xff");
        let told = |names| {
            let options = told(b"disk.img", names).split_off(3);
            options.into_iter().map(|option| String::from_utf8(option).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(told(&["nosymfollow", "nosuid", "symfollow", "lazytime"]), ["nosuid"]);
        assert_eq!(told(&["symfollow", "nosymfollow", "rw"]), ["nosymfollow", "rw"]);
        let of_access = ["diratime", "nodiratime", "relatime", "norelatime", "nostrictatime"];
        assert_eq!(told(&of_access), [""; 0]);
        assert_eq!(told(&["noatime", "relatime"]), ["noatime"]);
        assert_eq!(told(&["strictatime", "noatime"]), [""; 0]);
        assert_eq!(told(&["strictatime", "noatime", "nostrictatime"]), ["noatime"]);
    }

    #[test]
    fn who_has_no_helper_is_told_where_to_get_it() {
        let said = |errno: Errno| no_helper("unmount", Path::new("/mnt"), &errno.into()).to_string();
        assert_eq!(
            said(Errno::NOENT),
            "cannot unmount /mnt: fusermount3 is not installed; install the package fuse3, or unmount as root"
        );
        assert_eq!(said(Errno::MFILE), "cannot unmount /mnt: cannot run fusermount3: too many open files");
    }

    /// Of two daemons that mounted at the same time, the first took the second's mount for its own.
    #[test]
    fn what_was_just_mounted_is_known_below_another_one() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("SKIPPED what_was_just_mounted_is_known_below_another_one: it needs /dev/fuse and root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let table = MountTable::open().unwrap();
        let found = |source: &str| just_mounted_at(&table, &path, Path::new(source));
        let mut mounted = Vec::new();
        for source in ["/a volume#", "/another"] {
            let look = Appearance {
                source: Path::new(source),
                claim: None,
                vfs_options: &[],
                contexts: &[],
                allow_other: false,
                default_permissions: false,
            };
            mounted.push((mount(&path, &look).unwrap(), found(source).unwrap().device));
        }
        let devices = ["/a volume#", "/another"].map(|source| found(source).unwrap().device);
        let is_unlisted = found("/a").is_err();
        // What fails must not leave them.
        mounted.iter().for_each(|_| unmount_by_force(&path, true).unwrap());
        assert!(devices.iter().eq(mounted.iter().map(|(_, device)| device)), "{devices:?} {mounted:?}");
        assert!(devices[0] != devices[1] && is_unlisted);
    }

    #[test]
    fn later_options_win() {
        assert_eq!(flags(&parse(&["ro", "nosuid", "rw"])), MountFlags::NOSUID);
        assert_eq!(flags(&parse(&["noexec", "exec", "ro"])), MountFlags::RDONLY);
        assert_eq!(VfsOption::parse("writeback"), None);
    }
}
