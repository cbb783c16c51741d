//! Devices that QEMU cannot save with a guest's state, and how they get into a guest that starts from a saved one.
//!
//! ```text
//!  QEMU starts                 placeholder0 (nvme, function 1 of an empty slot) ── nvme-ns ──► subsystem0
//!  before the state is loaded  device_del placeholder0: the namespaces stay with the subsystem
//!  state loaded                device_add nvme0, nvme1 ... on the ports of the design
//!  vCPUs run                   the kernel finds the new devices in their slots
//! ```
//!
//! QEMU marks `nvme` as not migratable, and cannot plug namespaces in at run time (a controller's bus takes none then). A
//! namespace that is made with a subsystem belongs to the subsystem, though (`nvme_ns_realize` in hw/nvme/ns.c), and a
//! function other than 0 of a slot without a function 0 is unplugged without asking the guest
//! (`pcie_cap_slot_unplug_request_cb` in hw/pci/pcie.c).

use std::collections::BTreeSet;

use nearfar_machine::PciAddress;
use serde_json::{Value, json};

use super::board::Board;
use super::hardware::{Device, Hardware, StandIn};
use crate::arch::Arch;

/// There are such devices, and Linux on Power takes no PCI device at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoHotPlug;

/// A device that is plugged in after the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LateDevice {
    /// The arguments of QEMU's `device_add`.
    pub arguments: Value,
    /// Where the guest finds it.
    pub address: PciAddress,
}

/// The id of the controller that stands for a subsystem's controllers while QEMU starts.
pub fn placeholder(subsystem: usize) -> String {
    format!("placeholder{subsystem}")
}

/// The placeholders of all subsystems that have a controller.
pub(super) fn placeholders(hardware: &Hardware) -> Vec<String> {
    let subsystem = |device: &Device| match device {
        Device::Nvme { subsystem, .. } => Some(*subsystem),
        _ => None,
    };
    let all: BTreeSet<_> = hardware
        .bridges
        .iter()
        .flat_map(|bridge| &bridge.devices)
        .filter_map(subsystem)
        .collect();
    all.into_iter().map(placeholder).collect()
}

/// Whether QEMU cannot save a device: `nvme` says so itself, and `pci-testdev` has no description of its state.
pub(super) fn is_late(device: &Device) -> bool {
    matches!(
        device,
        Device::Nvme { .. } | Device::StandIn(StandIn::Other)
    )
}

/// The properties of an NVMe controller besides its id and place.
pub(super) fn nvme(subsystem: usize, io_queues: Option<u32>) -> Vec<(&'static str, Value)> {
    let name = format!("subsystem{subsystem}");
    let mut properties = vec![("serial", json!(name)), ("subsys", json!(name))];
    properties.extend(io_queues.map(|queues| ("max_ioqpairs", json!(queues))));
    properties
}

/// A property as a word of QEMU's command line.
pub(super) fn word((name, value): (&str, Value)) -> String {
    match value {
        Value::String(text) => format!(",{name}={text}"),
        other => format!(",{name}={other}"),
    }
}

/// The devices of a design that are plugged in late.
pub(super) fn devices(
    board: &dyn Board,
    arch: Arch,
    hardware: &Hardware,
) -> Result<Vec<LateDevice>, NoHotPlug> {
    let mut late = Vec::new();
    for bridge in &hardware.bridges {
        for (position, device) in bridge
            .devices
            .iter()
            .enumerate()
            .filter(|(_, device)| is_late(device))
        {
            let mut arguments = match device {
                Device::Nvme {
                    id,
                    subsystem,
                    io_queues,
                } => {
                    let mut arguments = json!({ "driver": "nvme", "id": id });
                    nvme(*subsystem, *io_queues)
                        .into_iter()
                        .for_each(|(name, value)| arguments[name] = value);
                    arguments
                }
                Device::StandIn(other) => {
                    json!({ "driver": other.qemu(), "id": format!("{}-device{position}", bridge.id) })
                }
                Device::Nic { .. } | Device::Block { .. } => continue,
            };
            for (name, value) in board
                .seat(bridge, position)
                .split(',')
                .filter_map(|word| word.split_once('='))
            {
                arguments[name] = json!(value);
            }
            late.push(LateDevice {
                arguments,
                address: board.address(bridge, position),
            });
        }
    }
    if arch == Arch::Powerpc64le && !late.is_empty() {
        // The kernel leaves this to drmgr of powerpc-utils, which sets the slot's state through RTAS.
        return Err(NoHotPlug);
    }
    late.sort_by_key(|device| device.address);
    Ok(late)
}
