//! What is agreed with the kernel when a connection begins.

use std::io;

use fuser::{InitFlags, KernelConfig};

use crate::mount_point::REQUEST_BYTES_MAX;

/// What the kernel does for us, or wants from us, once we ask for it. All are taken where the kernel offers them.
///
/// Left out on purpose: `ATOMIC_O_TRUNC`, since no open reaches us; `POSIX_LOCKS` and `FLOCK_LOCKS`, since the kernel
/// keeps locks well and interruptibly; `DONT_MASK`, so that the kernel applies the umask; `SETXATTR_EXT` and
/// `ALLOW_IDMAP`, whose requests fuser 0.18 reads wrongly; `AUTO_INVAL_DATA`, since nobody else changes files.
const WANTED: &[InitFlags] = &[
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_ABORT_ERROR,
];

/// Requests of the kernel's own (read-ahead, asynchronous direct I/O) that may be under way at once.
const BACKGROUND_MAX: u16 = 64;

/// What came out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Files are opened without asking us, once we have answered the first OPEN with ENOSYS.
    pub(crate) no_open: bool,
    /// We take set-id bits off, told so by write requests.
    pub(crate) kills_set_id: bool,
}

/// Asks for everything wanted that the kernel offers.
pub(crate) fn negotiate(config: &mut KernelConfig, writeback: bool) -> io::Result<Agreement> {
    let offered = config.capabilities();
    for &flag in WANTED {
        // What is not offered is done without.
        let _ = config.add_capabilities(flag);
    }
    if writeback {
        let refuse = |_| io::Error::new(io::ErrorKind::Unsupported, "it has no writeback cache");
        config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).map_err(refuse)?;
    }
    // Out of range values are answered with the nearest possible one.
    if let Err(nearest) = config.set_max_write(REQUEST_BYTES_MAX) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_readahead(REQUEST_BYTES_MAX) {
        let _ = config.set_max_readahead(nearest);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
    Ok(Agreement {
        no_open: offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
        kills_set_id: offered.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2),
    })
}
