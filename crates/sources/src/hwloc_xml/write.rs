//! Writes a machine as hwloc's XML. The machine's flat lists are arranged as a tree in which every object holds the CPUs of
//! those below it, and its elements written in the order in which hwloc's document type wants them.
//!
//! ```text
//! package 0-7 ─┐                          Machine 0-15
//! node 0  0-7  ├─ largest first, each ─►  └ Package 0-7 (+ node 0)
//! core    0-1  │  below the smallest        └ Core 0-1
//! cpu     0   ─┘  that holds it               └ PU 0
//! ```
//!
//! Nodes decide: a package or cache that holds a part of a node and of something else besides has no place in such a
//! tree and is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use nearfar_machine::{
    Access, Cache, CacheKind, Cpu, CpuId, CpuSet, Id, IdSet, Known, Machine, Node, NodeId, NodeSet,
    OsDeviceKind, PciAddress, PciDevice, RootBus,
};

use super::{KERNEL_DRIVER, KERNEL_NODE, KERNEL_OFFLINE, nodes};

/// hwloc's document type, and the version of the format.
const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n\
                    <topology version=\"2.0\">\n";

pub(super) fn document(machine: &Machine) -> String {
    let mut writer = Writer {
        machine,
        arranged: arrange(machine),
        pci: PciTree::of(machine),
        out: String::from(HEAD),
        written: 0,
        targets: BTreeMap::new(),
        depth: 1,
    };
    // Writing to a String cannot fail.
    let _ = writer.item(0);
    let _ = writer.distances();
    let _ = writer.performance();
    writer.out.push_str("</topology>\n");
    writer.out
}

struct Writer<'a> {
    machine: &'a Machine,
    arranged: Arranged,
    pci: PciTree<'a>,
    out: String,
    /// How many objects there are so far: the last one's `gp_index`.
    written: u64,
    /// The number of each node's object.
    targets: BTreeMap<NodeId, u64>,
    depth: usize,
}

