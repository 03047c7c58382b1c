//! What was met last.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The latest of things that come again and again: so many different ones.
pub(crate) struct Recent<T> {
    order: VecDeque<T>,
    all: HashSet<T>,
    most: usize,
}

impl<T: Copy + Eq + Hash> Recent<T> {
    /// Remembers `most` of them.
    pub(crate) fn new(most: usize) -> Self {
        Self { order: VecDeque::new(), all: HashSet::new(), most }
    }

    /// Adds one that stays where it is if it is there already. Returns the one that is forgotten for it.
    pub(crate) fn add(&mut self, one: T) -> Option<T> {
        if !self.all.insert(one) {
            return None;
        }
        self.order.push_back(one);
        let oldest = (self.order.len() > self.most).then(|| self.order.pop_front())??;
        self.all.remove(&oldest);
        Some(oldest)
    }

    pub(crate) fn contains(&self, one: &T) -> bool {
        self.all.contains(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_another_comes() {
        let mut recent = Recent::new(2);
        assert_eq!([1, 2, 1, 3, 2, 1].map(|one| recent.add(one)), [None, None, None, Some(1), None, Some(2)]);
        assert_eq!([1, 2, 3].map(|one| recent.contains(&one)), [true, false, true]);
    }
}
