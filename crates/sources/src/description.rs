//! Descriptions that people write: what the gallery in `machines/` is made of, and what an emulated machine boots from.
//!
//! ```toml
//! description = "two packages with SMT, an NVMe disk on the second"
//! distances = [[10, 21], [21, 10]]       # row: from; column: to; nodes in ascending order; "-" is a hole
//!
//! [cpu]
//! threads_per_core = 2
//!
//! [[node]]                               # numbered 0, 1, ... unless `id` says otherwise
//! cpus = 8                               # so many more, or a list such as "0-3,8-11"
//! memory = "16G"
//! [[node]]
//! cpus = 8
//! memory = "16G"
//!
//! [[bridge]]
//! root = "0000:20"
//! firmware_node = 1                      # what the kernel says follows from it, unless `node` says otherwise
//! [[nvme]]
//! controllers = [{ bridge = "0000:20" }]
//! ```
//!
//! All keys are in docs/descriptions.md. An unknown one is an error, so that a typing mistake does not silently describe
//! another machine.

mod devices;
mod keys;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use nearfar_machine::{
    Access, Bandwidth, Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, CpuTime, Cpuset,
    DelayFault, Distance, DistanceDelay, DistanceOrigin, Distances, Known, Latency, LineDelay,
    MAX_DELAY_NS, MAX_NUMBER, Machine, Memory, MemorySideCache, Node, NodeBytes, NodeId, NodeSet,
    OpenDevice, Origin, PciAddress, PolicyBytes, ResidentBytes, SourceKind, Task, Timing,
    megabytes, size,
};
use toml::Spanned;

use crate::MOST_NODES;
use crate::error::{TextError, line_of};
use keys::{
    CacheEntry, CpuCount, CpusetEntry, Description, DistanceEntry, Each, LatencyEntry, NodeEntry,
    Siblings, TaskEntry, TimingEntry,
};

/// Reads a description file.
///
/// # Errors
/// Names the line and the key: unknown keys, wrong values, numbers that do not fit each other.
pub fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    let faults = Faults::of(text, place);
    let file: keys::Description = toml::from_str(text).map_err(|error| faults.syntax(&error))?;
    let machine = machine(&file, &faults)?;
    let Some(fake) = &file.fake else {
        return Ok(machine);
    };
    let fail = |error| faults.at(fake, "fake", error);
    let spec = fake.get_ref().parse().map_err(fail)?;
    crate::fake::lay(machine, &spec).map_err(fail)
}

const NEXT: &str = "see docs/descriptions.md for the keys";

struct Faults<'a> {
    text: &'a str,
    place: &'a str,
}

impl<'a> Faults<'a> {
    fn of(text: &'a str, place: &'a str) -> Self {
        Self { text, place }
    }

    fn place(&self) -> &'a str {
        self.place
    }

    /// What the TOML reader found: bad syntax, an unknown key, a value of the wrong kind.
    fn syntax(&self, error: &toml::de::Error) -> TextError {
        // The reader's messages may run over several lines; one is enough.
        let message = error.message().lines().next().unwrap_or("not TOML");
        let line = error.span().map(|span| self.line(&span));
        TextError::new(self.place, line, message, NEXT)
    }

    fn at<T>(&self, value: &Spanned<T>, key: &str, problem: impl Display) -> TextError {
        let line = Some(self.line(&value.span()));
        TextError::new(self.place, line, format!("{key}: {problem}"), NEXT)
    }

    /// A fault of the file as a whole.
    fn whole(&self, problem: impl Display) -> TextError {
        TextError::new(self.place, None, problem.to_string(), NEXT)
    }

    fn line(&self, span: &Range<usize>) -> usize {
        line_of(self.text, span.start)
    }
}

const BECAUSE: &str = "the description does not say";

