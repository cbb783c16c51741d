//! Puts what the readers found together into the CPUs and caches of a machine.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, Cpu, CpuId, CpuSet, Known, Node, NodeId};

use super::caches;
use super::cpuinfo::{self, CpuInfo, Place};
use super::cpus::Cpus;
use super::nodes;
use super::notes::Notes;
use super::topology::{self, Group, Package};
use crate::tree::Tree;

/// The CPUs with the node, core, cluster, die and package of each.
pub(super) fn cpus(
    tree: &Tree,
    found: &Cpus,
    nodes: &[Node],
    packages: &[Package],
    cpuinfo: &CpuInfo<'_>,
    notes: &Notes,
) -> Vec<Cpu> {
    let in_nodes = nodes
        .iter()
        .fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
    let all = found.present.union(&found.online).union(&in_nodes);
    let mut cpus: Vec<Cpu> = all.iter().map(|cpu| Cpu::new(cpu, None)).collect();
    for cpu in &mut cpus {
        cpu.online = match found.unknown.contains(cpu.id) {
            true => Known::no("no file says whether it is online"),
            false => Known::Yes(found.online.contains(cpu.id)),
        };
    }
    for package in packages {
        place(&mut cpus, package);
    }
    if packages
        .iter()
        .all(|package| package.leader.is_none() && package.cores.is_empty())
    {
        let by_ids = topology::ids(tree, &found.online, notes);
        let place = |cpu| match by_ids.is_empty() {
            true => cpuinfo.place(cpu),
            false => by_ids.get(&cpu).copied().unwrap_or_default(),
        };
        place_by_ids(&mut cpus, place);
    }
    if !tree.is_live() {
        compare_with_cpuinfo(tree, &cpus, cpuinfo, notes);
    }
    assign_nodes(tree, &mut cpus, nodes, notes);
    divided_cores(tree, &cpus, notes);
    cpus
}

/// All caches, once each.
pub(super) fn caches(
    tree: &Tree,
    online: &CpuSet,
    packages: Vec<Package>,
    cpuinfo: &CpuInfo<'_>,
) -> Vec<Cache> {
    let mut cores = Vec::new();
    let mut found = Vec::new();
    for package in packages {
        found.extend(package.caches);
        cores.extend(package.cores);
    }
    if found.is_empty() {
        found = caches::elsewhere(tree, cpuinfo, online, &cores);
    }
    caches::merge(found)
}

fn place(cpus: &mut [Cpu], package: &Package) {
    each(cpus, &package.cpus, |cpu| {
        (cpu.package, cpu.package_leader) = (package.id, package.leader)
    });
    let leaders = |cpus: &mut [Cpu], groups: &[Group], set: fn(&mut Cpu, CpuId)| {
        for group in groups {
            if let Some(leader) = group.cpus.first() {
                each(cpus, &group.cpus, |cpu| set(cpu, leader));
            }
        }
    };
    leaders(cpus, &package.cores, |cpu, leader| cpu.core = Some(leader));
    leaders(cpus, &package.clusters, |cpu, leader| {
        cpu.cluster = Some(leader)
    });
    leaders(cpus, &package.dies, |cpu, leader| cpu.die = Some(leader));
    for core in &package.cores {
        each(cpus, &core.cpus, |cpu| cpu.kernel_core_id = core.id);
    }
    for book in &package.books {
        each(cpus, &book.cpus, |cpu| cpu.book = book.id);
    }
    for drawer in &package.drawers {
        each(cpus, &drawer.cpus, |cpu| cpu.drawer = drawer.id);
    }
    for &(id, capacity) in &package.capacities {
        each(cpus, &CpuSet::single(id), |cpu| {
            cpu.capacity = Some(capacity)
        });
    }
}

fn each(cpus: &mut [Cpu], set: &CpuSet, mut change: impl FnMut(&mut Cpu)) {
    for id in set.iter() {
        if let Ok(index) = cpus.binary_search_by_key(&id, |cpu| cpu.id) {
            change(&mut cpus[index]);
        }
    }
}

