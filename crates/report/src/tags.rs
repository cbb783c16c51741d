//! A run of `bench tags`: the published table's shape, where the time went, whose tags were taken, and what may be claimed.
//!
//! ```text
//! samples ──► operations, system share   scenarios in rows, policies in columns
//!         ──► where the time goes        a row a cell: interval, CPU times, waiting, hand-over, fairness
//!         ──► steals                     a row a cell: by what both CPUs share
//! findings ─► sentences                  the judgement is that of nearfar_bench::tags
//! ```

mod mail;
mod sentences;
mod tables;

use std::error::Error;

use nearfar_bench::tags::{
    Findings, Groups, OPERATIONS, POLICY, PUBLISHED_LEVELS, Published, SYSTEM_SHARE, agreement,
    findings, groups,
};
use nearfar_runs::{Better, Metric};
use serde_json::Value;

use crate::document::{Axis, Bars, Chart, Document, HeatMap, Plot};
use crate::published;
use crate::runs::{self, Against, Layout, Own, PublishedFile, Shown, Written};

/// What the names of scenarios mean.
const LEGEND: &str = "near, far: the node of the second group of workers; low, high: fewer and more I/Os in flight than tags; \
                      alone: one worker, tags to spare";

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, Box<dyn Error + Send + Sync>> {
    let findings = findings(shown.detail, shown.samples);
    Ok(Own {
        text: text(shown, &findings),
        page: page(shown, &findings),
        mail: mail(shown, &findings),
        json: json(shown, &findings),
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

/// The findings, and where the workers were.
fn json(shown: &Shown<'_>, findings: &Findings) -> Value {
    let mut json = serde_json::to_value(findings).unwrap_or_default();
    let of_distance = |(distance, groups): (String, Groups)| {
        let mut json = serde_json::to_value(groups).unwrap_or_default();
        json["distance"] = distance.into();
        json
    };
    json["groups"] = groups(shown.samples).into_iter().map(of_distance).collect();
    json
}

fn text(shown: &Shown<'_>, findings: &Findings) -> Document {
    let mut out = Document::new();
    matrices(shown, findings, &mut out);
    out.heading("Where the time goes", tables::TIMES);
    out.table(tables::times(shown, findings));
    out.heading("Steals", tables::STEALS);
    out.table(tables::steals(shown, findings));
    said(findings, &mut out);
    steps_of_others(findings, &mut out);
    runs::warnings_of(shown, &mut out);
    out
}

fn page(shown: &Shown<'_>, findings: &Findings) -> Document {
    let mut out = Document::new();
    said(findings, &mut out);
    steps_of_others(findings, &mut out);
    out.heading("Steals", tables::STEALS);
    if let Some(chart) = steals(shown, findings) {
        out.chart(chart);
    }
    out.table(tables::steals(shown, findings));
    out.heading("Where the time goes", tables::TIMES);
    out.table(tables::times(shown, findings));
    out
}

fn mail(shown: &Shown<'_>, findings: &Findings) -> Document {
    let mut out = Document::new();
    mail::tables(shown, findings, &mut out);
    if !findings.orders.is_empty() {
        out.heading("Found", "");
        sentences::summary(findings)
            .into_iter()
            .for_each(|text| out.paragraph(text));
    }
    said(findings, &mut out);
    out
}

/// Operations and system share in the published shape.
fn matrices(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    for name in [OPERATIONS, SYSTEM_SHARE] {
        if let Some(metric) = tables::metric(shown, name) {
            out.heat_map(matrix(shown, findings, metric));
        }
    }
    out.remark(LEGEND);
    for (distance, groups) in groups(shown.samples) {
        out.remark(sentences::groups(&distance, &groups));
    }
}

fn matrix(shown: &Shown<'_>, findings: &Findings, metric: &Metric) -> HeatMap {
    let name = |cell: &nearfar_runs::Cell| tables::scenario(findings, cell);
    let layout = Layout::by(POLICY, shown.cells, "scenario", name);
    let better = match metric.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    HeatMap {
        title: Written::of(shown, metric).title(),
        remark: format!("medians; {better}"),
        ..runs::heat_map(shown, &layout, metric)
    }
}

/// What the samples say, and how it was made.
fn said(findings: &Findings, out: &mut Document) {
    out.heading("Findings", "with 95 % intervals of the change");
    for text in sentences::of(findings) {
        out.paragraph(text);
    }
    out.remark(sentences::METHOD);
}

/// Each step behind what is said of the other policies.
fn steps_of_others(findings: &Findings, out: &mut Document) {
    if !findings.others.is_empty() {
        out.heading("Other policies", tables::OTHERS);
        out.table(tables::others(findings));
    }
}

/// Steals of a sample by what both CPUs share.
fn steals(shown: &Shown<'_>, findings: &Findings) -> Option<Chart> {
    let row = |cell: &nearfar_runs::CellSummary| {
        let median = |(name, _): &(&str, &str)| cell.metric(name)?.median;
        let amounts: Option<Vec<f64>> = tables::CLASSES.iter().map(median).collect();
        let names = vec![
            tables::scenario(findings, &cell.cell),
            cell.cell.text(POLICY),
        ];
        amounts
            .filter(|it| it.iter().any(|amount| *amount > 0.0))
            .map(|it| (names, it))
    };
    let rows: Vec<(Vec<String>, Vec<f64>)> = shown.cells.iter().filter_map(row).collect();
    let totals = rows.iter().map(|(_, classes)| classes.iter().sum());
    let axis = Axis::from_zero("steals per sample", totals);
    (!rows.is_empty()).then(|| Chart {
        title: "Steals by distance".to_owned(),
        about: "Medians per sample. The less both CPUs share, the darker the part of the bar."
            .to_owned(),
        plot: Plot::Bars(Bars {
            row_heads: ["scenario", "policy"].map(str::to_owned).to_vec(),
            axis,
            classes: tables::CLASSES.map(|(_, title)| title.to_owned()).to_vec(),
            rows,
        }),
    })
}
