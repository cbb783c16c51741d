//! What the running system does between two looks: CPU time, memory and allocations of each node, far tasks, interrupts and NVMe
//! paths by node.
//!
//! ```text
//! /proc/PID/stat of all           each look ─────────────┐
//! threads of those that ran       each look, the longest  │
//!                                 unread first            ├──► Machine with tasks ──► placement::tasks
//! memory of the largest, oldest   5 ms of CPU time a look ┘
//! /proc/stat, numastat, vmstat, interrupts  each look ───────► NodeActivity, Balancing, DeviceActivity
//! sched_migrate_task, counted by the kernel  each look ──────► node_migrations
//! ```
//!
//! [`LiveMachine`] is shared by `top` and `exporter`. A look that costs more than expected is followed by a longer rest
//! ([`LiveMachine::rest`]): looks become rarer, never costlier.

#![allow(
    missing_docs,
    reason = "a comment that would repeat the name is left out"
)]

mod activity;
mod processes;
pub mod used;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearfar_machine::{Known, Machine, NOT_ASKED_FOR, NodeId, PciAddress, Timing};
use nearfar_placement::tasks::{self, Filter, Tasks};
use nearfar_proc::tasks::raise_open_files;
use nearfar_sources::tree::Tree;
use nearfar_sources::{Request, SourceError, Want, sysfs};
use nearfar_trace::NodeMigrations;
use nearfar_trace::numa_balancing::MachineCounts;
use serde::Serialize;

use activity::{Devices, Nodes};
use processes::Processes;

pub use nearfar_proc::meminfo::Numastat;

/// The machine itself is read again after this: nodes and CPUs come online, drivers change affinities.
const MIN_MACHINE_AGE: Duration = Duration::from_secs(60);
/// Of one CPU, that reading the machine may take on average besides.
const MAX_MACHINE_CPU_SHARE: f64 = 0.003;

/// What is watched.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Processes with less memory are counted, but where their memory is stays unread, in bytes.
    pub min_bytes: u64,
    /// Watched whatever their size.
    pub pids: Vec<i32>,
    /// What accesses take, where it was measured.
    pub timing: Option<Timing>,
    /// Let the kernel count moves between nodes, which takes the rights to trace.
    pub migrations: bool,
}

/// A running system that is looked at again and again.
pub struct LiveMachine {
    options: Options,
    tree: Tree,
    machine: Machine,
    machine_read: Instant,
    /// CPU seconds of reading the machine.
    machine_cost_s: f64,
    processes: Processes,
    nodes: Nodes,
    devices: Devices,
    migrations: Migrations,
    last: Instant,
    pace: Pace,
    total_cost_s: f64,
}

/// What happened since the look before; the first covers the moment since the first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Look {
    /// When, in seconds since 1970.
    pub at_s: f64,
    pub seconds: f64,
    /// Online nodes, by number.
    pub nodes: Vec<NodeActivity>,
    /// NUMA balancing's counts of the whole machine since boot.
    pub balancing: Known<MachineCounts>,
    /// The same since the look before.
    pub balancing_since: Known<MachineCounts>,
    /// Devices whose interrupts fired, by address.
    pub devices: Known<Vec<DeviceActivity>>,
    /// Requests through each path of NVMe namespaces with several.
    pub nvme_paths: Vec<NvmePathActivity>,
    /// All processes, kernel threads included.
    pub processes: usize,
    /// All their threads.
    pub threads: u64,
    /// Threads that were last seen on another node: they moved once, at least. Those of processes that are watched.
    pub node_changes: u64,
    /// Moves of all tasks between nodes, as the kernel counts them.
    pub node_migrations: Known<u64>,
    /// How long ago the memory of each process was looked for, by process number.
    pub memory_ages: Vec<MemoryAge>,
    pub cost: Cost,
}

/// A node since the look before.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeActivity {
    pub node: NodeId,
    /// Online CPUs.
    pub cpus: usize,
    /// CPU time that was not idle, in seconds; with `cpus` and the time of the look, the load.
    pub busy_s: f64,
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Page cache, in bytes.
    pub file_bytes: Option<u64>,
    /// Pages that were allocated since the look before; `None` at the first.
    pub allocated: Option<Numastat>,
}