/// Where lists of siblings are missing, numbers of packages and cores tell them: of the `topology` directories, or on
/// kernels before 2.6.16, which have none, of `/proc/cpuinfo`.
fn place_by_ids(cpus: &mut [Cpu], place: impl Fn(CpuId) -> Place) {
    let mut packages: BTreeMap<i64, CpuId> = BTreeMap::new();
    let mut cores: BTreeMap<(i64, Option<i64>, i64), CpuId> = BTreeMap::new();
    for cpu in cpus.iter_mut().filter(|cpu| cpu.is_online()) {
        let Place { package, die, core } = place(cpu.id);
        (cpu.package, cpu.kernel_core_id) = (package, core);
        // -1 is a firmware that does not say (ARM, virtual machines).
        let known = |id: Option<i64>| id.filter(|&id| id >= 0);
        cpu.package_leader =
            known(package).map(|package| *packages.entry(package).or_insert(cpu.id));
        cpu.core = known(package)
            .zip(known(core))
            .map(|(package, core)| *cores.entry((package, die, core)).or_insert(cpu.id));
    }
}

/// The kernel fills both from the same numbers, so a tree in which they differ is no record of one kernel.
fn compare_with_cpuinfo(tree: &Tree, cpus: &[Cpu], cpuinfo: &CpuInfo<'_>, notes: &Notes) {
    let differs = |cpu: &&Cpu| {
        let theirs = cpuinfo.place(cpu.id);
        let differ = |ours: Option<i64>, theirs: Option<i64>| {
            ours.zip(theirs)
                .is_some_and(|(ours, theirs)| ours != theirs)
        };
        differ(cpu.package, theirs.package) || differ(cpu.kernel_core_id, theirs.core)
    };
    let different: CpuSet = cpus.iter().filter(differs).map(|cpu| cpu.id).collect();
    let Some(first) = cpus.iter().find(|cpu| differs(cpu)) else {
        return;
    };
    let number = |id: Option<i64>| id.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let theirs = cpuinfo.place(first.id);
    notes.note(
        tree.display(cpuinfo::PATH),
        format!(
            "has CPU {} in package {}, core {}, but its topology directory says package {}, core {} (so do {} more); \
             taken from there",
            first.id,
            number(theirs.package),
            number(theirs.core),
            number(first.package),
            number(first.kernel_core_id),
            different.len() - 1
        ),
    );
}

/// A core's threads share its caches, so they are as near to one memory: what has them on two nodes is wrong of one.
fn divided_cores(tree: &Tree, cpus: &[Cpu], notes: &Notes) {
    let mut cores: BTreeMap<CpuId, BTreeMap<NodeId, CpuId>> = BTreeMap::new();
    for cpu in cpus {
        if let Some((core, node)) = cpu.core.zip(cpu.node) {
            cores.entry(core).or_default().entry(node).or_insert(cpu.id);
        }
    }
    let mut divided = cores.values().filter(|nodes| nodes.len() > 1);
    let Some(first) = divided.next() else { return };
    let on: Vec<String> = first
        .iter()
        .map(|(node, cpu)| format!("CPU {cpu} on node {node}"))
        .collect();
    let message = format!(
        "threads of one core are on several nodes: {} (so are those of {} more cores); one of both is wrong",
        on.join(", "),
        divided.count()
    );
    notes.note(tree.display(nodes::DIRECTORY), message);
}

/// A CPU's node is the lowest that lists it. On real machines it is the only one.
fn assign_nodes(tree: &Tree, cpus: &mut [Cpu], nodes: &[Node], notes: &Notes) {
    let mut shared: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for node in nodes {
        each(cpus, node.known_cpus(), |cpu| match cpu.node {
            None => cpu.node = Some(node.id),
            Some(first) => {
                shared.insert(node.id, first);
            }
        });
    }
    for (node, first) in shared {
        let place = tree.display(&format!("{}/node{node}/cpumap", nodes::DIRECTORY));
        let message = format!(
            "names CPUs of node {first}: fake nodes, or faulty firmware; each counts as node {first}'s"
        );
        notes.note(place, message);
    }
}