impl Writer<'_> {
    /// Opens `<object type=...` with a number of its own; attributes and the end of the tag follow.
    fn open(&mut self, kind: &str) -> fmt::Result {
        self.written += 1;
        let number = self.written;
        self.indent();
        self.depth += 1;
        let identity = format!("gp_index=\"{number}\" id=\"obj{number}\"");
        write!(self.out, "<object type=\"{kind}\" {identity}")
    }

    fn close(&mut self) -> fmt::Result {
        self.depth -= 1;
        self.indent();
        self.out.write_str("</object>\n")
    }

    fn indent(&mut self) {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }

    fn attribute(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.out, " {name}=\"{}\"", Escaped(&value.to_string()))
    }

    fn info(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        self.indent();
        let value = value.to_string();
        let value = Escaped(&value);
        writeln!(self.out, "<info name=\"{name}\" value=\"{value}\"/>")
    }

    fn sets(&mut self, cpus: (&CpuSet, &CpuSet), nodes: (&NodeSet, &NodeSet)) -> fmt::Result {
        self.attribute("cpuset", Mask(cpus.0))?;
        self.attribute("complete_cpuset", Mask(cpus.1))?;
        self.attribute("nodeset", Mask(nodes.0))?;
        self.attribute("complete_nodeset", Mask(nodes.1))
    }

    /// An object with everything below it: memory, then CPUs, then devices.
    fn item(&mut self, at: usize) -> fmt::Result {
        let Some(item) = self.arranged.items.get_mut(at).map(std::mem::take) else {
            return Ok(());
        };
        let kind = item.kind;
        let name = name(kind, &self.machine.caches);
        self.open(name)?;
        if let Some(index) = os_index(kind) {
            self.attribute("os_index", index)?;
        }
        self.sets((&item.cpus, &item.complete), (&item.near, &item.near))?;
        match kind {
            ObjectKind::Machine => {
                self.attribute("allowed_cpuset", Mask(&item.cpus))?;
                self.attribute("allowed_nodeset", Mask(&item.near))?;
            }
            ObjectKind::Cache(_, at) => self.cache(at)?,
            ObjectKind::Cluster => self.attribute("subtype", "Cluster")?,
            ObjectKind::Book(_) => self.attribute("subtype", "Book")?,
            ObjectKind::Drawer(_) => self.attribute("subtype", "Drawer")?,
            _ => {}
        }
        if name == "Group" {
            // Without this hwloc would merge a group into an object with the same CPUs.
            self.attribute("dont_merge", "1")?;
        }
        self.out.push_str(">\n");
        if kind == ObjectKind::Machine {
            self.origin()?;
        }
        for &node in &item.nodes {
            self.node(node)?;
        }
        for &child in &item.children {
            self.item(child)?;
        }
        self.bridges(at)?;
        self.close()
    }

    fn origin(&mut self) -> fmt::Result {
        let origin = &self.machine.origin;
        let known = |value: &Known<String>| value.get().cloned();
        let infos = [
            ("OSRelease", known(&origin.kernel)),
            ("Architecture", known(&origin.architecture)),
            ("HostName", origin.host.clone()),
            ("DMIProductName", known(&origin.product)),
            ("Backend", Some("nearfar".to_owned())),
        ];
        for (name, value) in infos {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                self.info(name, value)?;
            }
        }
        let offline = self.machine.cpus.iter().filter(|cpu| cpu.is_offline());
        let offline: CpuSet = offline.map(|cpu| cpu.id).collect();
        match offline.is_empty() {
            true => Ok(()),
            false => self.info(KERNEL_OFFLINE, offline),
        }
    }

    fn cache(&mut self, at: usize) -> fmt::Result {
        let Some(cache) = self.machine.caches.get(at) else {
            return Ok(());
        };
        let kind = match cache.kind {
            CacheKind::Unified => "0",
            CacheKind::Data => "1",
            CacheKind::Instruction => "2",
        };
        self.attribute("cache_size", cache.size_bytes.get().copied().unwrap_or(0))?;
        self.attribute("depth", cache.level)?;
        self.attribute("cache_linesize", cache.line_bytes.unwrap_or(0))?;
        // The kernel's 0 ways are hwloc's -1, fully associative; hwloc's 0 is unknown.
        let ways = match cache.ways {
            Some(0) => -1,
            ways => i64::from(ways.unwrap_or(0)),
        };
        self.attribute("cache_associativity", ways)?;
        self.attribute("cache_type", kind)
    }

    /// A node below the caches before its memory.
    fn node(&mut self, id: NodeId) -> fmt::Result {
        let Some(node) = self.machine.node(id) else {
            return Ok(());
        };
        let online = &self.machine.cpu_states.online;
        let cpus = node.known_cpus().intersection(online);
        let own = IdSet::single(id);
        for cache in node.memory_side_caches.iter().rev() {
            self.open("MemCache")?;
            self.sets((&cpus, node.known_cpus()), (&own, &own))?;
            self.attribute("cache_size", cache.size_bytes)?;
            self.attribute("depth", cache.level)?;
            self.attribute("cache_linesize", cache.line_bytes.unwrap_or(0))?;
            self.out.push_str(">\n");
        }
        self.open("NUMANode")?;
        self.targets.insert(id, self.written);
        self.attribute("os_index", id)?;
        self.sets((&cpus, node.known_cpus()), (&own, &own))?;
        // hwloc writes no 0, and reads it: without it the size would be unknown.
        if let Some(bytes) = node.total_bytes() {
            self.attribute("local_memory", bytes)?;
        }
        self.out.push_str(">\n");
        self.pages(node)?;
        match node.cpus.get() {
            Some(cpus) => self.info(nodes::KERNEL_CPUS, cpus)?,
            None => self.info(nodes::KERNEL_CPUS, nodes::UNKNOWN)?,
        }
        self.close()?;
        let mut caches = node.memory_side_caches.iter();
        caches.try_for_each(|_| self.close())
    }

    fn pages(&mut self, node: &Node) -> fmt::Result {
        let memory = node.memory.get();
        let pools = memory.map_or(&[][..], |memory| &memory.huge_pages);
        if pools.is_empty() {
            return Ok(());
        }
        // hwloc counts base pages too; their size is unknown here, and 0 of the smallest kind is harmless.
        let pools = pools.iter().map(|pool| (pool.page_bytes, pool.total));
        for (size, count) in std::iter::once((4096, 0)).chain(pools) {
            self.indent();
            let size = format!("size=\"{size}\"");
            writeln!(self.out, "<page_type {size} count=\"{count}\"/>")?;
        }
        Ok(())
    }

    /// The host bridges whose devices are near the object at `at`.
    fn bridges(&mut self, at: usize) -> fmt::Result {
        let host = |node: Option<NodeId>| self.arranged.hosts.get(&node?).copied();
        let roots = self.pci.roots.iter();
        let roots = roots.filter(|(_, node)| host(**node).unwrap_or(0) == at);
        let roots: Vec<RootBus> = roots.map(|(root, _)| *root).collect();
        for root in roots {
            let devices = self.pci.on(root).to_vec();
            let buses = self.pci.buses(&devices, 0);
            let last = buses.map_or(root.bus, |(_, last)| last.max(root.bus));
            self.bridge("0-1", 0, root.domain, (root.bus, last))?;
            self.out.push_str(">\n");
            for device in devices {
                self.device(device, 1)?;
            }
            self.close()?;
        }
        Ok(())
    }

    fn bridge(&mut self, kind: &str, depth: usize, domain: u32, buses: (u8, u8)) -> fmt::Result {
        self.open("Bridge")?;
        self.attribute("bridge_type", kind)?;
        self.attribute("depth", depth)?;
        let (first, last) = buses;
        let buses = format!("{domain:04x}:[{first:02x}-{last:02x}]");
        self.attribute("bridge_pci", buses)
    }

    fn device(&mut self, device: &PciDevice, depth: usize) -> fmt::Result {
        let behind = match depth < DEEPEST_BRIDGE {
            true => self.pci.behind(device.address).to_vec(),
            false => Vec::new(),
        };
        let buses = self.pci.buses(&behind, depth);
        match buses.filter(|_| device.is_bridge()) {
            Some(buses) => self.bridge("1-1", depth, device.address.domain, buses)?,
            None => self.open("PCIDev")?,
        }
        self.attribute("pci_busid", device.address)?;
        let (class, interface) = (device.class >> 8 & 0xffff, device.class & 0xff);
        let (vendor, number) = (device.vendor, device.device);
        let words =
            format!("{class:04x} [{vendor:04x}:{number:04x}] [0000:0000] 00 {interface:02x}");
        self.attribute("pci_type", words)?;
        self.attribute("pci_link_speed", "0.000000")?;
        self.out.push_str(">\n");
        if let Some(name) = &device.name {
            self.info("PCIDevice", name)?;
        }
        if let Some(driver) = &device.driver {
            self.info(KERNEL_DRIVER, driver)?;
        }
        match device.node {
            Known::Yes(Some(node)) => self.info(KERNEL_NODE, node)?,
            Known::Yes(None) => self.info(KERNEL_NODE, "-1")?,
            Known::No { .. } => {}
        }
        for (name, kind) in self.pci.names(device.address).to_vec() {
            self.open("OSDev")?;
            self.attribute("name", name)?;
            if kind == "0" && name.starts_with("mem") {
                // Not a disk.
                self.attribute("subtype", "CXLMem")?;
            }
            self.attribute("osdev_type", kind)?;
            self.out.push_str(">\n");
            self.close()?;
        }
        for device in behind {
            self.device(device, depth + 1)?;
        }
        self.close()
    }

    /// How fast each node is from CPUs near it: class 1 counts only these, class 0 any initiator, as hwloc takes them.
    fn performance(&mut self) -> fmt::Result {
        for (name, flags, value) in ATTRIBUTES {
            let mut rows = Vec::new();
            for (node, target) in &self.targets {
                let access = self.machine.node(*node);
                let access = access.and_then(|it| it.access.iter().max_by_key(|it| it.class));
                let Some((access, value)) = access.and_then(|it| Some((it, value(it)?))) else {
                    continue;
                };
                let initiators = access.initiators.iter();
                let initiators = initiators.filter_map(|id| self.machine.node(id));
                let near: CpuSet = initiators.map(Node::known_cpus).collect();
                let near = near.intersection(&self.machine.cpu_states.online);
                if !near.is_empty() {
                    rows.push((*target, value, near));
                }
            }
            if rows.is_empty() {
                continue;
            }
            writeln!(self.out, "  <memattr name=\"{name}\" flags=\"{flags}\">")?;
            for (target, value, near) in rows {
                writeln!(
                    self.out,
                    "    <memattr_value target_obj_type=\"NUMANode\" target_obj_gp_index=\"{target}\" value=\"{value}\" \
                     initiator_cpuset=\"{}\"/>",
                    Mask(&near)
                )?;
            }
            self.out.push_str("  </memattr>\n");
        }
        Ok(())
    }

    /// The distances between online nodes; nothing where one is missing, since hwloc has no hole.
    fn distances(&mut self) -> fmt::Result {
        let Some(table) = self.machine.distances.get() else {
            return Ok(());
        };
        let nodes: Vec<NodeId> = self.machine.online_nodes().map(|node| node.id).collect();
        let row = |&from: &NodeId| nodes.iter().map(move |&to| table.get(from, to));
        let values: Option<Vec<_>> = nodes.iter().flat_map(row).collect();
        let Some(values) = values.filter(|_| nodes.len() > 1) else {
            return Ok(());
        };
        writeln!(
            self.out,
            "  <distances2 type=\"NUMANode\" nbobjs=\"{}\" kind=\"5\" name=\"NUMALatency\" indexing=\"os\">",
            nodes.len()
        )?;
        let indexes: String = nodes.iter().map(|node| format!("{node} ")).collect();
        let length = indexes.len();
        writeln!(
            self.out,
            "    <indexes length=\"{length}\">{indexes}</indexes>"
        )?;
        for row in values.chunks(nodes.len()) {
            let row: String = row.iter().map(|distance| format!("{distance} ")).collect();
            let length = row.len();
            writeln!(
                self.out,
                "    <u64values length=\"{length}\">{row}</u64values>"
            )?;
        }
        self.out.push_str("  </distances2>\n");
        Ok(())
    }
}

