//! Files ahead: has the kernel read the files of a tree before the program that walks through it asks for them.
//!
//! A program that reads one small file after the other waits for us at each of them, however soon we answer: it sleeps, a thread of ours
//! wakes, and then the program again. What it will read next is known, though: the names of a directory come in the order of the tree, and a
//! program that has listed a directory and reads its files goes through them in that order, and on into the next directories. So a helper
//! follows it ([`walk`]), opens the next files and asks the kernel to read them; the program then finds them in the kernel's cache, and
//! nobody has to be woken for it.
//!
//! Only the kernel may fill its cache: it alone knows which of its pages are newer than what we have. And it must be asked by another
//! *process*. A thread that waits for a mount which its own process serves can be ended by nobody: the process does not come to its end
//! before the thread does, and the kernel gives up the requests only when the process has.
//!
//! The daemon tells its helper ([`message`]) of files that programs read from the start, if they lie in a directory that was listed of late,
//! which costs a look at a table for other loads. What the helper itself asks for is told by its process id.
//!
//! The helper works on a copy of the mount that nobody sees, so that none of its files keeps the mount from being unmounted. That copy keeps
//! the connection, however, so the helper looks whether the mount is still there at each change of /proc/self/mountinfo, and lets go of it without it;
//! it ends with the daemon, whose end of the socket is then closed. If that was killed, it aborts the connection ([`connection`]). Without the right to copy mounts (`CAP_SYS_ADMIN`) there is no helper.

mod connection;
mod helper;
mod message;
mod walk;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use pando_fs::operations::ROOT;
use pando_fs::{InodeNumber, Operations};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::recent::Recent;

pub use helper::run;

/// The name by which the helper is started.
pub const NAME: &str = "pando-files-ahead";

/// Listed directories that are remembered.
const LISTED_MAX: usize = 4096;

/// Directories above a file that are looked at; what lies deeper is read as ever.
const DEPTH_MAX: usize = 128;

/// Reads in a row that were followed by none of the helper's, after which it is told of a part of them only.
const FRUITLESS_MAX: u64 = 64;

/// Of so many reads then,
const FRUITLESS_ROUND: u64 = 32;

/// it is told of these: enough for the helper to see whether files are read in order again.
const FRUITLESS_SENT: u64 = 4;

/// For so long the end of the helper is waited for.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// The daemon's end.
pub(crate) struct FilesAhead {
    /// There until it is dropped.
    helper: Option<Child>,
    /// The helper's process; as long as nobody has waited for its end, no other has this number.
    pid: u32,
    socket: OwnedFd,
    /// The directories that were listed last.
    listed: Mutex<Recent<InodeNumber>>,
    /// So that loads that list nothing look no further.
    has_listed: AtomicBool,
    /// The helper has ended.
    is_gone: AtomicBool,
    /// Reads of others since the helper last read something.
    fruitless: AtomicU64,
}

impl FilesAhead {
    /// Starts `program` under the name [`NAME`] as the helper for what is mounted at a path: with the path and the device number as arguments,
    /// and the socket as its standard input. It is to call [`run`]. If the thread that calls this ends before it is dropped, the daemon was killed.
    pub(crate) fn start(program: &Path, mountpoint: &Path, device: &str) -> io::Result<Self> {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(program);
        // Whoever waits for the end of the daemon's output must not wait for the helper as well.
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        // What a terminal sends to the daemon is not for it.
        command.process_group(0);
        let helper = command.arg0(NAME).arg("--").arg(mountpoint).arg(device).spawn()?;
        Ok(Self {
            pid: helper.id(),
            helper: Some(helper),
            socket,
            listed: Mutex::new(Recent::new(LISTED_MAX)),
            has_listed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            fruitless: AtomicU64::new(0),
        })
    }

    /// A directory is being listed. The helper counts as well: what it has listed, the kernel lists for the program without us.
    pub(crate) fn note_listing(&self, directory: InodeNumber) {
        if !self.is_gone.load(Ordering::Relaxed) {
            self.listed.lock().insert(directory, ());
            self.has_listed.store(true, Ordering::Relaxed);
        }
    }

    /// A process reads the start of a file. Never waits.
    pub(crate) fn note_read(&self, fs: &dyn Operations, pid: u32, file: InodeNumber) {
        if pid == self.pid {
            self.fruitless.store(0, Ordering::Relaxed);
            return;
        }
        if !self.has_listed.load(Ordering::Relaxed) || self.is_gone.load(Ordering::Relaxed) {
            return;
        }
        let so_far = self.fruitless.fetch_add(1, Ordering::Relaxed);
        if so_far >= FRUITLESS_MAX && so_far % FRUITLESS_ROUND >= FRUITLESS_SENT {
            return;
        }
        let message = self.path_of(fs, file).and_then(|(depth, path)| message::encode(depth, &path));
        let sent = message.map(|message| {
            rustix::net::send(&self.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        });
        // One that has too much to read just misses it.
        if let Some(Err(errno)) = sent
            && errno != Errno::AGAIN
        {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }

    /// The names that lead to a file in a listed directory, and how many of them to the topmost directory that was listed together with all
    /// between.
    fn path_of(&self, fs: &dyn Operations, file: InodeNumber) -> Option<(usize, Vec<Bytes>)> {
        let (directory, name) = fs.place(file)?;
        let mut names = vec![name];
        let (mut at, mut listed_above) = (directory, Some(0));
        let listed = self.listed.lock();
        if !listed.contains(&directory) {
            return None;
        }
        let mut top = 0;
        while at != ROOT {
            let (parent, name) = fs.place(at).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(name);
            listed_above = listed_above.filter(|_| listed.contains(&parent)).map(|count| count + 1);
            top = listed_above.unwrap_or(top);
            at = parent;
        }
        names.reverse();
        Some((names.len() - 1 - top, names))
    }
}

impl Drop for FilesAhead {
    fn drop(&mut self) {
        // It has ended, or is about to: the mount is no more. Who lets go of it last, mostly the helper, takes apart what the kernel has cached of
        // it, as umount(2) does otherwise. That is part of unmounting. Should it hang, in what lies on the way to the mount point, nobody waits
        // for it for long.
        if let Some(mut helper) = self.helper.take() {
            let _ = helper.kill();
            let (ended, end) = mpsc::channel();
            let wait = move || ended.send(helper.wait().is_ok());
            if std::thread::Builder::new().name("pando-helper".to_owned()).spawn(wait).is_ok() {
                let _ = end.recv_timeout(END_TIME_MAX);
            }
        }
    }
}
