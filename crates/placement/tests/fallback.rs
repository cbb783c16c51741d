//! Where nodes without memory get theirs, against a transcription of the kernel's functions.

use std::collections::BTreeSet;

use nearfar_machine::{CpuSet, DistanceOrigin, Known, Machine, Memory, NodeId};
use nearfar_placement::audit::{AuditOptions, audit};
use proptest::prelude::*;

use crate::common::{findings, machine, table};

/// `mm/page_alloc.c`, line by line: what a list does to `node_load` is a parameter.
struct PageAlloc<'a> {
    machine: &'a Machine,
    node_load: Vec<i64>,
    /// Whether `cpumask_of_node()` has CPUs yet.
    masks: bool,
}

impl PageAlloc<'_> {
    fn node_distance(&self, from: u32, to: u32) -> i64 {
        let distance = self.machine.distance(NodeId(from), NodeId(to));
        distance.map_or(20, |distance| i64::from(distance.0))
    }

    fn has_memory(&self, node: u32) -> bool {
        self.machine.nodes[node as usize].has_memory() == Some(true)
    }

    fn find_next_best_node(
        &self,
        node: u32,
        used: &mut BTreeSet<u32>,
        itself: bool,
    ) -> Option<u32> {
        if !used.contains(&node) && (itself || self.has_memory(node)) {
            used.insert(node);
            return Some(node);
        }
        let (mut min_val, mut best_node) = (i64::MAX, None);
        for n in (0..self.machine.nodes.len() as u32).filter(|&n| self.has_memory(n)) {
            if used.contains(&n) {
                continue;
            }
            let mut val = self.node_distance(node, n);
            val += i64::from(n < node);
            if self.masks && self.machine.nodes[n as usize].has_cpus() == Some(true) {
                val += 1;
            }
            val *= 1 << 20;
            val += self.node_load[n as usize];
            if val < min_val {
                min_val = val;
                best_node = Some(n);
            }
        }
        used.extend(best_node);
        best_node
    }

    /// The first node with memory in each list.
    fn build_all_zonelists(&mut self, kernel: &str) -> Vec<Option<u32>> {
        let count = self.machine.nodes.len() as u32;
        let mut firsts = Vec::new();
        for local_node in 0..count {
            let (mut used, mut order) = (BTreeSet::new(), Vec::new());
            let (mut prev_node, mut load) = (local_node, i64::from(count));
            while let Some(node) = self.find_next_best_node(local_node, &mut used, kernel < "5.19")
            {
                if self.node_distance(local_node, node) != self.node_distance(local_node, prev_node)
                {
                    let entry = &mut self.node_load[node as usize];
                    match kernel {
                        "5.10" => *entry = load,
                        "5.16" => *entry += load,
                        _ => *entry += 1,
                    }
                }
                order.push(node);
                prev_node = node;
                load -= 1;
            }
            firsts.push(order.into_iter().find(|&node| self.has_memory(node)));
        }
        firsts
    }
}

/// What each of these kernels may take first, by node.
fn by_the_kernel(machine: &Machine, kernels: &[&str]) -> Vec<BTreeSet<u32>> {
    let mut all = vec![BTreeSet::new(); machine.nodes.len()];
    for kernel in kernels {
        for masks in [false, true] {
            let node_load = vec![0; machine.nodes.len()];
            let mut kernel_s = PageAlloc {
                machine,
                node_load,
                masks,
            };
            let firsts = kernel_s.build_all_zonelists(kernel);
            all.iter_mut()
                .zip(firsts)
                .for_each(|(all, first)| all.extend(first));
        }
    }
    all
}

/// "comes from node 1 or 2," of a finding about that node.
fn said(machine: &Machine, node: usize) -> BTreeSet<u32> {
    let subject = format!("node {node}");
    let found = audit(machine, &AuditOptions::default()).findings;
    let mut about = found
        .iter()
        .filter(|finding| finding.rule == "node-without-memory" && finding.subject == subject);
    let Some(finding) = about.next() else {
        return BTreeSet::new();
    };
    let text = finding
        .message
        .split("comes from node ")
        .nth(1)
        .unwrap_or("");
    let text = text.split([',', '.']).next().unwrap_or("");
    text.split(" or ")
        .filter_map(|it| it.parse().ok())
        .collect()
}

