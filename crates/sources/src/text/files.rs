//! Files of /sys and /proc with their names, as `grep . FILES` and `tail -n +1 FILES` print them, or `cat FILE` where
//! the command was copied too.
//!
//! ```text
//! /proc/irq/24/smp_affinity:00ff                      grep
//! ==> /sys/devices/system/node/node0/distance <==     tail
//! 10 21
//! # cat /sys/devices/system/node/node0/cpulist        cat
//! 0-7
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, Id, IdSet, Interrupt, Irq, Known,
    NodeId, NodeSet,
};

use super::lines::{Line, expression};
use super::{Kind, Reading, Start};
use crate::MOST_NODES;
use crate::error::excerpt;

const PATH: &str = r"(/(?:proc/irq/\d+/(?:smp_affinity|smp_affinity_list|effective_affinity|effective_affinity_list|node)|sys/devices/system/node/(?:node\d+/(?:cpulist|cpumap|distance)|online|possible)|sys/devices/system/cpu/(?:online|offline|possible|isolated|nohz_full)))(?:[^\w/]|$)";

pub(super) const KIND: Kind = Kind {
    name: "files of /sys and /proc",
    has: "the files that are in it",
    starts: &[
        Start::new(&["/proc/irq/"], PATH),
        Start::new(&["/sys/devices/system/"], PATH),
    ],
    goes_on: r"^[0-9a-f][0-9a-f, -]*$",
    read,
};

/// What the files say, before it is put together.
#[derive(Default)]
struct Said {
    nodes: BTreeMap<NodeId, CpuSet>,
    rows: BTreeMap<NodeId, Vec<Option<Distance>>>,
    online_nodes: Option<NodeSet>,
    online: Option<CpuSet>,
    offline: Option<CpuSet>,
    interrupts: BTreeMap<Irq, Interrupt>,
}

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let path = expression(PATH);
    let mut said = Said::default();
    let mut is_any = false;
    for (at, line) in lines.iter().enumerate() {
        let Some(found) = path.captures(&line.text).and_then(|found| found.get(1)) else {
            continue;
        };
        let end = line.text[found.end()..].trim();
        let behind = end.trim_matches([':', ' ', '=', '<', '>']);
        let next = lines.get(at + 1).map_or("", |next| next.text.trim());
        let is_path_next = path.is_match(next);
        let value = match behind.is_empty() {
            true if is_path_next => "",
            true => next,
            false => behind,
        };
        // Prose may name a file at the end of a line. `grep ""` and tail name an empty one before the next; of the
        // "<==" of tail the sign of a folded line was taken off.
        let is_empty_file = is_path_next && matches!(end, ":" | "<");
        if value.is_empty() && !is_empty_file {
            continue;
        }
        match said.file(found.as_str(), value, reading) {
            Some(()) => is_any = true,
            // A command that names a file is not its content.
            None if behind.is_empty() => {}
            None => {
                let (file, value) = (found.as_str(), excerpt(value));
                let message = format!("{file} holds {value:?}, which was not understood");
                reading.warnings.note_line(line.number, message);
            }
        }
    }
    if !is_any {
        return Err("files of /sys or /proc are named, and their content is missing".to_owned());
    }
    said.fill(reading);
    Ok(())
}

impl Said {
    fn file(&mut self, path: &str, value: &str, reading: &mut Reading) -> Option<()> {
        let name = path.rsplit('/').next()?;
        let numbered = |before: &str| {
            let (number, _) = path.strip_prefix(before)?.split_once('/')?;
            number.parse::<u32>().ok()
        };
        if let Some(irq) = numbered("/proc/irq/") {
            let reason = &reading.reason;
            let unknown = || Interrupt::unknown(Irq(irq), reason.clone());
            let interrupt = self.interrupts.entry(Irq(irq)).or_insert_with(unknown);
            match name {
                "smp_affinity" | "smp_affinity_list" => {
                    interrupt.affinity = Known::Yes(cpus(name, value)?)
                }
                "node" => {
                    let node: i64 = value.parse().ok()?;
                    interrupt.node = Known::Yes(u32::try_from(node).ok().map(NodeId));
                }
                _ => interrupt.effective = Known::Yes(cpus(name, value)?),
            }
        } else if let Some(node) = numbered("/sys/devices/system/node/node")
            .filter(|&node| node <= nearfar_machine::MAX_NUMBER)
        {
            let node = NodeId(node);
            if name == "distance" {
                let entry = |word: &str| {
                    let distance = word.parse().ok().filter(|&distance| distance > 0);
                    distance.map(Distance)
                };
                let row: Vec<_> = value.split_whitespace().map(entry).collect();
                let row = Some(row).filter(|row| (1..=MOST_NODES).contains(&row.len()))?;
                self.rows.insert(node, row);
            } else {
                self.nodes.insert(node, cpus(name, value)?);
            }
        } else if path.starts_with("/sys/devices/system/node/") {
            let nodes = NodeSet::parse_list(value).ok()?;
            match name {
                "online" => self.online_nodes = Some(nodes),
                _ => reading.machine.possible_nodes = Known::Yes(nodes),
            }
        } else {
            let cpus = Known::Yes(list(value)?);
            let states = &mut reading.machine.cpu_states;
            match name {
                "online" => self.online = cpus.known(),
                "offline" => self.offline = cpus.known(),
                "possible" => states.possible = cpus,
                "isolated" => states.isolated = cpus,
                _ => states.nohz_full = cpus,
            }
        }
        Some(())
    }

    fn fill(self, reading: &mut Reading) {
        let named = self.nodes.keys().chain(self.rows.keys());
        let named: NodeSet = named.copied().collect();
        let nodes = named.union(&self.online_nodes.clone().unwrap_or_default());
        if nodes.len() <= MOST_NODES {
            let node = |id| match self.nodes.get(&id) {
                Some(cpus) => reading.node(id, Known::Yes(cpus.clone())),
                None => reading.node_of_unknown_cpus(id),
            };
            reading.machine.nodes = nodes.iter().map(node).collect();
        }
        // A row has a distance to each online node, in ascending order (node_read_distance in drivers/base/node.c).
        let columns = self.online_nodes.unwrap_or_else(|| nodes.clone());
        if !self.rows.is_empty() {
            let mut distances = Distances::empty(DistanceOrigin::Kernel, nodes.iter());
            for (&from, row) in &self.rows {
                if row.len() != columns.len() {
                    let message = format!(
                        "the row of node {from} has {} distances, and {} nodes are named; it was left out",
                        row.len(),
                        columns.len()
                    );
                    reading.warnings.note(message);
                    continue;
                }
                for (to, &distance) in columns.iter().zip(row) {
                    distances.set(from, to, distance);
                }
            }
            reading.machine.distances = Known::Yes(distances);
        }
        let offline = self.offline.unwrap_or_default();
        let online = self.online.unwrap_or_default();
        let cpu = |id: CpuId| Cpu {
            online: Known::Yes(!offline.contains(id)),
            ..Cpu::new(id, None)
        };
        reading.machine.cpus = online.union(&offline).iter().map(cpu).collect();
        if !self.interrupts.is_empty() {
            reading.machine.interrupts = Known::Yes(self.interrupts.into_values().collect());
        }
    }
}

/// A list, or a mask where the file of this name has one.
fn cpus(name: &str, value: &str) -> Option<CpuSet> {
    match name {
        "smp_affinity" | "effective_affinity" | "cpumap" => CpuSet::parse_mask(value).ok(),
        _ => list(value),
    }
}

fn list<T: Id>(value: &str) -> Option<IdSet<T>> {
    IdSet::parse_list(value).ok()
}
