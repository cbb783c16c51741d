//! Where a run of the command is: its CPUs, and where its memory comes from.
//!
//! ```text
//! cpus     all           those that this process may use, which is what happens without nearfar
//!          spread        the first CPU of each core
//!          0             those of node 0
//!          cache0        those of the first last-level cache
//!          near          those of the node of --near DEVICE
//! memory   default       the policy of this process, mostly local
//!          local, bind, preferred, interleave, weighted       of the CPUs' node, or of all nodes
//!          1             only of node 1
//! ```

use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet, SourceKind, shell_command};
use nearfar_proc::Status;
use nearfar_proc::memory_policy::MemoryPolicy;
use nearfar_runs::{Cell, Level};

use super::{BALANCING, CPUS, HUGE_PAGES, MEMORY};
use crate::node_selection::{of_node, with_cpus};

pub(super) const ALL: &str = "all";
pub(super) const SPREAD: &str = "spread";
const NEAR: &str = "near";
const CACHE: &str = "cache";

pub(super) const DEFAULT: &str = "default";
const LOCAL: &str = "local";
const BIND: &str = "bind";
const PREFERRED: &str = "preferred";
const INTERLEAVE: &str = "interleave";
const WEIGHTED: &str = "weighted";
const POLICIES: [&str; 6] = [DEFAULT, LOCAL, BIND, PREFERRED, INTERLEAVE, WEIGHTED];

pub(super) const NUMA_BALANCING: &str = "kernel.numa_balancing";

/// Nodes that are proposed by default; others are proposed by `--factor`.
const MAX_PROPOSED_NODES: usize = 4;

/// The level of a text, of the factor `cpus`.
pub(super) fn read_cpus(text: &str) -> Option<Level> {
    let number = text.strip_prefix(CACHE).unwrap_or(text);
    let is_level = [ALL, SPREAD, NEAR].contains(&text) || number.parse::<u16>().is_ok();
    is_level.then(|| text.into())
}

/// The level of a text, of the factor `memory`.
pub(super) fn read_memory(text: &str) -> Option<Level> {
    let is_level = POLICIES.contains(&text) || text.parse::<u16>().is_ok();
    is_level.then(|| text.into())
}

/// Whether a level of the factor `memory` takes the node of the CPUs.
pub(super) fn is_of_one_node(memory: &str) -> bool {
    [BIND, PREFERRED].contains(&memory)
}

/// What NUMA balancing is set to in a cell; `None` where it stays as it is.
pub(super) fn balancing(cell: &Cell) -> Option<&'static str> {
    match cell.text(BALANCING).as_str() {
        "on" => Some("1"),
        "off" => Some("0"),
        _ => None,
    }
}

/// What a run is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placement {
    /// `None` for those that this process may use.
    pub(super) cpus: Option<CpuSet>,
    /// `None` for the policy that this process has.
    pub(super) memory: Option<(MemoryPolicy, NodeSet)>,
    /// The node, where the CPUs are all those of one that may be used.
    node: Option<NodeId>,
}

/// What of a machine may be used.
#[derive(Clone)]
pub(super) struct Usable<'a> {
    pub(super) machine: &'a Machine,
    pub(super) allowed: CpuSet,
    /// Nodes with memory that this process may have.
    with_memory: NodeSet,
    /// Those of them whose memory is for any program.
    for_any: NodeSet,
    /// The node of `--near`.
    near: Option<NodeId>,
}

impl<'a> Usable<'a> {
    pub(super) fn of(machine: &'a Machine, allowed: CpuSet, near: Option<NodeId>) -> Self {
        // A cpuset may allow fewer, and the kernel shows policies without the others.
        let status = std::fs::read("/proc/self/status").unwrap_or_default();
        let allowed_nodes = Status::of(&status).allowed_nodes();
        let is_live = machine.origin.kind == SourceKind::Live;
        let allowed_nodes = allowed_nodes.filter(|_| is_live);
        let allowed_of = |nodes: NodeSet| match &allowed_nodes {
            Some(allowed) => allowed.intersection(&nodes),
            None => nodes,
        };
        Self {
            machine,
            allowed,
            with_memory: allowed_of(machine.nodes_with_memory()),
            for_any: allowed_of(machine.nodes_for_any()),
            near,
        }
    }

