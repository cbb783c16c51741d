//! The machine itself: as a document, as graphviz text, as a picture; and which network card is nearest to which GPU or disk.

pub(crate) mod distances;
mod dot;
pub(crate) mod marks;
mod svg;

use std::collections::BTreeMap;

use nearfar_machine::{
    Cpu, CpuSet, DeviceKind, Interrupt, Known, Machine, NetworkDevice, Node, NodeId,
    NvmeController, NvmeSubsystem, PciAddress, PciDevice, Timing,
};
use nearfar_placement::locality::Localities;
use nearfar_placement::pairs::{Common, GpuPaths, Nearest};

use crate::amount::{bytes, count, or};
use crate::document::{Align, Document, HeatCell, HeatMap, Scale, Table, Text, cells};
use crate::path::kernel_node;
use crate::style::Role::{Dim, Far, Heading, Local, Middling, Plain, Subject, Warning};
use crate::summary::{self, Packages, Summary};
use distances::MAX_MAP_NODES;
use marks::names;

pub use dot::dot;
pub use svg::svg;
pub(crate) use svg::{at, box_columns, cards, legend_list, matrix, text, theme};

/// Most warnings shown; a damaged file can have one a line.
const MAX_WARNINGS: usize = 30;

/// The whole machine in sections: nodes, distances, CPUs and caches, devices by node, network queues, NVMe paths,
/// what is unknown and why, and what was wrong with the input.
pub fn document(machine: &Machine) -> Document {
    let mut out = head(machine);
    nodes(machine, &mut out);
    distances::section(machine, &mut out);
    timing(machine, &mut out);
    cpus(machine, &mut out);
    devices(machine, &mut out);
    networks(machine, &mut out);
    subsystems(machine, &mut out);
    interrupts(machine, &mut out);
    unknown(machine, &mut out);
    warnings(machine, &mut out);
    out
}

/// The lines that every page starts with: whose machine, what it is made of, where the description comes from.
pub(crate) fn head(machine: &Machine) -> Document {
    let mut out = Document::new();
    out.indented(0, "", Heading.text(summary::name(machine)));
    out.indented(0, "", Summary::of(machine).line());
    out.indented(0, "", Dim.text(summary::circumstances(machine).join(", ")));
    out.emulated(machine.origin.emulation.as_ref());
    out
}

/// What was wrong with the input; nothing when nothing was.
fn warnings(machine: &Machine, out: &mut Document) {
    let all = &machine.warnings;
    if all.is_empty() {
        return;
    }
    out.heading("Warnings about the input", "read as far as it goes");
    let shown = all.iter().take(MAX_WARNINGS);
    shown.for_each(|warning| out.warning(warning));
    out.more(all.len(), MAX_WARNINGS, "; --format json has all of them");
}

/// The section on nodes.
fn nodes(machine: &Machine, out: &mut Document) {
    let remark = match &machine.possible_nodes {
        Known::No { unknown_reason } if machine.nodes.is_empty() => {
            format!("unknown: {unknown_reason}")
        }
        _ if machine.nodes.is_empty() => "unknown: the source names no node".to_owned(),
        Known::Yes(possible) if possible.len() > machine.nodes.len() => {
            format!("possible: {possible}")
        }
        _ => String::new(),
    };
    out.heading("Nodes", remark);
    let mut table = Table::of([
        ">node", "state", ">count", "CPUs", ">package", ">memory", ">free", ">tier", ">read",
        "remark",
    ]);
    let packages = Packages::of(machine);
    for node in &machine.nodes {
        table.row(node_row(node, packages.on(machine, node)));
    }
    out.table(table);
}

/// Whether a node is online, in its colour.
pub(crate) fn state(is_online: bool) -> Text {
    match is_online {
        true => Local.text("online"),
        false => Far.text("offline"),
    }
}

