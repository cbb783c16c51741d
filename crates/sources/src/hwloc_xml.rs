//! hwloc's XML: what `lstopo topology.xml` writes, versions 2 and 3, in and out.
//!
//! ```text
//! <topology version="2.0">
//!   <object type="Machine" cpuset="0x000000ff" ...>      objects nest by the CPUs they hold
//!     <info name="OSRelease" value="6.1.0"/>             facts about an object (version 3: about the topology too)
//!     <object type="Package" os_index="0">
//!       <object type="NUMANode" os_index="0" .../>       memory is next to the CPUs that are near it
//!       <object type="L3Cache"> ... <object type="Core"> ... <object type="PU" os_index="0"/>
//!     <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-ff]"> ... <object type="PCIDev"/>
//!   <distances2 type="NUMANode" name="NUMALatency"> <indexes/> <u64values/>
//! ```
//!
//! Version 1 has no `version`; there, nodes hold their CPUs as packages do, and `<distances>` are below an object.
//!
//! What hwloc has no place for is left out on the way out, and unknown on the way in: nodes that are not online,
//! interrupts, network queues, NVMe paths, settings. What it has, but means otherwise than the kernel, travels as an
//! `<info>` of ours, which hwloc keeps: the CPUs of a node (`KernelCpus`), those that are offline (`KernelOffline`), the
//! node and driver of a PCI device (`KernelNode`, `KernelDriver`). Without them `nodes.rs` says whose CPUs are whose, and
//! a device is on the node that all CPUs near it are on.
//!
//! Of matrices the distances between nodes are read. Those of other objects (NVLinkBandwidth, XGMIHops) and of other values are left out.

mod elements;
mod nodes;
mod write;

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, Disk, Distance, DistanceOrigin, Distances,
    HostBridge, Known, MAX_NUMBER, Machine, Node, NodeId, Origin, OsDevice, OsDeviceKind,
    PciAddress, PciDevice, RootBus, SourceKind,
};

use crate::MOST_NODES;
use crate::error::{TextError, Warnings, excerpt};
use crate::value::ValueError;
use elements::{Document, Matrix, Object, set_of};

/// Reads XML that hwloc of version 1, 2 or 3 wrote, in a text that may have other lines before and after it.
///
/// # Errors
/// When it is no XML, not hwloc's, or names no CPU and no node. Entities are not expanded, and what nests
/// deeper or numbers more than a machine can is refused.
pub fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    machine(elements::read(text, place)?, place)
}

/// Writes a machine as XML of version 2.0, which all releases of hwloc since 2.0 read.
pub fn render(machine: &Machine) -> String {
    write::document(machine)
}

const BECAUSE: &str = "hwloc XML has no such thing";
/// Our fact on the outermost object: the CPUs that are offline. hwloc leaves these out, and those it may not use.
const KERNEL_OFFLINE: &str = "KernelOffline";

fn machine(document: Document, place: &str) -> Result<Machine, TextError> {
    let mut warnings = Warnings::about(place);
    let mut machine = Machine::empty(origin(&document, place), BECAUSE);
    let ranks = Ranks::of(&document.objects, &mut warnings);
    for (line, oddity) in &document.oddities {
        warnings.note_line(*line, oddity);
    }
    machine.nodes = nodes::read(&document, &ranks, &mut warnings);
    let next = "write it again: lstopo topology.xml";
    let wrong = |problem| Err(TextError::new(place, None, problem, next));
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
    let online = Cpu::online_set(&machine.cpus);
    machine.cpu_states = CpuStates::online_only(online, BECAUSE);
    machine.caches = caches(&document.objects, &ranks);
    machine.distances = distances(&document, &machine.nodes, &mut warnings);
    pci(&document, &mut machine, &mut warnings);
    machine.warnings = warnings.finish();
    Ok(machine)
}

fn origin(document: &Document, place: &str) -> Origin {
    let root = document.objects.first().map_or(&[][..], |root| &root.infos);
    let info = |name: &str| {
        let mut all = root.iter().chain(&document.infos);
        let (_, value) = all.find(|(key, value)| key == name && !value.is_empty())?;
        Some(value.clone())
    };
    let or_unknown = |value: Option<String>, name: &str| {
        Known::from_option(value, || format!("the XML has no {name}"))
    };
    let mut origin = Origin::new(SourceKind::HwlocXml, place);
    origin.host = info("HostName");
    origin.kernel = or_unknown(info("OSRelease"), "OSRelease");
    origin.architecture = or_unknown(info("Architecture"), "Architecture");
    let product: Vec<_> = ["DMISysVendor", "DMIProductName"]
        .into_iter()
        .filter_map(info)
        .collect();
    let product = (!product.is_empty()).then(|| product.join(" "));
    origin.product = or_unknown(product, "DMIProductName");
    origin
}