    /// The placements that a first run compares: as it is, each node with its own memory, memory of all nodes in turn, one of several
    /// last-level caches of a node, the device's node. What is left out of them, in sentences.
    pub(super) fn proposed(&self) -> (Vec<(String, String)>, Vec<String>) {
        let mut proposed = vec![(ALL.to_owned(), DEFAULT.to_owned())];
        let mut notes = Vec::new();
        let has_memory = |node: NodeId| self.with_memory.contains(node);
        let own = |node| if has_memory(node) { BIND } else { DEFAULT }.to_owned();
        let nodes = with_cpus(self.machine, &self.allowed);
        if nodes.len() > 1 {
            let some = nodes.iter().take(MAX_PROPOSED_NODES);
            proposed.extend(some.map(|&node| (node.to_string(), own(node))));
            if nodes.len() > MAX_PROPOSED_NODES {
                notes.push(format!(
                    "of {} nodes the first {MAX_PROPOSED_NODES} are measured: --factor cpus=NODE,NODE names others",
                    nodes.len()
                ));
            }
        }
        if self.for_any.len() > 1 {
            proposed.push((ALL.to_owned(), INTERLEAVE.to_owned()));
        }
        let caches = || self.machine.last_level_caches();
        let first = caches().next().filter(|_| caches().count() > nodes.len());
        if let Some(node) = first.and_then(|it| self.machine.node_of(it.cpus.first()?)) {
            proposed.push((format!("{CACHE}0"), own(node)));
        }
        if let Some(node) = self
            .near
            .filter(|node| nodes.len() > MAX_PROPOSED_NODES || !nodes.contains(node))
        {
            proposed.push((NEAR.to_owned(), own(node)));
        }
        if self.cores().is_some() {
            proposed.push((SPREAD.to_owned(), DEFAULT.to_owned()));
        }
        (proposed, notes)
    }

    /// The first CPU of each core; `None` where that is each CPU.
    fn cores(&self) -> Option<CpuSet> {
        let first = |cpu: &_| {
            self.machine
                .siblings(*cpu)
                .intersection(&self.allowed)
                .first()
                == Some(*cpu)
        };
        let cores: CpuSet = self.allowed.iter().filter(first).collect();
        (cores != self.allowed).then_some(cores)
    }

    /// The placement of a cell.
    ///
    /// # Errors
    /// Why the machine has none such.
    pub(super) fn placement(&self, cell: &Cell) -> Result<Placement, String> {
        let level = cell.text(CPUS);
        let node_of = |text: &str| text.parse().map(NodeId).ok();
        let of_node = |node: NodeId| {
            let cpus: CpuSet = of_node(self.machine, &self.allowed, node)
                .into_iter()
                .collect();
            match cpus.is_empty() {
                true => Err(format!("node {node} has no CPU that this process may use")),
                false => Ok((Some(cpus), Some(node))),
            }
        };
        let (cpus, node) = match level.as_str() {
            ALL => (None, None),
            SPREAD => {
                let cores = self
                    .cores()
                    .ok_or("each core has one CPU that may be used: spread is as all")?;
                (Some(cores), None)
            }
            NEAR => of_node(self.near.ok_or("near takes --near DEVICE")?)?,
            text => match (text.strip_prefix(CACHE).and_then(node_of), node_of(text)) {
                (Some(NodeId(index)), _) => (Some(self.cache(index)?), None),
                (None, Some(node)) => of_node(node)?,
                (None, None) => return Err(format!("{text} is no level of {CPUS}")),
            },
        };
        let home = node.or_else(|| {
            let first = cpus.as_ref().filter(|_| level != SPREAD)?.first()?;
            self.machine.node_of(first)
        });
        let home = home.or_else(|| self.only_node());
        let memory = self.memory(&cell.text(MEMORY), home)?;
        Ok(Placement { cpus, memory, node })
    }

