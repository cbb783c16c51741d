//! Scaling machines down: what `--scale` takes, and what is left of a machine.

use nearfar_lab::scale::{Scale, scaled};
use nearfar_machine::{CpuId, Machine};
use nearfar_sources::{Request, Want, read};

fn machine(name: &str) -> Machine {
    read(&Request::source(name, Want::all())).unwrap()
}

fn scale(text: &str) -> Scale {
    text.parse().unwrap()
}

#[test]
fn scales_as_people_write_them() {
    assert_eq!(
        scale("cpus=2,memory=512M"),
        Scale {
            cpus: Some(2),
            memory_bytes: Some(512 << 20)
        }
    );
    assert_eq!(
        scale("memory=1G"),
        Scale {
            cpus: None,
            memory_bytes: Some(1 << 30)
        }
    );
    assert_eq!(
        scale("memory=256M, cpus=1"),
        Scale {
            cpus: Some(1),
            memory_bytes: Some(256 << 20)
        }
    );
}

#[test]
fn a_scale_reads_back_as_it_is_written() {
    for text in [
        "cpus=2,memory=512M",
        "cpus=1",
        "memory=1G",
        "memory=1537K",
        "memory=1048577",
        "memory=3T",
    ] {
        assert_eq!(scale(text).to_string(), text);
    }
}

#[test]
fn what_is_not_a_scale_is_named() {
    let bad = [
        ("", "\"\""),
        ("cpus", "\"cpus\" is not a part"),
        ("cpus=0", "\"cpus=0\" is not a count"),
        ("cpus=two", "\"cpus=two\""),
        ("cpus=2,cpus=3", "\"cpus=3\" is there twice"),
        ("memory=512", "\"memory=512\" is not a size"),
        ("memory=99999999999G", "is not a size"),
        ("cpus=2;memory=1G", "\"cpus=2;memory=1G\""),
        ("nodes=2", "\"nodes=2\" is not a part"),
    ];
    for (text, part) in bad {
        let error = text.parse::<Scale>().unwrap_err();
        assert!(
            error.contains(part) && error.contains("write cpus=2, memory=512M"),
            "{text}: {error}"
        );
    }
}

#[test]
fn a_machine_with_24_cpus_a_node_keeps_two_of_each_and_its_queues_stay_on_their_nodes() {
    let small = scaled(&machine("kunpeng"), scale("cpus=2,memory=512M")).unwrap();
    assert_eq!(small.check(), Vec::<String>::new());
    let lists: Vec<String> = small
        .nodes
        .iter()
        .map(|node| node.cpus.to_string())
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
        .map(|node| node.cpus.to_string())
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
fn fake_nodes_are_laid_anew_over_what_is_left() {
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
    assert_eq!(small.nodes[2].cpus.to_string(), "0");
    assert_eq!(small.origin.overlays, ["fake: 4"]);
}

#[test]
fn nodes_without_cpus_or_memory_stay_without() {
    let small = scaled(&machine("powerpc-case1-after"), scale("cpus=1,memory=512M")).unwrap();
    assert!(small.nodes[1].cpus.is_empty() && small.nodes[1].total_bytes() == Some(0));
}
