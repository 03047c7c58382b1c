//! What is known of the names in one directory.
//!
//! `known` are the names whose inodes are in the inode table. `complete` says, for a directory made or fully listed
//! since the mount, all names there are, so that an absent name is answered, and a file is created, without a read. The
//! memory that all complete directories use is bounded; a directory that would pass it forgets its names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::hash::{NameMap, NameSet};
use crate::operations::InodeNumber;

/// Bytes that a remembered name costs on top of its own.
const NAME_OVERHEAD: usize = 48;

/// Memory for the names of complete directories.
pub(crate) struct NameBudget {
    used: AtomicUsize,
    limit: usize,
}

impl NameBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit }
    }

    fn take(&self, bytes: usize) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        used <= self.limit
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The names of one directory.
pub(crate) struct Names {
    known: NameMap<InodeNumber>,
    complete: Option<NameSet>,
    charged: usize,
    budget: Arc<NameBudget>,
    /// Counts changes, so that a listing can tell whether it saw one state of the directory.
    version: u64,
}

impl Names {
    /// Nothing is known; or, of a directory just made, that it is empty.
    pub(crate) fn new(budget: Arc<NameBudget>, just_made: bool) -> Self {
        Self {
            known: NameMap::default(),
            complete: just_made.then(NameSet::default),
            charged: 0,
            budget,
            version: 0,
        }
    }

    /// The inode of a name, if it is in the inode table.
    pub(crate) fn known(&self, name: &[u8]) -> Option<InodeNumber> {
        self.known.get(name).copied()
    }

    /// True if there certainly is no such name.
    pub(crate) fn is_absent(&self, name: &[u8]) -> bool {
        self.complete.as_ref().is_some_and(|names| !names.contains(name))
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
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
        self.version += 1;
        let cost = name.len() + NAME_OVERHEAD;
        if let Some(names) = &mut self.complete
            && !names.contains(name)
        {
            if self.budget.take(cost) {
                self.charged += cost;
                names.insert(name.clone());
            } else {
                self.forget_completeness();
            }
        }
    }

    /// A name is gone.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.version += 1;
        self.known.remove(name);
        if let Some(names) = &mut self.complete
            && names.remove(name)
        {
            let cost = name.len() + NAME_OVERHEAD;
            self.charged -= cost;
            self.budget.give_back(cost);
        }
    }

    /// These are all names there are; taken if there is room for them.
    pub(crate) fn set_complete(&mut self, names: NameSet) {
        self.forget_completeness();
        let cost = names.iter().map(|name| name.len() + NAME_OVERHEAD).sum();
        if self.budget.take(cost) {
            self.charged = cost;
            self.complete = Some(names);
        }
    }

    /// Nothing is known any more, since all of it has changed. Returns the names whose inodes were known.
    pub(crate) fn forget(&mut self) -> Vec<Bytes> {
        self.version += 1;
        self.forget_completeness();
        std::mem::take(&mut self.known).into_keys().collect()
    }

    fn forget_completeness(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.charged));
        self.complete = None;
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.forget_completeness();
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
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn removed_names_are_absent_and_give_their_memory_back() {
        let budget = Arc::new(NameBudget::new(1000));
        let mut names = Names::new(budget.clone(), true);
        names.insert(&Bytes::from_static(b"a"));
        names.remove(b"a");
        assert!(names.is_absent(b"a"));
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
