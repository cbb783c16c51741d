//! The nodes of hwloc's XML: which there are, which CPUs are theirs, how large and how fast their memory is.
//!
//! hwloc says near which CPUs a node is, and gives a node without CPUs those that it is near. Linux puts each CPU on one
//! node. So of several nodes near a CPU one has it, and the others are memory only:
//!
//! ```text
//! Machine 0-31 ─┬ Package 0-15 ─┬ NUMANode 0   0-15  DRAM   CPUs 0-15
//!               │               └ NUMANode 2   0-15  HBM    none: memory of a special kind next to other memory
//!               ├ Package 16-31 ─ NUMANode 1  16-31         CPUs 16-31
//!               └ NUMANode 3    0-31                        none: nodes 0 and 1 are nearer to all of its CPUs
//! ```
//!
//! A node that hwloc may not show is in `complete_nodeset` without being an object. Its CPUs name it in their own set.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use nearfar_machine::{
    Access, CpuSet, HugePages, Known, Memory, MemorySideCache, Node, NodeId, NodeSet,
};

use super::elements::{Document, Object, Performance, set_of};
use super::{Ranks, ancestors, number};
use crate::MOST_NODES;
use crate::error::Warnings;

/// Our fact on a node: its CPUs as the kernel lists them.
pub(super) const KERNEL_CPUS: &str = "KernelCpus";
/// The value of [`KERNEL_CPUS`] where they are unknown.
pub(super) const UNKNOWN: &str = "unknown";

/// What nodes end with.
const PARTS: [&str; 3] = ["Package", "Die", "L3Cache"];

/// A node and the CPUs that it is near.
struct NodePlace {
    id: NodeId,
    /// The NUMANode; `None` for a node that only sets name.
    object: Option<usize>,
    /// Those that are online and allowed.
    online: CpuSet,
    /// These and the others.
    near: CpuSet,
    /// Whether its memory is of a kind that firmware puts on a node of its own: HBM, CXL, a GPU's.
    special: bool,
    /// The CPUs that the file lists as its own.
    listed: Option<Known<CpuSet>>,
}

pub(super) fn read(document: &Document, ranks: &Ranks, warnings: &mut Warnings) -> Vec<Node> {
    let mut places = objects(&document.objects, warnings);
    absent(document, ranks, &mut places);
    let places: Vec<NodePlace> = places.into_values().take(MOST_NODES + 1).collect();
    let mut by_target: HashMap<u64, Vec<&Performance>> = HashMap::new();
    for value in &document.performance {
        by_target.entry(value.target).or_default().push(value);
    }
    let root = document.objects.first();
    let known = root.map(all_near).unwrap_or_default();
    let known = known.union(&ranks.cpus.keys().copied().collect());
    let mut owned = owned(&places, &document.objects, warnings);
    let values_of = |place: &NodePlace| {
        let object = document.objects.get(place.object?)?;
        by_target.get(&object.gp_index?).map(Vec::as_slice)
    };
    let performance = places
        .iter()
        .map(|place| values_of(place).unwrap_or_default());
    let performance: Vec<&[&Performance]> = performance.collect();
    for (cpus, values) in owned.iter_mut().zip(&performance) {
        let outside = |value: &&Performance| {
            !value.initiators.is_empty() && !value.initiators.intersects(&known)
        };
        if cpus.get().is_some_and(CpuSet::is_empty) && values.iter().any(outside) {
            *cpus = Known::no("the XML leaves out the CPUs that the node is near");
        }
    }
    let node = |((place, cpus), values): ((&NodePlace, &Known<CpuSet>), &&[&Performance])| {
        let mut node = Node::new(place.id, cpus.clone());
        node.access = access(values, place, &places, &owned);
        match place.object {
            Some(at) => {
                node.memory = memory(&document.objects[at]);
                node.memory_side_caches = memory_side_caches(&document.objects, at);
            }
            None => node.memory = memory_of_absent(document, place.id),
        }
        node
    };
    let nodes = places.iter().zip(&owned).zip(&performance);
    nodes.map(node).collect()
}

