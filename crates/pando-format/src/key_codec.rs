//! Encoding of bounds, ranges, MSNs, changes and pending sums: what nodes and log records have in common.
//!
//! A length or offset inside a change is bounded here, so that applying a decoded change cannot be made to allocate
//! more than [`VALUE_LENGTH_MAX`]; so is the number of fields, which take many times more memory than bytes.

use crate::codec::{Reader, Writer};
use crate::error::FormatError;
use crate::message::FIELDS_MAX;
use crate::{Bound, Change, FieldUpdate, HEIGHT_MAX, KeyRange, Msn, Side, Tree};

/// The longest value of a key, in bytes. Blocks have 4 KiB, extended attributes 64 KiB at most.
pub const VALUE_LENGTH_MAX: usize = 16 << 20;

/// Fewest bytes of an encoded bound.
pub(crate) const BOUND_LENGTH_MIN: usize = 5;

pub(crate) fn encode_bound(writer: &mut Writer, bound: &Bound) {
    writer.u8(bound.side as u8);
    writer.sized_bytes(&bound.bytes);
}

pub(crate) fn decode_bound(reader: &mut Reader<'_>) -> Result<Bound, FormatError> {
    let side = match reader.u8()? {
        0 => Side::Before,
        1 => Side::After,
        other => return Err(reader.wrong("side of a bound", other.into(), "0 or 1")),
    };
    Ok(Bound { bytes: reader.sized_bytes()?, side })
}

pub(crate) fn encode_range(writer: &mut Writer, range: &KeyRange) {
    encode_bound(writer, &range.lower);
    encode_bound(writer, &range.upper);
}

pub(crate) fn decode_range(reader: &mut Reader<'_>) -> Result<KeyRange, FormatError> {
    Ok(KeyRange::new(decode_bound(reader)?, decode_bound(reader)?))
}

/// Bytes of an encoded MSN.
pub(crate) const MSN_LENGTH: usize = 12;

pub(crate) fn encode_msn(writer: &mut Writer, msn: Msn) {
    writer.u64(msn.lsn);
    writer.u32(msn.sub);
}

pub(crate) fn decode_msn(reader: &mut Reader<'_>) -> Result<Msn, FormatError> {
    Ok(Msn { lsn: reader.u64()?, sub: reader.u32()? })
}

pub(crate) fn decode_tree(reader: &mut Reader<'_>) -> Result<Tree, FormatError> {
    let number = reader.u8()?;
    Tree::from_number(number).ok_or_else(|| reader.wrong("tree", number.into(), "0 or 1"))
}

/// FMT-23.
pub(crate) fn decode_height(reader: &mut Reader<'_>) -> Result<u8, FormatError> {
    let height = reader.u8()?;
    if height > HEIGHT_MAX { Err(reader.wrong("height", height.into(), "at most 64")) } else { Ok(height) }
}

const PATCH: u8 = 1;
const TRUNCATE: u8 = 2;
const UPDATE: u8 = 3;

const SET: u8 = 1;
const MAX: u8 = 2;
const ADD: u8 = 3;

/// Fewest bytes of an encoded change: a truncate.
pub(crate) const CHANGE_LENGTH_MIN: usize = 5;
/// Fewest bytes of an encoded field update: a set of one byte.
const FIELD_LENGTH_MIN: usize = 6;

pub(crate) fn encode_change(writer: &mut Writer, change: &Change) {
    match change {
        Change::Patch { offset, bytes } => {
            writer.u8(PATCH);
            writer.u32(*offset);
            writer.sized_bytes(bytes);
        }
        Change::Truncate { length } => {
            writer.u8(TRUNCATE);
            writer.u32(*length);
        }
        Change::Update { fields } => {
            let count = fields.len();
            assert!((1..=FIELDS_MAX).contains(&count), "FMT-26: an attribute update has 1 to 256 fields");
            writer.u8(UPDATE);
            writer.length(count);
            for field in fields {
                encode_field(writer, field);
            }
        }
    }
}

