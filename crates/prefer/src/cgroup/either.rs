//! A group, kept through its cpuset where that serves, and otherwise thread by thread.

use nearfar_machine::{Machine, NodeId};
use serde::Serialize;

use super::keeper::{GroupKeeper, GroupReport};
use super::{CgroupError, Group, Means};
use crate::keeper::{Keeper, KeeperError, KeeperOptions, KeeperReport, Memory, Targets};
use crate::near;

/// A group that is kept.
pub enum KeptGroup {
    /// Through its cpuset.
    Cpuset(GroupKeeper),
    /// Its threads one by one.
    Threads {
        /// Who does it.
        keeper: Keeper,
        /// Why not through its cpuset.
        because: String,
    },
}

/// What was done to a group.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "means", rename_all = "snake_case")]
pub enum KeptGroupReport {
    /// Through its cpuset.
    Cpuset(GroupReport),
    /// To its threads.
    Threads(KeeperReport),
}

/// Why a group is not kept, or was not given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptGroupError {
    /// The group, or its cpuset.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// Its threads.
    #[error(transparent)]
    Threads(#[from] KeeperError),
    /// The node.
    #[error("{0}")]
    Node(String),
}

impl KeptGroup {
    /// Keeps a group on a node from now on, in a thread of this process.
    ///
    /// # Errors
    /// When the node has no CPUs, none of them is the group's, or the system refuses.
    pub fn start(
        group: &Group,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<Self, KeptGroupError> {
        let node = near::node(machine, node).map_err(KeptGroupError::Node)?;
        let means = match options.memory {
            Memory::Untouched => group.means()?,
            Memory::Follow => Means::Threads { because: "its memory is to follow, process by process".to_owned() },
        };
        match means {
            Means::Cpuset => {
                let cpus = machine.node(node).map(|node| node.cpus.intersection(&machine.cpu_states.online));
                Ok(Self::Cpuset(GroupKeeper::start(group, &cpus.unwrap_or_default(), options.rule)?))
            }
            Means::Threads { because } => {
                let targets = Targets::Cgroup(group.directory().to_owned());
                Ok(Self::Threads { keeper: Keeper::start(targets, node, machine, options)?, because })
            }
        }
    }

    /// How it is kept, as a sentence for people.
    pub fn how(&self) -> String {
        match self {
            Self::Cpuset(keeper) if keeper.is_by_pressure() => "through its cpuset, by its pressure (PSI)".to_owned(),
            Self::Cpuset(_) => "through its cpuset; the kernel has no PSI for it, so its tasks are watched".to_owned(),
            Self::Threads { because, .. } => format!("thread by thread, not through its cpuset: {because}"),
        }
    }

    /// Whether it is kept still: the group may be gone, or somebody else may have set its CPUs.
    pub fn is_running(&self) -> bool {
        match self {
            Self::Cpuset(keeper) => keeper.is_running(),
            Self::Threads { keeper, .. } => keeper.report().is_ok(),
        }
    }

    /// Leaves the group as it was.
    ///
    /// # Errors
    /// When something could not be put back; the next nearfar tries again.
    pub fn stop(self) -> Result<KeptGroupReport, KeptGroupError> {
        match self {
            Self::Cpuset(keeper) => Ok(KeptGroupReport::Cpuset(keeper.stop().map_err(CgroupError::from)?)),
            Self::Threads { keeper, .. } => Ok(KeptGroupReport::Threads(keeper.stop()?)),
        }
    }
}
