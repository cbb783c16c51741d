//! Several descriptions of one machine are one: `lscpu` and `numactl -H` in one mail, a snapshot and the table of
//! `nvidia-smi` that came later.
//!
//! What only one of them knows is taken from it. Where two of them know a value and it differs, the first one's is
//! taken, and a warning names both. What changes while a machine runs (free memory, counts) does not contradict.
//!
//! [`finish`] does what is left to do when all of them are read.

use std::collections::BTreeSet;
use std::fmt::Display;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, CpuStates, Distance, Distances, HostBridge, Interrupt, Known, LineDelay,
    LineTransfer, Machine, Memory, Neighbourhood, NetworkDevice, Node, NodeSet, NvmeController,
    NvmeSubsystem, Origin, OsDevice, PciDevice, Settings, SourceKind, Timing, Warning,
};

use crate::error::Warnings;

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
        warnings: Warnings::about("sources"),
    };
    // Named one by one, here and below: a part that is added later does not compile before it is joined.
    let Machine {
        origin,
        nodes,
        possible_nodes,
        distances,
        firmware_distances,
        cpus,
        cpu_states,
        caches,
        pci,
        host_bridges,
        interrupts,
        networks,
        disks,
        os_devices,
        nvme,
        tasks,
        services,
        cpusets,
        settings,
        timing,
        writers,
        warnings,
    } = second;
    let mut joined = first;
    joining.origin(&mut joined.origin, origin);
    let id = |node: &Node| node.id;
    let own: NodeSet = joined.nodes.iter().map(id).collect();
    let placed: CpuSet = joined.nodes.iter().map(Node::known_cpus).collect();
    merge(&mut joined.nodes, nodes, id, |node, other| {
        joining.node(node, other);
    });
    for node in joined.nodes.iter_mut().filter(|it| !own.contains(it.id)) {
        let twice = node.known_cpus().intersection(&placed);
        if !twice.is_empty() {
            let what = format!("CPUs {twice}");
            joining.contradiction(&what, "on other nodes", format!("on node {}", node.id));
            // Taking these CPUs away could leave a node that seems to have none.
            node.cpus = Known::no(format!(
                "{second_name} gives it CPUs {twice}, which {first_name} has on other nodes"
            ));
        }
    }
    joining.cpus(&mut joined.cpus, cpus);
    joining.distances(&mut joined.distances, distances);
    joining.distances(&mut joined.firmware_distances, firmware_distances);
    joined.timing = match (joined.timing.take(), timing) {
        (Some(first), Some(second)) => Some(first.or(second)),
        (first, second) => first.or(second),
    };
    place_cpus(&mut joined);
    let CpuStates {
        possible,
        // What place_cpus() has just said.
        online: _,
        isolated,
        nohz_full,
        managed_irq,
        allowed,
    } = cpu_states;
    let states = &mut joined.cpu_states;
    joining.same("possible CPUs", &mut states.possible, possible);
    joining.same("isolated CPUs", &mut states.isolated, isolated);
    joining.same("nohz_full CPUs", &mut states.nohz_full, nohz_full);
    joining.same("managed_irq CPUs", &mut states.managed_irq, managed_irq);
    first_known(&mut states.allowed, allowed);
    joining.same("possible nodes", &mut joined.possible_nodes, possible_nodes);
    first_listed(&mut joined.caches, caches);
    unite(&mut joined.pci, pci, |it| it.address, device);
    let bridges = &mut joined.host_bridges;
    unite(bridges, host_bridges, |it| it.root, bridge);
    unite(&mut joined.interrupts, interrupts, |it| it.irq, interrupt);
    let name = |it: &NetworkDevice| it.name.clone();
    unite(&mut joined.networks, networks, name, network);
    unite(&mut joined.nvme, nvme, |it| it.name.clone(), subsystem);
    merge(&mut joined.disks, disks, |it| it.name.clone(), |_, _| ());
    let os_device = |it: &OsDevice| (it.name.clone(), it.device);
    merge(&mut joined.os_devices, os_devices, os_device, |_, _| ());
    first_known(&mut joined.tasks, tasks);
    first_listed(&mut joined.services, services);
    first_known(&mut joined.cpusets, cpusets);
    first_known(&mut joined.writers, writers);
    let Settings {
        numa_balancing,
        default_interrupt_affinity,
        governor,
        transparent_huge_pages,
        zone_reclaim_mode,
    } = settings;
    let known = &mut joined.settings;
    first_known(&mut known.numa_balancing, numa_balancing);
    let affinity = &mut known.default_interrupt_affinity;
    first_known(affinity, default_interrupt_affinity);
    first_known(&mut known.governor, governor);
    first_known(&mut known.transparent_huge_pages, transparent_huge_pages);
    first_known(&mut known.zone_reclaim_mode, zone_reclaim_mode);
    joined.warnings.extend(warnings);
    joined.warnings.extend(joining.warnings.finish());
    joined
}

