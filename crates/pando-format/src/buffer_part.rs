//! Buffer parts: the messages of an interior node that wait for one child.
//!
//! The raw part is a head of 24 bytes (magic, counts of keyed sums, range deletes and gotos, length of the front,
//! count of blocks), then the three lists. Put values of exactly 4 KiB lie behind the front (see [`crate::part`]).
//!
//! * FMT-11 keyed sums strictly rise by key; range deletes are not empty, rise and do not overlap. So do gotos, and no goto overlaps a range
//!   delete.
//! * FMT-12 a keyed sum stands for its key's messages that are not older than any range delete or goto in the same buffer that covers
//!   the key, and lies on top of it: whoever adds one takes older sums below it out.

use std::fmt;

use bytes::Bytes;

use crate::codec::{BLOCK_LENGTH, Reader};
use crate::edge::Goto;
use crate::error::{FormatError, Structure};
use crate::key_codec::{BOUND_LENGTH_MIN, CHANGE_LENGTH_MIN, MSN_LENGTH};
use crate::key_codec::{decode_change, decode_msn, decode_range, encode_change, encode_msn, encode_range};
use crate::part::{BlockReader, EncodedPart, PartBuilder};
use crate::{Compression, KeyRange, Msn, Pending};

const PART: Structure = Structure::BufferPart;
const MAGIC: u32 = u32::from_le_bytes(*b"PBf1");

/// Bytes before the first message.
pub const HEAD_LENGTH: usize = 24;
const KEYED_LENGTH_MIN: usize = 4 + MSN_LENGTH + 1;
const RANGE_LENGTH_MIN: usize = 2 * BOUND_LENGTH_MIN + MSN_LENGTH;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const CHANGES: u8 = 3;

/// Messages as a buffer part holds them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BufferPart {
    /// One sum per key with the MSN of its newest message, in key order.
    pub keyed: Vec<(Bytes, Msn, Pending)>,
    /// Range deletes in key order.
    pub ranges: Vec<(KeyRange, Msn)>,
    /// Gotos in key order.
    pub gotos: Vec<Goto>,
}

impl BufferPart {
    /// True if no message waits.
    pub fn is_empty(&self) -> bool {
        self.keyed.is_empty() && self.ranges.is_empty() && self.gotos.is_empty()
    }

    /// Encodes the part; see [`BufferPartWriter`].
    pub fn encode(&self, compression: Compression) -> EncodedPart {
        let mut writer = BufferPartWriter::new();
        self.keyed.iter().for_each(|(key, msn, pending)| writer.push(key, *msn, pending));
        self.ranges.iter().for_each(|(range, msn)| writer.push_range(range, *msn));
        self.gotos.iter().for_each(|goto| writer.push_goto(goto));
        writer.finish(compression)
    }

    /// The messages of a raw buffer part (see [`crate::part::open_part`]), as slices of it.
    pub fn decode(raw: &Bytes) -> Result<Self, FormatError> {
        if raw.is_empty() {
            return Ok(Self::default());
        }
        let mut head = Reader::new(PART, raw);
        let found = head.u32()?;
        if found != MAGIC {
            return Err(FormatError::Magic { structure: PART, found: found.into(), expected: MAGIC.into() });
        }
        let (keyed, ranges, gotos) = (head.u32()?, head.u32()?, head.u32()?);
        let (front_length, block_count) = (head.u32()?, head.u32()?);
        let (front, mut blocks) = BlockReader::split(PART, raw, front_length, block_count)?;
        let mut reader = Reader::new(PART, &front);
        reader.skip(HEAD_LENGTH)?;
        let part = Self {
            keyed: decode_keyed(&mut reader, keyed, &mut blocks)?,
            ranges: decode_ranges(&mut reader, ranges)?,
            gotos: decode_gotos(&mut reader, gotos)?,
        };
        reader.finish()?;
        blocks.finish(&reader)?;
        Ok(part)
    }
}

