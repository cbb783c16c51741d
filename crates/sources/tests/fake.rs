//! Fake nodes over real ones, as the kernel lays them.

use crate::any_machine::any_machine;
use nearfar_machine::{
    CpuId, Distance, Known, Latency, Machine, NodeId, PciAddress, PciDevice, RootBus, Timing,
};
use nearfar_sources::fake::{self, FakeSpec};
use nearfar_sources::synthetic;
use proptest::prelude::*;

fn lay(machine: &str, spec: &str) -> Machine {
    let machine = fake::lay(synthetic::parse(machine).unwrap(), &spec.parse().unwrap()).unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

fn cpus(machine: &Machine) -> Vec<String> {
    machine
        .nodes
        .iter()
        .map(|node| node.known_cpus().to_string())
        .collect()
}

fn mib(machine: &Machine) -> Vec<u64> {
    machine
        .nodes
        .iter()
        .map(|node| node.total_bytes().unwrap() >> 20)
        .collect()
}

fn row(machine: &Machine, from: u32) -> Vec<u32> {
    machine
        .distances
        .get()
        .unwrap()
        .row(NodeId(from))
        .map(|(_, distance)| distance.unwrap().0)
        .collect()
}

const TWO: &str = "node:2 core:2 memory:1G distance:10,20";

#[test]
fn a_fake_has_the_latencies_and_distances_of_its_real_node() {
    let mut machine =
        synthetic::parse("node:2(indexes=0,8) pu:2 memory:1G distance:10,21").unwrap();
    let latency = |cpu_node, memory_node, ns| Latency {
        cpu_node: NodeId(cpu_node),
        memory_node: NodeId(memory_node),
        ns,
    };
    machine.timing = Some(Timing {
        latencies: vec![latency(0, 0, 90), latency(0, 8, 140), latency(8, 8, 91)],
        ..Timing::default()
    });
    assert_eq!(machine.check(), Vec::<String>::new());
    assert_eq!(machine.distance(NodeId(8), NodeId(0)), Some(Distance(21)));
    let fakes = fake::lay(machine, &"2U".parse().unwrap()).unwrap();
    assert_eq!(fakes.check(), Vec::<String>::new());
    let timing = fakes.timing.unwrap();
    let ns = |cpu, memory| timing.latency_ns(NodeId(cpu), NodeId(memory));
    assert_eq!(
        [ns(1, 0), ns(0, 3), ns(3, 2), ns(2, 1)],
        [Some(90), Some(140), Some(91), None]
    );
}

#[test]
fn four_over_two_nodes_is_what_a_guest_with_numa_fake_4_shows() {
    let machine = lay(TWO, "4");
    assert_eq!(cpus(&machine), ["0-1", "2-3", "0-1", "2-3"]);
    assert_eq!(row(&machine, 0), [10, 20, 10, 20]);
    assert_eq!(mib(&machine), [512; 4]);
    assert_eq!(machine.node_of(CpuId(3)), Some(NodeId(1)));
    assert_eq!(machine.nodes[3].fake_of, Some(NodeId(1)));
    assert_eq!(machine.origin.overlays, ["fake: 4"]);
}

#[test]
fn each_real_node_into_two_numbers_them_one_after_the_other() {
    let machine = lay(TWO, "2U");
    assert_eq!(cpus(&machine), ["0-1", "0-1", "2-3", "2-3"]);
    assert_eq!(row(&machine, 1), [10, 10, 20, 20]);
}

#[test]
fn a_size_deals_nodes_out_in_turn_and_the_last_takes_the_rest() {
    let machine = lay("node:2 core:1 memory:1G distance:10,21", "384M");
    assert_eq!(mib(&machine), [384, 384, 640, 640]);
    assert_eq!(row(&machine, 2), [10, 21, 10, 21]);
}

#[test]
fn parts_are_cut_in_steps_of_32_mib() {
    assert_eq!(
        mib(&lay("node:1 core:1 memory:1000M", "3")),
        [352, 320, 328]
    );
    assert_eq!(
        mib(&lay("node:1 core:1 memory:1000M", "3U")),
        [352, 352, 296]
    );
}

#[test]
fn fewer_fakes_than_nodes_join_memory_and_the_first_keeps_its_cpus() {
    let machine = lay(TWO, "1");
    assert_eq!(mib(&machine)[0], 2048);
    assert_eq!(machine.nodes[0].known_cpus().to_string(), "0-3");
    assert!(!machine.warnings.is_empty());
}

#[test]
fn splitting_the_cpus_keeps_cores_whole() {
    let machine = lay("node:2 core:3 pu:2 memory:1G distance:10,20", "split:2");
    assert_eq!(cpus(&machine), ["0-1", "2-5", "6-7", "8-11"]);
    assert_eq!(
        lay("node:1 core:4 memory:1G", "2,cpus").nodes[1]
            .known_cpus()
            .to_string(),
        "2-3"
    );
    assert!(machine.origin.overlays[0].contains("split"));
}

#[test]
fn unknown_sizes_stay_unknown_and_a_size_cannot_be_cut_from_them() {
    let machine = lay("node:2 core:2 distance:10,20", "4");
    assert_eq!(cpus(&machine), ["0-1", "2-3", "0-1", "2-3"]);
    assert!(machine.nodes[0].memory.unknown_reason().is_some());
    let unknown = synthetic::parse("node:2 core:2").unwrap();
    let error = fake::lay(unknown, &"1G".parse().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("use a count"), "{error}");
}

#[test]
fn devices_follow_to_the_lowest_fake_and_nodes_without_memory_come_last() {
    let mut machine = synthetic::parse("node:3 core:1 memory:1G distance:10,20,30").unwrap();
    machine.nodes[2].memory = Known::Yes(nearfar_machine::Memory::of(0));
    machine.nodes[2].online = false;
    let address = PciAddress {
        domain: 0,
        bus: 1,
        device: 0,
        function: 0,
    };
    let root = RootBus { domain: 0, bus: 0 };
    let device = |node| PciDevice {
        address,
        vendor: 1,
        device: 1,
        class: 0x010802,
        class_name: None,
        name: None,
        driver: None,
        parent: None,
        root,
        node: Known::Yes(node),
    };
    machine.pci = Known::Yes(vec![device(Some(NodeId(1)))]);
    let machine = fake::lay(machine, &"2U".parse().unwrap()).unwrap();
    assert_eq!(
        machine.pci.get().unwrap()[0].node,
        Known::Yes(Some(NodeId(2)))
    );
    assert_eq!(machine.nodes.len(), 5);
    assert_eq!(
        (machine.nodes[4].fake_of, machine.nodes[4].online),
        (Some(NodeId(2)), false)
    );
    assert_eq!(machine.cpu(CpuId(2)).unwrap().node, Some(NodeId(0)));
    assert!(machine.warnings[0].message.contains("real node 2"));
}

#[test]
fn what_is_no_layout_says_what_is() {
    for (text, words) in [
        ("", "not a count"),
        ("0", "0 nodes"),
        ("x", "not a layout"),
        ("2g", "capitals"),
        ("2u", "capitals"),
        ("U", "not a count"),
        ("0M", "above 0"),
        ("4:10,20", "inherited"),
        ("split:x", "not a count"),
        ("5000", "at most 1024"),
        ("99999999999999U", "at most 1024"),
    ] {
        let error = text.parse::<FakeSpec>().unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let lay = |spec: &str| {
        let machine = synthetic::parse(TWO).unwrap();
        fake::lay(machine, &spec.parse().unwrap())
            .map(|machine| fake::lay(machine, &"2".parse().unwrap()))
    };
    assert!(lay("600U").unwrap_err().to_string().contains("1200 nodes"));
    assert!(
        lay("1000")
            .unwrap_err()
            .to_string()
            .contains("at least 32 MiB")
    );
    assert!(
        lay("2")
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("already has fake nodes")
    );
}

proptest! {
    #[test]
    fn every_layout_over_every_machine_is_sound(machine in any_machine(),
        spec in prop_oneof!["[1-9]", "[1-4]U", "[1-9]G", "[1-9]{2,3}M", "split:[1-4]", "[1-9],cpus"]) {
        let total: Option<u64> = machine.online_nodes().map(|node| node.total_bytes()).sum();
        let spec: FakeSpec = spec.parse().unwrap();
        if let Ok(fake) = fake::lay(machine.clone(), &spec) {
            prop_assert_eq!(fake.check(), Vec::<String>::new());
            if let Some(total) = total {
                prop_assert_eq!(fake.nodes.iter().filter(|node| node.online).filter_map(|node| node.total_bytes()).sum::<u64>(), total);
            }
            prop_assert_eq!(&fake.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), &machine.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_text_panics(text in "[0-9MGUmg:,a-z]{0,12}") {
        let _ = text.parse::<FakeSpec>();
    }
}
