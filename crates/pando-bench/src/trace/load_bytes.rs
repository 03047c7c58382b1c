//! How many bytes a load wrote, whatever it wrote them to: what device writes are held against.
//!
//! The kernel counts what a process and its children that have ended gave to write(2) and its kin. It counts pipes and sockets too; a load
//! that has some says itself what it wrote.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the row of this process said; `UNSAID` unless it did.
static SAID: AtomicU64 = AtomicU64::new(UNSAID);
const UNSAID: u64 = u64::MAX;
/// What a load that writes nothing has written all the same, to its pipes and for a sync.
const NOTHING: u64 = 64 << 10;

/// The load wrote so many bytes, whatever the kernel counts; of 0 there is no amplification.
pub fn are(bytes: u64) {
    SAID.store(bytes, Ordering::Relaxed);
}

/// Bytes that this process and its children have written so far, by the kernel's count.
pub fn counted() -> u64 {
    parse(&std::fs::read_to_string("/proc/self/io").unwrap_or_default())
}

/// What the load wrote since `counted` gave `before`; 0 if that is next to nothing.
pub fn since(before: u64) -> u64 {
    let bytes = match SAID.load(Ordering::Relaxed) {
        UNSAID => counted().saturating_sub(before),
        said => said,
    };
    if bytes > NOTHING { bytes } else { 0 }
}

fn parse(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_read() {
        assert_eq!(parse("rchar: 5\nwchar: 1234\nsyscr: 1\n"), 1234);
        assert_eq!(parse(""), 0);
    }
}
