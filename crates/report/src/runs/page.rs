//! A stored run as a page: of any experiment, by its declared factors and metrics.
//!
//! ```text
//!  head         label, state, samples, least and largest median of the primary metric
//!  metrics      a heat map each (median, interval), every sample of the primary one
//!  experiment   what its own renderer adds
//!  over time    samples as a share of their cell's median: drift of the machine
//!  all figures, warnings, parameters, machine, method
//! ```

use std::collections::BTreeMap;

use nearfar_runs::{Better, Metric, MetricSummary, Sample};
use nearfar_statistics::Summary as Figures;

use super::cells::{Layout, Written};
use super::{
    CONFIDENCE, Shown, UNREADABLE, has_intervals, samples_of_each, table_of, targets, warnings_of,
    when,
};
use crate::amount::{count, or};
use crate::document::{
    Axis, Chart, Document, Dot, Dots, DotsRow, Head, HeatCell, HeatMap, Line, Plot, Scale, Text,
    Tile,
};
use crate::style::Role;
use crate::summary::{self, Summary};

/// Most cells of which every sample is drawn.
const MAX_DOT_ROWS: usize = 200;

/// The page; `of_experiment` is what the renderer of its experiment has to say of it.
pub fn page(shown: &Shown<'_>, of_experiment: Document) -> Document {
    let mut out = Document::with_head(head(shown));
    let layout = shown.layout();
    metrics(shown, &layout, &mut out);
    out.append(of_experiment);
    over_time(shown, &mut out);
    all_figures(shown, &mut out);
    warnings_of(shown, &mut out);
    parameters(shown, &mut out);
    machine(shown, &mut out);
    method(shown, &mut out);
    out
}

/// The charts to be drawn as one picture: every sample of the primary metric, and what the renderer of the experiment draws.
pub fn picture(shown: &Shown<'_>, of_experiment: Document) -> Document {
    let mut out = Document::with_head(head(shown));
    let layout = shown.layout();
    if let Some(metric) = primary(shown).filter(|_| shown.cells.len() <= MAX_DOT_ROWS) {
        out.chart(dots(shown, &layout, metric));
    }
    out.append(of_experiment);
    out
}

fn head(shown: &Shown<'_>) -> Head {
    let run = shown.run;
    let title = match &run.label {
        Some(label) => format!("Run {}: {label}", run.run),
        None => format!("Run {}: {}", run.run, run.experiment),
    };
    Head {
        tool: "nearfar run".to_owned(),
        title,
        remark: run.title.clone(),
        emulated: run.emulation.as_ref().map(ToString::to_string),
        tiles: tiles(shown),
    }
}

/// The metric that stands first.
fn primary<'a>(shown: &Shown<'a>) -> Option<&'a Metric> {
    shown.detail.metrics.iter().find(|metric| metric.primary)
}

fn tiles(shown: &Shown<'_>) -> Vec<Tile> {
    let run = shown.run;
    let good = run.samples.saturating_sub(run.failed);
    let cells = format!("in {}", count(shown.cells.len(), "cell"));
    let mut tiles = vec![Tile::new(good.to_string(), "samples", cells)];
    tiles.extend(primary(shown).and_then(|metric| {
        let medians = || figures(shown, metric).filter_map(|figures| figures.median);
        let (least, most) = (medians().reduce(f64::min)?, medians().reduce(f64::max)?);
        let written = Written::of(shown, metric);
        let (range, medians) = match written.text(least) {
            one if one == written.text(most) => (one, "median"),
            _ => (written.interval(least, most), "medians of cells"),
        };
        let what = format!("{}: {medians}", metric.name);
        Some(Tile::new(range, written.unit, what))
    }));
    let failed = format!("{} failed", run.failed);
    let with_warnings = run.with_warnings.to_string();
    tiles.push(Tile::new(with_warnings, "with warnings", failed));
    let when = when(run.started_at_s);
    let took = run.finished_at_s;
    let took = took.map(|end| duration(end - run.started_at_s));
    tiles.push(Tile::new(or(took, ""), run.state.to_string(), when));
    tiles
}

