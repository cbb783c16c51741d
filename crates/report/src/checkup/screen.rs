//! One screen: what the machine is, what is far on it, what to do next. At most some 45 lines of 100 columns.

use nearfar_bench::latency::LatencyMatrix;
use nearfar_machine::{Machine, NodeId};
use nearfar_placement::audit::State;

use super::Checkup;
use super::next::steps;
use crate::amount::{count, nanoseconds, or};
use crate::audit;
use crate::document::{Align, Document, Scale, Table, cells};
use crate::kinds::kinds;
use crate::latency;
use crate::style::Role::{Dim, Heading, Subject};
use crate::topo;
use crate::unbound;
use crate::wrapping::cut;

/// Most nodes that have a line or a column of their own.
const MAX_NODES: usize = 8;
/// Most rules of which findings are named.
const MAX_RULES: usize = 9;
/// Most reasons for which something was not checked.
const MAX_REASONS: usize = 4;
/// Most warnings shown, about the input and about the measurement each; one where the screen is full.
const MAX_WARNINGS: usize = 2;

/// The checkup on one screen of so many columns.
pub fn screen(checkup: &Checkup, columns: usize) -> Document {
    let mut out = topo::head(&checkup.machine);
    nodes(&checkup.machine, &mut out);
    match checkup.is_one_node() {
        true => one_node(checkup, &mut out),
        false => distances(checkup, &mut out),
    }
    unbound_tasks(checkup, &mut out);
    findings(checkup, columns, &mut out);
    not_checked(checkup, columns, &mut out);
    warnings(checkup, columns, &mut out);
    next(checkup, &mut out);
    out
}

/// Whether nodes and their matrix alone take most of a screen.
fn is_tall(checkup: &Checkup) -> bool {
    checkup.machine.nodes.len() > 4
}

/// A line a node, or a line a kind of node where there are many.
fn nodes(machine: &Machine, out: &mut Document) {
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
    out.more(hidden, " kinds of nodes; nearfar topo has them");
}

/// Distances and latencies: one matrix with both for few nodes, the extremes for many.
fn distances(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let probe = checkup.probe.get();
    let remark = match probe {
        Some(matrix) => {
            let label = latency::label(matrix.emulation.as_ref());
            format!("then ns a load, {label}")
        }
        None => not_measured(checkup),
    };
    out.heading("Distances", remark);
    match machine.online_nodes().count() <= MAX_NODES {
        true => out.table(matrix(machine, probe)),
        false => extremes(machine, probe, out),
    }
}

fn not_measured(checkup: &Checkup) -> String {
    let reason = checkup.probe.unknown_reason();
    format!("not measured: {}", reason.unwrap_or("no reason given"))
}

fn one_node(checkup: &Checkup, out: &mut Document) {
    out.heading("One node", "");
    out.paragraph(
        "Every CPU has the same distance to all of the memory: nothing can be far here. `nearfar lab` boots \
         machines with far memory as guests.",
    );
    out.paragraph(
        match checkup
            .probe
            .get()
            .map(|matrix| (matrix.pairs.first(), matrix))
        {
            Some((Some(pair), matrix)) => {
                let label = latency::label(matrix.emulation.as_ref());
                match latency::too_few([pair]) {
                    Some(too_few) => format!("latency of local memory: {too_few} ({label})"),
                    None => {
                        let pair = latency::with_quartiles(pair);
                        format!("local memory answers in {pair} ns ({label})")
                    }
                }
            }
            Some((None, _)) => "nothing could be measured".to_owned(),
            None => not_measured(checkup),
        },
    );
}

fn matrix(machine: &Machine, probe: Option<&LatencyMatrix>) -> Table {
    let ids: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let mut columns = vec![("node".to_owned(), Align::Right)];
    columns.extend(ids.iter().map(|id| (id.to_string(), Align::Right)));
    let mut table = Table::new(&columns);
    let with_spread = ids.len() <= 4;
    let cell = |from: NodeId, to: NodeId| {
        let distance = machine.distance(from, to);
        let measured = probe.and_then(|matrix| matrix.pair(from, to));
        let figure = measured.map(|pair| match with_spread {
            true => format!("  {} ns", latency::with_quartiles(pair)),
            false => format!(" {}ns", nanoseconds(pair.median_ns)),
        });
        let role = distance.map_or(Dim, |it| Scale::DISTANCES.role(it.0.into()));
        role.text(or(distance, "-") + &figure.unwrap_or_default())
    };
    for &from in &ids {
        let cells = ids.iter().map(|&to| cell(from, to));
        table.row([Heading.text(from)].into_iter().chain(cells));
    }
    table
}

