//! What holds of the design of any machine: small ones of every odd shape, and some that are far too large.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::any_machine::any_machine;
use crate::differences::differences;
use nearfar_lab::design::Design;
use nearfar_lab::scale::scaled;
use nearfar_lab::{Arch, LabError};
use nearfar_machine::{
    Acceleration, Cpu, CpuId, CpuSet, CpuStates, Distance, Known, Machine, Memory, Node, NodeId,
    NodeLimits, Origin, PciAddress, PciDevice, RootBus, SourceKind,
};
use nearfar_sources::fake;
use proptest::prelude::*;

fn designs(machine: &Machine) -> impl Iterator<Item = Result<Design, LabError>> {
    let uefi = |arch| (arch == Arch::Aarch64).then(|| PathBuf::from("QEMU_EFI.fd"));
    let with = Arch::ALL
        .into_iter()
        .map(move |arch| Design::with_firmware(machine, arch, uefi(arch)));
    with.chain([Design::with_firmware(machine, Arch::Aarch64, None)])
}

/// The values of one property in all arguments of an option.
fn values<'a>(arguments: &'a [String], option: &str, property: &str) -> Vec<&'a str> {
    let of = arguments
        .chunks(2)
        .filter(|pair| pair[0] == option)
        .map(|pair| pair[1].as_str());
    of.flat_map(|words| words.split(','))
        .filter_map(|word| word.strip_prefix(property)?.strip_prefix('='))
        .collect()
}

/// What QEMU demands of its arguments, and what other parts of the lab rely on.
fn holds(design: &Design) {
    let arguments = design.arguments_with("igb", Acceleration::Tcg);
    assert!(
        arguments
            .chunks(2)
            .all(|pair| pair.len() == 2 && pair[0].starts_with('-')),
        "{arguments:?}"
    );
    let nodes = design.hardware.nodes.len();
    let numbers: Vec<String> = (0..nodes).map(|node| node.to_string()).collect();
    assert_eq!(
        values(&arguments, "-numa", "nodeid"),
        numbers,
        "QEMU wants nodes without gaps"
    );
    let topology = design.hardware.topology;
    assert_eq!(
        topology.sockets * topology.dies * topology.cores * topology.threads,
        topology.cpus
    );
    let cpus: usize = design
        .hardware
        .nodes
        .iter()
        .map(|node| node.cpus.len())
        .sum();
    assert_eq!(
        (cpus, design.cpu_nodes.len()),
        (topology.cpus, topology.cpus),
        "each CPU is on one node"
    );
    let distances = values(&arguments, "-numa", "val");
    let pairs = nodes * nodes - nodes;
    assert!(
        [0, pairs / 2, pairs].contains(&distances.len()),
        "all pairs, in one direction or both, or none"
    );
    assert!(
        distances
            .iter()
            .all(|value| (11..=255).contains(&value.parse::<u32>().unwrap()))
    );
    for property in ["id", "drive"] {
        let names = values(&arguments, "-device", property);
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            names.len(),
            "{property} twice: {names:?}"
        );
    }
    let disks: BTreeSet<&str> = design.disks.iter().map(|disk| disk.name.as_str()).collect();
    assert!(
        values(&arguments, "-device", "drive")
            .iter()
            .all(|drive| disks.contains(drive))
    );
    let on_first = arguments
        .chunks(2)
        .filter_map(|pair| pair[1].split_once("bus=pcie.0,addr=0x"));
    let slots =
        on_first.map(|(_, rest)| u32::from_str_radix(rest.split(',').next().unwrap(), 16).unwrap());
    assert!(
        slots.clone().all(|slot| (1..0x18).contains(&slot)),
        "slots from 0x18 up are the guest's own: {arguments:?}"
    );
    assert_eq!(slots.clone().collect::<BTreeSet<_>>().len(), slots.count());
    let total: u64 = design.memory_map.iter().map(|range| range.bytes).sum();
    assert_eq!(
        total,
        design
            .hardware
            .nodes
            .iter()
            .map(|node| node.bytes)
            .sum::<u64>()
    );
    assert!(
        design
            .memory_map
            .is_sorted_by(|a, b| a.start + a.bytes <= b.start),
        "{:?}",
        design.memory_map
    );
    assert_eq!(design.expected.check(), Vec::<String>::new());
    assert_eq!(
        differences(&design.expected, &design.expected),
        Vec::<String>::new()
    );
}

proptest! {
    #[test]
    fn any_machine_becomes_arguments_that_qemu_takes_or_an_error_that_says_what_to_do(machine in any_machine()) {
        for design in designs(&machine) {
            match design {
                Ok(design) => holds(&design),
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(error.contains("--scale") || error.contains("no CPU"), "{}", error);
                }
            }
        }
    }

    #[test]
    fn a_scaled_machine_is_whole_and_keeps_nodes_distances_and_devices(
        machine in any_machine(),
        cpus in prop::option::of(1u32..5),
        memory in prop::option::of(1u64..2000),
    ) {
        let scale = NodeLimits { cpus, memory_bytes: memory.map(|mib| mib << 20) };
        let small = scaled(&machine, scale).unwrap();
        prop_assert_eq!(small.check(), Vec::<String>::new());
        prop_assert_eq!(&small.distances, &machine.distances);
        prop_assert_eq!(&small.pci, &machine.pci);
        prop_assert_eq!(small.nodes.len(), machine.nodes.len());
        for (node, was) in small.nodes.iter().zip(&machine.nodes) {
            prop_assert_eq!((node.id, node.online), (was.id, was.online));
            let most = cpus.map_or(usize::MAX, |cpus| cpus as usize);
            prop_assert_eq!(node.known_cpus().len(), was.known_cpus().len().min(most));
            prop_assert_eq!(node.has_memory() == Some(false), was.has_memory() == Some(false));
        }
        // The order of numbers over nodes is that of the CPUs that are left: interleaved stays interleaved.
        let order: Vec<Option<NodeId>> = small.cpus.iter().map(|cpu| cpu.node).collect();
        let mut before = machine.cpus.iter().map(|cpu| cpu.node);
        prop_assert!(order.iter().all(|node| before.any(|other| other == *node)), "{:?}", order);
        prop_assert_eq!(scaled(&small, scale).unwrap(), small);
    }

    #[test]
    fn fake_nodes_are_taken_away_and_laid_again(machine in any_machine(), count in 1u32..5) {
        let Ok(spec) = format!("{count}U").parse() else { return Ok(()) };
        let Ok(faked) = fake::lay(machine, &spec) else { return Ok(()) };
        let Ok(design) = Design::with_firmware(&faked, Arch::X86_64, None) else { return Ok(()) };
        holds(&design);
        prop_assert!(design.append.contains(&format!("numa=fake={count}U")), "{:?}", design.append);
        let with_memory = design.hardware.nodes.iter().filter(|node| node.bytes > 0).count();
        let fakes = design.expected.nodes.iter().filter(|node| node.total_bytes() > Some(0)).count();
        prop_assert_eq!(fakes, with_memory * count as usize);
    }
}

