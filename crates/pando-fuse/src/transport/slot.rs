//! The memory of one request over io_uring: the kernel writes the request into it, and reads the answer from it.
//!
//! * SL-1 a [`Slot`] is in the hands of one thread of ours, and the kernel does not touch its memory, from the completion
//!   that brings a request until the command that takes the answer away.
#![expect(unsafe_code, reason = "the kernel and we write to the same memory by turns")]

use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::protocol::{Answer, REQUEST_BYTES_MAX, answer_header};

/// Where the parts of the kernel's header lie: the header of request or answer, the fixed part of the body, and what
/// concerns the slot itself.
const FIXED: usize = 128;
const COMMIT_ID: usize = 264;
const PAYLOAD_BYTES: usize = 272;

/// Bytes of the kernel's header.
const HEADER_BYTES: usize = 288;

/// The payload begins on a page.
const PAYLOAD: usize = 4096;

/// Room for the rest of a body and for the body of an answer: what the kernel demands for our largest request.
const PAYLOAD_BYTES_MAX: usize = REQUEST_BYTES_MAX as usize;

/// A range of memory as the kernel takes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    start: *mut u8,
    bytes: usize,
}

/// The memory of one request.
#[derive(Debug)]
pub(super) struct Slot {
    index: usize,
    start: NonNull<u8>,
}

// SAFETY: it owns its memory, and whoever has the slot is the only one to use it (SL-1).
unsafe impl Send for Slot {}

impl Slot {
    /// Fresh memory for the slot of this number.
    pub(super) fn new(index: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever the kernel finds room, overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAYLOAD + PAYLOAD_BYTES_MAX, protection, flags)
        }?;
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { index, start })
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Header and payload, for the kernel to use once the slot is lent to it.
    pub(super) fn ranges(&self) -> [Range; 2] {
        let start = self.start.as_ptr();
        let payload = start.wrapping_add(PAYLOAD);
        [Range { start, bytes: HEADER_BYTES }, Range { start: payload, bytes: PAYLOAD_BYTES_MAX }]
    }

    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= PAYLOAD + PAYLOAD_BYTES_MAX, "a slot ends with its payload");
        // SAFETY: inside the mapping, which is initialized with zeros, and nobody writes to it (SL-1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), length) }
    }

    fn bytes_mut(&mut self, offset: usize, length: usize) -> &mut [u8] {
        assert!(offset + length <= PAYLOAD + PAYLOAD_BYTES_MAX, "a slot ends with its payload");
        // SAFETY: inside the mapping, which is initialized with zeros, and nobody else uses it (SL-1).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) }
    }

    fn number<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.bytes(offset, N).try_into().expect("N bytes were asked for")
    }

    /// The number under which the kernel takes the answer.
    pub(super) fn commit_id(&self) -> u64 {
        u64::from_ne_bytes(self.number(COMMIT_ID))
    }

    /// The header of the request in it.
    pub(super) fn header(&self) -> &[u8] {
        self.bytes(0, FIXED)
    }

    /// The fixed part of its body, with what lies behind it.
    pub(super) fn fixed(&self) -> &[u8] {
        self.bytes(FIXED, FIXED)
    }

    /// The rest of its body.
    pub(super) fn rest(&self) -> &[u8] {
        let length = u32::from_ne_bytes(self.number(PAYLOAD_BYTES)) as usize;
        self.bytes(PAYLOAD, length.min(PAYLOAD_BYTES_MAX))
    }

    /// Writes the answer to the request into it.
    pub(super) fn answer(&mut self, unique: u64, answer: &Answer) {
        let (error, length) = match answer {
            Answer::Done => (None, 0),
            Answer::Record(record) => self.fill(&[record.as_bytes()]),
            Answer::Buffer(bytes) => self.fill(&[bytes]),
            Answer::Pieces(pieces) => self.fill(pieces),
            Answer::Refused(errno) => (Some(*errno), 0),
            Answer::Later(..) => unreachable!("what comes later comes once"),
        };
        self.finish(unique, error, length);
    }

    fn finish(&mut self, unique: u64, error: Option<Errno>, length: usize) {
        self.bytes_mut(0, 16).copy_from_slice(&answer_header(unique, error, length));
        self.bytes_mut(PAYLOAD_BYTES, 4).copy_from_slice(&(length as u32).to_ne_bytes());
    }

    /// Copies the body of an answer, and returns its length; an error if that is more than the kernel can have asked for, such as the target of a
    /// symbolic link that nobody could make, on a crafted volume.
    fn fill(&mut self, pieces: &[impl AsRef<[u8]>]) -> (Option<Errno>, usize) {
        if pieces.iter().map(|piece| piece.as_ref().len()).sum::<usize>() > PAYLOAD_BYTES_MAX {
            return (Some(Errno::IO), 0);
        }
        let mut length = 0;
        for piece in pieces {
            let piece = piece.as_ref();
            self.bytes_mut(PAYLOAD + length, piece.len()).copy_from_slice(piece);
            length += piece.len();
        }
        (None, length)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the mapping is the slot's own, and the kernel does not use it any more (SL-1).
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), PAYLOAD + PAYLOAD_BYTES_MAX) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn an_answer_lies_where_the_kernel_looks() {
        let mut slot = Slot::new(3).unwrap();
        let pieces = vec![Bytes::from_static(b"back "), Bytes::from_static(b"to back")];
        slot.answer(7, &Answer::Pieces(pieces));
        assert_eq!(slot.rest(), b"back to back");
        assert_eq!(slot.header()[..16], answer_header(7, None, 12));
        slot.answer(8, &Answer::Refused(Errno::NOENT));
        assert_eq!(slot.rest(), b"");
        assert_eq!(slot.header()[..16], answer_header(8, Some(Errno::NOENT), 0));
        let longest = vec![1; PAYLOAD_BYTES_MAX];
        slot.answer(9, &Answer::Buffer(longest.clone()));
        assert!(slot.rest() == longest);
        slot.answer(10, &Answer::Buffer(vec![1; PAYLOAD_BYTES_MAX + 1]));
        assert_eq!(
            (slot.rest(), &slot.header()[..16]),
            (&b""[..], &answer_header(10, Some(Errno::IO), 0)[..])
        );
    }
}
