//! Where listings go on.
//!
//! A listing goes on behind a *name*, and a cookie says behind which: it is a hash of that name, the same for all who read the
//! directory, for as long as the volume is open, so nothing needs to be kept for it while the name is there. Names behind which somebody
//! is likely to go on are remembered, to be found at once: the last of each reply, and those that were removed since, which
//! could not be found otherwise. Other cookies, as seekdir(3) brings them, are looked for among the names of the directory.
//!
//! There is one of this for each directory that was listed, until the kernel forgets the directory, which it does not do while it is open.

use std::collections::{BTreeMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use bytes::Bytes;

use crate::hash::{NumberMap, Seed};
use crate::names::{Charged, NameBudget};

/// Cookie behind `.`.
pub(crate) const BEHIND_DOT: u64 = 1;
/// Cookie behind `..`.
pub(crate) const BEHIND_DOTS: u64 = 2;
/// Cookie behind the directory of the snapshots, which comes third where it is shown; those of names are larger.
pub(crate) const BEHIND_SNAPSHOTS: u64 = 3;

/// Places that any directory may remember, and beyond which the memory for names must have room.
const FREE_MAX: usize = 256;
/// Places that a directory remembers at the most.
const PLACES_MAX: usize = 16_384;
/// Memory of a place, about.
const PLACE_BYTES: usize = 192;
/// Replies whose beginnings are remembered: who has little room takes the first part of a reply, and goes on in its midst.
const REPLIES_MAX: usize = 8;
/// Names that a directory collects at most to learn that it is complete.
const COLLECTED_MAX: usize = 1 << 20;

/// What is remembered for the listings of one directory.
pub(crate) struct Places {
    budget: Arc<NameBudget>,
    charged: usize,
    /// Counts what is remembered.
    clock: u64,
    /// The names by their cookies, and when they were remembered last.
    names: NumberMap<u64, (u64, Bytes)>,
    by_age: BTreeMap<u64, u64>,
    /// Names behind which the latest replies began.
    begins: VecDeque<Bytes>,
    /// The cookie behind which nothing followed, and the version of the names then.
    end: Option<(u64, u64)>,
    collected: Option<Collected>,
}

/// All names since the start, while they are read one after the other.
struct Collected {
    /// The version of the names at the start.
    version: u64,
    /// The cookie of the latest.
    at: u64,
    names: Charged,
}

/// The cookie of a name.
pub(crate) fn cookie_of(seed: Seed, name: &[u8]) -> u64 {
    // Offsets are signed on the other side.
    let hash = seed.hash_one(name) >> 1;
    if hash <= BEHIND_SNAPSHOTS { hash + BEHIND_SNAPSHOTS + 1 } else { hash }
}

impl Places {
    pub(crate) fn new(budget: Arc<NameBudget>) -> Self {
        Self {
            budget,
            charged: 0,
            clock: 0,
            names: NumberMap::default(),
            by_age: BTreeMap::new(),
            begins: VecDeque::new(),
            end: None,
            collected: None,
        }
    }

    /// The name behind which a cookie goes on, if it is remembered.
    pub(crate) fn name(&self, cookie: u64) -> Option<Bytes> {
        self.names.get(&cookie).map(|(_, name)| name.clone())
    }

    /// Somebody is likely to go on behind this name.
    pub(crate) fn remember(&mut self, cookie: u64, name: Bytes) {
        self.clock += 1;
        self.by_age.insert(self.clock, cookie);
        if let Some((age, _)) = self.names.insert(cookie, (self.clock, name)) {
            self.by_age.remove(&age);
        } else if self.names.len() > FREE_MAX {
            if self.names.len() <= PLACES_MAX && self.budget.take(PLACE_BYTES) {
                self.charged += PLACE_BYTES;
            } else if let Some((_, oldest)) = self.by_age.pop_first() {
                self.names.remove(&oldest);
            }
        }
    }

    /// A reply begins behind this name.
    pub(crate) fn begin(&mut self, name: &Bytes) {
        if self.begins.back() != Some(name) {
            self.begins.push_back(name.clone());
            if self.begins.len() > REPLIES_MAX {
                self.begins.pop_front();
            }
        }
    }

    /// Where to look for a cookie that is not remembered before all names are looked at: behind these, the latest first.
    pub(crate) fn begins(&self) -> Vec<Bytes> {
        self.begins.iter().rev().cloned().collect()
    }

    /// A listing begins at the start of a directory whose names are of this version.
    pub(crate) fn collect(&mut self, version: u64) {
        let names = Charged::new(self.budget.clone());
        self.collected = Some(Collected { version, at: BEHIND_SNAPSHOTS, names });
    }

    /// A listing that was at cookie `behind` has come to a name.
    pub(crate) fn pass(&mut self, behind: u64, cookie: u64, name: &Bytes) {
        if let Some(collected) = self.collected.as_mut().filter(|collected| collected.at == behind) {
            collected.at = cookie;
            if collected.names.len() >= COLLECTED_MAX || !collected.names.insert(name.clone()) {
                self.collected = None;
            }
        }
    }

    /// Nothing follows the name of a cookie. Returns all names, if they were collected, and no other version of them seen.
    pub(crate) fn end(&mut self, cookie: u64, version: u64) -> Option<Charged> {
        self.end = Some((cookie, version));
        let collected = self.collected.take_if(|collected| collected.at == cookie)?;
        (collected.version == version).then_some(collected.names)
    }

    /// True if nothing follows the name of a cookie, as was found a moment ago.
    pub(crate) fn is_end(&self, cookie: u64, version: u64) -> bool {
        self.end == Some((cookie, version))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.budget.give_back(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Bytes {
        format!("{number:08}").into()
    }

    fn remembered(places: &Places) -> usize {
        assert_eq!(places.names.len(), places.by_age.len());
        places.names.len()
    }

    #[test]
    fn the_oldest_places_go_first_and_those_in_use_stay() {
        let budget = Arc::new(NameBudget::new(usize::MAX / 2));
        let mut places = Places::new(budget.clone());
        for number in 0..PLACES_MAX + 100 {
            places.remember(number as u64, name(number));
            places.remember(7, name(7));
        }
        assert_eq!(remembered(&places), PLACES_MAX);
        assert_eq!(places.name(7), Some(name(7)));
        assert_eq!((places.name(8), places.name(102)), (None, Some(name(102))));
        drop(places);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_few_places_are_remembered_where_memory_is_used_up() {
        let mut places = Places::new(Arc::new(NameBudget::new(PLACE_BYTES)));
        for number in 0..1000 {
            places.remember(number as u64, name(number));
        }
        assert_eq!(remembered(&places), FREE_MAX + 1);
        assert!(places.name(999).is_some());
    }

    #[test]
    fn names_are_collected_only_by_who_reads_them_all() {
        let mut places = Places::new(Arc::new(NameBudget::new(usize::MAX / 2)));
        places.collect(1);
        places.pass(BEHIND_SNAPSHOTS, 10, &name(10));
        // Somebody else is further already.
        places.pass(20, 30, &name(30));
        assert!(places.end(30, 1).is_none());
        places.pass(10, 20, &name(20));
        let all = places.end(20, 1).unwrap();
        assert_eq!(all.len(), 2);
        assert!(places.is_end(20, 1) && !places.is_end(20, 2) && !places.is_end(10, 1));
        places.collect(1);
        places.pass(BEHIND_SNAPSHOTS, 10, &name(10));
        assert!(places.end(10, 2).is_none(), "they have changed meanwhile");
    }

    #[test]
    fn cookies_leave_the_first_numbers_to_others_and_fit_an_offset() {
        let seed = Seed::default();
        for number in 0..1000 {
            let cookie = cookie_of(seed, &name(number));
            assert!(cookie > BEHIND_SNAPSHOTS && i64::try_from(cookie).is_ok());
            assert_eq!(cookie, cookie_of(seed, &name(number)));
        }
    }
}
