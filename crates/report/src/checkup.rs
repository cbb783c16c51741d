//! The checkup: topology, audit and a first measurement, on one screen and on one page.
//!
//! ```text
//!  found      machine, nodes, distances or caches, findings, not checked, warnings      before anything is measured
//!  measured   latency, unbound tasks, warnings, next steps                             afterwards, or after Ctrl-C
//! ```

mod page;

use std::collections::BTreeMap;

use nearfar_bench::latency::LatencyMatrix;
use nearfar_bench::matrix::{Question, Ratio};
use nearfar_bench::unbound::{UnboundContrast, UnboundTasks};
use nearfar_machine::{
    Cache, CpuSet, Interrupt, Known, Machine, NetworkDevice, NodeId, SourceKind,
};
use nearfar_placement::audit::{Audit, State, pasteable, serving};
use nearfar_placement::plan::{Needs, Proposal, proposal};
use serde::Serialize;

use crate::amount::{bytes, count, lead, or};
use crate::document::{Align, Document, Table, Text, cells, cut, wrap};
use crate::style::Role::{Dim, Heading, Subject};
use crate::style::{Role, Style};
use crate::summary::kinds;
use crate::topo::marks::names;
use crate::topo::{self, distances};
use crate::{audit, latency};

pub use page::page;

/// What a checkup found; serialised, it is what `nearfar checkup --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Checkup {
    /// How it was made.
    pub made: Made,
    /// The machine.
    pub machine: Machine,
    /// What is far on it.
    pub audit: Audit,
    /// How long loads take; unknown where nothing could or should be measured, with the reason.
    pub probe: Known<LatencyMatrix>,
    /// Whether the scheduler hurts unbound tasks; unknown where that could or should not be probed, with the reason.
    pub unbound: Known<UnboundTasks>,
}

/// How a checkup was made, for the reader of a page that was passed on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Made {
    /// The command line, quoted for a shell.
    pub command: String,
    /// The arguments that choose the machine (`--source`, `--root`, `--fake`), quoted for a shell; none for the running system.
    #[serde(skip)]
    pub source: String,
    /// Version of nearfar.
    pub version: String,
    /// When, in seconds since 1970.
    pub at_s: Option<u64>,
}

impl Checkup {
    /// Whether a single node is online.
    pub(crate) fn is_one_node(&self) -> bool {
        self.machine.online_nodes().count() == 1
    }

    /// Why unbound tasks were not probed, where the reason is not that nothing was measured at all.
    pub(crate) fn unbound_reason(&self) -> Option<&str> {
        self.unbound
            .unknown_reason()
            .filter(|reason| self.probe.unknown_reason() != Some(*reason))
    }
}

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
            one_node(&checkup.machine, &topo, &mut out);
        }
        false => distances(checkup, &mut out),
    }
    let others = [not_checked(checkup, columns), warnings(checkup, columns)];
    let plain = Style {
        colour: false,
        width: columns,
    };
    let height = |part: &Document| part.to_text(&plain).lines().count();
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
    let unbound = unbound.flat_map(unbound_warnings);
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
        let node = only.and_then(|id| machine.node(id));
        let cpus = node.map(|node| node.known_cpus());
        let cpus = match kind.cpus {
            None => Dim.text("unknown"),
            Some(0) => Dim.text("none"),
            Some(_) => Subject.text(or(cpus, "each")),
        };
        let state = topo::state(kind.online);
        let (ids, number) = (Heading.text(ids), or(kind.cpus, "?"));
        table.row(cells![ids, state, number, cpus, &kind.memory]);
    }
    out.gap();
    out.table(table);
    let topo = on_this_machine(checkup, "nearfar topo");
    out.more(kinds.len(), MAX_NODES, &format!(" kinds of nodes: {topo}"));
}

