//! Leaves: a list of basement nodes, each a sorted list of keys and values.
//!
//! * LEAF-1 the keys of a basement lie at or above its `first_key` and below the next one's. A new key below the first
//!   basement's goes there and lowers it.
//! * LEAF-2 keys rise strictly.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;
use pando_format::{Bound, KeyRange, Msn, Pending};

use super::entries::{Entries, Entry, Position};
use super::lifting::{key_limits, relift_key};
use super::part::Part;

/// What an entry weighs in memory beside its bytes.
pub(crate) const ENTRY_OVERHEAD: usize = 96;

/// Part of a leaf: keys and values in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Basement {
    /// Lifted keys, rising strictly (LEAF-2), and their values.
    pub(crate) entries: Entries,
    /// Bytes of all keys and values.
    pub(crate) bytes: usize,
    /// Memory of the device buffer that the entries share since the part was read; 0 if they own theirs.
    pub(crate) shared_bytes: usize,
}

impl Basement {
    /// A basement of these entries.
    pub(crate) fn new(entries: impl Into<Entries>) -> Self {
        let entries = entries.into();
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        Self { entries, bytes, shared_bytes: 0 }
    }

    /// Memory it takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.max(self.shared_bytes) + self.entries.len() * ENTRY_OVERHEAD
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.entries.find(key).ok().map(|at| &self.entries.at(at).1)
    }

    /// A copy of the first key: that of the entry would keep what was read or written with it.
    fn first_key(&self) -> Bytes {
        let (key, _) = self.entries.first().expect("LEAF-1: no basement is empty");
        Bytes::copy_from_slice(key)
    }

    /// Where the entries inside a range begin and end.
    fn limits(&self, range: &KeyRange) -> (Position, Position) {
        let Some((first, last)) = key_limits(range) else {
            return (self.entries.start(), self.entries.start());
        };
        let end = last.map_or(self.entries.end(), |last| self.entries.lower_bound(&last));
        (self.entries.lower_bound(&first), end)
    }

    /// The entries inside a range.
    pub(crate) fn inside(&self, range: &KeyRange) -> impl Iterator<Item = &Entry> + use<'_> {
        let (from, to) = self.limits(range);
        self.entries.between(from, to)
    }

    /// True if there are entries, and none outside of a range.
    pub(crate) fn lies_inside(&self, range: &KeyRange) -> bool {
        let ends = self.entries.first().zip(self.entries.last());
        ends.is_some_and(|((first, _), (last, _))| range.contains(first) && range.contains(last))
    }

    /// Applies one message. True if the key has a value then.
    pub(crate) fn apply(&mut self, key: Bytes, pending: Pending) -> bool {
        match self.entries.find_for_change(&key) {
            Ok(at) => {
                let value = self.entries.value_mut(at);
                let old = std::mem::take(value);
                self.bytes -= old.len();
                match pending.settle(Some(old)) {
                    Some(new) => {
                        self.bytes += new.len();
                        *value = new;
                        true
                    }
                    None => {
                        self.bytes -= key.len();
                        self.entries.remove(at);
                        false
                    }
                }
            }
            Err(at) => match pending.settle(None) {
                Some(value) => {
                    self.bytes += key.len() + value.len();
                    self.entries.insert(at, (key, value));
                    true
                }
                None => false,
            },
        }
    }

    /// Applies a range delete, by which so many bytes go in the whole leaf.
    pub(crate) fn delete_range(&mut self, range: &KeyRange, gone: usize) {
        let (from, to) = self.limits(range);
        self.entries.copy_out_beside(from, to, gone);
        self.bytes -= self.entries.remove_between(from, to);
    }

    /// Lets go of a device buffer that the entries keep alive although they use less than half of it.
    pub(crate) fn unshare(&mut self) {
        if self.shared_bytes == 0 || self.bytes * 2 > self.shared_bytes {
            return;
        }
        for (key, value) in self.entries.iter_mut() {
            *key = Bytes::copy_from_slice(key);
            *value = Bytes::copy_from_slice(value);
        }
        self.shared_bytes = 0;
    }
}

