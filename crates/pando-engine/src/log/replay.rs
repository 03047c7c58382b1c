//! Reads the log after a crash, in two passes.
//!
//! The first pass ([`Replay::find`]) walks from the checkpoint's position over all batches that are whole and
//! chained, gathers bindings, and decides where the log ends. The second ([`Replay::for_each`]) walks again
//! and hands out the records, with the values that late binding left out read from where the bindings say
//! (FAST16, 3). What is handed out is a copy: a key that a tree keeps does not keep what was read around it, and values are
//! all in memory at once only if the trees keep them.
//!
//! The log ends before the first batch that is not whole, or whose bound bytes are not (FMT-15): nothing in
//! or behind it was promised. If something was, namely if a later batch calls a record there durable, that is
//! damage (FMT-17). So is a batch that is whole, and holds what no writer writes (FMT-20), and one that goes on
//! in an epoch whose superblock is lost (FMT-22).
//!
//! A block that cannot be read is an error where a record might be that was promised: between the start and the hole, and at the hole. Elsewhere it
//! keeps nobody from opening the volume, whose next round of the log writes it anew; where it could have told of damage, that is said.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pando_device::{BLOCK_SIZE, Buffer, Device, ReadRequest, complain};
use pando_format::log_batch::{BATCH_HEADER_LENGTH, BatchHeader, decode_payload, open_batch};
use pando_format::log_record::{BoundPiece, LogRecord, LoggedOperation, RECORD_LENGTH_MAX};
use pando_format::{Extent, LogPosition, Region, VolumeId, stored_checksum};

use super::region::Circle;
use crate::copies::copy_for_device;
use crate::{Error, Lsn, Operation, Result};

/// After so many blocks that cannot be read nobody looks for more behind the hole.
const UNREADABLE_MAX: usize = 16;

/// Bytes read at once: few at first, for the log of a volume that was closed is empty, then ever more.
const FIRST_WINDOW_BYTES: u64 = 64 << 10;
const WINDOW_BYTES_MAX: u64 = 4 << 20;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// How far behind a hole a witness of damage is looked for: as far as the header behind the longest batch.
const WITNESS_BYTES: u64 = RECORD_LENGTH_MAX as u64 + 2 * BLOCK;

/// Which log to read, and from where: what the superblock says.
#[derive(Clone)]
pub(crate) struct LogSource {
    /// The device of the log, and of what its bindings name.
    pub device: Arc<dyn Device>,
    /// The log.
    pub region: Region,
    /// The volume it must belong to.
    pub volume: VolumeId,
    /// The epoch of the superblock. An opening for writing begins the next, with a checkpoint behind which nothing of this one is read again.
    pub epoch: u64,
    /// Where replay starts.
    pub start: LogPosition,
    /// Every record up to this one is in the trees already, and is skipped.
    pub cut: Lsn,
    /// True if the volume was closed with this checkpoint: nothing was promised behind it.
    pub closed: bool,
}

/// What was found in a log.
pub(crate) struct Replay {
    source: LogSource,
    bindings: HashMap<(Lsn, u32), Vec<BoundPiece>>,
    end: LogPosition,
    last: Lsn,
}

