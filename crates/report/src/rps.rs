//! A run of `bench rps`: the published table's shape, latencies, who served the card, and what may be claimed.
//!
//! ```text
//! samples ──► requests     a row for each way interrupts are served, a column for each node with servers
//!         ──► latencies    the same rows: median, 99th and 99.9th percentile
//!         ──► served       interrupts and softirqs near and far from the servers, drops
//! findings ─► sentences    the judgement is that of nearfar_bench::rps
//! ```

use std::error::Error;

use nearfar_bench::rps::findings::{MARGIN, Series};
use nearfar_bench::rps::{
    ADJACENT, CARD, Findings, INTERRUPTS, KEEP, RECEIVE, REQUESTS_ADJACENT, REQUESTS_CARD,
    SERVER_NODE, TOGETHER, findings,
};
use nearfar_bench::step::Step;
use nearfar_runs::{Cell, CellSummary};
use nearfar_statistics::compare::Verdict;

use crate::amount::{figure, or};
use crate::compare::figures::{change, marked};
use crate::document::{Align, Document, Table, Text};
use crate::runs::{self, Own, Shown};
use crate::style::Role;

const METHOD: &str = "Requests per second, paired by round: Wilcoxon's signed ranks. For each of the two questions (adjacent \
                      against card, each row against the one before) the chance of any false alarm is 5 % (Holm).";
const REQUESTS: &str = "medians of requests/s; card: servers on the card's node; adjacent: on the node nearest to it; change: \
                        adjacent against card with its 95 % interval, *: significant, =: equivalent";
const LATENCIES: &str = "of all requests, in us: median/99th/99.9th percentile";
/// On the card's node and on the adjacent one.
const LATENCY_METRICS: [&str; 2] = ["latency_card_ns", "latency_adjacent_ns"];
const SERVED: &str = "medians; near: on the servers' node, far: on other nodes without clients; interrupts: of the queues that \
                      the servers have, or of all where their clients cannot choose and one node has servers";

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, Box<dyn Error + Send + Sync>> {
    let findings = findings(shown.detail, shown.samples);
    let mut text = Document::new();
    tables(shown, &findings, &mut text);
    said(&findings, &mut text);
    let (mut page, mail) = (Document::new(), text.clone());
    said(&findings, &mut page);
    tables(shown, &findings, &mut page);
    runs::warnings_of(shown, &mut text);
    Ok(Own {
        text,
        page,
        mail,
        json: serde_json::to_value(&findings)?,
        published: None,
    })
}

/// A way in which interrupts are served, and whether both nodes have servers at once.
struct Row<'a> {
    name: String,
    card: Option<&'a CellSummary>,
    adjacent: Option<&'a CellSummary>,
}

fn rows<'a>(shown: &Shown<'a>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for summary in shown.cells {
        let cell = &summary.cell;
        let level = cell.text(SERVER_NODE);
        let name = name(cell);
        if !rows.iter().any(|row| row.name == name) {
            rows.push(Row {
                name: name.clone(),
                card: None,
                adjacent: None,
            });
        }
        if let Some(row) = rows.iter_mut().find(|row| row.name == name) {
            if level != ADJACENT {
                row.card = Some(summary);
            }
            if level != CARD {
                row.adjacent = Some(summary);
            }
        }
    }
    rows
}

/// How interrupts are served in a cell.
fn name(cell: &Cell) -> String {
    let series = Series {
        cell: cell.clone(),
        servers: String::new(),
    };
    served(&series)
}

fn served(series: &Series) -> String {
    match series.is_together() {
        true => format!("{}, {TOGETHER}", series.served()),
        false => series.served(),
    }
}

fn tables(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    let rows = rows(shown);
    let by = match shown.cells.iter().any(|it| it.cell.text(RECEIVE) != KEEP) {
        true => RECEIVE,
        false => INTERRUPTS,
    };
    out.heading("Requests", REQUESTS);
    let mut table = table(by, &["card", "adjacent", "change"], "Requests per second");
    for row in &rows {
        let median = |cell: Option<&CellSummary>, metric| {
            let median = cell.and_then(|it| it.metric(metric)?.median);
            or(median.map(|it| figure(it, 0)), "")
        };
        let step = findings
            .behind
            .iter()
            .find(|step| served(&step.a) == row.name);
        table.row([
            Role::Heading.text(&row.name),
            median(row.card, REQUESTS_CARD).into(),
            median(row.adjacent, REQUESTS_ADJACENT).into(),
            step.map_or_else(Text::default, marked),
        ]);
    }
    out.table(table);
    if shown.cells.iter().any(has_latencies) {
        out.heading("Latencies", LATENCIES);
        out.table(latencies(by, &rows));
    }
    out.heading("Served", SERVED);
    out.table(served_table(by, shown));
}

fn table(by: &str, columns: &[&str], caption: &str) -> Table {
    let columns = columns.iter().map(|&column| (column, Align::Right));
    let heads: Vec<_> = [(by, Align::Left)].into_iter().chain(columns).collect();
    Table::new(&heads).caption(caption)
}