/// The distances of few nodes, the extremes of many.
fn distances(checkup: &Checkup, out: &mut Document) {
    let machine = &checkup.machine;
    let Some(table) = machine.distances.get() else {
        let reason = machine.distances.unknown_reason();
        let reason = reason.unwrap_or("no reason given");
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
            let reason = reason.unwrap_or("no reason given");
            out.heading("Latency", format!("not measured: {reason}"));
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
            out.heading(title, unbound_remark(found));
            for (what, role, text) in found.contrasts.iter().map(verdict) {
                out.labelled(Dim.text(format!("{what:<14}")), role.text(text));
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
    out.more(groups.len(), shown.len(), " rules with findings");
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
    let number = match checkup.audit.number_in_part() {
        0 => not_at_all,
        in_part => format!("{not_at_all}, {in_part} in part"),
    };
    out.heading("Not checked", number);
    let shown = reasons.iter().take(MAX_REASONS);
    let texts = shown.map(|(reason, rules)| match rules.as_slice() {
        [rule] => format!("{rule}: {reason}"),
        rules => format!("{} and {} more: {reason}", rules[0], rules.len() - 1),
    });
    for text in texts {
        out.remark(shortened(&text, columns.saturating_sub(2), 2));
    }
    let audit = on_this_machine(checkup, "nearfar audit");
    out.more(reasons.len(), MAX_REASONS, &format!(" reasons: {audit}"));
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
        let room = columns.saturating_sub(4);
        out.warning(shortened(&warning.to_string(), room, 2));
    }
    let topo = on_this_machine(checkup, "nearfar topo");
    out.more(all.len(), MAX_WARNINGS, &format!(": {topo}"));
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

/// Most caches that have a line of their own.
const MAX_CACHES: usize = 8;

/// What a machine with one node online has instead of a matrix of distances.
fn one_node(machine: &Machine, topo: &str, out: &mut Document) {
    let caches = online_caches(machine);
    out.heading("One node", "");
    out.paragraph(about_one_node(machine, &caches));
    if caches.len() < 2 {
        return;
    }
    let lots = interrupts(machine, &caches);
    let mut table = Table::of(["cache", ">CPUs", "", "interrupts"]);
    for (cache, lots) in caches.iter().zip(&lots).take(MAX_CACHES) {
        let lots = lots.iter();
        let lots = lots.map(|(device, number)| format!("{number} of {device}"));
        table.row(cells![
            Heading.text(format!("L{}", cache.level)),
            cache.cpus.len(),
            Subject.text(&cache.cpus),
            Dim.text(lots.collect::<Vec<_>>().join(", ")),
        ]);
    }
    out.table(table);
    out.more(caches.len(), MAX_CACHES, &format!(" caches: {topo}"));
    for network in machine.networks.get().into_iter().flatten() {
        if let Some(text) = queues(machine, &caches, network) {
            out.remark(text);
        }
    }
}

/// What is near and what can be far.
fn about_one_node(machine: &Machine, caches: &[&Cache]) -> String {
    let same = "Every CPU has the same distance to all of the memory";
    let mut text = match machine.nodes.len() {
        ..2 => format!("{same}."),
        _ => format!("{same} that is online; devices can be on a node that is not."),
    };
    if caches.len() > 1 {
        let level = caches.first().map_or(0, |cache| cache.level);
        text += &format!(
            " The CPUs share {} L{level} caches, and a cache line takes longer between two of them than within one: interrupts, \
             queues and pairs of processes can be far from each other.",
            caches.len()
        );
    }
    text
}

/// The last-level caches with a CPU that is online.
fn online_caches(machine: &Machine) -> Vec<&Cache> {
    let online = &machine.cpu_states.online;
    let all = machine.last_level_caches();
    all.filter(|cache| cache.cpus.intersects(online)).collect()
}

/// The interrupts of each device whose CPUs are all behind a cache, for each cache.
fn interrupts(machine: &Machine, caches: &[&Cache]) -> Vec<BTreeMap<String, usize>> {
    let (names, mut lots) = (names(machine), vec![BTreeMap::new(); caches.len()]);
    for interrupt in machine.interrupts.get().into_iter().flatten() {
        if let (Some(device), Some(at)) = (interrupt.device, behind(caches, interrupt)) {
            let name = or(names.get(&device), &device.to_string());
            *lots[at].entry(name).or_insert(0) += 1;
        }
    }
    lots
}

/// The cache that all CPUs are behind that may serve an interrupt.
fn behind(caches: &[&Cache], interrupt: &Interrupt) -> Option<usize> {
    let serving: &CpuSet = serving(interrupt)?.cpus;
    caches
        .iter()
        .position(|cache| serving.is_subset(&cache.cpus))
}

/// How many transmit queues are used by CPUs behind another cache than the one that serves their interrupt.
fn queues(machine: &Machine, caches: &[&Cache], network: &NetworkDevice) -> Option<String> {
    let all = machine.interrupts.get()?.iter();
    let all = all.filter(|it| it.device.is_some() && it.device == network.device);
    let all: Vec<_> = all.collect();
    let served = |queue: u32| {
        let of_queue = all.iter().filter(move |it| it.queue == Some(queue));
        of_queue.filter_map(|it| behind(caches, it))
    };
    let is_across = |queue: u32, xps: &CpuSet| {
        let mut served = served(queue).peekable();
        let is_known = served.peek().is_some() && !xps.is_empty();
        is_known && !served.any(|at| xps.is_subset(&caches[at].cpus))
    };
    let transmit = network.transmit.iter();
    let across = transmit.filter_map(|it| Some((it.queue, it.xps.get()?)));
    let across = across.filter(|(queue, xps)| is_across(*queue, xps)).count();
    let (name, queues) = (
        &network.name,
        count(network.transmit.len(), "transmit queue"),
    );
    (across > 0).then(|| {
        format!(
            "{name}: {across} of {queues} have CPUs (XPS) behind another cache than the CPU that serves their interrupt"
        )
    })
}

/// The machine of the gallery that has tasks, interrupts and disks that are far.
const EXAMPLE: &str = "database-host";

/// A command and what it is for.
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) does: &'static str,
}

