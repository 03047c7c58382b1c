//! The log while the volume is open: queue, write-out, group commit.
//!
//! A caller of [`RedoLog::sync_to`] whose record is not durable writes out what is queued, and flushes. Who comes meanwhile writes out what
//! that one did not, waits for the flush, and makes the next if it must; the others that wait then share it.
//! Writing out and flushing are each done by one thread at a time, marked by a flag, not by a lock held
//! across I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use pando_device::Device;
use pando_format::log_record::RECORD_LENGTH_MAX;
use pando_format::{LogPosition, Region, VolumeId};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::batch::{self, BATCH_BYTES_MAX, Binder, Record, Stamp};
use super::late_binding::BOUND_TOGETHER_MIN;
use super::region::Circle;
use crate::{Error, Lsn, Result};

/// Queued bytes, without what late binding may leave out, from which the background should write.
const WRITE_OUT_BYTES: u64 = 1 << 20;

/// Bytes that take about as long to write as the flush behind them: 0.1 to 0.5 ms.
const LITTLE_BYTES: u64 = 256 << 10;

/// The log of an open volume.
pub(crate) struct RedoLog {
    device: Arc<dyn Device>,
    circle: Circle,
    volume: VolumeId,
    epoch: u64,
    state: Mutex<State>,
    /// Notified whenever `writing` or `flushing` falls.
    changed: Condvar,
}

/// Why a record was not queued.
#[derive(Debug)]
pub(crate) enum NotQueued {
    /// There is no room for it now, and here it is.
    NoRoom(Record),
    /// [`Error::ReadOnly`] once a write or flush has failed, or it was closed; [`Error::TooLarge`] if the log could never take it.
    Failed(Error),
}

struct State {
    /// The records behind `taken`.
    queue: VecDeque<Record>,
    /// Most bytes that the records in the queue take in a batch.
    queued_bytes: u64,
    /// Those of them that late binding may leave out.
    bindable_bytes: u64,
    /// Most bytes that the batch being written now takes, padding included.
    in_flight_bytes: u64,
    /// The oldest batch that a recovery would read.
    head: LogPosition,
    /// Where the batch that is being written, or else the next one, begins.
    tail: LogPosition,
    /// Bytes of all batches written since the log was opened.
    written_bytes: u64,
    /// The last record that was queued.
    appended: Lsn,
    /// The last record that left the queue.
    taken: Lsn,
    /// The last record that was written.
    written: Lsn,
    /// The last record that was written when a flush began that has succeeded.
    durable: Lsn,
    writing: bool,
    flushing: bool,
    /// Why nothing is accepted any more (LOG-4).
    poison: Option<String>,
    /// What was accepted before is still written.
    closed: bool,
}

