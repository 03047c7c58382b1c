//! The messages that an interior node holds for one child.
//!
//! Invariants:
//!
//! * BUF-1 there is at most one [`Pending`] a key: whatever arrives for a key that has one is added to it.
//! * BUF-2 range deletes are kept as disjoint fragments in rising order.
//! * BUF-3 a keyed message inside a fragment is newer than the fragment: a range delete that arrives eats the keyed
//!   messages it covers (Pac-Man, FAST16 section 4), and what arrives later lies on top.
//!
//! So the state that a buffer describes is: the fragments first, then the keyed messages. BT-1 holds along a path
//! because messages arrive in MSN order and leave together.

use std::collections::BTreeMap;
use std::ops::Bound as RangeBound;

use bytes::Bytes;
use pando_format::{Bound, KeyRange, Msn, Pending};

use super::lifting::{key_limits, relift_bound, relift_key};

/// What a keyed message or fragment weighs beside its bytes, in memory.
const ENTRY_OVERHEAD: usize = 96;

/// Messages for one child, in the coordinates of the node that holds them.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessageBuffer {
    keyed: BTreeMap<Bytes, (Msn, Pending)>,
    ranges: Vec<(KeyRange, Msn)>,
    bytes: usize,
    newest: Msn,
}

impl MessageBuffer {
    /// A buffer read from the device; `None` if the parts break BUF-2 or a key comes twice.
    pub(crate) fn from_parts(
        keyed: impl IntoIterator<Item = (Bytes, Msn, Pending)>,
        ranges: Vec<(KeyRange, Msn)>,
    ) -> Option<Self> {
        let mut buffer = Self::default();
        for window in ranges.windows(2) {
            if window[0].0.upper > window[1].0.lower {
                return None;
            }
        }
        for (range, msn) in &ranges {
            if range.is_empty() {
                return None;
            }
            buffer.bytes += Self::range_weight(range);
            buffer.newest = buffer.newest.max(*msn);
        }
        buffer.ranges = ranges;
        for (key, msn, pending) in keyed {
            buffer.bytes += Self::keyed_weight(&key, &pending);
            buffer.newest = buffer.newest.max(msn);
            if buffer.keyed.insert(key, (msn, pending)).is_some() {
                return None;
            }
        }
        Some(buffer)
    }

