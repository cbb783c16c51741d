//! The checkup as one page that stands alone: no network, no script, legible on light, dark and paper.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use nearfar_bench::latency::LatencyMatrix;
use nearfar_bench::matrix::Row;
use nearfar_bench::probe::Where;
use nearfar_machine::{Distance, Distances, Machine, Node, NodeId, NodeSet};
use nearfar_placement::audit::{Audit, Finding, Severity};

use crate::amount::{count, moment, nanoseconds, or};
use crate::audit::{self, Fold, Folder, Group, explanation, groups, reasons, rules};
use crate::document::{
    Block, Document, Head, Heading, HeatCell, HeatMap, Scale, Table, Text, Tile, cells,
};
use crate::style::Role;
use crate::summary::{self, Summary, kinds};
use crate::topo::distances;
use crate::topo::marks::Marks;
use crate::topo::matrix::{Blocks, MAX_CELLS, step, ticks};
use crate::topo::{self, box_columns, cards, legend_list, node_of, notable};
use crate::{latency, plan};

use super::{
    Checkup, about_one_node, on_this_machine, online_caches, plan_command, steps, unbound_method,
    unbound_remark, unbound_warnings, verdict,
};

/// Most warnings about the input that are shown.
const MAX_WARNINGS: usize = 200;
/// More warnings about the input than this are folded.
const MAX_OPEN_WARNINGS: usize = 10;

/// The checkup as a whole page.
pub fn page(checkup: &Checkup) -> Document {
    let machine = &checkup.machine;
    let mut out = Document::with_head(Head {
        tool: "nearfar checkup".to_owned(),
        title: summary::name(machine),
        remark: summary::circumstances(machine).join(" · "),
        emulated: machine.origin.emulation.as_ref().map(ToString::to_string),
        tiles: tiles(checkup),
    });
    machine_map(checkup, &mut out);
    findings(checkup, &mut out);
    out.section("next", "Next");
    for step in steps(checkup) {
        out.paragraph(format!("{}:", step.does));
        out.command(&step.command);
    }
    matrices(checkup, &mut out);
    unbound_tasks(checkup, &mut out);
    not_checked(&checkup.audit, machine, &mut out);
    warnings(machine, &mut out);
    method(checkup, &mut out);
    out
}

/// The figures that sum the machine up.
fn tiles(checkup: &Checkup) -> Vec<Tile> {
    let summary = Summary::of(&checkup.machine);
    let cores = summary.cores.map(|cores| count(cores, "core"));
    let packages = summary.packages.filter(|_| cores.is_some());
    let packages = packages.map(|packages| count(packages, "package"));
    let cpus: Vec<String> = cores.into_iter().chain(packages).collect();
    let cpus = cpus.join(", ");
    let memory = or(summary.memory.clone(), "?");
    let nodes = summary.nodes_online;
    let offline = nodes.map(|nodes| match checkup.machine.nodes.len() - nodes {
        0 => "online".to_owned(),
        offline => format!("{offline} more not online"),
    });
    let node = if nodes == Some(1) { "node" } else { "nodes" };
    let mut tiles = vec![
        Tile::new(or(nodes, "?"), node, or(offline, "unknown")),
        Tile::new(or(summary.cpus_online, "?"), "CPUs", cpus),
        Tile::new(memory, "memory", ""),
    ];
    let measured = measured(checkup);
    tiles.extend(measured.map(|(figure, remark)| Tile::new(figure, "ns per load", remark)));
    let groups = audit::groups(&checkup.audit);
    let by_severity = groups.chunk_by(|a, b| a.severity == b.severity);
    let badges = by_severity.map(|groups| {
        let findings = groups.iter().map(|group| group.findings.len()).sum();
        let severity = groups[0].severity;
        (severity.to_string(), audit::number(severity, findings))
    });
    let badges: Vec<(String, String)> = badges.collect();
    let verdict = match badges.is_empty() {
        true => Tile::new("0", "findings", audit::rules(&checkup.audit)),
        false => Tile::new("", "", audit::rules(&checkup.audit)),
    };
    tiles.push(Tile { badges, ..verdict });
    tiles
}

