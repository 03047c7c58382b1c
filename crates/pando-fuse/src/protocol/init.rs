//! The handshake: INIT and its answer.

use super::wire::Reader;
use super::{Inline, Malformed, Put};

/// The major version of the protocol.
const MAJOR: u32 = 7;

/// The newest minor version whose requests are understood.
const MINOR: u32 = 45;

/// The oldest minor version that will do, of Linux 5.4: all layouts used here are older.
const MINOR_MIN: u32 = 31;

/// What either side can do, as bits; those from 32 on travel in a field of their own.
pub(crate) mod flags {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitRequest {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// How far it would read ahead, in bytes.
    pub(crate) read_ahead_max: u32,
    pub(crate) flags: u64,
}

impl InitRequest {
    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut body = Reader::new(body);
        let (major, minor) = (body.u32()?, body.u32()?);
        if major != MAJOR {
            // Only the version stands where it always stood.
            return Ok(Self { major, minor, read_ahead_max: 0, flags: 0 });
        }
        let (read_ahead_max, low) = (body.u32()?, body.u32()?);
        let extended = u64::from(low) & flags::INIT_EXT != 0;
        let high = if extended { body.u32()? } else { 0 };
        Ok(Self { major, minor, read_ahead_max, flags: u64::from(low) | u64::from(high) << 32 })
    }

    /// Whether the kernel is to ask again with the version that it is answered with.
    pub(crate) fn is_newer(&self) -> bool {
        self.major > MAJOR
    }

    /// Whether there is no version that both know.
    pub(crate) fn is_too_old(&self) -> bool {
        self.major < MAJOR || (self.major == MAJOR && self.minor < MINOR_MIN)
    }
}

/// What is agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitReply {
    pub(crate) flags: u64,
    /// How far the kernel may read ahead, in bytes.
    pub(crate) read_ahead_max: u32,
    /// Requests of the kernel's own that may be under way at once.
    pub(crate) background_max: u16,
    /// From how many of them on it takes us for congested.
    pub(crate) congested: u16,
    /// Most bytes of one write.
    pub(crate) write_bytes_max: u32,
    /// Most pages of one request.
    pub(crate) pages_max: u16,
}

impl InitReply {
    /// The answer that makes a newer kernel ask again.
    pub(crate) fn our_version() -> Inline {
        let mut out = Inline::default();
        out.u32(MAJOR);
        out.u32(MINOR);
        out.zeros(56);
        out
    }

    pub(crate) fn encode(&self) -> Inline {
        let high = (self.flags >> 32) as u32;
        let extended = if high == 0 { 0 } else { flags::INIT_EXT };
        let mut out = Inline::default();
        out.u32(MAJOR);
        out.u32(MINOR);
        out.u32(self.read_ahead_max);
        out.u32((self.flags | extended) as u32);
        out.u16(self.background_max);
        out.u16(self.congested);
        out.u32(self.write_bytes_max);
        // Times count in nanoseconds.
        out.u32(1);
        out.u16(self.pages_max);
        // No memory is mapped for DAX.
        out.u16(0);
        out.u32(high);
        // No stacking, no time-out of requests, and what is reserved.
        out.zeros(28);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[u32]) -> Result<InitRequest, Malformed> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        InitRequest::decode(&bytes)
    }

    #[test]
    fn versions_are_told_apart() {
        let old = request(&[7, 12, 0, 0]).unwrap();
        assert!(old.is_too_old() && !old.is_newer());
        let newer = request(&[8, 0]).unwrap();
        assert!(newer.is_newer() && !newer.is_too_old());
        let good = request(&[7, 45, 4096, 1 << 30 | 1, 1 << 9]).unwrap();
        assert!(!good.is_newer() && !good.is_too_old());
        assert_eq!(good.flags, 1 << 41 | 1 << 30 | 1);
        assert_eq!(request(&[7, 45, 4096, 1 << 30]), Err(Malformed::TooShort));
    }

    #[test]
    fn the_answer_has_the_length_of_the_protocol() {
        let reply = InitReply {
            flags: 1 << 41 | 1,
            read_ahead_max: 1,
            background_max: 2,
            congested: 3,
            write_bytes_max: 4,
            pages_max: 5,
        };
        let bytes = reply.encode();
        assert_eq!(bytes.as_bytes().len(), 64);
        assert_eq!(bytes.as_bytes()[12..16], (1u32 << 30 | 1).to_ne_bytes());
        assert_eq!(bytes.as_bytes()[32..36], (1u32 << 9).to_ne_bytes());
        assert_eq!(InitReply::our_version().as_bytes().len(), 64);
    }
}
