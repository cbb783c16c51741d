//! CPU time, memory and allocations of each node.

use std::collections::BTreeMap;
use std::fs;

use nearfar_machine::{CpuId, Known, Machine, NodeId};
use nearfar_proc::cpu_times::{self, StatFile};
use nearfar_proc::meminfo;
use nearfar_proc::numastat::Numastat;
use nearfar_trace::numa_balancing::MachineCounts;

use crate::NodeActivity;

#[derive(Default)]
pub(crate) struct Nodes {
    stat: StatFile,
    /// Busy ticks of each CPU at the look before.
    busy: BTreeMap<CpuId, u64>,
    allocated: BTreeMap<NodeId, Numastat>,
    balancing: Option<MachineCounts>,
}

impl Nodes {
    pub fn look(&mut self, machine: &Machine) -> Vec<NodeActivity> {
        let content = self.stat.read().unwrap_or_default();
        let before = std::mem::take(&mut self.busy);
        self.busy = cpu_times::parse(&content)
            .map(|(cpu, times)| (cpu, times.busy()))
            .collect();
        let mut ticks: BTreeMap<NodeId, (usize, u64)> = BTreeMap::new();
        for (cpu, now) in &self.busy {
            let Some(node) = machine.cpu(*cpu).and_then(|cpu| cpu.node) else {
                continue;
            };
            let (cpus, sum) = ticks.entry(node).or_default();
            *cpus += 1;
            *sum += before.get(cpu).map_or(0, |then| now.saturating_sub(*then));
        }
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        let activity = |node: NodeId| {
            let (cpus, sum) = ticks.get(&node).copied().unwrap_or_default();
            let directory = format!("/sys/devices/system/node/node{node}");
            let memory = fs::read(format!("{directory}/meminfo")).unwrap_or_default();
            let numastat = fs::read(format!("{directory}/numastat")).unwrap_or_default();
            NodeActivity {
                node,
                cpus,
                busy_s: sum as f64 * tick_s,
                total_bytes: meminfo::bytes(&memory, "MemTotal"),
                free_bytes: meminfo::bytes(&memory, "MemFree"),
                file_bytes: meminfo::bytes(&memory, "FilePages"),
                allocated: self.allocated(node, &numastat),
            }
        };
        machine
            .online_nodes()
            .map(|node| node.id)
            .map(activity)
            .collect()
    }

    fn allocated(&mut self, node: NodeId, content: &[u8]) -> Option<Numastat> {
        let now = Numastat::parse(content)?;
        let before = self.allocated.insert(node, now)?;
        Some(now.since(&before))
    }

    /// NUMA balancing's counts since boot, and since the look before.
    pub fn balancing(&mut self) -> (Known<MachineCounts>, Known<MachineCounts>) {
        let now = MachineCounts::read();
        let before = std::mem::replace(&mut self.balancing, now.get().copied());
        let since = now.as_ref().and_then(|now| {
            let before = Known::from_option(before, || "there was no look before");
            before.map(|before| now.since(before))
        });
        (now, since)
    }
}
