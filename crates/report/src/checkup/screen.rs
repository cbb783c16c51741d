//! One screen: what the machine is, what is far on it, what to do next. At most some 45 lines of 100 columns.

use nearfar_bench::latency::LatencyMatrix;
use nearfar_machine::{Machine, NodeId};

use super::Checkup;
use super::next::steps;
use crate::amount::{count, nanoseconds};
use crate::audit;
use crate::document::{Align, Document, Scale, Table, Text};
use crate::floating;
use crate::kinds::kinds;
use crate::latency;
use crate::style::Role;
use crate::topo;
use crate::wrapping::{clean, cut};

/// Most nodes that have a line or a column of their own.
const MAX_NODES: usize = 8;
/// Most rules of which findings are named.
const MAX_RULES: usize = 9;
/// Most reasons for which something was not checked.
const MAX_REASONS: usize = 3;
/// Most warnings shown, about the input and about the measurement each; one where the screen is full.
const MAX_WARNINGS: usize = 2;

/// The checkup on one screen of so many columns.
pub fn screen(checkup: &Checkup, columns: usize) -> Document {
    let mut out = topo::head(&checkup.machine);
    nodes(&checkup.machine, &mut out);
    distances(checkup, &mut out);
    floating(checkup, &mut out);
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
    let shown = kinds.len().min(MAX_NODES);
    let columns = [
        ("node", Align::Left),
        ("state", Align::Left),
        ("CPUs", Align::Right),
        ("", Align::Left),
        ("memory", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for (kind, ids) in kinds.iter().take(shown) {
        let cpus = ids
            .first()
            .filter(|_| ids.len() == 1)
            .and_then(|id| machine.node(id));
        let cpus = match kind.cpus {
            0 => Text::new(Role::Dim, "none"),
            _ => Text::new(
                Role::Subject,
                cpus.map_or_else(|| "each".to_owned(), |node| node.cpus.to_string()),
            ),
        };
        let state = if kind.online {
            Text::new(Role::Local, "online")
        } else {
            Text::new(Role::Far, "offline")
        };
        let (ids, count) = (
            Text::new(Role::Heading, ids.to_string()),
            Text::from(kind.cpus.to_string()),
        );
        table.row(vec![ids, state, count, cpus, Text::from(&kind.memory)]);
    }
    out.gap();
    out.table(table);
    if kinds.len() > shown {
        let more = format!(
            "and {} more kinds of nodes; nearfar topo has them",
            kinds.len() - shown
        );
        out.remark(more);
    }
}

/// Distances and latencies: one matrix with both for few nodes, the extremes for many.
fn distances(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let probe = checkup.probe.get();
    if checkup.is_one_node() {
        return one_node(checkup, out);
    }
    let remark = match (probe, checkup.probe.unknown_reason()) {
        (Some(matrix), _) => format!("then ns a load, {}", latency::label(matrix)),
        (None, reason) => format!("not measured: {}", reason.unwrap_or("no reason given")),
    };
    out.heading("Distances", remark);
    match machine.online_nodes().count() <= MAX_NODES {
        true => matrix(machine, probe, out),
        false => extremes(machine, probe, out),
    }
}

fn one_node(checkup: &Checkup, out: &mut Document) {
    out.heading("One node", "");
    let text = "Every CPU has the same distance to all of the memory: nothing can be far here. `nearfar lab` boots \
                machines with far memory as guests.";
    out.paragraph(text);
    let measured = match (&checkup.probe.get(), checkup.probe.unknown_reason()) {
        (Some(matrix), _) => match matrix.pairs.first() {
            Some(pair) => {
                format!(
                    "local memory answers in {} ns ({})",
                    latency::with_quartiles(pair),
                    latency::label(matrix)
                )
            }
            None => "nothing could be measured".to_owned(),
        },
        (None, because) => format!("not measured: {}", because.unwrap_or("no reason given")),
    };
    out.paragraph(measured);
}

fn matrix(machine: &Machine, probe: Option<&LatencyMatrix>, out: &mut Document) {
    let ids: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let headings: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let mut columns = vec![("node", Align::Right)];
    columns.extend(
        headings
            .iter()
            .map(|heading| (heading.as_str(), Align::Right)),
    );
    let mut table = Table::new(&columns);
    let with_spread = ids.len() <= 4;
    for &from in &ids {
        let mut row = vec![Text::new(Role::Heading, from.to_string())];
        row.extend(ids.iter().map(|&to| {
            let distance = machine.distance(from, to);
            let measured = probe.and_then(|matrix| matrix.pair(from, to));
            let figure = measured.map(|pair| match with_spread {
                true => format!("  {} ns", latency::with_quartiles(pair)),
                false => format!(" {}ns", nanoseconds(pair.median_ns)),
            });
            let role = distance.map_or(Role::Dim, |distance| {
                Scale::DISTANCES.role(distance.0.into())
            });
            let distance = distance.map_or_else(|| "-".to_owned(), |distance| distance.to_string());
            Text::new(role, format!("{distance}{}", figure.unwrap_or_default()))
        }));
        table.row(row);
    }
    out.table(table);
}

/// The nearest and the farthest pair of different nodes, by distance and by measurement.
fn extremes(machine: &Machine, probe: Option<&LatencyMatrix>, out: &mut Document) {
    let table = machine.distances.get();
    let apart = table
        .into_iter()
        .flat_map(|table| table.entries())
        .filter(|(from, to, _)| from != to);
    let known: Vec<_> = apart
        .filter_map(|(from, to, distance)| Some((distance?.0.into(), from, to)))
        .collect();
    extreme_line("distance", &known, "", out);
    if let Some(matrix) = probe {
        let apart = matrix
            .pairs
            .iter()
            .filter(|pair| pair.cpu_node != pair.memory_node);
        let known: Vec<_> = apart
            .map(|pair| (pair.median_ns, pair.cpu_node, pair.memory_node))
            .collect();
        extreme_line("latency", &known, " ns", out);
    }
    out.remark("the whole matrix: nearfar topo");
}

fn extreme_line(label: &str, pairs: &[(f64, NodeId, NodeId)], unit: &str, out: &mut Document) {
    let by_figure = |a: &&(f64, NodeId, NodeId), b: &&(f64, NodeId, NodeId)| a.0.total_cmp(&b.0);
    let Some((nearest, farthest)) = pairs
        .iter()
        .min_by(by_figure)
        .zip(pairs.iter().max_by(by_figure))
    else {
        return;
    };
    let pair = |(figure, from, to): &(f64, NodeId, NodeId)| {
        format!("{figure:.0}{unit} from node {from} to node {to}")
    };
    let text = format!(
        "nearest other node {}, farthest {}",
        pair(nearest),
        pair(farthest)
    );
    out.labelled(Text::new(Role::Dim, format!("{label:<9} ")), text);
}

/// Whether the scheduler hurts floating tasks.
fn floating(checkup: &Checkup, out: &mut Document) {
    let title = "Floating tasks";
    match (checkup.floating.get(), checkup.not_floated()) {
        (Some(found), _) => {
            out.heading(title, floating::remark(found));
            for verdict in floating::verdicts(found) {
                let first = format!("{:<12}", verdict.what);
                out.labelled(
                    Text::new(Role::Dim, first),
                    Text::new(verdict.role, verdict.text),
                );
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
    let mut table = Table::new(&[
        ("", Align::Left),
        ("", Align::Right),
        ("", Align::Left),
        ("", Align::Left),
    ]);
    let widest = groups
        .iter()
        .take(MAX_RULES)
        .map(|group| group.rule.len())
        .max()
        .unwrap_or(0);
    // Few findings have room to say more.
    let lines = if groups.len() <= 4 && !is_tall(checkup) {
        2
    } else {
        1
    };
    let room = columns.saturating_sub(widest + 22) * lines;
    for group in groups.iter().take(MAX_RULES) {
        let first = group.findings.first();
        let text = first.map_or_else(String::new, |finding| {
            format!("{}: {}", finding.subject, finding.message)
        });
        table.row(vec![
            Text::new(audit::role(group.severity), group.severity.to_string()),
            Text::from(group.findings.len().to_string()),
            Text::new(Role::Heading, group.rule),
            Text::from(cut(&clean(&text), room.max(20))),
        ]);
    }
    out.table(table);
    if groups.len() > MAX_RULES {
        let more = format!("and {} more rules with findings", groups.len() - MAX_RULES);
        out.remark(more);
    }
}

fn not_checked(checkup: &Checkup, columns: usize, out: &mut Document) {
    let reasons = audit::reasons(&checkup.audit);
    if reasons.is_empty() {
        return;
    }
    let (not_at_all, in_part) = (
        checkup
            .audit
            .number(nearfar_placement::audit::State::NotChecked),
        checkup.audit.number_in_part(),
    );
    let in_part = if in_part == 0 {
        String::new()
    } else {
        format!(", {in_part} in part")
    };
    out.heading("Not checked", count(not_at_all, "rule") + &in_part);
    for (because, rules) in reasons.iter().take(MAX_REASONS) {
        let others = rules.len() - 1;
        let rule = rules.first().copied().unwrap_or("");
        let rules = if others == 0 {
            rule.to_owned()
        } else {
            format!("{rule} and {others} more")
        };
        let line = cut(
            &clean(&format!("{rules}: {because}")),
            columns.saturating_sub(2),
        );
        out.remark(line);
    }
    if reasons.len() > MAX_REASONS {
        let more = format!(
            "and {} more reasons; nearfar audit has them",
            reasons.len() - MAX_REASONS
        );
        out.remark(more);
    }
}

fn warnings(checkup: &Checkup, columns: usize, out: &mut Document) {
    let of_input: Vec<String> = checkup
        .machine
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect();
    let of_probe = checkup
        .probe
        .get()
        .map_or(&[][..], |matrix| &matrix.warnings);
    let of_probe = of_probe.iter().map(ToString::to_string);
    let of_probe: Vec<String> = of_probe
        .chain(
            checkup
                .floating
                .get()
                .into_iter()
                .flat_map(floating::warnings),
        )
        .collect();
    if of_input.is_empty() && of_probe.is_empty() {
        return;
    }
    out.heading("Warnings", "");
    let room = columns.saturating_sub(4);
    let (most, room) = if is_tall(checkup) {
        (1, room)
    } else {
        (MAX_WARNINGS, (room * 2).saturating_sub(12))
    };
    for all in [of_probe, of_input] {
        for text in all.iter().take(most) {
            let line = cut(&clean(text), room);
            out.warning(line);
        }
        if all.len() > most {
            let more = format!("and {} more; the page has them", all.len() - most);
            out.indented(4, "", Text::new(Role::Dim, more));
        }
    }
}

fn next(checkup: &Checkup, out: &mut Document) {
    out.heading("Next", "");
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    for step in steps(checkup) {
        table.row(vec![
            Text::new(Role::Subject, clean(&step.command)),
            Text::new(Role::Dim, step.does),
        ]);
    }
    out.table(table);
}
