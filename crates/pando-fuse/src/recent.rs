//! What was met last.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The latest of things that come again and again, so many different ones, and what is known of each.
pub(crate) struct Recent<K, V = ()> {
    order: VecDeque<K>,
    known: HashMap<K, V>,
    most: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// Remembers `most` of them.
    pub(crate) fn new(most: usize) -> Self {
        Self { order: VecDeque::new(), known: HashMap::new(), most }
    }

    /// Says what is known of one, and returns what was before. One that is new takes the place of the oldest; others stay where they are.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.known.insert(key, value);
        if before.is_none() {
            self.order.push_back(key);
            if self.order.len() > self.most {
                self.order.pop_front().map(|oldest| self.known.remove(&oldest));
            }
        }
        before
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.known.contains_key(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.known.get_mut(key)
    }

    /// In no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.known.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_another_comes() {
        let mut recent = Recent::new(2);
        let before =
            [(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd'), (1, 'e')].map(|(key, value)| recent.insert(key, value));
        assert_eq!(before, [None, None, Some('a'), None, None]);
        assert_eq!([1, 2, 3].map(|key| recent.contains(&key)), [true, false, true]);
        assert_eq!(recent.iter_mut().count(), 2);
    }
}