/// Which CPUs there are, and the lowest CPU below every object.
struct Ranks {
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
        let units = objects.iter().enumerate();
        for (at, object) in units.filter(|(_, object)| object.kind == "PU") {
            let Some(cpu) = number(object).map(CpuId) else {
                let message =
                    "a PU without an os_index that could be a CPU's number; it was left out";
                warnings.note(message);
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
    let index = u32::try_from(object.os_index?).ok();
    index.filter(|&index| index <= MAX_NUMBER)
}

/// The objects above one, nearest first. A parent has a lower index than its child, so this ends.
fn ancestors(objects: &[Object], at: usize) -> impl Iterator<Item = usize> + '_ {
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
    let complete = set(|root| &root.complete_cpuset);
    let sets = [&shown, &complete].into_iter();
    let named: CpuSet = sets.chain(nodes.iter().map(Node::known_cpus)).collect();
    let ours = root.and_then(|root| root.info(KERNEL_OFFLINE));
    let offline = ours.and_then(|list| CpuSet::parse_list(list).ok());
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
            if !["Machine", "Package", "NUMANode", "Group"].contains(&object.kind.as_str()) {
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
                line_bytes: object.cache_line.and_then(positive),
                // hwloc: 0 is unknown, -1 fully associative, for which the kernel writes 0.
                ways: match object.cache_ways {
                    Some(-1) => Some(0),
                    ways => ways.and_then(positive),
                },
            });
            cache.cpus.insert(cpu);
        }
    }
    let mut caches: Vec<_> = found.into_values().collect();
    Cache::sort(&mut caches);
    caches
}

