//! From hwloc's objects to a machine.

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, Known, MAX_NUMBER, Machine, Node, Origin,
    SourceKind,
};

use super::elements::{Document, Object, set_of};
use super::{distances, nodes, pci};
use crate::error::TextError;
use crate::limits::MOST_NODES;
use crate::warnings::Warnings;

const BECAUSE: &str = "hwloc XML has no such thing";
/// Our fact on the outermost object: the CPUs that are offline. hwloc leaves these out, and those it may not use.
pub(super) const KERNEL_OFFLINE: &str = "KernelOffline";

pub(super) fn machine(document: Document, place: &str) -> Result<Machine, TextError> {
    let mut warnings = Warnings::about(place);
    let mut machine = Machine::empty(origin(&document, place), BECAUSE);
    let ranks = Ranks::of(&document.objects, &mut warnings);
    for (line, oddity) in &document.oddities {
        warnings.note_line(*line, oddity);
    }
    machine.nodes = nodes::read(&document, &ranks, &mut warnings);
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
    machine.cpus = cpus(&document, &ranks, &machine.nodes);
    outside(&document.objects, &ranks, &mut warnings);
    let online = machine.cpus.iter().filter(|cpu| cpu.is_online());
    let online: CpuSet = online.map(|cpu| cpu.id).collect();
    machine.cpu_states = CpuStates::online_only(online, BECAUSE);
    machine.caches = caches(&document.objects, &ranks);
    machine.distances = distances::read(&document, &machine.nodes, &mut warnings);
    pci::read(&document, &mut machine, &mut warnings);
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
pub(super) struct Ranks {
    /// The object that each CPU is.
    pub cpus: BTreeMap<CpuId, usize>,
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

pub(super) fn number(object: &Object) -> Option<u32> {
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

fn cpus(document: &Document, ranks: &Ranks, nodes: &[Node]) -> Vec<Cpu> {
    let objects = &document.objects;
    let online = document.root.online_cpus.as_ref();
    let mut cpus: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for (&id, &at) in &ranks.cpus {
        let mut cpu = placed(objects, ranks, id, at);
        // Version 1 writes offline CPUs, too, if it is asked for the whole system.
        cpu.online = online.is_none_or(|online| online.contains(id)).into();
        cpus.insert(id, cpu);
    }
    let root = objects.first();
    let set = |text: fn(&Object) -> &str| {
        let set = root.and_then(|root| set_of::<CpuId>(text(root)));
        set.unwrap_or_default()
    };
    let shown = set(|root| &root.cpuset);
    let named = nodes.iter().fold(
        shown.union(&set(|root| &root.complete_cpuset)),
        |all, node| all.union(node.known_cpus()),
    );
    let ours = root.and_then(|root| root.infos.iter().find(|(name, _)| name == KERNEL_OFFLINE));
    let offline = ours.and_then(|(_, list)| CpuSet::parse_list(list).ok());
    for id in named.iter() {
        cpus.entry(id).or_insert_with(|| Cpu {
            online: match online {
                Some(online) => online.contains(id).into(),
                None if offline.as_ref().is_some_and(|set| set.contains(id)) => false.into(),
                None if shown.contains(id) => Known::no("the XML has no PU object for this CPU"),
                None => Known::no(
                    "hwloc leaves out CPUs that are offline and those that its control group does not allow",
                ),
            },
            ..Cpu::new(id, None)
        });
    }
    for node in nodes {
        for id in node.known_cpus().iter() {
            if let Some(cpu) = cpus.get_mut(&id).filter(|cpu| cpu.node.is_none()) {
                cpu.node = Some(node.id);
            }
        }
    }
    cpus.into_values().collect()
}

/// Notes PUs that are below an object whose set of CPUs does not have them.
fn outside(objects: &[Object], ranks: &Ranks, warnings: &mut Warnings) {
    let mut sets: BTreeMap<usize, (CpuSet, CpuSet)> = BTreeMap::new();
    for (&cpu, &at) in &ranks.cpus {
        for above in ancestors(objects, at) {
            let object = &objects[above];
            if !matches!(
                object.kind.as_str(),
                "Machine" | "Package" | "NUMANode" | "Group"
            ) {
                continue;
            }
            let (all, outside) = sets.entry(above).or_insert_with(|| {
                let all = set_of(&object.cpuset).unwrap_or_default();
                let complete = set_of(&object.complete_cpuset).unwrap_or_default();
                (all.union(&complete), CpuSet::new())
            });
            if !all.is_empty() && !all.contains(cpu) {
                outside.insert(cpu);
            }
        }
    }
    for (at, (all, outside)) in sets.iter().filter(|(_, (_, outside))| !outside.is_empty()) {
        let index = objects[*at].os_index.map(|index| format!(" {index}"));
        warnings.note(format!(
            "{}{} has the cpuset {all}, and PUs {outside} are below it; the PUs were taken",
            objects[*at].kind,
            index.unwrap_or_default()
        ));
    }
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
            // hwloc 2.0 has a group for a die.
            ("Die", _) | ("Group", "Die") => cpu.die = leader,
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

/// `L2Cache`, `L1iCache`, or `Cache` of a `depth` in version 1; `cache_type` is 0 for unified, 1 for data, 2 for
/// instructions.
fn cache_kind(object: &Object) -> Option<(u32, CacheKind)> {
    let name = object.kind.strip_suffix("Cache")?;
    let level = match name.strip_prefix('L') {
        Some(level) => level.trim_end_matches('i').parse().ok()?,
        None if name.is_empty() => u32::try_from(object.depth?).ok()?,
        None => return None,
    };
    let kind = match object.cache_type {
        _ if name.ends_with('i') => CacheKind::Instruction,
        Some(1) => CacheKind::Data,
        Some(2) => CacheKind::Instruction,
        _ => CacheKind::Unified,
    };
    Some((level, kind))
}
