//! Spreads worked out by hand, and what holds for all of them.

use crate::common;
use crate::common::random::any_machine;
use crate::common::{kunpeng, machine, set, two_nodes};
use nearfar_machine::{CpuId, CpuSet, Distance, Known, Machine, Node, NodeId};
use nearfar_placement::nodes_by_distance;
use nearfar_placement::spread::{
    MOST_QUEUES, Policy, Slot, SpreadError, SpreadRequest, spread, start,
};
use proptest::prelude::*;

fn request(node: Option<u32>, count: usize) -> SpreadRequest {
    SpreadRequest {
        node: node.map(NodeId),
        count,
        ..SpreadRequest::default()
    }
}

fn cpus(machine: &Machine, request: &SpreadRequest) -> Vec<u32> {
    spread(machine, request)
        .unwrap()
        .iter()
        .map(|slot| slot.cpu.0)
        .collect()
}

fn order(machine: &Machine, from: u32) -> Vec<(u32, Option<u32>)> {
    let plain = |(node, distance): (NodeId, Option<Distance>)| {
        (node.0, distance.map(|distance| distance.0))
    };
    nodes_by_distance(machine, NodeId(from))
        .into_iter()
        .map(plain)
        .collect()
}

#[test]
fn nodes_come_nearest_first_by_the_row_of_the_table() {
    assert_eq!(
        order(&kunpeng(), 2),
        [(2, Some(10)), (3, Some(16)), (1, Some(25)), (0, Some(32))]
    );
    let asymmetric = machine(
        &["0", "1", "2"],
        &[&[10, 40, 20], &[15, 10, 30], &[20, 20, 10]],
    );
    assert_eq!(
        order(&asymmetric, 0),
        [(0, Some(10)), (2, Some(20)), (1, Some(40))]
    );
    assert_eq!(
        order(&asymmetric, 1),
        [(1, Some(10)), (0, Some(15)), (2, Some(30))]
    );
    assert_eq!(
        order(&asymmetric, 2),
        [(2, Some(10)), (0, Some(20)), (1, Some(20))]
    );
}

#[test]
fn holes_come_last_and_the_node_itself_first_even_where_the_table_says_nothing() {
    let holes = machine(&["0", "1", "2"], &[&[10, 0, 30], &[0, 0, 0], &[10, 10, 10]]);
    assert_eq!(order(&holes, 0), [(0, Some(10)), (2, Some(30)), (1, None)]);
    assert_eq!(order(&holes, 1), [(1, Some(10)), (0, None), (2, None)]);
    assert_eq!(
        order(&holes, 2),
        [(2, Some(10)), (0, Some(10)), (1, Some(10))]
    );
}

#[test]
fn case_4_nearest_first_and_the_old_order() {
    let kunpeng = kunpeng();
    let nearest = cpus(&kunpeng, &request(Some(2), 97));
    assert_eq!(
        [
            nearest[0],
            nearest[24],
            nearest[48],
            nearest[72],
            nearest[96]
        ],
        [48, 72, 24, 0, 48]
    );
    let old = cpus(
        &kunpeng,
        &SpreadRequest {
            policy: Policy::KernelPre63,
            ..request(Some(2), 97)
        },
    );
    assert_eq!(
        [old[0], old[24], old[48], old[72], old[96]],
        [48, 0, 24, 72, 48]
    );
}

#[test]
fn slots_say_which_node_and_how_far() {
    let slots = spread(&kunpeng(), &request(Some(2), 25)).unwrap();
    let third = Slot {
        queue: 24,
        cpu: CpuId(72),
        node: Some(NodeId(3)),
        distance: Some(Distance(16)),
    };
    assert_eq!(slots[24], third);
    let old = spread(
        &kunpeng(),
        &SpreadRequest {
            policy: Policy::KernelPre63,
            ..request(Some(2), 25)
        },
    )
    .unwrap();
    assert_eq!(
        (old[24].node, old[24].distance),
        (Some(NodeId(0)), Some(Distance(32)))
    );
}

