//! The machine in a line: what is counted once and said on every page; nodes that are alike.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Cache, CacheKind, Cpu, CpuId, CpuSet, Machine, Node, NodeId, NodeSet};

use crate::amount::{bytes, count, moment, or};

/// Counts over a machine.
pub(crate) struct Summary {
    /// `None` where the source has no nodes.
    pub(crate) nodes_online: Option<usize>,
    /// `None` where the source has no CPUs, or the state of none.
    pub(crate) cpus_online: Option<usize>,
    pub(crate) cpus_offline: usize,
    /// `None` where the source does not say which CPUs share a core.
    pub(crate) cores: Option<usize>,
    /// Threads of the core that has most.
    pub(crate) threads: Option<usize>,
    pub(crate) packages: Option<usize>,
    /// `256 GiB`, `at least 64 GiB` where the size of a node is unknown; `None` where that of each is.
    pub(crate) memory: Option<String>,
}

impl Summary {
    pub(crate) fn of(machine: &Machine) -> Self {
        let online = || machine.cpus.iter().filter(|cpu| cpu.is_online());
        let mut cores: BTreeMap<CpuId, usize> = BTreeMap::new();
        for core in online().filter_map(|cpu| cpu.core) {
            *cores.entry(core).or_default() += 1;
        }
        // The first CPU tells packages apart where the kernel's number is the same everywhere.
        let package = |cpu: &Cpu| match (cpu.package_leader, cpu.package) {
            (Some(leader), _) => Some((Some(leader), 0)),
            (None, number) => number
                .filter(|&number| number >= 0)
                .map(|number| (None, number)),
        };
        let packages: BTreeSet<(Option<CpuId>, i64)> = online().filter_map(package).collect();
        let sizes = || machine.online_nodes().map(Node::total_bytes);
        let total = sizes().flatten().reduce(u64::saturating_add).map(bytes);
        let memory = total.map(|total| match sizes().all(|size| size.is_some()) {
            true => total,
            false => format!("at least {total}"),
        });
        Self {
            nodes_online: (!machine.nodes.is_empty()).then(|| machine.online_nodes().count()),
            cpus_online: Some(machine.cpu_states.online.len()).filter(|&cpus| cpus > 0),
            cpus_offline: machine.cpus.iter().filter(|cpu| cpu.is_offline()).count(),
            cores: (!cores.is_empty()).then_some(cores.len()),
            threads: cores.values().copied().max(),
            packages: (!packages.is_empty()).then_some(packages.len()),
            memory,
        }
    }

    /// `4 nodes, 2 packages, 96 CPUs on 48 cores, 250 GiB of memory`.
    pub(crate) fn line(&self) -> String {
        let nodes = self.nodes_online.map(|nodes| count(nodes, "node"));
        let mut parts = vec![or(nodes, "nodes unknown")];
        parts.extend(self.packages.map(|packages| count(packages, "package")));
        parts.push(match (self.cores, self.threads) {
            (Some(cores), Some(threads)) if threads > 1 => {
                format!("{} on {}", self.cpus(), count(cores, "core"))
            }
            _ => self.cpus(),
        });
        let memory = self.memory.as_ref();
        parts.extend(memory.map(|size| format!("{size} of memory")));
        parts.join(", ")
    }

    /// `96 CPUs`, with the offline ones.
    pub(crate) fn cpus(&self) -> String {
        let online = or(
            self.cpus_online.map(|cpus| count(cpus, "CPU")),
            "CPUs unknown",
        );
        match self.cpus_offline {
            0 => online,
            offline => format!("{online} ({offline} more offline)"),
        }
    }
}

/// What the machine is called: host, or product, or where its description comes from.
pub(crate) fn name(machine: &Machine) -> String {
    let origin = &machine.origin;
    let name = origin.host.as_ref().or(origin.product.get());
    name.unwrap_or(&origin.place).clone()
}

/// Where the description comes from and what system it is, in parts to be joined.
pub(crate) fn circumstances(machine: &Machine) -> Vec<String> {
    let origin = &machine.origin;
    let mut parts = Vec::new();
    let product = origin.product.get().filter(|_| origin.host.is_some());
    parts.extend(product.cloned());
    parts.extend(origin.kernel.get().map(|kernel| format!("Linux {kernel}")));
    parts.extend(origin.architecture.get().cloned());
    parts.push(match origin.kind {
        nearfar_machine::SourceKind::Live => origin.kind.to_string(),
        kind => format!("{kind} {}", origin.place),
    });
    parts.extend(origin.overlays.iter().cloned());
    parts.extend(origin.taken_at_s.map(moment));
    parts
}

/// How packages are named.
pub(crate) struct Packages {
    /// First CPUs, ascending, where the kernel's numbers are of no use.
    leaders: Option<Vec<CpuId>>,
}

