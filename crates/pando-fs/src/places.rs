//! Where listings go on.
//!
//! A listing goes on behind a *name*, and a cookie says behind which: it is a hash of that name, the same for all who read the
//! directory, for as long as the volume is open, so nothing needs to be kept for it while the name is there. Names behind which somebody
//! is likely to go on are remembered, to be found at once: the last of each reply, and those that were removed since, which
//! could not be found otherwise. Other cookies, as seekdir(3) brings them, are looked for among the names of the directory.
//!
//! There is one of this for each directory that was listed, until the kernel forgets the directory, which it does not do while it is open, or
//! nobody has listed it for a long time. Nobody says when a listing ends, so memory is what bounds it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::hash::{NumberMap, Seed};
use crate::names::{Charged, NameBudget};

/// Cookie behind `.`.
pub(crate) const BEHIND_DOT: u64 = 1;
/// Cookie behind `..`.
pub(crate) const BEHIND_DOTS: u64 = 2;
/// Cookie behind the directory of the snapshots, which comes third where it is shown; those of names are larger.
pub(crate) const BEHIND_SNAPSHOTS: u64 = 3;

/// Places that any directory may remember, and beyond which there must be room in the memory for places.
const FREE_MAX: usize = 8;
/// Places that a directory remembers at the most.
const PLACES_MAX: usize = 4096;
/// Memory of a place on top of its name's, about.
const PLACE_OVERHEAD: usize = 192;
/// For how long places are remembered after the last reply.
const LISTING_TIME: Duration = Duration::from_secs(3600);
/// Replies whose beginnings are remembered: who has little room takes the first part of a reply, and goes on in its midst.
const REPLIES_MAX: usize = 8;
/// Names among which a cookie is looked for behind the beginning of a reply, before it is looked for among all.
const REPLY_NAMES_MAX: usize = 4096;
/// Names that a directory collects at most to learn that it is complete.
const COLLECTED_MAX: usize = 1 << 20;

/// What is remembered for the listings of one directory.
pub(crate) struct Places {
    budget: Arc<NameBudget>,
    /// Counts what is remembered.
    clock: u64,
    names: NumberMap<u64, Place>,
    by_age: BTreeMap<u64, u64>,
    /// Names behind which the latest replies began.
    begins: VecDeque<Bytes>,
    /// When the latest did.
    latest: Instant,
    /// The cookie behind which nothing follows, until the names change.
    end: Option<u64>,
    collected: Option<Collected>,
    /// What was being looked for when something was missing in memory.
    search: Option<Search>,
}

/// How far a cookie has been looked for.
pub(crate) struct Search {
    pub(crate) cookie: u64,
    /// Behind which names to look on (an empty one: among all), and among how many.
    pub(crate) ways: VecDeque<(Bytes, usize)>,
}

/// A name that is remembered.
struct Place {
    name: Bytes,
    /// When it was remembered last.
    age: u64,
    /// What was taken of the budget for it.
    charged: usize,
}

