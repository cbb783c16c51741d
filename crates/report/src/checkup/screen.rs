//! One screen: what the machine is, what is far on it, then what was measured, what to do next.
//!
//! ```text
//!  found      machine, nodes, distances or caches, findings, not checked, warnings      before anything is measured
//!  measured   latency, unbound tasks, warnings, next steps                             afterwards, or after Ctrl-C
//! ```

use nearfar_machine::{Machine, NodeId, SourceKind};
use nearfar_placement::audit::State;

use super::Checkup;
use super::next::{on_this_machine, steps};
use super::one_node;
use crate::amount::{count, or};
use crate::audit;
use crate::document::{Align, Document, Table, Text, cells};
use crate::kinds::kinds;
use crate::latency;
use crate::style::Role::{Dim, Heading, Subject};
use crate::style::Style;
use crate::topo::{self, distances};
use crate::unbound;
use crate::wrapping::{cut, wrap};

/// Most nodes that have a line or a column of their own.
const MAX_NODES: usize = 8;
/// Most rules of which findings are named.
const MAX_RULES: usize = 9;
/// Most reasons for which something was not checked.
const MAX_REASONS: usize = 4;
/// Most warnings about the input.
const MAX_WARNINGS: usize = 2;
/// Lines that what is found takes, if sentences have to be shortened for it.
const LINES: usize = 42;
/// As many fewer where what is measured follows.
const MEASURED_LINES: usize = 12;

/// The checkup on one screen of so many columns.
pub fn screen(checkup: &Checkup, columns: usize) -> Document {
    let mut out = found(checkup, columns);
    out.append(measured(checkup, columns));
    out
}

/// What is known before anything is measured.
pub fn found(checkup: &Checkup, columns: usize) -> Document {
    let mut out = topo::head(&checkup.machine);
    nodes(checkup, &mut out);
    match checkup.is_one_node() {
        true => {
            let topo = on_this_machine(checkup, "nearfar topo");
            one_node::section(&checkup.machine, &topo, &mut out);
        }
        false => distances(checkup, &mut out),
    }
    let others = [not_checked(checkup, columns), warnings(checkup, columns)];
    let height = |part: &Document| {
        let plain = Style {
            colour: false,
            width: columns,
        };
        part.to_text(&plain).lines().count()
    };
    let taken = height(&out) + others.iter().map(height).sum::<usize>();
    let lines = match checkup.machine.origin.kind {
        SourceKind::Live => LINES - MEASURED_LINES,
        _ => LINES,
    };
    findings(checkup, columns, lines.saturating_sub(taken), &mut out);
    others.into_iter().for_each(|part| out.append(part));
    out
}

/// What was measured, and what to do next.
pub fn measured(checkup: &Checkup, columns: usize) -> Document {
    let mut out = Document::new();
    latencies(checkup, &mut out);
    unbound_tasks(checkup, &mut out);
    let of_probe = checkup.probe.get().into_iter();
    let of_probe = of_probe.flat_map(|matrix| &matrix.warnings);
    let of_probe = of_probe.map(ToString::to_string);
    let unbound = checkup.unbound.get().into_iter();
    let unbound = unbound.flat_map(unbound::warnings);
    let all: Vec<String> = of_probe.chain(unbound).collect();
    if !all.is_empty() {
        out.heading("Warnings", "about what was measured");
        all.into_iter().for_each(|text| out.warning(text));
    }
    next(checkup, columns, &mut out);
    out
}

/// A line for each node, or for each kind of node where there are many.
fn nodes(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let kinds = kinds(machine.nodes.iter(), machine.nodes.len() <= MAX_NODES);
    let mut table = Table::of(["node", "state", ">CPUs", "", ">memory"]);
    for (kind, ids) in kinds.iter().take(MAX_NODES) {
        let only = ids.first().filter(|_| ids.len() == 1);
        let cpus = only
            .and_then(|id| machine.node(id))
            .map(|node| node.known_cpus());
        let cpus = match kind.cpus {
            None => Dim.text("unknown"),
            Some(0) => Dim.text("none"),
            Some(_) => Subject.text(or(cpus, "each")),
        };
        let state = topo::nodes::state(kind.online);
        table.row(cells![
            Heading.text(ids),
            state,
            or(kind.cpus, "?"),
            cpus,
            &kind.memory
        ]);
    }
    out.gap();
    out.table(table);
    let hidden = kinds.len().saturating_sub(MAX_NODES);
    let topo = on_this_machine(checkup, "nearfar topo");
    out.more(hidden, &format!(" kinds of nodes: {topo}"));
}

