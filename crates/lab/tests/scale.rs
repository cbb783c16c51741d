//! Scaling machines down: what `--scale` takes, and what is left of a machine.

use nearfar_lab::scale::scaled;
use nearfar_machine::{CpuId, Machine, NodeLimits};
use nearfar_sources::{Request, Want, read};

fn machine(name: &str) -> Machine {
    read(&Request::source(name, Want::all())).unwrap()
}

fn scale(text: &str) -> NodeLimits {
    text.parse().unwrap()
}

#[test]
fn a_machine_with_24_cpus_a_node_keeps_two_of_each_and_its_queues_stay_on_their_nodes() {
    let small = scaled(&machine("kunpeng"), scale("cpus=2,memory=512M")).unwrap();
    assert_eq!(small.check(), Vec::<String>::new());
    let lists: Vec<String> = small
        .nodes
        .iter()
        .map(|node| node.known_cpus().to_string())
        .collect();
    assert_eq!(lists, ["0-1", "2-3", "4-5", "6-7"]);
    assert!(
        small
            .nodes
            .iter()
            .all(|node| node.total_bytes() == Some(512 << 20))
    );
    let queues: Vec<String> = small
        .interrupts
        .get()
        .unwrap()
        .iter()
        .map(|irq| irq.affinity.get().unwrap().to_string())
        .collect();
    assert_eq!(
        (queues[0].as_str(), queues[24].as_str(), queues[48].as_str()),
        ("4", "0", "2"),
        "CPUs 48, 0 and 24 before"
    );
}

#[test]
fn siblings_that_are_apart_keep_their_order() {
    let small = scaled(&machine("two-node"), scale("cpus=6")).unwrap();
    let lists: Vec<String> = small
        .nodes
        .iter()
        .map(|node| node.known_cpus().to_string())
        .collect();
    assert_eq!(lists, ["0-3,8-9", "4-7,10-11"]);
    assert_eq!(small.siblings(CpuId(0)).to_string(), "0,8");
    assert_eq!(
        small.siblings(CpuId(3)).to_string(),
        "3",
        "its sibling is gone"
    );
}

#[test]
fn fake_nodes_are_laid_again_over_what_is_left() {
    let small = scaled(&machine("fake-nodes"), scale("cpus=1,memory=256M")).unwrap();
    assert_eq!(small.nodes.len(), 4);
    assert!(
        small
            .nodes
            .iter()
            .all(|node| node.total_bytes() == Some(128 << 20)),
        "{:?}",
        small.nodes
    );
    assert_eq!(small.nodes[2].known_cpus().to_string(), "0");
    assert_eq!(small.origin.overlays, ["fake: 4"]);
}

#[test]
fn nodes_without_cpus_or_memory_stay_without() {
    let small = scaled(&machine("powerpc-case1-after"), scale("cpus=1,memory=512M")).unwrap();
    assert!(small.nodes[1].known_cpus().is_empty() && small.nodes[1].total_bytes() == Some(0));
}
