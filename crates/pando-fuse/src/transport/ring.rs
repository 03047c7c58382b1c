//! Requests over io_uring: the kernel has a queue a core, and a request completes on the core that made it.
//!
//! A queue has several slots. A slot is lent to the kernel by a command; the command completes when a request lies in
//! the slot, and the next command takes the answer away and lends the slot again, in one system call with the answers
//! of all requests that came together. One thread serves a queue, stays on its core, and is the only one to use its ring:
//! what the pool answers is handed in to it. INIT, FORGET and notifications go over /dev/fuse all the same, and so does
//! everything if the kernel refuses the queues.
//!
//! Protocol: `fuse_uring_cmd_req` and `fuse_uring_req_header` of the kernel's `linux/fuse.h`, from Linux 6.14 on.
#![expect(unsafe_code, reason = "what the kernel is given to use must stay until it gives it back")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::ThreadId;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::slot::{Range, Slot};
use super::yielding::{Place, Yielding};
use super::{Device, Reply};
use crate::protocol::{Answer, Header, Malformed, Operation, fixed_bytes};
use crate::serve::Server;

/// Requests that a queue serves at once, at least and at most; further ones of its core wait in the kernel.
const SLOTS: [usize; 2] = [2, 8];

/// Slots of all queues, if that leaves the least for each: with long requests each comes to hold 1 MiB of memory.
const ALL_SLOTS: usize = 64;

/// Lends a slot for the first time.
const REGISTER: u32 = 1;

/// Takes an answer, and lends the slot again.
const COMMIT_AND_FETCH: u32 = 2;

/// The number of a queue that no machine has a core for.
const NO_QUEUE: u16 = u16::MAX;

/// Bytes from which on a read is long.
const MUCH: u32 = 128 << 10;

/// Marks the completion that says that the pool handed something in.
const WAKE: u64 = u64::MAX;

/// A queue, as those who answer its requests see it.
#[derive(Debug)]
pub(crate) struct Queue {
    answered: Mutex<Vec<(Slot, Option<Arc<AtomicBool>>)>>,
    wake: OwnedFd,
    server: ThreadId,
    /// Slots of the core itself.
    own: usize,
    /// The slots of requests that wait for a lock of the kernel's before they are answered, a bit each.
    kept: AtomicU64,
}

impl Queue {
    /// Whether a slot may be kept until a lock of the kernel's has been had: all but one of the core's own. Who holds the lock may be waiting
    /// for a slot.
    pub(super) fn keep(&self, slot: &Slot) -> bool {
        let bit = self.bit(slot);
        let one_more =
            |kept: u64| (bit != 0 && kept.count_ones() as usize + 1 < self.own).then_some(kept | bit);
        self.kept.fetch_update(AcqRel, Relaxed, one_more).is_ok()
    }

    /// Says that a slot goes back.
    pub(super) fn release(&self, slot: &Slot) {
        self.kept.fetch_and(!self.bit(slot), AcqRel);
    }

    /// None for a slot of a core that is not there.
    fn bit(&self, slot: &Slot) -> u64 {
        if slot.index() < self.own { 1 << slot.index() } else { 0 }
    }

    /// Takes a slot with its answer, and what is to be set when that is sent; from any thread, which then wakes the queue.
    pub(super) fn hand_in(&self, slot: Slot, sent: Option<Arc<AtomicBool>>) {
        self.answered.lock().push((slot, sent));
    }

