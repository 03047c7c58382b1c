//! Leaf parts, or basement nodes: entries of a leaf in key order.
//!
//! The raw part is a head of 16 bytes (magic, entry count, length of the front, count of blocks), then for each entry
//! the lengths of key and value and their bytes. A value of exactly 4 KiB is not in the front: its length is followed
//! by nothing, and it is the next of the blocks behind the front (see [`crate::part`]).
//!
//! * FMT-10 keys strictly rise.

use bytes::Bytes;

use crate::Compression;
use crate::codec::{BLOCK_LENGTH, Reader};
use crate::error::{FormatError, Structure};
use crate::part::{BlockReader, EncodedPart, PartBuilder};

const PART: Structure = Structure::LeafPart;
const MAGIC: u32 = u32::from_le_bytes(*b"PLf1");

/// Bytes before the first entry.
pub const HEAD_LENGTH: usize = 16;
/// Bytes an entry takes besides those of its key and value.
pub const ENTRY_OVERHEAD: usize = 8;

/// Encodes a leaf part, entry by entry.
#[derive(Debug)]
pub struct LeafPartWriter {
    builder: PartBuilder,
    count: u32,
    live_bytes: usize,
    /// Where the last key lies in the front.
    last_key: Option<std::ops::Range<usize>>,
}

impl Default for LeafPartWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl LeafPartWriter {
    /// A part without entries.
    pub fn new() -> Self {
        let mut builder = PartBuilder::default();
        builder.front.zeros(HEAD_LENGTH);
        Self { builder, count: 0, live_bytes: 0, last_key: None }
    }

    /// Adds an entry. A value of 4 KiB is taken by reference, others are copied.
    ///
    /// # Panics
    /// If the key is not above the last one (FMT-10).
    pub fn push(&mut self, key: &[u8], value: &Bytes) {
        let front = &mut self.builder.front;
        let rises = self.last_key.clone().is_none_or(|last| &front.as_slice()[last] < key);
        assert!(rises, "FMT-10: keys of a leaf part strictly rise");
        front.length(key.len());
        front.length(value.len());
        let start = front.len();
        front.raw(key);
        self.last_key = Some(start..front.len());
        if PartBuilder::is_block(value) {
            self.builder.push_block(value.clone());
        } else {
            front.raw(value);
        }
        self.count += 1;
        self.live_bytes += key.len() + value.len();
    }

    /// Bytes of the part so far, before compression.
    pub fn raw_length(&self) -> usize {
        self.builder.raw_length()
    }

    /// Ends the part. One without entries has nothing stored. Panics above [`crate::part::PART_LENGTH_MAX`].
    pub fn finish(mut self, compression: Compression) -> EncodedPart {
        if self.count == 0 {
            return EncodedPart::default();
        }
        let mut head = [0; HEAD_LENGTH];
        let front_length = u32::try_from(self.builder.front.len()).expect("a part is below 64 MiB");
        head[..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[4..8].copy_from_slice(&self.count.to_le_bytes());
        head[8..12].copy_from_slice(&front_length.to_le_bytes());
        head[12..].copy_from_slice(&(self.builder.block_count() as u32).to_le_bytes());
        self.builder.front.overwrite(0, &head);
        let part = self.builder.finish(PART, compression);
        EncodedPart { entry_count: self.count, live_bytes: self.live_bytes as u32, ..part }
    }
}

/// The entries of a raw leaf part (see [`crate::part::open_part`]), as slices of it.
pub fn decode_leaf_part(raw: &Bytes) -> Result<Vec<(Bytes, Bytes)>, FormatError> {
    if raw.is_empty() {
        return Ok(Vec::new());
    }
    let mut head = Reader::new(PART, raw);
    let found = head.u32()?;
    if found != MAGIC {
        return Err(FormatError::Magic { structure: PART, found: found.into(), expected: MAGIC.into() });
    }
    let (count, front_length, block_count) = (head.u32()?, head.u32()?, head.u32()?);
    let (front, mut blocks) = BlockReader::split(PART, raw, front_length, block_count)?;
    let mut reader = Reader::new(PART, &front);
    reader.skip(HEAD_LENGTH)?;
    let count = reader.check_count(count, ENTRY_OVERHEAD)?;
    let mut entries: Vec<(Bytes, Bytes)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (key_length, value_length) = (reader.u32()? as usize, reader.u32()? as usize);
        let key = reader.bytes(key_length)?;
        if entries.last().is_some_and(|(last, _)| *last >= key) {
            return Err(reader.wrong(
                "key of an entry",
                entries.len() as u64,
                "above the one before (FMT-10)",
            ));
        }
        let value = match value_length {
            BLOCK_LENGTH => blocks.next(&reader)?,
            length => reader.bytes(length)?,
        };
        entries.push((key, value));
    }
    reader.finish()?;
    blocks.finish(&reader)?;
    Ok(entries)
}
