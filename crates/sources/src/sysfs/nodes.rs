//! Memory nodes: `/sys/devices/system/node/`.
//!
//! ```text
//! possible, online, has_cpu, has_memory, has_generic_initiator    sets of nodes
//! nodeN/  cpumap, cpulist      its CPUs
//!         meminfo, hugepages/  -> memory
//!         distance             -> distances
//!         accessC/, memory_side_cache/  -> performance
//! ```
//!
//! Kernels without `CONFIG_NUMA` have none of it: then the machine is one node of all CPUs. An extracted tree may have
//! none of it because it was not gathered: then the nodes, or the CPUs of one, are unknown.

use nearfar_machine::{CpuId, CpuSet, Known, MOST_NODES, Node, NodeId, NodeSet};

use super::cpus::{self, Cpus, number};
use super::notes::{Notes, read_noted};
use super::{attribute, memory, performance};
use crate::parallel;
use crate::tree::{Directory, Tree};
use crate::value;

/// Where sysfs has the nodes.
pub(super) const DIRECTORY: &str = "sys/devices/system/node";
/// The highest node a kernel can have.
const HIGHEST: NodeId = NodeId(MOST_NODES - 1);

#[derive(Debug)]
pub(super) struct Nodes {
    /// Those that are online, and those that could be.
    pub(super) nodes: Vec<Node>,
    /// What the file `online` lists; the columns of the distance files.
    pub(super) online: NodeSet,
    pub(super) listed: NodeSet,
    /// What the file `possible` lists.
    pub(super) possible: Known<NodeSet>,
}

/// Reads the nodes. The online CPUs become node 0 if the kernel has no nodes; there is none if they were not gathered.
pub(super) fn read(tree: &Tree, cpus: &Cpus, notes: &Notes) -> Nodes {
    let directory = match tree.directory(DIRECTORY) {
        Ok(directory) => directory,
        Err(error) => {
            notes.unless_absent(error);
            return without_directories(tree, &cpus.online, notes);
        }
    };
    let listed = listed(&directory, notes);
    let set = |name: &str| {
        read_noted(&directory, name, notes, value::list::<NodeId>)
            .map(|set| bounded(set, name, tree, notes))
    };
    let online = set("online").filter(|online| !online.is_empty());
    if listed.is_empty() && online.is_none() {
        return without_directories(tree, &cpus.online, notes);
    }
    let online = online.unwrap_or_else(|| {
        notes.read_instead(directory.below("online"), DIRECTORY);
        listed.clone()
    });
    differences(tree, &online, &listed, notes);
    let possible = set("possible").map_or_else(
        || Known::no(format!("no list in {}", directory.display("possible"))),
        |possible| Known::Yes(possible.union(&online).union(&listed)),
    );
    let known_online = online.union(&listed);
    let all = possible.get().map_or_else(
        || known_online.clone(),
        |possible| possible.union(&known_online),
    );
    let initiators = set("has_generic_initiator").unwrap_or_default();
    let tiers = performance::tiers(tree, notes);
    let ids: Vec<NodeId> = all.iter().collect();
    let nodes = parallel::map_few(&ids, |&id| {
        let is_online = known_online.contains(id);
        let mut node = if listed.contains(id) {
            one(tree, &directory, id, notes)
        } else {
            absent(id, is_online)
        };
        if !cpus.present.is_empty() {
            // s390 gives a node all CPUs that are possible, a hundred of which may not be there.
            node.cpus = node.cpus.map(|listed| listed.intersection(&cpus.present));
        }
        node.online = is_online;
        node.generic_initiator = initiators.contains(id);
        node.tier = tiers.get(&id).copied();
        node
    });
    Nodes {
        nodes,
        online,
        listed,
        possible,
    }
}

/// The numbers of the directories `nodeN`.
fn listed(directory: &Directory<'_>, notes: &Notes) -> NodeSet {
    let names = directory.names().unwrap_or_else(|error| {
        notes.unless_absent(error);
        Vec::new()
    });
    let mut listed = NodeSet::new();
    for name in names {
        match number(&name, "node").map(NodeId) {
            Some(node) if node <= HIGHEST => {
                listed.insert(node);
            }
            Some(_) => notes.note(
                directory.display(&name),
                format!("no kernel has a node above {HIGHEST}; left out"),
            ),
            None => {}
        }
    }
    listed
}

fn bounded(set: NodeSet, name: &str, tree: &Tree, notes: &Notes) -> NodeSet {
    let possible = NodeSet::range(NodeId(0), HIGHEST);
    if !set.is_subset(&possible) {
        let place = tree.display(&format!("{DIRECTORY}/{name}"));
        notes.note(
            place,
            format!("no kernel has a node above {HIGHEST}; those are left out"),
        );
    }
    set.intersection(&possible)
}

