//! The tasks that use a device, and how far they run from it.

use nearfar_machine::{Known, Machine, NodeId, TaskFiles, UsedFiles};
use serde::Serialize;

use super::{
    LOCAL_DISTANCE, NodeSeconds, Nodes, TaskPlacement, UNREACHABLE, UnknownMemory, lost_s,
};
use crate::locality::{EffectiveNode, Localities};

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

    pub(super) fn used_device(&self, unknown: Vec<UnknownMemory>) -> UsedDevice {
        UsedDevice {
            device: self.device.clone(),
            localities: self.localities.clone(),
            unknown,
        }
    }

    /// What is known of the files of a task; `None` if it has none open.
    pub(super) fn files(&self, pid: i32) -> Option<&Known<Vec<UsedFiles>>> {
        let index = self
            .tasks
            .binary_search_by_key(&pid, |task| task.pid)
            .ok()?;
        Some(&self.tasks[index].files)
    }

    pub(super) fn of(
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
pub(super) fn sort(tasks: &mut [TaskPlacement]) {
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
