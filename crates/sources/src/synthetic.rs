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

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, CpuStates, Distance, DistanceOrigin, Distances, Known,
    MAX_NUMBER, Machine, Memory, Node, NodeId, Origin, SourceKind, size,
};

use crate::MOST_NODES;
use crate::error::{TextError, excerpt};
use crate::value::ValueError;

const BECAUSE: &str = "a synthetic string has only nodes, CPUs, caches, memory and distances";

/// Builds the machine that a synthetic string describes.
///
/// # Errors
/// Names the word that is not understood, or the level that stands in the wrong place.
pub fn parse(text: &str) -> Result<Machine, TextError> {
    let spec = read_spec(text)?;
    let wrong = |problem: String, next: &str| TextError::new(&place(text), None, problem, next);
    let count_to = |inner: usize| {
        let counts = spec.levels[..inner].iter().map(|it| u64::from(it.count));
        counts.fold(1u64, u64::saturating_mul)
    };
    let cpus = count_to(spec.levels.len());
    if cpus > u64::from(MAX_NUMBER) + 1 {
        let most = MAX_NUMBER + 1;
        let problem = format!("it describes {cpus} CPUs; at most {most} are supported");
        return Err(wrong(problem, "lower a count"));
    }
    let mut levels = spec.levels.iter();
    let node_level = levels.position(|level| level.kind == LevelKind::Node);
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
    let node = |node| build_node(node, cpus / nodes, &spec, &order);
    machine.nodes = (0..nodes).map(node).collect();
    machine.nodes.sort_by_key(|node| node.id);
    let cpu = |cpu| build_cpu(cpu, &spec.levels, &order);
    machine.cpus = (0..cpus).map(cpu).collect();
    machine.cpus.sort_by_key(|cpu| cpu.id);
    machine.cpu_states = CpuStates::online_only(order.span(0, cpus), BECAUSE);
    machine.caches = caches(&spec.levels, cpus, &order);
    machine.distances = match &spec.distances {
        Some(distant) => {
            let next =
                "give one row (10,20), all rows (10,20;20,10) or one number for all others (20)";
            let matrix = matrix(distant, &order.nodes);
            Known::Yes(matrix.map_err(|problem| wrong(problem.to_string(), next))?)
        }
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
        let cpus = self.cpus[first..first + count].iter();
        cpus.copied().map(CpuId).collect()
    }
}

fn build_node(node: u32, cpus: u32, spec: &Spec, order: &Order) -> Node {
    let id = NodeId(order.nodes[node as usize]);
    let mut built = Node::new(id, order.span(node * cpus, cpus));
    let reason = || "the synthetic string gives no memory; add memory:64G";
    built.memory = Known::from_option(spec.memory.map(Memory::of), reason);
    built
}

/// How many CPUs one object of a level holds, and which object of that level holds a CPU.
fn part(levels: &[Level], kind: LevelKind, cpus: u32, cpu: u32) -> Option<(u32, u32)> {
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
    built.core = leader(LevelKind::Core).or(Some(id));
    built.kernel_core_id = part(levels, LevelKind::Core, cpus, cpu).map(|(index, _)| index.into());
    built.cluster = leader(LevelKind::Cluster);
    built.die = leader(LevelKind::Die);
    built.package = part(levels, LevelKind::Package, cpus, cpu).map(|(index, _)| index.into());
    built
}

fn caches(levels: &[Level], cpus: u32, order: &Order) -> Vec<Cache> {
    let mut caches = Vec::new();
    for (at, level) in levels.iter().enumerate() {
        let LevelKind::Cache(depth, kind) = level.kind else {
            continue;
        };
        let objects: u32 = levels[..=at].iter().map(|level| level.count).product();
        let size = cpus / objects;
        let reason = || "the synthetic string gives no size for this cache";
        caches.extend((0..objects).map(|index| Cache {
            level: depth,
            kind,
            cpus: order.span(index * size, size),
            size_bytes: Known::from_option(level.bytes, reason),
            line_bytes: None,
            ways: None,
        }));
    }
    Cache::sort(&mut caches);
    caches
}