/// The figures of a metric, cell by cell.
fn figures<'a>(shown: &Shown<'a>, metric: &Metric) -> impl Iterator<Item = &'a MetricSummary> {
    let cells = shown.cells.iter();
    cells.filter_map(|cell| cell.metric(&metric.name))
}

/// Seconds in the largest unit of which there are two at least.
fn duration(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// A heat map of each metric, and every sample of the primary one.
fn metrics(shown: &Shown<'_>, layout: &Layout, out: &mut Document) {
    let metrics = shown.detail.metrics.iter();
    let (first, others): (Vec<_>, Vec<_>) = metrics.partition(|metric| metric.primary);
    for metric in first {
        out.heading(Written::of(shown, metric).title(), direction(metric));
        out.heat_map(heat_map(shown, layout, metric));
        if shown.cells.len() <= MAX_DOT_ROWS {
            out.chart(dots(shown, layout, metric));
        }
    }
    if !others.is_empty() {
        out.heading("Other metrics", &layout.remark);
    }
    for metric in others {
        out.heat_map(heat_map(shown, layout, metric));
    }
}

fn direction(metric: &Metric) -> &'static str {
    match metric.better {
        Better::Lower => "Lower is better.",
        Better::Higher => "Higher is better.",
    }
}

/// More heat is worse: where a metric is better when higher, half of it is twice as hot. Figures below zero have no such
/// ratio; there heat is the negative. Heat of heat is the figure again.
fn heat(metric: &Metric, has_ratios: bool, figure: f64) -> f64 {
    match metric.better {
        Better::Lower => figure,
        Better::Higher if has_ratios => 1.0 / figure,
        Better::Higher => -figure,
    }
}

/// The medians of a metric with their intervals.
pub(crate) fn heat_map(shown: &Shown<'_>, layout: &Layout, metric: &Metric) -> HeatMap {
    let medians = || figures(shown, metric).filter_map(|figures| figures.median);
    let written = Written::of(shown, metric);
    let has_ratios = medians().all(|median| median > 0.0);
    let heat = |figure: f64| heat(metric, has_ratios, figure);
    let text = |figure: f64| written.text(figure);
    let cell = |index: &Option<usize>| {
        let figures = shown.cells[(*index)?].metric(&metric.name)?;
        let median = figures.median?;
        let interval = figures.confidence.map(|it| (text(it.low), text(it.high)));
        let sure = match &interval {
            Some((low, high)) => format!("95 % interval {low} to {high}"),
            None => "too few samples for an interval".to_owned(),
        };
        Some(HeatCell {
            interval,
            about: format!("median of {}, {sure}", count(figures.samples, "sample")),
            ..HeatCell::of(heat(median), text(median))
        })
    };
    let legend = |figure: f64| {
        let text = format!("{} {}", text(heat(figure)), written.unit);
        text.trim_end().to_owned()
    };
    let rows = layout.rows.iter();
    let small = match has_intervals(shown, metric) {
        true => "small: the 95 % interval of the median.",
        false => "no interval below 6 samples.",
    };
    HeatMap {
        title: format!("{}, medians", written.title()),
        remark: format!("{small} {}", layout.remark),
        row_heads: layout.row_heads().to_vec(),
        column_head: layout.column_head().to_owned(),
        rows: rows.clone().map(|row| row.names.clone()).collect(),
        columns: layout.columns.clone(),
        cells: rows
            .map(|row| row.cells.iter().map(cell).collect())
            .collect(),
        ..HeatMap::of(Scale::over(medians().map(heat)), legend)
    }
}

/// The value of a metric in a sample, as one number.
fn value(sample: &Sample, metric: &Metric) -> Option<f64> {
    sample.values.get(&metric.name).map(|value| value.number())
}

