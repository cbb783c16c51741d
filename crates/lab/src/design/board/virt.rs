//! QEMU's `virt` for arm64, with UEFI firmware and without.
//!
//! UEFI hands the guest ACPI tables, which say on which node a host bridge is. Without it there is a device tree, which
//! knows one host bridge and not where it is: nodes, CPUs, memory and distances are there, devices are on no node.

use nearfar_machine::{PciAddress, RootBus};

use crate::design::MemoryRange;
use crate::design::hardware::Bridge;

use nearfar_machine::Acceleration;

use super::{Board, NodeNumbers, contiguous, expander};

/// See hw/arm/virt.c in QEMU. Version 3 of the interrupt controller: with 2 there are at most 8 CPUs.
const MACHINE: &str = "virt,gic-version=3";
/// Has atomic instructions, which cost less to emulate than exclusive loads and stores, and none of the pointer
/// authentication that makes `max` slow.
const CPU: &str = "neoverse-n1";
const MOST_CPUS: usize = 512;
/// QEMU wants clusters not to span nodes, so the nodes of a package are its clusters.
const SOCKET_PARTS: Option<&str> = Some("clusters");
/// Where memory starts.
const BASE: u64 = 1 << 30;

/// With UEFI firmware.
pub(super) struct Virt;

impl Board for Virt {
    fn machine(&self, _: Acceleration) -> &'static str {
        MACHINE
    }

    fn emulated_cpu(&self) -> &'static str {
        CPU
    }

    fn most_cpus(&self) -> usize {
        MOST_CPUS
    }

    fn socket_parts(&self) -> Option<&'static str> {
        SOCKET_PARTS
    }

    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(BASE, sizes)
    }
}

/// With a device tree: all devices on ports of the first root bus.
pub(super) struct VirtDeviceTree;

impl Board for VirtDeviceTree {
    fn machine(&self, _: Acceleration) -> &'static str {
        MACHINE
    }

    fn emulated_cpu(&self) -> &'static str {
        CPU
    }

    fn most_cpus(&self) -> usize {
        MOST_CPUS
    }

    fn socket_parts(&self) -> Option<&'static str> {
        SOCKET_PARTS
    }

    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(BASE, sizes)
    }

    fn node_numbers(&self) -> NodeNumbers {
        NodeNumbers::AsGiven
    }

    fn has_hmat(&self) -> bool {
        false
    }

    fn has_nodes_of_devices(&self) -> bool {
        false
    }

    fn most_bridges(&self) -> usize {
        1
    }

    fn most_devices(&self) -> usize {
        expander::MOST_BRIDGES - 1
    }

    fn place(&self, bridges: &mut [Bridge]) -> bool {
        bridges
            .iter_mut()
            .for_each(|bridge| bridge.root = RootBus { domain: 0, bus: 0 });
        true
    }

    fn bridge(&self, bridge: &Bridge, index: usize) -> Vec<String> {
        expander::ports(bridge, "pcie.0", 1, index)
    }

    fn address(&self, bridge: &Bridge, position: usize) -> PciAddress {
        expander::address(bridge, position)
    }
}
