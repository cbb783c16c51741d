//! The devices that move data, by the node they are on.

use nearfar_machine::{Machine, NodeId, PciDevice};
use nearfar_placement::locality::Localities;

use crate::amount::count;
use crate::document::{Document, Table, Text, cells};
use crate::path::kernel_node;
use crate::style::Role::{Dim, Subject, Warning};

/// The section on PCI devices.
pub(super) fn section(machine: &Machine, out: &mut Document) {
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
        table.row(row(machine, &localities, device));
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

fn row(machine: &Machine, localities: &Localities<'_>, device: &PciDevice) -> [Text; 7] {
    let class = device.class_name.clone();
    let class = class.unwrap_or_else(|| match device.is_identified() {
        true => format!("class {:06x}", device.class),
        false => "class unknown".to_owned(),
    });
    let name = device.name.clone();
    let name = name.unwrap_or_else(|| match device.is_identified() {
        true => format!("{:04x}:{:04x}", device.vendor, device.device),
        false => String::new(),
    });
    cells![
        kernel_node(&device.node),
        Subject.text(device.address),
        Dim.text(class),
        device.driver.as_deref().unwrap_or("-"),
        Subject.text(machine.names_on(device.address).join(", ")),
        Dim.text(name),
        Warning.text(place(localities, device)),
    ]
}

/// Where a device is when the kernel does not say so, or the firmware says something else; empty when both agree.
pub(crate) fn place(localities: &Localities<'_>, device: &PciDevice) -> String {
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
