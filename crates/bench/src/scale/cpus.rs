//! Where the tasks of a cell run, and where their memory comes from.

use nearfar_machine::{CpuSet, Machine, NodeId};

use super::task::TaskSpec;

/// How the tasks of a cell are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placing {
    pub(super) tasks: usize,
    /// A CPU each, in ascending order; else wherever the scheduler puts them.
    pub(super) is_bound: bool,
    /// Each task's memory on one of the nodes that its CPU belongs to, in turn; else where the kernel takes it from.
    pub(super) is_spread: bool,
    /// CPUs of so many nodes, the lowest first; `None` for all.
    pub(super) nodes: Option<usize>,
}

/// The tasks of a cell.
///
/// # Errors
/// When there are more bound tasks than CPUs, or fewer nodes with CPUs than are to be used.
pub(super) fn place(
    machine: &Machine,
    allowed: &CpuSet,
    placing: Placing,
) -> Result<Vec<TaskSpec>, String> {
    let cpus = match placing.nodes {
        None => allowed.clone(),
        Some(count) => cpus_of_nodes(machine, allowed, count)?,
    };
    let in_order: Vec<_> = cpus.iter().collect();
    if placing.is_bound && placing.tasks > in_order.len() {
        let (tasks, count) = (placing.tasks, in_order.len());
        return Err(format!(
            "{tasks} bound tasks need as many CPUs; there are {count}"
        ));
    }
    let of = |number: usize| {
        let own = match placing.is_bound {
            true => CpuSet::from_iter([in_order[number]]),
            false => cpus.clone(),
        };
        let nodes = nodes_of(machine, &own);
        let in_turn = || nodes.get(number.checked_rem(nodes.len())?).copied();
        TaskSpec {
            number,
            memory_node: placing.is_spread.then(in_turn).flatten(),
            cpus: own,
        }
    };
    Ok((0..placing.tasks).map(of).collect())
}

/// The online nodes that any of these CPUs belongs to. A CPU belongs to each fake node of its real one.
fn nodes_of(machine: &Machine, cpus: &CpuSet) -> Vec<NodeId> {
    let has = machine
        .online_nodes()
        .filter(|node| !node.known_cpus().intersection(cpus).is_empty());
    has.map(|node| node.id).collect()
}

fn cpus_of_nodes(machine: &Machine, allowed: &CpuSet, count: usize) -> Result<CpuSet, String> {
    let nodes = nodes_of(machine, allowed);
    if count > nodes.len() {
        return Err(format!(
            "nodes_used={count}: the machine has {} nodes with CPUs",
            nodes.len()
        ));
    }
    let nodes = nodes[..count].iter().filter_map(|id| machine.node(*id));
    Ok(nodes
        .flat_map(|node| {
            node.known_cpus()
                .intersection(allowed)
                .iter()
                .collect::<Vec<_>>()
        })
        .collect())
}

/// The numbers of tasks of a sweep: each one, or powers of two and all.
pub(super) fn sweep(cpus: usize, is_full: bool) -> Vec<usize> {
    let cpus = cpus.max(1);
    match is_full {
        true => (1..=cpus).collect(),
        false => {
            let powers = (0..)
                .map(|power| 1 << power)
                .take_while(|tasks| *tasks < cpus);
            powers.chain([cpus]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> Machine {
        let request = nearfar_sources::Request {
            sources: vec!["two-node".to_owned()],
            ..nearfar_sources::Request::live(nearfar_sources::Want::topology())
        };
        nearfar_sources::read(&request).unwrap()
    }

    const PLACING: Placing = Placing {
        tasks: 2,
        is_bound: true,
        is_spread: false,
        nodes: None,
    };

    #[test]
    fn a_sweep_ends_with_all_cpus() {
        assert_eq!(sweep(1, false), [1]);
        assert_eq!(sweep(8, false), [1, 2, 4, 8]);
        assert_eq!(sweep(12, false), [1, 2, 4, 8, 12]);
        assert_eq!(sweep(3, true), [1, 2, 3]);
    }

    #[test]
    fn bound_tasks_have_a_cpu_each_and_fake_nodes_in_turn() {
        let mut machine = two_nodes();
        // As numa=fake shows it: both nodes have all CPUs.
        let all = machine.cpu_states.online.clone();
        machine
            .nodes
            .iter_mut()
            .for_each(|node| node.cpus = all.clone().into());
        let tasks = place(
            &machine,
            &all,
            Placing {
                is_spread: true,
                ..PLACING
            },
        )
        .unwrap();
        let found: Vec<_> = tasks
            .iter()
            .map(|it| (it.cpus.to_string(), it.memory_node.map(|it| it.0)))
            .collect();
        assert_eq!(
            found,
            [("0".to_owned(), Some(0)), ("1".to_owned(), Some(1))]
        );
    }

    #[test]
    fn tasks_use_the_cpus_of_so_many_nodes() {
        let machine = two_nodes();
        let all = machine.cpu_states.online.clone();
        let one = Placing {
            nodes: Some(1),
            is_bound: false,
            ..PLACING
        };
        let tasks = place(&machine, &all, one).unwrap();
        assert_eq!(
            tasks[0].cpus,
            machine.nodes[0].known_cpus().intersection(&all)
        );
        assert!(
            place(
                &machine,
                &all,
                Placing {
                    nodes: Some(9),
                    ..PLACING
                }
            )
            .unwrap_err()
            .contains("2 nodes")
        );
        let many = Placing {
            tasks: 10_000,
            ..PLACING
        };
        assert!(
            place(&machine, &all, many)
                .unwrap_err()
                .contains("bound tasks")
        );
    }
}