#[test]
fn without_a_node_it_goes_in_cpu_order_and_wraps() {
    for policy in [Policy::NearestFirst, Policy::KernelPre63] {
        let slots = spread(
            &two_nodes(),
            &SpreadRequest {
                policy,
                ..request(None, 10)
            },
        )
        .unwrap();
        assert_eq!(
            slots.iter().map(|slot| slot.cpu.0).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
        );
        assert!(slots.iter().all(|slot| slot.distance.is_none()));
        assert_eq!(slots[4].node, Some(NodeId(1)));
    }
}

#[test]
fn equal_distances_are_one_ring_in_which_the_cpu_number_decides() {
    // Nodes 0 and 2 are equally far from 1 and their CPUs alternate.
    let machine = machine(
        &["0,2", "4-5", "1,3"],
        &[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]],
    );
    assert_eq!(cpus(&machine, &request(Some(1), 6)), [4, 5, 0, 1, 2, 3]);
}

#[test]
fn a_device_on_a_node_without_cpus_gets_the_nearest_ones() {
    let machine = machine(
        &["0-1", "2-3", ""],
        &[&[10, 20, 40], &[20, 10, 30], &[40, 30, 10]],
    );
    assert_eq!(cpus(&machine, &request(Some(2), 5)), [2, 3, 0, 1, 2]);
    assert_eq!(
        (start(&machine, NodeId(2)), start(&machine, NodeId(0))),
        (Some(NodeId(1)), Some(NodeId(0)))
    );
    assert_eq!(cpus(&machine, &request(Some(0), 3)), [0, 1, 2]);
    let old = SpreadRequest {
        policy: Policy::KernelPre63,
        ..request(Some(2), 3)
    };
    assert_eq!(cpus(&machine, &old), [0, 1, 2]);
}

#[test]
fn from_a_node_without_cpus_the_kernel_goes_by_the_distances_of_the_nearest_that_has_some() {
    // Node 3 is nearest to 1, then to 2, then to 0; but node 1 is nearer to 0 than to 2.
    let rows: [&[u32]; 4] = [
        &[10, 20, 30, 40],
        &[20, 10, 30, 16],
        &[30, 30, 10, 20],
        &[40, 16, 20, 10],
    ];
    let mut machine = machine(&["0-1", "2-3", "4-5", ""], &rows);
    assert_eq!(cpus(&machine, &request(Some(3), 6)), [2, 3, 0, 1, 4, 5]);
    // What is printed is the distance from the device's node all the same.
    let slots = spread(&machine, &request(Some(3), 6)).unwrap();
    assert_eq!(
        slots
            .iter()
            .map(|slot| slot.distance.unwrap().0)
            .collect::<Vec<_>>(),
        [16, 16, 40, 40, 20, 20]
    );
    // A node whose CPUs are all offline has none.
    for cpu in [2, 3] {
        machine.cpus[cpu].online = false.into();
        machine.cpu_states.online.remove(CpuId(cpu as u32));
    }
    assert_eq!(start(&machine, NodeId(1)), Some(NodeId(0)));
    assert_eq!(cpus(&machine, &request(Some(1), 4)), [0, 1, 4, 5]);
    assert_eq!(start(&machine, NodeId(3)), Some(NodeId(2)));
}

#[test]
fn nodes_at_distance_10_of_each_other_are_one_hop_in_cpu_order() {
    let machine = machine(&["0,3", "1-2"], &[&[10, 10], &[10, 10]]);
    for node in [0, 1] {
        assert_eq!(cpus(&machine, &request(Some(node), 4)), [0, 1, 2, 3]);
    }
}

#[test]
fn fake_nodes_share_cpus_and_each_counts_once() {
    // Two real nodes, each split into two that share its CPUs.
    let rows: [&[u32]; 4] = [
        &[10, 20, 10, 20],
        &[20, 10, 20, 10],
        &[10, 20, 10, 20],
        &[20, 10, 20, 10],
    ];
    let mut machine = machine(&["0-1", "2-3", "0-1", "2-3"], &rows);
    for (node, real) in machine.nodes.iter_mut().zip([0, 1, 0, 1]) {
        node.fake_of = Some(NodeId(real));
    }
    let slots = spread(&machine, &request(Some(3), 5)).unwrap();
    assert_eq!(
        slots.iter().map(|slot| slot.cpu.0).collect::<Vec<_>>(),
        [2, 3, 0, 1, 2]
    );
    assert_eq!(
        (slots[0].node, slots[0].distance),
        (Some(NodeId(3)), Some(Distance(10)))
    );
    assert_eq!(slots[2].distance, Some(Distance(20)));
}

