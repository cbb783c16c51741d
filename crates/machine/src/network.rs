//! Network devices and the CPUs their queues are steered to.

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, PciAddress};
use crate::known::Known;
use crate::set::CpuSet;

/// A network device with hardware behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetworkDevice {
    pub name: String,
    /// The PCI function it belongs to; a virtio device's is its PCI parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
    /// The hardware address it was made with, only if several interfaces have the same `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The node the kernel gives it (the PCI parent's, for a virtio device); `null` where the kernel says none.
    pub node: Known<Option<NodeId>>,
    /// Transmit queues, by ascending number. Each interface has queues both ways: none of either means that the source
    /// does not have them.
    pub transmit: Vec<TransmitQueue>,
    /// Receive queues, by ascending number.
    pub receive: Vec<ReceiveQueue>,
}

impl NetworkDevice {
    /// Whether its queues are known.
    pub fn has_queues(&self) -> bool {
        !self.transmit.is_empty() || !self.receive.is_empty()
    }
}

/// A transmit queue and the CPUs that use it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransmitQueue {
    pub queue: u32,
    /// XPS: the CPUs that send through it (`xps_cpus`); reading fails with ENOENT on one-queue devices.
    pub xps: Known<CpuSet>,
}

/// A receive queue and the CPUs its packets are handed to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveQueue {
    pub queue: u32,
    /// RPS: the CPUs that process its packets; empty means the CPU that took the interrupt (`rps_cpus`).
    pub rps: Known<CpuSet>,
}
