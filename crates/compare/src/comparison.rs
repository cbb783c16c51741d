//! Every cell and metric that the baseline shares with another side.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Emulation;
use nearfar_runs::{Cell, Metric, ROUNDS_PER_BLOCK};
use nearfar_statistics::block_medians;
use nearfar_statistics::compare::{
    Better, Compared, Design, Question, Verdict, compare_shares, sequential,
};
use serde::{Deserialize, Serialize};

use crate::difference::{CompareError, Difference, Kind, metric_differences, setup_differences};
use crate::side::{Sample, Side};

/// Parameters that decide how many samples are taken, or say how another parameter was found: not what a sample is.
const NOT_COMPARED: [&str; 4] = [
    "max_samples",
    "budget_s",
    "calibrated_to_s",
    ROUNDS_PER_BLOCK,
];

/// What is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// A change up to this share is equivalent; above 0 and below 1.
    pub margin: f64,
    /// Only these metrics; all where there is none.
    pub metrics: Vec<String>,
    /// Differences that are the point of the comparison.
    pub across: BTreeSet<Kind>,
    /// Judge one run a side by its samples, as if nothing differed from run to run: for a gate that acts on one measurement before
    /// and one after, and rather acts once too often.
    pub judges_single_runs: bool,
}

/// A side as an answer shows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SideSummary {
    /// What it is called.
    pub name: String,
    /// The numbers of its runs in their stores; none of a table.
    pub runs: Vec<i64>,
    /// What the user calls the run; `null` also where several runs are called differently.
    pub label: Option<String>,
    /// The kernel's release; `null` where the file does not say.
    pub kernel: Option<String>,
    /// The emulated machine; `null` for a real one. Of a table only its label.
    pub emulation: Option<Emulation>,
    /// Whether every sample was taken; `null` where the file does not say.
    pub is_complete: Option<bool>,
    /// Samples with values.
    pub samples: usize,
    /// Attempts that failed.
    pub failed: usize,
    /// Samples with warnings.
    pub with_warnings: usize,
    /// What may be wrong with a whole run of it, such as other load meanwhile.
    pub warnings: Vec<RunWarning>,
    /// Kinds of differences that its file does not let one see.
    pub not_checked: Vec<Kind>,
}

/// What may be wrong with a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunWarning {
    /// What the run is called.
    pub run: String,
    pub warning: String,
}

/// One metric of one cell of one side, against the baseline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The side, which is B; the baseline is A.
    pub side: String,
    /// The metric.
    pub metric: String,
    /// The cell.
    pub cell: Cell,
    /// What the samples say.
    #[serde(flatten)]
    pub compared: Compared,
}

impl Row {
    /// By how much it is significantly worse, as a share of the baseline: 0.05 is 5 % worse. The larger of the shift and the change
    /// of the means, which counts unless its interval holds no change. `None` where it is not worse. Infinite where the baseline is 0.
    pub fn regression(&self, better: Better) -> Option<f64> {
        let compared = &self.compared;
        let upwards = match better {
            Better::Lower => 1.0,
            Better::Higher => -1.0,
        };
        let of_shift = compared.change.map(|change| upwards * change.value);
        let of_means = compared.mean_change();
        let is_counted = compared.mean.confidence.is_none() || compared.has_other_means();
        let of_means = of_means.filter(|_| is_counted).map(|it| upwards * it);
        (compared.verdict == Verdict::Worse).then(|| {
            let of_shift = of_shift.unwrap_or(f64::INFINITY);
            of_means.map_or(of_shift, |it| it.max(of_shift))
        })
    }
}

impl Comparison {
    /// Whether some row could not have got worse, whatever was measured: too few samples, or one run a side.
    pub fn has_unjudged(&self) -> bool {
        let mut verdicts = self.rows.iter().map(|row| row.compared.verdict);
        verdicts.any(|it| matches!(it, Verdict::TooFewSamples | Verdict::OneRunASide))
    }

    /// By how much each row is worse that is, and how much larger a share failed of each cell of which more failed.
    pub fn regressions(&self) -> impl Iterator<Item = f64> {
        let better = |row: &Row| {
            let metric = self.metrics.iter().find(|it| it.name == row.metric);
            metric.map(|metric| metric.better)
        };
        let rows = self.rows.iter();
        let worse = rows.filter_map(move |row| row.regression(better(row)?));
        let failed = self.failed_cells.iter();
        worse.chain(failed.filter_map(|cell| cell.regression))
    }
}

