//! Parts of nodes: the unit that is read, verified and decompressed alone.
//!
//! Leaf parts ([`crate::leaf_part`]) and buffer parts ([`crate::buffer_part`]) share one outer form (EUROSYS22, 6):
//! a front in which small things are packed, then, at the next multiple of 4 KiB, the values of exactly 4 KiB, one
//! behind the other. A part read into an aligned buffer therefore has its blocks aligned in memory, and a part that is
//! written uncompressed takes them by reference.
//!
//! * FMT-8 a part's checksum covers the stored bytes, compressed or not, and not the padding behind them.
//! * FMT-9 a part is stored compressed only where that saves at least one block.

use std::fmt;

use bytes::Bytes;

use crate::checksum::{checksum, checksum_shared, verify};
use crate::codec::{BLOCK_LENGTH, Reader, Writer};
use crate::compression::{compress, decompress};
use crate::error::{FormatError, Structure};
use crate::key_codec::{MSN_LENGTH, decode_msn, encode_msn};
use crate::{Compression, Msn};

/// The longest part before compression: bounds what decompressing may allocate.
pub const PART_LENGTH_MAX: u32 = 64 << 20;

/// What the header of a node says about one part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartEntry {
    /// First block of the part, counted in 4 KiB from the header's first byte. 0 if nothing is stored.
    pub offset: u32,
    /// Bytes stored, without the padding to 4 KiB. 0 for a part with nothing in it.
    pub stored_length: u32,
    /// Bytes after decompression.
    pub raw_length: u32,
    /// How the stored bytes are compressed.
    pub compression: Compression,
    /// Of the stored bytes.
    pub checksum: u64,
    /// The newest MSN applied to the part.
    pub msn: Msn,
    /// Entries or messages in it.
    pub entry_count: u32,
    /// Bytes of keys and values in it.
    pub live_bytes: u32,
    /// Reserved for authenticated encryption: 0.
    pub authentication_tag: [u8; 16],
    /// Reserved for authenticated encryption: 0.
    pub nonce: [u8; 12],
}

impl PartEntry {
    /// Bytes an entry takes when encoded.
    pub const ENCODED_LENGTH: usize = 80;

    /// Bytes the part takes in the image: the stored ones padded to 4 KiB.
    pub fn padded_length(&self) -> usize {
        (self.stored_length as usize).next_multiple_of(BLOCK_LENGTH)
    }

    /// First block behind the part.
    pub fn end_block(&self) -> u64 {
        u64::from(self.offset) + (self.padded_length() / BLOCK_LENGTH) as u64
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        let start = writer.len();
        writer.u32(self.offset);
        writer.u32(self.stored_length);
        writer.u32(self.raw_length);
        writer.u8(self.compression as u8);
        writer.zeros(3);
        writer.u64(self.checksum);
        encode_msn(writer, self.msn);
        writer.u32(self.entry_count);
        writer.u32(self.live_bytes);
        writer.raw(&self.authentication_tag);
        writer.raw(&self.nonce);
        writer.zeros(8);
        debug_assert_eq!(writer.len() - start, Self::ENCODED_LENGTH);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (offset, stored_length, raw_length) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let number = reader.u8()?;
        let Some(compression) = Compression::from_number(number) else {
            return Err(reader.wrong("compression", number.into(), "0 to 2"));
        };
        reader.skip(3)?;
        let (checksum, msn) = (reader.u64()?, decode_msn(reader)?);
        let (entry_count, live_bytes) = (reader.u32()?, reader.u32()?);
        let (authentication_tag, nonce) = (reader.array()?, reader.array()?);
        reader.skip(8)?;
        if raw_length > PART_LENGTH_MAX {
            return Err(reader.wrong("raw length of a part", raw_length.into(), "at most 64 MiB"));
        }
        let fits = match compression {
            Compression::None => stored_length == raw_length,
            _ => stored_length < raw_length && stored_length > 0,
        };
        if !fits {
            return Err(reader.wrong(
                "stored length of a part",
                stored_length.into(),
                "to fit its raw length",
            ));
        }
        Ok(Self {
            offset,
            stored_length,
            raw_length,
            compression,
            checksum,
            msn,
            entry_count,
            live_bytes,
            authentication_tag,
            nonce,
        })
    }
}