fn objects(objects: &[Object], warnings: &mut Warnings) -> BTreeMap<NodeId, NodePlace> {
    let mut places = BTreeMap::new();
    let nodes = objects.iter().enumerate();
    for (at, object) in nodes.filter(|(_, object)| object.kind == "NUMANode") {
        let Some(id) = number(object).map(NodeId) else {
            warnings.note("a NUMANode without an os_index; it was left out".to_owned());
            continue;
        };
        let subtype = match object.subtype.as_str() {
            "" => object.info("Type").unwrap_or_default(),
            subtype => subtype,
        };
        let place = NodePlace {
            id,
            object: Some(at),
            online: set_of(&object.cpuset).unwrap_or_default(),
            near: all_near(object),
            special: !matches!(subtype, "" | "DRAM")
                || object.info("DAXDevice").is_some()
                || object.info("PCIBusID").is_some(),
            listed: object.info(KERNEL_CPUS).map(|list| match list {
                UNKNOWN => Known::no("the source that the XML was written from did not have them"),
                list => match CpuSet::parse_list(list) {
                    Ok(cpus) => Known::Yes(cpus),
                    Err(error) => Known::no(format!("{KERNEL_CPUS} in the XML: {error}")),
                },
            }),
        };
        if places.insert(id, place).is_some() {
            warnings.note(format!("node {id} is there twice; the last one was taken"));
        }
        if places.len() > MOST_NODES {
            break;
        }
    }
    places
}

/// The CPUs near an object, those that are offline or not allowed included.
fn all_near(object: &Object) -> CpuSet {
    let complete = set_of(&object.complete_cpuset).filter(|set| !set.is_empty());
    let near = complete.or_else(|| set_of(&object.cpuset));
    near.unwrap_or_default()
}

/// Adds the nodes that are no objects.
fn absent(document: &Document, ranks: &Ranks, places: &mut BTreeMap<NodeId, NodePlace>) {
    let root = document.objects.first();
    let named: Option<NodeSet> = root.and_then(|root| set_of(&root.complete_nodeset));
    let named = named.unwrap_or_default();
    let absent = named.iter().filter(|id| !places.contains_key(id));
    let absent: NodeSet = absent.take(MOST_NODES + 1).collect();
    let mut near: BTreeMap<NodeId, CpuSet> = absent.iter().map(|id| (id, CpuSet::new())).collect();
    // Version 1 has no NUMANode where a machine is one node, and old releases have no set of nodes then.
    let alone = places.is_empty()
        && (absent.len() == 1 || absent.is_empty() && document.version == 1 && root.is_some());
    if alone {
        let all = ranks.cpus.keys().copied().collect();
        let all = root.map(all_near).unwrap_or_default().union(&all);
        near = BTreeMap::from([(absent.first().unwrap_or(NodeId(0)), all)]);
    } else if !absent.is_empty() {
        let mut last: (Rc<str>, NodeSet) = Default::default();
        let mut missing = |set: &Rc<str>| {
            if last.0 != *set {
                let nodes: NodeSet = set_of(set).unwrap_or_default();
                last = (set.clone(), nodes.intersection(&absent));
            }
            last.1.clone()
        };
        for (&cpu, &at) in &ranks.cpus {
            for id in missing(&document.objects[at].complete_nodeset).iter() {
                near.entry(id).or_default().insert(cpu);
            }
        }
        // Where no PU names the node, the objects do that name it and the fewest others.
        let mut fewest: BTreeMap<NodeId, usize> = BTreeMap::new();
        let unnamed = near.iter().filter(|(_, cpus)| cpus.is_empty());
        let unnamed: NodeSet = unnamed.map(|(&id, _)| id).collect();
        for object in document.objects.iter().skip(1) {
            let missing = missing(&object.complete_nodeset).intersection(&unnamed);
            for id in missing.iter() {
                let nodes = set_of::<NodeId>(&object.complete_nodeset).map_or(0, |set| set.len());
                let fewest = fewest.entry(id).or_insert(nodes);
                let cpus = near.entry(id).or_default();
                if nodes < *fewest {
                    (*fewest, *cpus) = (nodes, CpuSet::new());
                }
                if nodes == *fewest {
                    *cpus = cpus.union(&all_near(object));
                }
            }
        }
    }
    places.extend(near.into_iter().map(|(id, near)| {
        let place = NodePlace {
            id,
            object: None,
            online: near.clone(),
            near,
            special: false,
            listed: None,
        };
        (id, place)
    }));
}