/// The distances of nodes in the order of the string.
fn matrix(distant: &Distant, nodes: &[u32]) -> Result<Distances, ValueError> {
    let width = nodes.len();
    let misfit = |found| Err(ValueError::faulty(format!("{found} for {width} nodes")));
    match distant {
        Distant::Row(row) if row.len() != width => {
            return misfit(format!("{} distances", row.len()));
        }
        Distant::Rows(rows) if rows.len() != width => {
            return misfit(format!("{} rows", rows.len()));
        }
        Distant::Rows(rows) => {
            if let Some(bad) = rows.iter().position(|row| row.len() != width) {
                return misfit(format!("row {bad} has {} distances", rows[bad].len()));
            }
        }
        Distant::Others(_) | Distant::Row(_) => {}
    }
    let entry = |from: usize, to: usize| match distant {
        Distant::Others(_) if from == to => Some(Distance::LOCAL),
        Distant::Others(distance) => Some(*distance),
        Distant::Row(row) => row[from.abs_diff(to)],
        Distant::Rows(rows) => rows[from][to],
    };
    let ids = || nodes.iter().copied().map(NodeId);
    let places = ids().enumerate();
    let entries = places.flat_map(|(from, from_node)| {
        let others = ids().enumerate();
        others.map(move |(to, to_node)| (from_node, to_node, entry(from, to)))
    });
    Ok(Distances::of(DistanceOrigin::Described, ids(), entries))
}

/// What a synthetic string says.
#[derive(Default)]
struct Spec {
    /// From the outside in; the last one is the CPUs.
    levels: Vec<Level>,
    memory: Option<u64>,
    distances: Option<Distant>,
    /// The kernel's numbers of nodes and of CPUs in the order of the string, where it gives them.
    node_indexes: Option<Indexes>,
    cpu_indexes: Option<Indexes>,
}

/// `indexes=` of hwloc.
enum Indexes {
    /// `0,2,1,3`
    List(Vec<u32>),
    /// `2*16:1*2`: loops as steps and counts, the first one counting by one.
    Loops(Vec<(u32, u32)>),
}

impl Indexes {
    /// The numbers of so many objects: each once, and below `most`.
    fn numbers(&self, count: u32, most: u32) -> Result<Vec<u32>, ValueError> {
        let numbers: Vec<u32> = match self {
            Self::List(list) => list.clone(),
            // hwloc_synthetic_process_indexes() in hwloc/topology-synthetic.c.
            Self::Loops(loops) => {
                let product = loops.iter().fold(1u64, |product, (_, count)| {
                    product.saturating_mul((*count).into())
                });
                let rest = u32::try_from(u64::from(count) / product).unwrap_or(0);
                let is_missing = u64::from(rest) * product == u64::from(count) && rest > 1;
                let last = is_missing.then_some((1, rest));
                let of = |at: u32| {
                    let mut weight = 1u64;
                    let mut number = 0u64;
                    for &(step, count) in loops.iter().chain(&last) {
                        let digit = u64::from(at / step % count);
                        number = number.saturating_add(digit.saturating_mul(weight));
                        weight = weight.saturating_mul(count.into());
                    }
                    u32::try_from(number).unwrap_or(u32::MAX)
                };
                (0..count).map(of).collect()
            }
        };
        let mut each = numbers.clone();
        each.sort_unstable();
        each.dedup();
        let is_each_once = each.len() == count as usize && numbers.len() == each.len();
        match is_each_once && each.last() < Some(&most) {
            true => Ok(numbers),
            false => Err(ValueError::faulty(format!(
                "its indexes are not {count} different numbers below {most}"
            ))),
        }
    }
}