/// Not with another program as the client.
fn has_latencies(cell: &CellSummary) -> bool {
    let mut metrics = LATENCY_METRICS.iter();
    metrics.any(|metric| cell.metric(metric).is_some_and(|it| it.quantiles.is_some()))
}

fn latencies(by: &str, rows: &[Row<'_>]) -> Table {
    let [card, adjacent] = LATENCY_METRICS;
    let mut table = table(by, &["card", "adjacent"], "Latencies");
    for row in rows {
        let all = |cell: Option<&CellSummary>, metric| {
            let quantiles = cell.and_then(|it| it.metric(metric)?.quantiles);
            let us = |ns: u64| figure(ns as f64 / 1e3, 0);
            or(
                quantiles.map(|it| format!("{}/{}/{}", us(it.p50), us(it.p99), us(it.p999))),
                "",
            )
        };
        table.row([
            Role::Heading.text(&row.name),
            all(row.card, card).into(),
            all(row.adjacent, adjacent).into(),
        ]);
    }
    table
}

/// A row a cell: who served the card.
fn served_table(by: &str, shown: &Shown<'_>) -> Table {
    const COUNTS: [(&str, usize); 7] = [
        ("interrupts_near", 0),
        ("interrupts_far", 0),
        ("net_rx_near", 0),
        ("net_rx_far", 0),
        ("softirq_near_s", 2),
        ("softirq_far_s", 2),
        ("dropped", 0),
    ];
    let heads = [
        "servers",
        "interrupts near",
        "far",
        "NET_RX near",
        "far",
        "softirq s near",
        "far",
        "dropped",
    ];
    let mut table = table(by, &heads, "Served");
    for cell in shown.cells {
        let median = |(metric, digits): (&str, usize)| {
            let median = cell.metric(metric).and_then(|it| it.median);
            Text::from(or(median.map(|it| figure(it, digits)), ""))
        };
        let names = [
            Role::Heading.text(name(&cell.cell)),
            Role::Subject.text(cell.cell.text(SERVER_NODE)),
        ];
        table.row(names.into_iter().chain(COUNTS.map(median)));
    }
    table
}

fn said(findings: &Findings, out: &mut Document) {
    out.heading("Findings", "with 95 % intervals of the change");
    for step in &findings.behind {
        out.paragraph(behind(step));
    }
    for step in &findings.changes {
        out.paragraph(changed(step));
    }
    if findings.behind.is_empty() && findings.changes.is_empty() {
        out.paragraph(Role::Dim.text(
            "the cells of this run have nothing to be compared with: it takes servers on two nodes, or interrupts served in two ways",
        ));
        return;
    }
    if let Some(answer) = worse_off(findings) {
        out.paragraph(answer);
    }
    out.remark(METHOD);
}

/// Does the adjacent node fall behind?
fn behind(step: &Step<Series>) -> Text {
    let text = judged(step, |verdict| match verdict {
        Verdict::Worse => "the adjacent node falls behind the card's",
        Verdict::Better => "the adjacent node is ahead of the card's",
        Verdict::Equivalent | Verdict::Equal => "both nodes are equivalent",
        _ => "no significant difference between the nodes",
    });
    Role::Heading
        .text(format!("{}: ", served(&step.a)))
        .then(Role::Plain, text)
}

/// What does the next way change for a node?
fn changed(step: &Step<Series>) -> Text {
    let (before, after) = (served(&step.a), served(&step.b));
    let text = judged(step, |verdict| match verdict {
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::Equivalent | Verdict::Equal => "equivalent",
        _ => "no significant difference",
    });
    let heading = format!("{} node, {after} against {before}: ", step.a.servers);
    Role::Heading.text(heading).then(Role::Plain, text)
}

fn judged(step: &Step<Series>, words: impl Fn(Verdict) -> &'static str) -> String {
    let Some(compared) = step.compared.get() else {
        return format!(
            "unknown: {}",
            step.compared.unknown_reason().unwrap_or_default()
        );
    };
    match compared.verdict {
        Verdict::TooFewSamples => format!("too few samples, {}", change(compared)),
        verdict => format!("{}, {}", words(verdict), change(compared)),
    }
}

/// The reviewers' question.
fn worse_off(findings: &Findings) -> Option<Text> {
    let is_worse = |step: &&Step<Series>| {
        step.compared
            .get()
            .is_some_and(|it| it.verdict == Verdict::Worse)
    };
    let worse: Vec<String> = findings
        .changes
        .iter()
        .filter(is_worse)
        .map(|step| format!("{} node with {}", step.a.servers, served(&step.b)))
        .collect();
    let margin = MARGIN * 100.0;
    let is_known = |step: &Step<Series>| {
        let verdict = step.compared.get().map(|it| it.verdict);
        !matches!(verdict, None | Some(Verdict::TooFewSamples))
    };
    let is_answered = !findings.changes.is_empty() && findings.changes.iter().all(is_known);
    (is_answered || !worse.is_empty()).then(|| match worse.is_empty() {
        true => format!(
            "No node is significantly worse off with any change. Equivalent: within {margin} %."
        )
        .into(),
        false => format!("Significantly worse off: {}.", worse.join("; ")).into(),
    })
}