/// The commands, with the arguments that choose the machine of this checkup.
pub(crate) fn steps(checkup: &Checkup) -> Vec<Step> {
    let step = |command: &str, does| {
        let command = pasteable(command, &checkup.made.source)?;
        Some(Step { command, does })
    };
    let (audit, mut steps) = (&checkup.audit, Vec::new());
    if !audit.findings.is_empty() {
        steps.extend(step(
            "nearfar audit",
            "every finding with its evidence and what would fix it",
        ));
    }
    steps.extend(plan_step(
        &checkup.machine,
        audit,
        None,
        &checkup.made.source,
    ));
    if checkup.unbound.get().is_some_and(is_slower) {
        let does = "how to keep a task on its node, and release it while that is full";
        steps.push(Step {
            command: "nearfar prefer --help".to_owned(),
            does,
        });
    }
    let machine = &checkup.machine;
    let is_live = machine.origin.kind == SourceKind::Live;
    if is_live && checkup.is_one_node() && online_caches(machine).len() > 1 {
        steps.extend(step(
            "nearfar bench latency --what transfer",
            "the time of a cache line from CPU to CPU, behind one cache and behind two",
        ));
    }
    steps.extend(step("nearfar topo", "the whole machine"));
    if is_live && checkup.is_one_node() {
        steps.extend(elsewhere());
    }
    steps
}

/// The command that plans what a rule found, or all rules, with the options that its changes need; `None` where there are no
/// changes, and where the machine came from standard input, which cannot be read again. `source`: the arguments that choose
/// the machine.
pub(crate) fn plan_command(
    machine: &Machine,
    audit: &Audit,
    rule: Option<&str>,
    source: &str,
) -> Option<String> {
    plan_step(machine, audit, rule, source).map(|step| step.command)
}