    /// True if it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.keyed.is_empty() && self.ranges.is_empty()
    }

    /// Memory that the messages take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The highest MSN it holds.
    pub(crate) fn newest(&self) -> Msn {
        self.newest
    }

    /// Keyed messages in key order.
    pub(crate) fn keyed(&self) -> impl Iterator<Item = (&Bytes, Msn, &Pending)> {
        self.keyed.iter().map(|(key, (msn, pending))| (key, *msn, pending))
    }

    /// Keyed messages inside a range, in key order; the iterator can be run from both ends.
    pub(crate) fn keyed_in(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = (&Bytes, &Pending)> {
        let limits = key_limits(range);
        let inside = limits.map(|(first, last)| {
            let last = last.as_deref().map_or(RangeBound::Unbounded, RangeBound::Excluded);
            self.keyed.range::<[u8], _>((RangeBound::Included(&first[..]), last))
        });
        inside.into_iter().flatten().map(|(key, (_, pending))| (key, pending))
    }

    /// Fragments in key order.
    pub(crate) fn ranges(&self) -> &[(KeyRange, Msn)] {
        &self.ranges
    }

    /// The message that waits for a key, if there is one.
    pub(crate) fn pending(&self, key: &[u8]) -> Option<&Pending> {
        self.keyed.get(key).map(|(_, pending)| pending)
    }

    /// True if a range delete waits for a key.
    pub(crate) fn deletes(&self, key: &[u8]) -> bool {
        let next = self.ranges.partition_point(|(range, _)| !range.upper.is_above(key));
        self.ranges.get(next).is_some_and(|(range, _)| range.contains(key))
    }

    /// True if a delete waits for a key or a range.
    pub(crate) fn holds_deletes(&self) -> bool {
        !self.ranges.is_empty() || self.keyed.values().any(|(_, pending)| *pending == Pending::Delete)
    }

    /// Fragments that overlap the range.
    pub(crate) fn ranges_in(&self, range: &KeyRange) -> impl Iterator<Item = &(KeyRange, Msn)> {
        let first = self.ranges.partition_point(|(fragment, _)| fragment.upper <= range.lower);
        let upper = range.upper.clone();
        self.ranges[first..].iter().take_while(move |(fragment, _)| fragment.lower < upper)
    }

    /// Adds a message for one key.
    pub(crate) fn push(&mut self, key: Bytes, msn: Msn, pending: Pending) {
        self.newest = self.newest.max(msn);
        match self.keyed.get_mut(&key) {
            Some((newest, sum)) => {
                debug_assert!(*newest <= msn, "BT-1: messages of a key arrive in MSN order");
                self.bytes -= sum.length();
                *newest = msn;
                sum.push(pending);
                self.bytes += sum.length();
            }
            None => {
                let settled = if self.deletes(&key) { settle_on_nothing(pending) } else { Some(pending) };
                if let Some(pending) = settled {
                    self.bytes += Self::keyed_weight(&key, &pending);
                    self.keyed.insert(key, (msn, pending));
                }
            }
        }
    }

    /// Adds a range delete: it eats the keyed messages and fragments that it covers.
    pub(crate) fn push_range(&mut self, range: KeyRange, msn: Msn) {
        if range.is_empty() {
            return;
        }
        self.newest = self.newest.max(msn);
        self.eat(&range);
        // Fragments that overlap are cut back or dropped; the new one takes their place (BUF-2).
        let first = self.ranges.partition_point(|(fragment, _)| fragment.upper <= range.lower);
        let last = self.ranges.partition_point(|(fragment, _)| fragment.lower < range.upper);
        let mut replacement = Vec::with_capacity(3);
        if first < last {
            let (head, head_msn) = &self.ranges[first];
            if head.lower < range.lower {
                replacement.push((KeyRange::new(head.lower.clone(), range.lower.clone()), *head_msn));
            }
        }
        let tail = (first < last)
            .then(|| &self.ranges[last - 1])
            .filter(|(tail, _)| tail.upper > range.upper)
            .map(|(tail, tail_msn)| (KeyRange::new(range.upper.clone(), tail.upper.clone()), *tail_msn));
        replacement.push((range, msn));
        replacement.extend(tail);
        self.bytes += replacement.iter().map(|(range, _)| Self::range_weight(range)).sum::<usize>();
        let dropped = self.ranges.splice(first..last, replacement);
        self.bytes -= dropped.map(|(range, _)| Self::range_weight(&range)).sum::<usize>();
    }

    /// Drops the keyed messages inside a range.
    pub(crate) fn eat(&mut self, range: &KeyRange) {
        let eaten: Vec<Bytes> = self.keyed_in(range).map(|(key, _)| key.clone()).collect();
        for key in eaten {
            if let Some((_, pending)) = self.keyed.remove(&key) {
                self.bytes -= Self::keyed_weight(&key, &pending);
            }
        }
    }

    /// Cuts off everything at and above `bound` into a buffer of its own.
    pub(crate) fn split_off(&mut self, bound: &Bound) -> Self {
        let above = KeyRange::new(bound.clone(), Bound::greatest());
        let keyed: Vec<_> = self.keyed_in(&above).map(|(key, _)| key.clone()).collect();
        let mut right = Self { newest: self.newest, ..Self::default() };
        for key in keyed {
            let (msn, pending) = self.keyed.remove(&key).expect("the key was just seen in the map");
            let weight = Self::keyed_weight(&key, &pending);
            self.bytes -= weight;
            right.bytes += weight;
            right.keyed.insert(key, (msn, pending));
        }
        let first = self.ranges.partition_point(|(fragment, _)| fragment.upper <= *bound);
        for (range, msn) in self.ranges.drain(first..).collect::<Vec<_>>() {
            self.bytes -= Self::range_weight(&range);
            if range.lower < *bound {
                self.add_fragment(KeyRange::new(range.lower.clone(), bound.clone()), msn);
            }
            right.add_fragment(KeyRange::new(range.lower.max(bound.clone()), range.upper), msn);
        }
        right
    }

    /// Takes in a buffer whose messages all lie at or above `border`, all of its own below it. Fragments that reach
    /// over the border on either side, as those of a node's outer children may, are cut there first.
    pub(crate) fn append(&mut self, right: Self, border: &Bound) {
        drop(self.split_off_ranges(border));
        for (range, msn) in right.ranges {
            let lower = range.lower.max(border.clone());
            if lower < range.upper {
                self.add_fragment(KeyRange::new(lower, range.upper), msn);
            }
        }
        for (key, (msn, pending)) in right.keyed {
            self.bytes += Self::keyed_weight(&key, &pending);
            self.keyed.insert(key, (msn, pending));
        }
        self.newest = self.newest.max(right.newest);
    }

    fn split_off_ranges(&mut self, border: &Bound) -> Vec<(KeyRange, Msn)> {
        let first = self.ranges.partition_point(|(fragment, _)| fragment.upper <= *border);
        let cut: Vec<_> = self.ranges.drain(first..).collect();
        for (range, msn) in &cut {
            self.bytes -= Self::range_weight(range);
            if range.lower < *border {
                self.add_fragment(KeyRange::new(range.lower.clone(), border.clone()), *msn);
            }
        }
        cut
    }

    fn add_fragment(&mut self, range: KeyRange, msn: Msn) {
        self.bytes += Self::range_weight(&range);
        self.ranges.push((range, msn));
    }

    /// The same messages for a node whose keys are shorter by `strip` bytes or longer by `prefix`.
    pub(crate) fn relift(self, prefix: &[u8], strip: &[u8]) -> Self {
        let mut buffer = Self { newest: self.newest, ..Self::default() };
        for (range, msn) in self.ranges {
            let range = KeyRange::new(
                relift_outer(&range.lower, prefix, strip),
                relift_outer(&range.upper, prefix, strip),
            );
            buffer.add_fragment(range, msn);
        }
        for (key, (msn, pending)) in self.keyed {
            let key = relift_key(&key, prefix, strip);
            buffer.bytes += Self::keyed_weight(&key, &pending);
            buffer.keyed.insert(key, (msn, pending));
        }
        buffer
    }

    /// Takes it apart: the fragments, then the keyed messages.
    #[allow(clippy::type_complexity, reason = "the pair is taken apart at once by the callers")]
    pub(crate) fn into_parts(self) -> (Vec<(KeyRange, Msn)>, BTreeMap<Bytes, (Msn, Pending)>) {
        (self.ranges, self.keyed)
    }

    fn keyed_weight(key: &Bytes, pending: &Pending) -> usize {
        key.len() + pending.length() + ENTRY_OVERHEAD
    }

    fn range_weight(range: &KeyRange) -> usize {
        range.lower.bytes.len() + range.upper.bytes.len() + ENTRY_OVERHEAD
    }

    /// Panics if BUF-1 to BUF-3 or the count of bytes are broken.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let mut bytes = 0;
        for window in self.ranges.windows(2) {
            assert!(window[0].0.upper <= window[1].0.lower, "BUF-2");
        }
        for (range, _) in &self.ranges {
            assert!(!range.is_empty(), "BUF-2: no fragment is empty");
            bytes += Self::range_weight(range);
            for (key, _) in self.keyed_in(range) {
                assert!(!matches!(self.keyed[key].1, Pending::Changes(_)), "BUF-3: settled on the fragment");
            }
        }
        bytes += self.keyed.iter().map(|(key, (_, pending))| Self::keyed_weight(key, pending)).sum::<usize>();
        assert_eq!(bytes, self.bytes);
    }
}

/// A message for a key that is known to have no value below; `None` if it changes nothing there.
///
/// A delete is kept by the caller's choice: below a range fragment it says nothing new.
pub(crate) fn settle_on_nothing(pending: Pending) -> Option<Pending> {
    pending.apply(None).map(Pending::Put)
}

/// Bounds at the outer ends of a node's range stay there, whatever the keys are lifted to.
fn relift_outer(bound: &Bound, prefix: &[u8], strip: &[u8]) -> Bound {
    if *bound == Bound::least() || *bound == Bound::greatest() {
        return bound.clone();
    }
    relift_bound(bound, prefix, strip)
}
