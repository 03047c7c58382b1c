//! Reading and writing of little-endian fields.
//!
//! [`Reader`] is total: whatever the bytes, it gives a value or a [`FormatError`], never a panic, and no count in the
//! bytes makes it or its callers allocate more than the bytes could hold (FMT-3).

use bytes::Bytes;

use crate::error::{FormatError, Structure};

/// Bytes in a block of the device: the alignment of everything that is read alone.
pub const BLOCK_LENGTH: usize = 4096;

/// Walks through the fields of one structure.
pub struct Reader<'a> {
    bytes: &'a Bytes,
    position: usize,
    structure: Structure,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(structure: Structure, bytes: &'a Bytes) -> Self {
        Self { bytes, position: 0, structure }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Bytes read.
    pub fn position(&self) -> usize {
        self.position
    }

    /// An error about a field of this structure.
    pub fn wrong(&self, field: &'static str, found: u64, expected: &'static str) -> FormatError {
        FormatError::Field { structure: self.structure, field, found, expected }
    }

    fn advance(&mut self, length: usize) -> Result<usize, FormatError> {
        if length > self.remaining() {
            return Err(FormatError::Truncated {
                structure: self.structure,
                needed: length as u64,
                remaining: self.remaining() as u64,
            });
        }
        let start = self.position;
        self.position += length;
        Ok(start)
    }

    /// The next `N` bytes, copied.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let start = self.advance(N)?;
        Ok(self.bytes[start..start + N].try_into().expect("the slice has N bytes"))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The next `length` bytes, shared.
    pub fn bytes(&mut self, length: usize) -> Result<Bytes, FormatError> {
        let start = self.advance(length)?;
        Ok(self.bytes.slice(start..start + length))
    }

    /// A u32 length and that many bytes, shared.
    pub fn sized_bytes(&mut self) -> Result<Bytes, FormatError> {
        let length = self.u32()? as usize;
        self.bytes(length)
    }

    /// Passes over reserved bytes, whatever they hold.
    pub fn skip(&mut self, length: usize) -> Result<(), FormatError> {
        self.advance(length).map(drop)
    }

    /// A u32 count of things that take at least `least` bytes each; fails unless that many can follow, so that
    /// the count is safe as a capacity.
    pub fn count(&mut self, least: usize) -> Result<usize, FormatError> {
        let count = self.u32()?;
        self.check_count(count, least)
    }

    /// Checks a count that was read from elsewhere; see [`Reader::count`].
    pub fn check_count(&self, count: u32, least: usize) -> Result<usize, FormatError> {
        let needed = u64::from(count) * least as u64;
        if needed > self.remaining() as u64 {
            return Err(FormatError::Truncated {
                structure: self.structure,
                needed,
                remaining: self.remaining() as u64,
            });
        }
        Ok(count as usize)
    }

    /// Fails if anything is left.
    pub fn finish(&self) -> Result<(), FormatError> {
        match self.remaining() {
            0 => Ok(()),
            rest => Err(self.wrong("bytes after the last field", rest as u64, "0")),
        }
    }
}

/// Appends fields to a growing vector.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one with room for so many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A length or count as u32.
    pub fn length(&mut self, length: usize) {
        self.u32(length.try_into().expect("lengths and counts on the device are below 4 GiB"));
    }

    /// A u32 length and the bytes.
    pub fn sized_bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    /// Reserved bytes.
    pub fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Zeros up to the next multiple of `unit`.
    pub fn pad(&mut self, unit: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(unit), 0);
    }

    /// Puts bytes over ones written earlier.
    pub fn overwrite(&mut self, position: usize, bytes: &[u8]) {
        self.bytes[position..position + bytes.len()].copy_from_slice(bytes);
    }

    /// What was written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// What was written.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// A [`Writer`] that takes large values in by reference: only the small fields around them are copied.
#[derive(Debug, Clone, Default)]
pub struct PieceWriter {
    /// Everything but the referenced values.
    pub fields: Writer,
    references: Vec<(usize, Bytes)>,
}

impl PieceWriter {
    /// Shorter values are copied: a reference costs about as much.
    pub const REFERENCE_LENGTH_MIN: usize = 1024;

    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one with room for so many bytes of its own.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { fields: Writer::with_capacity(capacity), ..Self::default() }
    }

    /// Bytes written, those of references included.
    pub fn len(&self) -> usize {
        self.fields.len() + self.references.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A u32 length and the bytes, by reference where they are long.
    pub fn sized_value(&mut self, bytes: &Bytes) {
        self.fields.length(bytes.len());
        if bytes.len() < Self::REFERENCE_LENGTH_MIN {
            self.fields.raw(bytes);
        } else {
            self.references.push((self.fields.len(), bytes.clone()));
        }
    }

    /// What was written, to be read one behind the other.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.references.iter().map(|(position, _)| *position));
        let ends = self.references.iter().map(|(position, bytes)| (*position, &bytes[..]));
        let ends = ends.chain(std::iter::once((self.fields.len(), &[][..])));
        starts.zip(ends).flat_map(|(start, (end, bytes))| [&self.fields.as_slice()[start..end], bytes])
    }
}
