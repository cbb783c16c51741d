//! The answer of a run, a pure function of its parameters and samples, so that a stored run has the same one years later: each cell
//! summed up, and what the samples say, question by question, each with its interval, or why they cannot tell.
//!
//! ```text
//! round 1   0/0 0/1 0/F ...  ──► ratio of other-node to same-node cells in this round ─┐
//! round 2   0/F 0/1 0/0 ...  ──► ratio ──────────────────────────────────────────────┼──► median, its 95 % interval
//! round 3   ...              ──► ratio ──────────────────────────────────────────────┘
//! ```
//!
//! Ratios are taken within a round, whose cells ran one after the other in random order: what drifts over the hours is
//! the same for both sides and cancels out. A round that lacks a cell of either side is left out.
//!
//! The step that was manual: run time explained by cross-node migrations and by the share of far accesses.
//!
//! Least squares over all samples: seconds = what its round took + a x migrations from node to node + b x share of far
//! accesses. Each round, apart for NUMA balancing on and off, has a level of its own, so that neither drift nor the cost of
//! hint faults looks like a cost of being far. The runs of a cell share whatever is special to it, so intervals count cells
//! (clusters), not runs. Runs whose memory NUMA balancing may move are left out: moving it costs time
//! that neither of the two explains, and how long it was far is not known exactly.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_experiment::Change;
use nearfar_machine::{Known, NodeId};
use nearfar_runs::{Counted, Detail, Run, Sample as StoredSample, counted};
use nearfar_statistics::regression::{self, Baseline, CannotTell, Coefficient, Fit, Share, fit};
use nearfar_statistics::{Figures, Interval, Moments, Summary};
use serde::{Deserialize, Serialize};

use super::choose::LeftOut;
use super::{EXPERIMENT, MatrixCell, Policy, RunFailed, Sample, Taken};
use crate::load::PERIOD_S;
use crate::probe::{Pattern, Where};

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The questions that the run's cells allow to ask.
    pub contrasts: Vec<Contrast>,
    /// Run time explained by migrations and by the share of far accesses.
    pub explained: Explained,
}

/// A question: how many times as long do some cells take as others?
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Bound to another node than the memory, against bound to the same.
    OtherNode,
    /// CPUs floating with the memory bound, against both bound to one node.
    UnboundCpus,
    /// All floating, against both bound to one node.
    AllUnbound,
    /// NUMA balancing on against off, memory floating.
    BalancingUnboundMemory,
    /// NUMA balancing on against off, memory bound and CPUs floating.
    BalancingBoundMemory,
    /// The memory's node preferred, against bound to it.
    PreferredToBound,
    /// The memory's node preferred, against none, CPUs floating.
    PreferredToNone,
}

/// A question and its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Contrast {
    pub question: Question,
    /// The cells whose time is divided,
    pub of: Vec<MatrixCell>,
    /// by the time of these.
    pub to: Vec<MatrixCell>,
    /// The ratio, or why the data cannot tell.
    pub ratio: Known<Ratio>,
}

/// How many times as long.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    pub median: f64,
    /// Its 95 % confidence interval; `None` below six complete rounds.
    pub confidence: Option<Interval>,
    /// Complete rounds.
    pub rounds: usize,
}

impl Ratio {
    /// Whether the interval leaves no warning that it is above or below 1.
    pub fn is_significant(&self) -> bool {
        self.confidence
            .is_some_and(|interval| interval.low > 1.0 || interval.high < 1.0)
    }
}

/// Answers every question that the cells allow.
pub fn findings(cells: &[MatrixCell], taken: &[Taken]) -> Findings {
    let by_round = seconds_by_round(taken);
    let contrasts = contrasts(cells).into_iter().map(|(question, of, to)| {
        let ratio = ratio(&by_round, &of, &to);
        Contrast {
            question,
            of,
            to,
            ratio,
        }
    });
    Findings {
        contrasts: contrasts.collect(),
        explained: explain(taken),
    }
}