/// A cell, or a metric of it, that only one of two sides has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OneSided {
    /// The side that was compared with the baseline.
    pub side: String,
    /// The side that has it.
    pub only_in: String,
    /// The cell.
    pub cell: Cell,
    /// The metrics that only this side has there.
    pub metrics: Vec<String>,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The experiment; `null` where no file says.
    pub experiment: Option<String>,
    /// The sides, the baseline first.
    pub sides: Vec<SideSummary>,
    /// A change up to this share is equivalent.
    pub margin: f64,
    /// Differences in how the sides were made, all of them allowed.
    pub differences: Vec<Difference>,
    /// The metrics that were compared, the primary one first.
    pub metrics: Vec<Metric>,
    /// Every cell and metric that a side shares with the baseline.
    pub rows: Vec<Row>,
    /// Cells with failed samples on either side.
    pub failed_cells: Vec<FailedCell>,
    /// What only one side has.
    pub one_sided: Vec<OneSided>,
}

/// Compares each other side with the first.
///
/// # Errors
/// Experiments or anything that is not allowed to differ do; a metric that no side has; nothing in common.
pub fn compare(sides: &[Side], options: &Options) -> Result<Comparison, CompareError> {
    let (baseline, others) = sides.split_first().expect("a comparison has a baseline");
    let mut differences = Vec::new();
    let mut runs = sides.iter().flat_map(Side::members);
    let first = runs.next().expect("a side has a run");
    for run in runs {
        check_experiments(first, run)?;
        differences.extend(setup_differences(first, run));
        differences.extend(metric_differences(first, run));
    }
    for side in others {
        check_repeated(baseline, side)?;
    }
    let decides =
        |it: &Difference| it.kind != Kind::Parameters || !NOT_COMPARED.contains(&it.name.as_str());
    differences.retain(decides);
    let (allowed, refused): (Vec<_>, Vec<_>) = differences
        .into_iter()
        .partition(|difference| options.across.contains(&difference.kind));
    if !refused.is_empty() {
        return Err(CompareError::Differ(refused));
    }
    let metrics = metrics(sides, &allowed, &options.metrics)?;
    let (mut questions, mut asked) = (Vec::new(), Vec::new());
    // Of one run a side, which are no tests, so that they count for no correction.
    let (mut within, mut asked_within) = (Vec::new(), Vec::new());
    let (mut failed_cells, mut one_sided) = (Vec::new(), Vec::new());
    for side in others {
        let before = asked.len() + asked_within.len();
        let join = Join::new(baseline, side);
        for metric in &metrics {
            for cell in &join.cells {
                let Some((question, share)) = join.question(cell, metric) else {
                    continue;
                };
                let of = (side.name.clone(), metric.name.clone(), (*cell).clone());
                match join.is_of_one_run_a_side(&question) && !options.judges_single_runs {
                    true => {
                        within.push((question, 1.0));
                        asked_within.push(of);
                    }
                    false => {
                        questions.push((question, share));
                        asked.push(of);
                    }
                }
            }
        }
        let failed = join.failed();
        if asked.len() + asked_within.len() == before && !failed.iter().any(FailedCell::is_of_both)
        {
            return Err(CompareError::Wrong(format!(
                "{} and {} have no cell and metric in common",
                baseline.name, side.name
            )));
        }
        failed_cells.extend(failed);
        one_sided.extend(join.one_sided(&metrics));
    }
    let answer = |questions: &[(Question, f64)]| {
        let questions = questions.iter().map(|(question, share)| (question, *share));
        compare_shares(questions, options.margin).into_iter()
    };
    let within = answer(&within).map(|compared| compared.map(Compared::within_runs));
    let judged = asked.into_iter().zip(answer(&questions));
    let rows = judged.chain(asked_within.into_iter().zip(within));
    let rows = rows.filter_map(|((side, metric, cell), compared)| {
        compared.map(|compared| Row {
            side,
            metric,
            cell,
            compared,
        })
    });
    Ok(Comparison {
        experiment: sides.iter().find_map(|side| side.experiment.clone()),
        sides: sides.iter().map(|side| summary(baseline, side)).collect(),
        margin: options.margin,
        differences: allowed,
        metrics,
        rows: rows.collect(),
        failed_cells,
        one_sided,
    })
}

