//! Confidence intervals where samples repeat in clusters: CR2 standard errors with Satterthwaite's degrees of freedom.
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

use std::collections::BTreeMap;

use nalgebra::{DMatrix, DVector};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::linear::{Solved, dot};
use crate::{CONFIDENCE, Interval};

/// An eigenvalue of M_gg below this is none: in that direction the cluster determines its own fit.
const LEAST_EIGENVALUE: f64 = 1e-8;
/// A share of a coefficient's squared influence below this is rounding.
const LEAST_SHARE: f64 = 1e-9;

/// The residuals of a fit by cluster.
pub(super) struct Clustered<'a> {
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
        Some(Interval {
            low: figure - reach,
            high: figure + reach,
        })
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
