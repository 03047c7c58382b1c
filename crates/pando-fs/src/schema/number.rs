//! Inode numbers: what a record stores, and what users see.
//!
//! What users see of an inode under a name is the stored number XOR the deltas on the records of all directories above
//! it, the root included, its own not. So a clone, whose root gets a delta of its own, shows other numbers than its
//! source, and nothing below is touched. Under a key of its own an inode has no directories above it: a linked file is stored
//! under its number XOR the delta of its tree's root, and an orphan, which lies in no tree, under what users see.

/// What a directory that is a clone shows instead of the numbers 0 and 1, which mean none and the root.
const INSTEAD: u64 = 1 << 63;

/// Numbers from the counter stay below this; those of clones lie, as good as always, above.
pub const COUNTED_END: u64 = 1 << 40;

/// What users see of an inode that lies in a directory with the deltas `delta`.
pub fn visible(stored: u64, delta: u64) -> u64 {
    let number = stored ^ delta;
    if number < 2 && delta != 0 { number ^ INSTEAD } else { number }
}

/// What to store in a directory with the deltas `delta`, so that users see `visible`.
pub fn stored(visible: u64, delta: u64) -> u64 {
    visible ^ delta
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_in_one_directory_is_seen_in_another() {
        for (number, delta) in [(7, 0), (7, 7), (7, 6), (1 << 50, u64::MAX), (9, 1 << 40)] {
            let seen = visible(number, delta);
            assert!(seen > 1);
            for other in [0, 7, seen, seen ^ 1, u64::MAX] {
                assert_eq!(visible(stored(seen, other), other), seen);
            }
        }
    }

    #[test]
    fn the_root_is_what_it_is() {
        assert_eq!(visible(1, 0), 1);
    }
}
