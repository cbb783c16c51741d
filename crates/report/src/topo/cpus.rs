//! The CPUs in a few lines: how many of what, which are kept free, which caches they share.

use nearfar_machine::{Cpu, CpuSet, Machine};

use crate::amount::count;
use crate::document::Document;
use crate::style::Role::{Plain, Subject, Warning};
use crate::summary::{self, Summary};

/// The section on CPUs and caches.
pub(super) fn section(machine: &Machine, out: &mut Document) {
    if machine.cpus.is_empty() {
        return;
    }
    let that = |test: fn(&Cpu) -> bool| -> CpuSet {
        let cpus = machine.cpus.iter().filter(|cpu| test(cpu));
        cpus.map(|cpu| cpu.id).collect()
    };
    let (offline, on_no_node) = (
        that(Cpu::is_offline),
        that(|cpu| !cpu.is_offline() && cpu.node.is_none()),
    );
    let of_unknown_state = that(|cpu| cpu.online.get().is_none());
    let on_no_node = match machine.cpu_nodes_unknown_reason() {
        Some(_) => ("node unknown", Plain, Some(&on_no_node)),
        None => ("on no node", Warning, Some(&on_no_node)),
    };
    let states = &machine.cpu_states;
    let allowed = states
        .allowed
        .get()
        .filter(|allowed| **allowed != states.online);
    let sets = [
        ("offline", Subject, Some(&offline)),
        ("isolated", Subject, states.isolated.get()),
        ("tickless", Subject, states.nohz_full.get()),
        ("allowed here", Subject, allowed),
        on_no_node,
        ("state unknown", Warning, Some(&of_unknown_state)),
    ];
    let online = ("online".to_owned(), Subject.text(&states.online));
    let sets = sets.into_iter().filter_map(|(label, role, cpus)| {
        let cpus = cpus.filter(|cpus| !cpus.is_empty())?;
        Some((label.to_owned(), role.text(cpus)))
    });
    let caches = summary::caches(machine).into_iter();
    let caches = caches.map(|(level, text)| (level, Plain.text(text)));
    let governor = machine.settings.governor.get();
    let governor = governor.map(|governor| ("governor".to_owned(), Plain.text(governor)));
    out.heading("CPUs", structure(&Summary::of(machine)));
    out.facts(
        [online]
            .into_iter()
            .chain(sets)
            .chain(caches)
            .chain(governor),
    );
}

fn structure(summary: &Summary) -> String {
    let mut parts = vec![summary.cpus()];
    parts.extend(summary.packages.map(|packages| count(packages, "package")));
    parts.extend(summary.cores.map(|cores| count(cores, "core")));
    let threads = summary.threads.map(|threads| count(threads, "thread"));
    parts.extend(threads.map(|threads| format!("{threads} per core")));
    parts.join(", ")
}
