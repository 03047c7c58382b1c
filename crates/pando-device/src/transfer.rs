//! A transfer: bytes that move between memory and one contiguous range of a file.
//!
//! Every backend works on transfers. Whatever a backend leaves undone (a short transfer, an interrupted one) is
//! finished by [`Transfer::finish`] with plain `preadv` and `pwritev` on the calling thread.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use rustix::io::Errno;

use crate::{BLOCK_SIZE, Buffer, ReadRequest, WriteRequest};

/// Most pieces the kernel takes in one call (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// Why a transfer did not move all of its bytes, and from which byte of the file on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Byte offset in the file.
    pub offset: u64,
    /// What the system said; `None` if the file ended there.
    pub code: Option<Errno>,
}

/// Where the bytes come from or go to.
pub(crate) enum Memory<'a> {
    /// A read fills what is left of this.
    Read(&'a mut [u8]),
    /// A write takes these, from the numbered piece on.
    Write(Vec<IoSlice<'a>>, usize),
}

/// What is still to be moved.
pub(crate) struct Transfer<'a> {
    /// Byte offset in the file of the next byte.
    pub offset: u64,
    /// The memory side.
    pub memory: Memory<'a>,
}

impl<'a> Transfer<'a> {
    /// Fills the request's buffer.
    pub fn read(request: &'a mut ReadRequest) -> Self {
        Self { offset: request.offset, memory: Memory::Read(&mut request.buffer) }
    }

    /// Writes memory back to back.
    pub fn write(offset: u64, pieces: &'a [Bytes]) -> Self {
        let slices =
            pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)).collect();
        Self { offset, memory: Memory::Write(slices, 0) }
    }

    /// Bytes still to be moved by one call: at most [`PIECES_MAX`] pieces.
    pub fn next_length(&self) -> usize {
        match &self.memory {
            Memory::Read(rest) => rest.len(),
            Memory::Write(..) => self.next_pieces().iter().map(|piece| piece.len()).sum(),
        }
    }

    /// The pieces of one call of a write; none for a read.
    pub fn next_pieces(&self) -> &[IoSlice<'a>] {
        match &self.memory {
            Memory::Read(_) => &[],
            Memory::Write(slices, first) => &slices[*first..slices.len().min(first + PIECES_MAX)],
        }
    }

    /// Notes that `count` bytes were moved.
    pub fn advance(&mut self, mut count: usize) {
        self.offset += count as u64;
        match &mut self.memory {
            Memory::Read(rest) => *rest = &mut std::mem::take(rest)[count..],
            Memory::Write(slices, first) => {
                while count > 0 {
                    let length = slices[*first].len();
                    if count < length {
                        slices[*first].advance(count);
                        return;
                    }
                    *first += 1;
                    count -= length;
                }
            }
        }
    }

    /// Moves all that is left, blocking the calling thread.
    pub fn finish(&mut self, file: BorrowedFd<'_>) -> Result<(), Failure> {
        while self.next_length() > 0 {
            let moved = match &mut self.memory {
                Memory::Read(rest) => rustix::io::preadv(file, &mut [IoSliceMut::new(rest)], self.offset),
                Memory::Write(..) => rustix::io::pwritev(file, self.next_pieces(), self.offset),
            };
            match moved {
                Ok(0) => return Err(Failure { offset: self.offset, code: None }),
                Ok(count) => self.advance(count),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(code) => return Err(Failure { offset: self.offset, code: Some(code) }),
            }
        }
        Ok(())
    }
}

/// The pieces of a write, each at an address that direct I/O takes: neighbours that are not aligned to a block are
/// copied together into one aligned buffer, the others are shared.
pub(crate) fn aligned_pieces(request: &WriteRequest) -> Vec<Bytes> {
    let is_aligned = |piece: &Bytes| piece.as_ptr().addr().is_multiple_of(BLOCK_SIZE);
    let mut aligned = Vec::with_capacity(request.pieces.len());
    for run in request.pieces.chunk_by(|a, b| is_aligned(a) == is_aligned(b)) {
        if is_aligned(&run[0]) {
            aligned.extend_from_slice(run);
            continue;
        }
        let length = run.iter().map(Bytes::len).sum();
        if length == 0 {
            continue;
        }
        let mut copy = Buffer::for_overwrite(length);
        let mut end = 0;
        for piece in run {
            copy[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        aligned.push(copy.freeze().slice(..length));
    }
    aligned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advancing_stops_inside_a_piece() {
        let pieces = [Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")];
        let mut transfer = Transfer::write(10, &pieces);
        assert_eq!(transfer.next_length(), 7);
        transfer.advance(4);
        assert_eq!((transfer.offset, transfer.next_length()), (14, 3));
        assert_eq!(&transfer.next_pieces()[0][..], b"efg");
        transfer.advance(3);
        assert_eq!(transfer.next_length(), 0);
    }

    #[test]
    fn only_misaligned_neighbours_are_copied() {
        let mut buffer = Buffer::zeroed(3 * BLOCK_SIZE);
        for (i, byte) in buffer.iter_mut().enumerate() {
            *byte = (i / 7) as u8;
        }
        let memory = buffer.freeze();
        let aligned = memory.slice(..BLOCK_SIZE);
        let askew = memory.slice(100..100 + BLOCK_SIZE);
        let pieces = vec![aligned.clone(), askew.clone(), askew.clone(), aligned.clone()];
        let made = aligned_pieces(&WriteRequest { offset: 0, pieces: pieces.clone() });
        assert_eq!(made.iter().map(Bytes::len).collect::<Vec<_>>(), [4096, 8192, 4096]);
        assert_eq!(made[0].as_ptr(), aligned.as_ptr());
        assert!(made.iter().all(|piece| piece.as_ptr().addr().is_multiple_of(BLOCK_SIZE)));
        assert_eq!(made.concat(), pieces.concat());
    }
}
