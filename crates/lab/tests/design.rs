//! What the machines of the gallery become: QEMU's arguments for each, against golden files in `arguments/`.
//!
//! `UPDATE_ARGUMENTS=1 cargo test -p nearfar-lab --test main design::` writes them again; `git diff` shows what changed.

use std::path::PathBuf;

use crate::differences::differences;
use nearfar_lab::Arch;
use nearfar_lab::design::{Design, MemoryRange};
use nearfar_lab::scale::scaled;
use nearfar_machine::Acceleration;
use nearfar_machine::{Known, Machine, NodeId};
use nearfar_sources::{Request, Want, gallery, read, synthetic};

/// With as much memory as the smallest address space of a guest has room for.
fn machine(name: &str) -> Machine {
    let machine = read(&Request::source(name, Want::all())).unwrap();
    let bytes: u64 = machine
        .nodes
        .iter()
        .filter_map(|node| node.total_bytes())
        .sum();
    match bytes > 512 << 30 {
        true => scaled(&machine, "memory=80G".parse().unwrap()).unwrap(),
        false => machine,
    }
}

fn design(machine: &Machine, arch: Arch) -> Design {
    let firmware = (arch == Arch::Aarch64).then(|| PathBuf::from("QEMU_EFI.fd"));
    Design::with_firmware(machine, arch, firmware).unwrap()
}

/// A design as text: an option a line, then what else it says.
fn page(design: &Design) -> String {
    let arguments = design.arguments_with("igb", Acceleration::Tcg);
    let mut page: String = arguments
        .chunks(2)
        .map(|option| format!("{}\n", option.join(" ")))
        .collect();
    let mut say = |what: &str, text: &str| page += &format!("# {what}: {text}\n");
    design.notes.iter().for_each(|note| say("note", note));
    design.append.iter().for_each(|word| say("append", word));
    for MemoryRange { start, bytes, node } in &design.memory_map {
        say(
            "memory",
            &format!("{start:#x}-{:#x} node {node}", start + bytes),
        );
    }
    design.disks.iter().for_each(|disk| say("disk", &disk.name));
    for port in &design.spare_ports {
        say(
            "spare port",
            &format!("{} on node {:?}", port.id, port.node.map(|node| node.0)),
        );
    }
    page
}

fn check(name: &str, design: &Design) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/arguments/{name}.txt"));
    let page = page(design);
    if std::env::var_os("UPDATE_ARGUMENTS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == page,
        "{} is not what it was; UPDATE_ARGUMENTS=1 accepts:\n{page}",
        path.display()
    );
}

#[test]
fn every_machine_of_the_gallery_becomes_the_arguments_it_became_before() {
    for entry in gallery() {
        let machine = machine(entry.name);
        let arch = Arch::of(&machine).unwrap();
        check(entry.name, &design(&machine, arch));
    }
}

#[test]
fn arm64_without_uefi_keeps_nodes_and_says_that_devices_have_none() {
    let design = Design::with_firmware(&machine("kunpeng"), Arch::Aarch64, None).unwrap();
    check("kunpeng-without-uefi", &design);
    assert!(
        design
            .notes
            .iter()
            .any(|note| note.contains("on no node") && note.contains("UEFI")),
        "{:?}",
        design.notes
    );
    assert_eq!(design.expected.online_nodes().count(), 4);
    assert!(
        design
            .expected
            .pci
            .get()
            .unwrap()
            .iter()
            .all(|device| device.node == Known::Yes(None))
    );
}

#[test]
fn what_a_guest_of_the_gallery_should_show_is_its_description() {
    for entry in gallery() {
        let described = machine(entry.name);
        let design = design(&described, Arch::of(&described).unwrap());
        let expected = &design.expected;
        assert_eq!(expected.check(), Vec::<String>::new(), "{}", entry.name);
        assert_eq!(
            differences(expected, expected),
            Vec::<String>::new(),
            "{}",
            entry.name
        );
        // Its empty nodes have other numbers, which acpi_numbers_nodes_as_they_appear_and_the_device_tree_as_they_are tests.
        if entry.name == "gb200" {
            continue;
        }
        for node in &described.nodes {
            let seen = expected.node(node.id).unwrap();
            assert_eq!(
                (seen.online, &seen.cpus),
                (node.online, &node.cpus),
                "{} node {}",
                entry.name,
                node.id
            );
            assert_eq!(
                seen.has_memory(),
                node.has_memory(),
                "{} node {}",
                entry.name,
                node.id
            );
        }
        for (from, to, distance) in described.distances.get().unwrap().entries() {
            let known = distance.is_some();
            assert!(
                !known || expected.distance(from, to) == distance,
                "{}: {from} to {to}",
                entry.name
            );
        }
        let places = |machine: &Machine| {
            let devices = machine.pci.get().into_iter().flatten();
            let mut places: Vec<_> = devices
                .map(|device| (device.class_code(), device.node.clone()))
                .collect();
            places.sort();
            places
        };
        assert_eq!(places(expected), places(&described), "{}", entry.name);
    }
}

#[test]
fn acpi_numbers_nodes_as_they_appear_and_the_device_tree_as_they_are() {
    let after = machine("powerpc-case1-after");
    let on_power = design(&after, Arch::Powerpc64le);
    assert_eq!(
        on_power.hardware.nodes.len(),
        3,
        "node 1 is there to fill the gap"
    );
    assert!(on_power.expected.node(NodeId(2)).unwrap().online);

    let on_x86 = design(&after, Arch::X86_64);
    assert_eq!(on_x86.hardware.nodes.len(), 2);
    assert!(
        !on_x86.expected.node(NodeId(1)).unwrap().online,
        "x86 has no nodes without CPUs and memory"
    );
    assert!(
        on_x86.notes.iter().any(|note| note.contains("2 is 1")),
        "{:?}",
        on_x86.notes
    );
    assert!(
        on_x86.notes.iter().any(|note| note.contains("not online")),
        "{:?}",
        on_x86.notes
    );
}

#[test]
fn memory_goes_on_above_the_hole_of_each_board() {
    let machine = synthetic::parse("node:2 core:1").unwrap();
    let mut machine = machine;
    for node in &mut machine.nodes {
        node.memory = Known::Yes(nearfar_machine::Memory::of(2 << 30));
    }
    let map = |arch| {
        let design = design(&machine, arch);
        design
            .memory_map
            .iter()
            .map(|range| (range.start, range.bytes, range.node.0))
            .collect::<Vec<_>>()
    };
    let gib = |count: u64| count << 30;
    assert_eq!(map(Arch::X86_64), [(0, gib(2), 0), (gib(4), gib(2), 1)]);
    assert_eq!(
        map(Arch::Aarch64),
        [(gib(1), gib(2), 0), (gib(3), gib(2), 1)]
    );
    assert_eq!(
        map(Arch::Powerpc64le),
        [(0, gib(2), 0), (gib(2), gib(2), 1)]
    );
}

#[test]
fn a_guest_that_differs_from_its_design_says_in_what() {
    let expected = design(&machine("x86-case1"), Arch::X86_64).expected;
    let mut inside = expected.clone();
    inside.nodes[2].online = true;
    inside.nodes[0].memory = Known::Yes(nearfar_machine::Memory::of(1 << 20));
    if let Known::Yes(devices) = &mut inside.pci {
        devices[0].node = Known::Yes(None);
    }
    let found = differences(&expected, &inside).join("\n");
    for part in [
        "nodes 0-1 were to be online, 0-2 are",
        "node 0 was to have 1024 MiB, has 1",
        "class 0108 on node 0",
    ] {
        assert!(found.contains(part), "{part:?} is not in {found}");
    }
}
