//! A run of `bench io`: the published table's shape (I/Os per second, latency, where the time went), and what is significant.

use std::collections::BTreeMap;
use std::error::Error;

use nearfar_bench::io::{COMPARED_FACTORS, Findings, IOPS, findings};
use nearfar_bench::step::Step;
use nearfar_runs::{Cell, CellSummary, Factor};
use nearfar_statistics::compare::Verdict;
use serde_json::Value;

use crate::compare::figures::change;
use crate::document::{Align, Document, Table, Text};
use crate::runs::{self, Own, Shown, Written};
use crate::style::Role;

const CAPTION: &str = "medians of samples; interval: 95 %, of the median of I/Os per second; latency: completion, as fio counts it";
const METHOD: &str = "I/Os per second and 99th percentiles, paired by round: Wilcoxon's signed ranks. The chance of any false \
                      alarm is 5 % (Holm).";

/// The columns: metric and heading.
const COLUMNS: [(&str, &str); 9] = [
    ("bytes_per_s", "bandwidth"),
    ("latency_mean_ns", "mean"),
    ("latency_p50_ns", "p50"),
    ("latency_p99_ns", "p99"),
    ("latency_p999_ns", "p99.9"),
    ("user_share", "user"),
    ("system_share", "system"),
    ("nearest_path_share", "nearest path"),
    ("lock_spin_share", "in spinlocks"),
];

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, Box<dyn Error + Send + Sync>> {
    let findings = findings(shown.detail, shown.samples);
    let mut text = Document::new();
    figures(shown, &mut text);
    said(&findings, &mut text);
    runs::warnings_of(shown, &mut text);
    let mut page = Document::new();
    said(&findings, &mut page);
    figures(shown, &mut page);
    let mut mail = Document::new();
    figures(shown, &mut mail);
    said(&findings, &mut mail);
    Ok(Own {
        text,
        page,
        mail,
        json: serde_json::to_value(&findings)?,
        published: None,
    })
}

/// The table, and the levels that all cells have.
fn figures(shown: &Shown<'_>, out: &mut Document) {
    let (varied, constant): (Vec<&Factor>, Vec<&Factor>) = shown
        .detail
        .factors
        .iter()
        .partition(|factor| levels_of(shown, &factor.name).len() > 1);
    out.heading("I/O", CAPTION);
    let first = shown.cells.first();
    let constant = constant.iter().filter_map(|factor| {
        let level = first?.cell.text(&factor.name);
        (!level.is_empty()).then(|| format!("{}={level}", factor.name))
    });
    let constant: Vec<String> = constant.collect();
    if !constant.is_empty() {
        out.paragraph(format!("In all cells: {}.", constant.join(", ")));
    }
    out.table(table(shown, &varied));
    locks(shown, out);
    if let Some(command) = command(shown) {
        out.paragraph("The first sample's command, which measures the same without nearfar:");
        out.command(command);
    }
}

