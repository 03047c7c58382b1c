//! Answers, and the records they are made of.

use bytes::Bytes;
use pando_fs::operations::{Attributes, DirectoryEntry, Entry, FileType, ListAttributes, Statistics};
use rustix::io::Errno;

use super::wire::{Put, split_time};
use super::{BLOCK_BYTES, FOREVER, NAME_BYTES_MAX};

/// Room for every answer that is one record, but for that to STATX.
const INLINE_BYTES_MAX: usize = 144;

/// A few bytes on the stack.
#[derive(Clone)]
pub(crate) struct Inline {
    bytes: [u8; INLINE_BYTES_MAX],
    length: usize,
}

impl Default for Inline {
    fn default() -> Self {
        Self { bytes: [0; INLINE_BYTES_MAX], length: 0 }
    }
}

impl Inline {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Put for Inline {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// What a request is answered with.
pub(crate) enum Answer {
    /// It was done, and there is nothing to tell.
    Done,
    /// One record.
    Record(Inline),
    /// A run of bytes.
    Buffer(Vec<u8>),
    /// Pieces of a file, back to back, as the file system keeps them.
    Pieces(Vec<Bytes>),
    /// This answer, once something has run that waits for locks of the kernel's: it must be on a thread that serves no requests
    /// (FU-4).
    Later(Box<Answer>, Box<dyn FnOnce() + Send>),
    /// It was not done.
    Refused(Errno),
}

/// For how long the kernel may go by attributes that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Until it is told of a change, or makes one.
    Forever,
    /// Not at all: it asks each time.
    No,
}

impl Kept {
    fn seconds(self) -> u64 {
        match self {
            Self::Forever => FOREVER,
            Self::No => 0,
        }
    }
}

/// The header of an answer to a request.
pub(crate) fn answer_header(unique: u64, error: Option<Errno>, body_bytes: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let error = error.map_or(0, |errno| -errno.raw_os_error());
    header[..4].copy_from_slice(&(16 + body_bytes as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

impl Answer {
    /// An inode that was found or made, whose attributes the kernel may go by from then on.
    pub(crate) fn entry(entry: &Entry) -> Self {
        Self::found(entry, Kept::Forever)
    }

    /// An inode that was found.
    pub(crate) fn found(entry: &Entry, kept: Kept) -> Self {
        let mut out = Inline::default();
        put_entry(&mut out, &entry.attributes, kept);
        Self::Record(out)
    }

    /// An inode that was found under a name that may be another's the next time.
    pub(crate) fn fleeting(entry: &Entry) -> Self {
        let mut out = Inline::default();
        put_entry(&mut out, &entry.attributes, Kept::Forever);
        // How long the name is good for, in seconds.
        out.bytes[16..24].fill(0);
        Self::Record(out)
    }

    /// No such name: inode 0, which the kernel remembers for as long as it is told.
    pub(crate) fn absent() -> Self {
        let mut out = Inline::default();
        out.u64(0);
        out.u64(0);
        out.u64(FOREVER);
        out.zeros(128 - 24);
        Self::Record(out)
    }

    pub(crate) fn attributes(attributes: &Attributes, kept: Kept) -> Self {
        let mut out = Inline::default();
        out.u64(kept.seconds());
        out.u64(0);
        put_attributes(&mut out, attributes);
        Self::Record(out)
    }

    /// Attributes with the time of birth.
    pub(crate) fn all_attributes(attributes: &Attributes, kept: Kept) -> Self {
        let mut out = Vec::with_capacity(288);
        out.u64(kept.seconds());
        out.zeros(24);
        put_statx(&mut out, attributes);
        Self::Buffer(out)
    }

    /// What an ioctl gives back.
    pub(crate) fn ioctl(bytes: &[u8]) -> Self {
        let mut out = Vec::with_capacity(16 + bytes.len());
        out.zeros(16);
        out.put(bytes);
        Self::Buffer(out)
    }

    /// A directory that was opened.
    pub(crate) fn opened() -> Self {
        let mut out = Inline::default();
        put_opened(&mut out);
        Self::Record(out)
    }

    /// Bytes written or copied, or the bytes of a value.
    pub(crate) fn count(count: u32) -> Self {
        let mut out = Inline::default();
        out.u32(count);
        out.u32(0);
        Self::Record(out)
    }

    /// An offset, or a count of 64 bits.
    pub(crate) fn number(number: u64) -> Self {
        let mut out = Inline::default();
        out.u64(number);
        Self::Record(out)
    }

    pub(crate) fn statistics(statistics: &Statistics) -> Self {
        let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
        let mut out = Inline::default();
        out.u64(blocks(statistics.capacity));
        out.u64(blocks(statistics.free));
        out.u64(blocks(statistics.available));
        out.u64(statistics.inodes);
        out.u64(statistics.inodes_free);
        out.u32(BLOCK_BYTES);
        out.u32(NAME_BYTES_MAX);
        out.u32(BLOCK_BYTES);
        out.zeros(28);
        Self::Record(out)
    }
}

/// An inode that was made and opened at once.
pub(crate) fn entry_and_file(entry: &Entry) -> Answer {
    let mut out = Inline::default();
    put_entry(&mut out, &entry.attributes, Kept::Forever);
    put_opened(&mut out);
    Answer::Record(out)
}

/// Its handle is 0: nothing is kept of who has what open. Nor are there flags.
fn put_opened(out: &mut impl Put) {
    out.zeros(16);
}

fn put_entry(out: &mut impl Put, attributes: &Attributes, kept: Kept) {
    out.u64(attributes.inode.0);
    out.u64(attributes.generation);
    out.u64(FOREVER);
    out.u64(kept.seconds());
    out.u64(0);
    put_attributes(out, attributes);
}

/// The type of a file as `st_mode` has it.
fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

fn mode(attributes: &Attributes) -> u32 {
    type_bits(attributes.file_type) | attributes.mode & 0o7777
}

fn put_attributes(out: &mut impl Put, attributes: &Attributes) {
    let times = [attributes.accessed, attributes.modified, attributes.changed].map(split_time);
    out.u64(attributes.inode.0);
    out.u64(attributes.size);
    out.u64(attributes.blocks);
    for (seconds, _) in times {
        out.u64(seconds as u64);
    }
    for (_, nanoseconds) in times {
        out.u32(nanoseconds);
    }
    out.u32(mode(attributes));
    out.u32(attributes.links);
    out.u32(attributes.uid);
    out.u32(attributes.gid);
    // The kernel's 32 bits are the lower half of what makedev gives for any number the kernel can have.
    out.u32(attributes.device as u32);
    out.u32(BLOCK_BYTES);
    out.u32(0);
}

/// All that stat(2) tells, and the time of birth.
const STATX_MASK: u32 = 0x7ff | 0x800;

fn put_statx(out: &mut impl Put, attributes: &Attributes) {
    out.u32(STATX_MASK);
    out.u32(BLOCK_BYTES);
    out.u64(0);
    out.u32(attributes.links);
    out.u32(attributes.uid);
    out.u32(attributes.gid);
    out.u16(mode(attributes) as u16);
    out.u16(0);
    out.u64(attributes.inode.0);
    out.u64(attributes.size);
    out.u64(attributes.blocks);
    out.u64(0);
    for time in [attributes.accessed, attributes.born, attributes.changed, attributes.modified] {
        let (seconds, nanoseconds) = split_time(time);
        out.u64(seconds as u64);
        out.u32(nanoseconds);
        out.u32(0);
    }
    out.u32(rustix::fs::major(attributes.device));
    out.u32(rustix::fs::minor(attributes.device));
    // The number of the file system is the kernel's to say.
    out.zeros(8 + 14 * 8);
}

/// Memory that a listing begins with, in bytes: enough for most directories, and not much for those with few names.
const FIRST_BYTES: usize = 8 << 10;

/// Gathers entries of a directory until they no longer fit.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
    attributes: ListAttributes,
}

impl Listing {
    pub(crate) fn new(bytes_max: usize, attributes: ListAttributes) -> Self {
        Self { bytes: Vec::with_capacity(bytes_max.min(FIRST_BYTES)), bytes_max, attributes }
    }

    pub(crate) fn attributes(&self) -> ListAttributes {
        self.attributes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn into_answer(self) -> Answer {
        Answer::Buffer(self.bytes)
    }

    /// Adds an entry if it fits. `.` and `..` go without attributes: the kernel looks them up by itself.
    pub(crate) fn add(&mut self, entry: &DirectoryEntry, kept: Kept) -> bool {
        let name_bytes = entry.name.len();
        let padding = name_bytes.next_multiple_of(8) - name_bytes;
        let has_attributes = self.attributes != ListAttributes::OfNone;
        let record_bytes = 128 * usize::from(has_attributes) + 24 + name_bytes + padding;
        if self.bytes.len() + record_bytes > self.bytes_max {
            return false;
        }
        let out = &mut self.bytes;
        out.reserve(record_bytes);
        if has_attributes {
            match &entry.attributes {
                Some(attributes) => put_entry(out, attributes, kept),
                // The kernel takes the name alone, and asks when it wants to know more.
                None => out.zeros(128),
            }
        }
        out.u64(entry.inode.0);
        out.u64(entry.cookie);
        out.u32(name_bytes as u32);
        out.u32(type_bits(entry.file_type) >> 12);
        out.put(&entry.name);
        out.zeros(padding);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use pando_fs::InodeNumber;

    use super::*;

    fn sample() -> Attributes {
        Attributes {
            inode: InodeNumber(77),
            generation: 5,
            file_type: FileType::Directory,
            mode: 0o1755,
            links: 2,
            uid: 3,
            gid: 4,
            device: 0,
            size: 4096,
            blocks: 8,
            accessed: UNIX_EPOCH - Duration::from_millis(500),
            modified: UNIX_EPOCH,
            changed: UNIX_EPOCH,
            born: UNIX_EPOCH + Duration::from_nanos(9),
        }
    }

    fn record(answer: Answer) -> Vec<u8> {
        match answer {
            Answer::Record(record) => record.as_bytes().to_vec(),
            Answer::Buffer(bytes) => bytes,
            _ => panic!("no record"),
        }
    }

    #[test]
    fn records_have_the_lengths_of_the_protocol() {
        let attributes = sample();
        let entry = Entry { attributes };
        assert_eq!(record(Answer::entry(&entry)).len(), 128);
        assert_eq!(record(Answer::absent()).len(), 128);
        assert_eq!(record(Answer::attributes(&attributes, Kept::Forever)).len(), 104);
        assert_eq!(record(Answer::all_attributes(&attributes, Kept::No)).len(), 288);
        assert_eq!(record(entry_and_file(&entry)).len(), 144);
        assert_eq!(record(Answer::opened()).len(), 16);
        let statistics = Statistics { capacity: 0, free: 0, available: 0, inodes: 0, inodes_free: 0 };
        assert_eq!(record(Answer::statistics(&statistics)).len(), 80);
    }

    #[test]
    fn attributes_stand_where_the_kernel_reads_them() {
        let bytes = record(Answer::entry(&Entry { attributes: sample() }));
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let double = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((double(0), double(8), double(40), double(48)), (77, 5, 77, 4096));
        assert_eq!((double(64) as i64, word(88)), (-1, 500_000_000));
        assert_eq!((word(100), word(104), word(108), word(112)), (0o041_755, 2, 3, 4));
    }

    #[test]
    fn a_listing_ends_where_it_is_full() {
        let entry = DirectoryEntry {
            cookie: 1,
            name: Bytes::from_static(b"ninebytes"),
            inode: InodeNumber(77),
            file_type: FileType::Directory,
            attributes: Some(sample()),
        };
        for (attributes, record_bytes) in [(ListAttributes::OfNone, 40), (ListAttributes::OfDirectories, 168)]
        {
            let mut listing = Listing::new(2 * record_bytes + 7, attributes);
            assert!(listing.is_empty());
            assert!(
                listing.add(&entry, Kept::Forever)
                    && listing.add(&entry, Kept::Forever)
                    && !listing.add(&entry, Kept::Forever)
            );
            assert_eq!(record(listing.into_answer()).len(), 2 * record_bytes);
        }
    }

    #[test]
    fn a_header_carries_the_error() {
        let header = answer_header(9, Some(Errno::NOENT), 0);
        assert_eq!(header[..4], 16u32.to_ne_bytes());
        assert_eq!(header[4..8], (-2i32).to_ne_bytes());
        assert_eq!(header[8..], 9u64.to_ne_bytes());
    }
}
