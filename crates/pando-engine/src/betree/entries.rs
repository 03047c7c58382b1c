//! The entries of a basement node in memory: keys and values in order, in runs so short that an insertion or a removal in one
//! moves little memory.
//!
//! * ENT-1 no run is empty.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::copies::copy_for_device;

/// A key and its value.
pub(crate) type Entry = (Bytes, Bytes);

/// A run of so many entries is cut before it grows. What was read from the device, or has only grown at its end, may lie in longer ones.
const RUN_MAX: usize = 64;

/// Keys, which rise strictly, and their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entries {
    /// See ENT-1.
    runs: Vec<Vec<Entry>>,
    length: usize,
    /// Where changes came to last, the latest first: names come and go in order, and with each of them its directory changes.
    fingers: [Position; 2],
}

/// A place between two entries; that of an entry is in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    run: usize,
    at: usize,
}

/// On which side of a value others lie.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a> {
    Before(&'a Bytes),
    Behind(&'a Bytes),
}

/// How many of the values beside one, the nearest first, lie in memory one next to the other, as those of one write do; none if they are more than
/// `limit` bytes.
pub(crate) fn left_of<'a>(
    mut side: Side<'a>,
    neighbours: impl Iterator<Item = &'a Bytes>,
    limit: usize,
) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for value in neighbours {
        let (low, high) = match side {
            Side::Before(one) => (value, one),
            Side::Behind(one) => (one, value),
        };
        if low.is_empty() || high.is_empty() || low.as_ptr().addr() + low.len() != high.as_ptr().addr() {
            break;
        }
        (count, bytes) = (count + 1, bytes + value.len());
        if bytes > limit {
            return 0;
        }
        side = if matches!(side, Side::Before(_)) { Side::Before(value) } else { Side::Behind(value) };
    }
    count
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn first(&self) -> Option<&Entry> {
        self.runs.first().and_then(|run| run.first())
    }

    pub(crate) fn last(&self) -> Option<&Entry> {
        self.runs.last().and_then(|run| run.last())
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.runs.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.runs.iter_mut().flatten()
    }

    /// In front of the first entry.
    pub(crate) fn start(&self) -> Position {
        Position { run: 0, at: 0 }
    }

    /// Behind the last entry.
    pub(crate) fn end(&self) -> Position {
        Position { run: self.runs.len(), at: 0 }
    }

    /// Where a key is, or where it would be.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Position, Position> {
        // Most messages go behind the last key (a file that grows, names made in order).
        let run = match self.last() {
            Some((last, _)) if &last[..] >= key => self.run_of(key),
            _ => return Err(self.end()),
        };
        let found = self.runs[run].binary_search_by(|(other, _)| other[..].cmp(key));
        found.map(|at| Position { run, at }).map_err(|at| Position { run, at })
    }

    /// The same for a change. Where it comes next to one of the last two, it is found by a look at what those have left in the
    /// processor's caches.
    pub(crate) fn find_for_change(&mut self, key: &[u8]) -> Result<Position, Position> {
        let [latest, before] = self.fingers;
        let near = self.find_near(latest, key).or_else(|| {
            self.fingers[1] = latest;
            self.find_near(before, key)
        });
        let found = near.unwrap_or_else(|| self.find(key));
        self.fingers[0] = found.unwrap_or_else(|position| position);
        found
    }

    /// Where a key is, if that is the entry at a position, the one behind it, or in front of either.
    fn find_near(&self, position: Position, key: &[u8]) -> Option<Result<Position, Position>> {
        let Position { run, at } = position;
        let entries = self.runs.get(run)?;
        let (other, _) = entries.get(at)?;
        let (near, (other, _)) = match key.cmp(other) {
            Ordering::Equal => return Some(Ok(position)),
            Ordering::Less => {
                let (below, _) = entries.get(at.checked_sub(1)?)?;
                return (&below[..] < key).then_some(Err(position));
            }
            Ordering::Greater => match entries.get(at + 1) {
                Some(behind) => (Position { run, at: at + 1 }, behind),
                None => (Position { run: run + 1, at: 0 }, self.runs.get(run + 1)?.first()?),
            },
        };
        match key.cmp(other) {
            Ordering::Less => Some(Err(near)),
            Ordering::Equal => Some(Ok(near)),
            Ordering::Greater => None,
        }
    }

    /// The position of the first entry whose key is not below this one.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> Position {
        self.find(key).unwrap_or_else(|position| position)
    }

    /// The first run that holds a key which is not below this one; the last one does.
    fn run_of(&self, key: &[u8]) -> usize {
        self.runs[..self.runs.len() - 1].partition_point(|run| {
            let (last, _) = run.last().expect("ENT-1: no run is empty");
            &last[..] < key
        })
    }

    /// The entry at a position that is not the end.
    pub(crate) fn at(&self, position: Position) -> &Entry {
        &self.runs[position.run][position.at]
    }

    /// The value at a position that is not the end.
    pub(crate) fn value_mut(&mut self, position: Position) -> &mut Bytes {
        &mut self.runs[position.run][position.at].1
    }

    /// The entries between two positions, the first of which is not behind the second.
    pub(crate) fn between(
        &self,
        from: Position,
        to: Position,
    ) -> impl DoubleEndedIterator<Item = &Entry> + use<'_> {
        let last = self.runs.len().min(to.run + 1);
        let runs = self.runs[from.run.min(last)..last].iter().enumerate();
        runs.flat_map(move |(index, run)| {
            let end = if from.run + index == to.run { to.at } else { run.len() };
            let start = if index == 0 { from.at } else { 0 };
            &run[start..end]
        })
    }

    /// Adds an entry at the position where its key would be.
    pub(crate) fn insert(&mut self, position: Position, entry: Entry) {
        self.length += 1;
        if position.run == self.runs.len() {
            match self.runs.last_mut() {
                Some(last) if last.len() < RUN_MAX => last.push(entry),
                _ => self.runs.push(vec![entry]),
            }
            let run = self.runs.len() - 1;
            self.fingers[0] = Position { run, at: self.runs[run].len() - 1 };
            return;
        }
        let Position { run, at } = self.loosen(position);
        self.runs[run].insert(at, entry);
    }

    /// Takes out the entry at a position that is not the end.
    pub(crate) fn remove(&mut self, position: Position) -> Entry {
        self.length -= 1;
        let Position { run, at } = self.loosen(position);
        let entry = self.runs[run].remove(at);
        if self.runs[run].is_empty() {
            self.runs.remove(run);
        }
        entry
    }

    /// Takes out the entries between two positions, the first of which is not behind the second, and returns the bytes of their keys and
    /// values.
    pub(crate) fn remove_between(&mut self, from: Position, to: Position) -> usize {
        let bytes = self.between(from, to).map(|(key, value)| key.len() + value.len()).sum();
        if from == to {
            return bytes;
        }
        if from.run == to.run {
            self.runs[from.run].drain(from.at..to.at);
        } else {
            self.runs[from.run].truncate(from.at);
            if let Some(run) = self.runs.get_mut(to.run) {
                run.drain(..to.at);
            }
            self.runs.drain(from.run + 1..to.run);
        }
        self.runs.retain(|run| !run.is_empty());
        self.length = self.runs.iter().map(Vec::len).sum();
        bytes
    }

    /// Copies out what would be left, by a removal of the entries between two positions, of memory that these share with their neighbours,
    /// where that is no more than `limit` bytes: a few would keep all of it.
    pub(crate) fn copy_out_beside(&mut self, from: Position, to: Position, limit: usize) {
        let (before, behind) = {
            let values = |from, to| self.between(from, to).map(|(_, value)| value);
            let mut gone = values(from, to);
            let Some(first) = gone.next() else { return };
            let last = gone.next_back().unwrap_or(first);
            let before = left_of(Side::Before(first), values(self.start(), from).rev(), limit);
            (before, left_of(Side::Behind(last), values(to, self.end()), limit))
        };
        if (before, behind) == (0, 0) {
            return;
        }
        let index = |at: Position| self.runs[..at.run].iter().map(Vec::len).sum::<usize>() + at.at;
        let (from, to) = (index(from), index(to));
        let beside = |at: usize| (from - before..from).contains(&at) || (to..to + behind).contains(&at);
        for (at, (key, value)) in self.iter_mut().enumerate() {
            if beside(at) {
                (*key, *value) = (Bytes::copy_from_slice(key), copy_for_device(value));
            }
        }
    }

    /// Adds entries whose keys all lie behind the last one.
    pub(crate) fn append(&mut self, other: Self) {
        self.length += other.length;
        self.runs.extend(other.runs);
    }

    /// Cuts the run of a position if it is long; returns where the position is then.
    fn loosen(&mut self, position: Position) -> Position {
        let Position { run, at } = position;
        if self.runs[run].len() < RUN_MAX {
            return position;
        }
        let step = RUN_MAX / 2;
        let mut rest = std::mem::take(&mut self.runs[run]).into_iter();
        let pieces = std::iter::from_fn(|| {
            let piece: Vec<Entry> = rest.by_ref().take(step).collect();
            (!piece.is_empty()).then_some(piece)
        });
        self.runs.splice(run..=run, pieces);
        Position { run: run + at / step, at: at % step }
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(entries: Vec<Entry>) -> Self {
        let length = entries.len();
        let runs = if entries.is_empty() { Vec::new() } else { vec![entries] };
        Self { runs, length, fingers: [Position::default(); 2] }
    }
}

