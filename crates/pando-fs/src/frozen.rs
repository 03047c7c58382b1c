//! What a writable snapshot was at one moment, for those who need it to stay so: a send, a mount of its own.
//!
//! It is a snapshot of the snapshot that has no name: nobody else finds it, and nobody can change it. As what is being received it has the mark under
//! [`key::RECEIVING_TAG`], so that what a crash leaves of it is deleted at the next mount.

use std::borrow::Borrow;

use pando_engine::{Batch, Tree};

use crate::operations::changing;
use crate::schema::key;
use crate::snapshot::Source;
use crate::{FileSystem, InodeNumber, Result, Snapshot};

/// See the module. It is deleted when this goes.
pub(crate) struct Frozen<F: Borrow<FileSystem>> {
    fs: F,
    /// Its number and its moment, under the name of what it was made of.
    pub(crate) snapshot: Snapshot,
}

impl<F: Borrow<FileSystem>> Frozen<F> {
    /// Freezes a writable snapshot as it is now. `NotFound` if there is none of this name. Waits for the device.
    pub(crate) fn make(fs: F, name: &[u8]) -> Result<Self> {
        let snapshot = changing(fs.borrow(), |fs| fs.freeze(name))?;
        Ok(Self { fs, snapshot })
    }
}

impl<F: Borrow<FileSystem>> Drop for Frozen<F> {
    fn drop(&mut self) {
        // Where this fails the volume takes no changes any more, and the next mount does it.
        let _ = changing(self.fs.borrow(), |fs| fs.thaw(self.snapshot.number));
    }
}

impl FileSystem {
    fn freeze(&self, name: &[u8]) -> Result<Snapshot> {
        let _epoch = self.for_change_alone()?;
        let source = self.snapshot(name)?;
        let record = self.snapshot_root(&source)?;
        let number = self.numbers.allocate(&self.store)?;
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::receiving_key(number), vec![1]);
        self.copy_tree(&mut batch, &Source::of(&source, record), number)?;
        self.store.apply(batch)?;
        Ok(Snapshot {
            number: InodeNumber(number),
            taken: self.now().into(),
            writable: false,
            origin: None,
            ..source
        })
    }

    fn thaw(&self, number: InodeNumber) -> Result<()> {
        let mut epoch = self.namespace.write();
        self.store.apply(self.giving_up(number.0))?;
        self.set_view_gone(number);
        // No path in it that is remembered leads anywhere.
        *epoch += 1;
        Ok(())
    }
}
