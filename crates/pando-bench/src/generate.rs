//! Contents of files and random choices, repeatable from a seed.

/// Bytes that do not compress and follow from a seed.
pub fn fill(buffer: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for word in buffer.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
    }
}

/// A repeatable sequence of pseudo-random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// Any 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// From 0, which is left out, to 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A number of a gamma distribution of shape 1.5, which is Filebench's, with this mean: half the square of a normal
    /// variable has shape 0.5, an exponential one has shape 1.
    pub fn gamma(&mut self, mean: u64) -> u64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        let value = normal * normal / 2.0 - self.unit().ln();
        (value / 1.5 * mean as f64) as u64
    }

    /// Any order of what there is.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end as u64) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_spread_of_their_distribution() {
        let mut random = Random(1);
        let values: Vec<f64> = (0..100_000).map(|_| random.gamma(1_000_000) as f64 / 1e6).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        // A gamma distribution's variance is the square of its mean over its shape.
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0 / 1.5).abs() < 0.03, "{mean}, {variance}");
    }

    #[test]
    fn an_order_has_everything() {
        let mut items: Vec<u32> = (0..100).collect();
        Random(1).shuffle(&mut items);
        assert!(items.windows(2).any(|pair| pair[0] > pair[1]));
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
