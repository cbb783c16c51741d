//! Whose an interrupt is.

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{PciAddress, PciDevice};

use super::table::Source;
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
    /// By interrupt, as `msi_irqs` lists them.
    messages: HashMap<u32, PciAddress>,
    /// By interrupt, as the file `irq` has it; `None` where several functions share the line.
    lines: HashMap<u32, Option<PciAddress>>,
    /// All functions that are known, ascending.
    functions: Vec<PciAddress>,
    virtio: &'a BTreeMap<String, VirtioDevice>,
    nvme: BTreeMap<String, PciAddress>,
    interfaces: BTreeMap<String, PciAddress>,
    /// A running system says for each function which interrupts it has.
    live: bool,
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
                    messages.extend(numbers.into_iter().map(|n| (n, device.address)))
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
        Self {
            messages,
            lines,
            functions: pci.iter().map(|device| device.address).collect(),
            virtio,
            nvme: linked(tree, "sys/class/nvme"),
            interfaces: linked(tree, "sys/class/net"),
            live: tree.is_live(),
        }
    }

    /// The owner of an interrupt: by `msi_irqs`, or where that was not gathered by what the kernel prints of its
    /// controller, by the line's number, by the names of its handlers. Of one that must have an owner the error says why
    /// it is unknown. `name` is `None` where nothing that names its handlers was gathered; `table` is the file with what the
    /// kernel prints, where there is one.
    pub(super) fn of(
        &self,
        number: u32,
        name: Option<&str>,
        source: Option<&Source>,
        notes: &Notes,
        table: impl Fn() -> Option<String>,
    ) -> Result<Option<PciAddress>, String> {
        let printed = source.and_then(|source| by_source(source, &self.functions));
        if let Some(&listed) = self.messages.get(&number) {
            if let Some(printed) = printed.filter(|&printed| printed != listed) {
                let message = format!(
                    "has interrupt {number} as one of {printed}, msi_irqs lists it for {listed}; taken from there"
                );
                notes.note(table().unwrap_or_default(), message);
            }
            return Ok(Some(listed));
        }
        if let Some(owner) = printed {
            return Ok(Some(owner));
        }
        let is_message = source.is_some_and(|source| is_pci_message(&source.chip));
        if let Some(&owner) = self.lines.get(&number).filter(|_| !is_message) {
            return Ok(owner);
        }
        match (name.and_then(|name| self.by_name(name)), source) {
            (Some(owner), _) => Ok(Some(owner)),
            (None, Some(source)) if is_message => Err(format!(
                "no msi_irqs was gathered, and {} does not name the PCI function",
                source.chip
            )),
            (None, None) if !self.live && self.messages.is_empty() => Err(match table() {
                Some(table) if name == Some("") => {
                    format!("{table} has no line of it: no handler")
                }
                Some(table) => format!("no msi_irqs was gathered, and {table} has no line of it"),
                None => "neither msi_irqs nor /proc/interrupts was gathered".to_owned(),
            }),
            _ => Ok(None),
        }
    }

    /// Whether a function lists the interrupt as its own.
    pub(super) fn is_listed(&self, number: u32) -> bool {
        self.messages.contains_key(&number)
    }

    fn by_name(&self, name: &str) -> Option<PciAddress> {
        if name.contains(',') {
            return None;
        }
        if let Some((_, address)) = name.rsplit_once("@pci:") {
            return address.parse().ok();
        }
        if let Some((device, _)) = name.split_once('-')
            && let Some(device) = self.virtio.get(device)
        {
            return device.parent;
        }
        if let Some((controller, _)) = name.rsplit_once('q')
            && let Some(&owner) = self.nvme.get(controller)
        {
            return Some(owner);
        }
        // `eth0-TxRx-3`, `i40e-eth0-TxRx-3`, `eth0`: only where one interface is meant.
        let mut named = name.split('-').filter_map(|part| self.interfaces.get(part));
        named.next().copied().filter(|_| named.next().is_none())
    }
}

/// The function that the kernel prints: in the controller's name since Linux 6.2 (`PCI-MSIX-0000:81:00.0`,
/// `ITS-PCI-MSI-...`; drivers/pci/msi/irqdomain.c), before in the number, which is index | bus:device.function << 11 |
/// domain << 27 (pci_msi_domain_calc_hwirq() there). `functions`: all that are known, or none.
pub(crate) fn by_source(source: &Source, functions: &[PciAddress]) -> Option<PciAddress> {
    let named = source.chip.rsplit_once('-');
    if let Some(address) = named.and_then(|(_, address)| address.parse().ok()) {
        return Some(address);
    }
    let number = source.number.filter(|_| is_pci_message(&source.chip))?;
    let domain = u32::try_from(number >> 27).ok()?;
    let at = PciAddress {
        domain,
        bus: (number >> 19) as u8,
        device: (number >> 14 & 31) as u8,
        function: (number >> 11 & 7) as u8,
    };
    if functions.is_empty() {
        return Some(at);
    }
    // Until Linux 6.8 the domain was cut to 5 bits, so several functions may have that number.
    let is_same = |other: &&PciAddress| {
        let place = |it: &PciAddress| (it.bus, it.device, it.function);
        place(other) == place(&at) && (other.domain == domain || other.domain & 31 == domain)
    };
    let mut same = functions.iter().filter(is_same);
    same.next().copied().filter(|_| same.next().is_none())
}

/// Whether a controller's interrupts are messages of PCI functions: `PCI-MSI`, `IR-PCI-MSIX`, `Hyper-V PCIe MSI`,
/// `PCH PCI MSI`, arm64's `ITS-MSI` and `MSI` (GICv2m); not `DMAR-MSI`, `HPET-MSI` or `ITS-pMSI`.
pub(crate) fn is_pci_message(chip: &str) -> bool {
    (chip.contains("PCI") && chip.contains("MSI")) || chip == "ITS-MSI" || chip == "MSI"
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

/// The PCI functions of the devices of a class, by name.
fn linked(tree: &Tree, class: &str) -> BTreeMap<String, PciAddress> {
    let names = tree.list(class).unwrap_or_default();
    let address = |name: &str| {
        let links = [format!("{class}/{name}"), format!("{class}/{name}/device")];
        links
            .iter()
            .find_map(|link| PciAddress::innermost(&tree.link(link).ok()?))
    };
    names
        .into_iter()
        .filter_map(|name| address(&name).map(|address| (name, address)))
        .collect()
}
