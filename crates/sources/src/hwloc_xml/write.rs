//! Writes the elements, in the order in which hwloc's document type wants them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use nearfar_machine::{
    Access, Cache, CacheKind, CpuSet, Id, IdSet, Known, Machine, Node, NodeId, NodeSet, PciDevice,
    RootBus,
};

use super::arrange::{Arranged, Kind, arrange};
use super::pci_tree::{DEEPEST, PciTree};
use super::{build, nodes, pci};

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
        let (number, indent) = (self.written, self.depth * 2);
        self.depth += 1;
        write!(
            self.out,
            "{:indent$}<object type=\"{kind}\" gp_index=\"{number}\" id=\"obj{number}\"",
            ""
        )
    }

    fn close(&mut self) -> fmt::Result {
        self.depth -= 1;
        let indent = self.depth * 2;
        writeln!(self.out, "{:indent$}</object>", "")
    }

    fn attribute(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        let value = value.to_string();
        write!(self.out, " {name}=\"{}\"", Escaped(&value))
    }

    fn info(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        let (indent, value) = (self.depth * 2, value.to_string());
        writeln!(
            self.out,
            "{:indent$}<info name=\"{name}\" value=\"{}\"/>",
            "",
            Escaped(&value)
        )
    }

    fn sets(&mut self, cpus: (&CpuSet, &CpuSet), nodes: (&NodeSet, &NodeSet)) -> fmt::Result {
        write!(
            self.out,
            " cpuset=\"{}\" complete_cpuset=\"{}\"",
            Mask(cpus.0),
            Mask(cpus.1)
        )?;
        write!(
            self.out,
            " nodeset=\"{}\" complete_nodeset=\"{}\"",
            Mask(nodes.0),
            Mask(nodes.1)
        )
    }

    /// An object with everything below it: memory, then CPUs, then devices.
    fn item(&mut self, at: usize) -> fmt::Result {
        let Some(item) = self.arranged.items.get_mut(at).map(std::mem::take) else {
            return Ok(());
        };
        let kind = item.kind;
        self.open(name(kind, &self.machine.caches))?;
        if let Some(index) = os_index(kind) {
            self.attribute("os_index", index)?;
        }
        self.sets((&item.cpus, &item.complete), (&item.near, &item.near))?;
        match kind {
            Kind::Machine => {
                self.attribute("allowed_cpuset", Mask(&item.cpus))?;
                self.attribute("allowed_nodeset", Mask(&item.near))?;
            }
            Kind::Cache(_, at) => self.cache(at)?,
            Kind::Cluster => self.attribute("subtype", "Cluster")?,
            Kind::Book(_) => self.attribute("subtype", "Book")?,
            Kind::Drawer(_) => self.attribute("subtype", "Drawer")?,
            _ => {}
        }
        if matches!(
            kind,
            Kind::Group | Kind::Cluster | Kind::Book(_) | Kind::Drawer(_)
        ) {
            // Without this hwloc would merge a group into an object with the same CPUs.
            self.attribute("dont_merge", "1")?;
        }
        self.out.push_str(">\n");
        if kind == Kind::Machine {
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
            false => self.info(build::KERNEL_OFFLINE, offline),
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
        let ways = cache
            .ways
            .map_or(0, |ways| if ways == 0 { -1 } else { i64::from(ways) });
        self.attribute("cache_associativity", ways)?;
        self.attribute("cache_type", kind)
    }

    /// A node below the caches before its memory.
    fn node(&mut self, id: NodeId) -> fmt::Result {
        let Some(node) = self.machine.node(id) else {
            return Ok(());
        };
        let cpus = node
            .known_cpus()
            .intersection(&self.machine.cpu_states.online);
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
        node.memory_side_caches
            .iter()
            .try_for_each(|_| self.close())
    }

    fn pages(&mut self, node: &Node) -> fmt::Result {
        let pools = node
            .memory
            .get()
            .map_or(&[][..], |memory| &memory.huge_pages);
        if pools.is_empty() {
            return Ok(());
        }
        // hwloc counts base pages too; their size is unknown here, and 0 of the smallest kind is harmless.
        let indent = self.depth * 2;
        writeln!(
            self.out,
            "{:indent$}<page_type size=\"4096\" count=\"0\"/>",
            ""
        )?;
        pools.iter().try_for_each(|pool| {
            let (size, count) = (pool.page_bytes, pool.total);
            writeln!(
                self.out,
                "{:indent$}<page_type size=\"{size}\" count=\"{count}\"/>",
                ""
            )
        })
    }

    /// The host bridges whose devices are near the object at `at`.
    fn bridges(&mut self, at: usize) -> fmt::Result {
        let near = |node: &Option<NodeId>| {
            node.and_then(|node| self.arranged.hosts.get(&node))
                .copied()
                .unwrap_or(0)
        };
        let roots: Vec<RootBus> = self
            .pci
            .roots
            .iter()
            .filter(|(_, node)| near(node) == at)
            .map(|(root, _)| *root)
            .collect();
        for root in roots {
            let devices = self.pci.on(root).to_vec();
            let last = self
                .pci
                .buses(&devices, 0)
                .map_or(root.bus, |(_, last)| last.max(root.bus));
            self.open("Bridge")?;
            self.attribute("bridge_type", "0-1")?;
            self.attribute("depth", 0)?;
            self.attribute(
                "bridge_pci",
                format_args!("{:04x}:[{:02x}-{last:02x}]", root.domain, root.bus),
            )?;
            self.out.push_str(">\n");
            devices
                .iter()
                .try_for_each(|device| self.device(device, 1))?;
            self.close()?;
        }
        Ok(())
    }

    fn device(&mut self, device: &PciDevice, depth: usize) -> fmt::Result {
        let behind = if depth < DEEPEST {
            self.pci.behind(device.address).to_vec()
        } else {
            Vec::new()
        };
        let buses = self.pci.buses(&behind, depth);
        match buses.filter(|_| device.is_bridge()) {
            Some((first, last)) => {
                self.open("Bridge")?;
                self.attribute("bridge_type", "1-1")?;
                self.attribute("depth", depth)?;
                let domain = device.address.domain;
                self.attribute(
                    "bridge_pci",
                    format_args!("{domain:04x}:[{first:02x}-{last:02x}]"),
                )?;
            }
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
            self.info(pci::DRIVER, driver)?;
        }
        match device.node {
            Known::Yes(Some(node)) => self.info(pci::KERNEL_NODE, node)?,
            Known::Yes(None) => self.info(pci::KERNEL_NODE, "-1")?,
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
        behind
            .iter()
            .try_for_each(|device| self.device(device, depth + 1))?;
        self.close()
    }

    /// How fast each node is from CPUs near it: class 1 counts only these, class 0 any initiator, as hwloc takes them.
    fn performance(&mut self) -> fmt::Result {
        for (name, flags, value) in ATTRIBUTES {
            let mut rows = Vec::new();
            for (node, target) in &self.targets {
                let access = self
                    .machine
                    .node(*node)
                    .map_or(&[][..], |node| &node.access);
                let access = access.iter().max_by_key(|access| access.class);
                let Some((access, value)) = access.and_then(|it| Some((it, value(it)?))) else {
                    continue;
                };
                let initiators = access
                    .initiators
                    .iter()
                    .filter_map(|id| self.machine.node(id));
                let near = initiators.fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
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
        let pairs = nodes
            .iter()
            .flat_map(|&from| nodes.iter().map(move |&to| table.get(from, to)));
        let Some(values) = pairs
            .collect::<Option<Vec<_>>>()
            .filter(|_| nodes.len() > 1)
        else {
            return Ok(());
        };
        writeln!(
            self.out,
            "  <distances2 type=\"NUMANode\" nbobjs=\"{}\" kind=\"5\" name=\"NUMALatency\" indexing=\"os\">",
            nodes.len()
        )?;
        let indexes: String = nodes.iter().map(|node| format!("{node} ")).collect();
        writeln!(
            self.out,
            "    <indexes length=\"{}\">{indexes}</indexes>",
            indexes.len()
        )?;
        for row in values.chunks(nodes.len()) {
            let row: String = row.iter().map(|distance| format!("{distance} ")).collect();
            writeln!(
                self.out,
                "    <u64values length=\"{}\">{row}</u64values>",
                row.len()
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
    ("ReadBandwidth", 5, |access| access.read_bandwidth_mib_per_s),
    ("WriteBandwidth", 5, |access| {
        access.write_bandwidth_mib_per_s
    }),
    ("ReadLatency", 6, |access| access.read_latency_ns),
    ("WriteLatency", 6, |access| access.write_latency_ns),
];

fn name(kind: Kind, caches: &[Cache]) -> &'static str {
    match kind {
        Kind::Machine => "Machine",
        Kind::Package(_) => "Package",
        Kind::Die => "Die",
        Kind::Group | Kind::Cluster | Kind::Book(_) | Kind::Drawer(_) => "Group",
        Kind::Core(_) => "Core",
        Kind::Cpu(_) => "PU",
        Kind::Cache(_, at) => match caches.get(at).map(|cache| (cache.level, cache.kind)) {
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
fn os_index(kind: Kind) -> Option<i64> {
    match kind {
        Kind::Machine => Some(0),
        Kind::Drawer(number) | Kind::Book(number) | Kind::Package(number) | Kind::Core(number) => {
            Some(number).filter(|&number| number >= 0)
        }
        Kind::Cpu(cpu) => Some(cpu.0.into()),
        Kind::Die | Kind::Group | Kind::Cache(..) | Kind::Cluster => None,
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
