//! From the keys of a description to nodes, CPUs, caches and distances.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    Access, Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, Distance, DistanceOrigin, Distances,
    Known, MAX_NUMBER, Machine, Memory, MemorySideCache, Node, NodeId, NodeSet, Origin, SourceKind,
};
use toml::Spanned;

use super::fault::Faults;
use super::file::{CacheEntry, CpuCount, Description, Each, Entry, NodeEntry, Siblings};
use super::{devices, tasks, timing};
use crate::error::TextError;
use crate::limits::MOST_NODES;
use nearfar_machine::size;

pub(super) const BECAUSE: &str = "the description does not say";

pub(super) fn machine(file: &Description, faults: &Faults<'_>) -> Result<Machine, TextError> {
    let mut machine = Machine::empty(origin(file, faults), BECAUSE);
    let (nodes, packages) = nodes(file, faults)?;
    machine.nodes = nodes;
    machine.cpus = cpus(file, &machine.nodes, &packages, faults)?;
    states(file, &mut machine, faults)?;
    topology(file, &mut machine, faults)?;
    for entry in &file.cache {
        caches(entry, &mut machine, faults)?;
    }
    machine
        .caches
        .sort_by_key(|cache| (cache.level, cache.cpus.first(), cache.kind));
    distances(file, &mut machine, faults)?;
    if let Some(entry) = &file.timing {
        machine.timing = Some(timing::read(entry, &machine, faults)?);
    }
    if let Some(balancing) = file.numa_balancing {
        machine.settings.numa_balancing = Known::Yes(balancing);
    }
    devices::add(file, &mut machine, faults)?;
    tasks::add(file, &mut machine, faults)?;
    match machine.check().into_iter().next() {
        Some(violation) => Err(faults.whole(violation)),
        None => Ok(machine),
    }
}

fn origin(file: &Description, faults: &Faults<'_>) -> Origin {
    let known = |value: &Option<String>| Known::from_option(value.clone(), || BECAUSE);
    let mut origin = Origin::new(SourceKind::Description, faults.place());
    origin.architecture = known(&file.architecture);
    origin.kernel = known(&file.kernel);
    origin.product = known(&file.product);
    origin
}

/// The package that each node is in, where the file says so.
type Packages = BTreeMap<NodeId, i64>;

fn nodes(file: &Description, faults: &Faults<'_>) -> Result<(Vec<Node>, Packages), TextError> {
    if file.node.is_empty() || file.node.len() > MOST_NODES {
        return Err(faults.whole(format!(
            "{} [[node]] entries; 1 to {MOST_NODES} are wanted",
            file.node.len()
        )));
    }
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    let mut packages = Packages::new();
    let (mut next_node, mut next_cpu) = (0, 0);
    for spanned in &file.node {
        let entry = spanned.get_ref();
        let number = entry.id.unwrap_or(next_node);
        if number > MAX_NUMBER {
            return Err(faults.at(spanned, "id", format!("{number} is above {MAX_NUMBER}")));
        }
        let cpus = node_cpus(entry, next_cpu, faults)?;
        let node = node(entry, NodeId(number), cpus, faults)?;
        next_node = number + 1;
        next_cpu = node
            .known_cpus()
            .last()
            .map_or(next_cpu, |last| next_cpu.max(last.0 + 1));
        packages.extend(entry.package.map(|package| (node.id, package)));
        if nodes.insert(node.id, node).is_some() {
            return Err(faults.at(spanned, "node", format!("node {number} is there twice")));
        }
    }
    Ok((nodes.into_values().collect(), packages))
}

fn node_cpus(entry: &NodeEntry, next: u32, faults: &Faults<'_>) -> Result<CpuSet, TextError> {
    let Some(spanned) = &entry.cpus else {
        return Ok(CpuSet::new());
    };
    match spanned.get_ref() {
        CpuCount::Count(0) => Ok(CpuSet::new()),
        CpuCount::Count(count) => match next
            .checked_add(count - 1)
            .filter(|&last| last <= MAX_NUMBER)
        {
            Some(last) => Ok(CpuSet::range(CpuId(next), CpuId(last))),
            None => Err(faults.at(
                spanned,
                "cpus",
                format!("more than {} CPUs", MAX_NUMBER + 1),
            )),
        },
        CpuCount::List(list) => {
            CpuSet::parse_list(list).map_err(|error| faults.at(spanned, "cpus", error))
        }
    }
}

