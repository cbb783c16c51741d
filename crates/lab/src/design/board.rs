//! What differs between the three virtual boards, in one object each: everything else of a design is the same for all.
//!
//! ```text
//!            q35 (x86-64)               virt (arm64)              pseries (Power)
//! node no.   by appearance in SRAT      by appearance in SRAT     as the device tree says
//! memory     0, hole below 4 GiB        from 1 GiB up             from 0
//! a bridge   pxb-pcie + root ports      pxb-pcie + root ports     spapr-pci-host-bridge
//! ```
//!
//! Boards with PCI Express have a `pxb-pcie` for each host bridge, with a root port for every device:
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

mod pseries;
mod q35;
pub(super) mod virt;

use nearfar_machine::{Acceleration, NodeId, PciAddress, RootBus};

use crate::arch::Arch;
use crate::design::MemoryRange;
use crate::design::hardware::Bridge;
use crate::kernels::Series;

/// How the guest's kernel numbers the firmware's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeNumbers {
    /// ACPI: the first proximity domain that the SRAT names is node 0, the next 1, ... (`acpi_map_pxm_to_node` in
    /// drivers/acpi/numa/srat.c), and CPUs are listed before memory.
    ByAppearance,
    /// Device tree: the firmware's number is the kernel's.
    AsGiven,
}

/// What a board is made of. The defaults are those of a board with ACPI and PCI Express.
pub(super) trait Board: Sync {
    /// QEMU's `-machine`.
    fn machine(&self, acceleration: Acceleration) -> &'static str;

    /// QEMU's `-cpu`. Under KVM a guest has the CPUs of its host.
    fn cpu(&self, acceleration: Acceleration) -> &'static str {
        match acceleration {
            Acceleration::Kvm => "host",
            Acceleration::Tcg => self.emulated_cpu(),
        }
    }

    /// QEMU's `-cpu` in software emulation.
    fn emulated_cpu(&self) -> &'static str;

    /// The most vCPUs.
    fn most_cpus(&self) -> usize;

    /// What the size of a node must be a multiple of, in bytes: the size of a section of the kernel's memory model, since a
    /// section has one node.
    fn memory_step(&self) -> u64 {
        128 << 20
    }

    /// How the guest's kernel numbers nodes.
    fn node_numbers(&self) -> NodeNumbers {
        NodeNumbers::ByAppearance
    }

    /// The first kernels that bring a node without CPUs and memory online for the sake of a host bridge on it.
    fn empty_nodes_online_since(&self) -> Option<Series> {
        None
    }

    /// What `-smp` calls the parts of a socket that can be nodes, where it knows any.
    fn socket_parts(&self) -> Option<&'static str> {
        None
    }

    /// Where the memory of nodes 0, 1, ... of these sizes lies.
    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(0, sizes)
    }

    /// Whether memory performance (HMAT) can be told to the guest.
    fn has_hmat(&self) -> bool {
        true
    }

    /// Whether a host bridge, and so a device, can be on a node.
    fn has_nodes_of_devices(&self) -> bool {
        true
    }

    /// The most host bridges besides the first.
    fn most_bridges(&self) -> usize {
        MOST_BRIDGES
    }

    /// The most devices behind one bridge, when one place stays free for hot plug.
    fn most_devices(&self) -> usize {
        MOST_PORTS - 1
    }

    /// Gives every host bridge the root bus it has in the guest: that of the description where it is free. `false` when there
    /// are more than fit.
    fn place(&self, bridges: &mut [Bridge]) -> bool {
        place(bridges)
    }

    /// QEMU's arguments for a bridge, without its devices; `index` counts bridges from 0.
    fn bridge(&self, bridge: &Bridge, index: usize) -> Vec<String> {
        expander_arguments(bridge, index)
    }

    /// The properties that seat a device behind a bridge; `position` counts the bridge's devices from 0.
    fn seat(&self, bridge: &Bridge, position: usize) -> String {
        format!("bus={}", port(bridge, position))
    }

    /// The address that a device behind a bridge will have.
    fn address(&self, bridge: &Bridge, position: usize) -> PciAddress {
        port_address(bridge, position)
    }

    /// The numbers of the host bridges that hot plug may add.
    fn spare_host_bridges(&self, _bridges: &[Bridge]) -> Vec<u32> {
        Vec::new()
    }

    /// The bus of a bridge that hot plug may use.
    fn spare(&self, bridge: &Bridge) -> String {
        port(bridge, bridge.devices.len())
    }
}