/// Bytes the fixed fields of an entry take: offset, three lengths and numbers, checksum, MSN, counts, tag, nonce.
const _: () = assert!(PartEntry::ENCODED_LENGTH == 16 + 8 + MSN_LENGTH + 8 + 16 + 12 + 8);

/// A part ready to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncodedPart {
    /// What to write, one behind the other; each a multiple of 4 KiB. Empty for a part with nothing in it.
    pub pieces: Vec<Bytes>,
    /// Bytes without the padding.
    pub stored_length: u32,
    /// Bytes after decompression.
    pub raw_length: u32,
    /// How they are compressed.
    pub compression: Compression,
    /// Of the stored bytes.
    pub checksum: u64,
    /// Entries or messages.
    pub entry_count: u32,
    /// Bytes of keys and values.
    pub live_bytes: u32,
}

impl EncodedPart {
    /// Bytes of the pieces: the stored ones padded to 4 KiB.
    pub fn padded_length(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// The entry for the directory of the node's header.
    ///
    /// `offset` is the part's first block in the image, `msn` the newest MSN applied to it.
    pub fn entry(&self, offset: u32, msn: Msn) -> PartEntry {
        PartEntry {
            offset: if self.stored_length == 0 { 0 } else { offset },
            stored_length: self.stored_length,
            raw_length: self.raw_length,
            compression: self.compression,
            checksum: self.checksum,
            msn,
            entry_count: self.entry_count,
            live_bytes: self.live_bytes,
            ..PartEntry::default()
        }
    }
}

/// Fails unless the stored bytes of a part are what was written. They may be longer than the entry says.
pub fn verify_part(structure: Structure, stored: &[u8], entry: &PartEntry) -> Result<(), FormatError> {
    let length = entry.stored_length as usize;
    let Some(bytes) = stored.get(..length) else {
        let (needed, remaining) = (length as u64, stored.len() as u64);
        return Err(FormatError::Truncated { structure, needed, remaining });
    };
    if bytes.is_empty() { Ok(()) } else { verify(structure, bytes, entry.checksum) }
}

/// The stored bytes of a part, verified and decompressed.
///
/// `structure` is [`Structure::LeafPart`] or [`Structure::BufferPart`]; `stored` may be longer than the entry says,
/// as it is when whole blocks were read. Uncompressed bytes are shared, not copied.
pub fn open_part(structure: Structure, stored: &Bytes, entry: &PartEntry) -> Result<Bytes, FormatError> {
    verify_part(structure, stored, entry)?;
    let stored = stored.slice(..entry.stored_length as usize);
    if stored.is_empty() {
        return Ok(stored);
    }
    if entry.raw_length > PART_LENGTH_MAX {
        let (field, expected) = ("raw length of a part", "at most 64 MiB");
        return Err(FormatError::Field { structure, field, found: entry.raw_length.into(), expected });
    }
    decompress(structure, entry.compression, stored, entry.raw_length as usize)
}

/// Builds the outer form: a front, and blocks behind it.
#[derive(Debug, Default)]
pub(crate) struct PartBuilder {
    /// What is packed in front.
    pub(crate) front: Writer,
    blocks: Vec<Bytes>,
}

impl PartBuilder {
    /// True if the value goes behind the front.
    pub(crate) fn is_block(value: &Bytes) -> bool {
        value.len() == BLOCK_LENGTH
    }

