//! Interrupts: whose they are, which queue they serve, where they may go and where they do go.
//!
//! ```text
//! proc/irq/34/smp_affinity_list           where it may go
//! proc/irq/34/effective_affinity_list     where it goes
//! sys/kernel/irq/34/actions               nvme0q1
//! sys/bus/pci/devices/0000:21:00.0/msi_irqs/34    whose it is
//! proc/interrupts                         its controller, handlers and counts: all of this where it was gathered alone
//! ```
//!
//! A large machine has thousands, so each costs a handful of system calls and they are read on several threads.
//!
//! Where the kernel manages an interrupt's affinity itself, writing it fails with EIO (EPERM on newer ones). Whether it does
//! is known from one of three things, in this order:
//! debugfs, which says so outright; the mode of `smp_affinity`, which newer kernels make read-only for interrupts whose
//! affinity user space cannot set (register_irq_proc in kernel/irq/proc.c; seen so on 6.18); and the driver's habit,
//! since a driver either asks for managed interrupts (`PCI_IRQ_AFFINITY`, `irq_set_affinity_desc`) or does not.

mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_machine::{
    CpuSet, Interrupt, Irq, Known, Managed, NOT_ASKED_FOR, NodeId, PROC_IRQ_FILES, PciAddress,
    PciDevice, queue_of,
};

use super::devices::VirtioDevice;
use super::pci::DEVICES;
use crate::parallel;
use crate::request::Want;
use crate::tree::{Directory, Parser, Tree};
use crate::value::{self, ValueError};
pub(crate) use table::{InterruptLine, Source, Table};

const PROC: &str = "proc/irq";
/// The kernel numbers interrupts from 0 without end, but keeps them below this many (`IRQ_BITMAP_BITS`).
const MOST_INTERRUPTS: usize = 262_144;

struct Reader<'a> {
    tree: &'a Tree,
    /// `proc/irq`; may be missing in a tree that has `proc/interrupts`.
    irqs: Option<Directory<'a>>,
    /// `sys/kernel/irq`, since Linux 4.9.
    described: Option<Directory<'a>>,
    table: Option<Table>,
    owners: Owners<'a>,
    habits: Habits<'a>,
    counts: bool,
}

/// Reads all interrupts, by number.
pub(crate) fn read(
    tree: &Tree,
    want: &Want,
    pci: &[PciDevice],
    virtio: &BTreeMap<String, VirtioDevice>,
) -> Known<Vec<Interrupt>> {
    let described = tree.directory("sys/kernel/irq").ok();
    // The running system has all of it elsewhere, without reading the counts of all CPUs.
    let table = (want.interrupt_counts || described.is_none() || !tree.is_live())
        .then(|| Table::read(tree))
        .flatten();
    let names = match (tree.list(PROC), &table) {
        (Ok(names), _) => names,
        (Err(_), Some(table)) => table.lines.keys().map(ToString::to_string).collect(),
        (Err(error), None) => return Known::no(error.to_string()),
    };
    let numbers = names.iter().filter_map(|name| name.parse().ok());
    let numbers: BTreeSet<u32> = numbers.take(MOST_INTERRUPTS).collect();
    let numbers = Vec::from_iter(numbers);
    let owners = Owners::find(tree, pci, virtio);
    let habits = Habits::of(tree, pci, virtio, &numbers);
    let reader = Reader {
        tree,
        irqs: tree.directory(PROC).ok(),
        described,
        table,
        owners,
        habits,
        counts: want.interrupt_counts,
    };
    let mut interrupts = parallel::map(&numbers, |&number| reader.read(number));
    number_requests(&mut interrupts);
    for interrupt in &mut interrupts {
        interrupt.managed = reader.habits.managed(interrupt);
    }
    Known::Yes(interrupts)
}

