//! Machines in one line.

use nearfar_machine::{CpuId, Machine, NodeId};
use nearfar_sources::synthetic;
use proptest::prelude::*;

fn read(text: &str) -> Machine {
    let machine = synthetic::parse(text).unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

fn row(machine: &Machine, from: u32) -> Vec<u32> {
    machine
        .distances
        .get()
        .unwrap()
        .row(NodeId(from))
        .map(|(_, distance)| distance.map_or(0, |d| d.0))
        .collect()
}

#[test]
fn the_string_of_the_manual_gives_four_nodes_of_24_cpus() {
    let machine = read("node:4 core:12 pu:2 distance:10,16,32,33");
    assert_eq!((machine.nodes.len(), machine.cpus.len()), (4, 96));
    assert_eq!(
        machine.node(NodeId(2)).unwrap().known_cpus().to_string(),
        "48-71"
    );
    assert_eq!(machine.siblings(CpuId(49)).to_string(), "48-49");
    assert_eq!(row(&machine, 0), [10, 16, 32, 33]);
    assert_eq!(row(&machine, 1), [16, 10, 16, 32]);
    assert!(machine.distances.get().unwrap().is_symmetric());
    assert!(
        machine
            .node(NodeId(0))
            .unwrap()
            .memory
            .unknown_reason()
            .is_some()
    );
}

#[test]
fn levels_nest_as_in_hwloc() {
    let machine = read(
        "package:2 numa:2(memory=8G) die:1 l3:1(size=32M) cluster:2 l2:1 core:2 pu:2 distance:10,12,20,22",
    );
    assert_eq!((machine.nodes.len(), machine.cpus.len()), (4, 32));
    let cpu = machine.cpu(CpuId(13)).unwrap();
    assert_eq!(
        (cpu.package, cpu.die, cpu.cluster, cpu.core),
        (Some(0), Some(CpuId(8)), Some(CpuId(12)), Some(CpuId(12)))
    );
    assert_eq!(
        machine
            .caches
            .iter()
            .filter(|cache| cache.level == 3)
            .count(),
        4
    );
    assert_eq!(machine.caches[0].level, 2);
    assert_eq!(
        machine.node(NodeId(3)).unwrap().total_bytes(),
        Some(8 << 30)
    );
    assert_eq!(
        machine.caches.last().unwrap().size_bytes.get(),
        Some(&(32 << 20))
    );
    assert_eq!(read("node:2").cpus.len(), 2);
    assert_eq!(read("core:4 pu:2").nodes.len(), 1);
}

#[test]
fn a_table_may_be_uneven_and_have_holes() {
    let machine = read("node:2 core:2 distance:10,20;22,10 memory:512M");
    assert_eq!(
        (row(&machine, 0), row(&machine, 1)),
        (vec![10, 20], vec![22, 10])
    );
    assert_eq!(
        machine.node(NodeId(1)).unwrap().total_bytes(),
        Some(512 << 20)
    );
    assert_eq!(row(&read("node:2 distance:10,-;20,10"), 0), [10, 0]);
    assert_eq!(row(&read("node:3 distance:21"), 1), [21, 10, 21]);
}

#[test]
fn a_fault_is_named_with_the_word() {
    for (text, word) in [
        ("node:4 cores:2", "cores"),
        ("node:0", "\"0\""),
        ("node:x", "\"x\""),
        ("node:2 node:2", "twice"),
        ("pu:2 node:2", "last level"),
        ("core:2 node:2", "core can only hold"),
        ("node:4 distance:10,20", "2 distances for 4 nodes"),
        ("node:2 distance:10,20;20", "row 1"),
        ("node:2 distance:10,x", "\"x\""),
        ("node:2 memory:lots", "lots"),
        ("node:2000", "2000 nodes"),
        ("node:1000 core:1000", "1000000 CPUs"),
        ("node:4294967295 core:4294967295 pu:4294967295", "CPUs"),
        ("l3:1(size=1M", "parenthesis"),
        ("", "no levels"),
    ] {
        let error = synthetic::parse(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
        assert!(
            error.contains("write it like")
                || error.contains("lower")
                || error.contains("give one row"),
            "{error}"
        );
    }
}

#[test]
fn what_lstopo_prints_as_a_synthetic_string_is_one() {
    let machine = synthetic::parse(
        "Package:2 [NUMANode(memory=33554432000)] L3Cache:1(size=20971520) L2Cache:2(size=262144) L1dCache:1(size=32768) \
         L1iCache:1(size=32768) Core:1 PU:2(indexes=2*4:1*2)",
    )
    .unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    let cpus: Vec<_> = machine
        .nodes
        .iter()
        .map(|node| node.known_cpus().to_string())
        .collect();
    assert_eq!(cpus, ["0-1,4-5", "2-3,6-7"]);
    assert_eq!(machine.nodes[1].total_bytes(), Some(33554432000));
    assert_eq!(
        machine.siblings(nearfar_machine::CpuId(1)).to_string(),
        "1,5"
    );
    assert_eq!(
        machine
            .caches
            .iter()
            .filter(|cache| cache.level == 3)
            .count(),
        2
    );
    // The last loop may be left out, and nodes may have numbers too.
    let short = synthetic::parse("[NUMANode(memory=1GB)] Core:4 PU:2(indexes=2*4)").unwrap();
    assert_eq!(short.nodes.len(), 1);
    assert_eq!(short.siblings(nearfar_machine::CpuId(3)).to_string(), "3,7");
    let turned = synthetic::parse("node:2(indexes=1,0) pu:2").unwrap();
    let cpus: Vec<_> = turned
        .nodes
        .iter()
        .map(|node| node.known_cpus().to_string())
        .collect();
    assert_eq!(cpus, ["2-3", "0-1"]);
    for wrong in [
        "node:2 pu:2(indexes=0,1,2)",
        "pu:4(indexes=0,1,1,2)",
        "pu:4(indexes=x)",
        "pu:4(indexes=2*4294967295:7*4294967295)",
    ] {
        assert!(
            synthetic::parse(wrong)
                .unwrap_err()
                .to_string()
                .contains("indexes"),
            "{wrong}"
        );
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z0-9:,;()= -]{0,60}") {
        if let Ok(machine) = synthetic::parse(&text) {
            prop_assert_eq!(machine.check(), Vec::<String>::new());
        }
    }

    #[test]
    fn every_string_of_known_words_gives_a_sound_machine(
        words in proptest::collection::vec((prop_oneof![Just("node"), Just("package"), Just("l3"), Just("l1i"), Just("core"),
            Just("pu"), Just("die"), Just("cluster"), Just("group")], 0u32..5), 0..6)) {
        let text: Vec<String> = words.iter().map(|(name, count)| format!("{name}:{count}")).collect();
        if let Ok(machine) = synthetic::parse(&text.join(" ")) {
            prop_assert_eq!(machine.check(), Vec::<String>::new());
        }
    }
}
