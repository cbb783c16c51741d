//! Mean and standard deviation: the columns of published tables.

use serde::{Deserialize, Serialize};

/// What the published tables give of the runs of a cell.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Moments {
    /// How many samples.
    pub count: usize,
    /// Arithmetic mean, in the samples' unit.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// Standard deviation of what the samples were drawn from (divisor n - 1); `None` for a single sample.
    pub stdev: Option<f64>,
}

impl Moments {
    /// Sums samples up; `None` when there are none. What is not a finite number is left out.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let finite = || samples.iter().copied().filter(|sample| sample.is_finite());
        let count = finite().count();
        let first = finite().next()?;
        // Around the first sample, so that a large common part takes no digits from the rest.
        let mean = first + finite().map(|sample| sample - first).sum::<f64>() / count as f64;
        let squares: f64 = finite().map(|sample| (sample - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            max: finite().fold(first, f64::max),
            min: finite().fold(first, f64::min),
            stdev: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
        })
    }
}
