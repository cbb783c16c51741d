//! One page that stands alone: no network, no script, legible on light, dark and paper.

mod findings;
mod map;
mod matrices;
mod method;
mod unbound;

use nearfar_machine::Machine;

use super::{Checkup, next};
use crate::amount::{count, moment, nanoseconds, or};
use crate::audit;
use crate::document::{Document, Head, Text, Tile};
use crate::latency;
use crate::style::Role;
use crate::summary::{self, Summary};

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
    map::section(checkup, &mut out);
    findings::section(checkup, &mut out);
    out.section("next", "Next");
    for step in next::steps(checkup) {
        out.paragraph(format!("{}:", step.does));
        out.command(&step.command);
    }
    matrices::section(checkup, &mut out);
    unbound::section(checkup, &mut out);
    findings::not_checked(&checkup.audit, machine, &mut out);
    warnings(machine, &mut out);
    method::section(checkup, &mut out);
    out
}

/// The figures that sum the machine up.
fn tiles(checkup: &Checkup) -> Vec<Tile> {
    let summary = Summary::of(&checkup.machine);
    let cpus = match (summary.cores, summary.packages) {
        (Some(cores), Some(packages)) => {
            format!("{}, {}", count(cores, "core"), count(packages, "package"))
        }
        (Some(cores), None) => count(cores, "core"),
        _ => String::new(),
    };
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
    if all.len() > MAX_WARNINGS {
        folded.remark(format!("and {} more", all.len() - MAX_WARNINGS));
    }
    out.section("input", "Warnings about the input");
    let summary = format!(
        "{} on what contradicts itself or is odd; it was read as far as it goes",
        count(all.len(), "remark")
    );
    out.details(summary, all.len() <= MAX_OPEN_WARNINGS, folded);
}

/// When the checkup was made, as text.
fn made_at(checkup: &Checkup) -> Option<String> {
    checkup.made.at_s.map(moment)
}

/// What the figures of a measurement are, as text.
fn latency_label(checkup: &Checkup) -> Option<String> {
    let matrix = checkup.probe.get()?;
    Some(latency::label(matrix.emulation.as_ref()))
}
