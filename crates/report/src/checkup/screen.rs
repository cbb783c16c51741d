//! One screen: what the machine is, what is far on it, what to do next. At most some 45 lines of 100 columns.

use nearfar_bench::latency::LatencyMatrix;
use nearfar_machine::{Machine, NodeId};

use super::Checkup;
use super::next::steps;
use crate::amount::{count, nanoseconds};
use crate::audit;
use crate::document::Scale;
use crate::floating;
use crate::kinds::kinds;
use crate::latency;
use crate::layout::{Cell, Grid, Side, heading, paragraph};
use crate::style::{Role, Style};
use crate::topo;
use crate::wrapping::{clean, cut};

/// Most nodes that have a line or a column of their own.
const MOST_NODES: usize = 8;
/// Most rules of which findings are named.
const MOST_RULES: usize = 9;
/// Most reasons for which something was not checked.
const MOST_REASONS: usize = 3;
/// Most warnings shown, about the input and about the measurement each; one where the screen is full.
const MOST_DOUBTS: usize = 2;

/// The checkup on one screen.
pub fn screen(checkup: &Checkup, style: &Style) -> String {
    let mut out = topo::head(&checkup.machine, style);
    out.push_str(&nodes(&checkup.machine, style));
    out.push_str(&distances(checkup, style));
    out.push_str(&floating(checkup, style));
    out.push_str(&findings(checkup, style));
    out.push_str(&not_checked(checkup, style));
    out.push_str(&warnings(checkup, style));
    out.push_str(&next(checkup, style));
    out
}

/// Whether nodes and their matrix alone take most of a screen.
fn is_tall(checkup: &Checkup) -> bool {
    checkup.machine.nodes.len() > 4
}

/// A line a node, or a line a kind of node where there are many.
fn nodes(machine: &Machine, style: &Style) -> String {
    let kinds = kinds(machine.nodes.iter(), machine.nodes.len() <= MOST_NODES);
    let shown = kinds.len().min(MOST_NODES);
    let columns = [
        ("node", Side::Left),
        ("state", Side::Left),
        ("CPUs", Side::Right),
        ("", Side::Left),
        ("memory", Side::Right),
    ];
    let mut grid = Grid::new(&columns);
    for (kind, ids) in kinds.iter().take(shown) {
        let cpus = ids
            .first()
            .filter(|_| ids.len() == 1)
            .and_then(|id| machine.node(id));
        let cpus = match kind.cpus {
            0 => Cell::new(Role::Dim, "none"),
            _ => Cell::new(
                Role::Subject,
                cpus.map_or_else(|| "each".to_owned(), |node| node.cpus.to_string()),
            ),
        };
        let state = if kind.online {
            Cell::new(Role::Local, "online")
        } else {
            Cell::new(Role::Far, "offline")
        };
        let (ids, count) = (
            Cell::new(Role::Heading, ids.to_string()),
            Cell::from(kind.cpus.to_string()),
        );
        grid.row(vec![ids, state, count, cpus, Cell::from(&kind.memory)]);
    }
    let mut out = String::from("\n") + &grid.render(style);
    if kinds.len() > shown {
        let more = format!(
            "and {} more kinds of nodes; nearfar topo has them",
            kinds.len() - shown
        );
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}

/// Distances and latencies: one matrix with both for few nodes, the extremes for many.
fn distances(checkup: &Checkup, style: &Style) -> String {
    let machine = &checkup.machine;
    let probe = checkup.probe.get();
    if checkup.is_one_node() {
        return one_node(checkup, style);
    }
    let mut out = match (probe, checkup.probe.unknown_reason()) {
        (Some(matrix), _) => heading(
            style,
            "Distances",
            &format!("then ns a load, {}", latency::label(matrix)),
        ),
        (None, unknown_reason) => heading(
            style,
            "Distances",
            &format!(
                "not measured: {}",
                unknown_reason.unwrap_or("no reason given")
            ),
        ),
    };
    match machine.online_nodes().count() <= MOST_NODES {
        true => out.push_str(&matrix(machine, probe, style)),
        false => out.push_str(&extremes(machine, probe, style)),
    }
    out
}

fn one_node(checkup: &Checkup, style: &Style) -> String {
    let mut out = heading(style, "One node", "");
    let text = "Every CPU has the same distance to all of the memory: nothing can be far here. `nearfar lab` boots \
                machines with far memory as guests.";
    out.push_str(&paragraph(style, 2, (Role::Plain, ""), Role::Plain, text));
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
    out.push_str(&paragraph(
        style,
        2,
        (Role::Plain, ""),
        Role::Plain,
        &measured,
    ));
    out
}

fn matrix(machine: &Machine, probe: Option<&LatencyMatrix>, style: &Style) -> String {
    let ids: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let headings: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let mut columns = vec![("node", Side::Right)];
    columns.extend(
        headings
            .iter()
            .map(|heading| (heading.as_str(), Side::Right)),
    );
    let mut grid = Grid::new(&columns);
    let with_spread = ids.len() <= 4;
    for &from in &ids {
        let mut row = vec![Cell::new(Role::Heading, from.to_string())];
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
            Cell::new(role, format!("{distance}{}", figure.unwrap_or_default()))
        }));
        grid.row(row);
    }
    grid.render(style)
}

