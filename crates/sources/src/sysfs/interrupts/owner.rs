//! Whose an interrupt is.

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{PciAddress, PciDevice};

use crate::parallel;
use crate::sysfs::notes::{Notes, read_noted};
use crate::sysfs::pci::DEVICES;
use crate::sysfs::virtio::VirtioDevice;
use crate::tree::Tree;
use crate::value;

/// The most interrupts one function can have (MSI-X, PCI Express 5.0, 7.7.2.2).
const MOST_MESSAGES: usize = 2048;

/// Which PCI function each interrupt belongs to.
pub(super) struct Owners<'a> {
    /// By interrupt; `None` where several functions share the line.
    by_number: HashMap<u32, Option<PciAddress>>,
    virtio: &'a BTreeMap<String, VirtioDevice>,
    nvme: BTreeMap<String, PciAddress>,
}

/// What one function says of its interrupts.
enum Claim {
    /// Messages are its own.
    Messages(Vec<u32>),
    /// A line may be shared.
    Line(u32),
    Nothing,
}

impl<'a> Owners<'a> {
    pub(super) fn find(
        tree: &Tree,
        notes: &Notes,
        pci: &[PciDevice],
        virtio: &'a BTreeMap<String, VirtioDevice>,
    ) -> Self {
        let claims = parallel::map(pci, |device| claim(tree, notes, device));
        let mut messages = HashMap::new();
        let mut lines: HashMap<u32, Option<PciAddress>> = HashMap::new();
        for (device, claim) in pci.iter().zip(claims) {
            match claim {
                Claim::Messages(numbers) => {
                    messages.extend(numbers.into_iter().map(|n| (n, Some(device.address))))
                }
                Claim::Line(number) => {
                    lines
                        .entry(number)
                        .and_modify(|owner| *owner = None)
                        .or_insert(Some(device.address));
                }
                Claim::Nothing => {}
            }
        }
        lines.extend(messages);
        Self {
            by_number: lines,
            virtio,
            nvme: nvme_controllers(tree),
        }
    }

    /// The owner of an interrupt; where the kernel did not list it (trees gathered without `msi_irqs`), by its name.
    pub(super) fn of(&self, number: u32, name: &str) -> Option<PciAddress> {
        match self.by_number.get(&number) {
            Some(&owner) => owner,
            None => self.by_name(name),
        }
    }

    fn by_name(&self, name: &str) -> Option<PciAddress> {
        if name.contains(',') {
            return None;
        }
        if let Some((_, address)) = name.rsplit_once("@pci:") {
            return address.parse().ok();
        }
        if let Some((device, _)) = name.split_once('-') {
            return self.virtio.get(device)?.parent;
        }
        let (controller, _) = name.rsplit_once('q')?;
        self.nvme.get(controller).copied()
    }
}

fn claim(tree: &Tree, notes: &Notes, device: &PciDevice) -> Claim {
    let Ok(directory) = tree.directory(&format!("{DEVICES}/{}", device.address)) else {
        return Claim::Nothing;
    };
    // The directory is only there while messages are in use.
    if let Ok(messages) = directory.directory("msi_irqs") {
        let names = messages.names().unwrap_or_default();
        return Claim::Messages(
            names
                .iter()
                .filter_map(|name| name.parse().ok())
                .take(MOST_MESSAGES)
                .collect(),
        );
    }
    // Without a driver the line is not served, whatever number the firmware left there.
    let line = device
        .driver
        .as_ref()
        .and_then(|_| read_noted(&directory, "irq", notes, value::natural));
    match line.and_then(|line| u32::try_from(line).ok()) {
        None | Some(0) => Claim::Nothing,
        Some(line) => Claim::Line(line),
    }
}

fn nvme_controllers(tree: &Tree) -> BTreeMap<String, PciAddress> {
    let names = tree.list("sys/class/nvme").unwrap_or_default();
    let address =
        |name: &str| PciAddress::innermost(&tree.link(&format!("sys/class/nvme/{name}")).ok()?);
    names
        .into_iter()
        .filter_map(|name| address(&name).map(|address| (name, address)))
        .collect()
}
