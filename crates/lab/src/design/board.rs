//! What differs between the three virtual boards, in one object each: everything else of a design is the same for all.
//!
//! ```text
//!            q35 (x86-64)               virt (arm64)              pseries (Power)
//! node no.   by appearance in SRAT      by appearance in SRAT     as the device tree says
//! memory     0, hole below 4 GiB        from 1 GiB up             from 0
//! a bridge   pxb-pcie + root ports      pxb-pcie + root ports     spapr-pci-host-bridge
//! ```

mod expander;
mod pseries;
mod q35;
mod virt;

use nearfar_machine::{NodeId, PciAddress};

use super::MemoryRange;
use super::hardware::Bridge;
use crate::arch::Arch;
use crate::kernels::Series;
use nearfar_machine::Acceleration;

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
        expander::MOST_BRIDGES
    }

    /// The most devices behind one bridge, when one place stays free for hot plug.
    fn most_devices(&self) -> usize {
        expander::MOST_PORTS - 1
    }

    /// Gives every host bridge the root bus it has in the guest: that of the description where it is free. `false` when there
    /// are more than fit.
    fn place(&self, bridges: &mut [Bridge]) -> bool {
        expander::place(bridges)
    }

    /// QEMU's arguments for a bridge, without its devices; `index` counts bridges from 0.
    fn bridge(&self, bridge: &Bridge, index: usize) -> Vec<String> {
        expander::arguments(bridge, index)
    }

    /// The properties that seat a device behind a bridge; `position` counts the bridge's devices from 0.
    fn seat(&self, bridge: &Bridge, position: usize) -> String {
        format!("bus={}", expander::port(bridge, position))
    }

    /// The address that a device behind a bridge will have.
    fn address(&self, bridge: &Bridge, position: usize) -> PciAddress {
        expander::address(bridge, position)
    }

    /// The numbers of the host bridges that hot plug may add.
    fn spare_host_bridges(&self, _bridges: &[Bridge]) -> Vec<u32> {
        Vec::new()
    }

    /// The bus of a bridge that hot plug may use.
    fn spare(&self, bridge: &Bridge) -> String {
        expander::port(bridge, bridge.devices.len())
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
