//! How throughput grows with tasks, and whether other levels, such as more nodes, change that.
//!
//! ```text
//! cells ─► all levels but tasks ─► Curve   the law of each, and its locks
//!      └─► two levels of a factor ─► Step  at each number of tasks; a chance of any false alarm of 5 % (Holm)
//! ```
//!
//! Here is also what samples keep of profile and trace: where CPU time was spent, and which locks were waited for.

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Level, Sample};
use nearfar_statistics::compare::{DEFAULT_MARGIN, Question};
use nearfar_statistics::law::{self, LawFit};
use nearfar_trace::locks::{LockKind, LockWaits};
use nearfar_trace::profile::Profile;
use nearfar_trace::{Finished, Losses};
use serde::{Deserialize, Serialize};

use super::{KIND, OPERATIONS, TASKS, WORKLOAD};
use crate::step::{Rounds, Step, answer, by_factor};

/// Functions of a cell that are shown.
const MAX_SHOWN_FUNCTIONS: usize = 5;

/// What the samples of a run say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    pub curves: Vec<Curve>,
    pub steps: Vec<Step>,
}

/// Cells that differ only in the number of tasks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// The levels of the other factors.
    pub levels: Cell,
    /// Nodes online on the machines that took the samples, as a list; several where they differ.
    pub nodes: Vec<String>,
    pub law: Known<LawFit>,
    pub points: Vec<Point>,
}

/// A number of tasks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    pub tasks: u32,
    /// Operations per second of each sample.
    pub samples: Vec<f64>,
    /// The lock that was waited for longest, its share and waits the mean of the samples; `None` where none was waited for, or
    /// nothing was traced.
    pub hot_lock: Option<HotLock>,
    /// The kernel functions that ran longest while operations were counted, their shares the mean of the samples.
    pub hot_functions: Vec<HotFunction>,
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[Sample]) -> Findings {
    let rounds = Rounds::of(samples, OPERATIONS);
    Findings {
        curves: curves(detail, samples, &rounds),
        steps: steps(detail, &rounds),
    }
}

fn tasks_of(cell: &Cell) -> Option<u32> {
    match cell.level(TASKS) {
        Some(Level::Number(tasks)) => u32::try_from(*tasks).ok(),
        _ => None,
    }
}

fn curves(detail: &Detail, samples: &[Sample], rounds: &Rounds<'_>) -> Vec<Curve> {
    let mut groups: Vec<(Cell, BTreeMap<u32, &Cell>)> = Vec::new();
    for cell in &detail.plan {
        let Some(tasks) = tasks_of(cell) else {
            continue;
        };
        let levels = cell.only(|factor| factor != TASKS);
        match groups.iter_mut().find(|it| it.0 == levels) {
            Some((_, cells)) => _ = cells.insert(tasks, cell),
            None => groups.push((levels, BTreeMap::from([(tasks, cell)]))),
        }
    }
    let point = |(tasks, cell): (u32, &Cell)| Point {
        tasks,
        samples: rounds.of_cell(cell).values().copied().collect(),
        hot_lock: hot_lock(samples, cell),
        hot_functions: hot_functions(samples, cell),
    };
    let curve = |(levels, cells): (Cell, BTreeMap<u32, &Cell>)| {
        let nodes = curve_nodes(samples, &levels);
        let taken = cells.values().map(|cell| rounds.of_cell(cell).keys());
        let rounds_of: Vec<Vec<_>> = taken
            .filter(|it| it.len() > 0)
            .map(Iterator::collect)
            .collect();
        let is_paired = rounds_of.windows(2).all(|pair| pair[0] == pair[1]);
        let points: Vec<Point> = cells.into_iter().map(point).collect();
        let all: Vec<_> = points
            .iter()
            .map(|it| (it.tasks, it.samples.clone()))
            .collect();
        Curve {
            levels,
            nodes,
            law: Known::from_result(law::fit(&all, is_paired)),
            points,
        }
    };
    groups.into_iter().map(curve).collect()
}

