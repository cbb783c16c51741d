//! Which tasks have memory on other nodes than they run on, what that costs at most, what keeps it there, and what to do about it.
//!
//! ```text
//! CPU time by CPU ──► by node ─┐
//!                              ├─► remote share ──► cost ──► order        remedy: move the memory, the task, both or neither
//! memory by node ──────────────┘
//! ```
//!
//! This is placement, not traffic: a page that is never used counts as one that always is.

mod remedy;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_machine::{
    CpuId, CpuTime, Known, Machine, MemorySample, NodeBytes, NodeId, NodeSet, ResidentBytes, Task,
    TaskFiles, Thread, UsedFiles, UsedMemory,
};
use nearfar_proc::service::Service;
use serde::Serialize;

use crate::audit::without_numbers;
use crate::fallback::MemoryHomes;
use crate::locality::{EffectiveNode, Localities};

pub use remedy::{Action, Holder, HolderKind, Remedy};

pub(crate) use remedy::{is_even, move_command, prefer_command};

/// Distances below this are reserved, and this one stands for "no way" (ACPI specification, SLIT).
const LOCAL_DISTANCE: u32 = 10;
const UNREACHABLE: u32 = 255;

/// The tasks of a machine that a filter lets through, the costliest first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tasks {
    /// How long CPU time was counted, in seconds; `null` for since each task started.
    pub seconds: Option<f64>,
    /// Tasks with less memory are left out, in bytes.
    pub min_bytes: u64,
    /// Where the latencies come from that costs follow from; empty where they follow from distances.
    pub latency_sources: Vec<String>,
    pub tasks: Vec<TaskPlacement>,
    /// Why the memory of tasks is unknown, each reason once, with the number of tasks.
    pub unknown: Vec<UnknownMemory>,
    /// The device that all of them use, where one was asked for; then those far from it come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<UsedDevice>,
    /// What all tasks of a service have mapped, each page once, by the path of its group; where that is known and all are among these.
    #[serde(skip)]
    pub whole: BTreeMap<String, Vec<NodeBytes>>,
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
    /// The unit, container, job or machine that the group is of.
    pub service: Option<String>,
    /// What else is known of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    #[serde(flatten)]
    pub at: Placement,
    /// Nodes of the CPUs that its main thread may use.
    pub allowed_cpu_nodes: Known<NodeSet>,
    /// In bytes, by kind.
    pub resident: Known<ResidentBytes>,
    pub sample: Option<MemorySample>,
    /// What of its memory was used, where it was watched: the remote share, the cost and the remedy are of this then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Known<UsedMemory>>,
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

/// Who a service is, beyond its name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Identity {
    /// `unit`, `container`, `job` or `machine`.
    pub kind: &'static str,
    /// The path of its control group.
    pub group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name, or the id that its control group has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Of a batch system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What it is a part of: `slurm 7` of a step, `default/web-0` of a container.
    #[serde(skip)]
    pub part_of: Option<String>,
}

/// Name and identity of the service that a control group is of.
fn service_of(machine: &Machine, group: &str) -> Option<(String, Identity)> {
    let service = Service::of(group)?;
    let known = machine.service(service.group);
    let container = known.and_then(|it| it.container.as_ref());
    let (namespace, pod) = container.and_then(|it| it.pod.clone()).unzip();
    let (job, step) = service.job.unzip();
    let tool = service.tool.unwrap_or_default();
    let of_pod = namespace.as_ref().zip(pod.as_ref());
    let of_pod = of_pod.map(|(namespace, pod)| format!("{namespace}/{pod}"));
    let name = match (container, &of_pod) {
        (Some(container), Some(of_pod)) => format!("{of_pod}/{}", container.name),
        (Some(container), None) => format!("{tool} {}", container.name),
        (None, _) => service.name,
    };
    let identity = Identity {
        part_of: of_pod.or_else(|| Some(format!("{tool} {}", job?))),
        kind: service.kind.name(),
        group: service.group.to_owned(),
        namespace,
        pod: pod.or(service.pod),
        container: container.map(|it| it.name.clone()),
        job: job.map(str::to_owned),
        step: step.flatten().map(str::to_owned),
    };
    Some((name, identity))
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
    /// CPU seconds x (1 - 1/f), on each node f = 1 + remote share x (latency / local latency - 1): what it loses at most, if it does
    /// nothing but wait for memory. Where latencies were not measured, distances stand for them; `None` where one is unknown.
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
        let (mut tasks, left_out): (Vec<_>, Vec<_>) = judged.partition(|it| filter.takes(it));
        let whole = match filter.device {
            Some(_) => BTreeMap::new(),
            None => whole(machine, filter, &left_out),
        };
        tasks.sort_by(|a, b| b.at.rank().total_cmp(&a.at.rank()).then(a.pid.cmp(&b.pid)));
        let device = filter
            .device
            .as_ref()
            .map(|users| keep_users(&nodes, users, &mut tasks));
        Tasks {
            device,
            seconds,
            min_bytes: filter.min_bytes,
            latency_sources: latency_sources(&nodes),
            unknown: unknown(&tasks),
            tasks,
            whole,
        }
    })
}

