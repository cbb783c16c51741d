//! The worst a snapshot may hold: nothing panics, and nothing is made up.

use crate::common::{add_nic, list, machine, set, two_nodes};
use nearfar_machine::{
    CpuId, CpuSet, Irq, Known, Machine, NodeBytes, NodeId, NodeSet, Origin, SourceKind, Task,
};
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_placement::locality::Localities;
use nearfar_placement::nodes_by_distance;
use nearfar_placement::plan::{PlanOptions, plan};
use nearfar_placement::spread::{SpreadRequest, spread};

fn everything(machine: &Machine) -> usize {
    let found = audit(machine, &AuditOptions::default());
    let options = PlanOptions {
        device_node_override: true,
        ..PlanOptions::default()
    };
    plan(machine, &found, &options).changes.len()
}

#[test]
fn a_machine_without_anything() {
    let machine = Machine::empty(Origin::new(SourceKind::Tree, "/empty"), "no such file");
    assert_eq!(everything(&machine), 0);
    assert!(nodes_by_distance(&machine, NodeId(0)).is_empty());
    assert!(
        spread(
            &machine,
            &SpreadRequest {
                count: 1,
                ..SpreadRequest::default()
            }
        )
        .is_err()
    );
}

#[test]
fn no_cpu_online_leaves_nowhere_to_move_to() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[0, 0]);
    machine
        .cpus
        .iter_mut()
        .for_each(|cpu| cpu.online = false.into());
    machine.cpu_states.online = CpuSet::new();
    assert_eq!(everything(&machine), 0);
}

#[test]
fn queues_and_interrupts_with_the_largest_numbers() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[0, 1]);
    let interrupts = list(&mut machine.interrupts);
    (interrupts[1].irq, interrupts[1].queue) = (Irq(u32::MAX), Some(u32::MAX));
    interrupts[0].name = "eth0".to_owned();
    list(&mut machine.networks)[0].transmit[1].queue = u32::MAX;
    assert_eq!(everything(&machine), 4, "two interrupts and their XPS");
}

#[test]
fn masks_that_name_cpus_the_machine_does_not_have() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[4]);
    let interrupt = &mut list(&mut machine.interrupts)[0];
    interrupt.affinity = Known::Yes(set("65535"));
    interrupt.effective = Known::Yes(set("65000-65535"));
    list(&mut machine.networks)[0].receive[0].rps = Known::Yes(set("60000"));
    everything(&machine);
}

#[test]
fn firmware_that_says_the_far_node_is_nearer_than_the_own_one() {
    let mut machine = machine(&["0-1", "2-3"], &[&[40, 10], &[10, 40]]);
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(0), &[2, 3]);
    assert_eq!(
        everything(&machine),
        0,
        "by the table they are as near as can be"
    );
    let first = spread(
        &machine,
        &SpreadRequest {
            node: Some(NodeId(0)),
            count: 1,
            ..SpreadRequest::default()
        },
    );
    assert_eq!(
        first.unwrap()[0].cpu,
        CpuId(0),
        "a spread starts on the node itself all the same"
    );
}

#[test]
fn distances_of_every_size() {
    let mut machine = machine(
        &["0-1", "2-3", "4-5"],
        &[&[10, u32::MAX, 255], &[1, 10, 0], &[255, 255, 10]],
    );
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(0), &[2, 4]);
    assert_eq!(everything(&machine), 4);
}

#[test]
fn memory_beyond_counting() {
    let mut machine = two_nodes();
    list(&mut machine.tasks).push(Task {
        pid: -1,
        name: String::new(),
        allowed_cpus: Known::Yes(set("0")),
        allowed_nodes: Known::Yes(NodeSet::new()),
        last_cpu: Known::Yes(CpuId(u32::MAX)),
        memory: Known::Yes(vec![
            NodeBytes {
                node: NodeId(u32::MAX),
                bytes: u64::MAX
            };
            3
        ]),
        policies: Known::Yes(Vec::new()),
        preferred_node: Known::Yes(Some(NodeId(u32::MAX))),
        pinned_bytes: Known::Yes(u64::MAX),
        cpu_ms: Known::Yes(u64::MAX),
        ..Task::new(-1, "")
    });
    everything(&machine);
    list(&mut machine.tasks)[0].allowed_cpus = Known::Yes(CpuSet::new());
    everything(&machine);
}

#[test]
fn a_device_on_a_node_with_the_largest_number() {
    let mut machine = two_nodes();
    add_nic(
        &mut machine,
        "eth0",
        "0000:81:00.0",
        Some(u32::MAX),
        &[0, 0],
    );
    let locality = Localities::new(&machine).of("0000:81:00.0".parse().unwrap());
    assert_eq!(locality.node, None);
    everything(&machine);
}
