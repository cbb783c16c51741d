//! hwloc's XML, in and out, also through lstopo where it is installed.

use std::process::Command;

use crate::any_machine::any_machine;
use nearfar_machine::{CacheKind, CpuId, CpuSet, Distance, Known, Machine, NodeId, PciAddress};
use nearfar_sources::{hwloc_xml, synthetic, text};
use proptest::prelude::*;

fn read(text: &str) -> Machine {
    let machine = hwloc_xml::parse(text, "test.xml").unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

/// Number, online, node, core, package.
type HeldCpu = (CpuId, bool, Option<NodeId>, Option<CpuId>, Option<i64>);

/// What XML can hold of a machine, in a form that compares.
#[derive(PartialEq, Debug)]
struct Held {
    nodes: Vec<(NodeId, CpuSet, u64)>,
    cpus: Vec<HeldCpu>,
    caches: Vec<(u32, CacheKind, CpuSet, u64, Option<u32>)>,
    distances: Option<Vec<Option<Distance>>>,
    pci: Vec<(PciAddress, u32, Option<Option<NodeId>>)>,
}

fn held(machine: &Machine) -> Held {
    let nodes: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let is_online = |node: &NodeId| nodes.contains(node);
    let complete = machine
        .distances
        .get()
        .filter(|table| table.is_complete() && nodes.len() > 1);
    Held {
        nodes: machine
            .online_nodes()
            .map(|n| (n.id, n.known_cpus().clone(), n.total_bytes().unwrap_or(0)))
            .collect(),
        cpus: machine
            .cpus
            .iter()
            .map(|c| {
                (
                    c.id,
                    c.is_online(),
                    c.node.filter(is_online),
                    c.core.filter(|_| c.is_online()),
                    c.package.filter(|_| c.is_online()),
                )
            })
            .collect(),
        caches: machine
            .caches
            .iter()
            .map(|c| {
                (
                    c.level,
                    c.kind,
                    c.cpus.clone(),
                    c.size_bytes.get().copied().unwrap_or(0),
                    c.ways,
                )
            })
            .collect(),
        distances: complete.map(|table| table.entries().map(|entry| entry.2).collect()),
        pci: machine
            .pci
            .get()
            .into_iter()
            .flatten()
            .map(|d| (d.address, d.class >> 8, d.node.get().copied()))
            .collect(),
    }
}

/// A machine's own order of cores does not survive where cores cross what hwloc can nest.
fn nests(machine: &Machine) -> bool {
    let cores_in_one_package = machine.cpus.iter().all(|cpu| {
        machine
            .siblings(cpu.id)
            .iter()
            .filter_map(|other| machine.cpu(other))
            .all(|other| other.package == cpu.package)
    });
    cores_in_one_package && machine.online_nodes().next().is_some()
}

/// The XML after lstopo has read and written it; `None` where lstopo is not installed.
fn through_lstopo(xml: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nearfar.xml");
    std::fs::write(&file, xml).unwrap();
    let mut lstopo = Command::new("lstopo-no-graphics");
    lstopo
        .env("HWLOC_DEBUG_CHECK", "1")
        .args(["--if", "xml", "--whole-io", "--of", "xml", "-i"])
        .arg(&file);
    let output = match lstopo.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!(
                "skipped: tools: lstopo-no-graphics cannot be run ({error}); install hwloc-nox to check the export"
            );
            return None;
        }
    };
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && complaint.is_empty(),
        "lstopo says: {complaint}\nabout:\n{xml}"
    );
    Some(String::from_utf8(output.stdout).unwrap())
}

