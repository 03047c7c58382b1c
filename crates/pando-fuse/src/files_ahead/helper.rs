//! The helper's process: listens to the daemon, looks after the mount, and asks the kernel to read. It aborts the connection of a daemon that was killed.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, fadvise, fstat, openat2};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::net::{RecvFlags, Shutdown};

use super::connection::Connection;
use super::message::{self, Read};
use super::walk::{Name, Tree, Walks};
use crate::mount_table;

/// Files that the kernel is asked to read before the helper waits. More would only delay what the programs themselves ask for.
const IN_FLIGHT_MAX: usize = 32;

/// Of those, so many are there when it goes on: to wait for each would be to be woken for each.
const IN_FLIGHT_DONE: usize = 24;

/// As much of a file is read ahead; whoever reads on gets the kernel's own read-ahead.
const FILE_BYTES_MAX: u64 = 512 << 10;

/// A directory with more names is not walked through.
const NAMES_MAX: usize = 1 << 14;

/// Directories with more that are remembered, so as not to be listed each time.
const LARGE_MAX: usize = 16;

/// Messages that are taken at a time.
const MESSAGES: usize = 16;

/// Steps between two looks for messages and at the mount.
const STEPS: usize = 8;

/// What was heard of is forgotten if nothing follows for so long.
const FORGET_AFTER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// So long without work it holds on to the mount, which takes a moment to get and to let go of.
const HOLD_FOR: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Serves as the helper of the daemon at the other end of the socket, for what is mounted at a path, until the daemon is gone. There is something to be read
/// from `killed`, if that can be had, once the daemon's thread that started this process has ended, which lets go of the socket before unless it is
/// killed. An error if the mount cannot be worked on, which the daemon can do without.
pub fn run(
    socket: BorrowedFd<'_>,
    killed: Option<impl io::Read + Send + 'static>,
    mountpoint: &Path,
    device: &str,
) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"pando-files");
    // Before anything that waits for the daemon. Without it, as where this user namespace has no say, the rest works all the same.
    let _ = killed.map(|killed| abort_when(killed, device));
    let mounts = std::fs::File::open("/proc/self/mountinfo")?;
    hold(mountpoint, device)?;
    let mut files =
        Files { mountpoint, device, root: None, in_flight: VecDeque::new(), large: VecDeque::new() };
    let mut walks = Walks::default();
    // Only changes from now on are told of.
    if !is_mounted(device) {
        drop(files);
        return await_end(socket);
    }
    let mut rests = false;
    loop {
        if rests {
            files.in_flight.clear();
        }
        let patience = match (rests, files.root.is_some(), walks.is_empty()) {
            (false, ..) => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            (true, true, _) => Some(&HOLD_FOR),
            (true, false, false) => Some(&FORGET_AFTER),
            (true, false, true) => None,
        };
        let mut awaited = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&mounts, PollFlags::PRI)];
        let ready = match poll(&mut awaited, patience) {
            Err(Errno::INTR) => continue,
            ready => ready?,
        };
        let [socket_ready, mounts_ready] = awaited.map(|one| !one.revents().is_empty());
        if mounts_ready && !is_mounted(device) {
            drop(files);
            return await_end(socket);
        }
        if socket_ready && !receive(socket, |read| walks.note(&read, &mut files))? {
            return Ok(());
        }
        if rests && ready == 0 && files.root.take().is_none() {
            walks = Walks::default();
        }
        rests = (0..STEPS).any(|_| !walks.step(&mut files));
    }
}

/// Aborts the connection when the daemon has been killed, from a thread of its own: that at hand may wait for the daemon then.
fn abort_when(mut killed: impl io::Read + Send + 'static, device: &str) -> io::Result<()> {
    let connection = Connection::of(device)?;
    let guard = move || {
        if killed.read_exact(&mut [0]).is_ok() {
            connection.abort();
        }
    };
    std::thread::Builder::new().name("pando-guard".to_owned()).spawn(guard).map(drop)
}

