//! Where a daemon says what went wrong: standard error in the foreground, the system's log in the background, or the
//! kernel's where there is no other.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::complain;

/// Facility `daemon`, severity `error`; syslog(3).
const DAEMON_ERROR: u8 = 3 << 3 | 3;

/// The kernel takes entries of less than 1024 bytes.
const KERNEL_LINE_BYTES: usize = 976;

/// For so long what was reported is not written again.
const QUIET: Duration = Duration::from_secs(10);

/// So many sentences are remembered as reported, those that were written last.
const REMEMBERED_MAX: usize = 64;

/// Writes sentences somewhere. Losing one is no reason to fail.
pub struct Log {
    place: Place,
    reported: Mutex<Reported>,
}

/// Where they go.
enum Place {
    /// Standard error.
    Foreground,
    /// The system's log.
    System(UnixDatagram),
    /// The kernel's log.
    Kernel(File),
    /// Nowhere: there is no log that this user may write to.
    Nowhere,
}

impl From<Place> for Log {
    fn from(place: Place) -> Self {
        Self { place, reported: Mutex::default() }
    }
}

impl Log {
    /// A log for a daemon whose standard error somebody may read.
    pub fn foreground() -> Self {
        Place::Foreground.into()
    }

    /// A log for a daemon that has no terminal.
    pub fn background() -> Self {
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.connect("/dev/log")?;
            // A full log must not stop a request.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match (socket, File::options().write(true).open("/dev/kmsg")) {
            (Ok(socket), _) => Place::System(socket).into(),
            (_, Ok(kernel)) => Place::Kernel(kernel).into(),
            _ => Place::Nowhere.into(),
        }
    }

    /// Writes a sentence that may come again with each request, but not again and again.
    pub fn report(&self, sentence: &str) {
        let line = {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            reported.line(sentence, Instant::now())
        };
        if let Some(line) = line {
            self.error(&line);
        }
    }

    /// Writes a sentence.
    pub fn error(&self, sentence: &str) {
        let line = || format!("<{DAEMON_ERROR}>pando[{}]: {sentence}", std::process::id());
        match &self.place {
            Place::Foreground => complain(sentence),
            Place::System(socket) => {
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
            Place::Kernel(file) => {
                let line = line();
                let end = line.len().min(KERNEL_LINE_BYTES);
                drop((&mut &*file).write_all(&line.as_bytes()[..end]));
            }
            Place::Nowhere => {}
        }
    }
}

/// What was reported a moment ago, each once.
#[derive(Default)]
struct Reported(Vec<Written>);

struct Written {
    sentence: String,
    at: Instant,
    left_out: u64,
}

impl Reported {
    /// What to write of a sentence, if anything.
    fn line(&mut self, sentence: &str, now: Instant) -> Option<String> {
        let Some(index) = self.0.iter().position(|written| written.sentence == sentence) else {
            if self.0.len() == REMEMBERED_MAX {
                self.0.remove(0);
            }
            self.0.push(Written { sentence: sentence.to_owned(), at: now, left_out: 0 });
            return Some(sentence.to_owned());
        };
        let written = &mut self.0[index];
        if now.saturating_duration_since(written.at) < QUIET {
            written.left_out += 1;
            return None;
        }
        // Behind those that were written before.
        let mut written = self.0.remove(index);
        let left_out = std::mem::take(&mut written.left_out);
        written.at = now;
        self.0.push(written);
        Some(match left_out {
            0 => sentence.to_owned(),
            _ => format!("{sentence} ({left_out} times more since this was written)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads what is damaged in a loop filled the log.
    #[test]
    fn what_is_reported_again_and_again_is_written_now_and_then() {
        let mut reported = Reported::default();
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(reported.line("node 7", start).as_deref(), Some("node 7"));
        assert_eq!(reported.line("node 8", later(5)).as_deref(), Some("node 8"));
        for _ in 0..3 {
            assert_eq!(reported.line("node 7", later(9)), None);
        }
        let again = reported.line("node 7", later(10));
        assert_eq!(again.as_deref(), Some("node 7 (3 times more since this was written)"));
        assert_eq!(reported.line("node 7", later(19)), None);
        assert_eq!(reported.line("node 8", later(19)).as_deref(), Some("node 8"));
        for number in 0..2 * REMEMBERED_MAX {
            assert!(reported.line(&number.to_string(), later(19)).is_some());
        }
        assert_eq!(reported.0.len(), REMEMBERED_MAX);
        assert!(reported.line("node 8", later(19)).is_some(), "so many others came between");
    }
}
