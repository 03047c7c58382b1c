//! Threads that may wait, for the device, for callers or for the kernel, so that receiving threads need not (FU-1).
//!
//! Threads are started when work finds none idle, up to a limit, and stay; the first at once. The limit bounds how many requests wait
//! at once; no job waits for another job of the pool, but for 20 ms at most (`growth.rs`), so a full pool is slow but never stuck.
//! One lock, held for pushes and pops only.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::thread::CpuSet;

use crate::transport::yielding;

type Job = Box<dyn FnOnce() + Send>;

/// The pool; dropping it finishes what is queued and joins its threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    threads_max: usize,
    /// What its threads are called.
    name: &'static str,
    /// Where its threads may run; those that give it work may be bound to a core, which threads inherit.
    cores: Option<CpuSet>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// What wakes each thread that has nothing to do; the one that went to sleep last goes on first, since its memory is at hand. By turns
    /// each of them would fill memory of its own.
    idle: Vec<Arc<Condvar>>,
    closed: bool,
}

impl Pool {
    /// A pool of at least one thread and at most `threads_max`, which may run where this thread may.
    pub(crate) fn new(name: &'static str, threads_max: usize) -> io::Result<Self> {
        let cores = rustix::thread::sched_getaffinity(None).ok();
        let pool = Self { shared: Arc::default(), threads: Mutex::default(), threads_max, name, cores };
        pool.start_thread()?;
        Ok(pool)
    }

    /// Runs the job on a thread of the pool, soon. Never waits for a job.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let idle = {
            let mut queue = self.shared.queue.lock();
            queue.jobs.push_back(Box::new(job));
            queue.idle.pop()
        };
        match idle {
            Some(idle) => _ = idle.notify_one(),
            // Those that there are take it if there cannot be another.
            None => _ = self.start_thread(),
        }
    }

    fn start_thread(&self) -> io::Result<()> {
        let mut threads = self.threads.lock();
        if threads.len() == self.threads_max {
            return Ok(());
        }
        let (shared, cores) = (self.shared.clone(), self.cores);
        let work = move || {
            // On one core it works as well, more slowly.
            let _ = cores.map(|cores| rustix::thread::sched_setaffinity(None, &cores));
            yielding::do_not_inherit();
            shared.work();
        };
        let name = format!("{}-{}", self.name, threads.len());
        threads.push(std::thread::Builder::new().name(name).spawn(work)?);
        Ok(())
    }
}

impl Shared {
    fn work(&self) {
        let wake = Arc::new(Condvar::new());
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.queue.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle.push(wake.clone());
                wake.wait(&mut queue);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.idle)
        };
        idle.iter().for_each(|idle| _ = idle.notify_one());
        for thread in self.threads.get_mut().drain(..) {
            // A job that panicked has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn runs_every_job_before_it_is_dropped() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new("pando-test", 3).unwrap();
        for _ in 0..1000 {
            let done = done.clone();
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 1000);
    }

    /// Where no thread could be started by the time of the first job, that was the end of the process.
    #[test]
    fn has_a_thread_before_it_is_needed() {
        let pool = Pool::new("pando-test", 3).unwrap();
        assert_eq!(pool.threads.lock().len(), 1);
    }

    #[test]
    fn its_threads_are_bound_to_no_core_of_those_who_use_it() {
        let free = rustix::thread::sched_getaffinity(None).unwrap();
        let pool = Arc::new(Pool::new("pando-test", 1).unwrap());
        let user = pool.clone();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|&core| free.is_set(core)).unwrap());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            user.run(move || tell.send(rustix::thread::sched_getaffinity(None).unwrap()).unwrap());
        });
        assert_eq!(told.recv().unwrap(), free);
    }

    #[test]
    fn jobs_wait_side_by_side() {
        // Passes only if all four are waiting at the same time.
        let barrier = Arc::new(Barrier::new(4));
        let pool = Pool::new("pando-test", 4).unwrap();
        for _ in 0..4 {
            let barrier = barrier.clone();
            pool.run(move || {
                barrier.wait();
            });
        }
        drop(pool);
    }
}