    /// Has its thread give the kernel what was handed in.
    pub(super) fn wake(&self) {
        if std::thread::current().id() != self.server {
            // It fails only where 2^64 others are under way.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

type Ring = IoUring<Entry128, cqueue::Entry>;

/// A ring that belongs to the thread which enables it.
fn new_ring(entries: usize) -> io::Result<Ring> {
    let mut builder = Ring::builder();
    // Completions do not interrupt the thread where it computes, which comes for them soon. They do not wait for it (`setup_defer_taskrun`) either: a request that has come when it
    // was killed would stay on its way, even if the connection is aborted, until the ring goes with the last thread of the daemon.
    builder.setup_single_issuer().setup_coop_taskrun().setup_submit_all().setup_r_disabled();
    builder.build(entries as u32)
}

/// Submits what is there and waits for a completion; `Ok` without one if it is to be tried again.
fn enter(ring: &Ring) -> io::Result<()> {
    passing(ring.submit_and_wait(1))
}

/// Submits what is there, or leaves it to be submitted with the next.
fn submit(ring: &Ring) -> io::Result<()> {
    passing(ring.submit())
}

fn passing(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Err(error) if matches!(error.raw_os_error(), Some(code) if is_passing(code)) => Ok(()),
        entered => entered.map(drop),
    }
}

/// Sets what is to be set when answers are sent; see [`Reply::note_sent`].
fn say_sent(sent: &mut Vec<Arc<AtomicBool>>) {
    sent.drain(..).for_each(|sent| sent.store(true, Release));
}

/// The way back to /dev/fuse, once the kernel was promised queues: it holds all requests until each core has one, or one is refused.
pub(crate) struct WayBack {
    ring: Mutex<Ring>,
    is_taken: AtomicBool,
}

impl WayBack {
    /// Made before the promise, when failing is still harmless; it fails where this process may not have rings as they are needed here.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { ring: Mutex::new(new_ring(1)?), is_taken: AtomicBool::new(false) })
    }

    /// Has the kernel send requests over /dev/fuse, by asking for a queue that it must refuse; once, from any thread. Without effect if all
    /// cores have theirs, or it has refused one.
    pub(crate) fn take(&self, device: &Device) -> io::Result<()> {
        // Who receives there is to know before requests come.
        self.is_taken.store(true, Relaxed);
        let mut ring = self.ring.lock();
        ring.submitter().register_enable_rings()?;
        let entry = command(device.as_raw_fd(), REGISTER, NO_QUEUE, 0, None);
        // SAFETY: the command names no memory.
        unsafe { ring.submission().push(&entry) }.expect("the ring has an entry");
        loop {
            enter(&ring)?;
            let Some(completed) = ring.completion().next() else { continue };
            return match completed.result() {
                ..0 => Ok(()),
                _ => Err(io::Error::other("the kernel takes a queue that no core has")),
            };
        }
    }

    /// True if requests come over /dev/fuse after all.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Relaxed)
    }
}

/// The cores of the machine, each with the numbers of the queues that its thread serves: its own, and the first core
/// those of the cores that are not there but might be. `None` where sysfs does not tell.
pub(crate) fn cores() -> Option<Vec<Vec<u16>>> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok();
    let online = numbers(&read("online")?)?;
    let possible = numbers(&read("possible")?)?;
    // Numbers of queues are those of cores; the kernel counts how many are possible.
    let mut queues: Vec<Vec<u16>> = online.iter().map(|&core| vec![core]).collect();
    let absent = (0..possible.len() as u16).filter(|core| !online.contains(core));
    queues.first_mut()?.extend(absent);
    Some(queues)
}

/// `0-3,8` in full.
fn numbers(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

/// What serves the queues of one core.
struct Thread<'a> {
    ring: Ring,
    device: RawFd,
    server: &'a Server,
    queue: Arc<Queue>,
    /// The queue that a slot belongs to.
    queue_of: Vec<u16>,
    /// The slots that the kernel has (SL-1).
    lent: Vec<Option<Slot>>,
    slots: usize,
    /// If its thread may yield.
    place: Option<Place<'a>>,
    /// Whether many bytes were read since the last answers were given.
    much: Cell<bool>,
    callers: Callers,
}

/// Whether the requests of a core come from one caller, or from several by turns.
#[derive(Default)]
struct Callers {
    last: Cell<u32>,
    /// Rises by [`Callers::CHANGE`] with each request of another caller than the last, falls by one with each of the same.
    mixture: Cell<u32>,
}

