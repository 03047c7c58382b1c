//! Records of the log.
//!
//! A record of operations is one atomic step: its operations are applied in their order, all or none. The bytes of a
//! put may be left out of it (FAST16, 3): they are then written with the nodes they go to, and a binding record that
//! follows says where, before anything is called durable.
//!
//! * FMT-14 the n-th record of operations in a batch, counted from 0, has the LSN first_lsn + n; binding records have
//!   none.
//! * FMT-15 whoever replays a record with unbound bytes needs bindings that cover all of them; where one is missing,
//!   the log ends before the record's batch.
//! * FMT-20 a record, with the bytes that it leaves out, has at most [`RECORD_LENGTH_MAX`] bytes, and the keys of its runs
//!   [`RUN_KEYS_LENGTH_MAX`]; so what a few bytes of a record can come to in memory is bounded.

use std::fmt;

use bytes::Bytes;

use crate::checksum::verify;
use crate::codec::{BLOCK_LENGTH, PieceWriter, Reader};
use crate::error::{FormatError, Structure};
use crate::extent::Extent;
use crate::key_codec::{decode_change, decode_range, decode_tree, encode_change, encode_range};
use crate::operation::{Excess, check_put, check_run, run_keys_length};
use crate::{Lsn, Operation, Tree};

const RECORD: Structure = Structure::LogRecord;

/// Bytes of the longest record, with what is bound elsewhere. No batch of several records is longer, either.
pub const RECORD_LENGTH_MAX: usize = 64 << 20;

/// Bytes of the keys of all blocks of a record's runs, at most: each has the whole prefix. A mebibyte below the longest prefix comes to
/// a quarter of that.
pub const RUN_KEYS_LENGTH_MAX: u64 = 256 << 20;

/// Bytes before the operations of a record: its length, kind, reserved bytes, the count.
pub const RECORD_HEAD_LENGTH: usize = 12;

const OPERATIONS: u8 = 1;
const BINDING: u8 = 2;

const PUT: u8 = 1;
const PUT_RUN: u8 = 2;
const DELETE: u8 = 3;
const CHANGE: u8 = 4;
const DELETE_RANGE: u8 = 5;
const MOVE_RANGE: u8 = 6;
const UNBOUND_PUT: u8 = 7;
const UNBOUND_PUT_RUN: u8 = 8;
const CLONE_RANGE: u8 = 9;

/// Fewest bytes of an encoded operation: a delete of the empty key.
const OPERATION_LENGTH_MIN: usize = 6;

/// An operation as a record holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoggedOperation {
    /// With all its bytes.
    Whole(Operation),
    /// An [`Operation::Put`] whose value is elsewhere.
    UnboundPut {
        /// Which index.
        tree: Tree,
        /// The key.
        key: Bytes,
        /// Bytes of the value.
        length: u32,
    },
    /// An [`Operation::PutRun`] whose bytes are elsewhere.
    UnboundPutRun {
        /// Which index.
        tree: Tree,
        /// What the keys begin with.
        prefix: Bytes,
        /// The first number.
        first: u64,
        /// Bytes of the run.
        length: u32,
    },
}

impl LoggedOperation {
    fn check(&self) -> Result<(), Excess> {
        match self {
            Self::Whole(operation) => operation.check(),
            Self::UnboundPut { key, length, .. } => check_put(key, *length as usize),
            Self::UnboundPutRun { prefix, first, length, .. } => check_run(prefix, *first, *length as usize),
        }
    }

    fn run_keys_length(&self) -> u64 {
        match self {
            Self::Whole(operation) => operation.run_keys_length(),
            Self::UnboundPut { .. } => 0,
            Self::UnboundPutRun { prefix, length, .. } => run_keys_length(prefix, *length as usize),
        }
    }

    fn unbound_length(&self) -> u64 {
        match self {
            Self::Whole(_) => 0,
            Self::UnboundPut { length, .. } | Self::UnboundPutRun { length, .. } => u64::from(*length),
        }
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRecord {
    /// One atomic step.
    Operations {
        /// Its place in the log.
        lsn: Lsn,
        /// What it does, in this order.
        operations: Vec<LoggedOperation>,
    },
    /// Where bytes are that a record left out.
    Binding(Binding),
}

/// Where the bytes of one operation are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The record that left them out.
    pub lsn: Lsn,
    /// Which of its operations, counted from 0.
    pub operation: u32,
    /// What there is of them, in any order. Several binding records may share the bytes of one operation.
    pub pieces: Vec<BoundPiece>,
}

/// Some consecutive bytes of an operation, as they lie in blocks of a node that are not compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundPiece {
    /// The first byte's place in the operation's bytes.
    pub start: u32,
    /// How many bytes.
    pub length: u32,
    /// The blocks of the device that hold them, from the first byte on, and no others.
    pub extent: Extent,
    /// Of the bytes; see [`bound_checksum`].
    pub checksum: u64,
}