fn summary(baseline: &Side, side: &Side) -> SideSummary {
    let is_held = |kind: &Kind| side.setup.contains_key(kind) && baseline.setup.contains_key(kind);
    let not_checked = match std::ptr::eq(baseline, side) {
        true => Vec::new(),
        false => Kind::OF_SETUP
            .into_iter()
            .filter(|kind| !is_held(kind))
            .collect(),
    };
    SideSummary {
        name: side.name.clone(),
        runs: side.runs.clone(),
        label: side.label.clone(),
        kernel: side.kernel.clone(),
        emulation: side.emulation.clone(),
        is_complete: side.is_complete,
        samples: side.samples.len(),
        failed: side.failed.len(),
        with_warnings: side.with_warnings,
        warnings: side.warnings.clone(),
        not_checked,
    }
}

/// Sides of the same runs are levels of a factor; other sides share no run.
fn check_repeated(a: &Side, b: &Side) -> Result<(), CompareError> {
    // Tables have no uids.
    let is_same = a.uids == b.uids && (!a.uids.is_empty() || a.name == b.name);
    if is_same && !b.is_level {
        return Err(CompareError::Wrong(format!("both sides are {}", a.name)));
    }
    let of_a = |run: &&Side| run.uids.iter().any(|uid| a.uids.contains(uid));
    match b.members().iter().find(of_a) {
        Some(run) if a.uids != b.uids => Err(CompareError::is_repeated(run)),
        _ => Ok(()),
    }
}

fn check_experiments(a: &Side, b: &Side) -> Result<(), CompareError> {
    match (&a.experiment, &b.experiment) {
        (Some(of_a), Some(of_b)) if of_a != of_b => Err(CompareError::Wrong(format!(
            "{} is a run of {of_a}, {} of {of_b}: only runs of one experiment can be compared",
            a.name, b.name
        ))),
        _ => Ok(()),
    }
}

/// The metrics that are compared, the primary one first: those that were asked for, of those that mean the same on all sides.
fn metrics(
    sides: &[Side],
    differences: &[Difference],
    wanted: &[String],
) -> Result<Vec<Metric>, CompareError> {
    let mut metrics: Vec<Metric> = Vec::new();
    for metric in sides.iter().flat_map(|side| &side.definitions.metrics) {
        if metrics.iter().all(|known| known.name != metric.name) {
            metrics.push(metric.clone());
        }
    }
    let names: Vec<String> = metrics.iter().map(|metric| metric.name.clone()).collect();
    // A histogram is asked for by its own name or by that of a quantile.
    let is_of = |wanted: &String, name: &String| {
        wanted == name
            || ["_p50", "_p99"]
                .iter()
                .any(|it| name.strip_suffix(it) == Some(wanted))
    };
    let is_missing = |wanted: &&String| !names.iter().any(|name| is_of(wanted, name));
    if let Some(missing) = wanted.iter().find(is_missing) {
        return Err(CompareError::Wrong(format!(
            "no side has the metric {missing:?}; they have {}",
            names.join(", ")
        )));
    }
    metrics.retain(|metric| wanted.is_empty() || wanted.iter().any(|it| is_of(it, &metric.name)));
    let differs = |metric: &Metric| {
        let mut of_metrics = differences.iter().filter(|it| it.kind == Kind::Metrics);
        of_metrics.any(|it| it.name == metric.name)
    };
    metrics.retain(|metric| !differs(metric));
    metrics.sort_by_key(|metric| !metric.primary);
    Ok(metrics)
}

/// The samples of a cell on one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempts {
    /// Usable ones.
    pub samples: usize,
    /// Those that failed.
    pub failed: usize,
}

impl Attempts {
    /// Failed ones included.
    pub fn total(self) -> usize {
        self.samples + self.failed
    }

    /// Whether there are samples, and none of them is usable.
    pub fn all_failed(self) -> bool {
        self.failed > 0 && self.samples == 0
    }

    /// 0 to 1; 0 where there are no samples.
    fn failed_share(self) -> f64 {
        self.failed as f64 / self.total().max(1) as f64
    }
}

/// A cell in which samples failed on one of two sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FailedCell {
    /// The side, which is B; the baseline is A.
    pub side: String,
    /// The cell.
    pub cell: Cell,
    /// The baseline's samples.
    pub a: Attempts,
    /// The other side's.
    pub b: Attempts,
    /// The share of B's samples that failed less that of A's; `None` where no larger share failed.
    pub regression: Option<f64>,
}

impl FailedCell {
    /// `None` where no sample failed.
    fn of(side: &str, cell: &Cell, a: Attempts, b: Attempts) -> Option<Self> {
        let more = b.failed_share() - a.failed_share();
        (a.failed + b.failed > 0).then(|| Self {
            side: side.to_owned(),
            cell: cell.clone(),
            a,
            b,
            regression: (more > 0.0).then_some(more),
        })
    }