/// Waits for the end of a daemon that still serves whoever had something open when it was unmounted. Nothing is read ahead any more.
fn await_end(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Now the daemon is told that it need not tell anything.
    rustix::net::shutdown(socket, Shutdown::Read)?;
    loop {
        // Of its end one hears without having asked.
        match poll(&mut [PollFd::new(&socket, PollFlags::empty())], None) {
            Err(Errno::INTR) => {}
            ended => return Ok(ended.map(drop)?),
        }
    }
}

/// A mount of its own of what is mounted at a path. As long as there is one, an unmount there succeeds, but ends before the file system does.
fn hold(mountpoint: &Path, device: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let root = open_tree(CWD, mountpoint, flags)?;
    let found = fstat(&root)?.st_dev;
    match format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found)) == device {
        true => Ok(root),
        false => Err(io::Error::other("something else is mounted there")),
    }
}

/// Whether anything of the device is mounted anywhere; if that cannot be told, it is taken to be gone.
fn is_mounted(device: &str) -> bool {
    mount_table::mounted().is_ok_and(|mounted| mounted.iter().any(|entry| entry.device == device))
}

/// Takes some of the messages there are; false if the daemon is gone.
fn receive(socket: BorrowedFd<'_>, mut note: impl FnMut(Read)) -> io::Result<bool> {
    let mut buffer = [0; message::BYTES_MAX];
    for _ in 0..MESSAGES {
        match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Ok(false),
            Ok((length, _)) => message::decode(&buffer[..length]).map_or((), &mut note),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(true),
            Err(Errno::CONNRESET) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// The mounted files.
struct Files<'a> {
    mountpoint: &'a Path,
    device: &'a str,
    /// While it works.
    root: Option<OwnedFd>,
    /// Those that the kernel was asked to read last.
    in_flight: VecDeque<OwnedFd>,
    /// Directories that have too many names.
    large: VecDeque<Vec<u8>>,
}

impl Files<'_> {
    /// Opens what has this path without following any link, whatever was put in its way.
    fn open(&mut self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let root = match self.root.take() {
            Some(root) => root,
            None => hold(self.mountpoint, self.device)?,
        };
        let root = self.root.insert(root);
        let path = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat2(root, path, flags, Mode::empty(), within)?)
    }
}

impl Tree for Files<'_> {
    fn list(&mut self, path: &[u8]) -> Vec<Name> {
        if self.large.iter().any(|large| large == path) {
            return Vec::new();
        }
        let Ok(directory) = self.open(path, OFlags::DIRECTORY) else { return Vec::new() };
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
        let mut names = Vec::new();
        while let Some(Ok(entry)) = entries.next() {
            if names.len() == NAMES_MAX {
                self.large.truncate(LARGE_MAX - 1);
                self.large.push_front(path.to_vec());
                return Vec::new();
            }
            let is_directory = match entry.file_type() {
                FileType::RegularFile => false,
                FileType::Directory => true,
                _ => continue,
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(Name { name: name.to_vec(), is_directory });
            }
        }
        names
    }

    fn read(&mut self, file: &[u8]) {
        // Nothing that could wait for others, or do something: a pipe may have taken the file's place meanwhile.
        let Ok(file) = self.open(file, OFlags::NONBLOCK | OFlags::NOCTTY) else { return };
        if fadvise(&file, 0, std::num::NonZero::new(FILE_BYTES_MAX), Advice::WillNeed).is_err() {
            return;
        }
        self.in_flight.push_back(file);
        if self.in_flight.len() == IN_FLIGHT_MAX
            && let Some(awaited) = self.in_flight.drain(..IN_FLIGHT_DONE).next_back()
        {
            // Waits until its first page is there.
            let _ = rustix::io::pread(&awaited, &mut [0], 0);
        }
    }
}