impl BoundPiece {
    const ENCODED_LENGTH: usize = 48;

    /// The bytes of the piece, given what was read from its extent, which is shared and not copied.
    pub fn open(&self, read: &Bytes) -> Result<Bytes, FormatError> {
        let structure = Structure::BoundBytes;
        let length = self.length as usize;
        if read.len() < length {
            return Err(FormatError::Truncated {
                structure,
                needed: length as u64,
                remaining: read.len() as u64,
            });
        }
        let bytes = read.slice(..length);
        verify(structure, &bytes, self.checksum)?;
        Ok(bytes)
    }

    fn encode(&self, writer: &mut PieceWriter) {
        let fields = &mut writer.fields;
        fields.u32(self.start);
        fields.u32(self.length);
        self.extent.encode(fields);
        fields.u32(self.length);
        fields.zeros(4);
        fields.u64(self.checksum);
        fields.u32(self.length);
        fields.u32(0);
    }

    /// Its stored and raw lengths, compression and raw start are those of bytes that are not compressed and stand alone: others would let a
    /// few bytes of the log make a replay read as much as it could ever take.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (start, length, extent) = (reader.u32()?, reader.u32()?, Extent::decode(reader)?);
        let (stored_length, compression) = (reader.u32()?, reader.u8()?);
        reader.skip(3)?;
        let (checksum, raw_length, raw_start) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if length == 0 || length as usize > RECORD_LENGTH_MAX {
            return Err(reader.wrong("bytes of a bound piece", length.into(), "1 byte to 64 MiB"));
        }
        if extent.length as usize != (length as usize).next_multiple_of(BLOCK_LENGTH) {
            return Err(reader.wrong(
                "extent of a bound piece",
                extent.length.into(),
                "its bytes in whole blocks",
            ));
        }
        for (field, found, expected, text) in [
            ("stored length of a bound piece", stored_length, length, "its bytes"),
            ("compression of a bound piece", compression.into(), 0, "0"),
            ("raw length of a bound piece", raw_length, length, "its bytes"),
            ("raw start of a bound piece", raw_start, 0, "0"),
        ] {
            if found != expected {
                return Err(reader.wrong(field, found.into(), text));
            }
        }
        Ok(Self { start, length, extent, checksum })
    }
}

/// The checksum a [`BoundPiece`] carries, over stored bytes that lie in pieces.
pub fn bound_checksum(pieces: &[Bytes]) -> u64 {
    crate::checksum::checksum_shared(Structure::BoundBytes, pieces)
}

/// An encoded record: small fields in memory of its own, long values by reference.
#[derive(Debug, Clone, Default)]
pub struct EncodedRecord {
    writer: PieceWriter,
    length: usize,
}

impl EncodedRecord {
    /// Bytes of the record.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Its bytes, one piece behind the other.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.writer.pieces()
    }
}

/// A record with all its bytes.
pub fn encode_record(operations: &[Operation]) -> EncodedRecord {
    encode_record_unbound(operations, |_| false)
}

/// A record that leaves out the bytes of those operations, by number, for which `unbound` says so.
///
/// # Panics
/// If `unbound` names an operation that is no put.
pub fn encode_record_unbound(operations: &[Operation], unbound: impl Fn(usize) -> bool) -> EncodedRecord {
    let room: usize = operations.iter().map(room_for).sum();
    let mut writer = start(OPERATIONS, RECORD_HEAD_LENGTH + room);
    writer.fields.length(operations.len());
    for (i, operation) in operations.iter().enumerate() {
        encode_operation(&mut writer, operation, unbound(i));
    }
    finish(writer)
}

