//! Tasks by control group, and the names of groups as operators know them.

use std::collections::BTreeMap;

use nearfar_machine::{Known, NodeBytes, NodeId};
use nearfar_proc::cgroup::service_name;
use serde::Serialize;

use super::{NodeSeconds, Placement, Remote, TaskPlacement, Tasks};

/// The tasks of a control group, without those of groups below it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupPlacement {
    /// Tasks whose group is unknown are together.
    pub group: Known<String>,
    /// [`service_name`].
    pub service: Option<String>,
    pub tasks: usize,
    /// Of them, those whose memory is unknown and in no sum.
    pub unknown_memory: usize,
    /// Sums of its tasks: a page that several map counts for each of them.
    #[serde(flatten)]
    pub at: Placement,
}

/// Sums of tasks that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskSums {
    pub tasks: usize,
    /// Of them, those whose memory is unknown and in no sum.
    pub unknown_memory: usize,
    /// A page that several map counts for each of them.
    pub at: Placement,
}

/// Sums of the tasks that have the same key.
pub fn sums_by<K: Ord>(tasks: &Tasks, key: impl Fn(&TaskPlacement) -> K) -> BTreeMap<K, TaskSums> {
    let mut sums: BTreeMap<K, Sum> = BTreeMap::new();
    for task in &tasks.tasks {
        sums.entry(key(task)).or_default().add(&task.at);
    }
    let sums = sums.into_iter().map(|(key, sum)| (key, sum.finish()));
    sums.collect()
}

/// The groups of these tasks, the costliest first.
pub fn by_group(tasks: &Tasks) -> Vec<GroupPlacement> {
    let mut groups: Vec<GroupPlacement> = sums_by(tasks, |task| task.group.clone())
        .into_iter()
        .map(|(group, sums)| GroupPlacement {
            service: group.get().and_then(|group| service_name(group)),
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
struct Sum {
    tasks: usize,
    unknown_memory: usize,
    cpu_s: f64,
    cpu: BTreeMap<NodeId, f64>,
    memory: BTreeMap<NodeId, u64>,
    /// Of tasks whose remote share is known, weighted with their memory.
    remote: f64,
    error: f64,
    cost_s: f64,
    is_cost_unknown: bool,
    weight: f64,
}

impl Sum {
    fn add(&mut self, at: &Placement) {
        self.tasks += 1;
        self.unknown_memory += usize::from(at.memory.get().is_none());
        self.cpu_s += at.cpu_s.get().unwrap_or(&0.0);
        for on in at.cpu_nodes.get().into_iter().flatten() {
            *self.cpu.entry(on.node).or_default() += on.seconds;
        }
        for on in at.memory.get().into_iter().flatten() {
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
        TaskSums {
            tasks: self.tasks,
            unknown_memory: self.unknown_memory,
            at: self.placement(),
        }
    }

    fn placement(self) -> Placement {
        let seconds = |(node, seconds)| NodeSeconds { node, seconds };
        let bytes = |(node, bytes)| NodeBytes { node, bytes };
        Placement {
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
        }
    }
}