/// The CPUs that are each node's own.
fn owned(places: &[NodePlace], objects: &[Object], warnings: &mut Warnings) -> Vec<Known<CpuSet>> {
    let listed = places.iter().map(|place| place.listed.clone());
    let listed = listed.map(|cpus| cpus.unwrap_or_else(|| CpuSet::new().into()));
    let mut owned: Vec<Known<CpuSet>> = listed.collect();
    let mut taken: CpuSet = owned.iter().filter_map(Known::get).collect();
    // The default kind of memory first, then the node with the fewest CPUs near it, then the lowest number: firmware
    // lists the memory of the CPUs first (ACPI's SRAT), and Linux numbers in that order. On Power a GPU's node counts
    // down from 255.
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.retain(|&at| places[at].listed.is_none());
    order.sort_by_key(|&at| (places[at].special, places[at].near.len(), places[at].id));
    let parts = objects.iter().map(|object| (object.kind.as_str(), object));
    let parts = parts.filter(|(kind, _)| PARTS.contains(kind));
    let parts: Vec<(&str, CpuSet)> = parts.map(|(kind, it)| (kind, all_near(it))).collect();
    let (mut hosts, mut guests) = (NodeSet::new(), NodeSet::new());
    for &at in &order {
        let place = &places[at];
        if place.near.is_empty() {
            if place.object.is_none() {
                owned[at] = Known::no("hwloc names the node and not the CPUs near it");
            }
            continue;
        }
        let is_equal = |&&other: &&usize| {
            places[other].near == place.near && places[other].special == place.special
        };
        let equals: Vec<usize> = order.iter().filter(is_equal).copied().collect();
        let same: Vec<&NodePlace> = equals.iter().map(|&at| &places[at]).collect();
        if !place.near.intersects(&taken) && equals.len() > 1 && are_alike(&same, objects, &parts) {
            let ids: NodeSet = equals.iter().map(|&at| places[at].id).collect();
            for other in equals {
                owned[other] = Known::no(format!(
                    "hwloc shows nodes {ids} near the same CPUs {} and does not say which of these are whose",
                    place.near
                ));
            }
            taken = taken.union(&place.near);
            continue;
        }
        let rest = place.near.difference(&taken);
        let is_taken = !place.online.is_empty() && place.online.difference(&taken).is_empty();
        if is_taken || (place.special && rest != place.near) {
            // Its unknown CPUs were dealt with above; memory of a special kind needs no warning.
            let mut hosts_of = equals.into_iter();
            let is_host = |&host: &usize| owned[host].get() == Some(&place.near);
            if let Some(host) = hosts_of.find(is_host) {
                hosts.insert(places[host].id);
                guests.insert(place.id);
            }
            continue;
        }
        if rest != place.near && !rest.is_empty() {
            warnings.note(format!(
                "node {} is shown near CPUs {}, of which other nodes have some; CPUs {rest} were taken as its own",
                place.id, place.near
            ));
        }
        taken = taken.union(&rest);
        owned[at] = rest.into();
    }
    if !guests.is_empty() {
        let named = |nodes: &NodeSet| match nodes.len() {
            1 => format!("node {nodes}"),
            _ => format!("nodes {nodes}"),
        };
        let (hosts, guests) = (named(&hosts), named(&guests));
        warnings.note(format!(
            "hwloc shows {guests} near the same CPUs as {hosts} and does not say whose these are; taken as those of {hosts}, since \
             firmware lists memory with CPUs first, and {guests} as memory only"
        ));
    }
    owned
}

/// Whether nodes near the same CPUs may have a part of them each: their memory is equally large, or their CPUs are divided
/// into as many packages, dies or last-level caches. hwloc shows that where a firmware calls all CPUs equally near, or
/// where it was asked for no groups.
fn are_alike(nodes: &[&NodePlace], objects: &[Object], parts: &[(&str, CpuSet)]) -> bool {
    /// Nodes of one kind differ by what the firmware keeps; HBM and CXL memory by more.
    const LARGER_BY_PERCENT: u64 = 20;
    let sizes = nodes.iter().map(|node| {
        let object = node.object.and_then(|at| objects.get(at));
        object.and_then(|object| object.local_memory).unwrap_or(0)
    });
    let (smallest, largest) = sizes.fold((u64::MAX, 0), |(a, b), size| (a.min(size), b.max(size)));
    let are_equal = smallest > 0 && largest - smallest < smallest / 100 * LARGER_BY_PERCENT;
    let count = |kind: &str| {
        let near = parts.iter().filter(|(part, cpus)| {
            *part == kind && nodes.iter().any(|node| cpus.intersects(&node.near))
        });
        near.count()
    };
    are_equal || PARTS.iter().any(|kind| count(kind) == nodes.len())
}