impl Replay {
    /// First pass: finds where the log ends.
    ///
    /// # Errors
    /// [`Error::Damaged`] if records are missing that were durable; [`Error::Device`] if the log cannot be
    /// read.
    pub fn find(source: LogSource) -> Result<Self> {
        let mut walk = Walk::new(&source);
        let mut bindings: HashMap<(Lsn, u32), Vec<BoundPiece>> = HashMap::new();
        // Batches with bound bytes that may have been lost together with the flush that should have kept
        // both.
        let mut doubtful: Vec<(End, BatchUnbound)> = Vec::new();
        let mut durable = source.cut;
        loop {
            let before = walk.end;
            let Some((header, records)) = walk.next()? else { break };
            durable = durable.max(header.durable_lsn);
            let mut unbound = Vec::new();
            for record in records {
                match record {
                    LogRecord::Binding(binding) => {
                        bindings.entry((binding.lsn, binding.operation)).or_default().extend(binding.pieces);
                    }
                    LogRecord::Operations { lsn, operations } if lsn > source.cut => {
                        unbound.extend(unbound_operations(lsn, &operations));
                    }
                    LogRecord::Operations { .. } => {}
                }
            }
            if !unbound.is_empty() {
                doubtful.push((before, unbound));
            }
        }
        let mut end = walk.end;
        if !walk.source.closed {
            walk.look_for_witness()?;
        }
        let mut replay = Self { bindings, end: end.position, last: end.last, source };
        replay.expect_apart()?;
        for (before, unbound) in doubtful {
            if unbound.iter().all(|(lsn, _, _)| *lsn <= durable) {
                continue;
            }
            match unbound
                .iter()
                .try_for_each(|(lsn, i, length)| replay.bound_bytes(*lsn, *i, *length).map(drop))
            {
                Ok(()) => {}
                Err(Error::Damaged { .. }) => {
                    end = before;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        (replay.end, replay.last) = (end.position, end.last);
        Ok(replay)
    }

    /// Where the next batch goes: [`super::redo_log::RedoLog::open`] takes it as tail.
    pub fn end(&self) -> LogPosition {
        self.end
    }

    /// The last record; the cut if there is none behind it.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Runs that late binding has left out of the log.
    pub fn bound_runs(&self) -> u64 {
        self.bindings.len() as u64
    }

    /// What the bindings of the log name: replay reads it, so it must stay in place until the next checkpoint is durable.
    pub fn bound_extents(&self) -> Vec<Extent> {
        // Records up to the cut are in the trees, and what their bindings name belongs to the block table already.
        let replayed = self.bindings.iter().filter(|((lsn, _), _)| *lsn > self.source.cut);
        replayed.flat_map(|(_, pieces)| pieces).map(|piece| piece.extent).collect()
    }

    /// Each place on the device has one owner (SP-2). Asked before anything is read: who names one place a thousand times would have it read as often.
    /// Those of batches that will turn out to lie behind the end are no exception: their places are reserved as well.
    fn expect_apart(&self) -> Result<()> {
        let mut extents = self.bound_extents();
        extents.sort_unstable_by_key(|extent| extent.offset);
        match extents.windows(2).find(|pair| pair[0].end() > pair[1].offset) {
            None => Ok(()),
            Some(pair) => Err(Error::Damaged {
                what: format!("the log binds {} and {}, which overlap", pair[0], pair[1]),
            }),
        }
    }

    /// Second pass: every record behind the cut, in LSN order, with all its bytes, in memory of its own.
    ///
    /// # Errors
    /// Those of `apply`; [`Error::Damaged`] if bytes that a durable record is bound to are not what was
    /// written.
    pub fn for_each(&self, mut apply: impl FnMut(Lsn, Vec<Operation>) -> Result<()>) -> Result<()> {
        let mut walk = Walk::new(&self.source);
        while walk.end.position != self.end {
            let Some((_, records)) = walk.next()? else {
                let what = "the log changed while it was replayed".to_owned();
                return Err(Error::Damaged { what });
            };
            for record in records {
                match record {
                    LogRecord::Operations { lsn, operations } if lsn > self.source.cut => {
                        let whole = (0..).zip(operations).map(|(i, operation)| self.whole(lsn, i, operation));
                        apply(lsn, whole.collect::<Result<_>>()?)?;
                    }
                    LogRecord::Operations { .. } | LogRecord::Binding(_) => {}
                }
            }
        }
        Ok(())
    }

    fn whole(&self, lsn: Lsn, i: u32, operation: LoggedOperation) -> Result<Operation> {
        Ok(match operation {
            LoggedOperation::Whole(mut operation) => {
                operation.bytes_mut().into_iter().for_each(|bytes| *bytes = copy_for_device(bytes));
                operation
            }
            LoggedOperation::UnboundPut { tree, key, length } => {
                let key = copy_for_device(&key);
                Operation::Put { tree, key, value: self.bound_bytes(lsn, i, length)? }
            }
            LoggedOperation::UnboundPutRun { tree, prefix, first, length } => {
                let prefix = copy_for_device(&prefix);
                Operation::PutRun { tree, prefix, first, bytes: self.bound_bytes(lsn, i, length)? }
            }
        })
    }

    /// The bytes that an operation left out.
    fn bound_bytes(&self, lsn: Lsn, i: u32, length: u32) -> Result<Bytes> {
        let damaged = |what: String| Error::Damaged {
            what: format!("the bytes of operation {i} of log record {}: {what}", lsn.0),
        };
        let mut pieces = self.bindings.get(&(lsn, i)).cloned().unwrap_or_default();
        pieces.sort_unstable_by_key(|piece| piece.start);
        // Before any is read: the length of the value bounds the memory that it takes.
        let bound: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        if bound != u64::from(length) {
            return Err(damaged(format!("{bound} of {length} are bound")));
        }
        let mut whole = BytesMut::new();
        let mut end = 0;
        for piece in &pieces {
            if u64::from(piece.start) != end {
                return Err(damaged(format!("a binding for byte {end} is missing")));
            }
            end += u64::from(piece.length);
            let mut request = [ReadRequest {
                offset: piece.extent.offset,
                buffer: Buffer::for_overwrite(piece.extent.length as usize),
            }];
            self.source.device.read(&mut request)?;
            let [request] = request;
            let bytes = piece.open(&request.buffer.freeze()).map_err(|error| damaged(error.to_string()))?;
            if pieces.len() == 1 {
                return Ok(bytes);
            }
            // Copied at once: what a piece was read from may be much longer than the piece.
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }
}

/// (record, operation, bytes) of the operations whose bytes a batch leaves out.
type BatchUnbound = Vec<(Lsn, u32, u32)>;

fn unbound_operations(lsn: Lsn, operations: &[LoggedOperation]) -> impl Iterator<Item = (Lsn, u32, u32)> {
    (0..).zip(operations).filter_map(move |(i, operation)| match operation {
        LoggedOperation::Whole(_) => None,
        LoggedOperation::UnboundPut { length, .. } | LoggedOperation::UnboundPutRun { length, .. } => {
            Some((lsn, i, *length))
        }
    })
}

/// How far a walk has come.
#[derive(Clone, Copy)]
struct End {
    position: LogPosition,
    last: Lsn,
    /// Bytes from the start.
    distance: u64,
}

/// Goes from batch to batch as long as they are whole and chained (LOG-3).
struct Walk<'a> {
    source: &'a LogSource,
    circle: Circle,
    end: End,
    /// LSN that the next batch must begin with; unknown before the first, which may begin before the cut.
    next_lsn: Option<Lsn>,
    /// Bytes read ahead, and their distance from the start.
    window: Bytes,
    window_at: u64,
    /// Up to this distance nothing is read ahead: a window that reached there could not be read.
    one_by_one_until: u64,
}

impl<'a> Walk<'a> {
    fn new(source: &'a LogSource) -> Self {
        let end = End { position: source.start, last: source.cut, distance: 0 };
        let circle = Circle::new(source.region);
        let window = Bytes::new();
        Self { source, circle, end, next_lsn: None, window, window_at: 0, one_by_one_until: 0 }
    }

    /// The next batch; `None` if there is none that can be believed.
    fn next(&mut self) -> Result<Option<(BatchHeader, Vec<LogRecord>)>> {
        let header = match self.header(self.end.distance) {
            Err(error) if self.source.closed && error.is_unreadable() => {
                // What a lost superblock (FMT-22) leaves here tells of it no more.
                complain(format_args!(
                    "{}: the log is taken to end where the volume was closed, at a block that cannot be read: {error}",
                    self.source.device.name()
                ));
                None
            }
            header => header?,
        };
        let Some(header) = header else { return Ok(None) };
        let LogPosition { sequence, chain, .. } = self.end.position;
        let follows = header.sequence == sequence && header.previous == chain;
        if !follows || header.epoch < self.source.epoch {
            return Ok(None);
        }
        self.check_epoch(&header)?;
        // Only whether a batch is whole tells where the log ends. One that is, and holds what no writer writes, was written so.
        let damaged =
            |error| Error::Damaged { what: format!("log batch {sequence} cannot be replayed: {error}") };
        header.check_length().map_err(damaged)?;
        if header.batch_length() > self.circle.length() - self.end.distance {
            return Ok(None);
        }
        let bytes = self.read(self.end.distance, header.batch_length())?;
        let Ok((header, payload)) = open_batch(&bytes) else { return Ok(None) };
        let records = decode_payload(&header, &payload).map_err(damaged)?;
        self.check_lsn(&header)?;
        let position = LogPosition {
            offset: self.circle.advance(self.end.position.offset, header.batch_length()),
            sequence: sequence + 1,
            chain: stored_checksum(&bytes[..BATCH_HEADER_LENGTH]),
        };
        self.next_lsn = Some(header.next_lsn());
        let last = Lsn(header.next_lsn().0 - 1).max(self.end.last);
        self.end = End { position, last, distance: self.end.distance + header.batch_length() };
        Ok(Some((header, records)))
    }

    /// FMT-22. A superblock of a batch's epoch was durable before the batch was written (LOG-3).
    fn check_epoch(&self, header: &BatchHeader) -> Result<()> {
        let (BatchHeader { epoch, sequence, .. }, newest) = (header, self.source.epoch);
        if *epoch == newest {
            return Ok(());
        }
        let what = format!(
            "log batch {sequence} is of epoch {epoch}, and the superblock of epoch {newest}: a newer one is lost"
        );
        Err(Error::Damaged { what })
    }

    /// LOG-2. A batch that is whole and chained and breaks it was written so, which no writer does.
    fn check_lsn(&self, header: &BatchHeader) -> Result<()> {
        let first = header.first_lsn;
        let fits = match self.next_lsn {
            Some(expected) => first == expected,
            None => first > Lsn(0) && first.0 - 1 <= self.source.cut.0,
        };
        if fits && header.next_lsn().0 > first.0 {
            return Ok(());
        }
        let expected = self.next_lsn.map_or(self.source.cut.0.saturating_add(1), |lsn| lsn.0);
        let what =
            format!("log batch {} begins with record {}, {expected} was expected", header.sequence, first.0);
        Err(Error::Damaged { what })
    }

    /// Reports damage if a batch behind the end calls durable what should be there (FMT-17).
    fn look_for_witness(&mut self) -> Result<()> {
        let hole = self.end;
        let limit = self.circle.length().min(hole.distance + WITNESS_BYTES);
        let mut unreadable = 0;
        for distance in (hole.distance + BLOCK..limit).step_by(BLOCK_SIZE) {
            let header = match self.header(distance) {
                Err(error) if error.is_unreadable() => {
                    unreadable += 1;
                    // A disk may take half a minute for each.
                    if unreadable == UNREADABLE_MAX {
                        break;
                    }
                    continue;
                }
                header => header?,
            };
            let Some(header) = header else { continue };
            let is_later = header.epoch == self.source.epoch && header.sequence > hole.position.sequence;
            if is_later && header.durable_lsn > hole.last {
                let (missing, durable) = (hole.last.0 + 1, header.durable_lsn.0);
                let what = format!(
                    "the log is damaged at byte {}: record {missing} is missing, but batch {} says that all up \
                     to {durable} was durable",
                    hole.position.offset, header.sequence
                );
                return Err(Error::Damaged { what });
            }
        }
        if unreadable > 0 {
            complain(format_args!(
                "{}: behind the end of the log, at record {}, blocks cannot be read that would tell if records are \
                 missing: {}{unreadable}",
                self.source.device.name(),
                hole.last.0,
                if unreadable == UNREADABLE_MAX { "at least " } else { "" }
            ));
        }
        Ok(())
    }

    /// The header of a batch of this log at a distance from the start, if there is one.
    fn header(&mut self, distance: u64) -> Result<Option<BatchHeader>> {
        if distance >= self.circle.length() {
            return Ok(None);
        }
        let block = self.read(distance, BLOCK)?;
        let header = BatchHeader::decode(&block).ok();
        Ok(header.filter(|header| header.volume == self.source.volume))
    }

    /// Bytes at a distance from the start, of which so many are left in this round.
    fn read(&mut self, distance: u64, length: u64) -> Result<Bytes> {
        let window_end = self.window_at + self.window.len() as u64;
        if distance < self.window_at || distance + length > window_end {
            let more = (2 * self.window.len() as u64).clamp(FIRST_WINDOW_BYTES, WINDOW_BYTES_MAX);
            let mut ahead = length.max(more).min(self.circle.length() - distance);
            if distance < self.one_by_one_until {
                ahead = length;
            }
            let offset = self.circle.advance(self.source.start.offset, distance);
            let read = |bytes| self.circle.read(&*self.source.device, offset, bytes as usize);
            self.window = match read(ahead) {
                Err(error) if error.is_unreadable() => {
                    self.one_by_one_until = self.one_by_one_until.max(distance + ahead);
                    // Once more if it was this alone: a bus or a controller may have erred.
                    read(length)?
                }
                window => window?,
            };
            self.window_at = distance;
        }
        let start = (distance - self.window_at) as usize;
        Ok(self.window.slice(start..start + length as usize))
    }
}
