//! Threads that serve a core give way to those whom they answer.
//!
//! An answer wakes its caller while our thread still runs, for another microsecond. The kernel does not queue a woken thread behind
//! a running one if another core is idle: it moves the caller there, which takes 50 to 100 us where that core must be woken first, and
//! does so anew at each request. A thread of class `SCHED_IDLE` is nobody to queue behind: the caller stays on its core and goes
//! on at once.
//!
//! But such a thread gets nothing done while others compute on its core. So it yields as long as it gets on, and a watch
//! looks after it:
//!
//! * YI-1 the watch ticks while any thread yields.
//! * YI-2 a thread that yields and serves nothing from one tick to the next is an ordinary one by then. If other programs kept it
//!   from running, it stays so for a while; threads of our own that work in the background soon sleep again.
//! * YI-3 none yields while more wants to run than there are cores for: callers wait for a core then, whoever goes first, and the
//!   serving threads would come last.
//!
//! A thread that is about to yield says so before it does (`CHANGING`), and the watch makes it ordinary again and again until it
//! says that it got there: whatever the order in which both come to the kernel, none yields that the watch takes for ordinary.
//!
//! How the kernel chooses: `select_idle_sibling` and `sched_idle_cpu` in its `kernel/sched/fair.c`; sched(7).
#![expect(unsafe_code, reason = "rustix does not set scheduling classes")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{Pid, gettid};
use rustix::time::ClockId;

/// From one look of the watch to the next. For so long, twice at most, a thread may be kept from running.
const TICK: Duration = Duration::from_millis(1);

/// Ticks for which a thread stays ordinary after others kept it from running, at least and at most: twice as many each time, and
/// the least again once it has got on for some times as long as it last stayed ordinary.
const TICKS_KEPT: [u32; 2] = [8, 256];
const TIMES_GOOD: u32 = 4;

/// Ticks without any thread that yields until the watch rests. To wake it costs as much as several of them.
const TICKS_UNTIL_REST: u32 = 100;

/// What a thread is to the scheduler, as far as it and the watch have told each other.
const ORDINARY: u8 = 0;
/// About to yield, perhaps there already.
const CHANGING: u8 = 1;
const YIELDS: u8 = 2;
/// Ordinary until the watch says otherwise.
const KEPT: u8 = 3;

/// The threads of a session that may yield, and their watch.
#[derive(Default)]
pub(crate) struct Yielding {
    threads: Mutex<Vec<Watched>>,
    watch: Mutex<Watch>,
    change: Condvar,
}

#[derive(Default)]
struct Watch {
    ticks: bool,
    ended: bool,
}

/// A thread as the watch knows it.
struct Watched {
    thread: Arc<Thread>,
    /// What it had served at the last tick.
    served: u32,
    /// Ticks for which it still stays ordinary.
    kept: u32,
    /// Ticks for which it stayed ordinary last; none if it has got on since.
    last_kept: u32,
    /// Ticks for which it has got on.
    good: u32,
}

struct Thread {
    id: Pid,
    class: AtomicU8,
    served: AtomicU32,
}

/// The right of the thread that has it to yield; it is an ordinary thread once this is dropped.
pub(crate) struct Place<'a> {
    yielding: &'a Yielding,
    thread: Arc<Thread>,
}

impl Yielding {
    /// Whether threads of this process are ordinary ones and may become so again, which takes `CAP_SYS_NICE` or `RLIMIT_NICE`.
    pub(crate) fn is_possible() -> bool {
        let there_and_back = || {
            class_of(None) == libc::SCHED_OTHER
                && set_class(None, libc::SCHED_IDLE)
                && set_class(None, libc::SCHED_OTHER)
        };
        // A thread that cannot go back must not be one that is needed.
        std::thread::Builder::new().spawn(there_and_back).is_ok_and(|thread| thread.join().unwrap_or(false))
    }