/// The local latency, and the farthest.
fn measured(checkup: &Checkup) -> Option<(String, String)> {
    let pairs = &checkup.probe.get()?.pairs;
    let medians = |is_local: bool| {
        let pairs = pairs.iter();
        let pairs = pairs.filter(move |pair| (pair.cpu_node == pair.memory_node) == is_local);
        pairs.map(|pair| pair.median_ns)
    };
    let local = medians(true).min_by(f64::total_cmp)?;
    if let Some(too_few) = latency::too_few(pairs) {
        return Some(("?".to_owned(), too_few));
    }
    let remark = match medians(false).max_by(f64::total_cmp) {
        Some(far) => format!("local; {} farthest", nanoseconds(far)),
        None => "local".to_owned(),
    };
    Some((nanoseconds(local), remark))
}

fn warnings(machine: &Machine, out: &mut Document) {
    let all = &machine.warnings;
    if all.is_empty() {
        return;
    }
    let mut folded = Document::new();
    let shown = all.iter().take(MAX_WARNINGS);
    folded.facts(shown.map(|it| (Text::new(Role::Code, &it.place), &it.message)));
    folded.more(all.len(), MAX_WARNINGS, "");
    out.section("input", "Warnings about the input");
    let summary = format!(
        "{} on what contradicts itself or is odd; it was read as far as it goes",
        count(all.len(), "remark")
    );
    out.details(summary, all.len() <= MAX_OPEN_WARNINGS, folded);
}

/// More kinds of other nodes than this are folded.
const MAX_OPEN_KINDS: usize = 12;
/// Most nodes with a picture each. Beyond, those that are like others are lines of a table.
const MAX_PICTURES: usize = 64;
/// How a picture marks a device with findings.
const FLAGGED: &str = "class=\"flagged ";

/// The section with the map, its legend and how to read it.
fn machine_map(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let marks = Marks::of(machine, Some(&checkup.audit));
    let drawn = drawn(machine, &marks);
    out.section("machine", "The machine");
    if checkup.is_one_node() {
        let caches = online_caches(machine);
        out.boxed(format!("One node. {}", about_one_node(machine, &caches)));
    }
    let cards = cards(machine, &marks, drawn.iter().copied());
    // Not every device has room in the picture of its node.
    if cards.iter().any(|card| card.0.contains(FLAGGED)) {
        out.remark("! before a device: the number of findings about it.");
    }
    out.picture(html! { ul class={ "nodes in" (box_columns(drawn.len())) } { @for card in cards { li { (card) } } } });
    out.picture(legend_list(machine, &marks));
    if drawn.len() < machine.nodes.len() {
        alike(machine, &drawn, out);
    }
}

/// The nodes with a picture: all where they are few, otherwise those that have devices or serve those of other nodes.
fn drawn<'a>(machine: &'a Machine, marks: &Marks) -> Vec<&'a Node> {
    if machine.nodes.len() <= MAX_PICTURES {
        return machine.nodes.iter().collect();
    }
    let devices = machine.pci.get().into_iter().flatten();
    let devices = devices.filter(|device| notable(device));
    let with_devices: BTreeSet<NodeId> = devices.filter_map(node_of).collect();
    let has = |node: &&Node| with_devices.contains(&node.id) || !marks.lots(node.id).is_empty();
    let nodes = machine.nodes.iter();
    nodes.filter(has).take(MAX_PICTURES).collect()
}

