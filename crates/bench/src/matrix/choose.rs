//! The cells of the matrix: which there are on a machine, which were asked for, and which had to be left out.
//!
//! ```text
//! preferred node and NUMA balancing  x  memory        x  CPUs
//! none, off                             each node        each node
//! none, on                              unbound (F)      unbound (F)
//! each node, on
//! (each node, off: only where levels of numa_balancing are asked for)
//! ```
//!
//! Two nodes make 4 x 3 x 3 = 36 cells, the published matrix; N nodes (2 + N)(N + 1)^2. A node without CPUs appears only as
//! a place of memory, one without memory only as a place of CPUs.

use nearfar_machine::{CpuSet, Machine, NodeId};
use serde::{Deserialize, Serialize};

use super::{CPU_NODE, MEMORY_NODE, MatrixCell, NUMA_BALANCING, PREFERRED_NODE, Policy, number_of};
use crate::probe::Where;

/// Which levels were asked for; what is empty was not restricted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    pub preferred_node: Vec<Option<NodeId>>,
    pub numa_balancing: Vec<bool>,
    pub memory_node: Vec<Where>,
    pub cpu_node: Vec<Where>,
    /// Exactly these cells, whatever the other fields say.
    pub cells: Vec<MatrixCell>,
}

/// What NUMA balancing can be in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Balancing {
    Settable,
    /// It stays as it is.
    Stays {
        on: bool,
        /// Why it cannot be set; reads well after "because it is off, and ".
        reason: String,
    },
}

/// A part of the matrix that is not measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub what: String,
    #[serde(alias = "because")]
    pub reason: String,
}

/// The cells of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// In the order of the published table, each once.
    pub cells: Vec<MatrixCell>,
    /// What the matrix would have had on a machine that allows it.
    pub left_out: Vec<LeftOut>,
}

/// Nothing is left to measure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCells {
    #[error("{what} cannot be measured here: {reason}")]
    NotHere { what: String, reason: Unavailable },
    #[error("no cell of the matrix is left: there is no node with memory and no node with CPUs")]
    NoNodes,
}

/// Why something cannot be measured here; reads well after "because ".
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("nodes with {what} that can be used are {nodes}")]
    Node { what: &'static str, nodes: String },
    #[error("node {node} cannot be preferred: nodes with CPUs are {nodes}")]
    Preferred { node: NodeId, nodes: String },
    #[error("NUMA balancing is {}, and {reason}", if *on { "on" } else { "off" })]
    Balancing { on: bool, reason: String },
}

/// The places of a machine that the probe can be bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Online nodes with memory (or with memory of unknown size) that is no device's own.
    pub memory: Vec<NodeId>,
    /// Online nodes with a CPU that this process may use.
    pub cpus: Vec<NodeId>,
}

impl Places {
    /// Those of a machine for a process that may run on `allowed`.
    pub fn of(machine: &Machine, allowed: &CpuSet) -> Self {
        let usable = allowed.intersection(&machine.cpu_states.online);
        let nodes = machine.online_nodes();
        let with_cpus = nodes.filter(|node| node.known_cpus().intersects(&usable));
        Self {
            memory: machine.nodes_for_any().iter().collect(),
            cpus: with_cpus.map(|node| node.id).collect(),
        }
    }

    fn levels(nodes: &[NodeId]) -> Vec<Where> {
        nodes
            .iter()
            .map(|&node| Where::Node(node))
            .chain([Where::Floating])
            .collect()
    }
}

/// The cells that exist on a machine with these places, as far as they were asked for.
///
/// # Errors
/// When something that was asked for by name does not exist here, or nothing is left.
pub fn choose(
    places: &Places,
    balancing: &Balancing,
    selection: &Selection,
) -> Result<Chosen, NoCells> {
    let mut chosen = Chosen {
        cells: Vec::new(),
        left_out: Vec::new(),
    };
    if !selection.cells.is_empty() {
        for cell in &selection.cells {
            check(places, balancing, cell)?;
        }
        chosen.cells = selection.cells.clone();
    } else {
        let policies = policies(places, balancing, selection, &mut chosen.left_out)?;
        let memory = levels(
            MEMORY_NODE,
            "memory",
            &places.memory,
            &selection.memory_node,
        )?;
        let cpus = levels(CPU_NODE, "CPUs", &places.cpus, &selection.cpu_node)?;
        chosen.cells = policies
            .iter()
            .flat_map(|&policy| memory.iter().map(move |&memory| (policy, memory)))
            .flat_map(|(policy, memory)| {
                cpus.iter().map(move |&cpus| MatrixCell {
                    policy,
                    memory_node: memory,
                    cpu_node: cpus,
                })
            })
            .collect();
    }
    chosen.cells.sort_unstable();
    chosen.cells.dedup();
    match chosen.cells.is_empty() {
        true => Err(NoCells::NoNodes),
        false => Ok(chosen),
    }
}

