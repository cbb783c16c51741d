//! Several descriptions of one machine are one: `lscpu` and `numactl -H` in one mail, a snapshot and the table of
//! `nvidia-smi` that came later.
//!
//! What only one of them knows is taken from it. Where two of them know a value and it differs, the first one's is
//! taken, and a warning names both. What changes while a machine runs (free memory, counts) does not contradict.

use std::borrow::Cow;
use std::fmt::Display;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, Distances, Interrupt, Known, Machine, Memory, Node, NodeSet, NvmeSubsystem,
    SourceKind, Warning,
};

/// Sizes that programs print in whole MiB differ by less than this, in bytes.
const ROUNDING: u64 = 1 << 20;

/// Joins two descriptions; the names are those of messages.
pub(crate) fn join(
    first: Machine,
    second: Machine,
    first_name: &str,
    second_name: &str,
) -> Machine {
    let mut joining = Joining {
        names: [first_name, second_name],
        warnings: Vec::new(),
    };
    let mut joined = first;
    joining.origin(&mut joined, &second);
    joining.nodes(&mut joined.nodes, second.nodes);
    joining.cpus(&mut joined.cpus, second.cpus);
    joining.distances(&mut joined.distances, second.distances);
    joining.distances(&mut joined.firmware_distances, second.firmware_distances);
    place_cpus(&mut joined);
    let states = &mut joined.cpu_states;
    joining.same(
        "possible CPUs",
        &mut states.possible,
        second.cpu_states.possible,
    );
    joining.same(
        "isolated CPUs",
        &mut states.isolated,
        second.cpu_states.isolated,
    );
    joining.same(
        "nohz_full CPUs",
        &mut states.nohz_full,
        second.cpu_states.nohz_full,
    );
    first_known(&mut states.allowed, second.cpu_states.allowed);
    joining.same(
        "possible nodes",
        &mut joined.possible_nodes,
        second.possible_nodes,
    );
    if joined.caches.is_empty() {
        joined.caches = second.caches;
    }
    union(
        &mut joined.pci,
        second.pci,
        |device| device.address,
        |_, _| (),
    );
    union(
        &mut joined.host_bridges,
        second.host_bridges,
        |bridge| bridge.root,
        |_, _| (),
    );
    union(
        &mut joined.interrupts,
        second.interrupts,
        |interrupt| interrupt.irq,
        interrupt,
    );
    union(
        &mut joined.networks,
        second.networks,
        |network| network.name.clone(),
        |known, other| {
            known.device = known.device.or(other.device);
            first_known(&mut known.node, other.node);
        },
    );
    union(
        &mut joined.nvme,
        second.nvme,
        |subsystem| subsystem.name.clone(),
        subsystem,
    );
    let disks: Vec<_> = second
        .disks
        .into_iter()
        .filter(|disk| joined.disks.iter().all(|known| known.name != disk.name))
        .collect();
    joined.disks.extend(disks);
    joined.disks.sort_by(|a, b| a.name.cmp(&b.name));
    first_known(&mut joined.tasks, second.tasks);
    first_known(&mut joined.cpusets, second.cpusets);
    first_known(&mut joined.writers, second.writers);
    let settings = &mut joined.settings;
    first_known(&mut settings.numa_balancing, second.settings.numa_balancing);
    first_known(
        &mut settings.default_interrupt_affinity,
        second.settings.default_interrupt_affinity,
    );
    first_known(&mut settings.governor, second.settings.governor);
    first_known(
        &mut settings.transparent_huge_pages,
        second.settings.transparent_huge_pages,
    );
    joined.warnings.extend(second.warnings);
    joined.warnings.extend(joining.warnings);
    joined
}

struct Joining<'a> {
    names: [&'a str; 2],
    warnings: Vec<Warning>,
}