/// The other nodes, by kind.
fn alike(machine: &Machine, drawn: &[&Node], out: &mut Document) {
    let drawn: NodeSet = drawn.iter().map(|node| node.id).collect();
    let others = machine.nodes.iter().filter(|node| !drawn.contains(node.id));
    let kinds = kinds(others, false);
    let columns = ["nodes", ">number", "state", ">CPUs each", ">memory each"];
    let mut table = Table::of(columns).caption("Nodes that are alike");
    for (kind, nodes) in &kinds {
        let state = if kind.online { "online" } else { "not online" };
        let cpus = or(kind.cpus, "?");
        table.row(cells![nodes, nodes.len(), state, cpus, &kind.memory]);
    }
    let others = machine.nodes.len() - drawn.len();
    let summary = format!("{}, by kind", count(others, "other node"));
    out.details(summary, kinds.len() <= MAX_OPEN_KINDS, table.into());
}

/// Most lines of one rule on the page.
const MAX_LINES: usize = 100;
/// Most findings below one line.
const MAX_OF_A_LINE: usize = 100;
/// Lines of a rule with more findings than this are folded.
const MAX_OPEN: usize = 3;

/// The section on findings.
fn findings(checkup: &Checkup, out: &mut Document) {
    let audit = &checkup.audit;
    let (groups, folder) = (groups(audit), Folder::of(&checkup.machine));
    out.section("findings", format!("Findings ({})", audit.findings.len()));
    if groups.is_empty() {
        out.boxed(format!("No findings. {}.", rules(audit)));
    }
    for group in &groups {
        out.card(group.severity.to_string(), rule(checkup, group, &folder));
    }
}

fn rule(checkup: &Checkup, group: &Group<'_>, folder: &Folder<'_>) -> Document {
    let number = group.findings.len();
    let rule = nearfar_placement::audit::rule(group.rule);
    let title = Text::from(rule.map_or(group.rule, |rule| rule.title)).then(Role::Plain, " ");
    let mut out = Document::new();
    out.push(Block::Heading(Heading {
        badge: Some((group.severity.to_string(), group.severity.to_string())),
        remark: count(number, "finding").into(),
        ..Heading::new(3, title.then(Role::Code, group.rule))
    }));
    let is_open = number <= MAX_OPEN && group.severity > Severity::Fact;
    let folds = folder.fold(&group.findings);
    for fold in folds.iter().take(MAX_LINES) {
        out.details(line(fold), is_open, below(checkup, fold));
    }
    if folds.len() > MAX_LINES {
        let left_out = folds.iter().skip(MAX_LINES);
        let left_out = left_out.map(|fold| fold.findings.len()).sum();
        more(checkup, left_out, &mut out);
    }
    let rule_text = rule.map_or("", |rule| rule.explanation);
    let text = Text::new(Role::Dim, format!("{rule_text} "));
    out.paragraph(text.then(Role::Code, explanation(group.rule)));
    let (machine, audit, source) = (&checkup.machine, &checkup.audit, &checkup.made.source);
    if group.findings.iter().any(|finding| finding.fix.is_some())
        && let Some(command) = plan_command(machine, audit, Some(group.rule), source)
    {
        out.remark("The changes:");
        out.command(command);
    }
    out
}

/// The line of findings that say the same.
fn line(fold: &Fold<'_>) -> Text {
    let line = Text::new(Role::Heading, &fold.line);
    match plan::distance(fold.cost).replace("->", "→").as_str() {
        "" => line,
        distance => line
            .then(Role::Plain, " ")
            .then(Role::Dim, format!("distance {distance}")),
    }
}

/// The findings below a line.
fn below(checkup: &Checkup, fold: &Fold<'_>) -> Document {
    let mut out = Document::new();
    let number = fold.findings.len();
    for finding in fold.findings.iter().take(MAX_OF_A_LINE) {
        if number > 1 {
            out.subheading(4, &finding.subject);
        }
        one(finding, &mut out);
    }
    if number > MAX_OF_A_LINE {
        more(checkup, number - MAX_OF_A_LINE, &mut out);
    }
    out
}