/// The lists of nodes online that the samples with such levels saw.
pub(super) fn curve_nodes(samples: &[Sample], levels: &Cell) -> Vec<String> {
    let of_curve = samples
        .iter()
        .filter(|it| it.cell.only(|factor| factor != TASKS) == *levels);
    let mut nodes: Vec<String> = of_curve
        .filter_map(|it| Some(it.detail.get("nodes")?.as_str()?.to_owned()))
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// What the samples of a cell have under a key of their detail, where it is known.
fn known<'a, T: Deserialize<'a>>(samples: &'a [Sample], cell: &Cell, key: &str) -> Vec<T> {
    let of_cell = samples
        .iter()
        .filter(|it| it.cell == *cell && it.failed.is_none());
    of_cell
        .filter_map(|it| Known::<T>::deserialize(it.detail.get(key)?).ok())
        .filter_map(|it| match it {
            Known::Yes(known) => Some(known),
            Known::No { .. } => None,
        })
        .collect()
}

fn hot_functions(samples: &[Sample], cell: &Cell) -> Vec<HotFunction> {
    let profiles: Vec<Hot> = known(samples, cell, "profile");
    let mut sums: Vec<HotFunction> = Vec::new();
    for hot in profiles.iter().flat_map(|it| &it.functions) {
        let is_same =
            |it: &&mut HotFunction| it.function == hot.function && it.call_site == hot.call_site;
        match sums.iter_mut().find(is_same) {
            Some(sum) => sum.share += hot.share,
            None => sums.push(hot.clone()),
        }
    }
    sums.iter_mut()
        .for_each(|it| it.share /= profiles.len() as f64);
    sums.sort_by(|a, b| b.share.total_cmp(&a.share));
    sums.truncate(MAX_SHOWN_FUNCTIONS);
    sums
}

fn hot_lock(samples: &[Sample], cell: &Cell) -> Option<HotLock> {
    let traced: Vec<Contention> = known(samples, cell, "contention");
    let mut sums: Vec<HotLock> = Vec::new();
    for lock in traced.iter().flat_map(|it| &it.locks) {
        let is_same = |it: &&mut HotLock| it.call_site == lock.call_site && it.kind == lock.kind;
        match sums.iter_mut().find(is_same) {
            Some(sum) => {
                sum.share += lock.share;
                sum.waits += lock.waits;
            }
            None => sums.push(lock.clone()),
        }
    }
    let mut hot = sums
        .into_iter()
        .max_by(|a, b| a.share.total_cmp(&b.share))?;
    hot.share /= traced.len() as f64;
    hot.waits /= traced.len() as u64;
    Some(hot)
}

/// Each further level of a factor against its first one, all others the same.
fn steps(detail: &Detail, rounds: &Rounds<'_>) -> Vec<Step> {
    let factors = detail.factors.iter().map(|it| it.name.as_str());
    let varied = factors.filter(|it| ![TASKS, WORKLOAD, KIND].contains(it));
    let mut steps = by_factor(detail, varied);
    let metric = detail.metrics.iter().find(|it| it.name == OPERATIONS);
    answer(&mut steps, DEFAULT_MARGIN, |step| {
        let [a, b] = [&step.a, &step.b].map(|cell| rounds.of_cell(cell));
        (Question::paired(a, b, metric.map(|it| it.better)), 1.0)
    });
    steps
}

/// Functions of a sample that are kept.
const MAX_FUNCTIONS: usize = 8;

/// The profile of a sample, as shares of the tasks' samples.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Hot {
    pub(super) samples: u64,
    /// In the kernel, 0 to 1; `None` without a sample.
    kernel_share: Option<f64>,
    /// In functions that implement a lock or the scheduler; `None` also without the kernel's symbols.
    pub(super) lock_function_share: Option<f64>,
    lost: u64,
    /// Why functions have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_names_reason: Option<String>,
    /// Those with most samples, the first one first.
    functions: Vec<HotFunction>,
}

/// A kernel function that tasks ran.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HotFunction {
    pub function: String,
    /// Of one that implements a lock, the function that takes or gives back the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<String>,
    /// Of the tasks' samples, 0 to 1.
    pub share: f64,
}

impl Hot {
    pub(super) fn new(profile: Profile) -> Self {
        let all = profile.samples;
        let share = |samples: u64| (all > 0).then(|| samples as f64 / all as f64);
        let functions = profile.functions.into_iter().take(MAX_FUNCTIONS);
        Self {
            samples: all,
            kernel_share: share(profile.in_kernel),
            lock_function_share: profile.in_locks.and_then(share),
            lost: profile.lost,
            no_names_reason: profile.no_names_reason,
            functions: functions
                .map(|it| HotFunction {
                    share: share(it.samples).unwrap_or(0.0),
                    function: it.function,
                    call_site: it.call_site,
                })
                .collect(),
        }
    }

    /// Warnings when samples or names are missing.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let lost =
            (self.lost > 0).then(|| format!("{} samples of the profile were lost", self.lost));
        let unnamed = self.no_names_reason.as_ref();
        let unnamed = unnamed.map(|reason| format!("lock_function_share is unknown: {reason}"));
        lost.into_iter().chain(unnamed)
    }
}

/// Locks of a sample that are kept.
const MAX_LOCKS: usize = 8;

/// Lock contention of a sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Contention {
    /// How long the trace took; operations are not counted meanwhile.
    pub(super) seconds: f64,
    /// Of the tasks' time, in waits for locks, 0 to 1.
    pub(super) share: f64,
    /// Of the tasks' time, in waits for spinlocks and rwlocks.
    pub(super) spin_share: f64,
    /// The longest waits in all first.
    pub(super) locks: Vec<HotLock>,
    losses: Losses,
    /// Why waits for spinlocks may be missing from all shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) no_spin_reason: Option<String>,
}

/// Waits for a lock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HotLock {
    /// The kernel function that takes it.
    pub call_site: String,
    pub kind: LockKind,
    /// Of the tasks' time, 0 to 1.
    pub share: f64,
    pub waits: u64,
}

impl Contention {
    /// Of a trace of so long, during which so many tasks ran.
    pub(super) fn new(locks: LockWaits, finished: Finished, tasks: usize) -> Self {
        let seconds = finished.elapsed.as_secs_f64();
        // What an interrupt of theirs waits for counts as theirs.
        let share = |wait_s: f64| (wait_s / (seconds * tasks as f64)).min(1.0);
        let of = |site: &nearfar_trace::locks::Site| HotLock {
            call_site: site.call_site.clone(),
            kind: site.kind,
            share: share(site.wait_s),
            waits: site.waits,
        };
        Self {
            seconds,
            share: share(locks.wait_s),
            spin_share: share(locks.spin_s),
            locks: locks.sites.iter().take(MAX_LOCKS).map(of).collect(),
            losses: finished.losses,
            no_spin_reason: locks.no_spin_reason,
        }
    }

    /// Warnings when events are missing.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let lost = (!self.losses.is_whole())
            .then(|| "events of lock contention were lost: lock_share is too low".to_owned());
        let untraced = self.no_spin_reason.as_ref();
        let untraced = untraced.map(|reason| format!("lock_share is unknown: {reason}"));
        lost.into_iter().chain(untraced)
    }
}
