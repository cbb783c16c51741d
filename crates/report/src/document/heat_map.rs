//! A matrix of figures whose colours say how bad they are, in ten steps.
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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nearfar_machine::NodeId;

use super::{Align, Table, Text};
use crate::style::Role;

/// A matrix with its colours.
#[derive(Clone, Debug)]
pub struct HeatMap {
    pub title: String,
    pub remark: String,
    /// What the names of rows are, such as `node`; several where rows are combinations.
    pub row_heads: Vec<String>,
    /// What columns are, on pages; empty where the remark says it.
    pub column_head: String,
    /// The names of a row, as many as `row_heads`.
    pub rows: Vec<Vec<String>>,
    pub columns: Vec<String>,
    /// By row, then column.
    pub cells: Vec<Vec<Option<HeatCell>>>,
    pub scale: Scale,
    /// What the scale is over where it is not the figures themselves; written behind `linear scale`.
    pub scale_of: &'static str,
    /// The figure of each step as the legend writes it, with its unit.
    pub legend: Vec<String>,
}

/// Classes of severity in the order of the scale's colours: the step of each of so many, spread over all of them.
pub(super) fn spread_over_scale(parts: usize) -> impl Fn(usize) -> u8 {
    move |part| {
        let hottest = usize::from(HOTTEST);
        (part * hottest / parts.saturating_sub(1).max(1)).min(hottest) as u8
    }
}

/// One figure of a matrix.
#[derive(Clone, Debug, Default)]
pub struct HeatCell {
    /// What decides the colour: more is worse.
    pub heat: f64,
    /// The figure.
    pub value: String,
    /// How far samples spread, as it follows the figure: ` ±3`.
    pub spread: String,
    /// The interval of the figure where there is one, low and high: pages write it instead of the spread.
    pub interval: Option<(String, String)>,
    /// Everything known about it, shown when a pointer rests on it.
    pub about: String,
}

impl HeatCell {
    /// A figure without a spread.
    pub fn of(heat: f64, value: impl ToString) -> Self {
        let value = value.to_string();
        Self {
            heat,
            value,
            ..Self::default()
        }
    }
}

impl HeatMap {
    /// A map without rows, whose legend writes figures so.
    pub fn of(scale: Scale, figure: impl Fn(f64) -> String) -> Self {
        Self {
            title: String::new(),
            remark: String::new(),
            row_heads: Vec::new(),
            column_head: String::new(),
            rows: Vec::new(),
            columns: Vec::new(),
            cells: Vec::new(),
            scale,
            scale_of: "",
            legend: (0..=HOTTEST)
                .map(|step| figure(scale.figure(step)))
                .collect(),
        }
    }

    /// The same with a row a node of CPUs and a column a node of memory.
    pub(crate) fn by_node(
        self,
        cells: impl IntoIterator<Item = ((NodeId, NodeId), HeatCell)>,
    ) -> Self {
        let cells: BTreeMap<(NodeId, NodeId), HeatCell> = cells.into_iter().collect();
        let rows: BTreeSet<NodeId> = cells.keys().map(|pair| pair.0).collect();
        let columns: BTreeSet<NodeId> = cells.keys().map(|pair| pair.1).collect();
        let row = |from: &NodeId| {
            let row = columns.iter().map(|to| cells.get(&(*from, *to)).cloned());
            row.collect()
        };
        Self {
            row_heads: vec!["node".to_owned()],
            cells: rows.iter().map(row).collect(),
            rows: Self::names(rows),
            columns: columns.iter().map(ToString::to_string).collect(),
            ..self
        }
    }

    /// Some of its columns as a table.
    pub(super) fn table(&self, columns: Range<usize>) -> Table {
        let heads = self.row_heads.iter().chain(&self.columns[columns.clone()]);
        let heads: Vec<_> = heads.map(|head| (head, Align::Right)).collect();
        let mut table = Table::new(&heads);
        for (names, cells) in self.rows.iter().zip(&self.cells) {
            let names = names.iter().map(|name| Role::Heading.text(name));
            let cells = cells[columns.clone()].iter();
            table.row(names.chain(cells.map(|cell| self.text(cell.as_ref()))));
        }
        table
    }