impl RedoLog {
    /// Opens the log for appending at `tail`, behind everything that replay returned, which reaches up to
    /// `last`. `head` is where a recovery would begin to read now. Flushes the device: after a kill of the
    /// process, what replay has read may not be durable yet.
    ///
    /// The epoch must be greater than that of any batch in the region, and be durable in the superblock
    /// before the first append (LOG-3).
    ///
    /// # Errors
    /// That of the flush.
    pub fn open(
        device: Arc<dyn Device>,
        region: Region,
        volume: VolumeId,
        epoch: u64,
        head: LogPosition,
        tail: LogPosition,
        last: Lsn,
    ) -> Result<Self> {
        device.flush()?;
        let state = State {
            queue: VecDeque::new(),
            queued_bytes: 0,
            bindable_bytes: 0,
            in_flight_bytes: 0,
            head,
            tail,
            written_bytes: 0,
            appended: last,
            taken: last,
            written: last,
            durable: last,
            writing: false,
            flushing: false,
            poison: None,
            closed: false,
        };
        Ok(Self {
            device,
            circle: Circle::new(region),
            volume,
            epoch,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Queues a record, if there is room. Cheap: nothing is encoded or copied. The caller holds the sequencer, so that LSNs come in order.
    ///
    /// Whether there is room is looked at in the same hold of the lock: what is queued may be taken off at any time, and is a batch of its own then,
    /// with a header and padding that it might have shared.
    ///
    /// # Errors
    /// [`NotQueued`] says which.
    ///
    /// # Panics
    /// If `lsn` does not follow the last one (LOG-2).
    pub fn append(&self, lsn: Lsn, record: Record) -> std::result::Result<(), NotQueued> {
        if record.bytes() > self.record_bytes_max() {
            return Err(NotQueued::Failed(Error::TooLarge { what: "a batch of operations" }));
        }
        let mut state = self.state.lock();
        state.check().map_err(NotQueued::Failed)?;
        if state.closed {
            return Err(NotQueued::Failed(Error::ReadOnly { why: "it was closed".to_owned() }));
        }
        if self.used_if_queued(&state, record.bytes(), 0) > self.circle.length() {
            return Err(NotQueued::NoRoom(record));
        }
        assert_eq!(lsn.0, state.appended.0 + 1, "LOG-2: records come in order");
        state.appended = lsn;
        state.queued_bytes += record.bytes();
        state.bindable_bytes += record.bindable_bytes();
        state.queue.push_back(record);
        Ok(())
    }

    /// Writes what was queued when it was called, without a flush.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if a write or flush has failed, now or before.
    pub fn write_out(&self, binder: &dyn Binder) -> Result<()> {
        let mut state = self.state.lock();
        let target = state.appended;
        loop {
            state.check()?;
            if state.written >= target {
                return Ok(());
            }
            if state.writing {
                self.changed.wait(&mut state);
                continue;
            }
            state = self.write_batch(state, binder, false)?;
        }
    }

    /// Writes what had piled up when it was called, as long as [`RedoLog::wants_write_out`], but for the last records if they are better
    /// written with those that will follow them. Returns at once if somebody else is writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if a write or flush has failed, now or before.
    pub fn write_ripe(&self, binder: &dyn Binder) -> Result<()> {
        let mut state = self.state.lock();
        // A stream may come as fast as it is written: it must not keep the caller from the next sync.
        let target = state.appended;
        while !state.writing && state.written < target && self.is_piled_up(&state) {
            state.check()?;
            state = self.write_batch(state, binder, true)?;
        }
        state.check()
    }

    /// Makes the log durable at least up to `lsn`, or up to the last record if that is less. Returns how far
    /// it is. Concurrent callers share a flush.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if a write or flush has failed, now or before, even if the record had become
    /// durable.
    pub fn sync_to(&self, lsn: Lsn, binder: &dyn Binder) -> Result<Lsn> {
        let mut state = self.state.lock();
        let target = lsn.min(state.appended);
        loop {
            state.check()?;
            if state.durable >= target {
                return Ok(state.durable);
            }
            if state.written < target && !state.writing {
                state = self.write_batch(state, binder, false)?;
                continue;
            }
            if state.written < target || state.flushing {
                self.changed.wait(&mut state);
                continue;
            }
            state.flushing = true;
            let written = state.written;
            drop(state);
            let flushed = {
                let _at_work = AtWork(self);
                self.device.flush()
            };
            state = self.state.lock();
            state.flushing = false;
            match flushed {
                Ok(()) => state.durable = state.durable.max(written),
                Err(error) => state.poison(&error.into()),
            }
            self.changed.notify_all();
        }
    }

    /// Takes records off the queue and writes them as one batch; only the ripe ones, if so wanted.
    fn write_batch<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        binder: &dyn Binder,
        ripe_only: bool,
    ) -> Result<MutexGuard<'a, State>> {
        let (head, position, durable) = (state.head, state.tail, state.durable);
        let first = Lsn(state.taken.0 + 1);
        let mut records = state.take(self.batch_bytes_max());
        state.writing = true;
        if ripe_only {
            drop(state);
            let ripe = {
                let _at_work = AtWork(self);
                binder.ripe(&records).max(1)
            };
            state = self.state.lock();
            if state.poison.is_some() {
                state.writing = false;
                state.in_flight_bytes = 0;
                self.changed.notify_all();
                state.check()?;
            }
            let ripe = ripe.min(records.len());
            let waiting = records[ripe..].iter().map(Record::bytes).sum();
            // A batch more than was reckoned with takes a header and padding of its own.
            if self.used_if_queued(&state, 0, waiting) <= self.circle.length() {
                state.put_back(records.drain(ripe..));
            }
        }
        let last = Lsn(first.0 + records.len() as u64 - 1);
        drop(state);
        let stamp = Stamp { volume: self.volume, epoch: self.epoch, position, first, durable };
        let at_work = AtWork(self);
        let result = binder.bind(first, &records).and_then(|bindings| {
            let (bytes, sequence, chain) = batch::encode(&stamp, records, bindings);
            let used = self.circle.distance(head, position) + bytes.len() as u64;
            assert!(used <= self.circle.length(), "LOG-1: a batch overwrites what a recovery would read");
            self.circle.write(&*self.device, position.offset, &bytes)?;
            Ok(LogPosition {
                offset: self.circle.advance(position.offset, bytes.len() as u64),
                sequence,
                chain,
            })
        });
        drop(at_work);
        let mut state = self.state.lock();
        state.writing = false;
        state.in_flight_bytes = 0;
        let result = match result {
            Ok(tail) => {
                state.written_bytes += self.circle.distance(state.tail, tail);
                state.tail = tail;
                state.written = last;
                binder.written();
                Ok(())
            }
            Err(error) => {
                state.poison(&error);
                state.check()
            }
        };
        self.changed.notify_all();
        result.map(|()| state)
    }

    /// Where a replay must begin to find every record that is not yet appended. It may find older ones as
    /// well, and skips them by LSN: what is queued or being written at the cut is behind this position. The
    /// caller holds the sequencer.
    pub fn cut(&self) -> LogPosition {
        self.state.lock().tail
    }

    /// Takes no records any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Lets go of everything before the position of a cut whose checkpoint is durable.
    ///
    /// # Panics
    /// If the position is not one of a cut made since the last reclaim.
    pub fn reclaim(&self, position: LogPosition) {
        let mut state = self.state.lock();
        let ahead = (state.head.sequence..=state.tail.sequence).contains(&position.sequence);
        assert!(ahead, "LOG-1: only what is written, and was not before, is reclaimed");
        state.head = position;
    }

    /// True if records of so many bytes in all can be appended now. The queue is counted with what it takes
    /// at worst, so that everything queued can always be written.
    pub fn room_for(&self, bytes: u64) -> bool {
        self.used_with(bytes) <= self.circle.length()
    }

    /// Bytes of the largest record that the log takes.
    pub fn record_bytes_max(&self) -> u64 {
        (self.circle.length() / 4).min(RECORD_LENGTH_MAX as u64)
    }

    /// The last record that survives a crash.
    pub fn durable_lsn(&self) -> Lsn {
        self.state.lock().durable
    }

    /// The last record that was appended.
    pub fn appended_lsn(&self) -> Lsn {
        self.state.lock().appended
    }

    /// True if enough waits to be written that [`RedoLog::write_ripe`] should be called: as much as makes a good write, or, of
    /// runs that late binding may leave out, as much as makes full leaves.
    pub fn wants_write_out(&self) -> bool {
        self.is_piled_up(&self.state.lock())
    }

    fn is_piled_up(&self, state: &State) -> bool {
        state.queued_bytes - state.bindable_bytes >= WRITE_OUT_BYTES
            || state.queued_bytes >= self.batch_bytes_max() / 4 * 3
    }

    /// True if a sync now would write little, and nothing but the log, and would not have to wait for another's write or flush first.
    pub fn little_waits(&self) -> bool {
        let state = self.state.lock();
        // What late binding leaves out goes to leaves, and waits for nodes that leave the cache.
        let is_idle = !state.writing && !state.flushing;
        is_idle && state.bindable_bytes < BOUND_TOGETHER_MIN as u64 && state.queued_bytes <= LITTLE_BYTES
    }

    /// Why nothing can be appended any more, if a write or a flush has failed.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().poison.clone()
    }

