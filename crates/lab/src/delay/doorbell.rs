//! Doorbells of NVMe controllers: registers whose writes are delayed by the nodes of the vCPU and of the controller.
//!
//! ```text
//!  BAR 0 + 0x1000  + 8 x queue       tail of a submission queue; queue 0 is the administrator's
//!                  + 8 x queue + 4   head of a completion queue
//! ```
//! (NVM Express base specification, 3.1; QEMU's controllers have a doorbell stride of 4 bytes.) A driver writes the tail after it
//! has put commands into a queue. BARs get their addresses while the guest boots, so QEMU is asked for them afterwards.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nearfar_machine::{Distance, NodeDelay, NodeId};
use serde_json::Value;

use super::{in_proportion, matrix};
use crate::design::Design;
use crate::design::hardware::Device;

/// The tail doorbell of the first I/O submission queue, from the start of the BAR.
const FIRST_TAIL: u64 = 0x1008;
/// From one tail doorbell to the next.
const TAIL_STRIDE: u64 = 8;
/// Behind the last doorbell: QEMU has the interrupt table there, or nothing.
const DOORBELLS_END: u64 = 0x2000;

/// The submission doorbells of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doorbells {
    /// Guest physical address of the first.
    pub start: u64,
    /// Bytes to the end of the last.
    pub bytes: u64,
    /// From one to the next.
    pub stride: u64,
    /// The controller's node.
    pub node: NodeId,
}

impl Doorbells {
    /// Those of the controllers in an answer of `query-pci`. `node` gives the node of a device by its id. A controller without an
    /// address has none that can be written.
    pub fn of_guest(buses: &Value, node: &dyn Fn(&str) -> Option<NodeId>) -> Vec<Self> {
        let mut all = Vec::new();
        for bus in buses.as_array().into_iter().flatten() {
            Self::behind(&bus["devices"], node, &mut all);
        }
        all.sort_by_key(|doorbells| doorbells.start);
        all.dedup();
        all
    }

    fn behind(devices: &Value, node: &dyn Fn(&str) -> Option<NodeId>, all: &mut Vec<Self>) {
        for device in devices.as_array().into_iter().flatten() {
            let place = device["qdev_id"].as_str().and_then(node);
            if let (Some(node), Some(start)) = (place, registers(device)) {
                all.push(Self {
                    start: start + FIRST_TAIL,
                    bytes: DOORBELLS_END - FIRST_TAIL,
                    stride: TAIL_STRIDE,
                    node,
                });
            }
            Self::behind(&device["pci_bridge"]["devices"], node, all);
        }
    }
}

/// The address of BAR 0, if it has one that is large enough for doorbells.
fn registers(device: &Value) -> Option<u64> {
    let bars = device["regions"].as_array()?;
    let bar = bars.iter().find(|bar| bar["bar"] == 0)?;
    let (address, bytes) = (bar["address"].as_u64()?, bar["size"].as_u64()?);
    // QEMU's sign of a BAR without an address is -1.
    (bytes >= DOORBELLS_END && address.checked_add(bytes).is_some()).then_some(address)
}

/// Appends the delay of every pair of a node with CPUs and any node: a host bridge may be plugged in later.
pub(super) fn write_delays(config: &mut String, design: &Design, delay: NodeDelay) {
    let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
    let devices: BTreeSet<NodeId> = design.spare_ports.iter().filter_map(|it| it.node).collect();
    let pairs = cpus.iter().flat_map(|&from| {
        (0..design.hardware.nodes.len() as u32).map(move |to| (from, NodeId(to)))
    });
    let distance = |from, to| matrix::distance(&design.hardware.distances, from, to);
    let others = cpus
        .iter()
        .flat_map(|from| devices.iter().map(move |to| (*from, *to)))
        .filter(|(from, to)| from != to);
    let nearest = others.map(|(from, to)| distance(from, to)).min();
    let nearest = nearest.unwrap_or(Distance::REMOTE);
    for (from, to) in pairs {
        let ns = match (from == to, delay.is_by_distance) {
            (true, _) => delay.same_node_ns,
            (false, false) => delay.other_node_ns,
            (false, true) => in_proportion(delay, distance(from, to), nearest),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(config, "device {} {} {ns}", from.0, to.0);
    }
}

/// All controllers of a guest, with one at each spare port and behind each spare host bridge.
pub(super) fn most_controllers(design: &Design) -> usize {
    let devices = design.hardware.bridges.iter().flat_map(|it| &it.devices);
    let controllers = devices.filter(|device| matches!(device, Device::Nvme { .. }));
    controllers.count() + design.spare_ports.len() + design.spare_host_bridges().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn doorbells_are_found_behind_bridges_and_only_where_there_is_an_address() {
        let bar = |address: u64| json!([{ "bar": 0, "address": address, "size": 16384 }]);
        let buses = json!([
            { "bus": 0, "devices": [
                { "qdev_id": "nvme1", "regions": bar(0x9000_0000) },
                { "qdev_id": "nic0", "regions": bar(0xa000_0000) },
                { "qdev_id": "nvme2", "regions": bar(u64::MAX) },
                { "qdev_id": "nvme3", "regions": [] }] },
            { "bus": 32, "devices": [{ "qdev_id": "port0", "regions": [], "pci_bridge": { "devices": [
                { "qdev_id": "nvme0", "regions": bar(0x8000_0000) }] } }] }
        ]);
        let node = |id: &str| {
            let number = id.strip_prefix("nvme")?;
            Some(NodeId(number.parse().ok()?))
        };
        let doorbells = |start, node| Doorbells {
            start,
            bytes: 0xff8,
            stride: 8,
            node: NodeId(node),
        };
        assert_eq!(
            Doorbells::of_guest(&buses, &node),
            [doorbells(0x8000_1008, 0), doorbells(0x9000_1008, 1)]
        );
    }
}
