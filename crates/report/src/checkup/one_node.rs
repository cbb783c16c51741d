//! What can be far on one node: CPUs behind different last-level caches, and interrupts and queues that they serve.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, CpuSet, Interrupt, Machine, NetworkDevice};
use nearfar_placement::audit::serving;

use crate::amount::count;
use crate::document::{Document, Table, cells};
use crate::style::Role::{Dim, Heading, Subject};
use crate::topo::marks::names;

/// Most caches that have a line of their own.
const MAX_CACHES: usize = 8;

/// What a machine with one node online has instead of a matrix of distances.
pub(super) fn section(machine: &Machine, topo: &str, out: &mut Document) {
    let caches = caches(machine);
    out.heading("One node", "");
    out.paragraph(about(machine, &caches));
    if caches.len() < 2 {
        return;
    }
    let lots = interrupts(machine, &caches);
    let mut table = Table::of(["cache", ">CPUs", "", "interrupts"]);
    for (cache, lots) in caches.iter().zip(&lots).take(MAX_CACHES) {
        let lots = lots
            .iter()
            .map(|(device, number)| format!("{number} of {device}"));
        table.row(cells![
            Heading.text(format!("L{}", cache.level)),
            cache.cpus.len(),
            Subject.text(&cache.cpus),
            Dim.text(lots.collect::<Vec<_>>().join(", ")),
        ]);
    }
    out.table(table);
    out.more(
        caches.len().saturating_sub(MAX_CACHES),
        &format!(" caches: {topo}"),
    );
    for network in machine.networks.get().into_iter().flatten() {
        if let Some(text) = queues(machine, &caches, network) {
            out.remark(text);
        }
    }
}

/// What is near and what can be far.
pub(super) fn about(machine: &Machine, caches: &[&Cache]) -> String {
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
pub(super) fn caches(machine: &Machine) -> Vec<&Cache> {
    let online = &machine.cpu_states.online;
    let all = machine.last_level_caches();
    all.filter(|cache| cache.cpus.intersects(online)).collect()
}

/// The interrupts of each device whose CPUs are all behind a cache, for each cache.
fn interrupts(machine: &Machine, caches: &[&Cache]) -> Vec<BTreeMap<String, usize>> {
    let (names, mut lots) = (names(machine), vec![BTreeMap::new(); caches.len()]);
    for interrupt in machine.interrupts.get().into_iter().flatten() {
        if let (Some(device), Some(at)) = (interrupt.device, behind(caches, interrupt)) {
            let name = names.get(&device).cloned();
            let name = name.unwrap_or_else(|| device.to_string());
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
    let all: Vec<_> = all
        .filter(|it| it.device.is_some() && it.device == network.device)
        .collect();
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
    (across > 0).then(|| {
        format!(
            "{}: {across} of {} have CPUs (XPS) behind another cache than the CPU that serves their interrupt",
            network.name,
            count(network.transmit.len(), "transmit queue")
        )
    })
}
