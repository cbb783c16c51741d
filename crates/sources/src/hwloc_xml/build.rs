//! From hwloc's objects to a machine.

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, Distance, DistanceOrigin, Distances,
    HugePages, Known, MAX_NUMBER, Machine, Memory, MemorySideCache, Node, NodeId, Origin,
    SourceKind,
};

use super::elements::{Document, Matrix, Object, set_of};
use super::pci;
use crate::error::TextError;
use crate::limits::MOST_NODES;
use crate::warnings::{Warnings, excerpt};

const BECAUSE: &str = "hwloc XML has no such thing";

pub(super) fn machine(document: Document, place: &str) -> Result<Machine, TextError> {
    let mut warnings = Warnings::about(place);
    let mut machine = Machine::empty(origin(&document, place), BECAUSE);
    let ranks = Ranks::of(&document.objects, &mut warnings);
    machine.nodes = nodes(&document.objects, &mut warnings);
    let wrong = |problem| {
        Err(TextError::new(
            place,
            None,
            problem,
            "write it again: lstopo topology.xml",
        ))
    };
    if machine.nodes.is_empty() && ranks.cpus.is_empty() {
        return wrong("neither a CPU nor a node in it".to_owned());
    }
    if machine.nodes.len() > MOST_NODES {
        return wrong(format!(
            "{} nodes; a Linux kernel has at most {MOST_NODES}",
            machine.nodes.len()
        ));
    }
    machine.cpus = cpus(&document.objects, &ranks, &mut machine.nodes, &mut warnings);
    let online: CpuSet = ranks.cpus.keys().copied().collect();
    machine.cpu_states = CpuStates::online_only(online, BECAUSE);
    machine.caches = caches(&document.objects, &ranks);
    machine.distances = distances(&document, &machine.nodes, &mut warnings);
    pci::read(&document.objects, &mut machine, &mut warnings);
    machine.warnings = warnings.finish();
    Ok(machine)
}

fn origin(document: &Document, place: &str) -> Origin {
    let root = document.objects.first().map_or(&[][..], |root| &root.infos);
    let info = |name: &str| {
        let found = root
            .iter()
            .chain(&document.infos)
            .find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    };
    let or_unknown = |value: Option<String>, name: &str| match value {
        Some(value) => Known::Yes(value),
        None => Known::no(format!("the XML has no {name}")),
    };
    let mut origin = Origin::new(SourceKind::HwlocXml, place);
    origin.host = info("HostName");
    origin.kernel = or_unknown(info("OSRelease"), "OSRelease");
    origin.architecture = or_unknown(info("Architecture"), "Architecture");
    let product: Vec<_> = [info("DMISysVendor"), info("DMIProductName")]
        .into_iter()
        .flatten()
        .collect();
    origin.product = or_unknown(
        (!product.is_empty()).then(|| product.join(" ")),
        "DMIProductName",
    );
    origin
}

/// Which CPUs there are, and the lowest CPU below every object.
struct Ranks {
    /// The object that each CPU is.
    cpus: BTreeMap<CpuId, usize>,
    /// The lowest CPU below each object that has one.
    lowest: HashMap<usize, CpuId>,
}

impl Ranks {
    fn of(objects: &[Object], warnings: &mut Warnings) -> Self {
        let mut ranks = Self {
            cpus: BTreeMap::new(),
            lowest: HashMap::new(),
        };
        for (at, object) in objects
            .iter()
            .enumerate()
            .filter(|(_, object)| object.kind == "PU")
        {
            let Some(cpu) = number(object).map(CpuId) else {
                warnings.note(
                    "a PU without an os_index that could be a CPU's number; it was left out"
                        .to_owned(),
                );
                continue;
            };
            if ranks.cpus.insert(cpu, at).is_some() {
                warnings.note(format!("CPU {cpu} is there twice; the last one was taken"));
            }
        }
        // In ascending order, so the first CPU to reach an object is its lowest.
        for (&cpu, &at) in &ranks.cpus {
            for above in ancestors(objects, at) {
                ranks.lowest.entry(above).or_insert(cpu);
            }
        }
        ranks
    }
}

fn number(object: &Object) -> Option<u32> {
    object
        .os_index
        .filter(|&index| index <= MAX_NUMBER.into())
        .and_then(|index| u32::try_from(index).ok())
}

/// The objects above one, nearest first. A parent has a lower index than its child, so this ends.
pub(super) fn ancestors(objects: &[Object], at: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(objects.get(at).and_then(|object| object.parent), |&at| {
        objects[at].parent
    })
}

fn nodes(objects: &[Object], warnings: &mut Warnings) -> Vec<Node> {
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    for (at, object) in objects
        .iter()
        .enumerate()
        .filter(|(_, object)| object.kind == "NUMANode")
    {
        let Some(id) = number(object).map(NodeId) else {
            warnings.note("a NUMANode without an os_index; it was left out".to_owned());
            continue;
        };
        let mut node = Node::new(id, cpus_near(object));
        node.memory = Known::Yes(memory(object));
        node.memory_side_caches = memory_side_caches(objects, at);
        if nodes.insert(id, node).is_some() {
            warnings.note(format!("node {id} is there twice; the last one was taken"));
        }
        if nodes.len() > MOST_NODES {
            break;
        }
    }
    let mut nodes: Vec<_> = nodes.into_values().collect();
    tell_memory_only(&mut nodes, warnings);
    nodes
}

