//! vCPUs: which CPUs of a machine the guest has, on which node each is, and how they make cores and packages.
//!
//! QEMU numbers vCPUs through the threads of a core first, then cores, dies, sockets, and a node may have any of them. So
//! each CPU keeps its node whatever the numbering; cores and packages are kept where they are made of neighbours.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Cpu, CpuId, CpuSet, Machine, NodeId};

use crate::design::board::Board;
use crate::design::hardware::Topology;
use crate::error::LabError;

/// A CPU of the guest; its number is its position in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VirtualCpu {
    /// The CPU it stands for.
    pub described: CpuId,
    /// The described node it is on.
    pub node: NodeId,
}

/// The last-level cache of each CPU of the guest, in the order in which they come; `None` where one has none.
pub(super) fn caches(machine: &Machine, cpus: &[VirtualCpu]) -> Option<Vec<usize>> {
    let behind = |cpu: &VirtualCpu| Some(&machine.last_level_cache(cpu.described)?.cpus);
    let behind: Option<Vec<&CpuSet>> = cpus.iter().map(behind).collect();
    Some(numbered(behind?))
}

/// The package of each CPU of the guest, in the order in which they come; `None` where one has none.
pub(super) fn packages(machine: &Machine, cpus: &[VirtualCpu]) -> Option<Vec<usize>> {
    let known: Option<Vec<Package>> = cpus.iter().map(|cpu| known_package(machine, cpu)).collect();
    Some(numbered(known?))
}

/// Equal items have the same number, counted from 0 in the order in which they come.
fn numbered<T: PartialEq + Copy>(items: Vec<T>) -> Vec<usize> {
    let mut found: Vec<T> = Vec::new();
    let number = |item: T| {
        let known = found.iter().position(|&it| it == item);
        known.unwrap_or_else(|| {
            found.push(item);
            found.len() - 1
        })
    };
    items.into_iter().map(number).collect()
}

/// The CPUs that the guest has: those online, in the order of their numbers, without the gaps between them.
pub(super) fn present(
    machine: &Machine,
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Result<Vec<VirtualCpu>, LabError> {
    let fallback = machine.online_nodes().map(|node| node.id).next();
    let mut cpus = Vec::new();
    let mut strays = 0;
    for cpu in machine.cpus.iter().filter(|cpu| cpu.is_online()) {
        let is_online = |node: &NodeId| machine.node(*node).is_some_and(|node| node.online);
        let home = cpu.node.filter(is_online);
        strays += usize::from(home.is_none());
        if let Some(node) = home.or(fallback) {
            cpus.push(VirtualCpu {
                described: cpu.id,
                node,
            });
        }
    }
    if cpus.is_empty() {
        let problem = "it has no CPU that is online and on a node";
        return Err(LabError::Design(problem.to_owned()));
    }
    if cpus.len() > board.most_cpus() {
        return Err(LabError::Design(format!(
            "it has {} CPUs and the guest can have {}; keep fewer on each node with --scale cpus=2",
            cpus.len(),
            board.most_cpus()
        )));
    }
    if strays > 0 {
        notes.push(format!(
            "{strays} CPUs that are on no node are on node {} in the guest",
            cpus[0].node
        ));
    }
    let missing = machine.cpus.len() - cpus.len();
    if missing > 0 {
        notes.push(format!(
            "{missing} CPUs that are offline are not in the guest at all"
        ));
    }
    let mut numbered = (0..).map(CpuId).zip(&cpus);
    if numbered.any(|(number, cpu)| cpu.described != number) {
        notes.push("CPUs have other numbers in the guest: there are no gaps".to_owned());
    }
    Ok(cpus)
}

/// The topology that comes nearest to the described one.
pub(super) fn topology(
    machine: &Machine,
    cpus: &[VirtualCpu],
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Topology {
    let threads = threads(machine, cpus, notes);
    // What a core is in, by number of the core.
    let cores = cpus.iter().step_by(threads);
    let places: Vec<_> = cores.map(|cpu| (package(machine, cpu), cpu.node)).collect();
    let total = places.len();
    let part = runs(&places, |place| *place).into_iter().fold(total, gcd);
    let packages = runs(&places, |place| place.0);
    let kinds: BTreeSet<Package> = places.iter().map(|place| place.0).collect();
    let whole = packages.first().copied().filter(|&first| {
        packages.len() == kinds.len()
            && packages.iter().all(|&run| run == first)
            && first.is_multiple_of(part)
    });
    // A socket is a package where all are alike, with its nodes as dies; otherwise what is on one node and in one package.
    let (sockets, dies) = match whole {
        Some(package) if package == part || board.socket_parts().is_some() => {
            (total / package, package / part)
        }
        _ => (total / part, 1),
    };
    if sockets != kinds.len() {
        notes.push(format!(
            "{} packages are {sockets} in the guest: QEMU's are all of one size and made of neighbours",
            kinds.len()
        ));
    }
    Topology {
        cpus: cpus.len(),
        sockets,
        dies,
        cores: part,
        threads,
    }
}

/// What tells packages apart: the kernel's number, or the node where there is none.
type Package = (i64, u32);

fn package(machine: &Machine, cpu: &VirtualCpu) -> Package {
    known_package(machine, cpu).unwrap_or((-1, cpu.node.0))
}

fn known_package(machine: &Machine, cpu: &VirtualCpu) -> Option<Package> {
    let described = machine.cpu(cpu.described)?;
    let number = described.package.filter(|&package| package >= 0);
    let leader = || Some((-1, described.package_leader?.0));
    number.map(|package| (package, u32::MAX)).or_else(leader)
}

/// How many threads a core has, where cores are neighbours of equal number on one node; 1 otherwise.
fn threads(machine: &Machine, cpus: &[VirtualCpu], notes: &mut Vec<String>) -> usize {
    let leader = |cpu: &VirtualCpu| {
        let core: Option<CpuId> = machine.cpu(cpu.described).and_then(|cpu: &Cpu| cpu.core);
        core.unwrap_or(cpu.described)
    };
    let mut cores: BTreeMap<CpuId, usize> = BTreeMap::new();
    for cpu in cpus {
        *cores.entry(leader(cpu)).or_default() += 1;
    }
    let most = cores.values().copied().max().unwrap_or(1);
    let is_core = |cpus: &[VirtualCpu]| {
        let first = (leader(&cpus[0]), cpus[0].node);
        cpus.iter().all(|cpu| (leader(cpu), cpu.node) == first)
    };
    let neighbours = cores.values().all(|&count| count == most) && cpus.chunks(most).all(is_core);
    if most > 1 && !neighbours {
        notes.push(
            "SMT siblings are separate cores in the guest: QEMU's have neighbouring numbers"
                .to_owned(),
        );
    }
    if neighbours { most } else { 1 }
}

/// The lengths of the runs of equal keys.
fn runs<T, K: PartialEq>(items: &[T], key: impl Fn(&T) -> K) -> Vec<usize> {
    let runs = items.chunk_by(|a, b| key(a) == key(b));
    runs.map(<[T]>::len).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
