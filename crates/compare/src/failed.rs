//! Samples that failed: on which side how many, and whether more of B than of the baseline.

use nearfar_runs::Cell;
use serde::{Deserialize, Serialize};

/// The samples of a cell on one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempts {
    /// Usable ones.
    pub samples: usize,
    /// Those that failed.
    pub failed: usize,
}

impl Attempts {
    /// Failed ones included.
    pub fn total(self) -> usize {
        self.samples + self.failed
    }

    /// Whether there are samples, and none of them is usable.
    pub fn all_failed(self) -> bool {
        self.failed > 0 && self.samples == 0
    }

    /// 0 to 1; 0 where there are no samples.
    fn failed_share(self) -> f64 {
        self.failed as f64 / self.total().max(1) as f64
    }
}

/// A cell in which samples failed on one of two sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FailedCell {
    /// The side, which is B; the baseline is A.
    pub side: String,
    /// The cell.
    pub cell: Cell,
    /// The baseline's samples.
    pub a: Attempts,
    /// The other side's.
    pub b: Attempts,
    /// The share of B's samples that failed less that of A's; `None` where no larger share failed.
    pub regression: Option<f64>,
}

impl FailedCell {
    /// `None` where no sample failed.
    pub(crate) fn of(side: &str, cell: &Cell, a: Attempts, b: Attempts) -> Option<Self> {
        let more = b.failed_share() - a.failed_share();
        (a.failed + b.failed > 0).then(|| Self {
            side: side.to_owned(),
            cell: cell.clone(),
            a,
            b,
            regression: (more > 0.0).then_some(more),
        })
    }

    /// Whether both sides have samples of it, failed ones included.
    pub(crate) fn is_of_both(&self) -> bool {
        self.a.total() > 0 && self.b.total() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_share_of_failed_samples_is_a_regression() {
        let of = |a: (usize, usize), b: (usize, usize)| {
            let [a, b] = [a, b].map(|(samples, failed)| Attempts { samples, failed });
            FailedCell::of("B", &Cell::new(), a, b).map(|cell| cell.regression)
        };
        assert_eq!(of((10, 0), (10, 0)), None);
        assert_eq!(of((10, 0), (2, 8)), Some(Some(0.8)));
        assert_eq!(of((10, 0), (0, 4)), Some(Some(1.0)));
        assert_eq!(of((0, 0), (0, 4)), Some(Some(1.0)));
        assert_eq!(of((5, 5), (20, 10)), Some(None));
        assert_eq!(of((0, 4), (0, 8)), Some(None));
        assert_eq!(of((0, 4), (8, 0)), Some(None));
    }
}