/// All names since the start, while they are read one after the other and do not change.
struct Collected {
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
            clock: 0,
            names: NumberMap::default(),
            by_age: BTreeMap::new(),
            begins: VecDeque::new(),
            latest: Instant::now(),
            end: None,
            collected: None,
            search: None,
        }
    }

    /// The name behind which a cookie goes on, if it is remembered.
    pub(crate) fn name(&self, cookie: u64) -> Option<Bytes> {
        self.names.get(&cookie).map(|place| place.name.clone())
    }

    /// Somebody is likely to go on behind this name.
    pub(crate) fn remember(&mut self, cookie: u64, name: &[u8]) {
        self.clock += 1;
        let age = self.clock;
        if let Some(place) = self.names.get_mut(&cookie) {
            self.by_age.remove(&std::mem::replace(&mut place.age, age));
            self.by_age.insert(age, cookie);
            // What was looked for in vain may have come to be.
            if place.name != name {
                place.name = Bytes::copy_from_slice(name);
            }
            return;
        }
        let mut charged = 0;
        if self.names.len() >= FREE_MAX {
            let cost = name.len() + PLACE_OVERHEAD;
            if self.names.len() < PLACES_MAX && self.budget.places.take(cost) {
                charged = cost;
            } else {
                // It takes over what that one has paid for.
                charged = self.forget_oldest();
            }
        }
        self.names.insert(cookie, Place { name: Bytes::copy_from_slice(name), age, charged });
        self.by_age.insert(age, cookie);
    }

    fn forget_oldest(&mut self) -> usize {
        let oldest = self.by_age.pop_first().and_then(|(_, cookie)| self.names.remove(&cookie));
        oldest.map_or(0, |place| place.charged)
    }

    /// A reply begins behind this name.
    pub(crate) fn begin(&mut self, name: &Bytes) {
        self.latest = Instant::now();
        if self.begins.back() != Some(name) {
            self.begins.push_back(name.clone());
            if self.begins.len() > REPLIES_MAX {
                self.begins.pop_front();
            }
        }
    }

    /// True if nobody has listed the directory for so long that nobody is believed to be at it.
    pub(crate) fn is_old(&self) -> bool {
        self.latest.elapsed() > LISTING_TIME
    }

    /// How to look for a cookie that is not remembered, or to go on: near the latest replies first.
    pub(crate) fn search(&mut self, cookie: u64) -> Search {
        self.search.take_if(|search| search.cookie == cookie).unwrap_or_else(|| {
            let near = self.begins.iter().rev().map(|begin| (begin.clone(), REPLY_NAMES_MAX));
            Search { cookie, ways: near.chain([(Bytes::new(), usize::MAX)]).collect() }
        })
    }

    /// It has not been found yet.
    pub(crate) fn search_later(&mut self, search: Option<Search>) {
        self.search = search;
    }

    /// A listing begins at the start.
    pub(crate) fn collect(&mut self) {
        let names = Charged::new(self.budget.clone());
        self.collected = Some(Collected { at: BEHIND_SNAPSHOTS, names });
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

    /// The names of the directory are not what they were.
    pub(crate) fn change(&mut self) {
        self.end = None;
        self.collected = None;
    }

    /// Nothing follows the name of a cookie. Returns all names, if they were collected.
    pub(crate) fn end(&mut self, cookie: u64) -> Option<Charged> {
        self.end = Some(cookie);
        self.collected.take_if(|collected| collected.at == cookie).map(|collected| collected.names)
    }

    /// True if nothing follows the name of a cookie, as was found a moment ago.
    pub(crate) fn is_end(&self, cookie: u64) -> bool {
        self.end == Some(cookie)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.budget.places.give_back(self.names.values().map(|place| place.charged).sum());
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
            places.remember(number as u64, &name(number));
            places.remember(7, &name(7));
        }
        assert_eq!(remembered(&places), PLACES_MAX);
        assert_eq!(places.name(7), Some(name(7)));
        assert_eq!((places.name(8), places.name(102)), (None, Some(name(102))));
        assert_eq!(budget.places.used(), (PLACES_MAX - FREE_MAX) * (PLACE_OVERHEAD + 8));
        drop(places);
        assert_eq!(budget.places.used(), 0);
    }

    #[test]
    fn a_few_places_are_remembered_where_memory_is_used_up() {
        let budget = Arc::new(NameBudget::new(4 * (PLACE_OVERHEAD + 8)));
        let mut places = Places::new(budget.clone());
        for number in 0..1000 {
            places.remember(number as u64, &name(number));
        }
        assert_eq!(remembered(&places), FREE_MAX + 1);
        assert!(places.name(999).is_some());
        drop(places);
        assert_eq!(budget.places.used(), 0);
    }

    #[test]
    fn places_are_old_an_hour_after_the_last_reply() {
        let mut places = Places::new(Arc::new(NameBudget::new(0)));
        assert!(!places.is_old());
        places.latest = Instant::now().checked_sub(LISTING_TIME + Duration::from_secs(1)).unwrap();
        assert!(places.is_old());
        places.begin(&name(1));
        assert!(!places.is_old());
    }

    #[test]
    fn names_are_collected_only_by_who_reads_them_all() {
        let mut places = Places::new(Arc::new(NameBudget::new(usize::MAX / 2)));
        places.collect();
        places.pass(BEHIND_SNAPSHOTS, 10, &name(10));
        // Somebody else is further already.
        places.pass(20, 30, &name(30));
        assert!(places.end(30).is_none());
        places.pass(10, 20, &name(20));
        let all = places.end(20).unwrap();
        assert_eq!(all.len(), 2);
        assert!(places.is_end(20) && !places.is_end(10));
        places.collect();
        places.pass(BEHIND_SNAPSHOTS, 10, &name(10));
        places.change();
        assert!(!places.is_end(20));
        places.pass(10, 20, &name(20));
        assert!(places.end(20).is_none(), "they have changed meanwhile");
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
