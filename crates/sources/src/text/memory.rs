//! The memory of nodes: `numastat -m`, the nodes' `meminfo` files, `/proc/zoneinfo`.
//!
//! ```text
//!                           Node 0          Node 1           Total       numastat -m, in MiB; many nodes are
//!                  --------------- --------------- ---------------       several tables
//! MemTotal                64215.43        64507.12       128722.55
//! Node 0 MemTotal:       65756160 kB                                     /sys/devices/system/node/node0/meminfo
//! Node 0, zone   Normal                                                  /proc/zoneinfo, in pages
//!   pages free     12345
//!         managed  54321
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{Known, Memory, NodeId};

use super::lines::Line;
use super::{Kind, Reading, Start, ends_in_digit};
use crate::value;

pub(super) const NUMASTAT: Kind = Kind {
    name: "numastat -m",
    has: "nodes and their memory",
    starts: &[
        Start::new(&["Per-node"], r"(?:^|\W)(Per-node system memory usage)"),
        Start::before(
            &["Node"],
            r"(?:^|\W)((?:Node\s+\d+\s+)*(?:Node\s+\d+|Total))\s*$",
            r"^[\s-]{6,}$",
        )
        .if_likely(|line| ends_in_digit(line) || line.ends_with("Total")),
    ],
    goes_on: r"^[A-Z][\w()]*(?:\s+[\d.]+)+\s*$|^Token ",
    read: read_numastat,
};

pub(super) const MEMINFO: Kind = Kind {
    name: "meminfo of nodes",
    has: "nodes and their memory",
    starts: &[
        Start::new(&["MemTotal:"], r"(?:^|\W)(Node\s+\d+\s+MemTotal:)"),
        Start::new(&["MemFree:"], r"(?:^|\W)(Node\s+\d+\s+MemFree:)"),
    ],
    goes_on: r"^Node\s+\d+\s+\w+",
    read: read_meminfo,
};

pub(super) const ZONEINFO: Kind = Kind {
    name: "/proc/zoneinfo",
    has: "nodes and how many pages they have, of unknown size",
    starts: &[Start::new(
        &["zone"],
        r"(?:^|\W)(Node\s+\d+,\s+zone\s+\w+)\s*$",
    )],
    goes_on: r"^\s*(?:pages|\w+)\s*:?\s+[\d(]|^\s*(?:per-node stats|pagesets)",
    read: read_zoneinfo,
};

/// The two figures of each node, in bytes.
#[derive(Default)]
struct Figures {
    total: Option<u64>,
    free: Option<u64>,
}

fn read_numastat(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let mut nodes: BTreeMap<NodeId, Figures> = BTreeMap::new();
    let mut columns: Vec<Option<NodeId>> = Vec::new();
    'lines: for line in lines {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        match words[..] {
            ["Node", ..] | ["Total"] => columns = heads(&words),
            [name @ ("MemTotal" | "MemFree"), ref figures @ ..] => {
                for (column, figure) in columns.iter().zip(figures) {
                    let Some((id, bytes)) = column.zip(mib(figure)) else {
                        continue;
                    };
                    if reading.is_second(format!("{name} {id}"), line.number) {
                        break 'lines;
                    }
                    let node = nodes.entry(id).or_default();
                    match name {
                        "MemTotal" => node.total = Some(bytes),
                        _ => node.free = Some(bytes),
                    }
                }
            }
            _ => {}
        }
    }
    fill(nodes, reading)
}

/// `64215.43`, which numastat calls MB, in bytes.
fn mib(figure: &str) -> Option<u64> {
    let mib: f64 = figure.parse().ok()?;
    const MOST: f64 = (1u64 << 40) as f64;
    let bytes = (mib * f64::from(1 << 20)) as u64;
    (0.0..MOST).contains(&mib).then_some(bytes)
}

/// `Node 0  Node 1  Total`
fn heads(words: &[&str]) -> Vec<Option<NodeId>> {
    let mut heads = Vec::new();
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        heads.push(match word {
            "Node" => words.next().and_then(|id| value::id(id)),
            _ => None,
        });
    }
    heads
}

fn read_meminfo(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let mut nodes: BTreeMap<NodeId, Figures> = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        if let ["Node", id, name @ ("MemTotal:" | "MemFree:"), figure, ..] = words[..]
            && let (Some(id), Ok(kib)) = (value::id::<NodeId>(id), figure.parse::<u64>())
        {
            if reading.is_second(format!("{name} {id}"), line.number) {
                break;
            }
            let figures = nodes.entry(id).or_default();
            let bytes = kib.saturating_mul(1024);
            match name {
                "MemTotal:" => figures.total = Some(bytes),
                _ => figures.free = Some(bytes),
            }
        }
    }
    fill(nodes, reading)
}

fn fill(nodes: BTreeMap<NodeId, Figures>, reading: &mut Reading) -> Result<(), String> {
    if nodes.is_empty() {
        return Err("no line with the memory of a node (\"MemTotal\") in it".to_owned());
    }
    for (id, figures) in nodes {
        let mut node = reading.node_of_unknown_cpus(id);
        node.memory = match figures.total {
            Some(total) => Known::Yes(Memory {
                free_bytes: figures.free.filter(|&free| free <= total),
                ..Memory::of(total)
            }),
            None => Known::no(format!("the text has no size for node {id}")),
        };
        reading.machine.nodes.push(node);
    }
    Ok(())
}

fn read_zoneinfo(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let mut managed: BTreeMap<NodeId, Option<u64>> = BTreeMap::new();
    let mut inside = None;
    for line in lines {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        match words[..] {
            ["Node", id, "zone", zone] => {
                if reading.is_second(format!("{id} {zone}"), line.number) {
                    break;
                }
                inside = id.strip_suffix(',').and_then(value::id);
                if let Some(id) = inside {
                    managed.entry(id).or_default();
                }
            }
            ["managed", pages] => {
                let sum = inside.and_then(|id| managed.get_mut(&id));
                if let (Some(sum), Ok(pages)) = (sum, pages.parse::<u64>()) {
                    *sum = Some(sum.unwrap_or(0).saturating_add(pages));
                }
            }
            _ => {}
        }
    }
    if managed.is_empty() {
        return Err("no zone of a node in it".to_owned());
    }
    for (id, pages) in managed {
        let mut node = reading.node_of_unknown_cpus(id);
        // MemTotal of a node is the sum of its zones' managed pages (si_meminfo_node in mm/show_mem.c).
        node.memory = match pages {
            Some(0) => Known::Yes(Memory::of(0)),
            Some(pages) => Known::no(format!(
                "{pages} pages, and /proc/zoneinfo does not say how large a page is"
            )),
            None => Known::no("/proc/zoneinfo has no managed pages"),
        };
        reading.machine.nodes.push(node);
    }
    Ok(())
}