fn any_nodes() -> impl Strategy<Value = Machine> {
    let nodes = proptest::collection::vec((any::<bool>(), any::<bool>()), 2..7);
    let distances =
        proptest::collection::vec(prop_oneof![Just(12u32), Just(12), Just(13), Just(20)], 49);
    (nodes, distances).prop_map(|(nodes, distances)| {
        let cpus: Vec<String> = (0..nodes.len()).map(|cpu| cpu.to_string()).collect();
        let cpus: Vec<&str> = cpus.iter().map(String::as_str).collect();
        let count = nodes.len();
        let entry = |a: usize, b: usize| if a == b { 10 } else { distances[a * 7 + b] };
        let rows: Vec<Vec<u32>> = (0..count)
            .map(|a| (0..count).map(|b| entry(a, b)).collect())
            .collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let mut machine = machine(&cpus, &rows);
        for (node, (memory, cpus)) in machine.nodes.iter_mut().zip(nodes) {
            if !memory {
                node.memory = Known::Yes(Memory::of(0));
            } else if !cpus {
                node.cpus = Known::Yes(CpuSet::new());
            }
        }
        machine
    })
}

proptest! {
    #[test]
    fn nodes_without_memory_get_it_where_the_kernel_takes_it(mut machine in any_nodes()) {
        for (release, kernels) in [
            (None, &["5.10", "5.16", "5.19"][..]),
            (Some("6.12.1"), &["5.19"]),
            (Some("5.14.0-503.el9.x86_64"), &["5.10", "5.16", "5.19"]),
        ] {
            machine.origin.kernel = match release {
                Some(release) => Known::Yes(release.to_owned()),
                None => Known::no("not in the text"),
            };
            let kernel_s = by_the_kernel(&machine, kernels);
            for node in &machine.nodes {
                let number = node.id.0 as usize;
                if node.has_memory() == Some(false) {
                    prop_assert_eq!(&said(&machine, number), &kernel_s[number], "node {}", number);
                }
            }
        }
    }
}

#[test]
fn a_tie_is_broken_as_in_the_kernel_or_both_are_named() {
    let mut machine = machine(
        &["0-1", "2-3", "4-5", "6-7"],
        &[
            &[10, 12, 12, 12],
            &[12, 10, 12, 12],
            &[12, 12, 10, 12],
            &[12, 12, 12, 10],
        ],
    );
    for node in [0, 3] {
        machine.nodes[node].memory = Known::Yes(Memory::of(0));
    }
    let text = findings(&machine);
    assert!(
        text.contains("node 0: It has no memory: what its CPUs allocate comes from node 1."),
        "{text}"
    );
    assert!(
        text.contains("node 3: It has no memory: what its CPUs allocate comes from node 1 or 2, by the kernel's version"),
        "{text}"
    );
    machine.origin.kernel = Known::Yes("6.12.1".to_owned());
    let text = findings(&machine);
    assert!(
        text.contains("node 3: It has no memory: what its CPUs allocate comes from node 2."),
        "{text}"
    );
    machine.distances = Known::no("no table");
    let text = findings(&machine);
    assert!(
        text.contains("comes from node 1 or 2, whichever is nearest: the distances are unknown."),
        "{text}"
    );
}

#[test]
fn flat_is_the_same_between_all_nodes_and_not_a_pair_with_one_figure() {
    let flat = |distances: &[&[u32]]| {
        let cpus: Vec<String> = (0..distances.len()).map(|cpu| cpu.to_string()).collect();
        let cpus: Vec<&str> = cpus.iter().map(String::as_str).collect();
        let found = audit(&machine(&cpus, distances), &AuditOptions::default()).findings;
        let mut found = found.into_iter().filter(|it| it.rule == "flat-distances");
        found
            .next()
            .map(|finding| (finding.severity.to_string(), finding.message))
    };
    let rows = |count: usize, other: u32| -> Vec<Vec<u32>> {
        let row = |a| (0..count).map(move |b| if a == b { 10 } else { other });
        (0..count).map(|a| row(a).collect()).collect()
    };
    for (count, other, severity) in [
        (8, 20, "fact"),
        (4, 21, "fact"),
        (3, 10, "notice"),
        (2, 10, "notice"),
    ] {
        let rows = rows(count, other);
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let (found, message) = flat(&rows).unwrap();
        assert_eq!(found, severity, "{message}");
        assert!(
            message.contains(&format!(
                "All {count} nodes are at distance {other} from each other"
            )),
            "{message}"
        );
    }
    assert_eq!(flat(&[&[10, 21], &[21, 10]]), None);
    assert_eq!(flat(&[&[10, 21, 21], &[21, 10, 31], &[21, 31, 10]]), None);
    assert_eq!(
        flat(&[&[10, 21, 0], &[21, 10, 21], &[0, 21, 10]]),
        None,
        "a hole"
    );
    // A node that has no row.
    let mut lacks = machine(&["0", "1", "2"], &[&[10; 3][..]; 3]);
    lacks.distances = Known::Yes(table(
        DistanceOrigin::Described,
        &[0, 1],
        &[&[10, 10], &[10, 10]],
    ));
    let found = audit(&lacks, &AuditOptions::default()).findings;
    assert!(
        found.iter().all(|it| it.rule != "flat-distances"),
        "{found:?}"
    );
}