impl Joining<'_> {
    fn contradiction(&mut self, what: &str, first: impl Display, second: impl Display) {
        let [first_name, second_name] = self.names;
        let message = format!(
            "{what}: {first} by {first_name}, {second} by {second_name}; the first was taken"
        );
        const MOST: usize = 64;
        if self.warnings.len() < MOST {
            self.warnings.push(Warning::new("sources", message));
        }
    }

    fn same<T: PartialEq + Display>(&mut self, what: &str, known: &mut Known<T>, other: Known<T>) {
        if let (Some(first), Some(second)) = (known.get(), other.get())
            && first != second
        {
            self.contradiction(what, first, second);
        }
        first_known(known, other);
    }

    fn origin(&mut self, joined: &mut Machine, other: &Machine) {
        let (origin, other) = (&mut joined.origin, &other.origin);
        if origin.place != other.place {
            origin.place = format!("{}, {}", origin.place, other.place);
        }
        let is_text = |kind| matches!(kind, SourceKind::NumactlText | SourceKind::Text);
        if origin.kind != other.kind {
            origin.kind = match is_text(origin.kind) && is_text(other.kind) {
                true => SourceKind::Text,
                false => SourceKind::Joined,
            };
        }
        if let (Some(first), Some(second)) = (&origin.host, &other.host)
            && first != second
        {
            let (first, second) = (first.clone(), second.clone());
            self.contradiction("host", first, second);
        }
        self.same("kernel", &mut origin.kernel, other.kernel.clone());
        self.same(
            "architecture",
            &mut origin.architecture,
            other.architecture.clone(),
        );
        self.same("product", &mut origin.product, other.product.clone());
        let or = |known: &mut Option<String>, other: &Option<String>| {
            *known = known.take().or_else(|| other.clone());
        };
        or(&mut origin.host, &other.host);
        or(&mut origin.boot, &other.boot);
        or(&mut origin.kernel_base, &other.kernel_base);
        or(&mut origin.firmware, &other.firmware);
        or(&mut origin.cpu_model, &other.cpu_model);
        origin.taken_at_s = origin.taken_at_s.or(other.taken_at_s);
        origin.emulation = origin.emulation.take().or_else(|| other.emulation.clone());
    }

    fn nodes(&mut self, nodes: &mut Vec<Node>, others: Vec<Node>) {
        for other in others {
            match nodes.binary_search_by_key(&other.id, |node| node.id) {
                Ok(at) => self.node(&mut nodes[at], other),
                Err(at) => nodes.insert(at, other),
            }
        }
    }

    fn node(&mut self, node: &mut Node, other: Node) {
        let name = format!("node {}", node.id);
        self.same(&format!("CPUs of {name}"), &mut node.cpus, other.cpus);
        match (&mut node.memory, other.memory) {
            (Known::Yes(memory), Known::Yes(other)) => self.memory(&name, memory, other),
            (memory, other) => first_known(memory, other),
        }
        if node.access.is_empty() {
            node.access = other.access;
        }
        if node.memory_side_caches.is_empty() {
            node.memory_side_caches = other.memory_side_caches;
        }
        node.generic_initiator |= other.generic_initiator;
        node.tier = node.tier.or(other.tier);
    }

    fn memory(&mut self, node: &str, memory: &mut Memory, other: Memory) {
        let size = nearfar_machine::size::render;
        if memory.total_bytes.abs_diff(other.total_bytes) > ROUNDING {
            let what = format!("memory of {node}");
            self.contradiction(&what, size(memory.total_bytes), size(other.total_bytes));
        } else if memory.total_bytes.is_multiple_of(ROUNDING) {
            memory.total_bytes = other.total_bytes;
        }
        let free = memory.free_bytes.or(other.free_bytes);
        memory.free_bytes = free.filter(|&free| free <= memory.total_bytes);
        if memory.huge_pages.is_empty() {
            memory.huge_pages = other.huge_pages;
        }
    }

    fn cpus(&mut self, cpus: &mut Vec<Cpu>, others: Vec<Cpu>) {
        let mut differ = [CpuSet::new(), CpuSet::new()];
        let mut missing = Vec::new();
        for other in others {
            let Ok(at) = cpus.binary_search_by_key(&other.id, |cpu| cpu.id) else {
                missing.push(other);
                continue;
            };
            let cpu = &mut cpus[at];
            let contradicts = |known: Option<CpuId>, other: Option<CpuId>| {
                known
                    .zip(other)
                    .is_some_and(|(known, other)| known != other)
            };
            if contradicts(cpu.core, other.core) {
                differ[0].insert(cpu.id);
            }
            if cpu.online != other.online {
                differ[1].insert(cpu.id);
            }
            cpu.core = cpu.core.or(other.core);
            cpu.kernel_core_id = cpu.kernel_core_id.or(other.kernel_core_id);
            cpu.cluster = cpu.cluster.or(other.cluster);
            cpu.die = cpu.die.or(other.die);
            cpu.package = cpu.package.or(other.package);
            cpu.package_leader = cpu.package_leader.or(other.package_leader);
            cpu.book = cpu.book.or(other.book);
            cpu.drawer = cpu.drawer.or(other.drawer);
            cpu.capacity = cpu.capacity.or(other.capacity);
        }
        cpus.extend(missing);
        cpus.sort_by_key(|cpu| cpu.id);
        let [cores, states] = differ;
        if !cores.is_empty() {
            self.contradiction(&format!("cores of CPUs {cores}"), "some", "others");
        }
        if !states.is_empty() {
            self.contradiction(
                &format!("state of CPUs {states}"),
                "online or not",
                "the opposite",
            );
        }
    }

    fn distances(&mut self, known: &mut Known<Distances>, other: Known<Distances>) {
        let (Some(first), Some(second)) = (known.get(), other.get()) else {
            return first_known(known, other);
        };
        let nodes = first.nodes().iter().chain(second.nodes()).copied();
        let mut joined = Distances::empty(first.origin(), nodes);
        let mut differ = NodeSet::new();
        for (from, to, distance) in second.entries().chain(first.entries()) {
            let before = joined.get(from, to);
            if let (Some(before), Some(distance)) = (before, distance)
                && before != distance
            {
                differ.insert(from);
            }
            joined.set(from, to, distance.or(before));
        }
        *known = Known::Yes(joined);
        if let Some(from) = differ.first() {
            let row = |table: &Known<Distances>| {
                let row = table.get().into_iter().flat_map(|table| table.row(from));
                let row = row.map(|(_, distance)| {
                    distance.map_or("-".to_owned(), |distance| distance.to_string())
                });
                row.collect::<Vec<_>>().join(" ")
            };
            let what = format!("distances from nodes {differ}, of which from node {from}");
            self.contradiction(&what, row(known), row(&other));
        }
    }
}