type Sides = (Question, Vec<MatrixCell>, Vec<MatrixCell>);

/// The questions for which both sides have cells.
fn contrasts(cells: &[MatrixCell]) -> Vec<Sides> {
    let there: BTreeSet<MatrixCell> = cells.iter().copied().collect();
    let none = |numa_balancing| Policy {
        preferred_node: None,
        numa_balancing,
    };
    let same = |cell: &MatrixCell| MatrixCell {
        policy: none(cell.policy.numa_balancing),
        cpu_node: cell.memory_node,
        ..*cell
    };
    let off = |cell: &MatrixCell| MatrixCell {
        policy: none(false),
        ..*cell
    };
    let unpreferred = |cell: &MatrixCell| MatrixCell {
        policy: none(cell.policy.numa_balancing),
        ..*cell
    };
    let all_same = |cell: &MatrixCell| -> Vec<MatrixCell> {
        there
            .iter()
            .copied()
            .filter(|other| other.policy == cell.policy && other.is_same_node())
            .collect()
    };
    // Without a preferred node, with NUMA balancing off if there are such cells.
    let plain = [false, true]
        .map(none)
        .into_iter()
        .find(|policy| cells.iter().any(|cell| cell.policy == *policy));
    let is_plain = |cell: &MatrixCell| Some(cell.policy) == plain;
    let floats = |place| place == Where::Floating;
    let balanced = |cell: &MatrixCell| cell.policy == none(true);
    let at_home = |cell: &MatrixCell| {
        cell.policy
            .preferred_node
            .is_some_and(|node| cell.memory_node == Where::Node(node))
            && floats(cell.cpu_node)
    };
    type Is<'a> = &'a dyn Fn(&MatrixCell) -> bool;
    type To<'a> = &'a dyn Fn(&MatrixCell) -> Vec<MatrixCell>;
    let questions: [(Question, Is<'_>, To<'_>); 7] = [
        (
            Question::OtherNode,
            &|c| is_plain(c) && c.is_other_node(),
            &|c| vec![same(c)],
        ),
        (
            Question::UnboundCpus,
            &|c| is_plain(c) && !floats(c.memory_node) && floats(c.cpu_node),
            &|c| vec![same(c)],
        ),
        (
            Question::AllUnbound,
            &|c| is_plain(c) && floats(c.memory_node) && floats(c.cpu_node),
            &all_same,
        ),
        (
            Question::BalancingUnboundMemory,
            &|c| balanced(c) && floats(c.memory_node),
            &|c| vec![off(c)],
        ),
        (
            Question::BalancingBoundMemory,
            &|c| balanced(c) && !floats(c.memory_node) && floats(c.cpu_node),
            &|c| vec![off(c)],
        ),
        (Question::PreferredToBound, &at_home, &|c| vec![same(c)]),
        (Question::PreferredToNone, &at_home, &|c| {
            vec![unpreferred(c)]
        }),
    ];
    let sides = questions.into_iter().filter_map(|(question, is, to)| {
        // Only cells whose counterparts were measured too: the rest would compare different nodes.
        let paired = there.iter().filter(|cell| is(cell)).filter_map(|cell| {
            let counterparts = to(cell);
            (!counterparts.is_empty() && counterparts.iter().all(|cell| there.contains(cell)))
                .then_some((*cell, counterparts))
        });
        let (of, to): (Vec<MatrixCell>, Vec<Vec<MatrixCell>>) = paired.unzip();
        let to: BTreeSet<MatrixCell> = to.into_iter().flatten().collect();
        (!of.is_empty()).then(|| (question, of, to.into_iter().collect()))
    });
    sides.collect()
}

type ByRound = BTreeMap<u32, BTreeMap<MatrixCell, f64>>;

fn seconds_by_round(taken: &[Taken]) -> ByRound {
    let mut by_round = ByRound::new();
    for taken in taken {
        if let Some(sample) = taken.good() {
            by_round
                .entry(taken.round)
                .or_default()
                .insert(taken.cell, sample.probe.seconds);
        }
    }
    by_round
}

