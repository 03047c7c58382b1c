//! The engine as this layer uses it: every query and every batch goes through here.
//!
//! Invariant: an operation reads all it needs before it applies its one batch, so a query that fails has changed
//! nothing and the operation may be made again. Tests prove it by interrupting queries (`interrupt`), and that the batch
//! is one by crashes between records (`observe`).

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pando_engine::{Batch, Engine, KeyRange, Scan, ScanLimit, Tree};

use crate::leaving::Leaving;
use crate::schema::{NameRecord, Record, RecordError};
use crate::{Error, Result};

/// Answers true to make the query under way fail with [`Error::Busy`].
pub(crate) type Interrupt = Box<dyn Fn() -> bool + Send + Sync>;

/// Called behind each record.
pub(crate) type Observe = Box<dyn Fn() + Send + Sync>;

/// Access to the engine.
pub(crate) struct Store {
    engine: Arc<Engine>,
    leaving: Leaving,
    interrupt: OnceLock<Interrupt>,
    observe: OnceLock<Observe>,
}

impl Store {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, leaving: Leaving::default(), interrupt: OnceLock::new(), observe: OnceLock::new() }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What was unlinked a moment ago.
    pub(crate) fn leaving(&self) -> &Leaving {
        &self.leaving
    }

    /// From now on asks `interrupt` before each query. Only the first call counts.
    pub(crate) fn interrupt(&self, interrupt: Interrupt) {
        let _ = self.interrupt.set(interrupt);
    }

    /// From now on calls `observe` behind each record. Only the first call counts.
    pub(crate) fn observe(&self, observe: Observe) {
        let _ = self.observe.set(observe);
    }

    fn may_query(&self) -> Result<()> {
        if self.interrupt.get().is_some_and(|interrupt| interrupt()) { Err(Error::Busy) } else { Ok(()) }
    }

    pub(crate) fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>> {
        self.may_query()?;
        Ok(self.engine.get(tree, key)?)
    }

    pub(crate) fn scan(&self, tree: Tree, range: &KeyRange, limit: ScanLimit) -> Result<Scan> {
        self.may_query()?;
        Ok(self.engine.scan(tree, range, limit)?)
    }

    /// The inode record under the metadata key of a root directory or of a file with several links.
    pub(crate) fn record(&self, key: &[u8]) -> Result<Option<Record>> {
        self.get(Tree::Metadata, key)?.map(|bytes| decode(key, &bytes)).transpose()
    }

    /// What lies under the metadata key of a name.
    pub(crate) fn name_record(&self, key: &[u8]) -> Result<Option<NameRecord>> {
        self.get(Tree::Metadata, key)?.map(|bytes| decode_name(key, &bytes)).transpose()
    }

    /// Whether there is space for so many bytes. [`Error::Busy`] as for a batch.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        self.or_busy(self.engine.admit(bytes))
    }

    /// What is answered where the engine says this: while something is about to be forgotten, the volume is not full.
    fn or_busy<T>(&self, result: pando_engine::Result<T>) -> Result<T> {
        match result {
            Err(pando_engine::Error::NoSpace) if self.leaving.may_make_room() => Err(Error::Busy),
            other => Ok(other?),
        }
    }

    /// Applies the one batch of an operation. [`Error::Busy`] if there is no space for it, but a checkpoint would release
    /// some, or what was unlinked is about to be forgotten: nothing has changed then.
    pub(crate) fn apply(&self, batch: Batch) -> Result<()> {
        if !batch.is_empty() {
            self.or_busy(self.engine.apply(batch))?;
            self.applied();
        }
        Ok(())
    }

    /// Applies a [`Batch::copies_only`] that may as well be left; whether it did. What else stands in its way is met again by what is done
    /// instead.
    pub(crate) fn apply_copies(&self, batch: Batch) -> bool {
        let is_applied = self.engine.apply(batch).is_ok();
        if is_applied {
            self.applied();
        }
        is_applied
    }

    fn applied(&self) {
        if let Some(observe) = self.observe.get() {
            observe();
        }
    }
}

/// Decodes the record of an inode that is no orphan; the error names its key.
pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<Record> {
    Record::decode(bytes).and_then(Record::in_tree).map_err(|error| damaged(key, error))
}

/// Decodes an orphan's record; the error names its key.
pub(crate) fn decode_orphan(key: &[u8], bytes: &[u8]) -> Result<Record> {
    Record::decode(bytes).map_err(|error| damaged(key, error))
}

/// Decodes what lies under a name; the error names its key.
pub(crate) fn decode_name(key: &[u8], bytes: &[u8]) -> Result<NameRecord> {
    NameRecord::decode(bytes).and_then(NameRecord::in_tree).map_err(|error| damaged(key, error))
}

/// The error for a metadata key that ends in what cannot be the name of anything.
pub(crate) fn not_a_name(key: &[u8]) -> Error {
    Error::damaged(format!("FS-2: the metadata key \"{}\" ends in what is no name", key.escape_ascii()))
}

fn damaged(key: &[u8], error: RecordError) -> Error {
    Error::damaged(format!("the record under the metadata key \"{}\": {error}", key.escape_ascii()))
}