    /// The node with CPUs that may be used, where there is one.
    pub(super) fn only_node(&self) -> Option<NodeId> {
        match with_cpus(self.machine, &self.allowed)[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    fn cache(&self, index: u32) -> Result<CpuSet, String> {
        let mut caches = self.machine.last_level_caches();
        let cache = caches.nth(index as usize).ok_or_else(|| {
            let count = self.machine.last_level_caches().count();
            format!(
                "there is no {CACHE}{index}: {count} last-level caches are known, from {CACHE}0 on"
            )
        })?;
        let cpus = cache.cpus.intersection(&self.allowed);
        match cpus.is_empty() {
            true => Err(format!(
                "this process may use no CPU of {CACHE}{index}, {}",
                cache.cpus
            )),
            false => Ok(cpus),
        }
    }

    fn memory(
        &self,
        level: &str,
        home: Option<NodeId>,
    ) -> Result<Option<(MemoryPolicy, NodeSet)>, String> {
        let policy = match level {
            DEFAULT => return Ok(None),
            LOCAL => MemoryPolicy::Local,
            BIND => MemoryPolicy::Bind,
            PREFERRED => MemoryPolicy::Preferred,
            INTERLEAVE => MemoryPolicy::Interleave,
            WEIGHTED => MemoryPolicy::WeightedInterleave,
            number => {
                let node = number.parse().map(NodeId);
                let node = node.map_err(|_| format!("{number} is no level of {MEMORY}"))?;
                return match self.with_memory.contains(node) {
                    true => Ok(Some((MemoryPolicy::Bind, NodeSet::single(node)))),
                    false => Err(format!(
                        "no node {node} has memory: nodes with memory are {}",
                        self.with_memory
                    )),
                };
            }
        };
        let is_of_home = matches!(policy, MemoryPolicy::Bind | MemoryPolicy::Preferred);
        let home = match home {
            Some(node) if is_of_home && !self.with_memory.contains(node) => {
                return Err(format!("node {node} has no memory"));
            }
            None if is_of_home => {
                return Err(format!(
                    "memory={level} takes CPUs of one node, or a node's number"
                ));
            }
            home => home.unwrap_or(NodeId(0)),
        };
        Ok(Some((policy, policy.nodes(home, &self.for_any))))
    }
}

impl Placement {
    /// Commands that run a program so without nearfar and with it; `None` where it is run as it is.
    pub(super) fn commands(&self, command: &[String], cell: &Cell) -> Option<Commands> {
        let mut settings = Vec::new();
        settings.extend(balancing(cell).map(|value| format!("sysctl {NUMA_BALANCING}={value}")));
        if cell.text(HUGE_PAGES) == "never" {
            settings.push(
                "prctl(PR_SET_THP_DISABLE), which neither numactl nor systemd sets".to_owned(),
            );
        }
        if self.cpus.is_none() && self.memory.is_none() && settings.is_empty() {
            return None;
        }
        let mut numactl = vec!["numactl".to_owned()];
        let mut unit = Vec::new();
        if let Some(cpus) = &self.cpus {
            numactl.push(match self.node {
                Some(node) => format!("--cpunodebind={node}"),
                None => format!("--physcpubind={cpus}"),
            });
            unit.push(format!("CPUAffinity={cpus}"));
        }
        if let Some((policy, nodes)) = &self.memory {
            let (option, setting) = match policy {
                MemoryPolicy::Local => ("--localalloc".to_owned(), Some("local")),
                MemoryPolicy::Preferred => (format!("--preferred={nodes}"), Some("preferred")),
                MemoryPolicy::Bind => (format!("--membind={nodes}"), Some("bind")),
                MemoryPolicy::Interleave => (format!("--interleave={nodes}"), Some("interleave")),
                MemoryPolicy::WeightedInterleave => {
                    (format!("--weighted-interleave={nodes}"), None)
                }
            };
            numactl.push(option);
            // systemd.exec(5) has no weights.
            unit.extend(setting.map(|it| format!("NUMAPolicy={it}")));
            let has_mask = setting.is_some() && !nodes.is_empty();
            unit.extend(has_mask.then(|| format!("NUMAMask={nodes}")));
        }
        let prefer = self.node.and_then(|node| {
            let memory = match &self.memory {
                None => "",
                Some((MemoryPolicy::Bind, nodes)) if *nodes == NodeSet::single(node) => {
                    " --memory bind"
                }
                Some((MemoryPolicy::Preferred, _)) => " --memory preferred",
                Some((MemoryPolicy::Interleave, _)) => " --memory interleave",
                // It has no other.
                Some(_) => return None,
            };
            Some(format!(
                "nearfar prefer --node {node}{memory} -- {}",
                shell_command(command)
            ))
        });
        let is_placed = self.cpus.is_some() || self.memory.is_some();
        Some(Commands {
            numactl: is_placed.then(|| format!("{} {}", numactl.join(" "), shell_command(command))),
            settings,
            unit,
            prefer,
        })
    }
}

/// How a placement is made for good.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Commands {
    /// numactl(8); `None` where CPUs and memory are those that the command has anyway.
    pub numactl: Option<String>,
    /// What else is set in that placement.
    #[serde(default)]
    pub settings: Vec<String>,
    /// Lines of a unit's `[Service]` section (systemd.exec(5)).
    pub unit: Vec<String>,
    /// `nearfar prefer`, where all CPUs of a node are used: it lets tasks out while the node is full.
    pub prefer: Option<String>,
}

#[cfg(test)]
mod tests {
    use nearfar_sources::{Request, Want};

    use super::*;

    fn machine(source: &str) -> Machine {
        nearfar_sources::read(&Request::source(source, Want::topology())).unwrap()
    }

