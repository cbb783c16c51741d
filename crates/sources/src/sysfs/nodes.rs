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
//! Kernels without `CONFIG_NUMA` have none of it: then the machine is one node of all CPUs.

use nearfar_machine::{CpuId, CpuSet, Known, MOST_NODES, Node, NodeId, NodeSet};

use super::cpus::{Cpus, number};
use super::notes::{Notes, read_noted};
use super::{memory, performance};
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

/// Reads the nodes. The online CPUs become node 0 if the kernel has no nodes.
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
    let online = online.unwrap_or_else(|| listed.clone());
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
        let mut node = if listed.contains(id) {
            one(tree, &directory, id, notes)
        } else {
            absent(id)
        };
        if !cpus.present.is_empty() {
            // s390 gives a node all CPUs that are possible, a hundred of which may not be there.
            node.cpus = node.cpus.intersection(&cpus.present);
        }
        node.online = known_online.contains(id);
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
            return absent(id);
        }
    };
    node.cpus = cpus_of(&directory, notes);
    node.memory = memory::of_node(tree, &directory, notes);
    node.access = performance::access(&directory, notes);
    node.memory_side_caches = performance::memory_side_caches(&directory, notes);
    node
}

/// A node without a directory.
fn absent(id: NodeId) -> Node {
    let mut node = Node::new(id, CpuSet::new());
    node.memory = Known::no("only online nodes have a directory in sysfs");
    node
}

/// The CPUs of a node. The mask is what every kernel has; where the list says something else, that is noted.
fn cpus_of(directory: &Directory<'_>, notes: &Notes) -> CpuSet {
    let mask = read_noted(directory, "cpumap", notes, value::mask::<CpuId>);
    let list = read_noted(directory, "cpulist", notes, value::list::<CpuId>);
    if let (Some(mask), Some(list)) = (&mask, &list)
        && mask != list
    {
        notes.note(
            directory.display("cpulist"),
            format!("lists CPUs {list}, but cpumap has {mask}; taken from there"),
        );
    }
    if mask.is_none() && list.is_none() {
        notes.note(
            directory.display("cpumap"),
            "neither cpumap nor cpulist can be read; taken as a node without CPUs",
        );
    }
    mask.or(list).unwrap_or_default()
}

fn without_directories(tree: &Tree, online_cpus: &CpuSet, notes: &Notes) -> Nodes {
    let message = "the kernel has no nodes; read as one node 0 with all CPUs and all memory";
    notes.note(tree.display(DIRECTORY), message);
    let mut node = Node::new(NodeId(0), online_cpus.clone());
    node.memory = memory::of_machine(tree, notes);
    let only = NodeSet::single(NodeId(0));
    let possible = Known::no(format!("no directory {}", tree.display(DIRECTORY)));
    Nodes {
        nodes: vec![node],
        online: only,
        listed: NodeSet::new(),
        possible,
    }
}