/// A memory attribute: hwloc's name, its flags and where a machine has it.
type Attribute = (&'static str, u32, fn(&Access) -> Option<u64>);

/// Flags of hwloc/memattrs.h: 1 higher is better, 2 lower is better, 4 from CPUs.
const ATTRIBUTES: [Attribute; 4] = [
    ("ReadBandwidth", 5, |it| it.read_bandwidth_mib_per_s),
    ("WriteBandwidth", 5, |it| it.write_bandwidth_mib_per_s),
    ("ReadLatency", 6, |it| it.read_latency_ns),
    ("WriteLatency", 6, |it| it.write_latency_ns),
];

fn name(kind: ObjectKind, caches: &[Cache]) -> &'static str {
    match kind {
        ObjectKind::Machine => "Machine",
        ObjectKind::Package(_) => "Package",
        ObjectKind::Die => "Die",
        ObjectKind::Group | ObjectKind::Cluster | ObjectKind::Book(_) | ObjectKind::Drawer(_) => {
            "Group"
        }
        ObjectKind::Core(_) => "Core",
        ObjectKind::Cpu(_) => "PU",
        ObjectKind::Cache(_, at) => match caches.get(at).map(|cache| (cache.level, cache.kind)) {
            Some((1, CacheKind::Instruction)) => "L1iCache",
            Some((2, CacheKind::Instruction)) => "L2iCache",
            Some((_, CacheKind::Instruction)) => "L3iCache",
            Some((1, _)) => "L1Cache",
            Some((2, _)) => "L2Cache",
            Some((4, _)) => "L4Cache",
            Some((5, _)) => "L5Cache",
            _ => "L3Cache",
        },
    }
}

