//! What the source could not see, and why: reasons that are the same are said once.

use std::collections::BTreeMap;

use nearfar_machine::Machine;

use crate::layout::{heading, paragraph};
use crate::style::{Role, Style};

/// The section on what is unknown; nothing when everything is known.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    let reasons = reasons(machine);
    if reasons.is_empty() {
        return String::new();
    }
    let mut out = heading(style, "Unknown", "");
    for (because, what) in reasons {
        let what = format!("{}: ", what.join(", "));
        out.push_str(&paragraph(
            style,
            2,
            (Role::Plain, ""),
            Role::Dim,
            &format!("{what}{because}"),
        ));
    }
    out
}

/// Parts of the machine by the reason why they are unknown.
pub(crate) fn reasons(machine: &Machine) -> BTreeMap<String, Vec<&'static str>> {
    let parts = [
        ("distances", machine.distances.unknown_reason()),
        ("PCI devices", machine.pci.unknown_reason()),
        (
            "firmware's device nodes",
            machine.host_bridges.unknown_reason(),
        ),
        ("interrupts", machine.interrupts.unknown_reason()),
        ("network queues", machine.networks.unknown_reason()),
        ("NVMe paths", machine.nvme.unknown_reason()),
        (
            "isolated CPUs",
            machine.cpu_states.isolated.unknown_reason(),
        ),
        ("competing writers", machine.writers.unknown_reason()),
    ];
    let mut reasons: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (what, because) in parts {
        if let Some(because) = because {
            reasons.entry(because.to_owned()).or_default().push(what);
        }
    }
    reasons
}
