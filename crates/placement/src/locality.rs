//! Which node a device is near, and how far that can be trusted.
//!
//! ```text
//! 1. the kernel's node         numa_node of the device
//! 2. the firmware's node       _PXM, ibm,associativity or numa-node-id of its host bridge
//! 3. the online node nearest to the firmware's, where that one is not online      a guess, by the firmware's distances
//! 4. its siblings' node        other devices on the same root bus that have a node an inference
//! 5. unknown, with the reason
//! ```
//!
//! A kernel without a node for a device says -1; a plausible number in its place would be an invention.

use std::collections::BTreeMap;

use nearfar_machine::{
    Distance, FirmwareLocality, FirmwareSource, Machine, NodeId, PciAddress, PciDevice, RootBus,
};
use serde::Serialize;

use crate::near;

/// Where a device is, as far as is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EffectiveNode {
    /// An online node; `None` if unknown.
    pub node: Option<NodeId>,
    #[serde(flatten)]
    pub how: How,
}

/// How a device's node is known, from the firmest to the weakest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum How {
    /// The kernel says so (`numa_node`).
    Kernel,
    /// The kernel says none, the firmware does, and that node is online.
    Firmware {
        /// The part of the firmware that has it.
        told_by: FirmwareSource,
        /// The file it was read from.
        evidence: String,
    },
    /// Guessed: the firmware names a node that is not online, and this is the online node nearest to that.
    NearestToFirmware {
        /// The node the firmware names.
        firmware: NodeId,
        /// From there to the node meant, by the firmware's table.
        distance: Distance,
        /// The file the firmware's node was read from.
        evidence: String,
    },
    /// Inferred: every other device on the same root bus that has a node has this one.
    Siblings {
        /// The root bus.
        root: RootBus,
        count: usize,
        example: PciAddress,
    },
    Unknown {
        reason: String,
    },
}

impl EffectiveNode {
    fn unknown(reason: impl Into<String>) -> Self {
        Self {
            node: None,
            how: How::Unknown {
                reason: reason.into(),
            },
        }
    }

    /// Whether the kernel itself says so: then the drivers know it, too.
    pub fn is_kernels(&self) -> bool {
        self.how == How::Kernel
    }
}

impl std::fmt::Display for EffectiveNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(node) = self.node else {
            let How::Unknown { reason } = &self.how else {
                return f.write_str("node unknown");
            };
            return write!(f, "node unknown: {reason}");
        };
        match &self.how {
            How::Kernel => write!(f, "node {node}"),
            How::Firmware { .. } => {
                write!(f, "node {node} (by the firmware; the kernel has none)")
            }
            How::NearestToFirmware {
                firmware, distance, ..
            } => {
                write!(
                    f,
                    "node {node} (guessed: online node nearest to the firmware's node {firmware}, {distance})"
                )
            }
            How::Siblings {
                root,
                count: 1,
                example,
            } => {
                write!(
                    f,
                    "node {node} (inferred from {example} on the same root bus {root})"
                )
            }
            How::Siblings { root, count, .. } => {
                write!(
                    f,
                    "node {node} (inferred from {count} other devices on root bus {root})"
                )
            }
            How::Unknown { reason } => write!(f, "node {node}: {reason}"),
        }
    }
}

/// Where each device of a machine is, with what siblings say gathered once.
pub struct Localities<'a> {
    machine: &'a Machine,
    siblings: BTreeMap<RootBus, BTreeMap<NodeId, Vec<PciAddress>>>,
    firmware: BTreeMap<RootBus, &'a FirmwareLocality>,
}

impl<'a> Localities<'a> {
    /// Looks through the devices and host bridges once.
    pub fn new(machine: &'a Machine) -> Self {
        let mut siblings: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for device in machine.pci.get().into_iter().flatten() {
            if let Some(node) = kernel_node(machine, device).filter(|_| testifies(device)) {
                siblings
                    .entry(device.root)
                    .or_default()
                    .entry(node)
                    .or_default()
                    .push(device.address);
            }
        }
        let bridges = machine.host_bridges.get().into_iter().flatten();
        let firmware = bridges
            .filter_map(|bridge| Some((bridge.root, bridge.firmware.get()?.as_ref()?)))
            .collect();
        Self {
            machine,
            siblings,
            firmware,
        }
    }

