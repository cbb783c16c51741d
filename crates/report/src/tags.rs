//! A run of `bench tags`: the published table's shape, where the time went, whose tags were taken, and what may be claimed.
//!
//! ```text
//! samples ──► operations, system share   scenarios in rows, policies in columns
//!         ──► where the time goes        a row a cell: interval, CPU times, waiting, hand-over, fairness
//!         ──► steals                     a row a cell: by what both CPUs share
//! findings ─► sentences                  the judgement is that of nearfar_bench::tags
//! ```
//!
//! Each figure in a sentence has its interval; what is not significant is said to be that.

mod mail;

use nearfar_bench::step::Step;
use nearfar_bench::tags::findings::{Order, OrderVerdict, PUBLISHED_ORDER, policies_of};
use nearfar_bench::tags::{
    CPU_PER_OPERATION, DISTANCE, Findings, Groups, OPERATIONS, POLICY, SYSTEM_SHARE, Scenario,
    findings, groups,
};
use nearfar_machine::{CpuId, NodeId};
use nearfar_runs::{Cell, CellSummary};
use nearfar_statistics::compare::Verdict;
use serde_json::Value;

use crate::amount::{figure, or};
use crate::compared::{change, marked, sentence};
use crate::document::{Align, Axis, Bars, Chart, Document, HeatMap, Plot, Table, Text};
use crate::runs::{self, BoxError, Column, Layout, Own, Shown, Written, better, cell_table};
use crate::style::Role;

/// What the names of scenarios mean.
const LEGEND: &str = "near, far: the node of the second group of workers; low, high: fewer and more I/Os in flight than tags; \
                      alone: one worker, tags to spare";
const TIMES: &str = "medians; interval: 95 %, of the median of operations/s; hand-over: from a put until the waiter \
                     has the tag, median/99th percentile";
const STEALS: &str = "medians of samples, by what both CPUs share";
const OTHERS: &str = "change of operations/s with its 95 % interval; *: significant; =: equivalent";

/// The metrics of steals, nearest first.
const CLASSES: [(&str, &str); 5] = [
    ("steals_core", "core"),
    ("steals_core_group", "core group"),
    ("steals_llc", "cache"),
    ("steals_node", "node"),
    ("steals_remote", "remote"),
];

/// What a run of the experiment shows beyond what runs of all experiments do.
pub(crate) fn own(shown: &Shown<'_>) -> Result<Own, BoxError> {
    let findings = findings(shown.detail, shown.samples);
    Ok(Own {
        text: text(shown, &findings),
        page: page(shown, &findings),
        mail: mail(shown, &findings),
        json: json(shown, &findings),
        published: None,
    })
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
    for name in [OPERATIONS, SYSTEM_SHARE] {
        out.append(matrix(shown, findings, name));
    }
    out.remark(LEGEND);
    for (distance, groups) in groups(shown.samples) {
        out.remark(workers(&distance, &groups));
    }
    times(shown, findings, &mut out);
    out.heading("Steals", STEALS);
    out.table(steals(shown, findings));
    said(findings, &mut out);
    others(findings, &mut out);
    runs::warnings_of(shown, &mut out);
    out
}

fn page(shown: &Shown<'_>, findings: &Findings) -> Document {
    let mut out = Document::new();
    said(findings, &mut out);
    others(findings, &mut out);
    out.heading("Steals", STEALS);
    if let Some(chart) = steals_chart(shown, findings) {
        out.chart(chart);
    }
    out.table(steals(shown, findings));
    times(shown, findings, &mut out);
    out
}

fn mail(shown: &Shown<'_>, findings: &Findings) -> Document {
    let mut out = Document::new();
    mail::tables(shown, findings, &mut out);
    if !findings.orders.is_empty() {
        out.heading("Found", "");
        let found = summary(findings).into_iter();
        found.for_each(|text| out.paragraph(text));
    }
    said(findings, &mut out);
    out
}

/// The medians of a metric in the published shape.
fn matrix(shown: &Shown<'_>, findings: &Findings, metric: &str) -> Document {
    let mut out = Document::new();
    if let Some(metric) = shown.metric(metric) {
        let name = |cell: &Cell| scenario(findings, cell);
        let layout = Layout::by(POLICY, shown.cells, "scenario", name);
        out.heat_map(HeatMap {
            title: Written::of(shown, metric).title(),
            remark: format!("medians; {}", better(metric)),
            ..runs::heat_map(shown, &layout, metric)
        });
    }
    out
}