/// What says that two descriptions are of different machines: what it is, and both values.
pub(crate) fn difference(first: &Origin, second: &Origin) -> Option<(&'static str, [String; 2])> {
    let hosts = first.host.as_ref().zip(second.host.as_ref());
    let products = first.product.get().zip(second.product.get());
    let what = [("host", hosts), ("product", products)];
    let known = what
        .into_iter()
        .filter_map(|(what, values)| Some((what, values?)));
    let mut differ = known.filter(|(_, (first, second))| first != second);
    let (what, (first, second)) = differ.next()?;
    Some((what, [first.clone(), second.clone()]))
}

struct Joining<'a> {
    names: [&'a str; 2],
    warnings: Warnings,
}

impl Joining<'_> {
    fn contradiction(&mut self, what: &str, first: impl Display, second: impl Display) {
        let [first_name, second_name] = self.names;
        self.warnings.note(format!(
            "{what}: {first} by {first_name}, {second} by {second_name}; the first was taken"
        ));
    }

    fn same<T: PartialEq + Display>(&mut self, what: &str, known: &mut Known<T>, other: Known<T>) {
        if let (Some(first), Some(second)) = (known.get(), other.get())
            && first != second
        {
            self.contradiction(what, first, second);
        }
        first_known(known, other);
    }

    fn origin(&mut self, origin: &mut Origin, other: Origin) {
        let Origin {
            kind,
            place,
            host,
            boot,
            kernel,
            kernel_base,
            architecture,
            product,
            firmware,
            cpu_model,
            taken_at_s,
            read_instead,
            overlays,
            emulation,
        } = other;
        if origin.place != place {
            origin.place = format!("{}, {place}", origin.place);
        }
        let is_text = |kind| matches!(kind, SourceKind::NumactlText | SourceKind::Text);
        // Of two with files a path would not say whose it is.
        if origin.kind != kind || kind.has_files() {
            origin.kind = match is_text(origin.kind) && is_text(kind) {
                true => SourceKind::Text,
                false => SourceKind::Joined,
            };
        }
        match origin.kind.has_files() {
            true => origin.read_instead.extend(read_instead),
            false => origin.read_instead.clear(),
        }
        self.same("kernel", &mut origin.kernel, kernel);
        self.same("architecture", &mut origin.architecture, architecture);
        first_known(&mut origin.product, product);
        first_some(&mut origin.host, host);
        first_some(&mut origin.boot, boot);
        first_some(&mut origin.kernel_base, kernel_base);
        first_some(&mut origin.firmware, firmware);
        first_some(&mut origin.cpu_model, cpu_model);
        first_some(&mut origin.taken_at_s, taken_at_s);
        first_some(&mut origin.emulation, emulation);
        first_listed(&mut origin.overlays, overlays);
    }

    fn node(&mut self, node: &mut Node, other: Node) {
        let Node {
            id,
            // Of a node that is not online most texts say nothing.
            online: _,
            cpus,
            memory,
            access,
            memory_side_caches,
            generic_initiator,
            tier,
            fake_of,
        } = other;
        let name = format!("node {id}");
        self.same(&format!("CPUs of {name}"), &mut node.cpus, cpus);
        match (&mut node.memory, memory) {
            (Known::Yes(memory), Known::Yes(other)) => self.memory(&name, memory, other),
            (memory, other) => first_known(memory, other),
        }
        first_listed(&mut node.access, access);
        first_listed(&mut node.memory_side_caches, memory_side_caches);
        node.generic_initiator |= generic_initiator;
        first_some(&mut node.tier, tier);
        first_some(&mut node.fake_of, fake_of);
    }

    fn memory(&mut self, node: &str, memory: &mut Memory, other: Memory) {
        let Memory {
            total_bytes,
            free_bytes,
            reclaimable_bytes,
            huge_pages,
        } = other;
        let size = nearfar_machine::size::render;
        if memory.total_bytes.abs_diff(total_bytes) > ROUNDING {
            let what = format!("memory of {node}");
            self.contradiction(&what, size(memory.total_bytes), size(total_bytes));
        } else if memory.total_bytes.is_multiple_of(ROUNDING) {
            memory.total_bytes = total_bytes;
        }
        first_some(&mut memory.free_bytes, free_bytes);
        first_some(&mut memory.reclaimable_bytes, reclaimable_bytes);
        for part in [&mut memory.free_bytes, &mut memory.reclaimable_bytes] {
            *part = part.filter(|&bytes| bytes <= memory.total_bytes);
        }
        first_listed(&mut memory.huge_pages, huge_pages);
    }

    fn cpus(&mut self, cpus: &mut Vec<Cpu>, others: Vec<Cpu>) {
        let mut differ = [CpuSet::new(), CpuSet::new()];
        merge(
            cpus,
            others,
            |cpu| cpu.id,
            |cpu, other| {
                let Cpu {
                    id,
                    online,
                    // What place_cpus() says.
                    node: _,
                    core,
                    kernel_core_id,
                    cluster,
                    die,
                    package,
                    package_leader,
                    book,
                    drawer,
                    capacity,
                } = other;
                if cpu.core.zip(core).is_some_and(|(known, it)| known != it) {
                    differ[0].insert(id);
                }
                let states = cpu.online.get().zip(online.get());
                if states.is_some_and(|(known, it)| known != it) {
                    differ[1].insert(id);
                }
                first_known(&mut cpu.online, online);
                first_some(&mut cpu.core, core);
                first_some(&mut cpu.kernel_core_id, kernel_core_id);
                first_some(&mut cpu.cluster, cluster);
                first_some(&mut cpu.die, die);
                first_some(&mut cpu.package, package);
                first_some(&mut cpu.package_leader, package_leader);
                first_some(&mut cpu.book, book);
                first_some(&mut cpu.drawer, drawer);
                first_some(&mut cpu.capacity, capacity);
            },
        );
        let [cores, states] = differ;
        if !cores.is_empty() {
            self.contradiction(&format!("cores of CPUs {cores}"), "some", "others");
        }
        if !states.is_empty() {
            let what = format!("state of CPUs {states}");
            self.contradiction(&what, "online or not", "the opposite");
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
                let entry = |it: Distance| it.to_string();
                let row = row.map(|(_, it)| it.map_or_else(|| "-".to_owned(), entry));
                row.collect::<Vec<_>>().join(" ")
            };
            let what = format!("distances from nodes {differ}, of which from node {from}");
            self.contradiction(&what, row(known), row(&other));
        }
    }
}

