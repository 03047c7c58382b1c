//! Where a daemon says what went wrong: standard error in the foreground, the system's log in the background, or the
//! kernel's where there is no other.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixDatagram;

use crate::failure::complain;

/// Facility `daemon`, severity `error`; syslog(3).
const DAEMON_ERROR: u8 = 3 << 3 | 3;

/// The kernel takes entries of less than 1024 bytes.
const KERNEL_LINE_BYTES: usize = 976;

/// A place for sentences. Losing one is no reason to fail.
pub enum Log {
    /// Standard error.
    Foreground,
    /// The system's log.
    System(UnixDatagram),
    /// The kernel's log.
    Kernel(File),
    /// Nowhere: there is no log that this user may write to.
    Nowhere,
}

impl Log {
    /// A log for a daemon that has no terminal.
    pub fn background() -> Self {
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.connect("/dev/log")?;
            // A full log must not stop a request.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match (socket, File::options().write(true).open("/dev/kmsg")) {
            (Ok(socket), _) => Self::System(socket),
            (_, Ok(kernel)) => Self::Kernel(kernel),
            _ => Self::Nowhere,
        }
    }

    /// Writes a sentence.
    pub fn error(&self, sentence: &str) {
        let line = || format!("<{DAEMON_ERROR}>pando[{}]: {sentence}", std::process::id());
        match self {
            Self::Foreground => complain(sentence),
            Self::System(socket) => {
                let line = line();
                // Who takes the log may have been started anew since.
                if let Err(error) = socket.send(line.as_bytes())
                    && error.kind() != ErrorKind::WouldBlock
                    && socket.connect("/dev/log").is_ok()
                {
                    let _ = socket.send(line.as_bytes());
                }
            }
            // One write is one entry, and a longer one is none.
            Self::Kernel(file) => {
                let line = line();
                let end = line.len().min(KERNEL_LINE_BYTES);
                drop((&mut &*file).write_all(&line.as_bytes()[..end]));
            }
            Self::Nowhere => {}
        }
    }
}
