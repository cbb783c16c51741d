//! The samples of a run against time, which shows whether the machine drifted.

use std::collections::BTreeMap;

use nearfar_runs::Sample;
use nearfar_statistics::Summary as Figures;

use super::Shown;
use super::page::{primary, value};
use crate::document::{Axis, Chart, Document, Dot, Line, Plot};

/// What the vertical axis is.
const SHARE: &str = "share of the median of the cell (%)";

/// Samples in the order they were taken, as a share of the median of their cell, and the median of each round.
pub(super) fn section(shown: &Shown<'_>, out: &mut Document) {
    let Some(metric) = primary(shown) else { return };
    let medians = shown.cells.iter();
    let medians = medians.filter_map(|cell| Some((&cell.cell, cell.metric(&metric.name)?.median?)));
    let medians: BTreeMap<_, f64> = medians.filter(|(_, median)| *median != 0.0).collect();
    let share = |sample: &Sample| Some(value(sample, metric)? / medians.get(&sample.cell)? * 100.0);
    let since_start = |sample: &Sample| sample.started_at_s - shown.run.started_at_s;
    let (unit, seconds) = match shown.samples.iter().map(since_start).fold(0.0, f64::max) {
        longest if longest < 180.0 => ("s", 1.0),
        longest if longest < 3.0 * 3600.0 => ("min", 60.0),
        _ => ("h", 3600.0),
    };
    let at = |sample: &Sample| since_start(sample) / seconds;
    let dot = |sample: &Sample| {
        Some(Dot {
            x: at(sample),
            y: share(sample)?,
            has_warning: !sample.warnings.is_empty(),
            line: None,
        })
    };
    let dots: Vec<Dot> = shown.samples.iter().filter_map(dot).collect();
    if dots.len() < 2 {
        return;
    }
    let mut rounds: BTreeMap<u32, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for sample in shown.samples {
        if let Some(share) = share(sample) {
            let (times, shares) = rounds.entry(sample.round).or_default();
            times.push(at(sample));
            shares.push(share);
        }
    }
    let median = |figures: &[f64]| Figures::of(figures).map(|summary| summary.median);
    let points = rounds
        .values()
        .filter_map(|(times, shares)| Some((median(times)?, median(shares)?)));
    let points: Vec<(f64, f64)> = points.collect();
    let third = points.len().div_ceil(3);
    let ends = [&points[..third], &points[points.len() - third..]].map(|points| {
        let shares: Vec<f64> = points.iter().map(|point| point.1).collect();
        median(&shares).unwrap_or(100.0)
    });
    out.heading("Over time", "");
    let time = format!("time since the start of the run ({unit})");
    let mut about = "Each sample as a share of the median of its cell.".to_owned();
    if points.len() >= 3 {
        about += &format!(
            " Medians of rounds: {:.1} % in the first third of the run, {:.1} % in the last.",
            ends[0], ends[1]
        );
    }
    out.chart(Chart {
        title: format!("{} in the order of samples", metric.name),
        about,
        plot: Plot::Lines {
            x: Axis::over(time, dots.iter().map(|dot| dot.x)),
            y: Axis::over(SHARE, dots.iter().map(|dot| dot.y)),
            lines: vec![Line {
                name: "median of a round".to_owned(),
                points,
            }],
            dots,
        },
    });
}
