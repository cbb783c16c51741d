//! Hosts whose measured values deviate.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_runs::Cell;
use nearfar_statistics::outliers::{
    self, Location, Outliers, Reference, Thresholds, Values, common_shift, outliers_with,
};

use super::groups::HostGroup;
use super::pattern::pattern;
use super::{Deviation, From, Measured, NotJudged, SurveyOptions, names};
use crate::dataset::{Loaded, MetricKey};

/// What was found of a group.
#[derive(Default)]
pub(super) struct Compared {
    pub deviations: Vec<Deviation>,
    pub measured: Vec<Measured>,
    pub not_judged: Vec<NotJudged>,
}

/// The metrics that are compared: the primary ones, and those that were asked for.
pub(super) fn judged(loaded: &Loaded, options: &SurveyOptions) -> Vec<MetricKey> {
    let metrics = loaded.samples.keys();
    let is_judged = |key: &&MetricKey| key.is_primary || options.metrics.contains(&key.metric);
    metrics.filter(is_judged).cloned().collect()
}

/// How many of these metrics are compared in a group: those that enough of its hosts measured.
pub(super) fn comparisons(loaded: &Loaded, group: &HostGroup, judged: &[MetricKey]) -> usize {
    let is_compared = |key: &&MetricKey| {
        loaded.samples.get(key).is_some_and(|of_metric| {
            let measured = |host: &&usize| of_metric.values().any(|hosts| hosts.contains_key(host));
            group.hosts.iter().filter(measured).count() >= outliers::MIN_HOSTS
        })
    };
    judged.iter().filter(is_compared).count()
}

/// Compares the hosts of a group in each metric, each with this rate of false alarms.
pub(super) fn compare(
    loaded: &Loaded,
    group: &HostGroup,
    judged: &[MetricKey],
    rate: f64,
    options: &SurveyOptions,
    thresholds: &mut Thresholds,
) -> Compared {
    let mut compared = Compared::default();
    for key in judged {
        let Some(matrix) = Matrix::of(loaded, group, key, options.min_samples) else {
            continue;
        };
        compared
            .not_judged
            .extend(matrix.too_few(key, options.min_samples));
        if matrix.hosts.len() < outliers::MIN_HOSTS {
            compared.not_judged.push(NotJudged {
                experiment: key.experiment.clone(),
                metric: key.metric.clone(),
                reason: format!(
                    "{} hosts measured it; it takes {} or more",
                    matrix.hosts.len(),
                    outliers::MIN_HOSTS
                ),
            });
            continue;
        }
        match outliers_with(&matrix.values, rate, thresholds) {
            Ok(found) => {
                compared
                    .not_judged
                    .extend(matrix.too_few(key, options.min_samples));
                compared
                    .not_judged
                    .extend(unmeasured(loaded, group, key, &matrix));
                compared.measured.push(matrix.summary(key, &found));
                compared
                    .deviations
                    .extend(matrix.deviations(loaded, key, &found, options));
            }
            Err(reason) => compared.not_judged.push(NotJudged {
                experiment: key.experiment.clone(),
                metric: key.metric.clone(),
                reason: reason.to_string(),
            }),
        }
    }
    compared
}

/// Hosts of the group that have no value of a metric that others have: all their samples failed, or they were not asked.
fn unmeasured(
    loaded: &Loaded,
    group: &HostGroup,
    key: &MetricKey,
    matrix: &Matrix,
) -> Option<NotJudged> {
    let measured: BTreeSet<usize> = matrix.hosts.iter().copied().collect();
    let without = group.hosts.iter().filter(|host| !measured.contains(host));
    let without: Vec<usize> = without.copied().collect();
    (!without.is_empty()).then(|| NotJudged {
        experiment: key.experiment.clone(),
        metric: key.metric.clone(),
        reason: format!("no values of {}", names(loaded, &without).join(", ")),
    })
}

/// The values of a metric of a group.
struct Matrix {
    cells: Vec<Cell>,
    /// Places of the hosts in the dataset.
    hosts: Vec<usize>,
    values: Values,
    /// Hosts with too few samples in some cell.
    with_too_few: usize,
}