/// The distances of few nodes, the extremes of many.
fn distances(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let Some(table) = machine.distances.get() else {
        let reason = machine
            .distances
            .unknown_reason()
            .unwrap_or("no reason given");
        return out.heading("Distances", format!("unknown: {reason}"));
    };
    let scale = distances::scale(machine);
    out.heading("Distances", distances::remark(table));
    if machine.online_nodes().count() <= MAX_NODES {
        return out.table(matrix(machine, |from, to| {
            let distance = machine.distance(from, to);
            let role = distance.map_or(Dim, |it| scale.role(it.0.into()));
            role.text(or(distance, "-"))
        }));
    }
    let known = table.entries();
    let known = known.filter_map(|(from, to, distance)| Some((distance?.0.into(), from, to)));
    extremes("distance", known, "", out);
    let topo = on_this_machine(checkup, "nearfar topo");
    out.remark(format!("the whole matrix: {topo}"));
}

/// The latencies between few nodes, the extremes of many; nothing where there is no memory to measure.
fn latencies(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let Some(found) = checkup.probe.get() else {
        if machine.origin.kind == SourceKind::Live {
            let reason = checkup.probe.unknown_reason();
            out.heading(
                "Latency",
                format!("not measured: {}", reason.unwrap_or("no reason given")),
            );
        }
        return;
    };
    let label = latency::label(found.emulation.as_ref());
    out.heading("Latency", format!("ns per load, {label}"));
    if let ([only], true) = (&found.pairs[..], checkup.is_one_node()) {
        let text = latency::too_few([only]);
        let text = text.unwrap_or_else(|| format!("{} ns", latency::with_quartiles(only)));
        return out.paragraph(format!("local memory: {text}"));
    }
    if found.pairs.is_empty() {
        return out.paragraph("nothing could be measured");
    }
    if machine.online_nodes().count() > MAX_NODES / 2 {
        let pairs = found.pairs.iter();
        let known = pairs.map(|pair| (pair.median_ns, pair.cpu_node, pair.memory_node));
        extremes("latency", known, " ns", out);
        return out.remark("each pair: nearfar bench latency, or the page of --html FILE");
    }
    let scale = latency::scale(found);
    out.table(matrix(machine, |from, to| match found.pair(from, to) {
        Some(pair) => {
            let role = scale.role(pair.median_ns);
            role.text(latency::with_quartiles(pair))
        }
        None => Dim.text("-"),
    }));
}

/// A row and a column for each node that is online.
fn matrix(machine: &Machine, cell: impl Fn(NodeId, NodeId) -> Text) -> Table {
    let ids: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let mut columns = vec![("node".to_owned(), Align::Right)];
    columns.extend(ids.iter().map(|id| (id.to_string(), Align::Right)));
    let mut table = Table::new(&columns);
    for &from in &ids {
        let cells = ids.iter().map(|&to| cell(from, to));
        table.row([Heading.text(from)].into_iter().chain(cells));
    }
    table
}

/// The nearest and the farthest pair of different nodes.
fn extremes(
    label: &str,
    pairs: impl Iterator<Item = (f64, NodeId, NodeId)>,
    unit: &str,
    out: &mut Document,
) {
    let mut pairs: Vec<_> = pairs.filter(|(_, from, to)| from != to).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let pair = |(figure, from, to): &(f64, NodeId, NodeId)| {
        format!("{figure:.0}{unit} from node {from} to node {to}")
    };
    if let (Some(nearest), Some(farthest)) = (pairs.first(), pairs.last()) {
        let (nearest, farthest) = (pair(nearest), pair(farthest));
        let text = format!("nearest other node {nearest}, farthest {farthest}");
        out.labelled(Dim.text(format!("{label:<9} ")), text);
    }
}

/// Whether the scheduler slows unbound tasks.
fn unbound_tasks(checkup: &Checkup, out: &mut Document) {
    let title = "Unbound tasks";
    match (checkup.unbound.get(), checkup.unbound_reason()) {
        (Some(found), _) => {
            out.heading(title, unbound::remark(found));
            for verdict in unbound::verdicts(found) {
                let label = Dim.text(format!("{:<14}", verdict.what));
                out.labelled(label, verdict.role.text(verdict.text));
            }
        }
        (None, Some(reason)) => {
            out.heading(title, "not probed");
            out.remark(reason);
        }
        (None, None) => {}
    }
}

