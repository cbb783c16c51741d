//! The cells of the matrix: which there are on a machine, which were asked for, and which had to be left out.
//!
//! ```text
//! policies                          x  memory        x  CPUs
//! no preferred node, NB off            each node        each node
//! no preferred node, NB on             floating (F)     floating (F)
//! each node preferred, NB on
//! (each node preferred, NB off: --all)
//! ```
//!
//! Two nodes make 4 x 3 x 3 = 36 cells, the published matrix; N nodes (2 + N)(N + 1)^2. A node without CPUs appears only as
//! a place of memory, one without memory only as a place of CPUs.

use nearfar_machine::{CpuSet, Machine, NodeId};
use serde::{Deserialize, Serialize};

use super::cell::{MatrixCell, Policy};
use crate::probe::Where;

/// Which cells were asked for; what is empty was not restricted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Each preferred node with NUMA balancing off, too.
    pub all: bool,
    /// These policies only.
    pub policies: Vec<Policy>,
    /// Memory at these places only.
    pub memory: Vec<Where>,
    /// CPUs at these places only.
    pub cpus: Vec<Where>,
    /// Exactly these cells, whatever the other fields say.
    pub cells: Vec<MatrixCell>,
}

/// What NUMA balancing can be in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Balancing {
    /// It can be set.
    Settable,
    /// It stays as it is.
    Stays {
        /// How it is.
        on: bool,
        /// Why it cannot be set; reads well after "because it is off, and ".
        because: String,
    },
}

/// A part of the matrix that is not measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why; a fragment that reads well after "because ".
    pub because: String,
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
    /// A cell or place that was asked for does not exist on this machine.
    #[error("{what} cannot be measured here: {because}")]
    NotHere {
        /// What was asked for.
        what: String,
        /// Why not.
        because: String,
    },
    /// The restrictions exclude each other.
    #[error("no cell of the matrix is left: {0}")]
    None(String),
}

/// The places of a machine that the probe can be bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Online nodes with memory (or with memory of unknown size).
    pub memory: Vec<NodeId>,
    /// Online nodes with a CPU that this process may use.
    pub cpus: Vec<NodeId>,
}

