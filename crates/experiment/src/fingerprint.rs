//! What two systems must have in common for their samples to belong to one run.

use nearfar_machine::Machine;
use nearfar_runs::Host;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A digest of host, kernel, emulation with its delays, nodes, distances, CPUs and caches. Free memory, interrupts, devices
/// and tasks are left out: they change while a run is made. 32 hexadecimal digits.
pub fn fingerprint(machine: &Machine, host: &Host) -> String {
    let nodes: Vec<_> = machine
        .nodes
        .iter()
        .map(|node| json!([node.id, node.online, node.known_cpus()]))
        .collect();
    let same = json!({
        "host": host.name,
        "kernel": [host.kernel, host.kernel_version],
        "emulation": machine.origin.emulation,
        "overlays": machine.origin.overlays,
        "nodes": nodes,
        "distances": machine.distances,
        "cpus": machine.cpus,
        "caches": machine.caches,
    });
    Sha256::digest(same.to_string())
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