    /// Whether both sides have samples of it, failed ones included.
    fn is_of_both(&self) -> bool {
        self.a.total() > 0 && self.b.total() > 0
    }
}

/// The samples of two sides by cell.
struct Join<'a> {
    baseline: &'a Side,
    side: &'a Side,
    /// The cells of both, those without usable samples too.
    cells: Vec<&'a Cell>,
    samples: [BTreeMap<String, Vec<&'a Sample>>; 2],
    /// How many failed.
    failed: [BTreeMap<String, usize>; 2],
}

impl<'a> Join<'a> {
    fn new(baseline: &'a Side, side: &'a Side) -> Self {
        let samples = [baseline, side].map(|side| {
            let mut by_cell: BTreeMap<String, Vec<&Sample>> = BTreeMap::new();
            for sample in &side.samples {
                by_cell
                    .entry(sample.cell.to_string())
                    .or_default()
                    .push(sample);
            }
            by_cell
        });
        let failed = [baseline, side].map(|side| {
            let mut by_cell = BTreeMap::new();
            for cell in &side.failed {
                *by_cell.entry(cell.to_string()).or_default() += 1;
            }
            by_cell
        });
        let mut known = BTreeSet::new();
        let cells = baseline.cells().chain(side.cells());
        let mut cells: Vec<&Cell> = cells
            .filter(|cell| known.insert(cell.to_string()))
            .collect();
        // Samples come in random order; cells in that of their levels.
        cells.sort();
        Self {
            baseline,
            side,
            cells,
            samples,
            failed,
        }
    }

    fn attempts(&self, side: usize, cell: &Cell) -> Attempts {
        let cell = cell.to_string();
        Attempts {
            samples: self.samples[side].get(&cell).map_or(0, Vec::len),
            failed: self.failed[side].get(&cell).copied().unwrap_or(0),
        }
    }

    /// The cells in which samples failed.
    fn failed(&self) -> Vec<FailedCell> {
        let of = |cell: &&Cell| {
            let [a, b] = [0, 1].map(|side| self.attempts(side, cell));
            FailedCell::of(&self.side.name, cell, a, b)
        };
        self.cells.iter().filter_map(of).collect()
    }

    /// The samples of one side that have a metric, and its values.
    fn values(&self, side: usize, cell: &Cell, metric: &str) -> Vec<(&'a Sample, f64)> {
        let samples = self.samples[side].get(&cell.to_string());
        let samples = samples.into_iter().flatten();
        samples
            .filter_map(|sample| Some((*sample, *sample.values.get(metric)?)))
            .collect()
    }

    /// Levels of one run were measured round by round, so that what drifts is common to both.
    fn is_paired(&self) -> bool {
        self.baseline.is_paired() && self.side.is_paired()
    }

    /// The share of the false alarms of a question about these samples. Runs that end once their answer is clear have looks
    /// ([`sequential`]); how many rounds one run had and how many another had are one of as many cases as both products have factors.
    fn share(&self, [a, b]: [&[(&Sample, f64)]; 2]) -> f64 {
        // The last round of each run that was looked at.
        let rounds = |side: &Side, samples: &[(&Sample, f64)]| {
            let mut rounds: BTreeMap<usize, u32> = BTreeMap::new();
            let runs = side.members();
            for (sample, _) in samples.iter().filter(|(it, _)| runs[it.run].is_until_clear) {
                let last = rounds.entry(sample.run).or_default();
                *last = (*last).max(sample.round.unwrap_or(0));
            }
            rounds
        };
        let (a, b) = (rounds(self.baseline, a), rounds(self.side, b));
        let of = |rounds: BTreeMap<usize, u32>| rounds.into_values().map(sequential::share);
        match self.is_paired() {
            // Only the rounds that both have count.
            true => b
                .iter()
                .map(|(run, last)| sequential::share(*a.get(run).unwrap_or(last).min(last)))
                .product(),
            false => of(a).chain(of(b)).product(),
        }
    }

    /// With its share of the false alarms.
    fn question(&self, cell: &Cell, metric: &Metric) -> Option<(Question, f64)> {
        let [a, b] = [0, 1].map(|side| self.values(side, cell, &metric.name));
        let better = Some(metric.better);
        let question = match self.is_paired() {
            true => Question::paired(&by_round(&a), &by_round(&b), better),
            false => Question {
                a: by_run(&a),
                b: by_run(&b),
                design: Design::Independent,
                better,
            },
        };
        let has_samples = |side: &[Vec<f64>]| side.iter().any(|run| !run.is_empty());
        let share = self.share([&a, &b]);
        (has_samples(&question.a) && has_samples(&question.b)).then_some((question, share))
    }

