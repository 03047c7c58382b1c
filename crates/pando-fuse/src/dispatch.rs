//! Runs requests: at once on the thread that received them, or on the pool where they must wait (FU-1).
//!
//! A call that answers `Miss` or `Busy` has changed nothing, so it is made again from the start, after what it lacked
//! has been fetched or room has been made. The request carries its reply along, so that it is answered once, from
//! wherever it ends (FU-2).

use std::sync::Arc;

use pando_fs::{Error, Operations, Result};

use crate::errno;
use crate::pool::Pool;

/// Told of failures of the file system: the sentence for the log.
pub(crate) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Whether a request needs room for changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Query,
    Change,
}

/// Takes requests from a transport to the file system.
pub(crate) struct Dispatcher {
    fs: Arc<dyn Operations>,
    pool: Pool,
    report: Report,
}

impl Dispatcher {
    /// `waiters_max` requests wait for the device at once.
    pub(crate) fn new(fs: Arc<dyn Operations>, waiters_max: usize, report: Report) -> Self {
        Self { fs, pool: Pool::new(waiters_max), report }
    }

    /// The file system, for what never waits and is never answered.
    pub(crate) fn fs(&self) -> &dyn Operations {
        &*self.fs
    }

    /// Serves a request that changes nothing: makes `call`, which may use the reply, then gives both to `answer`.
    pub(crate) fn query<R, T>(
        &self,
        reply: R,
        call: impl FnMut(&dyn Operations, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
        T: 'static,
    {
        self.run(Kind::Query, reply, call, answer);
    }

    /// Serves a request that changes something, with room for it.
    pub(crate) fn change<R, T>(
        &self,
        reply: R,
        call: impl FnMut(&dyn Operations, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
        T: 'static,
    {
        self.run(Kind::Change, reply, call, answer);
    }

    /// Serves a request that waits for the device in any case, on the pool.
    pub(crate) fn wait<R, T>(
        &self,
        reply: R,
        call: impl FnMut(&dyn Operations, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
        T: 'static,
    {
        self.run_on_pool(Kind::Query, None, reply, call, answer);
    }

    fn run<R, T>(
        &self,
        kind: Kind,
        mut reply: R,
        mut call: impl FnMut(&dyn Operations, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
        T: 'static,
    {
        let room = if kind == Kind::Change { self.fs.make_room(false) } else { Ok(()) };
        match room.and_then(|()| call(&*self.fs, &mut reply)) {
            Err(lack @ (Error::Miss(_) | Error::Busy)) => {
                self.run_on_pool(kind, Some(lack), reply, call, answer);
            }
            result => finish(reply, result, &self.report, answer),
        }
    }

    fn run_on_pool<R, T>(
        &self,
        kind: Kind,
        lack: Option<Error>,
        mut reply: R,
        mut call: impl FnMut(&dyn Operations, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
        T: 'static,
    {
        let fs = self.fs.clone();
        let report = self.report.clone();
        self.pool.run(move || {
            let result = until_answered(&*fs, kind, lack, |fs| call(fs, &mut reply));
            finish(reply, result, &report, answer);
        });
    }
}

/// Makes the call, and supplies what it lacks, until it has an answer. Waits for the device.
fn until_answered<T>(
    fs: &dyn Operations,
    kind: Kind,
    mut lack: Option<Error>,
    mut call: impl FnMut(&dyn Operations) -> Result<T>,
) -> Result<T> {
    loop {
        match lack {
            Some(Error::Miss(miss)) => fs.fetch(miss)?,
            Some(Error::Busy) => fs.make_room(true)?,
            _ => {}
        }
        let room = if kind == Kind::Change { fs.make_room(true) } else { Ok(()) };
        match room.and_then(|()| call(fs)) {
            Err(error @ (Error::Miss(_) | Error::Busy)) => lack = Some(error),
            result => return result,
        }
    }
}

fn finish<R, T>(reply: R, result: Result<T>, report: &Report, answer: impl FnOnce(R, Result<T>)) {
    if let Err(error) = &result
        && errno::is_failure(error)
    {
        report(&error.to_string());
    }
    answer(reply, result);
}
