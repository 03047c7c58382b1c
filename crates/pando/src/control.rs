//! How other commands talk to the daemon of a mounted volume: a Unix socket, one line of JSON each way.
//!
//! The socket is named after the device number of the mount, which the kernel's table of mounts gives without asking
//! the mount itself. A request is `{"request":"info"}`; an answer `{"ok":...}` or `{"error":"a sentence"}`. Requests:
//!
//! * `info`: what is mounted where, by which process; in `file`, what the volume is in, by device and inode or by the number of a block device; and
//!   as `failure` why the volume takes no changes any more. If `brief` is true, without the mounts of snapshots.
//! * `stats`: the counters of the engine, and the same `failure`.
//! * `space`: how full the volume is, as statfs(2) tells those whom the mount lets in.
//! * `usage`: who uses the space, as of the last checkpoint, or with `fresh` of one that is written for it.
//! * `sync`: makes everything done so far durable.
//! * `checkpoint`: writes a checkpoint.
//! * `refuse_changes`: refuses changes, snapshots and clones included, if `refuse` is true, and no longer if it is false, which an engine
//!   that has failed does not allow; answers what was so before.
//! * `remount`: answered when no other connection remounts this mount; until this one ends, none does.
//! * `snapshot`: with `action`, `create`, `list`, `delete` or `rollback`, and `name`; to create, `of` and `writable` too; or `diff` and `send`,
//!   whose answers follow what they found or sent.
//! * `receive`: makes a snapshot, called `name` if that is there, of the stream that follows in pieces; one of 0 bytes ends it.
//! * `mount`: mounts the snapshot `name` on the directory `mountpoint` with the mount options `options`.
//! * `wait`: answered twice: at once, and when the volume has been closed after the unmount, with the last checkpoint on
//!   the device.
//!
//! Where more than an answer is to be said, it comes in pieces before it: a line `{"piece":N}` and N bytes.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_device::peer::peer;
use pando_fuse::mount_table::mounted;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Uid};
use serde_json::{Value, json};

use crate::output::shown;

/// What a daemon of another user has for an answer, who may have any program listen there: root's commands come to an end.
const STRANGERS_TIME: Duration = Duration::from_secs(10);
const STRANGERS_LINE_MAX: u64 = 16 << 20;

/// Bytes of a piece, at most.
const PIECE_BYTES_MAX: u64 = 16 << 20;

/// Longest line of a request, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 4096;

/// Where root's daemons have their sockets.
const ROOT_DIRECTORY: &str = "/run/pando";

/// Why a daemon gave no good answer.
#[derive(Debug)]
pub enum ControlError {
    /// It cannot be reached.
    Unreachable(io::Error),
    /// It has ended, or broke off.
    Ended,
    /// It answered with this sentence.
    Refused(String),
}

impl std::fmt::Display for ControlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "its daemon cannot be reached: {}", crate::failure::io_text(error))
            }
            Self::Ended => f.write_str("its daemon ended without an answer"),
            // It may be another user's.
            Self::Refused(sentence) => f.write_str(&shown(sentence.as_bytes())),
        }
    }
}

impl std::error::Error for ControlError {}

/// The directory for the sockets of this user's daemons.
pub fn own_directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    own_directories(rustix::process::geteuid(), runtime).swap_remove(0)
}

/// Where this user's daemons may have their sockets, with the directory for new ones first: one that was started by another session, by cron or by
/// sudo has, or had, another `XDG_RUNTIME_DIR`, or none.
fn own_directories(user: Uid, runtime: Option<PathBuf>) -> Vec<PathBuf> {
    if user.is_root() {
        return vec![ROOT_DIRECTORY.into()];
    }
    // Its specification has relative paths passed over.
    let runtime = runtime.filter(|directory| directory.is_absolute());
    let of_session = Path::new("/run/user").join(user.to_string());
    let shared = PathBuf::from(format!("/tmp/pando-{user}"));
    let mut directories = match runtime {
        Some(runtime) => vec![runtime.join("pando"), of_session.join("pando"), shared],
        None => vec![shared, of_session.join("pando")],
    };
    directories.dedup();
    directories
}