fn node_row(node: &Node, package: String) -> [Text; 10] {
    let memory = node.memory.get();
    let total = match memory {
        Some(memory) if memory.total_bytes == 0 => Dim.text("none"),
        Some(memory) => bytes(memory.total_bytes).into(),
        None => Dim.text("?"),
    };
    let (count, cpus) = match node.cpus.get() {
        None => (Dim.text("?"), Dim.text("unknown")),
        Some(cpus) if cpus.is_empty() => (Dim.text("0"), Dim.text("none")),
        Some(cpus) => (Plain.text(cpus.len()), Subject.text(cpus)),
    };
    let free = memory.and_then(|memory| memory.free_bytes);
    cells![
        Heading.text(node.id),
        state(node.online),
        count,
        cpus,
        package,
        total,
        or(free.map(bytes), ""),
        or(node.tier, ""),
        read_latency(node),
        Dim.text(remarks(node).join(", ")),
    ]
}

/// The firmware's read latency from CPUs, or else from any initiator.
fn read_latency(node: &Node) -> String {
    let known = node.access.iter();
    let known = known.filter(|access| access.read_latency_ns.is_some());
    let access = known.max_by_key(|access| access.class);
    let latency = access.and_then(|access| access.read_latency_ns);
    or(latency.map(|ns| format!("{ns} ns")), "")
}

/// What is odd about a node.
fn remarks(node: &Node) -> Vec<String> {
    let mut remarks = Vec::new();
    match (node.has_cpus(), node.has_memory()) {
        (Some(false), Some(true)) => remarks.push("memory only".to_owned()),
        (Some(true) | None, Some(false)) => remarks.push("no memory".to_owned()),
        (Some(false), Some(false)) => remarks.push("neither CPUs nor memory".to_owned()),
        _ => {}
    }
    if node.generic_initiator {
        remarks.push("generic initiator".to_owned());
    }
    let fake = node.fake_of;
    remarks.extend(fake.map(|real| format!("fake, part of node {real}")));
    let bandwidth = node.access.iter().max_by_key(|access| access.class);
    let rate = bandwidth.and_then(|access| access.read_bandwidth_mib_per_s);
    remarks.extend(rate.map(|rate| format!("reads {rate} MiB/s")));
    let caches = node.memory_side_caches.iter();
    remarks.extend(caches.map(|cache| format!("memory-side cache {}", bytes(cache.size_bytes))));
    let pools = node.memory.get().into_iter();
    let pools = pools.flat_map(|memory| &memory.huge_pages);
    let pools = pools.filter(|pool| pool.total > 0);
    remarks.extend(pools.map(|pool| {
        let free = or(pool.free.map(|free| format!(", {free} free")), "");
        let (total, size) = (pool.total, bytes(pool.page_bytes));
        format!("{total} huge pages of {size}{free}")
    }));
    remarks
}