    /// A place for this thread. Someone must be running [`watch`](Self::watch).
    pub(crate) fn place(&self) -> Place<'_> {
        let thread =
            Arc::new(Thread { id: gettid(), class: AtomicU8::new(ORDINARY), served: AtomicU32::new(0) });
        self.threads.lock().push(Watched {
            thread: thread.clone(),
            served: 0,
            kept: 0,
            last_kept: 0,
            good: 0,
        });
        Place { yielding: self, thread }
    }

    /// Looks after the threads until [`end`](Self::end), and for as long as there are any, on a machine of so many cores.
    pub(crate) fn watch(&self, cores: usize) {
        let mut quiet = 0;
        let mut machine = Machine::new(cores);
        let mut watch = self.watch.lock();
        while !watch.ended || !self.threads.lock().is_empty() {
            if !watch.ticks {
                quiet = 0;
                self.change.wait(&mut watch);
                continue;
            }
            self.change.wait_for(&mut watch, TICK);
            // Under its lock: who says from now on that it yields finds that it rests, and wakes it (YI-1).
            quiet = if self.tick(machine.look()) { 0 } else { quiet + 1 };
            watch.ticks = quiet < TICKS_UNTIL_REST;
        }
    }

    /// Ends the watch once all places have been dropped.
    pub(crate) fn end(&self) {
        self.watch.lock().ended = true;
        self.change.notify_one();
    }

    fn leave(&self, thread: Pid) {
        self.threads.lock().retain(|watched| watched.thread.id != thread);
        // The watch is at its ticks, or waits for this.
        let _watch = self.watch.lock();
        self.change.notify_one();
    }

    /// One look at all threads: whether any needs another one.
    fn tick(&self, load: Load) -> bool {
        let mut any = false;
        for watched in self.threads.lock().iter_mut() {
            any |= watched.look(load);
        }
        any
    }

    fn begin_to_watch(&self) {
        let mut watch = self.watch.lock();
        if !watch.ticks {
            watch.ticks = true;
            self.change.notify_one();
        }
    }
}

/// What has kept the cores busy since the last tick, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Nothing, or nothing that lasts.
    Light,
    /// Threads of this process.
    Own,
    /// More than there are cores for, of other programs.
    Crowd,
}

/// What the kernel tells of the load.
struct Machine {
    cores: usize,
    load: Option<File>,
    at: Duration,
    used: Duration,
    crowded: bool,
}

impl Machine {
    fn new(cores: usize) -> Self {
        let load = File::open("/proc/loadavg").ok();
        let (at, used) = (now(ClockId::Monotonic), now(ClockId::ProcessCPUTime));
        Self { cores, load, at, used, crowded: false }
    }

    /// The load since the last look.
    fn look(&mut self) -> Load {
        let (at, used) = (now(ClockId::Monotonic), now(ClockId::ProcessCPUTime));
        let is_own = 4 * (used - self.used) >= 3 * (at - self.at);
        (self.at, self.used) = (at, used);
        // Besides the watch, one who serves and who is served by it.
        let crowded = !is_own && self.running().is_some_and(|running| running > self.cores + 2);
        let was_crowded = std::mem::replace(&mut self.crowded, crowded);
        match is_own {
            true => Load::Own,
            false if crowded && was_crowded => Load::Crowd,
            false => Load::Light,
        }
    }

    /// How many threads of all programs run or wait for a core.
    fn running(&self) -> Option<usize> {
        let mut bytes = [0; 64];
        let length = self.load.as_ref()?.read_at(&mut bytes, 0).ok()?;
        // `0.20 0.18 0.12 1/80 11206`: the fourth, up to the slash.
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        text.split(' ').nth(3)?.split('/').next()?.parse().ok()
    }
}

