//! The messages that an interior node holds for one child.
//!
//! Invariants:
//!
//! * BUF-1 there is at most one [`Pending`] a key: whatever arrives for a key that has one is added to it.
//! * BUF-2 range deletes and gotos are kept as disjoint fragments in rising order.
//! * BUF-3 a keyed message inside a fragment is newer than the fragment: a range delete or goto that arrives eats the
//!   messages it covers (Pac-Man, FAST16 section 4), and what arrives later lies on top.
//!
//! A goto says that the keys of its range are those of another node, seen through its xf, whatever is below (THESIS 4). Each
//! one is a reference to that node; who changes a buffer with gotos settles the counts (`sharing.rs`).
//!
//! So the state that a buffer describes is: the fragments first, then the keyed messages. BT-1 holds along a path
//! because messages arrive in MSN order and leave together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound as RangeBound;

use bytes::Bytes;
use pando_format::{Bound, Goto, KeyRange, Msn, NodeId, Pending};

use super::entries::{Side, left_of};
use super::lifting::{key_limits, relift_bound, relift_key, relift_way};
use crate::copies::copy_for_device;

/// What a keyed message or fragment weighs beside its bytes, in memory.
pub(crate) const ENTRY_OVERHEAD: usize = 96;

type Keyed = BTreeMap<Bytes, (Msn, Pending)>;

/// Messages for one child, in the coordinates of the node that holds them.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessageBuffer {
    keyed: Keyed,
    ranges: Vec<(KeyRange, Msn)>,
    gotos: Vec<Goto>,
    bytes: usize,
    newest: Msn,
    /// True if messages are slices of what was read from the device, all of which each of them keeps.
    is_read: bool,
}

/// What a buffer holds, taken apart. The state is: range deletes and gotos, then the keyed messages.
pub(crate) struct Messages {
    pub(crate) ranges: Vec<(KeyRange, Msn)>,
    pub(crate) gotos: Vec<Goto>,
    pub(crate) keyed: Keyed,
}

impl Messages {
    /// The same in memory of their own.
    fn copied(mut self) -> Self {
        for (range, _) in &mut self.ranges {
            [&mut range.lower, &mut range.upper].into_iter().for_each(|bound| copy_out(&mut bound.bytes));
        }
        self.gotos.iter_mut().for_each(copy_goto_out);
        let keyed = self.keyed.into_iter().map(|(mut key, (msn, mut pending))| {
            copy_out(&mut key);
            pending.bytes_mut().into_iter().for_each(copy_out);
            (key, (msn, pending))
        });
        Self { keyed: keyed.collect(), ..self }
    }
}

/// What a message puts.
fn value_of(pending: &Pending) -> Option<&Bytes> {
    if let Pending::Put(value) = pending { Some(value) } else { None }
}

/// Copies bytes into memory of their own.
pub(super) fn copy_out(bytes: &mut Bytes) {
    *bytes = copy_for_device(bytes);
}

/// The same of all that a goto holds.
pub(super) fn copy_goto_out(Goto { range, xf, .. }: &mut Goto) {
    let bounds = [&mut range.lower, &mut range.upper, &mut xf.lower, &mut xf.upper];
    bounds.into_iter().for_each(|bound| copy_out(&mut bound.bytes));
    copy_out(&mut xf.prepend);
}

