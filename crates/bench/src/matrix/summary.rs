//! Each cell's samples summed up: the published table's columns and a few more.

use std::collections::BTreeMap;

use nearfar_machine::Known;
use nearfar_runs::{Counted, counted};
use nearfar_statistics::{Figures, Moments, Summary};
use serde::{Deserialize, Serialize};

use super::cell::MatrixCell;
use super::sample::{Sample, Taken};

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
