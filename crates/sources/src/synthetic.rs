//! A machine in one line: `node:4 core:12 pu:2 distance:10,16,32,33`.
//!
//! ```text
//! package:2 node:2 core:4 pu:2      levels from the outside in: 2 packages of 2 nodes of 4 cores of 2 CPUs = 32 CPUs
//! l3:1(size=32M)                    a cache level, here with its size; also l1, l1i, l2, l4, l5
//! memory:64G                        of each node
//! distance:10,16,32,33              one row: from node i to node j is entry |i - j|, the same in both directions
//! distance:10,20;22,10              all rows, for tables that are asymmetric or irregular; "-" is a hole
//! distance:21                       the same distance from each node to each other one
//! ```
//!
//! What `lstopo --of synthetic` prints is one, too: `Package:2 [NUMANode(memory=33554432000)] L3Cache:1(size=20971520)
//! Core:8 PU:2(indexes=2*16:1*2)` has a node in each package, and CPUs numbered by the kernel.
//!
//! Levels are those of hwloc's synthetic topologies (`package`, `die`, `cluster`, `group`, `node`, caches, `core`,
//! `pu`) and count likewise: children of each parent. CPUs are numbered in order, so SMT siblings stand side by side.

mod grammar;

use nearfar_machine::{
    Cache, Cpu, CpuId, CpuSet, CpuStates, Distance, DistanceOrigin, Distances, Known, MAX_NUMBER,
    Machine, Memory, Node, NodeId, Origin, SourceKind,
};

use crate::error::TextError;
use crate::limits::MOST_NODES;
use crate::value::ValueError;
pub(crate) use grammar::resembles;
use grammar::{Distant, Indexes, Kind, Level, Spec};

const BECAUSE: &str = "a synthetic string has only nodes, CPUs, caches, memory and distances";

/// Builds the machine that a synthetic string describes.
///
/// # Errors
/// Names the word that is not understood, or the level that stands in the wrong place.
pub fn parse(text: &str) -> Result<Machine, TextError> {
    let spec = grammar::parse(text)?;
    let wrong =
        |problem: String, next: &str| TextError::new(&grammar::place(text), None, problem, next);
    let count_to = |inner: usize| {
        let counts = spec.levels[..inner]
            .iter()
            .map(|level| u64::from(level.count));
        counts.fold(1u64, u64::saturating_mul)
    };
    let cpus = count_to(spec.levels.len());
    if cpus > u64::from(MAX_NUMBER) + 1 {
        let problem = format!(
            "it describes {cpus} CPUs; at most {} are supported",
            MAX_NUMBER + 1
        );
        return Err(wrong(problem, "lower a count"));
    }
    let node_level = spec
        .levels
        .iter()
        .position(|level| level.kind == Kind::Node);
    let nodes = node_level.map_or(1, |at| count_to(at + 1));
    if nodes > MOST_NODES as u64 {
        let problem =
            format!("it describes {nodes} nodes; a Linux kernel has at most {MOST_NODES}");
        return Err(wrong(problem, "lower a count"));
    }
    let mut machine = Machine::empty(Origin::new(SourceKind::Synthetic, text.trim()), BECAUSE);
    let (cpus, nodes) = (cpus as u32, nodes as u32);
    let numbers = |indexes: &Option<Indexes>, count, most| match indexes {
        Some(indexes) => indexes
            .numbers(count, most)
            .map_err(|problem| wrong(problem.to_string(), "leave the indexes out")),
        None => Ok((0..count).collect()),
    };
    let order = Order {
        cpus: numbers(&spec.cpu_indexes, cpus, MAX_NUMBER + 1)?,
        nodes: numbers(&spec.node_indexes, nodes, MOST_NODES as u32)?,
    };
    machine.nodes = (0..nodes)
        .map(|node| build_node(node, cpus / nodes, &spec, &order))
        .collect();
    machine.nodes.sort_by_key(|node| node.id);
    machine.cpus = (0..cpus)
        .map(|cpu| build_cpu(cpu, &spec.levels, &order))
        .collect();
    machine.cpus.sort_by_key(|cpu| cpu.id);
    machine.cpu_states = CpuStates::online_only(order.span(0, cpus), BECAUSE);
    machine.caches = caches(&spec.levels, cpus, &order);
    machine.distances = match &spec.distances {
        Some(distant) => Known::Yes(matrix(distant, &order.nodes).map_err(|problem| {
            wrong(
                problem.to_string(),
                "give one row (10,20), all rows (10,20;20,10) or one number for all others (20)",
            )
        })?),
        None => Known::no("the synthetic string gives no distances; add distance:10,20"),
    };
    Ok(machine)
}

