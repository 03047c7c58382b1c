//! Numbers and names in the kernel's byte order, which is this machine's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Malformed;

/// Reads a run of bytes from its front (PR-1).
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.rest.split_at_checked(length).ok_or(Malformed::TooShort)?;
        self.rest = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.rest.split_first_chunk().ok_or(Malformed::TooShort)?;
        self.rest = rest;
        Ok(*front)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// A string up to its NUL, which is taken too.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed::NoEndOfName)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }
}

/// Takes bytes at its end.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    fn zeros(&mut self, count: usize) {
        for _ in 0..count {
            self.put(&[0]);
        }
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A time as seconds since 1970, rounded down, and nanoseconds from there.
pub(crate) fn split_time(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (0_i64.wrapping_sub_unsigned(before.as_secs()), 0),
                nanoseconds => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

/// The opposite of [`split_time`].
pub(crate) fn join_time(seconds: u64, nanoseconds: u32) -> Result<SystemTime, Malformed> {
    let seconds = seconds as i64;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let nanoseconds = Duration::from_nanos(nanoseconds.into());
    start.and_then(|start| start.checked_add(nanoseconds)).ok_or(Malformed::NoSuchTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_forwards_from_the_second_below() {
        let early = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(split_time(early), (-1, 500_000_000));
        for time in [early, UNIX_EPOCH, UNIX_EPOCH - Duration::from_secs(7), UNIX_EPOCH + Duration::new(3, 4)]
        {
            let (seconds, nanoseconds) = split_time(time);
            assert_eq!(join_time(seconds as u64, nanoseconds), Ok(time));
        }
        assert_eq!(join_time(i64::MAX as u64, u32::MAX), Err(Malformed::NoSuchTime));
    }
}