fn ratio(by_round: &ByRound, of: &[MatrixCell], to: &[MatrixCell]) -> Known<Ratio> {
    let mean = |round: &BTreeMap<MatrixCell, f64>, cells: &[MatrixCell]| -> Option<f64> {
        let seconds: Option<Vec<f64>> = cells.iter().map(|cell| round.get(cell).copied()).collect();
        seconds.map(|seconds| seconds.iter().sum::<f64>() / cells.len() as f64)
    };
    let ratios: Vec<f64> = by_round
        .values()
        .filter_map(|round| Some(mean(round, of)? / mean(round, to)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    match Summary::of(&ratios) {
        Some(Summary {
            median, confidence, ..
        }) => Known::Yes(Ratio {
            median,
            confidence,
            rounds: ratios.len(),
        }),
        None => Known::no("no round has a sample of every cell it takes"),
    }
}

const MIGRATIONS: &str = "the number of cross-node migrations";
const FAR: &str = "the share of far accesses";

/// What makes a run long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// Seconds that each cross-node migration cost; or why the data cannot tell.
    pub migration_s: Known<Estimate>,
    /// How much longer a run takes that is far all the time than one that never is, as a share of the latter; or why the
    /// data cannot tell.
    pub far_share: Known<Estimate>,
    /// The share of the variation of run times within rounds that both explain together, 0 to 1.
    pub r2: Option<f64>,
    /// Whether each round had a level of its own; otherwise the rounds were too small for that.
    pub within_rounds: bool,
    /// Samples that went in.
    pub samples: usize,
}

/// A figure with its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub confidence: Interval,
}

impl Estimate {
    /// Whether the interval leaves no warning that it is not 0.
    pub fn is_significant(&self) -> bool {
        self.confidence.low > 0.0 || self.confidence.high < 0.0
    }

    fn of(found: &Coefficient) -> Self {
        Self {
            value: found.value,
            confidence: Interval {
                low: found.low,
                high: found.high,
            },
        }
    }

    /// Of its share of what the runs would have taken without any migration and always near: the measure of "24 % longer".
    fn share_of(found: &Coefficient) -> Option<Self> {
        found
            .share
            .map(|Share { value, confidence }| Self { value, confidence })
    }
}

/// Explains the run times, as far as the samples allow.
pub fn explain(taken: &[Taken]) -> Explained {
    let rows = regression_rows(taken);
    if rows.is_empty() {
        let reason =
            "no sample has both a trace of its migrations and the places of its pages".to_owned();
        return nothing(reason.clone(), reason, 0);
    }
    match in_rounds([MIGRATIONS, FAR], &rows) {
        Ok((fit, baseline)) => of_fit(&fit, baseline, None),
        // One of the two never changes: the other one may still be told, and alone.
        Err(CannotTell::NoVariation { column, baseline }) => {
            let (kept, index) = if column == MIGRATIONS {
                (FAR, 1)
            } else {
                (MIGRATIONS, 0)
            };
            let alone: Vec<regression::Row<1>> = rows
                .iter()
                .map(|row| regression::Row {
                    group: row.group,
                    cluster: row.cluster,
                    outcome: row.outcome,
                    columns: [row.columns[index]],
                })
                .collect();
            let reason = in_words(CannotTell::NoVariation { column, baseline });
            match in_rounds([kept], &alone) {
                Ok((fit, baseline)) => of_fit(&fit, baseline, Some(&reason)),
                Err(error) if kept == FAR => nothing(reason, in_words(error), rows.len()),
                Err(error) => nothing(in_words(error), reason, rows.len()),
            }
        }
        Err(error) => nothing(in_words(error.clone()), in_words(error), rows.len()),
    }
}

