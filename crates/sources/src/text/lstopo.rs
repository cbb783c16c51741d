//! What `lstopo` and `hwloc-ls` print on a terminal.
//!
//! ```text
//! Machine (126GB total)
//!   Package L#0
//!     NUMANode L#0 (P#0 63GB)                         hwloc 2: next to the CPUs that are near it
//!     L3 L#0 (20MB) + L2 L#0 (256KB) + Core L#0       several objects in a line, each in the one before
//!       PU L#0 (P#0)
//!       PU L#1 (P#16)
//!     L3Cache L#0 (size=20MiB linesize=64 ways=20)    with -v
//!   NUMANode L#1 (P#1 63GB) + Socket L#1              hwloc 1: around its CPUs
//! ```
//!
//! Indentation says what is in what. Sizes are rounded, so those of memory are not taken. With `-l` the kernel's numbers
//! (`P#`) are missing, and nothing can be read.

use std::collections::BTreeMap;

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, Known, MAX_NUMBER, Node, NodeId, size,
};

use super::lines::{Line, expression};
use super::{Kind, Reading, Start};

pub(super) const KIND: Kind = Kind {
    name: "lstopo",
    has: "nodes, their CPUs, cores, packages and caches",
    starts: &[Start::before(
        &["Machine"],
        r"(?:^|\W)(Machine(?: L#\d+)?(?: P#\d+)? \(.*\).*)$",
        r"^\s*\w+(?:\(\w+\))? (?:[LP]#|.*\()",
    )],
    goes_on: r"[LP]#\d|^\s*(?:PCI|HostBridge|Net|Block|OpenFabrics|GPU|CoProc|Misc|\[)",
    read,
};

/// Deeper than any machine, in lines, and in objects of a line.
const DEEPEST: usize = 64;
const LONGEST_CHAIN: usize = 16;
/// Why nothing is known about what is in what.
const FLAT: &str = "lines of lstopo lost their indentation, which says what is near what";
/// More than the largest machine has CPUs, cores, caches and devices together.
const MOST_OBJECTS: usize = 400_000;

struct PrintedObject {
    kind: String,
    parent: Option<usize>,
    number: Option<u32>,
    /// What the parentheses say.
    about: String,
    cpus: CpuSet,
}

impl PrintedObject {
    /// `size=16MiB`, as -v prints it.
    fn named(&self, name: &str) -> Option<&str> {
        let mut words = self.about.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let (objects, is_flat) = objects(lines, reading);
    let is = |name: &'static str| objects.iter().filter(move |object| object.kind == name);
    if is("PU").all(|pu| pu.cpus.is_empty()) {
        let missing =
            "lstopo's lines with the kernel's numbers of CPUs (\"PU L#0 (P#0)\") are missing";
        return Err(missing.to_owned());
    }
    let mut cpus: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for pu in is("PU") {
        let Some(id) = pu.cpus.first() else { continue };
        let mut cpu = Cpu::new(id, None);
        let mut above = pu.parent.filter(|_| !is_flat);
        while let Some(object) = above.and_then(|at| objects.get(at)) {
            let leader = object.cpus.first();
            match object.kind.as_str() {
                "Core" => cpu.core = leader,
                "Die" => cpu.die = leader,
                "Package" | "Socket" => {
                    (cpu.package_leader, cpu.package) = (leader, object.number.map(i64::from));
                }
                _ => {}
            }
            above = object.parent;
        }
        cpus.insert(id, cpu);
    }
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    // A node above others, or next to another, is near the CPUs of those.
    let mut near: Vec<(NodeId, &PrintedObject, CpuSet)> = is("NUMANode")
        .filter_map(|object| {
            let mut around = object;
            while around.cpus.is_empty()
                && ["NUMANode", "MemCache"].contains(&around.kind.as_str())
                && let Some(parent) = around.parent
            {
                around = &objects[parent];
            }
            Some((NodeId(object.number?), object, around.cpus.clone()))
        })
        .collect();
    near.sort_by_key(|(_, _, near)| near.len());
    let mut taken = CpuSet::new();
    for (id, object, near) in near {
        let cpus = if is_flat {
            Known::no(FLAT)
        } else if near.is_empty() {
            Known::no("lstopo shows no CPUs next to it")
        } else if near.intersection(&taken).is_empty() {
            Known::Yes(near.clone())
        } else {
            Known::no(format!(
                "lstopo shows it near CPUs {near}, which are another node's, and not whether it has CPUs"
            ))
        };
        taken = taken.union(&near);
        let mut node = reading.node(id, cpus);
        let last = object.about.split_whitespace().last();
        let size = object.named("local").or(last).unwrap_or_default();
        node.memory = Known::no(match size.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("lstopo prints {size}, rounded"),
            false => "lstopo prints no size".to_owned(),
        });
        nodes.entry(id).or_insert(node);
    }
    let machine = &mut reading.machine;
    machine.cpus = cpus.into_values().collect();
    machine.nodes = nodes.into_values().collect();
    let cache = |object: &PrintedObject| {
        let (level, kind) = cache_kind(&object.kind)?;
        Some(Cache {
            level,
            kind,
            cpus: Some(object.cpus.clone()).filter(|cpus| !cpus.is_empty())?,
            size_bytes: Known::from_option(
                size::parse(object.named("size").unwrap_or(&object.about), 1),
                || "lstopo prints no size",
            ),
            line_bytes: object.named("linesize").and_then(|it| it.parse().ok()),
            ways: object.named("ways").and_then(|it| it.parse().ok()),
        })
    };
    if !is_flat {
        machine.caches = objects.iter().filter_map(cache).collect();
    }
    Cache::sort(&mut machine.caches);
    Ok(())
}