/// The nearest and the farthest pair of different nodes, by distance and by measurement.
fn extremes(machine: &Machine, probe: Option<&LatencyMatrix>, style: &Style) -> String {
    let table = machine.distances.get();
    let apart = table
        .into_iter()
        .flat_map(|table| table.entries())
        .filter(|(from, to, _)| from != to);
    let known: Vec<_> = apart
        .filter_map(|(from, to, distance)| Some((distance?.0.into(), from, to)))
        .collect();
    let mut out = extreme_line("distance", &known, "", style);
    if let Some(matrix) = probe {
        let apart = matrix
            .pairs
            .iter()
            .filter(|pair| pair.cpu_node != pair.memory_node);
        let known: Vec<_> = apart
            .map(|pair| (pair.median_ns, pair.cpu_node, pair.memory_node))
            .collect();
        out.push_str(&extreme_line("latency", &known, " ns", style));
    }
    out + &paragraph(
        style,
        2,
        (Role::Dim, ""),
        Role::Dim,
        "the whole matrix: nearfar topo",
    )
}

fn extreme_line(label: &str, pairs: &[(f64, NodeId, NodeId)], unit: &str, style: &Style) -> String {
    let by_figure = |a: &&(f64, NodeId, NodeId), b: &&(f64, NodeId, NodeId)| a.0.total_cmp(&b.0);
    let Some((nearest, farthest)) = pairs
        .iter()
        .min_by(by_figure)
        .zip(pairs.iter().max_by(by_figure))
    else {
        return String::new();
    };
    let pair = |(figure, from, to): &(f64, NodeId, NodeId)| {
        format!("{figure:.0}{unit} from node {from} to node {to}")
    };
    let text = format!(
        "nearest other node {}, farthest {}",
        pair(nearest),
        pair(farthest)
    );
    paragraph(
        style,
        2,
        (Role::Dim, &format!("{label:<9} ")),
        Role::Plain,
        &text,
    )
}

/// Whether the scheduler hurts floating tasks.
fn floating(checkup: &Checkup, style: &Style) -> String {
    let title = "Floating tasks";
    match (checkup.floating.get(), checkup.not_floated()) {
        (Some(found), _) => {
            let mut out = heading(style, title, &floating::remark(found));
            for verdict in floating::verdicts(found) {
                let first = format!("{:<12}", verdict.what);
                out.push_str(&paragraph(
                    style,
                    2,
                    (Role::Dim, &first),
                    verdict.role,
                    &verdict.text,
                ));
            }
            out
        }
        (None, Some(because)) => {
            heading(style, title, "not probed")
                + &paragraph(style, 2, (Role::Dim, ""), Role::Dim, because)
        }
        (None, None) => String::new(),
    }
}

fn findings(checkup: &Checkup, style: &Style) -> String {
    let mut out = heading(style, "Findings", &audit::counts(&checkup.audit));
    let groups = audit::groups(&checkup.audit);
    let mut grid = Grid::new(&[
        ("", Side::Left),
        ("", Side::Right),
        ("", Side::Left),
        ("", Side::Left),
    ]);
    let widest = groups
        .iter()
        .take(MOST_RULES)
        .map(|group| group.rule.len())
        .max()
        .unwrap_or(0);
    // Few findings have room to say more.
    let lines = if groups.len() <= 4 && !is_tall(checkup) {
        2
    } else {
        1
    };
    let room = style.columns().saturating_sub(widest + 22) * lines;
    for group in groups.iter().take(MOST_RULES) {
        let first = group.findings.first();
        let text = first.map_or_else(String::new, |finding| {
            format!("{}: {}", finding.subject, finding.message)
        });
        grid.row(vec![
            Cell::new(audit::role(group.severity), group.severity.to_string()),
            Cell::from(group.findings.len().to_string()),
            Cell::new(Role::Heading, group.rule),
            Cell::from(cut(&clean(&text), room.max(20))),
        ]);
    }
    out.push_str(&grid.render(style));
    if groups.len() > MOST_RULES {
        let more = format!("and {} more rules with findings", groups.len() - MOST_RULES);
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}

fn not_checked(checkup: &Checkup, style: &Style) -> String {
    let reasons = audit::reasons(&checkup.audit);
    if reasons.is_empty() {
        return String::new();
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
    let mut out = heading(
        style,
        "Not checked",
        &(count(not_at_all, "rule") + &in_part),
    );
    for (because, rules) in reasons.iter().take(MOST_REASONS) {
        let others = rules.len() - 1;
        let rule = rules.first().copied().unwrap_or("");
        let rules = if others == 0 {
            rule.to_owned()
        } else {
            format!("{rule} and {others} more")
        };
        let line = cut(&clean(&format!("{rules}: {because}")), style.columns() - 2);
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &line));
    }
    if reasons.len() > MOST_REASONS {
        let more = format!(
            "and {} more reasons; nearfar audit has them",
            reasons.len() - MOST_REASONS
        );
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}

fn warnings(checkup: &Checkup, style: &Style) -> String {
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
        return String::new();
    }
    let mut out = heading(style, "Warnings", "");
    let room = style.columns() - 4;
    let (most, room) = if is_tall(checkup) {
        (1, room)
    } else {
        (MOST_DOUBTS, room * 2 - 12)
    };
    for all in [of_probe, of_input] {
        for text in all.iter().take(most) {
            let line = cut(&clean(text), room);
            out.push_str(&paragraph(
                style,
                2,
                (Role::Warning, "! "),
                Role::Plain,
                &line,
            ));
        }
        if all.len() > most {
            let more = format!("and {} more; the page has them", all.len() - most);
            out.push_str(&paragraph(style, 4, (Role::Dim, ""), Role::Dim, &more));
        }
    }
    out
}

fn next(checkup: &Checkup, style: &Style) -> String {
    let mut out = heading(style, "Next", "");
    let mut grid = Grid::new(&[("", Side::Left), ("", Side::Left)]);
    for step in steps(checkup) {
        grid.row(vec![
            Cell::new(Role::Subject, clean(&step.command)),
            Cell::new(Role::Dim, step.does),
        ]);
    }
    out.push_str(&grid.render(style));
    out
}
