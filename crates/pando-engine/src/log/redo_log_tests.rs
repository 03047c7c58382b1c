//! Group commit, room and failures of the open log.

use std::sync::Arc;
use std::thread;

use pando_device::simulated::{Fault, SimulatedDevice};
use pando_device::{Device, DeviceError, Layer, MemoryDevice};
use pando_format::Region;
use parking_lot::{Condvar, Mutex};

use pando_format::log_record::Binding;

use super::batch::{Binder, InlineAll, LOG_START, OVERHEAD_BYTES_MAX, Record};
use super::late_binding::{BOUND_BYTES_MIN, BOUND_TOGETHER_MIN};
use super::redo_log::{NotQueued, RedoLog};
use crate::{Error, Lsn, Operation, Tree};

const BLOCK: u64 = 4096;
const REGION: Region = Region { device: 0, offset: 8192, length: 64 * 4096 };

pub(super) fn put(key: &str, length: usize) -> Record {
    let value = vec![key.as_bytes()[0]; length].into();
    Record::new(&[Operation::Put { tree: Tree::Data, key: key.to_owned().into(), value }])
}

fn log_on(device: Arc<dyn Device>) -> RedoLog {
    RedoLog::open(device, REGION, [7; 16], 1, LOG_START, LOG_START, Lsn(0)).expect("the device works")
}

/// A device whose flushes wait until they are let through, and are counted.
struct Gate {
    memory: MemoryDevice,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: usize,
    flushes: usize,
}

impl Gate {
    fn new() -> Self {
        let memory = MemoryDevice::new(REGION.end());
        Self { memory, state: Mutex::default(), changed: Condvar::new() }
    }

    fn close(&self) {
        self.state.lock().closed = true;
    }

    fn open(&self) {
        self.state.lock().closed = false;
        self.changed.notify_all();
    }

    fn wait_for_flush(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.waiting == 0);
    }

    fn flushes(&self) -> usize {
        self.state.lock().flushes
    }
}

impl Layer for Gate {
    fn below(&self) -> &dyn Device {
        &self.memory
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        state.flushes += 1;
        state.waiting += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.closed);
        state.waiting -= 1;
        Ok(())
    }
}

#[test]
fn all_who_wait_while_a_flush_is_under_way_share_the_next_one() {
    let gate = Arc::new(Gate::new());
    let log = log_on(gate.clone());
    let before = gate.flushes();
    gate.close();
    thread::scope(|scope| {
        log.append(Lsn(1), put("a", 10)).expect("there is room");
        let leader = scope.spawn(|| log.sync_to(Lsn(1), &InlineAll));
        gate.wait_for_flush();
        // Appending and writing out go on while the device flushes: no lock is held across it.
        for lsn in 2..=9 {
            log.append(Lsn(lsn), put("b", 10)).expect("there is room");
        }
        log.write_out(&InlineAll).expect("the device works");
        assert_eq!(log.queued_bytes(), 0);
        let followers: Vec<_> = (2..=9)
            .map(|lsn| {
                let log = &log;
                scope.spawn(move || log.sync_to(Lsn(lsn), &InlineAll))
            })
            .collect();
        gate.open();
        assert!(leader.join().expect("no panic").expect("the device works") >= Lsn(1));
        for follower in followers {
            assert_eq!(follower.join().expect("no panic"), Ok(Lsn(9)));
        }
    });
    assert_eq!(gate.flushes() - before, 2);
    assert_eq!(log.durable_lsn(), Lsn(9));
}

#[test]
fn little_waits_if_a_sync_is_only_a_small_write_and_a_flush() {
    let region = Region { length: 8 << 20, ..REGION };
    let gate = Arc::new(Gate { memory: MemoryDevice::new(region.end()), ..Gate::new() });
    let log = RedoLog::open(gate.clone(), region, [7; 16], 1, LOG_START, LOG_START, Lsn(0)).unwrap();
    assert!(log.little_waits());
    log.append(Lsn(1), put("a", 200_000)).unwrap();
    assert!(log.little_waits());
    log.append(Lsn(2), put("a", 200_000)).unwrap();
    assert!(!log.little_waits(), "much is to be written");
    gate.close();
    thread::scope(|scope| {
        let leader = scope.spawn(|| log.sync_to(Lsn(2), &InlineAll));
        gate.wait_for_flush();
        assert!(!log.little_waits(), "another flushes");
        gate.open();
        leader.join().unwrap().unwrap();
    });
    assert!(log.little_waits());
    let run = |length: usize| {
        let (prefix, bytes) = ("file".into(), vec![1; length].into());
        Record::new(&[Operation::PutRun { tree: Tree::Data, prefix, first: 0, bytes }])
    };
    log.append(Lsn(3), run(BOUND_BYTES_MIN)).unwrap();
    assert!(log.little_waits(), "too little for leaves");
    log.append(Lsn(4), run(BOUND_TOGETHER_MIN)).unwrap();
    assert!(!log.little_waits(), "what goes straight to leaves");
}

