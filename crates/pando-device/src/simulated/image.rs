//! The contents of a simulated device, cheap to copy: thousands of crash states share the blocks in which they agree.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::BLOCK_SIZE;

/// Blocks of one chunk. A copy of an image copies one pointer a chunk, a write to a shared one this many.
const CHUNK_BLOCKS: usize = 128;

/// What a discarded byte reads as.
pub const DISCARDED_BYTE: u8 = 0xd5;

/// Blocks; `None` is a block of zeros.
type Chunk = [Option<Bytes>; CHUNK_BLOCKS];

/// Contents of a device, copied on write.
#[derive(Clone)]
pub struct Image {
    chunks: Vec<Arc<Chunk>>,
    capacity: u64,
}

impl Image {
    /// All zeros.
    pub fn zeroed(capacity: u64) -> Self {
        assert!(capacity.is_multiple_of(BLOCK_SIZE as u64), "a device has whole blocks");
        let empty: Arc<Chunk> = Arc::new([const { None }; CHUNK_BLOCKS]);
        let chunks = capacity.div_ceil((BLOCK_SIZE * CHUNK_BLOCKS) as u64) as usize;
        Self { chunks: vec![empty; chunks], capacity }
    }

    /// Bytes of the device.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether the block with this number is the one given, and not one that merely holds the same: no byte is looked at.
    pub fn shares(&self, number: u64, block: &Bytes) -> bool {
        std::ptr::eq(self.block(number).as_ptr(), block.as_ptr())
    }

    /// The block with this number.
    pub fn block(&self, number: u64) -> Bytes {
        static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
        let (chunk, place) = Self::place(number);
        self.chunks[chunk][place].clone().unwrap_or(Bytes::from_static(&ZEROS))
    }

    /// Replaces a block.
    pub fn set_block(&mut self, number: u64, block: Bytes) {
        assert_eq!(block.len(), BLOCK_SIZE, "a block is a block");
        assert!(number < self.capacity / BLOCK_SIZE as u64, "block {number} lies outside the device");
        let (chunk, place) = Self::place(number);
        Arc::make_mut(&mut self.chunks[chunk])[place] = Some(block);
    }

    /// Copies bytes out, from any offset.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for_each_part(offset, out.len(), |number, inside, range| {
            out[range].copy_from_slice(&self.block(number)[inside]);
        });
    }

    /// Replaces bytes, at any offset. Whole blocks are taken by reference.
    pub fn write(&mut self, offset: u64, bytes: &Bytes) {
        for_each_part(offset, bytes.len(), |number, inside, range| {
            if inside.len() == BLOCK_SIZE {
                self.set_block(number, bytes.slice(range));
                return;
            }
            let mut block = BytesMut::from(&self.block(number)[..]);
            block[inside].copy_from_slice(&bytes[range]);
            self.set_block(number, block.freeze());
        });
    }

    /// Lets whole blocks read as [`DISCARDED_BYTE`].
    pub fn discard(&mut self, offset: u64, length: u64) {
        static GARBAGE: [u8; BLOCK_SIZE] = [DISCARDED_BYTE; BLOCK_SIZE];
        for number in offset.div_ceil(BLOCK_SIZE as u64)..(offset + length) / BLOCK_SIZE as u64 {
            self.set_block(number, Bytes::from_static(&GARBAGE));
        }
    }

    /// Turns one bit over; bit 0 is the lowest.
    pub fn flip_bit(&mut self, offset: u64, bit: u32) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0] ^= 1 << bit;
        self.write(offset, &Bytes::copy_from_slice(&byte));
    }

    fn place(number: u64) -> (usize, usize) {
        (number as usize / CHUNK_BLOCKS, number as usize % CHUNK_BLOCKS)
    }
}

/// Cuts a range of bytes at block borders: calls `part(block, range inside the block, range inside the bytes)`.
fn for_each_part(
    offset: u64,
    length: usize,
    mut part: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let start = (at % BLOCK_SIZE as u64) as usize;
        let count = (BLOCK_SIZE - start).min(length - done);
        part(at / BLOCK_SIZE as u64, start..start + count, done..done + count);
        done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut image = Image::zeroed(1 << 20);
        image.write(4096 * 130, &Bytes::from(vec![1; 8192]));
        let copy = image.clone();
        image.write(4096 * 131 + 512, &Bytes::from(vec![2; 512]));
        let mut bytes = vec![0; 8192];
        copy.read(4096 * 130, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 1));
        image.read(4096 * 130, &mut bytes);
        assert_eq!(bytes.iter().filter(|byte| **byte == 2).count(), 512);
        assert!(bytes[4096 + 512..4096 + 1024].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn reads_cross_blocks_and_zeros() {
        let mut image = Image::zeroed(16384);
        image.write(4000, &Bytes::from(vec![7; 200]));
        let mut bytes = vec![9; 400];
        image.read(3900, &mut bytes);
        assert_eq!(bytes, [vec![0; 100], vec![7; 200], vec![0; 100]].concat());
    }
}