fn node(
    entry: &NodeEntry,
    id: NodeId,
    cpus: CpuSet,
    faults: &Faults<'_>,
) -> Result<Node, TextError> {
    let mut node = Node::new(id, cpus);
    node.online = entry.online.unwrap_or(true);
    node.generic_initiator = entry.generic_initiator;
    node.tier = entry.tier;
    node.memory = match &entry.memory {
        Some(text) => match size::parse(text.get_ref(), 1) {
            Some(bytes) => Known::Yes(Memory {
                free_bytes: free(entry, bytes, faults)?,
                ..Memory::of(bytes)
            }),
            None => {
                return Err(faults.at(text, "memory", "not a size such as \"512M\" or \"16G\""));
            }
        },
        None => Known::no("the description gives this node no `memory`"),
    };
    for access in &entry.access {
        let initiators = NodeSet::parse_list(access.initiators.get_ref());
        node.access.push(Access {
            class: access.class,
            initiators: initiators
                .map_err(|error| faults.at(&access.initiators, "initiators", error))?,
            read_latency_ns: access.read_latency_ns,
            write_latency_ns: access.write_latency_ns,
            read_bandwidth_mib_per_s: access.read_bandwidth_mib_per_s,
            write_bandwidth_mib_per_s: access.write_bandwidth_mib_per_s,
        });
    }
    for (level, spanned) in (1..).zip(&entry.memory_side_cache) {
        let cache = spanned.get_ref();
        let size_bytes =
            size::parse(&cache.size, 1).ok_or_else(|| faults.at(spanned, "size", "not a size"))?;
        let (line_bytes, indexing) = (cache.line, cache.indexing);
        node.memory_side_caches.push(MemorySideCache {
            level,
            size_bytes,
            line_bytes,
            indexing,
        });
    }
    Ok(node)
}

/// How much of a node's memory is free.
fn free(entry: &NodeEntry, total: u64, faults: &Faults<'_>) -> Result<Option<u64>, TextError> {
    let Some(text) = &entry.free else {
        return Ok(None);
    };
    let bytes = size::parse(text.get_ref(), 1).filter(|bytes| *bytes <= total);
    let fault = || faults.at(text, "free", "not a size, or more than its `memory`");
    bytes.map(Some).ok_or_else(fault)
}

