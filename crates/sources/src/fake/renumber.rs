//! Gives a machine its fake nodes, and every reference to a real node its new meaning.

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, Latency, Machine, Memory, Node,
    NodeId, NodeSet, Warning,
};

use super::cut::Part;

const BECAUSE: &str = "fake nodes lie over the machine, and the source counted by real node";

/// What has become of the real nodes.
struct Numbers {
    /// The real node behind each new one, by number.
    parents: Vec<NodeId>,
    /// The new nodes of each real one, ascending.
    fakes: BTreeMap<NodeId, NodeSet>,
}

impl Numbers {
    /// Fakes first, then the nodes that got none.
    fn new(machine: &Machine, parts: &[Part]) -> Self {
        let mut parents: Vec<NodeId> = parts.iter().map(|part| part.real).collect();
        let without = machine
            .nodes
            .iter()
            .map(|node| node.id)
            .filter(|id| parts.iter().all(|part| part.real != *id));
        parents.extend(without);
        let mut fakes: BTreeMap<NodeId, NodeSet> = BTreeMap::new();
        for (number, &real) in (0..).zip(&parents) {
            fakes.entry(real).or_default().insert(NodeId(number));
        }
        Self { parents, fakes }
    }

    fn lowest(&self, real: NodeId) -> Option<NodeId> {
        self.fakes.get(&real)?.first()
    }

    fn all(&self, real: &NodeSet) -> NodeSet {
        real.iter()
            .filter_map(|real| self.fakes.get(&real))
            .fold(NodeSet::new(), |all, fakes| all.union(fakes))
    }
}

pub(super) fn machine(mut machine: Machine, parts: &[Part], shares: &[CpuSet]) -> Machine {
    let numbers = Numbers::new(&machine, parts);
    let nodes = nodes(&machine, &numbers, parts, shares);
    note_moved(&mut machine, &numbers, parts);
    set_homes(&mut machine, &nodes);
    set_distances(&mut machine, &numbers, &nodes);
    machine.nodes = nodes;
    machine.possible_nodes = match machine.possible_nodes {
        Known::Yes(_) => Known::Yes(machine.nodes.iter().map(|node| node.id).collect()),
        unknown => unknown,
    };
    timing(&mut machine, &numbers);
    devices(&mut machine, &numbers);
    tasks(&mut machine, &numbers);
    machine
}

fn nodes(machine: &Machine, numbers: &Numbers, parts: &[Part], shares: &[CpuSet]) -> Vec<Node> {
    let build = |(number, &real): (u32, &NodeId)| {
        let below = machine.node(real)?;
        let mut node = Node {
            id: NodeId(number),
            fake_of: Some(real),
            ..below.clone()
        };
        match parts.get(number as usize) {
            Some(part) => {
                let share = shares.get(number as usize);
                node.cpus = below
                    .cpus
                    .clone()
                    .map(|_| share.cloned().unwrap_or_default());
                node.memory = match part.bytes {
                    Some(bytes) => Known::Yes(Memory::of(bytes)),
                    None => below
                        .memory
                        .clone()
                        .known()
                        .map_or_else(|| below.memory.clone(), |_| Known::no(BECAUSE)),
                };
            }
            // Its CPUs went to another node, and so did its memory where there are fewer fakes than real nodes. Without
            // either it does not come online.
            None => {
                let empty = below.has_cpus() == Some(false) && below.has_memory() != Some(true);
                node.online &= empty;
                node.cpus = below.cpus.clone().map(|_| CpuSet::new());
                if !empty && below.online {
                    node.memory = Known::Yes(Memory::of(0));
                }
            }
        }
        for access in &mut node.access {
            access.initiators = numbers.all(&access.initiators);
        }
        Some(node)
    };
    (0..).zip(&numbers.parents).filter_map(build).collect()
}

fn note_moved(machine: &mut Machine, numbers: &Numbers, parts: &[Part]) {
    for node in &machine.nodes {
        if parts.iter().any(|part| part.real == node.id) {
            continue;
        }
        let Some(number) = numbers.lowest(node.id) else {
            continue;
        };
        let moved = match node.known_cpus().is_empty() {
            true => String::new(),
            false => format!(
                "; its CPUs {} were moved to the fakes of node 0's real node",
                node.known_cpus()
            ),
        };
        let message = format!(
            "real node {} got no fake and is number {number} now{moved}",
            node.id
        );
        machine.warnings.push(Warning::new("fake nodes", message));
    }
}

