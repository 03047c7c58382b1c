//! How requests come from the kernel and answers go back: [`device`] reads and writes /dev/fuse.

mod clone;
mod device;

pub(crate) use device::{Device, handshake, receive};

use std::sync::Arc;

use rustix::io::Errno;

use crate::protocol::Answer;

/// The way back of one request. It is answered once: a reply that is dropped answers that the request failed (FU-2).
pub(crate) struct Reply {
    unique: u64,
    to: Option<Arc<Device>>,
}

impl Reply {
    /// The answer to the request of this number, which came through this device.
    pub(crate) fn through(device: Arc<Device>, unique: u64) -> Self {
        Self { unique, to: Some(device) }
    }

    pub(crate) fn send(mut self, answer: Answer) {
        match answer {
            Answer::Later(make) => {
                let name = "pando-notify".to_owned();
                // If no thread can be started, the reply is dropped.
                let _ = std::thread::Builder::new().name(name).spawn(move || self.answer(make()));
            }
            answer => self.answer(answer),
        }
    }

    /// For requests that are never answered.
    pub(crate) fn withhold(mut self) {
        self.to = None;
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(device) = self.to.take() {
            device.answer(self.unique, answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(Answer::Refused(Errno::IO));
    }
}
