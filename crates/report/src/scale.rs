//! A run of `bench scale`: throughput by the number of tasks, the law that it follows, and whether other levels help.

use std::error::Error;

use nearfar_bench::scale::{
    Curve, Findings, LOCK_SHARE, OPERATIONS, PUBLISHED_LEVELS, Published, TASKS, agreement,
    findings,
};
use nearfar_machine::Known;
use nearfar_runs::{Cell, CellSummary};
use nearfar_statistics::Interval;
use nearfar_statistics::law::{LawFit, MIN_GAIN};

use crate::amount::{figure, or};
use crate::compare::figures::marked;
use crate::document::{Align, Axis, Chart, Document, Dot, Line, Plot, Table, Text};
use crate::published;
use crate::runs::{self, Against, Own, PublishedFile, Shown, Written};
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
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, Box<dyn Error + Send + Sync>> {
    let findings = findings(shown.detail, shown.samples);
    let mut text = Document::new();
    throughput(shown, &findings, &mut text);
    profile(shown, &findings, &mut text);
    said(shown, &findings, &mut text);
    let mail = text.clone();
    runs::warnings_of(shown, &mut text);
    let mut page = Document::new();
    charts(&findings, &mut page);
    throughput(shown, &findings, &mut page);
    profile(shown, &findings, &mut page);
    said(shown, &findings, &mut page);
    Ok(Own {
        text,
        page,
        mail,
        json: serde_json::to_value(&findings)?,
        published: None,
    })
}

/// How a table of published figures compares with the run.
pub(crate) fn against(
    shown: &Shown<'_>,
    file: PublishedFile<'_>,
) -> Result<Against, Box<dyn Error + Send + Sync>> {
    let figures = Published::read(file.input)?;
    let agreements = agreement(shown.detail, shown.samples, &figures);
    published::against(&agreements, file.name, &PUBLISHED_LEVELS)
}

/// The factors of which a run has several levels, without the number of tasks.
fn varied(shown: &Shown<'_>) -> Vec<String> {
    let factors = shown.detail.factors.iter();
    let several = factors.filter(|it| it.levels.len() > 1 && it.name != TASKS);
    several.map(|it| it.name.clone()).collect()
}

/// `tlb_flush, numa=fake=2U`; the workload alone where nothing else varies.
fn name(shown: &Shown<'_>, levels: &Cell) -> String {
    let varied = varied(shown);
    let names = levels
        .levels()
        .filter(|(factor, _)| varied.iter().any(|it| it == factor));
    let names: Vec<String> = names.map(|(_, level)| level.to_string()).collect();
    match names.is_empty() {
        true => levels.text(nearfar_bench::scale::WORKLOAD),
        false => names.join(", "),
    }
}

fn throughput(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    let Some(metric) = shown.detail.metrics.iter().find(|it| it.name == OPERATIONS) else {
        return;
    };
    let written = Written::of(shown, metric);
    out.heading("Throughput", METHOD);
    let heads = [
        "levels",
        "nodes",
        "tasks",
        "operations",
        "interval",
        "fairness",
        "waiting",
        "lock",
    ];
    let heads = heads.map(|head| match head {
        "levels" | "nodes" | "lock" => (head, Align::Left),
        _ => (head, Align::Right),
    });
    let mut table = Table::new(&heads).caption("Throughput");
    for curve in &findings.curves {
        for point in &curve.points {
            let cell = shown.cells.iter().find(|it| {
                it.cell.only(|factor| factor != TASKS) == curve.levels
                    && it.cell.text(TASKS) == point.tasks.to_string()
            });
            let of = |metric: &str| cell.and_then(|it: &CellSummary| it.metric(metric));
            let median = |metric: &str| of(metric).and_then(|it| it.median);
            let interval = of(OPERATIONS).and_then(|it| it.confidence);
            let lock = point.hot_lock.as_ref().map(|lock| {
                format!(
                    "{} ({}) {}",
                    lock.call_site,
                    lock.kind.name(),
                    percent(lock.share)
                )
            });
            table.row([
                Role::Heading.text(name(shown, &curve.levels)),
                curve.nodes.join(" or ").into(),
                Role::Subject.text(point.tasks.to_string()),
                Text::from(or(
                    median(OPERATIONS).map(|it| format!("{} {}", written.text(it), written.unit)),
                    "",
                )),
                or(interval.map(|it| written.interval(it.low, it.high)), "").into(),
                or(median("fairness").map(|it| figure(it, 3)), "").into(),
                or(median(LOCK_SHARE).map(percent), "").into(),
                lock.unwrap_or_default().into(),
            ]);
        }
    }
    out.table(table);
}

