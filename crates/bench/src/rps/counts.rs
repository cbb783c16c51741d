//! Which CPUs served the card while it was measured: interrupts of its queues, softirqs, drops.

use std::collections::BTreeMap;
use std::fs;

use nearfar_machine::{CpuId, CpuSet, Irq, Machine, NodeId};
use nearfar_proc::cpu_counts::{self, Counts};
use nearfar_proc::cpu_times::{self, StatFile};
use serde::{Deserialize, Serialize};

use super::card::Link;
use crate::conditions::Ticks;

const NET_RX: &str = "NET_RX";

/// All counts at one moment.
pub(super) struct Reading {
    interrupts: BTreeMap<String, Counts>,
    /// Where an interrupt still is whose affinity is another.
    moving: BTreeMap<Irq, CpuSet>,
    net_rx: Counts,
    /// Clock ticks.
    softirq: BTreeMap<CpuId, u64>,
    dropped: u64,
    pub(super) ticks: Ticks,
}

/// The interrupts of a queue while it was measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct QueueCounts {
    pub(super) queue: u32,
    /// The node whose servers have the queue, or the only one with servers where connections have any queue; `None` for another.
    pub(super) node: Option<NodeId>,
    /// By the CPU that served them, without those that served none.
    pub(super) cpus: Vec<CpuCount>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CpuCount {
    pub(super) cpu: CpuId,
    pub(super) interrupts: u64,
}

/// What was counted on the CPUs of the servers' nodes (near) and on others (far), the clients' CPUs left out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) queues: Vec<QueueCounts>,
    pub(super) net_rx: [u64; 2],
    pub(super) softirq_s: [f64; 2],
    pub(super) dropped: u64,
}

impl Reading {
    pub(super) fn now(link: &Link) -> Self {
        let of_queues = |label: &str| {
            let mut irqs = link.queues.values().flatten();
            label
                .parse()
                .is_ok_and(|number: u32| irqs.any(|irq| irq.0 == number))
        };
        let stat = StatFile::default().read().unwrap_or_default();
        let softirq = cpu_times::parse(&stat).map(|(cpu, times)| (cpu, times.softirq));
        let softirqs = cpu_counts::softirqs(|label| label == NET_RX);
        let irqs = link.queues.values().flatten();
        Self {
            moving: irqs
                .filter_map(|&irq| Some((irq, moves_from(irq)?)))
                .collect(),
            interrupts: match link.queues.is_empty() {
                true => BTreeMap::new(),
                false => cpu_counts::interrupts(of_queues).unwrap_or_default(),
            },
            net_rx: softirqs
                .unwrap_or_default()
                .remove(NET_RX)
                .unwrap_or_default(),
            softirq: softirq.collect(),
            dropped: link.dropped(),
            ticks: Ticks::now(),
        }
    }

    /// What happened since `before`. `shares` are the queues of each node's servers.
    pub(super) fn since(
        &self,
        before: &Self,
        machine: &Machine,
        link: &Link,
        nodes: &[NodeId],
        shares: &BTreeMap<NodeId, Vec<u32>>,
        clients: &CpuSet,
    ) -> Served {
        let is_near = |cpu: CpuId| {
            let node = machine.cpu(cpu).and_then(|cpu| cpu.node);
            node.is_some_and(|node| nodes.contains(&node))
        };
        let mut served = Served {
            dropped: self.dropped.saturating_sub(before.dropped),
            ..Served::default()
        };
        for (cpu, count) in self.net_rx.since(&before.net_rx) {
            if !clients.contains(cpu) {
                served.net_rx[usize::from(!is_near(cpu))] += count;
            }
        }
        let per_s = rustix::param::clock_ticks_per_second() as f64;
        for (&cpu, &now) in &self.softirq {
            let then = before.softirq.get(&cpu).copied().unwrap_or(now);
            if !clients.contains(cpu) {
                let ticks = now.saturating_sub(then);
                served.softirq_s[usize::from(!is_near(cpu))] += ticks as f64 / per_s;
            }
        }
        for (&queue, irqs) in &link.queues {
            let mut cpus = BTreeMap::new();
            for irq in irqs {
                let label = irq.to_string();
                let (Some(now), Some(then)) =
                    (self.interrupts.get(&label), before.interrupts.get(&label))
                else {
                    continue;
                };
                let mut counts = now.since(then);
                if let Some(from) = before.moving.get(irq) {
                    without_the_move(&mut counts, from);
                }
                for (cpu, count) in counts.into_iter().filter(|it| it.1 > 0) {
                    *cpus.entry(cpu).or_insert(0) += count;
                }
            }
            let mut nodes = nodes.iter().copied();
            let has = |node: &NodeId| shares.get(node).is_some_and(|it| it.contains(&queue));
            served.queues.push(QueueCounts {
                queue,
                node: nodes.find(has),
                cpus: cpus
                    .into_iter()
                    .map(|(cpu, interrupts)| CpuCount { cpu, interrupts })
                    .collect(),
            });
        }
        served
    }
}