/// hwloc's `os_index`; a number that the firmware does not know (-1) is left out.
fn os_index(kind: ObjectKind) -> Option<i64> {
    match kind {
        ObjectKind::Machine => Some(0),
        ObjectKind::Drawer(number)
        | ObjectKind::Book(number)
        | ObjectKind::Package(number)
        | ObjectKind::Core(number) => Some(number).filter(|&number| number >= 0),
        ObjectKind::Cpu(cpu) => Some(cpu.0.into()),
        ObjectKind::Die | ObjectKind::Group | ObjectKind::Cache(..) | ObjectKind::Cluster => None,
    }
}

/// A set as hwloc writes it: words of 32 bits, most significant first, `0x00000001,,0x0`; a word that is zero is left
/// empty unless it is the last.
struct Mask<'a, T>(&'a IdSet<T>);

impl<T: Id> fmt::Display for Mask<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORD: u32 = 32;
        let Some(last) = self.0.last() else {
            return f.write_str("0x0");
        };
        let mut words = vec![0u32; (last.number() / WORD) as usize + 1];
        for id in self.0.iter() {
            if let Some(word) = words.get_mut((id.number() / WORD) as usize) {
                *word |= 1 << (id.number() % WORD);
            }
        }
        for (at, word) in words.iter().enumerate().rev() {
            match (word, at) {
                (0, 0) => f.write_str("0x0")?,
                (0, _) => {}
                _ => write!(f, "0x{word:08x}")?,
            }
            f.write_str(if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Text inside of an attribute. Control characters, which XML cannot hold, are left out.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&apos;")?,
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// How deep objects may nest. Real machines stay below 12; a hostile snapshot may list any number of caches.
const DEEPEST: usize = 64;

/// What an object of the tree is. The order is that of objects with the same CPUs, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum ObjectKind {
    #[default]
    Machine,
    Drawer(i64),
    Book(i64),
    Package(i64),
    Die,
    /// Holds the CPUs of a node where nothing else does.
    Group,
    /// By its position in the list of caches; larger levels first.
    Cache(std::cmp::Reverse<u32>, usize),
    Cluster,
    Core(i64),
    Cpu(CpuId),
}

/// An object with its place in the tree.
#[derive(Default)]
pub(super) struct Item {
    pub kind: ObjectKind,
    /// Online CPUs below it.
    pub cpus: CpuSet,
    /// The same and the offline CPUs of the nodes at or below it.
    pub complete: CpuSet,
    /// The nodes that are near all of its CPUs, and those near some of them.
    pub near: NodeSet,
    /// The nodes that hang from it.
    pub nodes: Vec<NodeId>,
    pub children: Vec<usize>,
}

impl Item {
    fn new(kind: ObjectKind, cpus: CpuSet) -> Self {
        Self {
            kind,
            complete: cpus.clone(),
            cpus,
            ..Self::default()
        }
    }
}

/// The tree; the first item is the machine.
struct Arranged {
    pub items: Vec<Item>,
    /// The item that each online node hangs from.
    pub hosts: BTreeMap<NodeId, usize>,
}

/// Arranges the online part of a machine.
fn arrange(machine: &Machine) -> Arranged {
    let online = &machine.cpu_states.online;
    let mut candidates = candidates(machine);
    let online_cpus = |node: &Node| (node.id, node.known_cpus().intersection(online));
    let node_sets: BTreeMap<NodeId, CpuSet> = machine.online_nodes().map(online_cpus).collect();
    let mut distinct: Vec<&CpuSet> = node_sets.values().filter(|set| !set.is_empty()).collect();
    distinct.sort_by_key(|set| (std::cmp::Reverse(set.len()), set.first()));
    distinct.dedup();
    let fits = |node: &CpuSet, set: &CpuSet| {
        !node.intersects(set) || node.is_subset(set) || set.is_subset(node)
    };
    candidates.retain(|(kind, set)| {
        matches!(kind, ObjectKind::Cpu(_)) || distinct.iter().all(|node| fits(node, set))
    });
    for set in distinct {
        let taken = set == online || candidates.iter().any(|(_, other)| other == set);
        if !taken {
            candidates.push((ObjectKind::Group, set.clone()));
        }
    }
    candidates.sort_by_cached_key(|(kind, set)| (std::cmp::Reverse(set.len()), *kind, set.first()));
    let mut arranged = nest(online.clone(), candidates);
    arranged.hang_nodes(machine, &node_sets);
    arranged.fill(0, &NodeSet::new());
    arranged
}

/// Everything that has CPUs: its kind and its online CPUs.
fn candidates(machine: &Machine) -> Vec<(ObjectKind, CpuSet)> {
    let online: Vec<&Cpu> = machine.cpus.iter().filter(|cpu| cpu.is_online()).collect();
    let mut groups: BTreeMap<(ObjectKind, Option<CpuId>), CpuSet> = BTreeMap::new();
    for cpu in &online {
        let mut add = |kind: Option<ObjectKind>, leader: Option<CpuId>| {
            if let Some(kind) = kind {
                groups.entry((kind, leader)).or_default().insert(cpu.id);
            }
        };
        add(cpu.drawer.map(ObjectKind::Drawer), None);
        add(cpu.book.map(ObjectKind::Book), None);
        // The kernel's number may be the same everywhere; the first CPU distinguishes packages.
        let package = cpu.package.or(cpu.package_leader.map(|_| -1));
        add(package.map(ObjectKind::Package), cpu.package_leader);
        add(cpu.die.map(|_| ObjectKind::Die), cpu.die);
        add(cpu.cluster.map(|_| ObjectKind::Cluster), cpu.cluster);
        // The number of a core is that of its first CPU.
        let leader = cpu.core.and_then(|leader| machine.cpu(leader));
        let number = leader.and_then(|leader| leader.kernel_core_id);
        add(
            cpu.core.map(|_| ObjectKind::Core(number.unwrap_or(-1))),
            cpu.core,
        );
        add(Some(ObjectKind::Cpu(cpu.id)), None);
    }
    let groups = groups.into_iter();
    let mut found: Vec<_> = groups.map(|((kind, _), set)| (kind, set)).collect();
    let caches = machine.caches.iter().enumerate().map(|(at, cache)| {
        let kind = ObjectKind::Cache(std::cmp::Reverse(rank(cache)), at);
        (kind, cache.cpus.intersection(&machine.cpu_states.online))
    });
    found.extend(caches.filter(|(_, set)| !set.is_empty()));
    found
}

/// Nearer to the core is lower; instruction caches are below the data caches of their level, as in hwloc.
fn rank(cache: &Cache) -> u32 {
    let data = u32::from(cache.kind != nearfar_machine::CacheKind::Instruction);
    cache.level.saturating_mul(2).saturating_add(data)
}

/// Puts each candidate, largest first, below the smallest item that holds its CPUs. What crosses an item is left out.
fn nest(online: CpuSet, candidates: Vec<(ObjectKind, CpuSet)>) -> Arranged {
    let mut innermost: BTreeMap<CpuId, usize> = online.iter().map(|cpu| (cpu, 0)).collect();
    let mut items = vec![Item::new(ObjectKind::Machine, online)];
    let mut depths = vec![0usize];
    for (kind, set) in candidates {
        let holders = set.iter().filter_map(|cpu| innermost.get(&cpu).copied());
        let holders: BTreeSet<usize> = holders.collect();
        let Some(holder) = holders.first().copied().filter(|_| holders.len() == 1) else {
            continue;
        };
        let at = items.len();
        let depth = depths.get(holder).copied().unwrap_or(0) + 1;
        if depth > DEEPEST && !matches!(kind, ObjectKind::Cpu(_)) {
            continue;
        }
        depths.push(depth);
        if let Some(holder) = items.get_mut(holder) {
            holder.children.push(at);
        }
        innermost.extend(set.iter().map(|cpu| (cpu, at)));
        items.push(Item::new(kind, set));
    }
    Arranged {
        items,
        hosts: BTreeMap::new(),
    }
}

impl Arranged {
    /// Hangs each online node from the outermost item with exactly its CPUs, or from the machine.
    fn hang_nodes(&mut self, machine: &Machine, sets: &BTreeMap<NodeId, CpuSet>) {
        let mut by_first: BTreeMap<Option<CpuId>, Vec<usize>> = BTreeMap::new();
        let items = self.items.iter().enumerate();
        for (at, item) in items.filter(|(_, item)| !matches!(item.kind, ObjectKind::Cpu(_))) {
            by_first.entry(item.cpus.first()).or_default().push(at);
        }
        for node in machine.online_nodes() {
            let Some(set) = sets.get(&node.id) else {
                continue;
            };
            let same = by_first.get(&set.first()).into_iter().flatten().copied();
            let same = same.filter(|&at| self.items.get(at).is_some_and(|it| it.cpus == *set));
            let host = same.min().unwrap_or(0);
            self.hosts.insert(node.id, host);
            if let Some(item) = self.items.get_mut(host) {
                item.nodes.push(node.id);
                item.complete = item.complete.union(node.known_cpus());
            }
        }
        // CPUs that are offline and of no node belong to the machine alone.
        if let Some(root) = self.items.first_mut() {
            root.complete = machine.cpus.iter().map(|cpu| cpu.id).collect();
        }
    }

    /// Gives each item the nodes near it, going down, and the offline CPUs below it, going up; sorts children.
    fn fill(&mut self, at: usize, above: &NodeSet) -> (NodeSet, CpuSet) {
        let Some(item) = self.items.get_mut(at) else {
            return Default::default();
        };
        let mut near = above.union(&item.nodes.iter().copied().collect());
        let mut complete = item.complete.clone();
        let mut children = std::mem::take(&mut item.children);
        let from_above = near.clone();
        for &child in &children {
            let (below, offline) = self.fill(child, &from_above);
            near = near.union(&below);
            complete = complete.union(&offline);
        }
        children.sort_by_key(|&child| self.items.get(child).and_then(|item| item.cpus.first()));
        if let Some(item) = self.items.get_mut(at) {
            (item.near, item.complete, item.children) = (near.clone(), complete.clone(), children);
        }
        (near, complete)
    }
}

/// How deep bridges may nest; real ones stay below ten, and a hostile snapshot may hold a chain without end.
const DEEPEST_BRIDGE: usize = 64;

/// The devices of a machine, from above.
struct PciTree<'a> {
    /// The root buses with the node that all of their devices agree on.
    pub roots: BTreeMap<RootBus, Option<NodeId>>,
    top: BTreeMap<RootBus, Vec<&'a PciDevice>>,
    below: BTreeMap<PciAddress, Vec<&'a PciDevice>>,
    names: BTreeMap<PciAddress, Vec<(&'a str, &'static str)>>,
}