/// A binding record.
pub fn encode_binding(binding: &Binding) -> EncodedRecord {
    let mut writer =
        start(BINDING, RECORD_HEAD_LENGTH + 12 + binding.pieces.len() * BoundPiece::ENCODED_LENGTH);
    writer.fields.length(binding.pieces.len());
    writer.fields.u64(binding.lsn.0);
    writer.fields.u32(binding.operation);
    binding.pieces.iter().for_each(|piece| piece.encode(&mut writer));
    finish(writer)
}

/// About as many bytes as an operation takes without its long values.
fn room_for(operation: &Operation) -> usize {
    const FIELDS: usize = 24;
    let (key, value) = match operation {
        Operation::Put { key, value, .. } => (key, value.len()),
        Operation::PutRun { prefix, bytes, .. } => (prefix, bytes.len()),
        other => return FIELDS + other.length(),
    };
    FIELDS + key.len() + if value < PieceWriter::REFERENCE_LENGTH_MIN { value } else { 0 }
}

fn start(kind: u8, room: usize) -> PieceWriter {
    let mut writer = PieceWriter::with_capacity(room);
    writer.fields.u32(0);
    writer.fields.u8(kind);
    writer.fields.zeros(3);
    writer
}

fn finish(mut writer: PieceWriter) -> EncodedRecord {
    let length = writer.len();
    let stored = u32::try_from(length).expect("a record is smaller than the log, and the log below 4 GiB");
    writer.fields.overwrite(0, &stored.to_le_bytes());
    EncodedRecord { writer, length }
}

fn encode_operation(writer: &mut PieceWriter, operation: &Operation, unbound: bool) {
    let fields = &mut writer.fields;
    match operation {
        Operation::Put { tree, key, value } => {
            fields.u8(if unbound { UNBOUND_PUT } else { PUT });
            fields.u8(*tree as u8);
            fields.sized_bytes(key);
            if unbound {
                fields.length(value.len())
            } else {
                writer.sized_value(value)
            }
            return;
        }
        Operation::PutRun { tree, prefix, first, bytes } => {
            fields.u8(if unbound { UNBOUND_PUT_RUN } else { PUT_RUN });
            fields.u8(*tree as u8);
            fields.sized_bytes(prefix);
            fields.u64(*first);
            if unbound {
                fields.length(bytes.len())
            } else {
                writer.sized_value(bytes)
            }
            return;
        }
        Operation::Delete { tree, key } => {
            fields.u8(DELETE);
            fields.u8(*tree as u8);
            fields.sized_bytes(key);
        }
        Operation::Change { tree, key, change } => {
            fields.u8(CHANGE);
            fields.u8(*tree as u8);
            fields.sized_bytes(key);
            encode_change(fields, change);
        }
        Operation::DeleteRange { tree, range } => {
            fields.u8(DELETE_RANGE);
            fields.u8(*tree as u8);
            encode_range(fields, range);
        }
        Operation::MoveRange { tree, from, to } => {
            fields.u8(MOVE_RANGE);
            fields.u8(*tree as u8);
            fields.sized_bytes(from);
            fields.sized_bytes(to);
        }
        Operation::CloneRange { tree, from, to } => {
            fields.u8(CLONE_RANGE);
            fields.u8(*tree as u8);
            fields.sized_bytes(from);
            fields.sized_bytes(to);
        }
    }
    assert!(!unbound, "only puts can leave their bytes out");
}

/// All records of a batch's payload; the first record of operations has the LSN `first_lsn`.
pub fn decode_records(payload: &Bytes, first_lsn: Lsn) -> Result<Vec<LogRecord>, FormatError> {
    let mut records = Vec::new();
    let mut next = first_lsn;
    let mut rest = Reader::new(RECORD, payload);
    while rest.remaining() > 0 {
        let start = rest.position();
        let length = rest.u32()? as usize;
        if length < RECORD_HEAD_LENGTH {
            return Err(rest.wrong("length of a record", length as u64, "at least 12"));
        }
        rest.skip(length - 4)?;
        let bytes = payload.slice(start..start + length);
        let record = decode_record(&bytes, next)?;
        if matches!(record, LogRecord::Operations { .. }) {
            let Some(lsn) = next.0.checked_add(1) else {
                return Err(rest.wrong("LSN of a record", next.0, "below 2^64 - 1"));
            };
            next = Lsn(lsn);
        }
        records.push(record);
    }
    Ok(records)
}