/// The CPUs of a node: as the kernel lists them where the file says so, otherwise those that hwloc has near it.
fn cpus_near(object: &Object) -> CpuSet {
    let kernels = object
        .infos
        .iter()
        .find(|(name, _)| name == pci::KERNEL_CPUS);
    let kernels = kernels.and_then(|(_, list)| CpuSet::parse_list(list).ok());
    let complete = || set_of::<CpuId>(&object.complete_cpuset).filter(|set| !set.is_empty());
    kernels
        .or_else(complete)
        .or_else(|| set_of(&object.cpuset))
        .unwrap_or_default()
}

/// hwloc gives a node without CPUs those that it believes to be near. The kernel's nodes have no CPU in common, or all
/// of them where they are fakes of one node; so a node that holds all CPUs of another and more has none of its own.
fn tell_memory_only(nodes: &mut [Node], warnings: &mut Warnings) {
    let sets: Vec<CpuSet> = nodes.iter().map(|node| node.known_cpus().clone()).collect();
    let distinct: BTreeMap<String, &CpuSet> =
        sets.iter().map(|set| (set.to_string(), set)).collect();
    for node in nodes.iter_mut() {
        let part = |set: &&&CpuSet| {
            !set.is_empty() && **set != node.known_cpus() && set.is_subset(node.known_cpus())
        };
        if let Some(inner) = distinct.values().find(part) {
            warnings.note(format!(
                "node {} is shown near CPUs {}, which hold CPUs {inner} of another node; taken as a node without CPUs",
                node.id, node.known_cpus()
            ));
            node.cpus = CpuSet::new().into();
        }
    }
    for pair in nodes
        .windows(2)
        .filter(|pair| pair[0].has_cpus() == Some(true) && pair[0].cpus == pair[1].cpus)
    {
        warnings.note(format!(
            "nodes {} and {} are shown near the same CPUs {}: fakes of one node, or one of them has only memory",
            pair[0].id, pair[1].id, pair[0].known_cpus()
        ));
    }
}

/// hwloc leaves `local_memory` out where a node has none.
fn memory(object: &Object) -> Memory {
    let mut pages: Vec<_> = object.pages.clone();
    pages.sort_unstable();
    pages.dedup_by_key(|page| page.0);
    // The smallest page is the base page, which is no pool.
    let huge = pages.into_iter().skip(1).filter(|&(_, total)| total > 0);
    let huge_pages = huge
        .map(|(page_bytes, total)| HugePages {
            page_bytes,
            total,
            free: None,
        })
        .collect();
    Memory {
        huge_pages,
        ..Memory::of(object.local_memory.unwrap_or(0))
    }
}

fn memory_side_caches(objects: &[Object], at: usize) -> Vec<MemorySideCache> {
    let above = ancestors(objects, at)
        .map(|at| &objects[at])
        .take_while(|object| object.kind == "MemCache");
    let cache = |(level, object): (u32, &Object)| MemorySideCache {
        level,
        size_bytes: object.cache_size.unwrap_or(0),
        line_bytes: object.cache_line.filter(|&line| line > 0),
        indexing: None,
    };
    (1..).zip(above).map(cache).collect()
}

fn cpus(
    objects: &[Object],
    ranks: &Ranks,
    nodes: &mut [Node],
    warnings: &mut Warnings,
) -> Vec<Cpu> {
    let mut cpus: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for (&id, &at) in &ranks.cpus {
        cpus.insert(id, placed(objects, ranks, id, at));
    }
    let complete = objects
        .first()
        .and_then(|root| set_of::<CpuId>(&root.complete_cpuset))
        .unwrap_or_default();
    let named = nodes
        .iter()
        .fold(complete, |all, node| all.union(node.known_cpus()));
    let absent: CpuSet = named.iter().filter(|cpu| !cpus.contains_key(cpu)).collect();
    if !absent.is_empty() {
        warnings.note(format!(
            "CPUs {absent} are in complete_cpuset and are no PU: offline, or not allowed to the program that wrote the \
             file; taken as offline"
        ));
    }
    for id in absent.iter() {
        cpus.insert(
            id,
            Cpu {
                online: Known::Yes(false),
                ..Cpu::new(id, None)
            },
        );
    }
    for node in nodes.iter() {
        for id in node.known_cpus().iter() {
            if let Some(cpu) = cpus.get_mut(&id).filter(|cpu| cpu.node.is_none()) {
                cpu.node = Some(node.id);
            }
        }
    }
    cpus.into_values().collect()
}

