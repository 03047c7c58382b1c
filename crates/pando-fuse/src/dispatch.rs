//! Runs requests: at once on the thread that received them, or on the pool where they must wait for long (FU-1).
//!
//! A call that answers `Miss`, `Busy`, `Unforgotten` or `Unfinished` has changed nothing that anybody sees, so it is made again from the start, after what it
//! lacked has been fetched or room has been made, or the forgets have been taken that gather. (Not by the pool, which does without.) The request carries its reply along, so that it is answered once, from
//! wherever it ends (FU-2).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use pando_fs::operations::{changing_bytes, waiting};
use pando_fs::{Error, Operations, Result};
use rustix::io::Errno;

use crate::errno;
use crate::later::Later;
use crate::patience::Patience;
use crate::pool::Pool;
use crate::protocol::Answer;
use crate::syncs::Syncs;
use crate::transport::Reply;

/// Told of failures of the file system: the sentence for the log.
pub(crate) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Whether a request needs room for changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Query,
    /// Which writes so many bytes; 0 for what is small in any case.
    Change {
        bytes: u64,
    },
}

/// Takes requests from a transport to the file system.
pub(crate) struct Dispatcher {
    fs: Arc<dyn Operations>,
    pool: Pool,
    /// For what the kernel must be told before an answer is sent.
    later: Arc<Later>,
    report: Report,
    patience: Patience,
    syncs: Arc<Syncs<Reply>>,
}

impl Dispatcher {
    /// `waiters_max` requests wait for the device at once.
    pub(crate) fn new(fs: Arc<dyn Operations>, waiters_max: usize, report: Report) -> io::Result<Self> {
        Ok(Self {
            fs,
            pool: Pool::new("pando-wait", waiters_max)?,
            later: Arc::new(Later::new(waiters_max)?),
            report,
            patience: Patience::default(),
            syncs: Syncs::new(),
        })
    }

    /// The file system, for what never waits and is never answered.
    pub(crate) fn fs(&self) -> &dyn Operations {
        &*self.fs
    }

    /// Serves a request that changes nothing.
    pub(crate) fn query(
        &self,
        reply: Reply,
        call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        self.run(Kind::Query, reply, &|| (), call);
    }

    /// Serves a request that changes something, with room for it; it writes so many bytes, 0 if it is small in any case. To be `durable` when
    /// it is answered, it waits for the device. If forgets may help, `take_forgets` is called before another try.
    pub(crate) fn change(
        &self,
        bytes: usize,
        durable: bool,
        reply: Reply,
        take_forgets: &dyn Fn(),
        call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        let kind = Kind::Change { bytes: bytes as u64 };
        match durable {
            true => self.run_durably(kind, reply, take_forgets, call),
            false => self.run(kind, reply, take_forgets, call),
        }
    }

    fn run_durably(
        &self,
        kind: Kind,
        reply: Reply,
        take_forgets: &dyn Fn(),
        mut call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        if self.had_better_sync_at_once(&reply) {
            let start = Instant::now();
            match self.try_once(kind, take_forgets, &mut call) {
                Err(Error::Miss(_) | Error::Busy | Error::Unforgotten | Error::Unfinished) => {}
                result => {
                    let result = durably(&*self.fs, result, &self.report);
                    self.patience.note(start.elapsed());
                    return finish(reply, result, &self.report, &self.later);
                }
            }
        }
        let (fs, report, later) = (self.fs.clone(), self.report.clone(), self.later.clone());
        self.pool.run(move || {
            let result = durably(&*fs, until_answered(&*fs, kind, None, call), &report);
            finish(reply, result, &report, &later);
        });
    }

    /// Does what may wait, and answers by itself.
    pub(crate) fn run_waiting(&self, job: impl FnOnce() + Send + 'static) {
        self.pool.run(job);
    }