fn findings(checkup: &Checkup, columns: usize, lines: usize, out: &mut Document) {
    out.heading("Findings", audit::counts(&checkup.audit));
    let groups = audit::groups(&checkup.audit);
    let shown = &groups[..groups.len().min(MAX_RULES)];
    let widest = shown.iter().map(|group| group.rule.len()).max();
    let room = columns.saturating_sub(widest.unwrap_or(0) + 22).max(20);
    let first = shown.iter().filter_map(|group| group.findings.first());
    let texts = first.map(|finding| format!("{}: {}", finding.subject, finding.message));
    let texts: Vec<String> = texts.collect();
    let most = most_lines(&texts, room, lines.saturating_sub(2));
    let mut table = Table::of(["", ">", "", ""]);
    for (group, text) in shown.iter().zip(&texts) {
        table.row(cells![
            audit::role(group.severity).text(group.severity),
            group.findings.len(),
            Heading.text(group.rule),
            shortened(text, room, most),
        ]);
    }
    out.table(table);
    out.more(groups.len() - shown.len(), " rules with findings");
}

/// How many lines each of these texts may have, so that all have so many together; one at least.
fn most_lines(texts: &[String], room: usize, lines: usize) -> usize {
    let heights: Vec<usize> = texts.iter().map(|text| wrap(text, room).len()).collect();
    let tallest = heights.iter().copied().max().unwrap_or(1);
    let fits = |most: &usize| heights.iter().map(|it| it.min(most)).sum::<usize>() <= lines;
    (1..=tallest).rev().find(fits).unwrap_or(1)
}

/// The sentences of a text that fit into so many lines; where not even the first does, its begin.
fn shortened(text: &str, room: usize, lines: usize) -> String {
    let fits = |text: &str| wrap(text, room).len() <= lines;
    if fits(text) {
        return text.to_owned();
    }
    let ends = text.match_indices(". ").map(|(at, _)| &text[..=at]);
    let whole = ends.filter(|begin| fits(begin)).last();
    whole.map_or_else(|| cut(text, room * lines), str::to_owned)
}

fn not_checked(checkup: &Checkup, columns: usize) -> Document {
    let mut out = Document::new();
    let reasons = audit::reasons(&checkup.audit);
    if reasons.is_empty() {
        return out;
    }
    let not_at_all = count(checkup.audit.number(State::NotChecked), "rule");
    out.heading(
        "Not checked",
        match checkup.audit.number_in_part() {
            0 => not_at_all,
            in_part => format!("{not_at_all}, {in_part} in part"),
        },
    );
    let shown = reasons.iter().take(MAX_REASONS);
    let texts = shown.map(|(reason, rules)| match rules.as_slice() {
        [rule] => format!("{rule}: {reason}"),
        rules => format!("{} and {} more: {reason}", rules[0], rules.len() - 1),
    });
    for text in texts {
        out.remark(shortened(&text, columns.saturating_sub(2), 2));
    }
    let hidden = reasons.len().saturating_sub(MAX_REASONS);
    let audit = on_this_machine(checkup, "nearfar audit");
    out.more(hidden, &format!(" reasons: {audit}"));
    out
}

/// What was wrong with the input.
fn warnings(checkup: &Checkup, columns: usize) -> Document {
    let mut out = Document::new();
    let all = &checkup.machine.warnings;
    if all.is_empty() {
        return out;
    }
    out.heading("Warnings", "about the input");
    for warning in all.iter().take(MAX_WARNINGS) {
        out.warning(shortened(
            &warning.to_string(),
            columns.saturating_sub(4),
            2,
        ));
    }
    let topo = on_this_machine(checkup, "nearfar topo");
    out.more(all.len().saturating_sub(MAX_WARNINGS), &format!(": {topo}"));
    out
}

fn next(checkup: &Checkup, columns: usize, out: &mut Document) {
    out.heading("Next", "");
    let steps = steps(checkup);
    // A table would break a long command, which could not be pasted then.
    if steps.iter().any(|step| step.command.len() > columns / 2) {
        for step in steps {
            out.command(step.command);
            out.indented(6, "", Dim.text(step.does));
        }
        return;
    }
    let mut table = Table::of(["", ""]);
    for step in steps {
        table.row(cells![Subject.text(step.command), Dim.text(step.does)]);
    }
    out.table(table);
}