/// One level: how many objects of a kind each object of the level before holds.
struct Level {
    kind: LevelKind,
    count: u32,
    bytes: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LevelKind {
    Package,
    Die,
    Cluster,
    Group,
    Node,
    Cache(u32, CacheKind),
    Core,
    Pu,
}

enum Distant {
    Others(Distance),
    Row(Vec<Option<Distance>>),
    Rows(Vec<Vec<Option<Distance>>>),
}

const EXAMPLE: &str =
    "write it like \"package:2 node:2 l3:1(size=32M) core:4 pu:2 memory:16G distance:10,12,20,22\"";

/// What a message calls the string.
fn place(text: &str) -> String {
    format!("synthetic string {:?}", excerpt(text))
}

/// Whether a text looks like a synthetic string: every word has a colon, and the first one names a level.
pub(crate) fn resembles(text: &str) -> bool {
    let mut words = text.split_whitespace().peekable();
    let known = |word: &&str| {
        let name = word.split_once(':').map(|(name, _)| name);
        let attached = || word.strip_prefix('[')?.split(['(', ']']).next();
        name.or_else(attached)
            .is_some_and(|name| kind(&name.to_ascii_lowercase()).is_some())
    };
    words.peek().is_some() && words.any(|word| known(&word))
}

/// Reads a synthetic string.
fn read_spec(text: &str) -> Result<Spec, TextError> {
    let fail = |error: ValueError| TextError::new(&place(text), None, error.to_string(), EXAMPLE);
    let mut spec = Spec::default();
    for word in split(text) {
        // hwloc attaches the node of each object of the level before in brackets.
        let attached = word.strip_prefix('[');
        let attached = attached.and_then(|word| word.strip_suffix(']'));
        let attached = attached.map(|word| {
            let end = word.find('(').unwrap_or(word.len());
            (&word[..end], format!("1{}", &word[end..]))
        });
        let (name, value) = match &attached {
            Some((name, value)) => (*name, value.as_str()),
            None => word
                .split_once(':')
                .ok_or_else(|| fail(ValueError::malformed(&word, "a word with a colon")))?,
        };
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "memory" | "mem" => spec.memory = Some(memory(value).map_err(fail)?),
            "distance" | "distances" => spec.distances = Some(distances(value).map_err(fail)?),
            _ => {
                let kind =
                    kind(&name).ok_or_else(|| fail(ValueError::malformed(&name, "a level")))?;
                let level = level(kind, value, &mut spec).map_err(fail)?;
                spec.levels.push(level);
            }
        }
    }
    order(&mut spec.levels).map_err(fail)?;
    Ok(spec)
}

