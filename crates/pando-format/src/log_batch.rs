//! Batches of the log: what one write to the log region holds.
//!
//! A batch is a header of 128 bytes, a payload of records, and zeros up to a multiple of 4 KiB. Batches follow each
//! other in the circular log region; one may go on at the region's start, which its reader and writer see to.
//!
//! * FMT-16 a batch belongs to the log only if it names the volume, the epoch of the superblock,
//!   the next sequence and the checksum of the batch before it. So neither what a former round nor what a former epoch
//!   left behind can come back.
//! * FMT-17 every record up to `durable_lsn` was durable when the batch was written: a hole below it is damage, a hole
//!   above it is the end of the log.

use std::fmt;

use bytes::Bytes;

use crate::Lsn;
use crate::checksum::{Checksum, verify};
use crate::codec::BLOCK_LENGTH;
use crate::error::{FormatError, Structure};
use crate::head::{self, VolumeId, stored_checksum};
use crate::log_record::{LogRecord, RECORD_LENGTH_MAX, decode_records};

const BATCH: Structure = Structure::LogBatch;

/// Bytes of the header.
pub const BATCH_HEADER_LENGTH: usize = 128;

/// The header of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchHeader {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The opening of the volume in which it was written.
    pub epoch: u64,
    /// One more than that of the batch before it, across epochs.
    pub sequence: u64,
    /// Checksum of the header of the batch before it; of the first batch ever, 0.
    pub previous: u64,
    /// LSN of its first record of operations.
    pub first_lsn: Lsn,
    /// Everything up to this record was known durable when the batch was written.
    pub durable_lsn: Lsn,
    /// Records of operations in it; binding records are not counted.
    pub record_count: u32,
    /// Bytes of records.
    pub payload_length: u32,
    /// Of the payload.
    pub payload_checksum: u64,
}

impl BatchHeader {
    /// The header's bytes. [`stored_checksum`] of them is what the next batch names as its predecessor; it covers the
    /// payload's checksum, so the chain covers everything.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = head::start(BATCH, &self.volume);
        writer.u64(self.epoch);
        writer.u64(self.sequence);
        writer.u64(self.previous);
        writer.u64(self.first_lsn.0);
        writer.u64(self.durable_lsn.0);
        writer.u32(self.record_count);
        writer.u32(self.payload_length);
        writer.u64(self.payload_checksum);
        head::seal(BATCH, writer, BATCH_HEADER_LENGTH)
    }

    /// The header at the front of `bytes`, verified; its payload is not looked at.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let bytes = head::unseal(BATCH, bytes)?;
        let (mut reader, volume) = head::fields(BATCH, &bytes)?;
        if bytes.len() != BATCH_HEADER_LENGTH {
            return Err(reader.wrong("length", bytes.len() as u64, "128"));
        }
        Ok(Self {
            volume,
            epoch: reader.u64()?,
            sequence: reader.u64()?,
            previous: reader.u64()?,
            first_lsn: Lsn(reader.u64()?),
            durable_lsn: Lsn(reader.u64()?),
            record_count: reader.u32()?,
            payload_length: reader.u32()?,
            payload_checksum: reader.u64()?,
        })
    }

    /// Fails for a payload longer than any that is written: asked before it is read.
    pub fn check_length(&self) -> Result<(), FormatError> {
        if self.payload_length as usize > RECORD_LENGTH_MAX {
            let (field, found, expected) = ("payload length", self.payload_length.into(), "at most 64 MiB");
            return Err(FormatError::Field { structure: BATCH, field, found, expected });
        }
        Ok(())
    }

    /// Bytes of the whole batch, padding included.
    pub fn batch_length(&self) -> u64 {
        batch_length(self.payload_length as usize)
    }

    /// LSN of the first record of operations behind this batch.
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.first_lsn.0.saturating_add(self.record_count.into()))
    }
}

/// Bytes of a batch with so many bytes of records, padding included.
pub fn batch_length(payload_length: usize) -> u64 {
    ((BATCH_HEADER_LENGTH + payload_length) as u64).next_multiple_of(BLOCK_LENGTH as u64)
}

/// Bytes of a payload that are summed up together, while they are still in the processor's nearest caches.
const SUMMED_BYTES: usize = 64 << 10;

/// Writes a batch: the header, encoded records, one piece behind the other, and padding. Fills in payload length and checksum; all else of
/// the header is the caller's. Returns what the next batch names as its predecessor.
///
/// # Panics
/// If `out` is not as long as the batch ([`batch_length`]).
pub fn encode_batch<'a>(
    mut header: BatchHeader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    out: &mut [u8],
) -> u64 {
    let (head, payload) = out.split_at_mut(BATCH_HEADER_LENGTH);
    let mut checksum = Checksum::new(Structure::LogPayload);
    let (mut summed, mut end) = (0, 0);
    for piece in pieces.into_iter().flat_map(|piece| piece.chunks(SUMMED_BYTES)) {
        payload[end..end + piece.len()].copy_from_slice(piece);
        end += piece.len();
        if end - summed >= SUMMED_BYTES {
            checksum.add(&payload[summed..end]);
            summed = end;
        }
    }
    checksum.add(&payload[summed..end]);
    payload[end..].fill(0);
    header.payload_length = end.try_into().expect("a batch is smaller than the log, and the log below 4 GiB");
    header.payload_checksum = checksum.finish();
    let encoded = header.encode();
    head.copy_from_slice(&encoded);
    assert_eq!(header.batch_length(), (head.len() + payload.len()) as u64, "all of it is the batch");
    stored_checksum(&encoded)
}

/// The batch at the front of `bytes`, its payload verified and its records decoded. Values are slices of `bytes`.
pub fn decode_batch(bytes: &Bytes) -> Result<(BatchHeader, Vec<LogRecord>), FormatError> {
    let (header, payload) = open_batch(bytes)?;
    let records = decode_payload(&header, &payload)?;
    Ok((header, records))
}

/// The batch at the front of `bytes` and its payload, verified: all was written so.
pub fn open_batch(bytes: &Bytes) -> Result<(BatchHeader, Bytes), FormatError> {
    let header = BatchHeader::decode(bytes)?;
    let end = BATCH_HEADER_LENGTH + header.payload_length as usize;
    if bytes.len() < end {
        let (needed, remaining) = (end as u64, bytes.len() as u64);
        return Err(FormatError::Truncated { structure: Structure::LogPayload, needed, remaining });
    }
    let payload = bytes.slice(BATCH_HEADER_LENGTH..end);
    verify(Structure::LogPayload, &payload, header.payload_checksum)?;
    Ok((header, payload))
}

/// The records of a verified payload.
pub fn decode_payload(header: &BatchHeader, payload: &Bytes) -> Result<Vec<LogRecord>, FormatError> {
    let records = decode_records(payload, header.first_lsn)?;
    let count = records.iter().filter(|record| matches!(record, LogRecord::Operations { .. })).count();
    if count != header.record_count as usize {
        let (field, expected) = ("record count", "the records of operations in the payload");
        return Err(FormatError::Field {
            structure: BATCH,
            field,
            found: header.record_count.into(),
            expected,
        });
    }
    Ok(records)
}

impl fmt::Display for BatchHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, sequence, previous, first_lsn, durable_lsn, record_count, payload_length, .. } =
            self;
        write!(f, "batch {sequence} of epoch {epoch} behind {previous:#018x}: {record_count} records from ")?;
        write!(f, "{}, {payload_length} bytes, durable up to {}", first_lsn.0, durable_lsn.0)
    }
}
