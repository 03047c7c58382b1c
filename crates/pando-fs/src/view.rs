//! Where in the indexes a tree lies: the live one at the front, each snapshot behind a prefix of its own.
//!
//! A snapshot has the live tree's keys of the moment it was taken, each behind the snapshot's prefix; so all that makes keys of
//! paths works in it, given the prefix as the root's path. Only the keys that are no paths have to know ([`View`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::inode::Inode;
use crate::schema::key;

/// A snapshot that inodes in memory lie in.
pub(crate) struct View {
    /// What its keys begin with; the key of its root's record.
    pub(crate) prefix: Bytes,
    /// XORed to the stored numbers of files with several links. The root's record has the same for all that have paths.
    pub(crate) delta: u64,
    gone: AtomicBool,
}

impl View {
    pub(crate) fn new(prefix: Bytes, delta: u64) -> Arc<Self> {
        Arc::new(Self { prefix, delta, gone: AtomicBool::new(false) })
    }

    /// The snapshot is deleted. The name space lock is held exclusively.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Of a path or a key in a view, what the same is in the live tree.
fn relative<'a>(view: Option<&View>, key: &'a [u8]) -> &'a [u8] {
    &key[view.map_or(0, |view| view.prefix.len())..]
}

fn prefix(view: Option<&View>) -> &[u8] {
    view.map_or(&[], |view| &view.prefix)
}

/// The key of a file with several links, by the number that its redirects say.
pub(crate) fn linked_key(view: Option<&View>, stored: u64) -> Bytes {
    key::in_snapshot(prefix(view), &key::linked_key(stored))
}

/// The key in the list of redirects for what begins so.
pub(crate) fn link_name_key(view: Option<&View>, key_or_prefix: &[u8]) -> Bytes {
    key::in_snapshot(prefix(view), &key::link_name_key(relative(view, key_or_prefix)))
}

/// The deltas for the numbers of files with several links, which lie in no directory.
pub(crate) fn linked_delta(view: Option<&View>) -> u64 {
    view.map_or(0, |view| view.delta)
}

impl Inode {
    pub(crate) fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }
}