/// A row a cell, by scenario and policy.
fn table<'a>(
    shown: &Shown<'a>,
    findings: &'a Findings,
    columns: impl IntoIterator<Item = Option<Column<'a>>>,
    caption: &str,
) -> Table {
    let scenario = move |cell: &Cell| scenario(findings, cell);
    let names = [
        Column::named("scenario", Role::Heading, scenario),
        Column::named("policy", Role::Subject, |cell| cell.text(POLICY)),
    ];
    let columns = names.map(Some).into_iter().chain(columns);
    cell_table(shown.cells, columns).caption(caption)
}

fn times(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    // Over all samples.
    let hand_over = shown.column("hand_over_ns", "hand-over us", |it| {
        let us = |ns: u64| figure(ns as f64 / 1e3, 0);
        let it = it.quantiles?;
        Some(format!("{}/{}", us(it.p50), us(it.p99)))
    });
    let columns = [
        shown.intervals(OPERATIONS, "interval"),
        shown.medians("user_s", "user"),
        shown.medians("system_s", "system"),
        shown.medians("wait_share", "waiting"),
        hand_over,
        shown.medians("fairness", "fairness"),
    ];
    let title = "Where the time goes";
    out.heading(title, TIMES);
    out.table(table(shown, findings, columns, title));
}

/// Whose tags were taken.
fn steals(shown: &Shown<'_>, findings: &Findings) -> Table {
    let counts = |metric: &str, head: &str| {
        shown.column(metric, head, |it| Some(figure(it.median?.round(), 0)))
    };
    let classes = CLASSES.map(|(metric, head)| counts(metric, head));
    let others = [
        shown.medians("steal_distance", "distance"),
        shown.medians("tags_per_steal", "tags each"),
        counts("line_transfers", "line transfers"),
    ];
    let columns = classes.into_iter().chain(others);
    table(shown, findings, columns, "Steals")
}

/// Steals of a sample by what both CPUs share.
fn steals_chart(shown: &Shown<'_>, findings: &Findings) -> Option<Chart> {
    let row = |cell: &CellSummary| {
        let median = |(name, _): &(&str, &str)| cell.metric(name)?.median;
        let amounts: Option<Vec<f64>> = CLASSES.iter().map(median).collect();
        let names = vec![scenario(findings, &cell.cell), cell.cell.text(POLICY)];
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
            classes: CLASSES.map(|(_, title)| title.to_owned()).to_vec(),
            rows,
        }),
    })
}

/// Each step behind what is said of the other policies.
fn others(findings: &Findings, out: &mut Document) {
    let names = [("scenario", Align::Left), ("policy", Align::Left)];
    let heads = PUBLISHED_ORDER.map(|policy| (policy, Align::Right));
    let heads: Vec<_> = names.into_iter().chain(heads).collect();
    let mut table = Table::new(&heads).caption("Other policies against the published ones");
    for other in &findings.others {
        let against = |policy: &str| {
            let mut steps = other.steps.iter();
            let step = steps.find(|step| step.a.text(POLICY) == policy);
            step.map_or_else(Text::default, marked)
        };
        let names = [
            Role::Heading.text(&other.scenario),
            Role::Subject.text(&other.policy),
        ];
        table.row(names.into_iter().chain(PUBLISHED_ORDER.map(against)));
    }
    if !table.is_empty() {
        out.heading("Other policies", OTHERS);
        out.table(table);
    }
}

/// Where the workers of a level of the factor distance were.
fn workers(distance: &str, groups: &Groups) -> String {
    let on = |node: NodeId, cpus: &[CpuId], what: &str| {
        let cpus: Vec<String> = cpus.iter().map(CpuId::to_string).collect();
        format!("node {node}{what}, CPUs {}", cpus.join(", "))
    };
    let own = on(groups.device_node, &groups.device_cpus, " (the device's)");
    let other = groups
        .other_node
        .map(|node| format!("; {}", on(node, &groups.other_cpus, "")));
    format!("{distance}: {own}{}", other.unwrap_or_default())
}

