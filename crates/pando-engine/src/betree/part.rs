//! A part of a node: what is read, checked and decompressed alone.

use std::sync::Arc;

use pando_format::PartEntry;

/// A basement node or a message buffer, in memory or not.
///
/// `stored` says where in the node's image ([`super::node::Node::place`]) the same contents lie; a part that changes
/// loses it, and a part that has it may be dropped from memory.
#[derive(Debug)]
pub(crate) struct Part<T> {
    loaded: Option<Arc<T>>,
    stored: Option<PartEntry>,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { loaded: self.loaded.clone(), stored: self.stored.clone() }
    }
}

impl<T: Clone> Part<T> {
    /// A part that is nowhere but in memory.
    pub(crate) fn new(value: T) -> Self {
        Self { loaded: Some(Arc::new(value)), stored: None }
    }

    /// A part that is on the device only.
    pub(crate) fn on_device(entry: PartEntry) -> Self {
        Self { loaded: None, stored: Some(entry) }
    }

    /// The contents, if they are in memory.
    pub(crate) fn get(&self) -> Option<&Arc<T>> {
        self.loaded.as_ref()
    }

    /// The contents for a change; the copy on the device is out of date from now on. Copies what a checkpoint, a
    /// reader or another node still holds.
    pub(crate) fn change(&mut self) -> Option<&mut T> {
        let value = self.loaded.as_mut()?;
        self.stored = None;
        Some(Arc::make_mut(value))
    }

    /// Takes the contents out; the part must be given new ones or dropped.
    pub(crate) fn into_value(self) -> Option<T> {
        self.loaded.map(Arc::unwrap_or_clone)
    }

    /// Where the contents lie on the device, if they do.
    pub(crate) fn stored(&self) -> Option<&PartEntry> {
        self.stored.as_ref()
    }

    /// Forgets where the contents lie, because the part goes to another node. They must be in memory.
    pub(crate) fn leave_image(&mut self) {
        assert!(self.loaded.is_some(), "a part moves between nodes in memory only");
        self.stored = None;
    }

    /// Notes where the contents lie now.
    pub(crate) fn set_stored(&mut self, entry: PartEntry) {
        self.stored = Some(entry);
    }

    /// Gives contents read from the device to a part that has none.
    pub(crate) fn load(&mut self, value: Arc<T>) {
        debug_assert!(self.stored.is_some());
        self.loaded.get_or_insert(value);
    }

    /// Drops the contents from memory if the device has them. A reader, or another node that shares them, goes on with what it holds.
    pub(crate) fn evict(&mut self) {
        if self.stored.is_some() {
            self.loaded = None;
        }
    }
}
