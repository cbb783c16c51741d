//! Which tasks are shown.

use nearfar_machine::{Known, NodeId};

use super::{DeviceUsers, TaskPlacement};

/// What a task has to have; everything passes one that is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Part of its name.
    pub name: Option<String>,
    /// Real user id.
    pub user: Option<u32>,
    /// Its control group or one above it, or its unit or container.
    pub group: Option<String>,
    /// Runs or has memory on this node.
    pub node: Option<NodeId>,
    /// Has this much memory or an unknown amount, in bytes. Threads of the kernel, and tasks that have ended, have none.
    pub min_bytes: u64,
    /// Has files of this device open.
    pub device: Option<DeviceUsers>,
}

impl Filter {
    pub(super) fn takes(&self, task: &TaskPlacement) -> bool {
        let is_name = |name: &String| task.name.contains(name);
        let is_user = |user: &u32| task.user.get() == Some(user);
        let is_group = |group: &String| {
            task.service.as_ref() == Some(group)
                || task.group.get().is_some_and(|path| is_below(path, group))
        };
        let is_large = || match &task.at.memory {
            Known::Yes(_) => task.at.memory_bytes() >= self.min_bytes,
            Known::No { .. } => {
                let resident = task.resident.get();
                resident.is_none_or(|it| it.total() >= self.min_bytes)
            }
        };
        is_large()
            && self.name.as_ref().is_none_or(is_name)
            && self.user.as_ref().is_none_or(is_user)
            && self.group.as_ref().is_none_or(is_group)
            && self.node.is_none_or(|node| is_on(task, node))
    }
}

/// Whether a group is this one or below it; with or without a slash before it.
pub fn is_below(path: &str, group: &str) -> bool {
    let group = group.trim_matches('/');
    let rest = path.trim_start_matches('/').strip_prefix(group);
    rest.is_some_and(|rest| group.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

fn is_on(task: &TaskPlacement, node: NodeId) -> bool {
    let mut cpus = task.at.cpu_nodes.get().into_iter().flatten();
    let mut memory = task.at.memory.get().into_iter().flatten();
    cpus.any(|at| at.node == node) || memory.any(|on| on.node == node && on.bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_below_itself_and_those_above_it_but_not_below_a_longer_name() {
        for group in ["/a.slice", "a.slice", "a.slice/b", "/"] {
            assert!(is_below("/a.slice/b", group), "{group}");
        }
        for group in ["/a.slice/bc", "/a.sl", "b"] {
            assert!(!is_below("/a.slice/b", group), "{group}");
        }
    }
}