/// How verdicts are made.
const METHOD: &str = "Operations per second and, alone, CPU time per operation, paired by round: Wilcoxon's signed \
                                 ranks. For each of the four questions (published order, other policies, far, alone) the chance \
                                 of any false alarm is 5 % (Holm).";

/// What the samples say, and how it was made.
fn said(findings: &Findings, out: &mut Document) {
    out.heading("Findings", "with 95 % intervals of the change");
    let (orders, policies) = (findings.orders.iter(), policies_of_others(findings));
    let beaten = policies.into_iter().map(|policy| beaten(findings, policy));
    let scenarios = || findings.scenarios.iter();
    let far = scenarios().filter_map(|it| far(findings, it));
    let alone = scenarios().filter_map(|it| alone(findings, it));
    let all: Vec<Text> = orders
        .map(order)
        .chain(beaten)
        .chain(far)
        .chain(alone)
        .collect();
    if all.is_empty() {
        out.remark(
            "the cells of this run have nothing to be compared with: it takes a published policy and another one, or near and far; alone, stock and another one",
        );
    }
    all.into_iter().for_each(|text| out.paragraph(text));
    out.remark(METHOD);
}

/// The finding in two sentences: the published order, then the other policies.
fn summary(findings: &Findings) -> Vec<String> {
    let mut said = Vec::new();
    if !findings.orders.is_empty() {
        let parts = [
            (OrderVerdict::Holds, "holds in"),
            (OrderVerdict::HoldsInPart, "holds in part in"),
            (OrderVerdict::Contradicted, "is contradicted in"),
            (OrderVerdict::NotSignificant, "is not significant in"),
            (OrderVerdict::Unknown, "is unknown in"),
        ];
        let part = |(verdict, words): (OrderVerdict, &str)| {
            let of = findings.orders.iter().filter(|it| it.verdict == verdict);
            let names: Vec<&str> = of.map(|it| it.scenario.as_str()).collect();
            let among = findings.orders.len();
            let is_in_none = verdict == OrderVerdict::NotSignificant && names.len() == among;
            (!names.is_empty()).then(|| match is_in_none {
                true => format!("is significant in none of {among} scenarios"),
                false => format!("{words} {}", scenarios(&names, among)),
            })
        };
        let parts: Vec<String> = parts.into_iter().filter_map(part).collect();
        let parts = parts.join("; it ");
        said.push(format!("The order stock < limit < limit_topology {parts}."));
    }
    let policies = policies_of_others(findings);
    if !policies.is_empty() {
        let mut parts: Vec<(String, Vec<&str>)> = Vec::new();
        for policy in policies {
            let beaten = beaten_in(findings, policy);
            match parts.iter_mut().find(|(known, _)| *known == beaten) {
                Some((_, policies)) => policies.push(policy),
                None => parts.push((beaten, vec![policy])),
            }
        }
        let part =
            |(beaten, policies): &(String, Vec<&str>)| format!("by {} in {beaten}", list(policies));
        let parts: Vec<String> = parts.iter().map(part).collect();
        said.push(format!("All three are beaten {}.", parts.join("; ")));
    }
    said
}

/// Is the published order in a scenario?
fn order(order: &Order) -> Text {
    let (role, verdict) = match order.verdict {
        OrderVerdict::Holds => (Role::Near, "the published order"),
        OrderVerdict::HoldsInPart => (Role::Plain, "the published order in part"),
        OrderVerdict::Contradicted => (Role::Far, "not the published order"),
        OrderVerdict::NotSignificant => (Role::Dim, "no order is significant"),
        OrderVerdict::Unknown => (Role::Dim, "unknown"),
    };
    let steps: Vec<String> = order.steps.iter().map(step_text).collect();
    Role::Heading
        .text(format!("{}: ", order.scenario))
        .then(role, verdict)
        .then(Role::Plain, format!(": {}", steps.join("; ")))
}

/// `limit against stock +27 % (+25 to +29), better`, `auto against stock, CPU time per operation -40 % (-42 to -37), better`.
fn step_text(step: &Step) -> String {
    let (a, b) = policies_of(step);
    let what = match step.metric == CPU_PER_OPERATION {
        true => ", CPU time per operation",
        false => "",
    };
    format!("{b} against {a}{what} {}", sentence(step))
}

