//! What lies under a name: an inode's record, or, for a file with several links, a redirect to its record.

use bytes::{BufMut, Bytes, BytesMut};

use super::record::{Input, RECORD_VERSION, Record, RecordError, TYPE_MASK, type_bits, type_of};
use crate::operations::FileType;

/// Kind in the second byte of a redirect.
pub const REDIRECT_KIND: u8 = 1;
/// Bytes of a redirect.
pub const REDIRECT_LENGTH: usize = 16;

/// One name of a file with several links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The inode number; the record lies under [`super::key::linked_key`] of it.
    pub number: u64,
    /// What the inode is, so that a listing need not read its record.
    pub file_type: FileType,
}

impl Redirect {
    /// The redirect's bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(REDIRECT_LENGTH);
        out.put_u8(RECORD_VERSION);
        out.put_u8(REDIRECT_KIND);
        out.put_u16_le(type_bits(self.file_type) as u16);
        out.put_u32_le(0);
        out.put_u64_le(self.number);
        out.freeze()
    }

    /// Reads a redirect. Never trusts the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut input = Input { rest: bytes, length: bytes.len() };
        input.head(REDIRECT_KIND)?;
        let mode = u32::from(input.u16()?);
        let file_type = type_of(mode & TYPE_MASK).filter(|file_type| *file_type != FileType::Directory);
        let file_type = file_type.ok_or(RecordError::FileType { mode })?;
        input.u32()?;
        let number = input.u64()?;
        if input.rest.is_empty() { Ok(Self { number, file_type }) } else { Err(RecordError::Variable) }
    }
}

/// The value under a path key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one, and none is kept")]
pub enum NameRecord {
    /// The inode's only name: its record.
    Inode(Record),
    /// One of the names of a file with several links.
    Redirect(Redirect),
}

impl NameRecord {
    /// Reads either. Never trusts the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.get(1) == Some(&REDIRECT_KIND) {
            Redirect::decode(bytes).map(Self::Redirect)
        } else {
            Record::decode(bytes).map(Self::Inode)
        }
    }

    /// As [`Record::in_tree`].
    pub fn in_tree(self) -> Result<Self, RecordError> {
        match self {
            Self::Inode(record) => record.in_tree().map(Self::Inode),
            Self::Redirect(_) => Ok(self),
        }
    }

    /// The type of the file that has the name.
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Inode(record) => record.file_type,
            Self::Redirect(redirect) => redirect.file_type,
        }
    }
}

impl std::fmt::Display for NameRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inode(record) => record.fmt(f),
            Self::Redirect(Redirect { number, file_type }) => {
                write!(f, "a link to inode {number}: {file_type:?}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Timestamp;

    #[test]
    fn a_redirect_survives_the_way_there_and_back() {
        let redirect = Redirect { number: u64::MAX - 5, file_type: FileType::Fifo };
        assert_eq!(NameRecord::decode(&redirect.encode()), Ok(NameRecord::Redirect(redirect)));
        assert_eq!(redirect.encode().len(), REDIRECT_LENGTH);
        let record = Record::new(FileType::Regular, 7, Timestamp::default());
        assert_eq!(NameRecord::decode(&record.encode()), Ok(NameRecord::Inode(record)));
    }

    #[test]
    fn neither_kind_is_taken_for_the_other() {
        let redirect = Redirect { number: 1, file_type: FileType::Regular }.encode();
        assert_eq!(Record::decode(&redirect), Err(RecordError::Kind { found: REDIRECT_KIND }));
        let record = Record::new(FileType::Regular, 7, Timestamp::default()).encode();
        assert_eq!(Redirect::decode(&record), Err(RecordError::Kind { found: 0 }));
    }

    #[test]
    fn what_no_name_can_redirect_to_is_an_error() {
        let bytes = Redirect { number: 1, file_type: FileType::Regular }.encode();
        for length in 0..bytes.len() {
            assert!(NameRecord::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(NameRecord::decode(&[&bytes[..], b"x"].concat()), Err(RecordError::Variable));
        let mut directory = bytes.to_vec();
        directory[2..4].copy_from_slice(&0o040_000u16.to_le_bytes());
        assert_eq!(NameRecord::decode(&directory), Err(RecordError::FileType { mode: 0o040_000 }));
    }
}
