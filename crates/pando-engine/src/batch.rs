//! What a caller wants done in one atomic step.

use bytes::Bytes;

use crate::{Change, FieldUpdate, KeyRange, Operation, Tree};

/// Operations that become one log record: applied in their order, whole or not at all.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
    pub(crate) terms: Terms,
}

/// On what terms a batch is applied.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) reclaims: bool,
    pub(crate) copies_only: bool,
    /// See [`Batch::note_freed`].
    pub(crate) frees: u64,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A batch that only gives space back: it is let through on a full volume.
    pub fn reclaiming() -> Self {
        Self { terms: Terms { reclaims: true, ..Terms::default() }, ..Self::default() }
    }

    /// A batch that is applied only if each range that it moves is small and in memory, so that a copy moves it:
    /// [`Error::NotCopied`](crate::Error::NotCopied) or [`Error::Miss`](crate::Error::Miss) otherwise, and nothing has happened.
    pub fn copies_only() -> Self {
        Self { terms: Terms { copies_only: true, ..Terms::default() }, ..Self::default() }
    }

    /// Says that the deletes in it free about so many bytes. The engine does not read what it deletes; so it knows when
    /// bringing deletes down to their leaves is worth it.
    pub fn note_freed(&mut self, bytes: u64) {
        self.terms.frees = self.terms.frees.saturating_add(bytes);
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The operations so far.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Sets the value of a key.
    pub fn put(&mut self, tree: Tree, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.operations.push(Operation::Put { tree, key: key.into(), value: value.into() });
    }

    /// Sets consecutive block values; see [`Operation::PutRun`].
    pub fn put_run(&mut self, tree: Tree, prefix: impl Into<Bytes>, first: u64, bytes: impl Into<Bytes>) {
        self.operations.push(Operation::PutRun { tree, prefix: prefix.into(), first, bytes: bytes.into() });
    }

    /// Removes a key; a key that is not there is no error.
    pub fn delete(&mut self, tree: Tree, key: impl Into<Bytes>) {
        self.operations.push(Operation::Delete { tree, key: key.into() });
    }

    /// Replaces bytes of a value blindly; see [`Change::Patch`].
    pub fn patch(&mut self, tree: Tree, key: impl Into<Bytes>, offset: u32, bytes: impl Into<Bytes>) {
        self.change(tree, key, Change::Patch { offset, bytes: bytes.into() });
    }

    /// Cuts a value to at most `length` bytes; see [`Change::Truncate`].
    pub fn truncate(&mut self, tree: Tree, key: impl Into<Bytes>, length: u32) {
        self.change(tree, key, Change::Truncate { length });
    }

    /// Updates fields of a value blindly, 1 to 256 and none of them empty; see [`Change::Update`].
    pub fn update(&mut self, tree: Tree, key: impl Into<Bytes>, fields: Vec<FieldUpdate>) {
        self.change(tree, key, Change::Update { fields });
    }

    /// Changes a value blindly.
    pub fn change(&mut self, tree: Tree, key: impl Into<Bytes>, change: Change) {
        self.operations.push(Operation::Change { tree, key: key.into(), change });
    }

    /// Removes every key of a range.
    pub fn delete_range(&mut self, tree: Tree, range: KeyRange) {
        self.operations.push(Operation::DeleteRange { tree, range });
    }

    /// Moves every key below a prefix; see [`Operation::MoveRange`].
    pub fn move_range(&mut self, tree: Tree, from: impl Into<Bytes>, to: impl Into<Bytes>) {
        self.operations.push(Operation::MoveRange { tree, from: from.into(), to: to.into() });
    }

    /// Clones every key below a prefix; see [`Operation::CloneRange`].
    pub fn clone_range(&mut self, tree: Tree, from: impl Into<Bytes>, to: impl Into<Bytes>) {
        self.operations.push(Operation::CloneRange { tree, from: from.into(), to: to.into() });
    }
}