/// A list of CPUs, all of which some node has.
pub(super) fn listed(
    spanned: &Spanned<String>,
    key: &str,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<CpuSet, TextError> {
    let set =
        CpuSet::parse_list(spanned.get_ref()).map_err(|error| faults.at(spanned, key, error))?;
    let stray = set.iter().find(|&cpu| machine.cpu(cpu).is_none());
    match stray {
        Some(stray) => Err(faults.at(spanned, key, format!("CPU {stray} is in no node"))),
        None => Ok(set),
    }
}

fn cpus(
    file: &Description,
    nodes: &[Node],
    packages: &Packages,
    faults: &Faults<'_>,
) -> Result<Vec<Cpu>, TextError> {
    let mut cpus: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for node in nodes {
        let shape = Shape::of(file, node, faults)?;
        let order: Vec<CpuId> = node.known_cpus().iter().collect();
        for (at, &id) in order.iter().enumerate() {
            let built = cpus
                .entry(id)
                .or_insert_with(|| Cpu::new(id, Some(node.id)));
            if built.node == Some(node.id) {
                built.core = order.get(shape.core_leader(at)).copied();
                built.cluster = shape
                    .cluster_leader(at)
                    .and_then(|leader| order.get(leader))
                    .copied();
                built.package = packages.get(&node.id).copied();
            }
        }
    }
    Ok(cpus.into_values().collect())
}

/// How the CPUs of one node make cores and clusters, by position in the node.
struct Shape {
    threads: usize,
    /// Cores of the node, where siblings stand apart.
    apart: Option<usize>,
    cores_per_cluster: Option<usize>,
}

impl Shape {
    fn of(file: &Description, node: &Node, faults: &Faults<'_>) -> Result<Self, TextError> {
        let cpu = &file.cpu;
        let count = node.known_cpus().len();
        let threads = cpu
            .threads_per_core
            .as_ref()
            .map_or(1, |threads| *threads.get_ref()) as usize;
        if let Some(spanned) = cpu
            .threads_per_core
            .as_ref()
            .filter(|_| threads == 0 || !count.is_multiple_of(threads))
        {
            let problem = format!(
                "the {count} CPUs of node {} are not a multiple of {threads}",
                node.id
            );
            return Err(faults.at(spanned, "threads_per_core", problem));
        }
        let apart = (cpu.siblings == Siblings::Apart).then_some(count / threads.max(1));
        let clusters = cpu.cores_per_cluster.as_ref();
        if let Some(spanned) = clusters.filter(|cores| *cores.get_ref() == 0) {
            return Err(faults.at(spanned, "cores_per_cluster", "0 cores"));
        }
        Ok(Self {
            threads,
            apart,
            cores_per_cluster: clusters.map(|cores| *cores.get_ref() as usize),
        })
    }

    fn core_leader(&self, at: usize) -> usize {
        match self.apart {
            Some(cores) => at % cores.max(1),
            None => at / self.threads * self.threads,
        }
    }

    fn cluster_leader(&self, at: usize) -> Option<usize> {
        let cores = self.cores_per_cluster?;
        Some(match self.apart {
            Some(all) => at % all.max(1) / cores * cores,
            None => at / (self.threads * cores) * (self.threads * cores),
        })
    }
}

fn states(file: &Description, machine: &mut Machine, faults: &Faults<'_>) -> Result<(), TextError> {
    let set = |spanned: &Option<Spanned<String>>, key| match spanned {
        Some(spanned) => listed(spanned, key, machine, faults).map(Some),
        None => Ok(None),
    };
    let offline = set(&file.cpu.offline, "offline")?.unwrap_or_default();
    let isolated = set(&file.cpu.isolated, "isolated")?;
    let nohz_full = set(&file.cpu.nohz_full, "nohz_full")?;
    let possible = match &file.cpu.possible {
        Some(list) => Some(
            CpuSet::parse_list(list.get_ref())
                .map_err(|error| faults.at(list, "possible", error))?,
        ),
        None => None,
    };
    let down: NodeSet = machine
        .nodes
        .iter()
        .filter(|node| !node.online)
        .map(|node| node.id)
        .collect();
    for cpu in &mut machine.cpus {
        let is_down = cpu.node.is_some_and(|node| down.contains(node));
        cpu.online = (!offline.contains(cpu.id) && !is_down).into();
    }
    let online = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.is_online())
        .map(|cpu| cpu.id)
        .collect();
    let known = |set: Option<CpuSet>| Known::from_option(set, || BECAUSE);
    machine.cpu_states = CpuStates {
        possible: known(possible),
        isolated: known(isolated),
        nohz_full: known(nohz_full),
        ..CpuStates::online_only(online, BECAUSE)
    };
    Ok(())
}

/// Cores, clusters, dies and packages that are listed CPU by CPU.
fn topology(
    file: &Description,
    machine: &mut Machine,
    faults: &Faults<'_>,
) -> Result<(), TextError> {
    type Lists = Option<Vec<Spanned<String>>>;
    type Assign = fn(&mut Cpu, CpuId);
    let groups: [(&str, &Lists, Assign); 3] = [
        ("cores", &file.cpu.cores, |cpu, leader| {
            cpu.core = Some(leader)
        }),
        ("clusters", &file.cpu.clusters, |cpu, leader| {
            cpu.cluster = Some(leader)
        }),
        ("dies", &file.cpu.dies, |cpu, leader| cpu.die = Some(leader)),
    ];
    if file.cpu.cores.is_some() {
        machine.cpus.iter_mut().for_each(|cpu| cpu.core = None);
    }
    for (key, lists, assign) in groups {
        for spanned in lists.iter().flatten() {
            let set = listed(spanned, key, machine, faults)?;
            let Some(leader) = set.first() else { continue };
            machine
                .cpus
                .iter_mut()
                .filter(|cpu| set.contains(cpu.id))
                .for_each(|cpu| assign(cpu, leader));
        }
    }
    for (number, spanned) in file.cpu.packages.iter().flatten() {
        let set = listed(spanned, "packages", machine, faults)?;
        let number = number
            .parse()
            .map_err(|_| faults.at(spanned, "packages", "a key that is not a number"))?;
        machine
            .cpus
            .iter_mut()
            .filter(|cpu| set.contains(cpu.id))
            .for_each(|cpu| cpu.package = Some(number));
    }
    Ok(())
}