/// Why not, in the words of a matrix: its groups are rounds.
fn in_words(error: CannotTell) -> String {
    match error {
        CannotTell::NoVariation {
            column,
            baseline: Baseline::PerGroup,
        } => {
            format!("{column} is the same in every sample of a round")
        }
        CannotTell::TooFewClusters { clusters, .. } => {
            format!("{clusters} cells are too few to say how much cells differ in other ways")
        }
        CannotTell::OneDecides { column } => format!("{column} differs in one cell only"),
        error => error.to_string(),
    }
}

fn regression_rows(taken: &[Taken]) -> Vec<regression::Row<2>> {
    let cells: BTreeSet<MatrixCell> = taken.iter().map(|taken| taken.cell).collect();
    let clusters: BTreeMap<MatrixCell, u32> = cells.into_iter().zip(0..).collect();
    let row = |taken: &Taken| {
        let cell = taken.cell;
        let sample = taken
            .good()
            .filter(|_| !cell.policy.numa_balancing || cell.memory_node != Where::Floating)?;
        // Rounds are few; one that a foreign file makes up must not be too large to double.
        let group = taken
            .round
            .wrapping_mul(2)
            .wrapping_add(cell.policy.numa_balancing.into());
        let columns = [sample.cross_node()? as f64, *sample.far_share().get()?];
        Some(regression::Row {
            group,
            cluster: *clusters.get(&cell)?,
            outcome: sample.probe.seconds,
            columns,
        })
    };
    taken.iter().filter_map(row).collect()
}

/// With a level for each round; with one for all where the rounds are too small for that.
fn in_rounds<const N: usize>(
    names: [&str; N],
    rows: &[regression::Row<N>],
) -> Result<(Fit, Baseline), CannotTell> {
    let by = |baseline| fit(names, rows, baseline).map(|fit| (fit, baseline));
    match by(Baseline::PerGroup) {
        Err(CannotTell::TooFew { .. }) => by(Baseline::Common),
        answer => answer,
    }
}

fn of_fit(fit: &Fit, baseline: Baseline, why_not_both: Option<&str>) -> Explained {
    let reason = || Known::no(why_not_both.unwrap_or("it was not estimated").to_owned());
    let cost = |name| fit.coefficients.iter().find(|found| found.name == name);
    Explained {
        migration_s: cost(MIGRATIONS).map_or_else(reason, |found| Known::Yes(Estimate::of(found))),
        far_share: cost(FAR).map_or_else(reason, |found| match Estimate::share_of(found) {
            Some(estimate) => Known::Yes(estimate),
            None => Known::no("the fit leaves no time for runs that are near"),
        }),
        r2: Some(fit.r2),
        within_rounds: baseline == Baseline::PerGroup,
        samples: fit.samples,
    }
}

fn nothing(why_not_migrations: String, why_not_far: String, samples: usize) -> Explained {
    let (migration_s, far_share) = (Known::no(why_not_migrations), Known::no(why_not_far));
    Explained {
        migration_s,
        far_share,
        r2: None,
        within_rounds: false,
        samples,
    }
}

/// A row of the table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Counted from 0, in the published order.
    pub row: usize,
    /// Which cell.
    #[serde(flatten)]
    pub cell: MatrixCell,
    /// Mean, most, least and standard deviation of the run times, in seconds; `None` where every run failed.
    pub moments: Option<Moments>,
    /// The run times in seconds, in the order they were taken, with median and confidence.
    pub seconds: Option<Figures>,
    /// Medians of the migrations of a run.
    pub migrations: Known<Migrated>,
    /// The median share of accesses to memory of another node, 0 to 1.
    pub far_share: Known<f64>,
    /// The median number of pages that NUMA balancing moved for the probe.
    pub pages_migrated: Known<f64>,
    /// The share of a CPU that the keeper of the preferred node used, the median; `null` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_cpu_share: Option<f64>,
    /// How many samples something was wrong with.
    pub with_warnings: usize,
    /// Why runs failed, each with how many.
    pub failed: Vec<Counted>,
}

