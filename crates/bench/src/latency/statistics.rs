//! The median and the quartiles of samples.

/// Where the middle half of some samples lies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// Lower quartile.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Upper quartile.
    pub high: f64,
}

impl Summary {
    /// Sums up samples; `None` when there are none. What is not a finite number is left out.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let place = share * (sorted.len().checked_sub(1)? as f64);
            let (below, above) = (*sorted.get(place.floor() as usize)?, *sorted.get(place.ceil() as usize)?);
            // Written so that equal neighbours yield themselves, without a rounding error.
            Some(below + (above - below) * place.fract())
        };
        Some(Self { low: quantile(0.25)?, median: quantile(0.5)?, high: quantile(0.75)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_samples_have_no_median() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn quartiles_lie_between_samples() {
        assert_eq!(Summary::of(&[7.0]), Some(Summary { low: 7.0, median: 7.0, high: 7.0 }));
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]), Some(Summary { low: 1.75, median: 2.5, high: 3.25 }));
        assert_eq!(Summary::of(&[5.0, 1.0, 3.0, 2.0, 4.0]), Some(Summary { low: 2.0, median: 3.0, high: 4.0 }));
    }

    proptest! {
        #[test]
        fn a_summary_is_ordered_and_within_the_samples(samples in prop::collection::vec(0.0..1e9f64, 1..50)) {
            let summary = Summary::of(&samples).unwrap();
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            prop_assert!(least <= summary.low && summary.low <= summary.median);
            prop_assert!(summary.median <= summary.high && summary.high <= most);
        }
    }
}