fn plan_step(machine: &Machine, audit: &Audit, rule: Option<&str>, source: &str) -> Option<Step> {
    let Proposal { rule, needs } = proposal(machine, audit, rule)?;
    let (option, does) = match needs {
        Needs::Nothing => (
            "",
            "the changes that fix them; nothing is changed before nearfar apply",
        ),
        Needs::DeviceNodeOverride => (
            " --override-device-node",
            "the last resort, with what it costs: it taints the kernel and stops the device for a moment",
        ),
        Needs::IoPolicy => (
            " --iopolicy round-robin",
            "what another policy would be; measure both under the real load before nearfar apply",
        ),
    };
    let rule = rule.map_or_else(String::new, |rule| format!(" --rule {rule}"));
    let command = pasteable(&format!("nearfar plan{rule}{option}"), source)?;
    Some(Step { command, does })
}

/// What there is to see on machines with several nodes, on one that has a single one.
fn elsewhere() -> [Step; 3] {
    let example = |verb: &str, does| Step {
        command: format!("nearfar {verb} --source {EXAMPLE}"),
        does,
    };
    [
        example(
            "tasks",
            "on a described machine of two nodes: tasks far from their memory",
        ),
        example(
            "plan",
            "and what would bring interrupts, queues and I/O near",
        ),
        Step {
            command: "nearfar lab run --machine two-node -- nearfar checkup --probe 0".to_owned(),
            does: "boots a guest of two nodes and checks it",
        },
    ]
}

/// A command for the machine of this checkup: `nearfar plan --source 'customer 3.nearfar'`.
pub(crate) fn on_this_machine(checkup: &Checkup, command: &str) -> String {
    match checkup.made.source.as_str() {
        "" => command.to_owned(),
        source => format!("{command} {source}"),
    }
}

/// Whether it costs something significant, in either way.
pub(crate) fn is_slower(found: &UnboundTasks) -> bool {
    let contrasts = found.contrasts.iter();
    let mut ratios = contrasts.filter_map(|contrast| contrast.ratio.get());
    ratios.any(|ratio| ratio.is_significant() && ratio.median > 1.0)
}

/// What was unbound (`CPUs unbound`, `all unbound`), and a sentence on what that did.
fn verdict(contrast: &UnboundContrast) -> (&'static str, Role, String) {
    let what = match contrast.question {
        Question::AllUnbound => "all unbound",
        _ => "CPUs unbound",
    };
    let (role, mut text) = match &contrast.ratio {
        Known::Yes(ratio) => ratio_text(ratio),
        Known::No { unknown_reason } => (Role::Dim, format!("unknown: {unknown_reason}")),
    };
    if let Some(&moves) = contrast.cross_node.get() {
        let moves = count(moves as usize, "cross-node migration");
        text += &format!("; {moves} in {:.0} s", contrast.seconds);
    }
    (what, role, text)
}

fn ratio_text(ratio: &Ratio) -> (Role, String) {
    let by = slower_percent(ratio.median);
    let Some(interval) = ratio.confidence else {
        let rounds = count(ratio.rounds, "round");
        let text =
            format!("{by} % slower than bound in the median of {rounds}: too few for an interval");
        return (Role::Dim, text);
    };
    let (low, high) = (slower_percent(interval.low), slower_percent(interval.high));
    match (ratio.is_significant(), ratio.median > 1.0) {
        (true, true) => (
            Role::Warning,
            format!("{by} % slower ({low} to {high} %) than bound"),
        ),
        (true, false) => {
            let faster = [ratio.median, interval.high, interval.low];
            let [by, low, high] = faster.map(|ratio| slower_percent(2.0 - ratio));
            (
                Role::Local,
                format!("{by} % faster ({low} to {high} %) than bound"),
            )
        }
        (false, _) => (
            Role::Local,
            format!("no significant difference ({low} to {high} %)"),
        ),
    }
}

/// How much longer something takes, in percent; whole ones from 10 on.
fn slower_percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let text = match percent.abs() {
        ..9.95 => format!("{percent:.1}"),
        _ => format!("{percent:.0}"),
    };
    match text.trim_matches(['-', '0', '.']) {
        "" => "0".to_owned(),
        _ => text,
    }
}

