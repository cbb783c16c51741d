//! Hosts whose measured values deviate.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_compare::leaves;
use nearfar_runs::Cell;
use nearfar_statistics::outliers::{
    self, Location, Outliers, Reference, Thresholds, Values, common_shift, outliers_with, split,
};

use super::{
    Deviation, DeviationKind, HostGroup, Measured, MeasuredRun, NotJudged, Split, SurveyOptions,
    names,
};
use crate::dataset::{Loaded, MetricKey};
use crate::hosts::some_of;

/// Names of hosts in a line.
const MAX_NAMES: usize = 8;
/// Parameters that are named.
const MAX_PARAMETERS: usize = 4;
/// A host with a smaller share of failed samples is not named for them.
const MIN_FAILED_SHARE: f64 = 0.1;

/// The hosts of both groups, by their places in a matrix: those below and those above.
type TwoGroups = (Vec<usize>, Vec<usize>);

/// What was found of a group.
#[derive(Default)]
pub(super) struct Compared {
    pub deviations: Vec<Deviation>,
    pub split: Vec<Split>,
    pub measured: Vec<Measured>,
    pub not_judged: Vec<NotJudged>,
}

/// The metrics that are compared: the primary ones, and those that were asked for.
pub(super) fn judged(loaded: &Loaded, options: &SurveyOptions) -> Vec<MetricKey> {
    let metrics = loaded.samples.keys();
    let is_judged = |key: &&MetricKey| key.is_primary || options.metrics.contains(&key.metric);
    metrics.filter(is_judged).cloned().collect()
}

/// A metric of a group.
pub(super) struct GroupMetric<'a> {
    key: &'a MetricKey,
    matrix: Matrix,
}

impl<'a> GroupMetric<'a> {
    /// Of these metrics those that any host of the group measured.
    pub fn all(
        loaded: &Loaded,
        group: &HostGroup,
        judged: &'a [MetricKey],
        min_samples: usize,
    ) -> Vec<Self> {
        let of = |key| {
            let matrix = Matrix::of(loaded, group, key, min_samples)?;
            Some(Self { key, matrix })
        };
        judged.iter().filter_map(of).collect()
    }

    /// Whether any cell has enough hosts. What is not compared takes no part of the rate of false alarms.
    pub fn is_compared(&self) -> bool {
        let values = &self.matrix.values;
        let hosts =
            |cell| (0..values.hosts()).filter(move |&host| values.get(cell, host).is_some());
        (0..values.cells()).any(|cell| hosts(cell).count() >= outliers::MIN_HOSTS)
    }

    fn not_judged(&self, reason: String) -> NotJudged {
        NotJudged {
            experiment: self.key.experiment.clone(),
            metric: self.key.metric.clone(),
            reason,
        }
    }
}

