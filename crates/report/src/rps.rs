//! A run of `bench rps`: the published table's shape, latencies, who served the card, and what may be claimed.
//!
//! ```text
//! samples ──► requests     a row for each way interrupts are served, a column for each node with servers
//!         ──► latencies    the same rows: median, 99th and 99.9th percentile
//!         ──► served       interrupts and softirqs near and far from the servers, drops
//! findings ─► sentences    the judgement is that of nearfar_bench::rps
//! ```

use nearfar_bench::rps::{
    ADJACENT, CARD, Findings, INTERRUPTS, KEEP, RECEIVE, REQUESTS_ADJACENT, REQUESTS_CARD,
    SERVER_NODE, TOGETHER, findings,
};
use nearfar_bench::rps::{MARGIN, Series};
use nearfar_bench::step::Step;
use nearfar_runs::{Cell, CellSummary};
use nearfar_statistics::compare::Verdict;

use crate::amount::{figure, or};
use crate::compared::{finding, marked};
use crate::document::{Document, Table, Text, cells};
use crate::runs::{BoxError, Column, Own, Shown, cell_table};
use crate::style::Role;

const METHOD: &str = "Requests per second, paired by round: Wilcoxon's signed ranks. For each of the two questions (adjacent \
                      against card, each row against the one before) the chance of any false alarm is 5 % (Holm).";
const REQUESTS: &str = "medians of requests/s; card: servers on the card's node; adjacent: on the node nearest to it; change: \
                        adjacent against card with its 95 % interval, *: significant, =: equivalent";
const LATENCIES: &str = "of all requests, in us: median/99th/99.9th percentile";
const SERVED: &str = "medians; near: on the servers' node, far: on other nodes without clients; interrupts: of the queues that \
                      the servers have, or of all where their clients cannot choose and one node has servers";

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let findings = findings(shown.detail, shown.samples);
    Own::of(shown, tables(shown, &findings), said(&findings), &findings)
}

/// A way in which interrupts are served, and whether both nodes have servers at once: its cells with servers on the card's node and
/// on the adjacent one.
type Way<'a> = (String, [Option<&'a CellSummary>; 2]);

fn ways<'a>(shown: &Shown<'a>) -> Vec<Way<'a>> {
    let mut ways: Vec<Way<'a>> = Vec::new();
    for summary in shown.cells {
        let name = name(&summary.cell);
        let place = ways.iter().position(|(known, _)| *known == name);
        let place = place.unwrap_or_else(|| {
            ways.push((name, [None, None]));
            ways.len() - 1
        });
        let level = summary.cell.text(SERVER_NODE);
        for (of_node, other) in ways[place].1.iter_mut().zip([ADJACENT, CARD]) {
            if level != other {
                *of_node = Some(summary);
            }
        }
    }
    ways
}

/// How interrupts are served in a cell.
fn name(cell: &Cell) -> String {
    served(&Series {
        cell: cell.clone(),
        servers: String::new(),
    })
}

fn served(series: &Series) -> String {
    match series.is_together() {
        true => format!("{}, {TOGETHER}", series.served()),
        false => series.served(),
    }
}

