//! Order statistics of sums of two sorted lists, without making the list of sums.
//!
//! Of 1000 samples a side there are a million differences; finding one of given rank by halving the range of its value takes 64
//! passes over both lists.

/// The `rank`-th smallest (from 1) of all differences `b - a`. Both lists are sorted and not empty.
pub(super) fn difference(a: &[f64], b: &[f64], rank: usize) -> f64 {
    by_halving(rank, |value| {
        // For each b, from the smallest on, the number of a that are large enough grows smaller.
        let mut first = 0;
        b.iter()
            .map(|b| {
                while first < a.len() && b - a[first] > value {
                    first += 1;
                }
                a.len() - first
            })
            .sum()
    })
}

/// The `rank`-th smallest (from 1) of the means of all pairs of one sorted list, each value paired with itself too (Walsh).
pub(super) fn walsh_mean(values: &[f64], rank: usize) -> f64 {
    by_halving(rank, |value| {
        let mut end = values.len();
        values
            .iter()
            .enumerate()
            .map(|(index, low)| {
                while end > 0 && (low + values[end - 1]) / 2.0 > value {
                    end -= 1;
                }
                end.saturating_sub(index)
            })
            .sum()
    })
}

/// The least value of which `count` (how many are at most that) reaches `rank`.
fn by_halving(rank: usize, count: impl Fn(f64) -> usize) -> f64 {
    let (mut below, mut reached) = (key(f64::NEG_INFINITY), key(f64::INFINITY));
    while reached - below > 1 {
        let middle = below + (reached - below) / 2;
        match count(value(middle)) >= rank {
            true => reached = middle,
            false => below = middle,
        }
    }
    value(reached)
}

/// A number whose order is that of the values.
fn key(value: f64) -> u64 {
    let bits = value.to_bits();
    match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    }
}

fn value(key: u64) -> f64 {
    f64::from_bits(match key >> 63 {
        1 => key & !(1 << 63),
        _ => !key,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(mut values: Vec<f64>) -> Vec<f64> {
        values.sort_by(f64::total_cmp);
        values
    }

    proptest! {
        #[test]
        fn ranks_are_those_of_the_sorted_list(
            a in prop::collection::vec(-9i32..9, 1..12),
            b in prop::collection::vec(-9i32..9, 1..12),
        ) {
            let (a, b) = [a, b].map(|side| sorted(side.into_iter().map(|it| f64::from(it) / 8.0).collect())).into();
            let differences = sorted(b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect());
            for (index, expected) in differences.iter().enumerate() {
                prop_assert_eq!(difference(&a, &b, index + 1), *expected);
            }
            let means = (0..a.len()).flat_map(|low| a[low..].iter().map(move |high| (low, high)));
            let means = sorted(means.map(|(low, high)| (a[low] + high) / 2.0).collect());
            for (index, expected) in means.iter().enumerate() {
                prop_assert_eq!(walsh_mean(&a, index + 1), *expected);
            }
        }
    }
}
