//! Writes a machine as a description: nodes, CPUs, caches, distances, and the devices that decide over locality. What
//! a description has no place for is left out. The tests read it back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use nearfar_machine::{
    CacheKind, Cpu, CpuId, CpuSet, Distances, Known, Machine, NetworkDevice, Node, NodeId,
    NvmeSubsystem, PciAddress,
};

use nearfar_machine::size;

pub fn render(machine: &Machine) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(machine, &mut out);
    out
}

fn write_all(machine: &Machine, out: &mut String) -> fmt::Result {
    head(machine, out)?;
    timing(machine, out)?;
    cpus(machine, out)?;
    let packages = node_packages(machine);
    machine
        .nodes
        .iter()
        .try_for_each(|node| self::node(node, packages.as_ref(), out))?;
    caches(machine, out)?;
    bridges(machine, out)?;
    pci(machine, out)?;
    machine
        .networks
        .get()
        .into_iter()
        .flatten()
        .try_for_each(|network| nic(network, machine, out))?;
    machine
        .nvme
        .get()
        .into_iter()
        .flatten()
        .try_for_each(|subsystem| nvme(subsystem, out))
}

/// A string as TOML writes it, with what must be escaped.
fn quoted(text: impl fmt::Display) -> String {
    toml::Value::String(text.to_string())
        .to_string()
        .replace('\n', "\\n")
}

fn line(out: &mut String, key: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| writeln!(out, "{key} = {value}"))
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}

fn head(machine: &Machine, out: &mut String) -> fmt::Result {
    let origin = &machine.origin;
    let online = machine.online_nodes().count();
    let cpus = machine.cpu_states.online.len();
    writeln!(
        out,
        "description = {}",
        quoted(format!(
            "{online} nodes, {cpus} CPUs; from: {}",
            origin.place
        ))
    )?;
    line(out, "architecture", origin.architecture.get().map(quoted))?;
    line(out, "kernel", origin.kernel.get().map(quoted))?;
    line(out, "product", origin.product.get().map(quoted))?;
    line(out, "numa_balancing", machine.settings.numa_balancing.get())?;
    let whole = |table: &Known<Distances>| table.get().map(|table| rows(machine, table));
    let (kernels, firmwares) = (
        whole(&machine.distances),
        whole(&machine.firmware_distances),
    );
    match (&kernels, &firmwares) {
        // One table is enough where the kernel's is the part of the firmware's between online nodes.
        (Some(_), Some(all)) if agree(machine) => line(out, "distances", Some(all)),
        _ => {
            line(out, "distances", kernels)?;
            line(out, "firmware_distances", firmwares)
        }
    }
}

fn timing(machine: &Machine, out: &mut String) -> fmt::Result {
    let Some(timing) = &machine.timing else {
        return Ok(());
    };
    writeln!(out, "\n[timing]")?;
    let nodes = || machine.nodes.iter().map(|node| node.id);
    let ns = |from, to| {
        timing
            .latency_ns(from, to)
            .map_or("\"-\"".to_owned(), |ns| ns.to_string())
    };
    let rows = nodes().map(|from| list(nodes().map(|to| ns(from, to))));
    line(out, "latency", Some(list(rows)))?;
    line(out, "cache", timing.cache.map(quoted))?;
    line(out, "transfer", timing.transfer.as_ref().map(quoted))?;
    let thousandths = |value: Option<u32>| value.map(|it| f64::from(it) / 1000.0);
    let limits = timing.bandwidth;
    line(out, "bandwidth", thousandths(limits.memory_mb_per_s))?;
    line(out, "link", thousandths(limits.link_mb_per_s))?;
    line(out, "stream", thousandths(limits.stream_mb_per_s))?;
    line(out, "instruction", thousandths(timing.instruction_ps))?;
    line(
        out,
        "sources",
        Some(list(timing.sources.iter().map(quoted))),
    )
}

fn agree(machine: &Machine) -> bool {
    let tables = machine
        .distances
        .get()
        .zip(machine.firmware_distances.get());
    tables.is_some_and(|(kernels, all)| {
        kernels
            .entries()
            .all(|(from, to, distance)| all.get(from, to) == distance)
    })
}