fn tables(shown: &Shown<'_>, findings: &Findings) -> Document {
    let ways = ways(shown);
    let by = match shown.cells.iter().any(|it| it.cell.text(RECEIVE) != KEEP) {
        true => RECEIVE,
        false => INTERRUPTS,
    };
    let mut requests = Table::of([by, ">card", ">adjacent", ">change"]);
    let mut latencies = Table::of([by, ">card", ">adjacent"]);
    for (name, [card, adjacent]) in &ways {
        let median = |cell: &Option<&CellSummary>, metric| {
            let median = cell.and_then(|it| it.metric(metric)?.median);
            or(median.map(|it| figure(it, 0)), "")
        };
        let mut steps = findings.behind.iter();
        let step = steps.find(|step| served(&step.a) == *name);
        requests.row(cells![
            Role::Heading.text(name),
            median(card, REQUESTS_CARD),
            median(adjacent, REQUESTS_ADJACENT),
            step.map_or_else(Text::default, marked),
        ]);
        let quantiles = |cell: &Option<&CellSummary>, metric| {
            let quantiles = cell.and_then(|it| it.metric(metric)?.quantiles);
            let us = |ns: u64| figure(ns as f64 / 1e3, 0);
            let text = quantiles.map(|it| format!("{}/{}/{}", us(it.p50), us(it.p99), us(it.p999)));
            or(text, "")
        };
        latencies.row(cells![
            Role::Heading.text(name),
            quantiles(card, "latency_card_ns"),
            quantiles(adjacent, "latency_adjacent_ns"),
        ]);
    }
    let mut out = Document::titled("Requests", REQUESTS);
    out.table(requests.caption("Requests per second"));
    // There are none with another program as the client.
    if (1..=2).any(|column| latencies.has_text(column)) {
        out.heading("Latencies", LATENCIES);
        out.table(latencies.caption("Latencies"));
    }
    out.heading("Served", SERVED);
    out.table(served_table(by, shown));
    out
}

/// A row a cell: who served the card.
fn served_table(by: &str, shown: &Shown<'_>) -> Table {
    const COUNTS: [(&str, &str, usize); 7] = [
        ("interrupts_near", "interrupts near", 0),
        ("interrupts_far", "far", 0),
        ("net_rx_near", "NET_RX near", 0),
        ("net_rx_far", "far", 0),
        ("softirq_near_s", "softirq s near", 2),
        ("softirq_far_s", "far", 2),
        ("dropped", "dropped", 0),
    ];
    let names = [
        Column::named(by, Role::Heading, name),
        Column::named("servers", Role::Subject, |cell| cell.text(SERVER_NODE)),
    ];
    let counts = COUNTS.map(|(metric, head, digits)| {
        shown.column(metric, head, move |it| Some(figure(it.median?, digits)))
    });
    let columns = names.map(Some).into_iter().chain(counts);
    cell_table(shown.cells, columns).caption("Served")
}

fn said(findings: &Findings) -> Document {
    let mut out = Document::titled("Findings", "with 95 % intervals of the change");
    // Does the adjacent node fall behind?
    for step in &findings.behind {
        let what = format!("{}, adjacent node against the card's", served(&step.a));
        out.paragraph(finding(what, step));
    }
    // What does the next way change for a node?
    for step in &findings.changes {
        let (before, after) = (served(&step.a), served(&step.b));
        let what = format!("{} node, {after} against {before}", step.a.servers);
        out.paragraph(finding(what, step));
    }
    if findings.behind.is_empty() && findings.changes.is_empty() {
        out.remark(
            "the cells of this run have nothing to be compared with: it takes servers on two nodes, or interrupts served in two ways",
        );
        return out;
    }
    if let Some(answer) = worse_off(findings) {
        out.paragraph(answer);
    }
    out.remark(METHOD);
    out
}

/// The reviewers' question.
fn worse_off(findings: &Findings) -> Option<String> {
    let changes = &findings.changes;
    let worse = changes.iter().filter(|step| step.is(Verdict::Worse));
    let worse = worse.map(|step| format!("{} node with {}", step.a.servers, served(&step.b)));
    let worse: Vec<String> = worse.collect();
    if !worse.is_empty() {
        return Some(format!("Significantly worse off: {}.", worse.join("; ")));
    }
    let is_known =
        |step: &Step<Series>| !matches!(step.verdict(), None | Some(Verdict::TooFewSamples));
    let margin = MARGIN * 100.0;
    (!changes.is_empty() && changes.iter().all(is_known)).then(|| {
        format!(
            "No node is significantly worse off with any change. Equivalent: within {margin} %."
        )
    })
}
