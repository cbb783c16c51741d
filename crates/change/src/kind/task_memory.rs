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
        let is_moved = self.pid > 1;
        is_moved
            .then_some(())
            .ok_or(ChangeError::ProcessNumber(self.pid))
    }

    fn check_value(&self, planned: &Planned, _: &str) -> Result<(), ChangeError> {
        if let Change::TaskMemory { from, to, .. } = &planned.change {
            check_nodes(self.pid, from, *to)?;
        }
        let identity = planned.owner.as_ref().and_then(|it| it.process.as_ref());
        identity.map(drop).ok_or(ChangeError::NoIdentity(self.pid))
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
    if pid == std::process::id().cast_signed() {
        return Err(ChangeError::OwnProcess(pid));
    }
    if to.0 > MAX_NUMBER {
        return Err(ChangeError::NodeNumber(to));
    }
    if from.contains(to) {
        return Err(ChangeError::SameNode { pid, to });
    }
    if from.is_empty() {
        return Err(ChangeError::NoNodes { pid, to });
    }
    Ok(())
}
