//! SKELETON: the final interface over a sorted map in memory, until the trees are there.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::Device;
use parking_lot::RwLock;

use crate::{
    Batch, Bound, Direction, Error, FormatOptions, KeyRange, Lsn, Miss, Operation, Options, Result, Scan, ScanLimit, Tree,
};

/// An open volume. All methods may be called from any thread.
///
/// Queries never wait for the device: where something is not in memory they answer [`Error::Miss`]. Hold no lock
/// while you [`Engine::fetch`] it, then ask again.
pub struct Engine {
    trees: RwLock<[BTreeMap<Bytes, Bytes>; 2]>,
    lsn: std::sync::atomic::AtomicU64,
}

impl Engine {
    /// Makes an empty volume on the device; whatever was there is gone. Durable when it returns.
    pub fn format(_device: &dyn Device, _options: &FormatOptions) -> Result<()> {
        Ok(())
    }

    /// Opens a volume and brings it to the newest state that its log proves.
    pub fn open(_device: Arc<dyn Device>, _options: Options) -> Result<Self> {
        Ok(Self { trees: RwLock::default(), lsn: 0.into() })
    }

    /// Applies a batch as one record. Visible to queries when it returns, durable with the next sync.
    ///
    /// Conflicting batches (same keys) must be kept apart by the caller; others may run at the same time. May wait
    /// for memory or log space, never with a lock of its own held; call [`Engine::make_room`] before taking locks.
    pub fn apply(&self, batch: Batch) -> Result<Lsn> {
        let mut trees = self.trees.write();
        for operation in batch.operations {
            match operation {
                Operation::Put { tree, key, value } => {
                    trees[tree as usize].insert(key, value);
                }
                Operation::PutRun { tree, prefix, first, bytes } => {
                    for (i, start) in (0..bytes.len()).step_by(4096).enumerate() {
                        let key = [&prefix[..], &(first + i as u64).to_be_bytes()].concat();
                        let value = bytes.slice(start..bytes.len().min(start + 4096));
                        trees[tree as usize].insert(key.into(), value);
                    }
                }
                Operation::Delete { tree, key } => {
                    trees[tree as usize].remove(&key);
                }
                Operation::Change { tree, key, change } => {
                    let tree = &mut trees[tree as usize];
                    if let Some(value) = change.apply(tree.get(&key)) {
                        tree.insert(key, value);
                    }
                }
                Operation::DeleteRange { tree, range } => {
                    trees[tree as usize].retain(|key, _| !range.contains(key));
                }
                Operation::MoveRange { tree, from, to } => {
                    let tree = &mut trees[tree as usize];
                    let gone = KeyRange::prefix(to.clone());
                    tree.retain(|key, _| !gone.contains(key));
                    let moved: Vec<_> = tree.iter().filter(|(k, _)| k.starts_with(&from)).map(|(k, v)| (k.clone(), v.clone())).collect();
                    for (key, value) in moved {
                        tree.remove(&key);
                        tree.insert([&to[..], &key[from.len()..]].concat().into(), value);
                    }
                }
            }
        }
        Ok(Lsn(self.lsn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1))
    }

    /// Waits until there is memory and log space for more changes. Call it with no lock held.
    pub fn make_room(&self) -> Result<()> {
        Ok(())
    }

    /// The value of a key, or [`Error::Miss`].
    pub fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.trees.read()[tree as usize].get(key).cloned())
    }

    /// A piece of a range, or [`Error::Miss`]. Values are shared, not copied.
    pub fn scan(&self, tree: Tree, range: &KeyRange, direction: Direction, limit: ScanLimit) -> Result<Scan> {
        let trees = self.trees.read();
        let all = trees[tree as usize].range::<Bytes, _>(range.lower.bytes.clone()..);
        let inside = all.take_while(|(key, _)| range.upper.is_above(key)).filter(|(key, _)| range.contains(key));
        let mut entries: Vec<_> = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
        if direction == Direction::Backward {
            entries.reverse();
        }
        let mut bytes = 0;
        let mut taken = 0;
        while taken < entries.len() && taken < limit.entries && bytes < limit.bytes {
            bytes += entries[taken].0.len() + entries[taken].1.len();
            taken += 1;
        }
        let rest = (taken < entries.len()).then(|| {
            let next = entries[taken].0.clone();
            match direction {
                Direction::Forward => KeyRange::new(Bound::before(next), range.upper.clone()),
                // The least bound above a single key: the key with a zero byte behind it.
                Direction::Backward => {
                    KeyRange::new(range.lower.clone(), Bound::before([&next[..], &[0]].concat()))
                }
            }
        });
        entries.truncate(taken);
        Ok(Scan { entries, rest })
    }

    /// Reads what a query missed. Blocks on the device.
    pub fn fetch(&self, _miss: Miss) -> Result<()> {
        Ok(())
    }

    /// Runs a query until nothing it needs is missing. Blocks on the device.
    pub fn waiting<T>(&self, mut query: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match query() {
                Err(Error::Miss(miss)) => self.fetch(miss)?,
                other => return other,
            }
        }
    }

    /// Makes everything applied so far durable; returns the LSN reached.
    pub fn sync(&self) -> Result<Lsn> {
        Ok(Lsn(self.lsn.load(std::sync::atomic::Ordering::Relaxed)))
    }

    /// Writes a checkpoint: all nodes of the present state, then the superblock.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    /// Checkpoints and stops the background work. Later calls answer [`Error::ReadOnly`].
    pub fn close(&self) -> Result<()> {
        Ok(())
    }

    /// With [`crate::Background::Manual`]: does one piece of background work; false if there is none.
    pub fn background_step(&self) -> Result<bool> {
        Ok(false)
    }

    /// Bytes of the volume and what they are used for, for statfs.
    pub fn space(&self) -> Space {
        Space { capacity: 1 << 40, free: 1 << 39, available: 1 << 39 }
    }
}

/// How full a volume is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What nodes and their block table can take in all.
    pub capacity: u64,
    /// Not used by the present state.
    pub free: u64,
    /// What a user can still write: free less the reserve.
    pub available: u64,
}