/// A PCI function's interrupts since the look before.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceActivity {
    pub device: PciAddress,
    /// Disks, interfaces and namespaces that it serves; may be empty.
    pub names: Vec<String>,
    /// Where it is, as far as is known.
    pub node: Option<NodeId>,
    /// On the nearest CPUs: those of its node, or of the nearest nodes with CPUs where it has none.
    pub near: u64,
    /// On others; all where its node is unknown.
    pub far: u64,
}

/// A path of an NVMe namespace since the look before.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NvmePathActivity {
    pub path: String,
    pub controller: String,
    pub node: Option<NodeId>,
    pub requests: u64,
}

/// How old the figures of a process's memory are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MemoryAge {
    pub pid: i32,
    pub seconds: f64,
}

/// What looking took.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Cost {
    /// CPU time of this look, in seconds.
    pub cpu_s: f64,
    /// The same of all looks.
    pub total_cpu_s: f64,
    /// Processes whose memory was looked for in this look.
    pub memory_reads: usize,
    /// Processes whose memory waits to be looked for the first time.
    pub memory_unread: usize,
}

impl LiveMachine {
    /// Reads the machine; the first look follows.
    ///
    /// # Errors
    /// When /proc or /sys cannot be read.
    pub fn new(options: Options) -> Result<Self, LiveError> {
        raise_open_files();
        let tree = Tree::live().map_err(|error| LiveError::Unreadable(error.to_string()))?;
        let begun = thread_seconds();
        let machine = machine(&options)?;
        let now = Instant::now();
        Ok(Self {
            machine_cost_s: thread_seconds() - begun,
            processes: Processes::default(),
            nodes: Nodes::default(),
            devices: Devices::of(&machine),
            migrations: match options.migrations {
                true => Migrations::open(&machine),
                false => Migrations::off(),
            },
            options,
            tree,
            machine,
            machine_read: now,
            last: now,
            pace: Pace::default(),
            total_cost_s: 0.0,
        })
    }

    /// Looks again.
    ///
    /// # Errors
    /// When /proc or /sys cannot be read.
    pub fn look(&mut self) -> Result<Look, LiveError> {
        let (now, begun) = (Instant::now(), thread_seconds());
        let seconds = (now - self.last).as_secs_f64();
        self.last = now;
        self.renew_machine(now)?;
        let of_machine_s = thread_seconds() - begun;
        let scan = self
            .processes
            .look(&self.tree, &self.machine, &self.options, seconds)?;
        let known = std::mem::take(&mut self.machine.services);
        self.machine.services = sysfs::read_services(&self.tree, &scan.tasks, &known);
        self.machine.tasks = Known::Yes(scan.tasks);
        let (balancing, balancing_since) = self.nodes.balancing();
        let mut look = Look {
            at_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            seconds,
            nodes: self.nodes.look(&self.machine),
            balancing,
            balancing_since,
            devices: self.devices.look(),
            nvme_paths: self.devices.nvme_paths(),
            processes: scan.processes,
            threads: scan.threads,
            node_changes: scan.node_changes,
            node_migrations: self.migrations.look(),
            memory_ages: self.processes.memory_ages(),
            cost: scan.cost,
        };
        let cost_s = thread_seconds() - begun;
        // The first opens files that the others find open.
        if self.total_cost_s > 0.0 {
            self.pace.add(cost_s - of_machine_s);
        }
        self.total_cost_s += cost_s;
        look.cost.cpu_s = cost_s;
        look.cost.total_cpu_s = self.total_cost_s;
        Ok(look)
    }

    /// Reads the machine again where it is old.
    fn renew_machine(&mut self, now: Instant) -> Result<(), LiveError> {
        let by_cost = Duration::from_secs_f64(self.machine_cost_s / MAX_MACHINE_CPU_SHARE);
        if now - self.machine_read < by_cost.max(MIN_MACHINE_AGE) {
            return Ok(());
        }
        let begun = thread_seconds();
        let read = machine(&self.options)?;
        self.machine = Machine {
            services: std::mem::take(&mut self.machine.services),
            ..read
        };
        self.machine_cost_s = thread_seconds() - begun;
        self.machine_read = now;
        self.devices.renew(&self.machine);
        self.migrations.renew(&self.machine);
        Ok(())
    }

    /// The machine with the tasks of the last look.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The machine with the tasks of the last look and their CPU time since each started, which an audit judges.
    pub fn machine_since_start(&self) -> Machine {
        let mut tasks = self.processes.since_start(&self.options);
        nearfar_sources::add_open_devices(&self.tree, &self.machine, &mut tasks);
        Machine {
            tasks: Known::Yes(tasks),
            ..self.machine.clone()
        }
    }