fn rows(machine: &Machine, table: &Distances) -> String {
    let entry = |from: NodeId, to: NodeId| {
        table
            .get(from, to)
            .map_or("\"-\"".to_owned(), |distance| distance.to_string())
    };
    let row = |from: &Node| list(machine.nodes.iter().map(|to| entry(from.id, to.id)));
    let rows: Vec<_> = machine
        .nodes
        .iter()
        .map(|from| format!("    {},\n", row(from)))
        .collect();
    format!("[\n{}]", rows.concat())
}

fn cpus(machine: &Machine, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[cpu]")?;
    let down: CpuSet = machine
        .nodes
        .iter()
        .filter(|node| !node.online)
        .flat_map(|node| node.known_cpus().iter())
        .collect();
    let offline: CpuSet = machine
        .cpus
        .iter()
        .filter(|cpu| !cpu.is_online())
        .map(|cpu| cpu.id)
        .collect();
    let offline = offline.difference(&down);
    line(
        out,
        "offline",
        (!offline.is_empty()).then(|| quoted(&offline)),
    )?;
    let states = &machine.cpu_states;
    line(out, "possible", states.possible.get().map(quoted))?;
    line(out, "isolated", states.isolated.get().map(quoted))?;
    line(out, "nohz_full", states.nohz_full.get().map(quoted))?;
    match threads(machine) {
        Some(threads) => writeln!(out, "threads_per_core = {threads}")?,
        None => groups(machine, "cores", |cpu| cpu.core, out)?,
    }
    groups(machine, "clusters", |cpu| cpu.cluster, out)?;
    groups(machine, "dies", |cpu| cpu.die, out)?;
    if node_packages(machine).is_none() {
        let mut packages: BTreeMap<i64, CpuSet> = BTreeMap::new();
        for cpu in &machine.cpus {
            cpu.package
                .map(|package| packages.entry(package).or_default().insert(cpu.id));
        }
        let packages: Vec<_> = packages
            .iter()
            .map(|(number, set)| format!("\"{number}\" = {}", quoted(set)))
            .collect();
        writeln!(out, "packages = {{ {} }}", packages.join(", "))?;
    }
    Ok(())
}

/// The threads of a core where all nodes have theirs side by side.
fn threads(machine: &Machine) -> Option<usize> {
    let first = machine.cpus.first()?.core?;
    let threads = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.core == Some(first))
        .count();
    let regular = |node: &Node| {
        let order: Vec<CpuId> = node.known_cpus().iter().collect();
        let fits = |(at, cpu): (usize, &CpuId)| {
            let cpu = machine.cpu(*cpu);
            cpu.is_some_and(|cpu| {
                cpu.core == order.get(at / threads * threads).copied() && cpu.node == Some(node.id)
            })
        };
        order.len().is_multiple_of(threads) && order.iter().enumerate().all(fits)
    };
    machine.nodes.iter().all(regular).then_some(threads)
}

fn groups(
    machine: &Machine,
    key: &str,
    leader: impl Fn(&Cpu) -> Option<CpuId>,
    out: &mut String,
) -> fmt::Result {
    let mut sets: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
    for cpu in &machine.cpus {
        if let Some(leader) = leader(cpu) {
            sets.entry(leader).or_default().insert(cpu.id);
        }
    }
    let some_unknown = key == "cores" && sets.is_empty();
    let needed = !sets.is_empty() || some_unknown;
    line(out, key, needed.then(|| list(sets.values().map(quoted))))
}

/// The package of each node, where each node is in one.
fn node_packages(machine: &Machine) -> Option<BTreeMap<NodeId, i64>> {
    let mut packages = BTreeMap::new();
    for node in &machine.nodes {
        let found: BTreeSet<Option<i64>> = node
            .known_cpus()
            .iter()
            .filter_map(|cpu| machine.cpu(cpu))
            .map(|cpu| cpu.package)
            .collect();
        match (found.first(), found.len()) {
            (Some(Some(package)), 1) => packages.insert(node.id, *package),
            (None | Some(None), 0 | 1) => None,
            _ => return None,
        };
    }
    Some(packages)
}