fn levels_of(shown: &Shown<'_>, factor: &str) -> Vec<String> {
    let mut levels: Vec<String> = Vec::new();
    for cell in shown.cells {
        let level = cell.cell.text(factor);
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    levels
}

fn table(shown: &Shown<'_>, varied: &[&Factor]) -> Table {
    let metric = |name: &str| {
        let found = shown.detail.metrics.iter().find(|it| it.name == name);
        found.map(|it| Written::of(shown, it))
    };
    let has = |name: &str| shown.cells.iter().any(|cell| median(cell, name).is_some());
    let iops = metric(IOPS);
    let columns = COLUMNS.into_iter().filter(|(name, _)| has(name));
    let columns: Vec<_> = columns
        .filter_map(|(name, head)| Some((name, head, metric(name)?)))
        .collect();
    let heads = columns.iter().map(|(_, head, written)| match written.unit {
        "" => (*head).to_owned(),
        unit => format!("{head} {unit}"),
    });
    let heads: Vec<String> = heads.collect();
    let names = varied.iter().map(|it| (it.name.as_str(), Align::Left));
    let fixed = [("IOPS", Align::Right), ("interval", Align::Right)];
    let heads = heads.iter().map(|head| (head.as_str(), Align::Right));
    let heads: Vec<_> = names.chain(fixed).chain(heads).collect();
    let mut table = Table::new(&heads);
    for cell in shown.cells {
        let levels = varied
            .iter()
            .map(|it| Role::Subject.text(cell.cell.text(&it.name)));
        let figures = columns.iter().map(|(name, _, written)| {
            let text = median(cell, name).map(|it| written.text(it));
            Text::from(text.unwrap_or_default())
        });
        let interval = cell.metric(IOPS).and_then(|it| it.confidence);
        let [rate, interval] = match &iops {
            Some(written) => [
                median(cell, IOPS).map(|it| written.text(it)),
                interval.map(|it| written.interval(it.low, it.high)),
            ],
            None => [None, None],
        };
        let rate = [rate, interval].map(|it| Text::from(it.unwrap_or_default()));
        table.row(levels.chain(rate).chain(figures));
    }
    table
}

fn median(cell: &CellSummary, name: &str) -> Option<f64> {
    cell.metric(name)?.median
}

fn command(shown: &Shown<'_>) -> Option<String> {
    let sample = shown.samples.iter().find(|it| it.failed.is_none())?;
    Some(sample.detail.get("command")?.as_str()?.to_owned())
}

/// The lock waits of all samples of a cell by call site, longest first.
fn locks(shown: &Shown<'_>, out: &mut Document) {
    const MOST_SITES: usize = 5;
    let mut table = Table::of(["cell", "call site", "kind", ">waits", ">waited s"]);
    let mut is_empty = true;
    let varied: Vec<&str> = shown
        .detail
        .factors
        .iter()
        .filter(|it| it.levels.len() > 1)
        .map(|it| it.name.as_str())
        .collect();
    for cell in shown.cells {
        let of_cell = shown.samples.iter().filter(|it| it.cell == cell.cell);
        let mut sites: BTreeMap<(String, String), (u64, f64)> = BTreeMap::new();
        for sample in of_cell {
            let found = sample
                .detail
                .pointer("/locks/sites")
                .and_then(Value::as_array);
            for site in found.into_iter().flatten() {
                let text = |key: &str| site[key].as_str().unwrap_or_default().to_owned();
                let sum = sites.entry((text("call_site"), text("kind"))).or_default();
                sum.0 += site["waits"].as_u64().unwrap_or(0);
                sum.1 += site["wait_s"].as_f64().unwrap_or(0.0);
            }
        }
        let mut sites: Vec<_> = sites.into_iter().collect();
        sites.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        for ((site, kind), (waits, wait_s)) in sites.into_iter().take(MOST_SITES) {
            is_empty = false;
            table.row([
                Role::Subject.text(cell.cell.only(|it| varied.contains(&it)).to_string()),
                site.into(),
                kind.replace('_', " ").into(),
                waits.to_string().into(),
                format!("{wait_s:.4}").into(),
            ]);
        }
    }
    if !is_empty {
        out.heading("Waits for kernel locks", "of fio, all samples together");
        out.table(table);
    }
}

fn said(findings: &Findings, out: &mut Document) {
    out.heading("What is significant", METHOD);
    if findings.steps.is_empty() {
        out.paragraph(format!(
            "The cells of this run have nothing to be compared with: it takes two levels of {}.",
            COMPARED_FACTORS.join(", ")
        ));
    }
    for step in &findings.steps {
        out.paragraph(sentence(step));
    }
}

fn sentence(step: &Step) -> Text {
    let factor = &step.factor;
    let (a, b) = (step.a.text(factor), step.b.text(factor));
    let what = match step.metric.as_str() {
        IOPS => "I/Os per second",
        _ => "the 99th percentile of latency",
    };
    let begin = format!("{factor} {a} to {b}{}: {what}", place(step));
    let Some(compared) = step.compared.get() else {
        let reason = step.compared.unknown_reason().unwrap_or_default();
        return Role::Dim.text(format!("{begin} not compared: {reason}."));
    };
    let (role, verdict) = match compared.verdict {
        Verdict::Better => (Role::Local, "significantly better"),
        Verdict::Worse => (Role::Critical, "significantly worse"),
        Verdict::Equivalent | Verdict::Equal => (Role::Dim, "equivalent"),
        Verdict::TooFewSamples => (Role::Dim, "too few samples for a verdict"),
        _ => (Role::Dim, "no significant difference"),
    };
    role.text(format!("{begin} {}: {verdict}.", change(compared)))
}

/// The levels of the other compared factors, where they are not the first ones of the run.
fn place(step: &Step) -> String {
    let others = step
        .a
        .only(|it| it != step.factor && is_stated(it, &step.a));
    let others: Vec<String> = others
        .levels()
        .map(|(name, level)| format!("{name}={level}"))
        .collect();
    match others.is_empty() {
        true => String::new(),
        false => format!(" ({})", others.join(", ")),
    }
}

/// Levels that say nothing by themselves are left out.
fn is_stated(factor: &str, cell: &Cell) -> bool {
    !matches!(
        (factor, cell.text(factor).as_str()),
        ("iopolicy", "keep") | ("pattern", "randread") | ("memory_node", "near")
    )
}
