//! Puts what the readers found together into the CPUs and caches of a machine.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, Cpu, CpuId, CpuSet, Known, Node, NodeId};

use super::caches;
use super::cpuinfo::{CpuInfo, Place};
use super::cpus::Cpus;
use super::nodes;
use super::notes::Notes;
use super::topology::{Group, Package};
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
        place_by_cpuinfo(&mut cpus, cpuinfo);
    }
    assign_nodes(tree, &mut cpus, nodes, notes);
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

/// Kernels before 2.6.16 have no `topology` directories, but `/proc/cpuinfo` has packages and cores.
fn place_by_cpuinfo(cpus: &mut [Cpu], cpuinfo: &CpuInfo<'_>) {
    let mut packages: BTreeMap<i64, CpuId> = BTreeMap::new();
    let mut cores: BTreeMap<(i64, i64), CpuId> = BTreeMap::new();
    for cpu in cpus.iter_mut().filter(|cpu| cpu.is_online()) {
        let Place { package, core } = cpuinfo.place(cpu.id);
        (cpu.package, cpu.kernel_core_id) = (package, core);
        cpu.package_leader = package.map(|package| *packages.entry(package).or_insert(cpu.id));
        cpu.core = package
            .zip(core)
            .map(|place| *cores.entry(place).or_insert(cpu.id));
    }
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
