//! A run of `bench scale`: throughput by the number of tasks, the law that it follows, and whether other levels help.

use nearfar_bench::scale::{
    Curve, Findings, HotLock, LOCK_SHARE, OPERATIONS, TASKS, WORKLOAD, findings,
};
use nearfar_machine::Known;
use nearfar_runs::{Cell, CellSummary};
use nearfar_statistics::Interval;
use nearfar_statistics::law::{LawFit, MIN_GAIN};

use crate::amount::{figure, or};
use crate::compared::marked;
use crate::document::{Axis, Chart, Document, Dot, Line, Plot, Table, cells};
use crate::runs::{BoxError, Column, Layout, Own, Shown, cell_table};
use crate::style::Role;

/// Points of a drawn curve.
const CURVE_POINTS: u32 = 60;

const METHOD: &str = "medians with 95 % intervals; waiting: share of the tasks' time in waits for kernel locks, traced after the \
                      operations were counted; lock: the call site with the longest waits and its share";

const PROFILE_METHOD: &str = "share of the tasks' CPU time, sampled while operations were counted; what runs with interrupts off \
                              shows as the function that lets them on again, of lock functions their caller";

/// A law that is further from a mean, as a share of it, does not describe the curve.
const MAX_ERROR: f64 = 0.5;

/// Kernel functions of a number of tasks that are shown.
const SHOWN_FUNCTIONS: usize = 3;

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let (findings, layout) = (findings(shown.detail, shown.samples), shown.layout());
    let tables = tables(shown, &layout, &findings);
    let own = Own::of(shown, tables, said(&layout, &findings), &findings)?;
    let mut page = charts(&findings);
    page.append(own.page);
    Ok(Own { page, ..own })
}

/// `tlb_flush, numa=fake=2U`, what varies besides the number of tasks; the workload alone where nothing does.
fn name(layout: &Layout, curve: &Curve) -> String {
    let names = layout.names_of(&curve.levels).into_iter();
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    match names.is_empty() {
        true => curve.levels.text(WORKLOAD),
        false => names.join(", "),
    }
}

fn tables(shown: &Shown<'_>, layout: &Layout, findings: &Findings) -> Document {
    let point = |cell: &Cell| {
        let levels = cell.only(|factor| factor != TASKS);
        let curve = findings.curves.iter().find(|it| it.levels == levels)?;
        let tasks = cell.text(TASKS);
        let mut points = curve.points.iter();
        Some((curve, points.find(|it| it.tasks.to_string() == tasks)?))
    };
    let point = &point;
    let nodes = move |cell: &Cell| or(point(cell).map(|(curve, _)| curve.nodes.join(" or ")), "");
    let lock = move |cell: &Cell| {
        let lock = point(cell).and_then(|(_, point)| point.hot_lock.as_ref());
        let text = |it: &HotLock| {
            let (site, kind, share) = (&it.call_site, it.kind.name(), percent(it.share));
            format!("{site} ({kind}) {share}")
        };
        or(lock.map(text), "")
    };
    let figures = [
        shown.medians(OPERATIONS, "operations/s"),
        shown.intervals(OPERATIONS, "interval"),
        shown.column("fairness", "fairness", |it| Some(figure(it.median?, 3))),
        shown.column(LOCK_SHARE, "waiting", |it| Some(percent(it.median?))),
    ];
    let names = layout
        .names()
        .chain([Column::named("nodes", Role::Plain, nodes)]);
    let columns = names.map(Some).chain(figures);
    let columns = columns.chain([Some(Column::named("lock", Role::Plain, lock))]);
    // Curve by curve.
    let cells = findings.curves.iter().flat_map(|curve| {
        let is_of = move |it: &&CellSummary| it.cell.only(|factor| factor != TASKS) == curve.levels;
        shown.cells.iter().filter(is_of)
    });
    let mut out = Document::titled("Throughput", METHOD);
    layout.remark_in(&mut out);
    out.table(cell_table(cells, columns).caption("Throughput"));
    profile(layout, findings, &mut out);
    out
}

/// Where the tasks' CPU time was spent, where it was sampled.
fn profile(layout: &Layout, findings: &Findings, out: &mut Document) {
    let mut table = Table::of(["levels", ">tasks", ">share", "function", "called by"]);
    for curve in &findings.curves {
        for point in &curve.points {
            for hot in point.hot_functions.iter().take(SHOWN_FUNCTIONS) {
                table.row(cells![
                    Role::Heading.text(name(layout, curve)),
                    Role::Subject.text(point.tasks),
                    percent(hot.share),
                    &hot.function,
                    or(hot.call_site.as_ref(), ""),
                ]);
            }
        }
    }
    if !table.is_empty() {
        out.heading("Kernel functions", PROFILE_METHOD);
        out.table(table.caption("Kernel functions"));
    }
}

fn percent(share: f64) -> String {
    format!("{} %", figure(100.0 * share, 1))
}