#[test]
fn isolated_cpus_take_part_only_when_asked_for() {
    let mut machine = two_nodes();
    machine.cpu_states.isolated = Known::Yes(set("4-5"));
    machine.cpu_states.nohz_full = Known::Yes(set("6"));
    assert_eq!(cpus(&machine, &request(Some(1), 3)), [7, 0, 1]);
    assert_eq!(
        cpus(
            &machine,
            &SpreadRequest {
                isolated_too: true,
                ..request(Some(1), 3)
            }
        ),
        [4, 5, 6]
    );
    let old = SpreadRequest {
        policy: Policy::KernelPre63,
        ..request(Some(1), 3)
    };
    assert_eq!(
        cpus(&machine, &old),
        [4, 5, 6],
        "the old kernel ignored isolation"
    );
    machine.cpu_states.isolated = Known::Yes(set("0-7"));
    assert_eq!(
        cpus(&machine, &request(Some(1), 1)),
        [4],
        "when all are isolated there is nothing else"
    );
}

#[test]
fn one_cpu_of_each_core_before_siblings_but_never_further_away() {
    let mut machine = two_nodes();
    // Cores 0/1, 2/3 and 4/5, 6/7 with adjacent siblings.
    for cpu in &mut machine.cpus {
        cpu.core = Some(CpuId(cpu.id.0 & !1));
    }
    let wanted = SpreadRequest {
        cores_first: true,
        ..request(Some(1), 8)
    };
    assert_eq!(cpus(&machine, &wanted), [4, 6, 5, 7, 0, 2, 1, 3]);
    // A core whose first sibling cannot be used is still a core.
    let allowed = SpreadRequest {
        allowed: Some(set("5-7")),
        ..wanted.clone()
    };
    assert_eq!(cpus(&machine, &allowed)[..3], [5, 6, 7]);
    let old = SpreadRequest {
        policy: Policy::KernelPre63,
        ..wanted
    };
    assert_eq!(spread(&machine, &old), Err(SpreadError::CoresFirst));
}

#[test]
fn offline_cpus_are_passed_over() {
    let mut machine = two_nodes();
    machine.cpus[5].online = false.into();
    machine.cpu_states.online.remove(CpuId(5));
    assert_eq!(cpus(&machine, &request(Some(1), 4)), [4, 6, 7, 0]);
}

#[test]
fn cpus_on_no_node_come_last() {
    let mut machine = two_nodes();
    let without = machine.nodes[0]
        .known_cpus()
        .difference(&CpuSet::single(CpuId(0)));
    machine.nodes[0].cpus = without.into();
    machine.cpus[0].node = None;
    let slots = spread(&machine, &request(Some(0), 8)).unwrap();
    assert_eq!(
        (slots[7].cpu, slots[7].node, slots[7].distance),
        (CpuId(0), None, None)
    );
}

#[test]
fn what_cannot_be_spread_says_why_and_what_to_ask_for() {
    let machine = common::device_on_an_offline_node(2);
    let failure = |request| spread(&machine, &request).unwrap_err().to_string();
    insta::assert_snapshot!(failure(request(Some(9), 1)), @"there is no node 9; nodes that are online: 0-1");
    insta::assert_snapshot!(failure(request(Some(2), 1)),
        @"node 2 is not online; the online node nearest to it by the firmware's distances is 1 (31): ask for that");
    insta::assert_snapshot!(failure(SpreadRequest { allowed: Some(set("90")), ..request(None, 1) }),
        @"no usable CPU: 0-7 are online, none are kept free of housekeeping, 90 are allowed");
    assert!(matches!(
        spread(&machine, &request(None, usize::MAX)),
        Err(SpreadError::TooMany { .. })
    ));
    assert_eq!(
        spread(&machine, &request(None, MOST_QUEUES)).unwrap().len(),
        MOST_QUEUES
    );
    assert_eq!(spread(&machine, &request(Some(0), 0)), Ok(Vec::new()));
}

