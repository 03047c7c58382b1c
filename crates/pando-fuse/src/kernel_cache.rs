//! What the kernel remembers of what it was told, and must not go on to remember.
//!
//! Dropping attributes takes no lock of the inode's in the kernel, but waits for one that is being dropped from memory. An inode that the
//! caller holds is not; and nothing that is done to drop a directory, or a file that has names, waits for us. So it is allowed from within a
//! request (FU-4). What else the kernel must be told to forget is told by other threads (`notifier.rs`).

use std::sync::Arc;

use bytes::Bytes;
use pando_fs::operations::{Attributes, FileType};
use pando_fs::{InodeNumber, Operations, Result};

use crate::askers::{Askers, Before};
use crate::protocol::{Answer, invalidate_attributes, invalidate_contents, invalidate_name};
use crate::transport::Device;

/// What the kernel of one connection remembers.
pub(crate) struct KernelCache {
    /// Takes notifications.
    device: Arc<Device>,
    askers: Askers,
}

impl KernelCache {
    pub(crate) fn new(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device, askers: Askers::new() })
    }

    /// Has the attributes of an inode forgotten, and those that are on their way not remembered.
    pub(crate) fn forget_attributes(&self, inode: InodeNumber) {
        self.device.notify(&invalidate_attributes(inode.0));
    }

    /// To be called before attributes are read for an answer.
    pub(crate) fn before(&self) -> Before {
        self.askers.before()
    }

    /// To be called before an answer with attributes is sent. If they had better not be remembered, the kernel gives who asked what the
    /// answer says, and asks again next time, since it was told of a change after it had asked: of a directory that may have changed since
    /// they were read, of a file whose unlink it may not have heard of yet.
    pub(crate) fn will_hear(
        &self,
        fs: &dyn Operations,
        thread: u32,
        attributes: &Attributes,
        before: Before,
    ) {
        let inode = attributes.inode;
        if attributes.file_type == FileType::Directory {
            self.will_hear_of_directory(thread, inode, before);
        } else if fs.attributes_may_mislead(inode) {
            self.forget_attributes(inode);
        }
    }

    /// The same for a directory in a listing.
    pub(crate) fn will_hear_of_directory(&self, thread: u32, directory: InodeNumber, before: Before) {
        if self.askers.note(directory.0, thread, before) {
            self.forget_attributes(directory);
        }
    }

    /// To be called after a name in a directory has changed, before the answer is sent.
    pub(crate) fn names_changed(&self, thread: u32, directory: InodeNumber) {
        self.askers.changed(directory.0, thread, || self.forget_attributes(directory));
    }

    /// Makes a change to the contents of a file. If that takes set-id bits off, the kernel would go on to believe in the old mode, and
    /// execute by it.
    pub(crate) fn killing_set_id<T>(
        &self,
        fs: &dyn Operations,
        inode: InodeNumber,
        kill_set_id: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let had_set_id = kill_set_id && fs.get_attributes(inode)?.mode & 0o6000 != 0;
        // A part of it may be done where it fails.
        let changed = change();
        if had_set_id {
            self.forget_attributes(inode);
        }
        changed
    }

    /// The answer to a rename that took these directories to another parent: the kernel must first forget their listings, which say whose they were.
    pub(crate) fn moved(self: &Arc<Self>, directories: Vec<InodeNumber>) -> Answer {
        if directories.is_empty() {
            return Answer::Done;
        }
        let cache = self.clone();
        // A page of a listing is locked while it is copied to who reads it, into a file of ours maybe.
        let forget = move || {
            directories.iter().for_each(|directory| cache.device.notify(&invalidate_contents(directory.0)))
        };
        Answer::Later(Box::new(Answer::Done), Box::new(forget))
    }

    /// The answer to an ioctl that made a name: the kernel must first forget that there was none, and the directory's listing and attributes.
    pub(crate) fn came_to_be(self: &Arc<Self>, directory: InodeNumber, name: Bytes) -> Answer {
        let cache = self.clone();
        let forget = move || {
            cache.device.notify(&invalidate_name(directory.0, &name));
            cache.device.notify(&invalidate_contents(directory.0));
        };
        Answer::Later(Box::new(Answer::ioctl(&[])), Box::new(forget))
    }
}
