//! Descriptors: those that the caller of this process has left open, and closing one with its error.
//!
//! A daemon lives much longer than the command that started it. What it holds by chance stays open all the time: a lock is held, the reader
//! of a pipe does not see its end, a file system cannot be unmounted.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags};

/// The first one behind the standard streams.
const FIRST: RawFd = 3;

/// Keeps all open descriptors but the standard streams from programs that are started from now on. What is to be handed to one is given
/// to it as one of its standard streams.
///
/// # Errors
/// That of reading /proc, on a kernel before Linux 5.11.
pub fn keep_from_programs() -> io::Result<()> {
    match close_range_on_exec() {
        // Some containers refuse what they do not know.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => mark_each(),
        other => Ok(other?),
    }
}

/// close(2), whose error dropping a descriptor would not tell. It is closed either way.
///
/// # Errors
/// Some file systems, of networks and in user space, first say here that something was not written.
pub fn close(descriptor: OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: nobody else has the descriptor any more.
    if unsafe { libc::close(descriptor.into_raw_fd()) } == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// close_range(2), since Linux 5.9, and this flag of it since 5.11. Not through the C library, whose older versions lack it.
fn close_range_on_exec() -> rustix::io::Result<()> {
    // SAFETY: the call reads no memory, and closes nothing in this process: with this flag it only sets one of each descriptor.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// The same with a call for each.
fn mark_each() -> io::Result<()> {
    let open: Vec<_> = fs::read_dir("/proc/self/fd")?.collect::<io::Result<_>>()?;
    let numbers = open.iter().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number >= FIRST) {
        // SAFETY: it is used for one call, which does no harm to whatever has this number: it is to be marked, or gone as the one that
        // listed the directory is.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_marked_either_way() {
        let (reader, _writer) = io::pipe().unwrap();
        for mark in [keep_from_programs, mark_each] {
            rustix::io::fcntl_setfd(&reader, FdFlags::empty()).unwrap();
            mark().unwrap();
            assert_eq!(rustix::io::fcntl_getfd(&reader).unwrap(), FdFlags::CLOEXEC);
        }
    }

    #[test]
    fn what_is_closed_is_closed() {
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(close(writer.into()), Ok(()));
        assert_eq!(io::read_to_string(reader).unwrap(), "");
    }

    #[test]
    fn standard_streams_are_not_marked() {
        let flags = || {
            [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
                .map(|stream| rustix::io::fcntl_getfd(stream).ok())
        };
        let before = flags();
        keep_from_programs().unwrap();
        mark_each().unwrap();
        assert_eq!(flags(), before);
    }
}
