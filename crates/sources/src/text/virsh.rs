//! `virsh capabilities`: the host's NUMA cells with memory, distances, CPUs, cores and sockets.
//!
//! ```text
//! <capabilities><host><cpu><arch>x86_64</arch></cpu>
//!   <topology><cells num='2'>
//!     <cell id='0'>
//!       <memory unit='KiB'>65756160</memory>
//!       <distances><sibling id='0' value='10'/><sibling id='1' value='21'/></distances>
//!       <cpus num='2'><cpu id='0' socket_id='0' die_id='0' core_id='0' siblings='0,2'/>
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, MAX_NUMBER, Machine, Memory,
    Node, NodeId, Origin, SourceKind, size,
};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::first_line;
use crate::MOST_NODES;
use crate::error::TextError;

const BECAUSE: &str = "virsh capabilities has only nodes, their CPUs, memory and distances";

/// Reads the XML of `virsh capabilities`.
///
/// # Errors
/// When it is no XML, or has no cell.
pub(super) fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    let wrong = |problem: String| {
        let line = Some(first_line(text));
        TextError::new(place, line, problem, "write it again: virsh capabilities")
    };
    let mut reader = Reader::from_str(text);
    let mut machine = Machine::empty(Origin::new(SourceKind::Text, place), BECAUSE);
    let mut distances: BTreeMap<(NodeId, NodeId), Distance> = BTreeMap::new();
    // Open elements, and the unit of the memory that is open.
    let (mut path, mut unit) = (Vec::<String>::new(), String::new());
    loop {
        let event = reader.read_event();
        match event.map_err(|error| wrong(error.to_string()))? {
            Event::Eof => break,
            Event::End(_) => drop(path.pop()),
            Event::Start(element) => {
                open(&element, &mut machine, &mut distances);
                unit = attribute(&element, "unit").unwrap_or_else(|| "KiB".to_owned());
                const DEEPEST: usize = 64;
                if path.len() >= DEEPEST {
                    return Err(wrong("elements nest too deep".to_owned()));
                }
                path.push(element.name().as_ref().to_owned());
            }
            Event::Empty(element) => open(&element, &mut machine, &mut distances),
            Event::Text(content) => {
                let content = content.trim();
                match path.last().map(String::as_str) {
                    Some("memory") if path.iter().any(|name| name == "cell") => {
                        let bytes = size::parse(&format!("{content}{unit}"), 1);
                        if let Some((node, bytes)) = machine.nodes.last_mut().zip(bytes) {
                            node.memory = Known::Yes(Memory::of(bytes));
                        }
                    }
                    Some("arch") if path.get(1).is_some_and(|name| name == "host") => {
                        machine.origin.architecture = Known::Yes(content.to_owned());
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let cells = machine.nodes.len();
    if !(1..=MOST_NODES).contains(&cells) {
        return Err(wrong(format!("{cells} cells of NUMA nodes in it")));
    }
    machine.nodes.sort_by_key(|node| node.id);
    machine.nodes.dedup_by_key(|node| node.id);
    machine.cpus.sort_by_key(|cpu| cpu.id);
    machine.cpus.dedup_by_key(|cpu| cpu.id);
    leaders(&mut machine.cpus);
    if !distances.is_empty() {
        let nodes = machine.nodes.iter().map(|node| node.id);
        let entries = distances.into_iter();
        let entries = entries.map(|((from, to), distance)| (from, to, Some(distance)));
        let table = Distances::of(DistanceOrigin::Kernel, nodes, entries);
        machine.distances = Known::Yes(table);
    }
    crate::join::place_cpus(&mut machine);
    Ok(machine)
}

fn open(
    element: &BytesStart<'_>,
    machine: &mut Machine,
    distances: &mut BTreeMap<(NodeId, NodeId), Distance>,
) {
    let number = |name: &str| {
        let value = attribute(element, name)?.parse::<u32>().ok()?;
        (value <= MAX_NUMBER).then_some(value)
    };
    match element.name().as_ref() {
        "cell" => {
            if let Some(id) = number("id").map(NodeId) {
                let mut node = Node::new(id, CpuSet::new());
                node.memory = Known::no(format!("virsh gives no memory for node {id}"));
                machine.nodes.push(node);
            }
        }
        "sibling" => {
            let from = machine.nodes.last().map(|node| node.id);
            if let (Some(from), Some(to), Some(value)) =
                (from, number("id").map(NodeId), number("value"))
                && distances.len() < MOST_NODES * MOST_NODES
                && value > 0
            {
                distances.insert((from, to), Distance(value));
            }
        }
        "cpu" => {
            let (Some(node), Some(id)) = (machine.nodes.last_mut(), number("id").map(CpuId)) else {
                return;
            };
            if let Known::Yes(cpus) = &mut node.cpus {
                cpus.insert(id);
            }
            let siblings = attribute(element, "siblings");
            let siblings = siblings.and_then(|list| CpuSet::parse_list(&list).ok());
            let first = siblings.and_then(|siblings| siblings.first());
            machine.cpus.push(Cpu {
                core: first.filter(|&first| first <= id),
                kernel_core_id: number("core_id").map(i64::from),
                package: number("socket_id").map(i64::from),
                ..Cpu::new(id, None)
            });
        }
        _ => {}
    }
}

/// The first CPU of each package; a core's first CPU must be there too.
fn leaders(cpus: &mut [Cpu]) {
    let known: CpuSet = cpus.iter().map(|cpu| cpu.id).collect();
    let mut packages: BTreeMap<i64, CpuId> = BTreeMap::new();
    for cpu in cpus {
        cpu.core = cpu.core.filter(|&core| known.contains(core));
        let first = |package| *packages.entry(package).or_insert(cpu.id);
        cpu.package_leader = cpu.package.map(first);
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.try_get_attribute(name).ok()??;
    Some(found.value.into_owned())
}
