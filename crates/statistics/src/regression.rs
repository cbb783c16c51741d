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
//! seems: intervals count clusters, not samples (`Clustered`). They also hold where samples with many migrations scatter
//! more than those with none.
//!
//! # Linear algebra
//! X = QR by Gram and Schmidt, done twice. Columns are scaled to length 1 first, so that seconds and counts weigh the same and variance inflation can be read off.
//! A second pass makes Q orthogonal to rounding whatever the columns are (Giraud, Langou and Rozložník 2005), which a few
//! columns are small enough for; the normal equations would square their condition.
//!
//! # Intervals
//! CR2 standard errors with Satterthwaite's degrees of freedom:
//!
//! ```text
//! M = I - H             what the fit leaves of any outcome: group means and columns taken off
//! A_g = (M_gg)^-1/2     undoes how far cluster g determines its own fit (Bell and McCaffrey 2002)
//! variance = sum over g of (l_g' A_g e_g)^2      l: what each outcome adds to the coefficient, e: residuals
//! ```
//!
//! Samples of one cluster share what is special to it, however often it is repeated, so only clusters count. With few of them,
//! or few that carry a column, the plain sandwich (CR0) and t(clusters - 1) cover far too rarely; CR2 is unbiased where samples
//! are independent, and Satterthwaite's degrees of freedom follow how many clusters decide (Pustejovsky and Tipton 2018; Imbens
//! and Kolesar 2016). They are worked out twice, for independent samples and for clusters that each have an effect of their own;
//! the smaller ones count.

