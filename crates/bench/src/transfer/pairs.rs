//! Which pairs of CPUs are measured, and what each pair shares.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuSet, Machine, Nearness, Neighbourhood, NodeId};

use crate::options::ProbeOptions;

/// Two CPUs, the lower first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Pair {
    pub(super) first: CpuId,
    pub(super) second: CpuId,
    pub(super) nearness: Nearness,
}

/// The pairs to measure among `usable` CPUs: all of them, or one for each nearness of each node and one for each pair of
/// nodes. With `from` and `to` one CPU is on a node of each.
pub(super) fn choose(
    machine: &Machine,
    usable: &CpuSet,
    all_cpus: bool,
    options: &ProbeOptions,
) -> Vec<Pair> {
    let neighbourhood = Neighbourhood::of(machine);
    let cpus: Vec<CpuId> = usable.iter().collect();
    let wanted = |node: Option<NodeId>, nodes: &Option<nearfar_machine::NodeSet>| {
        nodes
            .as_ref()
            .is_none_or(|nodes| node.is_some_and(|node| nodes.contains(node)))
    };
    let among = |a: CpuId, b: CpuId| {
        let (a, b) = (machine.node_of(a), machine.node_of(b));
        (wanted(a, &options.from) && wanted(b, &options.to))
            || (wanted(b, &options.from) && wanted(a, &options.to))
    };
    let all = cpus
        .iter()
        .enumerate()
        .flat_map(|(index, &first)| cpus[index + 1..].iter().map(move |&second| (first, second)));
    let all = all.filter(|&(first, second)| among(first, second));
    let all = all.map(|(first, second)| Pair {
        first,
        second,
        nearness: neighbourhood.nearness(first, second),
    });
    if all_cpus {
        return all.collect();
    }
    // The last of each kind stands for it: interrupts gather on low CPUs.
    let mut chosen = BTreeMap::new();
    for pair in all {
        chosen.insert(
            (
                machine.node_of(pair.first),
                machine.node_of(pair.second),
                pair.nearness,
            ),
            pair,
        );
    }
    let mut chosen: Vec<Pair> = chosen.into_values().collect();
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nearfar_machine::{Cache, CacheKind, Cpu, Known, Node, NodeSet, Origin, SourceKind};
    use proptest::prelude::*;

    use super::*;

    /// Nodes of 8 CPUs: cores of two threads, caches of four CPUs.
    fn machine(nodes: u32) -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        for cpu in 0..nodes * 8 {
            let core = Some(CpuId(cpu & !1));
            machine.cpus.push(Cpu {
                core,
                ..Cpu::new(CpuId(cpu), Some(NodeId(cpu / 8)))
            });
        }
        for first in (0..nodes * 8).step_by(4) {
            let cpus = CpuSet::range(CpuId(first), CpuId(first + 3));
            let size_bytes = Known::Yes(1 << 20);
            machine.caches.push(Cache {
                level: 3,
                kind: CacheKind::Unified,
                cpus,
                size_bytes,
                line_bytes: None,
                ways: None,
            });
        }
        for node in 0..nodes {
            machine.nodes.push(Node::new(
                NodeId(node),
                CpuSet::range(CpuId(node * 8), CpuId(node * 8 + 7)),
            ));
        }
        machine
    }

    fn pairs(machine: &Machine, all_cpus: bool, options: &ProbeOptions) -> Vec<Pair> {
        let usable = machine.cpus.iter().map(|cpu| cpu.id).collect();
        choose(machine, &usable, all_cpus, options)
    }

    #[test]
    fn each_nearness_of_a_node_and_each_pair_of_nodes_has_one_pair() {
        let chosen = pairs(&machine(2), false, &ProbeOptions::default());
        let found = |nearness| {
            chosen
                .iter()
                .filter(|pair| pair.nearness == nearness)
                .count()
        };
        assert_eq!(
            [
                Nearness::Core,
                Nearness::Cache,
                Nearness::Node,
                Nearness::Nodes
            ]
            .map(found),
            [2, 2, 2, 1]
        );
        assert!(chosen.contains(&Pair {
            first: CpuId(6),
            second: CpuId(7),
            nearness: Nearness::Core
        }));
        assert!(chosen.contains(&Pair {
            first: CpuId(7),
            second: CpuId(15),
            nearness: Nearness::Nodes
        }));
    }

    #[test]
    fn nodes_that_were_asked_for_have_one_cpu_each() {
        let set = |list: &str| Some(NodeSet::parse_list(list).unwrap());
        let options = ProbeOptions {
            from: set("0"),
            to: set("2"),
            ..ProbeOptions::default()
        };
        let chosen = pairs(&machine(3), true, &options);
        assert_eq!(chosen.len(), 64);
        assert!(
            chosen
                .iter()
                .all(|pair| pair.first.0 < 8 && pair.second.0 >= 16)
        );
    }

    proptest! {
        #[test]
        fn all_pairs_are_there_once_and_those_chosen_are_among_them(nodes in 1u32..4) {
            let machine = machine(nodes);
            let all = pairs(&machine, true, &ProbeOptions::default());
            prop_assert_eq!(all.len() as u32, nodes * 8 * (nodes * 8 - 1) / 2);
            prop_assert_eq!(all.iter().map(|pair| (pair.first, pair.second)).collect::<BTreeSet<_>>().len(), all.len());
            prop_assert!(all.iter().all(|pair| pair.first < pair.second));
            let chosen = pairs(&machine, false, &ProbeOptions::default());
            prop_assert!(chosen.iter().all(|pair| all.contains(pair)));
        }
    }
}