/// Where the tasks' CPU time was spent, where it was sampled.
fn profile(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    let points = findings.curves.iter().flat_map(|curve| {
        let points = curve.points.iter();
        points.map(move |point| (curve, point))
    });
    let sampled: Vec<_> = points
        .filter(|(_, point)| !point.hot_functions.is_empty())
        .collect();
    if sampled.is_empty() {
        return;
    }
    out.heading("Kernel functions", PROFILE_METHOD);
    let heads = [
        ("levels", Align::Left),
        ("tasks", Align::Right),
        ("share", Align::Right),
        ("function", Align::Left),
        ("called by", Align::Left),
    ];
    let mut table = Table::new(&heads).caption("Kernel functions");
    for (curve, point) in sampled {
        for hot in point.hot_functions.iter().take(SHOWN_FUNCTIONS) {
            table.row([
                Role::Heading.text(name(shown, &curve.levels)),
                Role::Subject.text(point.tasks.to_string()),
                percent(hot.share).into(),
                hot.function.clone().into(),
                hot.call_site.clone().unwrap_or_default().into(),
            ]);
        }
    }
    out.table(table);
}

fn percent(share: f64) -> String {
    format!("{} %", figure(100.0 * share, 1))
}

/// The law and the comparisons.
fn said(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    out.heading(
        "Scalability",
        "X(N) = lambda N / (1 + sigma (N-1) + kappa N (N-1)), with 95 % intervals",
    );
    for curve in &findings.curves {
        let text = match &curve.law {
            Known::Yes(fit) => law(curve, fit),
            Known::No { unknown_reason } => format!("no law: {unknown_reason}"),
        };
        out.paragraph(format!("{}: {text}", name(shown, &curve.levels)));
    }
    if findings.steps.is_empty() {
        return;
    }
    out.heading("Compared", "B against A at each number of tasks; *: significant, corrected for all rows; =: equivalent");
    let heads = [
        ("A", Align::Left),
        ("B", Align::Left),
        ("tasks", Align::Right),
        ("change of operations/s", Align::Left),
    ];
    let mut table = Table::new(&heads).caption("Compared");
    for step in &findings.steps {
        let [a, b] =
            [&step.a, &step.b].map(|cell| name(shown, &cell.only(|factor| factor != TASKS)));
        table.row([
            Role::Heading.text(a),
            Role::Subject.text(b),
            step.b.text(TASKS).into(),
            marked(step),
        ]);
    }
    out.table(table);
}

fn law(curve: &Curve, fit: &LawFit) -> String {
    let most = curve.points.iter().map(|it| it.tasks).max().unwrap_or(1);
    let with = |value: f64, interval: Option<Interval>, digits: usize| {
        let number = |value: f64| format!("{value:.digits$}");
        match interval {
            Some(it) => format!(
                "{} ({} to {})",
                number(value),
                number(it.low),
                number(it.high)
            ),
            None => number(value),
        }
    };
    let intervals = fit.intervals.as_ref();
    let figures = [
        format!(
            "lambda {}/s",
            with(fit.law.lambda, intervals.map(|it| it.lambda), 0)
        ),
        format!(
            "sigma {}",
            with(fit.law.sigma, intervals.map(|it| it.sigma), 4)
        ),
        format!(
            "kappa {}",
            with(fit.law.kappa, intervals.map(|it| it.kappa), 5)
        ),
    ];
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
    if fit.largest_error > MAX_ERROR {
        let figures = figures.join(", ");
        return format!("no law: the nearest one, {figures}, is {error} off a mean");
    }
    format!(
        "{}; {peak}; {pays}; within {error} of the means",
        figures.join(", ")
    )
}

/// Samples and law of each workload, a curve for each set of other levels.
fn charts(findings: &Findings, out: &mut Document) {
    let mut workloads: Vec<String> = Vec::new();
    for curve in &findings.curves {
        let workload = curve.levels.text(nearfar_bench::scale::WORKLOAD);
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    for workload in workloads {
        let of = |it: &&Curve| it.levels.text(nearfar_bench::scale::WORKLOAD) == workload;
        let curves: Vec<&Curve> = findings.curves.iter().filter(of).collect();
        let dots: Vec<Dot> = curves
            .iter()
            .enumerate()
            .flat_map(|(line, curve)| dots(line, curve))
            .collect();
        let levels = |curve: &Curve| {
            let other = curve
                .levels
                .levels()
                .filter(|(factor, _)| *factor != nearfar_bench::scale::WORKLOAD);
            other
                .map(|(_, level)| level.to_string())
                .collect::<Vec<_>>()
                .join(", ")
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
}

/// The samples of a curve, which is the line at this position.
fn dots(line: usize, curve: &Curve) -> impl Iterator<Item = Dot> {
    let samples = move |tasks: u32, samples: &Vec<f64>| -> Vec<Dot> {
        let dot = |&sample: &f64| Dot {
            x: tasks.into(),
            y: sample,
            has_warning: false,
            line: Some(line),
        };
        samples.iter().map(dot).collect()
    };
    let points = curve.points.iter();
    points.flat_map(move |it| samples(it.tasks, &it.samples))
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