proptest! {
    #[test]
    fn every_machine_comes_back_as_far_as_xml_can_hold_it(machine in any_machine().prop_filter("nests", nests)) {
        let xml = hwloc_xml::render(&machine);
        match hwloc_xml::parse(&xml, "file") {
            Ok(back) => {
                prop_assert_eq!(back.check(), Vec::<String>::new());
                prop_assert_eq!(held(&back), held(&machine), "{}", xml);
            }
            Err(error) => prop_assert!(machine.online_nodes().next().is_none(), "{}", error),
        }
    }

    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = hwloc_xml::parse(&text, "file");
    }

    #[test]
    fn no_mixture_of_elements_panics(parts in prop::collection::vec(prop_oneof![
        Just("<object type=\"Machine\" complete_cpuset=\"0xff\">"), Just("<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\"/>"),
        Just("<object type=\"NUMANode\" os_index=\"99999999999\"/>"), Just("<object type=\"PU\" os_index=\"1\"/>"),
        Just("<object type=\"Core\">"), Just("</object>"), Just("<object type=\"L3Cache\" cache_size=\"-1\" cache_type=\"9\">"),
        Just("<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[20-3f]\">"),
        Just("<object type=\"PCIDev\" pci_busid=\"0000:21:00.0\" pci_type=\"0108 [1:2] x y z\"/>"),
        Just("<distances2 type=\"NUMANode\" kind=\"5\" indexing=\"os\">"), Just("<indexes>1 2 x</indexes>"),
        Just("<u64values>10 20 20 99999999999999999999999</u64values>"), Just("</distances2>"), Just("&bomb;"), Just("<page_type size=\"1\" count=\"2\"/>"),
        Just("<object type=\"Group\" nodeset=\"0xf...f\" cpuset=\"0xf...f,,0x1\">"), Just("<info name=\"KernelNode\" value=\"7\"/>")], 0..20)) {
        let text = format!("<topology version=\"2.0\">{}", parts.concat());
        let closed = format!("{text}{}</topology>", "</object>".repeat(20));
        for text in [text, closed] {
            if let Ok(machine) = hwloc_xml::parse(&text, "file") {
                prop_assert_eq!(machine.check(), Vec::<String>::new());
            }
        }
    }
}

proptest! {
    #[test]
    fn lstopo_shows_the_same_nodes_cpus_caches_distances_and_devices(machine in any_machine().prop_filter("nests", nests)) {
        let mut machine = machine;
        // hwloc cannot be without any CPU.
        prop_assume!(!machine.cpu_states.online.is_empty());
        machine.warnings.clear();
        if let Some(xml) = through_lstopo(&hwloc_xml::render(&machine)) {
            prop_assert_eq!(held(&read(&xml)), held(&machine), "{}", xml);
        }
    }
}

#[test]
fn lstopo_shows_machines_of_several_shapes() {
    let kunpeng = text::parse(include_str!("fixtures/kunpeng-numactl.txt"), "kunpeng").unwrap();
    let mut machines = vec![kunpeng];
    for text in [
        "package:2 node:2 l3:1(size=32M) core:4 pu:2 memory:16G distance:10,12,20,22",
        "package:2 die:2 node:1 cluster:2 l2:1(size=1M) core:2 memory:1G distance:10,20;30,40",
        "node:1 core:2",
        "package:4 l3:2(size=8M) l2:1 l1d:1 l1i:1 core:1 pu:4",
        "node:64 core:4 memory:4G distance:20",
    ] {
        machines.extend(synthetic::parse(text));
    }
    for machine in machines {
        if let Some(xml) = through_lstopo(&hwloc_xml::render(&machine)) {
            assert_eq!(held(&read(&xml)), held(&machine));
        }
    }
}

#[test]
fn version_1_and_foreign_xml_say_what_to_do() {
    let error = |text: &str| hwloc_xml::parse(text, "old.xml").unwrap_err().to_string();
    let old = error("<?xml version=\"1.0\"?>\n<topology>\n<object type=\"Machine\"/></topology>");
    assert!(
        old.contains("version 1") && old.contains("lstopo") && old.contains("line 2"),
        "{old}"
    );
    assert!(error("<topology version=\"4.0\"/>").contains("version 4.0"));
    assert!(error("<html></html>").contains("<html>"));
    assert!(error("<topology version=\"2.0\"></topology>").contains("neither a CPU nor a node"));
    assert!(
        error("<topology version=\"2.0\"><object type=\"Machine\">").contains("ends in the middle")
    );
    assert!(error("<topology version=\"2.0\"><object></topology>").contains("well-formed"));
}

#[test]
fn bombs_stay_small() {
    let bomb = "<!DOCTYPE lolz [<!ENTITY a \"lol\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;\">]>\n<topology version=\"2.0\">\
                <object type=\"Machine\"><info name=\"HostName\" value=\"&b;\"/></object></topology>";
    assert!(
        hwloc_xml::parse(bomb, "bomb")
            .unwrap_err()
            .to_string()
            .contains("line 2")
    );
    let deep = format!(
        "<topology version=\"2.0\">{}",
        "<object type=\"Group\">".repeat(100_000)
    );
    assert!(
        hwloc_xml::parse(&deep, "deep")
            .unwrap_err()
            .to_string()
            .contains("deeper than")
    );
    let long = format!(
        "<topology version=\"2.0\"><object type=\"{}\"/></topology>",
        "x".repeat(20_000_000)
    );
    assert!(
        hwloc_xml::parse(&long, "long")
            .unwrap_err()
            .to_string()
            .len()
            < 200
    );
    let sets = format!(
        "<topology version=\"2.0\"><object type=\"PU\" os_index=\"0\" cpuset=\"{}\"/></topology>",
        "0xffffffff,".repeat(1_000_000)
    );
    assert_eq!(read(&sets).cpus.len(), 1);
}