/// The kernel's numbers of CPUs and nodes, in the order of the string.
struct Order {
    cpus: Vec<u32>,
    nodes: Vec<u32>,
}

impl Order {
    /// `count` CPUs from place `first` on.
    fn span(&self, first: u32, count: u32) -> CpuSet {
        let (first, count) = (first as usize, count.max(1) as usize);
        self.cpus[first..first + count]
            .iter()
            .copied()
            .map(CpuId)
            .collect()
    }
}

fn build_node(node: u32, cpus: u32, spec: &Spec, order: &Order) -> Node {
    let id = NodeId(order.nodes[node as usize]);
    let mut built = Node::new(id, order.span(node * cpus, cpus));
    built.memory = match spec.memory {
        Some(bytes) => Known::Yes(Memory::of(bytes)),
        None => Known::no("the synthetic string gives no memory; add memory:64G"),
    };
    built
}

/// How many CPUs one object of a level holds, and which object of that level holds a CPU.
fn part(levels: &[Level], kind: Kind, cpus: u32, cpu: u32) -> Option<(u32, u32)> {
    let at = levels.iter().position(|level| level.kind == kind)?;
    let objects: u32 = levels[..=at].iter().map(|level| level.count).product();
    let size = cpus / objects;
    Some((cpu / size, size))
}

fn build_cpu(cpu: u32, levels: &[Level], order: &Order) -> Cpu {
    let (cpus, nodes) = (order.cpus.len() as u32, order.nodes.len() as u32);
    let leader = |kind| {
        let (index, size) = part(levels, kind, cpus, cpu)?;
        order.span(index * size, size).first()
    };
    let id = CpuId(order.cpus[cpu as usize]);
    let node = order.nodes[(cpu / (cpus / nodes)) as usize];
    let mut built = Cpu::new(id, Some(NodeId(node)));
    built.core = leader(Kind::Core).or(Some(id));
    built.kernel_core_id = part(levels, Kind::Core, cpus, cpu).map(|(index, _)| index.into());
    built.cluster = leader(Kind::Cluster);
    built.die = leader(Kind::Die);
    built.package = part(levels, Kind::Package, cpus, cpu).map(|(index, _)| index.into());
    built
}

fn caches(levels: &[Level], cpus: u32, order: &Order) -> Vec<Cache> {
    let mut caches = Vec::new();
    for (at, level) in levels.iter().enumerate() {
        let Kind::Cache(depth, kind) = level.kind else {
            continue;
        };
        let objects: u32 = levels[..=at].iter().map(|level| level.count).product();
        let size = cpus / objects;
        let size_bytes = match level.bytes {
            Some(bytes) => Known::Yes(bytes),
            None => Known::no("the synthetic string gives no size for this cache"),
        };
        caches.extend((0..objects).map(|index| Cache {
            level: depth,
            kind,
            cpus: order.span(index * size, size),
            size_bytes: size_bytes.clone(),
            line_bytes: None,
            ways: None,
        }));
    }
    caches.sort_by_key(|cache| (cache.level, cache.cpus.first(), cache.kind));
    caches
}

/// The distances of nodes in the order of the string.
fn matrix(distant: &Distant, nodes: &[u32]) -> Result<Distances, ValueError> {
    let ids = nodes.iter().copied().map(NodeId);
    let mut matrix = Distances::empty(DistanceOrigin::Described, ids);
    let width = nodes.len();
    let misfit = |found| ValueError::Contradiction(format!("{found} for {width} nodes"));
    let entry: Box<dyn Fn(usize, usize) -> Option<Distance>> = match distant {
        Distant::Others(distance) => Box::new(|from, to| {
            if from == to {
                Some(Distance::LOCAL)
            } else {
                Some(*distance)
            }
        }),
        Distant::Row(row) if row.len() == width => Box::new(|from, to| row[from.abs_diff(to)]),
        Distant::Row(row) => return Err(misfit(format!("{} distances", row.len()))),
        Distant::Rows(rows) if rows.len() != width => {
            return Err(misfit(format!("{} rows", rows.len())));
        }
        Distant::Rows(rows) => match rows.iter().position(|row| row.len() != width) {
            Some(bad) => {
                let found = format!("row {bad} has {} distances", rows[bad].len());
                return Err(misfit(found));
            }
            None => Box::new(|from, to| rows[from][to]),
        },
    };
    for (from, &from_node) in nodes.iter().enumerate() {
        for (to, &to_node) in nodes.iter().enumerate() {
            matrix.set(NodeId(from_node), NodeId(to_node), entry(from, to));
        }
    }
    Ok(matrix)
}
