//! Interrupts: their devices, the queues they serve, the CPUs that may serve them, the CPU that does.

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

/// Words before a queue's number, compared in lower case, after the signs between word and number are taken off.
const WORDS: [&str; 17] = [
    "txrx",       // igb, ixgbe, i40e, ice, iavf, bnxt, hns3, tg3, ionic: eth0-TxRx-3
    "tx-rx",      // ena: eth0-Tx-Rx-3
    "rxtx",       // vmxnet3, nfp: eth0-rxtx-3
    "rx",         // igb, tg3: eth0-rx-3
    "tx",         // eth0-tx-3
    "fp",         // bnx2x, qede: eth0-fp-3
    "queue",      // cxgb4: eth0 (queue 3)
    "input",      // virtio-net: virtio0-input.3
    "output",     // virtio-net: virtio0-output.3
    "req",        // virtio-blk: virtio1-req.3
    "request",    // virtio-scsi of newer kernels: virtio2-request.3
    "requests",   // virtio-fs: virtio3-requests.3
    "comp",       // mlx5: mlx5_comp3@pci:0000:3b:00.0
    "msix",       // megaraid_sas, mpt3sas: mpt3sas0-msix3
    "ntfy-blk",   // gve: gve-ntfy-blk3@pci:0000:00:04.0
    "ntfy-block", // gve, older: eth0-ntfy-block.3
    "mana_q",     // mana: mana_q3@pci:7870:00:00.0
];

/// The queue a handler's name stands for: `nvme0q3` is 3. Nothing for configuration, hot-plug and management interrupts
/// and for NVMe's queue 0, which only carries administration. Nothing either where several handlers share the line.
pub fn queue_of(name: &str) -> Option<u32> {
    if name.contains(',') {
        return None;
    }
    let name = name.split('@').next()?.trim_end_matches(')');
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: u32 = name[stem.len()..].parse().ok()?;
    if is_nvme(stem) {
        return Some(number).filter(|&queue| queue > 0);
    }
    let stem = stem
        .trim_end_matches(['-', '.', ' ', ':'])
        .to_ascii_lowercase();
    let before = |word: &str| {
        stem.strip_suffix(word)
            .is_some_and(|rest| !rest.ends_with(|c: char| c.is_alphanumeric()))
    };
    WORDS.iter().any(|word| before(word)).then_some(number)
}

/// `nvme0q`.
fn is_nvme(stem: &str) -> bool {
    let instance = stem
        .strip_prefix("nvme")
        .and_then(|rest| rest.strip_suffix('q'));
    instance.is_some_and(|instance| {
        !instance.is_empty() && instance.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_queues_give_their_number() {
        for name in [
            "nvme0q3",
            "nvme12q3",
            "eth0-TxRx-3",
            "i40e-ens1f0-TxRx-3",
            "iavf-eth0-TxRx-3",
            "hns3-0000:7d:00.0-eth0-TxRx-3",
            "mlx5_comp3@pci:0000:3b:00.0",
            "virtio0-input.3",
            "virtio0-output.3",
            "virtio1-req.3",
            "ens5-Tx-Rx-3",
            "eth0-rx-3",
            "eth0-tx-3",
            "eth0-rxtx-3",
            "eth0-fp-3",
            "mpt3sas0-msix3",
            "eth0 (queue 3)",
            "gve-ntfy-blk3@pci:0000:00:04.0",
        ] {
            assert_eq!(queue_of(name), Some(3), "{name}");
        }
    }

    #[test]
    fn names_of_other_interrupts_give_none() {
        for name in [
            "",
            "nvme0q0",
            "virtio0-config",
            "virtio2-request",
            "i40e-0000:3b:00.0:misc",
            "eth0-event-8",
            "mlx5_async0@pci:0000:3b:00.0",
            "ena-mgmnt@pci:0000:00:05.0",
            "PCIe PME, aerdrv, pciehp",
            "eth0-TxRx-3, eth1-TxRx-3",
            "timer",
            "i8042",
            "eth0",
            "ahci[0000:00:1f.2]",
            "eth0-TxRx-99999999999",
            "index3",
            "nvmeq3",
        ] {
            assert_eq!(queue_of(name), None, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(name: String) {
            queue_of(&name);
        }
    }
}