    pub(crate) fn push_block(&mut self, value: Bytes) {
        debug_assert!(Self::is_block(&value));
        self.blocks.push(value);
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the part so far, before compression.
    pub(crate) fn raw_length(&self) -> usize {
        match self.blocks.len() {
            0 => self.front.len(),
            count => self.front.len().next_multiple_of(BLOCK_LENGTH) + count * BLOCK_LENGTH,
        }
    }

    /// Compresses where it pays (FMT-9).
    pub(crate) fn finish(self, structure: Structure, compression: Compression) -> EncodedPart {
        let raw_length = self.raw_length();
        let raw_length_stored = u32::try_from(raw_length).ok().filter(|length| *length <= PART_LENGTH_MAX);
        let raw_length_stored = raw_length_stored.expect("who writes a part asks for its length before");
        let padded = raw_length.next_multiple_of(BLOCK_LENGTH);
        let mut front = self.front;
        if compression != Compression::None && padded > BLOCK_LENGTH {
            let raw = join(&front, &self.blocks, raw_length);
            if let Some(mut stored) = compress(compression, &raw, padded - BLOCK_LENGTH) {
                let stored_length = stored.len();
                let checksum = checksum(structure, &stored);
                stored.resize(stored_length.next_multiple_of(BLOCK_LENGTH), 0);
                return EncodedPart {
                    pieces: vec![stored.into()],
                    stored_length: stored_length as u32,
                    raw_length: raw_length_stored,
                    compression,
                    checksum,
                    entry_count: 0,
                    live_bytes: 0,
                };
            }
        }
        front.pad(BLOCK_LENGTH);
        let mut pieces = Vec::with_capacity(self.blocks.len() + 1);
        pieces.push(Bytes::from(front.into_vec()));
        pieces.extend(self.blocks);
        let checksum = match &pieces[..] {
            [front] => checksum(structure, &front[..raw_length]),
            pieces => checksum_shared(structure, pieces),
        };
        EncodedPart {
            pieces,
            stored_length: raw_length_stored,
            raw_length: raw_length_stored,
            compression: Compression::None,
            checksum,
            entry_count: 0,
            live_bytes: 0,
        }
    }
}

fn join(front: &Writer, blocks: &[Bytes], length: usize) -> Vec<u8> {
    let mut raw = Vec::with_capacity(length);
    raw.extend_from_slice(front.as_slice());
    if !blocks.is_empty() {
        raw.resize(raw.len().next_multiple_of(BLOCK_LENGTH), 0);
    }
    blocks.iter().for_each(|block| raw.extend_from_slice(block));
    raw
}

/// Hands out the blocks behind a front, in their order.
pub(crate) struct BlockReader<'a> {
    raw: &'a Bytes,
    next: usize,
}

impl<'a> BlockReader<'a> {
    /// Splits a raw part. Fails unless it is exactly `front_length` bytes and, at the next multiple of 4 KiB,
    /// `count` blocks.
    pub(crate) fn split(
        structure: Structure,
        raw: &'a Bytes,
        front_length: u32,
        count: u32,
    ) -> Result<(Bytes, Self), FormatError> {
        let front = front_length as usize;
        let start = front.next_multiple_of(BLOCK_LENGTH);
        let expected =
            if count == 0 { front as u64 } else { start as u64 + u64::from(count) * BLOCK_LENGTH as u64 };
        if raw.len() as u64 != expected {
            let expected = "the front and the blocks to fill the part";
            return Err(FormatError::Field {
                structure,
                field: "front length",
                found: front as u64,
                expected,
            });
        }
        Ok((raw.slice(..front), Self { raw, next: start }))
    }

    pub(crate) fn next(&mut self, reader: &Reader<'_>) -> Result<Bytes, FormatError> {
        let end = self.next + BLOCK_LENGTH;
        if end > self.raw.len() {
            return Err(reader.wrong("blocks", self.raw.len() as u64, "one per value of 4 KiB"));
        }
        let block = self.raw.slice(self.next..end);
        self.next = end;
        Ok(block)
    }

    /// Fails if blocks are left.
    pub(crate) fn finish(self, reader: &Reader<'_>) -> Result<(), FormatError> {
        if self.next < self.raw.len().next_multiple_of(BLOCK_LENGTH) {
            return Err(reader.wrong("blocks", self.raw.len() as u64, "one per value of 4 KiB"));
        }
        Ok(())
    }
}

impl fmt::Display for PartEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, stored_length, raw_length, compression, msn, entry_count, .. } = self;
        if *stored_length == 0 {
            return write!(f, "empty part, applied up to {msn}");
        }
        write!(
            f,
            "part at block {offset}, {stored_length} bytes stored, {raw_length} raw ({compression}), "
        )?;
        write!(f, "{entry_count} entries, applied up to {msn}, checksum {:#018x}", self.checksum)
    }
}