impl Places {
    /// Those of a machine for a process that may run on `allowed`.
    pub fn of(machine: &Machine, allowed: &CpuSet) -> Self {
        let usable = allowed.intersection(&machine.cpu_states.online);
        let ids = |keep: &dyn Fn(&nearfar_machine::Node) -> bool| {
            machine
                .online_nodes()
                .filter(|node| keep(node))
                .map(|node| node.id)
                .collect()
        };
        Self {
            memory: ids(&|node| node.has_memory() != Some(false)),
            cpus: ids(&|node| node.cpus.intersects(&usable)),
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
        let memory = levels("--memory", "memory", &places.memory, &selection.memory)?;
        let cpus = levels("--cpus", "CPUs", &places.cpus, &selection.cpus)?;
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
        true => Err(NoCells::None(
            "there is no node with memory and no node with CPUs".to_owned(),
        )),
        false => Ok(chosen),
    }
}

/// The levels of memory or CPUs: all, or those that were asked for, which must exist.
fn levels(
    option: &str,
    noun: &str,
    nodes: &[NodeId],
    asked: &[Where],
) -> Result<Vec<Where>, NoCells> {
    let all = Places::levels(nodes);
    match asked.iter().find(|place| !all.contains(place)) {
        Some(place) => Err(NoCells::NotHere {
            what: format!("{option} {place}"),
            because: format!("nodes with {noun} that can be used are {}", list(nodes)),
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
    let named = |because: String| NoCells::NotHere {
        what: format!("cell {cell}"),
        because,
    };
    let there =
        |place: Where, nodes: &[NodeId]| place.node().is_none_or(|node| nodes.contains(&node));
    if !there(cell.memory_node, &places.memory) {
        return Err(named(format!(
            "nodes with memory are {}",
            list(&places.memory)
        )));
    }
    if !there(cell.cpu_node, &places.cpus) {
        return Err(named(format!(
            "nodes with CPUs that can be used are {}",
            list(&places.cpus)
        )));
    }
    check_policy(places, balancing, cell.policy).map_err(named)
}

fn check_policy(places: &Places, balancing: &Balancing, policy: Policy) -> Result<(), String> {
    if let Some(node) = policy
        .preferred_node
        .filter(|node| !places.cpus.contains(node))
    {
        return Err(format!(
            "node {node} cannot be preferred: nodes with CPUs are {}",
            list(&places.cpus)
        ));
    }
    match balancing {
        Balancing::Stays { on, because } if *on != policy.numa_balancing => Err(format!(
            "NUMA balancing is {}, and {because}",
            if *on { "on" } else { "off" }
        )),
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
    if !selection.policies.is_empty() {
        for &policy in &selection.policies {
            check_policy(places, balancing, policy).map_err(|because| NoCells::NotHere {
                what: format!("policy {policy}"),
                because,
            })?;
        }
        return Ok(selection.policies.clone());
    }
    let both = [false, true].map(|numa_balancing| Policy {
        preferred_node: None,
        numa_balancing,
    });
    let (mut policies, not): (Vec<Policy>, Vec<Policy>) = both
        .into_iter()
        .partition(|&policy| check_policy(places, balancing, policy).is_ok());
    left_out.extend(not.into_iter().filter_map(|policy| {
        let because = check_policy(places, balancing, policy).err()?;
        let state = if policy.numa_balancing { "on" } else { "off" };
        Some(LeftOut {
            what: format!("all cells with NUMA balancing {state}"),
            because,
        })
    }));
    if places.memory.len() < 2 && places.cpus.len() < 2 {
        let because = "this machine has one node: no memory is far from any CPU".to_owned();
        left_out.push(LeftOut {
            what: "all cells with CPUs on another node than the memory".to_owned(),
            because,
        });
    }
    if places.cpus.len() < 2 {
        let because = "only one node has CPUs: there is nowhere else to run".to_owned();
        left_out.push(LeftOut {
            what: "all cells with a preferred node".to_owned(),
            because,
        });
        return Ok(policies);
    }
    // Where NUMA balancing cannot be had, the preferred node is measured without it rather than not at all.
    let only_off = matches!(balancing, Balancing::Stays { on: false, .. });
    let only_on = matches!(balancing, Balancing::Stays { on: true, .. });
    for &node in &places.cpus {
        let preferred = Some(node);
        if (selection.all && !only_on) || only_off {
            policies.push(Policy {
                preferred_node: preferred,
                numa_balancing: false,
            });
        }
        if !only_off {
            policies.push(Policy {
                preferred_node: preferred,
                numa_balancing: true,
            });
        }
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTABLE: Balancing = Balancing::Settable;

    fn places(memory: &[u32], cpus: &[u32]) -> Places {
        let ids = |numbers: &[u32]| numbers.iter().map(|&number| NodeId(number)).collect();
        Places {
            memory: ids(memory),
            cpus: ids(cpus),
        }
    }

    fn of(places: &Places, balancing: &Balancing, selection: Selection) -> Vec<String> {
        choose(places, balancing, &selection)
            .unwrap()
            .cells
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn two_nodes_make_the_published_matrix_in_its_order() {
        let cells = of(&places(&[0, 1], &[0, 1]), &SETTABLE, Selection::default());
        assert_eq!(cells.len(), 36);
        let places = [
            "0,cpu_node=0",
            "0,cpu_node=1",
            "0,cpu_node=F",
            "1,cpu_node=0",
            "1,cpu_node=1",
            "1,cpu_node=F",
            "F,cpu_node=0",
            "F,cpu_node=1",
            "F,cpu_node=F",
        ];
        assert_eq!(
            cells[..9],
            places.map(|place| format!("preferred_node=-1,numa_balancing=0,memory_node={place}"))
        );
        assert_eq!(
            cells[9],
            "preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=0"
        );
        assert_eq!(
            cells[18],
            "preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=0"
        );
        assert_eq!(
            cells[35],
            "preferred_node=1,numa_balancing=1,memory_node=F,cpu_node=F"
        );
    }

    #[test]
    fn any_number_of_nodes_makes_two_and_n_policies_of_n_and_one_squared_cells() {
        for nodes in 2..9u32 {
            let numbers: Vec<u32> = (0..nodes).map(|node| 2 * node).collect();
            let places = places(&numbers, &numbers);
            let with = |all| {
                of(
                    &places,
                    &SETTABLE,
                    Selection {
                        all,
                        ..Selection::default()
                    },
                )
                .len() as u32
            };
            assert_eq!(with(false), (2 + nodes) * (nodes + 1).pow(2));
            assert_eq!(with(true), (2 + 2 * nodes) * (nodes + 1).pow(2));
        }
    }

    #[test]
    fn a_node_with_memory_only_is_no_place_to_run() {
        let cells = of(&places(&[0, 2], &[0, 1]), &SETTABLE, Selection::default());
        assert_eq!(cells.len(), 36);
        assert!(
            cells
                .iter()
                .any(|cell| cell.ends_with("memory_node=2,cpu_node=1"))
        );
        assert!(cells.iter().all(|cell| !cell.contains("memory_node=1")
            && !cell.ends_with("cpu_node=2")
            && !cell.contains("preferred_node=2")));
    }

    #[test]
    fn one_node_has_four_cells_and_says_what_it_lacks() {
        let stays = Balancing::Stays {
            on: false,
            because: "the kernel has none".to_owned(),
        };
        let chosen = choose(&places(&[0], &[0]), &stays, &Selection::default()).unwrap();
        assert_eq!(chosen.cells.len(), 4);
        let said: Vec<&str> = chosen
            .left_out
            .iter()
            .map(|left| left.what.as_str())
            .collect();
        let other_node = "all cells with CPUs on another node than the memory";
        assert_eq!(
            said,
            [
                "all cells with NUMA balancing on",
                other_node,
                "all cells with a preferred node"
            ]
        );
    }

    #[test]
    fn without_numa_balancing_a_preferred_node_is_measured_without_it() {
        let stays = Balancing::Stays {
            on: false,
            because: "only root may".to_owned(),
        };
        let cells = of(&places(&[0, 1], &[0, 1]), &stays, Selection::default());
        assert_eq!(cells.len(), 27);
        assert!(cells.iter().all(|cell| cell.contains("numa_balancing=0")));
        let stays = Balancing::Stays {
            on: true,
            because: "only root may".to_owned(),
        };
        let cells = of(
            &places(&[0, 1], &[0, 1]),
            &stays,
            Selection {
                all: true,
                ..Selection::default()
            },
        );
        assert_eq!(cells.len(), 27);
        assert!(cells.iter().all(|cell| cell.contains("numa_balancing=1")));
    }

    #[test]
    fn parts_are_selected_by_factor_or_by_cell() {
        let two = places(&[0, 1], &[0, 1]);
        let policies = vec!["off".parse().unwrap(), "1-off".parse().unwrap()];
        let (memory, cpus) = (
            vec!["0".parse().unwrap()],
            vec!["f".parse().unwrap(), "1".parse().unwrap()],
        );
        let cells = of(
            &two,
            &SETTABLE,
            Selection {
                policies,
                memory,
                cpus,
                ..Selection::default()
            },
        );
        let expected = [
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=1",
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=1,numa_balancing=0,memory_node=0,cpu_node=1",
        ];
        assert_eq!(cells[..3], expected);
        let twice = [
            "preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0",
            "cpu_node=0,memory_node=F,numa_balancing=1,preferred_node=0",
        ]
        .map(|cell| cell.parse().unwrap());
        let cells = of(
            &two,
            &SETTABLE,
            Selection {
                cells: twice.to_vec(),
                ..Selection::default()
            },
        );
        assert_eq!(
            cells,
            ["preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0"]
        );
    }

    #[test]
    fn what_is_not_here_is_refused_by_name() {
        let refusal = |balancing: &Balancing, selection: Selection| {
            choose(&places(&[0, 1], &[0, 1]), balancing, &selection)
                .unwrap_err()
                .to_string()
        };
        let cell = |text: &str| Selection {
            cells: vec![text.parse().unwrap()],
            ..Selection::default()
        };
        let memory = Selection {
            memory: vec!["7".parse().unwrap()],
            ..Selection::default()
        };
        assert!(refusal(&SETTABLE, memory).contains("--memory 7"));
        assert!(
            refusal(
                &SETTABLE,
                cell("preferred_node=5,numa_balancing=1,memory_node=0,cpu_node=0")
            )
            .contains("node 5")
        );
        assert!(
            refusal(
                &SETTABLE,
                cell("preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=9")
            )
            .contains("0-1")
        );
        let stays = Balancing::Stays {
            on: false,
            because: "it is a test".to_owned(),
        };
        assert!(
            refusal(
                &stays,
                cell("preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=0")
            )
            .contains("it is a test")
        );
    }
}
