//! Memory policies that the kernel rewrites when the nodes of a control group change.
//!
//! With the list the kernel rebinds the policy of each task, and of each of its mappings, of the group and of the groups below
//! (cpuset_change_task_nodemask() and mpol_rebind_mm() in kernel/cgroup/cpuset.c). One that was set without
//! MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES, as numactl(8) and libnuma do, does not keep the nodes that were asked for:
//! mpol_rebind_nodemask() in mm/mempolicy.c replaces each by the node at its place in the new list, so that the old list does
//! not bring them back.
//!
//! ```text
//!  cpuset.mems     0-1              1               0-1
//!  a policy        bind:1           bind:1          bind:0
//!  another         interleave:0-1   interleave:1    interleave:0
//! ```
//!
//! `prefer (many)` keeps its nodes, and `prefer` since Linux 5.14 (mpol_rebind_preferred()).

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::system::KernelVersion;
use nearfar_proc::{numa_maps, tasks};

use super::{CpusetMemoryError, MOUNT, list, unread};
use crate::system::{System, first_line};

/// Reading numa_maps takes 23 ms a GiB that a process has mapped, and the same again of shared memory for each that maps it.
const MAX_TIME: Duration = Duration::from_secs(10);
const MAX_DEPTH: usize = 32;

/// A policy that a change of the nodes, or its undo, rewrites.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rebound {
    /// Of a process or thread.
    task: i32,
    name: String,
    policy: String,
    /// The policy afterwards.
    after: String,
    /// Whether that is another one.
    pub(super) is_changed: bool,
    /// Whether the old list would not bring its nodes back.
    pub(super) is_lost: bool,
}

/// The policies that are rewritten when the group's tasks may have memory on these nodes only, or when that is undone.
///
/// # Errors
/// The policies of a task are unknown. A tree may lack any file.
pub(super) fn rebound(
    system: &dyn System,
    tree: bool,
    group: &str,
    nodes: &NodeSet,
) -> Result<BTreeSet<Rebound>, CpusetMemoryError> {
    let release = first_line(system, "/proc/sys/kernel/osrelease");
    let version = release.and_then(|release| KernelVersion::of_release(&release));
    let mut search = Search {
        system,
        tree,
        is_prefer_kept: version >= KernelVersion::of_release("5.14"),
        since: Instant::now(),
        found: BTreeSet::new(),
    };
    match list(system, &format!("{MOUNT}/{group}/cpuset.mems.effective")) {
        Ok(now) => search.group(group, &now, nodes, 0)?,
        Err(_) if tree => {}
        Err(error) => return Err(error),
    }
    Ok(search.found)
}

/// In words: `interleave:0-1 of process 4711 (db) and 2 more`.
pub(super) fn described<'a>(
    policies: impl Iterator<Item = &'a Rebound>,
    has_after: bool,
) -> Option<String> {
    let mut policies = policies.peekable();
    let first = policies.next()?;
    let more = match policies.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let Rebound {
        task, name, policy, ..
    } = first;
    let after = match has_after {
        true => format!(" to {}", first.after),
        false => String::new(),
    };
    Some(format!("{policy} of task {task} ({name}){after}{more}"))
}

struct Search<'a> {
    system: &'a dyn System,
    tree: bool,
    is_prefer_kept: bool,
    since: Instant,
    found: BTreeSet<Rebound>,
}