/// The law and the comparisons.
fn said(layout: &Layout, findings: &Findings) -> Document {
    let law_of = "X(N) = lambda N / (1 + sigma (N-1) + kappa N (N-1)), with 95 % intervals";
    let mut out = Document::titled("Scalability", law_of);
    for curve in &findings.curves {
        let text = match &curve.law {
            Known::Yes(fit) => law(curve, fit),
            Known::No { unknown_reason } => format!("no law: {unknown_reason}"),
        };
        out.paragraph(format!("{}: {text}", name(layout, curve)));
    }
    if findings.steps.is_empty() {
        return out;
    }
    out.heading(
        "Compared",
        "at each number of tasks; *: significant, corrected for all rows; =: equivalent",
    );
    let heads = ["factor", "from", "to", "", "change of operations/s"];
    let mut table = Table::of(heads).caption("Compared");
    for step in &findings.steps {
        let names = layout.compared(step).map(|name| Role::Subject.text(name));
        table.row(names.into_iter().chain([marked(step)]));
    }
    out.table(table);
    out
}

fn law(curve: &Curve, fit: &LawFit) -> String {
    let most = curve.points.iter().map(|it| it.tasks).max().unwrap_or(1);
    let with = |value: f64, interval: Option<Interval>, digits: usize| {
        let interval = interval.map(|it| format!(" ({:.digits$} to {:.digits$})", it.low, it.high));
        format!("{value:.digits$}{}", or(interval, ""))
    };
    let (law, intervals) = (&fit.law, fit.intervals.as_ref());
    let figures = format!(
        "lambda {}/s, sigma {}, kappa {}",
        with(law.lambda, intervals.map(|it| it.lambda), 0),
        with(law.sigma, intervals.map(|it| it.sigma), 4),
        with(law.kappa, intervals.map(|it| it.kappa), 5)
    );
    let peak = match fit.peak {
        Some(peak) if peak <= f64::from(most) => format!("highest at {peak:.0} tasks"),
        _ => format!("no peak up to {most} tasks"),
    };
    let gain = 100.0 * MIN_GAIN;
    let pays = match fit.pays_until {
        until if until >= most => {
            format!("every CPU up to {most} adds {gain:.0} % of the first one or more")
        }
        until => {
            format!("beyond {until} tasks another CPU adds less than {gain:.0} % of the first one")
        }
    };
    let error = percent(fit.largest_error);
    match fit.largest_error > MAX_ERROR {
        true => format!("no law: the nearest one, {figures}, is {error} off a mean"),
        false => format!("{figures}; {peak}; {pays}; within {error} of the means"),
    }
}

/// Samples and law of each workload, a curve for each set of other levels.
fn charts(findings: &Findings) -> Document {
    let mut out = Document::new();
    let mut workloads: Vec<String> = Vec::new();
    for curve in &findings.curves {
        let workload = curve.levels.text(WORKLOAD);
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    for workload in workloads {
        let of = |it: &&Curve| it.levels.text(WORKLOAD) == workload;
        let curves: Vec<&Curve> = findings.curves.iter().filter(of).collect();
        let mut dots: Vec<Dot> = Vec::new();
        for (line, curve) in curves.iter().enumerate() {
            for point in &curve.points {
                dots.extend(point.samples.iter().map(|&sample| Dot {
                    x: point.tasks.into(),
                    y: sample,
                    has_warning: false,
                    line: Some(line),
                }));
            }
        }
        let levels = |curve: &Curve| {
            let others = curve.levels.only(|factor| factor != WORKLOAD);
            let levels = others.levels().map(|(_, level)| level.to_string());
            levels.collect::<Vec<_>>().join(", ")
        };
        out.chart(Chart {
            title: format!("{workload}: throughput by tasks"),
            about: "A mark for each sample, of another shape and colour for each line; lines are the fitted law, or connect the means where there is none.".to_owned(),
            plot: Plot::Lines {
                x: Axis::from_zero("tasks", dots.iter().map(|dot| dot.x)),
                y: Axis::from_zero("operations per second", dots.iter().map(|dot| dot.y)),
                lines: curves.iter().map(|it| Line { name: levels(it), points: drawn(it) }).collect(),
                dots,
            },
        });
    }
    out
}

fn drawn(curve: &Curve) -> Vec<(f64, f64)> {
    match curve.law.get().filter(|it| it.largest_error <= MAX_ERROR) {
        Some(fit) => {
            let most = curve.points.iter().map(|it| it.tasks).max().unwrap_or(1);
            let at =
                |step: u32| 1.0 + f64::from(step) * f64::from(most - 1) / f64::from(CURVE_POINTS);
            (0..=CURVE_POINTS)
                .map(|step| (at(step), fit.law.throughput(at(step))))
                .collect()
        }
        None => {
            let points = curve.points.iter().filter(|it| !it.samples.is_empty());
            let mean = |it: &[f64]| it.iter().sum::<f64>() / it.len() as f64;
            points
                .map(|it| (f64::from(it.tasks), mean(&it.samples)))
                .collect()
        }
    }
}