fn node(node: &Node, packages: Option<&BTreeMap<NodeId, i64>>, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[[node]]\nid = {}", node.id)?;
    line(
        out,
        "cpus",
        (!node.known_cpus().is_empty()).then(|| quoted(node.known_cpus())),
    )?;
    line(
        out,
        "memory",
        node.total_bytes().map(|bytes| quoted(size::render(bytes))),
    )?;
    let free = node.memory.get().and_then(|memory| memory.free_bytes);
    line(out, "free", free.map(|bytes| quoted(size::render(bytes))))?;
    line(out, "online", (!node.online).then_some(false))?;
    line(
        out,
        "package",
        packages.and_then(|packages| packages.get(&node.id)),
    )?;
    line(
        out,
        "generic_initiator",
        node.generic_initiator.then_some(true),
    )?;
    line(out, "tier", node.tier)?;
    for access in &node.access {
        writeln!(
            out,
            "[[node.access]]\nclass = {}\ninitiators = {}",
            access.class,
            quoted(&access.initiators)
        )?;
        line(out, "read_latency_ns", access.read_latency_ns)?;
        line(out, "write_latency_ns", access.write_latency_ns)?;
        line(
            out,
            "read_bandwidth_mib_per_s",
            access.read_bandwidth_mib_per_s,
        )?;
        line(
            out,
            "write_bandwidth_mib_per_s",
            access.write_bandwidth_mib_per_s,
        )?;
    }
    for cache in &node.memory_side_caches {
        writeln!(
            out,
            "[[node.memory_side_cache]]\nsize = {}",
            quoted(size::render(cache.size_bytes))
        )?;
        line(out, "line", cache.line_bytes)?;
        line(out, "indexing", cache.indexing)?;
    }
    Ok(())
}

/// Caches that differ only in their CPUs are one entry.
fn caches(machine: &Machine, out: &mut String) -> fmt::Result {
    let mut alike: BTreeMap<_, Vec<&CpuSet>> = BTreeMap::new();
    for cache in &machine.caches {
        let key = (
            cache.level,
            cache.kind,
            cache.size_bytes.get(),
            cache.line_bytes,
            cache.ways,
        );
        alike.entry(key).or_default().push(&cache.cpus);
    }
    for ((level, kind, size, line_bytes, ways), sets) in alike {
        let kind = match kind {
            CacheKind::Data => "data",
            CacheKind::Instruction => "instruction",
            CacheKind::Unified => "unified",
        };
        writeln!(out, "\n[[cache]]\nlevel = {level}\nkind = {}", quoted(kind))?;
        line(out, "size", size.map(|&bytes| quoted(size::render(bytes))))?;
        line(out, "line", line_bytes)?;
        line(out, "ways", ways)?;
        line(out, "cpus", Some(list(sets.into_iter().map(quoted))))?;
    }
    Ok(())
}

/// A kernel's node: a number, "none", or "unknown".
fn kernel_node(node: &Known<Option<NodeId>>) -> String {
    match node {
        Known::Yes(Some(node)) => node.to_string(),
        Known::Yes(None) => quoted("none"),
        Known::No { .. } => quoted("unknown"),
    }
}

fn bridges(machine: &Machine, out: &mut String) -> fmt::Result {
    let known = machine
        .host_bridges
        .get()
        .into_iter()
        .flatten()
        .map(|bridge| bridge.root);
    let used = machine
        .pci
        .get()
        .into_iter()
        .flatten()
        .map(|device| device.root);
    for root in known.chain(used).collect::<BTreeSet<_>>() {
        let firmware = machine
            .host_bridge(root)
            .and_then(|bridge| bridge.firmware.get())
            .and_then(Option::as_ref);
        let firmware = firmware
            .map(|firmware| firmware.node)
            .filter(|&node| machine.node(node).is_some());
        writeln!(out, "\n[[bridge]]\nroot = {}", quoted(root))?;
        line(out, "firmware_node", firmware)?;
    }
    Ok(())
}

