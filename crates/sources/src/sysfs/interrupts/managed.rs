//! Whether the kernel manages an interrupt's affinity itself, so that writing it fails with EIO (EPERM on newer ones).
//!
//! It is known from one of three things, in this order:
//! debugfs, which says so outright; the mode of `smp_affinity`, which newer kernels make read-only for interrupts whose
//! affinity user space cannot set (register_irq_proc in kernel/irq/proc.c; seen so on 6.18); and the driver's habit,
//! since a driver either asks for managed interrupts (`PCI_IRQ_AFFINITY`, `irq_set_affinity_desc`) or does not.

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{Interrupt, Known, Managed, PciAddress, PciDevice};

use crate::parallel;
use crate::sysfs::virtio::VirtioDevice;
use crate::tree::Tree;

const DEBUGFS: &str = "sys/kernel/debug/irq/irqs";
const MANAGED: &[u8] = b"IRQD_AFFINITY_MANAGED";
/// What makes the kernel refuse a new affinity (irqd_can_balance() in include/linux/irq.h).
const FIXED: [&[u8]; 2] = [b"IRQD_NO_BALANCING", b"IRQD_PER_CPU"];

/// Drivers of storage that let the kernel manage the interrupts of their queues.
const MANAGE_QUEUES: [&str; 15] = [
    "nvme",
    "virtio_blk",
    "virtio_scsi",
    "virtiofs",
    "megaraid_sas",
    "mpt3sas",
    "mpi3mr",
    "csiostor",
    "hisi_sas_v3_hw",
    "aacraid",
    "smartpqi",
    "hpsa",
    "be2iscsi",
    "qla2xxx",
    "lpfc",
];

/// Drivers of network cards, which leave their interrupts to user space.
const LEAVE_QUEUES: [&str; 30] = [
    "virtio_net",
    "vmxnet3",
    "igb",
    "igbvf",
    "igc",
    "e1000",
    "e1000e",
    "ixgbe",
    "ixgbevf",
    "i40e",
    "iavf",
    "ice",
    "idpf",
    "fm10k",
    "bnx2",
    "bnx2x",
    "bnxt_en",
    "tg3",
    "mlx4_core",
    "mlx5_core",
    "ena",
    "gve",
    "ionic",
    "hns3",
    "hinic",
    "qede",
    "cxgb4",
    "sfc",
    "atlantic",
    "r8169",
];

/// What debugfs says of an interrupt.
struct State {
    managed: bool,
    fixed: bool,
}

/// How handlers are named whose driver is not known otherwise: the word before the number of the device, the part behind
/// it. Only drivers that name nothing else so (`nvme0q3`, `virtio1-req.0`, `megasas0-msix3`).
const NAMES: [(&str, &str, &str); 9] = [
    ("nvme", "q", "nvme"),
    ("virtio", "-req.", "virtio_blk"),
    ("virtio", "-request", "virtio_scsi"),
    ("virtio", "-requests.", "virtiofs"),
    ("virtio", "-input.", "virtio_net"),
    ("virtio", "-output.", "virtio_net"),
    ("megasas", "-msix", "megaraid_sas"),
    ("mpt3sas", "-msix", "mpt3sas"),
    ("mpi3mr", "-msix", "mpi3mr"),
];

pub(super) struct Habits<'a> {
    /// debugfs' word, where it can be read.
    debugged: HashMap<u32, State>,
    /// Whether the affinity can be written, where the file's mode distinguishes.
    writable: HashMap<u32, bool>,
    drivers: HashMap<PciAddress, &'a str>,
    virtio: &'a BTreeMap<String, VirtioDevice>,
    tree: &'a Tree,
}

impl<'a> Habits<'a> {
    pub(super) fn of(
        tree: &'a Tree,
        pci: &'a [PciDevice],
        virtio: &'a BTreeMap<String, VirtioDevice>,
        irqs: &[u32],
    ) -> Self {
        let debugged = debugged(tree, irqs);
        let writable = if debugged.is_empty() && tree.is_live() {
            writable(tree, irqs)
        } else {
            HashMap::new()
        };
        let drivers = pci
            .iter()
            .filter_map(|device| Some((device.address, device.driver.as_deref()?)))
            .collect();
        Self {
            debugged,
            writable,
            drivers,
            virtio,
            tree,
        }
    }