impl Reader<'_> {
    fn read(&self, number: u32) -> Interrupt {
        let name = self.name(number);
        let source = self.source(number);
        let is_fixed = self.habits.is_fixed(number);
        let immovable_reason = immovable_reason(name.as_deref(), source.as_ref(), is_fixed);
        let table = || self.table.as_ref().map(|_| self.tree.display(table::FILE));
        let source = source.as_ref();
        let owner = self.owners.of(number, name.as_deref(), source, table);
        let name = name.unwrap_or_default();
        let cpus = |list: &str, mask: &str| {
            let Some(irqs) = &self.irqs else {
                return Known::no(format!("{} was not gathered", self.tree.display(PROC)));
            };
            let (list, mask) = (format!("{number}/{list}"), format!("{number}/{mask}"));
            let candidates: [(&str, Parser<CpuSet>); 2] =
                [(&list, value::list), (&mask, value::mask)];
            irqs.first_known(&list, &candidates)
        };
        Interrupt {
            irq: Irq(number),
            device: owner.as_ref().ok().copied().flatten(),
            device_unknown_reason: owner.err(),
            immovable_reason,
            queue: queue_of(&name),
            affinity: cpus("smp_affinity_list", "smp_affinity"),
            effective: cpus("effective_affinity_list", "effective_affinity"),
            managed: Known::no("not looked at yet"),
            node: self.node(number),
            count: self.count(number),
            name,
        }
    }

    /// Where its descriptor lives. Nothing is decided by it, so it is only read together with the counts.
    fn node(&self, number: u32) -> Known<Option<NodeId>> {
        match &self.irqs {
            Some(irqs) if self.counts => irqs.known(&format!("{number}/node"), value::node),
            Some(_) => Known::no(NOT_ASKED_FOR),
            None => Known::no(format!("{} was not gathered", self.tree.display(PROC))),
        }
    }

    /// The names of its handlers: from sysfs, or from `/proc/interrupts`, or the directories below `/proc/irq/N`,
    /// which are called after them. Empty where none serves it; `None` where nothing was gathered that would name one.
    fn name(&self, number: u32) -> Option<String> {
        if let Some(described) = &self.described
            && let Ok(name) = described.with_bytes(&format!("{number}/actions"), |bytes| {
                String::from_utf8_lossy(bytes).trim().to_owned()
            })
        {
            return Some(name);
        }
        if let Some(table) = &self.table {
            match table.get(number) {
                Some(line) => return Some(line.name.clone()),
                // The kernel leaves out lines without a handler that never fired.
                None if table.is_whole() => return Some(String::new()),
                None => {}
            }
        }
        let entry = self.irqs.as_ref()?.directory(&number.to_string()).ok()?;
        let mut names = entry.names().unwrap_or_default();
        names.retain(|name| !PROC_IRQ_FILES.contains(&name.as_str()));
        (self.tree.is_live() || !names.is_empty()).then(|| names.join(","))
    }

    /// Its controller and its number there.
    fn source(&self, number: u32) -> Option<Source> {
        if let Some(line) = self.table.as_ref().and_then(|table| table.get(number)) {
            return Some(line.source.clone());
        }
        if self.owners.is_listed(number) {
            return None;
        }
        let read = |file: &str| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            let described = self.described.as_ref()?;
            described.with_bytes(&format!("{number}/{file}"), text).ok()
        };
        Some(Source {
            chip: read("chip_name")?,
            number: read("hwirq").and_then(|number| number.parse().ok()),
        })
    }

    fn count(&self, number: u32) -> Known<u64> {
        if !self.counts {
            return Known::no(NOT_ASKED_FOR);
        }
        if let Some(line) = self.table.as_ref().and_then(|table| table.get(number)) {
            return Known::Yes(line.count);
        }
        let Some(described) = &self.described else {
            let place = self.tree.display(&format!("{PROC}/{number}"));
            return Known::no(format!("{place}: no file holds its count"));
        };
        described.known(&format!("{number}/per_cpu_count"), sum)
    }
}

/// Why it cannot or need not be placed. What serves each CPU and what keeps the time has IRQF_PERCPU or IRQF_NOBALANCING,
/// so the kernel refuses a new affinity (irq_can_set_affinity_usr() in kernel/irq/manage.c).
///
/// `is_fixed`: its own flags say so.
pub(crate) fn immovable_reason(
    name: Option<&str>,
    source: Option<&Source>,
    is_fixed: bool,
) -> Option<String> {
    /// Interrupts 0 to 31 of arm's controller are private to each CPU (GIC architecture specification, INTIDs).
    const PRIVATE: u64 = 32;
    /// Controllers of which each CPU has one: RISC-V, Xen's timers and IPIs, powerpc's IPIs, LoongArch.
    const OF_EACH_CPU: [&str; 4] = ["RISC-V INTC", "xen-percpu", "XIVE-IPI", "CPUINTC"];
    let of_each_cpu = |source: &Source| {
        let is_private =
            source.chip.starts_with("GIC") && source.number.is_some_and(|number| number < PRIVATE);
        is_private || OF_EACH_CPU.contains(&source.chip.as_str())
    };
    let is_timer = matches!(name, Some("timer" | "arch_timer" | "riscv-timer"))
        || source.is_some_and(|source| source.chip.contains("HPET"));
    if name == Some("") {
        Some("no handler serves it".to_owned())
    } else if source.is_some_and(of_each_cpu) {
        Some("each CPU has its own".to_owned())
    } else if is_timer || is_fixed {
        Some("the kernel refuses to move it (IRQF_NOBALANCING)".to_owned())
    } else {
        None
    }
}

