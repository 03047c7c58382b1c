//! The copies of files with several names, so that the other names become links to them.
//!
//! A copy is remembered until all names of its source have been met, or until another file has taken its place: trees
//! may be copied over one another.

use std::collections::HashMap;

use crate::copy::tree::{Identity, Remembered};

/// A copy of a file that may be met again.
pub struct Copy {
    /// To make links to.
    pub file: Remembered,
    /// Which file the copy is.
    pub identity: Identity,
    /// Names of the source that are still to come, at most.
    pub names_left: u64,
}

/// Copies by the file they were made from.
#[derive(Default)]
pub struct Copies {
    by_source: HashMap<Identity, Copy>,
    /// The other way round.
    sources: HashMap<Identity, Identity>,
}

impl Copies {
    /// Remembers a copy, if more names may come.
    pub fn put(&mut self, source: Identity, copy: Copy) {
        if copy.names_left > 0 {
            self.sources.insert(copy.identity, source);
            self.by_source.insert(source, copy);
        }
    }

    /// The copy of a file, which is forgotten. It has met one more name.
    pub fn take(&mut self, source: Identity) -> Option<Copy> {
        let copy = self.by_source.remove(&source)?;
        self.sources.remove(&copy.identity);
        Some(Copy { names_left: copy.names_left.saturating_sub(1), ..copy })
    }

    /// A file gets another's contents, or its name goes to another: it is no copy any more.
    pub fn forget(&mut self, overwritten: Identity) {
        if let Some(source) = self.sources.remove(&overwritten) {
            self.by_source.remove(&source);
        }
    }
}