    /// The tasks of the last look, judged. Their CPU time is that of `look`.
    pub fn tasks(&self, look: &Look, filter: &Filter) -> Tasks {
        match tasks::tasks(&self.machine, filter, Some(look.seconds)) {
            Known::Yes(tasks) => tasks,
            // There was no look yet.
            Known::No { .. } => Tasks {
                seconds: None,
                min_bytes: filter.min_bytes,
                device: None,
                tasks: Vec::new(),
                unknown: Vec::new(),
                latency_sources: Vec::new(),
                whole: std::collections::BTreeMap::new(),
            },
        }
    }

    /// How long to wait before the next look: what was asked for, or longer where the last looks, on average, would take more than
    /// 1.5 % of a CPU.
    pub fn rest(&self, wanted: Duration) -> Duration {
        self.pace.rest(wanted)
    }
}

/// Without tasks.
fn machine(options: &Options) -> Result<Machine, SourceError> {
    let want = Want {
        cpu_details: false,
        cpu_model: false,
        ..Want::audit()
    };
    let read = nearfar_sources::read(&Request::live(want))?;
    Ok(Machine {
        timing: options.timing.clone(),
        ..read
    })
}

/// CPU time of this thread.
pub fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Why the running system cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{0}")]
    Unreadable(String),
    #[error("cannot list /proc: {0}")]
    List(#[source] std::io::Error),
}

/// Of one CPU, that looking may take on average.
const MAX_CPU_SHARE: f64 = 0.015;
/// Weight of the last look. A look that reads memory takes many times as long as the others; one pause for all of it would be minutes.
const LAST_WEIGHT: f64 = 0.2;

/// The weighted mean of what looks cost, the last ones most.
#[derive(Default)]
struct Pace {
    cost_s: f64,
}

impl Pace {
    /// A look took so many CPU seconds.
    fn add(&mut self, cost_s: f64) {
        self.cost_s += LAST_WEIGHT * (cost_s - self.cost_s);
    }

    /// How long to wait: what was asked for, or longer where looking would take more than its share.
    fn rest(&self, wanted: Duration) -> Duration {
        wanted.max(Duration::from_secs_f64(self.cost_s / MAX_CPU_SHARE))
    }
}

struct Migrations {
    /// `None` where there is one node: nothing moves to another.
    counter: Known<Option<NodeMigrations>>,
    before: u64,
}

impl Migrations {
    /// Nothing is traced.
    fn off() -> Self {
        Self {
            counter: Known::no(NOT_ASKED_FOR),
            before: 0,
        }
    }

    /// Counts from now on.
    fn open(machine: &Machine) -> Self {
        let with_cpus = machine
            .online_nodes()
            .filter(|it| !it.known_cpus().is_empty());
        let counter = match with_cpus.count() {
            0 | 1 => Known::Yes(None),
            _ => Known::from_result(NodeMigrations::open(machine)).map(Some),
        };
        Self { counter, before: 0 }
    }

    /// The machine was read again: CPUs that came online are counted as well.
    fn renew(&mut self, machine: &Machine) {
        let is_current = match &self.counter {
            Known::Yes(Some(counter)) => *counter.cpus() == machine.cpu_states.online,
            Known::Yes(None) => false,
            Known::No { .. } => true,
        };
        if !is_current {
            *self = Self::open(machine);
        }
    }

    /// Since the look before.
    fn look(&mut self) -> Known<u64> {
        let now = self.counter.as_ref().and_then(|counter| match counter {
            Some(counter) => Known::from_result(counter.count()),
            None => Known::Yes(0),
        });
        let before = now
            .get()
            .map_or(self.before, |now| std::mem::replace(&mut self.before, *now));
        now.map(|now| now.saturating_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_costly_look_is_followed_by_long_rests() {
        let mut pace = Pace::default();
        pace.add(2.0);
        assert!(pace.rest(Duration::ZERO).as_secs() < 30);
        let mut rests = pace.rest(Duration::ZERO);
        for _ in 0..100 {
            pace.add(0.0);
            rests += pace.rest(Duration::ZERO);
        }
        let share = 2.0 / rests.as_secs_f64();
        assert!((share / MAX_CPU_SHARE - 1.0).abs() < 1e-3, "{share}");
        assert_eq!(pace.rest(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