/// One record, its length in front; `lsn` is the one it has if it is a record of operations.
pub fn decode_record(bytes: &Bytes, lsn: Lsn) -> Result<LogRecord, FormatError> {
    let mut reader = Reader::new(RECORD, bytes);
    let length = reader.u32()?;
    if length as usize != bytes.len() {
        return Err(reader.wrong("length of a record", length.into(), "the record's bytes"));
    }
    let kind = reader.u8()?;
    reader.skip(3)?;
    let record = match kind {
        OPERATIONS => {
            let count = reader.count(OPERATION_LENGTH_MIN)?;
            let mut operations = Vec::with_capacity(count);
            let (mut whole, mut keys) = (u64::from(length), 0_u64);
            for _ in 0..count {
                let operation = decode_operation(&mut reader)?;
                operation
                    .check()
                    .map_err(|Excess { what, found, limit }| reader.wrong(what, found, limit))?;
                whole += operation.unbound_length();
                keys = keys.saturating_add(operation.run_keys_length());
                operations.push(operation);
            }
            if whole > RECORD_LENGTH_MAX as u64 {
                return Err(reader.wrong(
                    "length of a record with its unbound bytes",
                    whole,
                    "at most 64 MiB",
                ));
            }
            if keys > RUN_KEYS_LENGTH_MAX {
                return Err(reader.wrong("bytes of the keys of runs", keys, "at most 256 MiB"));
            }
            LogRecord::Operations { lsn, operations }
        }
        BINDING => {
            let count = reader.count(BoundPiece::ENCODED_LENGTH)?;
            let (lsn, operation) = (Lsn(reader.u64()?), reader.u32()?);
            let pieces = (0..count).map(|_| BoundPiece::decode(&mut reader)).collect::<Result<_, _>>()?;
            LogRecord::Binding(Binding { lsn, operation, pieces })
        }
        other => return Err(reader.wrong("kind of a record", other.into(), "1 or 2")),
    };
    reader.finish()?;
    Ok(record)
}

fn decode_operation(reader: &mut Reader<'_>) -> Result<LoggedOperation, FormatError> {
    let kind = reader.u8()?;
    let tree = decode_tree(reader)?;
    Ok(LoggedOperation::Whole(match kind {
        PUT => Operation::Put { tree, key: reader.sized_bytes()?, value: reader.sized_bytes()? },
        PUT_RUN => Operation::PutRun {
            tree,
            prefix: reader.sized_bytes()?,
            first: reader.u64()?,
            bytes: reader.sized_bytes()?,
        },
        DELETE => Operation::Delete { tree, key: reader.sized_bytes()? },
        CHANGE => Operation::Change { tree, key: reader.sized_bytes()?, change: decode_change(reader)? },
        DELETE_RANGE => Operation::DeleteRange { tree, range: decode_range(reader)? },
        MOVE_RANGE => Operation::MoveRange { tree, from: reader.sized_bytes()?, to: reader.sized_bytes()? },
        CLONE_RANGE => Operation::CloneRange { tree, from: reader.sized_bytes()?, to: reader.sized_bytes()? },
        UNBOUND_PUT => {
            let (key, length) = (reader.sized_bytes()?, reader.u32()?);
            return Ok(LoggedOperation::UnboundPut { tree, key, length });
        }
        UNBOUND_PUT_RUN => {
            let (prefix, first, length) = (reader.sized_bytes()?, reader.u64()?, reader.u32()?);
            return Ok(LoggedOperation::UnboundPutRun { tree, prefix, first, length });
        }
        other => return Err(reader.wrong("kind of an operation", other.into(), "1 to 9")),
    }))
}

impl fmt::Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operations { lsn, operations } => {
                writeln!(f, "record {}", lsn.0)?;
                operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
            }
            Self::Binding(Binding { lsn, operation, pieces }) => {
                writeln!(f, "binding of operation {operation} of record {}", lsn.0)?;
                for BoundPiece { start, length, extent, .. } in pieces {
                    writeln!(f, "  {length} bytes from {start}: {extent}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for LoggedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(operation) => operation.fmt(f),
            Self::UnboundPut { tree, key, length } => {
                write!(f, "{tree:?} put \"{}\": {length} bytes, unbound", key.escape_ascii())
            }
            Self::UnboundPutRun { tree, prefix, first, length } => {
                write!(
                    f,
                    "{tree:?} put run \"{}\" from {first}: {length} bytes, unbound",
                    prefix.escape_ascii()
                )
            }
        }
    }
}