#[test]
fn what_lstopo_of_version_3_writes_is_read() {
    let machine = read(include_str!("fixtures/hwloc-v3.xml"));
    assert_eq!((machine.nodes.len(), machine.cpus.len()), (2, 4));
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), Some(Distance(21)));
    assert_eq!(machine.nodes[1].known_cpus().to_string(), "2-3");
    assert_eq!(machine.nodes[1].total_bytes(), Some(1 << 30));
    assert_eq!(machine.origin.kernel, Known::Yes("6.12.1".to_owned()));
    assert_eq!(
        (machine.caches[0].level, machine.caches[0].ways),
        (3, Some(16))
    );
    assert_eq!(machine.siblings(CpuId(0)).to_string(), "0-1");
    let device = &machine.pci.get().unwrap()[1];
    assert_eq!(
        (device.class, device.vendor, device.device),
        (0x010802, 0x8086, 0x0a54)
    );
    assert_eq!(
        (device.root.to_string(), device.parent.unwrap().to_string()),
        ("0000:20".into(), "0000:20:01.0".into())
    );
    assert_eq!(device.node, Known::Yes(Some(NodeId(1))));
}

#[test]
fn what_xml_cannot_hold_is_left_out_and_offline_cpus_are_kept() {
    let mut machine = synthetic::parse("node:2 core:2 memory:1G distance:10,-;20,10").unwrap();
    machine.cpus[3].online = false.into();
    machine.cpus[3].core = None;
    machine.cpu_states.online.remove(CpuId(3));
    let back = read(&hwloc_xml::render(&machine));
    assert!(back.distances.unknown_reason().is_some());
    assert_eq!(back.nodes[1].known_cpus().to_string(), "2-3");
    assert!(back.cpus[3].is_offline());
    assert!(back.warnings[0].message.contains("taken as offline"));
}

/// Reads every XML of a checkout of hwloc (its tests hold a hundred real machines), named by `HWLOC_SOURCE`.
#[test]
#[ignore = "reads a checkout of hwloc that HWLOC_SOURCE names"]
fn all_machines_of_hwlocs_own_tests_are_read() {
    let root = std::env::var_os("HWLOC_SOURCE").expect("HWLOC_SOURCE names a checkout of hwloc");
    let mut folders = vec![std::path::PathBuf::from(root).join("tests")];
    let mut read_files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "xml") {
                let Ok(text) = std::fs::read_to_string(&path) else {
                    continue;
                };
                if !text.contains("<topology") || text.contains("<topologydiff") {
                    continue;
                }
                let machine = hwloc_xml::parse(&text, "xml")
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert_eq!(machine.check(), Vec::<String>::new(), "{}", path.display());
                let units = text.matches("<object type=\"PU\"").count();
                assert_eq!(machine.cpu_states.online.len(), units, "{}", path.display());
                assert_eq!(
                    machine.nodes.len(),
                    text.matches("<object type=\"NUMANode\"").count(),
                    "{}",
                    path.display()
                );
                // One of the files has a device twice.
                let busids = text
                    .split("pci_busid=\"")
                    .skip(1)
                    .map(|rest| &rest[..rest.find('"').unwrap()]);
                let devices = busids.collect::<std::collections::BTreeSet<_>>().len();
                assert_eq!(
                    machine.pci.get().map_or(0, Vec::len),
                    devices,
                    "{}: {:?}",
                    path.display(),
                    machine.warnings
                );
                println!(
                    "{}: {} nodes, {} CPUs, {} caches, {} PCI devices, distances {}, {:?}",
                    path.display(),
                    machine.nodes.len(),
                    machine.cpus.len(),
                    machine.caches.len(),
                    devices,
                    machine.distances.get().is_some(),
                    machine
                        .warnings
                        .iter()
                        .map(|d| &d.message)
                        .collect::<Vec<_>>()
                );
                if let Some(again) = through_lstopo(&hwloc_xml::render(&machine)) {
                    let (again, machine) = (held(&read(&again)), held(&machine));
                    assert_eq!(again.nodes, machine.nodes, "{}", path.display());
                    assert_eq!(again.cpus, machine.cpus, "{}", path.display());
                    assert_eq!(again.caches, machine.caches, "{}", path.display());
                    assert_eq!(again.distances, machine.distances, "{}", path.display());
                    assert_eq!(again.pci, machine.pci, "{}", path.display());
                }
                read_files += 1;
            }
        }
    }
    assert!(read_files > 50, "only {read_files} files");
}