/// Latencies as a map of nodes, the other figures as `--delay` takes them, and where they come from.
fn timing(machine: &Machine, out: &mut Document) {
    let Some(timing) = &machine.timing else {
        return;
    };
    let map = latency_map(timing);
    match map.rows.len().max(map.columns.len()) {
        1..=MAX_MAP_NODES => out.heat_map(map),
        0 => out.heading("Latency", "unknown"),
        _ => out.heading("Latency", "of more nodes than fit; --format json has it"),
    }
    let figure = |key: &str, value: Option<String>| value.map(|value| format!("{key}={value}"));
    let figures = [
        figure("cache", timing.cache.map(|it| it.to_string())),
        figure(
            "transfer",
            timing.transfer.as_ref().map(ToString::to_string),
        ),
        (!timing.bandwidth.is_unlimited()).then(|| timing.bandwidth.to_string()),
        figure(
            "instruction",
            timing
                .instruction_ps
                .map(|ps| (f64::from(ps) / 1000.0).to_string()),
        ),
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    if !figures.is_empty() {
        out.indented(2, "", figures.join(","));
    }
    timing
        .sources
        .iter()
        .for_each(|source| out.indented(2, "", source.as_str()));
}

fn latency_map(timing: &Timing) -> HeatMap {
    let latencies = timing.latencies.iter();
    let scale = Scale::over(latencies.clone().map(|it| it.ns.into()));
    let map = HeatMap {
        title: "Latency".to_owned(),
        remark: "ns per load; row: node of the CPU, column: node of the memory".to_owned(),
        ..HeatMap::of(scale, |ns| format!("{ns:.0} ns"))
    };
    map.by_node(latencies.map(|it| (it.pair(), HeatCell::of(it.ns.into(), it.ns))))
}

/// The section on CPUs and caches.
fn cpus(machine: &Machine, out: &mut Document) {
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
    let facts = [online].into_iter().chain(sets).chain(caches);
    out.facts(facts.chain(governor));
}

fn structure(summary: &Summary) -> String {
    let mut parts = vec![summary.cpus()];
    parts.extend(summary.packages.map(|packages| count(packages, "package")));
    parts.extend(summary.cores.map(|cores| count(cores, "core")));
    let threads = summary.threads.map(|threads| count(threads, "thread"));
    parts.extend(threads.map(|threads| format!("{threads} per core")));
    parts.join(", ")
}

/// The section on PCI devices.
fn devices(machine: &Machine, out: &mut Document) {
    let Some(all) = machine.pci.get().filter(|all| !all.is_empty()) else {
        return;
    };
    let mut shown: Vec<&PciDevice> = all.iter().filter(|device| notable(device)).collect();
    shown.sort_by_key(|device| node_of(device));
    let localities = Localities::new(machine);
    let columns = [
        ">node",
        "address",
        "class",
        "driver",
        "in Linux",
        "name",
        "where it is",
    ];
    let mut table = Table::of(columns);
    for device in &shown {
        table.row(device_row(machine, &localities, device));
    }
    let remark = match (shown.len(), all.len() - shown.len()) {
        (_, 0) => String::new(),
        (0, others) => format!("none that moves data, {others} others"),
        (_, others) => {
            let others = count(others, "other");
            format!("that move data; not shown: {others} (bridges, serial ports and such)")
        }
    };
    out.heading("Devices", remark);
    out.table(table);
}

/// The node the kernel gives a device, where there is one.
pub(crate) fn node_of(device: &PciDevice) -> Option<NodeId> {
    device.node.get().copied().flatten()
}

fn device_row(machine: &Machine, localities: &Localities<'_>, device: &PciDevice) -> [Text; 7] {
    let (class, name) = match device.is_identified() {
        true => (
            format!("class {:06x}", device.class),
            format!("{:04x}:{:04x}", device.vendor, device.device),
        ),
        false => ("class unknown".to_owned(), String::new()),
    };
    cells![
        kernel_node(&device.node),
        Subject.text(device.address),
        Dim.text(device.class_name.as_ref().unwrap_or(&class)),
        device.driver.as_deref().unwrap_or("-"),
        Subject.text(machine.names_on(device.address).join(", ")),
        Dim.text(device.name.as_ref().unwrap_or(&name)),
        Warning.text(device_place(localities, device)),
    ]
}

/// Where a device is when the kernel does not say so, or the firmware says something else; empty when both agree.
pub(crate) fn device_place(localities: &Localities<'_>, device: &PciDevice) -> String {
    let effective = localities.of(device.address);
    let firmware = localities
        .firmware(device.root)
        .map(|firmware| firmware.node);
    match firmware.filter(|&node| Some(node) != effective.node) {
        Some(node) if effective.is_kernels() => format!("firmware says node {node}"),
        _ if effective.is_kernels() => String::new(),
        _ => effective.to_string(),
    }
}

/// Whether a device moves data to or from memory, or may do so because its class is unknown.
pub(crate) fn notable(device: &PciDevice) -> bool {
    device.moves_data() || !device.is_identified()
}

fn networks(machine: &Machine, out: &mut Document) {
    let Some(all) = machine.networks.get().filter(|all| !all.is_empty()) else {
        return;
    };
    let mut table = Table::of([
        "interface",
        ">node",
        "address",
        ">tx",
        "XPS on",
        ">rx",
        "RPS on",
        ">irqs",
        "served by",
    ]);
    for network in all {
        table.row(network_row(machine, network));
    }
    out.heading("Network queues", "");
    out.table(table);
}

fn network_row(machine: &Machine, network: &NetworkDevice) -> [Text; 9] {
    let device = network.device;
    let own = device.map_or_else(Vec::new, |device| interrupts_of(machine, device));
    let serving = union(own.iter().map(|interrupt| &interrupt.effective));
    let interrupts = Some(own.len()).filter(|number| *number > 0);
    let number = |queues: usize| or(Some(queues).filter(|_| network.has_queues()), "?");
    cells![
        Subject.text(&network.name),
        kernel_node(&network.node),
        Dim.text(or(device, "")),
        number(network.transmit.len()),
        steering(network.transmit.iter().map(|queue| &queue.xps)),
        number(network.receive.len()),
        steering(network.receive.iter().map(|queue| &queue.rps)),
        or(interrupts, ""),
        serving,
    ]
}

fn union<'a>(sets: impl Iterator<Item = &'a Known<CpuSet>>) -> CpuSet {
    let known = sets.filter_map(Known::get);
    known.fold(CpuSet::new(), |all, cpus| all.union(cpus))
}