/// A CPU with its place in cores, clusters and so on.
fn placed(objects: &[Object], ranks: &Ranks, id: CpuId, at: usize) -> Cpu {
    let mut cpu = Cpu::new(id, None);
    for at in ancestors(objects, at) {
        let object = &objects[at];
        let index = object.os_index.and_then(|index| i64::try_from(index).ok());
        let leader = ranks.lowest.get(&at).copied();
        match (object.kind.as_str(), object.subtype.as_str()) {
            ("Core", _) => (cpu.core, cpu.kernel_core_id) = (leader, index),
            ("Die", _) => cpu.die = leader,
            ("Package", _) => cpu.package = index,
            ("Group", "Cluster") => cpu.cluster = leader,
            ("Group", "Book") => cpu.book = index,
            ("Group", "Drawer") => cpu.drawer = index,
            _ => {}
        }
    }
    cpu
}

fn caches(objects: &[Object], ranks: &Ranks) -> Vec<Cache> {
    let mut found: BTreeMap<usize, Cache> = BTreeMap::new();
    for (&cpu, &at) in &ranks.cpus {
        for above in ancestors(objects, at) {
            let object = &objects[above];
            let Some((level, kind)) = cache_kind(object) else {
                continue;
            };
            let cache = found.entry(above).or_insert_with(|| Cache {
                level,
                kind,
                cpus: CpuSet::new(),
                size_bytes: match object.cache_size {
                    Some(bytes) if bytes > 0 => Known::Yes(bytes),
                    _ => Known::no("the XML has no size for this cache"),
                },
                line_bytes: object
                    .cache_line
                    .filter(|&line| line > 0)
                    .and_then(|line| u32::try_from(line).ok()),
                // hwloc: 0 is unknown, -1 fully associative, for which the kernel writes 0.
                ways: match object.cache_ways {
                    Some(-1) => Some(0),
                    ways => ways
                        .filter(|&ways| ways > 0)
                        .and_then(|ways| u32::try_from(ways).ok()),
                },
            });
            cache.cpus.insert(cpu);
        }
    }
    let mut caches: Vec<_> = found.into_values().collect();
    caches.sort_by_key(|cache| (cache.level, cache.cpus.first(), cache.kind));
    caches
}

/// `L2Cache`, `L1iCache`; `cache_type` is 0 for unified, 1 for data, 2 for instructions.
fn cache_kind(object: &Object) -> Option<(u32, CacheKind)> {
    let name = object.kind.strip_prefix('L')?.strip_suffix("Cache")?;
    let level = name.trim_end_matches('i').parse().ok()?;
    let kind = match object.cache_type {
        _ if name.ends_with('i') => CacheKind::Instruction,
        Some(1) => CacheKind::Data,
        Some(2) => CacheKind::Instruction,
        _ => CacheKind::Unified,
    };
    Some((level, kind))
}

/// Bits of `kind` (hwloc/distances.h).
const MEANS_LATENCY: u64 = 4;

fn distances(document: &Document, nodes: &[Node], warnings: &mut Warnings) -> Known<Distances> {
    let of_nodes =
        |matrix: &&Matrix| matrix.kind == "NUMANode" && matrix.means & MEANS_LATENCY != 0;
    let named = document
        .matrices
        .iter()
        .filter(of_nodes)
        .find(|matrix| matrix.name == "NUMALatency");
    let unnamed = || {
        document
            .matrices
            .iter()
            .filter(of_nodes)
            .find(|matrix| matrix.name.is_empty())
    };
    let Some(matrix) = named.or_else(unnamed) else {
        return Known::no("the XML has no NUMALatency distances between nodes");
    };
    let place = format!("the matrix in line {}", matrix.line);
    let width = matrix.indexes.len();
    if width > MOST_NODES || matrix.values.len() != width * width {
        warnings.note(format!(
            "{place} has {width} nodes and {} distances; left out",
            matrix.values.len()
        ));
        return Known::no("the XML's matrix of distances is damaged");
    }
    let node_of = |index: u64| match matrix.by_os_index {
        true => u32::try_from(index).ok().map(NodeId),
        false => {
            let object = document
                .objects
                .iter()
                .find(|object| object.gp_index == Some(index));
            object.and_then(number).map(NodeId)
        }
    };
    let columns: Vec<_> = matrix.indexes.iter().map(|&index| node_of(index)).collect();
    let mut distances = Distances::empty(DistanceOrigin::Kernel, nodes.iter().map(|node| node.id));
    let stray =
        matrix.indexes.iter().zip(&columns).find(|(_, node)| {
            node.is_none_or(|node| distances.nodes().binary_search(&node).is_err())
        });
    if let Some((index, _)) = stray {
        warnings.note(format!(
            "{place} names node {}, which is not there",
            excerpt(&index.to_string())
        ));
    }
    for (row, from) in columns.iter().enumerate() {
        for (column, to) in columns.iter().enumerate() {
            let value = matrix.values.get(row * width + column).copied();
            let value = value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|&value| value > 0)
                .map(Distance);
            if let (Some(from), Some(to)) = (from, to) {
                distances.set(*from, *to, value);
            }
        }
    }
    Known::Yes(distances)
}
