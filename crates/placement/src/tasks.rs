//! Which tasks have memory on other nodes than they run on, what that costs at most, what keeps it there, and what to do about it.
//!
//! ```text
//! CPU time by CPU ──► by node ─┐
//!                              ├─► remote share ──► cost ──► order        remedy: move the memory, the task, both or neither
//! memory by node ──────────────┘
//! ```
//!
//! This is placement, not traffic: a page that is never used counts as one that always is.

mod device;
mod filter;
mod groups;
mod holders;
mod interval;
mod pairs;
mod remedy;

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuId, CpuTime, Known, Machine, MemorySample, NodeBytes, NodeId, ResidentBytes, Task, Thread,
};
use serde::Serialize;

use crate::fallback::MemoryHomes;
use crate::reason::without_numbers;

/// Distances below this are reserved, and this one stands for "no way" (ACPI specification, SLIT).
const LOCAL_DISTANCE: u32 = 10;
const UNREACHABLE: u32 = 255;

pub use device::{DeviceUse, DeviceUsers, UsedDevice};
pub use filter::{Filter, is_below};
pub use groups::{GroupPlacement, TaskSums, by_group, sums_by};
pub use holders::{Holder, HolderKind};
pub use interval::within;
pub use pairs::{NodePair, by_node_pair};
pub use remedy::{Action, Remedy};
pub(crate) use remedy::{is_even, move_command, prefer_command};

/// The tasks of a machine that a filter lets through, the costliest first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tasks {
    /// How long CPU time was counted, in seconds; `null` for since each task started.
    pub seconds: Option<f64>,
    /// Tasks with less memory are left out, in bytes.
    pub min_bytes: u64,
    pub tasks: Vec<TaskPlacement>,
    /// Why the memory of tasks is unknown, each reason once, with the number of tasks.
    pub unknown: Vec<UnknownMemory>,
    /// The device that all of them use, where one was asked for; then those far from it come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<UsedDevice>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnknownMemory {
    pub unknown_reason: String,
    pub tasks: usize,
}

/// Where a task runs and where its memory is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TaskPlacement {
    pub pid: i32,
    pub name: String,
    pub user: Known<u32>,
    pub group: Known<String>,
    /// The unit or container of the group ([`service_name`](nearfar_proc::cgroup::service_name)).
    pub service: Option<String>,
    #[serde(flatten)]
    pub at: Placement,
    /// In bytes, by kind.
    pub resident: Known<ResidentBytes>,
    pub sample: Option<MemorySample>,
    /// What keeps CPU time and memory where they are.
    pub held_by: Vec<Holder>,
    pub remedy: Option<Remedy>,
    /// What it has open of the device that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUse>,
    /// Where they were asked for, those with the most CPU time first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadPlacement>,
}

/// CPU time and memory by node, and what follows from both.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Placement {
    pub cpu_s: Known<f64>,
    /// CPU time by node. Of a thread that moved, all counts for the node it was on last; that of threads that have ended is spread as
    /// that of the others.
    pub cpu_nodes: Known<Vec<NodeSeconds>>,
    pub memory: Known<Vec<NodeBytes>>,
    pub remote: Known<Remote>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct NodeSeconds {
    pub node: NodeId,
    pub seconds: f64,
}

/// How much of the memory is on other nodes than the CPU time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Remote {
    /// 1 - sum over nodes of the share of CPU time x the share of memory there: the share of accesses that leave the node if all
    /// pages are used alike.
    pub share: f64,
    /// Half the width of its 95 % interval; 0 where memory was counted.
    pub error: f64,
    /// CPU seconds x (1 - 1/f), on each node f = 1 + remote share x (distance / local distance - 1): what it loses at most, if it does
    /// nothing but wait for memory that is as slow as the distances say. `None` where a distance is unknown.
    pub cost_s: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ThreadPlacement {
    pub tid: i32,
    pub name: String,
    pub node: Option<NodeId>,
    pub cpu_s: f64,
    /// Of its process's memory as seen from its node.
    pub remote: Known<Remote>,
}

/// Judges the tasks of a machine. `seconds` is for how long the CPU times in it were counted ([`within`]).
pub fn tasks(machine: &Machine, filter: &Filter, seconds: Option<f64>) -> Known<Tasks> {
    machine.tasks.as_ref().map(|all| {
        let nodes = Nodes::of(machine);
        let judged = all.iter().map(|task| judge(&nodes, task, seconds));
        let mut tasks: Vec<TaskPlacement> = judged.filter(|it| filter.takes(it)).collect();
        tasks.sort_by(|a, b| b.at.rank().total_cmp(&a.at.rank()).then(a.pid.cmp(&b.pid)));
        let device = filter
            .device
            .as_ref()
            .map(|users| keep_users(&nodes, users, &mut tasks));
        Tasks {
            device,
            seconds,
            min_bytes: filter.min_bytes,
            unknown: unknown(&tasks),
            tasks,
        }
    })
}