/// Medians of migrations a run, by class.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Migrated {
    /// Between SMT siblings.
    pub same_core: f64,
    /// Within a last-level cache, or within a node where caches are not known.
    pub same_cache: f64,
    /// Within a node.
    pub same_node: f64,
    /// To another node.
    pub cross_node: f64,
}

/// The rows of a run, in the published order.
pub fn rows(cells: &[MatrixCell], taken: &[Taken]) -> Vec<Row> {
    let mut by_cell: BTreeMap<MatrixCell, Vec<&Taken>> =
        cells.iter().map(|cell| (*cell, Vec::new())).collect();
    for taken in taken {
        by_cell.entry(taken.cell).or_default().push(taken);
    }
    by_cell
        .into_iter()
        .enumerate()
        .map(|(row, (cell, taken))| of_cell(row, cell, &taken))
        .collect()
}

fn of_cell(row: usize, cell: MatrixCell, taken: &[&Taken]) -> Row {
    let good: Vec<&Sample> = taken.iter().filter_map(|taken| taken.good()).collect();
    let seconds: Vec<f64> = good.iter().map(|sample| sample.probe.seconds).collect();
    let kept: Vec<f64> = good
        .iter()
        .filter_map(|sample| sample.kept.as_ref())
        .filter_map(|kept| Some(kept.cpu_s.get()? / kept.seconds.max(1e-9)))
        .collect();
    Row {
        row,
        cell,
        moments: Moments::of(&seconds),
        seconds: Figures::of(seconds),
        migrations: migrated(&good),
        far_share: median_of(&good, |sample| sample.far_share()),
        pages_migrated: median_of(&good, pages_migrated),
        keeper_cpu_share: Summary::of(&kept).map(|summary| summary.median),
        with_warnings: good
            .iter()
            .filter(|sample| !sample.warnings().is_empty())
            .count(),
        failed: counted(
            taken
                .iter()
                .filter_map(|taken| taken.sample.as_ref().err().map(ToString::to_string)),
        ),
    }
}

fn pages_migrated(sample: &Sample) -> Known<f64> {
    match &sample.trace {
        Known::Yes(watched) => watched
            .found
            .numa_balancing
            .tasks
            .as_ref()
            .map(|found| found.pages_migrated as f64),
        Known::No { unknown_reason } => Known::no(unknown_reason.clone()),
    }
}

fn migrated(good: &[&Sample]) -> Known<Migrated> {
    let of = |count: fn(&nearfar_trace::migrations::ClassCounts) -> u64| {
        median_of(good, |sample| {
            sample
                .trace
                .as_ref()
                .map(|watched| count(&watched.found.migrations) as f64)
        })
    };
    let [same_core, same_cache, same_node, cross_node] = [
        of(|c| c.same_core),
        of(|c| c.same_cache),
        of(|c| c.same_node),
        of(|c| c.cross_node),
    ];
    match (same_core, same_cache, same_node, cross_node) {
        (
            Known::Yes(same_core),
            Known::Yes(same_cache),
            Known::Yes(same_node),
            Known::Yes(cross_node),
        ) => Known::Yes(Migrated {
            same_core,
            same_cache,
            same_node,
            cross_node,
        }),
        (Known::No { unknown_reason }, ..) => Known::No { unknown_reason },
        _ => Known::no("no run was traced"),
    }
}

/// The median over the samples that know the figure; the first reason where none does.
fn median_of(good: &[&Sample], figure: impl Fn(&Sample) -> Known<f64>) -> Known<f64> {
    let figures: Vec<Known<f64>> = good.iter().map(|sample| figure(sample)).collect();
    let known: Vec<f64> = figures
        .iter()
        .filter_map(|figure| figure.get().copied())
        .collect();
    match (Summary::of(&known), figures.into_iter().next()) {
        (Some(summary), _) => Known::Yes(summary.median),
        (None, Some(Known::No { unknown_reason })) => Known::No { unknown_reason },
        _ => Known::no("no run succeeded"),
    }
}