#[test]
fn who_waits_for_a_flush_has_its_record_written_meanwhile() {
    let gate = Arc::new(Gate::new());
    let log = log_on(gate.clone());
    let before = gate.flushes();
    gate.close();
    thread::scope(|scope| {
        log.append(Lsn(1), put("a", 10)).expect("there is room");
        let leader = scope.spawn(|| log.sync_to(Lsn(1), &InlineAll));
        gate.wait_for_flush();
        log.append(Lsn(2), put("b", 10)).expect("there is room");
        let follower = scope.spawn(|| log.sync_to(Lsn(2), &InlineAll));
        while log.queued_bytes() > 0 {
            thread::yield_now();
        }
        assert_eq!((gate.flushes() - before, log.durable_lsn()), (1, Lsn(0)), "it is not durable by that");
        gate.open();
        assert_eq!(leader.join().expect("no panic"), Ok(Lsn(1)), "it was written after the flush had begun");
        assert_eq!(follower.join().expect("no panic"), Ok(Lsn(2)));
    });
    assert_eq!(gate.flushes() - before, 2);
}

#[test]
fn a_sync_of_what_is_durable_does_not_touch_the_device() {
    let gate = Arc::new(Gate::new());
    let log = log_on(gate.clone());
    log.append(Lsn(1), put("a", 10)).expect("there is room");
    assert_eq!(log.sync_to(Lsn(1), &InlineAll), Ok(Lsn(1)));
    let flushes = gate.flushes();
    assert_eq!(log.sync_to(Lsn(1), &InlineAll), Ok(Lsn(1)));
    assert_eq!(log.sync_to(Lsn(99), &InlineAll), Ok(Lsn(1)), "nothing behind the last record is waited for");
    assert_eq!(gate.flushes(), flushes);
}

#[test]
fn threads_that_append_and_sync_are_all_served() {
    let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
    let sequencer = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let lsn = {
                        let mut last = sequencer.lock();
                        if !log.room_for(put("k", 100).bytes()) {
                            let position = log.cut();
                            log.reclaim(position);
                        }
                        assert!(log.room_for(put("k", 100).bytes()), "{} bytes used", log.used_bytes());
                        *last += 1;
                        log.append(Lsn(*last), put("k", 100)).expect("there is room");
                        Lsn(*last)
                    };
                    assert!(log.sync_to(lsn, &InlineAll).expect("the device works") >= lsn);
                }
            });
        }
    });
    assert_eq!(log.durable_lsn(), Lsn(400));
}

/// The n-th I/O fails, for each n: the call that needed it and all later ones say so, and name the first
/// cause.
#[test]
fn a_failed_write_or_flush_poisons_the_log() {
    for n in 0..4 {
        let device = Arc::new(SimulatedDevice::new(REGION.end()));
        let log = log_on(device.clone());
        device.set_fault(Fault::At(device.io_count() + n));
        let mut results = Vec::new();
        for lsn in 1..=2 {
            let queued = log.append(Lsn(lsn), put("a", 10)).is_ok();
            results.push(queued && log.sync_to(Lsn(lsn), &InlineAll).is_ok());
        }
        // A write and a flush each: the first sync does I/Os 0 and 1.
        assert_eq!(results, [n >= 2, false], "I/O {n}");
        assert_eq!(device.failed_count(), 1);
        let why = match log.append(Lsn(3), put("a", 10)) {
            Err(NotQueued::Failed(Error::ReadOnly { why })) => why,
            other => panic!("I/O {n}: {other:?}"),
        };
        assert!(why.contains("simulated device"), "{why}");
        assert_eq!(log.write_out(&InlineAll), Err(Error::ReadOnly { why: why.clone() }));
        assert_eq!(log.sync_to(Lsn(1), &InlineAll), Err(Error::ReadOnly { why }));
        assert_eq!(log.durable_lsn(), Lsn(if n >= 2 { 1 } else { 0 }));
    }
}

/// As long as `room_for` says yes, everything finds its place, whatever the sizes and the moments of writing
/// out; when it says no, nothing but a reclaim helps.
#[test]
fn what_there_is_room_for_can_be_written() {
    for every in [1, 2, 5, 1000] {
        let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
        let mut lsn = 0;
        for size in (0..).map(|n: u64| (n * 7919 % 12_000) as usize) {
            let record = put("k", size);
            if !log.room_for(record.bytes()) {
                break;
            }
            lsn += 1;
            log.append(Lsn(lsn), record).expect("there is room");
            if lsn % every == 0 {
                log.write_out(&InlineAll).expect("the device works");
            }
        }
        log.write_out(&InlineAll).expect("the device works");
        assert!(log.used_bytes() <= log.capacity());
        assert!(log.used_bytes() > log.capacity() / 2, "{} bytes used", log.used_bytes());
        assert!(!log.room_for(log.capacity() / 2));
        let position = log.cut();
        log.reclaim(position);
        assert_eq!(log.used_bytes(), 0);
    }
}