    /// To sync waits for the device in any case, so it goes to the pool, unless it will not be long and the thread at hand has only one caller: who
    /// would wait for two threads to wake besides, 50 to 100 us each.
    fn had_better_sync_at_once(&self, reply: &Reply) -> bool {
        reply.is_to_only_caller() && self.fs.sync_is_short() && self.patience.is_left()
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self, reply: Reply) {
        if self.had_better_sync_at_once(&reply) {
            let start = Instant::now();
            let result = self.fs.sync().map(|()| Answer::Done);
            self.patience.note(start.elapsed());
            finish(reply, result, &self.report, &self.later);
        } else if let Some(worker) = self.syncs.add(reply) {
            let (fs, report) = (self.fs.clone(), self.report.clone());
            self.pool.run(move || {
                worker.work(|replies| {
                    let refused = fs.sync().err().map(|error| refusal(&error, &report));
                    Reply::send_all(replies, &refused.map_or(Answer::Done, Answer::Refused));
                });
            });
        }
    }

    fn run(
        &self,
        kind: Kind,
        reply: Reply,
        take_forgets: &dyn Fn(),
        mut call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        match self.try_once(kind, take_forgets, &mut call) {
            Err(lack @ (Error::Miss(_) | Error::Busy | Error::Unforgotten | Error::Unfinished)) => {
                self.run_on_pool(kind, lack, reply, call)
            }
            result => finish(reply, result, &self.report, &self.later),
        }
    }

    fn try_once(
        &self,
        kind: Kind,
        take_forgets: &dyn Fn(),
        call: &mut impl FnMut(&dyn Operations) -> Result<Answer>,
    ) -> Result<Answer> {
        if let Kind::Change { bytes } = kind {
            self.fs.make_room(bytes, false)?;
        }
        match call(&*self.fs) {
            Err(Error::Unforgotten) => {
                take_forgets();
                call(&*self.fs)
            }
            result => result,
        }
    }

    fn run_on_pool(
        &self,
        kind: Kind,
        lack: Error,
        reply: Reply,
        call: impl FnMut(&dyn Operations) -> Result<Answer> + Send + 'static,
    ) {
        let (fs, report, later) = (self.fs.clone(), self.report.clone(), self.later.clone());
        self.pool.run(move || {
            let result = until_answered(&*fs, kind, Some(lack), call);
            finish(reply, result, &report, &later);
        });
    }
}

/// Supplies what a first try lacked and makes the call until it has an answer. Waits for the device.
fn until_answered(
    fs: &dyn Operations,
    kind: Kind,
    lack: Option<Error>,
    mut call: impl FnMut(&dyn Operations) -> Result<Answer>,
) -> Result<Answer> {
    if let Some(Error::Miss(miss)) = lack {
        fs.fetch(miss)?;
    }
    match kind {
        Kind::Query => waiting(fs, |fs| call(fs)),
        Kind::Change { bytes } => changing_bytes(fs, bytes, |fs| call(fs)),
    }
}

/// What a change is answered with once it is durable, or cannot be.
fn durably(fs: &dyn Operations, changed: Result<Answer>, report: &Report) -> Result<Answer> {
    changed.map(|answer| match (fs.sync(), answer) {
        (Ok(()), answer) => answer,
        // What the kernel has to forget has changed all the same.
        (Err(error), Answer::Later(_, first)) => {
            Answer::Later(Box::new(Answer::Refused(refusal(&error, report))), first)
        }
        (Err(error), _) => Answer::Refused(refusal(&error, report)),
    })
}

fn finish(reply: Reply, result: Result<Answer>, report: &Report, later: &Later) {
    match result.unwrap_or_else(|error| Answer::Refused(refusal(&error, report))) {
        Answer::Later(answer, first) => later.send(reply, *answer, first),
        answer => reply.send(answer),
    }
}

/// What the caller is told of an error, and the log if it is a failure.
fn refusal(error: &Error, report: &Report) -> Errno {
    if errno::is_failure(error) {
        report(&error.to_string());
    }
    errno::errno(error)
}