impl MessageBuffer {
    /// A buffer read from the device, of a node of this height; `None` if the parts break BUF-2, a key comes twice, or a goto does not lead
    /// lower than the edges: it might lead round in a circle, and one that leads as low is an edge and never waits.
    pub(crate) fn from_parts(
        height: u8,
        keyed: impl IntoIterator<Item = (Bytes, Msn, Pending)>,
        ranges: Vec<(KeyRange, Msn)>,
        gotos: Vec<Goto>,
    ) -> Option<Self> {
        let mut buffer = Self { is_read: true, ..Self::default() };
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
        for goto in gotos {
            if goto.height >= height.saturating_sub(1) || buffer.ranges_in(&goto.range).next().is_some() {
                return None;
            }
            buffer.add_goto(goto);
        }
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
        self.keyed.is_empty() && self.ranges.is_empty() && self.gotos.is_empty()
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

    /// Keyed messages inside a range, in key order.
    pub(crate) fn keyed_in<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&'a Bytes, &'a Pending)> + use<'a> {
        let limits = key_limits(range);
        let inside = limits.map(|(first, last)| {
            let last = last.as_deref().map_or(RangeBound::Unbounded, RangeBound::Excluded);
            self.keyed.range::<[u8], _>((RangeBound::Included(&first[..]), last))
        });
        inside.into_iter().flatten().map(|(key, (_, pending))| (key, pending))
    }

    /// How many messages lie inside a range, or reach into it; counted no further than `most`.
    pub(crate) fn count_in(&self, range: &KeyRange, most: usize) -> usize {
        let keyed = self.keyed_in(range).map(drop);
        let others = self.ranges_in(range).map(drop).chain(self.gotos_in(range).map(drop));
        keyed.chain(others).take(most).count()
    }

    /// True if nothing waits for any key of a range.
    pub(crate) fn is_empty_in(&self, range: &KeyRange) -> bool {
        self.keyed_in(range).next().is_none()
            && self.ranges_in(range).next().is_none()
            && self.gotos_in(range).next().is_none()
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
        deletes(&self.ranges, key)
    }

    /// The goto that a key lies in.
    pub(crate) fn goto_of(&self, key: &[u8]) -> Option<&Goto> {
        let next = self.gotos.partition_point(|goto| !goto.range.upper.is_above(key));
        self.gotos.get(next).filter(|goto| goto.range.contains(key))
    }

    /// True if no message waits for any key; gotos may.
    pub(crate) fn holds_only_gotos(&self) -> bool {
        self.keyed.is_empty() && self.ranges.is_empty()
    }

    /// Gotos in key order.
    pub(crate) fn gotos(&self) -> &[Goto] {
        &self.gotos
    }

    /// The nodes that gotos lead to, one for each goto.
    pub(crate) fn targets(&self) -> impl Iterator<Item = NodeId> {
        self.gotos.iter().map(|goto| goto.target)
    }

    /// True if a message that is not in the buffer itself can have set the key: nothing in it hides what is below.
    pub(crate) fn passes(&self, key: &[u8]) -> bool {
        self.pending(key).is_none() && !self.deletes(key) && self.goto_of(key).is_none()
    }

    /// How many of these keys, which rise, from the first on, it passes.
    pub(crate) fn passed<'a>(&self, keys: impl Iterator<Item = &'a [u8]> + Clone, last: &[u8]) -> usize {
        let Some(first) = keys.clone().next() else { return 0 };
        if first == last {
            return keys.take_while(|key| self.passes(key)).count();
        }
        let covers_nothing = || {
            let between = KeyRange::new(
                Bound::before(Bytes::copy_from_slice(first)),
                Bound::after(Bytes::copy_from_slice(last)),
            );
            self.ranges_in(&between).next().is_none() && self.gotos_in(&between).next().is_none()
        };
        let nothing_waits = self
            .keyed
            .range::<[u8], _>((RangeBound::Included(first), RangeBound::Included(last)))
            .next()
            .is_none()
            && (self.ranges.is_empty() && self.gotos.is_empty() || covers_nothing());
        if nothing_waits { keys.count() } else { keys.take_while(|key| self.passes(key)).count() }
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

    /// Gotos that overlap the range.
    pub(crate) fn gotos_in(&self, range: &KeyRange) -> impl Iterator<Item = &Goto> {
        let first = self.gotos.partition_point(|goto| goto.range.upper <= range.lower);
        let upper = range.upper.clone();
        self.gotos[first..].iter().take_while(move |goto| goto.range.lower < upper)
    }

    /// The oldest and the newest MSN of what is in it, looked up message by message; `None` if nothing is.
    pub(crate) fn msns(&self) -> Option<(Msn, Msn)> {
        let keyed = self.keyed.values().map(|(msn, _)| *msn);
        let fragments = self.ranges.iter().map(|(_, msn)| *msn).chain(self.gotos.iter().map(|goto| goto.msn));
        let mut all = keyed.chain(fragments);
        let first = all.next()?;
        Some(all.fold((first, first), |(oldest, newest), msn| (oldest.min(msn), newest.max(msn))))
    }

    /// The MSN of what it says of a key; `None` if it passes the key.
    pub(crate) fn newest_for(&self, key: &[u8]) -> Option<Msn> {
        let keyed = self.keyed.get(key).map(|(msn, _)| *msn);
        let next = self.ranges.partition_point(|(range, _)| !range.upper.is_above(key));
        let range = self.ranges.get(next).filter(|(range, _)| range.contains(key)).map(|(_, msn)| *msn);
        keyed.max(range).max(self.goto_of(key).map(|goto| goto.msn))
    }

    /// True if it has a keyed sum for a key with this MSN.
    pub(crate) fn has(&self, key: &[u8], msn: Msn) -> bool {
        self.keyed.get(key).is_some_and(|(own, _)| *own == msn)
    }

    /// The newest MSN of what it says of the keys in a range; `None` if it passes all of them.
    pub(crate) fn newest_in(&self, range: &KeyRange) -> Option<Msn> {
        let keyed = self.keyed_in(range).map(|(key, _)| self.keyed[key].0).max();
        let ranges = self.ranges_in(range).map(|(_, msn)| *msn).max();
        keyed.max(ranges).max(self.gotos_in(range).map(|goto| goto.msn).max())
    }

    /// True if no keyed message is older than the fragment it lies in (BUF-3).
    pub(crate) fn is_in_order(&self) -> bool {
        let gotos = self.gotos.iter().map(|goto| (&goto.range, goto.msn));
        let mut fragments = self.ranges.iter().map(|(range, msn)| (range, *msn)).chain(gotos);
        fragments.all(|(range, msn)| self.keyed_in(range).all(|(key, _)| self.keyed[key].0 >= msn))
    }

    /// Adds a message for one key.
    pub(crate) fn push(&mut self, key: Bytes, msn: Msn, pending: Pending) {
        self.newest = self.newest.max(msn);
        match self.keyed.entry(key) {
            Entry::Occupied(mut entry) => {
                let (newest, sum) = entry.get_mut();
                debug_assert!(*newest <= msn, "BT-1: messages of a key arrive in MSN order");
                *newest = msn;
                let grown = sum.push(pending);
                self.bytes =
                    self.bytes.checked_add_signed(grown).expect("a sum takes no more away than it holds");
            }
            Entry::Vacant(entry) => {
                let is_deleted = deletes(&self.ranges, entry.key());
                let settled = if is_deleted { settle_on_nothing(pending) } else { Some(pending) };
                if let Some(pending) = settled {
                    self.bytes += Self::keyed_weight(entry.key(), &pending);
                    entry.insert((msn, pending));
                }
            }
        }
    }

    /// Adds a range delete: it eats the messages that it covers. Returns the bytes of the values among them.
    pub(crate) fn push_range(&mut self, range: KeyRange, msn: Msn) -> usize {
        if range.is_empty() {
            return 0;
        }
        self.newest = self.newest.max(msn);
        let eaten = self.eat(&range);
        let at = self.first_above(&range.lower);
        self.bytes += Self::range_weight(&range);
        self.ranges.insert(at, (range, msn));
        eaten
    }

    /// The first fragment that reaches above a bound. Files are deleted in key order for the most part.
    fn first_above(&self, bound: &Bound) -> usize {
        match self.ranges.last() {
            Some((last, _)) if last.upper > *bound => {
                self.ranges.partition_point(|(fragment, _)| fragment.upper <= *bound)
            }
            _ => self.ranges.len(),
        }
    }

    /// Adds a goto: it eats the messages that it covers.
    pub(crate) fn push_goto(&mut self, goto: Goto) {
        self.newest = self.newest.max(goto.msn);
        self.eat(&goto.range);
        self.add_goto(goto);
    }

    fn add_goto(&mut self, goto: Goto) {
        self.newest = self.newest.max(goto.msn);
        self.bytes += Self::goto_weight(&goto);
        let at = self.gotos.partition_point(|other| other.range.upper <= goto.range.lower);
        self.gotos.insert(at, goto);
    }

    /// As [`super::entries::Entries::copy_out_beside`], for what waits to be put.
    fn copy_out_beside(&mut self, range: &KeyRange) {
        let Some((from, to)) = key_limits(range) else { return };
        let mut gone = self.keyed_in(range).filter_map(|(_, pending)| value_of(pending));
        let Some(first) = gone.next().cloned() else { return };
        let (mut last, mut limit) = (first.clone(), first.len());
        for value in gone {
            limit += value.len();
            last = value.clone();
        }
        let below = (RangeBound::Unbounded, RangeBound::Excluded(&from[..]));
        let values =
            self.keyed.range::<[u8], _>(below).rev().map_while(|(_, (_, pending))| value_of(pending));
        let before = left_of(Side::Before(&first), values, limit);
        let beside = self.keyed.range_mut::<[u8], _>(below).rev().take(before);
        beside.flat_map(|(_, (_, pending))| pending.bytes_mut()).for_each(copy_out);
        let Some(to) = to else { return };
        let above = (RangeBound::Included(&to[..]), RangeBound::Unbounded);
        let values = self.keyed.range::<[u8], _>(above).map_while(|(_, (_, pending))| value_of(pending));
        let behind = left_of(Side::Behind(&last), values, limit);
        let beside = self.keyed.range_mut::<[u8], _>(above).take(behind);
        beside.flat_map(|(_, (_, pending))| pending.bytes_mut()).for_each(copy_out);
    }

    /// Drops everything inside a range; fragments that reach over its ends are cut back (BUF-2). Returns the bytes of the values that
    /// were to be put there.
    pub(crate) fn eat(&mut self, range: &KeyRange) -> usize {
        let mut values = 0;
        if !self.keyed.is_empty() {
            self.copy_out_beside(range);
            let eaten: Vec<Bytes> = self.keyed_in(range).map(|(key, _)| key.clone()).collect();
            for key in eaten {
                if let Some((_, pending)) = self.keyed.remove(&key) {
                    self.bytes -= Self::keyed_weight(&key, &pending);
                    values += if let Pending::Put(value) = &pending { value.len() } else { 0 };
                }
            }
        }
        let first = self.first_above(&range.lower);
        let overlapping = self.ranges[first..].partition_point(|(fragment, _)| fragment.lower < range.upper);
        let last = first + overlapping;
        if first < last {
            let cut: Vec<_> = self.ranges[first..last]
                .iter()
                .flat_map(|(fragment, msn)| outside(fragment, range).map(|rest| (rest, *msn)))
                .collect();
            self.bytes += cut.iter().map(|(range, _)| Self::range_weight(range)).sum::<usize>();
            let dropped = self.ranges.splice(first..last, cut);
            self.bytes -= dropped.map(|(range, _)| Self::range_weight(&range)).sum::<usize>();
        }
        let first = self.gotos.partition_point(|goto| goto.range.upper <= range.lower);
        let last = self.gotos.partition_point(|goto| goto.range.lower < range.upper);
        if first < last {
            let cut: Vec<_> = self.gotos[first..last]
                .iter()
                .flat_map(|goto| outside(&goto.range, range).map(|rest| Goto { range: rest, ..goto.clone() }))
                .collect();
            self.bytes += cut.iter().map(Self::goto_weight).sum::<usize>();
            let dropped = self.gotos.splice(first..last, cut);
            self.bytes -= dropped.map(|goto| Self::goto_weight(&goto)).sum::<usize>();
        }
        values
    }

    /// A bound inside of a range below which about half of the messages lie, by their weight; `None` if there is none.
    pub(crate) fn middle(&self, range: &KeyRange) -> Option<Bound> {
        let keyed = self.keyed.iter();
        let keyed =
            keyed.map(|(key, (_, pending))| (Bound::before(key.clone()), Self::keyed_weight(key, pending)));
        let ranges = self.ranges.iter().map(|(range, _)| (range.lower.clone(), Self::range_weight(range)));
        let gotos = self.gotos.iter().map(|goto| (goto.range.lower.clone(), Self::goto_weight(goto)));
        let mut places: Vec<_> = keyed.chain(ranges).chain(gotos).collect();
        places.sort();
        let inside = |bound: &Bound| *bound > range.lower && *bound < range.upper;
        let mut below = 0;
        let mut middle = None;
        for (bound, weight) in places {
            if below > 0 && inside(&bound) && (middle.is_none() || below <= self.bytes / 2) {
                middle = Some(bound);
            }
            below += weight;
        }
        // It outlives the messages, so it keeps nothing of theirs.
        middle.map(|bound| Bound { bytes: Bytes::copy_from_slice(&bound.bytes), ..bound })
    }

    /// Cuts off everything at and above `bound` into a buffer of its own.
    pub(crate) fn split_off(&mut self, bound: &Bound) -> Self {
        let above = KeyRange::new(bound.clone(), Bound::greatest());
        let mut right = Self { newest: self.newest, is_read: self.is_read, ..Self::default() };
        let first = self.keyed_in(&above).next().map(|(key, _)| key.clone());
        if let Some(first) = first {
            let all = self.keyed_bytes();
            right.keyed = self.keyed.split_off(&first);
            let weigh = |keyed: &Keyed| -> usize {
                keyed.iter().map(|(key, (_, pending))| Self::keyed_weight(key, pending)).sum()
            };
            // The smaller half is weighed.
            right.bytes = if right.keyed.len() < self.keyed.len() {
                weigh(&right.keyed)
            } else {
                all - weigh(&self.keyed)
            };
            self.bytes -= right.bytes;
        }
        for (range, msn) in self.split_off_ranges(bound) {
            right.add_fragment(KeyRange::new(range.lower.max(bound.clone()), range.upper), msn);
        }
        self.split_off_gotos(bound).iter().for_each(|goto| right.add_goto_inside(goto, &above));
        right
    }

    /// What of it lies inside a range.
    pub(crate) fn inside(mut self, range: &KeyRange) -> Self {
        if self.lies_inside(range) {
            return self;
        }
        drop(self.split_off(&range.upper));
        self.split_off(&range.lower)
    }

    /// True if no keyed message and no goto reaches out of a range, as range deletes may.
    pub(crate) fn targets_lie_inside(&self, range: &KeyRange) -> bool {
        let keys = [self.keyed.first_key_value(), self.keyed.last_key_value()];
        let gotos = [self.gotos.first(), self.gotos.last()];
        keys.into_iter().flatten().all(|(key, _)| range.contains(key))
            && gotos.into_iter().flatten().all(|goto| range.covers(&goto.range))
    }

    /// True if no message reaches out of a range.
    pub(crate) fn lies_inside(&self, range: &KeyRange) -> bool {
        let fragments = [self.ranges.first(), self.ranges.last()];
        self.targets_lie_inside(range)
            && fragments.into_iter().flatten().all(|(fragment, _)| range.covers(fragment))
    }

    /// Takes in a buffer whose messages all lie at or above `border`, all of its own below it. Fragments that reach
    /// over the border on either side, as those of a node's outer children may, are cut there first. So are gotos, which only damage lets
    /// reach over it: they would rise no more.
    pub(crate) fn append(&mut self, right: Self, border: &Bound) {
        drop(self.split_off_ranges(border));
        drop(self.split_off_gotos(border));
        for (range, msn) in right.ranges {
            let lower = range.lower.max(border.clone());
            if lower < range.upper {
                self.add_fragment(KeyRange::new(lower, range.upper), msn);
            }
        }
        let above = KeyRange::new(border.clone(), Bound::greatest());
        right.gotos.iter().for_each(|goto| self.add_goto_inside(goto, &above));
        for (key, (msn, pending)) in right.keyed {
            self.bytes += Self::keyed_weight(&key, &pending);
            self.keyed.insert(key, (msn, pending));
        }
        self.newest = self.newest.max(right.newest);
        self.is_read |= right.is_read;
    }

    fn add_goto_inside(&mut self, goto: &Goto, limits: &KeyRange) {
        let range = goto.range.intersection(limits);
        if !range.is_empty() {
            self.add_goto(Goto { range, ..goto.clone() });
        }
    }

    /// Takes off the gotos that reach above a border, and keeps what of them lies below it.
    fn split_off_gotos(&mut self, border: &Bound) -> Vec<Goto> {
        let first = self.gotos.partition_point(|goto| goto.range.upper <= *border);
        let cut: Vec<_> = self.gotos.drain(first..).collect();
        let below = KeyRange::new(Bound::least(), border.clone());
        for goto in &cut {
            self.bytes -= Self::goto_weight(goto);
            self.add_goto_inside(goto, &below);
        }
        cut
    }

    /// The same of range deletes.
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
        if prefix.is_empty() && strip.is_empty() {
            return self;
        }
        let mut buffer = Self { newest: self.newest, is_read: self.is_read, ..Self::default() };
        for (range, msn) in self.ranges {
            let range = KeyRange::new(
                relift_outer(&range.lower, prefix, strip),
                relift_outer(&range.upper, prefix, strip),
            );
            buffer.add_fragment(range, msn);
        }
        for mut goto in self.gotos {
            // Never widened: what lies outside is not the target's.
            goto.range = KeyRange::new(
                relift_bound(&goto.range.lower, prefix, strip),
                relift_bound(&goto.range.upper, prefix, strip),
            );
            relift_way(&mut goto.xf.strip, &mut goto.xf.prepend, prefix, strip);
            buffer.add_goto(goto);
        }
        let relifted =
            self.keyed.into_iter().map(|(key, message)| (relift_key(&key, prefix, strip), message));
        // In one go, since they stay in their order.
        buffer.keyed = relifted
            .inspect(|(key, (_, pending))| buffer.bytes += Self::keyed_weight(key, pending))
            .collect();
        buffer
    }

    /// True if messages may be slices of what was read from the device.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    /// Takes it apart. Of a buffer that was read these are copies: in a leaf one small message would keep all that was read, and nothing
    /// counts that there.
    pub(crate) fn into_messages(self) -> Messages {
        let messages = Messages { ranges: self.ranges, gotos: self.gotos, keyed: self.keyed };
        if self.is_read { messages.copied() } else { messages }
    }

    /// What the keyed messages take of [`Self::bytes`].
    fn keyed_bytes(&self) -> usize {
        let ranges: usize = self.ranges.iter().map(|(range, _)| Self::range_weight(range)).sum();
        self.bytes - ranges - self.gotos.iter().map(Self::goto_weight).sum::<usize>()
    }

    fn keyed_weight(key: &Bytes, pending: &Pending) -> usize {
        key.len() + pending.weight() + ENTRY_OVERHEAD
    }

    fn range_weight(range: &KeyRange) -> usize {
        range.lower.bytes.len() + range.upper.bytes.len() + ENTRY_OVERHEAD
    }

    fn goto_weight(goto: &Goto) -> usize {
        goto.range.lower.bytes.len() + goto.range.upper.bytes.len() + goto.xf.prepend.len() + ENTRY_OVERHEAD
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
        for window in self.gotos.windows(2) {
            assert!(window[0].range.upper <= window[1].range.lower, "BUF-2");
        }
        for goto in &self.gotos {
            assert!(!goto.range.is_empty() && self.ranges_in(&goto.range).next().is_none(), "BUF-2");
            bytes += Self::goto_weight(goto);
        }
        bytes += self.keyed.iter().map(|(key, (_, pending))| Self::keyed_weight(key, pending)).sum::<usize>();
        assert_eq!(bytes, self.bytes);
    }
}

/// True if a key lies in one of the fragments.
fn deletes(ranges: &[(KeyRange, Msn)], key: &[u8]) -> bool {
    let next = ranges.partition_point(|(range, _)| !range.upper.is_above(key));
    ranges.get(next).is_some_and(|(range, _)| range.contains(key))
}

/// A message for a key that is known to have no value below; `None` if it changes nothing there.
pub(crate) fn settle_on_nothing(pending: Pending) -> Option<Pending> {
    pending.settle(None).map(Pending::Put)
}

/// Bounds at the outer ends of a node's range stay there, whatever the keys are lifted to.
fn relift_outer(bound: &Bound, prefix: &[u8], strip: &[u8]) -> Bound {
    if *bound == Bound::least() || *bound == Bound::greatest() {
        return bound.clone();
    }
    relift_bound(bound, prefix, strip)
}

/// The pieces of a fragment that lie outside of a range that overlaps it.
fn outside(fragment: &KeyRange, range: &KeyRange) -> impl Iterator<Item = KeyRange> + use<> {
    let below = KeyRange::new(fragment.lower.clone(), range.lower.clone());
    let above = KeyRange::new(range.upper.clone(), fragment.upper.clone());
    [below, above].into_iter().filter(|piece| !piece.is_empty())
}