/// What hwloc was told of a node's speed: since 2.8 read and write, before only read. Values from CPUs that the node is
/// not near are the user's own measurements and have no place here.
fn access(
    values: &[&Performance],
    place: &NodePlace,
    places: &[NodePlace],
    owned: &[Known<CpuSet>],
) -> Vec<Access> {
    let is_local =
        |value: &&&Performance| place.near.is_empty() || value.initiators.intersects(&place.near);
    let Some(initiators) = values.iter().find(is_local).map(|value| &value.initiators) else {
        return Vec::new();
    };
    let value = |name: &str| {
        let mut same = values.iter().filter(|it| it.initiators == *initiators);
        same.find(|it| it.name == name).map(|it| it.value)
    };
    let has_some = |cpus: &Known<CpuSet>| cpus.get().is_some_and(|it| it.intersects(initiators));
    let with_cpus = places.iter().zip(owned).filter(|(_, cpus)| has_some(cpus));
    let initiator_nodes: NodeSet = with_cpus.map(|(place, _)| place.id).collect();
    if initiator_nodes.is_empty() {
        return Vec::new();
    }
    vec![Access {
        class: 1,
        initiators: initiator_nodes,
        read_latency_ns: value("ReadLatency").or_else(|| value("Latency")),
        write_latency_ns: value("WriteLatency"),
        read_bandwidth_mib_per_s: value("ReadBandwidth").or_else(|| value("Bandwidth")),
        write_bandwidth_mib_per_s: value("WriteBandwidth"),
    }]
}

/// hwloc leaves `local_memory` out both where a node has none and where it could not read how much.
fn memory(object: &Object) -> Known<Memory> {
    let Some(bytes) = object.local_memory else {
        return Known::no("the XML has no size of it (local_memory)");
    };
    let mut pages: Vec<_> = object.pages.clone();
    pages.sort_unstable();
    pages.dedup_by_key(|page| page.0);
    // The smallest page is the base page, which is no pool.
    let huge = pages.into_iter().skip(1).filter(|&(_, total)| total > 0);
    let pool = |(page_bytes, total)| HugePages {
        page_bytes,
        total,
        free: None,
    };
    Known::Yes(Memory {
        huge_pages: huge.map(pool).collect(),
        ..Memory::of(bytes)
    })
}

/// Where a machine is one node, version 1 has its memory at the outermost object.
fn memory_of_absent(document: &Document, node: NodeId) -> Known<Memory> {
    let root = document.objects.first();
    if let Some(root) = root.filter(|root| document.version == 1 && root.local_memory.is_some()) {
        return memory(root);
    }
    let mut objects = document.objects.iter();
    if document.version == 1 && !objects.any(|object| object.kind == "NUMANode") {
        return Known::no("the XML has no local_memory");
    }
    let allowed = document.root.allowed_nodes.as_ref();
    Known::no(
        match allowed.is_some_and(|allowed| !allowed.contains(node)) {
            true => {
                "hwloc leaves out nodes that its control group does not allow, and version 2 of control groups allows none without \
             memory"
            }
            false => {
                "hwloc names the node in complete_nodeset only: it has no memory, is offline or is not allowed"
            }
        },
    )
}

fn memory_side_caches(objects: &[Object], at: usize) -> Vec<MemorySideCache> {
    let above = ancestors(objects, at).map(|at| &objects[at]);
    let above = above.take_while(|object| object.kind == "MemCache");
    let cache = |(level, object): (u32, &Object)| MemorySideCache {
        level,
        size_bytes: object.cache_size.unwrap_or(0),
        line_bytes: object.cache_line.filter(|&line| line > 0),
        indexing: None,
    };
    (1..).zip(above).map(cache).collect()
}