/// A basement and what is known of it without its contents.
#[derive(Debug, Clone)]
pub(crate) struct BasementSlot {
    /// See LEAF-1. In memory of its own, or that of the node's header, since it stays when the contents go.
    pub(crate) first_key: Bytes,
    /// The contents.
    pub(crate) part: Part<Basement>,
    /// Bytes of keys and values.
    pub(crate) bytes: usize,
    /// Number of entries.
    pub(crate) entries: u32,
    /// The highest MSN applied.
    pub(crate) msn: Msn,
}

impl BasementSlot {
    /// A slot for a basement that is not empty.
    fn new(basement: Basement, msn: Msn) -> Self {
        Self {
            first_key: basement.first_key(),
            bytes: basement.bytes,
            entries: basement.entries.len() as u32,
            part: Part::new(basement),
            msn,
        }
    }

    /// Takes in the basement behind this one. Both are in memory.
    fn take_in(&mut self, behind: Self) {
        let more = behind.part.into_value().expect("the caller has seen that it is in memory");
        let basement = self.part.change().expect("the caller has seen that it is in memory");
        basement.shared_bytes += more.shared_bytes;
        basement.bytes += more.bytes;
        basement.entries.append(more.entries);
        basement.unshare();
        self.bytes += behind.bytes;
        self.entries += behind.entries;
        self.msn = self.msn.max(behind.msn);
    }
}

/// The body of a node of height 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaf {
    /// In key order; empty for a leaf without keys.
    pub(crate) basements: Vec<BasementSlot>,
    /// Messages since the last split that went behind the last key, and all of them.
    at_end: u32,
    applied: u32,
    /// The basements that messages went to last, the latest first.
    latest: [usize; 2],
}

impl Leaf {
    /// A leaf of basements in order.
    pub(crate) fn of(basements: Vec<BasementSlot>) -> Self {
        Self { basements, ..Self::default() }
    }

    /// Adds a basement behind the others. `shared_bytes` as in [`Basement`].
    pub(crate) fn push_basement(&mut self, entries: Vec<(Bytes, Bytes)>, shared_bytes: usize, msn: Msn) {
        let mut basement = Basement::new(entries);
        basement.shared_bytes = shared_bytes;
        basement.unshare();
        self.basements.push(BasementSlot::new(basement, msn));
    }

    /// Adds the basement of another leaf behind the others, held by both until one of them changes. It is loaded.
    pub(crate) fn share_basement(&mut self, slot: &BasementSlot) {
        let mut slot = slot.clone();
        let basement = slot.part.get().expect("the caller has seen that it is in memory");
        // It may stand further in front, where the keys of other leaves are.
        slot.first_key = basement.first_key();
        slot.part.leave_image();
        self.basements.push(slot);
    }

    /// True if it is to be split: above its size, and not a single basement, which a very long key can fill alone.
    pub(crate) fn is_too_large(&self, node_bytes: usize) -> bool {
        self.basements.len() > 1 && self.bytes() > node_bytes
    }

    /// True if no key in memory lies outside of the leaf's bounds, or of its basement's.
    pub(crate) fn lies_inside(&self, own: &KeyRange) -> bool {
        self.basements.iter().enumerate().all(|(index, slot)| {
            let bounds = self.range_of(index).intersection(own);
            bounds.contains(&slot.first_key)
                && slot.part.get().is_none_or(|basement| basement.lies_inside(&bounds))
        })
    }

    /// True if almost all messages of late went behind its last key.
    pub(crate) fn grown_at_end(&self) -> bool {
        self.applied > 8 && self.at_end >= self.applied - self.applied / 8
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.basements.iter().map(|slot| slot.bytes).sum()
    }

