//! The devices that move data, by the node they are on.

use std::collections::BTreeMap;

use nearfar_machine::{Known, Machine, NodeId, PciDevice};
use nearfar_placement::locality::Localities;

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading};
use crate::style::{Role, Style};

/// The section on PCI devices.
pub(super) fn section(machine: &Machine, style: &Style) -> String {
    let Some(all) = machine.pci.get().filter(|all| !all.is_empty()) else {
        return String::new();
    };
    let mut by_place: BTreeMap<Option<NodeId>, Vec<&PciDevice>> = BTreeMap::new();
    for device in all.iter().filter(|device| notable(device)) {
        by_place
            .entry(device.node.get().copied().flatten())
            .or_default()
            .push(device);
    }
    let shown: usize = by_place.values().map(Vec::len).sum();
    let columns = [
        ("node", Side::Right),
        ("address", Side::Left),
        ("class", Side::Left),
        ("driver", Side::Left),
        ("in Linux", Side::Left),
        ("name", Side::Left),
        ("where it is", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    let localities = Localities::new(machine);
    for devices in by_place.values() {
        for device in devices {
            grid.row(row(machine, &localities, device));
        }
    }
    let others = all.len() - shown;
    let remark = match (shown, others) {
        (_, 0) => String::new(),
        (0, others) => format!("none that moves data, {} others", others),
        (_, others) => {
            format!(
                "that move data; not shown: {} (bridges, serial ports and such)",
                count(others, "other")
            )
        }
    };
    heading(style, "Devices", &remark) + &grid.render(style)
}

fn row(machine: &Machine, localities: &Localities<'_>, device: &PciDevice) -> Vec<Cell> {
    let (place, role) = match &device.node {
        Known::Yes(Some(node)) => (node.to_string(), Role::Heading),
        Known::Yes(None) => ("none".to_owned(), Role::Warning),
        Known::No { .. } => ("?".to_owned(), Role::Dim),
    };
    let class = device
        .class_name
        .clone()
        .unwrap_or_else(|| format!("class {:06x}", device.class));
    let name = device
        .name
        .clone()
        .unwrap_or_else(|| format!("{:04x}:{:04x}", device.vendor, device.device));
    vec![
        Cell::new(role, place),
        Cell::new(Role::Subject, device.address.to_string()),
        Cell::new(Role::Dim, class),
        Cell::new(Role::Plain, device.driver.as_deref().unwrap_or("-")),
        Cell::new(Role::Subject, machine.names_on(device.address).join(", ")),
        Cell::new(Role::Dim, name),
        Cell::new(Role::Warning, self::place(localities, device)),
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

/// Whether a device moves data that has a home: storage, network, display, processing accelerators, wireless,
/// encryption, InfiniBand, CXL memory (base classes and subclasses of the PCI Code and ID Assignment Specification).
pub(crate) fn notable(device: &PciDevice) -> bool {
    let base = device.class >> 16;
    matches!(base, 0x01 | 0x02 | 0x03 | 0x0b | 0x0d | 0x10 | 0x12)
        || matches!(device.kind(), 0x0502 | 0x0c06)
}