impl Callers {
    const CHANGE: u32 = 4;
    /// From here on they are several.
    const SEVERAL: u32 = 16;
    /// After so many requests of one caller less [`Callers::SEVERAL`] it is one again, whatever was before.
    const MOST: u32 = 64;

    /// Counts a request of a thread.
    fn note(&self, caller: u32) {
        let mixture = self.mixture.get();
        let is_another = self.last.replace(caller) != caller;
        self.mixture.set(match is_another {
            true => (mixture + Self::CHANGE).min(Self::MOST),
            false => mixture.saturating_sub(1),
        });
    }

    fn are_several(&self) -> bool {
        self.mixture.get() >= Self::SEVERAL
    }
}

/// How many slots the queue of each of so many cores has.
fn slots_of_a_queue(cores: usize) -> usize {
    (ALL_SLOTS / cores).clamp(SLOTS[0], SLOTS[1])
}

/// Serves the queues of one of so many cores on this thread until the file system is unmounted. An error means that the kernel does
/// not want them, and goes on over /dev/fuse, or that they cannot be had: then it waits until that is told to it ([`WayBack`]).
pub(crate) fn serve_core(
    device: &Device,
    server: &Server,
    yielding: Option<&Yielding>,
    cores: usize,
    queues: &[u16],
) -> io::Result<()> {
    let core = queues.first().expect("a core has its own queue");
    let mut here = CpuSet::new();
    here.set(usize::from(*core));
    // Elsewhere it is slower, and works.
    let _ = rustix::thread::sched_setaffinity(None, &here);

    let own = slots_of_a_queue(cores);
    let queue_of: Vec<u16> = std::iter::repeat_n(*core, own).chain(queues[1..].iter().copied()).collect();
    let slots = queue_of.len();
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let server_thread = std::thread::current().id();
    let kept = AtomicU64::new(0);
    let queue = Queue { answered: Mutex::default(), wake, server: server_thread, own, kept };
    // One entry more, for what wakes it.
    let ring = new_ring((slots + 1).next_power_of_two())?;
    ring.submitter().register_enable_rings()?;
    let mut thread = Thread {
        ring,
        device: device.as_raw_fd(),
        server,
        queue: Arc::new(queue),
        queue_of,
        lent: Vec::new(),
        slots,
        place: yielding.map(Yielding::place),
        much: Cell::new(false),
        callers: Callers::default(),
    };
    thread.run()
}