/// The levels of memory or CPUs: all, or those that were asked for, which must exist.
fn levels(
    factor: &str,
    noun: &'static str,
    nodes: &[NodeId],
    asked: &[Where],
) -> Result<Vec<Where>, NoCells> {
    let all = Places::levels(nodes);
    match asked.iter().find(|place| !all.contains(place)) {
        Some(place) => Err(NoCells::NotHere {
            what: format!("{factor}={place}"),
            reason: Unavailable::Node {
                what: noun,
                nodes: list(nodes),
            },
        }),
        None if asked.is_empty() => Ok(all),
        None => Ok(asked.to_vec()),
    }
}

fn list(nodes: &[NodeId]) -> String {
    let set: nearfar_machine::NodeSet = nodes.iter().copied().collect();
    if set.is_empty() {
        "none".to_owned()
    } else {
        set.to_string()
    }
}

/// Whether a cell that was asked for by name can be measured.
fn check(places: &Places, balancing: &Balancing, cell: &MatrixCell) -> Result<(), NoCells> {
    let place = |place: Where, what, nodes: &[NodeId]| match place.node() {
        Some(node) if !nodes.contains(&node) => Err(Unavailable::Node {
            what,
            nodes: list(nodes),
        }),
        _ => Ok(()),
    };
    place(cell.memory_node, "memory", &places.memory)
        .and_then(|()| place(cell.cpu_node, "CPUs", &places.cpus))
        .and_then(|()| check_preferred(places, cell.policy.preferred_node))
        .and_then(|()| check_balancing(balancing, cell.policy.numa_balancing))
        .map_err(|reason| NoCells::NotHere {
            what: format!("cell {cell}"),
            reason,
        })
}

fn check_preferred(places: &Places, preferred: Option<NodeId>) -> Result<(), Unavailable> {
    match preferred.filter(|node| !places.cpus.contains(node)) {
        Some(node) => Err(Unavailable::Preferred {
            node,
            nodes: list(&places.cpus),
        }),
        None => Ok(()),
    }
}

fn check_balancing(balancing: &Balancing, wanted: bool) -> Result<(), Unavailable> {
    match balancing {
        Balancing::Stays { on, reason } if *on != wanted => Err(Unavailable::Balancing {
            on: *on,
            reason: reason.clone(),
        }),
        _ => Ok(()),
    }
}

/// The policies to measure: those that were asked for, or those of the matrix that the machine allows.
fn policies(
    places: &Places,
    balancing: &Balancing,
    selection: &Selection,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Policy>, NoCells> {
    let not_here = |what: String| move |reason| NoCells::NotHere { what, reason };
    for &node in &selection.preferred_node {
        let what = format!("{PREFERRED_NODE}={}", number_of(node));
        check_preferred(places, node).map_err(not_here(what))?;
    }
    for &on in &selection.numa_balancing {
        let what = format!("{NUMA_BALANCING}={}", u8::from(on));
        check_balancing(balancing, on).map_err(not_here(what))?;
    }
    let asked = &selection.preferred_node;
    let preferred = match asked.as_slice() {
        [] => all_preferred(places, left_out),
        asked => asked.to_vec(),
    };
    let only_off = matches!(balancing, Balancing::Stays { on: false, .. });
    let mut policies = Vec::new();
    for preferred_node in preferred {
        for numa_balancing in [false, true] {
            let is_wanted = match (selection.numa_balancing.as_slice(), preferred_node) {
                // Where NUMA balancing cannot be had, the preferred node is measured without it rather than not at all.
                ([], Some(_)) => numa_balancing != only_off,
                ([], None) => leave_out_impossible(balancing, numa_balancing, left_out),
                (asked, _) => asked.contains(&numa_balancing),
            };
            if is_wanted {
                policies.push(Policy {
                    preferred_node,
                    numa_balancing,
                });
            }
        }
    }
    Ok(policies)
}

/// No preferred node, and each node with CPUs where there are several.
fn all_preferred(places: &Places, left_out: &mut Vec<LeftOut>) -> Vec<Option<NodeId>> {
    let mut leave_out = |what: &str, reason: &str| {
        left_out.push(LeftOut {
            what: what.to_owned(),
            reason: reason.to_owned(),
        });
    };
    if places.memory.len() < 2 && places.cpus.len() < 2 {
        leave_out(
            "all cells with CPUs on another node than the memory",
            "this machine has one node: no memory is far from any CPU",
        );
    }
    if places.cpus.len() < 2 {
        leave_out(
            "all cells with a preferred node",
            "only one node has CPUs: there is nowhere else to run",
        );
        return vec![None];
    }
    let nodes = places.cpus.iter().map(|&node| Some(node));
    [None].into_iter().chain(nodes).collect()
}

/// Whether NUMA balancing can be so.
fn leave_out_impossible(balancing: &Balancing, on: bool, left_out: &mut Vec<LeftOut>) -> bool {
    let reason = check_balancing(balancing, on).err();
    let state = if on { "on" } else { "off" };
    left_out.extend(reason.iter().map(|reason| LeftOut {
        what: format!("all cells with NUMA balancing {state}"),
        reason: reason.to_string(),
    }));
    reason.is_none()
}
