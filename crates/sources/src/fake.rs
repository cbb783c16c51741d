//! Fake nodes laid over a machine, as the kernel's `numa=fake=` does it, and one layout of our own that also splits
//! the CPUs.
//!
//! ```text
//!   real       node 0          node 1               numa=fake=4: memory in four parts, dealt out in turn
//!   fake     0       2       1       3              CPUs of node 0 are in 0 and 2, those of node 1 in 1 and 3
//!
//!   spec     numbering                              size of one fake
//!   4        round robin over the real nodes        all memory / 4
//!   2G       round robin over the real nodes        2 GiB; the last of a real node takes what is left
//!   2U       node 0's fakes first, then node 1's    real node / 2
//! ```
//!
//! The rules are those of mm/numa_emulation.c: memory is cut in steps of 32 MiB, distances are those of the real nodes
//! (so 10 between fakes of one node), and a real node without memory gets no fake. Three things differ. The kernel
//! cuts addresses and counts holes; here only sizes are known, so a fake may be 32 MiB larger or smaller than in a
//! real boot. The kernel lowers a count above its limit of nodes; here it is refused. And `,cpus` after a spec (`split:4` for
//! `4U,cpus`) is not the kernel's: each fake gets its own part of the CPUs, whole cores together.

use std::collections::BTreeMap;
use std::str::FromStr;

use nearfar_machine::{
    CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, Latency, Machine, Memory, Node,
    NodeId, NodeSet, Warning, size,
};

use crate::MOST_NODES;
use crate::error::excerpt;

/// How memory is cut into fake nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// This many nodes in all, dealt out over the real nodes in turn.
    Count(u32),
    /// Nodes of this many bytes, dealt out in turn.
    Size(u64),
    /// Each real node into this many.
    Each(u32),
}

/// A layout of fake nodes, read from `4`, `2G`, `2U`, each perhaps with `,cpus`; or `split:4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeSpec {
    cut: Cut,
    split_cpus: bool,
    text: String,
}

impl FakeSpec {
    /// How memory is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Whether each fake gets its own part of the CPUs, which the kernel cannot do.
    pub fn splits_cpus(&self) -> bool {
        self.split_cpus
    }
}

impl std::fmt::Display for FakeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FakeError {
    #[error(
        "--fake {text:?}: {problem}; write N (nodes in all), a size with M or G (bytes of a node), NU (fakes of each \
         node), any of them with \",cpus\" to split the CPUs too, or split:N for NU,cpus"
    )]
    Spec {
        /// What was given, cut to a readable length.
        text: String,
        problem: &'static str,
    },
    #[error(
        "--fake {text}: that makes {nodes} nodes; a Linux kernel has at most {MOST_NODES}; ask for fewer"
    )]
    TooMany { text: String, nodes: u64 },
    #[error(
        "--fake {text}: {bytes} bytes of memory cannot be cut into {parts} parts of at least 32 MiB; ask for fewer parts"
    )]
    TooSmall {
        text: String,
        /// What there is to cut.
        bytes: u64,
        parts: u32,
    },
    #[error("--fake {text}: {reason}; use a count (4 or 2U), which needs no sizes")]
    UnknownSizes {
        text: String,
        /// Why the size is unknown.
        reason: String,
    },
    #[error("--fake {text}: no online node of this machine has memory to cut")]
    NoMemory { text: String },
    #[error(
        "--fake {text}: the machine already has fake nodes ({below}); lay them over the real machine instead"
    )]
    Twice { text: String, below: String },
}

impl FromStr for FakeSpec {
    type Err = FakeError;

    fn from_str(text: &str) -> Result<Self, FakeError> {
        let text = text.trim();
        let fail = |problem| FakeError::Spec {
            text: excerpt(text),
            problem,
        };
        let (cut, split_cpus) = match text.strip_prefix("split:") {
            Some(count) => (Cut::Each(number(count).map_err(fail)?), true),
            None => match text.strip_suffix(",cpus") {
                Some(kernels) => (cut(kernels).map_err(fail)?, true),
                None => (cut(text).map_err(fail)?, false),
            },
        };
        if let Cut::Count(nodes) | Cut::Each(nodes) = cut
            && nodes as usize > MOST_NODES
        {
            return Err(FakeError::TooMany {
                text: excerpt(text),
                nodes: nodes.into(),
            });
        }
        Ok(Self {
            cut,
            split_cpus,
            text: text.to_owned(),
        })
    }
}