fn encode_field(writer: &mut Writer, field: &FieldUpdate) {
    match field {
        FieldUpdate::Set { offset, bytes } => {
            assert!(!bytes.is_empty(), "FMT-26: a field is not empty");
            writer.u8(SET);
            writer.u16(*offset);
            writer.u16(bytes.len().try_into().expect("a field of an attribute update is below 64 KiB"));
            writer.raw(bytes);
        }
        FieldUpdate::Max { offset, value } => {
            writer.u8(MAX);
            writer.u16(*offset);
            writer.u64(*value);
        }
        FieldUpdate::Add { offset, value } => {
            writer.u8(ADD);
            writer.u16(*offset);
            writer.u64(*value);
        }
    }
}

pub(crate) fn decode_change(reader: &mut Reader<'_>) -> Result<Change, FormatError> {
    match reader.u8()? {
        PATCH => {
            let offset = reader.u32()?;
            let bytes = reader.sized_bytes()?;
            let end = u64::from(offset) + bytes.len() as u64;
            if end > VALUE_LENGTH_MAX as u64 {
                return Err(reader.wrong("end of a patch", end, "at most 16 MiB"));
            }
            Ok(Change::Patch { offset, bytes })
        }
        TRUNCATE => Ok(Change::Truncate { length: reader.u32()? }),
        UPDATE => {
            let count = reader.count(FIELD_LENGTH_MIN)?;
            if !(1..=FIELDS_MAX).contains(&count) {
                return Err(reader.wrong("fields of an attribute update", count as u64, "1 to 256 (FMT-26)"));
            }
            let mut fields = Vec::with_capacity(count);
            for _ in 0..count {
                fields.push(decode_field(reader)?);
            }
            Ok(Change::Update { fields })
        }
        other => Err(reader.wrong("kind of a change", other.into(), "1 to 3")),
    }
}

fn decode_field(reader: &mut Reader<'_>) -> Result<FieldUpdate, FormatError> {
    let kind = reader.u8()?;
    let offset = reader.u16()?;
    match kind {
        SET => {
            let length = reader.u16()?;
            if length == 0 {
                return Err(reader.wrong("bytes of a field", 0, "at least one (FMT-26)"));
            }
            Ok(FieldUpdate::Set { offset, bytes: reader.bytes(length.into())? })
        }
        MAX => Ok(FieldUpdate::Max { offset, value: reader.u64()? }),
        ADD => Ok(FieldUpdate::Add { offset, value: reader.u64()? }),
        other => Err(reader.wrong("kind of a field update", other.into(), "1 to 3")),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Operation, Structure};

    /// Each of millions of fields without bytes took 40 bytes of memory for 5 of an image, which compresses to nothing.
    #[test]
    fn updates_that_no_writer_makes_are_refused() {
        let decoded = |lengths: &[u16]| {
            let mut writer = Writer::new();
            writer.u8(UPDATE);
            writer.length(lengths.len());
            for length in lengths {
                writer.u8(SET);
                writer.u16(0);
                writer.u16(*length);
                writer.zeros((*length).into());
            }
            decode_change(&mut Reader::new(Structure::BufferPart, &writer.into_vec().into()))
        };
        let Ok(most) = decoded(&[1; FIELDS_MAX]) else { panic!("as many fields as there may be") };
        for wrong in [&[][..], &[0, 2], &[2, 0], &[1; FIELDS_MAX + 1]] {
            let error = decoded(wrong).unwrap_err().to_string();
            assert!(error.contains("FMT-26"), "{error}");
        }
        let check = |change: &Change| {
            Operation::Change { tree: Tree::Data, key: Bytes::new(), change: change.clone() }.check()
        };
        assert_eq!(check(&most), Ok(()));
        let Change::Update { mut fields } = most else { panic!("an update") };
        fields.push(FieldUpdate::Max { offset: 0, value: 7 });
        let empty = vec![FieldUpdate::Set { offset: 0, bytes: Bytes::new() }];
        for fields in [fields, empty, Vec::new()] {
            assert!(check(&Change::Update { fields }).is_err());
        }
    }
}
