//! Where in the indexes a tree lies: the live one at the front, each snapshot behind a prefix of its own.
//!
//! A snapshot has the live tree's keys of the moment it was taken, each behind the snapshot's prefix; so all that makes keys of
//! paths works in it, given the prefix as the root's path. Only the keys that are no paths have to know ([`View`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::schema::{key, number};

/// A tree that inodes in memory lie in: the live one, or a snapshot.
pub(crate) struct View {
    /// What its keys begin with, nothing in the live tree; the key of its root's record.
    pub(crate) prefix: Bytes,
    /// XORed to the stored numbers of files with several links. The root's record has the same for all that have paths.
    pub(crate) delta: u64,
    /// Whether what lies in it may change.
    pub(crate) writable: bool,
    gone: AtomicBool,
}

impl View {
    pub(crate) fn new(prefix: Bytes, delta: u64, writable: bool) -> Arc<Self> {
        Arc::new(Self { prefix, delta, writable, gone: AtomicBool::new(false) })
    }

    /// The number under which a file with several links is stored that shows this one.
    pub(crate) fn linked_number(&self, visible: u64) -> u64 {
        number::stored(visible, self.delta)
    }

    /// The key of a file with several links that shows this number.
    pub(crate) fn linked_key(&self, visible: u64) -> Bytes {
        key::in_snapshot(&self.prefix, &key::linked_key(self.linked_number(visible)))
    }

    /// The key in the list of redirects for what begins so.
    pub(crate) fn link_name_key(&self, key_or_prefix: &[u8]) -> Bytes {
        key::in_snapshot(&self.prefix, &key::link_name_key(&key_or_prefix[self.prefix.len()..]))
    }

    /// The snapshot is deleted, or another tree is the live one. The name space lock is held exclusively.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
