//! Network queues, the paths of NVMe subsystems, and interrupts.

use nearfar_machine::{
    CpuSet, Interrupt, Known, Machine, NetworkDevice, NvmeController, NvmeSubsystem, PciAddress,
};

use crate::amount::{count, or};
use crate::document::{Document, Table, Text, cells};
use crate::path::kernel_node;
use crate::style::Role::{Dim, Local, Subject, Warning};

/// The sections on network devices, NVMe subsystems and interrupts.
pub(super) fn sections(machine: &Machine, out: &mut Document) {
    if let Some(all) = machine.networks.get().filter(|all| !all.is_empty()) {
        networks(machine, all, out);
    }
    if let Some(all) = machine.nvme.get().filter(|all| !all.is_empty()) {
        subsystems(all, out);
    }
    if let Some(all) = machine.interrupts.get().filter(|all| !all.is_empty()) {
        interrupts(all, out);
    }
}

fn networks(machine: &Machine, all: &[NetworkDevice], out: &mut Document) {
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

fn subsystems(all: &[NvmeSubsystem], out: &mut Document) {
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

fn interrupts(all: &[Interrupt], out: &mut Document) {
    let is_managed = |it: &&Interrupt| it.managed.get().is_some_and(|managed| managed.managed);
    let managed = all.iter().filter(is_managed).count();
    let of_devices = all
        .iter()
        .filter(|interrupt| interrupt.device.is_some())
        .count();
    let unknown = all
        .iter()
        .filter(|interrupt| interrupt.device_unknown_reason.is_some())
        .count();
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