/// The policies that were not published, each once.
fn policies_of_others(findings: &Findings) -> Vec<&str> {
    let mut policies: Vec<&str> = Vec::new();
    for other in &findings.others {
        if !policies.contains(&other.policy.as_str()) {
            policies.push(&other.policy);
        }
    }
    policies
}

/// Where a policy beats the published three.
fn beaten(findings: &Findings, policy: &str) -> Text {
    let beaten = beaten_in(findings, policy);
    let role = match beaten == NOWHERE {
        true => Role::Plain,
        false => Role::Near,
    };
    Role::Heading
        .text(format!("{policy}: "))
        .then(role, format!("better than all three in {beaten}"))
}

fn beaten_in(findings: &Findings, policy: &str) -> String {
    let of = findings.others.iter().filter(|it| it.policy == policy);
    let beaten = of.clone().filter(|it| it.beats_all);
    let beaten: Vec<&str> = beaten.map(|it| it.scenario.as_str()).collect();
    scenarios(&beaten, of.count())
}

/// The scenario of a cell.
fn scenario_of<'a>(findings: &'a Findings, cell: &Cell) -> Option<&'a Scenario> {
    let levels = cell.only(|factor| factor != POLICY);
    findings.scenarios.iter().find(|it| it.levels == levels)
}

/// Its name.
fn scenario(findings: &Findings, cell: &Cell) -> String {
    or(scenario_of(findings, cell).map(|it| &it.name), "?")
}

/// Those of some steps whose second cell is of a scenario.
fn steps_to<'a>(findings: &Findings, steps: &'a [Step], to: &Scenario) -> Vec<&'a Step> {
    let is_of = |step: &&Step| scenario_of(findings, &step.b) == Some(to);
    steps.iter().filter(is_of).collect()
}

/// What the policies lose in a far scenario against near.
fn far(findings: &Findings, far: &Scenario) -> Option<Text> {
    let steps = steps_to(findings, &findings.distances, far);
    let near = scenario_of(findings, &steps.first()?.a)?;
    let of_policy = |step: &&Step| {
        let change = or(step.compared.get().map(change), "unknown");
        format!("{} {change}", step.b.text(POLICY))
    };
    let changes: Vec<String> = steps.iter().map(of_policy).collect();
    let text = format!("against {}: {}", near.name, changes.join(", "));
    let label = Role::Heading.text(format!("{}: ", far.name));
    (far.levels.text(DISTANCE) == "far").then(|| label.then(Role::Plain, text))
}

/// Whether a policy makes a scenario of one worker worse.
fn alone(findings: &Findings, alone: &Scenario) -> Option<Text> {
    let steps = steps_to(findings, &findings.alone, alone);
    if steps.is_empty() || !alone.is_alone() {
        return None;
    }
    let of = |verdict: Verdict| {
        let of = steps.iter().filter(|it| it.is(verdict));
        of.map(|it| step_text(it)).collect::<Vec<_>>()
    };
    let is_unknown = |it: &&Step| matches!(it.verdict(), None | Some(Verdict::TooFewSamples));
    let (worse, better) = (of(Verdict::Worse), of(Verdict::Better));
    let label = Role::Heading.text(format!("{}: ", alone.name));
    let text = match (worse.as_slice(), steps.iter().any(is_unknown)) {
        ([], false) => label.then(Role::Near, "no policy is significantly worse than stock"),
        ([], true) => label.then(Role::Dim, "unknown: too few samples"),
        (worse, _) => label.then(Role::Far, worse.join("; ")),
    };
    Some(match better.is_empty() {
        true => text,
        false => text.then(Role::Plain, format!("; {}", better.join("; "))),
    })
}

const NOWHERE: &str = "no scenario";

/// Some of so many scenarios.
fn scenarios(names: &[&str], among: usize) -> String {
    match names.len() {
        0 => NOWHERE.to_owned(),
        number if number == among && among > 1 => format!("all {among} scenarios"),
        _ => list(names),
    }
}

/// `a, b and c`.
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}
