//! Files that are written past the kernel's cache (`O_DIRECT`), and may be read through it meanwhile.
//!
//! The kernel drops the pages that such a write makes untrue before it sends the write, and afterwards only if the writer waits for it: not if it
//! was handed in by io_submit(2) or io_uring. Who reads through the cache in between leaves pages there that are older than what was acknowledged, and stay. So
//! contents are noted before they are read for the cache, and a write that finds such a note has them forgotten before it is answered.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::recent::Recent;

/// Files that are remembered. Of one that is not, the next write counts as one that others have read before.
const FILES_MAX: usize = 64;

/// The files that were written past the cache of late.
pub(crate) struct DirectWrites {
    /// If there is any: most volumes have none, and their reads take no lock.
    any: AtomicBool,
    files: Mutex<Recent<u64, Cached>>,
}

/// What the kernel may have of a file.
struct Cached {
    /// Contents were read for it since it last had to forget them.
    may_be_older: bool,
    /// Threads that have it forget them now: until they have, it may still show some.
    forgetting: u32,
}

impl DirectWrites {
    pub(crate) fn new() -> Self {
        Self { any: AtomicBool::new(false), files: Mutex::new(Recent::new(FILES_MAX)) }
    }

    /// To be called before contents are read that the kernel will keep.
    pub(crate) fn will_cache(&self, inode: u64) {
        // Of a read that comes too early to see the first write, that write finds the page: it is locked until the read is answered.
        if self.any.load(Ordering::SeqCst) {
            self.note(inode, |cached| cached.may_be_older = true);
        }
    }

    /// To be called after a file was written past the cache: whether the kernel must forget what it has of it. If so, [`Self::forgotten`] follows.
    pub(crate) fn written(&self, inode: u64) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cached) = files.get_mut(&inode) else {
            files.insert(inode, Cached { may_be_older: false, forgetting: 1 });
            return true;
        };
        let must_forget = cached.may_be_older || cached.forgetting > 0;
        if must_forget {
            cached.may_be_older = false;
            cached.forgetting += 1;
        }
        must_forget
    }

    /// To be called when the kernel has forgotten what [`Self::written`] asked for.
    pub(crate) fn forgotten(&self, inode: u64) {
        self.note(inode, |cached| cached.forgetting = cached.forgetting.saturating_sub(1));
    }

    fn note(&self, inode: u64, change: impl FnOnce(&mut Cached)) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&inode).map(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 7;

    #[test]
    fn only_a_write_that_others_may_have_read_before_needs_a_word() {
        let writes = DirectWrites::new();
        writes.will_cache(FILE);
        assert!(writes.written(FILE), "who had read the file before is not known");
        writes.forgotten(FILE);
        assert!(!writes.written(FILE));
        writes.will_cache(FILE + 1);
        assert!(!writes.written(FILE));
        writes.will_cache(FILE);
        assert!(writes.written(FILE));
        assert!(writes.written(FILE), "the kernel has not forgotten yet what the first of them made untrue");
        writes.forgotten(FILE);
        assert!(writes.written(FILE));
        writes.forgotten(FILE);
        writes.forgotten(FILE);
        assert!(!writes.written(FILE));
    }

    #[test]
    fn a_file_that_is_not_remembered_any_more_counts_as_read() {
        let writes = DirectWrites::new();
        for file in 0..=FILES_MAX as u64 {
            assert!(writes.written(file));
            writes.forgotten(file);
        }
        assert!(!writes.written(1));
        assert!(writes.written(0));
    }
}