/// The board of an architecture, with UEFI firmware or without where that makes a difference.
pub(super) fn of(arch: Arch, uefi: bool) -> &'static dyn Board {
    match arch {
        Arch::X86_64 => &q35::Q35,
        Arch::Aarch64 if uefi => &virt::Virt,
        Arch::Aarch64 => &virt::VirtDeviceTree,
        Arch::Powerpc64le => &pseries::Pseries,
    }
}

/// Nodes one after the other from an address up.
fn contiguous(base: u64, sizes: &[u64]) -> Vec<MemoryRange> {
    let mut start = base;
    let mut map = Vec::new();
    for (node, &bytes) in (0..).zip(sizes).filter(|(_, bytes)| **bytes > 0) {
        map.push(MemoryRange {
            start,
            bytes,
            node: NodeId(node),
        });
        start = start.saturating_add(bytes);
    }
    map
}

/// Slots 1 to 0x17 of the first root bus: those from 0x18 up belong to the guest's own devices.
const MOST_BRIDGES: usize = 0x17;
/// Slots of a root bus.
const MOST_PORTS: usize = 32;
/// The first bus number that bridges get; those below are left to whatever sits on the first root bus.
const FIRST_BUS: usize = 8;
const BUSES: usize = 256;

/// Gives each bridge the bus of its description, or the next one that leaves room for the ports of the bridge before it;
/// all of them one behind the other where that does not fit.
fn place(bridges: &mut [Bridge]) -> bool {
    // Its own, one for each port, and one more for a bridge that is plugged into the spare port.
    let buses = |bridge: &Bridge| bridge.devices.len() + 3;
    let mut roots = Vec::new();
    for wanted in [true, false] {
        roots.clear();
        let mut free = FIRST_BUS;
        for bridge in bridges.iter() {
            let at = match wanted && bridge.root.domain == 0 {
                true => free.max(bridge.root.bus.into()),
                false => free,
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

fn expander_arguments(bridge: &Bridge, index: usize) -> Vec<String> {
    let Bridge { id, root, .. } = bridge;
    let (slot, bus, node) = (index + 1, root.bus, numa_node(bridge));
    let mut arguments = vec![
        "-device".to_owned(),
        format!("pxb-pcie,id={id},bus=pcie.0,addr={slot:#x},bus_nr={bus}{node}"),
    ];
    arguments.extend(ports(bridge, id, 0, index));
    arguments
}

/// The node of a host bridge as a word of QEMU's arguments.
fn numa_node(bridge: &Bridge) -> String {
    let node = bridge.node.map(|node| format!(",numa_node={node}"));
    node.unwrap_or_default()
}

/// A root port for each device of a bridge and one to spare, in the slots of a bus from `first` up. `index` tells the
/// ports of bridges apart.
fn ports(bridge: &Bridge, bus: &str, first: usize, index: usize) -> Vec<String> {
    let port = |position| {
        let (port, slot) = (port(bridge, position), first + position);
        // Ports of legacy I/O space are few (16 in all) and no device here needs any.
        // A bus number for a bridge behind the spare port: without one Linux stumbles over it (shpc_init, 6.12).
        let reserve = match position == bridge.devices.len() {
            true => ",bus-reserve=1",
            false => "",
        };
        let chassis = index + 1;
        let place = format!("bus={bus},addr={slot:#x},chassis={chassis},slot={slot}");
        let words = format!("pcie-root-port,id={port},{place},io-reserve=0{reserve}");
        ["-device".to_owned(), words]
    };
    (0..=bridge.devices.len()).flat_map(port).collect()
}

fn port(bridge: &Bridge, position: usize) -> String {
    format!("{}-port{position}", bridge.id)
}

fn port_address(bridge: &Bridge, position: usize) -> PciAddress {
    PciAddress {
        domain: 0,
        bus: (bridge.root.bus.saturating_add(1)).saturating_add(position as u8),
        device: 0,
        function: 0,
    }
}
