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

mod managed;
pub(crate) mod owner;
mod table;

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuSet, Interrupt, Irq, Known, NOT_ASKED_FOR, NodeId, PROC_IRQ_FILES, PciAddress, PciDevice,
    queue_of,
};

use super::attribute;
use super::notes::Notes;
use super::virtio::VirtioDevice;
use crate::parallel;
use crate::tree::{Directory, Tree};
use crate::value;
use crate::want::Want;
use managed::Habits;
use owner::Owners;
pub(crate) use table::{Line as TableLine, Source, Table};

const PROC: &str = "proc/irq";
/// The kernel numbers interrupts from 0 without end, but keeps them below this many (`IRQ_BITMAP_BITS`).
const MOST_INTERRUPTS: usize = 262_144;

struct Reader<'a> {
    tree: &'a Tree,
    notes: &'a Notes,
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
    notes: &Notes,
    pci: &[PciDevice],
    virtio: &BTreeMap<String, VirtioDevice>,
) -> Known<Vec<Interrupt>> {
    let described = tree.directory("sys/kernel/irq").ok();
    // The running system has all of it elsewhere, without reading the counts of all CPUs.
    let table = (want.interrupt_counts || described.is_none() || !tree.is_live())
        .then(|| Table::read(tree, notes))
        .flatten();
    let names = match (tree.list(PROC), &table) {
        (Ok(names), _) => names,
        (Err(_), Some(table)) => table.lines.keys().map(ToString::to_string).collect(),
        (Err(error), None) => return Known::no(error.to_string()),
    };
    let mut numbers: Vec<u32> = names
        .iter()
        .filter_map(|name| name.parse().ok())
        .take(MOST_INTERRUPTS)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let owners = Owners::find(tree, notes, pci, virtio);
    let habits = Habits::of(tree, pci, virtio, &numbers);
    let reader = Reader {
        tree,
        notes,
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
        let immovable_reason = immovable_reason(
            name.as_deref(),
            source.as_ref(),
            self.habits.is_fixed(number),
        );
        let table = || self.table.as_ref().map(|_| self.tree.display(table::FILE));
        let owner = self
            .owners
            .of(number, name.as_deref(), source.as_ref(), self.notes, table);
        let name = name.unwrap_or_default();
        let cpus = |list: &str, mask: &str| {
            let Some(irqs) = &self.irqs else {
                return Known::no(format!("{} was not gathered", self.tree.display(PROC)));
            };
            let (list, mask) = (format!("{number}/{list}"), format!("{number}/{mask}"));
            let candidates: [(&str, attribute::Parser<CpuSet>); 2] =
                [(&list, value::list), (&mask, value::mask)];
            attribute::first_known(irqs, &list, &candidates, self.notes)
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
            Some(irqs) if self.counts => {
                attribute::known(irqs, &format!("{number}/node"), self.notes, attribute::node)
            }
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
        attribute::known(
            described,
            &format!("{number}/per_cpu_count"),
            self.notes,
            sum,
        )
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
fn sum(bytes: &[u8]) -> Result<u64, value::ValueError> {
    if bytes.len() >= 4095 {
        return Err(value::ValueError::Truncated(
            "cut off by the kernel at one page".to_owned(),
        ));
    }
    let counts = value::text(bytes)?
        .split(',')
        .filter(|count| !count.is_empty());
    counts
        .map(|count| value::natural(count.as_bytes()))
        .try_fold(0u64, |sum, count| Ok(sum.saturating_add(count?)))
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