fn more(checkup: &Checkup, number: usize, out: &mut Document) {
    let text = Text::new(Role::Dim, format!("and {number} more; "));
    let audit = on_this_machine(checkup, "nearfar audit --format json");
    let text = text.then(Role::Code, audit);
    out.paragraph(text.then(Role::Dim, " has all of them"));
}

fn one(finding: &Finding, out: &mut Document) {
    out.paragraph(&finding.message);
    let evidence = finding.evidence.iter();
    out.facts(evidence.map(|it| (Role::Code.text(&it.file), Role::Value.text(&it.value))));
    if let Some(fix) = &finding.fix {
        let text = Text::from(format!("{} = ", fix.subject()));
        let text = text.then(Role::Value, plan::value(fix));
        out.labelled(Text::new(Role::Heading, "fix: "), text);
        if let Some(caution) = fix.caution() {
            out.paragraph(Text::new(Role::Warning, caution));
        }
    }
    if let Some(advice) = &finding.advice {
        out.remark(advice);
    }
}

/// The section on what was not checked and what is unknown.
fn not_checked(audit: &Audit, machine: &Machine, out: &mut Document) {
    let (rules, parts) = (reasons(audit), topo::unknown_reasons(machine));
    if rules.is_empty() && parts.is_empty() {
        return;
    }
    out.section("unknown", "Not checked, unknown");
    let rules = rules.iter().map(|(reason, rules)| {
        let names = rules.iter().fold(Text::default(), |text, rule| {
            text.then(Role::Code, rule).then(Role::Plain, " ")
        });
        (names, format!("not checked: {reason}"))
    });
    let parts = parts
        .iter()
        .map(|(reason, parts)| (parts.join(", ").into(), format!("unknown: {reason}")));
    out.facts(rules.chain(parts));
}

/// Up to this many nodes a cell shows its spread; beyond, only a pointer resting on it does.
const MAX_WITH_SPREAD: usize = 8;
/// Most distances that have a line below a map without figures.
const MAX_CLASSES: usize = 40;

/// The section with the heat maps.
fn matrices(checkup: &Checkup, out: &mut Document) {
    out.section("distances", "Distances and latencies");
    if !checkup.is_one_node() {
        out.paragraph("Row: node of the CPU. Column: node of the memory.");
    }
    let scale = distances::scale(&checkup.machine);
    for (title, table) in distances::tables(&checkup.machine) {
        match table.nodes().len() {
            ..2 => {}
            2..=MAX_CELLS => out.heat_map(distances::map(table, title, scale)),
            _ => distance_areas(table, title, scale, out),
        }
    }
    let Some(matrix) = checkup.probe.get() else {
        let reason = checkup.probe.unknown_reason();
        let reason = reason.unwrap_or("no reason given");
        return out.boxed(format!("Not measured: {reason}"));
    };
    out.heat_map(latency_map(matrix));
    matrix.warnings.iter().for_each(|it| out.warning(it));
    for skipped in &matrix.skipped {
        out.warning(format!("not measured: {}", latency::skipped_pair(skipped)));
    }
}

/// A map without figures, and the figures below it by distance.
fn distance_areas(table: &Distances, title: &str, scale: Scale, out: &mut Document) {
    let mut pairs: BTreeMap<Distance, usize> = BTreeMap::new();
    for distance in table.entries().filter_map(|(.., distance)| distance) {
        *pairs.entry(distance).or_default() += 1;
    }
    let about = format!(
        "Pairs of {} nodes by distance; the table below has the figures.",
        table.nodes().len()
    );
    out.picture(html! {
        figure {
            figcaption { b { (title) } " " (distances::remark(table)) }
            (areas(table, title, scale, &about))
        }
    });
    let remark = match pairs.len() {
        all @ MAX_CLASSES.. => format!("the {MAX_CLASSES} least distances of {all}"),
        _ => String::new(),
    };
    let shown = || pairs.iter().take(MAX_CLASSES);
    let cell = |(&distance, pairs): (&Distance, &usize)| {
        let value = pairs.to_string();
        vec![Some(HeatCell {
            value,
            ..distances::cell(distance)
        })]
    };
    out.heat_map(HeatMap {
        title: format!("{title}: pairs of nodes"),
        remark,
        row_heads: vec!["distance".to_owned()],
        rows: HeatMap::names(shown().map(|(distance, _)| distance)),
        columns: vec!["pairs".to_owned()],
        cells: shown().map(cell).collect(),
        ..HeatMap::of(scale, distances::in_distance)
    });
}

