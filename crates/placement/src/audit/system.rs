//! Nodes and distances as a whole, other writers, and what the source found wrong with its input.

use std::cmp::Ordering;

use nearfar_change::Change;
use nearfar_machine::{Node, NodeId, NodeSet, SourceKind, Writer, WriterKind};

use crate::audit::site::{Fact, Site};
use crate::audit::{Finding, Ledger, Severity};
use crate::tasks::{Nodes, measured_in};

const FLAT: &str = "flat-distances";
const LIE: &str = "distances-lie";
const NO_CPUS: &str = "node-without-cpus";
const NO_MEMORY: &str = "node-without-memory";
const WRITER: &str = "competing-writer";
const INPUT: &str = "input-contradiction";

/// Most by which a ratio of measured latencies and that of distances differ; medians of samples differ by some 2 %.
const MARGIN: f64 = 0.1;

pub(crate) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    nodes(site, ledger);
    flat(site, ledger);
    compare_with_measured(site, ledger);
    for writer in ledger
        .need(&site.machine.writers, &[WRITER])
        .into_iter()
        .flatten()
    {
        competing(site, writer, ledger);
    }
    ledger.checked(&[INPUT]);
    for warning in &site.machine.warnings {
        ledger.add(Finding::new(
            INPUT,
            warning.place.clone(),
            warning.message.clone(),
        ));
    }
}

fn nodes(site: &Site<'_>, ledger: &mut Ledger) {
    if site.machine.nodes_unknown_reason().is_some() {
        let reason = site.cpu_nodes_unknown.as_deref().unwrap_or_default();
        return ledger.skip(&[NO_CPUS, NO_MEMORY], reason);
    }
    if let Some(reason) = &site.cpu_nodes_unknown {
        ledger.skip(&[NO_CPUS], reason);
    }
    for node in site.machine.online_nodes() {
        if let Some(has_cpus) = node.has_cpus() {
            ledger.checked(&[NO_CPUS]);
            if !has_cpus {
                ledger.add(without_cpus(site, node));
            }
        }
        let subject = || format!("node {}", node.id);
        match node.has_memory() {
            None => ledger.skip_thing(
                NO_MEMORY,
                subject,
                node.memory.unknown_reason().unwrap_or_default(),
            ),
            Some(true) => ledger.checked(&[NO_MEMORY]),
            Some(false) => {
                ledger.checked(&[NO_MEMORY]);
                let homes = site.homes.candidates(node.id);
                let message = match homes.len() {
                    _ if homes.is_empty() || node.has_cpus() != Some(true) => {
                        "It has no memory.".to_owned()
                    }
                    1 => {
                        format!("It has no memory: what its CPUs allocate comes from node {homes}.")
                    }
                    _ => format!(
                        "It has no memory: what its CPUs allocate comes from node {}, {}.",
                        any_of(&homes),
                        match site.machine.distances.unknown_reason() {
                            None => "by the kernel's version: they are equally near",
                            Some(_) => "whichever is nearest: the distances are unknown",
                        }
                    ),
                };
                ledger.add(
                    Finding::new(NO_MEMORY, subject(), message)
                        .evidence(site.place(Fact::Memory(node.id)), "0 kB"),
                );
            }
        }
    }
}

/// Node numbers as alternatives: `1 or 2`.
fn any_of(nodes: &NodeSet) -> String {
    let numbers: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
    numbers.join(" or ")
}

fn without_cpus(site: &Site<'_>, node: &Node) -> Finding {
    let holds = match (node.has_memory(), node.generic_initiator, node.tier) {
        (Some(true), _, Some(tier)) => format!("It is memory of tier {tier}, remote to every CPU."),
        (Some(true), ..) => "It has memory only, remote to every CPU.".to_owned(),
        (_, true, _) => {
            "It has no CPUs: a device that accesses memory (generic initiator) sits on it."
                .to_owned()
        }
        (Some(false), ..) => {
            "It has neither CPUs nor memory: it only says where devices are.".to_owned()
        }
        (None, ..) => "It has no CPUs.".to_owned(),
    };
    Finding::new(NO_CPUS, format!("node {}", node.id), holds)
        .evidence(site.place(Fact::Cpus(node.id)), "no CPUs")
}