fn dots(shown: &Shown<'_>, layout: &Layout, metric: &Metric) -> Chart {
    let written = Written::of(shown, metric);
    let mut by_cell: BTreeMap<_, Vec<Dot>> = BTreeMap::new();
    for sample in shown.samples {
        let dots = by_cell.entry(&sample.cell).or_default();
        dots.extend(value(sample, metric).map(|figure| Dot {
            x: written.number(figure),
            y: 0.0,
            has_warning: !sample.warnings.is_empty(),
            line: None,
        }));
    }
    let rows = shown.cells.iter().map(|cell| {
        let figures = cell.metric(&metric.name);
        let median = figures.and_then(|figures| figures.median);
        let interval = figures.and_then(|figures| figures.confidence);
        let text = median.map(|it| format!("median {}", written.text(it)));
        let text = or(text, "no sample");
        let sure = interval.map(|it| format!(" ({})", written.interval(it.low, it.high)));
        let samples = count(figures.map_or(0, |figures| figures.samples), "sample");
        DotsRow {
            names: layout.names_of(&cell.cell),
            dots: by_cell.remove(&cell.cell).unwrap_or_default(),
            median: median.map(|it| written.number(it)),
            interval: interval.map(|it| (written.number(it.low), written.number(it.high))),
            about: format!("{text}{}, {samples}", or(sure, "")),
        }
    });
    let rows: Vec<DotsRow> = rows.collect();
    let all = rows.iter().flat_map(|row| &row.dots);
    let axis = Axis::over(written.title(), all.map(|dot| dot.x));
    Chart {
        title: "Every sample".to_owned(),
        about:
            "A dot is a sample, a cross one with a warning; the band is the 95 % interval of the \
                median, the line the median."
                .to_owned(),
        plot: Plot::Dots(Dots {
            row_heads: layout.heads.clone(),
            axis,
            rows,
        }),
    }
}

fn all_figures(shown: &Shown<'_>, out: &mut Document) {
    let mut metrics = shown.detail.metrics.iter();
    let has_intervals = metrics.any(|metric| has_intervals(shown, metric));
    out.heading("All figures", if has_intervals { CONFIDENCE } else { "" });
    for metric in &shown.detail.metrics {
        let figures = table_of(shown, metric);
        out.details(Written::of(shown, metric).title(), false, figures.into());
    }
}

fn parameters(shown: &Shown<'_>, out: &mut Document) {
    out.heading("Parameters", "");
    let serde_json::Value::Object(members) = &shown.detail.parameters else {
        out.paragraph(shown.detail.parameters.to_string());
        return;
    };
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let members = members.iter();
    out.facts(members.map(|(name, it)| (Role::Code.text(name), value(it))));
}

fn machine(shown: &Shown<'_>, out: &mut Document) {
    let (run, detail) = (shown.run, shown.detail);
    out.heading("Machine", "");
    let mut facts: Vec<(&str, Text)> = vec![("host", (&run.host).into())];
    // The kernels of a run on targets are those of the targets.
    if detail.targets.is_empty() {
        let kernel = format!("{} {}", run.kernel, detail.kernel_version);
        let command_line = Role::Code.text(&detail.kernel_command_line);
        facts.push(("kernel", kernel.trim().into()));
        facts.push(("kernel command line", command_line));
    }
    match shown.machine {
        Some(machine) => {
            let description = summary::circumstances(machine).join(", ");
            facts.push(("machine", Summary::of(machine).line().into()));
            facts.push(("description", description.into()));
        }
        None => facts.push(("machine", Role::Warning.text(UNREADABLE))),
    }
    facts.extend(targets(detail));
    out.facts(facts);
}

fn method(shown: &Shown<'_>, out: &mut Document) {
    let (run, detail) = (shown.run, shown.detail);
    let samples = samples_of_each(shown);
    let order = format!(
        "{samples}, every cell once per round, in a new random order in each round (seed {})",
        detail.seed
    );
    let intervals = "distribution-free 95 % interval of the median, from order statistics; none below six samples";
    out.heading("How the figures were made", "");
    out.facts([
        ("program", format!("nearfar {}", run.nearfar)),
        ("experiment", format!("{}: {}", run.experiment, run.title)),
        ("order", order),
        ("intervals", intervals.to_owned()),
        ("run", format!("{}, uid {}", run.run, run.uid)),
        ("every sample", format!("nearfar runs export {}", run.run)),
    ]);
}

/// What the vertical axis is.
const SHARE: &str = "share of the median of the cell (%)";

/// Samples in the order they were taken, as a share of the median of their cell, and the median of each round.
fn over_time(shown: &Shown<'_>, out: &mut Document) {
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