/// The nearest and the farthest pair of different nodes, by distance and by measurement.
fn extremes(machine: &Machine, probe: Option<&LatencyMatrix>, out: &mut Document) {
    let distances = machine.distances.get().into_iter();
    let distances = distances.flat_map(|table| table.entries());
    let known = distances.filter_map(|(from, to, distance)| Some((distance?.0.into(), from, to)));
    extreme_line("distance", known, "", out);
    if let Some(matrix) = probe {
        let pairs = matrix.pairs.iter();
        let known = pairs.map(|pair| (pair.median_ns, pair.cpu_node, pair.memory_node));
        extreme_line("latency", known, " ns", out);
    }
    out.remark("the whole matrix: nearfar topo");
}

fn extreme_line(
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

fn findings(checkup: &Checkup, columns: usize, out: &mut Document) {
    out.heading("Findings", audit::counts(&checkup.audit));
    let groups = audit::groups(&checkup.audit);
    let shown = &groups[..groups.len().min(MAX_RULES)];
    let widest = shown.iter().map(|group| group.rule.len()).max();
    // Few findings have room to say more.
    let lines = if groups.len() <= 4 && !is_tall(checkup) {
        2
    } else {
        1
    };
    let room = columns.saturating_sub(widest.unwrap_or(0) + 22) * lines;
    let mut table = Table::of(["", ">", "", ""]);
    for group in shown {
        let first = group.findings.first();
        let text = first.map(|finding| format!("{}: {}", finding.subject, finding.message));
        table.row(cells![
            audit::role(group.severity).text(group.severity),
            group.findings.len(),
            Heading.text(group.rule),
            cut(&text.unwrap_or_default(), room.max(20)),
        ]);
    }
    out.table(table);
    out.more(groups.len() - shown.len(), " rules with findings");
}

fn not_checked(checkup: &Checkup, columns: usize, out: &mut Document) {
    let reasons = audit::reasons(&checkup.audit);
    if reasons.is_empty() {
        return;
    }
    let not_at_all = count(checkup.audit.number(State::NotChecked), "rule");
    out.heading(
        "Not checked",
        match checkup.audit.number_in_part() {
            0 => not_at_all,
            in_part => format!("{not_at_all}, {in_part} in part"),
        },
    );
    for (reason, rules) in reasons.iter().take(MAX_REASONS) {
        let rules = match rules.as_slice() {
            [rule] => (*rule).to_owned(),
            rules => format!("{} and {} more", rules[0], rules.len() - 1),
        };
        out.remark(cut(
            &format!("{rules}: {reason}"),
            columns.saturating_sub(2),
        ));
    }
    let hidden = reasons.len().saturating_sub(MAX_REASONS);
    out.more(hidden, " reasons; nearfar audit has them");
}

fn warnings(checkup: &Checkup, columns: usize, out: &mut Document) {
    let of_input: Vec<String> = checkup
        .machine
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect();
    let of_probe = checkup.probe.get().into_iter();
    let of_probe = of_probe
        .flat_map(|matrix| &matrix.warnings)
        .map(ToString::to_string);
    let unbound = checkup
        .unbound
        .get()
        .into_iter()
        .flat_map(unbound::warnings);
    let of_probe: Vec<String> = of_probe.chain(unbound).collect();
    if of_input.is_empty() && of_probe.is_empty() {
        return;
    }
    out.heading("Warnings", "");
    let room = columns.saturating_sub(4);
    let (most, room) = match is_tall(checkup) {
        true => (1, room),
        false => (MAX_WARNINGS, (room * 2).saturating_sub(12)),
    };
    for all in [of_probe, of_input] {
        for text in all.iter().take(most) {
            out.warning(cut(text, room));
        }
        out.more(all.len().saturating_sub(most), "; the page has them");
    }
}

fn next(checkup: &Checkup, out: &mut Document) {
    out.heading("Next", "");
    let mut table = Table::of(["", ""]);
    for step in steps(checkup) {
        table.row(cells![Subject.text(step.command), Dim.text(step.does)]);
    }
    out.table(table);
}
