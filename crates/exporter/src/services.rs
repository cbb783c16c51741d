//! Sums by service, of which at most so many have series of their own.
//!
//! ```text
//! first seen ──► a series is free: it gets one, those with most memory first ──► it has it while it lives
//!           └──► none is free: OTHER, until one is                                └──► without tasks for 5 minutes: dropped
//! ```
//!
//! Time counts for the series that its task belongs to when it is counted, so that no counter decreases and sums are right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use globset::GlobSet;
use nearfar_live::NodeActivity;
use nearfar_machine::{NodeId, NodeSet};
use nearfar_placement::tasks::{Identity, TaskPlacement, TaskSums, Tasks, sums_by};

use crate::text::{Text, label};

/// The series of tasks without a service, and of services without a series of their own. No unit or container has this name.
pub const OTHER: &str = "other";
/// A service without tasks for this long loses its series, in seconds.
pub const DROP_AFTER_S: f64 = 300.0;

/// The services of a machine, from look to look.
#[derive(Clone, Debug)]
pub struct Services {
    /// Series at most, without that of [`OTHER`].
    top: usize,
    /// Only these have series.
    wanted: Option<GlobSet>,
    series: BTreeMap<String, Series>,
    /// Tasks whose memory is unknown.
    unread: usize,
}

#[derive(Clone, Debug, Default)]
struct Series {
    /// Several control groups may have one name: of the first.
    identity: Option<Identity>,
    tasks: usize,
    /// Nodes of the CPUs that they may use; empty where that is unknown.
    allowed_nodes: NodeSet,
    memory_bytes: BTreeMap<NodeId, u64>,
    remote: Option<f64>,
    cpu_s: BTreeMap<NodeId, f64>,
    cost_s: f64,
    /// How long it has had no tasks, in seconds.
    absent_s: f64,
}

impl Services {
    pub fn new(top: usize, wanted: Option<GlobSet>) -> Self {
        Self {
            top,
            wanted,
            series: BTreeMap::from([(OTHER.to_owned(), Series::default())]),
            unread: 0,
        }
    }

    /// Adds the tasks of a look and their CPU time since the one before, `seconds` ago.
    pub fn add(&mut self, tasks: &Tasks, seconds: f64) {
        self.admit(tasks);
        let mut sums = sums_by(tasks, |task| self.series_of(task));
        self.unread = sums.values().map(|sums| sums.unknown_memory).sum();
        for (name, series) in &mut self.series {
            match sums.remove(name) {
                Some(sums) => series.add(&sums),
                None => series.rest(seconds),
            }
        }
        self.series
            .retain(|name, series| series.absent_s <= DROP_AFTER_S || name == OTHER);
    }

    /// Gives new services the series that are free.
    fn admit(&mut self, tasks: &Tasks) {
        let mut new: BTreeMap<String, (u64, Series)> = BTreeMap::new();
        for task in &tasks.tasks {
            let name = self.name_of(task);
            if let Some(name) = name.filter(|name| !self.series.contains_key(name)) {
                let (bytes, series) = new.entry(name).or_default();
                *bytes += task.at.memory_bytes();
                if series.identity.is_none() {
                    series.identity.clone_from(&task.identity);
                }
            }
        }
        let mut new: Vec<(String, (u64, Series))> = new.into_iter().collect();
        new.sort_by(|(a, (a_bytes, _)), (b, (b_bytes, _))| {
            b_bytes.cmp(a_bytes).then_with(|| a.cmp(b))
        });
        let free = (self.top + 1).saturating_sub(self.series.len());
        let admitted = new.into_iter().take(free);
        self.series
            .extend(admitted.map(|(name, (_, series))| (name, series)));
    }

    /// The service of a task, if it may have a series.
    fn name_of(&self, task: &TaskPlacement) -> Option<String> {
        let name = label(task.service.as_ref()?);
        let is_wanted = self.wanted.as_ref().is_none_or(|it| it.is_match(&name));
        is_wanted.then_some(name)
    }

    fn series_of(&self, task: &TaskPlacement) -> String {
        let name = self.name_of(task);
        let name = name.filter(|name| self.series.contains_key(name));
        name.unwrap_or_else(|| OTHER.to_owned())
    }

    /// Writes their metrics. Nodes without memory or CPUs have no series of it.
    pub fn write(&self, text: &mut Text, nodes: &[NodeActivity], with_totals: bool) {
        self.write_gauges(text, nodes);
        if with_totals {
            self.write_counters(text, nodes);
        }
    }