impl Matrix {
    /// `None` where no host of the group measured it.
    fn of(loaded: &Loaded, group: &HostGroup, key: &MetricKey, min_samples: usize) -> Option<Self> {
        let of_metric = loaded.samples.get(key)?;
        let cell = |text: &str| -> Cell {
            serde_json::from_str(text).unwrap_or_else(|_| Cell::new().with("cell", text))
        };
        let is_measured = |host: &&usize| of_metric.values().any(|hosts| hosts.contains_key(host));
        let hosts: Vec<usize> = group.hosts.iter().filter(is_measured).copied().collect();
        if hosts.is_empty() {
            return None;
        }
        let rows: Vec<&BTreeMap<usize, Vec<f64>>> = of_metric.values().collect();
        let is_enough = |samples: &&Vec<f64>| samples.len() >= min_samples;
        let values = Values::from_fn(rows.len(), hosts.len(), |row, column| {
            Location::of(rows[row].get(&hosts[column]).filter(is_enough)?)
        });
        let has_too_few = |host: &&usize| {
            let mut samples = rows.iter().filter_map(|row| row.get(host));
            samples.any(|samples| samples.len() < min_samples)
        };
        Some(Self {
            cells: of_metric.keys().map(|text| cell(text)).collect(),
            with_too_few: hosts.iter().filter(has_too_few).count(),
            hosts,
            values,
        })
    }

    /// What is said of hosts that are not judged everywhere.
    fn too_few(&self, key: &MetricKey, min_samples: usize) -> Option<NotJudged> {
        (self.with_too_few > 0).then(|| NotJudged {
            experiment: key.experiment.clone(),
            metric: key.metric.clone(),
            reason: format!(
                "{} of {} hosts have fewer than {min_samples} samples in a cell",
                self.with_too_few,
                self.hosts.len()
            ),
        })
    }

    fn summary(&self, key: &MetricKey, found: &Outliers) -> Measured {
        let mut scales: Vec<f64> = found
            .references
            .iter()
            .flatten()
            .map(|it| it.scale)
            .collect();
        scales.sort_by(f64::total_cmp);
        Measured {
            experiment: key.experiment.clone(),
            metric: key.metric.clone(),
            unit: key.unit.clone(),
            cells: self.cells.len(),
            hosts: self.hosts.len(),
            spread: scales.get(scales.len() / 2).copied().unwrap_or_default(),
            critical: found.critical,
            has_heavy_tails: found
                .references
                .iter()
                .flatten()
                .any(Reference::has_heavy_tails),
        }
    }

    /// Hosts that deviate in the same cells and the same direction, together.
    fn deviations(
        &self,
        loaded: &Loaded,
        key: &MetricKey,
        found: &Outliers,
        options: &SurveyOptions,
    ) -> Vec<Deviation> {
        let mut of_host: BTreeMap<(usize, bool), Vec<usize>> = BTreeMap::new();
        // The end of the interval that is nearer to no deviation: alike hosts that do not scatter normally are not named for little.
        let is_large = |it: &&outliers::Deviation| match it.ratio > 1.0 {
            true => it.low >= 1.0 + options.min_effect,
            false => it.high <= 1.0 - options.min_effect,
        };
        for deviation in found.deviations.iter().filter(is_large) {
            let of = (deviation.host, deviation.ratio > 1.0);
            of_host.entry(of).or_default().push(deviation.cell);
        }
        let mut alike: BTreeMap<(Vec<usize>, bool), Vec<usize>> = BTreeMap::new();
        for ((host, is_up), cells) in of_host {
            alike.entry((cells, is_up)).or_default().push(host);
        }
        let deviations = alike.into_iter().filter_map(|((cells, is_up), hosts)| {
            let shift = common_shift(&self.values, found, &hosts, &cells)?;
            let centres = cells
                .iter()
                .filter_map(|&cell| found.references[cell].as_ref());
            let (sum, number) = centres.fold((0.0, 0.0), |(sum, number), it| {
                (sum + it.centre, number + 1.0)
            });
            let usual = (sum / f64::max(number, 1.0)).exp();
            let places: Vec<usize> = hosts.iter().map(|&host| self.hosts[host]).collect();
            Some(Deviation {
                hosts: names(loaded, &places),
                from: From::Metric {
                    experiment: key.experiment.clone(),
                    metric: key.metric.clone(),
                    unit: key.unit.clone(),
                    cells: pattern(&self.cells, &cells),
                    ratio: shift.ratio,
                    low: shift.low,
                    high: shift.high,
                    is_worse: is_up == key.is_lower_better,
                    usual,
                    value: usual * shift.ratio,
                },
                also: Vec::new(),
            })
        });
        deviations.collect()
    }
}