fn latency_sources(nodes: &Nodes<'_>) -> Vec<String> {
    let far = || nodes.pairs().filter(|&(from, to)| to != nodes.home(from));
    let is_measured = |from, to| nodes.measured_ratio(from, to).is_some();
    let mut sources = match far().any(|(from, to)| is_measured(from, to)) {
        true => measured_in(nodes.machine),
        false => Vec::new(),
    };
    if far().any(|(from, to)| !is_measured(from, to) && nodes.firmware_ratio(from, to).is_some()) {
        sources.push("HMAT".to_owned());
    }
    sources
}

/// Where measured latencies come from.
pub(crate) fn measured_in(machine: &Machine) -> Vec<String> {
    let timing = machine.timing.as_ref();
    match timing.filter(|it| !it.latencies.is_empty()) {
        Some(timing) if timing.sources.is_empty() => vec![machine.origin.place.clone()],
        Some(timing) => timing.sources.clone(),
        None => Vec::new(),
    }
}

/// The memory of services of which no task was left out, but for small ones.
fn whole(
    machine: &Machine,
    filter: &Filter,
    left_out: &[TaskPlacement],
) -> BTreeMap<String, Vec<NodeBytes>> {
    let large = left_out.iter().filter(|it| filter.is_large(it));
    let parts: BTreeSet<&str> = large
        .filter_map(|it| it.identity.as_ref())
        .map(|it| it.group.as_str())
        .collect();
    let services = machine.services.iter();
    services
        .filter(|it| !parts.contains(it.group.as_str()))
        .filter_map(|it| Some((it.group.clone(), it.memory.get()?.clone())))
        .collect()
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
    sort_by_device(tasks);
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

/// More than any memory takes.
const MAX_FIRMWARE_NS: u64 = 1_000_000;

/// What the accesses of a task go to: the memory that it used where it was watched, else all that it has.
#[derive(Clone, Copy)]
pub(crate) struct Accessed<'a> {
    pub(crate) memory: &'a [NodeBytes],
    sample: Option<MemorySample>,
}

impl<'a> Accessed<'a> {
    pub(crate) fn of(task: &'a Task) -> Known<Self> {
        match &task.used {
            Some(Known::Yes(used)) if used.nodes.is_empty() => {
                Known::no("no access to its memory was seen while it was watched")
            }
            Some(Known::Yes(used)) => Known::Yes(Self {
                memory: &used.nodes,
                sample: Some(used.sample),
            }),
            Some(Known::No { .. }) | None => task.memory.as_ref().map(|memory| Self {
                memory,
                sample: task.sample,
            }),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let all = self.memory.iter();
        all.fold(0, |sum, on| sum.saturating_add(on.bytes))
    }
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

    /// Each online node with each, in ascending order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        let online = || self.machine.online_nodes().map(|node| node.id);
        online().flat_map(move |from| online().map(move |to| (from, to)))
    }

    /// How much longer memory takes than local memory, by measured latencies where there are both, else by the firmware's, else by
    /// distances; `None` where no distance is known or it is that of a node that cannot be reached.
    fn excess(&self, from: NodeId, to: NodeId) -> Option<f64> {
        let ratio = self.measured_ratio(from, to);
        let ratio = ratio.or_else(|| self.firmware_ratio(from, to));
        let ratio = ratio.or_else(|| self.distance_ratio(from, to))?;
        Some((ratio - 1.0).max(0.0))
    }