fn pci(machine: &Machine, out: &mut String) -> fmt::Result {
    for device in machine.pci.get().into_iter().flatten() {
        writeln!(
            out,
            "\n[[pci]]\naddress = {}\nbridge = {}",
            quoted(device.address),
            quoted(device.root)
        )?;
        line(out, "parent", device.parent.map(quoted))?;
        writeln!(
            out,
            "id = \"{:04x}:{:04x}\"\nclass = \"{:#08x}\"",
            device.vendor,
            device.device,
            device.class & 0xff_ffff
        )?;
        line(out, "driver", device.driver.as_ref().map(quoted))?;
        line(out, "name", device.name.as_ref().map(quoted))?;
        line(out, "node", Some(kernel_node(&device.node)))?;
    }
    Ok(())
}

/// Devices that are not in the list of PCI devices cannot be placed, and are left out.
fn listed(machine: &Machine, address: Option<PciAddress>) -> Option<PciAddress> {
    address.filter(|&address| machine.pci_device(address).is_some())
}

fn nic(network: &NetworkDevice, machine: &Machine, out: &mut String) -> fmt::Result {
    let Some(address) = listed(machine, network.device) else {
        return Ok(());
    };
    let queues = network.transmit.len().max(network.receive.len());
    writeln!(
        out,
        "\n[[nic]]\nname = {}\naddress = {}\nqueues = {queues}",
        quoted(&network.name),
        quoted(address)
    )?;
    let all = |sets: Vec<Option<&CpuSet>>| {
        let sets: Option<Vec<_>> = sets.into_iter().collect();
        sets.filter(|sets| sets.len() == queues && queues > 0)
            .map(|sets| list(sets.into_iter().map(quoted)))
    };
    line(
        out,
        "xps",
        all(network
            .transmit
            .iter()
            .map(|queue| queue.xps.get())
            .collect()),
    )?;
    line(
        out,
        "rps",
        all(network
            .receive
            .iter()
            .map(|queue| queue.rps.get())
            .collect()),
    )?;
    let mut served: BTreeMap<u32, &CpuSet> = BTreeMap::new();
    for interrupt in machine
        .interrupts
        .get()
        .into_iter()
        .flatten()
        .filter(|other| other.device == Some(address))
    {
        served.extend(interrupt.queue.zip(interrupt.affinity.get()));
    }
    let in_order = (0..)
        .zip(served.keys())
        .all(|(expected, &queue)| expected == queue);
    line(
        out,
        "queue_cpus",
        (in_order && !served.is_empty()).then(|| list(served.values().map(quoted))),
    )
}

fn nvme(subsystem: &NvmeSubsystem, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[[nvme]]\nname = {}", quoted(&subsystem.name))?;
    line(out, "nqn", subsystem.nqn.as_ref().map(quoted))?;
    line(out, "model", subsystem.model.as_ref().map(quoted))?;
    line(out, "iopolicy", subsystem.iopolicy.get().map(quoted))?;
    writeln!(
        out,
        "namespaces = {}\ncontrollers = [",
        subsystem.namespaces.len()
    )?;
    for controller in &subsystem.controllers {
        let mut keys = vec![format!("name = {}", quoted(&controller.name))];
        keys.extend(
            controller
                .device
                .map(|device| format!("address = {}", quoted(device))),
        );
        if controller.device.is_none() {
            let transport = controller.transport.get().map_or("unknown", String::as_str);
            keys.push(format!("transport = {}", quoted(transport)));
            keys.push(format!("node = {}", kernel_node(&controller.node)));
        }
        keys.extend(
            controller
                .state
                .get()
                .map(|state| format!("state = {}", quoted(state))),
        );
        let paths = subsystem
            .namespaces
            .iter()
            .flat_map(|namespace| &namespace.paths);
        let ana = paths
            .filter(|path| path.controller == controller.name)
            .find_map(|path| path.ana_state.get());
        keys.extend(ana.map(|ana| format!("ana = {}", quoted(ana))));
        keys.extend(
            controller
                .queues
                .get()
                .map(|queues| format!("queues = {queues}")),
        );
        writeln!(out, "    {{ {} }},", keys.join(", "))?;
    }
    writeln!(out, "]")
}