/// The picture of a matrix of so many nodes.
fn areas(table: &Distances, title: &str, scale: Scale, about: &str) -> Markup {
    let cells = table.entries().map(|(.., distance)| step(&scale, distance));
    let count = table.nodes().len();
    let merged = Blocks::new(count, cells).draw();
    // Space for the names of nodes, in units of one node; letters are legible from 300 pixels on.
    let (margin, letter) = (count / 10, count as f64 / 32.0);
    // On the other side, half a name goes beyond the last node.
    let whole = count + margin + margin / 2;
    html! {
        svg.areas viewBox={ "0 0 " (whole) " " (whole) } role="img" {
            title { (title) }
            desc { (about) }
            @for (place, node) in ticks(table, count as f64) {
                text.dim.middle x=(format!("{:.1}", place + margin as f64)) y=(margin - count / 60) font-size=(format!("{letter:.1}")) { (node) }
                text.dim.end x=(margin - count / 60) y=(format!("{:.1}", place + margin as f64 + letter / 3.0)) font-size=(format!("{letter:.1}")) { (node) }
            }
            g transform={ "translate(" (margin) " " (margin) ")" } { (merged.markup) }
        }
        @if merged.nodes_a_cell > 1 {
            p.legend { "Each cell is " (merged.nodes_a_cell) " by " (merged.nodes_a_cell) " nodes, in the colour of the farthest pair." }
        }
    }
}

fn latency_map(matrix: &LatencyMatrix) -> HeatMap {
    let nodes: BTreeSet<NodeId> = matrix.pairs.iter().map(|pair| pair.memory_node).collect();
    let mut map = match nodes.len() > MAX_CELLS {
        true => latency_classes(matrix),
        false => latency::map(matrix),
    };
    map.remark = format!("ns per load, {}", latency::label(matrix.emulation.as_ref()));
    if nodes.len() > MAX_WITH_SPREAD {
        let cells = map.cells.iter_mut().flatten().flatten();
        cells.for_each(|cell| (cell.spread, cell.interval) = Default::default());
    }
    map
}

/// The latencies of many nodes by distance: least, mean and most of the pairs' medians.
fn latency_classes(matrix: &LatencyMatrix) -> HeatMap {
    let mut classes: BTreeMap<Option<Distance>, Vec<f64>> = BTreeMap::new();
    for pair in &matrix.pairs {
        let medians = classes.entry(pair.distance).or_default();
        medians.push(pair.median_ns);
    }
    let figure = |ns: f64| Some(HeatCell::of(ns, nanoseconds(ns)));
    let row = |medians: &Vec<f64>| {
        let pairs = HeatCell::of(f64::NAN, medians.len());
        let mean = medians.iter().sum::<f64>() / medians.len() as f64;
        let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let most = medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        vec![Some(pairs), figure(least), figure(mean), figure(most)]
    };
    let shown = || classes.iter().take(MAX_CLASSES);
    HeatMap {
        title: "Latency".to_owned(),
        row_heads: vec!["distance".to_owned()],
        rows: HeatMap::names(shown().map(|(distance, _)| or(*distance, "–"))),
        columns: ["pairs", "least", "mean", "most"].map(Into::into).into(),
        cells: shown().map(|(_, medians)| row(medians)).collect(),
        ..HeatMap::of(latency::scale(matrix), |heat| {
            format!("{} ns", nanoseconds(heat))
        })
    }
}

