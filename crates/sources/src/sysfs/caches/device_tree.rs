//! Caches of powerpc kernels without cache directories, from the device tree:
//!
//! ```text
//! cpus/PowerPC,POWER7@0/   ibm,ppc-interrupt-server#s   hardware numbers of its threads
//!                          d-cache-size, i-cache-size   its first level
//!                          l2-cache                     a phandle: the node of the next level
//! cpus/l2-cache@2000/      phandle, d-cache-size, l2-cache (the level after it)
//! ```
//!
//! Linux numbers the threads in the order of the CPU nodes; `cpuN/physical_id` has the hardware number, where it exists.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, CacheKind, CpuId, CpuSet, Known};

use super::super::cpus::DIRECTORY;
use crate::tree::{Directory, Tree};
use crate::value;

const CPUS: &str = "proc/device-tree/cpus";
/// Levels of caches that are followed, against nodes that point at each other.
const DEEPEST: u32 = 5;
/// Nodes below `cpus` that are looked at.
const MOST_NODES: usize = 8192;

#[derive(Debug, Default, Clone)]
struct Node {
    threads: CpuSet,
    data: Sizes,
    instruction: Sizes,
    next: Option<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sizes {
    size: Option<u32>,
    line: Option<u32>,
    sets: Option<u32>,
}

pub(super) fn read(tree: &Tree, online: &CpuSet) -> Vec<Cache> {
    let Ok(names) = tree.list(CPUS) else {
        return Vec::new();
    };
    let hardware = hardware_numbers(tree, online);
    let mut cores = Vec::new();
    let mut by_handle = BTreeMap::new();
    for name in names.iter().take(MOST_NODES) {
        let Ok(directory) = tree.directory(&format!("{CPUS}/{name}")) else {
            continue;
        };
        let node = read_node(&directory, &hardware, online);
        if node.threads.is_empty() {
            for handle in ["phandle", "linux,phandle", "ibm,phandle"]
                .iter()
                .filter_map(|name| cell(&directory, name))
            {
                by_handle.insert(handle, node.clone());
            }
        } else {
            cores.push(node);
        }
    }
    gather(&cores, &by_handle)
}

fn gather(cores: &[Node], by_handle: &BTreeMap<u32, Node>) -> Vec<Cache> {
    let mut shared: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
    let mut caches = Vec::new();
    for core in cores {
        for (kind, sizes) in [
            (CacheKind::Data, core.data),
            (CacheKind::Instruction, core.instruction),
        ] {
            caches.extend(sizes.cache(1, kind, &core.threads));
        }
        let mut next = core.next;
        for level in 2..=DEEPEST {
            let Some(handle) = next else { break };
            shared
                .entry((level, handle))
                .or_default()
                .extend(core.threads.iter());
            next = by_handle.get(&handle).and_then(|node| node.next);
        }
    }
    let of_handle = |((level, handle), cpus): (&(u32, u32), &CpuSet)| {
        by_handle
            .get(handle)?
            .data
            .cache(*level, CacheKind::Unified, cpus)
    };
    caches.extend(shared.iter().filter_map(of_handle));
    caches
}

impl Sizes {
    fn cache(self, level: u32, kind: CacheKind, cpus: &CpuSet) -> Option<Cache> {
        let size = self.size.filter(|&size| size > 0)?;
        let ways = || size.checked_div(self.line?)?.checked_div(self.sets?);
        Some(Cache {
            level,
            kind,
            cpus: cpus.clone(),
            size_bytes: Known::Yes(size.into()),
            line_bytes: self.line,
            // One set means that every line may be anywhere: fully associative, which sysfs writes as 0.
            ways: if self.sets == Some(1) {
                Some(0)
            } else {
                ways()
            },
        })
    }
}

fn read_node(directory: &Directory<'_>, hardware: &BTreeMap<u32, CpuId>, online: &CpuSet) -> Node {
    let sizes = |side: &str| Sizes {
        size: cell(directory, &format!("{side}-cache-size")),
        line: cell(directory, &format!("{side}-cache-line-size"))
            .or_else(|| cell(directory, &format!("{side}-cache-block-size"))),
        sets: cell(directory, &format!("{side}-cache-sets")),
    };
    let is_cpu =
        directory.with_bytes("device_type", |bytes| value::text(bytes) == Ok("cpu")) == Ok(true);
    let servers =
        || cells(directory, "ibm,ppc-interrupt-server#s").or_else(|| cells(directory, "reg"));
    let servers = if is_cpu {
        servers().unwrap_or_default()
    } else {
        Vec::new()
    };
    let threads = servers
        .iter()
        .filter_map(|server| hardware.get(server).copied());
    Node {
        threads: threads.filter(|&cpu| online.contains(cpu)).collect(),
        data: sizes("d"),
        instruction: sizes("i"),
        next: cell(directory, "l2-cache").or_else(|| cell(directory, "next-level-cache")),
    }
}

/// Hardware number to CPU. Without `physical_id` the numbers are the same, as on machines with one thread a core.
fn hardware_numbers(tree: &Tree, online: &CpuSet) -> BTreeMap<u32, CpuId> {
    let physical = |cpu: CpuId| {
        let id = tree
            .with_bytes(&format!("{DIRECTORY}/cpu{cpu}/physical_id"), value::natural)
            .ok()?
            .ok()?;
        u32::try_from(id).ok()
    };
    online
        .iter()
        .map(|cpu| (physical(cpu).unwrap_or(cpu.0), cpu))
        .collect()
}

/// A property of one 32-bit big-endian cell.
fn cell(directory: &Directory<'_>, name: &str) -> Option<u32> {
    cells(directory, name)?.first().copied()
}

fn cells(directory: &Directory<'_>, name: &str) -> Option<Vec<u32>> {
    let read = |bytes: &[u8]| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|&cell| u32::from_be_bytes(cell))
            .collect()
    };
    directory.with_bytes(name, read).ok()
}
