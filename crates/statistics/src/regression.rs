//! Least squares: how much of what was measured each explaining column accounts for, and when that cannot be told.
//!
//! ```text
//! row         group   outcome    columns                              fit
//! one run     cell 3  61.2 s  =  cell 3's own time                    not asked for
//!                              + 0.41 of its time far   x coefficient  14.2 (13.1 to 15.3) s
//!                              + 37 migrations          x coefficient  0.0128 (0.0116 to 0.0140) s
//!                              + residual
//! ```
//!
//! Runs of different cells differ in more than the columns, so by default ([`Baseline::PerGroup`]) each group has a base of
//! its own: the group's means are taken off first (the "within" estimator of panel data; Wooldridge, Econometric Analysis
//! of Cross Section and Panel Data, 10.5). What a column does then is told by runs of one cell that differ in it.
//!
//! Standard errors are HC3 (MacKinnon and White 1985; Long and Ervin 2000): they do not assume that runs with many
//! migrations scatter as little as runs with none, which they do not. Intervals are those of Student's t.

mod linear;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::CONFIDENCE;
use linear::Solved;

/// Fewer samples than this beyond what is estimated give intervals that are wide and, with HC3, not to be relied on.
const LEAST_FREEDOM: usize = 5;
/// A column so much better told by the others (variance inflation; 100 is a correlation of 0.995 with one other) has no
/// coefficient of its own worth the name.
const MOST_INFLATION: f64 = 100.0;
/// A sample that determines its own fitted value to this degree is the only one of its kind.
const MOST_LEVERAGE: f64 = 1.0 - 1e-9;

/// One sample with what may explain it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row<const COLUMNS: usize> {
    /// The group (cell of the experiment) it belongs to.
    pub group: u32,
    /// What was measured, in any unit.
    pub outcome: f64,
    /// What may explain it, each in a unit of its own.
    pub columns: [f64; COLUMNS],
}

/// What samples have in common apart from the columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// One base for all: the groups differ in nothing else.
    Common,
    /// Each group has its own.
    PerGroup,
}

/// What the samples say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fit {
    /// One for each column, in their order.
    pub coefficients: Vec<Coefficient>,
    /// The share of the outcome's variance that the columns explain, 0 to 1; with a base per group, of what is left when
    /// the groups' means are taken off.
    pub r2: f64,
    /// Standard deviation of what they do not explain, in the outcome's unit.
    pub residual_stdev: f64,
    /// How many samples were used.
    pub samples: usize,
    /// How many groups they came from.
    pub groups: usize,
    /// How many samples were not: not finite, or alone in their group, where nothing can be compared.
    pub left_out: usize,
}

/// How much of the outcome one unit of a column accounts for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Coefficient {
    /// The column's name.
    pub name: String,
    /// The outcome's unit a unit of the column.
    pub value: f64,
    /// Lower end of the 95 % confidence interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// How many times wider the other columns make its interval, squared (variance inflation factor); 1 where they have
    /// nothing to do with it.
    pub inflation: f64,
}

impl Coefficient {
    /// Whether the data tell it from zero: the interval does not include that.
    pub fn is_told(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Why the samples say nothing.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CannotTell {
    /// Not enough of them.
    #[error("{samples} usable samples are too few for {estimated} estimated figures: it takes {} or more", .estimated + LEAST_FREEDOM)]
    TooFew {
        /// Those that could be used.
        samples: usize,
        /// Columns and bases.
        estimated: usize,
    },
    /// The outcome is always the same (in each group).
    #[error("the outcome is the same in every sample{}", within(.baseline))]
    NothingToExplain {
        /// Compared within what.
        baseline: Baseline,
    },
    /// A column is always the same (in each group).
    #[error("{column} is the same in every sample{}", within(.baseline))]
    NoVariation {
        /// The column.
        column: String,
        /// Compared within what.
        baseline: Baseline,
    },
    /// Columns go together so closely that nothing tells which of them it is.
    #[error(
        "{column} goes together with the other columns: nothing tells which of them it is (variance inflation {inflation:.0})"
    )]
    Collinear {
        /// The column.
        column: String,
        /// Its variance inflation factor; infinite where it is a combination of the others.
        inflation: f64,
    },
    /// A coefficient hangs on one sample.
    #[error("one sample alone decides: it differs from all others in what should explain it")]
    OneDecides,
}

fn within(baseline: &Baseline) -> &'static str {
    match baseline {
        Baseline::Common => "",
        Baseline::PerGroup => " of its group",
    }
}