/// The share of the CPUs that the load had, in percent: the median.
pub fn load_percent_had(taken: &[Taken]) -> Known<f64> {
    let good: Vec<&Sample> = taken.iter().filter_map(Taken::good).collect();
    median_of(&good, |sample| sample.load_percent.clone())
}

/// The share of its time that the probe waited for a CPU, 0 to 1: the median.
pub fn waited_share(taken: &[Taken]) -> Known<f64> {
    let good: Vec<&Sample> = taken.iter().filter_map(Taken::good).collect();
    median_of(&good, |sample| {
        sample
            .probe
            .waited_s
            .as_ref()
            .map(|waited| waited / sample.probe.seconds.max(1e-9))
    })
}

/// What was wrong with samples of a run: what differs only in its figures counts as one.
pub fn warnings(taken: &[Taken]) -> Vec<Counted> {
    counted(
        taken
            .iter()
            .filter_map(Taken::good)
            .flat_map(Sample::warnings),
    )
}

/// The load has less than this part of what it gets next to the probe only where other tasks run, too.
const LEAST_HAD: f64 = 0.75;
/// Runs shorter than so many periods of the load tell little of its share.
const LEAST_PERIODS: f64 = 20.0;
/// Waits of the probe beyond what the load makes, as a share of its time: this much the scheduler's turns may cause.
const MOST_MORE: f64 = 0.15;

/// What is the same for all cells of a run. A run can only be continued with the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    pub pattern: Pattern,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Rounds that one run times.
    pub counts: u32,
    /// Accesses in each round.
    pub steps: u64,
    /// Whether `steps` was found by a run that was to take this many seconds; `None` where it was given.
    pub calibrated_to_s: Option<f64>,
    /// The load on each CPU, in percent; 0 for none.
    pub load_percent: f64,
    /// Seconds of a period of the load, a share of which it burns.
    #[serde(
        default = "usual_load_period_s",
        skip_serializing_if = "is_usual_load_period"
    )]
    pub load_period_s: f64,
    /// Whether the buffer has huge pages.
    pub huge_pages: bool,
    /// From where unbound memory is first touched if the CPUs are bound; `None`: where the process happens to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_touch: Option<FirstTouch>,
    /// Settings of the kernel that hold in every cell, with what they were set to.
    pub settings: Vec<KernelSetting>,
    /// Nodes that have CPUs: the load runs on these.
    pub nodes: Vec<NodeId>,
    #[serde(default)]
    pub cells: Vec<MatrixCell>,
    /// What the matrix lacks on this machine, or with what this user may do.
    pub left_out: Vec<LeftOut>,
}

/// Runs that are stored without one had this one, and can be continued.
fn usual_load_period_s() -> f64 {
    PERIOD_S
}

fn is_usual_load_period(period_s: &f64) -> bool {
    *period_s == PERIOD_S
}

/// From where memory is touched first, seen from the node that the CPUs are bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstTouch {
    /// From it.
    Near,
    /// From the most distant other node with CPUs.
    Far,
}

/// A file of the kernel and what it says during the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelSetting {
    pub path: String,
    pub value: String,
}