impl<'a> PciTree<'a> {
    pub(super) fn of(machine: &'a Machine) -> Self {
        let devices = || machine.pci.items().iter();
        let bridges = machine.host_bridges.items().iter();
        let bridges = bridges.map(|bridge| bridge.root);
        let mut tree = Self {
            roots: bridges.map(|root| (root, None)).collect(),
            top: BTreeMap::new(),
            below: BTreeMap::new(),
            names: names(machine),
        };
        for device in devices() {
            let parent = device.parent;
            match parent.filter(|&parent| machine.pci_device(parent).is_some()) {
                Some(parent) => tree.below.entry(parent).or_default().push(device),
                None => tree.top.entry(device.root).or_default().push(device),
            }
            tree.roots.entry(device.root).or_default();
        }
        for (&root, agreed) in &mut tree.roots {
            let devices = devices().filter(|device| device.root == root);
            let mut nodes = devices.map(|device| device.node.get().copied().flatten());
            let first = nodes.next().flatten();
            *agreed = first.filter(|_| nodes.all(|node| node == first));
        }
        tree
    }

    /// Devices on the root bus itself.
    pub(super) fn on(&self, root: RootBus) -> &[&'a PciDevice] {
        self.top.get(&root).map_or(&[], Vec::as_slice)
    }