/// The CPUs of all queues together; `-` where none steers.
fn steering<'a>(queues: impl Iterator<Item = &'a Known<CpuSet>>) -> String {
    or(Some(union(queues)).filter(|cpus| !cpus.is_empty()), "-")
}

fn interrupts_of(machine: &Machine, device: PciAddress) -> Vec<&Interrupt> {
    let all = machine.interrupts.get().into_iter().flatten();
    all.filter(|interrupt| interrupt.device == Some(device))
        .collect()
}

fn subsystems(machine: &Machine, out: &mut Document) {
    let Some(all) = machine.nvme.get().filter(|all| !all.is_empty()) else {
        return;
    };
    out.heading("NVMe subsystems", "");
    for subsystem in all {
        let policy = or(subsystem.iopolicy.get(), "unknown");
        let model = subsystem.model.as_deref().unwrap_or("").trim();
        let name = Subject.text(format!("{}  ", subsystem.name));
        out.labelled(name, format!("iopolicy {policy}  {model}"));
        let mut table = Table::of(["controller", ">node", "state", "over", "address", "paths"]);
        for controller in &subsystem.controllers {
            table.row(controller_row(subsystem, controller));
        }
        out.table(table.indent(4));
    }
}

fn controller_row(subsystem: &NvmeSubsystem, controller: &NvmeController) -> [Text; 6] {
    let paths = subsystem
        .namespaces
        .iter()
        .flat_map(|namespace| &namespace.paths);
    let own = paths.filter(|path| path.controller == controller.name);
    let own = own.map(|path| match path.ana_state.get() {
        Some(state) => format!("{} {state}", path.name),
        None => path.name.clone(),
    });
    let state = controller.state.get().map_or("?", String::as_str);
    let role = if state == "live" { Local } else { Warning };
    cells![
        Subject.text(&controller.name),
        kernel_node(&controller.node),
        role.text(state),
        or(controller.transport.get(), "?"),
        Dim.text(or(controller.device, "")),
        own.collect::<Vec<_>>().join(", "),
    ]
}

fn interrupts(machine: &Machine, out: &mut Document) {
    let Some(all) = machine.interrupts.get().filter(|all| !all.is_empty()) else {
        return;
    };
    let is_managed = |it: &&Interrupt| it.managed.get().is_some_and(|managed| managed.managed);
    let managed = all.iter().filter(is_managed).count();
    let of_devices = all.iter().filter(|it| it.device.is_some()).count();
    let unknown = all.iter().filter(|it| it.device_unknown_reason.is_some());
    let unknown = unknown.count();
    let all = count(all.len(), "interrupt");
    let unknown = match unknown {
        0 => String::new(),
        unknown => format!(", {unknown} of unknown devices"),
    };
    let text = format!(
        "{all}, {of_devices} of them of PCI devices{unknown}, {managed} managed by the kernel"
    );
    out.heading("Interrupts", text);
}

/// The section on what is unknown; nothing when everything is known.
fn unknown(machine: &Machine, out: &mut Document) {
    let reasons = unknown_reasons(machine);
    if reasons.is_empty() {
        return;
    }
    out.heading("Unknown", "");
    for (reason, what) in reasons {
        out.remark(format!("{}: {reason}", what.join(", ")));
    }
}