/// A CPU's node is the lowest that has it.
fn set_homes(machine: &mut Machine, nodes: &[Node]) {
    let mut homes: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    for node in nodes {
        for cpu in node.known_cpus().iter() {
            homes.entry(cpu).or_insert(node.id);
        }
    }
    for cpu in &mut machine.cpus {
        cpu.node = homes.get(&cpu.id).copied();
    }
}

fn set_distances(machine: &mut Machine, numbers: &Numbers, nodes: &[Node]) {
    let everywhere = table(machine, numbers, nodes.iter().map(|node| node.id));
    let online = table(
        machine,
        numbers,
        nodes.iter().filter(|node| node.online).map(|node| node.id),
    );
    if machine.distances.get().is_some() {
        machine.distances = Known::Yes(online);
    }
    // The firmware counts real nodes; where all nodes are online the table of the fakes says the same.
    machine.firmware_distances = match &machine.firmware_distances {
        Known::Yes(_) if nodes.iter().any(|node| !node.online) => Known::Yes(everywhere),
        Known::Yes(_) => Known::no("the firmware's table is one of real nodes"),
        unknown => unknown.clone(),
    };
}

fn table(machine: &Machine, numbers: &Numbers, nodes: impl Iterator<Item = NodeId>) -> Distances {
    let mut table = Distances::empty(DistanceOrigin::Fake, nodes);
    let parent = |node: NodeId| numbers.parents.get(node.0 as usize).copied();
    for (from, to, _) in table.clone().entries() {
        let inherited = parent(from)
            .zip(parent(to))
            .and_then(|(from, to)| machine.distance(from, to));
        table.set(
            from,
            to,
            if from == to {
                inherited.or(Some(Distance::LOCAL))
            } else {
                inherited
            },
        );
    }
    table
}

/// A fake has the latencies of its real node.
fn timing(machine: &mut Machine, numbers: &Numbers) {
    let Some(timing) = machine.timing.take() else {
        return;
    };
    let fakes = || (0..).map(NodeId).zip(numbers.parents.iter().copied());
    let pairs = fakes().flat_map(|from| fakes().map(move |to| (from, to)));
    let latencies = pairs.filter_map(|((cpu_node, from), (memory_node, to))| {
        Some(Latency {
            cpu_node,
            memory_node,
            ns: timing.latency_ns(from, to)?,
        })
    });
    let latencies: Vec<_> = latencies.collect();
    machine.timing = Some(timing.with_latencies(latencies));
}

fn devices(machine: &mut Machine, numbers: &Numbers) {
    let lowest = |node: &mut Known<Option<NodeId>>| {
        if let Known::Yes(Some(real)) = node {
            *node = Known::Yes(numbers.lowest(*real));
        }
    };
    known(&mut machine.pci).for_each(|device| lowest(&mut device.node));
    known(&mut machine.networks).for_each(|network| lowest(&mut network.node));
    known(&mut machine.interrupts).for_each(|interrupt| lowest(&mut interrupt.node));
    known(&mut machine.nvme)
        .flat_map(|nvme| &mut nvme.controllers)
        .for_each(|nvme| lowest(&mut nvme.node));
    for bridge in known(&mut machine.host_bridges) {
        if let Known::Yes(Some(firmware)) = &mut bridge.firmware {
            match numbers.lowest(firmware.node) {
                Some(node) => firmware.node = node,
                None => {
                    bridge.firmware =
                        Known::no("the firmware names a node that this machine does not list")
                }
            }
        }
    }
}

fn tasks(machine: &mut Machine, numbers: &Numbers) {
    for task in known(&mut machine.tasks) {
        if let Known::Yes(nodes) = &mut task.allowed_nodes {
            *nodes = numbers.all(nodes);
        }
        if let Known::Yes(Some(real)) = &task.preferred_node {
            task.preferred_node = Known::Yes(numbers.lowest(*real));
        }
        if task.memory.get().is_some() {
            task.memory = Known::no(BECAUSE);
            task.sample = None;
        }
        if task.policies.get().is_some() {
            task.policies = Known::no(BECAUSE);
        }
    }
    for cpuset in known(&mut machine.cpusets) {
        if let Known::Yes(nodes) = &mut cpuset.nodes {
            *nodes = numbers.all(nodes);
        }
    }
}

/// The items of a list that is known; none otherwise.
fn known<T>(list: &mut Known<Vec<T>>) -> std::slice::IterMut<'_, T> {
    match list {
        Known::Yes(items) => items.iter_mut(),
        Known::No { .. } => [].iter_mut(),
    }
}