/// Words, with what stands in parentheses kept together.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut depth = 0usize;
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match words.last_mut() {
            Some(word) if depth > 0 || !c.is_whitespace() => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn kind(name: &str) -> Option<LevelKind> {
    Some(match name {
        "package" | "pack" | "socket" => LevelKind::Package,
        "die" => LevelKind::Die,
        "cluster" => LevelKind::Cluster,
        "group" => LevelKind::Group,
        "node" | "numa" | "numanode" => LevelKind::Node,
        "core" => LevelKind::Core,
        "pu" | "thread" => LevelKind::Pu,
        _ => return cache(name),
    })
}

/// `l3`, `l1d`, `l1i`, `l2cache`.
fn cache(name: &str) -> Option<LevelKind> {
    let name = name.strip_suffix("cache").unwrap_or(name);
    let (level, letter) = name.strip_prefix('l')?.split_at_checked(1)?;
    let level = level.parse().ok().filter(|level| (1..=5).contains(level))?;
    let kind = match letter {
        "" if level == 1 => CacheKind::Data,
        "" | "u" => CacheKind::Unified,
        "d" => CacheKind::Data,
        "i" => CacheKind::Instruction,
        _ => return None,
    };
    Some(LevelKind::Cache(level, kind))
}

/// `4`, `1(size=32M)`, `2(memory=16G)`, `2(indexes=2*16:1*2)`.
fn level(kind: LevelKind, value: &str, spec: &mut Spec) -> Result<Level, ValueError> {
    let (count, attributes) = match value.split_once('(') {
        Some((count, rest)) => {
            let open = || ValueError::faulty("a parenthesis is not closed");
            (count, rest.strip_suffix(')').ok_or_else(open)?)
        }
        None => (value, ""),
    };
    let not_a_count = || ValueError::malformed(count, "a count of at least 1");
    let count = count.parse().ok().filter(|&count: &u32| count > 0);
    let count = count.ok_or_else(not_a_count)?;
    let mut bytes = None;
    for attribute in attributes.split_whitespace() {
        match (attribute.split_once('='), kind) {
            (Some(("size", size)), LevelKind::Cache(..)) => bytes = Some(memory(size)?),
            (Some(("memory", size)), LevelKind::Node) => {
                spec.memory = spec.memory.or(Some(memory(size)?))
            }
            (Some(("indexes", list)), LevelKind::Node) => spec.node_indexes = Some(indexes(list)?),
            (Some(("indexes", list)), LevelKind::Pu) => spec.cpu_indexes = Some(indexes(list)?),
            // The numbers of cores and packages, which decide nothing.
            (Some(("indexes", _)), _) => {}
            _ => {
                let wanted = "an attribute of this level";
                return Err(ValueError::malformed(attribute, wanted));
            }
        }
    }
    Ok(Level { kind, count, bytes })
}

/// `0,2,1,3` or `2*16:1*2`.
fn indexes(text: &str) -> Result<Indexes, ValueError> {
    let malformed = || ValueError::malformed(text, "indexes such as 0,2,1,3 or 2*16:1*2");
    if text.contains('*') {
        let one = |part: &str| {
            let (step, count) = part.split_once('*')?;
            let numbers = (step.parse().ok()?, count.parse().ok()?);
            (numbers.0 > 0 && numbers.1 > 0).then_some(numbers)
        };
        let loops = text.split(':').map(one).collect::<Option<Vec<_>>>();
        return loops.map(Indexes::Loops).ok_or_else(malformed);
    }
    let list = text.split(',').map(|number| number.parse().ok());
    let list: Option<Vec<_>> = list.collect();
    list.map(Indexes::List).ok_or_else(malformed)
}

fn memory(value: &str) -> Result<u64, ValueError> {
    size::parse(value, 1).ok_or_else(|| ValueError::malformed(value, "a size such as 512M or 16G"))
}

fn distances(value: &str) -> Result<Distant, ValueError> {
    let rows: Vec<_> = value.split(';').map(row).collect::<Result<_, _>>()?;
    Ok(match &rows[..] {
        [row] => match row[..] {
            [Some(distance)] => Distant::Others(distance),
            _ => Distant::Row(row.clone()),
        },
        _ => Distant::Rows(rows),
    })
}

fn row(text: &str) -> Result<Vec<Option<Distance>>, ValueError> {
    text.split(',').map(str::trim).map(entry).collect()
}

fn entry(text: &str) -> Result<Option<Distance>, ValueError> {
    if text == "-" {
        return Ok(None);
    }
    let distance = text.parse().ok().filter(|&distance| distance > 0);
    distance
        .map(|distance| Some(Distance(distance)))
        .ok_or_else(|| ValueError::malformed(text, "a distance"))
}

fn contradiction(problem: impl Into<String>) -> Result<(), ValueError> {
    Err(ValueError::faulty(problem))
}

/// Levels stand each once; cores hold CPUs, and nodes hold cores. Without CPUs a core has one.
fn order(levels: &mut Vec<Level>) -> Result<(), ValueError> {
    for (at, level) in levels.iter().enumerate() {
        let is_same = |before: &Level| before.kind == level.kind && level.kind != LevelKind::Group;
        if levels[..at].iter().any(is_same) {
            return contradiction(format!("{:?} is given twice", level.kind));
        }
        let inner = &levels[at + 1..];
        if level.kind == LevelKind::Pu && !inner.is_empty() {
            return contradiction("pu must be the last level");
        }
        let is_within_core =
            |inner: &Level| matches!(inner.kind, LevelKind::Pu | LevelKind::Cache(..));
        if level.kind == LevelKind::Core && !inner.iter().all(is_within_core) {
            return contradiction("a core can only hold caches and pu");
        }
    }
    if levels.is_empty() {
        return contradiction("it has no levels");
    }
    if levels.last().is_none_or(|last| last.kind != LevelKind::Pu) {
        levels.push(Level {
            kind: LevelKind::Pu,
            count: 1,
            bytes: None,
        });
    }
    Ok(())
}
