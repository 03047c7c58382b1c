//! The engine as two sorted maps.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use pando_engine::{KeyRange, Operation, Tree};
use twox_hash::XxHash3_128;

/// Bytes of a block value, in which a run is cut.
const BLOCK_VALUE_LENGTH: usize = 4096;

/// A checksum of the contents of both trees that does not depend on the order of the entries: two maps are equal if
/// their digests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(u128);

impl Digest {
    /// Takes an entry in.
    pub fn add(&mut self, tree: Tree, key: &[u8], value: &[u8]) {
        self.0 = self.0.wrapping_add(entry_hash(tree, key, value));
    }

    fn remove(&mut self, tree: Tree, key: &[u8], value: &[u8]) {
        self.0 = self.0.wrapping_sub(entry_hash(tree, key, value));
    }
}

fn entry_hash(tree: Tree, key: &[u8], value: &[u8]) -> u128 {
    let length = (key.len() as u64).to_le_bytes();
    XxHash3_128::oneshot(&[&[tree as u8][..], &length, key, value].concat())
}

/// The contents of both trees.
#[derive(Debug, Clone, Default)]
pub struct Map {
    trees: [BTreeMap<Bytes, Bytes>; 2],
    digest: Digest,
}

impl Map {
    /// The digest of the present contents.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// How many keys there are.
    pub fn entries(&self) -> usize {
        self.trees.iter().map(BTreeMap::len).sum()
    }

    /// The value of a key.
    pub fn get(&self, tree: Tree, key: &[u8]) -> Option<&Bytes> {
        self.trees[tree as usize].get(key)
    }

    /// The pairs of a range in rising order.
    pub fn range<'a>(
        &'a self,
        tree: Tree,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> {
        self.trees[tree as usize]
            .range::<Bytes, _>(&range.lower.bytes..)
            .take_while(|(key, _)| range.upper.is_above(key))
            .filter(|(key, _)| range.contains(key))
    }