impl Search<'_> {
    /// A group whose tasks may have memory on the nodes `old`, and on `new` afterwards; and those below it.
    fn group(
        &mut self,
        group: &str,
        old: &NodeSet,
        new: &NodeSet,
        depth: usize,
    ) -> Result<(), CpusetMemoryError> {
        if old == new {
            return Ok(());
        }
        let directory = format!("{MOUNT}/{group}");
        // Of a threaded group only the threads can be read (EOPNOTSUPP).
        let processes = self.numbers(&format!("{directory}/cgroup.procs"));
        let threads = self.numbers(&format!("{directory}/cgroup.threads"));
        let (processes, threads) = match (processes, threads) {
            (Ok(processes), Ok(threads)) => (processes, threads),
            (Ok(processes), Err(_)) => (processes.clone(), processes),
            (Err(_), Ok(threads)) => (threads.clone(), threads),
            (Err(_), Err(_)) if self.tree => Default::default(),
            (Err(error), Err(_)) => return Err(unread(directory, &error)),
        };
        for task in threads {
            self.task(task, processes.contains(&task), old, new)?;
        }
        // The kernel's files are no directories.
        for name in self.system.list(&directory).unwrap_or_default() {
            let below = format!("{group}/{name}");
            if depth == MAX_DEPTH || self.system.list(&format!("{MOUNT}/{below}")).is_err() {
                continue;
            }
            let nodes = |file: &str| list(self.system, &format!("{MOUNT}/{below}/{file}"));
            let old = nodes("cpuset.mems.effective").unwrap_or_else(|_| old.clone());
            let own = nodes("cpuset.mems").unwrap_or_default();
            let new = match own.intersection(new) {
                none if none.is_empty() => new.clone(),
                own => own,
            };
            self.group(&below, &old, &new, depth + 1)?;
        }
        Ok(())
    }

    fn numbers(&self, file: &str) -> io::Result<BTreeSet<i32>> {
        let text = self.system.read(file)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .lines()
            .filter_map(|it| it.trim().parse().ok())
            .collect())
    }

    fn task(
        &mut self,
        task: i32,
        is_process: bool,
        old: &NodeSet,
        new: &NodeSet,
    ) -> Result<(), CpusetMemoryError> {
        let file = format!("/proc/{task}/numa_maps");
        if self.since.elapsed() > MAX_TIME {
            let reason =
                "the memory policies of the group's tasks take too long to read".to_owned();
            return Err(CpusetMemoryError::Read { file, reason });
        }
        // A mapping without a policy shows the task's. The mappings are the process's: of another thread the first line will do.
        let text = match is_process {
            true => self.system.read(&file),
            false => self.system.begin(&file),
        };
        let text = match text {
            Err(error) if self.tree || tasks::is_gone(&error) => return Ok(()),
            text => text.map_err(|error| unread(file, &error))?,
        };
        let mut policies = BTreeSet::new();
        // What is in memory can be read.
        let _ = numa_maps::each(&text[..], |mapping| {
            if !policies.contains(mapping.policy) {
                policies.insert(mapping.policy.to_owned());
            }
        });
        for policy in policies {
            let policy = String::from_utf8_lossy(&policy).into_owned();
            let Some((mode, nodes)) = rewritten(&policy, self.is_prefer_kept) else {
                continue;
            };
            let after = remapped(&nodes, old, new);
            let is_changed = after != nodes;
            let is_lost = remapped(&after, new, old) != nodes;
            if !is_changed && !is_lost {
                continue;
            }
            let comm = first_line(self.system, &format!("/proc/{task}/comm"));
            self.found.insert(Rebound {
                task,
                name: comm.unwrap_or_default(),
                is_changed,
                is_lost,
                after: format!("{mode}:{after}"),
                policy,
            });
        }
        Ok(())
    }
}

/// Mode and nodes of a policy of numa_maps whose nodes are replaced; `None` for one that has none (`default`, `local`) or whose
/// user's nodes are kept (`bind=static:0`, `interleave=relative:0-1`).
fn rewritten(policy: &str, is_prefer_kept: bool) -> Option<(&str, NodeSet)> {
    let (mode, nodes) = policy.split_once(':')?;
    let is_kept = mode.contains("static")
        || mode.contains("relative")
        || mode.starts_with("prefer (many)")
        || is_prefer_kept && mode.starts_with("prefer");
    let nodes = NodeSet::parse_list(nodes).ok()?;
    (!is_kept).then_some((mode, nodes))
}

/// bitmap_remap() of lib/bitmap.c: a node at the n-th place of the old list becomes the n-th of the new one, counted round; one
/// that is not in the old list stays.
fn remapped(nodes: &NodeSet, old: &NodeSet, new: &NodeSet) -> NodeSet {
    let to = |node: NodeId| {
        let place = old.iter().position(|it| it == node)?;
        new.iter().nth(place % new.len().max(1))
    };
    nodes.iter().map(|node| to(node).unwrap_or(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_replaced_by_their_place_as_the_kernel_does() {
        for (policy, old, new, there, back) in [
            ("1", "0-1", "1", "1", "0"),
            ("0-1", "0-1", "1", "1", "0"),
            ("0-3", "0-3", "2-3", "2-3", "0-1"),
            ("0", "0-1", "0", "0", "0"),
            ("2", "0-3", "2-3", "2", "0"),
            // Outside of the list.
            ("5", "0-1", "1", "5", "5"),
        ] {
            let [nodes, old, new] = [policy, old, new].map(|list| list.parse::<NodeSet>().unwrap());
            let after = remapped(&nodes, &old, &new);
            assert_eq!(after.to_string(), there, "{policy}");
            assert_eq!(remapped(&after, &new, &old).to_string(), back, "{policy}");
        }
    }

    #[test]
    fn policies_that_keep_the_users_nodes_are_not_rewritten() {
        for kept in [
            "default",
            "local",
            "bind=static:0",
            "bind=static|balancing:0-1",
            "interleave=relative:0",
            "prefer (many):0-1",
        ] {
            assert_eq!(rewritten(kept, false), None, "{kept}");
        }
        assert_eq!(rewritten("prefer:1", true), None);
        for policy in [
            "bind:0",
            "bind=balancing:0",
            "prefer:1",
            "weighted interleave:0-1",
        ] {
            assert!(rewritten(policy, false).is_some(), "{policy}");
        }
    }
}