    /// The measured latency of memory as a multiple of that of local memory.
    pub(crate) fn measured_ratio(&self, from: NodeId, to: NodeId) -> Option<f64> {
        let timing = self.machine.timing.as_ref()?;
        let latency = |to| timing.latency_ns(from, to).filter(|&ns| ns > 0);
        Some(f64::from(latency(to)?) / f64::from(latency(self.home(from))?))
    }

    /// The latency in the firmware's HMAT as a multiple of that of local memory. It has those of memory from the nearest nodes only.
    fn firmware_ratio(&self, from: NodeId, to: NodeId) -> Option<f64> {
        let latency = |to| {
            let access = self.machine.node(to)?.access.iter();
            let from_here = access.filter(|it| it.initiators.contains(from));
            // CPUs rather than any initiator.
            let ns = from_here.max_by_key(|it| it.class)?.read_latency_ns;
            ns.filter(|ns| (1..=MAX_FIRMWARE_NS).contains(ns))
        };
        Some(latency(to)? as f64 / latency(self.home(from))? as f64)
    }

    /// The distance of memory as a multiple of that of local memory.
    pub(crate) fn distance_ratio(&self, from: NodeId, to: NodeId) -> Option<f64> {
        let distance = |to| {
            let distance = self.machine.distance(from, to)?;
            (LOCAL_DISTANCE..UNREACHABLE)
                .contains(&distance.0)
                .then_some(f64::from(distance.0))
        };
        Some(distance(to)? / distance(self.home(from))?)
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

    /// Of a task, or a thread of it, that used so much CPU time.
    fn placement(
        &self,
        cpu_ms: &Known<u64>,
        cpu_times: &Known<Vec<CpuTime>>,
        task: &Task,
    ) -> Placement {
        let cpu_s = cpu_ms.as_ref().map(|&ms| ms as f64 / 1000.0);
        let shares = cpu_s.as_ref().and_then(|&cpu_s| {
            let times = cpu_times.as_ref();
            let shares = times.and_then(|times| Known::from_result(self.cpu_shares(times)));
            shares.map(|shares| (cpu_s, shares))
        });
        let remote = shares.as_ref().and_then(|(cpu_s, shares)| {
            let accessed = Accessed::of(task);
            accessed.and_then(|accessed| self.remote(*cpu_s, shares, accessed))
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
            memory: task.memory.clone(),
            remote,
        }
    }

    /// Of a task that used so much CPU time on nodes in these shares. One that used none is where it was before.
    fn remote(
        &self,
        cpu_s: f64,
        shares: &[(NodeId, f64)],
        Accessed { memory, sample }: Accessed<'_>,
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
    let at = nodes.placement(&task.cpu_ms, &task.cpu_times, task);
    let held_by = remedy::holders_of(nodes, task);
    let group = task.group.get();
    let service = group.and_then(|group| service_of(nodes.machine, group));
    let (service, identity) = service.unzip();
    TaskPlacement {
        pid: task.pid,
        name: task.name.clone(),
        user: task.user.clone(),
        service,
        identity,
        group: task.group.clone(),
        allowed_cpu_nodes: allowed_cpu_nodes(nodes.machine, task),
        resident: task.resident.clone(),
        sample: task.sample,
        used: task.used.clone(),
        remedy: remedy::choose(nodes, task, &at, seconds),
        device: None,
        threads: threads(nodes, task),
        held_by,
        at,
    }
}

fn allowed_cpu_nodes(machine: &Machine, task: &Task) -> Known<NodeSet> {
    let nodes = task
        .allowed_cpus
        .as_ref()
        .map(|cpus| machine.nodes_of_cpus(cpus));
    match nodes.get().is_some_and(NodeSet::is_empty) {
        true => Known::no("no online node is known to have its CPUs"),
        false => nodes,
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
        let at = nodes.placement(&cpu_ms, &times, task);
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

/// A device, and what tasks have open of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceUsers {
    pub device: String,
    /// Of each PCI function behind the device.
    pub localities: Vec<EffectiveNode>,
    pub tasks: Vec<TaskFiles>,
}

/// The device that the tasks were chosen by.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UsedDevice {
    pub device: String,
    pub localities: Vec<EffectiveNode>,
    /// Why the open files of tasks are unknown, each reason once, with the number of tasks.
    pub unknown: Vec<UnknownMemory>,
}

/// What a task has open of the device, and how far it runs from it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceUse {
    pub files: Vec<UsedFiles>,
    /// From where its CPU time is to the device, the mean by CPU time; of several functions to the nearest.
    pub distance: Known<f64>,
    /// CPU seconds x (1 - 10 / distance) of each node, 10 being local: the part that would be lost if it only waited for the device.
    pub far_s: Known<f64>,
}

impl DeviceUsers {
    /// `tasks` have open what belongs to a device of the machine.
    pub fn new(machine: &Machine, device: &str, mut tasks: Vec<TaskFiles>) -> Self {
        tasks.sort_by_key(|task| task.pid);
        let localities = Localities::new(machine);
        let functions = machine.functions_named(device).into_iter();
        Self {
            device: device.to_owned(),
            localities: functions.map(|at| localities.of(at)).collect(),
            tasks,
        }
    }

    fn used_device(&self, unknown: Vec<UnknownMemory>) -> UsedDevice {
        UsedDevice {
            device: self.device.clone(),
            localities: self.localities.clone(),
            unknown,
        }
    }

    /// What is known of the files of a task; `None` if it has none open.
    pub(crate) fn files(&self, pid: i32) -> Option<&Known<Vec<UsedFiles>>> {
        let index = self
            .tasks
            .binary_search_by_key(&pid, |task| task.pid)
            .ok()?;
        Some(&self.tasks[index].files)
    }

    pub(crate) fn of(
        &self,
        nodes: &Nodes<'_>,
        task: &TaskPlacement,
        files: &[UsedFiles],
    ) -> DeviceUse {
        let cpus = task.at.cpu_nodes.as_ref();
        let distances = cpus.and_then(|cpus| Known::from_result(self.distances(nodes, cpus)));
        let distance = distances.as_ref().map(|all| {
            let weighted = all.iter().map(|(share, distance)| share * distance);
            weighted.sum()
        });
        let far_s = distances.as_ref().and_then(|all| {
            let slower = |distance: f64| distance / f64::from(LOCAL_DISTANCE) - 1.0;
            let lost = |cpu_s: f64| {
                let of = |&(share, distance)| lost_s(cpu_s * share, slower(distance));
                all.iter().map(of).sum()
            };
            task.at.cpu_s.as_ref().map(|&cpu_s| lost(cpu_s))
        });
        DeviceUse {
            files: files.to_vec(),
            distance,
            far_s,
        }
    }

    /// The distance from each node that it runs on, with the share of the CPU time there.
    fn distances(
        &self,
        nodes: &Nodes<'_>,
        cpus: &[NodeSeconds],
    ) -> Result<Vec<(f64, f64)>, String> {
        let mut device: Vec<NodeId> = Vec::new();
        for locality in &self.localities {
            device.push(locality.node.ok_or_else(|| locality.to_string())?);
        }
        let all: f64 = cpus.iter().map(|at| at.seconds).sum();
        let mut found = Vec::new();
        for at in cpus {
            let distances = device
                .iter()
                .filter_map(|&to| nodes.machine.distance(at.node, to));
            let nearest = distances
                .filter(|it| (LOCAL_DISTANCE..UNREACHABLE).contains(&it.0))
                .min();
            let nearest = nearest
                .ok_or_else(|| format!("the distance from node {} to it is unknown", at.node))?;
            // A task that used less than a tick ran where it is, for no time.
            let weight = match all {
                0.0 => 1.0 / cpus.len() as f64,
                _ => at.seconds / all,
            };
            found.push((weight, f64::from(nearest.0)));
        }
        match cpus.is_empty() {
            true => Err("where it runs is unknown".to_owned()),
            false => Ok(found),
        }
    }
}

/// Those that run far from the device first, the rest by CPU time.
fn sort_by_device(tasks: &mut [TaskPlacement]) {
    let far_s = |task: &TaskPlacement| {
        let used = task.device.as_ref();
        used.and_then(|used| used.far_s.get().copied())
            .unwrap_or(0.0)
    };
    let cpu_s = |task: &TaskPlacement| task.at.cpu_s.get().copied().unwrap_or(0.0);
    tasks.sort_by(|a, b| {
        far_s(b)
            .total_cmp(&far_s(a))
            .then(cpu_s(b).total_cmp(&cpu_s(a)))
            .then(a.pid.cmp(&b.pid))
    });
}

/// What a task has to have; everything passes one that is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Part of its name.
    pub name: Option<String>,
    /// Real user id.
    pub user: Option<u32>,
    /// Its control group or one above it, or its service, all steps of a job, all containers of a pod.
    pub group: Option<String>,
    /// Runs or has memory on this node.
    pub node: Option<NodeId>,
    /// Has this much memory or an unknown amount, in bytes. Threads of the kernel, and tasks that have ended, have none.
    pub min_bytes: u64,
    /// Has files of this device open.
    pub device: Option<DeviceUsers>,
}

impl Filter {
    pub(crate) fn takes(&self, task: &TaskPlacement) -> bool {
        let is_name = |name: &String| task.name.contains(name);
        let is_user = |user: &u32| task.user.get() == Some(user);
        let is_group = |group: &String| {
            let part_of = task.identity.as_ref().and_then(|it| it.part_of.as_ref());
            task.service.as_ref() == Some(group)
                || part_of == Some(group)
                || task.group.get().is_some_and(|path| is_below(path, group))
        };
        self.is_large(task)
            && self.name.as_ref().is_none_or(is_name)
            && self.user.as_ref().is_none_or(is_user)
            && self.group.as_ref().is_none_or(is_group)
            && self.node.is_none_or(|node| is_on(task, node))
    }

