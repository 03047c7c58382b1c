//! What is agreed with the kernel when a connection begins.

use crate::protocol::{InitReply, InitRequest, Layout, REQUEST_BYTES_MAX, flags};

/// What the kernel does for us, or wants from us, once we ask for it. All are taken where the kernel offers them.
///
/// Left out on purpose: `ATOMIC_O_TRUNC`, since no open reaches us; `POSIX_LOCKS` and `FLOCK_LOCKS`, since the kernel
/// keeps locks well and interruptibly; `AUTO_INVAL_DATA`, since nobody else changes files; `REQUEST_TIMEOUT`, since a device
/// may be slow and the kernel would end the whole connection; `ALLOW_IDMAP`, with which only requests that make something
/// say for whom, so that we could not look at who asks for a clone, nor whether root does.
///
/// `DONT_MASK`: a default access control list takes the place of the umask, so it is applied where that list is known.
const WANTED: u64 = flags::ASYNC_READ
    | flags::BIG_WRITES
    | flags::DONT_MASK
    | flags::MAX_PAGES
    | flags::PARALLEL_DIROPS
    | flags::ASYNC_DIO
    | flags::CACHE_SYMLINKS
    | flags::EXPLICIT_INVAL_DATA
    | flags::HANDLE_KILLPRIV_V2
    | flags::SETXATTR_EXT
    | flags::ABORT_ERROR;

/// Requests of the kernel's own (read-ahead, asynchronous direct I/O) that may be under way at once.
const BACKGROUND_MAX: u16 = 64;

/// What is wanted of this connection, which depends on how it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// The kernel collects small writes and sends them later.
    pub(crate) writeback: bool,
    /// Entries are listed with their attributes.
    pub(crate) readdirplus: bool,
    /// The kernel keeps listings.
    pub(crate) listing_cache: bool,
    /// The kernel checks access control lists. It then checks permission bits as well, wanted or not.
    pub(crate) acls: bool,
    /// Requests come over io_uring.
    pub(crate) ring: Wish,
}

/// How much something is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not at all.
    No,
    /// If the kernel offers it.
    IfOffered,
    /// Nothing else will do.
    Needed,
}

/// What came out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Directories are opened without asking us, once we have answered the first OPENDIR with ENOSYS. The kernel keeps listings then.
    pub(crate) no_opendir: bool,
    /// The kernel checks access control lists.
    pub(crate) acls: bool,
    /// The kernel collects writes, and keeps the size and the times of files that are written.
    pub(crate) writeback: bool,
    /// How requests are laid out.
    pub(crate) layout: Layout,
    /// The kernel waits for queues on io_uring before it sends anything.
    pub(crate) ring: bool,
}

/// Asks for everything wanted that the kernel offers. If something needed is missing, says what.
pub(crate) fn negotiate(
    offered: &InitRequest,
    wishes: Wishes,
) -> Result<(Agreement, InitReply), &'static str> {
    let offers = |flag: u64| offered.flags & flag != 0;
    if wishes.writeback && !offers(flags::WRITEBACK_CACHE) {
        return Err("it has no writeback cache");
    }
    if wishes.ring == Wish::Needed && !offers(flags::OVER_IO_URING) {
        return Err("it offers no io_uring; /sys/module/fuse/parameters/enable_uring switches it on");
    }
    // Without its extension a request that sets a list does not say whether the set-group-ID bit must go.
    let acls = wishes.acls && offers(flags::POSIX_ACL) && offers(flags::SETXATTR_EXT);
    let if_so = |so: bool, flag: u64| if so { flag } else { 0 };
    let wanted = WANTED
        | if_so(wishes.writeback, flags::WRITEBACK_CACHE)
        | if_so(wishes.readdirplus, flags::DO_READDIRPLUS | flags::READDIRPLUS_AUTO)
        | if_so(acls, flags::POSIX_ACL)
        | if_so(wishes.ring != Wish::No, flags::OVER_IO_URING);
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
        no_opendir: wishes.listing_cache && offers(flags::NO_OPENDIR_SUPPORT),
        acls,
        writeback: wishes.writeback,
        layout: Layout { extended_xattr: agreed & flags::SETXATTR_EXT != 0 },
        ring: agreed & flags::OVER_IO_URING != 0,
    };
    Ok((agreement, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_that_is_not_offered() {
        let offered = InitRequest { major: 7, minor: 31, read_ahead_max: 1 << 17, flags: flags::ASYNC_READ };
        let wishes = Wishes {
            writeback: false,
            readdirplus: true,
            listing_cache: true,
            acls: true,
            ring: Wish::IfOffered,
        };
        let (agreement, reply) = negotiate(&offered, wishes).unwrap();
        assert_eq!(reply.flags, flags::ASYNC_READ);
        assert_eq!(reply.read_ahead_max, 1 << 17);
        assert!(
            !agreement.no_opendir && !agreement.layout.extended_xattr && !agreement.acls && !agreement.ring
        );
        assert!(negotiate(&offered, Wishes { writeback: true, ..wishes }).is_err());
        assert!(negotiate(&offered, Wishes { ring: Wish::Needed, ..wishes }).is_err());
        let offered = InitRequest { flags: flags::OVER_IO_URING | flags::NO_OPENDIR_SUPPORT, ..offered };
        assert!(negotiate(&offered, wishes).unwrap().0.no_opendir);
        assert!(!negotiate(&offered, Wishes { listing_cache: false, ..wishes }).unwrap().0.no_opendir);
        assert!(negotiate(&offered, wishes).unwrap().0.ring);
        assert!(!negotiate(&offered, Wishes { ring: Wish::No, ..wishes }).unwrap().0.ring);
    }

    #[test]
    fn access_control_lists_are_for_those_who_want_them_checked() {
        let lists = flags::POSIX_ACL | flags::SETXATTR_EXT;
        for (offered, acls, expected) in
            [(lists, true, true), (lists, false, false), (flags::POSIX_ACL, true, false)]
        {
            let offered = InitRequest { major: 7, minor: 45, read_ahead_max: 0, flags: offered };
            let wishes =
                Wishes { writeback: false, readdirplus: true, listing_cache: true, acls, ring: Wish::No };
            let (agreement, reply) = negotiate(&offered, wishes).unwrap();
            assert_eq!((agreement.acls, reply.flags & flags::POSIX_ACL != 0), (expected, expected));
        }
    }
}
