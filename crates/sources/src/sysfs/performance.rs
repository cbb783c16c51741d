//! What the firmware promises of a node's memory (ACPI HMAT, CXL CDAT), as Documentation/admin-guide/mm/numaperf.rst in
//! the kernel describes it, and the tiers the kernel makes of it.
//!
//! ```text
//! nodeN/access0/initiators/{read,write}_{latency,bandwidth}, nodeM -> ../../../nodeM
//! nodeN/memory_side_cache/index1/{size,line_size,indexing}
//! /sys/devices/virtual/memory_tiering/memory_tierT/nodelist
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{Access, MemorySideCache, NodeId, NodeSet};

use super::cpus;
use super::notes::{Notes, read_noted};
use crate::tree::{Directory, Tree};
use crate::value;

/// Levels of memory-side cache; the HMAT has three bits for them.
const MOST_LEVELS: u32 = 7;
/// Tiers that are looked at; the kernel's run from 0 to a few hundred, most of them unused.
const MOST_TIERS: usize = 1024;

/// A node's figures by access class.
pub(super) fn access(node: &Directory<'_>, notes: &Notes) -> Vec<Access> {
    (0..=1)
        .filter_map(|class| access_class(node, class, notes))
        .collect()
}

fn access_class(node: &Directory<'_>, class: u32, notes: &Notes) -> Option<Access> {
    let directory = node.directory(&format!("access{class}/initiators")).ok()?;
    let names = directory.names().unwrap_or_else(|error| {
        notes.unless_absent(error);
        Vec::new()
    });
    let initiators: NodeSet = names
        .iter()
        .filter_map(|name| cpus::number(name, "node"))
        .map(NodeId)
        .collect();
    let figure = |name| read_noted(&directory, name, notes, value::natural);
    let access = Access {
        class,
        initiators,
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
pub(super) fn memory_side_caches(node: &Directory<'_>, notes: &Notes) -> Vec<MemorySideCache> {
    let Ok(directory) = node.directory("memory_side_cache") else {
        return Vec::new();
    };
    let cache = |level: u32| {
        let number = |name: &str| {
            read_noted(
                &directory,
                &format!("index{level}/{name}"),
                notes,
                value::natural,
            )
        };
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
pub(super) fn tiers(tree: &Tree, notes: &Notes) -> BTreeMap<NodeId, u32> {
    let mut tiers = BTreeMap::new();
    let Ok(directory) = tree.directory("sys/devices/virtual/memory_tiering") else {
        return tiers;
    };
    for name in directory
        .names()
        .unwrap_or_default()
        .iter()
        .take(MOST_TIERS)
    {
        let Some(tier) = cpus::number(name, "memory_tier") else {
            continue;
        };
        let nodes = read_noted(
            &directory,
            &format!("{name}/nodelist"),
            notes,
            value::list::<NodeId>,
        );
        for node in nodes
            .iter()
            .flat_map(|nodes| nodes.iter().collect::<Vec<_>>())
        {
            tiers.insert(node, tier);
        }
    }
    tiers
}