impl KernelSetting {
    /// The change that makes it. One of a file that nearfar does not set is refused when it is made.
    pub(super) fn change(&self) -> Change {
        let value = self.value.clone();
        match self.path.strip_prefix("/sys/kernel/debug/sched/") {
            Some(name) => Change::SchedulerDebug {
                name: name.to_owned(),
                value,
            },
            None => Change::Sysctl {
                name: self.path.trim_start_matches("/proc/sys/").replace('/', "."),
                value,
            },
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub parameters: Parameters,
    /// The cells summed up, in the published order.
    pub rows: Vec<Row>,
    /// What they say together.
    pub findings: Findings,
    pub warnings: Vec<Counted>,
    /// The share of the CPUs that the load had, in percent: the median over the samples.
    pub load_percent_had: Known<f64>,
    /// The share of its time that the probe waited for a CPU, 0 to 1: the median over the samples.
    pub waited_share: Known<f64>,
}

impl Answer {
    /// Of the samples that there are, complete or not.
    pub fn new(parameters: Parameters, taken: &[Taken]) -> Self {
        Self {
            rows: rows(&parameters.cells, taken),
            findings: findings(&parameters.cells, taken),
            warnings: warnings(taken),
            load_percent_had: load_percent_had(taken),
            waited_share: waited_share(taken),
            parameters,
        }
    }

    /// Whether the machine had other work than the load and the probe, so that run times say less about placement. A load on
    /// a CPU of the probe gets half of it at most, and the probe waits for no more than that half. Of runs that are over within a
    /// few of the load's periods nothing is claimed.
    pub fn is_crowded(&self) -> bool {
        let seconds: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| Some(row.seconds.as_ref()?.median))
            .collect();
        let least_s = LEAST_PERIODS * self.parameters.load_period_s;
        if Summary::of(&seconds).is_none_or(|summary| summary.median < least_s) {
            return false;
        }
        let most = self.parameters.load_percent.min(50.0);
        let short = self
            .load_percent_had
            .get()
            .is_some_and(|had| *had < LEAST_HAD * most);
        short
            || self
                .waited_share
                .get()
                .is_some_and(|share| *share > most / 100.0 + MOST_MORE)
    }
}

/// Why a stored run has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    #[error("run {run} is of the experiment {experiment}, not a matrix of the probe")]
    OtherExperiment {
        run: nearfar_runs::RunId,
        experiment: String,
    },
    #[error("{what} of run {run}, by nearfar {nearfar}, cannot be read: {source}")]
    Unreadable {
        what: String,
        run: nearfar_runs::RunId,
        nearfar: String,
        /// Where it stops making sense.
        source: serde_json::Error,
    },
}

/// The parameters of a stored run.
///
/// # Errors
/// When it is of another experiment or not understood.
pub fn stored_parameters(run: &Run, detail: &Detail) -> Result<Parameters, NoAnswer> {
    if run.experiment != EXPERIMENT {
        return Err(NoAnswer::OtherExperiment {
            run: run.run,
            experiment: run.experiment.clone(),
        });
    }
    let read: Result<Parameters, _> = serde_json::from_value(detail.parameters.clone());
    let mut parameters =
        read.map_err(|source| unreadable("the list of parameters".to_owned(), run, source))?;
    parameters.cells = detail.plan.iter().filter_map(MatrixCell::of).collect();
    Ok(parameters)
}

/// The answer of a stored run, complete or not.
///
/// # Errors
/// When it is of another experiment or not understood.
pub fn stored_answer(
    run: &Run,
    detail: &Detail,
    samples: &[StoredSample],
) -> Result<Answer, NoAnswer> {
    let parameters = stored_parameters(run, detail)?;
    let taken: Result<Vec<Option<Taken>>, NoAnswer> =
        samples.iter().map(|sample| taken(run, sample)).collect();
    let taken: Vec<Taken> = taken?.into_iter().flatten().collect();
    Ok(Answer::new(parameters, &taken))
}

/// `None` for a sample of a cell that the matrix does not have, which no version writes.
fn taken(run: &Run, stored: &StoredSample) -> Result<Option<Taken>, NoAnswer> {
    let Some(cell) = MatrixCell::of(&stored.cell) else {
        return Ok(None);
    };
    let sample = match &stored.failed {
        Some(reason) => Err(RunFailed(reason.clone())),
        None => {
            let read = serde_json::from_value(stored.detail.clone());
            Ok(read
                .map_err(|source| unreadable(format!("sample {}", stored.number), run, source))?)
        }
    };
    Ok(Some(Taken {
        cell,
        round: stored.round,
        sample,
    }))
}

fn unreadable(what: String, run: &Run, source: serde_json::Error) -> NoAnswer {
    NoAnswer::Unreadable {
        what,
        run: run.run,
        nearfar: run.nearfar.clone(),
        source,
    }
}