/// Where the daemon of this user's mount may have its socket, and the user whose directory that must be. Of a mount that nobody sees any more, ours or root's.
fn candidates(owner: Option<Uid>) -> Vec<(PathBuf, Uid)> {
    let user = rustix::process::geteuid();
    let own_runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let of = |owner: Uid| {
        let runtime = own_runtime.clone().filter(|_| owner == user);
        own_directories(owner, runtime).into_iter().map(move |directory| (directory, owner))
    };
    match owner {
        Some(owner) => of(owner).collect(),
        None if user.is_root() => of(user).collect(),
        None => of(user).chain(of(Uid::ROOT)).collect(),
    }
}

/// Whose process serves the mount with this device number.
fn owner_of(device: &str) -> Option<Uid> {
    mounted().ok()?.into_iter().rfind(|mount| mount.device == device)?.owner
}

/// Connects to the socket of a device number in the first directory that has a good one.
fn connect(candidates: &[(PathBuf, Uid)], device: &str) -> io::Result<UnixStream> {
    let mut told = io::Error::from(io::ErrorKind::NotFound);
    for (directory, owner) in candidates {
        match connect_in(directory, *owner, device) {
            Ok(stream) => return Ok(stream),
            // Which error to tell: that of a socket, or else of a directory that is there.
            Err(error) if told.kind() == io::ErrorKind::NotFound || is_refused(&error) => told = error,
            Err(_) => {}
        }
    }
    Err(told)
}

/// Connects to a socket that is this user's, in a directory that is, and with his process at its other end. He may put something else in their place at any time,
/// and root asks here, too: no link is followed, and what was looked at is what is connected to.
fn connect_in(directory: &Path, owner: Uid, device: &str) -> io::Result<UnixStream> {
    const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let path = socket_in(directory, device);
    let name = path.file_name().expect("it is named after the device");
    let directory = File::from(rustix::fs::open(directory, LOOK, Mode::empty())?);
    check_owner(&directory.metadata()?, owner.as_raw())?;
    let socket = File::from(rustix::fs::openat(&directory, name, LOOK, Mode::empty())?);
    let metadata = socket.metadata()?;
    let strange =
        || io::Error::new(io::ErrorKind::PermissionDenied, "what should be its socket is another user's");
    if !metadata.file_type().is_socket() || metadata.uid() != owner.as_raw() {
        return Err(strange());
    }
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
    // One who takes no more clients would have the next wait.
    let waits = if is_strange(owner) { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let flags = waits | SocketFlags::CLOEXEC;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &address)?;
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    if peer(&stream)?.uid == owner { Ok(stream) } else { Err(strange()) }
}

/// Whether this user's daemon may mean ill to who asks it: root asks others' as well.
fn is_strange(owner: Uid) -> bool {
    !owner.is_root() && owner != rustix::process::geteuid()
}

/// The socket of the daemon that serves a device number, `major:minor`.
pub fn socket_in(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("{}.socket", device.replace(':', "-")))
}

/// Fails if somebody else than this user could put a socket into a directory.
pub fn check_directory(directory: &Path, owner: u32) -> io::Result<()> {
    check_owner(&directory.symlink_metadata()?, owner)
}