    /// Bytes of the keys in a range and their values; basements at its ends that are not loaded count whole.
    pub(crate) fn bytes_in(&self, range: &KeyRange) -> usize {
        let overlapping = self.overlapping(range);
        let bytes = overlapping.clone().map(|index| {
            let slot = &self.basements[index];
            match slot.part.get() {
                Some(basement) if !self.is_covered(range, &overlapping, index) => {
                    basement.inside(range).map(|(key, value)| key.len() + value.len()).sum()
                }
                _ => slot.bytes,
            }
        });
        bytes.sum()
    }

    /// True if it is known that no key lies in a range: basements at its ends that are not loaded may have some. Bytes do not tell: a key
    /// that is lifted whole has none, and its value may have none either.
    pub(crate) fn is_empty_in(&self, range: &KeyRange) -> bool {
        let mut slots = self.basements[self.overlapping(range)].iter();
        slots.all(|slot| slot.part.get().is_some_and(|basement| basement.inside(range).next().is_none()))
    }

    /// Number of keys.
    pub(crate) fn entries(&self) -> usize {
        self.basements.iter().map(|slot| slot.entries as usize).sum()
    }

    /// Memory of what is loaded.
    pub(crate) fn memory(&self) -> usize {
        self.basements.iter().filter_map(|slot| slot.part.get()).map(|basement| basement.memory()).sum()
    }

    /// The basement that a key belongs to.
    pub(crate) fn index_of(&self, key: &[u8]) -> usize {
        // As in a basement, most go behind what is there.
        let reaches = |slot: &BasementSlot| &slot.first_key[..] <= key;
        if self.basements.last().is_some_and(reaches) {
            return self.basements.len() - 1;
        }
        // What changes a file changes its directory, too, which may lie in another one.
        let holds = |&at: &usize| {
            self.basements.get(at).is_some_and(reaches) && !self.basements.get(at + 1).is_some_and(reaches)
        };
        let near = self.latest.into_iter().find(holds);
        near.unwrap_or_else(|| self.basements.partition_point(reaches).saturating_sub(1))
    }

    /// The basements whose ranges have something in common with a range.
    pub(super) fn overlapping(&self, range: &KeyRange) -> Range<usize> {
        let Some((_, behind_first)) = self.basements.split_first() else { return 0..0 };
        if range.is_empty() {
            return 0..0;
        }
        let from = behind_first.partition_point(|slot| range.lower.reaches(&slot.first_key));
        let to = behind_first.partition_point(|slot| range.upper.is_above(&slot.first_key));
        from..to + 1
    }

    /// True if a range covers basement `index` of those that overlap it: only the outermost may reach beyond it.
    fn is_covered(&self, range: &KeyRange, overlapping: &Range<usize>, index: usize) -> bool {
        let is_inner = index > overlapping.start && index + 1 < overlapping.end;
        is_inner || range.covers(&self.range_of(index))
    }

    /// The range of basement `index` in the leaf's coordinates; open at the leaf's ends.
    pub(crate) fn range_of(&self, index: usize) -> KeyRange {
        let lower =
            if index == 0 { Bound::least() } else { Bound::before(self.basements[index].first_key.clone()) };
        let upper = match self.basements.get(index + 1) {
            Some(next) => Bound::before(next.first_key.clone()),
            None => Bound::greatest(),
        };
        KeyRange::new(lower, upper)
    }