/// Who asked first whether there was room, and appended then, had reckoned with one batch for what was queued and its own. If that was taken off in between,
/// there were two, each with a header and padding of its own, and the last one was written over what a recovery would read, or would have been: the log asserts that it is not.
#[test]
fn a_record_whose_batch_has_left_without_it_needs_more_room() {
    let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
    while log.capacity() - log.used_bytes() > 3 * BLOCK {
        log.append(Lsn(log.appended_lsn().0 + 1), put("k", 10)).expect("there is room");
        log.write_out(&InlineAll).expect("the device works");
    }
    // Two of them and a header fit into three blocks; each alone, with a header, takes two.
    let record = || put("k", 4000);
    assert!(record().bytes() + 128 > BLOCK && 2 * record().bytes() + OVERHEAD_BYTES_MAX <= 3 * BLOCK);
    log.append(Lsn(log.appended_lsn().0 + 1), record()).expect("there is room");
    assert!(log.room_for(record().bytes()));
    log.write_out(&InlineAll).expect("the device works");
    let refused = log.append(Lsn(log.appended_lsn().0 + 1), record());
    assert!(matches!(refused, Err(NotQueued::NoRoom(_))), "{refused:?}");
}

/// Always finds the first record alone worth writing now.
struct OneByOne;

impl Binder for OneByOne {
    fn bind(&self, _first: Lsn, _records: &[Record]) -> crate::Result<Vec<Binding>> {
        Ok(Vec::new())
    }

    fn ripe(&self, _records: &[Record]) -> usize {
        1
    }
}

/// Each batch has a header and padding of its own: a queue that is cut into more of them than was reckoned with took more than there was room for.
#[test]
fn what_there_is_room_for_can_be_written_however_it_is_cut() {
    for size in [1, 100, 1000] {
        let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
        let mut lsn = 0;
        loop {
            let record = put("k", size);
            if !log.room_for(record.bytes()) {
                break;
            }
            lsn += 1;
            log.append(Lsn(lsn), record).expect("there is room");
        }
        log.write_ripe(&OneByOne).expect("the device works");
        log.write_out(&OneByOne).expect("the device works");
        assert!(log.used_bytes() <= log.capacity());
    }
}

/// A stream: with each batch that is written comes another record, and the last one of a batch is not ripe.
struct Stream<'a> {
    log: &'a RedoLog,
    last: Mutex<u64>,
}

impl Stream<'_> {
    fn append(&self) {
        let mut last = self.last.lock();
        *last += 1;
        self.log.append(Lsn(*last), put("k", 9_000)).expect("there is room");
    }
}

impl Binder for Stream<'_> {
    fn bind(&self, _first: Lsn, _records: &[Record]) -> crate::Result<Vec<Binding>> {
        if *self.last.lock() < 20 {
            self.append();
        }
        Ok(Vec::new())
    }

    fn ripe(&self, records: &[Record]) -> usize {
        records.len() - 1
    }
}

#[test]
fn only_what_is_ripe_is_written_of_a_stream_and_the_caller_comes_back() {
    let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
    let stream = Stream { log: &log, last: Mutex::new(0) };
    (0..3).for_each(|_| stream.append());
    assert!(log.wants_write_out());
    log.write_ripe(&stream).expect("the device works");
    // Two were ripe. The third waits with one that has come since, which is too little to go on.
    assert!(!log.wants_write_out());
    assert_eq!((log.queued_bytes(), *stream.last.lock()), (2 * put("k", 9_000).bytes(), 4));
    // However fast they come, what was not there when it was called is left for the next call.
    (0..2).for_each(|_| stream.append());
    log.write_ripe(&Always(&stream)).expect("the device works");
    assert_eq!(*stream.last.lock(), 12, "two batches of three, and as many that came");
    log.write_out(&InlineAll).expect("the device works");
    assert_eq!(log.queued_bytes(), 0);
    assert_eq!(log.sync_to(Lsn(u64::MAX), &InlineAll), Ok(Lsn(*stream.last.lock())));
}

/// A stream that brings more than is written.
struct Always<'a>(&'a Stream<'a>);

impl Binder for Always<'_> {
    fn bind(&self, _first: Lsn, records: &[Record]) -> crate::Result<Vec<Binding>> {
        for _ in records {
            if *self.0.last.lock() < 20 {
                self.0.append();
            }
        }
        Ok(Vec::new())
    }
}

#[test]
fn a_record_the_log_could_never_take_is_refused() {
    let log = log_on(Arc::new(MemoryDevice::new(REGION.end())));
    let record = put("k", REGION.length as usize);
    assert!(matches!(log.append(Lsn(1), record), Err(NotQueued::Failed(Error::TooLarge { .. }))));
    log.append(Lsn(1), put("k", 1)).expect("there is room");
}
