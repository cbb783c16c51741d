//! How throughput grows with tasks, and whether other levels, such as more nodes, change that.
//!
//! ```text
//! cells ─► all levels but tasks ─► Curve   the law of each, and its locks
//!      └─► two levels of a factor ─► Step  at each number of tasks; a chance of any false alarm of 5 % (Holm)
//! ```

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Level, Sample};
use nearfar_statistics::compare::{DEFAULT_MARGIN, Question};
use nearfar_statistics::law::{self, LawFit};
use serde::{Deserialize, Serialize};

use super::hot::{Hot, HotFunction};
use super::locks::{Contention, HotLock};
use super::{KIND, OPERATIONS, TASKS, WORKLOAD};
use crate::step::{Rounds, Step, answer, by_factor};

/// Functions of a cell that are shown.
const MAX_FUNCTIONS: usize = 5;

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
    sums.truncate(MAX_FUNCTIONS);
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
        Question::paired(a, b, metric.map(|it| it.better))
    });
    steps
}