/// The section; none where nothing was measured at all, which another section says.
fn unbound_tasks(checkup: &Checkup, out: &mut Document) {
    let (found, reason) = (checkup.unbound.get(), checkup.unbound_reason());
    if found.is_some() || reason.is_some() {
        out.section("unbound", "Unbound tasks");
    }
    let Some(found) = found else {
        if let Some(reason) = reason {
            out.boxed(format!("Not probed: {reason}"));
        }
        return;
    };
    out.remark(unbound_remark(found));
    for (what, _, text) in found.contrasts.iter().map(verdict) {
        let what = Role::Heading.text(what);
        out.boxed(what.then(Role::Plain, format!(": {text}")));
    }
    let columns = [
        "memory",
        "CPUs",
        ">runs",
        ">median",
        ">95 % interval",
        ">cross-node migrations per run",
    ];
    let mut table = Table::of(columns).caption("Runs by where memory and CPUs were bound");
    found.rows.iter().for_each(|row| table.row(run_row(row)));
    out.table(table);
    for warning in unbound_warnings(found) {
        out.warning(warning);
    }
}

fn run_row(row: &Row) -> [Text; 6] {
    let place = |place: Where| or(place.node().map(|node| format!("node {node}")), "unbound");
    let figures = row.seconds.as_ref();
    let median = figures.map(|figures| format!("{:.3} s", figures.median));
    let interval = figures.and_then(|figures| figures.confidence);
    let interval = interval.map(|it| format!("{:.3} to {:.3} s", it.low, it.high));
    let moves = row.migrations.get();
    cells![
        place(row.cell.memory_node),
        place(row.cell.cpu_node),
        figures.map_or(0, |figures| figures.samples.len()),
        or(median, "-"),
        or(interval, "-"),
        or(moves.map(|moves| format!("{:.0}", moves.cross_node)), "-"),
    ]
}

/// The section on method.
fn method(checkup: &Checkup, out: &mut Document) {
    let (machine, made) = (&checkup.machine, &checkup.made);
    let mut facts: Vec<(&str, Text)> = Vec::new();
    facts.push(("Command", Text::new(Role::Code, &made.command)));
    let version = [Some(made.version.clone()), made.at_s.map(moment)];
    let version: Vec<String> = version.into_iter().flatten().collect();
    facts.push(("nearfar", version.join(", ").into()));
    facts.push(("Machine", summary::circumstances(machine).join(", ").into()));
    facts.extend(machine.distances.get().map(|table| {
        let what = "10 is local, 20 means twice as far; what the firmware says, not measured";
        (
            "Distances",
            format!("{}; {what}", distances::remark(table)).into(),
        )
    }));
    if let Some(matrix) = checkup.probe.get() {
        let label = latency::label(matrix.emulation.as_ref());
        let method = format!("{label}: {}", latency::method(matrix));
        facts.push(("Latencies", method.into()));
        facts.extend(matrix.pairs.first().map(|pair| {
            let cpus = format!(
                "one of each node, such as CPU {} of node {}; memory bound to its node, pages touched before",
                pair.cpu, pair.cpu_node
            );
            ("CPUs", cpus.into())
        }));
    }
    let unbound = checkup.unbound.get();
    facts.extend(unbound.map(|found| ("Unbound tasks", unbound_method(found).into())));
    facts.push(("Findings", checked_rules(checkup)));
    out.section("method", "How each number was made");
    out.facts(facts);
}

fn checked_rules(checkup: &Checkup) -> Text {
    let rules = checkup.audit.checked.iter();
    match checkup.audit.checked.is_empty() {
        true => "no rule was checked".into(),
        false => rules.fold("rules checked:".into(), |text: Text, rule| {
            text.then(Role::Plain, " ").then(Role::Code, rule)
        }),
    }
}