/// Adds up `3,0,17`. The kernel cuts an attribute at one page, so a longer one has lost CPUs: no sum then.
fn sum(bytes: &[u8]) -> Result<u64, ValueError> {
    if bytes.len() >= 4095 {
        return Err(ValueError::faulty("cut off by the kernel at one page"));
    }
    let mut counts = value::text(bytes)?.split(',').filter(|it| !it.is_empty());
    counts.try_fold(0u64, |sum, count| {
        Ok(sum.saturating_add(value::natural(count.as_bytes())?))
    })
}

/// Drivers such as virtio-scsi call all request queues alike (`virtio2-request`): those are numbered in the order
/// of their interrupts, which is the order in which the driver asked for them.
fn number_requests(interrupts: &mut [Interrupt]) {
    let mut next: BTreeMap<(PciAddress, String), u32> = BTreeMap::new();
    for interrupt in interrupts {
        if let Some(device) = interrupt.device
            && interrupt.queue.is_none()
            && interrupt.name.ends_with("-request")
        {
            let queue = next.entry((device, interrupt.name.clone())).or_default();
            interrupt.queue = Some(*queue);
            *queue += 1;
        }
    }
}

/// The most interrupts one function can have (MSI-X, PCI Express 5.0, 7.7.2.2).
const MOST_MESSAGES: usize = 2048;