/// Which node a CPU is on is what the lists of the nodes say; a CPU of a list is there.
pub(crate) fn place_cpus(machine: &mut Machine) {
    let listed: CpuSet = machine.nodes.iter().map(Node::known_cpus).collect();
    let known: CpuSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let missing = listed.difference(&known);
    let missing = missing.iter().map(|cpu| Cpu::new(cpu, None));
    machine.cpus.extend(missing);
    machine.cpus.sort_by_key(|cpu| cpu.id);
    for cpu in &mut machine.cpus {
        let on = |node: &&Node| node.known_cpus().contains(cpu.id);
        cpu.node = machine.nodes.iter().find(on).map(|node| node.id);
    }
    machine.cpu_states.online = Cpu::online_set(&machine.cpus);
}

/// Takes the other value where this one is unknown; of two reasons both where they differ.
fn first_known<T>(known: &mut Known<T>, other: Known<T>) {
    match (known.unknown_reason(), other.unknown_reason()) {
        (None, _) => {}
        (Some(_), None) => *known = other,
        (Some(first), Some(second)) if first.contains(second) => {}
        (Some(first), Some(second)) => *known = Known::no(format!("{first}; {second}")),
    }
}

/// The same for what a source may not have.
fn first_some<T>(known: &mut Option<T>, other: Option<T>) {
    *known = known.take().or(other);
}

