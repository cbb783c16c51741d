//! Interrupts: their devices, the CPUs that may serve them, the CPU that does.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::{Irq, NodeId, PciAddress};
use crate::known::Known;
use crate::set::CpuSet;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Interrupt {
    pub irq: Irq,
    /// The names of its handlers, comma separated as in `/proc/interrupts`: `nvme0q3`, `eth0-TxRx-1`.
    pub name: String,
    /// The PCI device it belongs to, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
    /// Why its device is unknown although it has one; `None` where `device` says all there is to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_unknown_reason: Option<String>,
    /// Why there is nothing to place: no handler serves it, each CPU has its own, or the kernel refuses to move it (the
    /// timer). `None` for all others, also those that the kernel manages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immovable_reason: Option<String>,
    /// The queue of that device it serves, by its name; `None` for configuration and hot-plug interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// CPUs that may serve it (`smp_affinity_list`).
    pub affinity: Known<CpuSet>,
    /// CPUs the interrupt controller really uses (`effective_affinity_list`); follows a change only with the next
    /// interrupt, unless interrupts are remapped.
    pub effective: Known<CpuSet>,
    /// Whether the kernel manages the affinity itself, so that it cannot be changed.
    pub managed: Known<Managed>,
    /// `/proc/irq/N/node`: where its descriptor lives. Not the device's locality.
    pub node: Known<Option<NodeId>>,
    /// How often it fired since boot, on all CPUs.
    pub count: Known<u64>,
}

impl Interrupt {
    /// One of which nothing but the number is known, for this reason.
    pub fn unknown(irq: Irq, reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        Self {
            irq,
            name: String::new(),
            device: None,
            device_unknown_reason: Some(reason.clone().into_owned()),
            immovable_reason: None,
            queue: None,
            affinity: Known::no(reason.clone()),
            effective: Known::no(reason.clone()),
            managed: Known::no(reason.clone()),
            node: Known::no(reason.clone()),
            count: Known::no(reason),
        }
    }
}

/// The kernel's own files in `/proc/irq/N`; every other name there is a handler's directory.
pub const PROC_IRQ_FILES: [&str; 7] = [
    "affinity_hint",
    "effective_affinity",
    "effective_affinity_list",
    "node",
    "smp_affinity",
    "smp_affinity_list",
    "spurious",
];

/// Whether an interrupt's affinity belongs to the kernel, and how that is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Managed {
    /// True when user space cannot change the affinity.
    pub managed: bool,
    /// How that is known: a file and what it says, or the driver's habit.
    pub evidence: String,
}