fn caches(
    spanned: &Spanned<CacheEntry>,
    machine: &mut Machine,
    faults: &Faults<'_>,
) -> Result<(), TextError> {
    let entry = spanned.get_ref();
    let sets: Vec<CpuSet> = match (&entry.cpus, entry.each) {
        (Some(lists), None) => lists
            .iter()
            .map(|list| listed(list, "cpus", machine, faults))
            .collect::<Result<_, _>>()?,
        (None, Some(each)) => one_each(each, machine),
        _ => return Err(faults.at(spanned, "cache", "either `each` or `cpus` is wanted")),
    };
    let size_bytes = match &entry.size {
        Some(text) => Known::Yes(
            size::parse(text, 1).ok_or_else(|| faults.at(spanned, "size", "not a size"))?,
        ),
        None => Known::no("the description gives this cache no `size`"),
    };
    let kind = entry.kind.unwrap_or(CacheKind::Unified);
    let (level, line_bytes, ways) = (entry.level, entry.line, entry.ways);
    let cache = |cpus| Cache {
        level,
        kind,
        cpus,
        size_bytes: size_bytes.clone(),
        line_bytes,
        ways,
    };
    machine
        .caches
        .extend(sets.into_iter().filter(|set| !set.is_empty()).map(cache));
    Ok(())
}

/// The online CPUs of each core, node and so on.
fn one_each(each: Each, machine: &Machine) -> Vec<CpuSet> {
    let mut sets: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in machine.cpus.iter().filter(|cpu| cpu.is_online()) {
        let key = match each {
            Each::Cpu => Some(cpu.id.0.into()),
            Each::Core => cpu.core.map(|leader| leader.0.into()),
            Each::Cluster => cpu.cluster.map(|leader| leader.0.into()),
            Each::Die => cpu.die.map(|leader| leader.0.into()),
            Each::Node => cpu.node.map(|node| node.0.into()),
            Each::Package => cpu.package,
        };
        if let Some(key) = key {
            sets.entry(key).or_default().insert(cpu.id);
        }
    }
    sets.into_values().collect()
}

fn distances(
    file: &Description,
    machine: &mut Machine,
    faults: &Faults<'_>,
) -> Result<(), TextError> {
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let all = table(&file.distances, "distances", &nodes, faults)?;
    let firmware = table(
        &file.firmware_distances,
        "firmware_distances",
        &nodes,
        faults,
    )?;
    let online: BTreeSet<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    if let Some(all) = &all {
        let mut kernels = Distances::empty(DistanceOrigin::Described, online.iter().copied());
        for (from, to, distance) in all.entries() {
            kernels.set(from, to, distance);
        }
        machine.distances = Known::Yes(kernels);
    }
    machine.firmware_distances = match firmware.or(all.filter(|_| online.len() < nodes.len())) {
        Some(firmware) => Known::Yes(firmware),
        None => Known::no("the description gives no distances of the firmware's own"),
    };
    Ok(())
}

fn table(
    spanned: &Option<Spanned<Vec<Vec<Entry>>>>,
    key: &str,
    nodes: &[NodeId],
    faults: &Faults<'_>,
) -> Result<Option<Distances>, TextError> {
    let Some(spanned) = spanned else {
        return Ok(None);
    };
    let entry = |entry: &Entry| match entry {
        Entry::Distance(0) => {
            Err(faults.at(spanned, key, "0 is not a distance; write \"-\" for a hole"))
        }
        Entry::Distance(distance) => Ok(Some(Distance(*distance))),
        Entry::Hole(mark) if mark == "-" => Ok(None),
        Entry::Hole(_) => Err(faults.at(spanned, key, "an entry is a number, or \"-\" for a hole")),
    };
    let row = |row: &Vec<Entry>| row.iter().map(entry).collect::<Result<Vec<_>, _>>();
    let rows = spanned
        .get_ref()
        .iter()
        .map(row)
        .collect::<Result<Vec<_>, _>>()?;
    let table = Distances::from_rows(DistanceOrigin::Described, nodes.to_vec(), rows);
    table
        .map(Some)
        .map_err(|error| faults.at(spanned, key, error))
}