fn differences(tree: &Tree, online: &NodeSet, listed: &NodeSet, notes: &Notes) {
    let (missing, extra) = (online.difference(listed), listed.difference(online));
    if !missing.is_empty() {
        let message =
            format!("lists node {missing}, which has no directory; nothing is known about it");
        notes.note(tree.display(&format!("{DIRECTORY}/online")), message);
    } else if !extra.is_empty() {
        let message = format!("does not list node {extra}, which has a directory; taken as online");
        notes.note(tree.display(&format!("{DIRECTORY}/online")), message);
    }
}

fn one(tree: &Tree, nodes: &Directory<'_>, id: NodeId, notes: &Notes) -> Node {
    let mut node = Node::new(id, CpuSet::new());
    let directory = match nodes.directory(&format!("node{id}")) {
        Ok(directory) => directory,
        Err(reason) => {
            notes.note(nodes.display(&format!("node{id}")), reason.to_string());
            return absent(id, true);
        }
    };
    node.cpus = cpus_of(&directory, notes);
    node.memory = memory::of_node(tree, &directory, notes);
    node.access = performance::access(&directory, notes);
    node.memory_side_caches = performance::memory_side_caches(&directory, notes);
    node
}

/// A node without a directory. The kernel has one for each that is online; the others have no CPUs.
fn absent(id: NodeId, is_online: bool) -> Node {
    let (cpus, because) = match is_online {
        true => (Known::no("it has no directory"), "it has no directory"),
        false => (
            Known::Yes(CpuSet::new()),
            "only online nodes have a directory in sysfs",
        ),
    };
    let mut node = Node::new(id, cpus);
    node.memory = Known::no(because);
    node
}

/// The CPUs of a node. The mask is what every kernel has; where the list says something else, that is noted.
fn cpus_of(directory: &Directory<'_>, notes: &Notes) -> Known<CpuSet> {
    if !directory.exists("cpumap") && !directory.exists("cpulist") {
        return Known::no("no cpulist or cpumap was gathered");
    }
    let mask = attribute::known(directory, "cpumap", notes, value::mask::<CpuId>);
    let list = attribute::known(directory, "cpulist", notes, value::list::<CpuId>);
    if let (Known::Yes(mask), Known::Yes(list)) = (&mask, &list)
        && mask != list
    {
        notes.note(
            directory.display("cpulist"),
            format!("lists CPUs {list}, but cpumap has {mask}; taken from there"),
        );
    }
    match mask {
        Known::No { .. } if directory.exists("cpulist") => list,
        mask => {
            if mask.get().is_some() && mask != list {
                notes.read_instead(directory.below("cpulist"), directory.below("cpumap"));
            }
            mask
        }
    }
}

fn without_directories(tree: &Tree, online_cpus: &CpuSet, notes: &Notes) -> Nodes {
    if !has_no_nodes(tree) {
        return Nodes {
            nodes: Vec::new(),
            online: NodeSet::new(),
            listed: NodeSet::new(),
            possible: Known::no(format!("{} was not gathered", tree.display(DIRECTORY))),
        };
    }
    let message = "the kernel has no nodes; read as one node 0 with all CPUs and all memory";
    notes.note(tree.display(DIRECTORY), message);
    let mut node = Node::new(NodeId(0), online_cpus.clone());
    node.memory = memory::of_machine(tree, notes);
    for (usual, read) in [
        ("cpulist", "sys/devices/system/cpu/online"),
        ("meminfo", "proc/meminfo"),
    ] {
        notes.read_instead(format!("{DIRECTORY}/node0/{usual}"), read);
    }
    let only = NodeSet::single(NodeId(0));
    let possible = Known::no(format!("no directory {}", tree.display(DIRECTORY)));
    Nodes {
        nodes: vec![node],
        online: only,
        listed: NodeSet::new(),
        possible,
    }
}

/// Whether a kernel without directories of nodes has none (it was built without `CONFIG_NUMA`). The running system shows
/// all that there is. In a tree the directories may not have been gathered, unless what belongs to them is missing where
/// it cannot be left out alone: `/proc/vmstat` has lines `numa_...` (mm/vmstat.c), and no gatherer picks `clockevents`
/// out of `/sys/devices/system`.
fn has_no_nodes(tree: &Tree) -> bool {
    let counts_nothing = |text: String| !text.lines().any(|line| line.starts_with("numa_"));
    (tree.is_live() && tree.exists(cpus::DIRECTORY))
        || tree.text("proc/vmstat").is_ok_and(counts_nothing)
        || tree.exists("sys/devices/system/clockevents")
}
