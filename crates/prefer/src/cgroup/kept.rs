//! A group, kept through its cpuset where that serves, and otherwise thread by thread.

use nearfar_machine::{Machine, NodeId};
use serde::Serialize;

use super::cpuset::{GroupCpuset, GroupReport};
use super::{Group, Means};
use crate::keeper::{
    Actuator as _, Keeper, KeeperError, KeeperOptions, KeeperReport, Memory, Targets,
};
use crate::near;

/// Through what a group is to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// Its cpuset; refused where that does not serve.
    Cpuset,
    /// Its threads one by one.
    Threads,
}

/// A group that is kept.
pub enum KeptGroup {
    /// `was_empty`: the cpuset was empty, and will not be so again.
    Cpuset {
        keeper: Keeper<GroupCpuset>,
        by_pressure: bool,
        was_empty: bool,
    },
    /// Its threads one by one; `reason`: why not through its cpuset.
    Threads { keeper: Keeper, reason: String },
}

/// What was done to a group.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "means", rename_all = "snake_case")]
pub enum KeptGroupReport {
    Cpuset(GroupReport),
    Threads(KeeperReport),
}

impl KeptGroup {
    /// Keeps a group on a node from now on, in a thread of this process; through whatever leaves nothing behind unless
    /// something is asked for.
    ///
    /// # Errors
    /// When the node has no CPUs, none of them is the group's, what is asked for does not serve, or the system refuses.
    pub fn start(
        group: &Group,
        node: NodeId,
        machine: &Machine,
        through: Option<Through>,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let node = near::node(machine, node)?;
        match chosen(group, through, options.memory)? {
            Means::Threads { reason } => {
                let targets = Targets::Cgroup(group.directory().to_owned());
                Ok(Self::Threads {
                    keeper: Keeper::start(targets, node, machine, options)?,
                    reason,
                })
            }
            means => {
                let online = &machine.cpu_states.online;
                let home = machine
                    .node(node)
                    .map(|node| node.known_cpus().intersection(online))
                    .unwrap_or_default();
                let possible = machine.cpu_states.possible.get().unwrap_or(online);
                let cpuset = GroupCpuset::confine(group, &home, possible, &options)?;
                Ok(Self::Cpuset {
                    by_pressure: cpuset.trigger().is_some(),
                    keeper: Keeper::run(cpuset, options.interval)?,
                    was_empty: means == Means::EmptyCpuset,
                })
            }
        }
    }

    /// How it is kept, as a sentence for people.
    pub fn how(&self) -> String {
        match self {
            Self::Cpuset {
                by_pressure,
                was_empty,
                ..
            } => {
                let by = match by_pressure {
                    true => "by its pressure (PSI)",
                    false => {
                        "and its tasks watched all the time, since the kernel has no PSI for it"
                    }
                };
                let left = match was_empty {
                    true => {
                        "; it was empty and is left with all CPUs, for an empty one is not taken back"
                    }
                    false => "",
                };
                format!("through its cpuset, {by}{left}")
            }
            Self::Threads { reason, .. } => format!("thread by thread: {reason}"),
        }
    }

    /// Whether it is kept still: the group may be gone, or another program may have set its CPUs.
    pub fn is_running(&self) -> bool {
        match self {
            Self::Cpuset { keeper, .. } => keeper.is_running(),
            Self::Threads { keeper, .. } => keeper.is_running(),
        }
    }

    /// Leaves the group as it was.
    ///
    /// # Errors
    /// When something could not be put back; the next nearfar tries again.
    pub fn stop(self) -> Result<KeptGroupReport, KeeperError> {
        match self {
            Self::Cpuset { keeper, .. } => keeper.stop().map(KeptGroupReport::Cpuset),
            Self::Threads { keeper, .. } => keeper.stop().map(KeptGroupReport::Threads),
        }
    }
}

/// What is asked for where that serves; otherwise what leaves nothing behind.
fn chosen(group: &Group, through: Option<Through>, memory: Memory) -> Result<Means, KeeperError> {
    let threads = |reason: &str| Means::Threads {
        reason: reason.to_owned(),
    };
    if through == Some(Through::Threads) {
        return Ok(threads("as asked"));
    }
    let means = match memory {
        Memory::Untouched => group.means()?,
        Memory::Follow => threads("its memory is to follow, process by process"),
    };
    match (through, means) {
        (Some(_), Means::Threads { reason }) => Err(KeeperError::NotByCpuset { reason }),
        (None, Means::EmptyCpuset) => Ok(threads(
            "its cpuset is empty, and the kernel takes no empty one back while it has tasks",
        )),
        (_, means) => Ok(means),
    }
}
