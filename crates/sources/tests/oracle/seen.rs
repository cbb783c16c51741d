//! What is compared: the part of a machine that several programs can see.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{CacheKind, CpuSet, Machine};

/// One program's view. `None` and missing entries are not compared.
#[derive(Debug, Default)]
pub struct Seen {
    pub online: Option<CpuSet>,
    /// CPUs of each node; nodes whose CPUs the program does not tell are missing.
    pub nodes: BTreeMap<u32, CpuSet>,
    /// All nodes.
    pub node_numbers: BTreeSet<u32>,
    /// Bytes of each node.
    pub memory: BTreeMap<u32, u64>,
    /// Distances, where the program has a table: (from, to) to distance.
    pub distances: Option<BTreeMap<(u32, u32), u32>>,
    /// CPU sets of cores.
    pub cores: Option<BTreeSet<String>>,
    /// CPU sets of packages.
    pub packages: Option<BTreeSet<String>>,
    /// Level, kind, CPUs, size.
    pub caches: Option<BTreeSet<(u32, CacheKind, String, u64)>>,
}

impl Seen {
    pub fn of_machine(machine: &Machine) -> Self {
        let online = &machine.cpu_states.online;
        let mut seen = Self {
            online: Some(online.clone()),
            ..Self::default()
        };
        for node in machine.online_nodes() {
            seen.node_numbers.insert(node.id.0);
            seen.nodes
                .insert(node.id.0, node.known_cpus().intersection(online));
            seen.memory
                .extend(node.total_bytes().map(|bytes| (node.id.0, bytes)));
        }
        seen.distances = machine.distances.get().map(|table| {
            table
                .entries()
                .filter_map(|(from, to, distance)| Some(((from.0, to.0), distance?.0)))
                .collect()
        });
        let mut cores: BTreeMap<_, CpuSet> = BTreeMap::new();
        let mut packages: BTreeMap<_, CpuSet> = BTreeMap::new();
        for cpu in machine.cpus.iter().filter(|cpu| cpu.is_online()) {
            if let Some(core) = cpu.core {
                cores.entry(core).or_default().insert(cpu.id);
            }
            if let Some(package) = cpu.package_leader {
                packages.entry(package).or_default().insert(cpu.id);
            }
        }
        seen.cores = Some(cores.values().map(ToString::to_string).collect());
        seen.packages = Some(packages.values().map(ToString::to_string).collect());
        seen.caches = Some(
            (machine.caches.iter())
                .map(|cache| {
                    (
                        cache.level,
                        cache.kind,
                        cache.cpus.to_string(),
                        cache.size_bytes.get().copied().unwrap_or(0),
                    )
                })
                .collect(),
        );
        seen
    }

    /// The differences in words: ours first.
    pub fn compare(&self, theirs: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if theirs.online.is_some() && self.online != theirs.online {
            found.push(format!(
                "online CPUs {} / {}",
                show(&self.online),
                show(&theirs.online)
            ));
        }
        if self.node_numbers != theirs.node_numbers {
            found.push(format!(
                "nodes {} / {}",
                list(&self.node_numbers),
                list(&theirs.node_numbers)
            ));
        }
        for (node, cpus) in &theirs.nodes {
            // hwloc gives a node without CPUs those of its nearest neighbour; that is a guess, not a fact.
            if let Some(ours) = self
                .nodes
                .get(node)
                .filter(|ours| *ours != cpus && !ours.is_empty())
            {
                found.push(format!("CPUs of node {node} {ours} / {cpus}"));
            }
        }
        for (node, bytes) in &theirs.memory {
            if let Some(ours) = self.memory.get(node).filter(|ours| *ours != bytes) {
                found.push(format!("memory of node {node} {ours} / {bytes}"));
            }
        }
        if let Some(theirs) = &theirs.distances {
            let ours = self.distances.clone().unwrap_or_default();
            let same = theirs
                .iter()
                .all(|(key, distance)| ours.get(key) == Some(distance));
            if !same || ours.len() != theirs.len() {
                found.push(format!("{} / {} distances", ours.len(), theirs.len()));
            }
        }
        found.extend(sets("cores", self.cores.as_ref(), theirs.cores.as_ref()));
        found.extend(sets(
            "packages",
            self.packages.as_ref(),
            theirs.packages.as_ref(),
        ));
        found.extend(sets("caches", self.caches.as_ref(), theirs.caches.as_ref()));
        found
    }
}

fn show(set: &Option<CpuSet>) -> String {
    set.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn list(numbers: &BTreeSet<u32>) -> String {
    numbers
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// How many there are on each side, and the first that is on one side only.
fn sets<T: Ord + std::fmt::Debug>(
    what: &str,
    ours: Option<&BTreeSet<T>>,
    theirs: Option<&BTreeSet<T>>,
) -> Option<String> {
    let (ours, theirs) = (ours?, theirs?);
    if ours == theirs {
        return None;
    }
    if std::env::var_os("NEARFAR_CORPUS_VERBOSE").is_some() {
        eprintln!(
            "{what} only here: {:?}",
            ours.difference(theirs).take(4).collect::<Vec<_>>()
        );
        eprintln!(
            "{what} only there: {:?}",
            theirs.difference(ours).take(4).collect::<Vec<_>>()
        );
    }
    Some(format!("{} / {} {what}", ours.len(), theirs.len()))
}