fn cut(text: &str) -> Result<Cut, &'static str> {
    if let Some(count) = text.strip_suffix('U') {
        return Ok(Cut::Each(number(count)?));
    }
    if text.ends_with(['M', 'G']) {
        let bytes = size::parse(text, 1).filter(|&bytes| bytes > 0);
        return Ok(Cut::Size(bytes.ok_or("not a size above 0")?));
    }
    // The kernel takes the number before any other letter as a count, so that "2g" gives two nodes: refused here.
    match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "" => Ok(Cut::Count(number(text)?)),
        "m" | "g" | "u" => Err("the kernel knows M, G and U in capitals only"),
        rest if rest.starts_with(':') => {
            Err("distances after the layout are not supported: they are inherited")
        }
        _ => Err("not a layout"),
    }
}

fn number(digits: &str) -> Result<u32, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("not a count");
    }
    match digits.parse::<u32>().unwrap_or(u32::MAX) {
        0 => Err("0 nodes are not a layout"),
        count => Ok(count),
    }
}

/// Lays fake nodes over a machine.
///
/// What refers to a real node refers to its lowest fake afterwards (devices, preferred nodes) or to all of them
/// (memory nodes of tasks and cpusets). Nodes that get no fake, because they have no memory or are not online, follow
/// after the fakes, as the kernel numbers them; `fake_of` names the real one.
///
/// # Errors
/// When the layout does not fit the machine.
pub fn lay(machine: Machine, spec: &FakeSpec) -> Result<Machine, FakeError> {
    let mut overlays = machine.origin.overlays.iter();
    if let Some(below) = overlays.find(|overlay| overlay.starts_with("fake")) {
        return Err(FakeError::Twice {
            text: spec.to_string(),
            below: below.clone(),
        });
    }
    let parts = parts(&machine, spec)?;
    let shares = shares(&machine, &parts, spec.split_cpus);
    let mut machine = renumbered(machine, &parts, &shares);
    machine.origin.overlays.push(match spec.split_cpus {
        true => format!("fake: {spec} (CPUs split too, which the kernel's numa=fake= does not do)"),
        false => format!("fake: {spec}"),
    });
    Ok(machine)
}

/// `FAKE_NODE_MIN_SIZE`: memory is cut in steps of this many bytes.
const STEP: u64 = 32 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    /// The real node of its first block of memory: its CPUs and distances are that node's.
    pub real: NodeId,
    /// Its memory in bytes; unknown where the real nodes' is.
    pub bytes: Option<u64>,
}

/// What is left of a real node.
struct Rest {
    real: NodeId,
    bytes: u64,
}

impl Part {
    fn of(real: NodeId, bytes: u64) -> Self {
        let bytes = Some(bytes);
        Self { real, bytes }
    }
}

impl Rest {
    /// Takes what is wanted, or all where less than another part would be left.
    fn take(&mut self, wanted: u64, least: u64) -> u64 {
        let is_last = self.bytes.saturating_sub(wanted) < least;
        let bytes = if is_last { self.bytes } else { wanted };
        self.bytes -= bytes;
        bytes
    }
}

fn total(rests: &[Rest]) -> u64 {
    let bytes = rests.iter().map(|rest| rest.bytes);
    bytes.fold(0, u64::saturating_add)
}

/// The fake nodes, by number.
fn parts(machine: &Machine, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let text = || spec.to_string();
    // Without sizes all real nodes count as equal, which is what decides over numbers and CPUs; the parts' sizes
    // stay unknown. A node that is known to have none still gets no fake.
    const PRETENDED: u64 = 1 << 50;
    let mut nodes = machine.online_nodes();
    let unknown_reason = nodes.find_map(|node| node.memory.unknown_reason());
    if let (Some(reason), Cut::Size(_)) = (unknown_reason, spec.cut) {
        return Err(FakeError::UnknownSizes {
            text: text(),
            reason: reason.to_owned(),
        });
    }
    let rest = |node: &Node| Rest {
        real: node.id,
        bytes: match unknown_reason {
            None => node.total_bytes().unwrap_or(0),
            Some(_) => PRETENDED,
        },
    };
    let with_memory = machine.online_nodes();
    let with_memory = with_memory.filter(|node| node.has_memory() != Some(false));
    let rests: Vec<Rest> = with_memory.map(rest).collect();
    if rests.is_empty() {
        return Err(FakeError::NoMemory { text: text() });
    }
    let mut parts = match spec.cut {
        Cut::Each(count) => each(rests, count, spec)?,
        Cut::Count(count) => in_turn(rests, count, spec)?,
        Cut::Size(bytes) => of_size(rests, bytes),
    };
    if parts.len() > MOST_NODES {
        return Err(FakeError::TooMany {
            text: text(),
            nodes: parts.len() as u64,
        });
    }
    if unknown_reason.is_some() {
        parts.iter_mut().for_each(|part| part.bytes = None);
    }
    Ok(parts)
}

