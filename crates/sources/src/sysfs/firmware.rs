//! Where the firmware says the host bridges are, whether or not the kernel switched those nodes on.
//!
//! ```text
//! ACPI          DSDT/SSDT  Device(PC40) { _HID PNP0A08  _BBN 0x40  _PXM 2 }    bridge -> proximity domain
//!               SRAT       proximity domain -> node, in the kernel's order
//!               SLIT       distances between domains
//! device tree   pci@8...   ibm,associativity (powerpc) or numa-node-id (arm64, RISC-V)
//!               rtas       ibm,associativity-reference-points, distance tables
//! ```

mod acpi;
mod aml;
mod device_tree;

use nearfar_machine::{Distances, FirmwareLocality, HostBridge, Known, NodeSet, RootBus};

use crate::tree::Tree;

/// What the firmware says.
pub(crate) struct Firmware {
    /// Each root bus with where the firmware puts it.
    pub(crate) bridges: Vec<HostBridge>,
    /// The firmware's own distances.
    pub(crate) distances: Known<Distances>,
}

impl Firmware {
    /// All nodes that the firmware names: of host bridges and in its table of distances.
    pub(crate) fn nodes(&self) -> NodeSet {
        let bridges = self.bridges.iter();
        let localities = bridges.filter_map(|bridge| bridge.firmware.get()?.as_ref());
        let mut nodes: NodeSet = localities.map(|locality| locality.node).collect();
        nodes.extend(
            self.distances
                .get()
                .into_iter()
                .flat_map(Distances::nodes)
                .copied(),
        );
        nodes
    }
}

/// Reads the firmware's word on each of these root buses, and its distances.
pub(crate) fn read(tree: &Tree, roots: &[RootBus]) -> Firmware {
    if let Some(device_tree) = device_tree::DeviceTree::find(tree) {
        return device_tree.read(roots);
    }
    acpi::read(tree, roots)
}

fn bridges(
    roots: &[RootBus],
    locate: impl Fn(RootBus) -> Known<Option<FirmwareLocality>>,
) -> Vec<HostBridge> {
    let bridge = |&root: &RootBus| HostBridge {
        root,
        firmware: locate(root),
    };
    roots.iter().map(bridge).collect()
}
