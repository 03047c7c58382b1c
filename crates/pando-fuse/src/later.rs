//! Answers that wait until the kernel has forgotten something, for which it takes locks (FU-4).
//!
//! Who holds such a lock may itself wait for a request to be sent or served. So one slot of each core stays free; and since the kernel sends only so
//! many requests at a time that nobody waits for by name, reads ahead and asynchronous writes, and more of a core when one of that core has ended,
//! no answer waits for longer than a moment. One lock for each of them, held while it is sent.

use std::io;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::pool::Pool;
use crate::protocol::Answer;
use crate::transport::{Reply, yielding};

/// After this time an answer is sent in any case. Locks are held for a request, which takes the device a few milliseconds.
const MOMENT: Duration = Duration::from_millis(100);

/// When an answer is sent in any case, and which.
type Deadline = (Instant, Weak<Held>);

/// What sends them.
pub(crate) struct Later {
    /// What comes first waits for requests that may wait for other pools.
    pool: Pool,
    /// Of the thread that looks after those whose moment is over; there from the first on, if it can be started.
    deadlines: OnceLock<Option<Sender<Deadline>>>,
}

/// An answer, until it is sent.
struct Held(Mutex<Option<(Reply, Answer)>>);

impl Held {
    fn send(&self) {
        if let Some((reply, answer)) = self.0.lock().take() {
            reply.send(answer);
        }
    }
}

impl Later {
    /// So many things come first at once, each for an answer.
    pub(crate) fn new(waiters_max: usize) -> io::Result<Self> {
        Ok(Self { pool: Pool::new("pando-notify", waiters_max)?, deadlines: OnceLock::new() })
    }

    /// Answers when something has run first; or before that, if other requests might have to wait for this one.
    pub(crate) fn send(&self, reply: Reply, answer: Answer, first: impl FnOnce() + Send + 'static) {
        let may_wait = reply.may_wait();
        let held = Arc::new(Held(Mutex::new(Some((reply, answer)))));
        if !may_wait {
            held.send();
        } else if let Some(deadlines) = self.deadlines.get_or_init(start) {
            // The thread is there as long as this.
            let _ = deadlines.send((Instant::now() + MOMENT, Arc::downgrade(&held)));
        }
        self.pool.run(move || {
            first();
            held.send();
        });
    }
}

fn start() -> Option<Sender<Deadline>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("pando-deadline".to_owned());
    let work = move || {
        yielding::do_not_inherit();
        keep_deadlines(&receiver);
    };
    thread.spawn(work).ok().map(|_| sender)
}

fn keep_deadlines(receiver: &Receiver<Deadline>) {
    while let Ok((deadline, held)) = receiver.recv() {
        // Of those that have been sent nothing is left.
        if held.strong_count() > 0 {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            held.upgrade().inspect(|held| held.send());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::transport::Device;

    /// A request's way back, and where its answer arrives.
    fn reply() -> (Reply, File) {
        let (answers, device): (_, OwnedFd) =
            std::io::pipe().map(|(reader, writer)| (OwnedFd::from(reader), writer.into())).unwrap();
        (Reply::through(Arc::new(Device::new(device)), 7), answers.into())
    }

    fn has_come(answers: &File, within: Duration) -> bool {
        let time = Timespec { tv_sec: 0, tv_nsec: within.as_nanos() as i64 };
        poll(&mut [PollFd::new(answers, PollFlags::IN)], Some(&time)).unwrap() == 1
    }

    #[test]
    fn an_answer_waits_for_what_comes_first_and_is_sent_once() {
        let later = Later::new(2).unwrap();
        let (reply, mut answers) = reply();
        let (go_on, told) = std::sync::mpsc::channel();
        later.send(reply, Answer::Done, move || told.recv().unwrap());
        assert!(!has_come(&answers, MOMENT / 5));
        go_on.send(()).unwrap();
        drop(later);
        let mut said = Vec::new();
        answers.read_to_end(&mut said).unwrap();
        assert_eq!(said.len(), 16);
    }

    #[test]
    fn it_waits_no_longer_than_a_moment() {
        let later = Later::new(2).unwrap();
        let (reply, answers) = reply();
        let (go_on, told) = std::sync::mpsc::channel();
        let start = Instant::now();
        later.send(reply, Answer::Done, move || told.recv().unwrap());
        assert!(has_come(&answers, 9 * MOMENT));
        assert!(start.elapsed() >= MOMENT);
        go_on.send(()).unwrap();
    }
}