/// The objects of the first machine, and whether their nesting is unknown; a parent comes before its children and has
/// the CPUs of all of them.
fn objects(lines: &[Line], reading: &mut Reading) -> (Vec<PrintedObject>, bool) {
    let object =
        expression(r"^(\w+)(?:\(\w+\))?(?: L#\d+)?(?: P#(\d+))?(?: \((?:P#(\d+)\s*)?([^)]*)\))?");
    let numbered = expression(r"^\w+(?:\(\w+\))? L#\d");
    let mut objects: Vec<PrintedObject> = Vec::new();
    let mut is_flat = false;
    // Indentation and last object of the lines that are open.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let is_machine = line.text.starts_with("Machine");
        let is_second = is_machine && reading.is_second("Machine", line.number);
        if is_second || objects.len() > MOST_OBJECTS {
            break;
        }
        let mut text = line.text.trim().to_owned();
        while text.ends_with(" +")
            && let Some(rest) = lines.next()
        {
            text = format!("{text} {}", rest.text.trim());
        }
        let indent = line.text.len() - line.text.trim_start().len();
        // All objects are in the machine.
        if indent == 0 && !is_machine && !is_flat && numbered.is_match(&text) {
            is_flat = true;
            reading.warnings.note_line(line.number, FLAT);
        }
        open.retain(|&(column, _)| column < indent);
        let mut parent = open.last().map(|&(_, at)| at);
        for part in text.split(" + ").take(LONGEST_CHAIN) {
            let Some(found) = object.captures(part) else {
                break;
            };
            let text = |group| found.get(group).map_or("", |found| found.as_str());
            let number = [text(2), text(3)].concat().parse().ok();
            let number = number.filter(|&number| number <= MAX_NUMBER);
            objects.push(PrintedObject {
                kind: text(1).to_owned(),
                parent,
                number,
                about: text(4).to_owned(),
                cpus: CpuSet::new(),
            });
            let at = objects.len() - 1;
            if let Some(cpu) = number.filter(|_| text(1) == "PU").map(CpuId) {
                let mut above = Some(at);
                while let Some(at) = above {
                    objects[at].cpus.insert(cpu);
                    above = objects[at].parent;
                }
            }
            parent = Some(at);
        }
        if let Some(last) = parent.filter(|_| open.len() < DEEPEST) {
            open.push((indent, last));
        }
    }
    (objects, is_flat)
}

/// `L3`, `L1d`; `L3Cache`, `L1dCache`
fn cache_kind(name: &str) -> Option<(u32, CacheKind)> {
    let (level, letter) = name.strip_prefix('L')?.split_at_checked(1)?;
    let level = level.parse().ok()?;
    match letter.strip_suffix("Cache").unwrap_or(letter) {
        "" => Some((level, CacheKind::Unified)),
        "d" => Some((level, CacheKind::Data)),
        "i" => Some((level, CacheKind::Instruction)),
        _ => None,
    }
}
