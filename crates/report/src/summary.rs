//! The machine in a line: what is counted once and said on every page.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Cache, CacheKind, Cpu, CpuId, Machine, Node, NodeId};

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
        let pairs: BTreeSet<(CpuId, Option<i64>)> = machine
            .cpus
            .iter()
            .filter_map(|cpu| Some((cpu.package_leader?, cpu.package)))
            .collect();
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
            Some(leaders) => leaders
                .binary_search(&cpu.package_leader?)
                .ok()
                .map(|place| place as i64),
            None => cpu.package.filter(|&number| number >= 0),
        };
        let cpus = node.known_cpus().iter().filter_map(|cpu| machine.cpu(cpu));
        let numbers: BTreeSet<i64> = cpus.filter_map(number).collect();
        numbers
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
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
    let line = |((level, kind, size, cpus, nodes), number): (
        (u32, _, Option<u64>, usize, usize),
        usize,
    )| {
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
        (
            format!("L{level}{suffix}"),
            format!("{size} x {number}, {shared}"),
        )
    };
    kinds.into_iter().map(line).collect()
}
