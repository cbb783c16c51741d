//! How long the rest takes, from what samples took so far.

use std::time::Duration;

/// Durations of samples by cell.
pub(crate) struct Estimate {
    by_cell: Vec<Vec<f64>>,
    all: Vec<f64>,
}

impl Estimate {
    /// Nothing is known of any of so many cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self {
            by_cell: vec![Vec::new(); cells],
            all: Vec::new(),
        }
    }

    /// A sample of this cell took so long.
    pub(crate) fn add(&mut self, cell: usize, took_s: f64) {
        if took_s.is_finite() && took_s >= 0.0 {
            self.by_cell[cell].push(took_s);
            self.all.push(took_s);
        }
    }

    /// What so many samples of each cell would take: the median of the cell's own samples each, of all samples for a
    /// cell not seen yet. `None` before there are two samples, which say nothing.
    pub(crate) fn of(&self, missing: &[u32]) -> Option<Duration> {
        let of_all = (self.all.len() >= 2).then(|| median(&self.all)).flatten()?;
        let each = |(cell, &count): (usize, &u32)| {
            median(&self.by_cell[cell]).unwrap_or(of_all) * f64::from(count)
        };
        Duration::try_from_secs_f64(missing.iter().enumerate().map(each).sum()).ok()
    }
}

fn median(values: &[f64]) -> Option<f64> {
    nearfar_statistics::Summary::of(values).map(|summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_are_needed_before_anything_is_said() {
        let mut estimate = Estimate::new(2);
        assert_eq!(estimate.of(&[5, 5]), None);
        estimate.add(0, 2.0);
        assert_eq!(estimate.of(&[4, 5]), None);
        estimate.add(1, 6.0);
        assert_eq!(estimate.of(&[4, 4]), Some(Duration::from_secs(32)));
    }

    #[test]
    fn a_cell_not_seen_counts_as_the_median_of_all() {
        let mut estimate = Estimate::new(3);
        for took in [1.0, 1.0, 100.0] {
            estimate.add(0, took);
        }
        estimate.add(1, 3.0);
        // Cell 0: 1 s, cell 1: 3 s, cell 2: the median of 1, 1, 3 and 100.
        assert_eq!(estimate.of(&[1, 1, 1]), Some(Duration::from_secs(6)));
        assert_eq!(estimate.of(&[0, 0, 0]), Some(Duration::ZERO));
    }
}
