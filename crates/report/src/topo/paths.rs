//! Ways into the machine: network queues and the paths of NVMe subsystems.

use nearfar_machine::{
    CpuSet, Interrupt, Known, Machine, NetworkDevice, NodeId, NvmeSubsystem, PciAddress,
};

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading, paragraph};
use crate::style::{Role, Style};

/// The sections on network devices, NVMe subsystems and interrupts.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    networks(machine, style) + &subsystems(machine, style) + &interrupts(machine, style)
}

fn networks(machine: &Machine, style: &Style) -> String {
    let Some(all) = machine.networks.get().filter(|all| !all.is_empty()) else {
        return String::new();
    };
    let columns = [
        ("interface", Side::Left),
        ("node", Side::Right),
        ("address", Side::Left),
        ("tx", Side::Right),
        ("XPS on", Side::Left),
        ("rx", Side::Right),
        ("RPS on", Side::Left),
        ("irqs", Side::Right),
        ("served by", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for network in all {
        grid.row(network_row(machine, network));
    }
    heading(style, "Network queues", "") + &grid.render(style)
}

fn network_row(machine: &Machine, network: &NetworkDevice) -> Vec<Cell> {
    let own: Vec<&Interrupt> = network
        .device
        .map_or_else(Vec::new, |device| interrupts_of(machine, device));
    let serving = own.iter().filter_map(|interrupt| interrupt.effective.get());
    let serving = serving.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    vec![
        Cell::new(Role::Subject, &network.name),
        node_cell(&network.node),
        Cell::new(
            Role::Dim,
            network
                .device
                .map_or_else(String::new, |device| device.to_string()),
        ),
        Cell::from(network.transmit.len().to_string()),
        Cell::from(steering(network.transmit.iter().map(|queue| &queue.xps))),
        Cell::from(network.receive.len().to_string()),
        Cell::from(steering(network.receive.iter().map(|queue| &queue.rps))),
        Cell::from(if own.is_empty() {
            String::new()
        } else {
            own.len().to_string()
        }),
        Cell::from(serving.to_string()),
    ]
}

/// The CPUs of all queues together; `-` where none steers.
fn steering<'a>(queues: impl Iterator<Item = &'a Known<CpuSet>>) -> String {
    let all = queues
        .filter_map(Known::get)
        .fold(CpuSet::new(), |all, cpus| all.union(cpus));
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.to_string()
    }
}

fn interrupts_of(machine: &Machine, device: PciAddress) -> Vec<&Interrupt> {
    machine
        .interrupts
        .get()
        .into_iter()
        .flatten()
        .filter(|interrupt| interrupt.device == Some(device))
        .collect()
}

fn node_cell(node: &Known<Option<NodeId>>) -> Cell {
    match node {
        Known::Yes(Some(node)) => Cell::new(Role::Heading, node.to_string()),
        Known::Yes(None) => Cell::new(Role::Warning, "none"),
        Known::No { .. } => Cell::new(Role::Dim, "?"),
    }
}

fn subsystems(machine: &Machine, style: &Style) -> String {
    let Some(all) = machine.nvme.get().filter(|all| !all.is_empty()) else {
        return String::new();
    };
    let mut out = heading(style, "NVMe subsystems", "");
    for subsystem in all {
        let policy = subsystem
            .iopolicy
            .get()
            .map_or("unknown", |policy| policy.as_str());
        let model = subsystem.model.as_deref().unwrap_or("").trim();
        let name = format!("{}  ", subsystem.name);
        out.push_str(&paragraph(
            style,
            2,
            (Role::Subject, &name),
            Role::Plain,
            &format!("iopolicy {policy}  {model}"),
        ));
        out.push_str(&paths(subsystem, style));
    }
    out
}

fn paths(subsystem: &NvmeSubsystem, style: &Style) -> String {
    let columns = [
        ("controller", Side::Left),
        ("node", Side::Right),
        ("state", Side::Left),
        ("over", Side::Left),
        ("address", Side::Left),
        ("paths", Side::Left),
    ];
    let mut grid = Grid::new(&columns).indent(4);
    for controller in &subsystem.controllers {
        let own = subsystem
            .namespaces
            .iter()
            .flat_map(|namespace| &namespace.paths);
        let own = own
            .filter(|path| path.controller == controller.name)
            .map(|path| match path.ana_state.get() {
                Some(state) => format!("{} {state}", path.name),
                None => path.name.clone(),
            });
        let state = controller.state.get().map_or("?", String::as_str);
        grid.row(vec![
            Cell::new(Role::Subject, &controller.name),
            node_cell(&controller.node),
            Cell::new(
                if state == "live" {
                    Role::Local
                } else {
                    Role::Warning
                },
                state,
            ),
            Cell::from(controller.transport.get().map_or("?", String::as_str)),
            Cell::new(
                Role::Dim,
                controller
                    .device
                    .map_or_else(String::new, |device| device.to_string()),
            ),
            Cell::from(own.collect::<Vec<_>>().join(", ")),
        ]);
    }
    grid.render(style)
}

fn interrupts(machine: &Machine, style: &Style) -> String {
    let Some(all) = machine.interrupts.get().filter(|all| !all.is_empty()) else {
        return String::new();
    };
    let managed = all
        .iter()
        .filter(|interrupt| {
            interrupt
                .managed
                .get()
                .is_some_and(|managed| managed.managed)
        })
        .count();
    let of_devices = all
        .iter()
        .filter(|interrupt| interrupt.device.is_some())
        .count();
    let text = format!(
        "{}, {of_devices} of them of PCI devices, {managed} managed by the kernel",
        count(all.len(), "interrupt")
    );
    heading(style, "Interrupts", &text)
}
