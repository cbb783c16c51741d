//! How far a figure is, in ten steps.
//!
//! ```text
//!  linear        10    17    24    31    38    42            distances of a machine whose farthest is 42
//!                ├──┬──┬──┬──┬──┬──┬──┬──┬──┤
//!  step          0  1  2  3  4  5  6  7  8  9
//!                ├──┬──┬──┬──┬──┬──┬──┬──┬──┤
//!  logarithmic   90    180    350   700   1400  2800         hand-overs of a cache line
//! ```
//!
//! A scale is over its table (over all distances of a machine), linear or logarithmic, whichever gives more figures a colour of
//! their own; its ends are in the legend. Twice the nearest is the least that the hottest step stands for: a colour then tells
//! 22 from 42, and 12 stays green where nothing is farther.

use std::collections::BTreeSet;

use crate::style::Role;

/// The steps of a heat map: 0 is local, 9 the farthest of its table.
pub(crate) const HOTTEST: u8 = 9;

/// Where figures lie between the nearest and the farthest of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    nearest: f64,
    /// The figure of the hottest step.
    top: f64,
    spacing: Spacing,
}

/// What equal steps mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Equal differences.
    Linear,
    /// Equal ratios.
    Logarithmic,
}

impl std::fmt::Display for Spacing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Logarithmic => "logarithmic",
        })
    }
}

impl Scale {
    /// A scale over these figures; what is not finite is left out.
    ///
    /// A table whose figures all are the same is cold. The hottest step stands for twice the nearest figure at least:
    /// 12 next to 10 stays green although nothing is farther.
    pub fn over(figures: impl IntoIterator<Item = f64>) -> Self {
        let figures: Vec<f64> = figures
            .into_iter()
            .filter(|figure| figure.is_finite())
            .collect();
        let nearest = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let farthest = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let top = if farthest > nearest {
            farthest.max(2.0 * nearest)
        } else {
            farthest
        };
        let [linear, logarithmic] = [Spacing::Linear, Spacing::Logarithmic].map(|spacing| Self {
            nearest,
            top,
            spacing,
        });
        let told_apart = |scale: Self| {
            figures
                .iter()
                .map(|&figure| scale.step(figure))
                .collect::<BTreeSet<_>>()
                .len()
        };
        // Logarithms need figures above zero.
        if nearest > 0.0 && told_apart(logarithmic) > told_apart(linear) {
            logarithmic
        } else {
            linear
        }
    }

    /// The step of one figure.
    pub(crate) fn step(&self, figure: f64) -> u8 {
        if !figure.is_finite() || !self.is_hot() {
            return 0;
        }
        let share = match self.spacing {
            Spacing::Linear => (figure - self.nearest) / (self.top - self.nearest),
            Spacing::Logarithmic => (figure / self.nearest).ln() / (self.top / self.nearest).ln(),
        };
        (share.clamp(0.0, 1.0) * f64::from(HOTTEST)).round() as u8
    }

    /// The figure in the middle of a step: what the legend writes below it.
    pub(crate) fn figure(&self, step: u8) -> f64 {
        let share = f64::from(step.min(HOTTEST)) / f64::from(HOTTEST);
        match self.spacing {
            _ if !self.is_hot() => self.nearest,
            Spacing::Linear => self.nearest + share * (self.top - self.nearest),
            Spacing::Logarithmic => self.nearest * (self.top / self.nearest).powf(share),
        }
    }

    /// What a legend writes below each step.
    pub fn legend(&self, text: impl Fn(f64) -> String) -> Vec<String> {
        (0..=HOTTEST).map(|step| text(self.figure(step))).collect()
    }

    /// What equal steps mean; `None` where all figures are the same and there is but one step.
    pub(crate) fn spacing(&self) -> Option<Spacing> {
        self.is_hot().then_some(self.spacing)
    }

    fn is_hot(&self) -> bool {
        self.top > self.nearest
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_scale_over_a_table_tells_its_figures_apart() {
        let scale = Scale::over([10.0, 16.0, 25.0, 33.0, f64::NAN]);
        assert_eq!(
            [10.0, 16.0, 25.0, 33.0].map(|figure| scale.step(figure)),
            [0, 2, 6, HOTTEST]
        );
        assert_eq!(scale.spacing(), Some(Spacing::Linear));
        assert_eq!((scale.step(1000.0), scale.step(f64::NAN)), (HOTTEST, 0));
    }

    #[test]
    fn figures_that_multiply_have_a_logarithmic_scale() {
        let scale = Scale::over([90.0, 140.0, 220.0, 2900.0]);
        assert_eq!(scale.spacing(), Some(Spacing::Logarithmic));
        assert_eq!(
            [90.0, 140.0, 220.0, 2900.0].map(|figure| scale.step(figure)),
            [0, 1, 2, HOTTEST]
        );
    }

    #[test]
    fn roles_follow_the_steps() {
        let scale = Scale::over([10.0, 16.0, 22.0, 32.0, 42.0]);
        let roles = [10.0, 16.0, 32.0, 42.0].map(|distance| scale.role(distance));
        assert_eq!(roles, [Role::Local, Role::Near, Role::Middling, Role::Far]);
    }

    #[test]
    fn small_differences_stay_cool() {
        let scale = Scale::over([10.0, 12.0]);
        assert_eq!((scale.step(10.0), scale.step(12.0)), (0, 2));
        assert_eq!(scale.figure(HOTTEST), 20.0);
    }

    #[test]
    fn a_flat_or_empty_table_is_cold() {
        assert_eq!(Scale::over([10.0, 10.0]).step(10.0), 0);
        assert_eq!(Scale::over([10.0]).figure(HOTTEST), 10.0);
        assert_eq!(
            (Scale::over([]).step(10.0), Scale::over([]).spacing()),
            (0, None)
        );
    }

    #[test]
    fn figures_below_zero_are_no_reason_to_panic() {
        assert_eq!(Scale::over([-5.0, 0.0, 5.0]).step(5.0), HOTTEST);
    }

    proptest! {
        #[test]
        fn what_is_farther_is_never_colder(figures in prop::collection::vec(0.1..1e6f64, 1..30)) {
            let scale = Scale::over(figures.iter().copied());
            let mut sorted = figures;
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|pair| scale.step(pair[0]) <= scale.step(pair[1])));
            prop_assert_eq!(scale.step(sorted[0]), 0);
        }

        #[test]
        fn the_legend_says_of_each_step_a_figure_of_that_step(figures in prop::collection::vec(0.1..1e6f64, 2..30)) {
            let scale = Scale::over(figures);
            if scale.spacing().is_some() {
                prop_assert!((0..=HOTTEST).all(|step| scale.step(scale.figure(step)) == step));
            }
        }
    }
}