    fn write_gauges(&self, text: &mut Text, nodes: &[NodeActivity]) {
        let mut memory = text.gauge(
            "nearfar_service_memory_bytes",
            "Resident memory of the service on the node; where the kernel counts it, a page that several tasks map counts once.",
        );
        let with_memory = nodes.iter().filter(|it| it.total_bytes != Some(0));
        let with_memory: BTreeSet<NodeId> = with_memory.map(|it| it.node).collect();
        for (name, series) in &self.series {
            for (node, bytes) in of_nodes(&with_memory, &series.memory_bytes) {
                memory.sample(&[("service", name), ("node", &node)], bytes as f64);
            }
        }
        let mut info = text.gauge(
            "nearfar_service_info",
            "1, with what the service is: a unit, container, job or machine, its pod, job and step.",
        );
        for (name, series) in &self.series {
            if let Some(it) = &series.identity {
                let parts = [&it.namespace, &it.pod, &it.container, &it.job, &it.step];
                let parts = parts.map(|part| label(part.as_deref().unwrap_or_default()));
                let [namespace, pod, container, job, step] = &parts;
                let labels: [(&str, &dyn Display); 7] = [
                    ("service", name),
                    ("kind", &it.kind),
                    ("namespace", namespace),
                    ("pod", pod),
                    ("container", container),
                    ("job", job),
                    ("step", step),
                ];
                info.sample(&labels, 1.0);
            }
        }
        let mut remote = text.gauge(
            "nearfar_service_remote_ratio",
            "Share of accesses that leave the node if all pages are used alike, weighted with memory.",
        );
        for (name, series) in &self.series {
            if let Some(share) = series.remote {
                remote.sample(&[("service", name)], share);
            }
        }
        let mut tasks = text.gauge(
            "nearfar_service_tasks",
            "Processes of the service with at least --min-memory.",
        );
        for (name, series) in &self.series {
            tasks.sample(&[("service", name)], series.tasks as f64);
        }
        let mut allowed = text.gauge(
            "nearfar_service_allowed_nodes",
            "Nodes of the CPUs that the service's processes may use; 1 where all may use those of one node only.",
        );
        for (name, series) in &self.series {
            // Those of all others have nothing in common.
            if name != OTHER && !series.allowed_nodes.is_empty() {
                allowed.sample(&[("service", name)], series.allowed_nodes.len() as f64);
            }
        }
        text.gauge(
            "nearfar_unread_memory_tasks",
            "Processes whose memory is in no sum: not read yet, or not permitted.",
        )
        .sample(&[], self.unread as f64);
    }

    fn write_counters(&self, text: &mut Text, nodes: &[NodeActivity]) {
        let mut cpu = text.counter(
            "nearfar_service_cpu_seconds_total",
            "CPU time of the service on the node since the exporter started.",
        );
        let with_cpus = nodes.iter().filter(|it| it.cpus > 0);
        let with_cpus: BTreeSet<NodeId> = with_cpus.map(|it| it.node).collect();
        for (name, series) in &self.series {
            for (node, seconds) in of_nodes(&with_cpus, &series.cpu_s) {
                cpu.sample(&[("service", name), ("node", &node)], seconds);
            }
        }
        let mut cost = text.counter(
            "nearfar_service_remote_cost_cpu_seconds_total",
            "Part of the CPU time that waiting for remote memory took at most, since the exporter started.",
        );
        for (name, series) in &self.series {
            cost.sample(&[("service", name)], series.cost_s);
        }
    }
}

impl Series {
    fn add(&mut self, sums: &TaskSums) {
        self.absent_s = 0.0;
        self.tasks = sums.tasks;
        self.allowed_nodes.clone_from(&sums.allowed_cpu_nodes);
        let memory = sums.at.memory.get().into_iter().flatten();
        self.memory_bytes = memory.map(|on| (on.node, on.bytes)).collect();
        let remote = sums.at.remote.get();
        self.remote = remote.map(|remote| remote.share);
        for on in sums.at.cpu_nodes.get().into_iter().flatten() {
            *self.cpu_s.entry(on.node).or_default() += on.seconds;
        }
        self.cost_s += remote.and_then(|remote| remote.cost_s).unwrap_or(0.0);
    }

    /// A look without tasks of it.
    fn rest(&mut self, seconds: f64) {
        self.absent_s += seconds;
        self.tasks = 0;
        self.allowed_nodes = NodeSet::default();
        self.memory_bytes.clear();
        self.remote = None;
    }
}

/// What is known of these nodes and of those that have had a value, 0 where there is none: a series that comes and goes has gaps.
fn of_nodes<T: Copy + Default>(
    nodes: &BTreeSet<NodeId>,
    values: &BTreeMap<NodeId, T>,
) -> impl Iterator<Item = (NodeId, T)> {
    let all: BTreeSet<NodeId> = nodes.iter().chain(values.keys()).copied().collect();
    all.into_iter()
        .map(|node| (node, values.get(&node).copied().unwrap_or_default()))
}