fn decode_keyed(
    reader: &mut Reader<'_>,
    count: u32,
    blocks: &mut BlockReader<'_>,
) -> Result<Vec<(Bytes, Msn, Pending)>, FormatError> {
    let count = reader.check_count(count, KEYED_LENGTH_MIN)?;
    let mut keyed: Vec<(Bytes, Msn, Pending)> = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.sized_bytes()?;
        if keyed.last().is_some_and(|(last, ..)| *last >= key) {
            return Err(reader.wrong(
                "key of a message",
                keyed.len() as u64,
                "above the one before (FMT-11)",
            ));
        }
        let msn = decode_msn(reader)?;
        let pending = match reader.u8()? {
            PUT => Pending::Put(match reader.u32()? as usize {
                BLOCK_LENGTH => blocks.next(reader)?,
                length => reader.bytes(length)?,
            }),
            DELETE => Pending::Delete,
            CHANGES => {
                let count = reader.count(CHANGE_LENGTH_MIN)?;
                if count == 0 {
                    return Err(reader.wrong("changes", 0, "at least one"));
                }
                let mut changes = Vec::with_capacity(count);
                for _ in 0..count {
                    changes.push(decode_change(reader)?);
                }
                Pending::from_changes(changes).map_err(|place| {
                    reader.wrong("change", place as u64, "not one with the change before it (FMT-25)")
                })?
            }
            other => return Err(reader.wrong("kind of a message", other.into(), "1 to 3")),
        };
        keyed.push((key, msn, pending));
    }
    Ok(keyed)
}

fn decode_ranges(reader: &mut Reader<'_>, count: u32) -> Result<Vec<(KeyRange, Msn)>, FormatError> {
    let count = reader.check_count(count, RANGE_LENGTH_MIN)?;
    let mut ranges: Vec<(KeyRange, Msn)> = Vec::with_capacity(count);
    for _ in 0..count {
        let range = decode_range(reader)?;
        if range.is_empty() || ranges.last().is_some_and(|(last, _)| last.upper > range.lower) {
            return Err(reader.wrong("range delete", ranges.len() as u64, "behind the one before (FMT-11)"));
        }
        ranges.push((range, decode_msn(reader)?));
    }
    Ok(ranges)
}

fn decode_gotos(reader: &mut Reader<'_>, count: u32) -> Result<Vec<Goto>, FormatError> {
    let count = reader.check_count(count, Goto::ENCODED_LENGTH_MIN)?;
    let mut gotos: Vec<Goto> = Vec::with_capacity(count);
    for _ in 0..count {
        let goto = Goto::decode(reader)?;
        let rises = gotos.last().is_none_or(|last| last.range.upper <= goto.range.lower);
        if goto.range.is_empty() || !rises || goto.target.is_empty() {
            return Err(reader.wrong(
                "goto",
                gotos.len() as u64,
                "to a node, behind the one before (FMT-11)",
            ));
        }
        gotos.push(goto);
    }
    Ok(gotos)
}

/// Encodes a buffer part message by message: all keyed sums, then all range deletes, then all gotos.
#[derive(Debug)]
pub struct BufferPartWriter {
    builder: PartBuilder,
    /// Of keyed sums, range deletes, gotos.
    counts: [u32; 3],
    live_bytes: usize,
    /// Where the last key lies in the front.
    last_key: Option<std::ops::Range<usize>>,
    last_range: Option<KeyRange>,
    last_goto: Option<KeyRange>,
}

impl Default for BufferPartWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl BufferPartWriter {
    /// A part without messages.
    pub fn new() -> Self {
        let mut builder = PartBuilder::default();
        builder.front.zeros(HEAD_LENGTH);
        Self { builder, counts: [0; 3], live_bytes: 0, last_key: None, last_range: None, last_goto: None }
    }