    fn text(&self, cell: Option<&HeatCell>) -> Text {
        let Some(cell) = cell else {
            return Role::Dim.text("-");
        };
        let role = match cell.heat.is_finite() {
            true => self.scale.role(cell.heat),
            false => Role::Plain,
        };
        role.text(format!("{}{}", cell.value, cell.spread))
    }

    /// Names of rows that are plain words or numbers.
    pub fn names<T: ToString>(names: impl IntoIterator<Item = T>) -> Vec<Vec<String>> {
        let names = names.into_iter();
        names.map(|name| vec![name.to_string()]).collect()
    }
}

/// The steps of a heat map: 0 is local, 9 the farthest of its table.
pub(crate) const HOTTEST: u8 = 9;

/// Where figures lie between the nearest and the farthest of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    nearest: f64,
    /// The figure of the hottest step.
    top: f64,
    /// Whether equal steps are equal ratios, not equal differences.
    is_logarithmic: bool,
}

impl Scale {
    /// A scale over these figures; what is not finite is left out.
    ///
    /// A table whose figures all are the same is cold. The hottest step stands for twice the nearest figure at least:
    /// 12 next to 10 stays green although nothing is farther.
    pub fn over(figures: impl IntoIterator<Item = f64>) -> Self {
        let figures = figures.into_iter().filter(|figure| figure.is_finite());
        let figures: Vec<f64> = figures.collect();
        let nearest = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let farthest = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let top = match farthest > nearest {
            true => farthest.max(2.0 * nearest),
            false => farthest,
        };
        let [linear, logarithmic] = [false, true].map(|is_logarithmic| Self {
            nearest,
            top,
            is_logarithmic,
        });
        let told_apart = |scale: Self| {
            let steps = figures.iter().map(|&figure| scale.step(figure));
            steps.collect::<BTreeSet<_>>().len()
        };
        // Logarithms need figures above zero.
        match nearest > 0.0 && told_apart(logarithmic) > told_apart(linear) {
            true => logarithmic,
            false => linear,
        }
    }

    /// The step of one figure.
    pub(crate) fn step(&self, figure: f64) -> u8 {
        if !figure.is_finite() || !self.is_hot() {
            return 0;
        }
        let share = match self.is_logarithmic {
            true => (figure / self.nearest).ln() / (self.top / self.nearest).ln(),
            false => (figure - self.nearest) / (self.top - self.nearest),
        };
        (share.clamp(0.0, 1.0) * f64::from(HOTTEST)).round() as u8
    }

    /// The figure in the middle of a step: what the legend writes below it.
    pub(crate) fn figure(&self, step: u8) -> f64 {
        let share = f64::from(step.min(HOTTEST)) / f64::from(HOTTEST);
        match self.is_logarithmic {
            _ if !self.is_hot() => self.nearest,
            true => self.nearest * (self.top / self.nearest).powf(share),
            false => self.nearest + share * (self.top - self.nearest),
        }
    }

    /// `linear scale`; `None` where all figures are the same and there is but one step.
    pub(crate) fn name(&self) -> Option<&'static str> {
        let name = match self.is_logarithmic {
            true => "logarithmic scale",
            false => "linear scale",
        };
        self.is_hot().then_some(name)
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
        assert_eq!(scale.name(), Some("linear scale"));
        assert_eq!((scale.step(1000.0), scale.step(f64::NAN)), (HOTTEST, 0));
    }

    #[test]
    fn figures_that_multiply_have_a_logarithmic_scale() {
        let scale = Scale::over([90.0, 140.0, 220.0, 2900.0]);
        assert_eq!(scale.name(), Some("logarithmic scale"));
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
            (Scale::over([]).step(10.0), Scale::over([]).name()),
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
            if scale.name().is_some() {
                prop_assert!((0..=HOTTEST).all(|step| scale.step(scale.figure(step)) == step));
            }
        }
    }
}