    fn is_large(&self, task: &TaskPlacement) -> bool {
        match &task.at.memory {
            Known::Yes(_) => task.at.memory_bytes() >= self.min_bytes,
            Known::No { .. } => {
                let resident = task.resident.get();
                resident.is_none_or(|it| it.total() >= self.min_bytes)
            }
        }
    }
}

/// Whether a group is this one or below it; with or without a slash before it.
pub fn is_below(path: &str, group: &str) -> bool {
    let group = group.trim_matches('/');
    let rest = path.trim_start_matches('/').strip_prefix(group);
    rest.is_some_and(|rest| group.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

fn is_on(task: &TaskPlacement, node: NodeId) -> bool {
    let mut cpus = task.at.cpu_nodes.get().into_iter().flatten();
    let mut memory = task.at.memory.get().into_iter().flatten();
    cpus.any(|at| at.node == node) || memory.any(|on| on.node == node && on.bytes > 0)
}

/// A service, with all groups that it made; or the tasks of another control group, without those of groups below it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupPlacement {
    /// Tasks whose group is unknown are together.
    pub group: Known<String>,
    pub service: Option<String>,
    pub tasks: usize,
    /// Of them, those whose memory is unknown and in no sum.
    pub unknown_memory: usize,
    /// Sums of its tasks. A page that several map counts once in a service whose memory the kernel counts, else for each of them.
    #[serde(flatten)]
    pub at: Placement,
}

/// Sums of tasks that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskSums {
    pub tasks: usize,
    /// Of them, those whose memory is unknown and in no sum.
    pub unknown_memory: usize,
    /// A page that several map counts as in [`GroupPlacement`].
    pub at: Placement,
    /// Of each task whose are known.
    pub allowed_cpu_nodes: NodeSet,
}

/// Sums of the tasks that have the same key.
pub fn sums_by<K: Ord>(tasks: &Tasks, key: impl Fn(&TaskPlacement) -> K) -> BTreeMap<K, TaskSums> {
    let mut sums: BTreeMap<K, Sum<'_>> = BTreeMap::new();
    for task in &tasks.tasks {
        let group = task.identity.as_ref().map(|it| it.group.as_str());
        let whole = group.and_then(|group| tasks.whole.get_key_value(group));
        let sum = sums.entry(key(task)).or_default();
        sum.add(&task.at, whole);
        if let Some(nodes) = task.allowed_cpu_nodes.get() {
            sum.allowed_cpu_nodes = sum.allowed_cpu_nodes.union(nodes);
        }
    }
    let sums = sums.into_iter().map(|(key, sum)| (key, sum.finish()));
    sums.collect()
}

/// The groups of these tasks, the costliest first.
pub fn by_group(tasks: &Tasks) -> Vec<GroupPlacement> {
    let key = |task: &TaskPlacement| match &task.identity {
        Some(identity) => (Known::Yes(identity.group.clone()), task.service.clone()),
        None => (task.group.clone(), None),
    };
    let mut groups: Vec<GroupPlacement> = sums_by(tasks, key)
        .into_iter()
        .map(|((group, service), sums)| GroupPlacement {
            service,
            group,
            tasks: sums.tasks,
            unknown_memory: sums.unknown_memory,
            at: sums.at,
        })
        .collect();
    groups.sort_by(|a, b| b.at.rank().total_cmp(&a.at.rank()));
    groups
}

#[derive(Default)]
struct Sum<'a> {
    /// Services whose memory is in it as a whole.
    whole: BTreeSet<&'a str>,
    tasks: usize,
    unknown_memory: usize,
    cpu_s: f64,
    cpu: BTreeMap<NodeId, f64>,
    allowed_cpu_nodes: NodeSet,
    memory: BTreeMap<NodeId, u64>,
    /// Of tasks whose remote share is known, weighted with their memory.
    remote: f64,
    error: f64,
    cost_s: f64,
    is_cost_unknown: bool,
    weight: f64,
}