    /// Says which basement must be loaded before these messages can be applied.
    pub(crate) fn missing_for<'a>(
        &self,
        ranges: impl IntoIterator<Item = &'a KeyRange>,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<u32> {
        if self.basements.iter().all(|slot| slot.part.get().is_some()) {
            return None;
        }
        let mut dead = vec![false; self.basements.len()];
        for range in ranges {
            let overlapping = self.overlapping(range);
            for index in overlapping.clone() {
                if self.is_covered(range, &overlapping, index) {
                    dead[index] = true;
                } else if self.basements[index].part.get().is_none() {
                    return Some(index as u32);
                }
            }
        }
        for key in keys {
            let index = self.index_of(key);
            if self.basements[index].part.get().is_none() && !dead[index] {
                return Some(index as u32);
            }
        }
        None
    }

    /// Applies a range delete; returns the bytes of the keys and values that are no more. Basements that it covers whole are dropped unread.
    pub(crate) fn delete_range(&mut self, range: &KeyRange, msn: Msn) -> usize {
        let overlapping = self.overlapping(range);
        let bytes =
            |leaf: &Self| leaf.basements[overlapping.clone()].iter().map(|slot| slot.bytes).sum::<usize>();
        let before = bytes(self);
        let gone = self.bytes_in(range);
        for index in overlapping.clone() {
            let is_covered = self.is_covered(range, &overlapping, index);
            let slot = &mut self.basements[index];
            if is_covered {
                slot.part = Part::new(Basement::default());
                slot.bytes = 0;
                slot.entries = 0;
                slot.msn = slot.msn.max(msn);
            } else {
                // Only what changes is marked changed: most fragments end in the gap between two keys.
                let loaded = slot.part.get().expect("missing_for() was asked before");
                if loaded.inside(range).next().is_some() {
                    let basement = slot.part.change().expect("missing_for() was asked before");
                    basement.delete_range(range, gone);
                    basement.unshare();
                    slot.bytes = basement.bytes;
                    slot.entries = basement.entries.len() as u32;
                    slot.msn = slot.msn.max(msn);
                }
            }
        }
        before - bytes(self)
    }

    /// Takes out the basements that have become empty. To be called when all messages at hand have been applied: until
    /// then an empty basement keeps its range, since its neighbour, which inherits it, may not be loaded.
    pub(crate) fn drop_empty(&mut self) {
        self.basements.retain(|slot| slot.entries > 0);
    }

    /// Joins neighbours in memory that fit into one basement: each costs a block at least, and a reader a part more.
    pub(crate) fn join_small(&mut self, basement_bytes: usize) {
        let is_here = |slot: &BasementSlot| slot.part.get().is_some();
        let fits = |pair: &[BasementSlot]| {
            pair[0].bytes + pair[1].bytes <= basement_bytes && pair.iter().all(is_here)
        };
        if !self.basements.windows(2).any(fits) {
            return;
        }
        let basements = std::mem::take(&mut self.basements);
        for slot in basements {
            match self.basements.last_mut() {
                Some(last)
                    if last.bytes + slot.bytes <= basement_bytes && is_here(last) && is_here(&slot) =>
                {
                    last.take_in(slot);
                }
                _ => self.basements.push(slot),
            }
        }
    }

    /// Applies one keyed message. Its basement must be loaded.
    pub(crate) fn apply(&mut self, key: Bytes, msn: Msn, pending: Pending, basement_bytes: usize) {
        if self.basements.is_empty() {
            if let Some(value) = pending.settle(None) {
                self.basements.push(BasementSlot::new(Basement::new(vec![(key, value)]), msn));
            }
            return;
        }
        let mut index = self.index_of(&key);
        if self.falls_before_next(index, &key, &pending, basement_bytes) {
            index += 1;
        }
        if self.latest[0] != index {
            self.latest = [index, self.latest[0]];
        }
        let is_last = index + 1 == self.basements.len();
        let slot = &mut self.basements[index];
        let basement = slot.part.get().expect("missing_for() was asked before");
        self.applied = self.applied.saturating_add(1);
        let last = basement.entries.last().map(|(last, _)| last.cmp(&key));
        let is_behind = last == Some(Ordering::Less);
        if is_behind && is_last {
            self.at_end = self.at_end.saturating_add(1);
        }
        if let Pending::Put(value) = &pending
            && is_behind
            && basement.bytes <= basement_bytes
            && basement.bytes + key.len() + value.len() > basement_bytes
        {
            // What a cut would come to, without a look at all that is there.
            let basement = Basement::new(vec![(key, value.clone())]);
            self.basements.insert(index + 1, BasementSlot::new(basement, msn));
            self.latest = [index + 1, index];
            return;
        }
        if key < slot.first_key {
            slot.first_key = Bytes::copy_from_slice(&key);
        }
        let basement = slot.part.change().expect("it is in memory");
        // Messages that go to the end of a basement are those of a growing file: it is cut when it is full, so that sequential writes
        // fill basements instead of leaving halves.
        let grows_at_end = basement.apply(key, pending) && last != Some(Ordering::Greater);
        slot.bytes = basement.bytes;
        slot.entries = basement.entries.len() as u32;
        slot.msn = slot.msn.max(msn);
        let bytes = slot.bytes;
        if bytes > basement_bytes && grows_at_end {
            let pieces = self.cut_basement(index, Pieces::Full(basement_bytes));
            self.latest[0] = index + pieces - 1;
        } else if bytes > basement_bytes * 2 {
            // What is over when each is filled may be a single entry, and costs a block and a part.
            self.cut_basement(index, Pieces::Equal(bytes / basement_bytes));
        }
    }

    /// True if a message belongs behind a basement that is full, and the one behind that, which has room, is written to: keys come in falling
    /// order, and each would begin a basement of its own. What grows in front of others begins one that it fills, unless those grow as well and
    /// have not filled their first.
    fn falls_before_next(&self, index: usize, key: &[u8], pending: &Pending, basement_bytes: usize) -> bool {
        if !self.latest.contains(&(index + 1)) {
            return false;
        }
        let (Some(slot), Some(next)) = (self.basements.get(index), self.basements.get(index + 1)) else {
            return false;
        };
        let weight = key.len() + pending.length();
        let last = slot.part.get().and_then(|basement| basement.entries.last());
        slot.bytes + weight > basement_bytes
            && next.bytes + weight <= basement_bytes
            && next.part.get().is_some()
            && last.is_some_and(|(last, _)| &last[..] < key)
    }

    /// Says how many pieces there are.
    fn cut_basement(&mut self, index: usize, pieces: Pieces) -> usize {
        let slot = &mut self.basements[index];
        let msn = slot.msn;
        let basement = slot.part.change().expect("the basement was just changed");
        let shared_bytes = basement.shared_bytes;
        let (bytes, entries) = (basement.bytes, std::mem::take(&mut basement.entries));
        let mut pieces = cut(entries, bytes, pieces, msn);
        if shared_bytes > 0 {
            for piece in &mut pieces {
                piece.part.change().expect("the piece was just made").shared_bytes = shared_bytes;
            }
        }
        let count = pieces.len();
        self.basements.splice(index..=index, pieces);
        count
    }

    /// The same keys for a node that lifts more or less; every basement must be loaded.
    pub(crate) fn relift(&mut self, prefix: &[u8], strip: &[u8]) {
        if prefix.is_empty() && strip.is_empty() {
            return;
        }
        for slot in &mut self.basements {
            let basement = slot.part.change().expect("the whole leaf was loaded before");
            for (key, _) in basement.entries.iter_mut() {
                *key = relift_key(key, prefix, strip);
            }
            let entries = std::mem::take(&mut basement.entries);
            let shared_bytes = basement.shared_bytes;
            *basement = Basement::new(entries);
            basement.shared_bytes = shared_bytes;
            slot.first_key = basement.first_key();
            slot.bytes = basement.bytes;
        }
    }

    /// The highest MSN applied to any part.
    pub(crate) fn newest(&self) -> Msn {
        self.basements.iter().map(|slot| slot.msn).max().unwrap_or_default()
    }
}