/// Fits the outcome to the columns, which have these names.
///
/// # Errors
/// When the samples cannot tell, with why.
pub fn fit<const COLUMNS: usize>(
    names: [&str; COLUMNS],
    rows: &[Row<COLUMNS>],
    baseline: Baseline,
) -> Result<Fit, CannotTell> {
    let groups = usable(rows, baseline);
    let samples = groups.values().map(Vec::len).sum();
    let freedom = freedom(samples, groups.len() + COLUMNS)?;
    let mut outcome = Vec::with_capacity(samples);
    let mut columns = vec![Vec::with_capacity(samples); COLUMNS];
    // How far each sample pulls its own group's mean towards it.
    let mut pull = Vec::with_capacity(samples);
    for rows in groups.values() {
        outcome.extend(centred(rows, |row| row.outcome));
        pull.extend(rows.iter().map(|_| 1.0 / rows.len() as f64));
        for (number, column) in columns.iter_mut().enumerate() {
            column.extend(centred(rows, |row| row.columns[number]));
        }
    }
    let scale =
        |of: &dyn Fn(&Row<COLUMNS>) -> f64| groups.values().flatten().map(|row| of(row).abs()).fold(0.0, f64::max);
    if !linear::varies(&outcome, scale(&|row| row.outcome)) {
        return Err(CannotTell::NothingToExplain { baseline });
    }
    for (number, column) in columns.iter().enumerate() {
        if !linear::varies(column, scale(&|row| row.columns[number])) {
            return Err(CannotTell::NoVariation { column: names[number].to_owned(), baseline });
        }
    }
    let solved = linear::solve(&columns, &outcome);
    told(&names, &solved, &outcome, &pull, freedom).map(|(coefficients, residual_stdev, r2)| Fit {
        coefficients,
        r2,
        residual_stdev,
        samples,
        groups: groups.len(),
        left_out: rows.len() - samples,
    })
}

/// What can be compared, by group.
fn usable<const COLUMNS: usize>(rows: &[Row<COLUMNS>], baseline: Baseline) -> BTreeMap<u32, Vec<Row<COLUMNS>>> {
    let mut groups: BTreeMap<u32, Vec<Row<COLUMNS>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.outcome.is_finite() && row.columns.iter().all(|value| value.is_finite())) {
        let group = if baseline == Baseline::PerGroup { row.group } else { 0 };
        groups.entry(group).or_default().push(*row);
    }
    groups.retain(|_, rows| rows.len() > 1);
    groups
}

/// Samples beyond what is estimated.
fn freedom(samples: usize, estimated: usize) -> Result<f64, CannotTell> {
    match samples.checked_sub(estimated) {
        Some(freedom) if freedom >= LEAST_FREEDOM => Ok(freedom as f64),
        _ => Err(CannotTell::TooFew { samples, estimated }),
    }
}

/// The values of a group around their mean.
fn centred<const COLUMNS: usize>(
    rows: &[Row<COLUMNS>],
    of: impl Fn(&Row<COLUMNS>) -> f64,
) -> impl Iterator<Item = f64> {
    // Around the first one, so that a large common part takes no digits from the rest.
    let first = rows.first().map_or(0.0, &of);
    let mean = rows.iter().map(|row| of(row) - first).sum::<f64>() / rows.len() as f64;
    rows.iter().map(move |row| of(row) - first - mean)
}

type Told = (Vec<Coefficient>, f64, f64);

/// Coefficients with their intervals, the residuals' standard deviation, and the share that is explained.
fn told(names: &[&str], solved: &Solved, outcome: &[f64], pull: &[f64], freedom: f64) -> Result<Told, CannotTell> {
    if let Some((number, inflation)) = solved.worst_inflation().filter(|(_, inflation)| *inflation > MOST_INFLATION) {
        return Err(CannotTell::Collinear { column: names[number].to_owned(), inflation });
    }
    let residuals = solved.residuals(outcome);
    let mut weights = Vec::with_capacity(residuals.len());
    for (number, (residual, pull)) in residuals.iter().zip(pull).enumerate() {
        let leverage = pull + solved.leverage(number);
        if leverage > MOST_LEVERAGE {
            return Err(CannotTell::OneDecides);
        }
        weights.push((residual / (1.0 - leverage)).powi(2));
    }
    let half = StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |t| t.inverse_cdf(1.0 - (1.0 - CONFIDENCE) / 2.0));
    let errors = solved.errors(&weights);
    let coefficients = names.iter().enumerate().map(|(number, name)| {
        let (value, reach) = (solved.coefficients[number], half * errors[number]);
        let inflation = solved.inflations[number];
        Coefficient { name: (*name).to_owned(), value, low: value - reach, high: value + reach, inflation }
    });
    let squares = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
    let left = squares(&residuals);
    Ok((coefficients.collect(), (left / freedom).sqrt(), (1.0 - left / squares(outcome)).clamp(0.0, 1.0)))
}