impl<'a> Sum<'a> {
    /// `whole` is the memory of the task's service, where it stands for that of each of its tasks.
    fn add(&mut self, at: &'a Placement, whole: Option<(&'a String, &'a Vec<NodeBytes>)>) {
        self.tasks += 1;
        self.unknown_memory += usize::from(at.memory.get().is_none() && whole.is_none());
        self.cpu_s += at.cpu_s.get().unwrap_or(&0.0);
        for on in at.cpu_nodes.get().into_iter().flatten() {
            *self.cpu.entry(on.node).or_default() += on.seconds;
        }
        let memory = match whole {
            Some((group, memory)) => self.whole.insert(group).then_some(memory),
            None => at.memory.get(),
        };
        for on in memory.into_iter().flatten() {
            let sum = self.memory.entry(on.node).or_default();
            *sum = sum.saturating_add(on.bytes);
        }
        if let Known::Yes(remote) = at.remote {
            let weight = at.memory_bytes() as f64;
            self.remote += weight * remote.share;
            self.error += weight * remote.error;
            self.cost_s += remote.cost_s.unwrap_or(0.0);
            self.is_cost_unknown |= remote.cost_s.is_none();
            self.weight += weight;
        }
    }

    fn finish(self) -> TaskSums {
        let seconds = |(node, seconds)| NodeSeconds { node, seconds };
        let bytes = |(node, bytes)| NodeBytes { node, bytes };
        let at = Placement {
            cpu_s: Known::Yes(self.cpu_s),
            cpu_nodes: Known::Yes(self.cpu.into_iter().map(seconds).collect()),
            memory: Known::Yes(self.memory.into_iter().map(bytes).collect()),
            remote: match self.weight > 0.0 {
                true => Known::Yes(Remote {
                    share: self.remote / self.weight,
                    error: self.error / self.weight,
                    cost_s: (!self.is_cost_unknown).then_some(self.cost_s),
                }),
                false => Known::no("the memory of its tasks is unknown"),
            },
        };
        TaskSums {
            tasks: self.tasks,
            unknown_memory: self.unknown_memory,
            at,
            allowed_cpu_nodes: self.allowed_cpu_nodes,
        }
    }
}

