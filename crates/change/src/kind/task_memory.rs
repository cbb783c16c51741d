use nearfar_machine::{MAX_NUMBER, Machine, NodeId, NodeSet};
use nearfar_proc::{Stat, tasks};
use serde::{Deserialize, Serialize};

use super::{ChangeError, Kind};
use crate::change::{Change, Owner, Planned, ProcessIdentity, memory_by_node};
use crate::owner::Seen;
use crate::system::System;
use crate::task_memory;

/// The pages of a process. Not a file that is written: `/proc/PID/numa_maps` shows them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskMemory {
    /// The process.
    pub pid: i32,
}

impl Kind for TaskMemory {
    fn path(&self) -> String {
        format!("/proc/{}/numa_maps", self.pid)
    }

    fn is_written(&self) -> bool {
        false
    }

    fn check(&self) -> Result<(), ChangeError> {
        ChangeError::unless(self.pid > 1, || {
            format!(
                "process {}: only memory of processes with numbers above 1 is moved",
                self.pid
            )
        })
    }

    fn check_value(&self, planned: &Planned, _: &str) -> Result<(), ChangeError> {
        if let Change::TaskMemory { from, to, .. } = &planned.change {
            check_nodes(self.pid, from, *to)?;
        }
        let identity = planned.owner.as_ref().and_then(|it| it.process.as_ref());
        ChangeError::unless(identity.is_some(), || {
            format!(
                "the plan does not say when process {} began: make the plan again",
                self.pid
            )
        })
    }

    fn shown(&self, text: &str) -> String {
        task_memory::shown(text)
    }

    fn subject(&self, _: &Change) -> String {
        format!("memory of process {}", self.pid)
    }

    fn caution(&self) -> Option<&'static str> {
        Some(
            "the process is slower while its pages move (13 to 45 % of its pace was measured); rollback is exact but for huge \
             pages that the kernel splits, which stay split, and pages that the process replaces meanwhile, which stay \
             where they are",
        )
    }

    fn only_by_rule(&self) -> Option<String> {
        Some("moving a process's memory slows it down meanwhile".to_owned())
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let mut tasks = machine.tasks.get()?.iter();
        let task = tasks.find(|task| task.pid == self.pid)?;
        Some(memory_by_node(task.memory.get()?))
    }

    fn owner(&self, machine: &Machine) -> Option<Owner> {
        let mut tasks = machine.tasks.get()?.iter();
        let task = tasks.find(|task| task.pid == self.pid)?;
        Some(Owner {
            process: Some(ProcessIdentity {
                start_ticks: *task.start.get()?,
                name: task.name.clone(),
            }),
            ..Owner::default()
        })
    }

    fn observe(&self, system: &dyn System, _: &Owner, tree: bool) -> Seen {
        if tree {
            return Seen::default();
        }
        let stat = match system.read(&format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => stat,
            Err(error) => {
                return Seen {
                    has_no_process: tasks::is_gone(&error),
                    ..Seen::default()
                };
            }
        };
        let process = Stat::parse_with_name(&stat).map(|(stat, name)| ProcessIdentity {
            start_ticks: stat.id.start,
            name: name.to_text(),
        });
        Seen::of(Owner {
            process,
            ..Owner::default()
        })
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        false
    }

    fn gone(&self) -> &'static str {
        "there is no such process"
    }

    fn not_exported(&self) -> Option<String> {
        Some(format!(
            "memory of process {}: the process ends with this boot, and no file moves its pages; use nearfar \
             apply, or prefer to keep a service near its memory",
            self.pid
        ))
    }
}

fn check_nodes(pid: i32, from: &NodeSet, to: NodeId) -> Result<(), ChangeError> {
    ChangeError::unless(pid != std::process::id().cast_signed(), || {
        format!("process {pid} is nearfar itself")
    })?;
    ChangeError::unless(to.0 <= MAX_NUMBER, || {
        format!("node {to} is above {MAX_NUMBER}, the highest number supported")
    })?;
    ChangeError::unless(!from.contains(to), || {
        format!("cannot move memory of process {pid} from node {to} to the same node")
    })?;
    ChangeError::unless(!from.is_empty(), || {
        format!(
            "cannot move memory of process {pid} to node {to}: no other node has memory, or none is named"
        )
    })
}
