//! Least squares: how much of what was measured each explaining column accounts for, and when the data cannot show it.
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
//! of Cross Section and Panel Data, 10.5). The effect of a column then comes from runs of one cell that differ in it.
//!
//! Samples of one cluster (cell) share what is special to it in every group (round), so repeating the rounds adds less than it
//! seems: intervals count clusters, not samples (`regression/clustered.rs`). They also hold where samples with many migrations scatter
//! more than those with none.

mod clustered;
mod linear;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Interval;
use clustered::Clustered;
use linear::Solved;

/// Fewer samples than this beyond what is estimated say nothing of how they scatter.
const LEAST_FREEDOM: usize = 5;
/// Fewer clusters than this beyond the columns and a base say too little of how clusters differ: simulated intervals then miss
/// more often than they say.
const LEAST_CLUSTER_FREEDOM: usize = 2;
/// A column so much better told by the others (variance inflation; 100 is a correlation of 0.995 with one other) has no
/// coefficient of its own worth the name.
const MOST_INFLATION: f64 = 100.0;

/// One sample with what may explain it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row<const COLUMNS: usize> {
    /// The group whose base it shares (a round of the experiment, or a cell).
    pub group: u32,
    /// The cluster with which it shares what no column explains (a cell of the experiment).
    pub cluster: u32,
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
    /// How many clusters.
    pub clusters: usize,
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
    /// The same as a share of the base: the mean outcome were all columns 0. `None` where that is not above 0, or where one
    /// cluster alone decides it.
    pub share: Option<Share>,
    /// How many times wider the other columns make its interval, squared (variance inflation factor); 1 where they have
    /// nothing to do with it.
    pub inflation: f64,
}

/// A coefficient as a share of the base.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The base's share that a unit of the column makes.
    pub value: f64,
    /// The 95 % confidence interval, which includes that of the base.
    pub confidence: Interval,
}

impl Coefficient {
    /// Whether the data tell it from zero: the interval does not include that.
    pub fn is_significant(&self) -> bool {
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
    /// Not enough clusters.
    #[error("{clusters} clusters are too few for {columns} columns: it takes {} or more", .columns + 1 + LEAST_CLUSTER_FREEDOM)]
    TooFewClusters {
        /// Those that have usable samples.
        clusters: usize,
        /// Columns.
        columns: usize,
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
    /// A coefficient depends on one cluster.
    #[error("a single cluster decides what {column} costs: no other one differs in it")]
    OneDecides {
        /// The column.
        column: String,
    },
    /// Values beyond what can be computed with.
    #[error("the samples are too large to be computed with")]
    TooLarge,
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
    let used: Vec<&Row<COLUMNS>> = groups.values().flatten().collect();
    let samples = used.len();
    let freedom = freedom(samples, groups.len() + COLUMNS)?;
    let clusters: Vec<u32> = used.iter().map(|row| row.cluster).collect();
    let many = clusters.iter().collect::<BTreeSet<_>>().len();
    let mut outcome = Vec::with_capacity(samples);
    let mut columns = vec![Vec::with_capacity(samples); COLUMNS];
    let mut group_of = Vec::with_capacity(samples);
    for (number, rows) in groups.values().enumerate() {
        outcome.extend(centred(rows, |row| row.outcome));
        group_of.extend(rows.iter().map(|_| number));
        for (number, column) in columns.iter_mut().enumerate() {
            column.extend(centred(rows, |row| row.columns[number]));
        }
    }
    let scale = |of: &dyn Fn(&Row<COLUMNS>) -> f64| {
        used.iter().map(|row| of(row).abs()).fold(0.0, f64::max)
    };
    if !linear::varies(&outcome, scale(&|row| row.outcome)) {
        return Err(CannotTell::NothingToExplain { baseline });
    }
    for (number, column) in columns.iter().enumerate() {
        if !linear::varies(column, scale(&|row| row.columns[number])) {
            return Err(CannotTell::NoVariation {
                column: names[number].to_owned(),
                baseline,
            });
        }
    }
    if many < COLUMNS + 1 + LEAST_CLUSTER_FREEDOM {
        return Err(CannotTell::TooFewClusters {
            clusters: many,
            columns: COLUMNS,
        });
    }
    let solved = linear::solve(&columns, &outcome);
    if let Some((number, inflation)) = solved
        .worst_inflation()
        .filter(|(_, inflation)| *inflation > MOST_INFLATION)
    {
        return Err(CannotTell::Collinear {
            column: names[number].to_owned(),
            inflation,
        });
    }
    let fitted = Clustered::new(&solved, &outcome, &group_of, &clusters);
    let squares = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
    let left = squares(fitted.residuals());
    Ok(Fit {
        coefficients: coefficients(&names, &used, &solved, &fitted)?,
        r2: (1.0 - left / squares(&outcome)).clamp(0.0, 1.0),
        residual_stdev: (left / freedom).sqrt(),
        samples,
        groups: groups.len(),
        clusters: many,
        left_out: rows.len() - samples,
    })
}

/// The coefficients with their intervals, also as shares of the base.
fn coefficients<const COLUMNS: usize>(
    names: &[&str; COLUMNS],
    used: &[&Row<COLUMNS>],
    solved: &Solved,
    fitted: &Clustered<'_>,
) -> Result<Vec<Coefficient>, CannotTell> {
    let count = used.len() as f64;
    let mean =
        |of: &dyn Fn(&Row<COLUMNS>) -> f64| used.iter().map(|row| of(row) / count).sum::<f64>();
    let influences: Vec<Vec<f64>> = (0..COLUMNS)
        .map(|number| solved.influence(number))
        .collect();
    // The base is a sum of outcomes as well: each one's part of the mean, less what it adds to the coefficients.
    let mut base = mean(&|row| row.outcome);
    let mut of_base = vec![1.0 / count; used.len()];
    for (number, influence) in influences.iter().enumerate() {
        let column = mean(&|row| row.columns[number]);
        base -= solved.coefficients[number] * column;
        of_base
            .iter_mut()
            .zip(influence)
            .for_each(|(of_base, influence)| *of_base -= column * influence);
    }
    let of = |(number, influence): (usize, &Vec<f64>)| {
        let (name, value) = (names[number].to_owned(), solved.coefficients[number]);
        let interval = fitted
            .interval(value, influence)
            .ok_or_else(|| CannotTell::OneDecides {
                column: name.clone(),
            })?;
        let Interval { low, high } = interval;
        if !(value.is_finite() && low.is_finite() && high.is_finite()) {
            return Err(CannotTell::TooLarge);
        }
        // To first order: the derivative of value / base.
        let share = value / base;
        let influence: Vec<f64> = influence
            .iter()
            .zip(&of_base)
            .map(|(own, of_base)| (own - share * of_base) / base)
            .collect();
        let confidence = (base > 0.0)
            .then(|| fitted.interval(share, &influence))
            .flatten();
        let share = confidence.map(|confidence| Share {
            value: share,
            confidence,
        });
        Ok(Coefficient {
            name,
            value,
            low,
            high,
            share,
            inflation: solved.inflations[number],
        })
    };
    influences.iter().enumerate().map(of).collect()
}

/// What can be compared, by group.
fn usable<const COLUMNS: usize>(
    rows: &[Row<COLUMNS>],
    baseline: Baseline,
) -> BTreeMap<u32, Vec<Row<COLUMNS>>> {
    let mut groups: BTreeMap<u32, Vec<Row<COLUMNS>>> = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|row| row.outcome.is_finite() && row.columns.iter().all(|value| value.is_finite()))
    {
        let group = if baseline == Baseline::PerGroup {
            row.group
        } else {
            0
        };
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