/// Compares the hosts of a group in each metric, each with this rate of false alarms.
pub(super) fn compare(
    loaded: &Loaded,
    group: &HostGroup,
    metrics: &[GroupMetric<'_>],
    rate: f64,
    options: &SurveyOptions,
    thresholds: &mut Thresholds,
) -> Compared {
    let mut compared = Compared::default();
    for metric in metrics {
        let GroupMetric { key, matrix } = metric;
        let alike = metrics.iter().filter(|other| other.key.is_same_metric(key));
        let alike: Vec<&GroupMetric<'_>> = alike.collect();
        let most = alike.iter().max_by_key(|it| it.matrix.hosts.len());
        let other_parameters = most
            .filter(|most| most.key != *key)
            .map(|most| measured_otherwise(loaded, metric, most.key));
        let is_usual = other_parameters.is_none();
        let reasons = [
            matrix.too_few(options.min_samples),
            is_usual
                .then(|| unmeasured(loaded, group, &alike))
                .flatten(),
            other_parameters,
        ];
        let reasons = reasons.into_iter().flatten();
        compared
            .not_judged
            .extend(reasons.map(|reason| metric.not_judged(reason)));
        compared.deviations.extend(matrix.not_measured(loaded, key));
        match outliers_with(&matrix.values, rate, thresholds) {
            Ok(found) => {
                compared.measured.push(matrix.summary(loaded, key, &found));
                compared
                    .deviations
                    .extend(matrix.deviations(loaded, key, &found, options));
                compared
                    .split
                    .extend(matrix.splits(loaded, key, &found, options));
            }
            Err(reason) if is_usual => compared
                .not_judged
                .push(metric.not_judged(reason.to_string())),
            // That they are not compared with the others is said.
            Err(_) => {}
        }
    }
    compared
}

/// Hosts of the group that have no value of a metric that others have: all their samples failed, or they were not asked.
fn unmeasured(loaded: &Loaded, group: &HostGroup, alike: &[&GroupMetric<'_>]) -> Option<String> {
    let measured = alike.iter().flat_map(|it| it.matrix.hosts.iter().copied());
    let measured: BTreeSet<usize> = measured.collect();
    let without = group.hosts.iter().filter(|host| !measured.contains(host));
    let without: Vec<usize> = without.copied().collect();
    (!without.is_empty()).then(|| {
        let names = some_of(&names(loaded, &without), MAX_NAMES);
        format!("no values of {names}")
    })
}

/// Says of hosts that they measured with other parameters than most hosts.
fn measured_otherwise(loaded: &Loaded, metric: &GroupMetric<'_>, usual: &MetricKey) -> String {
    let parsed = |text: &str| serde_json::from_str(text).unwrap_or_default();
    let mut found = Vec::new();
    let (usual, own) = (parsed(&usual.parameters), parsed(&metric.key.parameters));
    leaves("", &usual, &own, &mut found);
    let parameters: Vec<String> = found
        .iter()
        .map(|(name, usual, own)| format!("{name} {own} instead of {usual}"))
        .collect();
    let parameters = match own.is_null() || usual.is_null() {
        true => "the dataset has none".to_owned(),
        false => some_of(&parameters, MAX_PARAMETERS),
    };
    let hosts = some_of(&names(loaded, &metric.matrix.hosts), MAX_NAMES);
    format!("{hosts}: not compared with the others, because of other parameters ({parameters})")
}

/// The values of a metric of a group.
struct Matrix {
    cells: Vec<Cell>,
    /// Places of the hosts in the dataset.
    hosts: Vec<usize>,
    values: Values,
    /// Hosts with too few samples in some cell.
    with_too_few: usize,
    /// The cells without a value that more than half of the hosts have, by place in `hosts`.
    missing: Vec<Vec<usize>>,
    /// Samples that failed and all, by place in `hosts`.
    samples: Vec<(usize, usize)>,
}

impl Matrix {
    /// `None` where no host of the group measured it.
    fn of(loaded: &Loaded, group: &HostGroup, key: &MetricKey, min_samples: usize) -> Option<Self> {
        let of_metric = loaded.samples.get(key)?;
        let cell = |text: &str| -> Cell {
            serde_json::from_str(text).unwrap_or_else(|_| Cell::new().with("cell", text))
        };
        let rows: Vec<&BTreeMap<usize, Vec<f64>>> = of_metric.values.values().collect();
        let is_measured = |host: &&usize| rows.iter().any(|hosts| hosts.contains_key(host));
        let hosts: Vec<usize> = group.hosts.iter().filter(is_measured).copied().collect();
        if hosts.is_empty() {
            return None;
        }
        let values = Values::from_fn(rows.len(), hosts.len(), |row, column| {
            let location = Location::of(rows[row].get(&hosts[column])?)?;
            Some(location).filter(|it| it.samples >= min_samples)
        });
        let has_too_few = |(column, host): &(usize, &usize)| {
            let mut rows = rows.iter().enumerate();
            rows.any(|(row, hosts)| hosts.contains_key(host) && values.get(row, *column).is_none())
        };
        let with_too_few = hosts.iter().enumerate().filter(has_too_few).count();
        let measured = |row: &&BTreeMap<usize, Vec<f64>>| {
            hosts.iter().filter(|host| row.contains_key(host)).count()
        };
        let is_usual: Vec<bool> = rows
            .iter()
            .map(|row| 2 * measured(row) > hosts.len())
            .collect();
        let missing = hosts.iter().map(|host| {
            let lacks = |&row: &usize| is_usual[row] && !rows[row].contains_key(host);
            (0..rows.len()).filter(lacks).collect()
        });
        let samples = hosts.iter().map(|host| {
            let failed = of_metric.failed.get(host).copied().unwrap_or_default();
            let of_host = rows.iter().filter_map(|row| row.get(host));
            (failed, failed + of_host.map(Vec::len).sum::<usize>())
        });
        Some(Self {
            cells: of_metric.values.keys().map(|text| cell(text)).collect(),
            with_too_few,
            missing: missing.collect(),
            samples: samples.collect(),
            hosts,
            values,
        })
    }

    /// What is said of hosts that are not judged everywhere.
    fn too_few(&self, min_samples: usize) -> Option<String> {
        (self.with_too_few > 0).then(|| {
            format!(
                "{} of {} hosts have fewer than {min_samples} samples above 0 in a cell",
                self.with_too_few,
                self.hosts.len()
            )
        })
    }

    /// Hosts that lack values which most hosts have: cells that they did not measure, and samples that failed.
    fn not_measured(&self, loaded: &Loaded, key: &MetricKey) -> Vec<Deviation> {
        let mut alike: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
        for (missing, &host) in self.missing.iter().zip(&self.hosts) {
            if !missing.is_empty() {
                alike.entry(missing).or_default().push(host);
            }
        }
        let deviation = |hosts: &[usize], kind| Deviation {
            hosts: names(loaded, hosts),
            kind,
            also: Vec::new(),
        };
        let (experiment, metric) = (key.experiment.clone(), key.metric.clone());
        let mut deviations: Vec<Deviation> = alike
            .into_iter()
            .map(|(missing, hosts)| {
                let kind = DeviationKind::NotMeasured {
                    experiment: experiment.clone(),
                    metric: metric.clone(),
                    cells: pattern(&self.cells, missing),
                };
                deviation(&hosts, kind)
            })
            .collect();
        let without = self.samples.iter().filter(|(failed, _)| *failed == 0);
        if 2 * without.count() > self.hosts.len() {
            let is_many = |(failed, all): (usize, usize)| {
                failed > 0 && failed as f64 >= MIN_FAILED_SHARE * all as f64
            };
            let places = (0..self.hosts.len()).filter(|&it| is_many(self.samples[it]));
            deviations.extend(places.map(|place| {
                let (failed, samples) = self.samples[place];
                let kind = DeviationKind::FailedSamples {
                    experiment: experiment.clone(),
                    metric: metric.clone(),
                    failed,
                    samples,
                };
                deviation(&[self.hosts[place]], kind)
            }));
        }
        deviations
    }

    /// Cells in which the hosts are the same two groups, together.
    fn splits(
        &self,
        loaded: &Loaded,
        key: &MetricKey,
        found: &Outliers,
        options: &SurveyOptions,
    ) -> Vec<Split> {
        let mut alike: BTreeMap<TwoGroups, Vec<(usize, f64)>> = BTreeMap::new();
        for cell in 0..self.cells.len() {
            let split = split(&self.values, found, cell);
            let split = split.filter(|it| it.ratio >= 1.0 + options.min_effect);
            let Some(split) = split else { continue };
            let groups = (split.below, split.above);
            alike.entry(groups).or_default().push((cell, split.ratio));
        }
        let of_places = |places: &[usize]| {
            let places: Vec<usize> = places.iter().map(|&place| self.hosts[place]).collect();
            names(loaded, &places)
        };
        let split = |((below, above), mut cells): (TwoGroups, Vec<(usize, f64)>)| {
            let places: Vec<usize> = cells.iter().map(|(cell, _)| *cell).collect();
            cells.sort_by(|a, b| a.1.total_cmp(&b.1));
            Split {
                experiment: key.experiment.clone(),
                metric: key.metric.clone(),
                cells: pattern(&self.cells, &places),
                below: of_places(&below),
                above: of_places(&above),
                ratio: cells[cells.len() / 2].1,
                also: Vec::new(),
            }
        };
        alike.into_iter().map(split).collect()
    }

    /// The runs that the values are of, the newest first.
    fn runs(&self, loaded: &Loaded, key: &MetricKey) -> Vec<MeasuredRun> {
        let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
        let of_experiment = loaded.measured_in.get(&key.experiment);
        for host in &self.hosts {
            if let Some(run) = of_experiment.and_then(|it| it.get(host)) {
                *runs.entry(*run).or_default() += 1;
            }
        }
        let of = |(run, hosts): (usize, usize)| {
            let run = &loaded.runs[run];
            MeasuredRun {
                run: run.run.clone(),
                label: run.label.clone(),
                started_at_s: run.started_at,
                hosts,
            }
        };
        runs.into_iter().rev().map(of).collect()
    }

    fn summary(&self, loaded: &Loaded, key: &MetricKey, found: &Outliers) -> Measured {
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
            runs: self.runs(loaded, key),
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
        let clusters = alike.into_iter().flat_map(|((cells, is_up), hosts)| {
            let clusters = self.clusters(found, hosts, &cells);
            clusters
                .into_iter()
                .map(move |hosts| (cells.clone(), is_up, hosts))
        });
        let deviations = clusters.filter_map(|(cells, is_up, hosts)| {
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
                kind: DeviationKind::Metric {
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

    /// Hosts that deviate alike: their intervals, twice as wide as those of 95 %, all overlap. One row for others would give a host a figure
    /// that is not its own.
    fn clusters(&self, found: &Outliers, hosts: Vec<usize>, cells: &[usize]) -> Vec<Vec<usize>> {
        let of_host = |host: usize| {
            let shift = common_shift(&self.values, found, &[host], cells)?;
            let (low, middle, high) = (shift.low.ln(), shift.ratio.ln(), shift.high.ln());
            Some((
                middle - 2.0 * (middle - low),
                middle + 2.0 * (high - middle),
                host,
            ))
        };
        let mut intervals: Vec<(f64, f64, usize)> = hosts.into_iter().filter_map(of_host).collect();
        intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut clusters: Vec<(f64, Vec<usize>)> = Vec::new();
        for (low, high, host) in intervals {
            match clusters.last_mut() {
                Some((least_high, hosts)) if low <= *least_high => {
                    *least_high = least_high.min(high);
                    hosts.push(host);
                }
                _ => clusters.push((high, vec![host])),
            }
        }
        let of_cluster = |(_, mut hosts): (f64, Vec<usize>)| {
            hosts.sort_unstable();
            hosts
        };
        clusters.into_iter().map(of_cluster).collect()
    }
}

/// Cells that are listed one by one.
const MAX_LISTED: usize = 4;

/// What these of all cells have in common: `all`, a level of a factor, `cpu_node and memory_node differ`, or the cells themselves.
fn pattern(all: &[Cell], chosen: &[usize]) -> String {
    if chosen.len() == all.len() {
        return "all".to_owned();
    }
    let is_exactly = |holds: &dyn Fn(&Cell) -> bool| {
        let mut places = 0..all.len();
        places.all(|place| holds(&all[place]) == chosen.contains(&place))
    };
    let Some(first) = chosen.first().map(|&place| &all[place]) else {
        return "none".to_owned();
    };
    for (factor, level) in first.levels() {
        if is_exactly(&|cell| cell.level(factor) == Some(level)) {
            return format!("{factor}={level}");
        }
    }
    let factors: Vec<&str> = first.levels().map(|(factor, _)| factor).collect();
    for (index, a) in factors.iter().enumerate() {
        for b in &factors[index + 1..] {
            if is_exactly(&|cell| cell.level(a) != cell.level(b)) {
                return format!("{a} and {b} differ");
            }
            if is_exactly(&|cell| cell.level(a) == cell.level(b)) {
                return format!("{a} and {b} are equal");
            }
        }
    }
    let listed: Vec<String> = chosen
        .iter()
        .take(MAX_LISTED)
        .map(|&place| all[place].to_string())
        .collect();
    match chosen.len() - listed.len() {
        0 => listed.join("; "),
        more => format!("{} and {more} more of {}", listed.join("; "), all.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_by_what_they_have_in_common() {
        let cell = |cpu: u32, memory: u32| {
            Cell::new()
                .with("cpu_node", cpu)
                .with("memory_node", memory)
        };
        let all = [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)];
        for (chosen, text) in [
            (&[0, 1, 2, 3][..], "all"),
            (&[1, 3], "memory_node=1"),
            (&[0, 1], "cpu_node=0"),
            (&[1, 2], "cpu_node and memory_node differ"),
            (&[0, 3], "cpu_node and memory_node are equal"),
            (&[1], "cpu_node=0 memory_node=1"),
            (&[], "none"),
        ] {
            assert_eq!(pattern(&all, chosen), text, "{chosen:?}");
        }
    }
}