/// What was done to find out, for the one line above the verdicts.
pub(crate) fn unbound_remark(found: &UnboundTasks) -> String {
    let contrasts = found.contrasts.iter();
    let ratios = contrasts.filter_map(|contrast| contrast.ratio.get());
    let rounds = ratios.map(|ratio| ratio.rounds).max().unwrap_or(0);
    format!(
        "{} in {:.0} s under {} % load on {}, NUMA balancing {}",
        count(rounds, "round"),
        found.elapsed_s,
        found.parameters.load_percent,
        count(found.load_cpus.len(), "CPU"),
        balancing(found),
    )
}

fn balancing(found: &UnboundTasks) -> &'static str {
    match found.numa_balancing.get() {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    }
}

/// How the figures were made; on an emulated machine behind its label.
pub(crate) fn unbound_method(found: &UnboundTasks) -> String {
    let parameters = &found.parameters;
    let label = found.emulation.as_ref().map(|label| format!("{label}: "));
    let nodes: Vec<String> = parameters.nodes.iter().map(ToString::to_string).collect();
    format!(
        "{}a process reads and writes back {} words at random places of {}, {:.2} s per run, bound to node {} in turn, with its \
         CPUs unbound, and with all unbound, in random order; while that ran, CPUs {} each had a load of {} %, without \
         which a scheduler has nothing to do. Ratios are taken within a round; the median of them and its 95 % interval. \
         Nothing was set: NUMA balancing was {}",
        label.unwrap_or_default(),
        u64::from(parameters.counts) * parameters.steps,
        bytes(parameters.bytes),
        parameters.calibrated_to_s.unwrap_or_default(),
        nodes.join(" and "),
        found.load_cpus,
        parameters.load_percent,
        balancing(found),
    )
}

/// What was wrong with runs, and why migrations were not counted.
pub(crate) fn unbound_warnings(found: &UnboundTasks) -> Vec<String> {
    let mut contrasts = found.contrasts.iter();
    let uncounted = contrasts.find_map(|contrast| contrast.cross_node.unknown_reason());
    let uncounted =
        uncounted.map(|reason| format!("migrations of unbound tasks were not counted: {reason}"));
    let failed = found.rows.iter().flat_map(|row| &row.failed);
    let failed = failed.map(|it| lead(it, "run", " failed") + &it.what);
    let warnings = found.warnings.iter();
    let warnings = warnings.map(|it| lead(it, "run", " with warnings") + &it.what);
    failed.chain(warnings).chain(uncounted).collect()
}

#[cfg(test)]
mod tests {
    use nearfar_statistics::Interval;

    use super::*;

    fn said(median: f64, interval: Option<(f64, f64)>, cross_node: Known<u64>) -> String {
        let confidence = interval.map(|(low, high)| Interval { low, high });
        let ratio = Known::Yes(Ratio {
            median,
            confidence,
            rounds: 3,
        });
        verdict(&UnboundContrast {
            question: Question::AllUnbound,
            ratio,
            cross_node,
            seconds: 12.3,
        })
        .2
    }

    #[test]
    fn what_is_said_depends_on_where_the_interval_lies() {
        let uncounted = || Known::no("no tracefs");
        let slower = said(1.09, Some((1.04, 1.131)), Known::Yes(31));
        assert_eq!(
            slower,
            "9.0 % slower (4.0 to 13 %) than bound; 31 cross-node migrations in 12 s"
        );
        let faster = said(0.9, Some((0.8, 0.95)), Known::Yes(1));
        assert_eq!(
            faster,
            "10 % faster (5.0 to 20 %) than bound; 1 cross-node migration in 12 s"
        );
        assert_eq!(
            said(1.05, Some((0.99, 1.2)), uncounted()),
            "no significant difference (-1.0 to 20 %)"
        );
        assert_eq!(
            said(1.5, None, uncounted()),
            "50 % slower than bound in the median of 3 rounds: too few for an interval"
        );
        assert_eq!(
            said(0.99999, Some((0.9999, 1.0001)), uncounted()),
            "no significant difference (0 to 0 %)"
        );
    }
}