    fn usable(machine: &Machine) -> Usable<'_> {
        Usable::of(machine, machine.cpu_states.online.clone(), None)
    }

    fn cell(cpus: &str, memory: &str) -> Cell {
        Cell::new().with(CPUS, cpus).with(MEMORY, memory)
    }

    #[test]
    fn a_machine_of_one_node_has_nothing_to_compare_but_cores() {
        let one = machine("node:1 memory:1G core:2 pu:1");
        let (proposed, notes) = usable(&one).proposed();
        assert_eq!(proposed, [(ALL.to_owned(), DEFAULT.to_owned())]);
        assert!(notes.is_empty());
        let threads = machine("node:1 memory:1G core:2 pu:2");
        let (proposed, _) = usable(&threads).proposed();
        assert_eq!(
            proposed.last(),
            Some(&(SPREAD.to_owned(), DEFAULT.to_owned()))
        );
        let spread = usable(&threads).placement(&cell(SPREAD, DEFAULT)).unwrap();
        assert_eq!(spread.cpus.unwrap().to_string(), "0,2");
    }

    #[test]
    fn each_node_has_its_own_memory_and_all_have_memory_in_turn() {
        let two = machine("node:2 memory:1G core:2 pu:1 distance:20");
        let (proposed, _) = usable(&two).proposed();
        let expected = [(ALL, DEFAULT), ("0", BIND), ("1", BIND), (ALL, INTERLEAVE)];
        assert_eq!(
            proposed,
            expected.map(|(cpus, memory)| (cpus.to_owned(), memory.to_owned()))
        );
        let many = machine("node:8 memory:1G core:1 pu:1 distance:20");
        let (proposed, notes) = usable(&many).proposed();
        assert_eq!((proposed.len(), notes.len()), (6, 1), "{notes:?}");
    }

    #[test]
    fn a_placement_is_a_command_of_others_as_well() {
        let two = machine("node:2 memory:1G core:2 pu:1 distance:20");
        let usable = usable(&two);
        let command = ["./job".to_owned(), "a b".to_owned()];
        let commands = |cpus, memory| {
            let cell = cell(cpus, memory);
            usable.placement(&cell).unwrap().commands(&command, &cell)
        };
        assert_eq!(commands(ALL, DEFAULT), None);
        let bound = commands("1", BIND).unwrap();
        assert_eq!(
            bound.numactl.unwrap(),
            "numactl --cpunodebind=1 --membind=1 ./job 'a b'"
        );
        assert_eq!(
            bound.unit,
            ["CPUAffinity=2-3", "NUMAPolicy=bind", "NUMAMask=1"]
        );
        assert_eq!(
            bound.prefer.unwrap(),
            "nearfar prefer --node 1 --memory bind -- ./job 'a b'"
        );
        let interleaved = commands(ALL, INTERLEAVE).unwrap();
        assert_eq!(
            interleaved.numactl.unwrap(),
            "numactl --interleave=0-1 ./job 'a b'"
        );
        assert_eq!(interleaved.prefer, None);
        let far = commands("0", "1").unwrap();
        assert_eq!(
            far.numactl.as_deref().unwrap(),
            "numactl --cpunodebind=0 --membind=1 ./job 'a b'"
        );
        assert_eq!(far.prefer, None, "prefer has no memory of another node");
        assert_eq!(commands(ALL, LOCAL).unwrap().unit, ["NUMAPolicy=local"]);
        assert!(commands(ALL, WEIGHTED).unwrap().unit.is_empty());
        let without = cell(ALL, DEFAULT)
            .with(HUGE_PAGES, "never")
            .with(BALANCING, "off");
        let without = usable
            .placement(&without)
            .unwrap()
            .commands(&command, &without)
            .unwrap();
        assert_eq!((without.numactl, without.settings.len()), (None, 2));
    }

    #[test]
    fn what_a_machine_does_not_have_is_said() {
        let two = machine("node:2 memory:1G core:2 pu:1 distance:20");
        for (cpus, memory, reason) in [
            ("7", DEFAULT, "node 7 has no CPU"),
            ("cache9", DEFAULT, "there is no cache9"),
            (NEAR, DEFAULT, "--near DEVICE"),
            (SPREAD, DEFAULT, "spread is as all"),
            (ALL, BIND, "CPUs of one node"),
            ("0", "5", "nodes with memory are 0-1"),
        ] {
            let error = usable(&two).placement(&cell(cpus, memory)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(
            read_cpus("cache").is_none()
                && read_cpus("-1").is_none()
                && read_memory("far").is_none()
        );
        assert!(read_cpus("cache12").is_some() && read_memory("3").is_some());
    }
}