use std::collections::{BTreeMap, BTreeSet};

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::{CONFIDENCE, Interval};

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
    if !varies(&outcome, scale(&|row| row.outcome)) {
        return Err(CannotTell::NothingToExplain { baseline });
    }
    for (number, column) in columns.iter().enumerate() {
        if !varies(column, scale(&|row| row.columns[number])) {
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
    let solved = solve(&columns, &outcome);
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

/// What makes the squared residuals least.
struct Solved {
    /// One a column, in its own unit.
    pub coefficients: Vec<f64>,
    /// The variance inflation factor of each column.
    pub inflations: Vec<f64>,
    /// Orthonormal columns that span those given.
    q: Vec<Vec<f64>>,
    /// The inverse of R, row by row, for the columns as they were given.
    inverse: Vec<Vec<f64>>,
}

/// Whether values around their mean are more than what rounding leaves of values of that size.
fn varies(centred: &[f64], scale: f64) -> bool {
    length(centred) > scale * 1e-12 * (centred.len() as f64).sqrt()
}

/// Least squares of columns that vary; all are around their means.
fn solve(columns: &[Vec<f64>], outcome: &[f64]) -> Solved {
    let lengths: Vec<f64> = columns.iter().map(|column| length(column)).collect();
    let mut q: Vec<Vec<f64>> = Vec::with_capacity(columns.len());
    let mut r = vec![vec![0.0; columns.len()]; columns.len()];
    for (number, (column, scale)) in columns.iter().zip(&lengths).enumerate() {
        let mut rest: Vec<f64> = column.iter().map(|value| value / scale).collect();
        for _ in 0..2 {
            for (before, direction) in q.iter().enumerate() {
                let share = dot(direction, &rest);
                r[before][number] += share;
                rest.iter_mut()
                    .zip(direction)
                    .for_each(|(value, along)| *value -= share * along);
            }
        }
        let left = length(&rest);
        r[number][number] = left;
        // Where nothing is left the division makes it infinite or no number, and so the inflation below.
        rest.iter_mut().for_each(|value| *value /= left);
        q.push(rest);
    }
    let mut inverse = inverse(&r);
    // R^-1 R^-T is the inverse of the columns' correlations; the inflations are its diagonal.
    let inflations = inverse.iter().map(|row| dot(row, row)).map(|inflation| {
        if inflation.is_nan() {
            f64::INFINITY
        } else {
            inflation
        }
    });
    let inflations = inflations.collect();
    for (row, scale) in inverse.iter_mut().zip(&lengths) {
        row.iter_mut().for_each(|value| *value /= scale);
    }
    let along: Vec<f64> = q.iter().map(|direction| dot(direction, outcome)).collect();
    let coefficients = inverse.iter().map(|row| dot(row, &along)).collect();
    Solved {
        coefficients,
        inflations,
        q,
        inverse,
    }
}

impl Solved {
    /// The column that the others tell best, and its inflation.
    pub fn worst_inflation(&self) -> Option<(usize, f64)> {
        self.inflations
            .iter()
            .copied()
            .enumerate()
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// What the columns leave of the outcome.
    pub fn residuals(&self, outcome: &[f64]) -> Vec<f64> {
        let mut left = outcome.to_vec();
        for direction in &self.q {
            let share = dot(direction, &left);
            left.iter_mut()
                .zip(direction)
                .for_each(|(value, along)| *value -= share * along);
        }
        left
    }

    /// How far two samples determine each other's fitted value, through the columns.
    pub fn shared_leverage(&self, a: usize, b: usize) -> f64 {
        self.q
            .iter()
            .map(|direction| direction[a] * direction[b])
            .sum()
    }

    /// What each sample's outcome adds to a coefficient: a row of (X'X)^-1 X'.
    pub fn influence(&self, coefficient: usize) -> Vec<f64> {
        let row = &self.inverse[coefficient];
        let samples = self.q.first().map_or(0, Vec::len);
        (0..samples)
            .map(|sample| row.iter().zip(&self.q).map(|(a, q)| a * q[sample]).sum())
            .collect()
    }
}

/// The inverse of an upper triangle, row by row from below: R times it is the identity.
fn inverse(r: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut inverse = vec![vec![0.0; r.len()]; r.len()];
    for (number, row) in r.iter().enumerate().rev() {
        let mut solved = vec![0.0; r.len()];
        solved[number] = 1.0;
        for (share, below) in row.iter().zip(&inverse).skip(number + 1) {
            solved
                .iter_mut()
                .zip(below)
                .for_each(|(value, below)| *value -= share * below);
        }
        solved.iter_mut().for_each(|value| *value /= row[number]);
        inverse[number] = solved;
    }
    inverse
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}

/// An eigenvalue of M_gg below this is none: in that direction the cluster determines its own fit.
const LEAST_EIGENVALUE: f64 = 1e-8;
/// A share of a coefficient's squared influence below this is rounding.
const LEAST_SHARE: f64 = 1e-9;

/// The residuals of a fit by cluster.
struct Clustered<'a> {
    solved: &'a Solved,
    /// The group of each sample, counted from 0, and how many samples each group has.
    groups: &'a [usize],
    sizes: Vec<f64>,
    clusters: Vec<Cluster>,
    residuals: Vec<f64>,
}

/// One cluster: its samples, and M_gg as eigenvectors (columns) with their eigenvalues.
struct Cluster {
    members: Vec<usize>,
    vectors: DMatrix<f64>,
    values: DVector<f64>,
}

impl<'a> Clustered<'a> {
    /// Of a fit of outcomes that are around the means of their groups. `groups` and `clusters` say where each sample belongs.
    pub fn new(solved: &'a Solved, outcome: &[f64], groups: &'a [usize], clusters: &[u32]) -> Self {
        let mut sizes = vec![0.0; groups.iter().max().map_or(0, |last| last + 1)];
        groups.iter().for_each(|&group| sizes[group] += 1.0);
        let mut members: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (sample, &cluster) in clusters.iter().enumerate() {
            members.entry(cluster).or_default().push(sample);
        }
        let mut this = Self {
            solved,
            groups,
            sizes,
            clusters: Vec::new(),
            residuals: solved.residuals(outcome),
        };
        this.clusters = members
            .into_values()
            .map(|members| this.cluster(members))
            .collect();
        this
    }

    pub fn residuals(&self) -> &[f64] {
        &self.residuals
    }

    fn cluster(&self, members: Vec<usize>) -> Cluster {
        let entry = |row: usize, column: usize| {
            let (a, b) = (members[row], members[column]);
            let mean = if self.groups[a] == self.groups[b] {
                1.0 / self.sizes[self.groups[a]]
            } else {
                0.0
            };
            f64::from(row == column) - mean - self.solved.shared_leverage(a, b)
        };
        let own = DMatrix::from_fn(members.len(), members.len(), entry);
        let eigen = own.symmetric_eigen();
        Cluster {
            members,
            vectors: eigen.eigenvectors,
            values: eigen.eigenvalues,
        }
    }

    /// M times a vector: around the means of the groups, and without what the columns explain.
    fn annihilate(&self, vector: &mut Vec<f64>) {
        let mut means = vec![0.0; self.sizes.len()];
        vector
            .iter()
            .zip(self.groups)
            .for_each(|(value, &group)| means[group] += value / self.sizes[group]);
        vector
            .iter_mut()
            .zip(self.groups)
            .for_each(|(value, &group)| *value -= means[group]);
        *vector = self.solved.residuals(vector);
    }

    /// The interval of a figure that is a sum of outcomes, each times its influence; `None` where one cluster alone decides it.
    pub fn interval(&self, figure: f64, influence: &[f64]) -> Option<Interval> {
        let all = dot(influence, influence);
        let mut weights = Vec::with_capacity(self.clusters.len());
        for cluster in &self.clusters {
            weights.push(cluster.weights(influence, all)?);
        }
        let variance: f64 = self
            .clusters
            .iter()
            .zip(&weights)
            .map(|(cluster, weights)| {
                let own = cluster
                    .members
                    .iter()
                    .zip(weights)
                    .map(|(&sample, weight)| weight * self.residuals[sample]);
                own.sum::<f64>().powi(2)
            })
            .sum();
        let freedom = self.freedom(&weights);
        let half = StudentsT::new(0.0, 1.0, freedom)
            .ok()?
            .inverse_cdf(1.0 - (1.0 - CONFIDENCE) / 2.0);
        let reach = half * variance.sqrt();
        Some(Interval::around(figure, reach))
    }

    /// Satterthwaite's degrees of freedom: of the chi-squared distribution with the mean and variance that the estimated variance
    /// has, were all samples as uncertain as each other.
    fn freedom(&self, weights: &[Vec<f64>]) -> f64 {
        let spread: Vec<Vec<f64>> = self
            .clusters
            .iter()
            .zip(weights)
            .map(|(cluster, weights)| {
                let mut spread = vec![0.0; self.residuals.len()];
                cluster
                    .members
                    .iter()
                    .zip(weights)
                    .for_each(|(&sample, &weight)| spread[sample] = weight);
                self.annihilate(&mut spread);
                spread
            })
            .collect();
        let effects = spread.iter().map(|spread| {
            self.clusters
                .iter()
                .map(|cluster| cluster.sum(spread))
                .collect()
        });
        let effects: Vec<Vec<f64>> = effects.collect();
        satterthwaite(&spread).min(satterthwaite(&effects))
    }
}

impl Cluster {
    /// A_g times the influence of its samples; `None` where part of that lies where the cluster determines its own fit.
    fn weights(&self, influence: &[f64], all: f64) -> Option<Vec<f64>> {
        let own = DVector::from_iterator(
            self.members.len(),
            self.members.iter().map(|&sample| influence[sample]),
        );
        let mut along = self.vectors.tr_mul(&own);
        let mut undetermined = 0.0;
        for (share, &value) in along.iter_mut().zip(&self.values) {
            if value > LEAST_EIGENVALUE {
                *share /= value.sqrt();
            } else {
                undetermined += *share * *share;
                *share = 0.0;
            }
        }
        let weights = &self.vectors * along;
        (undetermined <= LEAST_SHARE * all).then(|| weights.iter().copied().collect())
    }

    fn sum(&self, values: &[f64]) -> f64 {
        self.members.iter().map(|&sample| values[sample]).sum()
    }
}

/// (tr B)^2 / tr(B^2), B the products of these vectors with each other; at least 1.
fn satterthwaite(vectors: &[Vec<f64>]) -> f64 {
    let (mut trace, mut squares) = (0.0, 0.0);
    for (number, a) in vectors.iter().enumerate() {
        trace += dot(a, a);
        squares += dot(a, a).powi(2);
        squares += vectors[number + 1..]
            .iter()
            .map(|b| 2.0 * dot(a, b).powi(2))
            .sum::<f64>();
    }
    // Clusters without a common effect, and rounding, leave nothing: then the other one counts.
    let freedom = trace * trace / squares;
    if freedom.is_finite() {
        freedom.max(1.0)
    } else {
        f64::INFINITY
    }
}