/// How a basement is cut.
#[derive(Debug, Clone, Copy)]
enum Pieces {
    /// Each but the last is filled up to so many bytes.
    Full(usize),
    /// So many of about the same size.
    Equal(usize),
}

/// The pieces of a basement of so many bytes.
fn cut(entries: Entries, bytes: usize, pieces: Pieces, msn: Msn) -> Vec<BasementSlot> {
    let mut slots = Vec::new();
    let mut piece = Vec::new();
    let (mut in_piece, mut before, mut number) = (0, 0, 0);
    for (key, value) in entries {
        let entry_bytes = key.len() + value.len();
        let is_border = match pieces {
            Pieces::Full(limit) => in_piece + entry_bytes > limit,
            Pieces::Equal(count) => {
                // Where its middle lies.
                let own = (before + entry_bytes / 2) * count / bytes.max(1);
                std::mem::replace(&mut number, own) != own
            }
        };
        if in_piece > 0 && is_border {
            slots.push(BasementSlot::new(Basement::new(std::mem::take(&mut piece)), msn));
            in_piece = 0;
        }
        in_piece += entry_bytes;
        before += entry_bytes;
        piece.push((key, value));
    }
    if !piece.is_empty() {
        slots.push(BasementSlot::new(Basement::new(piece), msn));
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An edge that showed nothing but such a key was cut when the tree was healed, and the key was lost.
    #[test]
    fn a_key_of_no_bytes_without_a_value_is_there() {
        let mut leaf = Leaf::default();
        leaf.push_basement(
            vec![(Bytes::new(), Bytes::new()), (Bytes::from("b"), Bytes::new())],
            0,
            Msn::default(),
        );
        let first = KeyRange::new(Bound::least(), Bound::before("a"));
        assert_eq!(leaf.bytes_in(&first), 0);
        assert!(!leaf.is_empty_in(&first));
        assert!(leaf.is_empty_in(&KeyRange::prefix("a")));
    }

    /// Keys in order, each with a value of so many bytes.
    fn entries(sizes: impl IntoIterator<Item = usize>) -> Entries {
        let entry =
            |(number, size): (usize, usize)| (Bytes::from(format!("{number:06}")), vec![0; size].into());
        Entries::from(sizes.into_iter().enumerate().map(entry).collect::<Vec<_>>())
    }

    /// A file that was written at once and then cut short kept all that had been written, and counted for what was left.
    #[test]
    fn what_is_left_of_a_write_does_not_keep_all_of_it() {
        struct Written(Vec<u8>, #[expect(dead_code, reason = "held")] std::sync::Arc<()>);
        impl AsRef<[u8]> for Written {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let key = |block: usize| Bytes::from(format!("{block:04}"));
        // What is deleted of 256 blocks, and whether the rest is copied.
        for (deleted, is_copied) in
            [(1..256, true), (0..255, true), (2..254, true), (200..256, false), (255..256, false)]
        {
            let alive = std::sync::Arc::new(());
            let written = Bytes::from_owner(Written(vec![7; 256 * 4096], alive.clone()));
            let mut leaf = Leaf::default();
            for block in 0..256 {
                let value = written.slice(block * 4096..(block + 1) * 4096);
                leaf.apply(key(block), Msn::default(), Pending::Put(value), 128 << 10);
            }
            drop(written);
            leaf.delete_range(
                &KeyRange::new(Bound::before(key(deleted.start)), Bound::before(key(deleted.end))),
                Msn::default(),
            );
            leaf.drop_empty();
            assert_eq!(leaf.entries(), 256 - deleted.len());
            let left = leaf.basements.iter().flat_map(|slot| slot.part.get().unwrap().entries.iter());
            let expected = (0..256).filter(|block| !deleted.contains(block)).map(key);
            assert!(left.map(|(key, _)| key).eq(&expected.collect::<Vec<_>>()));
            assert_eq!(std::sync::Arc::strong_count(&alive) == 1, is_copied, "{deleted:?}");
        }
    }

    #[test]
    fn equal_pieces_are_equal() {
        for (count, pieces) in [(33, 2), (49, 3), (64, 2), (100, 7), (2, 2)] {
            let basement = Basement::new(entries(vec![4096; count]));
            let cut = cut(basement.entries, basement.bytes, Pieces::Equal(pieces), Msn::default());
            let sizes: Vec<_> = cut.iter().map(|slot| slot.entries as usize).collect();
            assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (pieces, count));
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{count} entries: {sizes:?}");
        }
        let basement = Basement::new(entries([9000, 10, 10, 10]));
        assert_eq!(cut(basement.entries, basement.bytes, Pieces::Equal(4), Msn::default()).len(), 2);
        // A long value has a piece of its own, wherever it stands.
        for sizes in [[10, 8000, 10], [8000, 10, 10], [10, 10, 8000]] {
            let basement = Basement::new(entries(sizes));
            let cut = cut(basement.entries, basement.bytes, Pieces::Equal(2), Msn::default());
            assert!(cut.len() == 2, "{sizes:?}: {} pieces", cut.len());
        }
    }

    #[test]
    fn what_grows_at_its_end_is_cut_where_full_pieces_end() {
        for sizes in [&[100; 40][..], &[90, 5, 130, 300, 1000, 20, 20, 4000, 3000, 10, 10, 500], &[2000; 9]] {
            let mut leaf = Leaf::default();
            let all = entries(sizes.iter().copied());
            for (at, (key, value)) in all.iter().enumerate() {
                leaf.apply(key.clone(), Msn { lsn: at as u64, sub: 0 }, Pending::Put(value.clone()), 1000);
            }
            let bytes = Basement::new(all.clone()).bytes;
            let pieces = cut(all, bytes, Pieces::Full(1000), Msn::default());
            let shape = |slots: &[BasementSlot]| {
                slots
                    .iter()
                    .map(|slot| (slot.first_key.clone(), slot.bytes, slot.entries))
                    .collect::<Vec<_>>()
            };
            assert_eq!(shape(&leaf.basements), shape(&pieces), "{sizes:?}");
            assert_eq!(leaf.newest().lsn, sizes.len() as u64 - 1);
            assert_eq!(leaf.at_end, leaf.applied, "all went behind the last key");
        }
    }

    /// Behind a basement that was full each had one of its own, which takes a block at least.
    #[test]
    fn keys_in_falling_order_share_basements() {
        let value = Bytes::from(vec![0; 96]);
        let patch = Pending::Changes(vec![pando_format::Change::Patch { offset: 0, bytes: value.clone() }]);
        for pending in [Pending::Put(value), patch] {
            falling(&pending);
        }
    }

    fn falling(pending: &Pending) {
        let put =
            |leaf: &mut Leaf, key: String| leaf.apply(key.into(), Msn::default(), pending.clone(), 1000);
        let mut leaf = Leaf::default();
        for number in 0..10 {
            put(&mut leaf, format!("a{number:03}"));
        }
        put(&mut leaf, "c000".to_owned());
        for number in (0..200).rev() {
            put(&mut leaf, format!("b{number:03}"));
            // Another directory that is written to meanwhile.
            put(&mut leaf, format!("c{:03}", 200 - number));
        }
        assert_eq!(leaf.entries(), 10 + 200 + 201);
        assert!(leaf.basements.len() <= 2 * 411 / 10, "{} basements", leaf.basements.len());
        for (index, slot) in leaf.basements.iter().enumerate() {
            let basement = slot.part.get().unwrap();
            let keys: Vec<_> = basement.entries.iter().map(|(key, _)| key.clone()).collect();
            assert!(keys.is_sorted() && keys[0] >= slot.first_key, "LEAF-1, LEAF-2");
            assert!(leaf.basements.get(index + 1).is_none_or(|next| keys[keys.len() - 1] < next.first_key));
            assert_eq!((slot.bytes, slot.entries as usize), (basement.bytes, keys.len()));
        }
    }

    #[test]
    fn small_basements_are_joined_where_they_are_in_memory() {
        let mut leaf = Leaf::default();
        for number in 0..6 {
            let entry = |at: usize| (Bytes::from(format!("{number}{at}")), Bytes::from(vec![0; 98]));
            leaf.push_basement((0..3).map(entry).collect(), 0, Msn { lsn: number, sub: 0 });
        }
        leaf.basements[4].part = Part::on_device(pando_format::PartEntry::default());
        let (bytes, count) = (leaf.bytes(), leaf.entries());
        leaf.join_small(899);
        let sizes: Vec<_> = leaf.basements.iter().map(|slot| slot.entries).collect();
        assert_eq!(sizes, [6, 6, 3, 3]);
        assert_eq!((leaf.bytes(), leaf.entries()), (bytes, count));
        assert_eq!(leaf.basements[1].first_key, "20");
        assert_eq!(leaf.basements[1].msn.lsn, 3);
        assert!(leaf.basements[2].part.get().is_none());
        for index in [0, 1, 3] {
            let basement = leaf.basements[index].part.get().unwrap();
            let keys: Vec<_> = basement.entries.iter().map(|(key, _)| key).collect();
            assert!(keys.is_sorted() && keys.len() as u32 == leaf.basements[index].entries);
            assert_eq!(basement.bytes, leaf.basements[index].bytes);
        }
    }

    /// The keys of a run are one allocation, which stayed as long as one of them was the first of a basement.
    #[test]
    fn first_keys_keep_nothing_beside_them() {
        let run = Bytes::from((0..256u32).flat_map(u32::to_be_bytes).collect::<Vec<_>>());
        let mut keys: Vec<_> = (0..256).map(|at| run.slice(at * 4..at * 4 + 4)).collect();
        drop(run);
        let leaf = |keys: &[Bytes]| {
            let mut leaf = Leaf::default();
            for key in keys {
                leaf.apply(key.clone(), Msn::default(), Pending::Put(vec![0; 100].into()), 1000);
            }
            leaf
        };
        let rising = leaf(&keys);
        let mut relifted = leaf(&keys);
        relifted.relift(b"", &[0]);
        keys.reverse();
        let falling = leaf(&keys);
        drop(keys);
        for mut leaf in [rising, falling, relifted] {
            assert!(leaf.basements.len() > 10);
            leaf.basements.iter_mut().for_each(|slot| slot.part = Part::new(Basement::default()));
            assert!(leaf.basements.iter().all(|slot| slot.first_key.is_unique()));
        }
    }

    #[test]
    fn what_a_range_overlaps_and_covers_is_what_intersections_say() {
        let words = ["", "a", "a\0", "ab", "abc", "b", "ba", "c"];
        let bounds: Vec<_> =
            words.iter().flat_map(|&word| [Bound::before(word), Bound::after(word)]).collect();
        for firsts in [&[][..], &["a"], &["", "ab"], &["a", "ab", "b"], &["a", "a\0", "abc", "ba", "c"]] {
            let mut leaf = Leaf::default();
            for first in firsts {
                leaf.push_basement(vec![(Bytes::from(*first), Bytes::from("12345"))], 0, Msn::default());
            }
            for lower in &bounds {
                for upper in &bounds {
                    let range = KeyRange::new(lower.clone(), upper.clone());
                    let own = (0..firsts.len()).map(|index| leaf.range_of(index));
                    let overlapping: Vec<_> = own.map(|own| !range.intersection(&own).is_empty()).collect();
                    let found = leaf.overlapping(&range);
                    for (index, overlaps) in overlapping.into_iter().enumerate() {
                        assert_eq!(found.contains(&index), overlaps, "{firsts:?} {range} {index}");
                        if overlaps {
                            let covered = range.covers(&leaf.range_of(index));
                            assert_eq!(
                                leaf.is_covered(&range, &found, index),
                                covered,
                                "{firsts:?} {range} {index}"
                            );
                        }
                    }
                    let inside = firsts.iter().filter(|first| range.contains(first.as_bytes()));
                    assert_eq!(
                        leaf.bytes_in(&range),
                        inside.map(|first| first.len() + 5).sum(),
                        "{firsts:?} {range}"
                    );
                }
            }
        }
    }
}
