//! Memory nodes: their CPUs and memory, how far they are from each other and how fast.
//!
//! ```text
//! /sys/devices/system/node/
//!   possible, online, has_cpu, has_memory, has_generic_initiator    sets of nodes
//!   nodeN/cpumap, cpulist      its CPUs
//!   nodeN/meminfo              Node 0 MemTotal:       16369608 kB
//!   nodeN/hugepages/           pools by page size
//!   nodeN/distance             row N: one number for each online node in ascending order, without names
//!   nodeN/access0/initiators/{read,write}_{latency,bandwidth}, nodeM -> ../../../nodeM
//!   nodeN/memory_side_cache/index1/{size,line_size,indexing}
//! /sys/devices/virtual/memory_tiering/memory_tierT/nodelist
//! /proc/meminfo                MemTotal:       16369608 kB             of a machine without nodes
//! ```
//!
//! Kernels without `CONFIG_NUMA` have none of it: then the machine is one node of all CPUs. An extracted tree may have
//! none of it because it was not gathered: then the nodes, or the CPUs of one, are unknown.
//!
//! The figures of speed are what the firmware promises (ACPI HMAT, CXL CDAT; Documentation/admin-guide/mm/numaperf.rst in the
//! kernel), and the tiers what the kernel makes of them.

use std::collections::BTreeMap;

use nearfar_machine::{
    Access, CpuId, CpuSet, Distance, DistanceOrigin, Distances, HugePages, Known, MOST_NODES,
    Memory, MemorySideCache, Node, NodeId, NodeSet,
};
use nearfar_proc::meminfo;

