//! The log, from where a recovery would start to the first batch that is not its continuation.

use bytes::{Bytes, BytesMut};
use pando_format::log_batch::{BATCH_HEADER_LENGTH, decode_payload, open_batch};
use pando_format::{BatchHeader, LogPosition, Lsn, VolumeId, stored_checksum};
use serde_json::json;

use crate::commands::dump::Dump;
use crate::failure::Result;
use crate::raw::RawError;

impl Dump {
    pub(super) fn log(&mut self) -> Result<()> {
        let region = self.newest.log;
        let mut position = self.newest.replay;
        let mut epoch = self.newest.epoch;
        let mut next_lsn = None;
        let mut read = 0;
        while read < region.length {
            // Whatever follows the end of the log is not damage: old batches lie there, one that a crash cut short, or nothing.
            let Ok(encoded) = self.circular(position.offset, BATCH_HEADER_LENGTH as u64) else { break };
            let Ok(header) = BatchHeader::decode(&encoded) else { break };
            if !continues(&header, &position, epoch, &self.newest.volume) {
                break;
            }
            let length = header.batch_length();
            let offset = region.offset + position.offset % region.length;
            let fields = json!({
                "sequence": header.sequence,
                "epoch": header.epoch,
                "first_lsn": header.first_lsn.0,
                "records": header.record_count,
            });
            if let Err(error) = header.check_length() {
                return self.damage("log batch", offset, &error.into());
            }
            if length > region.length - read {
                break;
            }
            let bytes = match self.circular(position.offset, length) {
                Ok(bytes) => bytes,
                Err(error) => return self.damage("log batch", offset, &error),
            };
            let Ok((header, payload)) = open_batch(&bytes) else { break };
            let first = header.first_lsn;
            let fits =
                next_lsn.map_or(first > Lsn(0) && first.0 - 1 <= self.newest.cut.0, |next| first == next);
            if !fits || header.record_count == 0 {
                let error = RawError::Unexpected("its records do not go on from those before it");
                return self.damage("log batch", offset, &error);
            }
            if header.epoch > self.newest.epoch {
                let error =
                    RawError::Unexpected("it is of a later epoch than the newest superblock, so one is lost");
                return self.damage("log batch", offset, &error);
            }
            next_lsn = Some(header.next_lsn());
            match decode_payload(&header, &payload) {
                Ok(records) => {
                    let records: String = records.iter().map(ToString::to_string).collect();
                    self.item("log batch", offset, fields, &format!("{header}\n{records}"))?;
                }
                Err(error) => self.damage("log batch", offset, &error.into())?,
            }
            epoch = header.epoch;
            position.chain = stored_checksum(&encoded);
            position.sequence += 1;
            position.offset = (position.offset + length) % region.length;
            read += length;
        }
        Ok(())
    }

    /// Bytes of the log region, which goes on at its start behind its end.
    fn circular(&self, offset: u64, length: u64) -> Result<Bytes, RawError> {
        let region = self.newest.log;
        if length > region.length {
            return Err(RawError::OutOfRange);
        }
        let offset = offset % region.length;
        let before_end = length.min(region.length - offset);
        let mut bytes = BytesMut::from(&self.raw.read(region.offset + offset, before_end)?[..]);
        if before_end < length {
            bytes.extend_from_slice(&self.raw.read(region.offset, length - before_end)?);
        }
        Ok(bytes.freeze())
    }
}

/// True for the batch that follows the one before it, and is not a left-over of an earlier round (FMT-16).
fn continues(header: &BatchHeader, position: &LogPosition, epoch: u64, volume: &VolumeId) -> bool {
    header.volume == *volume
        && header.epoch >= epoch
        && header.sequence == position.sequence
        && header.previous == position.chain
}