/// Which node a CPU is on is what the lists of the nodes say; a CPU of a list is there.
pub(crate) fn place_cpus(machine: &mut Machine) {
    let listed: CpuSet = machine
        .nodes
        .iter()
        .fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
    let known: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let missing = listed.difference(&known);
    machine
        .cpus
        .extend(missing.iter().map(|cpu| Cpu::new(cpu, None)));
    machine.cpus.sort_by_key(|cpu| cpu.id);
    for cpu in &mut machine.cpus {
        let on = |node: &&Node| node.known_cpus().contains(cpu.id);
        cpu.node = machine.nodes.iter().find(on).map(|node| node.id);
    }
    let online = machine.cpus.iter().filter(|cpu| cpu.is_online());
    machine.cpu_states.online = online.map(|cpu| cpu.id).collect();
}

/// Takes the other value where this one is unknown; of two reasons both where they differ.
fn first_known<T>(known: &mut Known<T>, other: Known<T>) {
    *known = match (std::mem::replace(known, Known::no("")), other) {
        (Known::Yes(value), _) | (Known::No { .. }, Known::Yes(value)) => Known::Yes(value),
        (
            Known::No {
                unknown_reason: first,
            },
            Known::No {
                unknown_reason: second,
            },
        ) => {
            let both = match first.contains(&*second) {
                true => first,
                false => Cow::Owned(format!("{first}; {second}")),
            };
            Known::no(both)
        }
    };
}

/// Things by key, in ascending order; what both have is merged.
fn union<T, K: Ord>(
    known: &mut Known<Vec<T>>,
    other: Known<Vec<T>>,
    key: impl Fn(&T) -> K,
    merge: impl Fn(&mut T, T),
) {
    match (known, other) {
        (Known::Yes(known), Known::Yes(others)) => {
            let mut missing = Vec::new();
            for other in others {
                match known.binary_search_by_key(&key(&other), &key) {
                    Ok(at) => merge(&mut known[at], other),
                    Err(_) => missing.push(other),
                }
            }
            known.extend(missing);
            known.sort_by_key(&key);
        }
        (known, other) => first_known(known, other),
    }
}

fn interrupt(known: &mut Interrupt, other: Interrupt) {
    if known.name.is_empty() {
        (known.name, known.queue) = (other.name, other.queue);
        known.device_unknown_reason = other.device_unknown_reason;
        known.immovable_reason = other.immovable_reason;
    }
    known.device = known.device.or(other.device);
    if known.device.is_some() {
        known.device_unknown_reason = None;
    }
    first_known(&mut known.affinity, other.affinity);
    first_known(&mut known.effective, other.effective);
    first_known(&mut known.managed, other.managed);
    first_known(&mut known.node, other.node);
    first_known(&mut known.count, other.count);
}

fn subsystem(known: &mut NvmeSubsystem, other: NvmeSubsystem) {
    first_known(&mut known.iopolicy, other.iopolicy);
    known.nqn = known.nqn.take().or(other.nqn);
    known.model = known.model.take().or(other.model);
    for controller in other.controllers {
        if known
            .controllers
            .iter()
            .all(|other| other.name != controller.name)
        {
            known.controllers.push(controller);
        }
    }
    if known.namespaces.is_empty() {
        known.namespaces = other.namespaces;
    }
}