/// `NU`: every real node into as many parts, one real node after the other. Parts are rounded up to 32 MiB, and the
/// last one is smaller; where that leaves nothing for it the kernel refuses, and so does this.
fn each(rests: Vec<Rest>, count: u32, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let nodes = rests.len() as u64 * u64::from(count);
    if nodes > MOST_NODES as u64 {
        return Err(FakeError::TooMany {
            text: spec.to_string(),
            nodes,
        });
    }
    let mut parts = Vec::new();
    for Rest { real, bytes } in rests {
        let steps = (bytes / u64::from(count)).div_ceil(STEP);
        let size = steps.saturating_mul(STEP).max(STEP);
        let before = size.checked_mul(u64::from(count - 1));
        let last = before.and_then(|before| bytes.checked_sub(before));
        let last = last
            .filter(|&last| last > 0)
            .ok_or_else(|| FakeError::TooSmall {
                text: spec.to_string(),
                bytes,
                parts: count,
            })?;
        parts.extend((1..count).map(|_| Part::of(real, size)));
        parts.push(Part::of(real, last));
    }
    Ok(parts)
}

/// `N`: as many parts of equal size, dealt out over the real nodes in turn. The remainder makes the first parts 32 MiB
/// larger each, and what is left of a real node and too small for a part goes to its last one.
fn in_turn(mut rests: Vec<Rest>, count: u32, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let total = total(&rests);
    let exact = total / u64::from(count);
    let larger = (exact % STEP).saturating_mul(u64::from(count)) / STEP;
    let size = exact / STEP * STEP;
    if size == 0 {
        return Err(FakeError::TooSmall {
            text: spec.to_string(),
            bytes: total,
            parts: count,
        });
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut dealt: u64 = 0;
    while !rests.is_empty() {
        for rest in &mut rests {
            let wanted = if dealt < larger { size + STEP } else { size };
            let bytes = rest.take(wanted, size);
            // More pieces than parts come about where real nodes are not multiples of a part: they go round again.
            match parts.get_mut((dealt % u64::from(count)) as usize) {
                Some(part) => part.bytes = part.bytes.map(|before| before.saturating_add(bytes)),
                None => parts.push(Part::of(rest.real, bytes)),
            }
            dealt += 1;
        }
        rests.retain(|rest| rest.bytes > 0);
    }
    Ok(parts)
}

/// A size: parts of at least that size, dealt out in turn; the last part of a real node takes what is left of it.
fn of_size(mut rests: Vec<Rest>, asked: u64) -> Vec<Part> {
    let total = total(&rests);
    // The kernel raises a size that would make more nodes than it can have.
    let least = (total / MOST_NODES as u64).max(1).div_ceil(STEP) * STEP;
    let size = asked.max(least) / STEP * STEP;
    let mut parts = Vec::new();
    while !rests.is_empty() {
        for rest in &mut rests {
            let bytes = rest.take(size, size);
            parts.push(Part::of(rest.real, bytes));
        }
        rests.retain(|rest| rest.bytes > 0);
    }
    parts
}

/// The CPUs of every fake node, by number.
///
/// CPUs of a real node that gets no fake (it has no memory) are moved to node 0's real node, as
/// `numa_emu_update_cpu_to_node` in mm/numa_emulation.c does it.
fn shares(machine: &Machine, parts: &[Part], split: bool) -> Vec<CpuSet> {
    let mut whole: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    for node in &machine.nodes {
        let own = parts.iter().find(|part| part.real == node.id);
        if let Some(home) = own.or(parts.first()) {
            let cpus = whole.entry(home.real).or_default();
            *cpus = cpus.union(node.known_cpus());
        }
    }
    let of = |real: NodeId| whole.get(&real).cloned().unwrap_or_default();
    if !split {
        return parts.iter().map(|part| of(part.real)).collect();
    }
    let cores = whole.iter();
    let cores = cores.map(|(&real, cpus)| (real, whole_cores(machine, cpus)));
    let cores: BTreeMap<NodeId, Vec<CpuSet>> = cores.collect();
    let mut taken: BTreeMap<NodeId, usize> = BTreeMap::new();
    let share = |part: &Part| {
        let same = parts.iter().filter(|other| other.real == part.real);
        let fakes = same.count().max(1);
        let nth = taken.entry(part.real).or_default();
        let cores = cores.get(&part.real).map_or(&[][..], Vec::as_slice);
        let (from, to) = (*nth * cores.len() / fakes, (*nth + 1) * cores.len() / fakes);
        *nth += 1;
        cores[from..to].iter().collect()
    };
    parts.iter().map(share).collect()
}

/// The CPUs of a node core by core. A CPU whose core is unknown counts as a core of its own.
fn whole_cores(machine: &Machine, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut cores: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
    for cpu in cpus.iter() {
        let leader = machine.cpu(cpu).and_then(|cpu| cpu.core).unwrap_or(cpu);
        cores.entry(leader).or_default().insert(cpu);
    }
    cores.into_values().collect()
}

const BECAUSE: &str = "fake nodes lie over the machine, and the source counted by real node";

/// What has become of the real nodes.
struct Numbers {
    /// The real node behind each new one, by number.
    parents: Vec<NodeId>,
    /// The new nodes of each real one, ascending.
    fakes: BTreeMap<NodeId, NodeSet>,
}

impl Numbers {
    /// Fakes first, then the nodes that got none.
    fn new(machine: &Machine, parts: &[Part]) -> Self {
        let mut parents: Vec<NodeId> = parts.iter().map(|part| part.real).collect();
        let ids = machine.nodes.iter().map(|node| node.id);
        let without = ids.filter(|id| parts.iter().all(|part| part.real != *id));
        parents.extend(without);
        let mut fakes: BTreeMap<NodeId, NodeSet> = BTreeMap::new();
        for (number, &real) in (0..).zip(&parents) {
            fakes.entry(real).or_default().insert(NodeId(number));
        }
        Self { parents, fakes }
    }

    fn lowest(&self, real: NodeId) -> Option<NodeId> {
        self.fakes.get(&real)?.first()
    }

    fn all(&self, real: &NodeSet) -> NodeSet {
        let fakes = real.iter().filter_map(|real| self.fakes.get(&real));
        fakes.collect()
    }
}

fn renumbered(mut machine: Machine, parts: &[Part], shares: &[CpuSet]) -> Machine {
    let numbers = Numbers::new(&machine, parts);
    let nodes = nodes(&machine, &numbers, parts, shares);
    note_moved(&mut machine, &numbers, parts);
    set_homes(&mut machine, &nodes);
    set_distances(&mut machine, &numbers, &nodes);
    machine.nodes = nodes;
    machine.possible_nodes = match machine.possible_nodes {
        Known::Yes(_) => Known::Yes(machine.nodes.iter().map(|node| node.id).collect()),
        unknown => unknown,
    };
    timing(&mut machine, &numbers);
    devices(&mut machine, &numbers);
    tasks(&mut machine, &numbers);
    machine
}

fn nodes(machine: &Machine, numbers: &Numbers, parts: &[Part], shares: &[CpuSet]) -> Vec<Node> {
    let build = |(number, &real): (u32, &NodeId)| {
        let below = machine.node(real)?;
        let mut node = Node {
            id: NodeId(number),
            fake_of: Some(real),
            ..below.clone()
        };
        match parts.get(number as usize) {
            Some(part) => {
                let share = shares.get(number as usize);
                let share = || share.cloned().unwrap_or_default();
                node.cpus = below.cpus.as_ref().map(|_| share());
                node.memory = match part.bytes {
                    Some(bytes) => Known::Yes(Memory::of(bytes)),
                    None => below.memory.as_ref().and_then(|_| Known::no(BECAUSE)),
                };
            }
            // Its CPUs went to another node, and so did its memory where there are fewer fakes than real nodes. Without
            // either it does not come online.
            None => {
                let empty = below.has_cpus() == Some(false) && below.has_memory() != Some(true);
                node.online &= empty;
                node.cpus = below.cpus.as_ref().map(|_| CpuSet::new());
                if !empty && below.online {
                    node.memory = Known::Yes(Memory::of(0));
                }
            }
        }
        for access in &mut node.access {
            access.initiators = numbers.all(&access.initiators);
        }
        Some(node)
    };
    (0..).zip(&numbers.parents).filter_map(build).collect()
}

fn note_moved(machine: &mut Machine, numbers: &Numbers, parts: &[Part]) {
    for node in &machine.nodes {
        if parts.iter().any(|part| part.real == node.id) {
            continue;
        }
        let Some(number) = numbers.lowest(node.id) else {
            continue;
        };
        let moved = match node.known_cpus().is_empty() {
            true => String::new(),
            false => format!(
                "; its CPUs {} were moved to the fakes of node 0's real node",
                node.known_cpus()
            ),
        };
        let message = format!(
            "real node {} got no fake and is number {number} now{moved}",
            node.id
        );
        machine.warnings.push(Warning::new("fake nodes", message));
    }
}

/// A CPU's node is the lowest that has it.
fn set_homes(machine: &mut Machine, nodes: &[Node]) {
    let mut homes: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    for node in nodes {
        for cpu in node.known_cpus().iter() {
            homes.entry(cpu).or_insert(node.id);
        }
    }
    for cpu in &mut machine.cpus {
        cpu.node = homes.get(&cpu.id).copied();
    }
}

fn set_distances(machine: &mut Machine, numbers: &Numbers, nodes: &[Node]) {
    let everywhere = table(machine, numbers, nodes.iter().map(|node| node.id));
    let online = nodes.iter().filter(|node| node.online);
    let online = table(machine, numbers, online.map(|node| node.id));
    if machine.distances.get().is_some() {
        machine.distances = Known::Yes(online);
    }
    // The firmware counts real nodes; where all nodes are online the table of the fakes says the same.
    machine.firmware_distances = match &machine.firmware_distances {
        Known::Yes(_) if nodes.iter().any(|node| !node.online) => Known::Yes(everywhere),
        Known::Yes(_) => Known::no("the firmware's table is one of real nodes"),
        unknown => unknown.clone(),
    };
}

fn table(machine: &Machine, numbers: &Numbers, nodes: impl Iterator<Item = NodeId>) -> Distances {
    let parent = |node: NodeId| numbers.parents.get(node.0 as usize).copied();
    let distance = |from, to| {
        let own = (from == to).then_some(Distance::LOCAL);
        let inherited = parent(from).zip(parent(to));
        inherited
            .and_then(|(from, to)| machine.distance(from, to))
            .or(own)
    };
    let nodes: Vec<NodeId> = nodes.collect();
    let pairs = nodes
        .iter()
        .flat_map(|&from| nodes.iter().map(move |&to| (from, to)));
    let entries = pairs.map(|(from, to)| (from, to, distance(from, to)));
    Distances::of(DistanceOrigin::Fake, nodes.iter().copied(), entries)
}

/// A fake has the latencies of its real node.
fn timing(machine: &mut Machine, numbers: &Numbers) {
    let Some(timing) = machine.timing.take() else {
        return;
    };
    let fakes = || (0..).map(NodeId).zip(numbers.parents.iter().copied());
    let pairs = fakes().flat_map(|from| fakes().map(move |to| (from, to)));
    let latencies = pairs.filter_map(|((cpu_node, from), (memory_node, to))| {
        Some(Latency {
            cpu_node,
            memory_node,
            ns: timing.latency_ns(from, to)?,
        })
    });
    let latencies: Vec<_> = latencies.collect();
    machine.timing = Some(timing.with_latencies(latencies));
}

fn devices(machine: &mut Machine, numbers: &Numbers) {
    let lowest = |node: &mut Known<Option<NodeId>>| {
        if let Known::Yes(Some(real)) = node {
            *node = Known::Yes(numbers.lowest(*real));
        }
    };
    for device in machine.pci.items_mut() {
        lowest(&mut device.node);
    }
    for network in machine.networks.items_mut() {
        lowest(&mut network.node);
    }
    for interrupt in machine.interrupts.items_mut() {
        lowest(&mut interrupt.node);
    }
    let subsystems = machine.nvme.items_mut().iter_mut();
    for controller in subsystems.flat_map(|nvme| &mut nvme.controllers) {
        lowest(&mut controller.node);
    }
    for bridge in machine.host_bridges.items_mut() {
        if let Known::Yes(Some(firmware)) = &mut bridge.firmware {
            match numbers.lowest(firmware.node) {
                Some(node) => firmware.node = node,
                None => {
                    bridge.firmware =
                        Known::no("the firmware names a node that this machine does not list")
                }
            }
        }
    }
}

fn tasks(machine: &mut Machine, numbers: &Numbers) {
    for task in machine.tasks.items_mut() {
        if let Known::Yes(nodes) = &mut task.allowed_nodes {
            *nodes = numbers.all(nodes);
        }
        if let Known::Yes(Some(real)) = &task.preferred_node {
            task.preferred_node = Known::Yes(numbers.lowest(*real));
        }
        if task.memory.get().is_some() {
            task.memory = Known::no(BECAUSE);
            task.sample = None;
        }
        if task.policies.get().is_some() {
            task.policies = Known::no(BECAUSE);
        }
    }
    for service in &mut machine.services {
        service.memory = Known::no(BECAUSE);
    }
    for cpuset in machine.cpusets.items_mut() {
        if let Known::Yes(nodes) = &mut cpuset.nodes {
            *nodes = numbers.all(nodes);
        }
    }
}