fn check_owner(metadata: &Metadata, owner: u32) -> io::Result<()> {
    let why = if !metadata.is_dir() {
        "what should be its directory is none"
    } else if metadata.uid() != owner {
        "its directory belongs to another user"
    } else if metadata.mode() & 0o022 != 0 {
        "its directory can be changed by other users"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Keeps others from changing the sockets in a directory for as long as it lives. Device numbers are used again at once:
/// while one daemon ends, the next may have put its own socket where that of the first was.
///
/// The lock is a file that nobody else can open: a lock on the directory itself, any user could hold.
pub fn lock_directory(directory: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let lock = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(directory.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Nobody listens at a socket that is there.
fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Removes the socket that a daemon has left behind which was killed. False if it was not, as far as its socket tells.
pub fn remove_dead(device: &str, error: &ControlError) -> bool {
    if !matches!(error, ControlError::Unreachable(error) if is_refused(error)) {
        return false;
    }
    let user = rustix::process::geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Not in those of another user, whatever the socket was: root touches nothing there.
    for directory in own_directories(user, runtime) {
        let socket = socket_in(&directory, device);
        // If it stays, the next daemon with this number removes it. No lock is left where there is none.
        if check_directory(&directory, user.as_raw()).is_ok()
            && socket.symlink_metadata().is_ok()
            && let Ok(_lock) = lock_directory(&directory)
            && UnixStream::connect(&socket).is_err_and(|error| is_refused(&error))
        {
            let _ = std::fs::remove_file(socket);
        }
    }
    true
}

/// A conversation with a daemon.
pub struct Connection {
    stream: BufReader<UnixStream>,
    /// It is that of a user who may mean ill.
    is_strange: bool,
}

impl Connection {
    /// Connects to the daemon that serves this device number. Others' serve root alone.
    pub fn open(device: &str) -> Result<Self, ControlError> {
        let stream = connect(&candidates(owner_of(device)), device).map_err(ControlError::Unreachable)?;
        Ok(Self::new(stream))
    }

    fn new(stream: UnixStream) -> Self {
        let is_strange = peer(&stream).map_or(true, |peer| is_strange(peer.uid));
        Self { stream: BufReader::new(stream), is_strange }
    }

    /// The daemon's process, unless it is outside of our pid namespace.
    pub fn pid(&self) -> Option<Pid> {
        peer(self.stream.get_ref()).ok()?.pid
    }

    /// Sends a request, without waiting for its answer.
    pub fn send(&mut self, request: &str) -> Result<(), ControlError> {
        self.send_value(&json!({ "request": request }))
    }

    /// The same with a whole request.
    pub fn send_value(&mut self, request: &Value) -> Result<(), ControlError> {
        let line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|_| ControlError::Ended)
    }

    /// Waits for the answer to the request sent before. A daemon of somebody else has some seconds for it.
    pub fn receive(&mut self) -> Result<Value, ControlError> {
        answer(&self.line(self.is_strange.then_some(STRANGERS_TIME))?)
    }

    /// The same, however long it takes.
    pub fn receive_at_last(&mut self) -> Result<Value, ControlError> {
        answer(&self.line(None)?)
    }

    fn line(&mut self, time: Option<Duration>) -> Result<String, ControlError> {
        let mut line = Vec::new();
        let begun = Instant::now();
        let most = if self.is_strange { STRANGERS_LINE_MAX } else { u64::MAX };
        loop {
            let left = time.map(|time| time.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ControlError::Unreachable(ErrorKind::TimedOut.into()));
            }
            if line.len() as u64 >= most {
                return Err(ControlError::Ended);
            }
            let _ = self.stream.get_ref().set_read_timeout(left);
            let rest = most - line.len() as u64;
            // What has come in time stays in the line when the rest does not.
            match self.stream.fill_buf().map(<[u8]>::len) {
                Ok(length) if length > 0 => {}
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
                    continue;
                }
                _ => return Err(ControlError::Ended),
            }
            let held = self.stream.buffer().len() as u64;
            let taken = (&mut self.stream).take(rest.min(held)).read_until(b'\n', &mut line);
            taken.map_err(|_| ControlError::Ended)?;
            if line.ends_with(b"\n") {
                let _ = self.stream.get_ref().set_read_timeout(None);
                return String::from_utf8(line).map_err(|_| ControlError::Ended);
            }
        }
    }

    /// The same where pieces come before it: they are written to `out`, whose errors end it.
    fn receive_pieces(&mut self, out: &mut dyn Write) -> io::Result<Result<Value, ControlError>> {
        loop {
            let line = match self.line(None) {
                Ok(line) => line,
                Err(error) => return Ok(Err(error)),
            };
            let Some(length) = piece_length(&line) else { return Ok(answer(&line)) };
            let mut piece = vec![0; length];
            if self.stream.read_exact(&mut piece).is_err() {
                return Ok(Err(ControlError::Ended));
            }
            out.write_all(&piece)?;
        }
    }

    /// True as soon as there is something to receive, false if there is nothing after this time.
    pub fn has_answer_within(&mut self, time: Duration) -> bool {
        // Without the time-out it waits for as long as it takes, which is what the caller does next.
        let _ = self.stream.get_ref().set_read_timeout(Some(time));
        let waiting = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let answered = !self.stream.fill_buf().is_err_and(|error| waiting(&error));
        let _ = self.stream.get_ref().set_read_timeout(None);
        answered
    }

    /// Waits until the daemon has closed its end.
    pub fn wait_for_end(mut self) {
        // Whatever comes: bytes, the end, or an error, which is an end too.
        let _ = io::copy(&mut self.stream, &mut io::sink());
    }
}

/// Asks the daemon that serves a device number.
pub fn request(device: &str, request: &str) -> Result<Value, ControlError> {
    request_value(device, &json!({ "request": request }))
}

/// The same with a whole request.
pub fn request_value(device: &str, request: &Value) -> Result<Value, ControlError> {
    let mut connection = Connection::open(device)?;
    connection.send_value(request)?;
    connection.receive()
}

/// The same for a request whose answer comes behind pieces. The outer error is that of `out`.
pub fn request_pieces(
    device: &str,
    request: &Value,
    out: &mut dyn Write,
) -> io::Result<Result<Value, ControlError>> {
    let asked = Connection::open(device).and_then(|mut connection| {
        connection.send_value(request)?;
        Ok(connection)
    });
    match asked {
        Ok(mut connection) => connection.receive_pieces(out),
        Err(error) => Ok(Err(error)),
    }
}

/// The same for a request that is followed by what `input` gives. The outer error is that of `input`; the daemon has done nothing then.
pub fn request_with_input(
    device: &str,
    request: &Value,
    input: &mut dyn Read,
) -> io::Result<Result<Value, ControlError>> {
    let mut connection = match Connection::open(device) {
        Ok(connection) => connection,
        Err(error) => return Ok(Err(error)),
    };
    if let Err(error) = connection.send_value(request) {
        return Ok(Err(error));
    }
    let mut piece = vec![0; INPUT_PIECE_BYTES];
    loop {
        let length = match input.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        let stream = connection.stream.get_mut();
        let written = match length {
            0 => stream.write_all(b"{\"piece\":0}\n"),
            _ => Pieces(stream).write_all(&piece[..length]),
        };
        // Where it wants no more it has said why.
        if length == 0 || written.is_err() {
            return Ok(connection.receive());
        }
    }
}

/// What follows a request is sent in pieces of so many bytes.
const INPUT_PIECE_BYTES: usize = 256 << 10;

/// What is said in pieces, up to that of 0 bytes. A conversation that breaks off before is an error.
pub struct FromPieces<R: BufRead> {
    input: R,
    left: usize,
    ended: bool,
}

impl<R: BufRead> FromPieces<R> {
    /// Reads pieces.
    pub fn new(input: R) -> Self {
        Self { input, left: 0, ended: false }
    }
}

impl<R: BufRead> Read for FromPieces<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let broken = || io::Error::new(io::ErrorKind::ConnectionAborted, "its sender has gone");
        if self.left == 0 && !self.ended {
            let mut line = String::new();
            self.input.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)?;
            self.left = piece_length(&line).ok_or_else(broken)?;
            self.ended = self.left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let most = out.len().min(self.left);
        match self.input.read(&mut out[..most])? {
            0 if most > 0 => Err(broken()),
            length => {
                self.left -= length;
                Ok(length)
            }
        }
    }
}

