//! What is known of the names in one directory.
//!
//! `known` are the names whose inodes are in the inode table. `complete` says, for a directory made or fully listed
//! since the mount, all names there are, so that an absent name is answered, and a file is created, without a read. The
//! memory that all complete directories use is bounded; a directory that would pass it forgets its names. `places` is what its listings
//! remember.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::hash::{NameMap, NameSet, Seed};
use crate::operations::InodeNumber;
use crate::places::{self, Places};

/// Bytes that a remembered name costs on top of its own.
const NAME_OVERHEAD: usize = 48;

/// What the names of all directories share: memory, and the seed of the cookies in listings.
pub(crate) struct NameBudget {
    /// For the names of complete directories.
    pub(crate) names: Memory,
    /// For the places of listings.
    pub(crate) places: Memory,
    seed: Seed,
}

impl NameBudget {
    /// So many bytes for names, and a quarter as many for places.
    pub(crate) fn new(limit: usize) -> Self {
        Self { names: Memory::new(limit), places: Memory::new(limit / 4), seed: Seed::default() }
    }

    /// The cookie of a name in listings.
    pub(crate) fn cookie_of(&self, name: &[u8]) -> u64 {
        places::cookie_of(self.seed, name)
    }
}

/// Bytes that may be taken.
pub(crate) struct Memory {
    used: AtomicUsize,
    limit: usize,
}

impl Memory {
    fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit }
    }

    pub(crate) fn take(&self, bytes: usize) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        used <= self.limit
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Names whose memory is counted.
pub(crate) struct Charged {
    names: NameSet,
    bytes: usize,
    budget: Arc<NameBudget>,
}

impl Charged {
    pub(crate) fn new(budget: Arc<NameBudget>) -> Self {
        Self { names: NameSet::default(), bytes: 0, budget }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn contains(&self, name: &[u8]) -> bool {
        self.names.contains(name)
    }

    /// False, and nothing is done, if there is no memory for one more.
    pub(crate) fn insert(&mut self, name: Bytes) -> bool {
        let cost = name.len() + NAME_OVERHEAD;
        if !self.budget.names.take(cost) {
            return false;
        }
        if self.names.insert(name) {
            self.bytes += cost;
        } else {
            self.budget.names.give_back(cost);
        }
        true
    }

    fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name) {
            let cost = name.len() + NAME_OVERHEAD;
            self.bytes -= cost;
            self.budget.names.give_back(cost);
        }
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.budget.names.give_back(self.bytes);
    }
}

/// The names of one directory.
pub(crate) struct Names {
    known: NameMap<InodeNumber>,
    complete: Option<Charged>,
    budget: Arc<NameBudget>,
    places: Option<Box<Places>>,
}

impl Names {
    /// Nothing is known; or, of a directory just made, that it is empty.
    pub(crate) fn new(budget: Arc<NameBudget>, just_made: bool) -> Self {
        Self {
            known: NameMap::default(),
            complete: just_made.then(|| Charged::new(budget.clone())),
            budget,
            places: None,
        }
    }

    /// What listings remember.
    pub(crate) fn places(&mut self) -> &mut Places {
        self.places.get_or_insert_with(|| Box::new(Places::new(self.budget.clone())))
    }

    /// The cookie of a name in listings.
    pub(crate) fn cookie_of(&self, name: &[u8]) -> u64 {
        self.budget.cookie_of(name)
    }

    /// The inode of a name, if it is in the inode table.
    pub(crate) fn known(&self, name: &[u8]) -> Option<InodeNumber> {
        self.known.get(name).copied()
    }

    /// True if there certainly is no such name.
    pub(crate) fn is_absent(&self, name: &[u8]) -> bool {
        self.complete.as_ref().is_some_and(|names| !names.contains(name))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete.is_some()
    }

    /// The inode of an existing name came into the inode table.
    pub(crate) fn attach(&mut self, name: Bytes, inode: InodeNumber) {
        self.known.insert(name, inode);
    }

    /// The inode of an existing name left the inode table.
    pub(crate) fn detach(&mut self, name: &[u8]) {
        self.known.remove(name);
    }

    /// A name came to be.
    pub(crate) fn insert(&mut self, name: &Bytes) {
        self.changed();
        self.complete.take_if(|names| !names.insert(name.clone()));
    }

    /// A name is gone.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.changed();
        self.known.remove(name);
        if let Some(names) = &mut self.complete {
            names.remove(name);
        }
        // A listing may stand on it.
        self.places.take_if(|places| places.is_old());
        if let Some(places) = &mut self.places {
            places.remember(self.budget.cookie_of(name), name);
        }
    }

    fn changed(&mut self) {
        if let Some(places) = &mut self.places {
            places.change();
        }
    }

    /// These are all names there are.
    pub(crate) fn set_complete(&mut self, names: Charged) {
        self.complete = Some(names);
    }

    /// Nothing is known any more, since all of it has changed. Returns the names whose inodes were known.
    pub(crate) fn forget(&mut self) -> Vec<Bytes> {
        self.changed();
        self.complete = None;
        std::mem::take(&mut self.known).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_gives_up_completeness_when_the_budget_is_used_up() {
        let budget = Arc::new(NameBudget::new(2 * (NAME_OVERHEAD + 1)));
        let mut names = Names::new(budget.clone(), true);
        for name in [&b"a"[..], b"b"] {
            names.insert(&Bytes::copy_from_slice(name));
        }
        assert!(names.is_absent(b"c") && !names.is_absent(b"a"));
        names.insert(&Bytes::from_static(b"c"));
        assert!(!names.is_absent(b"d"));
        assert_eq!(budget.names.used(), 0);
    }

    #[test]
    fn removed_names_are_absent_and_give_their_memory_back() {
        let budget = Arc::new(NameBudget::new(1000));
        let mut names = Names::new(budget.clone(), true);
        names.insert(&Bytes::from_static(b"a"));
        names.remove(b"a");
        assert!(names.is_absent(b"a"));
        assert_eq!(budget.names.used(), 0);
    }
}
