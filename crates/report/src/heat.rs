//! How far a figure is, relative to the others of its table.

use nearfar_machine::{Distance, Distances};

use crate::style::Role;

/// The steps of a heat map: 0 is local, 9 the farthest of its table.
pub(crate) const HOTTEST: u8 = 9;

/// Where figures lie between the nearest and the farthest of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    nearest: f64,
    farthest: f64,
}

impl Scale {
    /// A scale over these figures; what is not finite is left out.
    pub(crate) fn over(figures: impl IntoIterator<Item = f64>) -> Self {
        let start = Self { nearest: f64::INFINITY, farthest: f64::NEG_INFINITY };
        figures.into_iter().filter(|figure| figure.is_finite()).fold(start, |scale, figure| Self {
            nearest: scale.nearest.min(figure),
            farthest: scale.farthest.max(figure),
        })
    }

    /// A scale over a distance matrix. "Cannot be reached" is no distance and would flatten all others.
    pub(crate) fn over_distances(table: &Distances) -> Self {
        let distances = table.entries().filter_map(|(_, _, distance)| distance);
        Self::over(distances.filter(|&distance| distance != Distance::UNREACHABLE).map(|distance| distance.0.into()))
    }

    /// The step of one figure. A table whose figures all are the same is cold, and what is less than twice as far as
    /// the nearest is never the hottest: 12 beside 10 is no disaster because nothing is farther.
    pub(crate) fn step(&self, figure: f64) -> u8 {
        let span = match self.farthest - self.nearest {
            difference if difference > 0.0 => difference.max(self.nearest),
            difference => difference,
        };
        if !figure.is_finite() || span.is_nan() || span <= 0.0 {
            return 0;
        }
        let share = ((figure - self.nearest) / span).clamp(0.0, 1.0);
        (share * f64::from(HOTTEST)).round() as u8
    }

    /// The colour of one figure in a terminal.
    pub(crate) fn role(&self, figure: f64) -> Role {
        match self.step(figure) {
            0 => Role::Local,
            1..=3 => Role::Near,
            4..=6 => Role::Middling,
            _ => Role::Far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_cold_and_the_farthest_hot() {
        let scale = Scale::over([10.0, 16.0, 33.0, f64::NAN]);
        assert_eq!((scale.step(10.0), scale.step(33.0), scale.step(16.0)), (0, HOTTEST, 2));
        assert_eq!(scale.step(1000.0), HOTTEST);
        assert_eq!(scale.step(f64::NAN), 0);
    }

    #[test]
    fn small_differences_stay_cool() {
        let scale = Scale::over([10.0, 12.0]);
        assert_eq!((scale.step(10.0), scale.step(12.0)), (0, 2));
    }

    #[test]
    fn a_flat_or_empty_table_is_cold() {
        assert_eq!(Scale::over([10.0, 10.0]).step(10.0), 0);
        assert_eq!(Scale::over([]).step(10.0), 0);
    }
}