/// Leaves in `later` the CPU time since `earlier`, in [`Task::cpu_ms`] and thread by thread. Both need [`Task::threads`], and `earlier`
/// has all processes that there were. What started meanwhile counts from its start; a number that was given to another process or
/// thread meanwhile is a new one.
pub fn within(earlier: &[Task], later: &mut [Task]) {
    let before: HashMap<i32, &Task> = earlier.iter().map(|task| (task.pid, task)).collect();
    for task in later {
        let same = before.get(&task.pid).copied();
        since(same.filter(|it| it.start == task.start), task);
    }
}

fn since(before: Option<&Task>, task: &mut Task) {
    let then = before.and_then(|task| task.cpu_ms.get().copied());
    if let Known::Yes(now) = &mut task.cpu_ms {
        *now = now.saturating_sub(then.unwrap_or(0));
    }
    let threads = before.into_iter().flat_map(|task| &task.threads);
    let before: HashMap<(i32, u64), u64> = threads
        .map(|thread| ((thread.tid, thread.start), thread.cpu_ms))
        .collect();
    for thread in &mut task.threads {
        let then = before.get(&(thread.tid, thread.start)).copied();
        thread.cpu_ms = thread.cpu_ms.saturating_sub(then.unwrap_or(0));
    }
    if !task.threads.is_empty() {
        task.cpu_times = Known::Yes(times(&task.threads));
    }
}

