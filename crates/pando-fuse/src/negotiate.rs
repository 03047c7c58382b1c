//! What is agreed with the kernel when a connection begins.

use crate::protocol::{InitReply, InitRequest, Layout, REQUEST_BYTES_MAX, flags};

/// What the kernel does for us, or wants from us, once we ask for it. All are taken where the kernel offers them.
///
/// Left out on purpose: `ATOMIC_O_TRUNC`, since no open reaches us; `POSIX_LOCKS` and `FLOCK_LOCKS`, since the kernel
/// keeps locks well and interruptibly; `DONT_MASK`, so that the kernel applies the umask; `AUTO_INVAL_DATA`, since nobody
/// else changes files; `REQUEST_TIMEOUT`, since a device may be slow and the kernel would end the whole connection.
const WANTED: u64 = flags::ASYNC_READ
    | flags::BIG_WRITES
    | flags::MAX_PAGES
    | flags::PARALLEL_DIROPS
    | flags::DO_READDIRPLUS
    | flags::READDIRPLUS_AUTO
    | flags::ASYNC_DIO
    | flags::CACHE_SYMLINKS
    | flags::EXPLICIT_INVAL_DATA
    | flags::HANDLE_KILLPRIV_V2
    | flags::SETXATTR_EXT
    | flags::ABORT_ERROR;

/// Requests of the kernel's own (read-ahead, asynchronous direct I/O) that may be under way at once.
const BACKGROUND_MAX: u16 = 64;

/// What came out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Files are opened without asking us, once we have answered the first OPEN with ENOSYS.
    pub(crate) no_open: bool,
    /// How requests are laid out.
    pub(crate) layout: Layout,
}

/// Asks for everything wanted that the kernel offers. `None` if writeback is asked for and the kernel has none.
pub(crate) fn negotiate(offered: &InitRequest, writeback: bool) -> Option<(Agreement, InitReply)> {
    if writeback && offered.flags & flags::WRITEBACK_CACHE == 0 {
        return None;
    }
    let wanted = WANTED | if writeback { flags::WRITEBACK_CACHE } else { 0 };
    let agreed = offered.flags & wanted;
    let reply = InitReply {
        flags: agreed,
        read_ahead_max: offered.read_ahead_max.min(REQUEST_BYTES_MAX),
        background_max: BACKGROUND_MAX,
        congested: BACKGROUND_MAX * 3 / 4,
        write_bytes_max: REQUEST_BYTES_MAX,
        pages_max: (REQUEST_BYTES_MAX as usize / rustix::param::page_size()) as u16,
    };
    let agreement = Agreement {
        no_open: offered.flags & flags::NO_OPEN_SUPPORT != 0,
        layout: Layout { extended_xattr: agreed & flags::SETXATTR_EXT != 0 },
    };
    Some((agreement, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_that_is_not_offered() {
        let offered = InitRequest {
            major: 7,
            minor: 31,
            read_ahead_max: 1 << 17,
            flags: flags::ASYNC_READ | flags::NO_OPEN_SUPPORT,
        };
        let (agreement, reply) = negotiate(&offered, false).unwrap();
        assert_eq!(reply.flags, flags::ASYNC_READ);
        assert_eq!(reply.read_ahead_max, 1 << 17);
        assert!(agreement.no_open && !agreement.layout.extended_xattr);
        assert!(negotiate(&offered, true).is_none());
    }
}
