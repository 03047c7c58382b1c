//! How requests come from the kernel and answers go back: [`device`] reads and writes /dev/fuse, [`ring`] uses io_uring
//! for what comes most often, where the kernel offers that. [`fuse_request`] is for the programs at the other end.

mod clone;
mod device;
mod fuse_request;
pub(crate) mod ring;
mod slot;
pub(crate) mod yielding;

pub(crate) use device::{Device, Forgets, Gathered, handshake, receive};
pub(crate) use fuse_request::{REQUEST_TYPE, fuse_request};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

use rustix::io::Errno;

use self::ring::Queue;
use self::slot::Slot;
use crate::protocol::Answer;

/// The way back of one request. It is answered once: a reply that is dropped answers that the request failed (FU-2).
pub(crate) struct Reply {
    unique: u64,
    way: Option<Way>,
    is_to_only_caller: bool,
    /// See [`Reply::note_sent`].
    sent: Option<Arc<AtomicBool>>,
}

enum Way {
    Device(Arc<Device>),
    Ring(Arc<Queue>, Slot),
}

impl Reply {
    /// The answer to the request of this number, which came through this device.
    pub(crate) fn through(device: Arc<Device>, unique: u64) -> Self {
        Self { unique, way: Some(Way::Device(device)), is_to_only_caller: false, sent: None }
    }

    /// The answer to the request of this number, which lies in this slot.
    fn in_slot(queue: Arc<Queue>, slot: Slot, unique: u64, is_to_only_caller: bool) -> Self {
        Self { unique, way: Some(Way::Ring(queue, slot)), is_to_only_caller, sent: None }
    }

    /// True if the thread that received the request has nobody else to answer, and has had few other callers of late or none.
    pub(crate) fn is_to_only_caller(&self) -> bool {
        self.is_to_only_caller
    }

    /// Has it noted when the answer has been sent, or is with the system call that comes next.
    pub(crate) fn note_sent(&mut self, sent: Arc<AtomicBool>) {
        self.sent = Some(sent);
    }

    pub(crate) fn send(mut self, answer: Answer) {
        self.answer(&answer);
    }

    /// Whether the answer may wait for a lock of the kernel's. If so, it is expected to.
    pub(crate) fn may_wait(&self) -> bool {
        match &self.way {
            Some(Way::Ring(queue, slot)) => queue.keep(slot),
            _ => true,
        }
    }

    /// Answers several alike, and only then wakes those who take the answers away. Woken by the first, a caller would be back with its next
    /// request before the others have heard.
    pub(crate) fn send_all(replies: Vec<Self>, answer: &Answer) {
        let mut queues: Vec<Arc<Queue>> = Vec::new();
        for mut reply in replies {
            let queue = reply.prepare(answer);
            queues.extend(queue.filter(|queue| !queues.iter().any(|other| Arc::ptr_eq(queue, other))));
        }
        queues.iter().for_each(|queue| queue.wake());
    }

    /// For requests that are never answered. What lies in a slot always is: the slot goes back by its answer.
    pub(crate) fn withhold(mut self) {
        match self.way {
            Some(Way::Device(_)) => self.way = None,
            _ => self.answer(&Answer::Done),
        }
    }

    fn answer(&mut self, answer: &Answer) {
        if let Some(queue) = self.prepare(answer) {
            queue.wake();
        }
    }

    /// Answers. Returns the queue that must still be woken.
    fn prepare(&mut self, answer: &Answer) -> Option<Arc<Queue>> {
        match self.way.take()? {
            Way::Device(device) => {
                device.answer(self.unique, answer);
                if let Some(sent) = self.sent.take() {
                    sent.store(true, Release);
                }
                None
            }
            Way::Ring(queue, mut slot) => {
                queue.release(&slot);
                slot.answer(self.unique, answer);
                queue.hand_in(slot, self.sent.take());
                Some(queue)
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(&Answer::Refused(Errno::IO));
    }
}
