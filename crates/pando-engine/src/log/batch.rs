//! From records to the bytes of a batch, and the hook of late binding.

use std::collections::HashMap;

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, Buffer};
use pando_format::log_batch::{BATCH_HEADER_LENGTH, BatchHeader, batch_length, encode_batch};
use pando_format::log_record::{
    Binding, EncodedRecord, encode_binding, encode_record, encode_record_unbound,
};
use pando_format::{LogPosition, VolumeId};

use super::late_binding::may_be_bound;
use crate::{Lsn, Operation, Result};

/// Bytes of records at which a batch is full, in a log that is not small. A longer record has a batch of its own. Several
/// leaves, so that of a large write most leaves fall into one batch and are written once, full (late binding).
pub(super) const BATCH_BYTES_MAX: u64 = 16 << 20;

/// Most bytes that a batch takes beyond its records: header and padding.
pub(super) const OVERHEAD_BYTES_MAX: u64 = (BATCH_HEADER_LENGTH + BLOCK_SIZE - 1) as u64;

/// Where the log of a new volume begins.
pub(crate) const LOG_START: LogPosition = LogPosition { offset: 0, sequence: 1, chain: 0 };

/// One atomic step on its way to the log. Long values are shared with the trees, not copied.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Empty where none may be left out of the log: such a record is bytes of its own, and long values that go along.
    operations: Vec<Operation>,
    encoded: EncodedRecord,
}

impl Record {
    /// Encodes all but the long values. The LSN is not part of a record, so this needs no lock.
    pub fn new(operations: &[Operation]) -> Self {
        let binds = operations.iter().any(may_be_bound);
        Self {
            operations: if binds { operations.to_vec() } else { Vec::new() },
            encoded: encode_record(operations),
        }
    }

    /// For a binder that binds what is shorter, too.
    #[cfg(test)]
    pub fn with_operations(operations: Vec<Operation>) -> Self {
        Self { encoded: encode_record(&operations), operations }
    }

    /// What it does, if some of that may be left out.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Bytes that late binding may leave out of the log.
    pub fn bindable_bytes(&self) -> u64 {
        self.operations.iter().filter(|operation| may_be_bound(operation)).filter_map(put_length).sum()
    }

    /// Most bytes it takes in a batch.
    pub fn bytes(&self) -> u64 {
        self.encoded.length() as u64
    }
}

/// Decides which values are left out of the log because the nodes they go to are written now (FAST16, 3).
pub(crate) trait Binder {
    /// Called with the records of one batch, the first of which has the LSN `first`, on the thread that
    /// writes the batch; no lock is held. May write nodes. Answers for each put, or run of puts, that is to
    /// be left out where all of its bytes have been written; they need not be durable, the flush that makes
    /// the batch durable comes later. What the bindings name must stay in place until the next checkpoint is
    /// durable (CP-1).
    ///
    /// # Errors
    /// A failure poisons the log, as a failed write of the batch would.
    fn bind(&self, first: Lsn, records: &[Record]) -> Result<Vec<Binding>>;

    /// How many of these records, from the first on, are better written now than together with what follows them.
    fn ripe(&self, records: &[Record]) -> usize {
        records.len()
    }

    /// Called when a batch has been written, with the log locked: there is room for others.
    fn written(&self) {}
}

/// Leaves nothing out.
#[cfg(test)]
pub(crate) struct InlineAll;

#[cfg(test)]
impl Binder for InlineAll {
    fn bind(&self, _first: Lsn, _records: &[Record]) -> Result<Vec<Binding>> {
        Ok(Vec::new())
    }
}

/// What a batch says besides its records.
pub(super) struct Stamp {
    pub volume: VolumeId,
    pub epoch: u64,
    pub position: LogPosition,
    pub first: Lsn,
    pub durable: Lsn,
}

/// The bytes of a batch and the sequence and chain of the next one.
pub(super) fn encode(stamp: &Stamp, records: Vec<Record>, bindings: Vec<Binding>) -> (Bytes, u64, u64) {
    let mut bound: HashMap<Lsn, Vec<Binding>> = HashMap::new();
    for binding in bindings {
        bound.entry(binding.lsn).or_default().push(binding);
    }
    let record_count = records.len().try_into().expect("a batch has few records");
    let mut encoded = Vec::with_capacity(records.len());
    for (lsn, record) in (stamp.first.0..).zip(records) {
        let bindings = if bound.is_empty() { None } else { bound.remove(&Lsn(lsn)) };
        match bindings {
            Some(bindings) => encoded.extend(encode_bound(record, &bindings)),
            None => encoded.push(record.encoded),
        }
    }
    assert!(bound.is_empty(), "bindings belong to the records of the batch");
    let header = BatchHeader {
        volume: stamp.volume,
        epoch: stamp.epoch,
        sequence: stamp.position.sequence,
        previous: stamp.position.chain,
        first_lsn: stamp.first,
        durable_lsn: stamp.durable,
        record_count,
        ..BatchHeader::default()
    };
    let payload = encoded.iter().map(EncodedRecord::length).sum();
    let mut buffer = Buffer::for_overwrite(batch_length(payload) as usize);
    let chain = encode_batch(header, encoded.iter().flat_map(EncodedRecord::pieces), &mut buffer);
    (buffer.freeze(), stamp.position.sequence + 1, chain)
}

/// A record without the bytes that are bound elsewhere, and the binding records behind it; the whole record
/// where that is not longer, since room was kept for no more.
fn encode_bound(record: Record, bindings: &[Binding]) -> Vec<EncodedRecord> {
    for binding in bindings {
        let length: u64 = binding.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let expected = record.operations.get(binding.operation as usize).and_then(put_length);
        assert_eq!(Some(length), expected, "a binding covers all bytes of a put");
    }
    let is_bound = |i: usize| bindings.iter().any(|binding| binding.operation as usize == i);
    let mut bound = vec![encode_record_unbound(&record.operations, is_bound)];
    bound.extend(bindings.iter().map(encode_binding));
    if bound.iter().map(EncodedRecord::length).sum::<usize>() < record.encoded.length() {
        bound
    } else {
        vec![record.encoded]
    }
}

/// Bytes that a binding of the operation stands for; `None` for what cannot be bound.
fn put_length(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Put { value, .. } => Some(value.len() as u64),
        Operation::PutRun { bytes, .. } => Some(bytes.len() as u64),
        _ => None,
    }
}
