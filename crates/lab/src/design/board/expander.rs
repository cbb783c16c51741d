//! Host bridges on boards with PCI Express: a `pxb-pcie` each, with a root port for every device.
//!
//! ```text
//! pcie.0 ─┬─ slot 1   bridge0 (pxb-pcie, numa_node=0)   bus 0x20
//!         │             ├─ bridge0-port0   bus 0x21   a device
//!         │             └─ bridge0-port1   bus 0x22   free, for hot plug
//!         └─ slot 2   bridge1 ...                       bus 0x40
//! ```
//!
//! See docs/pci_expander_bridge.txt and docs/pcie.txt in QEMU. Firmware hands out bus numbers in the order of ports,
//! which is why those of a bridge follow its own.

use nearfar_machine::{PciAddress, RootBus};

use crate::design::hardware::Bridge;

/// Slots 1 to 0x17 of the first root bus: those from 0x18 up belong to the guest's own devices.
pub(super) const MOST_BRIDGES: usize = 0x17;
/// Slots of a root bus.
pub(super) const MOST_PORTS: usize = 32;
/// The first bus number that bridges get; those below are left to whatever sits on the first root bus.
const FIRST_BUS: usize = 8;
const BUSES: usize = 256;

/// Gives each bridge the bus of its description, or the next one that leaves room for the ports of the bridge before it;
/// all of them one behind the other where that does not fit.
pub(super) fn place(bridges: &mut [Bridge]) -> bool {
    // Its own, one for each port, and one more for a bridge that is plugged into the spare port.
    let buses = |bridge: &Bridge| bridge.devices.len() + 3;
    let mut roots = Vec::new();
    for wanted in [true, false] {
        roots.clear();
        let mut free = FIRST_BUS;
        for bridge in bridges.iter() {
            let at = if wanted && bridge.root.domain == 0 {
                free.max(bridge.root.bus.into())
            } else {
                free
            };
            roots.push(at);
            free = at + buses(bridge);
        }
        if free <= BUSES {
            for (bridge, root) in bridges.iter_mut().zip(roots) {
                bridge.root = RootBus {
                    domain: 0,
                    bus: root as u8,
                };
            }
            return true;
        }
    }
    false
}

pub(super) fn arguments(bridge: &Bridge, index: usize) -> Vec<String> {
    let Bridge { id, root, .. } = bridge;
    let node = bridge
        .node
        .map_or_else(String::new, |node| format!(",numa_node={node}"));
    let mut arguments = vec![
        "-device".to_owned(),
        format!(
            "pxb-pcie,id={id},bus=pcie.0,addr={:#x},bus_nr={}{node}",
            index + 1,
            root.bus
        ),
    ];
    arguments.extend(ports(bridge, id, 0, index));
    arguments
}

/// A root port for each device of a bridge and one to spare, in the slots of a bus from `first` up. `index` tells the
/// ports of bridges apart.
pub(super) fn ports(bridge: &Bridge, bus: &str, first: usize, index: usize) -> Vec<String> {
    let port = |position| {
        let (port, slot) = (port(bridge, position), first + position);
        // Ports of legacy I/O space are few (16 in all) and no device here needs any.
        // A bus number for a bridge behind the spare port: without one Linux stumbles over it (shpc_init, 6.12).
        let reserve = if position == bridge.devices.len() {
            ",bus-reserve=1"
        } else {
            ""
        };
        let place = format!(
            "bus={bus},addr={slot:#x},chassis={},slot={slot},io-reserve=0{reserve}",
            index + 1
        );
        [
            "-device".to_owned(),
            format!("pcie-root-port,id={port},{place}"),
        ]
    };
    (0..=bridge.devices.len()).flat_map(port).collect()
}

pub(super) fn port(bridge: &Bridge, position: usize) -> String {
    format!("{}-port{position}", bridge.id)
}

pub(super) fn address(bridge: &Bridge, position: usize) -> PciAddress {
    let bus = bridge
        .root
        .bus
        .saturating_add(1)
        .saturating_add(position as u8);
    PciAddress {
        domain: 0,
        bus,
        device: 0,
        function: 0,
    }
}
