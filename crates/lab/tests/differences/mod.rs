//! Whether a guest is the machine it was meant to be.

use std::collections::BTreeMap;

use nearfar_machine::{CpuSet, Distances, Known, Machine, Node, NodeId, PciDevice, RootBus};

/// The part of a node's memory that a guest's kernel may keep for itself: `struct page` of its own memory, tables and the
/// kernel's image, all of which come off what it calls the total. The image and early tables lie on one node.
const RESERVED: u64 = 192 << 20;
/// The first root bus, which carries what the lab itself needs: disks, channels, the board's own functions.
const FIRST: RootBus = RootBus { domain: 0, bus: 0 };

/// What differs between the machine a design promises (`Design::expected`) and the one that
/// nearfar saw inside the guest, in sentences: states, memory, CPUs and distances of nodes, devices by kind and node, the
/// nodes of each NVMe subsystem's controllers. Empty when they agree.
///
/// Memory agrees when there is no more than expected and no less than a kernel may take for itself. Names, addresses and
/// the functions of the first root bus do not count.
pub fn differences(expected: &Machine, inside: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    nodes(expected, inside, &mut found);
    distances(expected, inside, &mut found);
    multiset(
        "devices",
        functions(expected),
        functions(inside),
        &mut found,
    );
    multiset(
        "NVMe subsystems",
        subsystems(expected),
        subsystems(inside),
        &mut found,
    );
    found
}

fn nodes(expected: &Machine, inside: &Machine, found: &mut Vec<String>) {
    let (online, there) = (expected.online_node_set(), inside.online_node_set());
    if online != there {
        found.push(format!("nodes {online} were to be online, {there} are"));
    }
    for node in expected.online_nodes() {
        let Some(other) = inside.node(node.id).filter(|other| other.online) else {
            continue;
        };
        if node.cpus != other.cpus {
            found.push(format!(
                "node {} was to have CPUs {}, has {}",
                node.id,
                shown(node.known_cpus()),
                shown(other.known_cpus())
            ));
        }
        memory(node, other, found);
    }
}

fn shown(set: &CpuSet) -> String {
    if set.is_empty() {
        "none".to_owned()
    } else {
        set.to_string()
    }
}

fn memory(node: &Node, inside: &Node, found: &mut Vec<String>) {
    let Some((expected, there)) = node.total_bytes().zip(inside.total_bytes()) else {
        return;
    };
    // An eighth for the rest of a large node: maps of its pages, and ranges that firmware keeps.
    let least = expected
        .saturating_sub(RESERVED)
        .saturating_sub(expected / 8)
        .max(u64::from(expected > 0));
    if !(least..=expected).contains(&there) {
        let mebibytes = |bytes: u64| bytes >> 20;
        found.push(format!(
            "node {} was to have {} MiB, has {}",
            node.id,
            mebibytes(expected),
            mebibytes(there)
        ));
    }
}

fn distances(expected: &Machine, inside: &Machine, found: &mut Vec<String>) {
    table(
        "the kernel's",
        &expected.distances,
        &inside.distances,
        found,
    );
    // Reading the firmware's own table takes root, which a command in the guest need not be.
    if let (Known::Yes(_), Known::Yes(_)) =
        (&expected.firmware_distances, &inside.firmware_distances)
    {
        table(
            "the firmware's",
            &expected.firmware_distances,
            &inside.firmware_distances,
            found,
        );
    }
}

fn table(
    whose: &str,
    expected: &Known<Distances>,
    inside: &Known<Distances>,
    found: &mut Vec<String>,
) {
    let Known::Yes(expected) = expected else {
        return;
    };
    let Known::Yes(inside) = inside else {
        found.push(format!(
            "{whose} distances are not known: {}",
            inside.unknown_reason().unwrap_or_default()
        ));
        return;
    };
    for (from, to, distance) in expected.entries() {
        let there = inside.get(from, to);
        if there != distance {
            let words = |distance: Option<_>| {
                distance.map_or(
                    "unknown".to_owned(),
                    |distance: nearfar_machine::Distance| distance.to_string(),
                )
            };
            found.push(format!(
                "{whose} distance from {from} to {to} was to be {}, is {}",
                words(distance),
                words(there)
            ));
        }
    }
}

/// A number of equal things.
type Counted = BTreeMap<String, usize>;

fn on(node: &Known<Option<NodeId>>) -> String {
    match node {
        Known::Yes(Some(node)) => format!("node {node}"),
        Known::Yes(None) => "no node".to_owned(),
        Known::No { .. } => "an unknown node".to_owned(),
    }
}

fn functions(machine: &Machine) -> Counted {
    let counts = |function: &&PciDevice| !function.is_bridge() && function.root != FIRST;
    let mut counted = Counted::new();
    for function in machine.pci.get().into_iter().flatten().filter(counts) {
        *counted
            .entry(format!(
                "class {:04x} on {}",
                function.class_code(),
                on(&function.node)
            ))
            .or_default() += 1;
    }
    counted
}

fn subsystems(machine: &Machine) -> Counted {
    let mut counted = Counted::new();
    for subsystem in machine.nvme.get().into_iter().flatten() {
        let mut places: Vec<String> = subsystem
            .controllers
            .iter()
            .map(|controller| on(&controller.node))
            .collect();
        places.sort_unstable();
        let namespaces = subsystem.namespaces.len();
        *counted
            .entry(format!(
                "{namespaces} namespaces through {}",
                places.join(", ")
            ))
            .or_default() += 1;
    }
    counted
}

fn multiset(what: &str, expected: Counted, inside: Counted, found: &mut Vec<String>) {
    for (kind, wanted) in &expected {
        let there = inside.get(kind).copied().unwrap_or(0);
        if there != *wanted {
            found.push(format!(
                "{what}: {wanted} with {kind} were to be there, {there} are"
            ));
        }
    }
    for (kind, there) in inside
        .iter()
        .filter(|(kind, _)| !expected.contains_key(*kind))
    {
        found.push(format!(
            "{what}: {there} with {kind} are there and were not to be"
        ));
    }
}
