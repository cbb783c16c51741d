//! Cpusets: groups of tasks that are confined to some CPUs and memory nodes.
//!
//! ```text
//! version 2   sys/fs/cgroup/system.slice/redis.service/cpuset.cpus, .mems, and .effective of both
//! version 1   sys/fs/cgroup/cpuset/redis/cpuset.cpus, .mems (and cpuset.effective_*)
//! before      dev/cpuset/redis/cpus, mems
//! ```
//!
//! A group without the files has no cpuset of its own and is left out; so is the root unless there is nothing else.

use nearfar_machine::{CpuSet, Cpuset, Known, NodeSet};

use super::attribute;
use super::notes::Notes;
use crate::tree::{Directory, Tree};
use crate::value;

/// How deep groups nest: systemd in a container in a pod in a slice stays below 16.
const DEEPEST: usize = 32;
const MOST_GROUPS: usize = 50_000;

/// Where the version 2 hierarchy is mounted.
const UNIFIED: &str = "sys/fs/cgroup";

/// The names of the files in one kind of hierarchy.
struct Hierarchy {
    root: &'static str,
    /// What is configured, and what is in force, the first that is there counts.
    cpus: [&'static str; 2],
    nodes: [&'static str; 2],
}

const HIERARCHIES: [Hierarchy; 5] = [
    Hierarchy {
        root: "sys/fs/cgroup/cpuset",
        cpus: ["cpuset.cpus", "cpuset.effective_cpus"],
        nodes: ["cpuset.mems", "cpuset.effective_mems"],
    },
    // Controllers mounted together share a directory.
    Hierarchy {
        root: "sys/fs/cgroup/cpu,cpuset",
        cpus: ["cpuset.cpus", "cpuset.effective_cpus"],
        nodes: ["cpuset.mems", "cpuset.effective_mems"],
    },
    Hierarchy {
        root: UNIFIED,
        cpus: ["cpuset.cpus", "cpuset.cpus.effective"],
        nodes: ["cpuset.mems", "cpuset.mems.effective"],
    },
    Hierarchy {
        root: "dev/cpuset",
        cpus: ["cpus", "cpus"],
        nodes: ["mems", "mems"],
    },
    Hierarchy {
        root: "dev/cpuset",
        cpus: ["cpuset.cpus", "cpuset.cpus"],
        nodes: ["cpuset.mems", "cpuset.mems"],
    },
];

/// Reads all cpusets, by path.
pub(crate) fn read(tree: &Tree, notes: &Notes) -> Known<Vec<Cpuset>> {
    for hierarchy in &HIERARCHIES {
        let Ok(root) = tree.directory(hierarchy.root) else {
            continue;
        };
        let present = [hierarchy.cpus, hierarchy.nodes].concat();
        if present.iter().any(|name| root.exists(name)) {
            return Known::Yes(hierarchy.walk(tree, notes));
        }
    }
    Known::no(format!(
        "neither {} nor {} has cpusets",
        tree.display("sys/fs/cgroup"),
        tree.display("dev/cpuset")
    ))
}

impl Hierarchy {
    fn walk(&self, tree: &Tree, notes: &Notes) -> Vec<Cpuset> {
        let mut found = Vec::new();
        let mut left = vec![(String::new(), 0)];
        let mut looked_at = 0;
        while let Some((path, depth)) = left.pop() {
            looked_at += 1;
            if looked_at > MOST_GROUPS {
                notes.note(
                    tree.display(self.root),
                    format!("has more than {MOST_GROUPS} groups: the rest is left out"),
                );
                break;
            }
            let Ok(directory) = tree.directory(&format!("{}{path}", self.root)) else {
                continue;
            };
            found.extend(self.group(&directory, &path, notes));
            if depth >= DEEPEST {
                continue;
            }
            for name in directory.names().unwrap_or_default() {
                // Only groups are directories; what has a dot and no directory behind it is one of the kernel's files.
                let below = format!("{path}/{name}");
                let whole = format!("{}{below}", self.root);
                if !is_file_of_kernel(&name)
                    && tree.link(&whole).is_err()
                    && tree.directory(&whole).is_ok()
                {
                    left.push((below, depth + 1));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// A group's cpuset. The root's is the whole machine, by default.
    fn group(&self, directory: &Directory<'_>, path: &str, notes: &Notes) -> Option<Cpuset> {
        if path.is_empty() {
            return None;
        }
        let [cpus, effective_cpus] = self.cpus;
        let [nodes, effective_nodes] = self.nodes;
        if !directory.exists(cpus) && !directory.exists(effective_cpus) {
            return None;
        }
        let list = |name: &str| attribute::known::<CpuSet>(directory, name, notes, value::list);
        let node_list =
            |name: &str| attribute::known::<NodeSet>(directory, name, notes, value::list);
        let (own_cpus, own_nodes) = (list(cpus), node_list(nodes));
        let configured = own_cpus.get().is_some_and(|set| !set.is_empty())
            || own_nodes.get().is_some_and(|set| !set.is_empty());
        let in_force = |usual: &str, effective: &str, own: &str| {
            let is_there = directory.exists(effective) && effective != own;
            let read = directory.below(if is_there { effective } else { own });
            notes.read_instead(format!("{UNIFIED}{path}/{usual}"), read);
            is_there
        };
        Some(Cpuset {
            path: path.to_owned(),
            cpus: match in_force("cpuset.cpus.effective", effective_cpus, cpus) {
                true => list(effective_cpus),
                false => own_cpus,
            },
            nodes: match in_force("cpuset.mems.effective", effective_nodes, nodes) {
                true => node_list(effective_nodes),
                false => own_nodes,
            },
            configured,
            version_2: Some(self.root == UNIFIED),
        })
    }
}

/// `cpuset.cpus`, `memory.stat`, `tasks`: names that no group has, which saves opening each to see.
fn is_file_of_kernel(name: &str) -> bool {
    const PREFIXES: [&str; 12] = [
        "cgroup.", "cpuset.", "memory.", "cpu.", "io.", "pids.", "hugetlb.", "rdma.", "misc.",
        "irq.", "dmem.", "cpuacct.",
    ];
    // A slice of systemd may be called so, too: it ends in what systemd calls it.
    let unit = [".slice", ".scope", ".service", ".mount", ".socket", ".swap"]
        .iter()
        .any(|kind| name.ends_with(kind));
    !unit
        && (PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || name == "tasks"
            || name == "notify_on_release")
}