impl IntoIterator for Entries {
    type Item = Entry;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<Entry>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.runs.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16),
        Remove(u16),
        RemoveBetween(u16, u16),
        Append(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || 0..1000u16;
        prop_oneof![
            6 => key().prop_map(Step::Insert),
            4 => key().prop_map(Step::Remove),
            1 => (key(), 0..100u16).prop_map(|(from, count)| Step::RemoveBetween(from, count)),
            1 => (1..200u16).prop_map(Step::Append),
        ]
    }

    fn entry(number: u16) -> Entry {
        (Bytes::copy_from_slice(&number.to_be_bytes()), Bytes::from(vec![1; usize::from(number % 5)]))
    }

    fn check(entries: &Entries, model: &BTreeMap<Bytes, Bytes>) {
        let expected: Vec<Entry> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        assert!(entries.runs.iter().all(|run| !run.is_empty()), "ENT-1");
        assert_eq!(entries.len(), expected.len());
        assert!(entries.iter().eq(&expected) && entries.iter().rev().eq(expected.iter().rev()));
        assert_eq!((entries.first(), entries.last()), (expected.first(), expected.last()));
    }

    proptest! {
        #[test]
        fn entries_are_a_sorted_map(read in 0..300u16, steps in proptest::collection::vec(step(), 0..300)) {
            let mut entries = Entries::from((0..read).map(|number| entry(number * 3)).collect::<Vec<_>>());
            let mut model: BTreeMap<Bytes, Bytes> = entries.iter().cloned().collect();
            for step in steps {
                match step {
                    Step::Insert(number) => {
                        let (key, value) = entry(number);
                        let found = entries.find(&key);
                        prop_assert_eq!(entries.find_for_change(&key), found);
                        match found {
                            Ok(at) => *entries.value_mut(at) = value.clone(),
                            Err(at) => entries.insert(at, (key.clone(), value.clone())),
                        }
                        model.insert(key, value);
                    }
                    Step::Remove(number) => {
                        let (key, _) = entry(number);
                        let found = entries.find(&key);
                        prop_assert_eq!(entries.find_for_change(&key), found);
                        let found = found.ok().map(|at| entries.remove(at));
                        prop_assert_eq!(found.map(|(_, value)| value), model.remove(&key));
                    }
                    Step::RemoveBetween(from, count) => {
                        let ((lower, _), (upper, _)) = (entry(from), entry(from + count));
                        let ends = (entries.lower_bound(&lower), entries.lower_bound(&upper));
                        let gone: Vec<Entry> = model.range(lower..upper).map(|(key, value)| (key.clone(), value.clone())).collect();
                        prop_assert!(entries.between(ends.0, ends.1).eq(&gone));
                        prop_assert!(entries.between(ends.0, ends.1).rev().eq(gone.iter().rev()));
                        let bytes: usize = gone.iter().map(|(key, value)| key.len() + value.len()).sum();
                        prop_assert_eq!(entries.remove_between(ends.0, ends.1), bytes);
                        gone.iter().for_each(|(key, _)| drop(model.remove(key)));
                    }
                    Step::Append(count) => {
                        let last = entries.last().map_or(0, |(key, _)| u16::from_be_bytes([key[0], key[1]]) + 1);
                        let more: Vec<Entry> = (last..last + count).map(entry).collect();
                        model.extend(more.iter().cloned());
                        entries.append(more.into());
                    }
                }
                check(&entries, &model);
            }
        }
    }
}