/// Parts of the machine by the reason why they are unknown.
pub(crate) fn unknown_reasons(machine: &Machine) -> BTreeMap<&str, Vec<&'static str>> {
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

/// A line for each GPU and disk, with its nearest network cards and what it shares with them.
pub fn pairs(machine: &Machine, pairs: &[Nearest], paths: &GpuPaths) -> Document {
    let mut out = Document::titled(
        "Nearest network cards",
        "of GPUs and disks: by a common PCI bridge, the host bridge, the node, the distance",
    );
    if let Some(reason) = machine.pci.unknown_reason() {
        out.paragraph(format!("unknown: {reason}"));
        return out;
    }
    if pairs.is_empty() {
        out.paragraph("no GPU and no disk");
        return out;
    }
    let (names, localities) = (names(machine), Localities::new(machine));
    let named = |address: PciAddress| match names.get(&address) {
        Some(name) => format!("{name} ({address})"),
        None => {
            let device = machine.pci_device(address);
            let driver = device.and_then(|device| device.driver.as_deref());
            format!("{address}{}", or(driver.map(|it| format!(" ({it})")), ""))
        }
    };
    let mut table = Table::of([
        ">node",
        "device",
        "nearest network card",
        "in common",
        ">distance",
    ]);
    for pair in pairs {
        let cards: Vec<String> = pair.cards.iter().copied().map(named).collect();
        table.row(cells![
            or(localities.of(pair.device).node, "?"),
            Subject.text(named(pair.device)),
            match cards.is_empty() {
                true => Dim.text("there is none"),
                false => cards.join(", ").into(),
            },
            common(pair),
            or(pair.distance, "?"),
        ]);
    }
    out.table(table);
    if !paths.devices.is_empty() {
        gpu_paths(&mut out, machine, paths, named);
    }
    out
}

fn gpu_paths(
    out: &mut Document,
    machine: &Machine,
    paths: &GpuPaths,
    named: impl Fn(PciAddress) -> String,
) {
    let is_gpu = |at: &PciAddress| {
        let device = machine.pci_device(*at);
        device.is_some_and(|device| device.is(&DeviceKind::GPU))
    };
    let gpus = paths.devices.iter().filter(|at| is_gpu(at)).count();
    let name = |index: usize| match index.checked_sub(gpus) {
        None => format!("gpu{index}"),
        Some(card) => format!("nic{card}"),
    };
    let columns = (0..paths.devices.len()).map(name);
    out.heading(
        "GPUs and network cards",
        "as nvidia-smi topo -m, without NVLink",
    );
    let titles = ["".to_owned(), "device".to_owned()]
        .into_iter()
        .chain(columns);
    let titles: Vec<_> = titles.map(|title| (title, Align::Left)).collect();
    let mut table = Table::new(&titles);
    for (index, (device, row)) in paths.devices.iter().zip(&paths.matrix).enumerate() {
        let path = |path: &&str| match *path {
            "PIX" | "PXB" => Local.text(*path),
            "SYS" => Far.text(*path),
            path => path.into(),
        };
        let own = [Subject.text(name(index)), named(*device).into()];
        table.row(own.into_iter().chain(row.iter().map(path)));
    }
    out.table(table);
    out.paragraph(
        "PIX: one PCIe switch or bridge between them; PXB: several; PHB: the host bridge; NODE: host bridges of one \
         node; SYS: several nodes.",
    );
}

fn common(pair: &Nearest) -> Text {
    match (pair.common, pair.bridge) {
        _ if pair.cards.is_empty() => Text::default(),
        (Common::Bridge, Some(bridge)) => Local.text(format!("PCI bridge {bridge}")),
        (Common::Bridge, None) => Local.text("PCI bridge"),
        (Common::RootBus, _) => Local.text("host bridge"),
        (Common::Node, _) => Middling.text("node"),
        (Common::Nothing, _) => Far.text("nothing: other node"),
        (Common::Unknown, _) => Dim.text("unknown: no node"),
    }
}