/// The CPUs where an interrupt is until it fires once more: where interrupts are not remapped, the kernel moves one in its handler
/// (irq_move_irq() in kernel/irq/migration.c). `None` when it is where its affinity says, or that is unknown.
fn moves_from(irq: Irq) -> Option<CpuSet> {
    let cpus = |file: &str| {
        let text = fs::read_to_string(format!("/proc/irq/{irq}/{file}")).ok()?;
        CpuSet::parse_list(text.trim()).ok()
    };
    let (now, wanted) = (cpus("effective_affinity_list")?, cpus("smp_affinity_list")?);
    (!now.is_subset(&wanted)).then_some(now)
}

/// Leaves out the interrupt that moved it: it says where the interrupt was before the setting.
fn without_the_move(counts: &mut BTreeMap<CpuId, u64>, from: &CpuSet) {
    if let Some((_, count)) = counts
        .iter_mut()
        .find(|(cpu, count)| from.contains(**cpu) && **count > 0)
    {
        *count -= 1;
    }
}

impl Served {
    /// Interrupts of the servers' queues on the node of those servers, and on other nodes; `None` without queues.
    pub(super) fn interrupts(
        &self,
        machine_node: impl Fn(CpuId) -> Option<NodeId>,
    ) -> Option<[u64; 2]> {
        let mut sums = [0; 2];
        for queue in self.queues.iter().filter(|it| it.node.is_some()) {
            for &CpuCount { cpu, interrupts } in &queue.cpus {
                sums[usize::from(machine_node(cpu) != queue.node)] += interrupts;
            }
        }
        (!self.queues.is_empty()).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupt_that_moves_itself_is_not_counted() {
        let mut counts = BTreeMap::from([(CpuId(0), 0), (CpuId(1), 1), (CpuId(6), 7)]);
        without_the_move(&mut counts, &CpuSet::from_iter([CpuId(0), CpuId(1)]));
        let expected = [(CpuId(0), 0), (CpuId(1), 0), (CpuId(6), 7)];
        assert_eq!(counts, BTreeMap::from(expected));
        without_the_move(&mut counts, &CpuSet::from_iter([CpuId(1)]));
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn an_interrupt_is_near_on_the_node_of_the_servers_that_have_its_queue() {
        let queue = |queue, node: Option<u32>, cpus: [(u32, u64); 2]| QueueCounts {
            queue,
            node: node.map(NodeId),
            cpus: cpus
                .map(|(cpu, interrupts)| CpuCount {
                    cpu: CpuId(cpu),
                    interrupts,
                })
                .into(),
        };
        let served = Served {
            queues: vec![
                queue(0, Some(2), [(4, 10), (0, 1)]),
                queue(1, Some(3), [(6, 5), (4, 7)]),
                queue(2, None, [(6, 100), (4, 100)]),
            ],
            ..Served::default()
        };
        let node = |cpu: CpuId| Some(NodeId(cpu.0 / 2));
        assert_eq!(served.interrupts(node), Some([15, 8]));
        assert_eq!(Served::default().interrupts(node), None);
    }
}
