//! Checksums: xxh3, 64 bits, seeded with the number of the structure they cover.
//!
//! They find accidents, not forgery. What a checksum covers carries its own name (volume, node, generation,
//! sequence) in the same bytes, so its place on the device need not go into the seed: a block that landed in
//! the wrong place is found by comparing names.

use std::hash::Hasher;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::error::{FormatError, Structure};

/// The checksum of contiguous bytes.
pub fn checksum(structure: Structure, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(structure as u64, bytes)
}

/// The checksum of bytes that come one after the other.
pub struct Checksum(XxHash3_64);

impl Checksum {
    /// That of no bytes.
    pub fn new(structure: Structure) -> Self {
        Self(XxHash3_64::with_seed(structure as u64))
    }

    /// Takes in the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all that came.
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// The checksum of bytes that lie in pieces, without joining them.
pub fn checksum_pieces<'a>(structure: Structure, pieces: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut checksum = Checksum::new(structure);
    pieces.into_iter().for_each(|piece| checksum.add(piece));
    checksum.finish()
}

/// [`checksum_pieces`] of shared bytes.
pub fn checksum_shared(structure: Structure, pieces: &[Bytes]) -> u64 {
    checksum_pieces(structure, pieces.iter().map(|piece| &piece[..]))
}

/// Fails unless the bytes have the checksum.
pub fn verify(structure: Structure, bytes: &[u8], expected: u64) -> Result<(), FormatError> {
    let found = checksum(structure, bytes);
    if found == expected { Ok(()) } else { Err(FormatError::Checksum { structure, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_the_whole_have_one_checksum() {
        let whole: Vec<u8> = (0..10_000_u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 240, 4096, 9_999, 10_000] {
            let pieces = [&whole[..cut], &whole[cut..]];
            let expected = checksum(Structure::LeafPart, &whole);
            assert_eq!(checksum_pieces(Structure::LeafPart, pieces), expected, "cut at {cut}");
        }
    }

    #[test]
    fn one_structure_never_passes_for_another() {
        assert_ne!(checksum(Structure::LeafPart, b"abc"), checksum(Structure::BufferPart, b"abc"));
    }
}
