//! How far the furthest host of a group of alike hosts is from the centre, by chance.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::reference::{Column, spreads};
use crate::summary::sorted;

/// Below this number of hosts in a cell the threshold is simulated; from there on it is a quantile of Student's distribution.
pub(super) const SIMULATED_BELOW: usize = 32;
/// Degrees of freedom of the scale for each host after the first: 0.60 to 0.80 by simulation of 32 to 1000 hosts.
pub(super) const FREEDOM_PER_HOST: f64 = 0.6;
/// Simulated groups with a larger deviation than the threshold, at least.
const MIN_EXCEEDING: f64 = 20.0;
/// Values that are drawn, where there are more groups than necessary.
const MAX_VALUES: usize = 1_000_000;
const MAX_GROUPS: usize = 20_000;

/// Simulated thresholds, so that several metrics of the same hosts and cells take one simulation.
#[derive(Clone, Debug)]
pub struct Thresholds {
    seed: u64,
    /// By pattern and the bits of the rate.
    known: BTreeMap<(Pattern, u64), Critical>,
}

impl Thresholds {
    /// The same seed gives the same thresholds.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            known: BTreeMap::new(),
        }
    }

    pub(super) fn of(&mut self, pattern: Pattern, false_alarms: f64) -> Critical {
        let seed = self.seed;
        let key = (pattern, false_alarms.to_bits());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let threshold = simulated(&key.0, false_alarms, seed);
        self.known.insert(key, threshold);
        threshold
    }
}

/// Thresholds on |z|.
#[derive(Clone, Copy, Debug)]
pub(super) struct Critical {
    /// Of all hosts.
    pub any: f64,
    /// Of the other cells of a host that is named.
    pub named: f64,
}

impl Critical {
    fn larger(self, other: Self) -> Self {
        Self {
            any: self.any.max(other.any),
            named: self.named.max(other.named),
        }
    }
}

/// Which hosts each cell has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Pattern {
    pub hosts: usize,
    /// Of each cell the hosts, from 0.
    pub cells: Vec<Vec<usize>>,
}

/// The thresholds of a cell of so many hosts that has this share of the false alarms (Bonferroni).
pub(super) fn of_many(hosts: usize, false_alarms: f64) -> Critical {
    let count = hosts as f64;
    let freedom = FREEDOM_PER_HOST * (count - 1.0);
    // The centre has an error of its own.
    let of = |share: f64| quantile(freedom, 1.0 - share / 2.0) * (1.0 + 1.0 / count).sqrt();
    Critical {
        any: of(false_alarms / count),
        named: of(false_alarms),
    }
}

/// Of Student's distribution.
pub(super) fn quantile(freedom: f64, share: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1.0)).map_or(f64::INFINITY, |it| it.inverse_cdf(share))
}

/// The thresholds that the furthest value of a group of alike hosts, and that of one host, exceed at this rate: the larger ones of
/// cells that vary independently and of cells that vary together.
fn simulated(pattern: &Pattern, false_alarms: f64, seed: u64) -> Critical {
    let draws: usize = pattern.cells.iter().map(Vec::len).sum();
    let enough = (MIN_EXCEEDING / false_alarms).ceil() as usize;
    let groups = (MAX_VALUES / draws.max(1)).min(MAX_GROUPS).max(enough);
    let mut random = Normals(fastrand::Rng::with_seed(seed), None);
    let independent = thresholds(groups, pattern, false_alarms, |hosts| {
        hosts.iter().map(|_| random.next()).collect()
    });
    // Cells with the same hosts have the same values, so that one of them is enough.
    let mut distinct = pattern.clone();
    distinct.cells.dedup();
    let mut effects = vec![0.0; pattern.hosts];
    let mut cell = 0;
    let together = thresholds(groups, &distinct, false_alarms, |hosts| {
        if cell % distinct.cells.len() == 0 {
            effects.fill_with(|| random.next());
        }
        cell += 1;
        hosts.iter().map(|host| effects[*host]).collect()
    });
    independent.larger(together)
}

/// The thresholds of so many groups; `draw` gives the values of the hosts of a cell.
fn thresholds(
    groups: usize,
    pattern: &Pattern,
    false_alarms: f64,
    mut draw: impl FnMut(&[usize]) -> Vec<f64>,
) -> Critical {
    let (mut of_any, mut of_one) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
    for group in 0..groups {
        let host = group % pattern.hosts.max(1);
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for hosts in &pattern.cells {
            let mut sorted = draw(hosts);
            let place = hosts.binary_search(&host).ok();
            values.push(place.map(|place| sorted[place]));
            sorted.sort_by(f64::total_cmp);
            columns.push(Column {
                sorted,
                min_scale: f64::MIN_POSITIVE,
            });
        }
        let (mut any, mut one) = (0.0, 0.0);
        for ((column, spread), value) in columns.iter().zip(spreads(&columns)).zip(values) {
            let z = |value: &f64| (value - spread.centre).abs() / spread.scale;
            let ends = [column.sorted.first(), column.sorted.last()];
            any = ends.into_iter().flatten().map(z).fold(any, f64::max);
            one = value.as_ref().map_or(one, |value| f64::max(one, z(value)));
        }
        of_any.push(any);
        of_one.push(one);
    }
    Critical {
        any: upper_quantile(of_any, false_alarms),
        named: upper_quantile(of_one, false_alarms),
    }
}

/// The quantile above which this share is, by a standard error higher so that the error of the simulation does not raise the rate.
fn upper_quantile(values: Vec<f64>, share: f64) -> f64 {
    let values = sorted(values);
    let above = values.len() as f64 * share;
    let above = (above - above.sqrt()).max(0.0) as usize;
    let place = values.len().saturating_sub(1 + above);
    values.get(place).copied().unwrap_or(f64::INFINITY)
}

/// Standard normal numbers (the polar method of G. Marsaglia).
struct Normals(fastrand::Rng, Option<f64>);

impl Normals {
    fn next(&mut self) -> f64 {
        if let Some(kept) = self.1.take() {
            return kept;
        }
        loop {
            let (a, b) = (2.0 * self.0.f64() - 1.0, 2.0 * self.0.f64() - 1.0);
            let square = a * a + b * b;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.1 = Some(b * factor);
                return a * factor;
            }
        }
    }
}
