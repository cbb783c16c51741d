//! Rank correlation: whether two columns put the same things in the same order.

/// Spearman's rank correlation of pairs, from -1 (opposite order) to 1 (same order); equal values share the mean of their
/// ranks. `None` where the columns differ in length, hold fewer than two pairs or something that is not a number, or where
/// one of them is the same all along, so that it has no order.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let unordered = |values: &[f64]| values.iter().any(|value| value.is_nan());
    if a.len() != b.len() || unordered(a) || unordered(b) {
        return None;
    }
    // With shared ranks the short formula (1 - 6 sum d^2 / ...) is wrong; Pearson's of the ranks is right with and without.
    let (a, b) = (ranks(a), ranks(b));
    let middle = (a.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - middle) * (b - middle))
            .sum::<f64>()
    };
    let spread = product(&a, &a) * product(&b, &b);
    (spread > 0.0).then(|| (product(&a, &b) / spread.sqrt()).clamp(-1.0, 1.0))
}

/// The rank of each value from 1 on; equal ones share the mean of theirs.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    ranks_within(values, 0.0)
}

/// The same where values that differ from their neighbour by no more than this are equal.
pub(crate) fn ranks_within(values: &[f64], resolution: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    // Compared as numbers: 0 and -0 are equal.
    let is_equal = |&a: &usize, &b: &usize| {
        values[a] == values[b] || (values[a] - values[b]).abs() <= resolution
    };
    for equal in order.chunk_by(is_equal) {
        let shared = before as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|&index| ranks[index] = shared);
        before += equal.len();
    }
    ranks
}
