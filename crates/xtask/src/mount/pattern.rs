//! Pseudo-random file contents that can be made again for comparing.

/// Fills a buffer with bytes that depend on a seed and on nothing else, and do not compress.
pub fn fill(buffer: &mut [u8], seed: u64) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let value = mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64));
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// A bijective mix of 64 bits (the finalizer of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A repeatable sequence of pseudo-random numbers.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0.rotate_left(17) ^ 0x5bd1_e995) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_depend_on_the_seed_alone() {
        let (mut first, mut second, mut other) = ([0; 100], [0; 100], [0; 100]);
        fill(&mut first, 7);
        fill(&mut second, 7);
        fill(&mut other, 8);
        assert_eq!(first, second);
        assert_ne!(first, other);
    }
}