/// Leaves the tasks that use a device.
fn keep_users(
    nodes: &Nodes<'_>,
    users: &DeviceUsers,
    tasks: &mut Vec<TaskPlacement>,
) -> UsedDevice {
    let files = tasks.iter().filter_map(|task| users.files(task.pid));
    let unknown = counted(files.filter_map(Known::unknown_reason));
    tasks.retain_mut(|task| {
        let files = users.files(task.pid).and_then(Known::get);
        task.device = files.map(|files| users.of(nodes, task, files));
        task.device.is_some()
    });
    device::sort(tasks);
    users.used_device(unknown)
}

fn unknown(tasks: &[TaskPlacement]) -> Vec<UnknownMemory> {
    counted(
        tasks
            .iter()
            .filter_map(|task| task.at.memory.unknown_reason()),
    )
}

fn counted<'a>(all: impl Iterator<Item = &'a str>) -> Vec<UnknownMemory> {
    let mut reasons = BTreeMap::new();
    for reason in all {
        *reasons.entry(without_numbers(reason)).or_insert(0) += 1;
    }
    let unknown = reasons
        .into_iter()
        .map(|(unknown_reason, tasks)| UnknownMemory {
            unknown_reason,
            tasks,
        });
    unknown.collect()
}

/// What judging each task needs of the machine, looked up once.
pub(crate) struct Nodes<'a> {
    machine: &'a Machine,
    of_cpu: BTreeMap<CpuId, NodeId>,
    /// Online nodes with CPUs, each with the one that its CPUs get memory from first.
    home: BTreeMap<NodeId, NodeId>,
}

impl<'a> Nodes<'a> {
    pub(crate) fn of(machine: &'a Machine) -> Self {
        let with_cpus = machine
            .online_nodes()
            .filter(|node| node.has_cpus() != Some(false));
        let homes = MemoryHomes::of(machine);
        Self {
            machine,
            of_cpu: machine
                .cpus
                .iter()
                .filter_map(|cpu| Some((cpu.id, cpu.node?)))
                .collect(),
            home: with_cpus
                .map(|node| (node.id, homes.home(node.id)))
                .collect(),
        }
    }

    pub(crate) fn home(&self, node: NodeId) -> NodeId {
        self.home.get(&node).copied().unwrap_or(node)
    }

    /// How much further than local memory; `None` where no distance is known or it is that of a node that cannot be reached.
    fn excess(&self, from: NodeId, to: NodeId) -> Option<f64> {
        let distance = |to| {
            let distance = self.machine.distance(from, to)?;
            (LOCAL_DISTANCE..UNREACHABLE)
                .contains(&distance.0)
                .then_some(f64::from(distance.0))
        };
        Some((distance(to)? / distance(self.home(from))? - 1.0).max(0.0))
    }

    /// How much longer an access to this memory takes from a node, as a part of a local access, if all pages are used alike; `None`
    /// where a distance is unknown.
    fn slower(&self, node: NodeId, memory: &[NodeBytes]) -> Option<f64> {
        let bytes: f64 = memory.iter().map(|on| on.bytes as f64).sum();
        let far = memory.iter().filter(|on| on.node != self.home(node));
        far.map(|on| Some(on.bytes as f64 / bytes * self.excess(node, on.node)?))
            .sum()
    }

    /// The share of each node in the CPU time, as that of the threads there is divided.
    fn cpu_shares(&self, times: &[CpuTime]) -> Result<Vec<(NodeId, f64)>, String> {
        let mut sums: BTreeMap<NodeId, f64> = BTreeMap::new();
        for time in times {
            let node = self.of_cpu.get(&time.cpu);
            let node = node.ok_or_else(|| format!("the node of CPU {} is unknown", time.cpu))?;
            *sums.entry(*node).or_default() += time.ms as f64;
        }
        let (all, count) = (sums.values().sum::<f64>(), sums.len() as f64);
        // Threads that used less than a tick ran where they are.
        let share = |ms: f64| match all {
            0.0 => 1.0 / count,
            _ => ms / all,
        };
        Ok(sums
            .into_iter()
            .map(|(node, ms)| (node, share(ms)))
            .collect())
    }