    pub(super) fn managed(&self, interrupt: &Interrupt) -> Known<Managed> {
        let number = interrupt.irq.0;
        if let Some(&State { managed, .. }) = self.debugged.get(&number) {
            let says = if managed { "has" } else { "has no" };
            let file = self.tree.display(&format!("{DEBUGFS}/{number}"));
            return Known::Yes(Managed {
                managed,
                evidence: format!("{file} {says} IRQD_AFFINITY_MANAGED"),
            });
        }
        if let Some(&writable) = self.writable.get(&number) {
            let says = if writable {
                "is writable"
            } else {
                "is read-only"
            };
            let file = self
                .tree
                .display(&format!("proc/irq/{number}/smp_affinity"));
            return Known::Yes(Managed {
                managed: !writable,
                evidence: format!("{file} {says}"),
            });
        }
        self.habit(interrupt)
    }

    /// Whether debugfs says that the kernel refuses a new affinity although it does not manage it.
    pub(super) fn is_fixed(&self, number: u32) -> bool {
        self.debugged
            .get(&number)
            .is_some_and(|state| state.fixed && !state.managed)
    }

    fn habit(&self, interrupt: &Interrupt) -> Known<Managed> {
        let Some(driver) = self.driver(interrupt) else {
            return Known::no(format!(
                "{} cannot be read and no driver is known",
                self.tree.display(DEBUGFS)
            ));
        };
        let manages = MANAGE_QUEUES.contains(&driver);
        if manages && interrupt.queue.is_some() {
            let evidence = format!("driver {driver} lets the kernel manage its queue interrupts");
            return Known::Yes(Managed {
                managed: true,
                evidence,
            });
        }
        // Administration and configuration are kept out of what is managed; which these are is only certain for
        // drivers that name their queues.
        let names_queues = driver == "nvme" || driver.starts_with("virtio");
        if manages && names_queues {
            let evidence =
                format!("driver {driver} leaves its interrupts other than of queues to user space");
            return Known::Yes(Managed {
                managed: false,
                evidence,
            });
        }
        if LEAVE_QUEUES.contains(&driver) || driver == "pcieport" {
            let evidence = format!("driver {driver} leaves its interrupts to user space");
            return Known::Yes(Managed {
                managed: false,
                evidence,
            });
        }
        Known::no(format!(
            "{} cannot be read, and it is unknown what driver {driver} does",
            self.tree.display(DEBUGFS)
        ))
    }

    fn driver(&self, interrupt: &Interrupt) -> Option<&str> {
        let virtio = interrupt
            .name
            .split('-')
            .next()
            .and_then(|device| self.virtio.get(device));
        let of_device = match virtio {
            Some(device) => device.driver.as_deref(),
            None => interrupt
                .device
                .and_then(|device| self.drivers.get(&device).copied()),
        };
        // That a function carries a virtio device says nothing of what drives that.
        of_device
            .filter(|driver| *driver != "virtio-pci")
            .or_else(|| by_name(&interrupt.name))
    }
}

/// The driver that names its handlers so.
fn by_name(name: &str) -> Option<&'static str> {
    NAMES.iter().find_map(|&(before, behind, driver)| {
        let rest = name.strip_prefix(before)?;
        let part = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = part.strip_prefix(behind)?;
        let is_number = number.bytes().all(|b| b.is_ascii_digit());
        (part.len() < rest.len() && is_number).then_some(driver)
    })
}

fn debugged(tree: &Tree, irqs: &[u32]) -> HashMap<u32, State> {
    let Ok(directory) = tree.directory(DEBUGFS) else {
        return HashMap::new();
    };
    let read = parallel::map(irqs, |number| {
        let state = |bytes: &[u8]| {
            let has = |mark: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
            State {
                managed: has(MANAGED),
                fixed: FIXED.into_iter().any(has),
            }
        };
        directory.with_bytes(&number.to_string(), state).ok()
    });
    irqs.iter()
        .zip(read)
        .filter_map(|(&number, state)| Some((number, state?)))
        .collect()
}

/// The modes of the affinity files. Older kernels make all of them writable, which says nothing: only where some are
/// not does the mode distinguish.
fn writable(tree: &Tree, irqs: &[u32]) -> HashMap<u32, bool> {
    let modes = parallel::map(irqs, |number| {
        let status = rustix::fs::stat(tree.display(&format!("proc/irq/{number}/smp_affinity")));
        status.ok().map(|status| status.st_mode & 0o200 != 0)
    });
    let modes: HashMap<u32, bool> = irqs
        .iter()
        .zip(modes)
        .filter_map(|(&number, writable)| Some((number, writable?)))
        .collect();
    if modes.values().all(|&writable| writable) {
        HashMap::new()
    } else {
        modes
    }
}