fn flat(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(table) = ledger.need(&site.machine.distances, &[FLAT]) else {
        return;
    };
    let online: Vec<&Node> = site.machine.online_nodes().collect();
    let [first, _, ..] = online[..] else { return };
    let online_set = site.machine.online_node_set();
    let Some(flat) = table.flat(&online_set) else {
        return;
    };
    let real = |node: &&Node| node.fake_of.unwrap_or(node.id);
    let fakes = online.iter().all(|node| real(node) == real(&first));
    let themselves = if flat.with_local {
        " and from themselves"
    } else {
        ""
    };
    let message = format!(
        "All {} nodes are at distance {} from each other{themselves}.",
        online.len(),
        flat.distance
    );
    let finding = Finding::new(FLAT, "node distances", message)
        .evidence(site.place(Fact::Distances(first.id)), row(site, first.id));
    ledger.add(match (fakes, flat.with_local) {
        (true, _) => finding
            .severity(Severity::Fact)
            .advice("They are fakes of one real node, so that is right."),
        (false, true) => finding.advice(
            "This table does not show what is near and what is far. Measure latency between the nodes; the \
             firmware's SLIT is where it would be fixed.",
        ),
        (false, false) => finding.severity(Severity::Fact).advice(
            "That is right where each node has a link to every other. In a guest, and on larger machines, it often hides which \
             of them are nearer: measure latency between the nodes.",
        ),
    });
}

/// Memory of a node from the CPUs of another, as multiples of local memory.
#[derive(Clone, Copy)]
struct Ratios {
    from: NodeId,
    to: NodeId,
    measured: f64,
    by_distance: f64,
}

impl Ratios {
    /// Of each pair of which both are known, in ascending order of `from`.
    fn all(nodes: &Nodes<'_>) -> Vec<Self> {
        let ratios = nodes.pairs().filter_map(|(from, to)| {
            Some(Self {
                from,
                to,
                measured: nodes.measured_ratio(from, to)?,
                by_distance: nodes.distance_ratio(from, to)?,
            })
        });
        ratios.collect()
    }

    /// By how much the greater of both is above the other, as a part of it.
    fn difference(&self) -> f64 {
        let ratio = self.measured / self.by_distance;
        ratio.max(1.0 / ratio) - 1.0
    }

    /// The memory that is most behind memory which the distances of one node have further away; with that. Which of equally near nodes the
    /// kernel prefers is not said by distances.
    fn most_behind(of_node: &[Self]) -> Option<(Self, Self)> {
        let mut inwards = of_node.to_vec();
        inwards.sort_by(|a, b| b.by_distance.total_cmp(&a.by_distance));
        let mut fastest: Option<Self> = None;
        let mut most: Option<(Self, Self)> = None;
        for equally_near in inwards.chunk_by(|a, b| a.by_distance == b.by_distance) {
            let pairs = equally_near.iter().filter_map(|it| Some((*it, fastest?)));
            most = most.into_iter().chain(pairs).max_by(by_factor);
            let all = fastest.into_iter().chain(equally_near.iter().copied());
            fastest = all.min_by(|a, b| a.measured.total_cmp(&b.measured));
        }
        most
    }
}

fn by_factor((a, c): &(Ratios, Ratios), (b, d): &(Ratios, Ratios)) -> Ordering {
    (a.measured / c.measured).total_cmp(&(b.measured / d.measured))
}

fn compare_with_measured(site: &Site<'_>, ledger: &mut Ledger) {
    if ledger.known(&site.machine.distances, &[LIE]).is_none() {
        return;
    }
    let nodes = Nodes::of(site.machine);
    let ratios = Ratios::all(&nodes);
    if ratios.iter().all(|it| it.to == nodes.home(it.from)) {
        let reason =
            "no latency between nodes is known: `nearfar bench latency` on the machine measures it";
        return ledger.skip(&[LIE], reason);
    }
    ledger.checked(&[LIE]);
    let behind = ratios
        .chunk_by(|a, b| a.from == b.from)
        .filter_map(Ratios::most_behind)
        .filter(|(it, than)| it.measured > than.measured * (1.0 + MARGIN))
        .max_by(by_factor);
    let differ = || ratios.iter().filter(|it| it.difference() > MARGIN);
    let most = differ().max_by(|a, b| a.difference().total_cmp(&b.difference()));
    let Some(shown) = behind.map(|(it, _)| it).or(most.copied()) else {
        return;
    };
    let others = differ().filter(|it| (it.from, it.to) != (shown.from, shown.to));
    let others = match others.count() {
        0 => String::new(),
        1 => "; 1 more pair of nodes differs from its distance by more than 10 %".to_owned(),
        others => {
            format!("; {others} more pairs of nodes differ from their distances by more than 10 %")
        }
    };
    ledger.add(not_as_measured(
        site,
        &nodes,
        shown,
        behind.map(|(_, than)| than),
        &others,
    ));
}