    fn placement(
        &self,
        cpu_ms: &Known<u64>,
        cpu_times: &Known<Vec<CpuTime>>,
        memory: &Known<Vec<NodeBytes>>,
        sample: Option<MemorySample>,
    ) -> Placement {
        let cpu_s = cpu_ms.as_ref().map(|&ms| ms as f64 / 1000.0);
        let shares = cpu_s.as_ref().and_then(|&cpu_s| {
            let times = cpu_times.as_ref();
            let shares = times.and_then(|times| Known::from_result(self.cpu_shares(times)));
            shares.map(|shares| (cpu_s, shares))
        });
        let remote = shares.as_ref().and_then(|(cpu_s, shares)| {
            let memory = memory.as_ref();
            memory.and_then(|memory| self.remote(*cpu_s, shares, memory, sample))
        });
        let cpu_nodes = shares.map(|(cpu_s, shares)| {
            let seconds = |(node, share)| NodeSeconds {
                node,
                seconds: cpu_s * share,
            };
            shares.into_iter().map(seconds).collect()
        });
        Placement {
            cpu_s,
            cpu_nodes,
            memory: memory.clone(),
            remote,
        }
    }

    /// Of a task that used so much CPU time on nodes in these shares. One that used none is where it was before.
    fn remote(
        &self,
        cpu_s: f64,
        shares: &[(NodeId, f64)],
        memory: &[NodeBytes],
        sample: Option<MemorySample>,
    ) -> Known<Remote> {
        let bytes: f64 = memory.iter().map(|it| it.bytes as f64).sum();
        if bytes == 0.0 {
            return Known::no("it has no memory");
        }
        if shares.is_empty() {
            return Known::no("where it runs is unknown");
        }
        let (mut share, mut cost_s) = (0.0, Some(0.0));
        for &(node, of_cpu) in shares {
            for on in memory.iter().filter(|on| on.node != self.home(node)) {
                share += of_cpu * on.bytes as f64 / bytes;
            }
            cost_s = cost_s
                .zip(self.slower(node, memory))
                .map(|(sum, slower)| sum + lost_s(cpu_s * of_cpu, slower));
        }
        // Memory of the only node is there, whatever was sampled.
        let is_only = |on: &NodeBytes| {
            let mut others = self
                .machine
                .online_nodes()
                .filter(|node| node.id != on.node);
            others.all(|node| node.has_memory() == Some(false))
        };
        let error = match memory {
            [on] if is_only(on) => 0.0,
            _ => sample.map_or(0.0, |sample| sample.error_bytes as f64 / bytes),
        };
        Known::Yes(Remote {
            share,
            error: error.min(1.0),
            cost_s,
        })
    }
}

/// How much of the CPU time was waiting at most, where memory is slower than local memory by this part of local memory's time. The
/// waiting is part of the CPU time that was measured, so what is lost is always less than that.
fn lost_s(cpu_s: f64, slower: f64) -> f64 {
    cpu_s * (slower / (1.0 + slower))
}

impl Placement {
    /// Cost first; what has none by CPU time.
    fn rank(&self) -> f64 {
        const ABOVE_CPU_TIME: f64 = 1e12;
        let cost = self.remote.get().and_then(|remote| remote.cost_s);
        cost.unwrap_or(0.0) * ABOVE_CPU_TIME + self.cpu_s.get().unwrap_or(&0.0)
    }

    pub fn memory_bytes(&self) -> u64 {
        let memory = self.memory.get().into_iter().flatten();
        memory.fold(0, |sum, on| sum.saturating_add(on.bytes))
    }
}

pub(crate) fn judge(nodes: &Nodes<'_>, task: &Task, seconds: Option<f64>) -> TaskPlacement {
    let at = nodes.placement(&task.cpu_ms, &task.cpu_times, &task.memory, task.sample);
    let held_by = holders::of(nodes, task);
    let group = task.group.get();
    TaskPlacement {
        pid: task.pid,
        name: task.name.clone(),
        user: task.user.clone(),
        service: group.and_then(|group| nearfar_proc::cgroup::service_name(group)),
        group: task.group.clone(),
        resident: task.resident.clone(),
        sample: task.sample,
        remedy: remedy::choose(nodes, task, &at, seconds),
        device: None,
        threads: threads(nodes, task),
        held_by,
        at,
    }
}

fn threads(nodes: &Nodes<'_>, task: &Task) -> Vec<ThreadPlacement> {
    let of = |thread: &Thread| {
        let time = |cpu: CpuId| {
            vec![CpuTime {
                cpu,
                ms: thread.cpu_ms,
            }]
        };
        let times = thread.last_cpu.clone().map(time);
        let cpu_ms = Known::Yes(thread.cpu_ms);
        let at = nodes.placement(&cpu_ms, &times, &task.memory, task.sample);
        let node = at.cpu_nodes.get().and_then(|nodes| nodes.first());
        ThreadPlacement {
            tid: thread.tid,
            name: thread.name.clone(),
            node: node.map(|it| it.node),
            cpu_s: thread.cpu_ms as f64 / 1000.0,
            remote: at.remote,
        }
    };
    let mut threads: Vec<ThreadPlacement> = task.threads.iter().map(of).collect();
    threads.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then(a.tid.cmp(&b.tid)));
    threads
}