impl Thread<'_> {
    fn run(&mut self) -> io::Result<()> {
        let slots = (0..self.slots).map(Slot::new).collect::<io::Result<Vec<_>>>()?;
        // The kernel reads them when the commands are submitted.
        let ranges: Vec<[Range; 2]> = slots.iter().map(Slot::ranges).collect();
        self.lent.resize_with(slots.len(), || None);
        self.wait_for_wake();
        for (slot, ranges) in slots.into_iter().zip(&ranges) {
            let index = slot.index();
            let mut entry = self.command(REGISTER, index, 0, Some(ranges.as_ptr() as u64));
            set_length(&mut entry, ranges.len() as u32);
            self.lend(slot, &entry);
        }
        let mut refused = Ok(());
        // Memory that the rounds share.
        let (mut completed, mut answered, mut sent) = (Vec::new(), Vec::new(), Vec::<Arc<AtomicBool>>::new());
        while self.slots > 0 {
            self.yield_or_not();
            say_sent(&mut sent);
            enter(&self.ring)?;
            completed.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
            let is_one = completed.len() == 1;
            for (number, result) in completed.drain(..) {
                if number == WAKE {
                    // Emptied first: what is handed in from now on wakes again.
                    let _ = rustix::io::read(&self.queue.wake, &mut [0u8; 8]);
                    self.wait_for_wake();
                    continue;
                }
                let slot = self.lent[number as usize].take().expect("the kernel gives back what it has");
                if result >= 0 {
                    self.serve(slot, is_one);
                    continue;
                }
                self.slots -= 1;
                let errno = Errno::from_raw_os_error(-result);
                // What the end of a connection looks like.
                if !matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
                    refused = Err(errno.into());
                }
            }
            std::mem::swap(&mut answered, &mut *self.queue.answered.lock());
            let are_several = answered.len() > 1;
            for (slot, to_set) in answered.drain(..) {
                sent.extend(to_set);
                let entry = self.command(COMMIT_AND_FETCH, slot.index(), slot.commit_id(), None);
                self.lend(slot, &entry);
            }
            if are_several && !sent.is_empty() {
                // The kernel takes one after the other, long ones too.
                submit(&self.ring)?;
                say_sent(&mut sent);
            }
        }
        refused
    }

    /// Gives way to those who are answered next. Not if they get much to copy: they had better do so on another core, while this one
    /// goes on with what the kernel reads ahead for them. Nor if they are several: the first to be answered would keep the others waiting
    /// for as long as it computes.
    fn yield_or_not(&self) {
        let Some(place) = &self.place else { return };
        place.served();
        match self.much.take() || self.callers.are_several() {
            true => place.take_turn(),
            false => place.give_way(),
        }
    }

    /// A command about a slot.
    fn command(&self, number: u32, index: usize, commit_id: u64, address: Option<u64>) -> Entry128 {
        command(self.device, number, self.queue_of[index], commit_id, address).user_data(index as u64)
    }

    fn lend(&mut self, slot: Slot, entry: &Entry128) {
        let index = slot.index();
        self.lent[index] = Some(slot);
        self.push(entry);
    }

    fn wait_for_wake(&mut self) {
        let readable = rustix::event::PollFlags::IN.bits();
        let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), readable.into());
        self.push(&Entry128::from(poll.build().user_data(WAKE)));
    }

    fn push(&mut self, entry: &Entry128) {
        // SAFETY: commands name memory of a slot, which stays in `lent` until its completion is seen, and ranges that live
        // as long as `run`, which submits them.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("there is an entry for each slot and one to wake");
    }

    fn serve(&self, slot: Slot, is_one: bool) {
        let Ok(header) = Header::alone(slot.header()) else { unreachable!("a slot has room for a header") };
        self.callers.note(header.pid);
        let operation = self.decode(&header, &slot);
        if matches!(operation, Ok(Operation::Read { size, .. }) if size >= MUCH) {
            self.much.set(true);
        }
        // Nobody's answer is kept back then, whatever this one waits for. Callers whom this process cannot see have no number.
        let is_to_only_caller = is_one && header.pid != 0 && !self.callers.are_several();
        if is_to_only_caller
            && operation.as_ref().is_ok_and(|operation| self.server.may_sync(operation))
            && let Some(place) = &self.place
        {
            // Others may come to wait for what it holds meanwhile.
            place.take_turn();
        }
        let reply = Reply::in_slot(self.queue.clone(), slot, header.unique, is_to_only_caller);
        match operation {
            Ok(operation) => self.server.serve(&header, operation, reply),
            Err(_) => reply.send(Answer::Refused(Errno::INVAL)),
        }
    }

    fn decode(&self, header: &Header, slot: &Slot) -> Result<Operation, Malformed> {
        let layout = self.server.layout();
        let fixed = &slot.fixed()[..fixed_bytes(header.opcode, layout)];
        Operation::decode(header, layout, fixed, slot.rest())
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        // After a failure the kernel may still have them: better lost than given away.
        self.lent.drain(..).for_each(std::mem::forget);
    }
}