    /// Acknowledges nothing any more, and tells all who wait: whoever was writing may never come to an end.
    pub fn fail(&self, why: &str) {
        self.state.lock().fail(why.to_owned());
        self.changed.notify_all();
    }

    /// Bytes that wait to be written.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> u64 {
        self.state.lock().queued_bytes
    }

    fn batch_bytes_max(&self) -> u64 {
        BATCH_BYTES_MAX.min(self.circle.length() / 8)
    }

    /// Bytes of the region that cannot be written now, the queue included at its worst.
    pub fn used_bytes(&self) -> u64 {
        self.used_with(0)
    }

    /// Bytes as [`RedoLog::used_bytes`] tells them, and of the records that are not written yet.
    pub fn load(&self) -> (u64, u64) {
        let state = self.state.lock();
        (self.used_if_queued(&state, 0, 0), state.queued_bytes + state.in_flight_bytes)
    }

    /// Bytes that may wait where so many are allowed, for a writer that is faster than the device: enough for the next batch to gather while
    /// one is written.
    pub fn waiting_bytes_max(&self, allowed: u64) -> u64 {
        allowed.max(2 * self.batch_bytes_max())
    }

    /// Bytes of all batches written since the volume was opened.
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// The epoch of this opening of the volume.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes of the region.
    pub fn capacity(&self) -> u64 {
        self.circle.length()
    }

    /// Bytes used if `more` were queued. Two batches in a row have more records than one can take, which
    /// bounds how many batches, and how much padding, a queue becomes.
    fn used_with(&self, more: u64) -> u64 {
        self.used_if_queued(&self.state.lock(), more, 0)
    }

    /// The same if `back` bytes of the batch that is being written, whose header is counted there, were queued again.
    fn used_if_queued(&self, state: &State, more: u64, back: u64) -> u64 {
        let queued = state.queued_bytes + more + back;
        let batches = if queued == 0 { 0 } else { 2 * queued / self.batch_bytes_max() + 1 };
        let written = self.circle.distance(state.head, state.tail) + state.in_flight_bytes - back;
        written + queued + batches * batch::OVERHEAD_BYTES_MAX
    }
}

