//! What the source could not see, and why: reasons that are the same are said once.

use std::collections::BTreeMap;

use nearfar_machine::Machine;

use crate::document::Document;

/// The section on what is unknown; nothing when everything is known.
pub(super) fn section(machine: &Machine, out: &mut Document) {
    let reasons = reasons(machine);
    if reasons.is_empty() {
        return;
    }
    out.heading("Unknown", "");
    for (reason, what) in reasons {
        out.remark(format!("{}: {reason}", what.join(", ")));
    }
}

/// Parts of the machine by the reason why they are unknown.
pub(crate) fn reasons(machine: &Machine) -> BTreeMap<&str, Vec<&'static str>> {
    let cpus = machine
        .online_nodes()
        .find_map(|node| node.cpus.unknown_reason());
    let parts = [
        ("nodes", machine.nodes_unknown_reason()),
        ("CPUs of nodes", cpus),
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
    let mut reasons: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    for (what, reason) in parts {
        if let Some(reason) = reason {
            reasons.entry(reason).or_default().push(what);
        }
    }
    reasons
}