fn times(threads: &[Thread]) -> Vec<CpuTime> {
    let time = |thread: &Thread| {
        Some(CpuTime {
            cpu: *thread.last_cpu.get()?,
            ms: thread.cpu_ms,
        })
    };
    threads.iter().filter_map(time).collect()
}

/// CPU time on a node that would access memory of another or the same, if each task used all its pages alike.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct NodePair {
    /// Where the CPUs are.
    pub cpus: NodeId,
    /// Where the memory is.
    pub memory: NodeId,
    pub seconds: f64,
}

/// All pairs that a task has, by node; tasks of which CPU time or memory is unknown are left out.
pub fn by_node_pair(tasks: &Tasks) -> Vec<NodePair> {
    let mut sums: BTreeMap<(NodeId, NodeId), f64> = BTreeMap::new();
    for task in &tasks.tasks {
        let memory = task.at.memory.get().into_iter().flatten();
        let bytes: f64 = memory.clone().map(|on| on.bytes as f64).sum();
        for on in memory.filter(|_| bytes > 0.0) {
            for at in task.at.cpu_nodes.get().into_iter().flatten() {
                *sums.entry((at.node, on.node)).or_default() +=
                    at.seconds * on.bytes as f64 / bytes;
            }
        }
    }
    let pairs = sums.into_iter().map(|((cpus, memory), seconds)| NodePair {
        cpus,
        memory,
        seconds,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use nearfar_machine::CpuId;

    use super::*;

    #[test]
    fn a_group_is_below_itself_and_those_above_it_but_not_below_a_longer_name() {
        for group in ["/a.slice", "a.slice", "a.slice/b", "/"] {
            assert!(is_below("/a.slice/b", group), "{group}");
        }
        for group in ["/a.slice/bc", "/a.sl", "b"] {
            assert!(!is_below("/a.slice/b", group), "{group}");
        }
    }

    fn task(start: u64, threads: &[(i32, u64, u32, u64)]) -> Task {
        let thread = |&(tid, start, cpu, cpu_ms)| Thread {
            tid,
            name: String::new(),
            start,
            last_cpu: Known::Yes(CpuId(cpu)),
            cpu_ms,
        };
        Task {
            start: Known::Yes(start),
            cpu_ms: Known::Yes(1000 + threads.iter().map(|it| it.3).sum::<u64>()),
            threads: threads.iter().map(thread).collect(),
            ..Task::new(7, "a")
        }
    }

    #[test]
    fn time_is_that_of_the_same_threads_since_then() {
        let earlier = [task(5, &[(7, 5, 0, 100), (8, 6, 1, 50)])];
        let mut later = [task(5, &[(7, 5, 0, 130), (8, 9, 1, 20), (9, 9, 2, 10)])];
        within(&earlier, &mut later);
        let ms: Vec<u64> = later[0]
            .cpu_times
            .get()
            .unwrap()
            .iter()
            .map(|it| it.ms)
            .collect();
        assert_eq!(ms, [30, 20, 10]);
        // 160 of all threads against 150, those that ended included.
        assert_eq!(later[0].cpu_ms, Known::Yes(10));
        let mut another = [task(6, &[(7, 6, 0, 40)])];
        within(&earlier, &mut another);
        assert_eq!(another[0].cpu_times.get().unwrap()[0].ms, 40);
    }
}