#[test]
fn eight_thousand_queues_over_as_many_cpus() {
    let texts: Vec<String> = (0..64u32)
        .map(|node| format!("{}-{}", node * 128, node * 128 + 127))
        .collect();
    let rows: Vec<Vec<u32>> = (0..64u32)
        .map(|a| (0..64).map(|b: u32| 10 + a.abs_diff(b)).collect())
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let machine = machine(&texts, &rows);
    for cores_first in [false, true] {
        let slots = spread(
            &machine,
            &SpreadRequest {
                cores_first,
                ..request(Some(40), 8192)
            },
        )
        .unwrap();
        assert_eq!(
            (slots[0].cpu, slots[8191].cpu),
            (CpuId(40 * 128), CpuId(127))
        );
    }
}

proptest! {
    #[test]
    fn each_window_is_a_permutation_of_the_usable_cpus_by_distance(
        machine in any_machine(), node in 0..6u32, count in 0..100usize, cores_first: bool, isolated_too: bool,
    ) {
        let node = machine.node(NodeId(node)).map(|node| node.id.0);
        let request = SpreadRequest { cores_first, isolated_too, ..request(node, count) };
        let usable =
            if isolated_too { machine.cpu_states.online.clone() } else { machine.cpu_states.housekeeping() };
        let Ok(slots) = spread(&machine, &request) else {
            prop_assert!(usable.is_empty());
            return Ok(());
        };
        prop_assert_eq!(slots.len(), count);
        prop_assert_eq!(&slots, &spread(&machine, &request).unwrap());
        for window in slots.chunks(usable.len()) {
            let taken: CpuSet = window.iter().map(|slot| slot.cpu).collect();
            prop_assert_eq!(taken.len(), window.len(), "no CPU twice before all have one");
            prop_assert!(taken.is_subset(&usable));
            // From a node without CPUs the order is that of another node's distances.
            let from = request.node.and_then(|node| start(&machine, node));
            let distance = |slot: &Slot| from.zip(slot.node).and_then(|(from, to)| machine.distance(from, to));
            prop_assert!(window.is_sorted_by_key(|slot| (distance(slot).is_none(), distance(slot))));
        }
        prop_assert!(slots.iter().enumerate().all(|(queue, slot)| slot.queue == queue));
    }

    #[test]
    fn both_rules_start_on_the_node_itself(machine in any_machine(), node in 0..6u32) {
        let Some(local) = machine.node(NodeId(node)).map(|node| node.known_cpus().clone()) else { return Ok(()) };
        let local = local.intersection(&machine.cpu_states.online);
        // Nodes at distance 10 of each other share the first hop.
        let near = |other: &Node| other.id != NodeId(node) && machine.distance(NodeId(node), other.id) == Some(Distance(10));
        if machine.nodes.iter().any(near) {
            return Ok(());
        }
        for policy in [Policy::NearestFirst, Policy::KernelPre63] {
            let request = SpreadRequest { policy, isolated_too: true, ..request(Some(node), local.len()) };
            let Ok(slots) = spread(&machine, &request) else { continue };
            prop_assert_eq!(slots.iter().map(|slot| slot.cpu).collect::<CpuSet>(), local.clone());
        }
    }
}

#[test]
fn a_machine_without_node_directories_spreads_in_cpu_order() {
    let mut machine = two_nodes();
    machine.nodes = Vec::<Node>::new();
    machine.cpus.iter_mut().for_each(|cpu| cpu.node = None);
    assert_eq!(cpus(&machine, &request(None, 3)), [0, 1, 2]);
    assert!(matches!(
        spread(&machine, &request(Some(0), 1)),
        Err(SpreadError::UnknownCpus { .. })
    ));
}

#[test]
fn nothing_is_spread_from_a_node_where_the_cpus_of_one_are_unknown() {
    let mut machine = common::two_nodes();
    machine.nodes[1].cpus = Known::no("no cpulist or cpumap was gathered");
    let request = |node| SpreadRequest {
        node,
        count: 2,
        ..SpreadRequest::default()
    };
    let error = spread(&machine, &request(Some(NodeId(0)))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot order CPUs by their distance from node 0: the CPUs of node 1 are unknown: no cpulist or cpumap was \
         gathered"
    );
    assert!(
        spread(&machine, &request(None)).is_ok(),
        "in the order of CPUs"
    );
}
