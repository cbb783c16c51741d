//! QEMU's `pseries` for Power: a host bridge of its own kind, nodes from the device tree.
//!
//! ```text
//! bridge0 (spapr-pci-host-bridge, index=1, numa_node=2)   domain 1, bus 0
//!   ├─ slot 1   a device
//!   └─ slot 2   free, for hot plug
//! ```

use nearfar_machine::{Acceleration, PciAddress, RootBus};

use crate::design::board::{Board, NodeNumbers, numa_node};
use crate::design::hardware::Bridge;
use crate::kernels::Series;

/// See hw/ppc/spapr.c and spapr_pci.c in QEMU.
pub(super) struct Pseries;

/// Bridges 1 to 30; 0 is the board's own, which cannot be on a node (`SPAPR_MAX_PHBS` in include/hw/ppc/spapr.h).
const MOST_BRIDGES: usize = 30;
/// Slots 1 to 31 of a bridge.
const MOST_SLOTS: usize = 31;

impl Board for Pseries {
    /// With the small built-in firmware instead of SLOF, whose walk through PCI takes longer than the kernel's boot. What
    /// emulation cannot mitigate is declared broken, as QEMU would do with a warning each.
    fn machine(&self, acceleration: Acceleration) -> &'static str {
        match acceleration {
            Acceleration::Kvm => "pseries,x-vof=on",
            Acceleration::Tcg => {
                "pseries,x-vof=on,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off"
            }
        }
    }

    fn emulated_cpu(&self) -> &'static str {
        "POWER9"
    }

    fn most_cpus(&self) -> usize {
        2048
    }

    /// Memory comes in logical blocks of 256 MiB, and so must a node's (`spapr_validate_node_memory`).
    fn memory_step(&self) -> u64 {
        256 << 20
    }

    fn node_numbers(&self) -> NodeNumbers {
        NodeNumbers::AsGiven
    }

    /// "powerpc/numa: Make cpu/memory less numa-node online" (linuxppc-dev, May 2024), arch/powerpc/mm/numa.c.
    fn empty_nodes_online_since(&self) -> Option<Series> {
        Some(Series {
            major: 6,
            minor: 11,
        })
    }

    fn has_hmat(&self) -> bool {
        false
    }

    fn most_bridges(&self) -> usize {
        MOST_BRIDGES
    }

    fn most_devices(&self) -> usize {
        MOST_SLOTS - 1
    }

    /// A bridge is a PCI domain: that of the description where it is free.
    fn place(&self, bridges: &mut [Bridge]) -> bool {
        let mut taken = [false; MOST_BRIDGES + 1];
        taken[0] = true;
        let mut claim = |domain: usize| {
            let free = taken.get(domain).is_some_and(|taken| !taken);
            if free {
                taken[domain] = true;
            }
            free
        };
        let mut homeless = Vec::new();
        for bridge in bridges.iter_mut() {
            let domain = bridge.root.domain;
            bridge.root.bus = 0;
            if !claim(domain as usize) {
                homeless.push(bridge);
            }
        }
        homeless.into_iter().all(|bridge| {
            let free = (1..=MOST_BRIDGES).find(|&domain| claim(domain));
            bridge.root = RootBus {
                domain: free.unwrap_or(0) as u32,
                bus: 0,
            };
            free.is_some()
        })
    }

    fn bridge(&self, bridge: &Bridge, _index: usize) -> Vec<String> {
        let Bridge { id, root, .. } = bridge;
        let (index, node) = (root.domain, numa_node(bridge));
        let words = format!("spapr-pci-host-bridge,id={id},index={index}{node}");
        vec!["-device".to_owned(), words]
    }

    fn seat(&self, bridge: &Bridge, position: usize) -> String {
        format!("bus={}.0,addr={:#x}", bridge.id, position + 1)
    }

    fn address(&self, bridge: &Bridge, position: usize) -> PciAddress {
        PciAddress {
            domain: bridge.root.domain,
            bus: 0,
            device: position as u8 + 1,
            function: 0,
        }
    }

    fn spare_host_bridges(&self, bridges: &[Bridge]) -> Vec<u32> {
        let is_free = |domain: &u32| bridges.iter().all(|bridge| bridge.root.domain != *domain);
        (1..=MOST_BRIDGES as u32).filter(is_free).collect()
    }

    fn spare(&self, bridge: &Bridge) -> String {
        format!("{}.0", bridge.id)
    }
}
