//! Roll back: the live tree becomes what it was when a snapshot was taken, whoever uses it.
//!
//! One batch clones the ranges of the snapshot over those of the live tree. The live tree of before is *gone* then (IN-4): what was in use in it
//! answers `Stale`, and only the root is what it was for everybody. Nothing is taken for what it was before, since the root's record gets
//! a new delta: all but the root shows another inode number than anything before. Files without a name, in use, belong to no
//! tree and live on.
//!
//! A kernel that remembers names has to be told; see [`Vanished`].

use std::sync::Arc;

use bytes::Bytes;
use pando_engine::{Batch, KeyRange, ScanLimit, Tree};

use crate::inode::{Inode, Place, States};
use crate::operations::{InodeNumber, ROOT};
use crate::schema::{Record, key};
use crate::snapshot::RANGES;
use crate::view::View;
use crate::{Error, FileSystem, Result, snapshot};

const CHUNK: ScanLimit = ScanLimit { entries: 256, bytes: 1 << 18 };

/// What who remembers the tree of before a roll back has to forget: these names in the root, those that are in the root now
/// ([`FileSystem::root_names`]), for they may be remembered as absent, and the contents of what is gone ([`FileSystem::gone_inodes`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Vanished {
    /// Names that were in the root, at least all of those that somebody has asked for.
    pub names: Vec<Bytes>,
}

impl FileSystem {
    /// Makes the live tree what it was when the snapshot was taken, or changed last if it is writable; atomic. The snapshot stays.
    pub fn roll_back(&self, name: &[u8]) -> Result<Vanished> {
        let mut epoch = self.for_change_alone()?;
        let snapshot = self.snapshot(name)?;
        let record = self.snapshot_root(&snapshot)?;
        let root = self.inode(ROOT)?;
        // A name that leads to the snapshots would hide what a tree has under it, which could not be removed then.
        let hidden = key::child_key(b"", snapshot::NAME);
        let prefix = key::snapshot_prefix(snapshot.number.0);
        for key in [key::link_name_key(&hidden), hidden] {
            if self.store.get(Tree::Metadata, &key::in_snapshot(&prefix, &key))?.is_some() {
                return Err(Error::NotPermitted);
            }
        }
        let mut vanished = self.linked_root_names()?;
        let mut names = root.names()?;
        let parked = self.parked.in_tree(b"");
        self.evict_ahead(&[&parked[..], &self.parked.in_tree(&prefix)].concat(), 0)?;
        let mut states = States::lock(parked.iter().chain([&root]));
        let number = self.numbers.allocate(&self.store)?;
        let record = Record { number: ROOT.0, delta: self.fresh_deltas(number), ..record };

        let mut batch = Batch::new();
        let evicted = self.evict(&mut batch, &states, &parked);
        for (tree, range) in RANGES {
            // What was there goes with it.
            batch.clone_range(tree, key::in_snapshot(&prefix, range), range);
        }
        for parked in self.parked.keys_in(&prefix) {
            let came = key::data_prefix(&parked[prefix.len()..]);
            batch.delete_range(Tree::Data, KeyRange::prefix(came));
        }
        batch.put(Tree::Metadata, key::ROOT, record.encode());
        batch.note_freed(self.freed_by_a_tree());
        self.store.apply(batch)?;

        self.settle_evicted(&mut states, evicted);
        let live = View::new(Bytes::new(), record.delta, true);
        states.set_record(&root, record);
        if let Place::Root(before) = root.set_place(Place::Root(live)) {
            before.set_gone();
        }
        vanished.extend(names.forget());
        *epoch += 1;
        Ok(Vanished { names: vanished })
    }

    /// The names in the root of files with several links.
    fn linked_root_names(&self) -> Result<Vec<Bytes>> {
        self.names_below(key::link_name_key(&key::children_prefix(b"")))
    }

    /// All names in the root directory.
    pub fn root_names(&self) -> Result<Vec<Bytes>> {
        self.names_below(key::children_prefix(b""))
    }

    fn names_below(&self, prefix: Bytes) -> Result<Vec<Bytes>> {
        let mut names = Vec::new();
        let mut range = Some(KeyRange::prefix(prefix.clone()));
        while let Some(part) = range {
            let scan = self.store.scan(Tree::Metadata, &part, CHUNK)?;
            names.extend(scan.entries.iter().map(|(found, _)| found.slice(prefix.len()..)));
            range = scan.rest;
        }
        Ok(names)
    }

    /// What is still referenced of trees that are gone.
    pub fn gone_inodes(&self) -> Vec<InodeNumber> {
        let all = self.table.all();
        all.iter().filter(|inode| inode.is_gone()).map(|inode: &Arc<Inode>| inode.number).collect()
    }
}