    /// Devices behind a bridge.
    pub(super) fn behind(&self, bridge: PciAddress) -> &[&'a PciDevice] {
        self.below.get(&bridge).map_or(&[], Vec::as_slice)
    }

    /// What the operating system calls a device, with hwloc's number for the kind in version 2.
    pub(super) fn names(&self, device: PciAddress) -> &[(&'a str, &'static str)] {
        self.names.get(&device).map_or(&[], Vec::as_slice)
    }

    /// The lowest and highest bus among devices and what is behind them.
    pub(super) fn buses(&self, devices: &[&PciDevice], depth: usize) -> Option<(u8, u8)> {
        let addresses = devices.iter().map(|device| device.address);
        let own = addresses.clone().map(|address| (address.bus, address.bus));
        let further = addresses.filter(|_| depth < DEEPEST_BRIDGE);
        let further = further.filter_map(|address| self.buses(self.behind(address), depth + 1));
        let all = own.chain(further);
        all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

fn names(machine: &Machine) -> BTreeMap<PciAddress, Vec<(&str, &'static str)>> {
    let mut names: BTreeMap<PciAddress, Vec<_>> = BTreeMap::new();
    let mut add = |device, name, kind| names.entry(device).or_default().push((name, kind));
    for disk in &machine.disks {
        add(disk.device, disk.name.as_str(), "0");
    }
    for network in machine.networks.items() {
        if let Some(device) = network.device {
            add(device, network.name.as_str(), "2");
        }
    }
    for device in &machine.os_devices {
        let kind = match device.kind {
            OsDeviceKind::Memory => "0",
            OsDeviceKind::Gpu => "1",
            OsDeviceKind::Network => "2",
            OsDeviceKind::OpenFabrics => "3",
            OsDeviceKind::Dma => "4",
            OsDeviceKind::CoProcessor => "5",
        };
        add(device.device, device.name.as_str(), kind);
    }
    for subsystem in machine.nvme.items() {
        // A namespace that is reached through several controllers is shown at the first.
        let mut controllers = subsystem.controllers.iter();
        let Some(device) = controllers.find_map(|controller| controller.device) else {
            continue;
        };
        for namespace in &subsystem.namespaces {
            add(device, namespace.name.as_str(), "0");
        }
    }
    names
}