/// The same for a list that is empty where the source does not have it.
fn first_listed<T>(known: &mut Vec<T>, other: Vec<T>) {
    if known.is_empty() {
        *known = other;
    }
}

/// Lists as one, by key in ascending order; `both` joins what both have.
fn merge<T, K: Ord>(
    known: &mut Vec<T>,
    others: Vec<T>,
    key: impl Fn(&T) -> K,
    mut both: impl FnMut(&mut T, T),
) {
    known.sort_by_key(&key);
    let mut missing = Vec::new();
    for other in others {
        match known.binary_search_by_key(&key(&other), &key) {
            Ok(at) => both(&mut known[at], other),
            Err(_) => missing.push(other),
        }
    }
    known.extend(missing);
    known.sort_by_key(&key);
}

/// The same where either may be unknown.
fn unite<T, K: Ord>(
    known: &mut Known<Vec<T>>,
    others: Known<Vec<T>>,
    key: impl Fn(&T) -> K,
    both: impl FnMut(&mut T, T),
) {
    match (known, others) {
        (Known::Yes(known), Known::Yes(others)) => merge(known, others, key, both),
        (known, others) => first_known(known, others),
    }
}

fn device(known: &mut PciDevice, other: PciDevice) {
    let PciDevice {
        address: _,
        vendor: _,
        device: _,
        class: _,
        class_name,
        name,
        driver,
        parent,
        root: _,
        node,
    } = other;
    first_some(&mut known.class_name, class_name);
    first_some(&mut known.name, name);
    first_some(&mut known.driver, driver);
    first_some(&mut known.parent, parent);
    first_known(&mut known.node, node);
}

fn bridge(known: &mut HostBridge, other: HostBridge) {
    let HostBridge { root: _, firmware } = other;
    first_known(&mut known.firmware, firmware);
}

fn interrupt(known: &mut Interrupt, other: Interrupt) {
    let Interrupt {
        irq: _,
        name,
        device,
        device_unknown_reason,
        immovable_reason,
        queue,
        affinity,
        effective,
        managed,
        node,
        count,
    } = other;
    if known.name.is_empty() {
        (known.name, known.queue) = (name, queue);
        known.device_unknown_reason = device_unknown_reason;
        known.immovable_reason = immovable_reason;
    }
    first_some(&mut known.device, device);
    if known.device.is_some() {
        known.device_unknown_reason = None;
    }
    first_known(&mut known.affinity, affinity);
    first_known(&mut known.effective, effective);
    first_known(&mut known.managed, managed);
    first_known(&mut known.node, node);
    first_known(&mut known.count, count);
}

fn network(known: &mut NetworkDevice, other: NetworkDevice) {
    let NetworkDevice {
        name: _,
        device,
        mac,
        node,
        transmit,
        receive,
    } = other;
    first_some(&mut known.device, device);
    first_some(&mut known.mac, mac);
    first_known(&mut known.node, node);
    first_listed(&mut known.transmit, transmit);
    first_listed(&mut known.receive, receive);
}

fn subsystem(known: &mut NvmeSubsystem, other: NvmeSubsystem) {
    let NvmeSubsystem {
        name: _,
        nqn,
        model,
        iopolicy,
        controllers,
        namespaces,
    } = other;
    first_some(&mut known.nqn, nqn);
    first_some(&mut known.model, model);
    first_known(&mut known.iopolicy, iopolicy);
    let name = |it: &NvmeController| it.name.clone();
    merge(&mut known.controllers, controllers, name, controller);
    first_listed(&mut known.namespaces, namespaces);
}

fn controller(known: &mut NvmeController, other: NvmeController) {
    let NvmeController {
        name: _,
        state,
        transport,
        device,
        node,
        queues,
    } = other;
    first_known(&mut known.state, state);
    first_known(&mut known.transport, transport);
    first_some(&mut known.device, device);
    first_known(&mut known.node, node);
    first_known(&mut known.queues, queues);
}