/// Nodes of so many CPUs each, with so much memory.
fn large(nodes: u32, cpus: u32, bytes: u64) -> Machine {
    let mut machine = Machine::empty(Origin::new(SourceKind::Synthetic, "large"), "not drawn");
    for node in 0..nodes {
        let set: CpuSet = (node * cpus..(node + 1) * cpus).map(CpuId).collect();
        machine
            .cpus
            .extend(set.iter().map(|cpu| Cpu::new(cpu, Some(NodeId(node)))));
        let mut built = Node::new(NodeId(node), set);
        built.memory = Known::Yes(Memory::of(bytes));
        machine.nodes.push(built);
    }
    machine.cpu_states =
        CpuStates::online_only(machine.cpus.iter().map(|cpu| cpu.id).collect(), "not drawn");
    machine
}

fn refusal(machine: &Machine) -> String {
    Design::with_firmware(machine, Arch::X86_64, None)
        .unwrap_err()
        .to_string()
}

#[test]
fn what_is_too_large_says_how_to_make_it_smaller() {
    let cases = [
        (large(1024, 1, 1 << 30), "1024 nodes"),
        (large(4, 2048, 1 << 30), "8192 CPUs"),
        (large(2, 1, u64::MAX / 2), "memory=512M"),
        (large(2, 1, 0), "memory=512M"),
        (large(0, 0, 0), "nodes there are is unknown"),
        (large(3, 0, 1 << 30), "no CPU"),
    ];
    for (machine, part) in cases {
        let error = refusal(&machine);
        assert!(
            error.contains(part) && error.starts_with("this machine cannot be emulated"),
            "{part:?}: {error}"
        );
    }
}

#[test]
fn the_largest_that_qemu_takes_is_designed() {
    let mut machine = large(128, 1, 128 << 20);
    let ring = |from: NodeId, to: NodeId| 10 + from.0.abs_diff(to.0);
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let mut table = nearfar_machine::Distances::empty(
        nearfar_machine::DistanceOrigin::Described,
        nodes.clone(),
    );
    for &from in &nodes {
        nodes
            .iter()
            .for_each(|&to| assert!(table.set(from, to, Some(Distance(ring(from, to))))));
    }
    machine.distances = Known::Yes(table);
    holds(&Design::with_firmware(&machine, Arch::X86_64, None).unwrap());
}

/// A function of a class on a bus and node.
fn function(bus: u8, device: u8, class: u32, node: u32) -> PciDevice {
    PciDevice {
        address: PciAddress {
            domain: 0,
            bus,
            device,
            function: 0,
        },
        vendor: 1,
        device: 1,
        class,
        class_name: None,
        name: None,
        driver: None,
        parent: None,
        root: RootBus { domain: 0, bus },
        node: Known::Yes(Some(NodeId(node))),
    }
}

#[test]
fn a_server_full_of_devices_keeps_what_fits_and_says_what_it_left_out() {
    let mut machine = large(4, 2, 1 << 30);
    let classes = [
        0x01_08_02, 0x02_00_00, 0x01_07_00, 0x03_00_00, 0x12_00_00, 0x08_80_00,
    ];
    let all = (0..=255).flat_map(|bus| (0..2).map(move |device| (bus, device)));
    let build = |(bus, device): (u8, u8)| {
        function(
            bus,
            device,
            classes[usize::from(bus) % classes.len()],
            u32::from(bus) / 64,
        )
    };
    machine.pci = Known::Yes(all.map(build).collect());
    for design in designs(&machine) {
        let design = design.unwrap();
        holds(&design);
        let notes = design.notes.join("\n");
        for part in [
            "are left out",
            "QEMU's bochs-display",
            "virtio disk",
            "base classes 08",
        ] {
            assert!(notes.contains(part), "{part:?} is not in {notes}");
        }
    }
}

#[test]
fn odd_devices_do_no_harm() {
    let mut machine = large(2, 2, 1 << 30);
    // A node that is not there, the first root bus, the last bus.
    machine.pci = Known::Yes(vec![
        function(0, 1, 0x02_00_00, 9),
        function(0, 2, 0x02_00_00, 1),
        function(255, 0, 0x01_08_02, 0),
    ]);
    for design in designs(&machine) {
        let design = design.unwrap();
        holds(&design);
        assert!(
            design
                .hardware
                .bridges
                .iter()
                .all(|bridge| bridge.node.is_none_or(|node| node.0 < 2))
        );
    }
}
