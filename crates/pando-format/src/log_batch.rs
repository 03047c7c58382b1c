//! Batches of the log: what one write to the log region holds.
//!
//! A batch is a header of 128 bytes, a payload of records, and zeros up to a multiple of 4 KiB. Batches follow each
//! other in the circular log region; one may go on at the region's start, which its reader and writer see to.
//!
//! * FMT-16 a batch belongs to the log only if it names the volume, an epoch not below that of the batch before it,
//!   the next sequence and the checksum of the batch before it. So neither what a former round nor what a former epoch
//!   left behind can come back.
//! * FMT-17 every record up to `durable_lsn` was durable when the batch was written: a hole below it is damage, a hole
//!   above it is the end of the log.

use std::fmt;

use bytes::Bytes;

use crate::Lsn;
use crate::checksum::{checksum_shared, verify};
use crate::codec::BLOCK_LENGTH;
use crate::error::{FormatError, Structure};
use crate::head::{self, VolumeId, stored_checksum};
use crate::log_record::{LogRecord, RECORD_LENGTH_MAX, RecordPieces, decode_records};

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
    /// LSN of its first record of operations, or of the next one if it has none.
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

/// A batch ready to be written.
#[derive(Debug, Clone)]
pub struct EncodedBatch {
    /// Header, records and padding, one behind the other: a multiple of 4 KiB in all.
    pub pieces: Vec<Bytes>,
    /// Bytes of all pieces.
    pub length: u64,
    /// What the next batch names as its predecessor.
    pub chain: u64,
}

impl EncodedBatch {
    /// Copies the pieces into an I/O buffer: the one copy of a logged value. Returns what is left of the buffer.
    ///
    /// # Panics
    /// If the buffer is shorter than the batch.
    pub fn copy_to<'a>(&self, buffer: &'a mut [u8]) -> &'a mut [u8] {
        self.pieces.iter().fold(buffer, |rest, piece| {
            let (here, rest) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest
        })
    }
}

/// Makes a batch of encoded records. Fills in payload length and checksum; all else of the header is the caller's.
pub fn encode_batch(mut header: BatchHeader, records: Vec<RecordPieces>) -> EncodedBatch {
    let payload: usize = records.iter().map(|record| record.length).sum();
    header.payload_length =
        u32::try_from(payload).expect("a batch is smaller than the log, and the log below 4 GiB");
    let mut pieces = Vec::with_capacity(2 + records.iter().map(|record| record.pieces.len()).sum::<usize>());
    pieces.push(Bytes::new());
    pieces.extend(records.into_iter().flat_map(|record| record.pieces));
    header.payload_checksum = checksum_shared(Structure::LogPayload, &pieces);
    let encoded = header.encode();
    let chain = stored_checksum(&encoded);
    pieces[0] = encoded.into();
    let length = header.batch_length();
    let padding = (length - (BATCH_HEADER_LENGTH + payload) as u64) as usize;
    pieces.push(Bytes::from_static(&[0; BLOCK_LENGTH]).slice(..padding));
    EncodedBatch { pieces, length, chain }
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