impl Packages {
    pub(crate) fn of(machine: &Machine) -> Self {
        let pairs = machine.cpus.iter();
        let pairs = pairs.filter_map(|cpu| Some((cpu.package_leader?, cpu.package)));
        let pairs: BTreeSet<(CpuId, Option<i64>)> = pairs.collect();
        let numbers: BTreeSet<Option<i64>> = pairs.iter().map(|&(_, number)| number).collect();
        let leaders: BTreeSet<CpuId> = pairs.iter().map(|&(leader, _)| leader).collect();
        let useless = numbers.len() < leaders.len()
            || numbers.iter().any(|number| number.is_none_or(|it| it < 0));
        Self {
            leaders: (useless && !leaders.is_empty()).then(|| leaders.into_iter().collect()),
        }
    }

    /// The packages (sockets) that a node's CPUs are in, as the kernel numbers them, `0` or `0,1`; where its numbers do not
    /// tell them apart, counted by their first CPU. Empty where the source does not tell.
    pub(crate) fn on(&self, machine: &Machine, node: &Node) -> String {
        let number = |cpu: &Cpu| match &self.leaders {
            Some(leaders) => {
                let place = leaders.binary_search(&cpu.package_leader?);
                place.ok().map(|place| place as i64)
            }
            None => cpu.package.filter(|&number| number >= 0),
        };
        let cpus = node.known_cpus().iter().filter_map(|cpu| machine.cpu(cpu));
        let numbers: BTreeSet<i64> = cpus.filter_map(number).collect();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        numbers.join(",")
    }
}

/// How many nodes a cache serves; 1 where none of its CPUs is on a node. Fake nodes count as the real one they are of.
pub(crate) fn nodes_behind(machine: &Machine, cache: &Cache) -> usize {
    let nodes = cache.cpus.iter().filter_map(|cpu| machine.node_of(cpu));
    nodes.collect::<BTreeSet<NodeId>>().len().max(1)
}

/// One line a level: `L3 unified  32 MiB x 4, each for 12 CPUs`.
pub(crate) fn caches(machine: &Machine) -> Vec<(String, String)> {
    let mut kinds: BTreeMap<(u32, CacheKind, Option<u64>, usize, usize), usize> = BTreeMap::new();
    for cache in &machine.caches {
        let (size, nodes) = (
            cache.size_bytes.get().copied(),
            nodes_behind(machine, cache),
        );
        let kind = (cache.level, cache.kind, size, cache.cpus.len(), nodes);
        *kinds.entry(kind).or_default() += 1;
    }
    let mut lines = Vec::new();
    for ((level, kind, size, cpus, nodes), number) in kinds {
        let suffix = match kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        let size = or(size.map(bytes), "unknown size");
        let shared = match (cpus, nodes) {
            (1, _) => "one per CPU".to_owned(),
            (_, 1) => format!("one for {cpus} CPUs"),
            _ => format!("one for {cpus} CPUs on {nodes} nodes"),
        };
        let text = format!("{size} x {number}, {shared}");
        lines.push((format!("L{level}{suffix}"), text));
    }
    lines
}

/// What nodes have in common.
#[derive(PartialEq)]
pub(crate) struct Kind {
    pub(crate) online: bool,
    /// How many; unknown where the source has no list of them.
    pub(crate) cpus: Option<usize>,
    pub(crate) memory: String,
}

/// Nodes by kind, in the order in which kinds first appear. Where `each`, every node is a kind of its own, with the exact
/// size of its memory.
pub(crate) fn kinds<'a>(nodes: impl Iterator<Item = &'a Node>, each: bool) -> Vec<(Kind, NodeSet)> {
    let mut kinds: Vec<(Kind, NodeSet)> = Vec::new();
    for node in nodes {
        let kind = Kind {
            online: node.online,
            cpus: node.cpus.get().map(CpuSet::len),
            memory: memory(node, each),
        };
        match kinds.iter_mut().find(|(other, _)| !each && *other == kind) {
            Some((_, ids)) => {
                ids.insert(node.id);
            }
            None => kinds.push((kind, NodeSet::single(node.id))),
        }
    }
    kinds
}

/// The size of a node's memory; rounded to an eighth of its power of two for kinds, because no two nodes have quite
/// the same.
fn memory(node: &Node, exactly: bool) -> String {
    match node.total_bytes() {
        None => "?".to_owned(),
        Some(0) => "none".to_owned(),
        Some(size) if exactly => bytes(size),
        Some(size) => {
            let step = (1u64 << size.ilog2()) / 8;
            let rounded = size.saturating_add(step / 2) / step.max(1) * step.max(1);
            format!("about {}", bytes(rounded))
        }
    }
}
