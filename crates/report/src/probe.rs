//! The matrix of the probe as tables and sentences.
//!
//! ```text
//! Answer ──► run times   the published table's columns, median and its interval
//!        ──► migrations  medians a run by class, far share, what NUMA balancing moved
//!        ──► findings    a sentence a question, with its interval or the reason why it is unknown
//!        ──► remarks     what was left out, what was wrong with samples
//! ```

mod sentences;
mod tables;

use std::error::Error;

use nearfar_bench::matrix::{self, Answer, Row};
use nearfar_machine::Known;
use nearfar_runs::Counted;

use crate::amount::{count, lead};
use crate::document::{Axis, Bars, Chart, Document, Plot, Text};
use crate::runs::{Own, Shown};

/// What a stored run of the probe shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, Box<dyn Error + Send + Sync>> {
    let answer = matrix::stored::answer(shown.run, shown.detail, shown.samples)?;
    let text = tables(&answer);
    Ok(Own {
        mail: text.clone(),
        text,
        page: of_page(&answer),
        json: serde_json::to_value(&answer).unwrap_or_default(),
        published: None,
    })
}

/// A whole matrix. The header of its stored run ([`crate::runs::header`]) says how it was made.
pub fn tables(answer: &Answer) -> Document {
    let mut out = Document::new();
    let load = load(answer.parameters.load_percent, &answer.load_percent_had);
    let settings = std::iter::once(load).chain(settings(answer));
    out.heading("Load and settings", "");
    settings.for_each(|text| out.paragraph(text));
    results(answer, &mut out);
    out
}

fn results(answer: &Answer, out: &mut Document) {
    out.heading("Run times", "seconds; PNID: preferred node; F: floating");
    out.table(tables::times(&answer.rows));
    out.heading(
        "Migrations",
        "medians per run; far: accesses to another node; keeper: of a CPU",
    );
    out.table(tables::migrations(&answer.rows));
    let unknown = answer
        .rows
        .iter()
        .find_map(|row| row.migrations.unknown_reason());
    if let Some(reason) = unknown {
        out.warning(format!("migrations: unknown: {reason}"));
    }
    findings(answer, out);
    remarks(answer, out);
}

/// What the page of a stored run shows beyond its metrics.
pub fn of_page(answer: &Answer) -> Document {
    let mut out = Document::new();
    findings(answer, &mut out);
    if let Some(chart) = migrations(answer) {
        out.heading("Migrations", "");
        out.chart(chart);
    }
    remarks(answer, &mut out);
    out
}

/// Migrations a run by class; `None` where they are unknown.
fn migrations(answer: &Answer) -> Option<Chart> {
    let row = |row: &Row| {
        let moves = row.migrations.get()?;
        let classes = [
            moves.same_core,
            moves.same_cache,
            moves.same_node,
            moves.cross_node,
        ];
        let names = tables::key(row).iter().map(Text::plain).collect();
        Some((names, classes.to_vec()))
    };
    let rows: Vec<(Vec<String>, Vec<f64>)> = answer.rows.iter().filter_map(row).collect();
    let totals = rows.iter().map(|(_, classes)| classes.iter().sum());
    let axis = Axis::from_zero("migrations per run", totals);
    (!rows.is_empty()).then(|| Chart {
        title: "Migrations by class".to_owned(),
        about: "Medians per run. The wider apart the CPUs, the darker the part of the bar."
            .to_owned(),
        plot: Plot::Bars(Bars {
            row_heads: tables::KEY.map(str::to_owned).to_vec(),
            axis,
            classes: ["same core", "same cache", "same node", "cross node"]
                .map(str::to_owned)
                .to_vec(),
            rows,
        }),
    })
}

/// What the cells say about the questions of the matrix.
fn findings(answer: &Answer, out: &mut Document) {
    out.heading("Findings", "with 95 % intervals; ratios within rounds");
    for (role, text) in sentences::of(answer) {
        out.paragraph(Text::new(role, text));
    }
}

/// What load was asked for, and what it had: the probe and other tasks take their share of it.
fn load(percent: f64, had: &Known<f64>) -> String {
    let had = had
        .get()
        .map(|had| format!("; it had {had:.1} % of the CPUs"))
        .unwrap_or_default();
    match percent > 0.0 {
        true => format!("load: one pinned process on each CPU, {percent} % of it{had}"),
        false => {
            "no load: alone on an idle machine the probe says little about scheduling".to_owned()
        }
    }
}

fn settings(answer: &Answer) -> impl Iterator<Item = String> {
    let settings = answer.parameters.settings.iter();
    settings.map(|setting| format!("set for the run: {} = {}", setting.path, setting.value))
}

/// That run times have others' work in them.
fn crowded(answer: &Answer) -> String {
    let load = answer.parameters.load_percent;
    let had = answer.load_percent_had.get().filter(|_| load > 0.0);
    let had = had.map(|had| format!("the load had {had:.1} % of the CPUs instead of {load} %"));
    let waited = answer.waited_share.get().map(|share| {
        format!(
            "the probe waited for a CPU {:.0} % of the time",
            share * 100.0
        )
    });
    let said = had
        .into_iter()
        .chain(waited)
        .collect::<Vec<_>>()
        .join(" and ");
    format!(
        "{said} (medians): others worked on these CPUs, too, and run times are longer for it; repeat when they are quiet"
    )
}

/// What was left out and what was wrong.
fn remarks(answer: &Answer, out: &mut Document) {
    let left_out = answer
        .parameters
        .left_out
        .iter()
        .map(|left| format!("not measured: {}: {}", left.what, left.reason));
    let samples = |counted: &Counted| count(counted.samples, "sample");
    let warnings = answer
        .warnings
        .iter()
        .map(|warning| lead(warning, "sample", "") + &warning.what);
    let crowded = answer.is_crowded().then(|| crowded(answer));
    let failed = answer.rows.iter().flat_map(|row| {
        row.failed.iter().map(|failed| {
            format!(
                "{} of cell {} failed: {}",
                samples(failed),
                row.cell,
                failed.what
            )
        })
    });
    let mut all = left_out
        .chain(failed)
        .chain(warnings)
        .chain(crowded)
        .peekable();
    if all.peek().is_some() {
        out.heading("Remarks", "");
        all.for_each(|text| out.warning(text));
    }
}
