//! What is said of several values.

/// The middle value; the mean of the two in the middle; zero of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length => (sorted[length / 2] + sorted[(length - 1) / 2]) / 2.0,
    }
}

/// The smallest and the largest; zeros of none.
pub fn range(values: &[f64]) -> (f64, f64) {
    let extreme = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or(0.0);
    (extreme(f64::min), extreme(f64::max))
}

/// The value that this share of all does not pass; zero of none.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!((median(&[]), median(&[7.0])), (0.0, 7.0));
        assert_eq!(range(&[3.0, 1.0, 2.0]), (1.0, 3.0));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.999), percentile(&values, 1.0)), (999.0, 1000.0));
        assert_eq!((percentile(&values, 0.0), percentile(&[], 0.5)), (1.0, 0.0));
    }
}
