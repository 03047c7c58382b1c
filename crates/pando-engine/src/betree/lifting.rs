//! Lifting: an edge takes a prefix off every key below it (THESIS chapter 3).
//!
//! A node does not know its prefix; who descends does. The prefix of a child is the first `strip` bytes of either of the
//! bounds between which its edge lies, because every key between two bounds shares their longest common prefix. The
//! length is stored, not derived: pivots may come closer together without anyone re-lifting the child (`strip` is then
//! shorter than it could be), but never further apart than the prefix allows.

use bytes::Bytes;
use pando_format::{Bound, KeyRange, Side};

/// The least key at or above a bound; `None` if the bound lies above every key.
pub(crate) fn first_key(bound: &Bound) -> Option<Bytes> {
    match bound.side {
        Side::Before => Some(bound.bytes.clone()),
        Side::After => {
            let kept = bound.bytes.iter().rposition(|byte| *byte != 0xff)?;
            let mut key = bound.bytes[..=kept].to_vec();
            key[kept] += 1;
            Some(key.into())
        }
    }
}

/// The least key of a range and the least key above it; `None` if it holds no key.
pub(crate) fn key_limits(range: &KeyRange) -> Option<(Bytes, Option<Bytes>)> {
    let first = first_key(&range.lower)?;
    let last = first_key(&range.upper);
    if last.as_ref().is_some_and(|last| *last <= first) {
        return None;
    }
    Some((first, last))
}

/// A key seen from a node that lifts `strip` more, or `prefix` less. One of the two is empty.
pub(crate) fn relift_key(key: &Bytes, prefix: &[u8], strip: &[u8]) -> Bytes {
    if prefix.is_empty() {
        assert!(key.starts_with(strip), "BT-2: a key has the prefix that its edge lifts");
        return key.slice(strip.len()..);
    }
    [prefix, key].concat().into()
}

/// The way into another node's keys - `strip` bytes go, `prepend` comes - for a node whose keys are shorter by `shorter` bytes or
/// longer by `longer`. One of the two is empty.
pub(crate) fn relift_way(strip: &mut u32, prepend: &mut Bytes, longer: &[u8], shorter: &[u8]) {
    // What strips more than any key has is damaged before and behind it.
    *strip = strip.saturating_add(longer.len() as u32);
    let gone = (*strip as usize).min(shorter.len());
    *strip -= gone as u32;
    if gone < shorter.len() {
        *prepend = [prepend, &shorter[gone..]].concat().into();
    }
}

/// A bound seen from a node that lifts `strip` more, or `prefix` less. One of the two is empty.
pub(crate) fn relift_bound(bound: &Bound, prefix: &[u8], strip: &[u8]) -> Bound {
    if prefix.is_empty() { bound.strip(strip) } else { bound.prepend(prefix) }
}

/// The prefix that an edge between two bounds lifts when it lifts `strip` bytes; `None` if the bounds do not share so
/// many, which only damage can bring about.
pub(crate) fn edge_prefix(bounds: &KeyRange, strip: usize) -> Option<Bytes> {
    let lifted = bounds.lower.bytes.get(..strip)?;
    (bounds.upper.bytes.get(..strip)? == lifted).then(|| bounds.lower.bytes.slice(..strip))
}

/// A range delete as a child sees it, given the bounds of the child's edge and what it lifts.
///
/// Where the range reaches to the end of the child, it is widened to every key on that side: there is none of the
/// child's beyond, and the child can tell that all of it is covered without knowing its own bounds.
pub(crate) fn range_below(range: &KeyRange, bounds: &KeyRange, prefix: &[u8]) -> KeyRange {
    let lower = if range.lower <= bounds.lower { Bound::least() } else { range.lower.strip(prefix) };
    let upper = if range.upper >= bounds.upper { Bound::greatest() } else { range.upper.strip(prefix) };
    KeyRange::new(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_above_a_prefix_carries_over_0xff() {
        assert_eq!(first_key(&Bound::after(&b"a\xff\xff"[..])), Some(Bytes::from_static(b"b")));
        assert_eq!(first_key(&Bound::after(&b"\xff\xff"[..])), None);
        assert_eq!(first_key(&Bound::greatest()), None);
        assert_eq!(first_key(&Bound::least()), Some(Bytes::new()));
    }

    /// What a node lifts more, a way into another node's keys strips more, or prepends less; more than any key has, as on a volume
    /// made to harm, is no overflow.
    #[test]
    fn ways_follow_what_is_lifted() {
        let relifted = |strip: u32, longer: &[u8], shorter: &[u8]| {
            let (mut strip, mut prepend) = (strip, Bytes::from_static(b"x"));
            relift_way(&mut strip, &mut prepend, longer, shorter);
            (strip, prepend)
        };
        assert_eq!(relifted(1, b"abc", b""), (4, Bytes::from_static(b"x")));
        assert_eq!(relifted(4, b"", b"abc"), (1, Bytes::from_static(b"x")));
        assert_eq!(relifted(1, b"", b"abc"), (0, Bytes::from_static(b"xbc")));
        assert_eq!(relifted(u32::MAX, b"abc", b""), (u32::MAX, Bytes::from_static(b"x")));
    }

    #[test]
    fn a_range_that_reaches_the_end_of_a_child_covers_that_end() {
        let bounds = KeyRange::new(Bound::before(&b"ab"[..]), Bound::after(&b"ad"[..]));
        let range = KeyRange::prefix(&b"a"[..]);
        assert_eq!(range_below(&range, &bounds, b"a"), KeyRange::all());
        let range = KeyRange::new(Bound::before(&b"ac"[..]), Bound::greatest());
        assert_eq!(
            range_below(&range, &bounds, b"a"),
            KeyRange::new(Bound::before(&b"c"[..]), Bound::greatest())
        );
    }
}