fn now(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Watched {
    /// Makes the thread ordinary if it gets nothing done (YI-2), or there is a crowd (YI-3); whether it must be looked at again.
    fn look(&mut self, load: Load) -> bool {
        let served = self.thread.served.load(Relaxed);
        let gets_on = served != self.served;
        self.served = served;
        let [least, most] = TICKS_KEPT;
        let next = match self.thread.class.load(Acquire) {
            ORDINARY => return false,
            KEPT => {
                self.kept = if load == Load::Crowd { least } else { self.kept - 1 };
                if self.kept == 0 {
                    self.thread.class.store(ORDINARY, Release);
                }
                return true;
            }
            _ if load == Load::Crowd => {
                self.kept = least;
                KEPT
            }
            _ if gets_on => {
                self.good += 1;
                if self.good >= TIMES_GOOD * self.last_kept {
                    self.last_kept = 0;
                }
                return true;
            }
            _ if load != Load::Own && is_runnable(self.thread.id) => {
                self.kept = (2 * self.last_kept).clamp(least, most);
                self.last_kept = self.kept;
                self.good = 0;
                KEPT
            }
            _ => ORDINARY,
        };
        // One that is about to yield says itself that it does, and is looked at again.
        let _ = self.thread.class.compare_exchange(YIELDS, next, AcqRel, Relaxed);
        set_class(Some(self.thread.id), libc::SCHED_OTHER);
        true
    }
}

impl Place<'_> {
    /// Says that this thread has come to run and served what there was.
    pub(crate) fn served(&self) {
        self.thread.served.fetch_add(1, Relaxed);
    }

    /// Yields from now on, unless the watch is against it.
    pub(crate) fn give_way(&self) {
        let class = &self.thread.class;
        if class.load(Relaxed) == ORDINARY {
            class.store(CHANGING, Release);
            self.yielding.begin_to_watch();
            set_class(None, libc::SCHED_IDLE);
            class.store(YIELDS, Release);
        }
    }

    /// Yields no more for now.
    pub(crate) fn take_turn(&self) {
        let class = &self.thread.class;
        // The watch may be at the same; both make it an ordinary thread.
        if class.load(Relaxed) == YIELDS {
            set_class(None, libc::SCHED_OTHER);
            class.store(ORDINARY, Release);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Its number may soon be another thread's.
        self.yielding.leave(self.thread.id);
        set_class(None, libc::SCHED_OTHER);
    }
}

/// Makes this thread ordinary where those of this process are. For threads started by one that may yield: they inherit its class.
pub(crate) fn do_not_inherit() {
    if class_of(None) == libc::SCHED_IDLE && class_of(Some(rustix::process::getpid())) == libc::SCHED_OTHER {
        set_class(None, libc::SCHED_OTHER);
    }
}

/// The class of a thread, this one without a number.
fn class_of(thread: Option<Pid>) -> i32 {
    // SAFETY: it takes a number and gives one.
    unsafe { libc::sched_getscheduler(Pid::as_raw(thread)) }
}

/// Sets the class of a thread, this one without a number; whether that could be done.
fn set_class(thread: Option<Pid>, class: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it only reads the parameters, which live as long as the call.
    unsafe { libc::sched_setscheduler(Pid::as_raw(thread), class, &raw const parameters) == 0 }
}

/// Whether a thread of this process runs or could run.
fn is_runnable(thread: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state comes behind the name, which may hold anything.
    std::fs::read_to_string(path)
        .is_ok_and(|text| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn yields(thread: Option<Pid>) -> bool {
        class_of(thread) == libc::SCHED_IDLE
    }

    /// Where threads cannot go back to be ordinary ones there is nothing to test, which it says.
    fn may_yield(test: &str) -> bool {
        let may = Yielding::is_possible();
        assert!(may || !rustix::process::geteuid().is_root(), "root may do so");
        if !may {
            println!("SKIPPED {test}: it needs CAP_SYS_NICE");
        }
        may
    }

    #[test]
    fn a_thread_yields_as_long_as_it_gets_on() {
        if !may_yield("a_thread_yields_as_long_as_it_gets_on") {
            return;
        }
        let yielding = Yielding::default();
        let place = yielding.place();
        assert!(!yields(None));
        assert!(!yielding.tick(Load::Light), "nothing to look after");
        for _ in 0..3 {
            place.served();
            place.give_way();
            assert!(yields(None));
            assert!(yielding.tick(Load::Light));
        }
        place.take_turn();
        assert!(!yields(None));
        place.give_way();
        assert!(yields(None));
        drop(place);
        assert!(!yields(None));
        assert!(!yielding.tick(Load::Light));
    }

    /// A thread that sleeps while it yields might be kept from running when it is needed.
    #[test]
    fn a_thread_without_requests_becomes_ordinary_and_may_yield_again() {
        if !may_yield("a_thread_without_requests_becomes_ordinary_and_may_yield_again") {
            return;
        }
        let yielding = Yielding::default();
        let (tell, told) = std::sync::mpsc::channel();
        let (resume, resumed) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let yielding = &yielding;
            scope.spawn(move || {
                let place = yielding.place();
                place.give_way();
                tell.send(gettid()).unwrap();
                resumed.recv().unwrap();
                place.give_way();
                tell.send(gettid()).unwrap();
                resumed.recv().unwrap();
            });
            let thread = told.recv().unwrap();
            while !is_asleep(thread) {
                std::thread::yield_now();
            }
            assert!(yields(Some(thread)));
            yielding.tick(Load::Light);
            assert!(!yields(Some(thread)), "it had served nothing");
            resume.send(()).unwrap();
            told.recv().unwrap();
            assert!(yields(Some(thread)));
            resume.send(()).unwrap();
        });
    }

    fn is_asleep(thread: Pid) -> bool {
        !is_runnable(thread)
    }

    #[test]
    fn a_thread_that_was_kept_from_running_does_not_yield_for_a_while() {
        if !may_yield("a_thread_that_was_kept_from_running_does_not_yield_for_a_while") {
            return;
        }
        let yielding = Yielding::default();
        let go_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let (yielding, go_on) = (&yielding, &go_on);
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let place = yielding.place();
                place.give_way();
                tell.send(gettid()).unwrap();
                // It wants its core all the time, and tries all the time to yield.
                while go_on.load(Relaxed) {
                    place.give_way();
                }
            });
            let thread = told.recv().unwrap();
            assert!(yields(Some(thread)));
            let class = || yielding.threads.lock()[0].thread.class.load(Acquire);
            for ticks in [8, 16, 32, 64, 128, 256, 256] {
                for _ in 0..ticks {
                    assert!(yielding.tick(Load::Light));
                    assert!(!yields(Some(thread)), "it is kept ordinary");
                }
                yielding.tick(Load::Light);
                while class() != YIELDS {
                    std::thread::yield_now();
                }
            }
            // What works in the background soon sleeps.
            yielding.tick(Load::Own);
            while class() != YIELDS {
                std::thread::yield_now();
            }
            go_on.store(false, Relaxed);
        });
    }

    #[test]
    fn no_thread_yields_in_a_crowd() {
        if !may_yield("no_thread_yields_in_a_crowd") {
            return;
        }
        let yielding = Yielding::default();
        let place = yielding.place();
        for _ in 0..10 {
            place.served();
            place.give_way();
            assert!(yielding.tick(Load::Crowd));
            assert!(!yields(None), "not even one that gets on");
        }
        for _ in 0..TICKS_KEPT[0] {
            place.give_way();
            assert!(!yields(None));
            yielding.tick(Load::Light);
        }
        place.give_way();
        assert!(yields(None));
    }

    #[test]
    fn the_load_of_this_machine() {
        let mut machine = Machine::new(0);
        let running = machine.running().expect("Linux tells");
        assert!(running >= 1, "this thread runs");
        assert!(machine.look() != Load::Crowd, "a crowd is there twice");
    }

    #[test]
    fn threads_that_it_starts_are_ordinary() {
        if !may_yield("threads_that_it_starts_are_ordinary") {
            return;
        }
        let yielding = Yielding::default();
        let place = yielding.place();
        place.give_way();
        let class = std::thread::spawn(|| {
            let inherited = class_of(None);
            do_not_inherit();
            (inherited, class_of(None))
        });
        assert_eq!(class.join().unwrap(), (libc::SCHED_IDLE, libc::SCHED_OTHER));
    }

    #[test]
    fn the_watch_looks_when_it_is_needed_and_ends() {
        if !may_yield("the_watch_looks_when_it_is_needed_and_ends") {
            return;
        }
        let yielding = Yielding::default();
        std::thread::scope(|scope| {
            scope.spawn(|| yielding.watch(1));
            let place = yielding.place();
            for _ in 0..3 {
                place.give_way();
                while yields(None) {
                    std::thread::yield_now();
                }
                // Kept ordinary, since it was running; until the watch allows it again.
                while place.thread.class.load(Relaxed) != ORDINARY {
                    std::thread::yield_now();
                }
            }
            drop(place);
            yielding.end();
        });
    }
}
