//! What the kernel is told to forget, since it changed without its doing, or did not change as it believes.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use pando_fs::InodeNumber;
use parking_lot::Mutex;

use crate::protocol::{invalidate_contents, invalidate_name};
use crate::transport::{Device, yielding};

/// Tells the kernel of a mount what to forget; nothing happens any more once it is unmounted.
///
/// Not for threads that serve requests: the kernel takes locks for it that are held by who waits for an answer (FU-4).
#[derive(Clone)]
pub struct Notifier {
    device: Weak<Device>,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::downgrade(device) }
    }

    /// What a name in a directory is, or that it is absent. What is mounted at the name, or below it, is unmounted.
    pub fn forget_name(&self, directory: InodeNumber, name: &[u8]) {
        self.send(&invalidate_name(directory.0, name));
    }

    /// The attributes and the contents of an inode, of a directory the listing. Pages that were changed and not sent yet are sent first.
    pub fn forget_contents(&self, inode: InodeNumber) {
        self.send(&invalidate_contents(inode.0));
    }

    fn send(&self, message: &[u8]) {
        if let Some(device) = self.device.upgrade() {
            device.notify(message);
        }
    }
}

/// Has contents forgotten on behalf of requests, which may not do it themselves, by a thread that is there while there is something to do. One
/// lock, held for no call but the start of that thread.
pub(crate) struct Forgetter {
    notifier: Notifier,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    inodes: BTreeSet<InodeNumber>,
    has_thread: bool,
}

impl Forgetter {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        Arc::new(Self { notifier: Notifier::new(device), waiting: Mutex::default() })
    }

    /// Has the contents of inodes forgotten, soon.
    pub(crate) fn forget_contents(self: &Arc<Self>, inodes: impl IntoIterator<Item = InodeNumber>) {
        let mut waiting = self.waiting.lock();
        waiting.inodes.extend(inodes);
        if waiting.has_thread {
            return;
        }
        let forgetter = self.clone();
        let thread = std::thread::Builder::new().name("pando-notify".to_owned());
        // Without a thread, the next one to ask starts it.
        let work = move || {
            yielding::do_not_inherit();
            forgetter.work();
        };
        waiting.has_thread = thread.spawn(work).is_ok();
    }

    fn work(&self) {
        loop {
            let inode = {
                let mut waiting = self.waiting.lock();
                let inode = waiting.inodes.pop_first();
                waiting.has_thread = inode.is_some();
                inode
            };
            let Some(inode) = inode else { return };
            self.notifier.forget_contents(inode);
        }
    }
}
