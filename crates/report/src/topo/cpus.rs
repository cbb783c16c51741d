//! The CPUs in a few lines: how many of what, which are kept free, which caches they share.

use nearfar_machine::{CpuSet, Known, Machine};

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading};
use crate::style::{Role, Style};
use crate::summary::{self, Summary};

/// The section on CPUs and caches.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    if machine.cpus.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(&[("", Side::Left), ("", Side::Left)]);
    let mut line = |label: &str, role, text: String| {
        grid.row(vec![Cell::new(Role::Dim, label), Cell::new(role, text)])
    };
    line(
        "online",
        Role::Subject,
        machine.cpu_states.online.to_string(),
    );
    let offline: CpuSet = machine
        .cpus
        .iter()
        .filter(|cpu| !cpu.online)
        .map(|cpu| cpu.id)
        .collect();
    let states = &machine.cpu_states;
    let sets = [
        ("offline", Some(&offline)),
        ("isolated", states.isolated.get()),
        ("tickless", states.nohz_full.get()),
        (
            "allowed here",
            states
                .allowed
                .get()
                .filter(|allowed| **allowed != states.online),
        ),
    ];
    for (label, set) in sets {
        if let Some(set) = set.filter(|set| !set.is_empty()) {
            line(label, Role::Subject, set.to_string());
        }
    }
    let homeless: CpuSet = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.node.is_none())
        .map(|cpu| cpu.id)
        .collect();
    if !homeless.is_empty() {
        line("on no node", Role::Warning, homeless.to_string());
    }
    for (level, text) in summary::caches(machine) {
        line(&level, Role::Plain, text);
    }
    if let Known::Yes(governor) = &machine.settings.governor {
        line("governor", Role::Plain, governor.clone());
    }
    heading(style, "CPUs", &structure(&Summary::of(machine))) + &grid.render(style)
}

fn structure(summary: &Summary) -> String {
    let mut parts = vec![summary.cpus()];
    parts.extend(summary.packages.map(|packages| count(packages, "package")));
    parts.extend(summary.cores.map(|cores| count(cores, "core")));
    parts.extend(
        summary
            .threads
            .map(|threads| format!("{} a core", count(threads, "thread"))),
    );
    parts.join(", ")
}