    /// Adds the sum for a key. A put of 4 KiB is taken by reference, everything else is copied.
    ///
    /// # Panics
    /// If the key is not above the last one (FMT-11), or range deletes or gotos came before.
    pub fn push(&mut self, key: &[u8], msn: Msn, pending: &Pending) {
        assert_eq!(self.counts[1..], [0, 0], "keyed sums come first");
        let front = &mut self.builder.front;
        let rises = self.last_key.clone().is_none_or(|last| &front.as_slice()[last] < key);
        assert!(rises, "FMT-11: keys of a buffer part strictly rise");
        front.length(key.len());
        let start = front.len();
        front.raw(key);
        self.last_key = Some(start..front.len());
        encode_msn(front, msn);
        match pending {
            Pending::Put(value) => {
                front.u8(PUT);
                front.length(value.len());
                if PartBuilder::is_block(value) {
                    self.builder.push_block(value.clone());
                } else {
                    front.raw(value);
                }
            }
            Pending::Delete => front.u8(DELETE),
            Pending::Changes(changes) => {
                assert!(!changes.is_empty(), "a sum of changes is never empty");
                front.u8(CHANGES);
                front.length(changes.len());
                changes.iter().for_each(|change| encode_change(front, change));
            }
        }
        self.counts[0] += 1;
        self.live_bytes += key.len() + pending.length();
    }

    /// Adds a range delete.
    ///
    /// # Panics
    /// If the range is empty or not behind the last one (FMT-11), or gotos came before.
    pub fn push_range(&mut self, range: &KeyRange, msn: Msn) {
        assert_eq!(self.counts[2], 0, "gotos come last");
        let rises = self.last_range.as_ref().is_none_or(|last| last.upper <= range.lower);
        assert!(rises && !range.is_empty(), "FMT-11: range deletes rise and do not overlap");
        encode_range(&mut self.builder.front, range);
        encode_msn(&mut self.builder.front, msn);
        self.last_range = Some(range.clone());
        self.counts[1] += 1;
        self.live_bytes += range.lower.bytes.len() + range.upper.bytes.len();
    }

    /// Adds a goto.
    ///
    /// # Panics
    /// If its range is empty or not behind the last one (FMT-11), or it leads nowhere.
    pub fn push_goto(&mut self, goto: &Goto) {
        let rises = self.last_goto.as_ref().is_none_or(|last| last.upper <= goto.range.lower);
        assert!(rises && !goto.range.is_empty(), "FMT-11: gotos rise and do not overlap");
        assert!(!goto.target.is_empty(), "FMT-11: a goto leads to a node");
        self.last_goto = Some(goto.range.clone());
        goto.encode(&mut self.builder.front);
        self.counts[2] += 1;
        self.live_bytes +=
            goto.range.lower.bytes.len() + goto.range.upper.bytes.len() + goto.xf.prepend.len();
    }

    /// Bytes of the part so far, before compression.
    pub fn raw_length(&self) -> usize {
        self.builder.raw_length()
    }

    /// Ends the part. One without messages has nothing stored. Panics above [`crate::part::PART_LENGTH_MAX`].
    pub fn finish(mut self, compression: Compression) -> EncodedPart {
        let entry_count = self.counts.iter().sum();
        if entry_count == 0 {
            return EncodedPart::default();
        }
        let front_length = u32::try_from(self.builder.front.len()).expect("a part is below 64 MiB");
        let numbers = [MAGIC, self.counts[0], self.counts[1], self.counts[2], front_length];
        let numbers = numbers.into_iter().chain([self.builder.block_count() as u32]);
        let head: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
        self.builder.front.overwrite(0, &head);
        let part = self.builder.finish(PART, compression);
        EncodedPart { entry_count, live_bytes: self.live_bytes as u32, ..part }
    }
}

impl fmt::Display for BufferPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, msn, pending) in &self.keyed {
            writeln!(f, "{msn} \"{}\": {pending}", key.escape_ascii())?;
        }
        for (range, msn) in &self.ranges {
            writeln!(f, "{msn} delete {range}")?;
        }
        for goto in &self.gotos {
            writeln!(f, "{goto}")?;
        }
        Ok(())
    }
}
