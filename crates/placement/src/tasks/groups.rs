//! Tasks by control group, and the names of groups as operators know them.

use std::collections::BTreeMap;

use nearfar_machine::{Known, NodeBytes, NodeId};
use serde::Serialize;

use super::{NodeSeconds, Placement, Remote, TaskPlacement, Tasks};

/// Digits of a container's id that its tools show.
const SHORT_ID: usize = 12;
/// Hexadecimal digits of a container's id: a SHA-256 sum.
const ID: usize = 64;

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

/// The unit or container that a control group stands for: `redis.service`, `docker 0123456789ab`. `None` for slices and the root.
pub fn service_name(group: &str) -> Option<String> {
    let mut parts = group.rsplit('/').filter(|part| !part.is_empty());
    parts.find_map(|part| container(part).or_else(|| unit(part)))
}

/// The path of the control group that [`service_name`] is of: without the groups that the unit or container made below its own.
pub fn service_group(group: &str) -> Option<&str> {
    let ends = group.match_indices('/').map(|(end, _)| end);
    let mut paths: Vec<&str> = ends.map(|end| &group[..end]).collect();
    paths.push(group);
    let is_service = |path: &&str| {
        let part = path.rsplit('/').next().unwrap_or_default();
        container(part).or_else(|| unit(part)).is_some()
    };
    paths.into_iter().rev().find(is_service)
}

fn unit(part: &str) -> Option<String> {
    let is_unit = [".service", ".scope", ".socket", ".mount"]
        .iter()
        .any(|suffix| part.ends_with(suffix));
    is_unit.then(|| part.to_owned())
}

/// `docker-ID.scope`, `cri-containerd-ID.scope`, and a folder `ID` without systemd.
fn container(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (runtime, id) = part.rsplit_once('-').unwrap_or(("container", part));
    let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| format!("{runtime} {}", &id[..SHORT_ID]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_service_is_the_one_that_has_its_name() {
        for (group, of) in [
            (
                "/system.slice/redis.service",
                Some("/system.slice/redis.service"),
            ),
            (
                "/system.slice/redis.service/worker",
                Some("/system.slice/redis.service"),
            ),
            (
                "/user.slice/user@0.service/app.slice/redis.service/x/y",
                Some("/user.slice/user@0.service/app.slice/redis.service"),
            ),
            ("/user.slice", None),
            ("/", None),
        ] {
            assert_eq!(service_group(group), of, "{group}");
        }
    }

    #[test]
    fn groups_have_the_names_of_units_and_containers() {
        let id = "0123456789abcdef".repeat(4);
        let of = |group: String| service_name(&group);
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(
            of("/system.slice/redis.service".into()),
            name("redis.service")
        );
        assert_eq!(
            of("/system.slice/redis.service/worker".into()),
            name("redis.service")
        );
        assert_eq!(
            of(format!("/system.slice/docker-{id}.scope")),
            name("docker 0123456789ab")
        );
        assert_eq!(
            of(format!(
                "/kubepods.slice/pod.slice/cri-containerd-{id}.scope"
            )),
            name("cri-containerd 0123456789ab")
        );
        assert_eq!(of(format!("/docker/{id}")), name("container 0123456789ab"));
        assert_eq!(of("/user.slice".into()), None);
        assert_eq!(of("/".into()), None);
        assert_eq!(of("/é".repeat(40)), None);
    }
}