/// Held by whoever works for the log without its lock, a thread of the engine's own or one that syncs. If it panics, nobody will say that its
/// work is done: the log fails, and all who wait for that are told.
struct AtWork<'a>(&'a RedoLog);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            self.0.fail(&format!(
                "the thread {} panicked while it wrote the log",
                thread.name().unwrap_or("of a caller")
            ));
        }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.poison {
            Some(why) => Err(Error::ReadOnly { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers the first failure; what follows from it is not news.
    fn poison(&mut self, error: &Error) {
        self.fail(format!("the log could not be written: {error}"));
    }

    fn fail(&mut self, why: String) {
        if self.poison.is_none() {
            self.poison = Some(why);
            self.queue.clear();
            self.queued_bytes = 0;
            self.bindable_bytes = 0;
        }
    }

    /// The records of the next batch: as many as it holds, at least one.
    fn take(&mut self, bytes_max: u64) -> Vec<Record> {
        let mut bytes = 0;
        let (mut count, mut bindable) = (0, 0);
        for record in &self.queue {
            if count > 0 && bytes + record.bytes() > bytes_max {
                break;
            }
            bytes += record.bytes();
            bindable += record.bindable_bytes();
            count += 1;
        }
        self.queued_bytes -= bytes;
        self.bindable_bytes -= bindable;
        self.in_flight_bytes = bytes + batch::OVERHEAD_BYTES_MAX;
        self.taken = Lsn(self.taken.0 + count as u64);
        self.queue.drain(..count).collect()
    }

    /// Undoes the last [`State::take`] for the last of its records. Nobody takes others meanwhile, since `writing` is set.
    fn put_back(&mut self, records: impl DoubleEndedIterator<Item = Record>) {
        for record in records.rev() {
            self.queued_bytes += record.bytes();
            self.bindable_bytes += record.bindable_bytes();
            self.in_flight_bytes -= record.bytes();
            self.taken.0 -= 1;
            self.queue.push_front(record);
        }
    }
}