use super::cpus::{self, CpuNumbers, number};
use crate::parallel;
use crate::tree::{Directory, Reason, Tree};
use crate::value::{self, ValueError};

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
pub(super) fn read(tree: &Tree, cpus: &CpuNumbers) -> Nodes {
    let directory = match tree.directory(DIRECTORY) {
        Ok(directory) => directory,
        Err(error) => {
            tree.unless_absent(error);
            return without_directories(tree, &cpus.online);
        }
    };
    let listed = listed(&directory);
    let set = |name: &str| {
        let set = directory.noted(name, value::list::<NodeId>)?;
        Some(bounded(set, name, tree))
    };
    let online = set("online").filter(|online| !online.is_empty());
    if listed.is_empty() && online.is_none() {
        return without_directories(tree, &cpus.online);
    }
    let online = online.unwrap_or_else(|| {
        tree.read_instead(directory.below("online"), DIRECTORY);
        listed.clone()
    });
    differences(tree, &online, &listed);
    let possible = set("possible").map_or_else(
        || Known::no(format!("no list in {}", directory.display("possible"))),
        |possible| Known::Yes(possible.union(&online).union(&listed)),
    );
    let known_online = online.union(&listed);
    let all = possible.get().unwrap_or(&known_online).union(&known_online);
    let initiators = set("has_generic_initiator").unwrap_or_default();
    let tiers = tiers(tree);
    let ids: Vec<NodeId> = all.iter().collect();
    let nodes = parallel::map_few(&ids, |&id| {
        let is_online = known_online.contains(id);
        let mut node = if listed.contains(id) {
            one(tree, &directory, id)
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
fn listed(directory: &Directory<'_>) -> NodeSet {
    let names = directory.names_noted();
    let mut listed = NodeSet::new();
    for name in names {
        match number(&name, "node").map(NodeId) {
            Some(node) if node <= HIGHEST => {
                listed.insert(node);
            }
            Some(_) => directory.note(
                &name,
                format!("no kernel has a node above {HIGHEST}; left out"),
            ),
            None => {}
        }
    }
    listed
}

fn bounded(set: NodeSet, name: &str, tree: &Tree) -> NodeSet {
    let possible = NodeSet::range(NodeId(0), HIGHEST);
    if !set.is_subset(&possible) {
        let message = format!("no kernel has a node above {HIGHEST}; those are left out");
        tree.note(&format!("{DIRECTORY}/{name}"), message);
    }
    set.intersection(&possible)
}

fn differences(tree: &Tree, online: &NodeSet, listed: &NodeSet) {
    let (missing, extra) = (online.difference(listed), listed.difference(online));
    if !missing.is_empty() {
        let message =
            format!("lists node {missing}, which has no directory; nothing is known about it");
        tree.note(&format!("{DIRECTORY}/online"), message);
    } else if !extra.is_empty() {
        let message = format!("does not list node {extra}, which has a directory; taken as online");
        tree.note(&format!("{DIRECTORY}/online"), message);
    }
}

fn one(tree: &Tree, nodes: &Directory<'_>, id: NodeId) -> Node {
    let mut node = Node::new(id, CpuSet::new());
    let directory = match nodes.directory(&format!("node{id}")) {
        Ok(directory) => directory,
        Err(reason) => {
            nodes.note(&format!("node{id}"), reason.to_string());
            return absent(id, true);
        }
    };
    node.cpus = cpus_of(&directory);
    node.memory = memory_of_node(tree, &directory);
    node.access = access(&directory);
    node.memory_side_caches = memory_side_caches(&directory);
    node
}

/// A node without a directory. The kernel has one for each that is online; the others have no CPUs.
fn absent(id: NodeId, is_online: bool) -> Node {
    let because = match is_online {
        true => "it has no directory",
        false => "only online nodes have a directory in sysfs",
    };
    let mut node = Node::new(id, CpuSet::new());
    node.memory = Known::no(because);
    if is_online {
        node.cpus = Known::no(because);
    }
    node
}

/// The CPUs of a node. The mask is what every kernel has; where the list says something else, that is noted.
fn cpus_of(directory: &Directory<'_>) -> Known<CpuSet> {
    if !directory.exists("cpumap") && !directory.exists("cpulist") {
        return Known::no("no cpulist or cpumap was gathered");
    }
    let mask = directory.known("cpumap", value::mask::<CpuId>);
    let list = directory.known("cpulist", value::list::<CpuId>);
    if let (Known::Yes(mask), Known::Yes(list)) = (&mask, &list)
        && mask != list
    {
        let message = format!("lists CPUs {list}, but cpumap has {mask}; taken from there");
        directory.note("cpulist", message);
    }
    match mask {
        Known::No { .. } if directory.exists("cpulist") => list,
        mask => {
            if mask.get().is_some() && mask != list {
                directory.read_instead("cpulist", "cpumap");
            }
            mask
        }
    }
}

fn without_directories(tree: &Tree, online_cpus: &CpuSet) -> Nodes {
    if !has_no_nodes(tree) {
        return Nodes {
            nodes: Vec::new(),
            online: NodeSet::new(),
            listed: NodeSet::new(),
            possible: Known::no(format!("{} was not gathered", tree.display(DIRECTORY))),
        };
    }
    let message = "the kernel has no nodes; read as one node 0 with all CPUs and all memory";
    tree.note(DIRECTORY, message);
    let mut node = Node::new(NodeId(0), online_cpus.clone());
    node.memory = memory_of_machine(tree);
    let usual = |file: &str| format!("{DIRECTORY}/node0/{file}");
    tree.read_instead(usual("cpulist"), "sys/devices/system/cpu/online");
    tree.read_instead(usual("meminfo"), "proc/meminfo");
    Nodes {
        nodes: vec![node],
        online: NodeSet::single(NodeId(0)),
        listed: NodeSet::new(),
        possible: Known::no(format!("no directory {}", tree.display(DIRECTORY))),
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

/// A node's pool of huge pages has a handful of sizes.
const MOST_PAGE_SIZES: usize = 16;

/// What the lines of a meminfo file say; kilobytes are bytes already.
#[derive(Debug, Default, PartialEq, Eq)]
struct MemInfo {
    total: Option<u64>,
    free: Option<u64>,
    reclaimable: Option<u64>,
    huge_total: Option<u64>,
    huge_free: Option<u64>,
    huge_size: Option<u64>,
}

fn memory_of_node(tree: &Tree, node: &Directory<'_>) -> Known<Memory> {
    let info = match node.with_bytes("meminfo", parse_meminfo) {
        Ok(info) => info,
        Err(reason) => return unknown_memory(tree, &node.below("meminfo"), reason),
    };
    let listed = listed_pools(node.directory("hugepages").ok());
    let pools = listed.unwrap_or_else(|| {
        let of_machine = tree.with_bytes("proc/meminfo", parse_meminfo).ok();
        let pool = info.pool(of_machine.and_then(|it| it.huge_size));
        if let Some(pool) = &pool {
            let kilobytes = pool.page_bytes >> 10;
            let usual = format!("hugepages/hugepages-{kilobytes}kB/nr_hugepages");
            node.read_instead(&usual, "meminfo");
        }
        pool.into_iter().collect()
    });
    known_memory(tree, &node.below("meminfo"), info, pools)
}

/// All memory of a machine without nodes.
fn memory_of_machine(tree: &Tree) -> Known<Memory> {
    let info = match tree.with_bytes("proc/meminfo", parse_meminfo) {
        Ok(info) => info,
        Err(error) => return unknown_memory(tree, "proc/meminfo", error.reason),
    };
    let listed = listed_pools(tree.directory("sys/kernel/mm/hugepages").ok());
    let pools = listed.unwrap_or_else(|| info.pool(info.huge_size).into_iter().collect());
    known_memory(tree, "proc/meminfo", info, pools)
}

/// Notes when the nodes together hold much more or less than `/proc/meminfo` says: memory that was plugged in at run time
/// is not counted in a node's own file by some kernels.
pub(super) fn compare_memory(tree: &Tree, nodes: &[Node]) {
    let online = nodes.iter().filter(|node| node.online);
    let of_nodes: Option<u64> = online.map(Node::total_bytes).sum();
    let info = tree.with_bytes("proc/meminfo", parse_meminfo).ok();
    let whole = info.and_then(|info| info.total);
    let Some((of_nodes, whole)) = of_nodes.zip(whole).filter(|_| !nodes.is_empty()) else {
        return;
    };
    if of_nodes.abs_diff(whole) <= whole / 10 {
        return;
    }
    tree.note("proc/meminfo", format!(
            "says {} MiB of memory in all, the nodes' own files {} MiB; the nodes' files were taken",
            whole >> 20,
            of_nodes >> 20
        ));
}

fn unknown_memory(tree: &Tree, path: &str, reason: Reason) -> Known<Memory> {
    let unreadable = tree.unreadable(path, reason);
    let because = unreadable.to_string();
    tree.unless_absent(unreadable);
    Known::no(because)
}

fn known_memory(
    tree: &Tree,
    path: &str,
    info: MemInfo,
    huge_pages: Vec<HugePages>,
) -> Known<Memory> {
    let Some(total_bytes) = info.total else {
        tree.note(path, "has no line MemTotal in kilobytes");
        return Known::no(format!("{} has no line MemTotal", tree.display(path)));
    };
    let free_bytes = info.free.filter(|&free| free <= total_bytes);
    if free_bytes != info.free {
        let message = "more memory is free than there is; the free memory is not believed";
        tree.note(path, message);
    }
    Known::Yes(Memory {
        total_bytes,
        free_bytes,
        reclaimable_bytes: info.reclaimable.filter(|&bytes| bytes <= total_bytes),
        huge_pages,
    })
}

impl MemInfo {
    /// The pool of the default size, which is the only one of kernels before 2.6.31.
    fn pool(&self, page_bytes: Option<u64>) -> Option<HugePages> {
        Some(HugePages {
            page_bytes: page_bytes?,
            total: self.huge_total?,
            free: self.huge_free,
        })
    }
}

/// The pools in a directory of huge pages, where there are any.
fn listed_pools(directory: Option<Directory<'_>>) -> Option<Vec<HugePages>> {
    let listed = directory.map(|directory| pools(&directory));
    listed.filter(|listed| !listed.is_empty())
}

/// File pages on the kernel's lists, which tmpfs is not on, and reclaimable slab.
fn reclaimable(content: &[u8]) -> Option<u64> {
    let bytes = |name| meminfo::bytes(content, name);
    let files = bytes("Active(file)")?.checked_add(bytes("Inactive(file)")?)?;
    files.checked_add(bytes("SReclaimable").unwrap_or(0))
}

fn parse_meminfo(content: &[u8]) -> MemInfo {
    let bytes = |name| meminfo::bytes(content, name);
    MemInfo {
        total: bytes("MemTotal"),
        free: bytes("MemFree"),
        reclaimable: reclaimable(content),
        huge_total: meminfo::count(content, "HugePages_Total"),
        huge_free: meminfo::count(content, "HugePages_Free"),
        huge_size: bytes("Hugepagesize"),
    }
}

/// The pools in a directory of `hugepages-2048kB/` and the like.
fn pools(directory: &Directory<'_>) -> Vec<HugePages> {
    let names = directory.names_noted();
    let pool = |name: &String| {
        let kilobytes = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let kilobytes = value::natural(kilobytes.as_bytes()).ok()?;
        let page_bytes = kilobytes.checked_mul(1024)?;
        let number = |what| directory.noted(&format!("{name}/{what}"), value::natural);
        // Surplus pages are in nr_hugepages already.
        Some(HugePages {
            page_bytes,
            total: number("nr_hugepages")?,
            free: number("free_hugepages"),
        })
    };
    let pools = names.iter().filter_map(pool);
    let mut pools: Vec<_> = pools.take(MOST_PAGE_SIZES).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// Levels of memory-side cache; the HMAT has three bits for them.
const MOST_LEVELS: u32 = 7;
/// Tiers that are looked at; the kernel's run from 0 to a few hundred, most of them unused.
const MOST_TIERS: usize = 1024;

/// A node's figures by access class.
pub(super) fn access(node: &Directory<'_>) -> Vec<Access> {
    let of_class = |class| access_class(node, class);
    (0..=1).filter_map(of_class).collect()
}

fn access_class(node: &Directory<'_>, class: u32) -> Option<Access> {
    let directory = node.directory(&format!("access{class}/initiators")).ok()?;
    let names = directory.names_noted();
    let initiators = names.iter().filter_map(|name| number(name, "node"));
    let figure = |name| directory.noted(name, value::natural);
    let access = Access {
        class,
        initiators: initiators.map(NodeId).collect(),
        read_latency_ns: figure("read_latency"),
        write_latency_ns: figure("write_latency"),
        read_bandwidth_mib_per_s: figure("read_bandwidth"),
        write_bandwidth_mib_per_s: figure("write_bandwidth"),
    };
    let figures = [
        access.read_latency_ns,
        access.write_latency_ns,
        access.read_bandwidth_mib_per_s,
        access.write_bandwidth_mib_per_s,
    ];
    // A node that only initiates has the directory too, with nothing in it.
    (!access.initiators.is_empty() || figures.iter().any(Option::is_some)).then_some(access)
}

/// A node's memory-side caches, nearest to the memory first.
pub(super) fn memory_side_caches(node: &Directory<'_>) -> Vec<MemorySideCache> {
    let Ok(directory) = node.directory("memory_side_cache") else {
        return Vec::new();
    };
    let cache = |level: u32| {
        let number = |name: &str| directory.noted(&format!("index{level}/{name}"), value::natural);
        Some(MemorySideCache {
            level,
            size_bytes: number("size")?,
            line_bytes: number("line_size"),
            indexing: number("indexing").and_then(|indexing| u32::try_from(indexing).ok()),
        })
    };
    (1..=MOST_LEVELS).filter_map(cache).collect()
}

/// The kernel's tier of each node.
fn tiers(tree: &Tree) -> BTreeMap<NodeId, u32> {
    let mut tiers = BTreeMap::new();
    let Ok(directory) = tree.directory("sys/devices/virtual/memory_tiering") else {
        return tiers;
    };
    let names = directory.names().unwrap_or_default();
    for name in names.iter().take(MOST_TIERS) {
        if let Some(tier) = number(name, "memory_tier")
            && let Some(nodes) = directory.noted(&format!("{name}/nodelist"), value::list)
        {
            tiers.extend(nodes.iter().map(|node: NodeId| (node, tier)));
        }
    }
    tiers
}

pub(super) fn distances(tree: &Tree, nodes: &Nodes) -> Known<Distances> {
    let directory = match tree.directory(DIRECTORY) {
        Ok(directory) => directory,
        Err(error) => return Known::no(error.to_string()),
    };
    let all = nodes.online.union(&nodes.listed);
    let mut table = Distances::empty(DistanceOrigin::Kernel, all.iter());
    let mut found = false;
    for node in nodes.listed.iter() {
        let name = format!("node{node}/distance");
        let Some(row) = directory.noted(&name, row) else {
            continue;
        };
        let mut columns = [&nodes.online, &nodes.listed].into_iter();
        let Some(columns) = columns.find(|set| set.len() == row.len()) else {
            let message = format!(
                "has {} distances for {} online nodes; left out",
                row.len(),
                nodes.online.len()
            );
            directory.note(&name, message);
            continue;
        };
        found = true;
        for (to, distance) in columns.iter().zip(row) {
            table.set(node, to, Some(distance));
        }
    }
    match found {
        true => Known::Yes(table),
        false => Known::no(format!("no row in {}", directory.display("nodeN/distance"))),
    }
}

fn row(bytes: &[u8]) -> Result<Vec<Distance>, ValueError> {
    let words = value::text(bytes)?.split_ascii_whitespace();
    let distance = |word: &str| value::natural32(word.as_bytes()).map(Distance);
    words.map(distance).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_numbers_and_nothing_else() {
        assert_eq!(
            row(b"10 20 255\n"),
            Ok(vec![Distance(10), Distance(20), Distance(255)])
        );
        assert_eq!(row(b""), Ok(vec![]));
        for text in ["10 x", "-10", "10 4294967296", "10,20"] {
            assert!(row(text.as_bytes()).is_err(), "{text}");
        }
    }
}
