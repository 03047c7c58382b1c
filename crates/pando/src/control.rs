//! How other commands talk to the daemon of a mounted volume: a Unix socket, one line of JSON each way.
//!
//! The socket is named after the device number of the mount, which the kernel's table of mounts gives without asking
//! the mount itself. A request is `{"request":"info"}`; an answer `{"ok":...}` or `{"error":"a sentence"}`. Requests:
//!
//! * `info`: what is mounted where, by which process.
//! * `stats`: the counters of the engine.
//! * `usage`: who uses the space, as of the last checkpoint, or with `fresh` of one that is written for it.
//! * `sync`: makes everything done so far durable.
//! * `checkpoint`: writes a checkpoint.
//! * `snapshot`: with `action`, `create`, `list`, `delete` or `rollback`, and `name`; to create, `writable` too.
//! * `mount`: mounts the snapshot `name` on the directory `mountpoint` with the mount options `options`.
//! * `wait`: answered twice: at once, and when the volume has been closed after the unmount, with the last checkpoint on
//!   the device.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde_json::{Value, json};

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
            Self::Refused(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for ControlError {}

/// The directory for the sockets of this user's daemons.
pub fn own_directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return ROOT_DIRECTORY.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => Path::new(&directory).join("pando"),
        None => format!("/tmp/pando-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// The socket of the daemon that serves a device number, `major:minor`.
pub fn socket_in(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("{}.socket", device.replace(':', "-")))
}

/// Fails if somebody else than this user could put a socket into a directory.
pub fn check_directory(directory: &Path, owner: u32) -> io::Result<()> {
    let metadata = directory.symlink_metadata()?;
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

/// Whether the daemon has been killed, as far as its socket tells. The socket it left behind is removed.
pub fn is_dead(device: &str, error: &ControlError) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if !matches!(error, ControlError::Unreachable(error) if refused(error)) {
        return false;
    }
    let directory = own_directory();
    let socket = socket_in(&directory, device);
    // If it stays, the next daemon with this number removes it.
    if let Ok(_lock) = lock_directory(&directory)
        && UnixStream::connect(&socket).is_err_and(|error| refused(&error))
    {
        let _ = std::fs::remove_file(socket);
    }
    true
}

/// A conversation with a daemon.
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the daemon that serves this device number, be it this user's or root's.
    pub fn open(device: &str) -> Result<Self, ControlError> {
        let connect = |directory: &Path, owner| {
            check_directory(directory, owner)?;
            UnixStream::connect(socket_in(directory, device))
        };
        let own = connect(&own_directory(), rustix::process::geteuid().as_raw());
        let stream = own.or_else(|error| {
            // Which error to tell: that of the socket that exists.
            connect(Path::new(ROOT_DIRECTORY), 0).map_err(|other| match error.kind() {
                io::ErrorKind::NotFound => other,
                _ => error,
            })
        });
        Ok(Self { stream: BufReader::new(stream.map_err(ControlError::Unreachable)?) })
    }

    /// Sends a request, without waiting for its answer.
    pub fn send(&mut self, request: &str) -> Result<(), ControlError> {
        self.send_value(&json!({ "request": request }))
    }

    fn send_value(&mut self, request: &Value) -> Result<(), ControlError> {
        let line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|_| ControlError::Ended)
    }

    /// Waits for the answer to the request sent before.
    pub fn receive(&mut self) -> Result<Value, ControlError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(length) if length > 0 => answer(&line),
            _ => Err(ControlError::Ended),
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
        let _ = self.stream.read_to_end(&mut Vec::new());
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