/// Bytes of the piece that a line announces.
fn piece_length(line: &str) -> Option<usize> {
    let line: Value = serde_json::from_str(line).ok()?;
    let length = line.get("piece")?.as_u64()?;
    (length <= PIECE_BYTES_MAX).then_some(length as usize)
}

/// Says what is written to it in pieces.
pub struct Pieces<W: Write>(pub W);

impl<W: Write> Write for Pieces<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(PIECE_BYTES_MAX as usize);
        self.0.write_all(format!("{{\"piece\":{length}}}\n").as_bytes())?;
        self.0.write_all(&bytes[..length])?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn answer(line: &str) -> Result<Value, ControlError> {
    let mut answer: Value = serde_json::from_str(line).map_err(|_| ControlError::Ended)?;
    if let Some(ok) = answer.get_mut("ok") {
        return Ok(ok.take());
    }
    match answer.get("error").and_then(Value::as_str) {
        Some(sentence) => Err(ControlError::Refused(sentence.to_owned())),
        None => Err(ControlError::Ended),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A user's daemon that was started from another session was not found.
    #[test]
    fn a_daemon_is_found_wherever_it_may_have_its_socket() {
        let user = Uid::from_raw(1000);
        let of = |runtime: Option<&str>| own_directories(user, runtime.map(PathBuf::from));
        let [session, shared] = ["/run/user/1000/pando", "/tmp/pando-1000"].map(PathBuf::from);
        assert_eq!(of(Some("/x")), [Path::new("/x/pando"), &session, &shared]);
        assert_eq!(of(Some("/run/user/1000")), [session.clone(), shared.clone()]);
        for none in [None, Some("relative")] {
            assert_eq!(of(none), [shared.clone(), session.clone()]);
        }
        assert_eq!(own_directories(Uid::ROOT, Some("/x".into())), [Path::new(ROOT_DIRECTORY)]);

        let above = tempfile::tempdir().unwrap();
        let owner = rustix::process::geteuid();
        let candidates = ["none", "dead", "open", "good"].map(|name| (above.path().join(name), owner));
        let listen = |directory: &Path| {
            std::fs::create_dir(directory).unwrap();
            UnixListener::bind(socket_in(directory, "0:52")).unwrap()
        };
        let fails = |kind| connect(&candidates, "0:52").is_err_and(|error| error.kind() == kind);
        assert!(fails(io::ErrorKind::NotFound));
        drop(listen(&candidates[1].0));
        assert!(fails(io::ErrorKind::ConnectionRefused));
        // Whoever can write there could be anybody.
        let _open = listen(&candidates[2].0);
        std::fs::set_permissions(&candidates[2].0, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(fails(io::ErrorKind::ConnectionRefused));
        let good = listen(&candidates[3].0);
        good.set_nonblocking(true).unwrap();
        assert!(connect(&candidates, "0:52").is_ok());
        assert!(good.accept().is_ok(), "it is another one's");
    }

    /// Any program can listen at another user's socket: root waited for its answer for ever, or took all that it said into memory.
    #[test]
    fn a_strangers_daemon_has_some_seconds_and_a_line() {
        let connected = |is_strange: bool| {
            let (here, there) = UnixStream::pair().unwrap();
            (Connection { stream: BufReader::new(here), is_strange }, there)
        };
        let (mut silent, there) = connected(true);
        (&there).write_all(b"{").unwrap();
        let (begun, time) = (Instant::now(), Duration::from_millis(100));
        assert!(matches!(silent.line(Some(time)), Err(ControlError::Unreachable(_))));
        assert!(begun.elapsed() >= time);
        for is_strange in [true, false] {
            let (mut endless, there) = connected(is_strange);
            let writer = std::thread::spawn(move || {
                let line = vec![b'a'; 2 * STRANGERS_LINE_MAX as usize];
                (&there).write_all(&line).and_then(|()| (&there).write_all(b"\n")).is_ok()
            });
            assert_eq!(endless.line(None).is_err(), is_strange);
            drop(endless);
            assert_ne!(writer.join().unwrap(), is_strange);
        }
    }

    /// Root looked in its own directory alone, and took for dead what had a dead daemon's number there.
    #[test]
    fn a_daemon_is_looked_for_where_the_owner_of_its_mount_has_it() {
        let user = rustix::process::geteuid();
        let other = Uid::from_raw(user.as_raw() + 1000);
        let of_other = own_directories(other, None).into_iter().map(|directory| (directory, other));
        assert_eq!(candidates(Some(other)), of_other.collect::<Vec<_>>());
        assert_eq!(candidates(Some(Uid::ROOT)), [(ROOT_DIRECTORY.into(), Uid::ROOT)]);
        assert!(candidates(None).iter().all(|(_, owner)| *owner == user || owner.is_root()));
    }

    /// Whoever owns a directory could have root talk to whatever listens elsewhere.
    #[test]
    fn no_link_to_a_socket_is_followed() {
        let above = tempfile::tempdir().unwrap();
        let owner = rustix::process::geteuid();
        let [good, link, inside] = ["good", "link", "inside"].map(|name| above.path().join(name));
        std::fs::create_dir(&good).unwrap();
        std::fs::create_dir(&inside).unwrap();
        let _socket = UnixListener::bind(socket_in(&good, "0:52")).unwrap();
        symlink(&good, &link).unwrap();
        symlink(socket_in(&good, "0:52"), socket_in(&inside, "0:52")).unwrap();
        assert!(connect_in(&good, owner, "0:52").is_ok());
        for directory in [&link, &inside] {
            let refused = connect_in(directory, owner, "0:52").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        // Nor is a socket of another user good.
        if std::os::unix::fs::chown(socket_in(&good, "0:52"), Some(owner.as_raw() + 1), None).is_ok() {
            assert!(connect_in(&good, owner, "0:52").is_err());
        }
    }
}