fn machine(file: &Description, faults: &Faults<'_>) -> Result<Machine, TextError> {
    let mut machine = Machine::empty(origin(file, faults), BECAUSE);
    let (nodes, packages) = nodes(file, faults)?;
    machine.nodes = nodes;
    machine.cpus = cpus(file, &machine.nodes, &packages, faults)?;
    states(file, &mut machine, faults)?;
    topology(file, &mut machine, faults)?;
    for entry in &file.cache {
        caches(entry, &mut machine, faults)?;
    }
    Cache::sort(&mut machine.caches);
    distances(file, &mut machine, faults)?;
    if let Some(entry) = &file.timing {
        machine.timing = Some(timing(entry, &machine, faults)?);
    }
    if let Some(balancing) = file.numa_balancing {
        machine.settings.numa_balancing = Known::Yes(balancing);
    }
    devices::add(file, &mut machine, faults)?;
    tasks(file, &mut machine, faults)?;
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
        let last = node.known_cpus().last();
        next_cpu = last.map_or(next_cpu, |last| next_cpu.max(last.0 + 1));
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
        CpuCount::Count(count) => match next.checked_add(count - 1) {
            Some(last @ ..=MAX_NUMBER) => Ok(CpuSet::range(CpuId(next), CpuId(last))),
            _ => {
                let problem = format!("more than {} CPUs", MAX_NUMBER + 1);
                Err(faults.at(spanned, "cpus", problem))
            }
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
        Some(text) => {
            let problem = "not a size such as \"512M\" or \"16G\"";
            let bytes = size::parse(text.get_ref(), 1);
            let bytes = bytes.ok_or_else(|| faults.at(text, "memory", problem))?;
            Known::Yes(Memory {
                free_bytes: free(entry, bytes, faults)?,
                ..Memory::of(bytes)
            })
        }
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
        let size = size::parse(&cache.size, 1);
        node.memory_side_caches.push(MemorySideCache {
            level,
            size_bytes: size.ok_or_else(|| faults.at(spanned, "size", "not a size"))?,
            line_bytes: cache.line,
            indexing: cache.indexing,
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
fn listed(
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
            let new = || Cpu::new(id, Some(node.id));
            let built = cpus.entry(id).or_insert_with(new);
            if built.node == Some(node.id) {
                let cluster_leader = shape.cluster_leader(at);
                built.core = order.get(shape.core_leader(at)).copied();
                built.cluster = cluster_leader.and_then(|leader| order.get(leader).copied());
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
        let spanned = cpu.threads_per_core.as_ref();
        let threads = spanned.map_or(1, |threads| *threads.get_ref()) as usize;
        let is_misfit = threads == 0 || !count.is_multiple_of(threads);
        if let Some(spanned) = spanned.filter(|_| is_misfit) {
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
    let set = |spanned: &Option<Spanned<String>>, key| {
        let set = |spanned| listed(spanned, key, machine, faults);
        spanned.as_ref().map(set).transpose()
    };
    let offline = set(&file.cpu.offline, "offline")?.unwrap_or_default();
    let isolated = set(&file.cpu.isolated, "isolated")?;
    let nohz_full = set(&file.cpu.nohz_full, "nohz_full")?;
    let any = |list: &Spanned<String>| {
        let set = CpuSet::parse_list(list.get_ref());
        set.map_err(|error| faults.at(list, "possible", error))
    };
    let possible = file.cpu.possible.as_ref().map(any).transpose()?;
    let up = machine.online_node_set();
    for cpu in &mut machine.cpus {
        let is_up = cpu.node.is_none_or(|node| up.contains(node));
        cpu.online = (!offline.contains(cpu.id) && is_up).into();
    }
    let online = Cpu::online_set(&machine.cpus);
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
        ("cores", &file.cpu.cores, |cpu, it| cpu.core = Some(it)),
        ("clusters", &file.cpu.clusters, |cpu, it| {
            cpu.cluster = Some(it)
        }),
        ("dies", &file.cpu.dies, |cpu, it| cpu.die = Some(it)),
    ];
    if file.cpu.cores.is_some() {
        machine.cpus.iter_mut().for_each(|cpu| cpu.core = None);
    }
    for (key, lists, assign) in groups {
        for spanned in lists.iter().flatten() {
            let set = listed(spanned, key, machine, faults)?;
            let Some(leader) = set.first() else { continue };
            let members = machine.cpus.iter_mut();
            let members = members.filter(|cpu| set.contains(cpu.id));
            members.for_each(|cpu| assign(cpu, leader));
        }
    }
    for (number, spanned) in file.cpu.packages.iter().flatten() {
        let set = listed(spanned, "packages", machine, faults)?;
        let number = number
            .parse()
            .map_err(|_| faults.at(spanned, "packages", "a key that is not a number"))?;
        let members = machine.cpus.iter_mut();
        let members = members.filter(|cpu| set.contains(cpu.id));
        members.for_each(|cpu| cpu.package = Some(number));
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
        (Some(lists), None) => {
            let sets = lists
                .iter()
                .map(|list| listed(list, "cpus", machine, faults));
            sets.collect::<Result<_, _>>()?
        }
        (None, Some(each)) => one_each(each, machine),
        _ => return Err(faults.at(spanned, "cache", "either `each` or `cpus` is wanted")),
    };
    let size = |text| size::parse(text, 1).ok_or_else(|| faults.at(spanned, "size", "not a size"));
    let size = entry.size.as_deref().map(size).transpose()?;
    let cache = |cpus| Cache {
        level: entry.level,
        kind: entry.kind.unwrap_or(CacheKind::Unified),
        cpus,
        size_bytes: Known::from_option(size, || "the description gives this cache no `size`"),
        line_bytes: entry.line,
        ways: entry.ways,
    };
    let sets = sets.into_iter().filter(|set| !set.is_empty());
    machine.caches.extend(sets.map(cache));
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
    let key = "firmware_distances";
    let firmware = table(&file.firmware_distances, key, &nodes, faults)?;
    let online = machine.online_node_set();
    if let Some(all) = &all {
        let kernels = Distances::of(DistanceOrigin::Described, online.iter(), all.entries());
        machine.distances = Known::Yes(kernels);
    }
    let firmware = firmware.or(all.filter(|_| online.len() < nodes.len()));
    let reason = || "the description gives no distances of the firmware's own";
    machine.firmware_distances = Known::from_option(firmware, reason);
    Ok(())
}

fn table(
    spanned: &Option<Spanned<Vec<Vec<DistanceEntry>>>>,
    key: &str,
    nodes: &[NodeId],
    faults: &Faults<'_>,
) -> Result<Option<Distances>, TextError> {
    let Some(spanned) = spanned else {
        return Ok(None);
    };
    let entry = |entry: &DistanceEntry| match entry {
        DistanceEntry::Distance(0) => {
            Err(faults.at(spanned, key, "0 is not a distance; write \"-\" for a hole"))
        }
        DistanceEntry::Distance(distance) => Ok(Some(Distance(*distance))),
        DistanceEntry::Hole(mark) if mark == "-" => Ok(None),
        DistanceEntry::Hole(_) => {
            Err(faults.at(spanned, key, "an entry is a number, or \"-\" for a hole"))
        }
    };
    let row = |row: &Vec<DistanceEntry>| row.iter().map(entry).collect::<Result<Vec<_>, _>>();
    let rows: Vec<_> = spanned
        .get_ref()
        .iter()
        .map(row)
        .collect::<Result<_, _>>()?;
    let table = Distances::from_rows(DistanceOrigin::Described, nodes.to_vec(), rows);
    let table = table.map_err(|error| faults.at(spanned, key, error));
    table.map(Some)
}

fn tasks(file: &Description, machine: &mut Machine, faults: &Faults<'_>) -> Result<(), TextError> {
    let mut tasks: BTreeMap<i32, Task> = BTreeMap::new();
    for spanned in &file.task {
        let task = task(spanned.get_ref(), machine, faults)?;
        let pid = task.pid;
        if tasks.insert(pid, task).is_some() {
            return Err(faults.at(spanned, "pid", format!("there are two tasks {pid}")));
        }
    }
    if !tasks.is_empty() {
        machine.tasks = Known::Yes(tasks.into_values().collect());
    }
    let cpusets = file.cpuset.iter();
    let cpusets = cpusets.map(|it| cpuset(it.get_ref(), machine, faults));
    let mut cpusets = cpusets.collect::<Result<Vec<_>, _>>()?;
    cpusets.sort_by(|a, b| a.path.cmp(&b.path));
    if !cpusets.is_empty() {
        machine.cpusets = Known::Yes(cpusets);
    }
    Ok(())
}

fn task(entry: &TaskEntry, machine: &Machine, faults: &Faults<'_>) -> Result<Task, TextError> {
    let pid = *entry.pid.get_ref();
    if pid < 1 {
        return Err(faults.at(&entry.pid, "pid", "a process has a number from 1"));
    }
    let allowed_cpus = match &entry.cpus {
        Some(list) => listed(list, "cpus", machine, faults)?,
        None => machine.cpu_states.online.clone(),
    };
    let allowed_nodes = match &entry.nodes {
        Some(list) => listed_nodes(list, machine, faults)?,
        None => machine.online_node_set(),
    };
    let mut memory = Vec::new();
    for (number, text) in &entry.memory {
        let fail = |problem| faults.at(text, "memory", problem);
        let node = number.parse().ok().map(NodeId);
        let node = node.filter(|node| machine.node(*node).is_some());
        let node = node.ok_or_else(|| fail(format!("node {number} is not described")))?;
        let bytes = size::parse(text.get_ref(), 1);
        let bytes = bytes.ok_or_else(|| fail("not a size such as \"512M\"".to_owned()))?;
        memory.push(NodeBytes { node, bytes });
    }
    memory.sort_by_key(|on| on.node);
    let bytes = memory.iter().map(|on| on.bytes);
    let total = bytes.fold(0, u64::saturating_add);
    let pinned = entry.pinned.as_ref().map_or(Ok(0), |text| {
        let bytes = size::parse(text.get_ref(), 1).filter(|bytes| *bytes <= total);
        bytes.ok_or_else(|| faults.at(text, "pinned", "not a size, or more than its memory"))
    })?;
    let times = cpu_times(entry, machine, faults)?;
    let key = |time: &&CpuTime| (time.ms, std::cmp::Reverse(time.cpu));
    let busiest = times.iter().max_by_key(key);
    let known = |text: &Option<String>| Known::from_option(text.clone(), || BECAUSE);
    Ok(Task {
        last_cpu: Known::from_option(busiest.map(|time| time.cpu), || BECAUSE),
        cpu_ms: Known::Yes(times.iter().map(|time| time.ms).sum()),
        cpu_times: Known::Yes(times),
        policies: Known::Yes(vec![PolicyBytes {
            policy: entry.policy.clone().unwrap_or_else(|| "default".to_owned()),
            bytes: total,
        }]),
        resident: Known::Yes(ResidentBytes {
            anonymous: total,
            pinned,
            ..ResidentBytes::default()
        }),
        memory: Known::Yes(memory),
        pinned_bytes: Known::Yes(pinned),
        allowed_cpus: Known::Yes(allowed_cpus),
        allowed_nodes: Known::Yes(allowed_nodes),
        user: Known::from_option(entry.user, || BECAUSE),
        group: known(&entry.group),
        devices: open_devices(entry, machine, faults)?,
        preferred_node: Known::no(BECAUSE),
        start: Known::no(BECAUSE),
        age_ms: Known::no(BECAUSE),
        ..Task::new(pid, &entry.name)
    })
}

fn cpu_times(
    entry: &TaskEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Vec<CpuTime>, TextError> {
    let mut times: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (list, seconds) in &entry.cpu_seconds {
        let cpus = CpuSet::parse_list(list);
        let cpus = cpus.map_err(|error| faults.at(seconds, "cpu_seconds", error))?;
        for cpu in cpus.iter() {
            if machine.cpu(cpu).is_none() {
                let problem = format!("CPU {cpu} is in no node");
                return Err(faults.at(seconds, "cpu_seconds", problem));
            }
            *times.entry(cpu).or_default() += u64::from(*seconds.get_ref()) * 1000;
        }
    }
    let times = times.into_iter();
    Ok(times.map(|(cpu, ms)| CpuTime { cpu, ms }).collect())
}

fn open_devices(
    entry: &TaskEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Known<Vec<OpenDevice>>, TextError> {
    let Some(names) = &entry.devices else {
        return Ok(Known::no(BECAUSE));
    };
    let mut found: BTreeMap<PciAddress, Vec<String>> = BTreeMap::new();
    for spanned in names {
        let name = spanned.get_ref();
        let functions = machine.functions_named(name);
        if functions.is_empty() {
            return Err(faults.at(
                spanned,
                "devices",
                format!("no device {name:?} is described"),
            ));
        }
        for function in functions {
            found.entry(function).or_default().push(name.clone());
        }
    }
    let found = found.into_iter();
    Ok(Known::Yes(
        found
            .map(|(device, files)| OpenDevice { device, files })
            .collect(),
    ))
}

fn cpuset(
    entry: &CpusetEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Cpuset, TextError> {
    Ok(Cpuset {
        path: entry.path.clone(),
        cpus: Known::Yes(listed(&entry.cpus, "cpus", machine, faults)?),
        nodes: Known::Yes(listed_nodes(&entry.nodes, machine, faults)?),
        configured: true,
        version_2: Some(true),
    })
}

/// A list of nodes, all of which are described.
fn listed_nodes(
    spanned: &Spanned<String>,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<NodeSet, TextError> {
    let set = NodeSet::parse_list(spanned.get_ref());
    let set = set.map_err(|error| faults.at(spanned, "nodes", error))?;
    let stray = set.iter().find(|&node| machine.node(node).is_none());
    match stray {
        Some(stray) => Err(faults.at(spanned, "nodes", format!("node {stray} is not described"))),
        None => Ok(set),
    }
}

fn timing(file: &TimingEntry, machine: &Machine, faults: &Faults<'_>) -> Result<Timing, TextError> {
    let limit = |value, key| part(value, key, faults, |&gb_per_s| megabytes(gb_per_s));
    Ok(Timing {
        latencies: latencies(file, machine, faults)?,
        cache: part(&file.cache, "cache", faults, |text| text.parse())?,
        transfer: transfer(file, machine, faults)?,
        bandwidth: Bandwidth {
            memory_mb_per_s: limit(&file.bandwidth, "bandwidth")?,
            link_mb_per_s: limit(&file.link, "link")?,
            stream_mb_per_s: limit(&file.stream, "stream")?,
        },
        instruction_ps: part(&file.instruction, "instruction", faults, picoseconds)?,
        sources: match file.sources.is_empty() {
            true => vec![machine.origin.place.clone()],
            false => file.sources.clone(),
        },
        between_cpus: Vec::new(),
    })
}

/// Of nanoseconds of an instruction.
fn picoseconds(ns: &f64) -> Result<u32, DelayFault> {
    match (0.001..=1000.0).contains(ns) {
        true => Ok((ns * 1000.0).round() as u32),
        false => Err(DelayFault::Instruction),
    }
}

fn part<V, T>(
    value: &Option<Spanned<V>>,
    key: &str,
    faults: &Faults<'_>,
    read: impl Fn(&V) -> Result<T, DelayFault>,
) -> Result<Option<T>, TextError> {
    let part =
        |value: &Spanned<V>| read(value.get_ref()).map_err(|fault| faults.at(value, key, fault));
    value.as_ref().map(part).transpose()
}

fn transfer(
    file: &TimingEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Option<LineDelay>, TextError> {
    let read: Option<LineDelay> = part(&file.transfer, "transfer", faults, |text| text.parse())?;
    if let (Some(text), Some(all)) = (&file.transfer, machine.distances.get()) {
        let is_between_nodes = |it: &&DistanceDelay| {
            let mut entries = all.entries();
            entries.any(|(from, to, distance)| from != to && distance == Some(it.distance))
        };
        let mut asked = read.iter().flat_map(|it| &it.by_distance);
        if let Some(unknown) = asked.find(|it| !is_between_nodes(it)) {
            let fault = format!("no two nodes are at distance {}", unknown.distance.0);
            return Err(faults.at(text, "transfer", fault));
        }
    }
    Ok(read)
}

fn latencies(
    file: &TimingEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Vec<Latency>, TextError> {
    let Some(spanned) = &file.latency else {
        return Ok(Vec::new());
    };
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let rows = spanned.get_ref();
    if rows.len() != nodes.len() || rows.iter().any(|row| row.len() != nodes.len()) {
        let count = nodes.len();
        let wanted = format!("{count} rows of {count} entries are wanted, one a node");
        return Err(faults.at(spanned, "latency", wanted));
    }
    let mut all = Vec::new();
    for (&cpu_node, row) in nodes.iter().zip(rows) {
        for (&memory_node, entry) in nodes.iter().zip(row) {
            match entry {
                LatencyEntry::Ns(ns) if (1.0..=f64::from(MAX_DELAY_NS)).contains(ns) => {
                    all.push(Latency {
                        cpu_node,
                        memory_node,
                        ns: ns.round() as u32,
                    });
                }
                LatencyEntry::Unknown(mark) if mark == "-" => {}
                _ => {
                    let wanted =
                        format!("an entry is 1 to {MAX_DELAY_NS} ns, or \"-\" where it is unknown");
                    return Err(faults.at(spanned, "latency", wanted));
                }
            }
        }
    }
    Ok(all)
}
