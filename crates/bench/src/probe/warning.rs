//! What was wrong with a sample, each with what probably happened and what to do about it.

use std::fmt;

use nearfar_machine::{CpuSet, NodeId};
use serde::{Deserialize, Serialize};

/// A reason to trust one run of the probe less.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SampleWarning {
    /// A hypervisor gave the CPUs to another guest.
    Stolen {
        /// How much of the time of the CPUs in use, in percent.
        percent: f64,
    },
    /// The processor slowed down for heat.
    Throttled { times: u64 },
    /// The control group's CPU quota stopped the probe.
    Quota { times: u64 },
    /// Page faults in the timed part that NUMA balancing does not explain.
    Faults {
        /// Without I/O.
        minor: u64,
        /// With I/O.
        major: u64,
    },
    /// The probe waited for something in the timed part.
    Waited { times: u64 },
    /// Far more involuntary switches than a competing load explains.
    Switched {
        /// Switches a second.
        per_second: f64,
    },
    /// Pages of bound memory were on another node when the timed part began.
    Elsewhere {
        node: NodeId,
        /// How many of the pages that were looked at, in percent.
        percent: f64,
    },
    /// Pages of bound memory left their node in the timed part.
    Moved {
        node: NodeId,
        /// How many of the pages that were looked at, in percent.
        percent: f64,
    },
    /// The kernel refused to bind the memory; all of it is on its node nevertheless.
    BindRefused { node: NodeId, error: String },
    /// Where bound pages are could not be asked.
    Unverified { node: NodeId, error: String },
    /// CPUs that the probe might use went offline, or came back, in the timed part.
    Offline {
        /// Those that were online only before or only after.
        cpus: CpuSet,
    },
    /// The probe's affinity was changed, although its CPUs are bound.
    Rebound {
        /// Where it could run at the end.
        cpus: CpuSet,
    },
}

fn often(times: u64) -> String {
    if times == 1 {
        "once".to_owned()
    } else {
        format!("{times} times")
    }
}

impl fmt::Display for SampleWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stolen { percent } => write!(
                f,
                "the hypervisor took {percent:.1} % of the CPUs' time: the run may have taken longer for it; repeat when \
                 the host is quiet"
            ),
            Self::Throttled { times } => {
                write!(
                    f,
                    "the processor throttled for heat {}: its clock was low; let it cool down",
                    often(*times)
                )
            }
            Self::Quota { times } => write!(
                f,
                "the control group's CPU quota stopped the probe {}: measure in a group without cpu.max",
                often(*times)
            ),
            Self::Faults { minor, major } => write!(
                f,
                "{minor} minor and {major} major page faults fell into the timed part: pages were swapped out, merged or \
                 moved by the kernel; memory may be short"
            ),
            Self::Waited { times } => {
                write!(
                    f,
                    "the probe waited {} in the timed part: something stopped it, such as a debugger or SIGSTOP",
                    often(*times)
                )
            }
            Self::Switched { per_second } => write!(
                f,
                "{per_second:.0} involuntary context switches per second: more than a load explains; something else wakes \
                 up very often on these CPUs"
            ),
            Self::Elsewhere { node, percent } => write!(
                f,
                "{percent:.1} % of the pages were not on node {node}, which they are bound to: the node is short of memory"
            ),
            Self::Moved { node, percent } => write!(
                f,
                "{percent:.1} % of the pages left node {node} in the timed part, although they are bound to it: another \
                 process moved them (migratepages, a cpuset with memory_migrate)"
            ),
            Self::BindRefused { node, error } => write!(
                f,
                "the memory could not be bound to node {node} ({error}; containers often forbid mbind): it is there, but \
                 may be moved"
            ),
            Self::Unverified { node, error } => {
                write!(
                    f,
                    "whether the memory is on node {node} could not be checked (move_pages: {error})"
                )
            }
            Self::Offline { cpus } => {
                write!(f, "CPUs {cpus} went offline or came back during the run")
            }
            Self::Rebound { cpus } => write!(
                f,
                "the probe's affinity was changed to CPUs {cpus} although it is bound: by a daemon or a cpuset"
            ),
        }
    }
}