    /// Where the device at this address is.
    pub fn of(&self, address: PciAddress) -> EffectiveNode {
        let Some(device) = self.machine.pci_device(address) else {
            let reason = self.machine.pci.unknown_reason().map_or_else(
                || format!("there is no PCI device {address}"),
                |reason| format!("PCI devices: {reason}"),
            );
            return EffectiveNode::unknown(reason);
        };
        match kernel_node(self.machine, device) {
            Some(node) => EffectiveNode {
                node: Some(node),
                how: How::Kernel,
            },
            None => self
                .by_firmware(device)
                .unwrap_or_else(|| self.by_siblings(device)),
        }
    }

    /// What the firmware says of a root bus, where it says something.
    pub fn firmware(&self, root: RootBus) -> Option<&'a FirmwareLocality> {
        self.firmware.get(&root).copied()
    }

    fn by_firmware(&self, device: &PciDevice) -> Option<EffectiveNode> {
        let told = self.firmware(device.root)?;
        let evidence = told.evidence.clone();
        if self.machine.node(told.node).is_some_and(|node| node.online) {
            return Some(EffectiveNode {
                node: Some(told.node),
                how: How::Firmware {
                    told_by: told.told_by,
                    evidence,
                },
            });
        }
        let (node, distance) = near::nearest_online(self.machine, told.node)?;
        Some(EffectiveNode {
            node: Some(node),
            how: How::NearestToFirmware {
                firmware: told.node,
                distance,
                evidence,
            },
        })
    }

    fn by_siblings(&self, device: &PciDevice) -> EffectiveNode {
        let root = device.root;
        let mut says = self.siblings.get(&root).into_iter().flatten();
        match (says.next(), says.next()) {
            (Some((&node, witnesses)), None) => EffectiveNode {
                node: Some(node),
                how: How::Siblings {
                    root,
                    count: witnesses.len(),
                    example: witnesses[0],
                },
            },
            (Some((one, some)), Some((other, others))) => EffectiveNode::unknown(format!(
                "devices on root bus {root} disagree: {} says node {one}, {} says node {other}",
                some[0], others[0]
            )),
            (None, _) => EffectiveNode::unknown(self.silence(device)),
        }
    }

    /// Why the device's node is unknown.
    fn silence(&self, device: &PciDevice) -> String {
        let kernel = match &device.node {
            nearfar_machine::Known::Yes(Some(node)) => {
                format!("the kernel says node {node}, which is not online")
            }
            nearfar_machine::Known::Yes(None) => "the kernel says none (-1)".to_owned(),
            nearfar_machine::Known::No { unknown_reason } => unknown_reason.to_string(),
        };
        let firmware = match (
            self.firmware(device.root),
            self.machine.host_bridge(device.root),
        ) {
            (Some(told), _) => format!(
                "the firmware's node {} is not online and no distances lead there",
                told.node
            ),
            (None, Some(bridge)) => match bridge.firmware.unknown_reason() {
                Some(reason) => format!("the firmware's node is unknown ({reason})"),
                None => "the firmware says nothing".to_owned(),
            },
            (None, None) => match self.machine.host_bridges.unknown_reason() {
                Some(reason) => format!("the firmware's node is unknown ({reason})"),
                None => "its host bridge is unknown".to_owned(),
            },
        };
        format!(
            "{kernel}; {firmware}; no other device on root bus {} has a node",
            device.root
        )
    }
}

/// The kernel's node of a device, when it is one that can be worked with.
fn kernel_node(machine: &Machine, device: &PciDevice) -> Option<NodeId> {
    let node = (*device.node.get()?)?;
    let is_online = machine.node(node).is_some_and(|node| node.online);
    // Where the source has no nodes, the kernel that gave the device one had it online.
    (is_online || machine.nodes.is_empty()).then_some(node)
}

/// Whether a device's node says something of its neighbours. The NVMe driver wrote the first node with memory into
/// devices that had none (`nvme_pci_alloc_dev`, until Linux 6.6), so its devices do not count.
fn testifies(device: &PciDevice) -> bool {
    device.driver.as_deref() != Some("nvme")
}