fn positive(number: impl TryInto<u32>) -> Option<u32> {
    number.try_into().ok().filter(|&number| number > 0)
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

/// Bits of `kind` (hwloc/distances.h).
const MEANS_LATENCY: u64 = 4;

fn distances(document: &Document, nodes: &[Node], warnings: &mut Warnings) -> Known<Distances> {
    let of_nodes =
        |matrix: &&Matrix| matrix.kind == "NUMANode" && matrix.means & MEANS_LATENCY != 0;
    let named = |name: &str| {
        let mut matrices = document.matrices.iter().filter(of_nodes);
        matrices.find(|matrix| matrix.name == name)
    };
    let found = match named("NUMALatency").or_else(|| named("")) {
        Some(matrix) => Some((matrix, columns(document, matrix))),
        None => old(document),
    };
    let Some((matrix, columns)) = found else {
        return Known::no("the XML has no NUMALatency distances between nodes");
    };
    let place = format!("the matrix in line {}", matrix.line);
    let width = columns.len();
    if width > MOST_NODES || matrix.values.len() != width * width {
        let found = matrix.values.len();
        warnings.note(format!(
            "{place} has {width} nodes and {found} distances; left out"
        ));
        return Known::no("the XML's matrix of distances is damaged");
    }
    let mut distances = Distances::empty(DistanceOrigin::Kernel, nodes.iter().map(|node| node.id));
    let is_there = |node| distances.nodes().binary_search(&node).is_ok();
    let stray = columns.iter().position(|node| !node.is_some_and(is_there));
    if let Some(stray) = stray {
        let index = matrix.indexes.get(stray).map(u64::to_string);
        let index = excerpt(&index.unwrap_or_default());
        warnings.note(format!("{place} names node {index}, which is not there"));
    }
    let pairs = columns
        .iter()
        .flat_map(|from| columns.iter().map(move |to| from.zip(*to)));
    for (pair, &value) in pairs.zip(&matrix.values) {
        if let Some((from, to)) = pair {
            distances.set(from, to, positive(value).map(Distance));
        }
    }
    Known::Yes(distances)
}

/// The nodes that a matrix names.
fn columns(document: &Document, matrix: &Matrix) -> Vec<Option<NodeId>> {
    let node_of = |&index: &u64| match matrix.by_os_index {
        true => u32::try_from(index).ok().map(NodeId),
        false => {
            let mut objects = document.objects.iter();
            let object = objects.find(|object| object.gp_index == Some(index));
            object.and_then(number).map(NodeId)
        }
    };
    matrix.indexes.iter().map(node_of).collect()
}

/// The matrix of version 1 whose rows are the nodes, in the order of the file. It says only how many levels below its object they are, and levels
/// are not counted alike in a tree that is not regular. The smallest of the kernel's is 10, those of users start anywhere.
fn old(document: &Document) -> Option<(&Matrix, Vec<Option<NodeId>>)> {
    let objects = &document.objects;
    let of_nodes = |matrix: &Matrix| {
        let old = matrix.version_1.as_ref()?;
        let owner = old.owner?;
        let mut depths = Vec::new();
        let mut columns = Vec::new();
        for (at, object) in objects.iter().enumerate().skip(owner) {
            if object.kind == "NUMANode"
                && let Some(depth) = ancestors(objects, at).position(|above| above == owner)
            {
                depths.push(depth + 1);
                columns.push(number(object).map(NodeId));
            }
        }
        let is_kernels = matrix.values.len() == columns.len() * columns.len()
            && matrix.values.iter().min() == Some(&10);
        let exact = depths.iter().all(|&depth| depth == old.relative_depth);
        (is_kernels && !columns.is_empty()).then_some((exact, columns))
    };
    let candidates = document.matrices.iter();
    let candidates = candidates.filter_map(|matrix| Some((matrix, of_nodes(matrix)?)));
    let (matrix, (_, columns)) = candidates.min_by_key(|(_, (exact, _))| !exact)?;
    Some((matrix, columns))
}

/// Our fact on a PCI device: the node the kernel gives it, or -1.
const KERNEL_NODE: &str = "KernelNode";
/// Our fact on a PCI device: its driver.
const KERNEL_DRIVER: &str = "KernelDriver";

fn pci(document: &Document, machine: &mut Machine, warnings: &mut Warnings) {
    let objects = &document.objects;
    let mut devices: BTreeMap<PciAddress, PciDevice> = BTreeMap::new();
    let mut bridges: BTreeMap<RootBus, HostBridge> = BTreeMap::new();
    for (at, object) in objects.iter().enumerate() {
        if let Some(root) = root_bus(object) {
            let firmware = Known::no("hwloc XML does not say where the firmware has a host bridge");
            bridges.insert(root, HostBridge { root, firmware });
        }
        if !is_device(object) {
            continue;
        }
        match device(objects, at, machine) {
            Ok(device) => {
                let address = device.address;
                if devices.insert(address, device).is_some() {
                    let message =
                        format!("PCI device {address} is there twice; the last one was taken");
                    warnings.note(message);
                }
            }
            Err(problem) => warnings.note(format!("a PCI device was left out: {problem}")),
        }
    }
    if devices.is_empty() && bridges.is_empty() {
        machine.pci = Known::no("the XML has no PCI devices; lstopo --whole-io writes them");
        return;
    }
    for (at, object) in objects.iter().enumerate() {
        let above = ancestors(objects, at).map(|at| &objects[at].pci_busid);
        let function = above.filter_map(|busid| busid.parse().ok()).next();
        if object.kind == "OSDev"
            && !object.name.is_empty()
            && let Some(device) = function.filter(|function| devices.contains_key(function))
        {
            name(object, device, document.version, machine);
        }
    }
    machine.disks.sort_by(|a, b| a.name.cmp(&b.name));
    machine.os_devices.sort_by(|a, b| a.name.cmp(&b.name));
    machine.pci = Known::Yes(devices.into_values().collect());
    machine.host_bridges = Known::Yes(bridges.into_values().collect());
}

fn is_device(object: &Object) -> bool {
    object.kind == "PCIDev" || (object.kind == "Bridge" && object.bridge_type.starts_with("1-"))
}

/// The root bus below a host bridge: `bridge_type="0-1"`, `bridge_pci="0000:[20-3f]"`.
fn root_bus(object: &Object) -> Option<RootBus> {
    let host = object.kind == "Bridge" && object.bridge_type.starts_with("0-");
    let (domain, buses) = object.bridge_pci.split_once(":[").filter(|_| host)?;
    let (first, _) = buses.split_once('-')?;
    format!("{domain}:{first}").parse().ok()
}

fn device(objects: &[Object], at: usize, machine: &Machine) -> Result<PciDevice, ValueError> {
    let object = &objects[at];
    let address: PciAddress = object.pci_busid.parse()?;
    let (class, vendor, device) = pci_type(&object.pci_type).ok_or_else(|| {
        ValueError::malformed(&object.pci_type, "a pci_type like \"0200 [8086:10c9]\"")
    })?;
    let above = || ancestors(objects, at).map(|at| &objects[at]);
    // Without a host bridge above it, which lstopo can leave out, only the device's own bus is known.
    let root = above().find_map(root_bus).unwrap_or(address.into());
    let mut bridges = above().take_while(|object| object.kind == "Bridge");
    Ok(PciDevice {
        address,
        vendor,
        device,
        class,
        class_name: None,
        name: object.words(["PCIVendor", "PCIDevice"]),
        driver: object.info(KERNEL_DRIVER).map(str::to_owned),
        parent: bridges.find_map(|above| above.pci_busid.parse().ok()),
        root,
        node: node(object.info(KERNEL_NODE), above(), machine),
    })
}

/// Adds the name of an OS device to the machine. Version 3 has a bit for each kind, and a device several.
fn name(object: &Object, device: PciAddress, version: u32, machine: &mut Machine) {
    const BITS: &[(u64, OsDeviceKind)] = &[
        (1 << 5, OsDeviceKind::OpenFabrics),
        (1 << 4, OsDeviceKind::Network),
        (1 << 2, OsDeviceKind::Gpu),
        (1 << 3, OsDeviceKind::CoProcessor),
        (1 << 6, OsDeviceKind::Dma),
        (1 << 1, OsDeviceKind::Memory),
    ];
    let name = object.name.clone();
    let is_memory = name.starts_with("dax") || object.subtype == "CXLMem";
    let kind = match (version, object.osdev_type) {
        (_, None) => None,
        (3.., Some(bits)) => {
            let known = BITS.iter().find(|(bit, _)| bits & bit != 0);
            known.map(|(_, kind)| *kind)
        }
        (_, Some(0)) => is_memory.then_some(OsDeviceKind::Memory),
        (_, Some(1)) => Some(OsDeviceKind::Gpu),
        (_, Some(2)) => Some(OsDeviceKind::Network),
        (_, Some(3)) => Some(OsDeviceKind::OpenFabrics),
        (_, Some(4)) => Some(OsDeviceKind::Dma),
        (_, Some(5)) => Some(OsDeviceKind::CoProcessor),
        (_, Some(_)) => None,
    };
    match kind {
        Some(kind) => machine.os_devices.push(OsDevice { name, kind, device }),
        None if object.osdev_type.is_some_and(|kind| kind <= 1) => {
            machine.disks.push(Disk { name, device });
        }
        None => {}
    }
}

/// `0108 [8086:0a54] [8086:4702] 00`, in version 3 with the programming interface after it.
fn pci_type(text: &str) -> Option<(u32, u16, u16)> {
    let mut words = text.split_ascii_whitespace();
    let number = |text: &str| u16::from_str_radix(text, 16).ok();
    let class = u32::from(number(words.next()?)?);
    let id = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
    let (vendor, device) = id.split_once(':')?;
    let interface = words
        .nth(2)
        .and_then(|word| u8::from_str_radix(word, 16).ok());
    let class = class << 8 | u32::from(interface.unwrap_or(0));
    Some((class, number(vendor)?, number(device)?))
}

fn node<'a>(
    ours: Option<&str>,
    mut above: impl Iterator<Item = &'a Object>,
    machine: &Machine,
) -> Known<Option<NodeId>> {
    let listed = ours.and_then(|number| machine.node(NodeId(number.parse().ok()?)));
    if ours == Some("-1") || listed.is_some() {
        return Known::Yes(listed.map(|node| node.id));
    }
    // hwloc hangs a device below the CPUs it is near, and below the machine where it does not know better.
    let near = above.find(|object| !matches!(object.kind.as_str(), "Bridge" | "PCIDev"));
    let near = near.filter(|near| near.kind != "Machine");
    let near = near.and_then(|near| set_of::<CpuId>(&near.cpuset));
    let near = near.filter(|near| !near.is_empty());
    let is_near = |node: &&Node| {
        near.as_ref()
            .is_some_and(|near| near.is_subset(node.known_cpus()))
    };
    let mut nodes = machine.nodes.iter().filter(is_near);
    match (nodes.next(), nodes.next()) {
        (Some(node), None) if machine.nodes.len() > 1 => Known::Yes(Some(node.id)),
        _ => Known::no(
            "hwloc XML only says near which CPUs a device is, and this one is near several nodes or all",
        ),
    }
}