    /// Does the operations of one record. Its moves and clones all read the state before it.
    pub fn apply(&mut self, operations: &[Operation]) {
        let mut sources: VecDeque<Vec<(Bytes, Bytes)>> = operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::MoveRange { tree, from, to } | Operation::CloneRange { tree, from, to } => {
                    let range = KeyRange::prefix(from.clone());
                    let renamed = |key: &Bytes| Bytes::from([&to[..], &key[from.len()..]].concat());
                    Some(
                        self.range(*tree, &range).map(|(key, value)| (renamed(key), value.clone())).collect(),
                    )
                }
                _ => None,
            })
            .collect();
        let mut emptied = false;
        for operation in operations {
            let (Operation::MoveRange { tree, to, .. } | Operation::CloneRange { tree, to, .. }) = operation
            else {
                self.apply_one(operation);
                continue;
            };
            if !std::mem::replace(&mut emptied, true) {
                for operation in operations {
                    if let Operation::MoveRange { tree, from, .. } = operation {
                        self.take_range(*tree, &KeyRange::prefix(from.clone()));
                    }
                }
            }
            self.take_range(*tree, &KeyRange::prefix(to.clone()));
            for (key, value) in sources.pop_front().expect("one was collected for each") {
                self.set(*tree, key, Some(value));
            }
        }
    }

    fn apply_one(&mut self, operation: &Operation) {
        match operation {
            Operation::Put { tree, key, value } => self.set(*tree, key.clone(), Some(value.clone())),
            Operation::PutRun { tree, prefix, first, bytes } => {
                for (i, block) in bytes.chunks(BLOCK_VALUE_LENGTH).enumerate() {
                    let key = [&prefix[..], &(first + i as u64).to_be_bytes()].concat();
                    self.set(*tree, key.into(), Some(bytes.slice_ref(block)));
                }
            }
            Operation::Delete { tree, key } => self.set(*tree, key.clone(), None),
            Operation::Change { tree, key, change } => {
                let value = change.apply(self.get(*tree, key).cloned());
                self.set(*tree, key.clone(), value);
            }
            Operation::DeleteRange { tree, range } => {
                self.take_range(*tree, range);
            }
            Operation::MoveRange { .. } | Operation::CloneRange { .. } => {
                unreachable!("apply() does them together")
            }
        }
    }

    fn set(&mut self, tree: Tree, key: Bytes, value: Option<Bytes>) {
        let map = &mut self.trees[tree as usize];
        if let Some(old) = map.get(&key) {
            self.digest.remove(tree, &key, old);
        }
        match value {
            Some(value) => {
                self.digest.add(tree, &key, &value);
                map.insert(key, value);
            }
            None => {
                map.remove(&key);
            }
        }
    }

    fn take_range(&mut self, tree: Tree, range: &KeyRange) -> Vec<(Bytes, Bytes)> {
        let taken: Vec<_> =
            self.range(tree, range).map(|(key, value)| (key.clone(), value.clone())).collect();
        for (key, _) in &taken {
            self.set(tree, key.clone(), None);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use pando_engine::{Bound, Change};

    use super::*;

    const TREE: Tree = Tree::Data;

    fn put(key: &'static [u8], value: &'static [u8]) -> Operation {
        Operation::Put { tree: TREE, key: key.into(), value: value.into() }
    }

    fn keys(map: &Map) -> Vec<Vec<u8>> {
        map.range(TREE, &KeyRange::all()).map(|(key, _)| key.to_vec()).collect()
    }

    #[test]
    fn the_digest_depends_on_contents_alone() {
        let (mut one, mut other) = (Map::default(), Map::default());
        one.apply(&[put(b"a", b"1"), put(b"b", b"2"), put(b"a", b"3")]);
        other.apply(&[
            put(b"c", b""),
            put(b"b", b"2"),
            put(b"a", b"3"),
            Operation::Delete { tree: TREE, key: "c".into() },
        ]);
        assert_eq!(one.digest(), other.digest());
        other.apply(&[put(b"c", b"")]);
        assert_ne!(one.digest(), other.digest());
    }

    #[test]
    fn moving_replaces_what_was_there() {
        let mut map = Map::default();
        map.apply(&[put(b"a\xff", b"1"), put(b"a", b"2"), put(b"b1", b"3"), put(b"c", b"4")]);
        map.apply(&[Operation::MoveRange { tree: TREE, from: "a".into(), to: "b".into() }]);
        assert_eq!(keys(&map), [&b"b"[..], b"b\xff", b"c"]);
    }

    #[test]
    fn ranges_end_at_their_bounds() {
        let mut map = Map::default();
        map.apply(&[put(b"a", b""), put(b"a\0", b""), put(b"b", b""), put(b"c", b"")]);
        let range = KeyRange::new(Bound::after(&b"a"[..]), Bound::before(&b"c"[..]));
        map.apply(&[Operation::DeleteRange { tree: TREE, range }]);
        assert_eq!(keys(&map), [&b"a"[..], b"a\0", b"c"]);
    }

    #[test]
    fn a_run_is_cut_into_blocks_and_changes_are_blind() {
        let mut map = Map::default();
        let bytes = Bytes::from(vec![1; 5000]);
        let patch = Change::Patch { offset: 2, bytes: "x".into() };
        map.apply(&[
            Operation::PutRun { tree: TREE, prefix: "p".into(), first: 255, bytes },
            Operation::Change { tree: TREE, key: "q".into(), change: patch },
        ]);
        assert_eq!(keys(&map), [&b"p\0\0\0\0\0\0\0\xff"[..], b"p\0\0\0\0\0\0\x01\0", b"q"]);
        assert_eq!(map.get(TREE, b"p\0\0\0\0\0\0\x01\0").unwrap().len(), 904);
        assert_eq!(map.get(TREE, b"q").unwrap(), &b"\0\0x"[..]);
    }
}