/// `than` is memory that is further by distance and takes less time.
fn not_as_measured(
    site: &Site<'_>,
    nodes: &Nodes<'_>,
    shown: Ratios,
    than: Option<Ratios>,
    others: &str,
) -> Finding {
    let Ratios { from, to, .. } = shown;
    let takes = |times: f64| {
        format!("From node {from}, memory of node {to} takes {times:.2} times as long as")
    };
    let (severity, says, advice) = match than {
        None => (
            Severity::Fact,
            format!(
                "{} local memory, {:.2} times by the distances",
                takes(shown.measured),
                shown.by_distance
            ),
            "The order of nodes, by which the kernel chooses, is the same. Costs of tasks are those measured.",
        ),
        Some(than) => (
            Severity::Notice,
            format!(
                "{} that of node {}, which is further by distance",
                takes(shown.measured / than.measured),
                than.to
            ),
            "The kernel gets memory from the nearest node by distance, here a slower one. The firmware's SLIT is where it would be \
             fixed; until then, bind memory (`numactl`).",
        ),
    };
    let mut of_nodes = vec![nodes.home(from), to];
    of_nodes.extend(than.map(|than| than.to));
    of_nodes.dedup();
    let timing = site.machine.timing.as_ref();
    let latencies = of_nodes.iter().filter_map(|&node| {
        let ns = timing?.latency_ns(from, node)?;
        Some(format!("node {from} to {node} {ns} ns"))
    });
    let latencies: Vec<String> = latencies.collect();
    let origin = &site.machine.origin;
    let mut measured = measured_in(site.machine).join("; ");
    if origin.kind != SourceKind::Live {
        measured = format!("{}: {measured}", origin.place);
    }
    Finding::new(LIE, "node distances", format!("{says}{others}."))
        .severity(severity)
        .evidence(site.place(Fact::Distances(from)), row(site, from))
        .evidence(measured, latencies.join(", "))
        .advice(advice)
}

fn row(site: &Site<'_>, node: NodeId) -> String {
    let row = site
        .machine
        .distances
        .get()
        .into_iter()
        .flat_map(|table| table.row(node));
    let entries: Vec<String> = row
        .filter_map(|(_, distance)| Some(distance?.to_string()))
        .collect();
    entries.join(" ")
}

fn competing(site: &Site<'_>, writer: &Writer, ledger: &mut Ledger) {
    let active = writer.active.get().copied();
    if active == Some(false) {
        return;
    }
    let (name, writes, advice) = match writer.kind {
        WriterKind::Irqbalance => (
            "irqbalance",
            "It places interrupts again every few seconds",
            "Ban the interrupts that it must not move (IRQBALANCE_BANNED_CPULIST, --banirq), or stop it, before applying.",
        ),
        WriterKind::Tuned => (
            "tuned",
            "It writes the settings of its profile each time that is loaded",
            "Put permanent settings into the profile, or choose one without isolated_cores and irq_affinity.",
        ),
        WriterKind::UdevLink => (
            "systemd-udevd (.link file)",
            "It sets interrupt affinities each time the interface appears",
            "Remove IRQAffinity options from the .link file, or keep them and leave the interrupts to it.",
        ),
        WriterKind::UdevRule => (
            "udev rule",
            "It writes its value again each time the device appears",
            "Change the rule instead of the setting.",
        ),
        WriterKind::Numad => (
            "numad",
            "It moves processes and their memory between nodes",
            "Stop it, or exclude the processes that you place (numad -x PID).",
        ),
    };
    let places_interrupts = matches!(
        writer.kind,
        WriterKind::Irqbalance | WriterKind::Tuned | WriterKind::UdevLink
    );
    let undoes =
        ledger.any(|finding| matches!(finding.fix, Some(Change::InterruptAffinity { .. })));
    let sure = match active {
        Some(_) => String::new(),
        None => format!(
            " Whether it is in force is unknown: {}.",
            writer.active.unknown_reason().unwrap_or_default()
        ),
    };
    let effect = if places_interrupts && undoes {
        " and would undo the changes proposed here"
    } else {
        ""
    };
    let severity = if places_interrupts && undoes && active == Some(true) {
        Severity::Warning
    } else {
        Severity::Notice
    };
    ledger.add(
        Finding::new(WRITER, name, format!("{writes}{effect}.{sure}"))
            .severity(severity)
            .evidence(site.said(&writer.evidence), writer.says.clone())
            .advice(advice),
    );
}