/// The machine with what follows from several of its parts.
pub(crate) fn finish(machine: Machine) -> Machine {
    transfers_by_class(implausible_distances(machine))
}

/// Names the distances that no firmware should say; the table is kept as it is.
fn implausible_distances(mut machine: Machine) -> Machine {
    let mut warnings = Warnings::about(&format!("{}, distances", machine.origin.place));
    let table = machine.distances.get().into_iter();
    for (from, to, distance) in table.flat_map(|table| table.entries()) {
        let Some(distance) = distance else { continue };
        if from != to && distance < Distance::LOCAL {
            warnings.note(format!(
                "from node {from} node {to} is at {distance}, nearer than a node is to itself (10)"
            ));
        } else if from == to && distance != Distance::LOCAL {
            warnings.note(format!(
                "node {from} is at {distance} from itself, not at 10"
            ));
        }
    }
    // A snapshot brings those along that were found when it was taken.
    let known = |message: &str| machine.warnings.iter().any(|it| it.message == message);
    let mut found = warnings.finish();
    found.retain(|warning| !known(&warning.message));
    machine.warnings.extend(found);
    machine
}

/// Makes classes of what lines took between CPUs, now that it is known what the CPUs share.
fn transfers_by_class(mut machine: Machine) -> Machine {
    let Some(mut timing) = machine.timing.take() else {
        return machine;
    };
    let between_cpus = std::mem::take(&mut timing.between_cpus);
    if !between_cpus.is_empty() {
        let (transfer, message) = match timing.transfer {
            Some(transfer) => (
                Some(transfer),
                Some("another source has line transfers by class: those of single CPUs were left out".to_owned()),
            ),
            None => {
                let (transfer, message) = classes(&machine, &between_cpus);
                let source = "transfer: core-to-core-latency, medians by class";
                let source = transfer.as_ref().map(|_| source.to_owned());
                timing.sources.extend(source);
                (transfer, message)
            }
        };
        timing.transfer = transfer;
        let warning = message.map(|it| Warning::new(machine.origin.place.clone(), it));
        machine.warnings.extend(warning);
    }
    let nothing = Timing {
        sources: timing.sources.clone(),
        ..Timing::default()
    };
    machine.timing = (timing != nothing).then_some(timing);
    machine
}

/// The classes, and what is to be said about them.
fn classes(
    machine: &Machine,
    between_cpus: &[(CpuId, CpuId, u32)],
) -> (Option<LineDelay>, Option<String>) {
    let cpus: BTreeSet<CpuId> = between_cpus.iter().flat_map(|it| [it.0, it.1]).collect();
    let placed: CpuSet = machine.nodes.iter().map(Node::known_cpus).collect();
    if placed.is_empty() {
        let message = "line transfers between CPUs are unknown: which CPUs share a cache and a node is needed for them; add lscpu -e or \
                       numactl -H";
        return (None, Some(message.to_owned()));
    }
    if !cpus.iter().copied().eq(placed.iter()) {
        let message = format!(
            "line transfers between CPUs are unknown: the table has {} CPUs, and the nodes have CPUs {placed}",
            cpus.len()
        );
        return (None, Some(message));
    }
    let neighbourhood = Neighbourhood::of(machine);
    let line_transfer = |&(a, b, ps): &(CpuId, CpuId, u32)| {
        let (from, to) = (machine.node_of(a)?, machine.node_of(b)?);
        Some(LineTransfer {
            nearness: neighbourhood.nearness(a, b),
            distance: machine.distance(from, to),
            ns: f64::from(ps) / 1000.0,
        })
    };
    let all = between_cpus.iter().filter_map(line_transfer);
    let transfer = LineDelay::of_transfers(all, machine);
    let message = match &transfer {
        None => Some(
            "line transfers between CPUs are unknown: the table has no pair within a node, or none between nodes",
        ),
        Some(_) if machine.caches.is_empty() => Some(
            "which CPUs share a core or a cache is unknown: the line transfers of all pairs of a node are one class; add lscpu -e",
        ),
        Some(_) => None,
    };
    (transfer, message.map(str::to_owned))
}
