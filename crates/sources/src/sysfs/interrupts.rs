//! Interrupts: whose they are, which queue they serve, where they may go and where they do go.
//!
//! ```text
//! proc/irq/34/smp_affinity_list           where it may go
//! proc/irq/34/effective_affinity_list     where it goes
//! sys/kernel/irq/34/actions               nvme0q1
//! sys/bus/pci/devices/0000:21:00.0/msi_irqs/34    whose it is
//! ```
//!
//! A large machine has thousands, so each costs a handful of system calls and they are read on several threads.

mod managed;
mod owner;
mod table;

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuSet, Interrupt, Irq, Known, NodeId, PROC_IRQ_FILES, PciAddress, PciDevice, queue_of,
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
pub(crate) use table::{Line as TableLine, Table};

const PROC: &str = "proc/irq";
/// The kernel numbers interrupts from 0 without end, but keeps them below this many (`IRQ_BITMAP_BITS`).
const MOST_INTERRUPTS: usize = 262_144;

struct Reader<'a> {
    notes: &'a Notes,
    irqs: Directory<'a>,
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
    let (names, irqs) = match (tree.list(PROC), tree.directory(PROC)) {
        (Ok(names), Ok(directory)) => (names, directory),
        (Err(error), _) | (_, Err(error)) => return Known::no(error.to_string()),
    };
    let mut numbers: Vec<u32> = names
        .iter()
        .filter_map(|name| name.parse().ok())
        .take(MOST_INTERRUPTS)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let described = tree.directory("sys/kernel/irq").ok();
    let table = (want.interrupt_counts || described.is_none())
        .then(|| Table::read(tree, notes))
        .flatten();
    let owners = Owners::find(tree, notes, pci, virtio);
    let habits = Habits::of(tree, pci, virtio, &numbers);
    let reader = Reader {
        notes,
        irqs,
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
        let cpus = |list: &str, mask: &str| {
            let (list, mask) = (format!("{number}/{list}"), format!("{number}/{mask}"));
            let candidates: [(&str, attribute::Parser<CpuSet>); 2] =
                [(&list, value::list), (&mask, value::mask)];
            attribute::first_known(&self.irqs, &candidates, self.notes)
        };
        Interrupt {
            irq: Irq(number),
            device: self.owners.of(number, &name),
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
        match self.counts {
            true => attribute::known(
                &self.irqs,
                &format!("{number}/node"),
                self.notes,
                attribute::node,
            ),
            false => Known::no("not asked for"),
        }
    }

    /// The names of its handlers: from sysfs, or from `/proc/interrupts`, or the directories below `/proc/irq/N`,
    /// which are called after them.
    fn name(&self, number: u32) -> String {
        if let Some(described) = &self.described
            && let Ok(name) = described.with_bytes(&format!("{number}/actions"), |bytes| {
                String::from_utf8_lossy(bytes).trim().to_owned()
            })
        {
            return name;
        }
        if let Some(line) = self.table.as_ref().and_then(|table| table.get(number)) {
            return line.name.clone();
        }
        let Ok(entry) = self.irqs.directory(&number.to_string()) else {
            return String::new();
        };
        let mut names = entry.names().unwrap_or_default();
        names.retain(|name| !PROC_IRQ_FILES.contains(&name.as_str()));
        names.join(",")
    }

    fn count(&self, number: u32) -> Known<u64> {
        if !self.counts {
            return Known::no("not asked for");
        }
        if let Some(line) = self.table.as_ref().and_then(|table| table.get(number)) {
            return Known::Yes(line.count);
        }
        let Some(described) = &self.described else {
            return Known::no(
                self.irqs
                    .display(&format!("{number}: no file holds its count")),
            );
        };
        attribute::known(
            described,
            &format!("{number}/per_cpu_count"),
            self.notes,
            sum,
        )
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
