//! Keys are bytes compared with memcmp. Ranges are half-open between bounds, and a bound is (bytes, side).
//!
//! The bound `p-` sorts before every key that begins with p, `p+` after every one of them. So the range of all keys
//! that begin with p is `[p-, p+)`, whatever bytes the keys hold, and the bounds of a node give the prefix that all
//! its keys share: the longest common prefix of the two bounds' bytes.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;

/// The longest key that an index takes, in bytes.
pub const KEY_LENGTH_MAX: usize = 256 * 1024;

/// On which side of the keys that begin with its bytes a bound lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Before all of them, the key equal to the bytes included.
    Before = 0,
    /// After all of them.
    After = 1,
}

/// A place between keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bound {
    /// The prefix it is about.
    pub bytes: Bytes,
    /// Before or after the keys with that prefix.
    pub side: Side,
}

impl Bound {
    /// `p-`: before every key that begins with `bytes`.
    pub fn before(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), side: Side::Before }
    }

    /// `p+`: after every key that begins with `bytes`.
    pub fn after(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), side: Side::After }
    }

    /// Before every key there can be.
    pub fn least() -> Self {
        Self::before(Bytes::new())
    }

    /// After every key there can be.
    pub fn greatest() -> Self {
        Self::after(Bytes::new())
    }

    /// Where the key lies: `Less` if it sorts before this bound, else `Greater`. Never `Equal`.
    pub fn compare_key(&self, key: &[u8]) -> Ordering {
        match self.side {
            Side::Before if key < &self.bytes[..] => Ordering::Less,
            Side::Before => Ordering::Greater,
            Side::After if key[..key.len().min(self.bytes.len())] <= self.bytes[..] => Ordering::Less,
            Side::After => Ordering::Greater,
        }
    }

    /// True if the key sorts before this bound.
    pub fn is_above(&self, key: &[u8]) -> bool {
        self.compare_key(key) == Ordering::Less
    }

    /// True if this bound lies at the one before `key`, or above it.
    pub fn reaches(&self, key: &[u8]) -> bool {
        match self.side {
            Side::Before => key <= &self.bytes[..],
            Side::After => self.is_above(key),
        }
    }

    /// The bound with the first `length` bytes of its prefix taken off, as a child sees it below an edge that lifts
    /// them. A bound that does not reach into the lifted prefix's keys becomes the child's least or greatest bound.
    pub fn strip(&self, prefix: &[u8]) -> Self {
        if self.bytes.starts_with(prefix) {
            return Self { bytes: self.bytes.slice(prefix.len()..), side: self.side };
        }
        if *self <= Self::before(Bytes::copy_from_slice(prefix)) { Self::least() } else { Self::greatest() }
    }

    /// The bound as it is seen above an edge that lifts `prefix`.
    pub fn prepend(&self, prefix: &[u8]) -> Self {
        Self { bytes: [prefix, &self.bytes].concat().into(), side: self.side }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.side == Side::Before { '-' } else { '+' };
        write!(f, "\"{}\"{side}", self.bytes.escape_ascii())
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.lower, self.upper)
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> Ordering {
        let (own, others) = (self.bytes.len(), other.bytes.len());
        let common = own.min(others);
        let order = self.bytes[..common].cmp(&other.bytes[..common]);
        order.then_with(|| match own.cmp(&others) {
            Ordering::Equal => self.side.cmp(&other.side),
            // `p-` lies below everything that begins with p, `p+` above it, so above both bounds of each longer prefix.
            Ordering::Less if self.side == Side::Before => Ordering::Less,
            Ordering::Less => Ordering::Greater,
            Ordering::Greater if other.side == Side::Before => Ordering::Greater,
            Ordering::Greater => Ordering::Less,
        })
    }
}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All keys from `lower` up to, not including, `upper`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First place inside.
    pub lower: Bound,
    /// First place outside.
    pub upper: Bound,
}

impl KeyRange {
    /// Between two bounds.
    pub fn new(lower: Bound, upper: Bound) -> Self {
        Self { lower, upper }
    }

    /// Every key.
    pub fn all() -> Self {
        Self::new(Bound::least(), Bound::greatest())
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        Self::new(Bound::before(prefix.clone()), Bound::after(prefix))
    }

    /// True if no key lies inside because the bounds do not rise.
    pub fn is_empty(&self) -> bool {
        self.lower >= self.upper
    }

    /// True if the key lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        !self.lower.is_above(key) && self.upper.is_above(key)
    }

    /// True if the other range lies inside this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.lower <= other.lower && other.upper <= self.upper
    }

    /// What lies in both; may be empty.
    pub fn intersection(&self, other: &Self) -> Self {
        let (lower, upper) = ((&self.lower).max(&other.lower), (&self.upper).min(&other.upper));
        Self::new(lower.clone(), upper.clone())
    }

    /// Bytes of the prefix that every key inside shares.
    pub fn common_prefix(&self) -> usize {
        common_prefix(&self.lower.bytes, &self.upper.bytes)
    }
}

/// How many bytes two keys share in front.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Vec<Bound> {
        let words: [&'static [u8]; 7] = [b"", b"a", b"a\0", b"a\xff", b"aa", b"a\xff\xff", b"b"];
        words.into_iter().flat_map(|w| [Bound::before(w), Bound::after(w)]).collect()
    }

    #[test]
    fn the_order_of_bounds_agrees_with_the_keys_between_them() {
        let keys: [&[u8]; 8] = [b"", b"a", b"a\0", b"a\0\0", b"a\xff", b"a\xff\xff\xff", b"aa", b"b"];
        for low in bounds() {
            for high in bounds() {
                for key in keys {
                    if low <= high {
                        assert!(!low.is_above(key) || high.is_above(key), "{low:?} {high:?} {key:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_bound_compares_with_a_key_as_with_the_bounds_of_the_key() {
        for bound in bounds() {
            for key in bounds().into_iter().map(|other| other.bytes) {
                assert_eq!(bound.reaches(&key), Bound::before(key.clone()) <= bound, "{bound:?} {key:?}");
                // No bound lies between `p-` and the key p.
                assert_eq!(bound.is_above(&key), Bound::before(key.clone()) < bound, "{bound:?} {key:?}");
            }
        }
    }

    #[test]
    fn bounds_are_totally_ordered() {
        for a in bounds() {
            for b in bounds() {
                assert_eq!(a.cmp(&b), b.cmp(&a).reverse(), "{a:?} {b:?}");
                for c in bounds() {
                    if a <= b && b <= c {
                        assert!(a <= c, "{a:?} {b:?} {c:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_prefix_range_holds_names_that_begin_with_0xff() {
        assert!(KeyRange::prefix(&b"a"[..]).contains(b"a\xff\xff\xff\xff"));
        assert!(!KeyRange::prefix(&b"a"[..]).contains(b"b"));
    }

    #[test]
    fn stripping_clamps_bounds_outside_the_prefix() {
        assert_eq!(Bound::before(&b"abc"[..]).strip(b"ab"), Bound::before(&b"c"[..]));
        assert_eq!(Bound::after(&b"a"[..]).strip(b"ab"), Bound::greatest());
        assert_eq!(Bound::before(&b"a"[..]).strip(b"ab"), Bound::least());
        assert_eq!(Bound::after(&b"aa"[..]).strip(b"ab"), Bound::least());
        assert_eq!(Bound::before(&b"ac"[..]).strip(b"ab"), Bound::greatest());
    }
}