/// Which PCI function each interrupt belongs to.
struct Owners<'a> {
    /// By interrupt, as `msi_irqs` lists them.
    messages: HashMap<u32, PciAddress>,
    /// By interrupt, as the file `irq` has it; `None` where several functions share the line.
    lines: HashMap<u32, Option<PciAddress>>,
    /// All functions that are known, ascending.
    functions: Vec<PciAddress>,
    virtio: &'a BTreeMap<String, VirtioDevice>,
    nvme: BTreeMap<String, PciAddress>,
    interfaces: BTreeMap<String, PciAddress>,
    tree: &'a Tree,
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
        tree: &'a Tree,
        pci: &[PciDevice],
        virtio: &'a BTreeMap<String, VirtioDevice>,
    ) -> Self {
        let claims = parallel::map(pci, |device| claim(tree, device));
        let mut messages = HashMap::new();
        let mut lines: HashMap<u32, Option<PciAddress>> = HashMap::new();
        for (device, claim) in pci.iter().zip(claims) {
            match claim {
                Claim::Messages(numbers) => {
                    messages.extend(numbers.into_iter().map(|n| (n, device.address)))
                }
                Claim::Line(number) => {
                    let owner = lines.entry(number).and_modify(|owner| *owner = None);
                    owner.or_insert(Some(device.address));
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
            tree,
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
        table: impl Fn() -> Option<String>,
    ) -> Result<Option<PciAddress>, String> {
        let printed = source.and_then(|source| by_source(source, &self.functions));
        if let Some(&listed) = self.messages.get(&number) {
            if let Some(printed) = printed.filter(|&printed| printed != listed) {
                let message = format!(
                    "has interrupt {number} as one of {printed}, msi_irqs lists it for {listed}; taken from there"
                );
                self.tree.note(table::FILE, message);
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
            // A running system says for each function which interrupts it has.
            (None, None) if !self.tree.is_live() && self.messages.is_empty() => {
                Err(match table() {
                    Some(table) if name == Some("") => {
                        format!("{table} has no line of it: no handler")
                    }
                    Some(table) => {
                        format!("no msi_irqs was gathered, and {table} has no line of it")
                    }
                    None => "neither msi_irqs nor /proc/interrupts was gathered".to_owned(),
                })
            }
            _ => Ok(None),
        }
    }

    /// Whether a function lists the interrupt as its own.
    fn is_listed(&self, number: u32) -> bool {
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

fn claim(tree: &Tree, device: &PciDevice) -> Claim {
    let Ok(directory) = tree.directory(&format!("{DEVICES}/{}", device.address)) else {
        return Claim::Nothing;
    };
    // The directory is only there while messages are in use.
    if let Ok(messages) = directory.directory("msi_irqs") {
        let names = messages.names().unwrap_or_default();
        let numbers = names.iter().filter_map(|name| name.parse().ok());
        return Claim::Messages(numbers.take(MOST_MESSAGES).collect());
    }
    // Without a driver the line is not served, whatever number the firmware left there.
    let driver = device.driver.as_ref();
    let line = driver.and_then(|_| directory.noted("irq", value::natural));
    match line.and_then(|line| u32::try_from(line).ok()) {
        None | Some(0) => Claim::Nothing,
        Some(line) => Claim::Line(line),
    }
}

/// The PCI functions of the devices of a class, by name.
fn linked(tree: &Tree, class: &str) -> BTreeMap<String, PciAddress> {
    let names = tree.list(class).unwrap_or_default();
    let with_function = |name: String| {
        let links = [format!("{class}/{name}"), format!("{class}/{name}/device")];
        Some((name, tree.function_behind(&links)?))
    };
    names.into_iter().filter_map(with_function).collect()
}

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

struct Habits<'a> {
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
        let is_asked = debugged.is_empty() && tree.is_live();
        let driver = |device: &'a PciDevice| Some((device.address, device.driver.as_deref()?));
        Self {
            writable: if is_asked {
                writable(tree, irqs)
            } else {
                HashMap::new()
            },
            debugged,
            drivers: pci.iter().filter_map(driver).collect(),
            virtio,
            tree,
        }
    }

    pub(super) fn managed(&self, interrupt: &Interrupt) -> Known<Managed> {
        let number = interrupt.irq.0;
        if let Some(&State { managed, .. }) = self.debugged.get(&number) {
            let says = if managed { "has" } else { "has no" };
            let file = self.tree.display(&format!("{DEBUGFS}/{number}"));
            return is_managed(managed, format!("{file} {says} IRQD_AFFINITY_MANAGED"));
        }
        if let Some(&writable) = self.writable.get(&number) {
            let says = if writable { "writable" } else { "read-only" };
            let file = format!("proc/irq/{number}/smp_affinity");
            let file = self.tree.display(&file);
            return is_managed(!writable, format!("{file} is {says}"));
        }
        self.habit(interrupt)
    }

    /// Whether debugfs says that the kernel refuses a new affinity although it does not manage it.
    fn is_fixed(&self, number: u32) -> bool {
        self.debugged
            .get(&number)
            .is_some_and(|state| state.fixed && !state.managed)
    }

    fn habit(&self, interrupt: &Interrupt) -> Known<Managed> {
        let debugfs = self.tree.display(DEBUGFS);
        let Some(driver) = self.driver(interrupt) else {
            return Known::no(format!("{debugfs} cannot be read and no driver is known"));
        };
        let manages = MANAGE_QUEUES.contains(&driver);
        // Administration and configuration are kept out of what is managed; which these are is only certain for
        // drivers that name their queues.
        let names_queues = driver == "nvme" || driver.starts_with("virtio");
        let (managed, habit) = if manages && interrupt.queue.is_some() {
            (true, "lets the kernel manage its queue interrupts")
        } else if manages && names_queues {
            let habit = "leaves its interrupts other than of queues to user space";
            (false, habit)
        } else if LEAVE_QUEUES.contains(&driver) || driver == "pcieport" {
            (false, "leaves its interrupts to user space")
        } else {
            return Known::no(format!(
                "{debugfs} cannot be read, and it is unknown what driver {driver} does"
            ));
        };
        is_managed(managed, format!("driver {driver} {habit}"))
    }

    fn driver(&self, interrupt: &Interrupt) -> Option<&str> {
        let virtio = interrupt.name.split('-').next();
        let of_device = match virtio.and_then(|device| self.virtio.get(device)) {
            Some(device) => device.driver.as_deref(),
            None => interrupt
                .device
                .and_then(|it| self.drivers.get(&it).copied()),
        };
        // That a function carries a virtio device says nothing of what drives that.
        let of_device = of_device.filter(|driver| *driver != "virtio-pci");
        of_device.or_else(|| by_name(&interrupt.name))
    }
}

fn is_managed(managed: bool, evidence: String) -> Known<Managed> {
    Known::Yes(Managed { managed, evidence })
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
    of_each(irqs, read)
}

/// The modes of the affinity files. Older kernels make all of them writable, which says nothing: only where some are
/// not does the mode distinguish.
fn writable(tree: &Tree, irqs: &[u32]) -> HashMap<u32, bool> {
    let modes = parallel::map(irqs, |number| {
        let status = rustix::fs::stat(tree.display(&format!("proc/irq/{number}/smp_affinity")));
        status.ok().map(|status| status.st_mode & 0o200 != 0)
    });
    let modes = of_each(irqs, modes);
    match modes.values().all(|&writable| writable) {
        true => HashMap::new(),
        false => modes,
    }
}

fn of_each<T>(irqs: &[u32], read: Vec<Option<T>>) -> HashMap<u32, T> {
    let all = irqs.iter().copied().zip(read);
    all.filter_map(|(number, it)| Some((number, it?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_up_and_a_cut_off_list_is_not() {
        assert_eq!(sum(b"3,0,17\n"), Ok(20));
        assert_eq!(sum(b"\n"), Ok(0));
        assert!(sum(b"3,x").is_err());
        assert!(sum(&[b'1'; 4096]).is_err());
    }
}