/// A command about a queue.
fn command(device: RawFd, number: u32, queue: u16, commit_id: u64, address: Option<u64>) -> Entry128 {
    let mut arguments = [0; 80];
    arguments[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    arguments[16..18].copy_from_slice(&queue.to_ne_bytes());
    opcode::UringCmd80::new(types::Fd(device), number).cmd(arguments).addr(address).build()
}

/// Whether to enter the ring again after this error.
fn is_passing(code: i32) -> bool {
    matches!(Errno::from_raw_os_error(code), Errno::INTR | Errno::AGAIN | Errno::BUSY)
}

/// Sets the field of a command for which the crate has no name: how many ranges its address holds.
fn set_length(entry: &mut Entry128, length: u32) {
    const OFFSET: usize = 24;
    // SAFETY: an entry is the kernel's io_uring_sqe with 64 bytes behind it, where `len` has 4 bytes at this offset.
    unsafe { std::ptr::from_mut(entry).cast::<u8>().add(OFFSET).cast::<u32>().write(length) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clones that waited for the lock of a directory took all slots, and who held the lock waited for one.
    #[test]
    fn one_slot_is_left_by_those_who_wait_for_the_kernel() {
        let queue = |own| Queue {
            answered: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            server: std::thread::current().id(),
            own,
            kept: AtomicU64::new(0),
        };
        let [first, second] = [0, 1].map(|index| Slot::new(index).unwrap());
        let two = queue(2);
        assert!(two.keep(&first) && !two.keep(&second));
        two.release(&second);
        assert!(!two.keep(&second), "the first is still kept");
        two.release(&first);
        assert!(two.keep(&second));
        let three = queue(3);
        assert!(three.keep(&first) && three.keep(&second) && !three.keep(&Slot::new(2).unwrap()));
        assert!(!queue(1).keep(&first), "there is no other slot");
        assert!(!queue(1).keep(&second), "it is the only one of a core that is not there");
    }

    #[test]
    fn those_answered_together_wake_their_queue_once() {
        let server = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        let queue = || {
            let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            Arc::new(Queue { answered: Mutex::default(), wake, server, own: 8, kept: AtomicU64::new(0) })
        };
        let queues = [queue(), queue()];
        let reply = |number: usize| {
            Reply::in_slot(queues[number % 2].clone(), Slot::new(number).unwrap(), number as u64, false)
        };
        let wakes = |queue: &Queue| {
            let mut count = [0; 8];
            rustix::io::read(&queue.wake, &mut count).unwrap();
            u64::from_ne_bytes(count)
        };
        Reply::send_all((0..6).map(reply).collect(), &Answer::Done);
        for queue in &queues {
            assert_eq!((queue.answered.lock().len(), wakes(queue)), (3, 1));
        }
        (0..2).for_each(|number| reply(number).send(Answer::Done));
        assert_eq!(queues.each_ref().map(|queue| wakes(queue)), [1; 2]);
    }

    #[test]
    fn what_was_handed_in_has_not_been_sent() {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let server = std::thread::current().id();
        let queue =
            Arc::new(Queue { answered: Mutex::default(), wake, server, own: 8, kept: AtomicU64::new(0) });
        let is_sent = Arc::new(AtomicBool::new(false));
        let mut reply = Reply::in_slot(queue.clone(), Slot::new(0).unwrap(), 7, false);
        reply.note_sent(is_sent.clone());
        reply.send(Answer::Done);
        assert!(!is_sent.load(Relaxed));
        let (_slot, sent) = queue.answered.lock().pop().unwrap();
        let mut sent = Vec::from_iter(sent);
        say_sent(&mut sent);
        assert!(is_sent.load(Relaxed) && sent.is_empty());
    }

    #[test]
    fn one_caller_is_told_from_several() {
        let callers = Callers::default();
        let note = |all: &[u32]| all.iter().for_each(|caller| callers.note(*caller));
        note(&[7; 100]);
        assert!(!callers.are_several());
        note(&[8, 7]);
        assert!(!callers.are_several(), "a shell between two commands");
        for _ in 0..10 {
            note(&[7, 7, 7, 8]);
        }
        assert!(callers.are_several());
        note(&[7; 60]);
        assert!(!callers.are_several());
        for _ in 0..100 {
            note(&[7; 16]);
            note(&[8]);
        }
        assert!(!callers.are_several(), "one that does nearly all");
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(numbers("0\n"), Some(vec![0]));
        assert_eq!(numbers("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(numbers("none"), None);
    }

    #[test]
    fn many_cores_share_the_slots() {
        assert_eq!([1, 8, 16, 64].map(slots_of_a_queue), [8, 8, 4, 2]);
    }
}