    /// Whether both sides are one run each, which differ by more than what is compared; levels of one run do not.
    fn is_of_one_run_a_side(&self, question: &Question) -> bool {
        let are_levels = self.baseline.is_level && self.side.is_level;
        !are_levels && question.a.len() == 1 && question.b.len() == 1
    }

    /// Cells and metrics that only one of both has; where all samples failed the cell is one of both.
    fn one_sided(&self, metrics: &[Metric]) -> Vec<OneSided> {
        let mut found = Vec::new();
        for cell in &self.cells {
            let has = |side, metric: &Metric| !self.values(side, cell, &metric.name).is_empty();
            for (side, name) in [(0, &self.baseline.name), (1, &self.side.name)] {
                if self.attempts(1 - side, cell).all_failed() {
                    continue;
                }
                let alone = metrics
                    .iter()
                    .filter(|it| has(side, it) && !has(1 - side, it));
                let alone: Vec<String> = alone.map(|metric| metric.name.clone()).collect();
                if !alone.is_empty() {
                    found.push(OneSided {
                        side: self.side.name.clone(),
                        only_in: name.clone(),
                        cell: (*cell).clone(),
                        metrics: alone,
                    });
                }
            }
        }
        found
    }
}

/// The values of each run that has any: those of a block, which one disturbance changes together, as their median.
fn by_run(side: &[(&Sample, f64)]) -> Vec<Vec<f64>> {
    let mut runs: BTreeMap<usize, Vec<(Option<u32>, f64)>> = BTreeMap::new();
    for (sample, value) in side {
        let samples = runs.entry(sample.run).or_default();
        samples.push((sample.block, *value));
    }
    runs.into_values().map(block_medians).collect()
}

/// The values by run and round, of those that have one.
fn by_round(side: &[(&Sample, f64)]) -> BTreeMap<(usize, u32), f64> {
    let rounds = side.iter();
    let of = |(sample, value): &(&Sample, f64)| Some(((sample.run, sample.round?), *value));
    rounds.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use nearfar_statistics::compare::Design;

    use super::*;

    fn row(a: &[f64], b: &[f64], better: Better) -> Row {
        let question = Question {
            a: vec![a.to_vec()],
            b: vec![b.to_vec()],
            design: Design::Independent,
            better: Some(better),
        };
        let mut answers = nearfar_statistics::compare::compare(&[question], 0.01);
        Row {
            side: "b".to_owned(),
            metric: "v".to_owned(),
            cell: Cell::default(),
            compared: answers.remove(0).unwrap(),
        }
    }

    #[test]
    fn a_regression_is_as_large_as_the_change_of_the_mean_where_the_shift_is_none() {
        let usual = [1.0; 20];
        let doubled = [1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0].repeat(2);
        let lower = row(&usual, &doubled, Better::Lower);
        assert_eq!(lower.compared.shift.value, 1.0);
        let by = lower.regression(Better::Lower).unwrap();
        assert!((by - 0.4).abs() < 1e-9, "{by}");
        let higher = row(&doubled, &usual, Better::Higher);
        let by = higher.regression(Better::Higher).unwrap();
        assert!((by - 0.4 / 1.4).abs() < 1e-9, "{by}");
        let better = row(&usual, &doubled, Better::Higher);
        assert_eq!(better.regression(Better::Higher), None);
    }

    #[test]
    fn a_larger_share_of_failed_samples_is_a_regression() {
        let of = |a: (usize, usize), b: (usize, usize)| {
            let [a, b] = [a, b].map(|(samples, failed)| Attempts { samples, failed });
            FailedCell::of("B", &Cell::new(), a, b).map(|cell| cell.regression)
        };
        assert_eq!(of((10, 0), (10, 0)), None);
        assert_eq!(of((10, 0), (2, 8)), Some(Some(0.8)));
        assert_eq!(of((10, 0), (0, 4)), Some(Some(1.0)));
        assert_eq!(of((0, 0), (0, 4)), Some(Some(1.0)));
        assert_eq!(of((5, 5), (20, 10)), Some(None));
        assert_eq!(of((0, 4), (0, 8)), Some(None));
        assert_eq!(of((0, 4), (8, 0)), Some(None));
    }
}
