//! Hash tables keyed by inode numbers and by names, several of which each request looks into. Names are chosen by users, so the hash
//! begins with a random seed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;
use twox_hash::XxHash3_64;

/// What inodes are found in by number.
pub(crate) type NumberMap<K, V> = HashMap<K, V, Seed>;
/// What is known of names.
pub(crate) type NameMap<V> = HashMap<Bytes, V, Seed>;
/// Names.
pub(crate) type NameSet = HashSet<Bytes, Seed>;

/// Random, and another one in each table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = ShortHasher;

    fn build_hasher(&self) -> ShortHasher {
        ShortHasher(self.0)
    }
}

/// Quick for a number and for a few bytes.
pub(crate) struct ShortHasher(u64);

impl Hasher for ShortHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = XxHash3_64::oneshot_with_seed(self.0, bytes);
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ number) * u128::from(ODD);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_numbers_and_names_spread() {
        let seed = Seed(77);
        for bits in [0..7, 57..64] {
            let bucket = |hash: u64| hash >> bits.start & 127;
            let numbers: HashSet<u64> = (0..10_000u64).map(|number| bucket(seed.hash_one(number))).collect();
            let name = |number: u64| Bytes::from(number.to_string());
            let names: HashSet<u64> = (0..10_000).map(|number| bucket(seed.hash_one(name(number)))).collect();
            assert_eq!((numbers.len(), names.len()), (128, 128));
        }
    }
}
